"""Products with few rows over a matrix that lies along depth: a linear layer's weights, read once at memory speed.

Both operands run along depth, so an element is a dot product of two lines: `rows` lines of x (kept in cache) by
`columns` lines of the weights per register tile, vectors along depth, added across lanes at the end. Weights are
fetched ahead by software: the hardware does not follow that many streams. Where x is too much for L1, it is copied block
by block of depth (lines of x are often a power of two apart, and would share few sets), and the lines of a unit pass by
once for each block, while sums wait.

    out[i, j] = sum_p x[i, p] * w[j, p]

The order of summation depends on depth and on the register tile, which depends on the number of rows only.

May not know: other ways to multiply. Entry: `lower_dot`.
"""

from __future__ import annotations

from flambeau.base.record import replace
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import bf16, f32, i64, ptr
from flambeau.templates.epilogue import EpilogueCode, Finishing
from flambeau.templates.gemm_problem import (
    Problem,
    after_batch,
    launch,
    main_launch,
    packed_batch,
    plain_batch,
    round_up,
)
from flambeau.templates.gemm_tiles import ABI, ELEMENTS, finish_function, unit_offsets
from flambeau.templates.launch import Lowered

FIELDS = (
    "units", "grain", "m", "n", "k", "x_row", "w_row", "c_row", "c_column", "bias_row", "bias_column", "block_n", "tiles_n",
    "block_k", "x_step", "ahead", "scratch_stride", "flags",
)  # fmt: skip
BATCH = len(FIELDS)

X_BYTES = 48 << 10  # more of x does not stay in L1 beside the weights: depth is cut into blocks
BLOCK_BYTES, LEAST_DEPTH = 16 << 10, 128  # of x in a block; its steps at least
ONE_ROW_BYTES = 1 << 12  # of a line that is worth a register tile of its own
RESIDENT_BYTES = 128 << 20  # weights that a last-level cache may hold from one call to the next

# Register tiles for 32 vector registers: rows of x -> (lines of weights, vectors of depth in flight).
ONE_ROW = (1, 8)  # for weights that some cache holds: a straight stream; from memory, several streams are faster
WIDE_TILES = {1: (4, 4), 2: (4, 2), 3: (4, 2), 4: (4, 1), 5: (4, 1), 6: (4, 1), 7: (3, 1), 8: (3, 1)}
# and for 16.
NARROW_TILES = {1: (4, 2), 2: (4, 1), 3: (3, 1), 4: (2, 1)}


def register_tile(target: Target, p: Problem) -> tuple[int, int, int]:
    """(rows, columns, vectors of depth) for m rows, which are cut into equal parts."""
    wide = target.vector_bytes == 64 or target.arch == "aarch64"
    tiles = WIDE_TILES if wide else NARROW_TILES
    rows = -(-p.m // -(-p.m // max(tiles)))
    line_bytes = p.k * ELEMENTS[p.dtype][0].size
    if rows == 1 and wide and line_bytes >= ONE_ROW_BYTES and p.matrices * p.n * line_bytes <= RESIDENT_BYTES:
        return 1, *ONE_ROW
    return rows, *tiles[rows]


def register_tiles(target: Target, p: Problem) -> list[tuple[int, int, int]]:
    """Other register tiles that might serve: as many rows in each as there are, or halves of them."""
    wide = target.vector_bytes == 64 or target.arch == "aarch64"
    registers, most = (28, 8) if wide else (12, 4)
    taken = register_tile(target, p)
    parts = -(-p.m // most)
    found = [
        (rows, columns, unroll)
        for rows in sorted({-(-p.m // parts), -(-p.m // (2 * parts))}, reverse=True)
        for unroll in dict.fromkeys((taken[2], 1, 2, 4, 8))
        for columns in (1, 2, 3, 4, 6)
        if registers // 4 <= rows * columns * unroll <= registers - rows
    ]
    return [tile for tile in found if tile != taken]


def depth_block(p: Problem) -> int:
    """Steps of depth that are gone through at a time."""
    size = ELEMENTS[p.dtype][0].size
    if p.m * p.k * size <= X_BYTES:
        return p.k
    return min(p.k, max(LEAST_DEPTH, round_up(BLOCK_BYTES // (p.m * size), 64)))


def build_dot(
    target: Target, dtype: str, out: str, rows: int, columns: int, unroll: int, epilogue: EpilogueCode | None = None
) -> Module:
    """Slots: x, w, bias (anything if there is none), out, scratch, those of the epilogue, block; a unit is `block_n` lines of w for one
    matrix."""
    memory, compute = ELEMENTS[dtype]
    out_type = ELEMENTS[out][0]
    lanes = target.lanes(compute)
    pairs = memory is bf16 and target.has("avx512bf16") and target.vector_bytes == 64
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    finish = finish_function(module, compute, out_type, 4, turns=False)
    finishing = Finishing(epilogue)
    fused = compute.is_float and (target.arch == "aarch64" or target.has("fma"))
    element = memory.vec(2 * lanes if pairs else lanes)

    def multiply_add(k: Function, x: Value, w: Value, total: Value) -> Value:
        if pairs:
            return k.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", f32.vec(16), total, x, w)
        x, w = x.to(compute), w.to(compute)
        return k.fma(x, w, total) if fused else total + x * w

    k = module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    slot = finishing.slots(k, slots, ("x", "w", "bias", "out", "scratch"))
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(FIELDS)}
    words = k.offset(slot["block"], 8 * BATCH)
    finishing.over(k, after_batch(k, words))
    waiting = k.offset(slot["scratch"], tid * p["scratch_stride"])
    vector = compute.vec(lanes)
    tile = k.stack(rows * columns * compute.size)
    cells = [(i, j, u) for i in range(rows) for j in range(columns) for u in range(unroll)]
    stride = element.lanes * unroll

    def register_tile_at(
        x: Value,
        x_left: Value,
        w: Value,
        w_left: Value,
        depth: Value,
        ahead: Value,
        stage: Value,
        first: Value,
        last: Value,
    ) -> None:
        """Dot products of `rows` lines from x with `columns` from w, of which x_left and w_left exist, over a block of
        depth; sums wait in `stage` for the next block, or are added up to `tile`."""
        x_lines = [k.offset(x, k.minimum(x_left - 1, i) * p["x_row"], memory) for i in range(rows)]
        w_lines = [k.offset(w, k.minimum(w_left - 1, j) * p["w_row"], memory) for j in range(columns)]
        sums = {cell: k.var(vector, 0) for cell in cells}
        with k.when(~first):
            for place, cell in enumerate(cells):
                sums[cell].set(k.load(stage, vector, place * lanes))

        def step(at: Value, u: int, mask: Value | None, prefetch: bool) -> None:
            place = at if u == 0 else at + u * element.lanes
            ws = [k.load(line, element, place, mask=mask) for line in w_lines]
            if prefetch:
                for line in w_lines:
                    k.prefetch(k.offset(line, place, memory), ahead)
            for i in range(rows):
                xs = k.load(x_lines[i], element, place, mask=mask)
                for j in range(columns):
                    sums[i, j, u].set(multiply_add(k, xs, ws[j], sums[i, j, u].get()))

        whole = depth // stride * stride
        with k.range(0, whole, stride) as at:
            for u in range(unroll):
                step(at, u, None, True)
        with k.range(whole, depth, element.lanes) as at:
            step(at, 0, k.tail_mask(depth - at, element.lanes), False)

        def wait() -> None:
            for place, cell in enumerate(cells):
                k.store(stage, sums[cell].get(), place * lanes)

        def add_up() -> None:
            for i in range(rows):
                for j in range(columns):
                    total = sums[i, j, 0].get()
                    for u in range(1, unroll):
                        total = total + sums[i, j, u].get()
                    k.store(tile, k.reduce(total, lambda a, b: a + b), i * columns + j)

        k.when_else(last, add_up, wait)

    with k.range(begin, end) as unit:
        place, column_tile = unit // p["tiles_n"], unit % p["tiles_n"]
        x_at, w_at, c_at = unit_offsets(k, words, place, 3)
        column0 = column_tile * p["block_n"]
        end_column = k.minimum(p["n"], column0 + p["block_n"])
        x_unit, w_unit = k.offset(slot["x"], x_at, memory), k.offset(slot["w"], w_at, memory)
        out_unit = k.offset(slot["out"], c_at, out_type)
        start, more = k.var(i64, 0), k.var(i64, 1)
        with k.loop_while(lambda: more.get().ne(0)):  # once at least: a product over nothing is zero
            at = start.get()
            depth = k.minimum(p["k"] - at, p["block_k"])
            first, last = at.eq(0), (at + depth).eq(p["k"])
            stage = k.var(ptr, waiting)
            with k.range(column0, end_column, columns) as j:
                # In one block of depth, lines go on; else the next tile's are fetched, or this unit's first ones further on.
                down = k.select(j + columns < end_column, j + columns, column0) - j
                along = k.select(j + columns < end_column, k.const(i64, 0), depth)
                ahead = k.select(first & last, p["ahead"], (down * p["w_row"] + along) * memory.size)
                with k.range(0, p["m"], rows) as i:
                    register_tile_at(
                        k.offset(x_unit, i * p["x_row"] + at * p["x_step"], memory),
                        p["m"] - i,
                        k.offset(w_unit, j * p["w_row"] + at, memory),
                        end_column - j,
                        depth,
                        ahead,
                        stage.get(),
                        first,
                        last,
                    )
                    stage.set(k.offset(stage.get(), len(cells) * lanes, compute))
                    with k.when(last):
                        out_tile = k.offset(out_unit, i * p["c_row"] + j * p["c_column"], out_type)
                        bias_tile = k.offset(slot["bias"], i * p["bias_row"] + j * p["bias_column"], out_type)
                        k.call(
                            finish,
                            tile,
                            columns,
                            out_tile,
                            p["c_row"],
                            p["c_column"],
                            k.minimum(p["m"] - i, rows),
                            k.minimum(end_column - j, columns),
                            bias_tile,
                            p["bias_row"],
                            p["bias_column"],
                            p["flags"],
                        )
            following = at + depth
            start.set(following)
            more.set((following < p["k"]).to(i64))
        if finishing:
            finishing.block(k, (p["m"], p["n"]), place, 0, p["m"], column0, end_column - column0)
    k.ret()
    return module


def build_lines(target: Target, dtype: str, unit_step: bool) -> Module:
    """Copies x so that its rows run along depth, block after block of it. Slots: x, copy, block; a unit is one row of one
    matrix in one block."""
    memory, compute = ELEMENTS[dtype]
    lanes = target.lanes(compute)
    module = Module(target.vector_bytes * 8)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    source, copy, block = (k.load(slots, ptr, i) for i in range(3))
    m, depth, row, step, block_k, blocks = (k.load(block, i64, 2 + i) for i in range(6))
    with k.range(begin, end) as unit:
        line_number, i = unit // m, unit % m
        place, start = line_number // blocks, line_number % blocks * block_k
        _, at = unit_offsets(k, k.offset(block, 8 * 8), place, 2)
        line = k.offset(source, at + i * row + start * step, memory)
        to = k.offset(copy, unit * block_k, memory)
        count = k.minimum(depth - start, block_k)
        if unit_step:
            with k.range(0, count, lanes) as p:
                mask = k.tail_mask(count - p, lanes)
                k.store(to, k.load(line, memory.vec(lanes), p, mask=mask), p, mask=mask)
        else:
            with k.range(0, count) as p:
                k.store(to, k.load(line, memory, p * step), p)
    k.ret()
    return module


def lower_dot(p: Problem, target: Target, threads: int, *, tile: tuple[int, ...] = (), unit_kib: int = 0) -> Lowered:
    """b has unit stride along k; a is copied if it has not, or if it does not stay in L1.

    `tile` is a register tile other than the usual one, `unit_kib` how much of b a unit has, if given.
    """
    memory, compute = ELEMENTS[p.dtype]
    rows, columns, unroll = tile or register_tile(target, p)
    launches = []
    scratch: tuple[int, ...] = ()
    x, x_step = 0, 1
    block_k = depth_block(p)
    if p.a[1] != 1 or block_k < p.k:
        blocks = -(-p.k // block_k)
        line = block_k = round_up(block_k, 64)
        turned = replace(
            p, batch=tuple((size, b, a, out) for size, a, b, out in p.batch), base=(p.base[1], p.base[0], p.base[2])
        )
        matrices, packing, reading = packed_batch(turned, blocks * line * p.m)
        work = matrices * p.m * blocks
        launches.append(launch("gemm_lines", (p.dtype, p.a[1] == 1), build_lines, (0, p.inputs + 1), work, 0,
                               (p.m, p.k, *p.a, line, blocks, *packing)))  # fmt: skip
        scratch = (matrices * blocks * p.m * line * memory.size,)
        own = iter(reading[4:])
        batch = tuple((size, next_a, b, out) for size, b, next_a, out in zip(own, own, own, own, strict=True))
        p = replace(p, a=(line, 1), batch=batch, base=(0, *p.base[1:]))
        x, x_step = p.inputs + 1, p.m
    block_n = _unit_columns(p, columns, threads, unit_kib << 10)
    tiles_n = -(-p.n // block_n)
    ahead = 2048 if p.m == 2 or columns == 1 else 1024
    waiting = 0
    if block_k < p.k:  # sums between blocks of depth
        waiting = (
            -(-p.m // rows) * (block_n // columns) * rows * columns * unroll * target.lanes(compute) * compute.size
        )
    scratch_stride = round_up(waiting, 4096) + 128
    fields = (p.m, p.n, p.k, p.a[0], p.b[1], *p.out, *(p.bias or (0, 0)), block_n, tiles_n, block_k, x_step, ahead,
              scratch_stride, p.flags)  # fmt: skip
    grain = 0 if p.is_short else 1
    slots = (x, 1, 2, p.inputs, p.inputs + 1 + len(scratch))
    launches.append(main_launch(p, "gemm_dot", (p.dtype, p.out_dtype, rows, columns, unroll), build_dot, slots, p.matrices * tiles_n,
                           grain, (*fields, *plain_batch(p))))  # fmt: skip
    return Lowered(tuple(launches), (*scratch, scratch_stride * threads))


def _unit_columns(p: Problem, columns: int, threads: int, unit_bytes: int = 0) -> int:
    """Lines of weights of a unit: 256 or 512 KiB of them, and units enough for the threads."""
    bytes_each = max(1, p.k * ELEMENTS[p.dtype][0].size)
    block = max(columns, min(p.n, (unit_bytes or 1 << (18 if p.m <= 2 else 19)) // bytes_each))
    if p.matrices * -(-p.n // block) < 4 * threads:
        block = max(columns, -(-p.n * p.matrices // (4 * threads)))
    return round_up(block, columns)
