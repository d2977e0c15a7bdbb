"""Dropout: one kernel that draws its mask, forward and again backward, so no mask is kept.

`p` and the scale are run-time numbers, and so are seed and offset: changing them costs no new code.
May not know: generators, training modes (`nn.functional` has the public functions).
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import float32, float64, int64
from flambeau.ir.kinds import Composite, Pointwise
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel import philox
from flambeau.kernel.complexes import Complex
from flambeau.kernel.types import f32
from flambeau.operators.random import random_bernoulli, reference_unit, words_of
from flambeau.operators.rules import case


def _compute(dtype):
    return dtype.to_real() if dtype.to_real() is float64 else float32


@declare
class random_dropout(Pointwise):
    """Elements zeroed with probability `p`, the others times `scale`. Dtypes: floats and complex numbers, kept."""

    functions = ()
    methods = ()
    in_place = False
    random = True
    positional = True
    expensive = True

    def signature(input: Tensor, p: Scalar, scale: Scalar, seed: Operand, offset: Operand): ...

    def types(operands, args):
        real = _compute(args[0].dtype)
        return (args[0].dtype, float32, real, int64, int64), args[0].dtype

    def lower(k, x, p, scale, seed, offset, index):
        keep = philox.uniform(k, words_of(k, index, seed, offset)[0], f32) >= p
        if isinstance(x, Complex):
            return Complex(k.select(keep, x.real * scale, 0.0), k.select(keep, x.imag * scale, 0.0))
        return k.select(keep, x * scale, k.const(x.type, 0.0))

    def vjp(g, out, input, p, scale, seed, offset):
        return random_dropout(g, p, scale, seed, offset), None, None

    def reference(input, p, scale, seed, offset):
        return np.where(reference_unit(input.shape, seed, offset, float32) >= p, input * scale, 0).astype(input.dtype)

    def samples(t):
        yield case(t(5), 0.5, 2.0, 1, 0)
        yield case(t(3, 7), 0.25, 1 / 0.75, -4, 1 << 33)
        yield case(t(0, 3), 0.5, 2.0, 1, 0)


@declare
class random_feature_dropout(Composite):
    """Whole channels (dim 1) zeroed with probability 1 - keep, the others times `scale`."""

    functions = ()
    methods = ()

    def signature(input: Tensor, keep: Scalar, scale: Scalar, seed: Operand, offset: Operand): ...

    def meta(op, input, *rest):
        return input

    def body(input, keep, scale, seed, offset):
        return REGISTRY["mul"](input, REGISTRY["mul"](_channel_noise(input, keep, seed, offset), scale))

    def reference(input, keep, scale, seed, offset):
        shape = input.shape[:2] + (1,) * (input.ndim - 2)
        return input * (reference_unit(shape, seed, offset, float32) < keep) * scale

    def samples(t):
        yield case(t(3, 4, 5), 0.5, 2.0, 1, 0)
        yield case(t(2, 3), 0.5, 2.0, 1, 0)


def _channel_noise(input, keep, seed, offset):
    shape = tuple(input.spec.shape)
    return random_bernoulli(
        None, shape[:2] + (1,) * (len(shape) - 2), keep, seed, offset, input.spec.dtype, input.spec.device
    )


@declare
class random_alpha_dropout(Composite):
    """Dropout that keeps mean and variance of standard normal input: x * noise * a + (noise - 1) * c + c_p, by channel if `features`."""

    functions = ()
    methods = ()

    def signature(
        input: Tensor, keep: Scalar, a: Scalar, c: Scalar, c_p: Scalar, seed: Operand, offset: Operand, features=False
    ): ...

    def meta(op, input, *rest):
        return input

    def body(input, keep, a, c, c_p, seed, offset, features):
        if features:
            noise = _channel_noise(input, keep, seed, offset)
        else:
            noise = random_bernoulli(
                None, tuple(input.spec.shape), keep, seed, offset, input.spec.dtype, input.spec.device
            )
        ops = REGISTRY
        shift = ops["add"](ops["mul"](ops["sub"](noise, 1), c), c_p)
        return ops["add"](ops["mul"](input, ops["mul"](noise, a)), shift)

    def reference(input, keep, a, c, c_p, seed, offset, features=False):
        shape = input.shape[:2] + (1,) * (input.ndim - 2) if features else input.shape
        noise = (reference_unit(shape, seed, offset, float32) < keep).astype(input.dtype)
        return input * noise * a + (noise - 1) * c + c_p

    def samples(t):
        yield case(t(3, 4, 5), 0.5, 0.9, 1.5, 0.7, 1, 0)
        yield case(t(3, 4, 5), 0.5, 0.9, 1.5, 0.7, 1, 0, True)
