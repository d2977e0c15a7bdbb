"""Softmax and its relatives: composites that fuse into one kernel."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import case


@declare
class softmax(Composite):
    """exp(input) normalised to sum 1 along `dim`, computed relative to the maximum.

    Shapes: any -> the same. Dtypes: floats; `dtype` converts first. Raises: IndexError for a dim out of range.
    """

    functions = ("softmax",)

    def signature(input: Tensor, dim, dtype=None): ...

    def meta(op, input, dim, dtype):
        return Spec.of(input.shape, dtype or input.dtype, input.device)

    def body(input, dim, dtype):
        x = input if dtype is None or dtype is input.spec.dtype else REGISTRY["to_dtype"](input, dtype)
        if x.spec.numel == 0:
            return REGISTRY["clone"](x)
        e = REGISTRY["exp"](REGISTRY["sub"](x, REGISTRY["amax"](x, dim, True)))
        return REGISTRY["mul"](e, REGISTRY["true_divide"](1, REGISTRY["sum"](e, dim, True)))

    def vjp(g, out, input, dim, dtype):
        ops = REGISTRY
        weighted = ops["mul"](g, out)
        found = ops["sub"](weighted, ops["mul"](out, ops["sum"](weighted, dim, True)))
        return (found if found.spec.dtype is input.spec.dtype else ops["to_dtype"](found, input.spec.dtype),)

    def reference(x, dim, dtype=None):
        e = np.exp(x - np.max(x, axis=dim, keepdims=True, initial=-np.inf))
        return e / np.sum(e, axis=dim, keepdims=True)

    def samples(t):
        yield case(t(3, 5), 1)
        yield case(t(3, 5), 0)
        yield case(t(2, 3, 37), -1)
        yield case(t(0, 3), 1)
        yield case(t(2, 3), 2, raises=(IndexError, "dim must be in"))
