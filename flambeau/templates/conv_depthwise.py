"""Depthwise convolution: one input channel for each group of output channels, a plane at a time in a thread's own cache.

A unit pads one plane into scratch (split by stride phase, see `conv`), then runs along the rows of the result with the taps' weights in
registers: one load and one fused multiply-add per tap. Sums run over taps in order, whatever the threads.

May not know: tensors, gradients. Entry: `depthwise`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flambeau.kernel.dsl import Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64, ptr
from flambeau.templates.conv import (
    PLANE_FIELDS,
    SLACK,
    fill_plane,
    fused,
    multiply_add,
    phases,
    reading_of,
    tap_offsets,
    weight_offsets,
)
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_program import MEMORY, REGISTER
from flambeau.templates.windows import ABI, three

MOST_WRITTEN_OUT = 25
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


def build_depthwise(target: Target, dtype: str, taps: int, reading: str) -> Module:
    """Slots: x, w, bias, out, scratch, block; then the taps' offsets in a plane and in w. A unit is one plane. `taps` 0: a loop over them."""
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    k = module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    slot = {name: k.load(slots, ptr, i) for i, name in enumerate(("x", "w", "bias", "out", "scratch", "block"))}
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(FIELDS)}
    table = k.offset(slot["block"], 8 * len(FIELDS))
    w_table = k.offset(table, p["taps"] * 8)
    plane = k.offset(slot["scratch"], tid * p["plane"], compute)
    ways = 2
    with k.range(begin, end) as unit:
        channel = unit % p["channels"]
        source = k.offset(slot["x"], unit // p["channels"] * p["xn"] + channel * p["xc"], memory)
        fill_plane(k, p, source, plane, memory, compute, lanes, reading)
        with k.range(0, p["multiplier"]) as m:
            row = channel * p["multiplier"] + m
            weights = k.offset(slot["w"], row * p["w_row"], memory)
            out = k.var(ptr, k.offset(slot["out"], (unit * p["multiplier"] + m) * p["out_channel"], memory))
            start = k.var(compute, 0)
            with k.when(p["has_bias"].ne(0)):
                start.set(k.load(slot["bias"], memory, row * p["bias_step"]).to(compute))
            known = [k.splat(k.load(weights, memory, k.load(w_table, i64, t)).to(compute), lanes) for t in range(taps)]
            offsets = [k.load(table, i64, t) for t in range(taps)]

            def sums(
                line: Value, at: Value, count: int, weights: Value = weights, start=start, known=known, offsets=offsets
            ) -> list[Value]:
                """`count` vectors of the result from place `at` of a row on."""
                totals = [k.var(compute.vec(lanes), k.splat(start.get(), lanes)) for _ in range(count)]

                def tap(weight: Value, offset: Value) -> None:
                    here = k.offset(line, at + offset, compute)
                    for v, total in enumerate(totals):
                        value = k.load(here, compute.vec(lanes), v * lanes)
                        total.set(multiply_add(k, fused(target), weight, value, total.get()))

                if taps:
                    for weight, offset in zip(known, offsets):
                        tap(weight, offset)
                else:
                    with k.range(0, p["taps"]) as t:
                        weight = k.load(weights, memory, k.load(w_table, i64, t)).to(compute)
                        tap(k.splat(weight, lanes), k.load(table, i64, t))
                return [total.get() for total in totals]

            with k.range(0, p["c0"]) as a, k.range(0, p["c1"]) as b:
                line = k.offset(plane, (a * p["q1"] + b) * p["q2"], compute)
                to = out.get()
                whole = p["c2"] // (ways * lanes) * (ways * lanes)
                with k.range(0, whole, ways * lanes) as at:
                    for v, total in enumerate(sums(line, at, ways)):
                        k.store(to, total.to(memory), at + v * lanes)
                with k.range(whole, p["c2"], lanes) as at:
                    k.store(to, sums(line, at, 1)[0].to(memory), at, mask=k.tail_mask(p["c2"] - at, lanes))
                out.set(k.offset(to, p["c2"], memory))
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
    k3, c3, s3, d3 = three(kernel, 1), three(counts, 1), three(stride, 1), three(dilation, 1)
    p3, n3, x3 = three(low, 0), three(x_shape[2:], 1), three(x_strides[2:], 0)
    q3 = [-(-((c - 1) * s + (t - 1) * d + 1) // s) for c, s, t, d in zip(c3, s3, k3, d3)]
    f3 = phases(k3, s3, d3)
    taps = tap_offsets(k3, s3, d3, q3, f3)
    size = math.prod(f3) * math.prod(q3)
    plane = -(-(size + SLACK + max(taps)) // 64) * 64
    units = images * channels
    work = math.prod(c3) * len(taps) * (outs // channels) + size
    fields = (units, max(1, 32768 // work), *n3, *p3, *s3, *f3, *q3, *x3, channels, x_strides[0], x_strides[1], outs // channels, len(taps), *c3, plane,
              math.prod(c3), int(bias_stride is not None), bias_stride or 0, w_strides[0], *taps, *weight_offsets(kernel, w_strides[2:]))  # fmt: skip
    written_out = len(taps) if len(taps) <= MOST_WRITTEN_OUT else 0
    out = 2 if bias_stride is None else 3
    recipe = Recipe("conv_depthwise", (dtype, written_out, reading_of(x3[2], s3[2])), build_depthwise)
    return Lowered((Launch(recipe, (0, 1, 2, out, out + 1), fields),), (threads * plane * compute.size + 256,))
