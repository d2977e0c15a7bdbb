"""What attention's kernels share: extents, scratch, modules, tiles of queries, lists of blocks.

    class Layout(Scratch): ...                             # places of a kernel's own
    row0, stop, row_block = query_tile(k, p, t, tile)      # p: the parameter block by name
    blocks = BlockList(k, p, slot, "some", (batch, head, row_block))

May not know: what is computed from them. Entry: `Builder`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import i32, i64
from flambeau.templates.attention_pack import panel_width
from flambeau.templates.gemm_problem import round_up
from flambeau.templates.gemm_tiles import ELEMENTS

LISTS = ("some", "whole")  # blocks of keys that a mask applies to, and those that are seen wholly
LIST_FIELDS = tuple(
    f"{name}_{what}"
    for name in LISTS
    for what in ("count_batch", "count_head", "count_row", "index_batch", "index_head", "index_row", "index_step")
)


class Extent(NamedTuple):
    """How many rows and keys are at work at a time."""

    tile: int
    chunk: int
    heights: tuple[int, ...]


class Scratch:
    """Places in a thread's scratch, in bytes."""

    def __init__(self) -> None:
        self.total = 0

    def take(self, nbytes: int) -> int:
        place, self.total = self.total, self.total + round_up(nbytes, 64)
        return place


class Builder:
    """The types, sizes and module of a kernel for a kind (its `dtype`, and whether it has AMX `tiles`)."""

    def __init__(self, target: Target, kind: Any, extent: Extent):
        self.kind, self.extent = kind, extent
        self.memory, self.compute = ELEMENTS[kind.dtype]
        self.lanes = target.lanes(self.compute)
        self.vector = self.compute.vec(self.lanes)
        self.width = panel_width(self.lanes, kind.tiles)
        self.packed = self.memory if kind.tiles else self.compute
        self.module = module_for(target)


def module_for(target: Target) -> Module:
    wide = target.has("avx512f", "avx512vl")
    return Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"), native_scalef=wide, native_tables=wide)


def query_tile(k: Function, p: dict[str, Value], t: Value, tile: int) -> tuple[Value, Value, Value]:
    """(first query, the one behind the last, block of queries) of tile t, which may be empty: tiles do not cross blocks."""
    row_block = t // p["tiles_per_block"]
    row0 = row_block * p["block_rows"] + t % p["tiles_per_block"] * tile
    stop = k.minimum(k.minimum(row0 + tile, (row_block + 1) * p["block_rows"]), p["rows"])
    return row0, stop, row_block


class BlockList:
    """The blocks that one block sees: `count` of them, `number(n)` the n-th."""

    def __init__(self, k: Function, p: dict[str, Value], slot: dict[str, Value], name: str, at: tuple[Value, ...]):
        """`at`: batch, head, block whose list it is."""

        def offset(what: str) -> Value:
            batch, head, row = (x * p[f"{name}_{what}_{dim}"] for x, dim in zip(at, ("batch", "head", "row")))
            return batch + head + row

        self.k, self.step = k, p[f"{name}_index_step"]
        self.count = k.load(slot[f"{name}_count"], i32, offset("count")).to(i64)
        self.index = k.offset(slot[f"{name}_index"], offset("index"), i32)

    def number(self, n: Value) -> Value:
        return self.k.load(self.index, i32, n * self.step).to(i64)


def list_words(lists: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Words of the parameter block for `LIST_FIELDS`, zeros for lists that there are not."""
    words = tuple(step for each in lists for step in each)
    return words + (0,) * (len(LIST_FIELDS) - len(words))
