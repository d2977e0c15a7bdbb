"""A matrix product as data: sizes, strides and what is added, and the rewritings that leave its meaning alone.

    p = normalised(Problem(m, n, k, (k, 1), (n, 1), (n, 1), (), "float32", "float32", None, False))
    swapped(p)                      # out.T = b.T @ a.T

May not know: kernels, targets, threads. Entry: `Problem`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from flambeau.base.record import as_tuple, record, replace
from flambeau.core.symbolic import through
from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import i64
from flambeau.templates.epilogue import Epilogue
from flambeau.templates.launch import Launch, Lowered, Recipe

SERIAL_WORK = 1 << 17  # multiply-adds below which waking a thread costs more than it brings (about 4 us)


@record
class Problem:
    """out[b, m, n] = a[b, m, k] @ b[b, k, n] (+ bias) (+ out). All strides in elements."""

    m: int
    n: int
    k: int
    a: tuple[int, int]  # strides along m, k
    b: tuple[int, int]  # along k, n
    out: tuple[int, int]  # along m, n
    batch: tuple[tuple[int, int, int, int], ...]  # (size, stride of a, of b, of out), the fastest first
    dtype: str
    out_dtype: str
    bias: tuple[int, int] | None  # strides along m, n
    accumulate: bool
    base: tuple[int, int, int] = (0, 0, 0)  # where in a, b and out the first matrix starts
    epilogue: Epilogue | None = None  # its rows are those of all matrices in order

    @property
    def matrices(self) -> int:
        return math.prod(entry[0] for entry in self.batch)

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return self.matrices * self.m * self.n * self.k

    @property
    def is_short(self) -> bool:
        """Whether waking a thread costs more than it brings, with what finishes the result counted in."""
        finishing = 0 if self.epilogue is None else self.matrices * self.m * self.n * self.epilogue.cost
        return self.work + finishing < SERIAL_WORK

    @property
    def flags(self) -> int:
        """What is added to the product: 1 the old result, 2 the bias."""
        return int(self.accumulate) | 2 * (self.bias is not None)

    @property
    def own_inputs(self) -> int:
        """Operands before those of the epilogue."""
        return 2 if self.bias is None else 3

    @property
    def inputs(self) -> int:
        """Operands before the result."""
        return self.own_inputs + (0 if self.epilogue is None else self.epilogue.operands)


def swapped(p: Problem) -> Problem:
    """The transposed product: operands 0 and 1 change places."""
    return replace(
        p,
        m=p.n,
        n=p.m,
        a=p.b[::-1],
        b=p.a[::-1],
        out=p.out[::-1],
        batch=tuple((size, b, a, out) for size, a, b, out in p.batch),
        bias=None if p.bias is None else p.bias[::-1],
        base=(p.base[1], p.base[0], p.base[2]),
        epilogue=None if p.epilogue is None else replace(p.epilogue, turned=not p.epilogue.turned),
    )


def with_swapped_operands(lowered: Lowered) -> Lowered:
    """Launches for a `swapped` problem, over the operands of the original one."""
    place = {0: 1, 1: 0}
    return Lowered(
        tuple(replace(step, buffers=tuple(place.get(i, i) for i in step.buffers)) for step in lowered.launches),
        lowered.scratch_bytes,
    )


def counted(lowered: Lowered, p: Problem) -> Lowered:
    """The launches for one product of real numbers, whose last one multiplies, told how much work that is."""
    *before, main = lowered.launches
    return Lowered((*before, replace(main, flops=2 * p.work)), lowered.scratch_bytes)


def normalised(p: Problem) -> Problem:
    """The same product in fewer forms: no batch of one, neighbours in the batch merged, a batch that only goes on with
    the rows made rows, and plain values for strides that are never used."""
    p = replace(p, batch=_merged(tuple(entry for entry in p.batch if entry[0] != 1)))
    while p.batch and (p.bias is None or p.bias[0] == 0):
        size, a, b, out = p.batch[0]
        if b != 0:
            break
        if p.m == 1:
            p = replace(p, m=size, a=(a, p.a[1]), out=(out, p.out[1]), batch=p.batch[1:])
        elif a == p.m * p.a[0] and out == p.m * p.out[0]:
            p = replace(p, m=p.m * size, batch=p.batch[1:])
        else:
            break
    a, b, out = p.a, p.b, p.out
    if p.k == 1:
        a, b = (a[0], 1), (1 if b[1] != 1 else p.n, b[1])
    if p.m == 1:
        a, out = (p.k if a[1] == 1 else 1, a[1]), (p.n if out[1] == 1 else 1, out[1])
    if p.n == 1:
        b, out = (b[0], p.k if b[0] == 1 else 1), (out[0], 1)
    return replace(p, a=a, b=b, out=out)


def _merged(batch: tuple[tuple[int, int, int, int], ...]) -> tuple[tuple[int, int, int, int], ...]:
    merged: list[tuple[int, int, int, int]] = []
    for size, *strides in batch:
        if merged and all(s == merged[-1][0] * t for s, t in zip(strides, merged[-1][1:], strict=True)):
            merged[-1] = (merged[-1][0] * size, *merged[-1][1:])
        else:
            merged.append((size, *strides))
    return tuple(merged)


def blocks_of(size: int, most: int, unit: int) -> int:
    """`size` cut into equal blocks of at most `most`, rounded up to `unit`; 0 stays 0."""
    if size == 0:
        return 0
    return round_up(-(-size // -(-size // most)), unit)


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@record
class Grid:
    """How a result may be cut into units."""

    height: int  # rows of a register tile: blocks are multiples
    width: int  # and its columns
    most_m: int  # rows that a unit may have at most
    most_n: int
    row_cost: int  # what a row costs a unit besides its elements (packing), counted in elements
    column_cost: int  # and a column (fetching its panel again)


def unit_blocks(p: Problem, grid: Grid, threads: int) -> tuple[int, int]:
    """Rows and columns of a unit such that threads, each taking the next unit when free, end soonest.

    Blocks do not change results: every element is summed along depth by one unit.
    """
    return through(_unit_blocks, p.m, p.n, p.matrices, 1 if p.is_short else threads, *as_tuple(grid))


@functools.lru_cache(maxsize=1024)
def _unit_blocks(m: int, n: int, matrices: int, threads: int, *cuts: int) -> tuple[int, int]:
    grid = Grid(*cuts)
    panels_m, panels_n = -(-m // grid.height), -(-n // grid.width)
    most_m, most_n = max(1, grid.most_m // grid.height), max(1, grid.most_n // grid.width)
    largest = blocks_of(panels_m, most_m, 1), blocks_of(panels_n, most_n, 1)
    if threads == 1:
        return largest[0] * grid.height, largest[1] * grid.width
    best, blocks = math.inf, largest
    heights = sorted({blocks_of(panels_m, min(most_m, r), 1) for r in (most_m, 10, 7, 5, 3, 2, 1)}, reverse=True)
    parts_n = -(-panels_n // largest[1])
    while True:
        columns = -(-panels_n // parts_n)
        tiles_n = -(-panels_n // columns)
        for rows in heights:
            cost = _time_of(panels_m, rows, columns, tiles_n, matrices, grid, threads)
            if cost < 0.99 * best:
                best, blocks = cost, (rows, columns)
        if columns == 1 or tiles_n * matrices >= 4 * threads:
            return blocks[0] * grid.height, blocks[1] * grid.width
        parts_n = 2 * tiles_n


def _time_of(panels_m: int, rows: int, columns: int, tiles_n: int, matrices: int, grid: Grid, threads: int) -> float:
    """When the last thread is done: whole units first, one each in turn, then the lower ones of the last rows.

    A twentieth of a unit is added, for threads that start late or are held up.
    """
    width = columns * grid.width
    row_cost, unit_cost = grid.height * (width + grid.row_cost), width * grid.column_cost
    large, small = rows * row_cost + unit_cost, panels_m % rows * row_cost + unit_cost
    turns, ahead = divmod(panels_m // rows * tiles_n * matrices, threads)
    end = (turns + (ahead > 0)) * large
    if panels_m % rows:
        end = max(end, turns * large + -(-tiles_n * matrices // (threads - ahead)) * small)
    return end + large / 20


def packed_batch(p: Problem, matrix: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """How b is packed, `matrix` elements each: (matrices, batch words for packing, words for reading).

    A matrix that the whole batch shares is packed once.
    """
    own = [entry for entry in p.batch if entry[2] != 0]
    strides, step = {}, matrix
    for entry in own:
        strides[entry] = step
        step *= entry[0]
    packing = batch_words(p.base, [(size, a, b, 0) for size, a, b, _ in own])
    reading = batch_words(
        (p.base[0], 0, p.base[2]), [(size, a, strides.get(e, 0), out) for e in p.batch for size, a, _, out in (e,)]
    )
    return math.prod(entry[0] for entry in own), packing, reading


def plain_batch(p: Problem) -> tuple[int, ...]:
    """The batch words of a parameter block, as they are."""
    return batch_words(p.base, p.batch)


def batch_words(base: tuple[int, int, int], entries: Iterable[tuple[int, int, int, int]]) -> tuple[int, ...]:
    """The end of every parameter block: the number of entries, where a, b and out start, then the entries."""
    entries = tuple(entries)
    return (len(entries), *base, *(v for entry in entries for v in entry))


def launch(
    name: str, parameters: tuple, build, buffers: tuple[int, ...], units: int, grain: int, fields: tuple[int, ...]
) -> Launch:
    """A launch whose units go to one thread if `grain` is 0."""
    return Launch(Recipe(name, parameters, build), buffers, (units, grain or units, *fields))


def main_launch(
    p: Problem,
    name: str,
    parameters: tuple,
    build,
    buffers: tuple[int, ...],
    units: int,
    grain: int,
    fields: tuple[int, ...],
) -> Launch:
    """The launch that gives the result, whose own words end in `batch_words`, with what finishes it."""
    found = launch(name, parameters, build, buffers, units, grain, fields)
    return found if p.epilogue is None else p.epilogue.finished(found, p.own_inputs)


def after_batch(k: Function, words: Value) -> Value:
    """Where in a parameter block the words behind `batch_words` begin."""
    return k.offset(words, (k.load(words, i64) + 1) * 32)
