"""Products with few rows over a matrix that lies along depth: a linear layer's weights, read once at memory speed.

Both operands run along depth, so an element is a dot product of two lines: `rows` lines of x (kept in cache) by
`columns` lines of the weights per register tile, vectors along depth, added across lanes at the end. Weights are
fetched ahead by software: the hardware does not follow that many streams.

    out[i, j] = sum_p x[i, p] * w[j, p]

The order of summation depends on depth and on the register tile, which depends on the number of rows only.

May not know: other ways to multiply. Entry: `lower_dot`.
"""

from __future__ import annotations

from flambeau.base.record import replace
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, bf16, f32, i64, ptr
from flambeau.templates.gemm_problem import SERIAL_WORK, Problem, launch, packed_batch, plain_batch, round_up
from flambeau.templates.gemm_tiles import ABI, ELEMENTS, finish_function, unit_offsets
from flambeau.templates.launch import Lowered

FIELDS = (
    "units", "grain", "m", "n", "k", "x_row", "w_row", "c_row", "c_column", "bias_row", "bias_column", "block_n", "tiles_n",
    "ahead", "flags",
)  # fmt: skip
BATCH = len(FIELDS)

# Register tiles for 32 vector registers: rows of x -> (lines of weights, vectors of depth in flight).
WIDE_TILES = {1: (4, 4), 2: (4, 2), 3: (4, 2), 4: (4, 1), 5: (4, 1), 6: (4, 1), 7: (3, 1), 8: (3, 1)}
# and for 16.
NARROW_TILES = {1: (4, 2), 2: (4, 1), 3: (3, 1), 4: (2, 1)}


def register_tile(target: Target, m: int) -> tuple[int, int, int]:
    """(rows, columns, vectors of depth) for m rows, which are cut into equal parts."""
    tiles = WIDE_TILES if target.vector_bytes == 64 or target.arch == "aarch64" else NARROW_TILES
    rows = -(-m // -(-m // max(tiles)))
    return rows, *tiles[rows]


def build_dot(target: Target, dtype: str, out: str, rows: int, columns: int, unroll: int) -> Module:
    """Slots: x, w, bias (anything if there is none), out, block; a unit is `block_n` lines of w for one matrix."""
    memory, compute = ELEMENTS[dtype]
    out_type = ELEMENTS[out][0]
    lanes = target.lanes(compute)
    pairs = memory is bf16 and target.has("avx512bf16") and target.vector_bytes == 64
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    finish = finish_function(module, compute, out_type, 4, turns=False)
    fused = compute.is_float and (target.arch == "aarch64" or target.has("fma"))
    element = memory.vec(2 * lanes if pairs else lanes)

    def multiply_add(k: Function, x: Value, w: Value, total: Value) -> Value:
        if pairs:
            return k.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", f32.vec(16), total, x, w)
        x, w = x.to(compute), w.to(compute)
        return k.fma(x, w, total) if fused else total + x * w

    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    slot = {name: k.load(slots, ptr, i) for i, name in enumerate(("x", "w", "bias", "out", "block"))}
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(FIELDS)}
    tile = k.stack(rows * columns * compute.size)

    def register_tile_at(x: Value, x_left: Value, w: Value, w_left: Value) -> None:
        """Dot products of `rows` lines from x with `columns` from w, of which x_left and w_left exist, to `tile`."""
        x_lines = [k.offset(x, k.minimum(x_left - 1, i) * p["x_row"], memory) for i in range(rows)]
        w_lines = [k.offset(w, k.minimum(w_left - 1, j) * p["w_row"], memory) for j in range(columns)]
        sums = [[[k.var(compute.vec(lanes), 0) for _ in range(unroll)] for _ in range(columns)] for _ in range(rows)]

        def step(at: Value, u: int, mask: Value | None, prefetch: bool) -> None:
            place = at if u == 0 else at + u * element.lanes
            ws = [k.load(line, element, place, mask=mask) for line in w_lines]
            if prefetch:
                for line in w_lines:
                    k.prefetch(k.offset(line, place, memory), p["ahead"])
            for i in range(rows):
                xs = k.load(x_lines[i], element, place, mask=mask)
                for j in range(columns):
                    sums[i][j][u].set(multiply_add(k, xs, ws[j], sums[i][j][u].get()))

        stride = element.lanes * unroll
        whole = p["k"] // stride * stride
        with k.range(0, whole, stride) as at:
            for u in range(unroll):
                step(at, u, None, True)
        with k.range(whole, p["k"], element.lanes) as at:
            step(at, 0, k.tail_mask(p["k"] - at, element.lanes), False)
        for i in range(rows):
            for j in range(columns):
                total = sums[i][j][0].get()
                for u in range(1, unroll):
                    total = total + sums[i][j][u].get()
                k.store(tile, k.reduce(total, lambda a, b: a + b), i * columns + j)

    with k.range(begin, end) as unit:
        place, column_tile = unit // p["tiles_n"], unit % p["tiles_n"]
        x_at, w_at, c_at = unit_offsets(k, k.offset(slot["block"], 8 * BATCH), place, 3)
        column0 = column_tile * p["block_n"]
        last = k.minimum(p["n"], column0 + p["block_n"])
        x_unit, w_unit = k.offset(slot["x"], x_at, memory), k.offset(slot["w"], w_at, memory)
        out_unit = k.offset(slot["out"], c_at, out_type)
        with k.range(column0, last, columns) as j:
            with k.range(0, p["m"], rows) as i:
                register_tile_at(
                    k.offset(x_unit, i * p["x_row"], memory),
                    p["m"] - i,
                    k.offset(w_unit, j * p["w_row"], memory),
                    last - j,
                )
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
                    k.minimum(last - j, columns),
                    bias_tile,
                    p["bias_row"],
                    p["bias_column"],
                    p["flags"],
                )
    k.ret()
    return module


def build_lines(target: Target, dtype: str) -> Module:
    """Copies x so that its rows run along depth. Slots: x, copy, block; a unit is one row of one matrix."""
    memory: Type = ELEMENTS[dtype][0]
    module = Module(target.vector_bytes * 8)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    source, copy, block = (k.load(slots, ptr, i) for i in range(3))
    m, depth, row, step, copy_row = (k.load(block, i64, 2 + i) for i in range(5))
    with k.range(begin, end) as unit:
        place, i = unit // m, unit % m
        _, at = unit_offsets(k, k.offset(block, 8 * 7), place, 2)
        line = k.offset(source, at + i * row, memory)
        to = k.offset(copy, unit * copy_row, memory)
        with k.range(0, depth) as p:
            k.store(to, k.load(line, memory, p * step), p)
    k.ret()
    return module


def lower_dot(p: Problem, target: Target, threads: int) -> Lowered:
    """b has unit stride along k; a is copied if it has not."""
    launches = []
    scratch: tuple[int, ...] = ()
    x = 0
    if p.a[1] != 1:
        line = round_up(p.k, 64)
        turned = replace(
            p, batch=tuple((size, b, a, out) for size, a, b, out in p.batch), base=(p.base[1], p.base[0], p.base[2])
        )
        matrices, packing, reading = packed_batch(turned, line * p.m)
        launches.append(launch("gemm_lines", (p.dtype,), build_lines, (0, p.inputs + 1), matrices * p.m, 0,
                               (p.m, p.k, *p.a, line, *packing)))  # fmt: skip
        scratch = (matrices * p.m * line * ELEMENTS[p.dtype][0].size,)
        own = iter(reading[4:])
        batch = tuple((size, next_a, b, out) for size, b, next_a, out in zip(own, own, own, own, strict=True))
        p = replace(p, a=(line, 1), batch=batch, base=(0, *p.base[1:]))
        x = p.inputs + 1
    rows, columns, unroll = register_tile(target, p.m)
    block_n = _unit_columns(p, columns, threads)
    tiles_n = -(-p.n // block_n)
    ahead = 2048 if p.m <= 2 else 1024
    fields = (p.m, p.n, p.k, p.a[0], p.b[1], *p.out, *(p.bias or (0, 0)), block_n, tiles_n, ahead, p.flags)
    grain = 0 if p.work < SERIAL_WORK else 1
    launches.append(launch("gemm_dot", (p.dtype, p.out_dtype, rows, columns, unroll), build_dot, (x, 1, 2, p.inputs),
                           p.matrices * tiles_n, grain, (*fields, *plain_batch(p))))  # fmt: skip
    return Lowered(tuple(launches), scratch)


def _unit_columns(p: Problem, columns: int, threads: int) -> int:
    """Lines of weights of a unit: some 256 KiB of them, and units enough for the threads."""
    bytes_each = max(1, p.k * ELEMENTS[p.dtype][0].size)
    block = max(columns, min(p.n, (1 << 18) // bytes_each))
    if p.matrices * -(-p.n // block) < 4 * threads:
        block = max(columns, -(-p.n * p.matrices // (4 * threads)))
    return round_up(block, columns)
