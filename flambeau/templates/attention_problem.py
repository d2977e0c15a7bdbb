"""Attention as data: sizes, strides and what is done to scores, and the arithmetic that cuts it into units.

    p = Problem(batch=1, heads=16, group=1, rows=2048, columns=2048, size=64, value_size=64, ...)

Query rows come in tiles of at most `ROWS`, keys and values in chunks. Where a block mask says which blocks of keys a block of queries sees,
tiles and chunks do not cross its blocks: keys and values are packed block by block, each filled up to whole panels.

May not know: kernels, graphs. Entry: `Problem`.
"""

from __future__ import annotations

from flambeau.base.record import record
from flambeau.templates.gemm_problem import round_up

Strides = tuple[int, int, int, int]  # of batch, head, row, element; in elements


@record
class Scores:
    """Instructions over (batch, head, query, key), and which of them is the result."""

    program: tuple
    result: int


@record
class Programs:
    """What is done to scores: `score` gives others, `mask` says which count.

    `operands` fill slots from the one that the programs were made for (-1 is the error block), `words` the parameter block likewise.
    """

    score: Scores | None
    mask: Scores | None
    operands: tuple[int, ...]
    words: tuple[int, ...]


@record
class ReadGradient:
    """The gradient by what is read from a captured tensor, and where in a table it is added.

    The place is what instruction `place` gives plus, for each (instruction, block word) of `moved`, an index times a stride. Along keys it
    stands still ("row"), goes on by one ("unit"), never returns ("spread"), or does anything ("any").
    """

    gradient: Scores
    place: int
    moved: tuple[tuple[int, int], ...]
    along_keys: str


NO_PROGRAMS = Programs(None, None, (), ())


@record
class Problem:
    """out[b, h, i] = sum over j of softmax(scores[b, h, i])[j] * v[b, h // group, j]."""

    batch: int
    heads: int  # of keys and values
    group: int  # heads of queries that share one
    rows: int  # queries
    columns: int  # keys
    size: int  # elements of a query or key
    value_size: int
    dtype: str
    q: Strides
    k: Strides
    v: Strides
    out: Strides
    scale: float
    causal: bool  # query i sees keys up to i + `shift`
    shift: int
    block: tuple[int, int] | None  # queries and keys in a block of the block mask

    @property
    def work(self) -> int:
        """Multiply-adds, if every query sees every key."""
        return self.batch * self.heads * self.group * self.rows * self.columns * (self.size + self.value_size)

    @property
    def query_heads(self) -> int:
        return self.heads * self.group


@record
class Cuts:
    """How a problem is cut into tiles of queries, and keys into blocks that are filled up to whole panels."""

    tiles_per_block: int
    tiles: int
    block_rows: int
    block_columns: int
    blocks: int  # of keys
    padded_columns: int  # of a block of keys, filled up
    pieces: int  # of a block of keys, packed at a time


PACKED_COLUMNS = 128  # in a unit of packing


def cuts_of(p: Problem, tile: int, width: int) -> Cuts:
    """For tiles of at most `tile` queries and panels of `width` keys."""
    block_rows, block_columns = p.block if p.block is not None else (max(p.rows, 1), max(p.columns, 1))
    per_block = -(-block_rows // tile)
    padded = round_up(block_columns, width)
    return Cuts(
        per_block,
        -(-p.rows // block_rows) * per_block,
        block_rows,
        block_columns,
        -(-p.columns // block_columns),
        padded,
        -(-padded // PACKED_COLUMNS),
    )
