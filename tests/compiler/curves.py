"""Training runs whose loss curves are compared: a small GPT and a small ResNet, written against names that flambeau and PyTorch share.

    losses = gpt(flambeau, wrap=flambeau.compile)     # 50 losses; initial parameters and batches follow from seeds, through NumPy

May not know: which of the two it runs on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

STEPS = 50


def plain(step: Callable) -> Callable:
    """The step as it is: eager mode."""
    return step


def seed_parameters(fw: Any, model: Any) -> None:
    """Matrices and kernels get values that NumPy draws, the same under each framework; scales, shifts and biases stay what they are."""
    rng = np.random.default_rng(5)
    with fw.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                values = rng.standard_normal(tuple(p.shape)) / np.sqrt(np.prod(p.shape[1:]))
                p.copy_(fw.from_numpy(values).to(p.dtype))
            else:
                p.copy_(p.round())  # ones and zeros are kept, small random biases become zero


def train(fw: Any, model: Any, loss_of: Callable, batches: list[tuple], wrap: Callable, rate: float) -> np.ndarray:
    """The losses of AdamW's steps, one for each batch."""
    optimizer = fw.optim.AdamW(model.parameters(), lr=rate)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = wrap(step)
    return np.array([float(step(x, y)) for x, y in batches])


def gpt(fw: Any, wrap: Callable = plain, dtype: str = "float32") -> np.ndarray:
    """Next tokens of counting sequences: embeddings, causal attention, layer norm, GELU."""
    nn, F = fw.nn, fw.nn.functional
    vocab, length, width, heads, batch = 29, 20, 32, 4, 6

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            parts = self.qkv(self.first(x)).view(b, s, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            q, k, v = parts.unbind(0)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(b, s, width))
            return x + self.down(F.gelu(self.up(self.second(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

        def forward(self, i: Any) -> Any:
            x = self.token(i) + self.place(fw.arange(i.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = GPT().to(getattr(fw, dtype))
    seed_parameters(fw, model)
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(STEPS):
        start, stride = rng.integers(0, vocab, (batch, 1)), rng.integers(1, 4, (batch, 1))
        tokens = (start + stride * np.arange(length + 1)) % vocab
        batches.append((fw.from_numpy(tokens[:, :-1].copy()), fw.from_numpy(tokens[:, 1:].copy())))
    return train(fw, model, lambda z, y: F.cross_entropy(z.reshape(-1, vocab), y.reshape(-1)), batches, wrap, 3e-3)


def resnet(fw: Any, wrap: Callable = plain, dtype: str = "float32") -> np.ndarray:
    """Where a bright spot is in noisy images: convolutions, batch norm, residuals with and without projection, both kinds of pooling."""
    nn, F = fw.nn, fw.nn.functional
    batch, side = 8, 16

    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.one = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.two = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
            self.a, self.b = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
            self.short = None
            if stride != 1 or inside != outside:
                self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

        def forward(self, x: Any) -> Any:
            y = self.b(self.two(F.relu(self.a(self.one(x)))))
            return F.relu(y + (x if self.short is None else self.short(x)))

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.MaxPool2d(2)
            self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
            self.head = nn.Linear(16, 4)

        def forward(self, x: Any) -> Any:
            x = self.blocks(self.pool(F.relu(self.norm(self.stem(x)))))
            return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))

    model = ResNet().to(getattr(fw, dtype))
    seed_parameters(fw, model)
    rng = np.random.default_rng(2)
    batches = []
    for _ in range(STEPS):
        images, labels = 0.5 * rng.standard_normal((batch, 3, side, side)), rng.integers(0, 4, batch)
        for image, label in zip(images, labels):
            image[:, 8 * (label // 2) :, 8 * (label % 2) :][:, :8, :8] += 1.0
        batches.append((fw.from_numpy(images).to(getattr(fw, dtype)), fw.from_numpy(labels)))
    return train(fw, model, F.cross_entropy, batches, wrap, 3e-3)
