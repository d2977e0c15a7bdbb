"""Kernels that tests of the runtime launch, and the counting that shows which units ran."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable

from flambeau.kernel import cache
from flambeau.kernel.dsl import Function, Module
from flambeau.kernel.target import Target
from flambeau.kernel.types import f64, i64, ptr
from flambeau.runtime import errors, launch


def _module() -> tuple[Module, Function]:
    module = Module()
    return module, module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])


def build_count(target: Target) -> Module:
    """counts[unit] += 1; tids[unit] = tid."""
    module, k = _module()
    slots, begin, end, tid = k.args
    counts, tids = k.load(slots, ptr, 0), k.load(slots, ptr, 1)
    with k.range(begin, end) as unit:
        k.store(counts, k.load(counts, i64, unit) + 1, unit)
        k.store(tids, tid, unit)
    return module


def build_echo(target: Target) -> Module:
    """Copy the slots, as bits, to the address in slot 0; the parameter block's third word is their number."""
    module, k = _module()
    slots = k.args[0]
    count = k.load(slots, i64, 0)
    out = k.load(slots, ptr, 1)
    with k.range(0, count) as index:
        k.store(out, k.load(slots, i64, index), index)
    return module


def build_scale(target: Target) -> Module:
    """y[unit] = x[unit] * factor."""
    module, k = _module()
    slots, begin, end, _ = k.args
    x, y, factor = k.load(slots, ptr, 0), k.load(slots, ptr, 1), k.load(slots, f64, 2)
    with k.range(begin, end) as unit:
        k.store(y, k.load(x, f64, unit) * factor, unit)
    return module


def build_busy(target: Target) -> Module:
    """out[unit] = the end of a chain of `rounds` multiplications: some 1 ns a round that nothing can shorten. tids[unit] = tid."""
    module, k = _module()
    slots, begin, end, tid = k.args
    out, tids, rounds = k.load(slots, ptr, 0), k.load(slots, ptr, 1), k.load(slots, i64, 2)
    with k.range(begin, end) as unit:
        value = k.var(i64, unit)
        with k.range(0, rounds):
            value.set(value.get() * 6364136223846793005 + 1442695040888963407)
        k.store(out, value.get(), unit)
        k.store(tids, tid, unit)
    return module


def build_take(target: Target) -> Module:
    """y[unit] = x[indices[unit]], or a report in the error block: slots x, indices, y, size, op, error block."""
    module, k = _module()
    slots, begin, end, _ = k.args
    x, indices, y = (k.load(slots, ptr, n) for n in range(3))
    size, op, block = k.load(slots, i64, 3), k.load(slots, i64, 4), k.load(slots, ptr, 5)
    with k.range(begin, end) as unit:
        index = k.load(indices, i64, unit)
        inside = (index >= -size) & (index < size)
        k.when_else(
            inside,
            lambda: k.store(y, k.load(x, f64, k.select(index < 0, index + size, index)), unit),
            lambda: errors.emit_report(k, block, errors.INDEX, op=op, index=index, dim=0, size=size),
        )
    return module


def build_last(target: Target) -> Module:
    """parts[unit] = unit + 1, and whoever finishes the last unit stores their sum in out and adds 1 to out's second word."""
    module, k = _module()
    slots, begin, end, _ = k.args
    parts, out, block = k.load(slots, ptr, 0), k.load(slots, ptr, 1), k.load(slots, ptr, 2)
    total = k.load(block, i64, 0)
    with k.range(begin, end) as unit:
        k.store(parts, unit + 1, unit)
    counter = k.offset(slots, 8 * launch.COUNTER_SLOT)
    before = k.emit(i64, f"atomicrmw add ptr {counter.ref}, i64 {(end - begin).ref} acq_rel")
    with k.when((before + (end - begin)).eq(total)):
        value = k.var(i64, 0)
        with k.range(0, total) as unit:
            value.set(value.get() + k.load(parts, i64, unit))
        k.store(out, value.get(), 0)
        k.store(out, k.load(out, i64, 1) + 1, 1)
    return module


def entry(build: Callable[[Target], Module]) -> Callable[..., None]:
    return launch.entry(cache.address("test_" + build.__name__, (), build))


class Counted:
    """A launch of `build_count` over `total` units in chunks of `grain`."""

    def __init__(self, total: int, grain: int) -> None:
        self.counts = array("q", bytes(8 * total))
        self.tids = array("q", [-1]) * total
        self.block = launch.block([total, grain])
        self.run_kernel = entry(build_count)
        self.slots = self.counts.buffer_info()[0], self.tids.buffer_info()[0], self.block.address
        self.runs = 0

    def run(self, times: int = 1) -> None:
        for _ in range(times):
            self.run_kernel(*self.slots)
        self.runs += times

    def check(self) -> None:
        wrong = [(unit, count) for unit, count in enumerate(self.counts) if count != self.runs]
        assert not wrong, f"{len(wrong)} of {len(self.counts)} units ran not {self.runs} times, first {wrong[:3]}"


class Busy:
    """A launch of `build_busy`: `units` chunks of about `rounds` nanoseconds."""

    def __init__(self, units: int, rounds: int) -> None:
        self.out = array("q", bytes(8 * units))
        self.tids = array("q", bytes(8 * units))
        self.block = launch.block([units, 1])
        self.run_kernel = entry(build_busy)
        self.slots = self.out.buffer_info()[0], self.tids.buffer_info()[0], rounds, self.block.address

    def run(self) -> None:
        self.run_kernel(*self.slots)


def address_of(words: array) -> int:
    return words.buffer_info()[0]


def read_doubles(address: int, count: int) -> list[float]:
    return list((ctypes.c_double * count).from_address(address))
