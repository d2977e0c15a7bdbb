"""Sampling images at places that a grid names, and grids of affine maps.

    grid_sample(x, affine_grid(theta, x.shape))

Coordinates run from -1 to 1 over the image. A corner outside reads as zero, as the border or as the reflection of the inside. May not
know: how indexed reads run. Entry: the ops.
"""

from __future__ import annotations

import itertools
import math

from flambeau.base.lazy import np
from flambeau.core.dtype import int64
from flambeau.core.layout import contiguous_strides
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.interpolation import CUBIC
from flambeau.operators.matmul import matrix_product
from flambeau.operators.rules import case

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


# ------------------------------------------------------------------ coordinates
@declare
class clipped(Composite):
    """x within [0, most]; outside and on the border the gradient is 0."""

    functions = ()
    methods = ()

    def signature(input: Tensor, most): ...

    def body(x, most):
        return REGISTRY["clamp"](x, 0.0, float(most))

    def vjp(g, out, x, most):
        ops = REGISTRY
        inside = ops["logical_and"](ops["gt"](x, 0.0), ops["lt"](x, float(most)))
        return (ops["where"](inside, g, 0.0),)

    def reference(x, most):
        return np.clip(x, 0, most)

    def samples(t):
        yield case(t(5), 1)


def reflected(x, low: float, high: float):
    """x reflected at the ends of [low, high]."""
    ops, span = REGISTRY, high - low
    if span == 0:
        return ops["mul"](x, 0.0)
    x = ops["abs"](ops["sub"](x, low))
    flips = ops["floor"](ops["true_divide"](x, span))
    rest = ops["sub"](x, ops["mul"](flips.detach(), span))
    odd = ops["eq"](ops["remainder"](flips, 2.0), 1.0)
    return ops["where"](odd, ops["rsub"](rest, span + low), ops["add"](rest, low))


def pixel_places(line, size: int, align_corners: bool):
    """Coordinates in [-1, 1] as pixel numbers."""
    ops = REGISTRY
    if align_corners:
        return ops["mul"](ops["add"](line, 1.0), (size - 1) / 2)
    return ops["mul"](ops["sub"](ops["mul"](ops["add"](line, 1.0), float(size)), 1.0), 0.5)


def kept_inside(x, size: int, padding: str, align_corners: bool):
    """Pixel numbers as the padding mode moves them."""
    if padding == "zeros":
        return x
    if padding == "reflection":
        x = reflected(x, 0.0, float(size - 1)) if align_corners else reflected(x, -0.5, size - 0.5)
    return clipped(x, size - 1)


# ------------------------------------------------------------------ grid_sample
def check_grid(x: Spec, grid: Spec, mode: str, padding: str) -> int:
    """The number of spatial dims. Raises: RuntimeError or ValueError where operands do not fit."""
    name = "grid_sample"
    if mode not in MODES:
        raise ValueError(f"{name}: expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: {mode!r}.")
    if padding not in PADDINGS:
        raise ValueError(
            f"{name}: expected padding_mode to be 'zeros', 'border', or 'reflection', but got: {padding!r}."
        )
    rank = x.ndim - 2
    if rank not in (2, 3) or grid.ndim != x.ndim:
        raise RuntimeError(
            f"{name}: expected 4D or 5D input and grid with same number of dimensions, but got input with sizes {list(x.shape)} and grid with "
            f"sizes {list(grid.shape)}."
        )
    if x.shape[0] != grid.shape[0]:
        raise RuntimeError(
            f"{name}: expected grid and input to have same batch size, but got input with sizes {list(x.shape)} and grid with sizes "
            f"{list(grid.shape)}."
        )
    if grid.shape[-1] != rank:
        raise RuntimeError(
            f"{name}: expected grid to have size {rank} in last dimension, but got grid with sizes {list(grid.shape)}."
        )
    if 0 in x.shape[2:]:
        raise RuntimeError(f"{name}: expected input to have non-empty spatial dimensions, but got {list(x.shape)}.")
    if x.dtype is not grid.dtype:
        raise RuntimeError(
            f"{name}: expected input and grid to have the same dtype, but input has {x.dtype.name} and grid has {grid.dtype.name}. Convert one."
        )
    if mode == "bicubic" and rank != 2:
        raise RuntimeError(f"{name}: bicubic interpolation only supports 4D input, got {list(x.shape)}.")
    return rank


def read_at(flat, places: list, sizes, check: bool):
    """[N, C, P] values of flat [N, C, prod(sizes)] at integer places (one [N, P] per dim); outside reads 0 if `check`."""
    ops = REGISTRY
    where, inside = None, None
    for place, size, step in zip(places, sizes, contiguous_strides(sizes)):
        if check:
            ok = ops["logical_and"](ops["ge"](place, 0), ops["lt"](place, size))
            inside = ok if inside is None else ops["logical_and"](inside, ok)
        term = ops["mul"](ops["clamp"](place, 0, size - 1), step)
        where = term if where is None else ops["add"](where, term)
    n, c, _ = flat.spec.shape
    p = where.spec.shape[1]
    found = ops["gather"](flat, 2, ops["expand"](ops["reshape"](where, (n, 1, p)), (n, c, p)))
    return ops["where"](ops["reshape"](inside, (n, 1, p)), found, 0) if check else found


def as_place(x):
    """Rounded coordinates as integers (NaN and what is far outside become 0 and the limits)."""
    return REGISTRY["to_dtype"](x.detach(), int64)


def cubic_weights(t) -> list:
    """Weights of the four neighbours at fraction t."""
    ops, a = REGISTRY, CUBIC

    def near(x):
        return ops["add"](ops["mul"](ops["mul"](ops["sub"](ops["mul"](x, a + 2), a + 3), x), x), 1.0)

    def far(x):
        return ops["sub"](ops["mul"](ops["add"](ops["mul"](ops["sub"](x, 5.0), x), 8.0), ops["mul"](x, a)), 4.0 * a)

    return [far(ops["add"](t, 1.0)), near(t), near(ops["rsub"](t, 1.0)), far(ops["rsub"](t, 2.0))]


@declare
class grid_sample(Composite):
    """input [N, C, *L] sampled at grid [N, *P, rank], whose last entries are x, y (, z) from -1 to 1.

    Modes: bilinear, nearest, bicubic (two dims); padding: zeros, border, reflection. Raises: RuntimeError where shapes do not fit.
    """

    functions = ()
    methods = ()

    def signature(input: Tensor, grid: Tensor, mode="bilinear", padding_mode="zeros", align_corners=False): ...

    def meta(op, x, grid, mode, padding_mode, align_corners):
        check_grid(x, grid, mode, padding_mode)
        return Spec.of((*x.shape[:2], *grid.shape[1:-1]), x.dtype, x.device)

    def body(x, grid, mode, padding_mode, align_corners):
        ops = REGISTRY
        rank = check_grid(x.spec, grid.spec, mode, padding_mode)
        n, c, *sizes = x.spec.shape
        shape = (n, c, *grid.spec.shape[1:-1])
        count = math.prod(grid.spec.shape[1:-1])
        if math.prod(shape) == 0:
            return ops["full"](shape, 0, dtype=x.spec.dtype, device=x.spec.device)
        flat = ops["reshape"](x, (n, c, math.prod(sizes)))
        lines = [ops["reshape"](ops["select"](grid, -1, rank - 1 - d), (n, count)) for d in range(rank)]
        places = [pixel_places(line, size, align_corners) for line, size in zip(lines, sizes)]
        zeros = padding_mode == "zeros"
        if mode == "bicubic":
            found = bicubic(flat, places, sizes, padding_mode, align_corners)
        else:
            places = [kept_inside(p, size, padding_mode, align_corners) for p, size in zip(places, sizes)]
            if mode == "nearest":
                found = read_at(flat, [as_place(ops["round"](p)) for p in places], sizes, zeros)
            else:
                found = multilinear(flat, places, sizes, zeros)
        return ops["reshape"](found, shape)

    def reference(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
        return np_grid_sample(x, grid, align_corners)

    def samples(t):
        yield case(t(2, 3, 5, 4), t(2, 3, 2, 2))
        yield case(t(1, 2, 3, 4, 5), t(1, 2, 3, 2, 3), align_corners=True)
        yield case(t(2, 3, 5, 4), t(1, 3, 2, 2), raises=(RuntimeError, "same batch size"))


def multilinear(flat, places: list, sizes, zeros: bool):
    """Weighted sum over the corners of the cell around each place."""
    ops, total = REGISTRY, None
    bases = [ops["floor"](p.detach()) for p in places]
    rests = [ops["sub"](p, b) for p, b in zip(places, bases)]
    for corner in itertools.product((0, 1), repeat=len(places)):
        weight, where = None, []
        for bit, base, rest in zip(corner, bases, rests):
            part = rest if bit else ops["rsub"](rest, 1.0)
            weight = part if weight is None else ops["mul"](weight, part)
            where.append(as_place(ops["add"](base, float(bit)) if bit else base))
        term = ops["mul"](read_at(flat, where, sizes, True), ops["unsqueeze"](weight, 1))
        total = term if total is None else ops["add"](total, term)
    return total


def bicubic(flat, places: list, sizes, padding: str, align_corners: bool):
    """Weighted sum over the 4 x 4 pixels around each place; pixels, not places, are kept inside."""
    ops, total = REGISTRY, None
    bases = [ops["floor"](p.detach()) for p in places]
    weights = [cubic_weights(ops["sub"](p, b)) for p, b in zip(places, bases)]
    for i, j in itertools.product(range(4), repeat=2):
        where = [
            as_place(kept_inside(ops["add"](b, float(k - 1)), size, padding, align_corners))
            for b, k, size in zip(bases, (i, j), sizes)
        ]
        weight = ops["mul"](weights[0][i], weights[1][j])
        term = ops["mul"](read_at(flat, where, sizes, padding == "zeros"), ops["unsqueeze"](weight, 1))
        total = term if total is None else ops["add"](total, term)
    return total


def np_grid_sample(x, grid, align_corners):
    n, c, *sizes = x.shape
    out = np.zeros((n, c, *grid.shape[1:-1]), x.dtype)
    for place in np.ndindex(n, *grid.shape[1:-1]):
        at = grid[place][::-1]
        at = [(v + 1) * (s - 1) / 2 if align_corners else ((v + 1) * s - 1) / 2 for v, s in zip(at, sizes)]
        for corner in itertools.product((0, 1), repeat=len(sizes)):
            where = [math.floor(a) + b for a, b in zip(at, corner)]
            if all(0 <= w < s for w, s in zip(where, sizes)):
                weight = math.prod(1 - abs(a - w) for a, w in zip(at, where))
                out[(place[0], slice(None), *place[1:])] += weight * x[(place[0], slice(None), *where)]
    return out


# ------------------------------------------------------------------ affine grids
@declare
class affine_grid(Composite):
    """The grid of places that affine maps theta [N, 2, 3] (or [N, 3, 4]) give for a result of `size` [N, C, *L]."""

    functions = ()
    methods = ()

    def signature(theta: Tensor, size, align_corners=False): ...

    def meta(op, theta, size, align_corners):
        rank = len(size) - 2
        if not theta.dtype.is_floating_point:
            raise ValueError(f"affine_grid: Expected theta to have floating point type, but got {theta.dtype.name}.")
        if rank not in (2, 3):
            raise NotImplementedError(
                f"affine_grid: only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively, got size {list(size)}."
            )
        if theta.ndim != 3 or tuple(theta.shape[1:]) != (rank, rank + 1):
            raise ValueError(
                f"affine_grid: Expected a batch of affine matrices of shape Nx{rank}x{rank + 1} for size {list(size)}, got {list(theta.shape)}."
            )
        if min(size) <= 0:
            raise ValueError(f"affine_grid: Expected non-zero, positive output size, got {list(size)}.")
        return Spec.of((size[0], *size[2:], rank), theta.dtype, theta.device)

    def body(theta, size, align_corners):
        ops, rank, sizes = REGISTRY, len(size) - 2, tuple(size[2:])
        count = math.prod(sizes)
        columns = []
        for d in range(rank - 1, -1, -1):  # x first
            line = ops["to_dtype"](ops["iota"]((sizes[d],), device=theta.spec.device), theta.spec.dtype)
            n = sizes[d]
            if align_corners:
                line = ops["sub"](ops["mul"](line, 2.0 / (n - 1)), 1.0) if n > 1 else ops["mul"](line, 0.0)
            else:
                line = ops["sub"](ops["true_divide"](ops["add"](ops["mul"](line, 2.0), 1.0), float(n)), 1.0)
            line = ops["reshape"](line, tuple(n if j == d else 1 for j in range(rank)))
            columns.append(ops["reshape"](ops["contiguous_copy"](ops["expand"](line, sizes)), (count, 1)))
        columns.append(ops["full"]((count, 1), 1, dtype=theta.spec.dtype, device=theta.spec.device))
        base = ops["cat"](tuple(columns), 1)
        return ops["reshape"](matrix_product(base, ops["transpose"](theta, 1, 2)), (size[0], *sizes, rank))

    def reference(theta, size, align_corners=False):
        axes = []
        for n in size[2:]:
            line = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
            axes.append(line if align_corners else (2 * np.arange(n) + 1) / n - 1)
        grid = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(size[2:])], -1)
        return np.einsum("...j,nij->n...i", grid, theta)

    def samples(t):
        yield case(t(2, 2, 3), (2, 3, 4, 5))
        yield case(t(2, 3, 4), (2, 3, 4, 5, 2), True)
        yield case(t(2, 2, 2), (2, 3, 4, 5), raises=(ValueError, "affine matrices"))
