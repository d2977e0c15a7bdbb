"""The default mode's choice of kernels against what `compile(mode="max-autotune")` finds.

    python benchmarks/bench_tuning.py                          # every case, on two threads; answers are measured anew
    python benchmarks/bench_tuning.py mm_128 conv --threads 1  # cases whose names begin so
    python benchmarks/bench_tuning.py --reorder                # ways that add in another order too

For each case both plans run by turns on the same tensors after the tuner is done; printed are the fastest call of each, their ratio (1.10: the
default is a tenth slower), what was found, and the seconds it took. The default should lose at most a tenth.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import flambeau as torch
from flambeau.base.settings import settings
from flambeau.schedule.tuning import Tuner


def mm(m: int, n: int, k: int, layout: str = "nn", dtype: Any = torch.float32) -> Callable[[], tuple]:
    """A product; layout t: the operand is the transpose of a row-major matrix."""

    def make() -> tuple:
        a = torch.randn(m, k).to(dtype) if layout[0] == "n" else torch.randn(k, m).to(dtype).t()
        b = torch.randn(k, n).to(dtype) if layout[1] == "n" else torch.randn(n, k).to(dtype).t()
        return (lambda a, b: a @ b), a, b

    return make


def linear(m: int, n: int, k: int, dtype: Any = torch.float32) -> Callable[[], tuple]:
    def make() -> tuple:
        x, w, b = (torch.randn(*shape).to(dtype) for shape in ((m, k), (n, k), (n,)))
        return torch.nn.functional.linear, x, w, b

    return make


def conv(images: int, c: int, size: int, out: int, kernel: int, stride: int = 1) -> Callable[[], tuple]:
    def make() -> tuple:
        x, w = torch.randn(images, c, size, size), torch.randn(out, c, kernel, kernel)
        return (lambda x, w: torch.nn.functional.conv2d(x, w, stride=stride, padding=kernel // 2)), x, w

    return make


CASES: dict[str, Callable[[], tuple]] = {
    "mm_128": mm(128, 128, 128),
    "mm_1024": mm(1024, 1024, 1024),
    "mm_2048": mm(2048, 2048, 2048),
    "mm_2048_bf16": mm(2048, 2048, 2048, dtype=torch.bfloat16),
    "linear_m1": linear(1, 4096, 4096),
    "linear_m8": linear(8, 4096, 4096),
    "linear_m8_bf16": linear(8, 4096, 4096, torch.bfloat16),
    **{f"mm_1024x384x1536_{layout}": mm(1024, 384, 1536, layout) for layout in ("nn", "nt", "tn", "tt")},
    **{f"mm_1024x1536x384_{layout}": mm(1024, 1536, 384, layout) for layout in ("nn", "nt", "tn")},
    "conv_64_3x3": conv(8, 64, 56, 64, 3),
    "conv_64_128_stride2": conv(8, 64, 56, 128, 3, 2),
    "conv_256_64_1x1": conv(8, 256, 28, 64, 1),
}


def fastest(calls: list[Callable[[], Any]], seconds: float) -> list[float]:
    """The shortest time of each, by turns."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reorder", action="store_true")
    parser.add_argument("--seconds", type=int, default=5, help="bound of the tuner, for each case")
    parser.add_argument("--kept", action="store_true", help="use the answers that are on disk")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: list[str] = []
    whole = Tuner.answer

    def noted(self: Tuner, question: Any) -> Any:
        choice = whole(self, question)
        found.append("as it is" if choice == question.candidates[0] else str(choice))
        return choice

    Tuner.answer = noted  # type: ignore[method-assign]
    names = [n for n in CASES if not options.cases or n.startswith(tuple(options.cases))]
    print(f"{'case':<24} {'default ms':>10} {'tuned ms':>9} {'ratio':>6} {'tuning s':>8}  choice")
    with tempfile.TemporaryDirectory() as folder:
        changes: dict[str, Any] = {"tune_seconds": options.seconds, "tune_reorders": options.reorder}
        with settings.scope(**changes, **({} if options.kept else {"cache_dir": folder})):
            for name in names:
                f, *args = CASES[name]()
                plain, tuned = torch.compile(f), torch.compile(f, mode="max-autotune")
                plain(*args)
                found.clear()
                start = time.perf_counter()
                tuned(*args)
                took = time.perf_counter() - start
                default_s, tuned_s = fastest([lambda: plain(*args), lambda: tuned(*args)], 1.5)
                print(
                    f"{name:<24} {default_s * 1e3:>10.3f} {tuned_s * 1e3:>9.3f} {default_s / tuned_s:>6.2f} {took:>8.1f}  {'; '.join(found)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
