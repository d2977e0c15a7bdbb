"""The forward pass of attention: online softmax over chunks of keys, for tiles of queries that never leave the cache.

For a tile of queries, chunk by chunk of the keys it sees:
    scores    S = Q K^T, register tiles (or AMX tiles) over packed keys
    rows      programs (score_mod, mask) on S, the running maximum, P = exp(S - maximum), its sum
    values    O = O * exp(old maximum - maximum) + P V
then O / sum. Chunks of a block mask come from its lists, those of a causal problem end at the diagonal.

Numerics: scores, sums and O in float32 (float64 for float64); with AMX, P is rounded to bfloat16 for the second product. Rows that see
nothing are 0, their log-sum-exp -inf. Determinism: a row's chunks are summed in order by one unit, for any number of threads.

May not know: how gradients are computed, few queries over long caches (`attention_decode`). Entry: `lower_forward`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

from flambeau.kernel import instructions, vmath
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, f64, i16, i64, ptr
from flambeau.templates.attention_frame import (
    LIST_FIELDS,
    LISTS,
    BlockList,
    Builder,
    Extent,
    Scratch,
    list_words,
    query_tile,
)
from flambeau.templates.attention_pack import (
    AMX_STEP,
    PANEL_BYTES,
    TILE_BYTES,
    Packed,
    lower_pack,
    packed,
    packed_bytes,
    panel_width,
    read_lanes,
)
from flambeau.templates.attention_problem import NO_PROGRAMS, Problem, Programs, Scores, cuts_of
from flambeau.templates.attention_scores import ScoreProgram
from flambeau.templates.attention_tiles import AmxShape, Shape, amx_product, load_line, product, row_tiles, store_line
from flambeau.templates.gemm_amx import configure, has_tiles, tile_instruction
from flambeau.templates.gemm_problem import round_up
from flambeau.templates.gemm_tiles import ABI, ELEMENTS
from flambeau.templates.launch import Launch, Lowered, Recipe

LOG2_E = 1 / math.log(2)
GROUP = 32  # keys that are left out together where a mask lets none through
MOST_BLOCKS = 16  # of a block mask that are one span

FIELDS = ("units", "grain", "heads", "group", "rows", "columns",
          "q_batch", "q_head", "q_row", "q_element", "out_batch", "out_head", "out_row", "out_element",
          "scale", "shift", "tiles", "tiles_per_block", "block_rows", "block_columns", "padded", "blocks",
          *LIST_FIELDS)  # fmt: skip
SLOTS = ("q", "k", "v", "out", "lse", "most", "scratch", "some_count", "some_index", "whole_count", "whole_index")


class Forward(NamedTuple):
    """What the kernel is compiled for."""

    dtype: str
    tiles: bool  # AMX
    size: int
    value_size: int
    causal: bool
    lists: int  # 0: no block mask, 1: blocks with a mask, 2: whole ones too
    score: Scores | None
    mask: Scores | None
    plain_scale: bool  # positive, so that the greatest score has the greatest product
    slots: int
    stacked: bool = False  # a tile holds the queries of all heads of a group, head by head


def extent_of(target: Target, tiles: bool) -> Extent:
    if tiles:
        return Extent(64, 512, (32,))
    if target.vector_bytes == 64 or target.arch == "aarch64":
        return Extent(56, 128, (14, 8, 4))
    return Extent(48, 64, (6, 4, 2))


class Layout(Scratch):
    """Places in a thread's scratch, in bytes."""

    def __init__(self, kind: Forward, extent: Extent, compute: Type, lanes: int, sizes: tuple[int, int]):
        size, value_size = sizes
        element = 2 if kind.tiles else compute.size
        super().__init__()
        rows = round_up(extent.tile, extent.heights[0])
        self.q_row, self.o_row = size, value_size
        # A line more than the chunk: rows a power of two apart meet in the same sets, and loads wait for stores 4 KiB apart.
        self.s_row, self.p_row = (extent.chunk + 16, extent.chunk + 32) if kind.tiles else (extent.chunk,) * 2
        self.q = self.take(rows * size * element)
        self.s = self.take(rows * self.s_row * compute.size)
        self.s_next = self.take(rows * self.s_row * compute.size) if kind.tiles else self.s  # of the chunk after
        self.p = self.take(rows * self.p_row * 2) if kind.tiles else self.s
        self.o = self.take(rows * value_size * compute.size)
        self.most = self.take(rows * compute.size)
        self.factor = self.take(rows * compute.size)
        self.sum = self.take(rows * lanes * compute.size)


class ForwardBuilder(Builder):
    """One kernel's functions."""

    def __init__(self, target: Target, kind: Forward):
        super().__init__(target, kind, extent_of(target, kind.tiles))
        forms = Packed("panels", kind.size, ""), Packed("rows", kind.value_size, "")
        self.sizes = tuple(form.padded(self.lanes, kind.tiles) for form in forms)
        self.place = Layout(kind, self.extent, self.compute, self.lanes, self.sizes)
        self._products()

    # ------------------------------------------------------------------ products
    def _products(self) -> None:
        kind, place = self.kind, self.place
        if kind.tiles:
            size, value_size = self.sizes
            across = AmxShape(place.q_row * 2, 64, 64, TILE_BYTES, 2 * TILE_BYTES, place.s_row * 4)
            along = AmxShape(place.p_row * 2, 64, 64, TILE_BYTES, value_size * PANEL_BYTES, place.o_row * 4, adds=True)
            self.score_tile = amx_product(self.module, "scores", across, size // AMX_STEP)
            self.value_tile = amx_product(self.module, "values", along)
            return
        self.score_tiles = {
            height: product(
                self.module,
                f"scores_{height}",
                self.compute,
                self.lanes,
                Shape(height, 2, place.q_row, 1, self.width, place.s_row),
                steps=kind.size,
            )
            for height in self.extent.heights
        }
        self.value_tiles = {
            height: product(
                self.module,
                f"values_{height}",
                self.compute,
                self.lanes,
                Shape(height, 2, place.s_row, 1, self.sizes[1], place.o_row, "scaled"),
            )
            for height in self.extent.heights
        }

    def scores(self, k: Function, scratch: Value, keys: Value, rows: Value, width: Value) -> None:
        """S = Q K^T for `width` packed keys."""
        q, s = k.offset(scratch, self.place.q), k.offset(scratch, self.place.s)
        if self.kind.tiles:
            with k.range(0, width, 32) as j, k.range(0, rows, 32) as i:
                self._score_block(k, scratch, keys, i, j, k.const(i64, self.place.s))
            return
        size = self.compute.size
        with k.range(0, width, self.width) as j:

            def tile(i: Value, height: int) -> None:
                k.call(
                    self.score_tiles[height],
                    0,
                    k.offset(q, i * (self.place.q_row * size)),
                    k.offset(keys, j * (self.sizes[0] * size)),
                    k.offset(s, (i * self.place.s_row + j) * size),
                    s,
                )

            row_tiles(k, self.extent.heights, rows, tile)

    def _score_block(self, k: Function, scratch: Value, keys: Value, i: Value, j: Value, s_at: Value) -> None:
        """32 rows from i on by 32 keys from j on."""
        k.call(
            self.score_tile,
            0,
            k.offset(scratch, i * (self.place.q_row * 2) + self.place.q),
            k.offset(keys, j * (self.sizes[0] * 2)),
            k.offset(scratch, s_at + (i * self.place.s_row + j) * 4),
        )

    def values(self, k: Function, scratch: Value, values: Value, rows: Value, width: Value) -> None:
        """O = factor O + P V."""
        p, o, factor = (k.offset(scratch, at) for at in (self.place.p, self.place.o, self.place.factor))
        if self.kind.tiles:
            with k.range(0, rows, 32) as i:
                for j in range(0, self.sizes[1], 32):
                    k.call(
                        self.value_tile,
                        width >> 5,
                        k.offset(p, i * (self.place.p_row * 2)),
                        k.offset(values, j * (TILE_BYTES // 16)),
                        k.offset(o, (i * self.place.o_row + j) * 4),
                    )
            return
        size = self.compute.size
        for j in range(0, self.sizes[1], 2 * self.lanes):

            def tile(i: Value, height: int, j: int = j) -> None:
                k.call(
                    self.value_tiles[height],
                    width,
                    k.offset(p, i * (self.place.p_row * size)),
                    k.offset(values, j * size),
                    k.offset(o, (i * self.place.o_row + j) * size),
                    k.offset(factor, i * size),
                )

            row_tiles(k, self.extent.heights, rows, tile)

    # ------------------------------------------------------------------ rows
    def chunk_function(self, name: str, *, masks: bool, cut: bool, ahead: bool = False) -> Function:
        """name(slots, scratch, keys, values, width, count, first, rows, row0, batch, head): one chunk of keys for a tile of queries.

        `width` packed keys, of which `count` are there (all of them unless `cut`), the first being key `first`. With `ahead` its scores are
        at `s_at` in the scratch already, and those of the `next_width` keys at `keys` are made at `s_next` meanwhile: AMX works on its own.
        """
        k = self.module.function(
            name,
            [("slots", ptr), ("scratch", ptr), ("keys", ptr), ("values", ptr), ("width", i64), ("count", i64), ("first", i64),
             ("rows", i64), ("row0", i64), ("batch", i64), ("head", i64),
             *([("s_at", i64), ("s_next", i64), ("next_width", i64)] if ahead else [])],
            internal=True,
        )  # fmt: skip
        slots, scratch, keys, values, width, count, first, rows, row0, batch, head, *more = k.args
        where = (width, count, first, rows, row0, batch, head)
        if not ahead:
            self.scores(k, scratch, keys, rows, width)
            self._rows(k, slots, scratch, where, k.const(i64, self.place.s), lambda: None, masks=masks, cut=cut)
        else:
            s_at, s_next, next_width = more
            done, two = k.var(i64, 0), (rows > 32).to(i64)
            total = (next_width >> 5) << two
            each = (total * 2 + rows - 1) // rows

            def until(stop: Value) -> None:
                with k.loop_while(lambda: done.get() < stop):
                    n = done.get()
                    self._score_block(k, scratch, keys, (n & two) << 5, (n.lshr(two)) << 5, s_next)
                    done.set(n + 1)

            def meanwhile() -> None:
                until(k.minimum(done.get() + each, total))

            self._rows(k, slots, scratch, where, s_at, meanwhile, masks=masks, cut=cut)
            until(total)
        self.values(k, scratch, values, rows, width)
        k.ret()
        return k

    def _rows(
        self,
        k: Function,
        slots: Value,
        scratch: Value,
        where: tuple[Value, ...],
        s_at: Value,
        meanwhile: Callable[[], None],
        *,
        masks: bool,
        cut: bool,
    ) -> None:
        """Programs, maxima, exponentials and sums of all rows, two at a time; then P is where the second product reads it."""
        kind, place, lanes, compute = self.kind, self.place, self.lanes, self.compute
        width, count, first, rows, row0, batch, head = where
        block = k.load(slots, ptr, kind.slots)
        scale = k.load(block, f64, FIELDS.index("scale")).to(compute)
        pair = range(2)
        turns = [
            tuple(
                ScoreProgram(k, scores, lanes, slots, block) if scores is not None and on else None
                for scores, on in ((kind.score, True), (kind.mask, masks))
            )
            for _ in pair
        ]
        causal = kind.causal and cut
        shift, queries = (k.load(block, i64, FIELDS.index(name)) for name in ("shift", "rows"))
        stores = kind.score is not None or turns[0][1] is not None or cut or not kind.plain_scale
        scaled = kind.score is not None or not kind.plain_scale
        factor = k.const(compute, LOG2_E) if scaled else scale * LOG2_E
        lowest = k.const(self.vector, float("-inf"))
        factors = k.splat(factor, lanes)
        with k.range(0, rows, 2) as i0:
            lines, ends = [], []
            for r in pair:
                here = k.minimum(i0 + r, rows - 1)  # one row too many is computed and not used
                query, own_head = row0 + here, head
                if kind.stacked:
                    own_head, query = head + here // queries, here % queries
                for program in turns[r]:
                    if program is not None:
                        program.start_row(batch, own_head, query)
                lines.append(k.offset(scratch, s_at + (i0 + r) * (place.s_row * compute.size)))
                ends.append(k.minimum(count, query + shift - first + 1) if causal else count)
            best = [[k.var(self.vector, lowest) for _ in pair] for _ in pair]
            with k.range(0, width, 2 * lanes) as j:
                for r in pair:
                    score, mask = turns[r]
                    for u in pair:
                        at = j + u * lanes
                        x = k.load(lines[r], self.vector, at)
                        tail = k.tail_mask(ends[r] - at, lanes) if cut else None
                        if scaled:
                            x = x * scale
                        if score is not None:
                            x = score.value({"score": x}, first + at, tail).to(compute)
                        seen = tail
                        if mask is not None:
                            allowed = mask.value({"score": x}, first + at, tail)
                            seen = allowed if tail is None else allowed & tail
                        if seen is not None:
                            x = k.select(seen, x, lowest)
                        if stores:
                            k.store(lines[r], x, at)
                        best[r][u].set(larger(k, x, best[r][u].get()))
            olds, news, below = [], [], []
            for r in pair:
                top = larger(k, best[r][0].get(), best[r][1].get())
                top = k.reduce(top, lambda a, b: larger(k, a, b)) * factor
                olds.append(k.load(k.offset(scratch, place.most), compute, i0 + r))
                news.append(larger(k, top, olds[r]))
                k.store(k.offset(scratch, place.most), news[r], i0 + r)
                bottom = k.select(news[r].eq(float("-inf")), k.const(compute, 0.0), news[r])
                below.append(k.splat(-bottom, lanes))
            sums = [[k.var(self.vector, 0.0) for _ in pair] for _ in pair]
            with k.range(0, width, 2 * lanes) as j:
                for r in pair:
                    found = []
                    for u in pair:
                        at = j + u * lanes
                        e = self._exp2(k, k.fma(k.load(lines[r], self.vector, at), factors, below[r]))
                        sums[r][u].set(sums[r][u].get() + e)
                        found.append(e)
                        if not kind.tiles:
                            k.store(lines[r], e, at)
                    if kind.tiles:
                        both = instructions.vcvtne2ps2bf16(k, found[1], found[0])
                        packed = k.offset(scratch, ((i0 + r) * place.p_row + j) * 2 + place.p)
                        k.store(packed, both.bitcast(i16.vec(32)))
            for r in pair:
                ratio = self._exp2(k, k.splat(olds[r], lanes) + below[r])
                total = k.offset(scratch, (i0 + r) * (lanes * compute.size) + place.sum)
                k.store(total, k.fma(k.load(total, self.vector), ratio, sums[r][0].get() + sums[r][1].get()))
                if not kind.tiles:
                    k.store(k.offset(scratch, place.factor), k.extract(ratio, 0), i0 + r)
                    continue
                with k.when(news[r].ne(olds[r])):
                    kept = k.offset(scratch, (i0 + r) * (place.o_row * compute.size) + place.o)
                    for j in range(0, self.sizes[1], lanes):
                        k.store(kept, k.load(kept, self.vector, j) * ratio, j)
            meanwhile()

    def seen_function(self) -> Function:
        """seen(slots, first, count, rows, row0, batch, head, upwards): whether any of the queries sees any of GROUP keys, of which `count` are there.

        Queries are asked in order, or from the last one up: whoever sees the keys is likely among the first asked.
        """
        k = self.module.function(
            "seen",
            [("slots", ptr), ("first", i64), ("count", i64), ("rows", i64), ("row0", i64), ("batch", i64), ("head", i64), ("upwards", i64)],
            i64,
            internal=True,
        )  # fmt: skip
        slots, first, count, rows, row0, batch, head, upwards = k.args
        mask = ScoreProgram(k, self.kind.mask, self.lanes, slots, k.load(slots, ptr, self.kind.slots))
        found, i = k.var(i64, 0), k.var(i64, 0)
        with k.loop_while(lambda: (i.get() < rows) & found.get().eq(0)):
            here = k.select(upwards.ne(0), rows - 1 - i.get(), i.get())
            mask.start_row(batch, head, row0 + here)
            for j in range(0, GROUP, self.lanes):
                tail = k.tail_mask(count - j, self.lanes)
                some = k.any(mask.value({}, first + j, tail) & tail)
                found.set(found.get() | some.to(i64))
            i.set(i.get() + 1)
        k.ret(found.get())
        return k

    def _exp2(self, k: Function, x: Value) -> Value:
        return vmath.exp2_normal(k, x, short=self.kind.tiles)

    # ------------------------------------------------------------------ tiles of queries
    def start(
        self, k: Function, scratch: Value, line_of: Callable[[Value], Value], q_element: Value, rows: Value
    ) -> None:
        """Queries to scratch, each from line_of(row), O and the sums to nothing."""
        place, lanes, compute = self.place, self.lanes, self.compute
        with k.range(0, rows) as i:
            line = line_of(i)
            if self.kind.tiles:
                to = k.offset(scratch, i * (place.q_row * 2) + place.q)
                for step in range(0, place.q_row, 32):
                    k.store(to, read_lanes(k, line, q_element, step, self.kind.size, 32), step)
            else:
                to = k.offset(scratch, i * (place.q_row * compute.size) + place.q)

                load_line(k, line, self.memory, q_element, self.kind.size, to, compute, lanes)
            o = k.offset(scratch, i * (place.o_row * compute.size) + place.o)
            with k.range(0, place.o_row, lanes) as j:
                k.store(o, k.const(self.vector, 0), j)
            k.store(k.offset(scratch, i * (lanes * compute.size) + place.sum), k.const(self.vector, 0))
            k.store(k.offset(scratch, place.most), k.const(compute, float("-inf")), i)

    def end(self, k: Function, scratch: Value, line_of: Callable[[Value], Value], element: Value, lse: Value, most: Value, rows: Value) -> None:  # fmt: skip
        """O / sum to the result's line_of(row), and the statistics of the rows."""
        place, lanes, compute = self.place, self.lanes, self.compute
        with k.range(0, rows) as i:
            total = k.load(k.offset(scratch, i * (lanes * compute.size) + place.sum), self.vector)
            total = k.reduce(total, lambda a, b: a + b)
            top = k.load(k.offset(scratch, place.most), compute, i)
            inverse = statistics(k, top, total, lse, most, i)
            kept = k.offset(scratch, i * (place.o_row * compute.size) + place.o)
            store_line(k, kept, compute, inverse, self.kind.value_size, line_of(i), self.memory, element, lanes)

    # ------------------------------------------------------------------ the kernel
    def build(self) -> Module:
        kind, extent, place = self.kind, self.extent, self.place
        masked = kind.mask is not None
        functions = [
            self.chunk_function(f"chunk{'_cut' * cut}", masks=masked and not kind.lists, cut=cut, ahead=kind.tiles)
            for cut in (False, True)
        ]
        whole, some = 0, 0  # the first of two functions, the second is for chunks that are cut
        if kind.lists and masked:
            some = 2
            functions += [
                self.chunk_function(f"chunk_masked{'_cut' * cut}", masks=True, cut=cut, ahead=kind.tiles)
                for cut in (False, True)
            ]
        seen_by = self.seen_function() if some else None
        k = self.module.function("kernel", ABI)
        slots, begin, end, tid = k.args
        slot = {name: k.load(slots, ptr, i) for i, name in enumerate(SLOTS[: 7 + 2 * kind.lists])}
        block = k.load(slots, ptr, kind.slots)
        p = {name: k.load(block, i64, i) for i, name in enumerate(FIELDS) if name != "scale"}
        scratch = k.offset(slot["scratch"], tid * place.total)
        if kind.tiles:
            configure(k)
        memory = self.memory

        with k.range(begin, end) as unit:
            rest, turn = unit // p["tiles"], unit % p["tiles"]
            tile = p["tiles"] - 1 - turn  # causal problems have their longest rows last: those first
            head, batch = rest % (p["heads"] * p["group"]), rest // (p["heads"] * p["group"])
            shared = batch * p["heads"] + head // p["group"]
            row0, stop, row_block = query_tile(k, p, tile, extent.tile)
            rows = stop - row0
            with k.when(rows > 0):
                q = k.offset(slot["q"], batch * p["q_batch"] + head * p["q_head"] + row0 * p["q_row"], memory)
                self.start(k, scratch, lambda i: k.offset(q, i * p["q_row"], memory), p["q_element"], rows)
                packed0 = shared * p["blocks"] * p["padded"]

                queue = _Queue(self, k, functions, slots, scratch, rows, row0, batch, head)

                def chunk(column: Value, packed: Value, width: Value, count: Value, which: int) -> None:
                    """One chunk of keys, from key `column` and packed place `packed` on."""
                    keys = k.offset(slot["k"], (packed0 + packed) * self.sizes[0], self.packed)
                    values = k.offset(slot["v"], (packed0 + packed) * self.sizes[1], self.packed)
                    cut = width.ne(count)
                    if kind.causal:
                        cut = cut | (column + count - 1 > row0 + p["shift"])
                    queue.put(cut.to(i64) + which, keys, values, width, count, column)

                def span(first: Value, packed: Value, count: Value, which: int) -> None:
                    """Chunk by chunk of `count` keys; of a mask's, without those at either end that no query sees."""
                    low, high = k.var(i64, 0), k.var(i64, count)
                    if which and seen_by is not None:

                        def unseen(at: Value, upwards: int) -> Value:
                            inside = low.get() < high.get()
                            here = k.minimum(k.maximum(at, 0), count)
                            seen = k.call(
                                seen_by,
                                slots,
                                first + here,
                                k.minimum(count - here, GROUP),
                                rows,
                                row0,
                                batch,
                                head,
                                upwards,
                            )
                            return inside & seen.eq(0)

                        with k.loop_while(lambda: unseen(low.get(), 0)):
                            low.set(low.get() + GROUP)
                        with k.loop_while(lambda: unseen((high.get() - 1) & -GROUP, 1)):
                            high.set((high.get() - 1) & -GROUP)
                    with k.range(low.get(), high.get(), extent.chunk) as at:
                        here = k.minimum(high.get() - at, extent.chunk)
                        width = (here + (self.width - 1)) // self.width * self.width
                        chunk(first + at, packed + at, width, here, which)

                if kind.lists:
                    for name, which in zip(LISTS[: kind.lists], (some, whole)):
                        blocks = BlockList(k, p, slot, name, (batch, head, row_block))
                        n = k.var(i64, 0)
                        with k.loop_while(lambda: n.get() < blocks.count):
                            place_of = blocks.number(n.get())
                            n.set(n.get() + 1)
                            # blocks that follow each other are one span, if they are packed without a gap
                            many = k.var(i64, 1)
                            dense = p["padded"].eq(p["block_columns"])
                            last = k.minimum(blocks.count, n.get() + (MOST_BLOCKS - 1))
                            more = k.var(i64, 1)
                            with k.loop_while(lambda: more.get().ne(0)):
                                more.set(0)
                                with k.when(dense & (n.get() < last)):
                                    following = blocks.number(n.get())
                                    with k.when(following.eq(place_of + many.get())):
                                        many.set(many.get() + 1)
                                        n.set(n.get() + 1)
                                        more.set(1)
                            first = place_of * p["block_columns"]
                            with k.when((place_of >= 0) & (first < p["columns"])):
                                left = k.minimum(p["columns"] - first, many.get() * p["block_columns"])
                                span(first, place_of * p["padded"], left, which)
                else:
                    seen = p["columns"]
                    if kind.causal:
                        seen = k.maximum(k.minimum(seen, stop + p["shift"]), 0)
                    span(k.const(i64, 0), k.const(i64, 0), seen, some)
                queue.finish()
                at = (batch * p["heads"] * p["group"] + head) * p["rows"] + row0
                out = k.offset(slot["out"], batch * p["out_batch"] + head * p["out_head"] + row0 * p["out_row"], memory)
                lse, most = (k.offset(slot[name], at, self.compute) for name in ("lse", "most"))
                self.end(
                    k, scratch, lambda i: k.offset(out, i * p["out_row"], memory), p["out_element"], lse, most, rows
                )
        if kind.tiles:
            tile_instruction(k, "tilerelease")
        k.ret()
        return self.module


class _Queue:
    """Chunks of keys of a tile, worked on one after the other; with AMX, one behind the scores of the next."""

    def __init__(
        self,
        builder: ForwardBuilder,
        k: Function,
        functions: list[Function],
        slots: Value,
        scratch: Value,
        rows: Value,
        row0: Value,
        batch: Value,
        head: Value,
    ):
        self.k, self.builder, self.functions = k, builder, functions
        self.slots, self.scratch, self.tile = slots, scratch, (rows, row0, batch, head)
        self.ahead = builder.kind.tiles
        if self.ahead:
            place = builder.place
            self.waits = k.var(i64, 0)
            self.kept = [
                k.var(i64, 0),
                k.var(ptr, scratch),
                *(k.var(i64, 0) for _ in range(3)),
            ]  # which, values, width, count, first
            self.s_at, self.s_next = k.var(i64, place.s_next), k.var(i64, place.s)

    def put(self, which: Value, keys: Value, values: Value, width: Value, count: Value, first: Value) -> None:
        if not self.ahead:
            self._call(which, (self.slots, self.scratch, keys, values, width, count, first, *self.tile), ())
            return
        k, rows = self.k, self.tile[0]

        def start() -> None:
            with k.range(0, width, 32) as j, k.range(0, rows, 32) as i:
                self.builder._score_block(k, self.scratch, keys, i, j, self.s_next.get())

        k.when_else(self.waits.get().eq(0), start, lambda: self._next(keys, width))
        for variable, value in zip(self.kept, (which, values, width, count, first)):
            variable.set(value)
        before = self.s_at.get()
        self.s_at.set(self.s_next.get())
        self.s_next.set(before)
        self.waits.set(1)

    def _next(self, keys: Value, width: Value) -> None:
        """The chunk that waits, with the scores of the next."""
        which, values, *numbers = (variable.get() for variable in self.kept)
        self._call(
            which,
            (self.slots, self.scratch, keys, values, *numbers, *self.tile),
            (self.s_at.get(), self.s_next.get(), width),
        )

    def _call(self, which: Value, args: tuple, more: tuple) -> None:
        if len(self.functions) == 2:
            self.k.when_else(
                which.eq(0),
                lambda: self.k.call(self.functions[0], *args, *more),
                lambda: self.k.call(self.functions[1], *args, *more),
            )
            return
        for number, function in enumerate(self.functions):
            with self.k.when(which.eq(number)):
                self.k.call(function, *args, *more)

    def finish(self) -> None:
        if self.ahead:
            with self.k.when(self.waits.get().ne(0)):
                self._next(self.scratch, self.k.const(i64, 0))


def statistics(k: Function, top: Value, total: Value, lse: Value, most: Value, i: Value) -> Value:
    """Store a row's log-sum-exp and greatest score, from the latter in powers of two and the sum; returns what its values are scaled by."""
    nothing = top.eq(float("-inf")) & total.eq(0.0)
    k.store(most, top * math.log(2), i)
    log = (top + vmath.log2(k, total)) * math.log(2)
    k.store(lse, k.select(nothing, k.const(top.type, float("-inf")), log), i)
    return k.select(nothing, k.const(top.type, 0.0), 1.0 / total)


def larger(k: Function, a: Value, b: Value) -> Value:
    """The larger of two in one instruction; b where a is NaN."""
    return k.select(a > b, a, b)


def build_forward(target: Target, kind: Forward) -> Module:
    """Slots: `SLOTS`, as far as there are lists, then what the programs read, then the block."""
    return ForwardBuilder(target, kind).build()


def float_bits(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def lower_forward(
    p: Problem,
    target: Target,
    threads: int,
    *,
    programs: Callable[[int, int], Programs] | None = None,
    lists: tuple[tuple[int, ...], ...] = (),
    others: int = 0,
    captured: int = 0,
) -> Lowered:
    """Operands: q, k, v, then counts and indices of the lists, `others` that are not read, `captured` ones, then out, lse, greatest score.

    `programs(slot, position)`: what is done to scores, with operands from that slot and parameters from that position of the block on.
    `lists` are the strides of counts (3) and indices (4), one after the other.
    """
    tiles = has_tiles(p.dtype, target)
    extent = extent_of(target, tiles)
    compute = ELEMENTS[p.dtype][1]
    lanes = target.lanes(compute)
    keys, values = packed("panels", p.size, p.k), packed("rows", p.value_size, p.v)
    sizes = keys.padded(lanes, tiles), values.padded(lanes, tiles)
    cuts = cuts_of(p, extent.tile, panel_width(lanes, tiles))
    slot = len(SLOTS) - 4 + len(lists)
    inner = programs(slot, len(FIELDS)) if programs is not None else NO_PROGRAMS
    block_slot = slot + len(inner.operands)
    kind = Forward(
        p.dtype,
        tiles,
        p.size,
        p.value_size,
        p.causal,
        len(lists) // 2,
        inner.score,
        inner.mask,
        p.scale > 0,
        block_slot,
    )
    place = Layout(kind, extent, compute, lanes, sizes)
    units = p.batch * p.query_heads * cuts.tiles
    fields = (p.heads, p.group, p.rows, p.columns, *p.q, *p.out, float_bits(p.scale), p.shift, cuts.tiles, cuts.tiles_per_block,
              cuts.block_rows, cuts.block_columns, cuts.padded_columns, cuts.blocks)  # fmt: skip
    first = 3 + len(lists) + others  # captured operand
    out, lse, most, packed_k, packed_v, scratch = range(first + captured, first + captured + 6)
    pack = lower_pack(p, tiles, cuts, ((keys, p.k), (values, p.v)), (1, 2, packed_k, packed_v))
    read = tuple(i if i < 0 else first + i for i in inner.operands)
    main = Launch(
        Recipe("attention_forward", (kind,), build_forward),
        (0, packed_k, packed_v, out, lse, most, scratch, *range(3, 3 + len(lists)), *read),
        (units, 1, *fields, *list_words(lists), *inner.words),
        flops=2 * p.work,
    )
    room = (*(packed_bytes(p, cuts, form, lanes, tiles) for form in (keys, values)), place.total * threads)
    return Lowered((pack, main), room)
