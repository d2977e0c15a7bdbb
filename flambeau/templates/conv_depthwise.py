"""Depthwise convolution: one input channel for each group of output channels, a plane at a time in a thread's own cache.

A unit pads one plane into scratch (split by stride phase, see `conv_planes`), then runs along the rows of the result with the taps' weights in
registers, a few rows at a time so that what they share is loaded once. Sums run over taps in order, whatever the threads.

The gradient by the weights has a unit for each channel: a vector of sums for each tap over the lines of all images, its lanes added at the end.

May not know: tensors. Entry: `depthwise`, `depthwise_weight`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flambeau.kernel import target as targets
from flambeau.kernel.dsl import Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64, ptr
from flambeau.templates.conv_planes import (
    PLANE_FIELDS,
    fill_plane,
    fused,
    multiply_add,
    planes_of,
    tap_rows,
    weight_offsets,
)
from flambeau.templates.epilogue import EpilogueCode, Finishing
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_program import MEMORY, REGISTER
from flambeau.templates.windows import ABI, three

MOST_WRITTEN_OUT = 25
ROWS = 4  # lines of the result at a time: with 3 x 3 taps each element is loaded 1.5 times a line instead of 3
FIELDS = (
    *PLANE_FIELDS,
    "multiplier",
    "taps",
    "c0",
    "c1",
    "c2",
    "plane",
    "out_channel",
    "has_bias",
    "bias_step",
    "w_row",
)


def build_depthwise(
    target: Target,
    dtype: str,
    taps: tuple[tuple[int, int, int], ...],
    rows: int,
    reading: str,
    epilogue: EpilogueCode | None = None,
) -> Module:
    """Slots: x, w, bias, out, scratch, those of the epilogue, block; then the taps' offsets in a plane and in w. A unit is one plane.

    `taps` are what `tap_rows` says of them (none: a loop over them). A block is `rows` lines of the result: what several of
    them read is loaded once. The last block ends with the last line, though some lines are then computed twice.
    """
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    vector, one = compute.vec(lanes), fused(target)
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    k = module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    finishing = Finishing(epilogue)
    slot = finishing.slots(k, slots, ("x", "w", "bias", "out", "scratch"))
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(FIELDS)}
    table = k.offset(slot["block"], 8 * len(FIELDS))
    w_table = k.offset(table, p["taps"] * 8)
    finishing.over(k, k.offset(w_table, p["taps"] * 8))
    plane = k.offset(slot["scratch"], tid * p["plane"], compute)
    # Elements that a block reads, in the order of their rows: base, row, column.
    read = sorted({(row + r, base, column) for base, row, column in taps for r in range(rows)})
    with k.range(begin, end) as unit:
        channel = unit % p["channels"]
        source = k.offset(slot["x"], unit // p["channels"] * p["xn"] + channel * p["xc"], memory)
        fill_plane(k, p, source, plane, memory, compute, lanes, reading, own=True)
        with k.range(0, p["multiplier"]) as m:
            number = channel * p["multiplier"] + m
            weights = k.offset(slot["w"], number * p["w_row"], memory)
            out = k.offset(slot["out"], (unit * p["multiplier"] + m) * p["out_channel"], memory)
            start = k.var(compute, 0)
            with k.when(p["has_bias"].ne(0)):
                start.set(k.load(slot["bias"], memory, number * p["bias_step"]).to(compute))

            def weight(t: Value | int, weights: Value = weights) -> Value:
                return k.splat(k.load(weights, memory, k.load(w_table, i64, t)).to(compute), lanes)

            known = {place: weight(t) for t, place in enumerate(taps)}
            bases = {}
            for t, (base, row, column) in enumerate(taps):
                if base not in bases:
                    bases[base] = k.load(table, i64, t) - p["q2"] * row - column

            with k.range(0, p["c0"]) as a, k.range(0, p["c1"], rows) as block:
                b = k.minimum(block, p["c1"] - rows)
                line = k.offset(plane, (a * p["q1"] + b) * p["q2"], compute)
                to = k.offset(out, (a * p["c1"] + b) * p["c2"], memory)
                starts = {(row, base): k.offset(line, bases[base] + p["q2"] * row, compute) for row, base, _ in read}

                def sums(at: Value, line=line, start=start, known=known, starts=starts, weight=weight) -> list[Value]:
                    """A vector of each line of the block from place `at` on."""
                    totals = [k.var(vector, k.splat(start.get(), lanes)) for _ in range(rows)]
                    if not taps:
                        with k.range(0, p["taps"]) as t:
                            value = k.load(k.offset(line, at + k.load(table, i64, t), compute), vector)
                            totals[0].set(multiply_add(k, one, weight(t), value, totals[0].get()))
                    for row, base, column in read:
                        value = k.load(k.offset(starts[row, base], at, compute), vector, column)
                        for r, total in enumerate(totals):
                            if (base, row - r, column) in known:
                                total.set(multiply_add(k, one, known[base, row - r, column], value, total.get()))
                    return [total.get() for total in totals]

                whole = p["c2"] // lanes * lanes
                with k.range(0, whole, lanes) as at:
                    for r, total in enumerate(sums(at)):
                        k.store(to, total.to(memory), at + p["c2"] * r)
                with k.when(whole < p["c2"]):
                    mask = k.tail_mask(p["c2"] - whole, lanes)
                    for r, total in enumerate(sums(whole)):
                        k.store(to, total.to(memory), whole + p["c2"] * r, mask=mask)
            if finishing:
                line_number = unit * p["multiplier"] + m
                finishing.piece(k, line_number, line_number + 1, 0, p["out_channel"])
    k.ret()
    return module


def depthwise(
    x_shape: Sequence[int],
    x_strides: Sequence[int],
    w_shape: Sequence[int],
    w_strides: Sequence[int],
    counts: Sequence[int],
    stride: Sequence[int],
    low: Sequence[int],
    dilation: Sequence[int],
    dtype: str,
    bias_stride: int | None,
    *,
    threads: int,
) -> Lowered:
    """Launches for out [N, C m, *counts] from operands 0 x [N, C, *L], 1 w [C m, 1, *kernel], 2 bias [C m] if there is one."""
    compute = REGISTER[dtype]
    images, channels = x_shape[:2]
    outs, _, *kernel = w_shape
    if images * outs * math.prod(counts) == 0:
        return Lowered(())
    planes = planes_of(x_shape, x_strides, kernel, counts, stride, low, dilation, dtype, 0)
    taps = planes.taps
    work = math.prod(counts) * len(taps) * (outs // channels) + planes.plane
    fields = (images * channels, max(1, 32768 // work), *planes.words, outs // channels, len(taps), *planes.counts, planes.own_elements,
              math.prod(counts), int(bias_stride is not None), bias_stride or 0, w_strides[0], *taps, *weight_offsets(kernel, w_strides[2:]))  # fmt: skip
    written_out = tap_rows(kernel, stride, dilation) if len(taps) <= MOST_WRITTEN_OUT else ()
    lines = ROWS if written_out and planes.counts[1] >= ROWS else 1
    out = 2 if bias_stride is None else 3
    recipe = Recipe("conv_depthwise", (dtype, written_out, lines, planes.reading), build_depthwise)
    return Lowered(
        (Launch(recipe, (0, 1, 2, out, out + 1), fields),), (threads * planes.own_elements * compute.size + 256,)
    )


# ------------------------------------------------------------------ the gradient by the weights
WEIGHT_FIELDS = (
    *PLANE_FIELDS,
    "multiplier",
    "taps",
    "passes",
    "c0",
    "c1",
    "c2",
    "plane",
    "images",
    "gn",
    "gc",
    "g0",
    "g1",
    "g2",
)


def build_depthwise_weight(target: Target, dtype: str, taps: int, reading: str, unit_g: bool) -> Module:
    """Slots: x, g, out, scratch, block; then the taps' offsets in a plane. A unit is one channel; `taps` are summed in one pass."""
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    vector, one = compute.vec(lanes), fused(target)
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    k = module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    slot = {name: k.load(slots, ptr, i) for i, name in enumerate(("x", "g", "out", "scratch", "block"))}
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(WEIGHT_FIELDS)}
    table = k.offset(slot["block"], 8 * len(WEIGHT_FIELDS))
    kept = p["multiplier"] * p["passes"] * (taps * lanes)  # sums of a channel
    plane = k.offset(slot["scratch"], tid * (p["plane"] + kept), compute)
    sums = k.offset(plane, p["plane"], compute)
    with k.range(begin, end) as channel:
        with k.range(0, kept, lanes) as i:
            k.store(sums, k.const(vector, 0), i)
        with k.range(0, p["images"]) as image:
            source = k.offset(slot["x"], image * p["xn"] + channel * p["xc"], memory)
            fill_plane(k, p, source, plane, memory, compute, lanes, reading, own=True)
            with k.range(0, p["multiplier"]) as m, k.range(0, p["passes"]) as turn:
                g = k.offset(slot["g"], image * p["gn"] + (channel * p["multiplier"] + m) * p["gc"], memory)
                here = k.offset(sums, (m * p["passes"] + turn) * (taps * lanes), compute)
                offsets = [k.load(table, i64, turn * taps + t) for t in range(taps)]
                totals = [k.var(vector, k.load(here, vector, t * lanes)) for t in range(taps)]
                with k.range(0, p["c0"]) as a, k.range(0, p["c1"]) as b:
                    line = k.offset(plane, (a * p["q1"] + b) * p["q2"], compute)
                    row = k.offset(g, a * p["g0"] + b * p["g1"], memory)

                    def add(at: Value, mask: Value | None, line=line, row=row, offsets=offsets, totals=totals) -> None:
                        if unit_g:
                            value = k.load(row, memory.vec(lanes), at, mask=mask)
                        else:
                            places = (k.iota(i64.vec(lanes)) + k.splat(at, lanes)) * k.splat(p["g2"], lanes)
                            value = k.gather(row, memory, places, mask=mask)
                        value = value.to(compute)
                        for offset, total in zip(offsets, totals):
                            x = k.load(k.offset(line, at + offset, compute), vector, mask=mask)
                            total.set(multiply_add(k, one, value, x, total.get()))

                    whole = p["c2"] // lanes * lanes
                    with k.range(0, whole, lanes) as at:
                        add(at, None)
                    with k.when(whole < p["c2"]):
                        add(whole, k.tail_mask(p["c2"] - whole, lanes))
                for t, total in enumerate(totals):
                    k.store(here, total.get(), t * lanes)
        with k.range(0, p["multiplier"]) as m, k.range(0, p["taps"]) as t:
            total = k.reduce(k.load(sums, vector, (m * p["passes"] * taps + t) * lanes), lambda x, y: x + y)
            k.store(slot["out"], total.to(memory), (channel * p["multiplier"] + m) * p["taps"] + t)
    k.ret()
    return module


def depthwise_weight(
    x_shape: Sequence[int],
    x_strides: Sequence[int],
    g_shape: Sequence[int],
    g_strides: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    low: Sequence[int],
    dilation: Sequence[int],
    dtype: str,
    *,
    threads: int,
) -> Lowered:
    """Launches for out [C m, 1, *kernel] from operands 0 x [N, C, *L], 1 g [N, C m, *counts]. Determinism: bitwise."""
    target, compute = targets.current(), REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    channels, (images, outs, *counts) = x_shape[1], g_shape
    planes = planes_of(x_shape, x_strides, kernel, counts, stride, low, dilation, dtype, 0)
    taps, multiplier, g3 = len(planes.taps), outs // channels, three(g_strides[2:], 0)
    most = MOST_WRITTEN_OUT if target.vector_bytes == 64 or target.arch == "aarch64" else 12
    passes = -(-taps // most)
    together = -(-taps // passes)
    work = images * (math.prod(counts) * taps * multiplier + planes.plane)
    fields = (channels, max(1, 32768 // work), *planes.words, multiplier, taps, passes, *planes.counts, planes.own_elements, images, *g_strides[:2], *g3,
              *planes.taps, *(0,) * (together * passes - taps))  # fmt: skip
    recipe = Recipe("conv_depthwise_weight", (dtype, together, planes.reading, g3[2] == 1), build_depthwise_weight)
    own = planes.own_elements + multiplier * passes * together * lanes
    return Lowered((Launch(recipe, (0, 1, 2, 3), fields),), (threads * own * compute.size + 256,))
