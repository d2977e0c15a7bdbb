"""Matrix products: which kernels compute out[b, m, n] = a[b, m, k] @ b[b, k, n] (+ bias[n]), and with which blocks.

    gemm(128, 256, 64, (64, 1), (256, 1), float32, threads=2)           # two row-major matrices
    gemm(1, 4096, 4096, (4096, 1), (1, 4096), float32, threads=2)       # a linear layer: b is the transpose of [n, k]
    gemm(8, 8, 8, (8, 1), (8, 1), float32, batch=(100,), a_batch_strides=(64,), b_batch_strides=(0,), threads=1)

Sizes and strides go into parameter blocks; kernels are chosen by types and by which strides are 1, so a new size
compiles nothing. The order in which an element's products are added depends on sizes, dtype and instruction set only.

May not know: tensors. Entry: `gemm`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flambeau.core.dtype import dtype as DType
from flambeau.kernel import target as targets
from flambeau.kernel.target import Target
from flambeau.templates.gemm_pack import order_of, padded_depth
from flambeau.templates.gemm_tiles import ELEMENTS, TileKernel, build_pack, build_tiles, stage_bytes
from flambeau.templates.launch import Launch, Lowered, Recipe

L2_BYTES = 2 << 20
SERIAL_WORK = 1 << 17  # multiply-adds below which waking a thread costs more than it brings (about 4 us)


@dataclass(frozen=True)
class Problem:
    """One product in its normal form. Batch entries are (size, stride of a, of b, of out), the fastest first."""

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    out: tuple[int, int]
    batch: tuple[tuple[int, int, int, int], ...]
    dtype: str
    bias_stride: int | None
    accumulate: bool

    @property
    def matrices(self) -> int:
        return math.prod(entry[0] for entry in self.batch)

    @property
    def work(self) -> int:
        return self.matrices * self.m * self.n * self.k


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
    accumulate: bool = False,
    bias_stride: int | None = None,
    threads: int,
) -> Lowered:
    """Launches for out = a @ b (+ bias), or out += … with `accumulate`.

    Operands: 0 a, 1 b, 2 bias if `bias_stride` is given, then out, then scratch. `a_strides` are those of (m, k),
    `b_strides` of (k, n), `out_strides` of (*batch, m, n), contiguous if left out; all in elements and of any value.
    Dtypes: floats (narrow ones are summed in float32 and rounded once), integers (they wrap around), complex.
    Determinism: bitwise, for any number of threads.
    """
    if out_strides is None:
        out_strides = _contiguous((*batch, m, n))
    entries = [
        (size, *strides)
        for size, *strides in zip(batch, a_batch_strides, b_batch_strides, out_strides[:-2], strict=True)
        if size != 1
    ]
    problem = Problem(m, n, k, a_strides, b_strides, out_strides[-2:], tuple(entries[::-1]), dtype.name, bias_stride, accumulate)
    if m == 0 or n == 0 or problem.matrices == 0:
        return Lowered(())
    return lower(normalised(problem), targets.current(), threads)


def _contiguous(sizes: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def normalised(problem: Problem) -> Problem:
    """The same product with its batch folded: a batch that only continues the rows becomes rows, neighbours merge."""
    p = problem
    # A stride along a size of 1 is never used: give it the value that makes layouts simple.
    p = replace(
        p,
        a=(p.a[0] if p.m > 1 else p.k if p.a[1] == 1 else 1, p.a[1] if p.k > 1 else 1),
        b=(p.b[0] if p.k > 1 else p.n if p.b[1] == 1 else 1, p.b[1] if p.n > 1 else 1),
        out=(p.out[0] if p.m > 1 else p.n, p.out[1] if p.n > 1 else 1),
    )
    merged: list[tuple[int, int, int, int]] = []
    for size, *strides in p.batch:
        if merged and all(s == merged[-1][0] * t for s, t in zip(strides, merged[-1][1:], strict=True)):
            merged[-1] = (merged[-1][0] * size, *merged[-1][1:])
        else:
            merged.append((size, *strides))
    while merged:
        size, a, b, out = merged[0]
        if p.m == 1:
            p = replace(p, a=(a, p.a[1]), out=(out, p.out[1])) if b == 0 else p
        if b != 0 or a != p.m * p.a[0] or out != p.m * p.out[0]:
            break
        p = replace(p, m=p.m * size)
        del merged[0]
    return replace(p, batch=tuple(merged))


# ---------------------------------------------------------------------- register tiles
def tile_shape(target: Target, dtype: str) -> tuple[tuple[int, ...], int]:
    """Heights of the register tiles and their width in vectors, by the number of vector registers."""
    if target.vector_bytes == 64 or target.arch == "aarch64":  # 32 registers: 28 sums, 2 of b, 1 of a
        heights = (14, 8, 4, 2, 1)
    else:  # 16 registers: 12 sums
        heights = (6, 4, 2, 1)
    return heights, 2


def lower(problem: Problem, target: Target, threads: int) -> Lowered:
    return tiles(problem, target, threads)


def tiles(p: Problem, target: Target, threads: int) -> Lowered:
    """The general product: B packed once for all threads, A packed by each unit, register tiles over both."""
    memory, compute = ELEMENTS[p.dtype]
    heights, vectors = tile_shape(target, p.dtype)
    lanes = target.lanes(compute)
    width = vectors * lanes
    staged = memory is not compute or p.out[1] != 1
    depth = max(1, _block(p.k, max(64, 1536 // compute.size), 16))
    block_m, block_n = _unit_blocks(p, heights[0], width, threads)
    kind = TileKernel(p.dtype, order_of(*p.a), "panels", staged, p.bias_stride is not None, p.accumulate, heights, vectors, 1)
    tiles_m, tiles_n = -(-p.m // block_m), -(-p.n // block_n)

    # B, packed: one matrix per place in the batch that has its own.
    own = [entry for entry in p.batch if entry[2] != 0]
    matrix = padded_depth(p.k) * -(-p.n // width) * width
    packed_strides, step = {}, matrix
    for entry in own:
        packed_strides[entry] = step
        step *= entry[0]
    own_matrices = math.prod(entry[0] for entry in own)
    panels = -(-p.n // width) * -(-p.k // depth) * own_matrices

    per_unit = block_m + heights[0] + lanes
    scratch_stride = per_unit * padded_depth(min(depth, p.k) or 1) * compute.size
    if staged:
        scratch_stride += stage_bytes(block_m, block_n, heights[0], width, compute.size)
    scratch_stride = _round_up(scratch_stride + 64, 4096) + 128

    out = 2 + (p.bias_stride is not None)
    fields = (p.m, p.n, p.k, *p.a, *p.b, *p.out, p.bias_stride or 0, block_m, block_n, depth, tiles_m, tiles_n, scratch_stride)
    units = p.matrices * tiles_m * tiles_n
    serial = p.work < SERIAL_WORK
    launches = []
    if panels:
        order = order_of(p.b[1], p.b[0])
        entries = tuple(v for size, a, b, _ in own for v in (size, a, b, 0))
        params = (panels, panels if serial else 1, *fields, len(own), *entries)
        launches.append(Launch(Recipe("gemm_pack", (p.dtype, order, vectors), build_pack), (1, out + 1), params))
    entries = tuple(v for e in p.batch for v in (e[0], e[1], packed_strides.get(e, 0), e[3]))
    params = (units, units if serial else 1, *fields, len(p.batch), *entries)
    bias = (2,) if p.bias_stride is not None else ()
    launches.append(Launch(Recipe("gemm_tiles", kind.parameters, build_tiles), (0, out + 1, *bias, out, out + 2), params))
    return Lowered(tuple(launches), (max(64, own_matrices * matrix * compute.size), scratch_stride * threads))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _block(size: int, most: int, unit: int) -> int:
    """`size` cut into equal blocks of at most `most`, rounded up to `unit`."""
    if size == 0:
        return 0
    return _round_up(-(-size // -(-size // most)), unit)


def _unit_blocks(p: Problem, height: int, width: int, threads: int) -> tuple[int, int]:
    """Rows and columns of a unit: A's block stays in L2, and there are enough units for the threads."""
    block_m = _block(p.m, height * 20, height)
    block_n = _block(p.n, 4096, width)
    wanted = 4 * threads if threads > 1 and p.work >= SERIAL_WORK else 1
    while p.matrices * -(-p.m // block_m) * -(-p.n // block_n) < wanted:
        if block_m > 6 * height or (block_n <= 8 * width and block_m > height):
            block_m = _block(p.m, -(-block_m // (2 * height)) * height, height)
        elif block_n > 2 * width:
            block_n = _round_up(-(-block_n // 2), width)
        else:
            break
    return block_m, block_n
