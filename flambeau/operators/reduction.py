"""Reductions: sums, products, extremes, truth."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import dtype as DType
from flambeau.core.layout import canonical_dims
from flambeau.ir.kinds import LINEAR, Reduction, sum_type
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import reduction_samples


def restore_dims(g, input, dim, keepdim: bool):
    """A reduction's result (or its gradient) with the reduced dims back as size 1, expanded over the input's shape."""
    shape = tuple(input.spec.shape)
    if not keepdim:
        dims = canonical_dims("expand", dim, len(shape))
        g = REGISTRY["reshape"](g, tuple(1 if i in dims else n for i, n in enumerate(shape)))
    return REGISTRY["expand"](g, shape)


@declare
class sum_(Reduction):
    """Sum of the elements over `dim` (all dims unless told).

    Dtypes: floats keep theirs, accumulated in float32 or wider; integers and bool give int64. `dtype` converts first.
    Determinism: one order of summation for every number of threads.
    """

    name = "sum"

    def signature(input: Tensor, dim=None, keepdim=False, *, dtype=None): ...

    def accumulate(d: DType) -> DType:
        return sum_type(d)

    def result(d: DType, attributes) -> DType:
        return attributes[0] or sum_type(d)

    def identity(d):
        return 0

    def combine(k, a, b):
        return a + b

    def finish(k, state, count, dtype):
        return state

    def vjp(g, out, input, dim, keepdim, dtype):
        g = restore_dims(g, input, dim, keepdim)
        return (g if g.spec.dtype is input.spec.dtype else REGISTRY["to_dtype"](g, input.spec.dtype),)

    jvp = LINEAR

    def reference(x, dim=None, keepdim=False, *, dtype=None):
        return np.sum(x, axis=dim, keepdims=keepdim)

    samples = reduction_samples


@declare
class amax(Reduction):
    """Largest element over `dim`; NaN if there is one. Tied maxima share the gradient evenly."""

    empty_error = "cannot reduce over a dim of size 0 (no identity)"

    def signature(input: Tensor, dim=(), keepdim=False): ...

    def identity(d):
        return lowest(d)

    def combine(k, a, b):
        return a | b if a.type.kind == "b" else k.maximum(a, b)

    def vjp(g, out, input, dim, keepdim):
        return (share_among_ties(g, out, input, dim, keepdim),)

    def reference(x, dim=None, keepdim=False):
        return np.amax(x, axis=dim or None if isinstance(dim, tuple) else dim, keepdims=keepdim)

    samples = reduction_samples


def share_among_ties(g, out, input, dim, keepdim):
    """The gradient of an extreme, split evenly among the elements that attain it."""
    ops = REGISTRY
    full = restore_dims(out, input, dim, keepdim)
    mask = ops["to_dtype"](ops["eq"](input, full), g.spec.dtype)
    count = ops["sum"](mask, dim, True)
    return ops["mul"](ops["true_divide"](restore_dims(g, input, dim, keepdim), count), mask)


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
