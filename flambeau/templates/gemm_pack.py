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
from flambeau.kernel.types import Type, i1, i64, ptr

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
        return k.shuffle(a, b, [inner * c + (p if p < inner else lanes + p - inner) for c in range(chunks) for p in picks])

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


def pack_function(module: Module, name: str, memory: Type, compute: Type, width: int, lanes: int, order: str) -> Function:
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
    narrow = k.const(i1.vec(lanes), True) if width % lanes == 0 else k.tail_mask(k.const(i64, width % lanes), lanes)
    whole = count // width * width

    def lines(p: Value, many: int) -> None:
        at = k.offset(source, p * step, memory)
        to = k.offset(out, p * width, compute)

        def copy(i: Value, target: Value, careful: bool) -> None:
            for u in range(many):
                line = at if u == 0 else k.offset(at, step * u, memory)
                for v in range(vectors):
                    cut = narrow if v == vectors - 1 and width % lanes else None
                    mask = k.tail_mask(count - i - v * lanes, lanes) if careful else cut
                    value = k.load(line, memory.vec(lanes), i + v * lanes, mask=mask).to(compute)
                    k.store(target, value, u * width + v * lanes, mask=cut)

        with k.range(0, whole, width) as i:
            copy(i, k.offset(to, i // width * panel, compute), False)
        with k.when(whole < count):
            copy(whole, k.offset(to, whole // width * panel, compute), True)

    few = depth & -4
    with k.range(0, few, 4) as p:
        lines(p, 4)
    with k.range(few, depth) as p:
        lines(p, 1)


def _pack_squares(k: Function, memory: Type, compute: Type, width: int, lanes: int) -> None:
    """Squares of `lanes` rows, transposed."""
    source, stride, _, count, depth, out, panel = k.args
    vectors = -(-width // lanes)
    with k.range(0, count, width) as first:
        # Rows past the edge repeat the last one, so that nothing outside the matrix is read.
        corner, last = k.offset(source, first * stride, memory), count - 1 - first
        rows = [k.offset(corner, k.minimum(last, i) * stride, memory) for i in range(vectors * lanes)]
        to = k.offset(out, first // width * panel, compute)

        def square(p: Value, mask: Value | None) -> None:
            target = k.offset(to, p * width, compute)
            columns = []
            for v in range(vectors):
                part = [k.load(row, memory.vec(lanes), p, mask=mask).to(compute) for row in rows[v * lanes : (v + 1) * lanes]]
                columns.append(transposed(k, part))
            # Line by line: where lines overlap, the later one holds the truth.
            for j in range(lanes):
                for v in range(vectors):
                    k.store(target, columns[v][j], j * width + v * lanes)

        whole = depth & -lanes
        with k.range(0, whole, lanes) as p:
            square(p, None)
        with k.when(whole < depth):
            square(whole, k.tail_mask(depth - whole, lanes))


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
