"""Gradients of attention by tensors that the score's program captured: what every read of one gives, added up where it was read.

A unit is one head of queries with a table of its own, in the shape of what is read less the dims that run along batches or heads. Tile by
tile of queries and chunk by chunk of the keys they see, scores and their gradients are made again as in the backward pass:
    S = Q K^T, P = exp(S' - lse)        dP = dO V^T, dS = P * (dP - D)        table[place] += dS * dS'/dread
For narrow types D is summed first from P and dP, for the result that D usually comes from has been rounded, which places far apart magnify.

Determinism: bitwise, for any number of threads. May not know: programs' origin. Entry: `lower_reads`.
"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import f64, i64, ptr
from flambeau.templates.attention_backward import (
    Backward,
    BackwardBuilder,
    Layout,
    extent_of,
    lower_prepare,
    prepared_bytes,
)
from flambeau.templates.attention_forward import LOG2_E, float_bits
from flambeau.templates.attention_frame import LIST_FIELDS, LISTS, BlockList, list_words, query_tile
from flambeau.templates.attention_pack import lower_pack, packed, packed_bytes, panel_width
from flambeau.templates.attention_problem import Problem, Programs, ReadGradient, Strides, cuts_of
from flambeau.templates.attention_scores import ScoreProgram
from flambeau.templates.gemm_amx import configure, has_tiles, tile_instruction
from flambeau.templates.gemm_tiles import ABI, ELEMENTS
from flambeau.templates.launch import Launch, Lowered, Recipe

FIELDS = ("units", "grain", "heads", "group", "rows", "columns", "table", "scale", "shift", "tiles", "tiles_per_block", "block_rows",
          "block_columns", "padded", "blocks",
          *LIST_FIELDS)  # fmt: skip
SLOTS = ("keys", "values", "q", "g", "lse", "delta", "tables", "scratch",
         "some_count", "some_index", "whole_count", "whole_index")  # fmt: skip


class _Reads(BackwardBuilder):
    """One kernel's functions."""

    def __init__(self, target: Target, kind: Backward, read: ReadGradient):
        super().__init__(target, kind)
        self.read = read
        self.sums_first = sums_first(kind.dtype)

    def chunk_function(self, name: str, *, masks: bool, cut: bool, adds: bool) -> Function:
        """name(...): adds what a chunk of keys gives to the table; or, unless `adds`, to D of the rows."""
        k = self.module.function(
            name,
            [("slots", ptr), ("scratch", ptr), ("keys", ptr), ("values", ptr), ("q", ptr), ("g", ptr), ("lse", ptr), ("delta", ptr),
             ("table", ptr), ("width", i64), ("count", i64), ("first", i64), ("rows", i64), ("row0", i64), ("batch", i64), ("head", i64)],
            internal=True,
        )  # fmt: skip
        slots, scratch, keys, values, q, g, lse, delta, table, width, count, first, rows, row0, batch, head = k.args
        kind, place, lanes, compute, chunk = self.kind, self.place, self.lanes, self.compute, self.extent.chunk
        self.scores(k, scratch, keys, values, q, g, rows, width)
        block = k.load(slots, ptr, kind.slots)
        scale = k.load(block, f64, FIELDS.index("scale")).to(compute)
        shift = k.load(block, i64, FIELDS.index("shift"))
        read = self.read
        more = (read.place, *(i for i, _ in read.moved))
        gradient = ScoreProgram(k, read.gradient, lanes, slots, block, more)
        score = ScoreProgram(k, kind.score, lanes, slots, block)
        mask = ScoreProgram(k, kind.mask, lanes, slots, block) if kind.mask is not None and masks else None
        with k.range(0, rows) as i:
            for program in (gradient, score, mask):
                if program is not None:
                    program.start_row(batch, head, row0 + i)
            end = k.minimum(count, row0 + i + shift - first + 1) if kind.causal and cut else count
            below, less = (k.splat(k.load(at, compute, i), lanes) for at in (lse, delta))
            s_line, dp_line = (k.offset(scratch, i * (chunk * compute.size) + at) for at in (place.s, place.dp))
            total = k.var(self.vector, 0.0)
            with k.range(0, width, lanes) as j:
                seen = tail = k.tail_mask(end - j, lanes) if cut else None
                raw = k.load(s_line, self.vector, j) * scale
                x = score.value({"score": raw}, first + j, tail).to(compute)
                if mask is not None:
                    allowed = mask.value({"score": x}, first + j, tail)
                    seen = allowed if tail is None else allowed & tail
                p = self._exp2(k, k.fma(x, k.splat(k.const(compute, LOG2_E), lanes), below))
                dp = k.load(dp_line, self.vector, j)
                ds = p * (dp - less) if adds else p * dp
                if adds:
                    gradient.start_vector({"score": raw, "gradient": ds})
                    found = gradient.at(read.gradient.result, first + j, tail).to(compute)
                else:
                    found = ds
                if seen is not None:
                    found = k.select(seen, found, 0.0)
                if adds and read.along_keys != "row":
                    self._scatter(k, gradient, table, found, first + j, tail)
                else:
                    total.set(total.get() + found)
            if not adds:
                self._add(k, k.offset(delta, i, compute), total.get())
            elif read.along_keys == "row":
                at = gradient.row_value(read.place)
                self._add(k, k.offset(table, at, compute), total.get())
        k.ret()
        return k

    def _add(self, k: Function, to: Value, total: Value) -> None:
        k.store(to, k.load(to, self.compute) + k.reduce(total, lambda a, b: a + b))

    def _scatter(
        self, k: Function, program: ScoreProgram, table: Value, found: Value, key: Value, tail: Value | None
    ) -> None:
        """A vector of gradients to its places."""
        read, compute, lanes = self.read, self.compute, self.lanes
        if read.along_keys == "unit":
            base = program.bases.get(read.place)
            to = k.offset(table, key if base is None else base + key, compute)
            k.store(to, k.load(to, self.vector, mask=tail) + found, mask=tail)
            return
        where = program.at(read.place, key, tail)
        for i, word in read.moved:
            where = where + program.at(i, key, tail) * k.splat(program.param(word), lanes)
        if tail is not None:  # what is not there adds zero somewhere
            where = k.select(tail, where, 0)
        if read.along_keys == "spread" and tail is None:
            k.scatter(table, k.gather(table, compute, where) + found, where)
            return
        for lane in range(lanes):  # places may meet
            to = k.offset(table, k.extract(where, lane), compute)
            k.store(to, k.load(to, compute) + k.extract(found, lane))

    def build(self) -> Module:
        kind, extent, place = self.kind, self.extent, self.place
        masked = kind.mask is not None
        makers = {}
        for adds in (False, True) if self.sums_first else (True,):
            name = "chunk" if adds else "sums"
            for masks in (False, True):
                for cut in (False, True):
                    makers[adds, masks, cut] = self.chunk_function(
                        f"{name}{'_masked' * masks}{'_cut' * cut}", masks=masks and masked, cut=cut, adds=adds
                    )
        k = self.module.function("kernel", ABI)
        slots, begin, end, tid = k.args
        slot = {name: k.load(slots, ptr, i) for i, name in enumerate(SLOTS[: 8 + 2 * kind.lists])}
        block = k.load(slots, ptr, kind.slots)
        p = {name: k.load(block, i64, i) for i, name in enumerate(FIELDS) if name != "scale"}
        scratch = k.offset(slot["scratch"], tid * place.total)
        tile = extent.tile
        if kind.tiles:
            configure(k)
        with k.range(begin, end) as unit:
            head, batch = unit % (p["heads"] * p["group"]), unit // (p["heads"] * p["group"])
            shared = batch * p["heads"] + head // p["group"]
            table = k.offset(slot["tables"], unit * p["table"], self.compute)
            with k.range(0, p["table"]) as j:
                k.store(table, k.const(self.compute, 0), j)
            with k.range(0, p["tiles"]) as t:
                row0, stop, row_block = query_tile(k, p, t, tile)
                rows = stop - row0
                line = (unit * p["tiles"] + t) * tile
                near = [
                    k.offset(slot[name], line * width_of, type_)
                    for name, width_of, type_ in (
                        ("q", place.q, self.packed), ("g", place.g, self.packed), ("lse", 1, self.compute), ("delta", 1, self.compute)
                    )
                ]  # fmt: skip

                def chunks(adds: bool, near=near, row_block=row_block, row0=row0, stop=stop, rows=rows) -> None:
                    def span(first: Value, packed_at: Value, many: Value, masks: bool) -> None:
                        with k.range(0, many, extent.chunk) as at:
                            count = k.minimum(many - at, extent.chunk)
                            width = (count + (self.width - 1)) // self.width * self.width
                            place_of = shared * p["blocks"] * p["padded"] + packed_at + at
                            keys = k.offset(slot["keys"], place_of * place.keys, self.packed)
                            values = k.offset(slot["values"], place_of * place.values, self.packed)
                            column = first + at
                            cut = width.ne(count)
                            if kind.causal:
                                cut = cut | (column + count - 1 > row0 + p["shift"])

                            def call(cuts: bool) -> None:
                                k.call(
                                    makers[adds, masks, cuts], slots, scratch, keys, values, *near, table,
                                    width, count, column, rows, row0, batch, head,
                                )  # fmt: skip

                            k.when_else(cut, lambda: call(True), lambda: call(False))

                    if not kind.lists:
                        seen = p["columns"]
                        if kind.causal:
                            seen = k.maximum(k.minimum(seen, stop + p["shift"]), 0)
                        span(k.const(i64, 0), k.const(i64, 0), seen, masked)
                        return
                    for name in LISTS[: kind.lists]:
                        blocks = BlockList(k, p, slot, name, (batch, head, row_block))
                        with k.range(0, blocks.count) as n:
                            number = blocks.number(n)
                            first = number * p["block_columns"]
                            with k.when((number >= 0) & (first < p["columns"])):
                                left = k.minimum(p["columns"] - first, p["block_columns"])
                                span(first, number * p["padded"], left, masked and name == LISTS[0])

                with k.when(rows > 0):
                    if self.sums_first:
                        chunks(False)
                    chunks(True)
        if kind.tiles:
            tile_instruction(k, "tilerelease")
        k.ret()
        return self.module


def sums_first(dtype: str) -> bool:
    """Whether D is summed from P and dP: of types narrower than what they are multiplied in."""
    memory, compute = ELEMENTS[dtype]
    return memory is not compute


def build_reads(target: Target, kind: Backward, read: ReadGradient) -> Module:
    """Slots: `SLOTS`, as far as there are lists, then what the programs read, then the block."""
    return _Reads(target, kind, read).build()


def lower_reads(
    p: Problem,
    target: Target,
    threads: int,
    g: Strides,
    *,
    statistics: tuple[tuple[int, ...], tuple[int, ...]],
    programs: Callable[[int, int], tuple[Programs, ReadGradient]],
    table: int,
    lists: tuple[tuple[int, ...], ...] = (),
    captured: int = 0,
) -> Lowered:
    """Operands: gradients of out and of lse, q, k, v, out, lse, lists, captured, then tables of `table` elements for each batch and head."""
    tiles = has_tiles(p.dtype, target)
    extent = extent_of(target, tiles)
    compute = ELEMENTS[p.dtype][1]
    lanes = target.lanes(compute)
    cuts = cuts_of(p, extent.tile, panel_width(lanes, tiles))
    forms = packed("panels", p.size, p.k), packed("panels", p.value_size, p.v)
    slot = len(SLOTS) - 4 + len(lists)
    inner, read = programs(slot, len(FIELDS))
    kind = Backward(
        p.dtype, tiles, p.size, p.value_size, p.causal, len(lists) // 2, inner.score, None, inner.mask,
        slot + len(inner.operands),
    )  # fmt: skip
    place = Layout(kind, extent, compute, lanes)
    first = 7 + len(lists)
    numbers = iter(range(first + captured, first + captured + 16))
    out, keys, values, *prepared, scratch = (next(numbers) for _ in range(10))
    to_q, to_g, _, _, to_lse, delta = prepared
    pack = lower_pack(p, tiles, cuts, ((forms[0], p.k), (forms[1], p.v)), (3, 4, keys, values))
    prepare = lower_prepare(p, tiles, cuts, g, statistics, tuple(prepared), sums=not sums_first(p.dtype))
    fields = (p.heads, p.group, p.rows, p.columns, table, float_bits(p.scale), p.shift, cuts.tiles, cuts.tiles_per_block,
              cuts.block_rows, cuts.block_columns, cuts.padded_columns, cuts.blocks)  # fmt: skip
    main = Launch(
        Recipe("attention_reads", (kind, read), build_reads),
        (
            keys,
            values,
            to_q,
            to_g,
            to_lse,
            delta,
            out,
            scratch,
            *range(7, first),
            *(i if i < 0 else first + i for i in inner.operands),
        ),
        (p.batch * p.query_heads, 1, *fields, *list_words(lists), *inner.words),
        flops=4 * p.work,
    )
    room = (
        *(packed_bytes(p, cuts, form, lanes, tiles) for form in forms),
        *prepared_bytes(p, cuts, extent, place, compute, tiles),
        place.total * threads,
    )
    return Lowered((pack, prepare, main), room)
