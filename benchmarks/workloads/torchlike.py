"""Bodies of the workloads over a module with PyTorch's names.

Each takes the framework's module and "eager" or "compiled" and returns the work: a callable without arguments that returns a tensor. Flambeau
compiles whole training steps; PyTorch, whose compiler stops at `backward`, compiles the loss, and has its fused optimiser either way.
May not import a framework. Example: `softmax(flambeau, "eager", rows=512, columns=768)()`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from bench_first_call import model as gpt

Work = Callable[[], Any]


def normal(fw: ModuleType, *shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    values = fw.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))
    return values.to(getattr(fw, dtype))


def integers(fw: ModuleType, low: int, high: int, *shape: int, seed: int = 0, dtype: str = "int64") -> Any:
    return fw.from_numpy(np.random.default_rng(seed).integers(low, high, shape).astype(dtype))


def same_parameters(fw: ModuleType, model: Any) -> Any:
    """`model` with parameters that do not depend on the framework."""
    rng = np.random.default_rng(3)
    with fw.no_grad():
        for p in model.parameters():
            p.copy_(fw.from_numpy((rng.standard_normal(tuple(p.shape)) * 0.05).astype(np.float32)))
    return model


def applied(fw: ModuleType, way: str, function: Callable[..., Any], *arguments: Any) -> Work:
    chosen = fw.compile(function) if way == "compiled" else function
    return lambda: chosen(*arguments)


def training_step(fw: ModuleType, way: str, model: Any, loss_of: Work) -> Work:
    """Forward, backward and AdamW."""
    peer = fw.__name__ == "torch"
    optimizer = fw.optim.AdamW(model.parameters(), lr=1e-5, **({"fused": True} if peer else {}))
    forward = fw.compile(loss_of) if peer and way == "compiled" else loss_of

    def step() -> Any:
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return fw.compile(step) if not peer and way == "compiled" else step


def pointwise(fw: ModuleType, way: str, n: int) -> Work:
    x, w, b = (normal(fw, n, seed=i) for i in range(3))
    return applied(fw, way, lambda x, w, b: fw.nn.functional.gelu(x * w + b), x, w, b)


def softmax(fw: ModuleType, way: str, rows: int, columns: int) -> Work:
    return applied(fw, way, lambda x: fw.softmax(x, -1), normal(fw, rows, columns))


def layer_norm(fw: ModuleType, way: str, rows: int, columns: int) -> Work:
    x, w, b = normal(fw, rows, columns), normal(fw, columns, seed=1), normal(fw, columns, seed=2)
    return applied(fw, way, lambda x, w, b: fw.nn.functional.layer_norm(x, (columns,), w, b), x, w, b)


def product(fw: ModuleType, way: str, m: int, n: int, k: int, dtype: str = "float32") -> Work:
    a, b = normal(fw, m, k, dtype=dtype), normal(fw, k, n, seed=1, dtype=dtype)
    return applied(fw, way, lambda a, b: a @ b, a, b)


def linear(fw: ModuleType, way: str, m: int, n: int, k: int, dtype: str = "float32") -> Work:
    x, w = normal(fw, m, k, dtype=dtype), normal(fw, n, k, seed=1, dtype=dtype)
    return applied(fw, way, fw.nn.functional.linear, x, w)


def int8_product(fw: ModuleType, way: str, m: int, n: int, k: int) -> Work:
    a, b = (integers(fw, -128, 128, *shape, seed=i, dtype="int8") for i, shape in enumerate(((m, k), (k, n))))
    return applied(fw, way, fw._int_mm, a, b)


def conv2d(
    fw: ModuleType, way: str, channels: int, out: int, size: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> Work:
    x, w = normal(fw, 8, channels, size, size), normal(fw, out, channels // groups, kernel, kernel, seed=1)
    call = fw.nn.functional.conv2d
    return applied(fw, way, lambda x, w: call(x, w, padding=kernel // 2, stride=stride, groups=groups), x, w)


def additions(fw: ModuleType, way: str, n: int, tape: bool = False) -> Work:
    """1000 of them, one after the other: what one call costs beside its arithmetic."""
    x, y = normal(fw, n), normal(fw, n, seed=1)
    x.requires_grad_(tape)

    def work() -> Any:
        for _ in range(1000):
            z = x + y
        return z

    return work


def mlp_step(fw: ModuleType, way: str, batch: int, width: int) -> Work:
    nn = fw.nn
    layers = [part for _ in range(4) for part in (nn.Linear(width, width), nn.ReLU())]
    model = same_parameters(fw, nn.Sequential(*layers, nn.Linear(width, 10)))
    x, y = normal(fw, batch, width), integers(fw, 0, 10, batch, seed=1)
    return training_step(fw, way, model, lambda: nn.functional.cross_entropy(model(x), y))


def gpt_step(fw: ModuleType, way: str, batch: int, length: int, width: int) -> Work:
    vocabulary = 512
    model = same_parameters(fw, gpt(fw, width, 6, 1, vocabulary, length))
    ids = integers(fw, 0, vocabulary, batch, length + 1)
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)
    return training_step(fw, way, model, lambda: fw.nn.functional.cross_entropy(model(x).view(-1, vocabulary), y))


def gpt_inference(fw: ModuleType, way: str, layers: int) -> Work:
    model = same_parameters(fw, gpt(fw, 256, 4, layers, 512, 128)).eval()
    forward = applied(fw, way, model, integers(fw, 0, 512, 2, 128))

    def work() -> Any:
        with fw.no_grad():
            return forward()

    return work


def resnet_step(fw: ModuleType, way: str, batch: int, channels: int, size: int) -> Work:
    nn, F = fw.nn, fw.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
            self.head = nn.Linear(channels, 10)

        def forward(self, x: Any) -> Any:
            y = F.relu(self.norm1(self.conv1(x)))
            y = F.relu(x + self.norm2(self.conv2(y)))
            return self.head(y.mean((2, 3)))

    model = same_parameters(fw, Block())
    x, y = normal(fw, batch, channels, size, size), integers(fw, 0, 10, batch, seed=1)
    return training_step(fw, way, model, lambda: F.cross_entropy(model(x), y))
