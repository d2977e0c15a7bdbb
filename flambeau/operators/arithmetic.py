"""Elementwise arithmetic: sums, products, powers, signs."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.ir.kinds import FLOAT, LINEAR, Pointwise
from flambeau.ir.op import declare
from flambeau.operators.rules import binary_samples, pair_vjp, scaled, sum_to, unary_samples


@declare
class add(Pointwise):
    """Sum, `input + alpha * other`, with broadcasting.

    Dtypes: promoted; bool + bool is logical or.
    """

    methods = ("add", "__add__", "__radd__")

    def signature(input: Operand, other: Operand, *, alpha: Scalar = 1): ...

    def lower(k, x, y, alpha):
        if not isinstance(alpha, int) or alpha != 1:
            y = y * alpha
        return x | y if x.type.kind == "b" else x + y

    def vjp(g, out, input, other, alpha):
        return sum_to(g, input), sum_to(scaled(g, alpha), other)

    def reference(input, other, *, alpha=1):
        return np.add(input, np.multiply(other, alpha))

    samples = binary_samples


@declare
class sub(Pointwise):
    """Difference, `input - alpha * other`, with broadcasting."""

    methods = ("sub", "__sub__")

    def signature(input: Operand, other: Operand, *, alpha: Scalar = 1): ...

    def lower(k, x, y, alpha):
        if not isinstance(alpha, int) or alpha != 1:
            y = y * alpha
        return x - y

    def vjp(g, out, input, other, alpha):
        return sum_to(g, input), sum_to(neg(scaled(g, alpha)), other)

    def reference(input, other, *, alpha=1):
        return np.subtract(input, np.multiply(other, alpha))

    samples = binary_samples


@declare
class mul(Pointwise):
    """Elementwise product with broadcasting."""

    methods = ("mul", "__mul__", "__rmul__")

    def signature(input: Operand, other: Operand): ...

    def lower(k, x, y):
        return x & y if x.type.kind == "b" else x * y

    def vjp(g, out, input, other):
        return pair_vjp(g, input, other, lambda: mul(g, conjugate(other)), lambda: mul(g, conjugate(input)))

    reference = staticmethod(lambda x, y: np.multiply(x, y))
    samples = binary_samples


@declare
class true_divide(Pointwise):
    """Elementwise quotient; integers divide as floats."""

    promotion = FLOAT
    functions = ("true_divide",)
    methods = ("true_divide", "__truediv__")

    def signature(input: Operand, other: Operand): ...

    def lower(k, x, y):
        return x / y

    def vjp(g, out, input, other):
        return pair_vjp(g, input, other, lambda: true_divide(g, conjugate(other)),
                        lambda: neg(mul(g, conjugate(true_divide(out, other)))))

    def reference(x, y):
        return np.true_divide(x, y)

    samples = binary_samples


@declare
class neg(Pointwise):
    """The negative of each element."""

    functions = ("neg", "negative")
    methods = ("neg", "negative", "__neg__")

    def signature(input: Tensor): ...

    def lower(k, x):
        return -x

    def vjp(g, out, input):
        return (neg(g),)

    jvp = LINEAR

    def reference(x):
        return np.negative(x)

    samples = unary_samples


def conjugate(x):
    """The conjugate where x is complex; x itself otherwise."""
    return x.conj() if hasattr(x, "spec") and x.spec.dtype.is_complex else x
