"""Small results of deep products: depth cut into chunks that are multiplied side by side, and added in order.

How many chunks depends on the sizes alone, so the order of summation is the same for any number of threads.

May not know: how a chunk is multiplied. Entry: `splits`, `lower_split`.
"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.base.record import replace
from flambeau.kernel.dsl import Module
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64
from flambeau.templates.epilogue import EpilogueCode, Finishing
from flambeau.templates.gemm_problem import Problem, after_batch, main_launch, normalised, plain_batch, round_up
from flambeau.templates.gemm_tiles import ABI, ELEMENTS, finish_function, unit_offsets
from flambeau.templates.launch import Launch, Lowered

SMALL_RESULT = 4096  # elements: fewer register tiles than the threads of a large machine
CHUNK, CHUNKS = 4096, 64  # at least that deep, at most that many
COMPUTE_NAMES = {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64"}


def splits(p: Problem) -> bool:
    return p.m * p.n <= SMALL_RESULT and p.matrices <= 8 and p.k >= 2 * CHUNK


def build_sum(target: Target, dtype: str, out: str, epilogue: EpilogueCode | None = None) -> Module:
    """out = the sum of `parts` partial results (+ out) (+ bias). Slots: parts, bias, out, those of the epilogue, block; a unit is one
    matrix."""
    compute, out_type = ELEMENTS[dtype][1], ELEMENTS[out][0]
    lanes = target.lanes(compute)
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    finish = finish_function(module, compute, out_type, lanes)
    finishing = Finishing(epilogue)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    parts_at, bias, out_at, block = finishing.slots(k, slots, ("parts", "bias", "out")).values()
    m, n, parts, c_row, c_column, bias_row, bias_column, flags = (k.load(block, i64, 2 + i) for i in range(8))
    words = k.offset(block, 8 * 10)
    finishing.over(k, after_batch(k, words))
    count = m * n
    with k.range(begin, end) as unit:
        out_offset = unit_offsets(k, words, unit, 3)[2]
        mine = k.offset(parts_at, unit * parts * count, compute)
        with k.range(0, count, lanes) as j:
            mask = k.tail_mask(count - j, lanes)
            total = k.var(compute.vec(lanes), k.load(mine, compute.vec(lanes), j, mask=mask))
            with k.range(1, parts) as part:
                total.set(total.get() + k.load(k.offset(mine, part * count, compute), compute.vec(lanes), j, mask=mask))
            k.store(mine, total.get(), j, mask=mask)
        to = k.offset(out_at, out_offset, out_type)
        k.call(finish, mine, n, to, c_row, c_column, m, n, bias, bias_row, bias_column, flags)
        if finishing:
            finishing.block(k, (m, n), unit, 0, m, 0, n)
    k.ret()
    return module


def lower_split(p: Problem, lower: Callable[[Problem], Lowered]) -> Lowered:
    """`lower` lowers one normalised problem; chunks are a batch of them, what is left over another."""
    chunk = max(CHUNK, round_up(-(-p.k // CHUNKS), 64))
    whole, rest = divmod(p.k, chunk)
    parts = whole + (rest > 0)
    count = p.m * p.n
    compute = ELEMENTS[p.dtype][1]
    out, partial = p.inputs, p.inputs + 1
    batch, step = [], parts * count
    for size, a, b, _ in p.batch:
        batch.append((size, a, b, step))
        step *= size
    inner = replace(
        p, out=(p.n, 1), out_dtype=COMPUTE_NAMES[compute.suffix], bias=None, accumulate=False, epilogue=None
    )
    steps: list[Launch] = []
    scratch = [step * compute.size]

    def multiply(part: Problem) -> None:
        lowered = lower(normalised(part))
        place = (0, 1, partial, *range(partial + len(scratch), partial + len(scratch) + len(lowered.scratch_bytes)))
        steps.extend(replace(s, buffers=tuple(place[i] for i in s.buffers)) for s in lowered.launches)
        scratch.extend(lowered.scratch_bytes)

    a_base, b_base, out_base = p.base
    along = (whole, chunk * p.a[1], chunk * p.b[0], count)
    multiply(replace(inner, k=chunk, batch=(along, *batch), base=(a_base, b_base, 0)))
    if rest:
        done = whole * chunk
        multiply(
            replace(
                inner, k=rest, batch=tuple(batch), base=(a_base + done * p.a[1], b_base + done * p.b[0], whole * count)
            )
        )
    fields = (p.m, p.n, parts, *p.out, *(p.bias or (0, 0)), p.flags, *plain_batch(replace(p, base=(0, 0, out_base))))
    steps.append(
        main_launch(p, "gemm_sum", (p.dtype, p.out_dtype), build_sum, (partial, 2, out), p.matrices, 1, fields)
    )
    return Lowered(tuple(steps), tuple(scratch))
