"""Gradients of attention by queries, keys and values without the matrix of scores: it is made again, tile by tile.

For a chunk of keys and every tile of queries that sees it, from the log-sum-exp of the forward pass and D = row sums of dO * O:
    S = Q K^T, P = exp(S - lse)         dP = dO V^T, dS = P * (dP - D)
    dV += P^T dO                        dK += dS^T Q                        dQ += dS K
A unit owns one head of keys (or, of few heads, a range of its keys) and goes through the queries of its group, so nothing is added by two
units at once; what ranges give for dQ is added up in order. With AMX the sums of dV and dK are kept transposed.

Numerics: sums in float32 (float64 for float64); with AMX, P and dS are rounded to bfloat16 for the products. Rows that see nothing give
zeros. Determinism: bitwise, for any number of threads. May not know: tensors, the tape. Entry: `lower_backward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flambeau.kernel import instructions, vmath
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, f64, i16, i64, ptr, u16, u32
from flambeau.templates.attention_forward import LOG2_E, float_bits
from flambeau.templates.attention_frame import (
    LIST_FIELDS,
    LISTS,
    BlockList,
    Builder,
    Extent,
    Scratch,
    list_words,
    module_for,
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
from flambeau.templates.attention_problem import NO_PROGRAMS, Cuts, Problem, Programs, Scores, Strides, cuts_of
from flambeau.templates.attention_scores import ScoreProgram
from flambeau.templates.attention_tiles import AmxShape, Shape, amx_product, load_line, product, row_tiles, store_line
from flambeau.templates.gemm_amx import configure, has_tiles, tile_instruction
from flambeau.templates.gemm_pack import transposed
from flambeau.templates.gemm_problem import launch
from flambeau.templates.gemm_tiles import ABI, ELEMENTS
from flambeau.templates.launch import Launch, Lowered, Recipe

ENOUGH_UNITS = 8  # fewer heads are divided into ranges of keys

FIELDS = ("units", "grain", "heads", "group", "rows", "columns", "ranges", "chunks", "chunks_per_block",
          "dk_batch", "dk_head", "dk_row", "dk_element", "dv_batch", "dv_head", "dv_row", "dv_element",
          "scale", "shift", "tiles", "tiles_per_block", "block_rows", "block_columns", "padded", "blocks",
          *LIST_FIELDS)  # fmt: skip
SLOTS = ("keys", "key_rows", "values", "q", "g", "q_turned", "g_turned", "lse", "delta", "dq", "dk", "dv", "scratch",
         "some_count", "some_index", "whole_count", "whole_index")  # fmt: skip
PREPARE_FIELDS = ("units", "grain", "heads", "rows", "tiles", "tiles_per_block", "block_rows",
                  *(f"{name}_{what}" for name in ("q", "g", "out") for what in ("batch", "head", "row", "element")),
                  *(f"{name}_{what}" for name in ("lse", "lse_gradient") for what in ("batch", "head", "row")))  # fmt: skip
FINISH_FIELDS = ("units", "grain", "heads", "group", "rows", "ranges", "tiles", "tiles_per_block", "block_rows", "all_heads", "scale",
                 "batch", "head", "row", "element")  # fmt: skip


class Backward(NamedTuple):
    """What the kernel is compiled for."""

    dtype: str
    tiles: bool  # AMX
    size: int
    value_size: int
    causal: bool
    lists: int
    score: Scores | None
    gradient: Scores | None  # of the score before the program, from the one after it
    mask: Scores | None
    slots: int


def extent_of(target: Target, tiles: bool) -> Extent:
    if tiles:
        return Extent(64, 128, (32,))
    if target.vector_bytes == 64 or target.arch == "aarch64":
        return Extent(48, 96, (12, 8, 4))
    return Extent(48, 48, (6, 4, 2))


class Layout(Scratch):
    """Sizes of packed lines in elements, and places in a thread's scratch in bytes."""

    def __init__(self, kind: Backward, extent: Extent, compute: Type, lanes: int):
        self.keys, self.key_rows, self.values, self.g = (
            Packed(form, size, "").padded(lanes, kind.tiles)
            for form, size in (
                ("panels", kind.size),
                ("rows", kind.size),
                ("panels", kind.value_size),
                ("rows", kind.value_size),
            )
        )
        self.q = self.key_rows
        super().__init__()
        elements = extent.tile * extent.chunk
        self.s, self.dp = self.take(elements * compute.size), self.take(elements * compute.size)
        if kind.tiles:  # bfloat16: P and dS with rows in pairs, dS by rows
            self.p_pairs, self.ds_pairs, self.ds = (self.take(elements * 2) for _ in range(3))
        self.dk = self.take(self.key_rows * extent.chunk * compute.size)
        self.dv = self.take(self.g * extent.chunk * compute.size)
        self.turned = self.take(max(self.key_rows, self.g) * extent.chunk * compute.size) if kind.tiles else 0


class BackwardBuilder(Builder):
    """One kernel's functions."""

    def __init__(self, target: Target, kind: Backward):
        super().__init__(target, kind, extent_of(target, kind.tiles))
        self.place = Layout(kind, self.extent, self.compute, self.lanes)
        self.products: dict[tuple, Function] = {}

    # ------------------------------------------------------------------ products
    def _multiply(
        self,
        k: Function,
        shape: Shape,
        steps: Value | int,
        rows: Value,
        columns: int | Value,
        a: Value,
        b: Callable[[Value], Value],
        c: Value,
        a_row: int,
    ) -> None:
        """c[rows, columns] (+)= a @ b in register tiles; b(j) is where the panel at column j starts."""
        size, constant = self.compute.size, steps if isinstance(steps, int) else 0
        with k.range(0, columns, 2 * self.lanes) as j:

            def tile(i: Value, height: int) -> None:
                k.call(
                    self._product(shape._replace(rows=height), constant),
                    steps,
                    k.offset(a, i * (a_row * size)),
                    b(j),
                    k.offset(c, (i * shape.c_row + j) * size),
                    c,
                )

            row_tiles(k, self.extent.heights, rows, tile)

    def _product(self, shape: Shape, steps: int) -> Function:
        key = (shape, steps)
        if key not in self.products:
            self.products[key] = product(
                self.module, f"product_{len(self.products)}", self.compute, self.lanes, shape, steps
            )
        return self.products[key]

    def _amx(self, shape: AmxShape, steps: int = 0) -> Function:
        key = (shape, steps)
        if key not in self.products:
            self.products[key] = amx_product(self.module, f"product_{len(self.products)}", shape, steps)
        return self.products[key]

    def _multiply_amx(
        self,
        k: Function,
        shape: AmxShape,
        steps: Value | int,
        rows: Value | int,
        columns: Value | int,
        a: Value,
        a_block: int,
        b: Value,
        b_block: int,
        c: Value,
    ) -> None:
        """The same in AMX tiles: blocks of 32 rows of a are `a_block` bytes apart, of 32 columns of b `b_block`."""
        constant = steps if isinstance(steps, int) else 0
        with k.range(0, columns, 32) as j, k.range(0, rows, 32) as i:
            k.call(
                self._amx(shape, constant),
                steps,
                k.offset(a, (i >> 5) * a_block),
                k.offset(b, (j >> 5) * b_block),
                k.offset(c, i * shape.c_row + j * 4),
            )

    def scores(
        self, k: Function, scratch: Value, keys: Value, values: Value, q: Value, g: Value, rows: Value, width: Value
    ) -> None:
        """S = Q K^T and dP = dO V^T for `width` packed keys."""
        kind, place, chunk, size = self.kind, self.place, self.extent.chunk, self.compute.size
        s, dp = k.offset(scratch, place.s), k.offset(scratch, place.dp)
        for left, line, right, padded, elements, to in (
            (q, place.q, keys, place.keys, kind.size, s),
            (g, place.g, values, place.values, kind.value_size, dp),
        ):
            if kind.tiles:
                shape = AmxShape(line * 2, 64, 64, TILE_BYTES, 2 * TILE_BYTES, chunk * 4)
                steps, panel = padded // AMX_STEP, padded * PANEL_BYTES
                self._multiply_amx(k, shape, steps, rows, width, left, 32 * line * 2, right, panel, to)
            else:
                across = Shape(0, 2, line, 1, self.width, chunk)

                def panels(j: Value, right: Value = right, padded: int = padded) -> Value:
                    return k.offset(right, j * (padded * size))

                self._multiply(k, across, elements, rows, width, left, panels, to, line)

    # ------------------------------------------------------------------ a tile of queries against a chunk of keys
    def tile_function(self, name: str, *, masks: bool, cut: bool) -> Function:
        """name(...): adds what a tile of queries gives to dK and dV of a chunk, and its own dQ.

        `width` packed keys, of which `count` are there, the first being key `first`; `rows` queries from `row0` on.
        """
        k = self.module.function(
            name,
            [("slots", ptr), ("scratch", ptr), ("keys", ptr), ("key_rows", ptr), ("values", ptr), ("q", ptr), ("g", ptr),
             ("q_turned", ptr), ("g_turned", ptr), ("lse", ptr), ("delta", ptr), ("dq", ptr),
             ("width", i64), ("count", i64), ("first", i64), ("rows", i64), ("row0", i64), ("batch", i64), ("head", i64)],
            internal=True,
        )  # fmt: skip
        (slots, scratch, keys, key_rows, values, q, g, q_turned, g_turned, lse, delta, dq,
         width, count, first, rows, row0, batch, head) = k.args  # fmt: skip
        kind, place, chunk, size = self.kind, self.place, self.extent.chunk, self.compute.size
        s, dp, dk, dv = (k.offset(scratch, at) for at in (place.s, place.dp, place.dk, place.dv))
        statistics = lse, delta
        position = width, count, first, rows, row0, batch, head
        self.scores(k, scratch, keys, values, q, g, rows, width)
        self._rows(k, slots, scratch, statistics, position, masks=masks, cut=cut)
        if kind.tiles:
            tile = self.extent.tile
            deep = (rows + 31) >> 5  # steps of 32 queries
            pairs = AmxShape(tile * 2, 64, chunk * 4, 64, 16 * chunk * 4, chunk * 4, adds=True)
            for left, line, right, to in (
                (g_turned, place.g, place.p_pairs, dv),
                (q_turned, place.q, place.ds_pairs, dk),
            ):
                self._multiply_amx(k, pairs, deep, line, width, left, 32 * tile * 2, k.offset(scratch, right), 128, to)
            last = AmxShape(chunk * 2, 64, 64, TILE_BYTES, place.key_rows * PANEL_BYTES, place.q * 4, adds=True)
            ds = k.offset(scratch, place.ds)
            self._multiply_amx(k, last, width >> 5, rows, place.q, ds, 32 * chunk * 2, key_rows, 2 * TILE_BYTES, dq)
        else:

            def lines(base: Value) -> Callable[[Value], Value]:
                return lambda j: k.offset(base, j * size)

            down = Shape(0, 2, 1, chunk, place.g, place.g, "c")
            self._multiply(k, down, rows, width, place.g, s, lines(g), dv, 1)
            down = Shape(0, 2, 1, chunk, place.q, place.q, "c")
            self._multiply(k, down, rows, width, place.q, dp, lines(q), dk, 1)
            along = Shape(0, 2, chunk, 1, place.key_rows, place.q, "c")
            self._multiply(k, along, width, rows, place.q, dp, lines(key_rows), dq, chunk)
        k.ret()
        return k

    def _rows(
        self,
        k: Function,
        slots: Value,
        scratch: Value,
        statistics: tuple[Value, Value],
        position: tuple[Value, ...],
        *,
        masks: bool,
        cut: bool,
    ) -> None:
        """S -> P and dP -> dS, in place, or to bfloat16 for AMX, two rows at a time."""
        kind, place, lanes, compute, chunk = self.kind, self.place, self.lanes, self.compute, self.extent.chunk
        width, count, first, rows, row0, batch, head = position
        lse, delta = statistics
        block = k.load(slots, ptr, kind.slots)
        scale = k.load(block, f64, FIELDS.index("scale")).to(compute)
        shift = k.load(block, i64, FIELDS.index("shift"))
        factors = k.splat(k.const(compute, LOG2_E) if kind.score else scale * LOG2_E, lanes)
        together = 2 if kind.tiles else 1
        turns = [
            tuple(
                ScoreProgram(k, scores, lanes, slots, block) if scores is not None and on else None
                for scores, on in ((kind.score, True), (kind.gradient, True), (kind.mask, masks))
            )
            for _ in range(together)
        ]
        causal = kind.causal and cut
        zero = k.const(self.vector, 0)
        done = (rows + 31) & -32 if kind.tiles else rows  # what is filled up has P = 0
        with k.range(0, done, together) as i0:
            states = []
            for r in range(together):
                i = i0 + r
                here = k.minimum(row0 + i, row0 + rows - 1)
                for program in turns[r]:
                    if program is not None:
                        program.start_row(batch, head, here)
                end = k.minimum(count, row0 + i + shift - first + 1) if causal else count
                below, less = (k.splat(k.load(at, compute, i), lanes) for at in (lse, delta))
                line = i * (chunk * compute.size)
                states.append(
                    (i, end, below, less, k.offset(scratch, line + place.s), k.offset(scratch, line + place.dp))
                )
            with k.range(0, width, 2 * lanes) as j:
                made = []
                for r, (_, end, below, less, s_line, dp_line) in enumerate(states):
                    score, gradient, mask = turns[r]
                    for u in range(2):
                        at = j + u * lanes
                        raw = x = k.load(s_line, self.vector, at)
                        seen = tail = k.tail_mask(end - at, lanes) if cut else None
                        if score is not None:
                            raw = x * scale
                            x = score.value({"score": raw}, first + at, tail).to(compute)
                        if mask is not None:
                            allowed = mask.value({"score": x}, first + at, tail)
                            seen = allowed if tail is None else allowed & tail
                        p = self._exp2(k, k.fma(x, factors, below))
                        if seen is not None:
                            p = k.select(seen, p, zero)
                        ds = p * (k.load(dp_line, self.vector, at) - less)
                        if gradient is not None:
                            ds = gradient.value({"score": raw, "gradient": ds}, first + at, tail).to(compute)
                        if seen is not None:
                            ds = k.select(seen, ds, zero)
                        made.append((p, ds))
                        if not kind.tiles:
                            k.store(s_line, p, at)
                            k.store(dp_line, ds, at)
                if kind.tiles:
                    self._store_pairs(k, scratch, i0, j, made)

    def _store_pairs(self, k: Function, scratch: Value, i: Value, j: Value, made: list) -> None:
        """P and dS of rows i, i + 1 at 32 keys from j on: rows woven into pairs, and dS by rows."""
        place, chunk = self.place, self.extent.chunk
        (p00, s00), (p01, s01), (p10, s10), (p11, s11) = made  # row, half
        weave = [x for c in range(16) for x in (c, 16 + c)]
        for at, upper, lower in ((place.p_pairs, (p00, p01), (p10, p11)), (place.ds_pairs, (s00, s01), (s10, s11))):
            line = k.offset(scratch, (i * chunk + j * 2) * 2 + at)
            for half in range(2):
                both = instructions.vcvtne2ps2bf16(k, lower[half], upper[half]).bitcast(i16.vec(32))
                k.store(k.offset(line, half * 64), k.shuffle(both, None, weave))
        for r, (low, high) in enumerate(((s00, s01), (s10, s11))):
            line = k.offset(scratch, ((i + r) * chunk + j) * 2 + place.ds)
            k.store(line, instructions.vcvtne2ps2bf16(k, high, low).bitcast(i16.vec(32)))

    def _exp2(self, k: Function, x: Value) -> Value:
        return vmath.exp2_normal(k, x, short=self.kind.tiles)

    # ------------------------------------------------------------------ the kernel
    def build(self) -> Module:
        kind, extent, place = self.kind, self.extent, self.place
        masked = kind.mask is not None
        some = whole = tuple(
            self.tile_function(f"tile{'_cut' * cut}", masks=masked and not kind.lists, cut=cut) for cut in (False, True)
        )
        if kind.lists and masked:
            some = tuple(self.tile_function(f"tile_masked{'_cut' * cut}", masks=True, cut=cut) for cut in (False, True))
        k = self.module.function("kernel", ABI)
        slots, begin, end, tid = k.args
        slot = {name: k.load(slots, ptr, i) for i, name in enumerate(SLOTS[: 13 + 2 * kind.lists])}
        block = k.load(slots, ptr, kind.slots)
        p = {name: k.load(block, i64, i) for i, name in enumerate(FIELDS) if name != "scale"}
        scale = k.load(block, f64, FIELDS.index("scale")).to(self.compute)
        scratch = k.offset(slot["scratch"], tid * place.total)
        size, tile = self.compute.size, extent.tile
        if kind.tiles:
            configure(k)

        with k.range(begin, end) as unit:
            shared, part = unit // p["ranges"], unit % p["ranges"]
            batch, kv_head = shared // p["heads"], shared % p["heads"]
            lines = p["tiles"] * tile  # of queries, filled up
            all_lines = p["group"] * lines
            dq_unit = k.offset(slot["dq"], unit * all_lines * (place.q * size))
            with k.range(0, all_lines * place.q, self.lanes) as at:
                k.store(dq_unit, k.const(self.vector, 0), at)
            low, high = (n * p["chunks"] // p["ranges"] for n in (part, part + 1))
            with k.range(low, high) as number:
                key_block, inside = number // p["chunks_per_block"], number % p["chunks_per_block"] * extent.chunk
                first = key_block * p["block_columns"] + inside
                left = k.minimum(p["block_columns"] - inside, p["columns"] - first)
                with k.when(left > 0):
                    count = k.minimum(left, extent.chunk)
                    width = (count + (self.width - 1)) // self.width * self.width
                    packed_at = (shared * p["blocks"] + key_block) * p["padded"] + inside
                    keys, key_rows, values = (
                        k.offset(slot[name], packed_at * line, self.packed)
                        for name, line in (("keys", place.keys), ("key_rows", place.key_rows), ("values", place.values))
                    )
                    for at, line in ((place.dk, place.key_rows), (place.dv, place.g)):
                        with k.range(0, line * extent.chunk, self.lanes) as j:
                            k.store(k.offset(scratch, at), k.const(self.vector, 0), j)

                    def one(head: Value, in_group: Value, t: Value, functions) -> None:
                        """Tile t of the queries of a head."""
                        row0, stop, _ = query_tile(k, p, t, tile)
                        rows = stop - row0
                        line = ((batch * p["heads"] + kv_head) * p["group"] + in_group) * lines + t * tile
                        near = [
                            k.offset(slot[name], line * width_of, type_)
                            for name, width_of, type_ in (
                                ("q", place.q, self.packed),
                                ("g", place.g, self.packed),
                                ("q_turned", place.q, self.packed),
                                ("g_turned", place.g, self.packed),
                                ("lse", 1, self.compute),
                                ("delta", 1, self.compute),
                            )
                        ]
                        dq = k.offset(dq_unit, (in_group * lines + t * tile) * (place.q * size))
                        cut = width.ne(count)
                        sees = rows > 0
                        if kind.causal:
                            cut = cut | (first + count - 1 > row0 + p["shift"])
                            sees = sees & (first <= stop - 1 + p["shift"])

                        def call(function: Function) -> None:
                            k.call(
                                function, slots, scratch, keys, key_rows, values, *near, dq,
                                width, count, first, rows, row0, batch, head,
                            )  # fmt: skip

                        with k.when(sees):
                            k.when_else(cut, lambda: call(functions[1]), lambda: call(functions[0]))

                    with k.range(0, p["group"]) as in_group:
                        head = kv_head * p["group"] + in_group
                        if kind.lists:
                            for name, functions in zip(LISTS[: kind.lists], (some, whole)):
                                blocks = BlockList(k, p, slot, name, (batch, head, key_block))
                                with k.range(0, blocks.count) as n:
                                    row_block = blocks.number(n)
                                    t0 = row_block * p["tiles_per_block"]
                                    with (
                                        k.when((row_block >= 0) & (t0 < p["tiles"])),
                                        k.range(t0, t0 + p["tiles_per_block"]) as t,
                                    ):
                                        one(head, in_group, t, functions)
                        else:
                            with k.range(0, p["tiles"]) as t:
                                one(head, in_group, t, some)
                    self._finish_chunk(k, scratch, slot, p, batch, kv_head, first, count, scale)
        if kind.tiles:
            tile_instruction(k, "tilerelease")
        k.ret()
        return self.module

    def _finish_chunk(
        self,
        k: Function,
        scratch: Value,
        slot: dict,
        p: dict,
        batch: Value,
        head: Value,
        first: Value,
        count: Value,
        scale: Value,
    ) -> None:
        """dK and dV of a chunk to memory."""
        place, size, lanes, chunk = self.place, self.compute.size, self.lanes, self.extent.chunk
        one = k.const(self.compute, 1.0)
        for name, at, line, elements, factor in (
            ("dk", place.dk, place.key_rows, self.kind.size, scale),
            ("dv", place.dv, place.g, self.kind.value_size, one),
        ):
            sums = k.offset(scratch, at)
            if self.kind.tiles:
                turned = k.offset(scratch, place.turned)
                with k.range(0, line, 16) as e, k.range(0, chunk, 16) as j:
                    square = [k.load(k.offset(sums, (e + r) * (chunk * 4) + j * 4), self.vector) for r in range(16)]
                    for r, row in enumerate(transposed(k, square)):
                        k.store(k.offset(turned, (j + r) * (line * 4) + e * 4), row)
                sums = turned
            out = k.offset(
                slot[name],
                batch * p[f"{name}_batch"] + head * p[f"{name}_head"] + first * p[f"{name}_row"],
                self.memory,
            )
            with k.range(0, count) as j:
                to = k.offset(out, j * p[f"{name}_row"], self.memory)
                source = k.offset(sums, j * (line * size))
                store_line(k, source, self.compute, factor, elements, to, self.memory, p[f"{name}_element"], lanes)


def build_backward(target: Target, kind: Backward) -> Module:
    """Slots: `SLOTS`, as far as there are lists, then what the programs read, then the block."""
    return BackwardBuilder(target, kind).build()


# ---------------------------------------------------------------------- queries and what comes back for them
def build_prepare(target: Target, dtype: str, tiles: bool, size: int, value_size: int, sums: bool) -> Module:
    """Queries and gradients of the result as tiles; -lse in powers of two; D, the row sums of gradient times result (0 without `sums`), less
    lse's gradient.

    Slots: q, g, out, lse, gradient of lse, then packed q, packed g, both turned, packed -lse, D, block. A unit is a tile of one head.
    """
    memory, compute = ELEMENTS[dtype]
    lanes = target.lanes(compute)
    extent = extent_of(target, tiles)
    module = module_for(target)
    q_line, g_line = (Packed("rows", n, "").padded(lanes, tiles) for n in (size, value_size))
    packed_type = memory if tiles else compute
    vector = compute.vec(lanes)
    turn = {n: _turn_function(module, n, extent.tile) for n in {q_line, g_line}} if tiles else {}
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    names = ("q", "g", "out", "lse", "lse_gradient", "to_q", "to_g", "q_turned", "g_turned", "to_lse", "delta")
    slot = {name: k.load(slots, ptr, i) for i, name in enumerate(names)}
    block = k.load(slots, ptr, len(names))
    p = {name: k.load(block, i64, i) for i, name in enumerate(PREPARE_FIELDS)}
    with k.range(begin, end) as unit:
        rest, t = unit // p["tiles"], unit % p["tiles"]
        batch, head = rest // p["heads"], rest % p["heads"]
        row0, stop, _ = query_tile(k, p, t, extent.tile)
        rows = k.maximum(stop - row0, 0)
        line0 = unit * extent.tile
        source = {
            name: k.offset(
                slot[name], batch * p[f"{name}_batch"] + head * p[f"{name}_head"] + row0 * p[f"{name}_row"], memory
            )
            for name in ("q", "g", "out")
        }
        for name, n, line in (("q", size, q_line), ("g", value_size, g_line)):
            to = k.offset(slot[f"to_{name}"], line0 * line, packed_type)
            with k.range(0, rows) as i:
                at = k.offset(source[name], i * p[f"{name}_row"], memory)
                out = k.offset(to, i * line, packed_type)
                if tiles:
                    for step in range(0, line, 32):
                        k.store(k.offset(out, step * 2), read_lanes(k, at, p[f"{name}_element"], step, n, 32))
                else:
                    load_line(k, at, memory, p[f"{name}_element"], n, out, compute, lanes, line)
            if tiles:
                with k.range(rows, extent.tile) as i:
                    for step in range(0, line, 32):
                        k.store(k.offset(to, (i * line + step) * 2), k.const(u16.vec(32), 0))
                k.call(turn[line], to, k.offset(slot[f"{name}_turned"], line0 * line, memory))
        kept = {
            name: k.offset(
                slot[name], batch * p[f"{name}_batch"] + head * p[f"{name}_head"] + row0 * p[f"{name}_row"], compute
            )
            for name in ("lse", "lse_gradient")
        }
        with k.range(0, rows) as i:
            total = k.var(vector, 0.0)
            g_at, out_at = (k.offset(source[name], i * p[f"{name}_row"], memory) for name in ("g", "out"))
            with k.range(0, value_size if sums else 0, lanes) as j:
                mask = k.tail_mask(k.const(i64, value_size) - j, lanes)
                indices = k.iota(i64.vec(lanes)) + k.splat(j, lanes)

                def both(mask: Value = mask, j: Value = j) -> None:
                    a, b = (k.load(x, memory.vec(lanes), j, mask=mask).to(compute) for x in (g_at, out_at))
                    total.set(k.fma(a, b, total.get()))

                def apart(mask: Value = mask, indices: Value = indices) -> None:
                    a, b = (
                        k.gather(x, memory, indices * k.splat(p[f"{name}_element"], lanes), mask=mask).to(compute)
                        for x, name in ((g_at, "g"), (out_at, "out"))
                    )
                    total.set(k.fma(a, b, total.get()))

                k.when_else(p["g_element"].eq(1) & p["out_element"].eq(1), both, apart)
            found = k.reduce(total.get(), lambda a, b: a + b) - k.load(
                kept["lse_gradient"], compute, i * p["lse_gradient_row"]
            )
            lse = k.load(kept["lse"], compute, i * p["lse_row"])
            nothing = lse.eq(float("-inf"))
            k.store(slot["delta"], k.select(nothing, k.const(compute, 0.0), found), line0 + i)
            k.store(slot["to_lse"], k.select(nothing, k.const(compute, float("-inf")), lse * -LOG2_E), line0 + i)
        with k.range(rows, extent.tile) as i:
            k.store(slot["delta"], k.const(compute, 0.0), line0 + i)
            k.store(slot["to_lse"], k.const(compute, float("-inf")), line0 + i)
    k.ret()
    return module


def _turn_function(module: Module, line: int, tile: int) -> Function:
    """turn(source, out): [tile, line] of 16 bits as [line, tile]."""
    k = module.function(f"turn_{line}", [("source", ptr), ("out", ptr)], internal=True)
    source, out = k.args
    with k.range(0, tile, 32) as i, k.range(0, line, 32) as j:
        halves = []
        for h in range(2):
            rows = [k.load(k.offset(source, ((i + 16 * h + r) * line + j) * 2), u32.vec(16)) for r in range(16)]
            halves.append(transposed(k, rows))  # lane r: elements 2c, 2c + 1 of row r
        for c in range(16):
            for odd in range(2):
                parts = [(half[c].lshr(16) if odd else half[c]).to(u16) for half in halves]
                both = k.shuffle(parts[0], parts[1], list(range(32)))
                k.store(k.offset(out, ((j + 2 * c + odd) * tile + i) * 2), both)
    k.ret()
    return k


def build_finish(target: Target, dtype: str, tiles: bool, size: int) -> Module:
    """dQ: what the ranges of keys gave, added up in order and scaled. Slots: sums, dq, block. A unit is a tile of one head."""
    memory, compute = ELEMENTS[dtype]
    lanes = target.lanes(compute)
    tile = extent_of(target, tiles).tile
    line = Packed("rows", size, "").padded(lanes, tiles)
    module = module_for(target)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    sums, out, block = (k.load(slots, ptr, i) for i in range(3))
    p = {name: k.load(block, i64, i) for i, name in enumerate(FINISH_FIELDS) if name != "scale"}
    scale = k.load(block, f64, FINISH_FIELDS.index("scale")).to(compute)
    total = k.stack(line * compute.size)
    with k.range(begin, end) as unit:
        rest, t = unit // p["tiles"], unit % p["tiles"]
        batch, head = rest // p["all_heads"], rest % p["all_heads"]
        row0, stop, _ = query_tile(k, p, t, tile)
        shared = batch * p["heads"] + head // p["group"]
        per_unit = p["group"] * p["tiles"] * tile
        at = shared * p["ranges"] * per_unit + (head % p["group"] * p["tiles"] + t) * tile
        to = k.offset(out, batch * p["batch"] + head * p["head"] + row0 * p["row"], memory)
        with k.range(0, stop - row0) as i:
            with k.range(0, line, lanes) as j:
                found = k.var(compute.vec(lanes), 0.0)
                with k.range(0, p["ranges"]) as r:
                    place = k.offset(sums, (at + r * per_unit + i) * (line * compute.size))
                    found.set(found.get() + k.load(place, compute.vec(lanes), j))
                k.store(total, found.get(), j)
            store_line(k, total, compute, scale, size, k.offset(to, i * p["row"], memory), memory, p["element"], lanes)
    k.ret()
    return module


# ---------------------------------------------------------------------- lowering
def lower_prepare(
    p: Problem,
    tiles: bool,
    cuts: Cuts,
    g: Strides,
    statistics: tuple[tuple[int, ...], tuple[int, ...]],
    to: tuple[int, ...],
    sums: bool = True,
) -> Launch:
    """Packed queries, gradients and statistics to six scratch buffers, from operands in the order of `lower_backward`."""
    return launch(
        "attention_prepare",
        (p.dtype, tiles, p.size, p.value_size, sums),
        build_prepare,
        (2, 0, 5, 6, 1, *to),
        p.batch * p.query_heads * cuts.tiles,
        1,
        (
            p.query_heads,
            p.rows,
            cuts.tiles,
            cuts.tiles_per_block,
            cuts.block_rows,
            *p.q,
            *g,
            *p.out,
            *statistics[0],
            *statistics[1],
        ),
    )


def prepared_bytes(
    p: Problem, cuts: Cuts, extent: Extent, place: Layout, compute: Type, tiles: bool
) -> tuple[int, ...]:
    """Sizes of those buffers."""
    lines = p.batch * p.query_heads * cuts.tiles * extent.tile
    element, turned = (2, 2) if tiles else (compute.size, 0)
    each = (place.q * element, place.g * element, place.q * turned, place.g * turned, compute.size, compute.size)
    return tuple(lines * n + 64 for n in each)


def lower_backward(
    p: Problem,
    target: Target,
    threads: int,
    g: Strides,
    dq: Strides,
    dk: Strides,
    dv: Strides,
    *,
    statistics: tuple[tuple[int, ...], tuple[int, ...]],
    programs: Callable[[int, int], tuple[Programs, Scores | None]] | None = None,
    lists: tuple[tuple[int, ...], ...] = (),
    captured: int = 0,
) -> Lowered:
    """Operands: gradients of out and of lse, q, k, v, out, lse, lists, captured, then dq, dk, dv.

    `lists` name, for blocks of keys, the blocks of queries that see them; `p.out` are the result's strides, `g` its gradient's, `statistics`
    those of lse and its gradient.
    """
    tiles = has_tiles(p.dtype, target)
    extent = extent_of(target, tiles)
    compute = ELEMENTS[p.dtype][1]
    lanes = target.lanes(compute)
    cuts = cuts_of(p, extent.tile, panel_width(lanes, tiles))
    forms = packed("panels", p.size, p.k), packed("rows", p.size, p.k), packed("panels", p.value_size, p.v)
    slot = len(SLOTS) - 4 + len(lists)
    inner, gradient = programs(slot, len(FIELDS)) if programs is not None else (NO_PROGRAMS, None)
    kind = Backward(
        p.dtype, tiles, p.size, p.value_size, p.causal, len(lists) // 2, inner.score, gradient, inner.mask,
        slot + len(inner.operands),
    )  # fmt: skip
    place = Layout(kind, extent, compute, lanes)
    shared = p.batch * p.heads
    per_block = -(-cuts.block_columns // extent.chunk)
    chunks = cuts.blocks * per_block
    ranges = max(1, min(chunks, -(-ENOUGH_UNITS // max(shared, 1))))
    first = 7 + len(lists)
    numbers = iter(range(first + captured, first + captured + 16))
    out_dq, out_dk, out_dv, keys, key_rows, values, to_q, to_g, q_turned, g_turned, to_lse, delta, sums, scratch = (
        next(numbers) for _ in range(14)
    )
    lines = p.batch * p.query_heads * cuts.tiles * extent.tile
    pack = lower_pack(
        p, tiles, cuts, ((forms[0], p.k), (forms[1], p.k), (forms[2], p.v)), (3, 3, 4, keys, key_rows, values)
    )
    prepared = (to_q, to_g, q_turned, g_turned, to_lse, delta)
    queries = lower_prepare(p, tiles, cuts, g, statistics, prepared)
    fields = (p.heads, p.group, p.rows, p.columns, ranges, chunks, per_block, *dk, *dv, float_bits(p.scale), p.shift, cuts.tiles,
              cuts.tiles_per_block, cuts.block_rows, cuts.block_columns, cuts.padded_columns, cuts.blocks)  # fmt: skip
    main = Launch(
        Recipe("attention_backward", (kind,), build_backward),
        (keys, key_rows, values, to_q, to_g, q_turned, g_turned, to_lse, delta, sums, out_dk, out_dv, scratch,
         *range(7, first), *(i if i < 0 else first + i for i in inner.operands)),
        (shared * ranges, 1, *fields, *list_words(lists), *inner.words),
        flops=5 * p.work,
    )  # fmt: skip
    finish = launch(
        "attention_query_gradient",
        (p.dtype, tiles, p.size),
        build_finish,
        (sums, out_dq),
        p.batch * p.query_heads * cuts.tiles,
        1,
        (
            p.heads,
            p.group,
            p.rows,
            ranges,
            cuts.tiles,
            cuts.tiles_per_block,
            cuts.block_rows,
            p.query_heads,
            float_bits(p.scale),
            *dq,
        ),
    )
    room = (
        *(packed_bytes(p, cuts, form, lanes, tiles) for form in forms),
        *prepared_bytes(p, cuts, extent, place, compute, tiles),
        lines * ranges * place.q * compute.size + 64,
        place.total * threads,
    )
    return Lowered((pack, queries, main, finish), room)
