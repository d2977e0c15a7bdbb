"""Matrix products against PyTorch, in one process, by turns.

    python benchmarks/bench_gemm.py                          # every case, 1 and 2 threads
    python benchmarks/bench_gemm.py mm_f32_1024 --threads 1

Both sides read the same memory and write results of their own, which are compared first. Blocks of calls alternate,
with a pause between so that one side's waiting threads do not disturb the other. One thread is timed by its CPU clock,
more by the wall clock; the ratio (PyTorch's time over ours, > 1: we are faster) is of the fastest tenths, in brackets
of the medians. Timings leave out planning: `gemm` and the kernels are made before.
"""

from __future__ import annotations

import argparse
import mmap
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import torch

from flambeau.core import dtype as dtypes
from flambeau.kernel import cache
from flambeau.runtime import launch
from flambeau.templates.gemm import gemm
from flambeau.templates.launch import Lowered


@dataclass(frozen=True)
class Case:
    m: int
    n: int
    k: int
    dtype: str = "float32"
    layout: str = "nn"  # t: the operand is the transpose of a row-major matrix
    batch: int = 1


CASES = {f"mm_f32_{s}": Case(s, s, s) for s in (32, 64, 128, 200, 256, 512, 1024, 2048)}
CASES |= {f"mm_f64_{s}": Case(s, s, s, "float64") for s in (64, 512, 1024)}
CASES |= {f"mm_bf16_{s}": Case(s, s, s, "bfloat16") for s in (128, 512, 1024, 2048)}
CASES |= {f"mm_f16_{s}": Case(s, s, s, "float16") for s in (1024,)}
CASES |= {f"mm_f32_1024_{lay}": Case(1024, 1024, 1024, "float32", lay) for lay in ("nt", "tn", "tt")}
CASES |= {f"linear_f32_m{m}": Case(m, 4096, 4096, "float32", "nt") for m in (1, 2, 4, 8, 16, 32, 64)}
CASES |= {f"linear_bf16_m{m}": Case(m, 4096, 4096, "bfloat16", "nt") for m in (1, 8, 32, 128)}
CASES |= {f"row_f32_m{m}": Case(m, 4096, 4096) for m in (1, 8)}
CASES |= {f"tall_f32_n{n}": Case(4096, n, 4096) for n in (1, 8)}
CASES |= {
    "odd_f32": Case(1001, 999, 1003),
    "mlp_f32": Case(64, 1024, 256, "float32", "nt"),
    "dot_f32": Case(1, 1, 1 << 20),
    "outer_f32": Case(1024, 1024, 1),
    "deep_f32": Case(16, 16, 100000, "float32", "tn"),
    "bmm_f32_64": Case(64, 64, 64, batch=128),
    "bmm_f32_8": Case(8, 8, 8, batch=4096),
    "bmm_bf16_attention": Case(512, 512, 64, "bfloat16", "nt", 16),
    "mm_i32_256": Case(256, 256, 256, "int32"),
    "mm_i8_256": Case(256, 256, 256, "int8"),
    "mm_c64_256": Case(256, 256, 256, "complex64"),
}  # fmt: skip


def huge_pages(size: int) -> torch.Tensor:
    """Memory as the runtime's allocator hands it out: 2 MiB pages."""
    memory = mmap.mmap(-1, size + (4 << 20))
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


class Plan:
    """The launches of a `Lowered` bound to addresses."""

    def __init__(self, lowered: Lowered, tensors: list[torch.Tensor]):
        self.scratch = [huge_pages(size) for size in lowered.scratch_bytes]
        addresses = [t.data_ptr() for t in tensors] + [-(-s.data_ptr() // (2 << 20)) * (2 << 20) for s in self.scratch]
        self.steps = []
        for step in lowered.launches:
            run = launch.entry(cache.address(step.recipe.name, step.recipe.parameters, step.recipe.build))
            block = launch.block(step.params)
            self.steps.append((run, (*(addresses[i] for i in step.buffers), block.address), block))

    def __call__(self) -> None:
        for run, slots, _ in self.steps:
            run(*slots)


def operands(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = getattr(torch, case.dtype)

    def one(rows: int, columns: int, flipped: bool) -> torch.Tensor:
        sizes = (case.batch, columns, rows) if flipped else (case.batch, rows, columns)
        if dtype.is_floating_point or dtype.is_complex:
            values = torch.randn(sizes, dtype=dtype)
        else:
            values = torch.randint(-100, 100, sizes, dtype=dtype)
        return values.mT if flipped else values

    return one(case.m, case.k, case.layout[0] == "t"), one(case.k, case.n, case.layout[1] == "t")


def sides(case: Case, threads: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """(ours, PyTorch's), checked against each other."""
    a, b = operands(case)
    ours, theirs = (
        torch.empty(case.batch, case.m, case.n, dtype=a.dtype),
        torch.empty(case.batch, case.m, case.n, dtype=a.dtype),
    )
    lowered = gemm(
        case.m, case.n, case.k, a.stride()[1:], b.stride()[1:], getattr(dtypes, case.dtype), batch=(case.batch,),
        a_batch_strides=a.stride()[:1], b_batch_strides=b.stride()[:1], threads=threads,
    )  # fmt: skip
    plan = Plan(lowered, [a, b, ours])
    plan.operands = (a, b, ours)
    if case.batch == 1:
        a, b, result = a[0], b[0], theirs[0]
        peer = lambda: torch.mm(a, b, out=result)
    else:
        peer = lambda: torch.bmm(a, b, out=theirs)
    plan()
    peer()
    scale = float(theirs.abs().to(torch.float64).mean()) + 1e-30
    error = float((ours.to(torch.complex128) - theirs.to(torch.complex128)).abs().max()) / scale
    if error > {"bfloat16": 0.1, "float16": 0.02, "float32": 1e-3}.get(case.dtype, 1e-4):
        raise SystemExit(f"bench_gemm: results must agree, got a relative difference of {error:.3g} for {case}.")
    return plan, peer


def timed(work: Callable[[], None], seconds: float, clock: Callable[[], int]) -> list[float]:
    """Nanoseconds a call, from samples of at least 20 us."""
    start = clock()
    work()
    repeats = max(1, min(1000, 20000 // max(1, clock() - start)))
    samples, end = array("d"), time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        start = clock()
        for _ in range(repeats):
            work()
        samples.append((clock() - start) / repeats)
    return list(samples)


def compare(case: Case, threads: int, rounds: int, seconds: float) -> tuple[float, float, float, float]:
    """(ours, PyTorch's) fastest tenth, then medians, in ns."""
    launch.set_num_threads(threads)
    torch.set_num_threads(threads)
    clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    works = sides(case, threads)
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for mine, work in zip(samples, works, strict=True):
            time.sleep(0.01)
            mine += timed(work, seconds, clock)
    ours, theirs = (sorted(s) for s in samples)
    return ours[len(ours) // 10], theirs[len(theirs) // 10], ours[len(ours) // 2], theirs[len(theirs) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {' '.join(CASES)}; a beginning stands for all that have it")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.05)
    options = parser.parse_args()
    for name, case in CASES.items():
        if options.cases and not any(name.startswith(c) for c in options.cases):
            continue
        for threads in options.threads:
            ours, theirs, middle, their_middle = compare(case, threads, options.rounds, options.seconds)
            rate = 2 * case.batch * case.m * case.n * case.k / ours
            print(f"{name:22s} threads {threads}: ratio {theirs / ours:5.2f} ({their_middle / middle:5.2f})  "
                  f"ours {ours / 1e3:9.2f} us, torch {theirs / 1e3:9.2f} us  {rate:7.1f} GFLOP/s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
