"""Reductions over dims: sums, products, extremes, truth, and the positions of extremes.

Each primitive says how two partial results combine; the scheduler fuses what is computed before, between and after. Elements
narrower than float32 are combined in float32, integers and bool are summed in int64.

May not know: shapes beyond what a rule is handed. Entry: the ops by name, `restore_dims`.

    sum_(x, 1)                          # x.sum(1)
    REGISTRY["max_dim"](x, 0, False)    # (values, indices)
"""

from __future__ import annotations

from flambeau.base.errors import UnsupportedError, message
from flambeau.base.lazy import np
from flambeau.core.device import as_device
from flambeau.core.dtype import bfloat16, bool_, float16, float32, int64, uint8
from flambeau.core.dtype import dtype as DType
from flambeau.core.layout import canonical_dim, canonical_dims
from flambeau.core.spec import Spec
from flambeau.ir.kinds import LINEAR, NOT_DIFFERENTIABLE, Composite, Pointwise, Reduction, sum_type
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel.complexes import Complex
from flambeau.operators.rules import case, reduction_samples, to_type_of


# ------------------------------------------------------------------ shared
def keep_dims(x, input, dim):
    """A reduction's result without the reduced dims, with them back as size 1."""
    shape = tuple(input.spec.shape)
    dims = canonical_dims("reshape", dim, len(shape))
    return REGISTRY["reshape"](x, tuple(1 if i in dims else n for i, n in enumerate(shape)))


def restore_dims(g, input, dim, keepdim: bool):
    """A reduction's result (or its gradient) with the reduced dims back as size 1, expanded over the input's shape."""
    if not keepdim:
        g = keep_dims(g, input, dim)
    return REGISTRY["expand"](g, tuple(input.spec.shape))


def as_dtype(x, dtype: DType | None):
    """x converted, if it is not of that dtype already."""
    return x if dtype is None or x.spec.dtype is dtype else REGISTRY["to_dtype"](x, dtype)


def wide(x):
    """x in the type that several dependent sums are done in: float16 and bfloat16 as float32."""
    return as_dtype(x, float32) if x.spec.dtype in (float16, bfloat16) else x


def count_of(shape, dim) -> int:
    """How many elements a reduction over `dim` combines."""
    total = 1
    for d in canonical_dims("reduction", dim, len(shape)):
        total *= shape[d]
    return total


def refuse_complex(name: str, d: DType) -> None:
    """Raises: UnsupportedError for complex dtypes."""
    if d.is_complex:
        raise UnsupportedError(
            message(name, "the input must be real: complex numbers have no order", d.name, "Reduce .abs() or .real.")
        )


def refuse_empty(name: str, shape, dim) -> None:
    """Raises: IndexError if a reduced dim is empty; RuntimeError if no dim was named and the input is empty."""
    if 0 not in shape:
        return
    if dim is None or dim == ():
        raise RuntimeError(
            message(
                name,
                "expected reduction dim to be specified for input.numel() == 0",
                f"shape {list(shape)}",
                "Specify the reduction dim with the 'dim' argument.",
            )
        )
    for d in canonical_dims(name, dim, len(shape)):
        if shape[d] == 0:
            raise IndexError(message(name, f"Expected reduction dim {d} to have non-zero size", f"shape {list(shape)}"))


def lowest(d: DType):
    """What a maximum starts from."""
    if d.kind == "f":
        return float("-inf")
    return 0 if d.kind in "bu" else -(1 << (8 * d.itemsize - 1))


def highest(d: DType):
    """What a minimum starts from."""
    if d.kind == "f":
        return float("inf")
    return 1 if d.kind == "b" else (1 << (8 * d.itemsize - (d.kind == "i"))) - 1


def numpy_dim(dim):
    """`dim` as NumPy's axis: all dims for None and ()."""
    return None if dim is None or dim == () else tuple(dim) if isinstance(dim, (tuple, list)) else dim


@declare
class positions(Pointwise):
    """0, 1, 2 … as int64: the coordinate along a dim, once reshaped and expanded. Costs nothing inside a fused kernel."""

    functions = ()
    positional = True
    unread = ("size",)
    in_place = False
    vjp = NOT_DIFFERENTIABLE

    def signature(size, *, device=None): ...

    def meta(op, size, device):
        return Spec.of((size,), int64, as_device(device))

    def types(operands, args):
        return (), int64

    def lower(k, size, device, position):
        return position

    def reference(size, *, device=None):
        return np.arange(size)

    def samples(t):
        yield case(5)
        yield case(0)


def coordinate(input, dim: int):
    """The position along `dim` of each element of `input`, as an int64 view of the input's shape."""
    shape = tuple(input.spec.shape)
    if not shape:
        return REGISTRY["reshape"](positions(1, device=input.spec.device), ())
    dim = canonical_dim("coordinate", dim, len(shape))
    line = REGISTRY["reshape"](
        positions(shape[dim], device=input.spec.device), tuple(n if i == dim else 1 for i, n in enumerate(shape))
    )
    return REGISTRY["expand"](line, shape)


# ------------------------------------------------------------------ sums
class Summation(Reduction):
    """Adds; `dtype` converts the elements first."""

    def signature(input: Tensor, dim=None, keepdim=False, *, dtype=None): ...

    def accumulate(d: DType, attributes) -> DType:
        return attributes[0] or sum_type(d)

    def result(d: DType, attributes) -> DType:
        return attributes[0] or sum_type(d)

    def identity(d):
        return 0

    def combine(k, a, b):
        return a | b if a.type.kind == "b" else a + b

    def finish(k, state, count, dtype):
        return state

    samples = reduction_samples


@declare
class sum_(Summation):
    """Sum of the elements over `dim` (all dims unless told).

    Dtypes: floats keep theirs, accumulated in float32 or wider; integers and bool give int64. `dtype` converts first.
    Determinism: one order of summation for every number of threads.
    """

    name = "sum"

    def of_one(d):
        return d.is_integral  # 0.0 + -0.0 is 0.0

    def vjp(g, out, input, dim, keepdim, dtype):
        return (to_type_of(restore_dims(g, input, dim, keepdim), input),)

    jvp = LINEAR

    def reference(x, dim=None, keepdim=False, *, dtype=None):
        return np.sum(x, axis=numpy_dim(dim), keepdims=keepdim)


@declare
class nansum(Summation):
    """Sum over `dim` that counts NaN as zero. Dtypes: as sum, but not complex."""

    def meta(op, input, dim, keepdim, dtype):
        if input.dtype.is_complex or (dtype is not None and dtype.is_complex):
            raise RuntimeError(
                message("nansum", "does not support complex inputs", input.dtype.name, "Sum .real and .imag.")
            )
        return Reduction.meta(op, input, dim, keepdim, dtype)

    def map(k, x):
        return k.select(x.is_nan(), 0, x) if x.type.kind == "f" else x

    def vjp(g, out, input, dim, keepdim, dtype):
        g = to_type_of(restore_dims(g, input, dim, keepdim), input)
        return (REGISTRY["mul"](g, as_dtype(REGISTRY["eq"](input, input), g.spec.dtype)),)

    def reference(x, dim=None, keepdim=False, *, dtype=None):
        return np.nansum(x, axis=numpy_dim(dim), keepdims=keepdim)


@declare
class mean(Summation):
    """Arithmetic mean over `dim`. Dtypes: floating and complex; `dtype` converts first. NaN over no elements."""

    def meta(op, input, dim, keepdim, dtype):
        if not (dtype or input.dtype).is_inexact:
            raise RuntimeError(
                message(
                    "mean",
                    "could not infer output dtype: the dtype must be either a floating point or complex dtype",
                    (dtype or input.dtype).name,
                    "Pass dtype=, or convert with .float().",
                )
            )
        return Reduction.meta(op, input, dim, keepdim, dtype)

    def finish(k, state, count, dtype):
        (total,) = state
        if isinstance(total, Complex):
            n = count.to(total.real.type.element)
            return Complex(total.real / n, total.imag / n)
        return total / count.to(total.type.element)

    def vjp(g, out, input, dim, keepdim, dtype):
        count = count_of(input.spec.shape, dim)
        g = to_type_of(restore_dims(g, input, dim, keepdim), input)
        return (REGISTRY["true_divide"](g, count) if count else g,)

    jvp = LINEAR

    def reference(x, dim=None, keepdim=False, *, dtype=None):
        return np.mean(x, axis=numpy_dim(dim), keepdims=keepdim)


@declare
class nanmean(Composite):
    """Arithmetic mean over `dim` of the elements that are not NaN; NaN if there is none."""

    def signature(input: Tensor, dim=None, keepdim=False, *, dtype=None): ...

    def body(input, dim, keepdim, dtype):
        if not input.spec.dtype.is_floating_point:
            raise RuntimeError(
                message(
                    "nanmean",
                    "expected input to have floating point dtype",
                    input.spec.dtype.name,
                    "Convert with .float().",
                )
            )
        x = as_dtype(input, dtype)
        count = REGISTRY["sum"](REGISTRY["eq"](x, x), dim, keepdim)
        return REGISTRY["true_divide"](REGISTRY["nansum"](x, dim, keepdim), count)

    def reference(x, dim=None, keepdim=False, *, dtype=None):
        return np.nanmean(x, axis=numpy_dim(dim), keepdims=keepdim)

    samples = reduction_samples


@declare
class count_nonzero(Composite):
    """How many elements over `dim` are not zero, as int64."""

    vjp = NOT_DIFFERENTIABLE

    def signature(input: Tensor, dim=None): ...

    def body(input, dim):
        return REGISTRY["sum"](as_dtype(input, bool_), dim)

    def reference(x, dim=None):
        return np.count_nonzero(x, axis=numpy_dim(dim))

    def samples(t):
        yield case(t(3, 4))
        yield case(t(3, 4), 1)
        yield case(t(2, 3, 4), (0, 2))
        yield case(t(2), 1, raises=(IndexError, "dim must be in"))


@declare
class prod(Summation):
    """Product of the elements over `dim` (all dims unless told). Dtypes: as sum."""

    def identity(d):
        return 1

    def combine(k, a, b):
        return a & b if a.type.kind == "b" else a * b

    def of_one(d):
        return not d.is_complex

    def vjp(g, out, input, dim, keepdim, dtype):
        ops, x = REGISTRY, as_dtype(input, dtype)
        g = restore_dims(g, x, dim, keepdim)
        dims = canonical_dims("prod", dim, x.spec.ndim)
        if len(dims) == 1:
            return (to_type_of(ops["prod_gradient"](g, x, dims[0]), input),)
        order = (*(d for d in range(x.spec.ndim) if d not in dims), *dims)  # the reduced dims as one, at the end
        moved = tuple(x.spec.shape[d] for d in order)
        lines = (*moved[: len(moved) - len(dims)], count_of(x.spec.shape, dims))
        g, x = (ops["reshape"](ops["permute"](v, order), lines) for v in (g, x))
        found = ops["reshape"](ops["prod_gradient"](g, x, len(lines) - 1), moved)
        return (to_type_of(ops["permute"](found, tuple(order.index(d) for d in range(len(order)))), input),)

    def reference(x, dim=None, keepdim=False, *, dtype=None):
        return np.prod(x, axis=numpy_dim(dim), keepdims=keepdim)


# ------------------------------------------------------------------ extremes
class Extreme(Reduction):
    """The largest or smallest element; NaN if there is one. Ties share the gradient evenly."""

    def signature(input: Tensor, dim=(), keepdim=False): ...

    def meta(op, input, dim, keepdim):
        refuse_complex(op.name, input.dtype)
        refuse_empty(op.name, input.shape, dim)
        return Reduction.meta(op, input, dim, keepdim)

    def of_one(d):
        return True

    def vjp(g, out, input, dim, keepdim):
        return (share_among_ties(g, out, input, dim, keepdim),)

    def samples(t):
        yield from reduction_samples(t)
        yield case(t(0, 3), raises=(RuntimeError, "expected reduction dim"))
        yield case(t(0, 3), 0, raises=(IndexError, "non-zero size"))


@declare
class amax(Extreme):
    """Largest element over `dim` (all dims unless told); NaN if there is one. Tied maxima share the gradient evenly."""

    def identity(d):
        return lowest(d)

    def combine(k, a, b):
        return a | b if a.type.kind == "b" else k.maximum(a, b)

    def reference(x, dim=(), keepdim=False):
        return np.amax(x, axis=numpy_dim(dim), keepdims=keepdim)


@declare
class amin(Extreme):
    """Smallest element over `dim` (all dims unless told); NaN if there is one. Tied minima share the gradient evenly."""

    def identity(d):
        return highest(d)

    def combine(k, a, b):
        return a & b if a.type.kind == "b" else k.minimum(a, b)

    def reference(x, dim=(), keepdim=False):
        return np.amin(x, axis=numpy_dim(dim), keepdims=keepdim)


def share_among_ties(g, out, input, dim, keepdim):
    """The gradient of an extreme, split evenly among the elements that attain it."""
    ops = REGISTRY
    full = restore_dims(out, input, dim, keepdim)
    mask = as_dtype(ops["eq"](input, full), g.spec.dtype)
    count = ops["sum"](mask, dim, True)
    return ops["mul"](ops["true_divide"](restore_dims(g, input, dim, keepdim), count), mask)


@declare
class aminmax(Composite):
    """(smallest, largest) element, over `dim` or over everything."""

    outputs = 2
    fields = ("min", "max")

    def signature(input: Tensor, *, dim=None, keepdim=False): ...

    def body(input, dim, keepdim):
        return REGISTRY["amin"](input, () if dim is None else dim, keepdim), REGISTRY["amax"](
            input, () if dim is None else dim, keepdim
        )

    def reference(x, *, dim=None, keepdim=False):
        return np.amin(x, axis=dim, keepdims=keepdim), np.amax(x, axis=dim, keepdims=keepdim)

    def samples(t):
        yield case(t(3, 4))
        yield case(t(3, 4), dim=1)
        yield case(t(3, 4), dim=0, keepdim=True)


# ------------------------------------------------------------------ positions of extremes
def first_of(k, a, b, beats):
    """Of two (value, index) pairs the one whose value beats the other's, NaN before anything, else the lower index."""
    (x, i), (y, j) = a, b
    better, tied = beats(y, x), y.eq(x)
    if x.type.kind == "f":
        x_nan, y_nan = x.is_nan(), y.is_nan()
        better = better | (y_nan & ~x_nan)
        tied = tied | (x_nan & y_nan)
    take = better | (tied & (j < i))
    return k.select(take, y, x), k.select(take, j, i)


class Position(Reduction):
    """Index of an extreme, counted over the reduced dims; the first among equals."""

    with_index = True
    vjp = NOT_DIFFERENTIABLE

    def signature(input: Tensor, dim=None, keepdim=False): ...

    def meta(op, input, dim, keepdim):
        refuse_complex(op.name, input.dtype)
        if dim is None and 0 in input.shape:
            raise IndexError(
                message(
                    op.name,
                    "Expected reduction dim to be specified for input.numel() == 0",
                    f"shape {list(input.shape)}",
                )
            )
        refuse_empty(op.name, input.shape, dim)
        return Reduction.meta(op, input, dim, keepdim)

    def result(d: DType, attributes) -> DType:
        return int64

    def finish(k, state, count):
        return state[1]

    def samples(t):
        yield from reduction_samples(t)
        yield case(t(0, 3), raises=(IndexError, "reduction dim"))


@declare
class argmax(Position):
    """Index of the largest element over `dim`, or in the flattened input; the first among equals, NaN counts as largest."""

    def identity(d):
        return lowest(d)

    def combine(k, a, b):
        return first_of(k, a, b, lambda y, x: y > x)

    def reference(x, dim=None, keepdim=False):
        return np.argmax(x, axis=dim, keepdims=keepdim)

    def samples(t):
        for shape, dim, keepdim in (
            ((5,), None, False),
            ((3, 4), 0, False),
            ((3, 4), 1, True),
            ((), None, False),
            ((2, 37), -1, False),
        ):
            yield case(t(*shape), dim, keepdim)
        yield case(t(0, 3), raises=(IndexError, "reduction dim"))


@declare
class argmin(Position):
    """Index of the smallest element over `dim`, or in the flattened input; the first among equals, NaN counts as smallest."""

    def identity(d):
        return highest(d)

    def combine(k, a, b):
        return first_of(k, a, b, lambda y, x: y < x)

    def reference(x, dim=None, keepdim=False):
        return np.argmin(x, axis=dim, keepdims=keepdim)

    samples = argmax.rules.samples


class Selected(Reduction):
    """(values, indices) of extremes along one dim; the gradient goes to the selected element."""

    functions = ()
    methods = ()
    with_index = True
    outputs = 2
    fields = ("values", "indices")

    def signature(input: Tensor, dim, keepdim=False): ...

    def meta(op, input, dim, keepdim):
        name = op.name.removesuffix("_dim")
        refuse_complex(name, input.dtype)
        canonical_dims(name, dim, input.ndim)
        refuse_empty(name, input.shape, dim if input.ndim else 0)
        values = Reduction.meta(op, input, dim, keepdim)
        return values, values.with_dtype(int64)

    def vjp(g, out, input, dim, keepdim):
        return (to_selected(g[0], out[1], input, dim, keepdim),)

    def samples(t):
        yield case(t(3, 4), 0)
        yield case(t(3, 4), 1, True)
        yield case(t(2, 37), -1)
        yield case(t(), 0)
        yield case(t(0, 3), 0, raises=(IndexError, "non-zero size"))


def to_selected(g, indices, input, dim, keepdim):
    """The gradient of an element that was selected along `dim`: g where the position is the index, else 0."""
    here = REGISTRY["eq"](coordinate(input, dim), restore_dims(indices, input, dim, keepdim))
    zero = REGISTRY["full"]((), 0, dtype=g.spec.dtype, device=g.spec.device)
    return REGISTRY["where"](here, restore_dims(g, input, dim, keepdim), zero)


@declare
class max_dim(Selected):
    """Largest elements along `dim` and where they are; the first among equals, NaN counts as largest."""

    spoken = "max"

    def identity(d):
        return lowest(d)

    combine = argmax.rules.combine

    def reference(x, dim, keepdim=False):
        return np.amax(x, axis=dim, keepdims=keepdim), np.argmax(x, axis=dim, keepdims=keepdim)


@declare
class min_dim(Selected):
    """Smallest elements along `dim` and where they are; the first among equals, NaN counts as smallest."""

    spoken = "min"

    def identity(d):
        return highest(d)

    combine = argmin.rules.combine

    def reference(x, dim, keepdim=False):
        return np.amin(x, axis=dim, keepdims=keepdim), np.argmin(x, axis=dim, keepdims=keepdim)


# ------------------------------------------------------------------ truth
class Truth(Reduction):
    """Combines elements as truth values. Dtypes: bool, but uint8 for uint8."""

    functions = ()
    methods = ()
    vjp = NOT_DIFFERENTIABLE

    def signature(input: Tensor, dim=None, keepdim=False): ...

    def accumulate(d: DType, attributes) -> DType:
        return bool_

    def result(d: DType, attributes) -> DType:
        return uint8 if d is uint8 else bool_

    samples = reduction_samples


@declare
class any_over(Truth):
    """Whether any element over `dim` is true; `any` for dims that are named."""

    def identity(d):
        return False

    def combine(k, a, b):
        return a | b

    def reference(x, dim=None, keepdim=False):
        return np.any(x, axis=numpy_dim(dim), keepdims=keepdim)


@declare
class all_over(Truth):
    """Whether all elements over `dim` are true; `all` for dims that are named."""

    def identity(d):
        return True

    def combine(k, a, b):
        return a & b

    def reference(x, dim=None, keepdim=False):
        return np.all(x, axis=numpy_dim(dim), keepdims=keepdim)


def truth_over(op):
    """The body of `any` and `all`: an empty tuple of dims reduces nothing."""

    def body(input, dim, keepdim):
        if dim == () and input.spec.ndim:
            truth = as_dtype(input, bool_)
            return as_dtype(truth, uint8) if input.spec.dtype is uint8 else truth
        return op(input, dim, keepdim)

    return staticmethod(body)


@declare
class any_(Composite):
    """Whether any element over `dim` (all dims unless told) is true. Dtypes: bool, but uint8 for uint8."""

    name = "any"
    vjp = NOT_DIFFERENTIABLE
    body = truth_over(any_over)
    reference = any_over.rules.reference
    samples = reduction_samples

    def signature(input: Tensor, dim=None, keepdim=False): ...


@declare
class all_(Composite):
    """Whether all elements over `dim` (all dims unless told) are true. Dtypes: bool, but uint8 for uint8."""

    name = "all"
    vjp = NOT_DIFFERENTIABLE
    body = truth_over(all_over)
    reference = all_over.rules.reference
    samples = reduction_samples

    def signature(input: Tensor, dim=None, keepdim=False): ...
