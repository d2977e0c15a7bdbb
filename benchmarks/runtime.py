"""What the runtime costs: a call, a divided region, a wake-up, a block of memory.

    python -m benchmarks.runtime

Each line is the fastest and the median of several rounds, in nanoseconds. The machine should be idle.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from flambeau.kernel.dsl import Module
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64, ptr
from flambeau.runtime import allocator, launch
from tests.runtime import kernels


def build_nothing(target: Target) -> Module:
    module = Module()
    module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])
    return module


def rounds_ns(work: Callable[[], object], rounds: int = 9, prepare: Callable[[], object] | None = None) -> list[float]:
    times = []
    for _ in range(rounds):
        if prepare is not None:
            prepare()
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return times


def report(name: str, times: list[float], per: int = 1, minus: float = 0.0) -> float:
    best, median = min(times) / per - minus, statistics.median(times) / per - minus
    print(f"{name:58s} {best:10.1f} {median:10.1f}")
    return best


def calls(count: int, function: Callable[..., object], *slots: object) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            function(*slots)

    return run


def wake_ns(idle_s: float) -> list[float]:
    """How long the caller works alone after a pause: chunks of 1 us it took before the worker's first one."""
    launch.set_num_threads(2)
    busy = kernels.Busy(500, 500)
    times = []
    for _ in range(40):
        busy.run()
        until = time.perf_counter_ns() + idle_s * 1e9
        if idle_s > 1e-3:
            time.sleep(idle_s)
        while time.perf_counter_ns() < until:
            pass
        start = time.perf_counter_ns()
        busy.run()
        each = (time.perf_counter_ns() - start) / 250  # two threads
        tids = busy.tids.tolist()
        times.append(each * (tids.index(1) if 1 in tids else len(tids)))
    return times


def main() -> None:
    nothing = kernels.entry(build_nothing)
    here, divided, many = launch.block([1, 1]), launch.block([2, 1]), launch.block([64, 1])
    pointer = 1 << 45
    count = 100_000
    print(f"{'ns':58s} {'best':>10s} {'median':>10s}")
    loop = report("Python: loop that calls abs(1)", rounds_ns(calls(count, abs, 1)), count)
    report("Python: function with 4 arguments", rounds_ns(calls(count, lambda a, b, c, d: None, 1, 2, 3, 4)), count)
    report("entry, 4 slots", rounds_ns(calls(count, nothing, pointer, pointer, 0.5, here.address)), count)
    report("entry, 16 slots", rounds_ns(calls(count, nothing, *[pointer] * 15, here.address)), count)
    for threads in (1, 2):
        launch.set_num_threads(threads)
        report(
            f"entry, 4 slots, 2 chunks, {threads} thread",
            rounds_ns(calls(count, nothing, pointer, pointer, 0.5, divided.address)),
            count,
        )
        report(
            f"entry, 4 slots, 64 chunks, {threads} thread",
            rounds_ns(calls(20_000, nothing, pointer, pointer, 0.5, many.address)),
            20_000,
        )
    for rounds in (1_000, 10_000, 100_000):
        busy = kernels.Busy(2, rounds)
        for threads in (1, 2):
            launch.set_num_threads(threads)
            repeat = max(1, 5_000_000 // rounds // 2)
            report(f"2 chunks of {rounds} steps, {threads} thread", rounds_ns(calls(repeat, busy.run)), repeat)
    report("wake from idle: until the worker's first chunk", wake_ns(0.02))
    report("the same 20 us after the last region", wake_ns(20e-6))
    free = allocator.size_class(4096).free
    allocator.size_class(4096).fresh()
    free.append(pointer)

    def recycle() -> None:
        for _ in range(count):
            free.append(free.pop())

    report("allocator: pop and append", rounds_ns(recycle), count)
    free.remove(pointer)
    report("allocator: size_class", rounds_ns(calls(count, allocator.size_class, 5000)), count)
    big = allocator.size_class(64 << 20)

    def map_and_unmap() -> None:
        big.free.append(big.fresh())
        allocator.empty_cache()

    report("allocator: map and unmap 64 MiB", rounds_ns(map_and_unmap))
    print(f"(a loop iteration with a builtin call is {loop:.0f} ns of each of these)")


if __name__ == "__main__":
    main()
