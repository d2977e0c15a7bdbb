"""Products of very few rows with a matrix that lies along n: several of its rows at a time, each read straight on.

A register tile would read short pieces of rows far apart, which no prefetcher follows; here a block of columns of the
result stays in L1 while `DEPTH` rows of the matrix pass by at memory speed.

May not know: other ways to multiply. Entry: `lower_rows`.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64
from flambeau.templates.epilogue import EpilogueCode, Finishing
from flambeau.templates.gemm_problem import Problem, after_batch, main_launch, plain_batch, round_up
from flambeau.templates.gemm_tiles import ABI, ELEMENTS, finish_function, unit_offsets
from flambeau.templates.launch import Lowered

MOST_ROWS = 4
BLOCK_BYTES = 4096  # of a row of b in a unit

FIELDS = (
    "units", "grain", "n", "k", "a_row", "a_step", "b_step", "c_row", "c_column", "bias_row", "bias_column", "block_n", "tiles_n",
    "scratch_stride", "flags",
)  # fmt: skip
BATCH = len(FIELDS)


def build_rows(
    target: Target, dtype: str, out: str, rows: int, depth: int, epilogue: EpilogueCode | None = None
) -> Module:
    """Slots: a, b, bias (anything if there is none), out, scratch, those of the epilogue, block; a unit is a block of columns of one
    matrix."""
    memory, compute = ELEMENTS[dtype]
    out_type = ELEMENTS[out][0]
    lanes = target.lanes(compute)
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    finish = finish_function(module, compute, out_type, lanes, turns=False)
    finishing = Finishing(epilogue)
    fused = compute.is_float and (target.arch == "aarch64" or target.has("fma"))
    k = module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    slot = finishing.slots(k, slots, ("a", "b", "bias", "out", "scratch"))
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(FIELDS)}
    words = k.offset(slot["block"], 8 * BATCH)
    finishing.over(k, after_batch(k, words))
    sums = k.offset(slot["scratch"], tid * p["scratch_stride"])
    line = p["block_n"]

    def add_rows(a: Value, b: Value, columns: Value, count: int) -> None:
        """sums += a[:, 0:count] @ b[0:count, :columns]."""
        xs = [
            [
                k.splat(k.load(k.offset(a, i * p["a_row"] + r * p["a_step"], memory), memory).to(compute), lanes)
                for r in range(count)
            ]
            for i in range(rows)
        ]
        lines = [k.offset(b, r * p["b_step"], memory) for r in range(count)]

        def vector(j: Value, mask: Value | None) -> None:
            ws = [k.load(at, memory.vec(lanes), j, mask=mask).to(compute) for at in lines]
            for i in range(rows):
                place = k.offset(sums, i * line + j, compute)
                total = k.load(place, compute.vec(lanes))
                for x, w in zip(xs[i], ws, strict=True):
                    total = k.fma(x, w, total) if fused else total + x * w
                k.store(place, total)

        whole = columns & -lanes
        with k.range(0, whole, lanes) as j:
            vector(j, None)
        with k.when(whole < columns):
            vector(whole, k.tail_mask(columns - whole, lanes))

    with k.range(begin, end) as unit:
        place, column_tile = unit // p["tiles_n"], unit % p["tiles_n"]
        a_at, b_at, c_at = unit_offsets(k, words, place, 3)
        column0 = column_tile * line
        columns = k.minimum(p["n"] - column0, line)
        with k.range(0, rows * line, lanes) as j:
            k.store(k.offset(sums, j, compute), k.const(compute.vec(lanes), 0))
        a_unit, b_unit = k.offset(slot["a"], a_at, memory), k.offset(slot["b"], b_at + column0, memory)
        whole = p["k"] // depth * depth
        with k.range(0, whole, depth) as at:
            add_rows(
                k.offset(a_unit, at * p["a_step"], memory), k.offset(b_unit, at * p["b_step"], memory), columns, depth
            )
        with k.range(whole, p["k"]) as at:
            add_rows(k.offset(a_unit, at * p["a_step"], memory), k.offset(b_unit, at * p["b_step"], memory), columns, 1)
        to = k.offset(slot["out"], c_at + column0 * p["c_column"], out_type)
        bias = k.offset(slot["bias"], column0 * p["bias_column"], out_type)
        k.call(
            finish,
            sums,
            line,
            to,
            p["c_row"],
            p["c_column"],
            rows,
            columns,
            bias,
            p["bias_row"],
            p["bias_column"],
            p["flags"],
        )
        if finishing:
            finishing.block(k, (k.const(i64, rows), p["n"]), place, 0, rows, column0, columns)
    k.ret()
    return module


def lower_rows(p: Problem, target: Target, threads: int, *, columns: int = 0, depth: int = 0) -> Lowered:
    """m is at most MOST_ROWS, b has unit stride along n. `columns` of a unit, `depth` rows of b at a time, if given."""
    memory, compute = ELEMENTS[p.dtype]
    lanes = target.lanes(compute)
    block_n = min(columns or BLOCK_BYTES // memory.size, round_up(p.n, lanes))
    while block_n > 256 and -(-p.n // block_n) * p.matrices < 2 * threads:
        block_n //= 2
    tiles_n = -(-p.n // block_n)
    depth = depth or (8 if p.m == 1 else 4)
    scratch_stride = round_up(block_n * p.m * compute.size, 4096) + 128
    fields = (p.n, p.k, *p.a, p.b[0], *p.out, *(p.bias or (0, 0)), block_n, tiles_n, scratch_stride, p.flags)
    units = p.matrices * tiles_n
    grain = 0 if p.is_short else 1
    out = p.inputs
    kind = (p.dtype, p.out_dtype, p.m, depth)
    step = main_launch(
        p, "gemm_rows", kind, build_rows, (0, 1, 2, out, out + 1), units, grain, (*fields, *plain_batch(p))
    )
    return Lowered((step,), (scratch_stride * threads,))
