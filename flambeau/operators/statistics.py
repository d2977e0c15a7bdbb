"""Moments and sums of exponentials: variance, standard deviation, logsumexp, covariance.

Variances take two passes (mean, then squared distances from it), which fuse into one kernel. float16 and bfloat16 are worked on in
float32 throughout. May not know: layouts. Entry: the ops by name, `moments`.
"""

from __future__ import annotations

from flambeau.base.errors import message
from flambeau.base.lazy import np
from flambeau.core.layout import canonical_dims
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite, reduced_shape, to_float
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.reduction import as_dtype, count_of, numpy_dim, restore_dims, wide
from flambeau.operators.rules import case, conjugate, to_type_of


def squared_size(x):
    """|x|^2, real."""
    if x.spec.dtype.is_complex:
        return REGISTRY["real"](REGISTRY["mul"](x, conjugate(x)))
    return REGISTRY["mul"](x, x)


def moments(x, dim, correction, keepdim: bool):
    """(variance, mean with the dims kept) of x, in its own dtype."""
    ops = REGISTRY
    center = ops["mean"](x, dim, True)
    total = ops["sum"](squared_size(ops["sub"](x, center)), dim, keepdim)
    return ops["mul"](total, reciprocal_of(freedom(x.spec.shape, dim, correction))), center


def freedom(shape, dim, correction) -> float:
    """Degrees of freedom, never negative."""
    return max(0, count_of(shape, dim) - (1 if correction is None else correction))


def reciprocal_of(n: float) -> float:
    return 1 / n if n else float("nan")


def check_moments(name: str, s: Spec, dim) -> None:
    if not s.dtype.is_inexact:
        raise RuntimeError(
            message(
                name,
                "std and var only support floating point and complex dtypes",
                s.dtype.name,
                "Convert with .float().",
            )
        )
    canonical_dims(name, dim, s.ndim)


class Moment(Composite):
    """Parameters: input, dim, correction, keepdim. The public forms take `unbiased` too."""

    functions = ()
    methods = ()

    def signature(input: Tensor, dim=None, correction=1, keepdim=False): ...

    def samples(t):
        for shape, dim, correction, keepdim in (
            ((5,), None, 1, False),
            ((3, 4), 0, 0, False),
            ((3, 4), 1, 1, True),
            ((2, 3, 4), (0, 2), 2, False),
            ((2, 37), -1, 1, False),
        ):
            yield case(t(*shape), dim, correction, keepdim)
        yield case(t(2, 3), 5, raises=(IndexError, "dim must be in"))


def variance_gradient(g, input, dim, correction, keepdim):
    """The gradient of a variance."""
    ops, x = REGISTRY, wide(input)
    n = freedom(input.spec.shape, dim, correction)
    distance = ops["sub"](x, ops["mean"](x, dim, True))
    g = restore_dims(as_dtype(g, x.spec.dtype.to_real()), input, dim, keepdim)
    return to_type_of(ops["mul"](ops["mul"](g, distance), 2 / n if n else float("inf")), input)


def deviation_gradient(g, std, input, dim, correction, keepdim):
    """The gradient of a standard deviation; zero where it is zero."""
    ops = REGISTRY
    std, g = wide(std), wide(g)
    of_variance = ops["where"](ops["eq"](std, 0), 0, ops["true_divide"](g, ops["mul"](std, 2)))
    return variance_gradient(of_variance, input, dim, correction, keepdim)


def mean_gradient(g, input, dim, keepdim):
    count = count_of(input.spec.shape, dim)
    return to_type_of(REGISTRY["mul"](restore_dims(g, input, dim, keepdim), 1 / count if count else 1), input)


def without_dims(center, input, dim, keepdim: bool):
    """A mean that kept its dims, as the caller wants it."""
    if keepdim:
        return center
    dims = canonical_dims("mean", dim, input.spec.ndim)
    return REGISTRY["reshape"](center, reduced_shape(input.spec.shape, dims, False))


@declare
class variance(Moment):
    """Variance over `dim` (all dims unless told): squared distances from the mean, summed and divided by n - correction.

    Dtypes: floating and complex (the result is real). NaN where n <= correction.
    """

    def body(input, dim, correction, keepdim):
        check_moments("var", input.spec, dim)
        return as_dtype(moments(wide(input), dim, correction, keepdim)[0], input.spec.dtype.to_real())

    def vjp(g, out, input, dim, correction, keepdim):
        return (variance_gradient(g, input, dim, correction, keepdim),)

    def reference(x, dim=None, correction=1, keepdim=False):
        return np.var(x, axis=numpy_dim(dim), ddof=correction, keepdims=keepdim)


@declare
class standard_deviation(Moment):
    """Square root of the variance over `dim`."""

    def body(input, dim, correction, keepdim):
        check_moments("std", input.spec, dim)
        return as_dtype(REGISTRY["sqrt"](moments(wide(input), dim, correction, keepdim)[0]), input.spec.dtype.to_real())

    def vjp(g, out, input, dim, correction, keepdim):
        return (deviation_gradient(g, out, input, dim, correction, keepdim),)

    def reference(x, dim=None, correction=1, keepdim=False):
        return np.std(x, axis=numpy_dim(dim), ddof=correction, keepdims=keepdim)


@declare
class variance_mean(Moment):
    """(variance, mean) over `dim`, from one kernel."""

    outputs = 2

    def body(input, dim, correction, keepdim):
        check_moments("var_mean", input.spec, dim)
        spread, center = moments(wide(input), dim, correction, keepdim)
        d = input.spec.dtype
        return as_dtype(spread, d.to_real()), as_dtype(without_dims(center, input, dim, keepdim), d)

    def vjp(g, out, input, dim, correction, keepdim):
        of_variance = variance_gradient(g[0], input, dim, correction, keepdim)
        return (REGISTRY["add"](of_variance, mean_gradient(g[1], input, dim, keepdim)),)

    def reference(x, dim=None, correction=1, keepdim=False):
        axis = numpy_dim(dim)
        return np.var(x, axis=axis, ddof=correction, keepdims=keepdim), np.mean(x, axis=axis, keepdims=keepdim)


@declare
class standard_deviation_mean(Moment):
    """(standard deviation, mean) over `dim`, from one kernel."""

    outputs = 2

    def body(input, dim, correction, keepdim):
        check_moments("std_mean", input.spec, dim)
        spread, center = moments(wide(input), dim, correction, keepdim)
        d = input.spec.dtype
        return as_dtype(REGISTRY["sqrt"](spread), d.to_real()), as_dtype(without_dims(center, input, dim, keepdim), d)

    def vjp(g, out, input, dim, correction, keepdim):
        of_deviation = deviation_gradient(g[0], out[0], input, dim, correction, keepdim)
        return (REGISTRY["add"](of_deviation, mean_gradient(g[1], input, dim, keepdim)),)

    def reference(x, dim=None, correction=1, keepdim=False):
        axis = numpy_dim(dim)
        return np.std(x, axis=axis, ddof=correction, keepdims=keepdim), np.mean(x, axis=axis, keepdims=keepdim)


# ------------------------------------------------------------------ sums of exponentials
@declare
class logsumexp(Composite):
    """log of the sum of exp(input) over `dim`, relative to the largest element. Dtypes: integers give the default float."""

    functions = ("logsumexp", "special.logsumexp")

    def signature(input: Tensor, dim, keepdim=False): ...

    def body(input, dim, keepdim):
        ops = REGISTRY
        d = to_float(input.spec.dtype)
        x = wide(as_dtype(input, d))
        if not x.spec.numel:
            return ops["log"](ops["sum"](ops["exp"](x), dim, keepdim))
        top = ops["amax"](ops["real"](x) if d.is_complex else x, dim, True)
        top = ops["where"](ops["isinf"](top), 0, top)
        total = ops["log"](ops["sum"](ops["exp"](ops["sub"](x, top)), dim, keepdim))
        return as_dtype(ops["add"](total, without_dims(top, input, dim, keepdim)), d)

    def vjp(g, out, input, dim, keepdim):
        ops = REGISTRY
        weight = ops["exp"](ops["sub"](wide(input), restore_dims(wide(out), input, dim, keepdim)))
        return (to_type_of(ops["mul"](restore_dims(g, input, dim, keepdim), conjugate(weight)), input),)

    def reference(x, dim, keepdim=False):
        top = np.max(x, axis=dim, keepdims=True)
        total = np.log(np.sum(np.exp(x - top), axis=dim, keepdims=True)) + top
        return total if keepdim else np.squeeze(total, dim)

    def samples(t):
        yield case(t(5), 0)
        yield case(t(3, 4), 1, True)
        yield case(t(2, 3, 4), (0, 2))
        yield case(t(2, 3), 2, raises=(IndexError, "dim must be in"))


# ------------------------------------------------------------------ covariance
@declare
class cov(Composite):
    """Covariance matrix of variables in rows and observations in columns, weighted by counts `fweights` and by `aweights`."""

    def signature(input: Tensor, *, correction=1, fweights: OptionalTensor = None, aweights: OptionalTensor = None): ...

    def body(input, correction, fweights, aweights):
        ops = REGISTRY
        check_cov(input.spec, fweights, aweights)
        x = input if input.spec.ndim == 2 else ops["reshape"](input, (1, input.spec.numel))
        x = as_dtype(x, to_float(x.spec.dtype))
        n = x.spec.shape[1]
        weights = fweights
        if aweights is not None:
            weights = aweights if weights is None else ops["mul"](weights, aweights)
        if weights is None:
            center = ops["mean"](x, 1, True)
            norm = max(0, n - correction)
        else:
            total = ops["sum"](weights)
            center = ops["true_divide"](ops["sum"](ops["mul"](x, weights), 1, True), total)
            if aweights is None:
                norm = ops["sub"](total, correction)
            elif correction:
                with_a = ops["true_divide"](ops["sum"](ops["mul"](weights, aweights)), total)
                norm = ops["sub"](total, ops["mul"](with_a, correction))
            else:
                norm = total
            norm = ops["clamp_min"](norm, 0)
        x = ops["sub"](x, center)
        other = x if weights is None else ops["mul"](x, weights)
        found = ops["matmul"](x, ops["transpose"](conjugate(other), 0, 1))
        found = (
            ops["mul"](found, reciprocal_of(norm))
            if isinstance(norm, (int, float))
            else ops["true_divide"](found, norm)
        )
        return ops["reshape"](found, ()) if found.spec.numel == 1 else found

    def reference(x, *, correction=1, fweights=None, aweights=None):
        return np.cov(x, ddof=correction, fweights=fweights, aweights=aweights)

    def samples(t):
        yield case(t(3, 5))
        yield case(t(5))
        yield case(t(3, 5), correction=0)
        yield case(t(2, 3, 4), raises=(RuntimeError, "two or fewer dimensions"))


def check_cov(s: Spec, fweights, aweights) -> None:
    if s.ndim > 2:
        raise RuntimeError(message("cov", "expected input to have two or fewer dimensions", f"shape {list(s.shape)}"))
    if s.dtype.name == "bool":
        raise RuntimeError(message("cov", "bool dtype is not supported for input", "bool", "Convert with .float()."))
    n = s.shape[1] if s.ndim == 2 else s.numel
    for name, w, wanted in (("fweights", fweights, "integral"), ("aweights", aweights, "floating point")):
        if w is None:
            continue
        if w.spec.ndim > 1:
            raise RuntimeError(
                message("cov", f"expected {name} to have one or fewer dimensions", f"shape {list(w.spec.shape)}")
            )
        if (w.spec.dtype.is_integral and w.spec.dtype.name != "bool") != (wanted == "integral"):
            raise RuntimeError(message("cov", f"expected {name} to have {wanted} dtype", w.spec.dtype.name))
        if w.spec.numel != n:
            raise RuntimeError(
                message(
                    "cov",
                    f"expected {name} to have the same numel as there are observations in the input, {n}",
                    str(w.spec.numel),
                )
            )


@declare
class corrcoef(Composite):
    """Correlation coefficients of variables in rows and observations in columns."""

    def signature(input: Tensor): ...

    def body(input):
        ops = REGISTRY
        if input.spec.ndim > 2:
            raise RuntimeError(
                message("corrcoef", "expected input to have two or fewer dimensions", f"shape {list(input.spec.shape)}")
            )
        c = cov(input)
        if not c.spec.ndim:
            return ops["true_divide"](c, c)
        spread = ops["sqrt"](ops["real"](ops["diagonal"](c)) if c.spec.dtype.is_complex else ops["diagonal"](c))
        n = c.spec.shape[0]
        c = ops["true_divide"](ops["true_divide"](c, ops["reshape"](spread, (n, 1))), ops["reshape"](spread, (1, n)))
        if c.spec.dtype.is_complex:
            return ops["complex"](ops["clamp"](ops["real"](c), -1, 1), ops["clamp"](ops["imag"](c), -1, 1))
        return ops["clamp"](c, -1, 1)

    def reference(x):
        return np.corrcoef(x)

    def samples(t):
        yield case(t(3, 5))
        yield case(t(5))
        yield case(t(2, 3, 4), raises=(RuntimeError, "two or fewer dimensions"))
