"""Elementwise and row kernels as a share of memory bandwidth, measured in the same run by copying as much.

    python benchmarks/bench_rows.py [rows cols]

Copy, kernel, copy, kernel … in turns; the lower fifth of each counts, since other work on the machine only adds time.
"""

from __future__ import annotations

import sys
import time

import flambeau
from flambeau.nn import functional as F

ROUNDS = 15


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def share(copy, work, copy_bytes: int, work_bytes: int) -> tuple[float, float]:
    """(share of the copy's bandwidth, GB/s of the work)."""
    copies, works = [], []
    for _ in range(ROUNDS):
        copies.append(seconds(copy))
        works.append(seconds(work))
    a, b = sorted(copies)[ROUNDS // 5], sorted(works)[ROUNDS // 5]
    return (work_bytes / b) / (copy_bytes / a), work_bytes / b / 1e9


def main() -> None:
    rows, cols = (int(x) for x in sys.argv[1:3]) if len(sys.argv) > 2 else (4096, 4096)
    flambeau.manual_seed(0)
    x, w, b = flambeau.randn(rows, cols), flambeau.randn(cols), flambeau.randn(cols)
    y = flambeau.randn(rows, cols)
    n = x.nbytes
    cases = {
        "add": (lambda: x + y, 3 * n),
        "mul by a number": (lambda: x * 1.5, 2 * n),
        "exp": (lambda: x.exp(), 2 * n),
        "gelu": (lambda: F.gelu(x), 2 * n),
        "sum of all": (lambda: x.sum(), n),
        "sum of rows": (lambda: x.sum(1), n),
        "sum of columns": (lambda: x.sum(0), n),
        "softmax": (lambda: flambeau.softmax(x, -1), 2 * n),
        "layer_norm": (lambda: F.layer_norm(x, (cols,), w, b), 2 * n),
    }
    for name, (work, count) in cases.items():
        work()
        found, rate = share(lambda: x.clone(), work, 2 * n, count)
        print(f"{name:16s} {rate:6.1f} GB/s, {found:4.0%} of a copy's")


if __name__ == "__main__":
    main()
