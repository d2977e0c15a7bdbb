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
from flambeau.templates.epilogue import Epilogue
from flambeau.templates.gemm_complex import PARTS, lower_complex
from flambeau.templates.gemm_problem import Problem, counted, normalised
from flambeau.templates.gemm_split import lower_split, splits
from flambeau.templates.gemm_ways import lower_real, stands_apart
from flambeau.templates.launch import Lowered


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
    epilogue: Epilogue | None = None,
    threads: int,
) -> Lowered | None:
    """Launches for out = a @ b (+ bias), or out += … with `accumulate`.

    Operands: 0 a, 1 b, 2 bias if `bias_stride` is given, those of the `epilogue`, then out, then scratch. `a_strides` are those of (m, k),
    `b_strides` of (k, n), `out_strides` of (*batch, m, n), contiguous if left out; all in elements and of any value.
    Dtypes: floats (narrow ones are summed in float32 and rounded once), integers (they wrap around), complex. The
    bias has the dtype of the result, which is that of the operands, or float32 or int32 for narrower ones.
    An epilogue (`templates.epilogue`) has one column dim; complex products take none, and None is the answer where it is better done apart.
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
        epilogue=epilogue,
    )
    if m == 0 or n == 0 or problem.matrices == 0:
        return Lowered(())
    problem = normalised(problem)
    if epilogue is not None and stands_apart(problem, targets.current()):
        return None
    return lower(problem, targets.current(), threads)


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
