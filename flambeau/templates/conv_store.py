"""Where sums over places go: a register tile of rows by neighbouring places of a plane, stored where the result has those places.

    index_places(k, p, start, record, lanes)                     # once for a tile of places, p[...] of INDEX_FIELDS
    store_tile(k, target, tile, record, out, out_row, rows, f32, bf16, 16)

A record holds an index in a channel of the result for each place, or -1 for what lies between rows; then for each vector whether all of it is
stored, side by side. Vectors that run over a row's end are closed up first where the places that remain are neighbours in the result.
May not know: what was summed. Entry: `index_places`, `store_tile`.
"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, f64, i64

VECTORS = 2
INDEX_FIELDS = ("places", "pitch", "plane_pitch", "c0", "c1", "c2", "o0", "o1", "o2")
APART, WHOLE, CLOSED = 0, 1, 2  # how a vector's places lie in the result


def record_bytes(lanes: int) -> int:
    """Of the record of a tile of places."""
    return VECTORS * lanes * 8 + 64


def index_places(k: Function, p: dict[str, Value], start: Value, record: Value, lanes: int) -> None:
    """Where in a channel of the result each place of a tile goes, or -1; per vector, how those that are stored lie, and how many."""
    for v in range(VECTORS):
        place = k.iota(i64.vec(lanes)) + k.splat(start + v * lanes, lanes)

        def quotient(x: Value, by: Value) -> Value:  # exact: places stay below 2**50
            return ((x.to(f64) + 0.5) * k.splat(1.0 / by.to(f64), lanes)).truncated(i64)

        a = quotient(place, p["plane_pitch"])
        rest = place - a * k.splat(p["plane_pitch"], lanes)
        b = quotient(rest, p["pitch"])
        c = rest - b * k.splat(p["pitch"], lanes)
        c0, c1, c2 = (k.splat(p[name], lanes) for name in ("c0", "c1", "c2"))
        o0, o1, o2 = (k.splat(p[name], lanes) for name in ("o0", "o1", "o2"))
        stored = (a < c0) & (b < c1) & (c < c2)
        index = a * o0 + b * o1 + c * o2
        shown = k.select(stored, index, k.const(i64.vec(lanes), -1))
        k.store(record, shown, v * lanes)
        # Places rise with lanes, and so do their indices: from the least to the greatest there is one for each place if none is left out.
        last = k.reduce(shown, k.maximum)
        first = k.reduce(k.select(stored, index, k.const(i64.vec(lanes), 1 << 62)), k.minimum)
        count = k.reduce(k.select(stored, k.const(i64.vec(lanes), 1), k.const(i64.vec(lanes), 0)), lambda x, y: x + y)
        closed = k.select((last - first + 1).eq(count), k.const(i64, CLOSED), k.const(i64, APART))
        kind = k.select(closed.ne(APART) & count.eq(lanes), k.const(i64, WHOLE), closed)
        for i, word in enumerate((kind, first, count)):
            k.store(record, word, VECTORS * lanes + 3 * v + i)


def index_before(k: Function, p: dict[str, Value], place: Value) -> Value:
    """How many elements of a channel of a dense result the places in front of this one give."""
    a, rest = place // p["plane_pitch"], place % p["plane_pitch"]
    b, c = rest // p["pitch"], rest % p["pitch"]
    line = k.select(b < p["c1"], b * p["o1"] + k.minimum(c, p["c2"]), p["o0"])
    return k.select(a < p["c0"], a * p["o0"] + line, p["c0"] * p["o0"])


def lies_whole(k: Function, record: Value, lanes: int) -> Value:
    """Whether all places of a tile are stored, side by side."""
    whole = [k.load(record, i64, VECTORS * lanes + 3 * v).eq(WHOLE) for v in range(VECTORS)]
    for v in range(1, VECTORS):
        whole[0] = whole[0] & k.load(record, i64, v * lanes).eq(k.load(record, i64) + v * lanes)
        whole[0] = whole[0] & whole[v]
    return whole[0]


def store_tile(
    k: Function, target: Target, tile: Value, record: Value, out: Value, out_row: Value, rows: Value, compute: Type, memory: Type, lanes: int
) -> None:  # fmt: skip
    """The first `rows` lines of a tile, each of VECTORS vectors, to channels of the result `out_row` elements apart."""
    width, vector = VECTORS * lanes, compute.vec(lanes)
    closes = target.has("avx512f") and compute.size * lanes == 64
    for v in range(VECTORS):
        kind, first, count = (k.load(record, i64, width + 3 * v + i) for i in range(3))
        index = k.load(record, i64.vec(lanes), v * lanes)
        stored = index >= 0
        tail = k.tail_mask(count, lanes)

        def lines(store: Callable[[Value, Value], None], v: int = v) -> None:
            with k.range(0, rows) as i:
                store(k.offset(out, i * out_row, memory), k.load(k.offset(tile, i * width, compute), vector, v * lanes))

        def whole(to: Value, value: Value, first: Value = first) -> None:
            k.store(to, value.to(memory), first)

        def close(to: Value, value: Value, first: Value = first, stored: Value = stored, tail: Value = tail) -> None:
            name = f"llvm.x86.avx512.mask.compress.{vector.suffix}"
            value = k.intrinsic(name, vector, value, k.const(vector, 0), stored)
            k.store(to, value.to(memory), first, mask=tail)

        def apart(to: Value, value: Value, index: Value = index, stored: Value = stored) -> None:
            k.scatter(to, value.to(memory), index, mask=stored)

        def others(kind: Value = kind, lines=lines, close=close, apart=apart) -> None:
            if closes:
                k.when_else(kind.eq(CLOSED), lambda: lines(close), lambda: lines(apart))
            else:
                lines(apart)

        k.when_else(kind.eq(WHOLE), lambda lines=lines, whole=whole: lines(whole), others)


__all__ = ["INDEX_FIELDS", "VECTORS", "index_before", "index_places", "lies_whole", "record_bytes", "store_tile"]
