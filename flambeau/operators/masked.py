"""Reductions, scans and normalisations over the elements a mask holds: `torch.masked`.

What is masked out takes the value that changes nothing (0 in a sum, the lowest number in a maximum); the mask broadcasts to the input.
Composites that fuse with the reduction itself. Entry: the ops by name.
"""

from __future__ import annotations

from flambeau.base.errors import message
from flambeau.base.lazy import np
from flambeau.core.dtype import bool_, float32
from flambeau.core.layout import canonical_dim, canonical_dims
from flambeau.ir.kinds import NOT_DIFFERENTIABLE, Composite, sum_type
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.norms import vector_norm
from flambeau.operators.reduction import as_dtype, count_of, highest, lowest, numpy_dim, wide
from flambeau.operators.rules import case
from flambeau.operators.statistics import squared_size


def fitted(mask, input):
    """The mask as bool over the input's shape. Raises: IndexError if it has more dims."""
    if mask.spec.ndim > input.spec.ndim:
        raise IndexError(
            message(
                "masked",
                "expected broadcastable mask (its dimensionality must not be higher than the input's)",
                f"{list(mask.spec.shape)} for {list(input.spec.shape)}",
            )
        )
    return REGISTRY["expand"](as_dtype(mask, bool_), tuple(input.spec.shape))


def filled(input, mask, value):
    """The input with `value` where the mask does not hold."""
    return input if mask is None else REGISTRY["where"](fitted(mask, input), input, constant(input, value))


def constant(like, value):
    return REGISTRY["full"]((), value, dtype=like.spec.dtype, device=like.spec.device)


def numpy_filled(x, mask, value):
    return x if mask is None else np.where(mask, x, value)


def checked(*shape):
    """A mask for samples that leaves some elements of every line: a checkerboard."""
    return np.indices(shape).sum(0) % 2 == 0


class Masked(Composite):
    """Parameters: input, dim, keepdim, dtype, mask."""

    methods = ()

    def signature(input: Tensor, dim=None, *, keepdim=False, dtype=None, mask: OptionalTensor = None): ...

    def samples(t):
        yield case(t(3, 4), 1, mask=checked(3, 4))
        yield case(t(3, 4), 0, keepdim=True, mask=checked(3, 1))
        yield case(t(3, 4))
        yield case(t(3), 0, mask=checked(2, 3), raises=(IndexError, "broadcastable mask"))


@declare
class masked_sum(Masked):
    """Sum over `dim` of the elements the mask holds. Dtypes: as sum."""

    functions = ("masked.sum",)

    def body(input, dim, keepdim, dtype, mask):
        return REGISTRY["sum"](filled(input, mask, 0), dim, bool(keepdim), dtype=dtype or sum_type(input.spec.dtype))

    def reference(x, dim=None, *, keepdim=False, dtype=None, mask=None):
        return np.sum(numpy_filled(x, mask, 0), axis=numpy_dim(dim), keepdims=keepdim)


@declare
class masked_prod(Masked):
    """Product over `dim` of the elements the mask holds. Dtypes: as prod."""

    functions = ("masked.prod",)

    def body(input, dim, keepdim, dtype, mask):
        x = as_dtype(filled(input, mask, 1), dtype or sum_type(input.spec.dtype))
        dims = canonical_dims("masked.prod", dim, x.spec.ndim)
        for d in reversed(dims):
            x = REGISTRY["prod"](x, d, bool(keepdim))
        return x

    def reference(x, dim=None, *, keepdim=False, dtype=None, mask=None):
        return np.prod(numpy_filled(x, mask, 1), axis=numpy_dim(dim), keepdims=keepdim)


@declare
class masked_amax(Masked):
    """Largest element over `dim` that the mask holds; the lowest value of the dtype where it holds none."""

    functions = ("masked.amax",)

    def body(input, dim, keepdim, dtype, mask):
        return as_dtype(
            REGISTRY["amax"](filled(input, mask, lowest(input.spec.dtype)), () if dim is None else dim, bool(keepdim)),
            dtype,
        )

    def reference(x, dim=None, *, keepdim=False, dtype=None, mask=None):
        return np.max(numpy_filled(x, mask, -np.inf), axis=numpy_dim(dim), keepdims=keepdim)


@declare
class masked_amin(Masked):
    """Smallest element over `dim` that the mask holds; the highest value of the dtype where it holds none."""

    functions = ("masked.amin",)

    def body(input, dim, keepdim, dtype, mask):
        return as_dtype(
            REGISTRY["amin"](filled(input, mask, highest(input.spec.dtype)), () if dim is None else dim, bool(keepdim)),
            dtype,
        )

    def reference(x, dim=None, *, keepdim=False, dtype=None, mask=None):
        return np.min(numpy_filled(x, mask, np.inf), axis=numpy_dim(dim), keepdims=keepdim)


class MaskedPosition(Masked):
    """Position of an extreme, in the input's dtype as in PyTorch, or in `dtype`."""

    vjp = NOT_DIFFERENTIABLE


@declare
class masked_argmax(MaskedPosition):
    """Where the largest element along `dim` that the mask holds is. Dtypes: the input's unless told."""

    functions = ("masked.argmax",)

    def body(input, dim, keepdim, dtype, mask):
        return as_dtype(
            REGISTRY["argmax"](filled(input, mask, lowest(input.spec.dtype)), dim, bool(keepdim)),
            dtype or input.spec.dtype,
        )

    def reference(x, dim=None, *, keepdim=False, dtype=None, mask=None):
        return np.argmax(numpy_filled(x, mask, -np.inf), axis=dim, keepdims=keepdim)


@declare
class masked_argmin(MaskedPosition):
    """Where the smallest element along `dim` that the mask holds is. Dtypes: the input's unless told."""

    functions = ("masked.argmin",)

    def body(input, dim, keepdim, dtype, mask):
        return as_dtype(
            REGISTRY["argmin"](filled(input, mask, highest(input.spec.dtype)), dim, bool(keepdim)),
            dtype or input.spec.dtype,
        )

    def reference(x, dim=None, *, keepdim=False, dtype=None, mask=None):
        return np.argmin(numpy_filled(x, mask, np.inf), axis=dim, keepdims=keepdim)


def held(input, mask, dim, keepdim: bool):
    """How many elements over `dim` the mask holds: a number, or a tensor of int64."""
    if mask is None:
        return count_of(input.spec.shape, dim)
    return REGISTRY["sum"](fitted(mask, input), dim, keepdim)


@declare
class masked_mean(Masked):
    """Mean over `dim` of the elements the mask holds; NaN where it holds none. Dtypes: floating and complex."""

    functions = ("masked.mean",)

    def body(input, dim, keepdim, dtype, mask):
        d = dtype or input.spec.dtype
        if not d.is_inexact:
            raise ValueError(
                message(
                    "masked.mean",
                    "could not infer output dtype: dtype must be either a floating point or complex dtype",
                    d.name,
                )
            )
        total = REGISTRY["sum"](wide(filled(input, mask, 0)), dim, bool(keepdim), dtype=None if d.itemsize == 2 else d)
        count = held(input, mask, dim, bool(keepdim))
        if not isinstance(count, int):
            count = as_dtype(count, total.spec.dtype)
        elif not count:
            count = float("nan")
        return as_dtype(REGISTRY["true_divide"](total, count), d)

    def reference(x, dim=None, *, keepdim=False, dtype=None, mask=None):
        return np.mean(
            x, axis=numpy_dim(dim), keepdims=keepdim, where=True if mask is None else np.broadcast_to(mask, x.shape)
        )


class MaskedMoment(Masked):
    """Variance or its root. Parameters: input, dim, unbiased, correction, keepdim, dtype, mask."""

    def signature(
        input: Tensor,
        dim=None,
        unbiased=None,
        *,
        correction=None,
        keepdim=False,
        dtype=None,
        mask: OptionalTensor = None,
    ): ...


def masked_variance(input, dim, unbiased, correction, keepdim, dtype, mask):
    """Two passes over the elements the mask holds, in the dtype it is computed in."""
    ops = REGISTRY
    d = dtype or (input.spec.dtype if input.spec.dtype.is_inexact else float32)
    x = wide(as_dtype(input, d if d.is_inexact else float32))
    if unbiased is not None:
        correction = float(unbiased)
    correction = 1.0 if correction is None else correction
    count = held(input, mask, dim, True)
    real = x.spec.dtype.to_real()
    whole = count if isinstance(count, int) else as_dtype(count, real)
    total = ops["sum"](filled(x, mask, 0), dim, True)
    center = ops["true_divide"](total, whole if not isinstance(whole, int) or whole else float("nan"))
    squares = ops["sum"](filled(squared_size(ops["sub"](x, center)), mask, 0), dim, bool(keepdim))
    if isinstance(whole, int):
        freedom = max(0, whole - correction)
        found = ops["mul"](squares, 1 / freedom if freedom else float("nan"))
    else:
        freedom = ops["clamp_min"](ops["sub"](whole, correction), 0) if correction else whole
        found = ops["true_divide"](squares, ops["reshape"](freedom, tuple(squares.spec.shape)))
    return found, d


def numpy_variance(x, dim, unbiased, correction, keepdim, mask):
    if unbiased is not None:
        correction = float(unbiased)
    where = True if mask is None else np.broadcast_to(mask, x.shape)
    return np.var(x, axis=numpy_dim(dim), ddof=1 if correction is None else correction, keepdims=keepdim, where=where)


@declare
class masked_var(MaskedMoment):
    """Variance over `dim` of the elements the mask holds."""

    functions = ("masked.var",)

    def body(input, dim, unbiased, correction, keepdim, dtype, mask):
        found, d = masked_variance(input, dim, unbiased, correction, keepdim, dtype, mask)
        return as_dtype(found, d)

    def reference(x, dim=None, unbiased=None, *, correction=None, keepdim=False, dtype=None, mask=None):
        return numpy_variance(x, dim, unbiased, correction, keepdim, mask)


@declare
class masked_std(MaskedMoment):
    """Standard deviation over `dim` of the elements the mask holds."""

    functions = ("masked.std",)

    def body(input, dim, unbiased, correction, keepdim, dtype, mask):
        found, d = masked_variance(input, dim, unbiased, correction, keepdim, dtype, mask)
        return as_dtype(REGISTRY["sqrt"](found), d)

    def reference(x, dim=None, unbiased=None, *, correction=None, keepdim=False, dtype=None, mask=None):
        return np.sqrt(numpy_variance(x, dim, unbiased, correction, keepdim, mask))


@declare
class masked_logsumexp(Masked):
    """log of the sum of exponentials over `dim` of the elements the mask holds. Dtypes: the input's."""

    functions = ("masked.logsumexp",)

    def body(input, dim, keepdim, dtype, mask):
        start = float("-inf") if input.spec.dtype.is_complex else lowest(input.spec.dtype)
        dims = canonical_dims("masked.logsumexp", dim, input.spec.ndim)
        return as_dtype(
            REGISTRY["logsumexp"](filled(input, mask, start), dims, bool(keepdim)), dtype or input.spec.dtype
        )

    def reference(x, dim=None, *, keepdim=False, dtype=None, mask=None):
        return np.log(np.sum(np.exp(numpy_filled(x, mask, -np.inf)), axis=numpy_dim(dim), keepdims=keepdim))


@declare
class masked_norm(Composite):
    """The `ord`-norm over `dim` of the elements the mask holds."""

    functions = ("masked.norm",)
    methods = ()

    def signature(input: Tensor, ord=2.0, dim=None, *, keepdim=False, dtype=None, mask: OptionalTensor = None): ...

    def body(input, ord, dim, keepdim, dtype, mask):
        return vector_norm(
            filled(input, mask, float("inf") if ord == float("-inf") else 0),
            2.0 if ord is None else ord,
            dim,
            bool(keepdim),
            dtype=dtype,
        )

    def reference(x, ord=2.0, dim=None, *, keepdim=False, dtype=None, mask=None):
        return vector_norm.rules.reference(numpy_filled(x, mask, 0), ord, dim, keepdim)

    def samples(t):
        yield case(t(3, 4), 2.0, 1, mask=checked(3, 4))
        yield case(t(3, 4), 1.0)


@declare
class masked_median(Composite):
    """Lower median along `dim` of the elements the mask holds; NaN where it holds none. Dtypes: floating."""

    functions = ("masked.median",)
    methods = ()

    def signature(input: Tensor, dim=-1, *, keepdim=False, dtype=None, mask: OptionalTensor = None): ...

    def body(input, dim, keepdim, dtype, mask):
        if not input.spec.dtype.is_floating_point:
            raise ValueError(
                message(
                    "masked.median",
                    "expects a floating dtype, so that a row without elements has a value",
                    input.spec.dtype.name,
                    "Convert with .float().",
                )
            )
        return REGISTRY["nanmedian_dim"](filled(input, mask, float("nan")), dim, keepdim)[0]

    def reference(x, dim=-1, *, keepdim=False, dtype=None, mask=None):
        ordered = np.sort(numpy_filled(x, mask, np.nan), axis=dim)
        rank = np.maximum(np.sum(ordered == ordered, axis=dim, keepdims=True) - 1, 0) // 2
        found = np.take_along_axis(ordered, rank, dim)
        return found if keepdim else np.squeeze(found, dim)

    def samples(t):
        yield case(t(3, 5), 1, mask=checked(3, 5))
        yield case(t(3, 5), 0)


# ------------------------------------------------------------------ same shape
class MaskedLine(Composite):
    """Works along one dim. Parameters: input, dim, dtype, mask."""

    methods = ()

    def signature(input: Tensor, dim, *, dtype=None, mask: OptionalTensor = None): ...

    def samples(t):
        yield case(t(3, 4), 1, mask=checked(3, 4))
        yield case(t(3, 4), 0)


@declare
class masked_cumsum(MaskedLine):
    """Running sum along `dim`; what is masked out counts as 0. Dtypes: the input's unless told."""

    functions = ("masked.cumsum",)

    def body(input, dim, dtype, mask):
        d = dtype or input.spec.dtype
        return as_dtype(REGISTRY["cumsum"](filled(input, mask, 0), dim, dtype=d), d)

    def reference(x, dim, *, dtype=None, mask=None):
        return np.cumsum(numpy_filled(x, mask, 0), dim)


@declare
class masked_cumprod(MaskedLine):
    """Running product along `dim`; what is masked out counts as 1. Dtypes: the input's unless told."""

    functions = ("masked.cumprod",)

    def body(input, dim, dtype, mask):
        d = dtype or input.spec.dtype
        return as_dtype(REGISTRY["cumprod"](filled(input, mask, 1), dim, dtype=d), d)

    def reference(x, dim, *, dtype=None, mask=None):
        return np.cumprod(numpy_filled(x, mask, 1), dim)


@declare
class masked_softmax(MaskedLine):
    """softmax along `dim` over the elements the mask holds."""

    functions = ("masked.softmax",)

    def body(input, dim, dtype, mask):
        return REGISTRY["softmax"](filled(input, mask, lowest(input.spec.dtype)), dim, dtype or input.spec.dtype)

    def reference(x, dim, *, dtype=None, mask=None):
        e = np.exp(numpy_filled(x, mask, -np.inf))
        return e / np.sum(e, dim, keepdims=True)


@declare
class masked_log_softmax(MaskedLine):
    """log_softmax along `dim` over the elements the mask holds."""

    functions = ("masked.log_softmax",)

    def body(input, dim, dtype, mask):
        return REGISTRY["log_softmax"](filled(input, mask, lowest(input.spec.dtype)), dim, dtype or input.spec.dtype)

    def reference(x, dim, *, dtype=None, mask=None):
        x = numpy_filled(x, mask, -np.inf)
        return x - np.log(np.sum(np.exp(x), dim, keepdims=True))

    def samples(t):
        yield case(t(3, 4), 1, mask=np.ones((3, 4), bool))  # -inf, where it holds not, has no differences
        yield case(t(3, 4), 0)


@declare
class masked_softmin(MaskedLine):
    """softmax of the negatives along `dim` over the elements the mask holds."""

    functions = ("masked.softmin",)

    def body(input, dim, dtype, mask):
        x = REGISTRY["neg"](filled(input, mask, highest(input.spec.dtype)))
        return REGISTRY["softmax"](x, dim, dtype or input.spec.dtype)

    def reference(x, dim, *, dtype=None, mask=None):
        e = np.exp(-numpy_filled(x, mask, np.inf))
        return e / np.sum(e, dim, keepdims=True)


@declare
class masked_normalize(Composite):
    """The input over the norm along `dim` of the elements the mask holds, which counts as at least `eps`; masked out ones give 0."""

    functions = ("masked.normalize",)
    methods = ()

    def signature(input: Tensor, ord, dim, *, eps=1e-12, dtype=None, mask: OptionalTensor = None): ...

    def body(input, ord, dim, eps, dtype, mask):
        canonical_dim("masked.normalize", dim, input.spec.ndim)
        size = masked_norm(input, ord, dim, keepdim=True, dtype=dtype, mask=mask)
        return REGISTRY["true_divide"](filled(input, mask, 0), REGISTRY["clamp_min"](size, eps))

    def reference(x, ord, dim, *, eps=1e-12, dtype=None, mask=None):
        x = numpy_filled(x, mask, 0)
        return x / np.maximum(vector_norm.rules.reference(x, ord, dim, True), eps)

    def samples(t):
        yield case(t(3, 4), 2.0, 1, mask=checked(3, 4))
        yield case(t(3, 4), 1.0, 0)


@declare
class masked_logaddexp(Composite):
    """logaddexp where each side's masked out elements count as -inf."""

    functions = ("masked.logaddexp",)
    methods = ()

    def signature(
        input: Tensor,
        other: Tensor,
        *,
        dtype=None,
        input_mask: OptionalTensor = None,
        other_mask: OptionalTensor = None,
    ): ...

    def body(input, other, dtype, input_mask, other_mask):
        low = float("-inf")
        found = REGISTRY["logaddexp"](filled(input, input_mask, low), filled(other, other_mask, low))
        return as_dtype(found, dtype)

    def reference(x, y, *, dtype=None, input_mask=None, other_mask=None):
        return np.logaddexp(numpy_filled(x, input_mask, -np.inf), numpy_filled(y, other_mask, -np.inf))

    def samples(t):
        yield case(t(3, 4), t(3, 4), input_mask=checked(4))
        yield case(t(3), t(3))
