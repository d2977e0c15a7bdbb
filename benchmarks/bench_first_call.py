"""How long the first call of a compiled 12-layer GPT takes: with an empty cache of kernels, and in a new process with a full one.

    python benchmarks/bench_first_call.py [--layers 12] [--train]

Each measurement is a process of its own; the time is from the call of the compiled function to its result, tracing included, after import.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time


def model(fw, width: int, heads: int, layers: int, vocab: int, length: int):
    """A GPT with learned positions."""
    nn, F = fw.nn, fw.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, s, _ = x.shape
            q, k, v = self.qkv(self.n1(x)).view(b, s, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, width)
            x = x + self.proj(a)
            return x + self.down(F.gelu(self.up(self.n2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
            self.blocks, self.norm = nn.ModuleList([Block() for _ in range(layers)]), nn.LayerNorm(width)
            self.head = nn.Linear(width, vocab)

        def forward(self, ids):
            x = self.tokens(ids) + self.places(fw.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return GPT()


def measure(layers: int, train: bool) -> None:
    """Print the seconds of the first and second call."""
    import flambeau as fw

    net = model(fw, 256, 4, layers, 512, 128)
    ids = fw.randint(0, 512, (2, 128))
    if train:
        optimizer = fw.optim.AdamW(net.parameters(), lr=1e-4)

        def work():
            optimizer.zero_grad()
            loss = fw.nn.functional.cross_entropy(net(ids).view(-1, 512), ids.view(-1))
            loss.backward()
            optimizer.step()
            return loss.detach()

    else:

        def work():
            with fw.no_grad():
                return net(ids)

    compiled = fw.compile(work, fullgraph=True)
    for name in ("first", "second"):
        start = time.perf_counter()
        compiled()
        print(f"{name} {time.perf_counter() - start:.3f} s", end="  ")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure(options.layers, options.train)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, FLAMBEAU_CACHE_DIR=folder)
        command = [
            sys.executable,
            __file__,
            "--here",
            "--layers",
            str(options.layers),
            *(["--train"] if options.train else []),
        ]
        for label in ("empty cache", "full cache ", "full cache "):
            print(
                label,
                subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip(),
                flush=True,
            )


if __name__ == "__main__":
    main()
