"""Elementwise and row kernels as a share of memory bandwidth, measured in the same run by copying as much.

    python benchmarks/bench_rows.py [--cols 4096] [--cases softmax,gelu] [--sizes L2,L3,DRAM]

Three sizes of array: one that stays in the second-level caches, where arithmetic is the bound; one that stays in the last level (64 MiB
unless that is smaller), and one of at least three times the last level (a sixth of the free memory at most). Copy, kernel, copy, kernel …
in turns; the lower fifth of each counts, since other work on the machine only adds time. Results go where earlier ones lay, as in a
program that runs for long. GB/s count each operand once.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flambeau
from flambeau.nn import functional as F

MEBIBYTE = 1 << 20
SECONDS = 0.5  # for each kernel at each size
FEWEST_ROUNDS = 5


def cache_bytes(level: int) -> int:
    """Size of the first core's cache of a level, as Linux tells; of the last level if it has no such."""
    found = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        number, unit = re.fullmatch(r"(\d+)([KMG])", (index / "size").read_text().strip()).groups()
        found[int((index / "level").read_text())] = int(number) << {"K": 10, "M": 20, "G": 30}[unit]
    if not found:
        raise SystemExit("bench_rows: sizes of caches must be in /sys/devices/system/cpu/cpu0/cache, and are not.")
    return found.get(level, found[max(found)])


def free_bytes() -> int:
    return int(re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())[1]) << 10


def sizes() -> dict[str, int]:
    """Bytes of one array of each size."""
    last = cache_bytes(3)
    within = min(64 * MEBIBYTE, last // 4)
    beyond = min(max(3 * last, 256 * MEBIBYTE), free_bytes() // 6)
    return {
        "L2": cache_bytes(2) // 4 * flambeau.get_num_threads(),
        "L3": within,
        "DRAM": beyond if beyond > 2 * last else 0,
    }


def seconds(work: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times


def compare(copy: Callable[[], Any], work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the copy and of the work."""
    work(), copy()
    times = max(1, int(1e-3 / seconds(work, 1)))
    copies: list[float] = []
    works: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(works) < FEWEST_ROUNDS or time.perf_counter() < end:
        copies.append(seconds(copy, times))
        works.append(seconds(work, times))
    at = len(works) // 5
    return sorted(copies)[at], sorted(works)[at]


def cases(rows: int, cols: int) -> dict[str, tuple[Callable[[], Any], int]]:
    """The work and how many arrays of the input's size it reads and writes; then "copy"."""
    x, y = flambeau.randn(rows, cols), flambeau.randn(rows, cols)
    w, b = flambeau.randn(cols), flambeau.randn(cols)
    return {
        "add": (lambda: x + y, 3),
        "mul by a number": (lambda: x * 1.5, 2),
        "exp": (lambda: x.exp(), 2),
        "erf": (lambda: x.erf(), 2),
        "gelu": (lambda: F.gelu(x), 2),
        "tanh": (lambda: x.tanh(), 2),
        "silu": (lambda: F.silu(x), 2),
        "sum of all": (lambda: x.sum(), 1),
        "sum of rows": (lambda: x.sum(1), 1),
        "sum of columns": (lambda: x.sum(0), 1),
        "softmax": (lambda: flambeau.softmax(x, -1), 2),
        "layer_norm": (lambda: F.layer_norm(x, (cols,), w, b), 2),
        "copy": (lambda: x.clone(), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--cases", default="")
    parser.add_argument("--sizes", default="L2,L3,DRAM")
    options = parser.parse_args()
    flambeau.manual_seed(0)
    print(f"{flambeau.get_num_threads()} threads; shares are of a copy's GB/s")
    for place, size in sizes().items():
        if place not in options.sizes.split(","):
            continue
        if not size:
            print(f"{place}: not enough memory for arrays beyond the last cache")
            continue
        rows = max(1, size // 4 // options.cols)
        known = cases(rows, options.cols)
        copy, arrays = known.pop("copy")
        n = rows * options.cols * 4
        for name, (work, count) in known.items():
            if options.cases and name not in options.cases.split(","):
                continue
            a, b = compare(copy, work)
            copied, rate = arrays * n / a / 1e9, count * n / b / 1e9
            print(
                f"{place:5s} {n / MEBIBYTE:6.0f} MiB  {name:16s} {rate:6.1f} GB/s  copy {copied:6.1f}  {rate / copied:4.0%}"
            )


if __name__ == "__main__":
    main()
