"""Copies that turn memory: the result runs along one dim, the source along another.

Squares are read line by line along the source into scratch, turned there tile by tile in registers and written along the result, so
both sides move whole cache lines, a few at a time. Element by element, as a loop nest would, a 1024 x 1024 matrix takes twenty times as
long, for its lines share cache sets. Dims beside the two are walked as they are.

    recipe, params = transposed_copy(target, sizes, source_strides, result_strides, 4, along=1, across=0)

May not know: dtypes (only their size in bytes). Entry: `transposed_copy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.types import i64, ptr, u8, u16, u32, u64
from flambeau.templates.launch import Recipe

TILES = 4  # on a side of the square that one unit turns
LEAST = 1024  # elements below which a loop nest is as good
ELEMENT = {1: u8, 2: u16, 4: u32, 8: u64}
ROWS, LENGTH, ROW_BLOCKS, COLUMN_BLOCKS, SOURCE_STEP, RESULT_STEP, SOURCE_OFFSET, RESULT_OFFSET, OUTER = range(
    2, 11
)  # block positions


def suits(sizes: Sequence[int], source: Sequence[int], result: Sequence[int], itemsize: int) -> tuple[int, int] | None:
    """(dim the result runs along, dim the source runs along) if a copy is one that this template is for."""
    if itemsize not in ELEMENT or math.prod(sizes) < LEAST:
        return None
    along = next((d for d, s in enumerate(result) if s == 1 and sizes[d] >= 4), None)
    across = next((d for d, s in enumerate(source) if s == 1 and sizes[d] >= 4), None)
    if along is None or across is None or along == across or abs(source[along]) < 2 or len(sizes) > 6:
        return None
    return along, across


def transposed_copy(
    target,
    sizes: Sequence[int],
    source: Sequence[int],
    result: Sequence[int],
    itemsize: int,
    along: int,
    across: int,
    source_offset: int = 0,
    result_offset: int = 0,
    slots: tuple[int, int, int] = (0, 1, 2),
) -> tuple[Recipe, tuple[int, ...]]:
    """Strides and offsets in elements; `slots` of the source, the result and the parameter block."""
    tile = max(4, min(16, target.vector_bytes // itemsize))
    rows, length = sizes[across], sizes[along]
    outer = [d for d in range(len(sizes)) if d not in (along, across)]
    blocks, columns = -(-rows // (tile * TILES)), -(-length // (tile * TILES))
    units = math.prod(sizes[d] for d in outer) * blocks * columns
    params = [units, 4, rows, length, blocks, columns, source[along], result[across], source_offset, result_offset]
    for d in outer:
        params += [sizes[d], source[d], result[d]]
    return Recipe("transposed_copy", (itemsize, tile, len(outer), slots), build), tuple(params)


def build(target, itemsize: int, tile: int, outer: int, places: tuple[int, int, int]) -> Module:
    module = Module(vector_bits=max(256, target.vector_bytes * 8))
    k = module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])
    slots, begin, end, _ = k.args
    source, result, block = (k.load(slots, ptr, i) for i in places)
    word = [k.load(block, i64, i) for i in range(OUTER + 3 * outer)]
    element, side = ELEMENT[itemsize].vec(tile), tile * TILES
    pitch = side + tile
    staged = k.stack(side * pitch * itemsize)
    with k.range(begin, end) as unit:
        rest, column = unit // word[COLUMN_BLOCKS], unit % word[COLUMN_BLOCKS]
        rest, row = rest // word[ROW_BLOCKS], rest % word[ROW_BLOCKS] * side
        start, to = word[SOURCE_OFFSET] + row, word[RESULT_OFFSET] + row * word[RESULT_STEP]
        for d in reversed(range(outer)):
            size, step, result_step = word[OUTER + 3 * d : OUTER + 3 * d + 3]
            at = rest % size if d else rest
            rest = rest // size
            start, to = start + at * step, to + at * result_step
        low = column * side
        length = k.minimum(word[LENGTH] - low, side)
        rows = k.minimum(word[ROWS] - row, side)
        start, to = start + low * word[SOURCE_STEP], to + low
        whole_rows, whole = rows // tile * tile, length // tile * tile
        with k.range(0, length) as x:  # line by line: many lines of one cache set at a time would wait for one another
            with k.range(0, whole_rows, tile) as y:
                k.store(staged, k.load(source, element, start + x * word[SOURCE_STEP] + y), x * pitch + y)
            with k.when(whole_rows < rows):
                mask = k.tail_mask(rows - whole_rows, tile)
                k.store(
                    staged,
                    k.load(source, element, start + x * word[SOURCE_STEP] + whole_rows, mask=mask),
                    x * pitch + whole_rows,
                )

        def turn(x: Value, y: Value, masked: bool) -> None:
            """One tile: columns x … x + tile of rows y … y + tile."""
            lines = turned(k, [k.load(staged, element, (x + j) * pitch + y) for j in range(tile)])
            reach = k.tail_mask(length - x, tile) if masked else None
            for i, line in enumerate(lines):
                mask = reach & k.splat(rows - y > i, tile) if masked else None
                k.store(result, line, to + (y + i) * word[RESULT_STEP] + x, mask=mask)

        with k.range(0, whole_rows, tile) as y:
            with k.range(0, whole, tile) as x:
                turn(x, y, False)
            with k.when(whole < length):
                turn(whole, y, True)
        with k.when(whole_rows < rows):
            with k.range(0, length, tile) as x:
                turn(x, whole_rows, True)
    k.ret()
    return module


def turned(k: Function, lines: list[Value]) -> list[Value]:
    """A square of vectors with rows and lanes exchanged: bit by bit of their numbers."""
    n = len(lines)
    bit = 1
    while bit < n:
        for i in range(n):
            if not i & bit:
                a, b = lines[i], lines[i | bit]
                lines[i] = k.shuffle(a, b, [x if not x & bit else n + (x ^ bit) for x in range(n)])
                lines[i | bit] = k.shuffle(a, b, [x ^ bit if not x & bit else n + x for x in range(n)])
        bit *= 2
    return lines


__all__ = ["suits", "transposed_copy"]
