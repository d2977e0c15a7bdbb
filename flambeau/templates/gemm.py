"""Matrix products: which kernels compute out[b, m, n] = a[b, m, k] @ b[b, k, n] (+ bias[n]), and with which blocks.

    gemm(128, 256, 64, (64, 1), (256, 1), float32, threads=2)           # two row-major matrices
    gemm(1, 4096, 4096, (4096, 1), (1, 4096), float32, threads=2)       # a linear layer: b is the transpose of [n, k]
    gemm(8, 8, 8, (8, 1), (8, 1), float32, batch=(100,), a_batch_strides=(64,), b_batch_strides=(0,), threads=1)

Sizes and strides go into parameter blocks; kernels are chosen by types and by which strides are 1, so a new size
compiles nothing. The order in which an element's products are added depends on sizes, dtype and instruction set only.

May not know: tensors. Entry: `gemm`.
"""

from __future__ import annotations

from flambeau.core.dtype import dtype as DType
from flambeau.kernel import target as targets
from flambeau.kernel.target import Target
from flambeau.templates.gemm_amx import lower_amx
from flambeau.templates.gemm_complex import PARTS, lower_complex
from flambeau.templates.gemm_dot import lower_dot
from flambeau.templates.gemm_problem import Problem, counted, normalised, swapped, with_swapped_operands
from flambeau.templates.gemm_rows import MOST_ROWS, lower_rows
from flambeau.templates.gemm_split import lower_split, splits
from flambeau.templates.gemm_tiles import ELEMENTS, lower_plain, lower_tiles
from flambeau.templates.launch import Lowered

# Where one way of multiplying overtakes another, measured with float32 on AVX-512 (benchmarks/bench_gemm.py).
FEW_ROWS = 28  # two register tiles: b, as it lies, is read twice at most
ONE_TILE = 9  # one register tile holds all rows: b is read once
FEW_COLUMNS = 16  # the same of b, whose panels would be mostly empty
PLAIN_DEPTH, PLAIN_BYTES = 384, 3 << 19  # a panel of b that stays in L1, all of b in L2
SMALL_BYTES = 1 << 19  # so little of b that it stays near whatever its depth
PACKED_ROWS, CLASH_BYTES = 96, 256  # lines of b that far apart share sets of L1: so many rows repay packing it
NARROW = 128  # each line of the long operand is used so few times that packing it does not pay
MANY_ROWS = 1024  # each panel of b is used so many times that all of it should be packed once
SHARED_BYTES = 1 << 28  # but not more memory than this for it
STREAM_BYTES = 1 << 20


def gemm(
    m: int,
    n: int,
    k: int,
    a_strides: tuple[int, int],
    b_strides: tuple[int, int],
    dtype: DType,
    *,
    batch: tuple[int, ...] = (),
    a_batch_strides: tuple[int, ...] = (),
    b_batch_strides: tuple[int, ...] = (),
    out_strides: tuple[int, ...] | None = None,
    out_dtype: DType | None = None,
    accumulate: bool = False,
    bias_stride: int | None = None,
    threads: int,
) -> Lowered:
    """Launches for out = a @ b (+ bias), or out += … with `accumulate`.

    Operands: 0 a, 1 b, 2 bias if `bias_stride` is given, then out, then scratch. `a_strides` are those of (m, k),
    `b_strides` of (k, n), `out_strides` of (*batch, m, n), contiguous if left out; all in elements and of any value.
    Dtypes: floats (narrow ones are summed in float32 and rounded once), integers (they wrap around), complex. The
    bias has the dtype of the result, which is that of the operands, or float32 or int32 for narrower ones.
    Determinism: bitwise, for any number of threads.
    """
    if out_strides is None:
        out_strides = _contiguous((*batch, m, n))
    entries = tuple(zip(batch, a_batch_strides, b_batch_strides, out_strides[:-2], strict=True))[::-1]
    bias = None if bias_stride is None else (0, bias_stride)
    out_name = (out_dtype or dtype).name
    problem = Problem(
        m,
        n,
        k,
        tuple(a_strides),
        tuple(b_strides),
        tuple(out_strides[-2:]),
        entries,
        dtype.name,
        out_name,
        bias,
        accumulate,
    )
    if m == 0 or n == 0 or problem.matrices == 0:
        return Lowered(())
    return lower(normalised(problem), targets.current(), threads)


def _contiguous(sizes: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def lower(p: Problem, target: Target, threads: int) -> Lowered:
    """The choice among the kernels, by dtype, sizes and layout, never by the number of threads."""
    if p.dtype in PARTS:
        return lower_complex(p, lambda real: lower(real, target, threads))
    if splits(p):
        return lower_split(p, lambda part: counted(lower_real(part, target, threads), part))
    return counted(lower_real(p, target, threads), p)


def lower_real(p: Problem, target: Target, threads: int) -> Lowered:
    """One product of real numbers, its depth in one piece."""
    tiles = {"bfloat16": ("amx-bf16", "avx512bf16"), "int8": ("amx-int8",)}.get(p.dtype)
    if tiles and target.has(*tiles) and target.vector_bytes == 64 and p.k > 0:
        return lower_amx(p, threads)
    if p.b[0] == 1 and streams_lines(p.m, p.n, p):
        return lower_dot(p, target, threads)
    if p.a[1] == 1 and streams_lines(p.n, p.m, p):
        return with_swapped_operands(lower_dot(swapped(p), target, threads))
    size, compute = (t.size for t in ELEMENTS[p.dtype])
    if p.m <= MOST_ROWS and p.b[1] == 1 and p.n * p.k * size >= STREAM_BYTES and p.k >= 16:
        return lower_rows(p, target, threads)
    whole = size == compute  # narrow types are widened while they are packed
    if whole and 1 in p.a and p.b[1] == 1 and p.out[1] == 1 and (p.bias is None or p.bias[0] == 0):
        right = p.n * p.k * size
        near = right <= (PLAIN_BYTES if p.k <= PLAIN_DEPTH or p.m <= FEW_ROWS else SMALL_BYTES)
        if near and p.m >= PACKED_ROWS and p.n > FEW_COLUMNS and p.b[0] * size % CLASH_BYTES == 0:
            return lower_tiles(p, target, threads, plain_a=True)
        if near or p.m <= ONE_TILE or p.n <= FEW_COLUMNS:
            return lower_plain(p, target, threads)
    # A long operand whose rows run along depth is A, as it lies, against a narrow one packed once.
    if p.b[0] == 1 and p.m <= NARROW and p.n >= 4 * p.m:
        return with_swapped_operands(lower_tiles(swapped(p), target, threads, plain_a=whole, shared_b=True))
    if p.a[1] == 1 and p.n <= NARROW and p.m >= 4 * p.n:
        return lower_tiles(p, target, threads, plain_a=whole, shared_b=True)
    shared = p.m >= MANY_ROWS and p.matrices * p.n * p.k * compute <= SHARED_BYTES
    return lower_tiles(p, target, threads, plain_a=whole and p.a[1] == 1 and p.m <= FEW_ROWS, shared_b=shared)


def streams_lines(few: int, many: int, p: Problem) -> bool:
    """Whether `many` long lines, against few, should be read once, where they lie."""
    if p.k < 64:
        return False
    return few <= 4 or (few <= 24 and many * p.k * ELEMENTS[p.dtype][0].size >= STREAM_BYTES)
