"""Softmax and its relatives: composites that fuse into one kernel."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.layout import canonical_dim
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite, Pointwise
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import case


@declare
class softmax(Composite):
    """exp(input) normalised to sum 1 along `dim`, computed relative to the maximum.

    Shapes: any -> the same. Dtypes: floats; `dtype` converts first. Raises: IndexError for a dim out of range.
    """

    functions = ("softmax", "special.softmax")

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


@declare
class log_softmax(Composite):
    """The logarithm of softmax, computed without taking one of it.

    Shapes: any -> the same. Dtypes: floats; `dtype` converts first. Raises: IndexError for a dim out of range.
    """

    functions = ("log_softmax", "special.log_softmax")

    def signature(input: Tensor, dim, dtype=None): ...

    def meta(op, input, dim, dtype):
        return softmax.rules.meta(op, input, dim, dtype)

    def body(input, dim, dtype):
        ops = REGISTRY
        x = input if dtype is None or dtype is input.spec.dtype else ops["to_dtype"](input, dtype)
        if x.spec.numel == 0:
            return ops["clone"](x)
        x = ops["sub"](x, ops["amax"](x, dim, True))
        return ops["sub"](x, ops["log"](ops["sum"](ops["exp"](x), dim, True)))

    def vjp(g, out, input, dim, dtype):
        ops = REGISTRY
        found = ops["sub"](g, ops["mul"](ops["exp"](out), ops["sum"](g, dim, True)))
        return (found if found.spec.dtype is input.spec.dtype else ops["to_dtype"](found, input.spec.dtype),)

    def reference(x, dim, dtype=None):
        return np.log(softmax.rules.reference(x, dim, dtype))

    samples = softmax.rules.samples


@declare
class softmin(Composite):
    """Softmax of the negative: the smallest element gets the most."""

    functions = ()
    methods = ()

    def signature(input: Tensor, dim, dtype=None): ...

    def meta(op, input, dim, dtype):
        return softmax.rules.meta(op, input, dim, dtype)

    def body(input, dim, dtype):
        return softmax(REGISTRY["neg"](input), dim, dtype)

    def reference(x, dim, dtype=None):
        return softmax.rules.reference(-x, dim, dtype)

    samples = softmax.rules.samples


@declare
class prelu(Composite):
    """x above zero, weight * x below; one weight, or one per channel (dim 1).

    Raises: RuntimeError unless the number of weights is 1 or that of channels, and both dtypes are one.
    """

    functions = ("prelu", "nn.functional.prelu")

    def signature(input: Tensor, weight: Tensor): ...

    def meta(op, input, weight):
        if weight.dtype is not input.dtype:
            raise RuntimeError(
                f"prelu: type promoting not supported, got {input.dtype.name} and {weight.dtype.name}. "
                f"Convert one with .to(dtype)."
            )
        if weight.ndim > 1:
            raise RuntimeError(
                f"prelu: expected `weight` to be a scalar or 1D tensor, but got ndim = {weight.ndim}. Flatten it."
            )
        if weight.numel != 1:
            channels = input.shape[1] if input.ndim > 1 else 1
            if not input.ndim:
                raise RuntimeError(
                    "prelu: not allow zero-dim input tensor with several weights, got a 0-dim input. Give one weight."
                )
            if channels != weight.numel:
                raise RuntimeError(
                    f"prelu: mismatch of parameter numbers and input channel size, got {weight.numel} weights and channel "
                    f"size = {channels}. Give one weight, or one per channel."
                )
        return Pointwise.meta(REGISTRY["maximum"], input, input)

    def body(input, weight):
        ops = REGISTRY
        if weight.spec.ndim and weight.spec.numel != 1:
            weight = ops["reshape"](weight, (weight.spec.numel,) + (1,) * (input.spec.ndim - 2))
        elif weight.spec.ndim:
            weight = ops["reshape"](weight, ())
        return ops["where"](ops["gt"](input, 0), input, ops["mul"](input, weight))

    def reference(x, weight):
        weight = np.asarray(weight)
        weight = weight.reshape(-1, *(1,) * (x.ndim - 2)) if weight.size > 1 else weight.reshape(())
        return np.where(x > 0, x, x * weight)

    def samples(t):
        yield case(t(3, 5), t())
        yield case(t(3, 5), t(5))
        yield case(t(2, 3, 4), t(3))
        yield case(t(2, 3, 4), t(4), raises=(RuntimeError, "mismatch of parameter numbers"))


@declare
class glu(Composite):
    """The first half of `dim` times the sigmoid of the second. Raises: RuntimeError for an odd size or a 0-dim input."""

    functions = ("nn.functional.glu",)
    methods = ()

    def signature(input: Tensor, dim=-1): ...

    def meta(op, input, dim):
        if not input.ndim:
            raise RuntimeError(
                "glu: does not support 0-dimensional tensors, got a 0-dim input. Unsqueeze and stack two halves first."
            )
        d = canonical_dim("glu", dim, input.ndim)
        if input.shape[d] % 2:
            raise RuntimeError(
                f"glu: halving dimension must be even, but dimension {d} is size {input.shape[d]}. Pad it."
            )
        shape = list(input.shape)
        shape[d] //= 2
        return Spec.of(shape, input.dtype, input.device)

    def body(input, dim):
        ops = REGISTRY
        half = input.spec.shape[canonical_dim("glu", dim, input.spec.ndim)] // 2
        return ops["mul"](ops["narrow"](input, dim, 0, half), ops["sigmoid"](ops["narrow"](input, dim, half, half)))

    def vjp(g, out, input, dim):
        ops = REGISTRY
        half = out.spec.shape[canonical_dim("glu", dim, input.spec.ndim)]
        s = ops["sigmoid"](ops["narrow"](input, dim, half, half))
        of_value = ops["mul"](g, s)
        of_gate = ops["mul"](ops["mul"](g, out), ops["sub"](1, s))
        return (ops["cat"]((of_value, of_gate), dim),)

    def reference(x, dim=-1):
        a, b = np.split(x, 2, axis=dim)
        return a / (1 + np.exp(-b))

    def samples(t):
        yield case(t(3, 6))
        yield case(t(4, 5), 0)
        yield case(t(3, 5), raises=(RuntimeError, "must be even"))
