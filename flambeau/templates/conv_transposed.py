"""Transposed convolution with steps: every phase of the result is a convolution of its own, written where its places lie.

Place s * v + r of the padded result, 0 <= r < s, meets only the taps t with t * d = r modulo s, and those read neighbours: for every
phase r it is a convolution without steps over some of the taps, in reverse. All phases read the same planes of the input.

May not know: tensors, which of the two is the gradient. Entry: `transposed_convolution`, `depthwise_transposed`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from flambeau.kernel import target as targets
from flambeau.kernel.dsl import Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64, ptr
from flambeau.templates import conv_amx
from flambeau.templates.conv import Sums, sums_over_planes
from flambeau.templates.conv_planes import PLANE_FIELDS, fill_plane, fused, multiply_add, planes_of
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_program import MEMORY, REGISTER
from flambeau.templates.windows import ABI, three

MOST_PHASES = 16


class Phase:
    """Every `stride`-th place of a result along one dim, from `start` on: `count` places, each of which reads `taps`.

    Tap t is read `back[t]` windows before the place's own, which is `first` for the first place.
    """

    def __init__(self, start: int, size: int, kernel: int, stride: int, low: int, dilation: int):
        self.start, self.count = start, max(0, -(-(size - start) // stride))
        rest = (start + low) % stride
        self.first = (start + low - rest) // stride
        self.taps = [t for t in range(kernel) if (t * dilation - rest) % stride == 0]
        self.back = [(t * dilation - rest) // stride for t in self.taps]

    @property
    def reach(self) -> tuple[int, int]:
        """First and last window that is read."""
        if not self.taps:
            return self.first, self.first + self.count - 1
        return self.first - max(self.back), self.first + self.count - 1 - min(self.back)


class Phases:
    """All phases of a result, by dim, and planes of operand 0 that reach from the first window that any of them reads to the last."""

    def __init__(
        self,
        y_shape: Sequence[int],
        y_strides: Sequence[int],
        kernel: Sequence[int],
        sizes: Sequence[int],
        stride: Sequence[int],
        low: Sequence[int],
        dilation: Sequence[int],
        dtype: str,
        slot: int,
        pair_groups: int = 0,
    ):
        dims = [
            [Phase(r, *numbers) for r in range(numbers[2])] for numbers in zip(sizes, kernel, stride, low, dilation)
        ]
        self.dims = [[phase for phase in dim if phase.count] for dim in dims]
        self.first = [min(phase.reach[0] for phase in dim) for dim in self.dims]
        self.most = [max(phase.count for phase in dim) for dim in self.dims]
        last = [max(phase.reach[1] for phase in dim) for dim in self.dims]
        # The kernel stands for whatever offset a tap may have.
        wide = [b - a + 1 - n + 1 for a, b, n in zip(self.first, last, self.most)]
        one = (1,) * len(dims)
        low = [-a for a in self.first]
        self.planes = planes_of(
            y_shape, y_strides, wide, self.most, one, low, one, dtype, slot, pair_groups=pair_groups
        )
        self.pitches = (self.planes.plane_pitch, self.planes.pitch, 1)[3 - len(dims) :]

    def taps(self, phases: Sequence[Phase], w_strides: Sequence[int]) -> list[tuple[int, int]]:
        """Where the taps of one phase in each dim are read in a plane, from the place on, and where they are in the weights."""
        found = []
        for place in itertools.product(*(range(len(phase.taps)) for phase in phases)):
            at = [phase.first - phase.back[i] - a for phase, i, a in zip(phases, place, self.first)]
            taps = [phase.taps[i] for phase, i in zip(phases, place)]
            found.append((sum(p * a for p, a in zip(self.pitches, at)), sum(s * t for s, t in zip(w_strides, taps))))
        return found


def transposed_convolution(
    y_shape: Sequence[int],
    y_strides: Sequence[int],
    w_shape: Sequence[int],
    w_strides: Sequence[int],
    sizes: Sequence[int],
    stride: Sequence[int],
    low: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: str,
    *,
    threads: int,
) -> Lowered:
    """Launches for out [N, C, *sizes] from operands 0 y [N, O, *windows], 1 w [O, C / groups, *kernel]. Determinism: bitwise."""
    images, outs = y_shape[:2]
    _, rows, *kernel = w_shape
    if images * rows * math.prod(sizes) == 0:
        return Lowered(())
    paired = groups if conv_amx.serves(dtype, targets.current()) else 0
    phases = Phases(y_shape, y_strides, kernel, sizes, stride, low, dilation, dtype, 3, paired)
    planes = phases.planes
    filled = Lowered(()) if planes.launch is None else Lowered((planes.launch,), (planes.scratch_bytes,))
    steps = three([s * math.prod(sizes[d + 1 :]) for d, s in enumerate(stride)], 0)
    packed = 3 + len(filled.scratch_bytes)
    launches, scratch = list(filled.launches), [0, 0]
    for some in itertools.product(*phases.dims):
        taps = phases.taps(some, w_strides[2:])
        out_at = sum(phase.start * math.prod(sizes[d + 1 :]) for d, phase in enumerate(some))
        counts = three([phase.count for phase in some], 1)
        w_steps = (outs // groups * w_strides[0], w_strides[1], w_strides[0])
        sums = Sums(
            images, groups, rows, outs // groups, planes, counts, tuple(a for a, _ in taps), w_steps, tuple(b for _, b in taps), math.prod(sizes), out_at,
            steps, None, dtype,
        )  # fmt: skip
        summed = sums_over_planes(sums, 2, packed, threads)
        launches += summed.launches
        scratch = [max(a, b) for a, b in zip(scratch, summed.scratch_bytes)]
    return Lowered(tuple(launches), (*filled.scratch_bytes, *scratch))


# ------------------------------------------------------------------ one channel a group
FIELDS = (*PLANE_FIELDS, "plane", "out_channel", "w_row", "records", "record", "o0", "o1", "columns")
RECORD = (
    "start",
    "count0",
    "count1",
)  # of phases in all dims but the last: then for each phase of the last the number of taps, then taps


def build_depthwise_transposed(target: Target, dtype: str, columns: int, pairs: bool, reading: str) -> Module:
    """Slots: y, w, out, scratch, block. A unit is one plane, whose lines are written phase by phase; those of the last dim, of which
    there are `columns`, together: side by side if they are one, or two that make `pairs`."""
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    vector, one = compute.vec(lanes), fused(target)
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    k = module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    slot = {name: k.load(slots, ptr, i) for i, name in enumerate(("y", "w", "out", "scratch", "block"))}
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(FIELDS)}
    table = k.offset(slot["block"], 8 * len(FIELDS))
    plane = k.offset(slot["scratch"], tid * p["plane"], compute)
    steps = columns if columns == 1 or pairs else 0
    with k.range(begin, end) as unit:
        channel = unit % p["channels"]
        source = k.offset(slot["y"], unit // p["channels"] * p["xn"] + channel * p["xc"], memory)
        fill_plane(k, p, source, plane, memory, compute, lanes, reading, own=True)
        weights = k.offset(slot["w"], channel * p["w_row"], memory)
        out = k.offset(slot["out"], unit * p["out_channel"], memory)
        with k.range(0, p["records"]) as r:
            record = k.offset(table, r * p["record"] * 8)
            start, count0, count1 = (k.load(record, i64, i) for i in range(len(RECORD)))
            many = [k.load(record, i64, len(RECORD) + q) for q in range(columns)]
            taps = k.offset(record, 8 * (len(RECORD) + columns))
            with k.range(0, count0) as a, k.range(0, count1) as b:
                line = k.offset(plane, (a * p["q1"] + b) * p["q2"], compute)
                to = k.offset(out, start + a * p["o0"] + b * p["o1"], memory)

                def sums(at: Value, line=line, many=many, taps=taps) -> list[Value]:
                    """A vector of each phase of the last dim, from its place `at` on."""
                    totals = [k.var(vector, 0) for _ in range(columns)]
                    now = k.var(ptr, taps)
                    for total, count in zip(totals, many):
                        with k.range(0, count):
                            tap = now.get()
                            value = k.load(k.offset(line, at + k.load(tap, i64), compute), vector)
                            weight = k.splat(k.load(weights, memory, k.load(tap, i64, 1)).to(compute), lanes)
                            total.set(multiply_add(k, one, weight, value, total.get()))
                            now.set(k.offset(tap, 16))
                    return [total.get() for total in totals]

                width = p["columns"]
                if steps:
                    with k.range(0, (width + (steps - 1)) // steps, lanes) as at:
                        found, first = sums(at), at * steps
                        if steps == 2:
                            order = [i // 2 + lanes * (i % 2) for i in range(2 * lanes)]
                            found = [k.shuffle(*found, order[:lanes]), k.shuffle(*found, order[lanes:])]
                        for i, value in enumerate(found):
                            mask = k.tail_mask(k.maximum(width - first - i * lanes, 0), lanes)
                            k.store(to, value.to(memory), first + i * lanes, mask=mask)
                else:
                    with k.range(0, width, columns * lanes) as first:
                        for q, value in enumerate(sums(first // columns)):
                            place = k.iota(i64.vec(lanes)) * k.const(i64.vec(lanes), columns) + k.splat(
                                first + q, lanes
                            )
                            k.scatter(to, value.to(memory), place, mask=place < k.splat(width, lanes))
    k.ret()
    return module


def depthwise_transposed(
    y_shape: Sequence[int],
    y_strides: Sequence[int],
    w_shape: Sequence[int],
    w_strides: Sequence[int],
    sizes: Sequence[int],
    stride: Sequence[int],
    low: Sequence[int],
    dilation: Sequence[int],
    dtype: str,
    *,
    threads: int,
) -> Lowered:
    """Launches for out [N, C, *sizes] from operands 0 y [N, C, *windows], 1 w [C, 1, *kernel]. Determinism: bitwise."""
    images, channels = y_shape[:2]
    if images * channels * math.prod(sizes) == 0:
        return Lowered(())
    phases = Phases(y_shape, y_strides, w_shape[2:], sizes, stride, low, dilation, dtype, 0)
    planes, last = phases.planes, phases.dims[-1]
    records = []
    for some in itertools.product(*phases.dims[:-1]):
        start = sum(phase.start * math.prod(sizes[d + 1 :]) for d, phase in enumerate(some))
        taps = [phases.taps((*some, column), w_strides[2:]) for column in last]
        counts = three([*(phase.count for phase in some), 1], 1)[:2]
        records.append((start, *counts, *map(len, taps), *(word for column in taps for tap in column for word in tap)))
    size = max(map(len, records))
    steps = three([s * math.prod(sizes[d + 1 :]) for d, s in enumerate(stride)], 0)
    taps = math.prod(w_shape[2:])
    work = math.prod(sizes) * max(1, taps // math.prod(stride)) + planes.plane
    fields = (images * channels, max(1, 32768 // work), *planes.words, planes.own_elements, math.prod(sizes), w_strides[0], len(records), size, *steps[:2],
              sizes[-1], *(word for r in records for word in (*r, *(0,) * (size - len(r)))))  # fmt: skip
    recipe = Recipe(
        "conv_depthwise_transposed",
        (dtype, len(last), len(last) == stride[-1] == 2, planes.reading),
        build_depthwise_transposed,
    )
    return Lowered(
        (Launch(recipe, (0, 1, 2, 3), fields),), (threads * planes.own_elements * REGISTER[dtype].size + 256,)
    )
