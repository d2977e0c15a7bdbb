"""Packing: strips of a matrix copied to where a micro-kernel reads them one line after the other.

A panel is `width` rows (of A) or columns (of B) of a block `depth` deep, laid out as panel[p][i]; whatever the
strides of the matrix, the micro-kernel then has unit stride, no aliasing in the L1 sets and the compute type.
Elements past the edge of the matrix hold anything: they only ever meet results that are not stored.

    pack = pack_function(module, "pack_a", bf16, f32, width=14, lanes=16, order="depth")
    k.call(pack, source, stride, step, count, depth, out, panel)

May not know: blocks, threads, what the panels are for. Entry: `pack_function`, `transposed`.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.types import Type, i64, ptr

DEPTH_ALIGN = 16  # panels are stored with a depth rounded up to this: the transpose writes whole squares


def padded_depth(depth: int) -> int:
    return -(-depth // DEPTH_ALIGN) * DEPTH_ALIGN


def order_of(stride: int, step: int) -> str:
    """Which way a matrix lies: "width" (unit stride across the panel), "depth" (unit stride along it) or "any"."""
    if stride == 1:
        return "width"
    return "depth" if step == 1 else "any"


def transposed(k: Function, rows: list[Value]) -> list[Value]:
    """A square of vectors, transposed: L vectors of L lanes, 4- or 8-byte elements.

    Interleaves inside 128-bit lanes first and moves whole 128-bit lanes last: each step is one instruction.
    """
    lanes = len(rows)
    inner = 16 // rows[0].type.size  # elements of a 128-bit lane
    chunks = lanes // inner

    def within(a: Value, b: Value, picks: list[int]) -> Value:
        """In every 128-bit lane, the elements `picks` of a (0 … inner-1) and b (inner …)."""
        return k.shuffle(
            a, b, [inner * c + (p if p < inner else lanes + p - inner) for c in range(chunks) for p in picks]
        )

    groups = []  # groups[g][j], lane c: column inner * c + j of rows inner * g ... + inner
    for g in range(0, lanes, inner):
        r = rows[g : g + inner]
        if inner == 2:
            groups.append([within(r[0], r[1], [0, 2]), within(r[0], r[1], [1, 3])])
            continue
        low = [within(r[0], r[1], [0, 4, 1, 5]), within(r[2], r[3], [0, 4, 1, 5])]
        high = [within(r[0], r[1], [2, 6, 3, 7]), within(r[2], r[3], [2, 6, 3, 7])]
        pairs = [[0, 1, 4, 5], [2, 3, 6, 7]]
        groups.append([within(*half, pick) for half in (low, high) for pick in pairs])

    def whole(a: Value, b: Value, picks: list[int]) -> Value:
        """128-bit lanes of a (0 … chunks-1) and b (chunks …)."""
        return k.shuffle(a, b, [inner * c + e for c in picks for e in range(inner)])

    columns: list[Value] = [rows[0]] * lanes
    for j in range(inner):
        column = [g[j] for g in groups]
        if chunks == 1:
            columns[j] = column[0]
        elif chunks == 2:
            columns[j] = whole(column[0], column[1], [0, 2])
            columns[inner + j] = whole(column[0], column[1], [1, 3])
        else:
            even = [whole(column[i], column[i + 1], [0, 2, 4, 6]) for i in (0, 2)]
            odd = [whole(column[i], column[i + 1], [1, 3, 5, 7]) for i in (0, 2)]
            for first, pair in ((0, even), (1, odd)):
                columns[inner * first + j] = whole(*pair, [0, 2, 4, 6])
                columns[inner * (first + 2) + j] = whole(*pair, [1, 3, 5, 7])
    return columns


def pack_function(
    module: Module, name: str, memory: Type, compute: Type, width: int, lanes: int, order: str
) -> Function:
    """name(source, stride, step, count, depth, out, panel): out[q * panel + p * width + i] = source[(q * width + i) * stride + p * step].

    Strides are in elements; `count` rows are packed, into as many panels as that takes, `panel` elements apart, which is
    at least `width` times the depth rounded up to DEPTH_ALIGN. The last panel may be written past its end by less than
    a vector: the block wants `lanes` elements of slack behind it.
    """
    k = module.function(
        name,
        [("source", ptr), ("stride", i64), ("step", i64), ("count", i64), ("depth", i64), ("out", ptr), ("panel", i64)],
        internal=True,
    )
    if order == "width":
        _pack_lines(k, memory, compute, width, lanes)
    elif order == "depth":
        _pack_squares(k, memory, compute, width, lanes)
    else:
        _pack_elements(k, memory, compute, width)
    k.ret()
    return k


def _pack_lines(k: Function, memory: Type, compute: Type, width: int, lanes: int) -> None:
    """Line by line of the matrix, a few at a time over all panels: reads run on along the rows."""
    source, _, step, count, depth, out, panel = k.args
    vectors = -(-width // lanes)
    narrow = k.tail_mask(k.const(i64, width % lanes), lanes) if width % lanes else None
    whole = count // width * width

    def copy(p: Value, i: Value, many: int, masks: list[Value | None]) -> None:
        at, to = k.offset(source, p * step, memory), k.offset(out, i // width * panel + p * width, compute)
        for u in range(many):
            line = at if u == 0 else k.offset(at, step * u, memory)
            for v in range(vectors):
                cut = narrow if v == vectors - 1 else None
                value = k.load(line, memory.vec(lanes), i + v * lanes, mask=masks[v] or cut).to(compute)
                k.store(to, value, u * width + v * lanes, mask=cut)

    few = depth & -4
    with k.range(0, few, 4) as p, k.range(0, whole, width) as i:
        copy(p, i, 4, [None] * vectors)
    with k.range(few, depth) as p, k.range(0, whole, width) as i:
        copy(p, i, 1, [None] * vectors)
    with k.when(whole < count):
        masks = [k.tail_mask(count - whole - v * lanes, lanes) for v in range(vectors)]
        with k.range(0, depth) as p:
            copy(p, whole, 1, masks)


def _square_function(module: Module, name: str, memory: Type, compute: Type, width: int, lanes: int) -> Function:
    """name(source, stride, out): `lanes` rows, `stride` bytes apart, of as many elements, to as many lines of a panel."""
    k = module.function(name, [("source", ptr), ("stride", i64), ("out", ptr)], internal=True)
    source, stride, out = k.args
    rows = [k.load(k.offset(source, stride * i), memory.vec(lanes)).to(compute) for i in range(lanes)]
    for j, line in enumerate(
        transposed(k, rows)
    ):  # in rising order: where lines overlap, the later one holds the truth
        k.store(out, line, j * width)
    k.ret()
    return k


def _pack_squares(k: Function, memory: Type, compute: Type, width: int, lanes: int) -> None:
    """Squares of the matrix, transposed; those at its edges by way of a copy, so that nothing outside is read."""
    source, stride, _, count, depth, out, panel = k.args
    square = _square_function(k.module, f"{k.name}_square", memory, compute, width, lanes)
    vectors = -(-width // lanes)
    copy = k.stack(lanes * lanes * memory.size)
    with k.range(0, count, width) as first, k.range(0, vectors) as back:
        # The last vector of the lines goes first: it may run into the line behind, which the others then write.
        part = (vectors - 1 - back) * lanes
        row, last = first + part, count - 1
        to = k.offset(out, first // width * panel + part, compute)
        with k.range(0, depth, lanes) as p:
            target = k.offset(to, p * width, compute)

            def inside(p: Value = p, row: Value = row, target: Value = target) -> None:
                k.call(square, k.offset(source, row * stride + p, memory), stride * memory.size, target)

            def at_edge(p: Value = p, row: Value = row, target: Value = target, last: Value = last) -> None:
                left = k.minimum(depth - p, lanes)
                with k.range(0, lanes) as i:  # rows past the last one repeat it
                    line = k.offset(source, k.minimum(row + i, last) * stride + p, memory)

                    def whole(line: Value = line, i: Value = i) -> None:
                        k.store(copy, k.load(line, memory.vec(lanes)), i * lanes)

                    def partly(line: Value = line, i: Value = i, left: Value = left) -> None:
                        k.store(copy, k.const(memory.vec(lanes), 0), i * lanes)
                        with k.range(0, left) as q:
                            k.store(copy, k.load(line, memory, q), i * lanes + q)

                    k.when_else(left.eq(lanes), whole, partly)
                k.call(square, copy, lanes * memory.size, target)

            k.when_else((row + lanes > count) | (p + lanes > depth), at_edge, inside)


def _pack_elements(k: Function, memory: Type, compute: Type, width: int) -> None:
    source, stride, step, count, depth, out, panel = k.args
    with k.range(0, count) as i:
        at = k.offset(source, i * stride, memory)
        to = k.offset(out, i // width * panel + i % width, compute)
        with k.range(0, depth) as p:
            k.store(to, k.load(at, memory, p * step).to(compute), p * width)
    # Rows that are not there, in the last panel: zeros, since what memory holds may be slow to multiply (denormal).
    left = (width - count % width) % width
    with k.range(count, count + left) as i:
        to = k.offset(out, i // width * panel + i % width, compute)
        with k.range(0, depth) as p:
            k.store(to, k.const(compute, 0), p * width)
