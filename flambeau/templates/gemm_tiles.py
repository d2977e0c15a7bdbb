"""The blocked matrix product: register tiles over packed or plain operands, in any compute type.

A unit is a block of rows by a block of columns of one matrix of the batch; inside it, blocks of depth, then panels.
    depth block   packs its rows of A (or uses A as it lies), then for every panel of B, for every panel of A:
    register tile rows x (vectors * lanes) accumulators, one fused multiply-add each per step of depth
The sum of an element runs over depth in order, block by block, so it depends on neither the blocks of rows and columns
nor the number of threads.

May not know: other ways to multiply. Entry: `lower_tiles`.
"""

from __future__ import annotations

from typing import NamedTuple

from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, bf16, f16, f32, f64, i8, i16, i32, i64, ptr, u8
from flambeau.templates.epilogue import EpilogueCode, Finishing
from flambeau.templates.gemm_pack import DEPTH_ALIGN, order_of, pack_function, transposed
from flambeau.templates.gemm_problem import (
    Grid,
    Problem,
    after_batch,
    blocks_of,
    launch,
    main_launch,
    packed_batch,
    plain_batch,
    round_up,
    unit_blocks,
)
from flambeau.templates.launch import Lowered

# Element type in memory and the type that sums are kept in. Integers wrap around, so a wider sum changes nothing.
ELEMENTS: dict[str, tuple[Type, Type]] = {
    "float32": (f32, f32),
    "float64": (f64, f64),
    "float16": (f16, f32),
    "bfloat16": (bf16, f32),
    "int8": (i8, i32),
    "uint8": (u8, i32),
    "int16": (i16, i32),
    "int32": (i32, i32),
    "int64": (i64, i64),
}

ABI = [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)]

# Where the parameter block holds what (int64 each). Strides are in elements.
PACKED_PANELS = 4  # of B in a unit of packing: pieces of rows long enough to be prefetched
FINISHED_PANELS = (
    8  # of a result in one call of an epilogue: its lines are worth a loop each, and the piece stays in L2
)
FINISHED_ROWS = 256  # of a transposed result in one call of an epilogue: its lines are as long

FIELDS = (
    "units", "grain", "m", "n", "k", "a_row", "a_step", "b_step", "b_column", "c_row", "c_column", "bias_row", "bias_column",
    "block_m", "block_n", "block_k", "tiles_m", "tiles_n", "scratch_stride", "packed_rows", "flags",
)  # fmt: skip
BATCH = len(FIELDS)  # then `batch_words`


ADD_OUT, ADD_BIAS, FAR = 1, 2, 4  # flags of a register tile: what is added to it, and whether its place wants fetching


class TileKernel(NamedTuple):
    """What is fixed when the kernel is compiled: types, layout classes and register tiles, never sizes."""

    dtype: str
    out: str  # dtype of the result and of what is added to it
    a_mode: str  # "row": unit stride along depth, used as it lies; "column": along m, likewise; "width" "depth" "any": packed
    b_mode: str  # "plain": unit stride along n, used as it lies; "panels": packed before, by `build_pack`; else packed like A
    staged: bool  # sums in scratch until the depth is done: for narrow types and for strided results
    heights: tuple[int, ...]  # rows of the register tiles, falling; panels of A have the first
    vectors: int  # columns of the register tile in vectors; panels of B have that width
    tail_vectors: int  # the same for columns left over
    ahead: int  # steps of depth that a plain B is fetched ahead by software, where its rows are far apart
    epilogue: EpilogueCode | None = None  # what finishes the result

    @property
    def packs_a(self) -> bool:
        return self.a_mode in ("width", "depth", "any")

    @property
    def packs_b(self) -> bool:
        return self.b_mode in ("width", "depth", "any")


class Tiles:
    """The pieces of one kernel: types for a target, and functions shared by `build_tiles`."""

    def __init__(self, target: Target, kind: TileKernel):
        self.kind = kind
        self.memory, self.compute = ELEMENTS[kind.dtype]
        self.lanes = target.lanes(self.compute)
        self.vector = self.compute.vec(self.lanes)
        self.width = kind.vectors * self.lanes
        self.height = kind.heights[0]
        self.out = ELEMENTS[kind.out][0]
        self.fused = self.compute.is_float and (target.arch == "aarch64" or target.has("fma"))
        self.module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
        self.finish = finish_function(self.module, self.compute, self.out, self.lanes)
        self.finishing = Finishing(kind.epilogue)
        self.heights = {False: kind.heights, True: tuple(h for h in kind.heights if h in (self.height, 4, 1))}
        self.tails_masked = kind.b_mode == "plain"
        # By whether it is for the columns left over; there are fewer heights for those.
        self.micro: dict[tuple[int, bool], Function] = {}
        for height in self.heights[False]:
            self.micro[height, False] = self._micro(height, kind.vectors)
        for height in self.heights[True]:
            same = kind.vectors == kind.tail_vectors and not self.tails_masked
            self.micro[height, True] = (
                self.micro[height, False] if same else self._micro(height, kind.tail_vectors, self.tails_masked)
            )

    # ------------------------------------------------------------------ register tiles
    def multiply_add(self, k: Function, x: Value, y: Value, total: Value) -> Value:
        return k.fma(x, y, total) if self.fused else total + x * y

    def _a_reader(self, k: Function, a: Value, stride: Value, step: Value, height: int):
        """(pointers, read(pointers, row, unrolled), bytes a step) over A, which keep few registers busy.

        Rows of a plain A are far apart: one pointer moves along the first, the others are odd multiples of the stride on,
        or 2, 4, 8 times those, which x86 addresses for free.
        """
        size = self.memory.size if not self.kind.packs_a else self.compute.size
        if self.kind.a_mode == "row":
            odd = {r: opaque(k, stride * (r * size)) for r in range(1, height, 2)}

            def read(now: list[Value], row: int, unrolled: int) -> Value:
                base = now[0]
                if row:
                    twos = (row & -row).bit_length() - 1
                    base = k.offset(base, odd[row >> twos] << twos if twos else odd[row])
                return k.load(k.offset(base, unrolled * size), self.memory)

            return [k.var(ptr, a)], read, size
        element = self.compute if self.kind.packs_a else self.memory
        along: Value | int = self.height * size if self.kind.packs_a else step * size

        def read(now: list[Value], row: int, unrolled: int) -> Value:
            base = now[0] if unrolled == 0 else k.offset(now[0], along * unrolled)
            return k.load(k.offset(base, row * size), element)

        return [k.var(ptr, a)], read, along

    def _micro(self, height: int, vectors: int, masked: bool = False) -> Function:
        """c[rows, cols] = (c +) a @ b (+ bias) for a register tile, of which rows x cols count. Strides in elements.

        `next_b` is what will be read next, asked into L2 meanwhile. A `masked` one reads no more than `cols` columns of B.
        Whole tiles go straight to c, others through memory.
        """
        kind, lanes = self.kind, self.lanes
        k = self.module.function(
            f"tile_{height}x{vectors}" + ("_masked" if masked else ""),
            [("depth", i64), ("a", ptr), ("a_row", i64), ("a_step", i64), ("b", ptr), ("b_step", i64), ("c", ptr), ("c_row", i64),
             ("rows", i64), ("cols", i64), ("flags", i64), ("bias", ptr), ("bias_column", i64), ("next_b", ptr)],
            internal=True,
        )  # fmt: skip
        depth, a, a_row, a_step, b, b_step, c, c_row, rows, cols, flags, bias, bias_column, next_b = k.args
        stored = self.compute if kind.staged else self.out
        masks = [k.tail_mask(cols - j * lanes, lanes) if masked else None for j in range(vectors)]
        sums = [[k.var(self.vector, 0) for _ in range(vectors)] for _ in range(height)]
        plain_b = kind.b_mode == "plain"
        b_type = self.memory if plain_b else self.compute
        b_along: Value | int = b_step * b_type.size if plain_b else self.width * b_type.size
        pointers, read, a_along = self._a_reader(k, a, a_row, a_step, height)
        b_now = k.var(ptr, b)
        coming = k.var(ptr, next_b)
        large = height * vectors >= 12
        fetches = large and kind.b_mode == "panels"
        if large:
            with k.when((flags & FAR).ne(0)):
                for i in range(height):
                    for j in range(vectors):
                        k.prefetch(k.offset(c, c_row * i + j * lanes, stored), write=True)

        def steps(count: int) -> None:
            now, line = [opaque(k, p.get()) for p in pointers], b_now.get()
            for u in range(count):
                at = line if u == 0 else k.offset(line, b_along * u)
                y = [k.load(at, b_type.vec(lanes), j * lanes, mask=masks[j]).to(self.compute) for j in range(vectors)]
                if kind.ahead:
                    for offset in range(0, vectors * lanes * b_type.size, 64):
                        k.prefetch(k.offset(at, b_along * kind.ahead + offset))
                for i in range(height):
                    x = k.splat(read(now, i, u).to(self.compute), lanes)
                    for j in range(vectors):
                        sums[i][j].set(self.multiply_add(k, x, y[j], sums[i][j].get()))
            if fetches and count == 4:
                k.prefetch(coming.get(), locality=2)
                coming.set(k.offset(coming.get(), 64))
            for variable, value in zip(pointers, now, strict=True):
                variable.set(k.offset(value, a_along * count))
            b_now.set(k.offset(line, b_along * count))

        unroll = 1
        if height == self.height and vectors == kind.vectors and not masked:
            unroll = 2 if plain_b and large else 4
            with k.range(0, depth >> (unroll // 2)):
                steps(unroll)
        with k.range(0, depth & (unroll - 1) if unroll > 1 else depth):
            steps(1)

        def whole() -> None:
            lines = [k.offset(c, c_row * i, stored) for i in range(height)]
            with k.when((flags & ADD_OUT).ne(0)):
                for i, line in enumerate(lines):
                    for j in range(vectors):
                        sums[i][j].set(sums[i][j].get() + k.load(line, stored.vec(lanes), j * lanes).to(self.compute))
            for i, line in enumerate(lines):
                for j in range(vectors):
                    k.store(line, sums[i][j].get().to(stored), j * lanes)

        def partly() -> None:
            width = vectors * lanes
            tile = k.stack(height * width * self.compute.size)
            for i in range(height):
                for j in range(vectors):
                    k.store(tile, sums[i][j].get(), i * width + j * lanes)
            k.call(self.finish, tile, width, c, c_row, 1, rows, k.minimum(cols, width), bias, 0, bias_column, flags)

        if kind.staged:
            whole()  # the stage has room for whole tiles
        else:
            k.when_else((rows < height) | (cols < vectors * lanes) | (flags & ADD_BIAS).ne(0), partly, whole)
        k.ret()
        return k


def opaque(k: Function, value: Value) -> Value:
    """The same value, of unknown origin: else LLVM's strength reduction derives every row's pointer from the first one
    by a chain of additions, and spills sums to do it (90 instead of 150 GFLOP/s)."""
    return k.emit(value.type, f'call {value.type.text} asm "", "=r,0"({value.type.text} {value.ref})')


def finish_function(module: Module, compute: Type, out_type: Type, lanes: int, *, turns: bool = True) -> Function:
    """finish(sums, stage_row, out, …): out = sums (+ out) (+ bias), rounded once, for any strides of out and bias.

    A result that runs down the columns is stored by columns if `turns`, transposing squares of `lanes`.
    """
    params = [("sums", ptr), ("stage_row", i64), ("out", ptr), ("c_row", i64), ("c_column", i64), ("rows", i64), ("columns", i64),
              ("bias", ptr), ("bias_row", i64), ("bias_column", i64), ("flags", i64)]  # fmt: skip
    if turns:
        straight = finish_function(module, compute, out_type, lanes, turns=False)
        k = module.function("finish", params, internal=True)
        sums, stage_row, out, c_row, c_column, rows, columns, bias, bias_row, bias_column, flags = k.args

        def turned() -> None:
            square = k.stack(lanes * lanes * compute.size)
            with k.range(0, rows, lanes) as i, k.range(0, columns, lanes) as j:
                last, corner = rows - 1 - i, k.offset(sums, i * stage_row + j, compute)
                lines = []
                for r in range(lanes):
                    line = k.offset(corner, k.minimum(last, r) * stage_row, compute)
                    lines.append(k.load(line, compute.vec(lanes), mask=k.tail_mask(columns - j, lanes)))
                for r, line in enumerate(transposed(k, lines)):
                    k.store(square, line, r * lanes)
                k.call(
                    straight,
                    square,
                    lanes,
                    k.offset(out, i * c_row + j * c_column, out_type),
                    c_column,
                    c_row,
                    k.minimum(columns - j, lanes),
                    k.minimum(rows - i, lanes),
                    k.offset(bias, i * bias_row + j * bias_column, out_type),
                    bias_column,
                    bias_row,
                    flags,
                )

        k.when_else(c_row.eq(1) & c_column.ne(1), turned, lambda: k.call(straight, *k.args))
        k.ret()
        return k

    k = module.function("finish_lines", params, internal=True)
    sums, stage_row, out, c_row, c_column, rows, columns, bias, bias_row, bias_column, flags = k.args
    adds_out, adds_bias = (flags & ADD_OUT).ne(0), (flags & ADD_BIAS).ne(0)

    def cell(source: Value, line: Value, bias_line: Value, j: Value, many: int, bias_step: Value | None) -> None:
        """`many` columns from j on, masked; with 0 one column at its strides."""
        mask = k.tail_mask(columns - j, many) if many else None
        total = k.var(compute.vec(many), k.load(source, compute.vec(many), j, mask=mask))
        with k.when(adds_bias):
            if bias_step is None:
                value = k.load(bias_line, out_type.vec(many), j, mask=mask)
            else:
                value = k.splat(k.load(bias_line, out_type, j * bias_step), many)
            total.set(total.get() + value.to(compute))
        place = j if many else j * c_column
        with k.when(adds_out):
            total.set(total.get() + k.load(line, out_type.vec(many), place, mask=mask).to(compute))
        k.store(line, total.get().to(out_type), place, mask=mask)

    def all_rows(step: int, bias_step: Value | None = None) -> None:
        with k.range(0, rows) as i:
            source, line = k.offset(sums, i * stage_row, compute), k.offset(out, i * c_row, out_type)
            bias_line = k.offset(bias, i * bias_row, out_type)
            with k.range(0, columns, max(step, 1)) as j:
                cell(source, line, bias_line, j, step, bias_step)

    def by_lines() -> None:
        k.when_else(bias_column.eq(0), lambda: all_rows(lanes, bias_column), lambda: all_rows(lanes))

    by_line = c_column.eq(1) & (bias_column.eq(1) | bias_column.eq(0) | ~adds_bias)
    k.when_else(by_line, by_lines, lambda: all_rows(0, bias_column))
    k.ret()
    return k


def unit_offsets(k: Function, words: Value, place: Value, count: int) -> list[Value]:
    """Element offsets of a, b and out (the first `count` of them) for a place in the batch, from `batch_words`."""
    rest = k.var(i64, place)
    offsets = [k.var(i64, k.load(words, i64, 1 + i)) for i in range(count)]
    with k.range(0, k.load(words, i64)) as d:
        entry = k.offset(words, d * (8 * 4) + 8 * 4)
        size = k.load(entry, i64)
        whole = rest.get() // size
        index = rest.get() - whole * size
        rest.set(whole)
        for i, offset in enumerate(offsets):
            offset.set(offset.get() + index * k.load(entry, i64, 1 + i))
    return [offset.get() for offset in offsets]


def even_heights(k: Function, heights: tuple[int, ...], rows: Value) -> dict[int, Value]:
    """How many register tiles of the three greatest heights, if those are one row apart, make up `rows` exactly."""
    most = heights[0]
    if heights[:3] != (most, most - 1, most - 2):
        return {}
    tiles = (rows + (most - 1)) // most
    missing = tiles * most - rows
    fits = missing <= tiles * 2
    least = k.maximum(missing - tiles, 0)
    middle = missing - least * 2
    zero = k.const(i64, 0)
    return {
        most: k.select(fits, tiles - least - middle, rows // most),
        most - 1: k.select(fits, middle, zero),
        most - 2: k.select(fits, least, zero),
    }


def build_tiles(target: Target, *parameters) -> Module:
    """Slots: a, b, bias (anything if there is none), out, scratch, those of the epilogue, block."""
    kind = TileKernel(*parameters)
    t = Tiles(target, kind)
    finishing = t.finishing
    lanes, height, width = t.lanes, t.height, t.width
    if kind.packs_a:
        pack_a = pack_function(t.module, "pack_a", t.memory, t.compute, height, lanes, kind.a_mode)
    if kind.packs_b:
        pack_b = pack_function(t.module, "pack_b", t.memory, t.compute, width, lanes, kind.b_mode)
    k = t.module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    slot = finishing.slots(k, slots, ("a", "b", "bias", "out", "scratch"))
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(FIELDS)}
    words = k.offset(slot["block"], 8 * BATCH)
    finishing.over(k, after_batch(k, words))
    scratch = k.offset(slot["scratch"], tid * p["scratch_stride"])
    b_type = t.compute if kind.b_mode == "panels" else t.memory
    padded_n = (p["n"] + (width - 1)) // width * width

    with k.range(begin, end) as unit:
        rest, column_tile = unit // p["tiles_n"], unit % p["tiles_n"]
        place, row_tile = rest // p["tiles_m"], rest % p["tiles_m"]
        a_at, b_at, c_at = unit_offsets(k, words, place, 3)
        row0, column0 = row_tile * p["block_m"], column_tile * p["block_n"]
        rows = k.minimum(p["m"] - row0, p["block_m"])
        even = {} if kind.packs_a else even_heights(k, kind.heights, rows)
        columns = k.minimum(p["n"] - column0, p["block_n"])
        a_unit = k.offset(slot["a"], a_at + row0 * p["a_row"], t.memory)
        b_unit = k.offset(slot["b"], b_at if kind.b_mode == "panels" else b_at + column0 * p["b_column"], b_type)
        out_unit = k.offset(slot["out"], c_at + row0 * p["c_row"] + column0 * p["c_column"], t.out)
        bias_unit = k.offset(slot["bias"], row0 * p["bias_row"] + column0 * p["bias_column"], t.out)
        if kind.staged:
            c_type, c_unit, c_row = t.compute, scratch, (columns + (width - 1)) // width * width
            height_bytes = (p["block_m"] + (height - 1)) // height * height * t.compute.size
            packed_a = k.offset(scratch, height_bytes * ((p["block_n"] + (width - 1)) // width * width))
        else:
            c_type, c_unit, c_row, packed_a = t.out, out_unit, p["c_row"], scratch

        start, more = k.var(i64, 0), k.var(i64, 1)
        with k.loop_while(lambda: more.get().ne(0)):  # once at least: a product over nothing is zero
            at = start.get()
            depth = k.minimum(p["k"] - at, p["block_k"])
            stored_depth = (depth + (DEPTH_ALIGN - 1)) & -DEPTH_ALIGN
            a_block = k.offset(a_unit, at * p["a_step"], t.memory)
            if kind.packs_a:
                k.call(pack_a, a_block, p["a_row"], p["a_step"], rows, depth, packed_a, stored_depth * height)
            panels_at = at * padded_n + column0 * stored_depth
            b_block = k.offset(b_unit, panels_at if kind.b_mode == "panels" else at * p["b_step"], b_type)
            packed_b = packed_a
            if kind.packs_a:
                packed_b = k.offset(packed_a, p["packed_rows"] * stored_depth, t.compute)
            first = at.eq(0)
            if kind.staged:
                flags = k.select(first, k.const(i64, 0), k.const(i64, ADD_OUT))
            else:
                flags = k.select(first, p["flags"], p["flags"] & FAR | ADD_OUT)

            def column_of_tiles(j: Value, tail: bool) -> None:
                if kind.packs_b:
                    b_panel = k.offset(packed_b, (j - group0.get()) * stored_depth, t.compute)
                else:
                    b_panel = k.offset(b_block, j if kind.b_mode == "plain" else j * stored_depth, b_type)
                # While A passes, each register tile fetches a piece of the next panel: a line of 64 bytes every four steps.
                next_panel = k.offset(b_panel, stored_depth * width, b_type)
                c_panel = k.offset(c_unit, j, c_type)
                bias_panel = k.offset(bias_unit, j * p["bias_column"], t.out)

                def tiles(i: Value, h: int, left: Value | int) -> None:
                    if kind.packs_a:
                        a_panel = k.offset(packed_a, i * stored_depth, t.compute)
                    else:
                        a_panel = k.offset(a_block, i * p["a_row"], t.memory)
                    k.call(
                        t.micro[h, tail],
                        depth,
                        a_panel,
                        p["a_row"],
                        p["a_step"],
                        b_panel,
                        p["b_step"],
                        k.offset(c_panel, i * c_row, c_type),
                        c_row,
                        left,
                        columns - j,
                        flags,
                        bias_panel,
                        p["bias_column"],
                        k.offset(next_panel, i // height * stored_depth * 16),
                    )

                done = k.const(i64, 0)
                heights = t.heights[tail]
                for h in heights[:1] if kind.packs_a else heights:
                    many = even[h] if h in even and not tail else (rows - done) // h
                    end_of_tiles = done + many * h
                    with k.range(done, end_of_tiles, h) as i:
                        tiles(i, h, h)
                    done = end_of_tiles
                if kind.packs_a:  # the last panel has whole lines, so a higher tile may read it
                    left = rows - done
                    for upper, lower in zip(heights, (*heights[1:], 0), strict=True):
                        with k.when((left <= upper) & (left > lower)):
                            tiles(done, upper, left)

            tail_width = kind.tail_vectors * lanes
            # A panel is stored whole, so only what fits a tail is left to it; plain columns past the edge may not be read.
            whole = (
                columns // width * width
                if kind.b_mode == "plain"
                else (columns + (width - tail_width - 1)) // width * width
            )
            group0 = k.var(i64, 0)

            def panels(start_column: Value | int, end_column: Value) -> None:
                with k.range(start_column, k.minimum(whole, end_column), width) as j:
                    column_of_tiles(j, False)
                with k.range(k.maximum(whole, start_column), end_column, tail_width) as j:
                    column_of_tiles(j, True)

            following = at + depth
            if kind.packs_b or (finishing and not kind.staged):
                with k.range(0, columns, width * PACKED_PANELS) as j:
                    group0.set(j)
                    group = k.minimum(columns - j, width * PACKED_PANELS)
                    if kind.packs_b:
                        source = k.offset(b_block, j * p["b_column"], t.memory)
                        k.call(pack_b, source, p["b_column"], p["b_step"], group, depth, packed_b, stored_depth * width)
                    panels(j, j + group)
                    if finishing and not kind.staged:
                        reach, span = j + group, width * FINISHED_PANELS
                        due = reach.eq(columns) | (reach % span).eq(0)
                        with k.when((following >= p["k"]) & due):
                            begun = j // span * span
                            finishing.block(k, (p["m"], p["n"]), place, row0, rows, column0 + begun, reach - begun)
            else:
                panels(0, columns)
            start.set(following)
            more.set((following < p["k"]).to(i64))
        if kind.staged:
            # With an epilogue a piece at a time, which stays in L2.
            step = {None: p["block_m"], False: 16, True: FINISHED_ROWS}[finishing.code and finishing.code.turned]
            with k.range(0, rows, step) as i:
                part = k.minimum(rows - i, step)
                k.call(
                    t.finish,
                    k.offset(c_unit, i * c_row, c_type),
                    c_row,
                    k.offset(out_unit, i * p["c_row"], t.out),
                    p["c_row"],
                    p["c_column"],
                    part,
                    columns,
                    k.offset(bias_unit, i * p["bias_row"], t.out),
                    p["bias_row"],
                    p["bias_column"],
                    p["flags"],
                )
                if finishing:
                    finishing.block(k, (p["m"], p["n"]), place, row0 + i, part, column0, columns)
    k.ret()
    return t.module


def build_pack(target: Target, dtype: str, order: str, vectors: int) -> Module:
    """Packs all of B. Slots: b, packed, block; a unit is PACKED_PANELS panels of one depth block of one matrix."""
    memory, compute = ELEMENTS[dtype]
    lanes = target.lanes(compute)
    width = vectors * lanes
    module = Module(target.vector_bytes * 8)
    pack_b = pack_function(module, "pack_b", memory, compute, width, lanes, order)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    source, packed, block = (k.load(slots, ptr, i) for i in range(3))
    p = {name: k.load(block, i64, i) for i, name in enumerate(FIELDS)}
    padded = (p["n"] + (width - 1)) // width * width
    columns = width * PACKED_PANELS  # of a unit
    groups = (p["n"] + (columns - 1)) // columns
    blocks = (p["k"] + (p["block_k"] - 1)) // p["block_k"]
    with k.range(begin, end) as unit:
        rest, group = unit // groups, unit % groups
        batch, depth_block = rest // blocks, rest % blocks
        _, b_at = unit_offsets(k, k.offset(block, 8 * BATCH), batch, 2)
        at, column = depth_block * p["block_k"], group * columns
        depth = k.minimum(p["k"] - at, p["block_k"])
        stored_depth = (depth + (DEPTH_ALIGN - 1)) & -DEPTH_ALIGN
        matrix = padded * ((p["k"] + (DEPTH_ALIGN - 1)) & -DEPTH_ALIGN)
        to = k.offset(packed, batch * matrix + at * padded + column * stored_depth, compute)
        k.call(
            pack_b,
            k.offset(source, b_at + at * p["b_step"] + column * p["b_column"], memory),
            p["b_column"],
            p["b_step"],
            k.minimum(p["n"] - column, columns),
            depth,
            to,
            stored_depth * width,
        )
    k.ret()
    return module


# ---------------------------------------------------------------------- blocks
MOST_PANELS = 20  # of A in a unit: 560 KiB of L2, 840 of float64
L2_BYTES = 2 << 20
BLOCK_DEPTH = {4: 512, 8: 384}  # by the size of an element of a sum


def register_tile(target: Target, plain_a: bool) -> tuple[tuple[int, ...], int]:
    """Heights of the register tiles and their width in vectors, by the number of vector registers.

    Rows as they lie are cut into tiles of nearly the same height, see `even_heights`.
    """
    if target.vector_bytes == 64 or target.arch == "aarch64":  # 32 registers: 28 sums, 2 of b, 1 of a
        return (14, 13, 12, 8, 4, 2, 1) if plain_a else (14, 8, 4, 2, 1), 2
    return (6, 4, 2, 1), 2  # 16 registers: 12 sums


def far(p: Problem) -> int:
    """FAR for results that do not stay near: register tiles then ask for their lines before they compute."""
    return FAR if p.matrices * p.m * p.n * ELEMENTS[p.out_dtype][0].size > L2_BYTES // 2 else 0


def depth_block(p: Problem, most: int = 0) -> int:
    """Steps of depth that are packed and multiplied at a time."""
    return max(1, blocks_of(p.k, most or BLOCK_DEPTH[ELEMENTS[p.dtype][1].size], DEPTH_ALIGN))


def is_staged(p: Problem) -> bool:
    """Whether sums wait in scratch until the depth is done."""
    return (
        ELEMENTS[p.out_dtype][0] is not ELEMENTS[p.dtype][1] or p.out[1] != 1 or (p.bias is not None and p.bias[0] != 0)
    )


def lower_tiles(
    p: Problem,
    target: Target,
    threads: int,
    *,
    plain_a: bool = False,
    shared_b: bool = False,
    panels: int = 0,
    columns: int = 0,
    depth: int = 0,
) -> Lowered:
    """The general product: operands packed block by block, register tiles over them.

    With `plain_a`, A is read where it lies, which wants a unit stride either way and no power of two for the other. With
    `shared_b`, B is packed once for all units, else by each unit again. `panels` of A and `columns` of B in a unit and
    `depth` of a block are at most what is given.
    """
    memory, compute = ELEMENTS[p.dtype]
    heights, vectors = register_tile(target, plain_a)
    height, lanes = heights[0], target.lanes(compute)
    width = vectors * lanes
    staged = is_staged(p)
    shared_b = shared_b and p.k > 0
    block_k = depth_block(p, depth)
    most_m, most_n = (panels or MOST_PANELS) * height, columns or 4096
    grid = Grid(height, width, most_m, most_n, 0 if plain_a else 24, 12 if shared_b else 60)
    block_m, block_n = unit_blocks(p, grid, threads)
    tiles_m, tiles_n = -(-p.m // block_m), -(-p.n // block_n)
    a_mode, b_order = order_of(*p.a), order_of(p.b[1], p.b[0])
    if plain_a:
        a_mode = {"depth": "row", "width": "column"}[a_mode]
    kind = TileKernel(p.dtype, p.out_dtype, a_mode, "panels" if shared_b else b_order, staged, heights, vectors, 1, 0)

    packed_rows = 0 if plain_a else round_up(block_m, height) + height
    packed_lines = packed_rows + (0 if shared_b else PACKED_PANELS * width) + lanes
    scratch_stride = packed_lines * round_up(min(block_k, p.k), DEPTH_ALIGN) * compute.size
    if staged:
        scratch_stride += round_up(block_m, height) * round_up(block_n, width) * compute.size
    scratch_stride = round_up(scratch_stride + 64, 4096) + 128  # threads' blocks in different L1 sets
    matrix = round_up(p.k, DEPTH_ALIGN) * round_up(p.n, width)
    matrices, packing, reading = packed_batch(p, matrix)

    fields = (p.m, p.n, p.k, *p.a, *p.b, *p.out, *(p.bias or (0, 0)), block_m, block_n, block_k, tiles_m, tiles_n, scratch_stride,
              packed_rows, p.flags | far(p))  # fmt: skip
    grain = 0 if p.is_short else 1
    out, b, scratch = p.inputs, 1, p.inputs + 1
    launches, sizes = [], [scratch_stride * threads]
    if shared_b:
        packs = matrices * -(-p.n // (width * PACKED_PANELS)) * -(-p.k // block_k)
        b, scratch, sizes = out + 1, out + 2, [matrices * matrix * compute.size, *sizes]
        launches.append(
            launch("gemm_pack", (p.dtype, b_order, vectors), build_pack, (1, b), packs, grain, (*fields, *packing))
        )
    units = p.matrices * tiles_m * tiles_n
    slots = (0, b, 2, out, scratch)  # out stands for a bias that there is not
    words = reading if shared_b else plain_batch(p)
    launches.append(main_launch(p, "gemm_tiles", tuple(kind)[:-1], build_tiles, slots, units, grain, (*fields, *words)))
    return Lowered(tuple(launches), tuple(sizes))


# Register tiles for few rows and 32 vector registers: rows -> (vectors, vectors of what is left over).
WIDE_TILES = {1: (8, 2), 2: (8, 2), 3: (8, 2), 4: (6, 2), 5: (5, 1), 6: (4, 1), 7: (4, 1), 8: (3, 1), 9: (3, 1)}
# and for 16.
NARROW_TILES = {1: (6, 2), 2: (4, 1), 3: (3, 1)}


def plain_kernel(p: Problem, target: Target) -> TileKernel:
    """The kernel for operands used as they lie: a with a unit stride either way, b along n."""
    wide = register_tile(target, True)[0][0] == 14
    lanes = target.lanes(ELEMENTS[p.dtype][1])
    few = (WIDE_TILES if wide else NARROW_TILES).get(p.m)
    if p.n <= lanes:  # a single vector: its rows are as many as give the adders enough to do
        most = 16 if wide else 8
        heights, vectors, tail = ((p.m,) if p.m <= most else (most, 8, 4, 2, 1)[wide ^ 1 :]), 1, 1
    elif few:
        heights, (vectors, tail) = (p.m,), few
        if p.n <= tail * lanes:
            vectors = tail
    elif p.k <= 4:  # writing is all: long pieces of lines
        heights, vectors, tail = (2, 1), 8 if wide else 4, 2
    else:
        heights, vectors = register_tile(target, plain_a=True)
        tail = 1
    ahead = 16 if 4 < p.m <= 28 and p.n > lanes and p.n * p.k * ELEMENTS[p.dtype][0].size >= L2_BYTES else 0
    return TileKernel(
        p.dtype, p.out_dtype, "row" if p.a[1] == 1 else "column", "plain", False, heights, vectors, tail, ahead
    )


def lower_plain(p: Problem, target: Target, threads: int, *, panels: int = 0, columns: int = 0) -> Lowered:
    """Nothing is packed: small matrices, and few rows past a long matrix along n."""
    kind = plain_kernel(p, target)
    height, width = kind.heights[0], kind.vectors * target.lanes(ELEMENTS[p.dtype][1])
    grid = Grid(height, width, panels * height or max(MOST_PANELS * 14, height), columns or 4096, 4, 12)
    block_m, block_n = unit_blocks(p, grid, threads)
    tiles_m, tiles_n = -(-p.m // block_m), -(-p.n // block_n)
    fields = (
        p.m,
        p.n,
        p.k,
        *p.a,
        *p.b,
        *p.out,
        *(p.bias or (0, 0)),
        block_m,
        block_n,
        max(p.k, 1),
        tiles_m,
        tiles_n,
        0,
        0,
        p.flags | far(p),
    )
    out = p.inputs
    units = p.matrices * tiles_m * tiles_n
    grain = 0 if p.is_short else max(1, units // (16 * threads))
    slots = (0, 1, 2, out, out)  # out stands for a bias that there is not, and for scratch
    words = (*fields, *plain_batch(p))
    return Lowered((main_launch(p, "gemm_tiles", tuple(kind)[:-1], build_tiles, slots, units, grain, words),))
