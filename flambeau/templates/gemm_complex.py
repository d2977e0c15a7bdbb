"""Complex products as real ones: twice as deep and twice as wide.

A row-major complex matrix read as real numbers is [m, 2k]. With b written out as [2k, 2n], the rows (re, im) and
(-im, re) by turns, the real product is the complex one, interleaved as it should be: four real multiplications each,
and every real kernel serves. b is written out in scratch; a, the bias and the result only where they do not lie
along their rows.

May not know: how real products are done. Entry: `lower_complex`.
"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.base.record import replace
from flambeau.kernel.dsl import Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64, ptr
from flambeau.templates.gemm_problem import Problem, batch_words, launch, normalised, swapped, with_swapped_operands
from flambeau.templates.gemm_tiles import ABI, ELEMENTS, unit_offsets
from flambeau.templates.launch import Launch, Lowered

PARTS = {"complex64": "float32", "complex128": "float64"}
COPY, ADD, WRITE_OUT = 0, 1, 2


def build_complex_copy(target: Target, part: str, mode: int) -> Module:
    """to[i, j] = from[i, j], or += with ADD, or rows 2i and 2i + 1 of the real matrix with WRITE_OUT.

    Slots: from, to, block; a unit is one row of one matrix. Block: units, grain, rows, columns, then strides in real
    numbers: of from along rows and columns, of to likewise; then the batch with strides of from and to.
    """
    real = ELEMENTS[part][0]
    lanes = target.lanes(real)
    module = Module(target.vector_bytes * 8)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    source, target_at, block = (k.load(slots, ptr, i) for i in range(3))
    rows, columns, from_row, from_column, to_row, to_column = (k.load(block, i64, 2 + i) for i in range(6))
    with k.range(begin, end) as unit:
        place, i = unit // rows, unit % rows
        from_at, to_at = unit_offsets(k, k.offset(block, 8 * 8), place, 2)
        line = k.offset(source, from_at + i * from_row, real)
        to = k.offset(target_at, to_at + i * to_row, real)
        below = k.offset(to, columns * 2, real)

        def one(j: Value) -> None:
            cell, put = k.offset(line, j * from_column, real), j * to_column
            re, im = k.load(cell, real, 0), k.load(cell, real, 1)
            if mode == ADD:
                re, im = re + k.load(to, real, put), im + k.load(to, real, put + 1)
            k.store(to, re, put)
            k.store(to, im, put + 1)
            if mode == WRITE_OUT:
                k.store(below, -im, put)
                k.store(below, re, put + 1)

        def many(j: Value) -> None:
            """Numbers that follow each other, on both sides."""
            at = j * 2
            values = k.load(line, real.vec(lanes), at)
            if mode == ADD:
                values = values + k.load(to, real.vec(lanes), at)
            k.store(to, values, at)
            if mode == WRITE_OUT:
                k.store(
                    below,
                    k.shuffle(values, -values, [lanes + i + 1 if i % 2 == 0 else i - 1 for i in range(lanes)]),
                    at,
                )

        dense = from_column.eq(2) & to_column.eq(2)
        whole = k.select(dense, columns & -(lanes // 2), k.const(i64, 0))
        with k.range(0, whole, lanes // 2) as j:
            many(j)
        with k.range(whole, columns) as j:
            one(j)
    k.ret()
    return module


class _Scratch:
    """Scratch buffers in front of those of the real product, and the copies into them."""

    def __init__(self, first: int, part: str):
        self.first, self.part = first, part
        self.sizes: list[int] = []

    def new(self, reals: int) -> int:
        self.sizes.append(max(64, reals * ELEMENTS[self.part][0].size))
        return self.first + len(self.sizes) - 1

    def copy(self, source: int, to: int, mode: int, sizes: tuple[int, int], strides: tuple[int, int], to_strides: tuple[int, int],
             batch: list[tuple[int, int, int]]) -> Launch:  # fmt: skip
        """Strides of the source and of the batch entries (size, of source, of copy) in reals."""
        words = batch_words((0, 0, 0), [(size, a, b, 0) for size, a, b in batch])
        units = sizes[0]
        for size, _, _ in batch:
            units *= size
        grain = 0 if units * sizes[1] < 1 << 14 else max(1, (1 << 12) // max(1, sizes[1]))
        fields = (*sizes, *strides, *to_strides, *words)
        return launch("gemm_complex_copy", (self.part, mode), build_complex_copy, (source, to), units, grain, fields)


def _own(
    batch: tuple[tuple[int, ...], ...], which: int, matrix: int
) -> tuple[list[tuple[int, int, int]], list[int], int]:
    """Batch entries for copying operand `which`, the strides of its copies for every entry, and the copies' total size."""
    entries, strides, step = [], [], matrix
    for entry in batch:
        if entry[which] == 0:
            strides.append(0)
            continue
        entries.append((entry[0], 2 * entry[which], step))
        strides.append(step)
        step *= entry[0]
    return entries, strides, step


def lower_complex(p: Problem, lower_real: Callable[[Problem], Lowered]) -> Lowered:
    """`lower_real` lowers a normalised real problem."""
    if p.out[1] != 1 and p.out[0] == 1:
        return with_swapped_operands(lower_complex(swapped(p), lower_real))
    part = PARTS[p.dtype]
    out = p.inputs
    scratch = _Scratch(out + 1, part)
    before: list[Launch] = []
    after: list[Launch] = []
    place = {0: 0, 1: 1, 2: 2, out: out}
    a, c, bias = (2 * p.a[0], 1), (2 * p.out[0], 1), p.bias
    a_strides, c_strides = [2 * e[1] for e in p.batch], [2 * e[3] for e in p.batch]
    accumulate = p.accumulate

    if p.k:
        entries, b_strides, size = _own(p.batch, 2, 4 * p.k * p.n)
        place[1] = scratch.new(size)
        before.append(scratch.copy(1, place[1], WRITE_OUT, (p.k, p.n), (2 * p.b[0], 2 * p.b[1]), (4 * p.n, 2), entries))
    else:
        b_strides = [0] * len(p.batch)
    if p.a[1] != 1 and p.k:
        entries, a_strides, size = _own(p.batch, 1, 2 * p.m * p.k)
        place[0], a = scratch.new(size), (2 * p.k, 1)
        before.append(scratch.copy(0, place[0], COPY, (p.m, p.k), (2 * p.a[0], 2 * p.a[1]), (2 * p.k, 2), entries))
    if bias is not None and bias[1] == 1:
        bias = (2 * bias[0], 1)
    elif bias is not None:
        rows = p.m if bias[0] else 1
        place[2] = scratch.new(2 * rows * p.n)
        before.append(scratch.copy(2, place[2], COPY, (rows, p.n), (2 * bias[0], 2 * bias[1]), (2 * p.n, 2), []))
        bias = (2 * p.n if bias[0] else 0, 1)
    if p.out[1] != 1:
        entries, c_strides, size = _own(p.batch, 3, 2 * p.m * p.n)
        place[out], c = scratch.new(size), (2 * p.n, 1)
        back = [(many, copied, original) for many, original, copied in entries]
        mode = ADD if accumulate else COPY
        after.append(scratch.copy(place[out], out, mode, (p.m, p.n), (2 * p.n, 2), (2 * p.out[0], 2 * p.out[1]), back))
        accumulate = False

    batch = tuple((e[0], x, y, z) for e, x, y, z in zip(p.batch, a_strides, b_strides, c_strides, strict=True))
    real = replace(p, n=2 * p.n, k=2 * p.k, a=a, b=(2 * p.n, 1), out=c, batch=batch, dtype=part, out_dtype=part, bias=bias,
                   accumulate=accumulate)  # fmt: skip
    lowered = lower_real(normalised(real))
    ours = len(scratch.sizes)
    steps = [replace(s, buffers=tuple(place[i] if i <= out else i + ours for i in s.buffers)) for s in lowered.launches]
    return Lowered((*before, *steps, *after), (*scratch.sizes, *lowered.scratch_bytes))
