"""Planes: channels of images, padded and split by stride phase, so that every tap of a convolution reads neighbours.

    planes = planes_of(x_shape, x_strides, kernel, counts, stride, low, dilation, "float32", slot=3)
    planes.taps[t]        # offset of tap t in a plane, from the place it is read for
    planes.launch         # fills scratch buffer `slot`; None where the input serves as it is

Place (a, b, c) of the result is element a * plane_pitch + b * pitch + c of a plane. Planes of pairs hold two 16-bit channels of a group side by
side, as instructions that add products in pairs want them. May not know: what is summed. Entry: `planes_of`, `fill_plane`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from flambeau.base.record import record
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, i64, ptr, u16, u32
from flambeau.templates.launch import Launch, Recipe
from flambeau.templates.loop_program import MEMORY, REGISTER
from flambeau.templates.windows import ABI, three

SLACK = 64  # elements behind the planes that a last vector may read

PLANE_FIELDS = (
    "units", "grain", "n0", "n1", "n2", "p0", "p1", "p2", "s0", "s1", "s2", "f0", "f1", "f2", "q0", "q1", "q2", "x0", "x1", "x2", "channels",
    "xn", "xc",
)  # fmt: skip
PAIR_PLANE_FIELDS = (*PLANE_FIELDS, "group_channels", "pairs", "plane")


def fused(target: Target) -> bool:
    """Whether a multiply-add is one instruction."""
    return target.arch == "aarch64" or target.has("fma")


def multiply_add(k: Function, fused: bool, x: Value, y: Value, total: Value) -> Value:
    return k.fma(x, y, total) if fused else total + x * y


def build_planes(target: Target, dtype: str, reading: str) -> Module:
    """Slots: x, planes, block. A unit is one plane: for every phase, its rows with zeros where the input ends."""
    module = Module(target.vector_bytes * 8)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    x, planes, block = (k.load(slots, ptr, i) for i in range(3))
    p = {name: k.load(block, i64, i) for i, name in enumerate(PLANE_FIELDS)}
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    size = p["f0"] * p["f1"] * p["f2"] * p["q0"] * p["q1"] * p["q2"]
    with k.range(begin, end) as unit:
        source = k.offset(x, unit // p["channels"] * p["xn"] + unit % p["channels"] * p["xc"], memory)
        fill_plane(
            k,
            p,
            source,
            k.offset(planes, unit * size, compute),
            memory,
            compute,
            target.vector_bytes // compute.size,
            reading,
        )
    k.ret()
    return module


def build_pair_planes(target: Target, reading: str) -> Module:
    """Slots: x, planes, block. A unit is the plane of two channels of a group; channels that are not there are zeros."""
    module = Module(target.vector_bytes * 8)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    x, planes, block = (k.load(slots, ptr, i) for i in range(3))
    p = {name: k.load(block, i64, i) for i, name in enumerate(PAIR_PLANE_FIELDS)}
    groups = p["channels"] // p["group_channels"]
    with k.range(begin, end) as unit:
        rest, pair = unit // p["pairs"], unit % p["pairs"]
        image, channel = rest // groups, rest % groups * p["group_channels"] + pair * 2
        source = k.offset(x, image * p["xn"] + channel * p["xc"], u16)
        there = [pair * 2 + i < p["group_channels"] for i in range(2)]
        to = k.offset(planes, unit * p["plane"], u32)
        fill_plane(k, p, source, to, u16, u32, target.vector_bytes // 4, reading, there=there)
    k.ret()
    return module


def reading_of(step: int, stride: int) -> str:
    """How a row of a plane is read: "row" where elements are neighbours, "pairs" where every other one counts, else "any"."""
    return "any" if step != 1 else {1: "row", 2: "pairs"}.get(stride, "any")


def fill_plane(
    k: Function,
    p: dict[str, Value],
    source: Value,
    to: Value,
    memory: Type,
    compute: Type,
    lanes: int,
    reading: str,
    own: bool = False,
    there: Sequence[Value] = (),
) -> None:
    """One channel, padded and split by phase: to[r0, r1, r2, i0, i1, i2] = source[i * s + r - low] for the phases r < f that taps use.

    In memory of its `own`, a row may be written past its end: the next one mends it. With `there` it is two channels side by side, bits of
    16 each, which the two values say to be there or not.
    """
    line = k.var(ptr, to)
    lane = k.iota(u32.vec(lanes))
    with (
        k.range(0, p["f0"]) as r0,
        k.range(0, p["f1"]) as r1,
        k.range(0, p["f2"]) as r2,
        k.range(0, p["q0"]) as i0,
        k.range(0, p["q1"]) as i1,
    ):
        y0, y1, first = i0 * p["s0"] + r0 - p["p0"], i1 * p["s1"] + r1 - p["p1"], r2 - p["p2"]
        inside = (y0 >= 0) & (y0 < p["n0"]) & (y1 >= 0) & (y1 < p["n1"])
        lasts = [k.splat(k.select(inside & i, p["n2"], k.const(i64, 0)).to(u32), lanes) for i in there or (inside,)]
        row = k.offset(source, y0 * p["x0"] + y1 * p["x1"], memory)

        def within(at: Value, last: Value) -> Value:
            """Which of the elements from `at` on there are; without a sign, those in front are far behind."""
            return lane + k.splat(at.to(u32), lanes) < last

        def elements(row: Value, j: Value, last: Value, first: Value = first) -> Value:
            if reading == "row":
                at = j + first
                return k.load(row, memory.vec(lanes), at, mask=within(at, last))
            if reading == "pairs":
                at = j * 2 + first
                halves = [k.load(row, memory.vec(lanes), at + h, mask=within(at + h, last)) for h in (0, lanes)]
                return k.shuffle(*halves, range(0, 2 * lanes, 2))
            at = (k.iota(i64.vec(lanes)) + k.splat(j, lanes)) * k.splat(p["s2"], lanes) + k.splat(first, lanes)
            return k.gather(row, memory, at * k.splat(p["x2"], lanes), mask=at.to(u32.vec(lanes)) < last)

        with k.range(0, p["q2"], lanes) as j:
            value = elements(row, j, lasts[0])
            if there:
                second = elements(k.offset(row, p["xc"], memory), j, lasts[1])
                value = value.to(compute) | (second.to(compute) << 16)
            k.store(line.get(), value.to(compute), j, mask=None if own else k.tail_mask(p["q2"] - j, lanes))
        line.set(k.offset(line.get(), p["q2"], compute))


def phases(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """How many of the stride's phases, from 0 on, taps may read in each dim."""
    return [1 + max(t * d % s for t in range(n)) for n, s, d in zip(kernel, stride, dilation)]


# ------------------------------------------------------------------ geometry
@record
class Planes:
    """Where the places of a result and the taps of a kernel lie in planes; all in elements."""

    counts: tuple[int, int, int]  # places of the result
    sizes: tuple[int, int, int]  # of one phase of a plane
    taps: tuple[int, ...]
    words: tuple[int, ...]  # PLANE_FIELDS from n0 on
    reading: str  # how rows of the input are read
    plane: int  # elements of a plane with all its phases
    channel_step: int
    image_step: int
    slot: int  # the operand that holds them
    launch: Launch | None
    scratch_bytes: int
    paired: bool = False  # two channels to a plane

    @property
    def pitch(self) -> int:
        return self.sizes[2]

    @property
    def plane_pitch(self) -> int:
        return self.sizes[1] * self.sizes[2]

    @property
    def own_elements(self) -> int:
        """Of memory for one plane of a thread's own."""
        return -(-(self.plane + SLACK + max(self.taps)) // 64) * 64

    @property
    def places(self) -> int:
        """From the first place to the last, with what lies between rows."""
        return self.places_of(self.counts)

    def places_of(self, counts: tuple[int, int, int]) -> int:
        """From the first place to the last, for other counts of a result that reads these planes."""
        a, b, c = counts
        return (a - 1) * self.plane_pitch + (b - 1) * self.pitch + c


def planes_of(
    x_shape: Sequence[int],
    x_strides: Sequence[int],
    kernel: Sequence[int],
    counts: Sequence[int],
    stride: Sequence[int],
    low: Sequence[int],
    dilation: Sequence[int],
    dtype: str,
    slot: int,
    *,
    pair_groups: int = 0,
) -> Planes:
    """Planes of operand 0 [N, C, *L] in buffer `slot`, or operand 0 itself where nothing has to be copied.

    With `pair_groups` planes are of pairs of channels in that many groups, an odd number of cache lines apart, so that they do not share sets.
    """
    compute = REGISTER[dtype]
    images, channels = x_shape[:2]
    k3, c3, s3, d3 = three(kernel, 1), three(counts, 1), three(stride, 1), three(dilation, 1)
    p3, n3, x3 = three(low, 0), three(x_shape[2:], 1), three(x_strides[2:], 0)
    q3 = [-(-((c - 1) * s + (t - 1) * d + 1) // s) for c, s, t, d in zip(c3, s3, k3, d3)]
    f3 = phases(k3, s3, d3)
    taps = tuple(tap_offsets(k3, s3, d3, q3, f3))
    plane = math.prod(f3) * math.prod(q3)
    fields = (*n3, *p3, *s3, *f3, *q3, *x3, channels, *x_strides[:2])
    reading = reading_of(x3[2], s3[2])
    if pair_groups:
        per_group = channels // pair_groups
        pairs, step = -(-per_group // 2), (-(-plane // 32) * 2 + 1) * 16
        units = images * pair_groups * pairs
        fields = (*fields, per_group, pairs, step)
        launch = Launch(
            Recipe("conv_pair_planes", (reading,), build_pair_planes),
            (0, slot),
            (units, max(1, 8192 // plane), *fields),
        )
        scratch = (units * step + SLACK + max(taps)) * 4
        return Planes(
            c3, tuple(q3), taps, fields, reading, plane, step, step * pairs * pair_groups, slot, launch, scratch, True
        )
    dense = all(x3[d] == math.prod(n3[d + 1 :]) or n3[d] == 1 for d in range(3))
    plain = dense and all(s == 1 for s in s3) and not any(p3) and list(n3) == q3 and MEMORY[dtype] is compute
    if plain and x_strides[1] >= plane and x_strides[0] >= 0:
        return Planes(c3, tuple(q3), taps, fields, reading, plane, x_strides[1], x_strides[0], 0, None, 0)
    units = images * channels
    recipe = Recipe("conv_planes", (dtype, reading), build_planes)
    launch = Launch(recipe, (0, slot), (units, max(1, 16384 // plane), *fields))
    scratch = (units * plane + SLACK + max(taps)) * compute.size
    return Planes(c3, tuple(q3), taps, fields, reading, plane, plane, plane * channels, slot, launch, scratch)


def tap_offsets(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], sizes: Sequence[int], split: Sequence[int]
) -> list[int]:
    """Offset of each tap in a plane, from the place it is read for: its phase, then its position in the phase."""
    found = []
    for t0 in range(kernel[0]):
        for t1 in range(kernel[1]):
            for t2 in range(kernel[2]):
                at = [t * d for t, d in zip((t0, t1, t2), dilation)]
                phase, place = [a % s for a, s in zip(at, stride)], [a // s for a, s in zip(at, stride)]
                which = (phase[0] * split[1] + phase[1]) * split[2] + phase[2]
                found.append(which * math.prod(sizes) + (place[0] * sizes[1] + place[1]) * sizes[2] + place[2])
    return found


def tap_rows(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """(base, row, column) of each tap: those of one base lie `row` rows and `column` elements apart, and so do places of the result."""
    bases: dict[tuple, int] = {}
    found = []
    for taps in itertools.product(*(range(n) for n in three(kernel, 1))):
        at = [t * d for t, d in zip(taps, three(dilation, 1))]
        (r0, r1, r2), (i0, i1, i2) = zip(*((a % s, a // s) for a, s in zip(at, three(stride, 1))))
        found.append((bases.setdefault((r0, r1, r2, i0), len(bases)), i1, i2))
    return tuple(found)


def weight_offsets(kernel: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Offset of each tap in the weights of one pair of channels."""
    return [sum(t * s for t, s in zip(place, strides)) for place in itertools.product(*(range(n) for n in kernel))]
