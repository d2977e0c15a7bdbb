"""Norms and distances. A norm's gradient is zero where the norm is not differentiable: at zero, and shared by ties of a maximum.

May not know: layouts. Entry: the ops by name; `vector_norm` is what the others are made of.
"""

from __future__ import annotations

from flambeau.base.errors import message
from flambeau.base.lazy import np
from flambeau.core.layout import broadcast_shapes, canonical_dim, canonical_dims
from flambeau.ir.kinds import Composite, to_float
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.reduction import as_dtype, numpy_dim, restore_dims, wide
from flambeau.operators.rules import case, to_type_of
from flambeau.operators.statistics import squared_size

INFINITY = float("inf")


def check_norm(name: str, s, ord, dim, dtype) -> None:
    """Raises: RuntimeError where the norm has no value or no type."""
    d = dtype or s.dtype
    if not d.is_inexact or not s.dtype.is_inexact:
        raise RuntimeError(
            message(
                name,
                "expected a floating point or complex tensor as input",
                (s.dtype if d.is_inexact else d).name,
                "Convert with .float().",
            )
        )
    dims = canonical_dims(name, dim, s.ndim)
    if (ord < 0 or ord == INFINITY) and any(s.shape[i] == 0 for i in dims):
        raise RuntimeError(
            message(
                name,
                f"cannot compute the {ord} norm on an empty tensor or dim because the operation does not have an identity",
                f"shape {list(s.shape)}",
            )
        )


@declare
class vector_norm(Composite):
    """The `ord`-norm of the elements over `dim`: (sum |x|^ord)^(1/ord), the largest or smallest |x| for inf and -inf, how many are not
    zero for 0.

    Dtypes: floating and complex; the result is real. Raises: RuntimeError for negative or infinite ord over nothing.
    """

    functions = ("linalg.vector_norm",)
    methods = ()

    def signature(x: Tensor, ord=2, dim=None, keepdim=False, *, dtype=None): ...

    def body(x, ord, dim, keepdim, dtype):
        ops = REGISTRY
        check_norm("linalg.vector_norm", x.spec, ord, dim, dtype)
        x = as_dtype(x, dtype)
        d = x.spec.dtype.to_real()
        x = wide(x)
        if ord == 2:
            found = ops["sqrt"](ops["sum"](squared_size(x), dim, keepdim))
        elif ord == 0:
            found = ops["sum"](ops["ne"](x, 0), dim, keepdim)
        else:
            size = ops["abs"](x)
            if ord == INFINITY:
                found = ops["amax"](size, dim, keepdim)
            elif ord == -INFINITY:
                found = ops["amin"](size, dim, keepdim)
            elif ord == 1:
                found = ops["sum"](size, dim, keepdim)
            else:
                found = ops["power"](ops["sum"](ops["power"](size, float(ord)), dim, keepdim), 1 / ord)
        return as_dtype(found, d)

    def vjp(g, out, x, ord, dim, keepdim, dtype):
        ops = REGISTRY
        v = wide(as_dtype(x, dtype))
        norm = restore_dims(wide(out), x, dim, keepdim)
        g = restore_dims(wide(g), x, dim, keepdim)
        return (to_type_of(norm_gradient(ops, g, norm, v, ord, dim), x),)

    def reference(x, ord=2, dim=None, keepdim=False, *, dtype=None):
        axis = tuple(range(x.ndim)) if numpy_dim(dim) is None else numpy_dim(dim)
        if ord == 0:
            return np.sum(x != 0, axis=axis, keepdims=keepdim).astype(x.real.dtype)
        size = np.abs(x)
        if abs(ord) == INFINITY:
            return (np.max if ord > 0 else np.min)(size, axis=axis, keepdims=keepdim)
        return np.sum(size**ord, axis=axis, keepdims=keepdim) ** (1 / ord)

    def samples(t):
        for ord in (2, 1, 0, 3, INFINITY, -INFINITY, 0.5, -1):
            yield case(t(5), ord)
            yield case(t(3, 4), ord, 1, True)
        yield case(t(2, 3, 4), 2, (0, 2))
        yield case(t(0), INFINITY, raises=(RuntimeError, "identity"))


def norm_gradient(ops, g, norm, x, ord, dim):
    """The gradient of a norm; g and norm over x's shape."""
    if ord == 0:
        return ops["full"](tuple(x.spec.shape), 0, dtype=x.spec.dtype, device=x.spec.device)
    if ord == 1:
        return ops["mul"](ops["sgn"](x), g)
    at_zero = ops["eq"](norm, 0)
    if ord == 2:
        return ops["where"](at_zero, 0, ops["mul"](x, ops["true_divide"](g, norm)))
    size = ops["abs"](x)
    if abs(ord) == INFINITY:
        attains = as_dtype(ops["eq"](size, norm), g.spec.dtype)
        share = ops["true_divide"](g, ops["sum"](attains, dim, True))
        return ops["mul"](ops["sgn"](x), ops["mul"](attains, share))
    slope = ops["mul"](ops["sgn"](x), ops["power"](size, float(ord - 1)))
    if ord < 1:
        slope = ops["where"](ops["eq"](size, 0), 0, slope)
        return ops["mul"](slope, ops["mul"](g, ops["power"](norm, float(1 - ord))))
    return ops["mul"](slope, ops["where"](at_zero, 0, ops["true_divide"](g, ops["power"](norm, float(ord - 1)))))


@declare
class matrix_norm(Composite):
    """A norm of the matrices in two dims: 'fro' (squares), 'nuc' (singular values), or inf, 1, 2 and their negatives (operator norms)."""

    functions = ("linalg.matrix_norm",)
    methods = ()

    def signature(A: Tensor, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None): ...

    def body(A, ord, dim, keepdim, dtype):
        ops, name = REGISTRY, "linalg.matrix_norm"
        if A.spec.ndim < 2:
            raise RuntimeError(
                message(name, "the input tensor A must have at least 2 dimensions", f"shape {list(A.spec.shape)}")
            )
        if isinstance(dim, int) or len(dim) != 2:
            raise RuntimeError(message(name, "dim must be a 2-tuple", repr(dim)))
        rows, columns = (canonical_dim(name, d, A.spec.ndim) for d in dim)
        if rows == columns:
            raise RuntimeError(message(name, "dims must be different", repr(dim)))
        check_norm(name, A.spec, 2, dim, dtype)
        A = as_dtype(A, dtype)
        if ord == "fro":
            return vector_norm(A, 2, (rows, columns), keepdim)
        if ord == "nuc" or (not isinstance(ord, str) and abs(ord) == 2):
            return spectral_norm(A, ord, rows, columns, keepdim)
        if isinstance(ord, str) or abs(ord) not in (1, INFINITY):
            raise RuntimeError(
                message(
                    name,
                    "order must be one of 'fro', 'nuc', inf, -inf, 1, -1, 2, -2",
                    f"{ord!r} (Order {ord} not supported)",
                )
            )
        first, second = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = vector_norm(A, 1, first, True)
        if ord > 0 and not A.spec.shape[second]:  # nothing to take the largest of: 0
            found = ops["sum"](sums, second, True)
        else:
            found = ops["amax" if ord > 0 else "amin"](sums, second, True)
        return found if keepdim else ops["squeeze"](found, (rows, columns))

    def reference(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
        return np.linalg.norm(A, ord, dim, keepdim)

    def samples(t):
        for ord in ("fro", 1, -1, INFINITY, -INFINITY):
            yield case(t(3, 4), ord)
            yield case(t(2, 3, 4), ord, (0, 2), True)
        yield case(t(3), raises=(RuntimeError, "at least 2"))
        yield case(t(2, 3), 3, raises=(RuntimeError, "not supported"))


def spectral_norm(A, ord, rows: int, columns: int, keepdim: bool):
    """Norms by singular values."""
    ops = REGISTRY
    rest = [d for d in range(A.spec.ndim) if d not in (rows, columns)]
    values = ops["svdvals"](ops["permute"](A, (*rest, rows, columns)))
    found = ops["sum"](values, -1) if ord == "nuc" else ops["amax" if ord > 0 else "amin"](values, -1)
    if not keepdim:
        return found
    return ops["reshape"](found, tuple(1 if d in (rows, columns) else n for d, n in enumerate(A.spec.shape)))


@declare
class norm(Composite):
    """`torch.norm`: the vector norm `p` over `dim`; 'fro' is 2, 'nuc' is the matrix norm of two dims."""

    methods = ("norm",)

    def signature(input: Tensor, p="fro", dim=None, keepdim=False, *, dtype=None): ...

    def body(input, p, dim, keepdim, dtype):
        if p == "nuc":
            dims = tuple(range(input.spec.ndim)) if dim is None else dim
            return matrix_norm(input, "nuc", dims, keepdim, dtype=dtype)
        if isinstance(p, str) and p != "fro":
            raise RuntimeError(message("norm", "p must be a number, 'fro' or 'nuc'", repr(p)))
        check_norm("norm", input.spec, 2, dim, dtype)
        return vector_norm(input, 2 if p is None or p == "fro" else p, dim, keepdim, dtype=dtype)

    def reference(x, p="fro", dim=None, keepdim=False, *, dtype=None):
        return vector_norm.rules.reference(x, 2 if p == "fro" else p, dim, keepdim)

    def samples(t):
        yield case(t(5))
        yield case(t(3, 4), 1, 1)
        yield case(t(3, 4), "fro", (0, 1), True)
        yield case(t(3), "other", raises=(RuntimeError, "p must be"))


@declare
class linalg_norm(Composite):
    """A vector norm, or a matrix norm if `ord` is given and two dims (or a matrix) are meant."""

    functions = ("linalg.norm",)
    methods = ()

    def signature(A: Tensor, ord=None, dim=None, keepdim=False, *, dtype=None): ...

    def body(A, ord, dim, keepdim, dtype):
        name = "linalg.norm"
        if ord is None:
            return vector_norm(A, 2, dim, keepdim, dtype=dtype)
        if dim is None:
            if A.spec.ndim not in (1, 2):
                raise RuntimeError(
                    message(
                        name,
                        "if dim is not specified but ord is, the input must be 1D or 2D",
                        f"shape {list(A.spec.shape)}",
                    )
                )
            dim = tuple(range(A.spec.ndim))
        dims = (dim,) if isinstance(dim, int) else tuple(dim)
        if len(dims) == 2:
            return matrix_norm(A, ord, dims, keepdim, dtype=dtype)
        if len(dims) != 1:
            raise RuntimeError(message(name, "if ord is given, dim must have length 1 or 2", repr(dim)))
        if isinstance(ord, str):
            raise RuntimeError(message(name, "a vector norm's order must be a number", repr(ord)))
        return vector_norm(A, ord, dims, keepdim, dtype=dtype)

    def reference(A, ord=None, dim=None, keepdim=False, *, dtype=None):
        return np.linalg.norm(A, ord, dim, keepdim)

    def samples(t):
        yield case(t(5))
        yield case(t(3, 4))
        yield case(t(3, 4), 1)
        yield case(t(3, 4), 1, 0)
        yield case(t(2, 3, 4), 1, raises=(RuntimeError, "1D or 2D"))


# ------------------------------------------------------------------ distances
@declare
class dist(Composite):
    """The p-norm of `input - other`."""

    def signature(input: Tensor, other: Tensor, p=2): ...

    def body(input, other, p):
        return vector_norm(REGISTRY["sub"](input, other), p)

    def reference(x, y, p=2):
        return vector_norm.rules.reference(x - y, p)

    def samples(t):
        yield case(t(5), t(5))
        yield case(t(3, 4), t(4), 1)
        yield case(t(3), t(4), raises=(RuntimeError, "must broadcast"))


EUCLID_BY_PRODUCT = 25  # rows from here on: one product of matrices instead of all differences, as PyTorch decides it
MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


@declare
class cdist(Composite):
    """The p-norm distance of every row of x1 from every row of x2, over broadcast batches.

    Many rows under p = 2 go through a product of matrices, which loses digits where rows are close; `compute_mode` forbids or forces it.
    """

    methods = ()

    def signature(x1: Tensor, x2: Tensor, p=2.0, compute_mode=MODES[0]): ...

    def body(x1, x2, p, compute_mode):
        check_cdist(x1.spec, x2.spec, p, compute_mode)
        ops = REGISTRY
        rows, columns, size = x1.spec.shape[-2], x2.spec.shape[-2], x1.spec.shape[-1]
        batch = broadcast_shapes("cdist", x1.spec.shape[:-2], x2.spec.shape[:-2])
        if size == 0 or 0 in (rows, columns):
            return ops["full"]((*batch, rows, columns), 0, dtype=x1.spec.dtype, device=x1.spec.device)
        if p == 2 and by_product(rows, columns, compute_mode):
            return euclid_by_product(x1, x2)
        a = ops["unsqueeze"](x1, -2)
        b = ops["unsqueeze"](x2, -3)
        return vector_norm(ops["sub"](a, b), p, -1)

    def reference(x1, x2, p=2.0, compute_mode=MODES[0]):
        return vector_norm.rules.reference(x1[..., :, None, :] - x2[..., None, :, :], p, -1)

    def samples(t):
        for p in (2.0, 1.0, 3.0, INFINITY, 0.0):
            yield case(t(3, 4), t(5, 4), p)
        yield case(t(2, 30, 4), t(30, 4))
        yield case(t(3, 4), t(5, 3), raises=(RuntimeError, "same number of columns"))


def by_product(rows: int, columns: int, mode) -> bool:
    if mode in (None, 0, MODES[0]):
        return rows > EUCLID_BY_PRODUCT or columns > EUCLID_BY_PRODUCT
    return mode in (1, MODES[1])


def euclid_by_product(x1, x2):
    """Euclidean distances from |x|^2 - 2 x·y + |y|^2."""
    ops = REGISTRY
    squares = [ops["sum"](ops["mul"](v, v), -1, True) for v in (x1, x2)]
    cross = ops["matmul"](x1, ops["transpose"](x2, -2, -1))
    total = ops["add"](ops["add"](squares[0], ops["transpose"](squares[1], -2, -1)), ops["mul"](cross, -2))
    positive = ops["gt"](total, 0)
    return ops["where"](positive, ops["sqrt"](ops["where"](positive, total, 1)), 0)


def check_cdist(a, b, p, mode) -> None:
    """Raises: RuntimeError where rows cannot be compared."""
    if a.ndim < 2 or b.ndim < 2:
        raise RuntimeError(message("cdist", "only supports at least 2D tensors", f"{a.ndim}-d and {b.ndim}-d"))
    if a.shape[-1] != b.shape[-1]:
        raise RuntimeError(
            message("cdist", "x1 and x2 must have the same number of columns", f"{a.shape[-1]} and {b.shape[-1]}")
        )
    if not a.dtype.is_floating_point or not b.dtype.is_floating_point:
        raise RuntimeError(
            message("cdist", "only supports floating-point dtypes", f"{a.dtype.name} and {b.dtype.name}")
        )
    if p < 0:
        raise RuntimeError(message("cdist", "only supports non-negative p values", f"p={p}"))
    if mode not in (None, 0, 1, 2, *MODES):
        raise ValueError(
            message(
                "cdist", "mode is not a valid value for compute_mode", repr(mode), f"Choose from {', '.join(MODES)}."
            )
        )


@declare
class pdist(Composite):
    """The p-norm distances between every two rows of a matrix, in the order (0, 1), (0, 2) … (n - 2, n - 1)."""

    functions = ("nn.functional.pdist", "pdist")
    methods = ()

    def signature(input: Tensor, p=2.0): ...

    def body(input, p):
        ops = REGISTRY
        if input.spec.ndim != 2:
            raise RuntimeError(message("pdist", "only supports 2D tensors", f"{input.spec.ndim}D"))
        if p < 0:
            raise RuntimeError(message("pdist", "only supports non-negative p values", f"p={p}"))
        n, where = input.spec.shape[0], input.spec.device
        if n < 2:
            return ops["full"]((0,), 0, dtype=input.spec.dtype, device=where)
        first = ops["positions"](n - 1, device=where)  # row i's pairs start at i * n - i * (i + 1) / 2
        starts = ops["sub"](ops["mul"](first, n), ops["floor_divide"](ops["mul"](first, ops["add"](first, 1)), 2))
        pair = ops["positions"](n * (n - 1) // 2, device=where)
        i = ops["sub"](ops["search_rows"](starts, pair, None, True), 1)
        j = ops["add"](ops["sub"](pair, ops["index_select"](starts, 0, i)), ops["add"](i, 1))
        return vector_norm(ops["sub"](ops["index_select"](input, 0, i), ops["index_select"](input, 0, j)), p, -1)

    def reference(x, p=2.0):
        i, j = np.triu_indices(len(x), 1)
        return vector_norm.rules.reference(x[i] - x[j], p, -1)

    def samples(t):
        for p in (2.0, 1.0, INFINITY):
            yield case(t(6, 4), p)
        yield case(t(1, 4))
        yield case(t(3), raises=(RuntimeError, "only supports 2D"))


# ------------------------------------------------------------------ scaled by norms
@declare
class normalize(Composite):
    """The input divided by its p-norm along `dim`, which counts as at least `eps`."""

    functions = ("nn.functional.normalize",)
    methods = ()

    def signature(input: Tensor, p=2.0, dim=1, eps=1e-12): ...

    def body(input, p, dim, eps):
        x = wide(input)
        return as_dtype(
            REGISTRY["true_divide"](x, REGISTRY["clamp_min"](vector_norm(x, p, dim, True), eps)), input.spec.dtype
        )

    def reference(x, p=2.0, dim=1, eps=1e-12):
        return x / np.maximum(vector_norm.rules.reference(x, p, dim, True), eps)

    def samples(t):
        yield case(t(3, 4))
        yield case(t(3, 4), 1.0, 0)


@declare
class renorm(Composite):
    """Slices along `dim` whose p-norm exceeds `maxnorm` scaled down to it."""

    in_place = True

    def signature(input: Tensor, p, dim, maxnorm): ...

    def body(input, p, dim, maxnorm):
        ops = REGISTRY
        if input.spec.ndim < 2:
            raise RuntimeError(message("renorm", "input needs at least 2 dimensions", f"{input.spec.ndim}"))
        if p <= 0:
            raise RuntimeError(message("renorm", "non-positive-norm not supported", f"p={p}"))
        if maxnorm < 0:
            raise RuntimeError(message("renorm", "expected maxnorm to be >= 0", f"maxnorm={maxnorm}"))
        dim = canonical_dim("renorm", dim, input.spec.ndim)
        x = wide(as_dtype(input, to_float(input.spec.dtype)))
        sizes = vector_norm(x, p, tuple(d for d in range(x.spec.ndim) if d != dim), True)
        factor = ops["where"](ops["gt"](sizes, maxnorm), ops["true_divide"](maxnorm, ops["add"](sizes, 1e-7)), 1)
        return as_dtype(ops["mul"](x, factor), input.spec.dtype)

    def reference(x, p, dim, maxnorm):
        sizes = vector_norm.rules.reference(x, p, tuple(d for d in range(x.ndim) if d != dim % x.ndim), True)
        return x * np.where(sizes > maxnorm, maxnorm / (sizes + 1e-7), 1)

    def samples(t):
        yield case(t(3, 4), 2, 0, 1.0)
        yield case(t(3, 4, 5), 1, -1, 0.5)
        yield case(t(3), 2, 0, 1.0, raises=(RuntimeError, "at least 2"))
