"""Elementary functions: exponentials, logarithms, circular and hyperbolic functions and their inverses.

Integers become floats. Derivatives are chained so that a zero gradient stays zero (`rules.chain`).
"""

from __future__ import annotations

import math

from flambeau.base.lazy import np
from flambeau.ir.kinds import FLOAT
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel import complex_math, vmath
from flambeau.kernel.complexes import Complex
from flambeau.operators.arithmetic import add, mul, neg, reflected_divide, sub, true_divide
from flambeau.operators.powers import rsqrt, square
from flambeau.operators.rules import (
    Elementwise,
    case,
    chain,
    in_type_of,
    pair_samples,
    pair_vjp,
    unary_samples,
)
from flambeau.operators.selection import where


class Elementary(Elementwise):
    promotion = FLOAT
    expensive = True
    samples = unary_samples

    def signature(input: Tensor): ...


def evaluate(k, name: str, x):
    """The function of that name, of a real or complex value."""
    return getattr(complex_math if isinstance(x, Complex) else vmath, name)(k, x)


def one_over(x):
    return reflected_divide(x, 1)


# ---------------------------------------------------------------------- exponentials
@declare
class exp(Elementary):
    """e to the power of each element."""

    def lower(k, x):
        return evaluate(k, "exp", x)

    def vjp(g, out, input):
        return (chain(g, out),)

    def reference(x):
        return np.exp(x)


@declare
class exp2(Elementary):
    """2 to the power of each element."""

    functions = ("exp2", "special.exp2")

    def lower(k, x):
        return evaluate(k, "exp2", x)

    def vjp(g, out, input):
        return (chain(g, mul(out, math.log(2.0))),)

    def reference(x):
        return np.exp2(x)


@declare
class expm1(Elementary):
    """exp(x) - 1, right for small x."""

    functions = ("expm1", "special.expm1")

    def lower(k, x):
        return evaluate(k, "expm1", x)

    def vjp(g, out, input):
        return (chain(g, add(out, 1)),)

    def reference(x):
        return np.expm1(x)


@declare
class sigmoid(Elementary):
    """1 / (1 + exp(-x))."""

    functions = ("sigmoid", "special.expit", "nn.functional.sigmoid")

    def lower(k, x):
        return evaluate(k, "sigmoid", x)

    def vjp(g, out, input):
        return (chain(g, mul(out, sub(1, out))),)

    def reference(x):
        return 1 / (1 + np.exp(-np.asarray(x)))


# ---------------------------------------------------------------------- logarithms
class Logarithm(Elementary):
    domain = (0.1, 3.0)


@declare
class log(Logarithm):
    """Natural logarithm."""

    def lower(k, x):
        return evaluate(k, "log", x)

    def vjp(g, out, input):
        return (chain(g, one_over(input)),)

    def reference(x):
        return np.log(x)


@declare
class log2(Logarithm):
    """Logarithm to base 2; exact for powers of two."""

    def lower(k, x):
        return evaluate(k, "log2", x)

    def vjp(g, out, input):
        return (chain(g, one_over(mul(input, math.log(2.0)))),)

    def reference(x):
        return np.log2(x)


@declare
class log10(Logarithm):
    """Logarithm to base 10."""

    def lower(k, x):
        return evaluate(k, "log10", x)

    def vjp(g, out, input):
        return (chain(g, one_over(mul(input, math.log(10.0)))),)

    def reference(x):
        return np.log10(x)


@declare
class log1p(Logarithm):
    """log(1 + x), right for small x."""

    functions = ("log1p", "special.log1p")

    def lower(k, x):
        return evaluate(k, "log1p", x)

    def vjp(g, out, input):
        return (chain(g, one_over(add(input, 1))),)

    def reference(x):
        return np.log1p(x)


# ---------------------------------------------------------------------- circular functions
@declare
class sin(Elementary):
    """Sine."""

    def lower(k, x):
        return evaluate(k, "sin", x)

    def vjp(g, out, input):
        return (chain(g, cos(input)),)

    def reference(x):
        return np.sin(x)


@declare
class cos(Elementary):
    """Cosine."""

    def lower(k, x):
        return evaluate(k, "cos", x)

    def vjp(g, out, input):
        return (neg(chain(g, sin(input))),)

    def reference(x):
        return np.cos(x)


@declare
class tan(Elementary):
    """Tangent."""

    def lower(k, x):
        return evaluate(k, "tan", x)

    def vjp(g, out, input):
        return (chain(g, add(square(out), 1)),)

    def reference(x):
        return np.tan(x)


class InUnit(Elementary):
    domain = (-0.9, 0.9)


@declare
class asin(InUnit):
    """Inverse sine; NaN outside [-1, 1]."""

    functions = ("asin", "arcsin")
    methods = ("asin", "arcsin")

    def lower(k, x):
        return evaluate(k, "asin", x)

    def vjp(g, out, input):
        return (chain(g, rsqrt(sub(1, square(input)))),)

    def reference(x):
        return np.arcsin(x)


@declare
class acos(InUnit):
    """Inverse cosine; NaN outside [-1, 1]."""

    functions = ("acos", "arccos")
    methods = ("acos", "arccos")

    def lower(k, x):
        return evaluate(k, "acos", x)

    def vjp(g, out, input):
        return (neg(chain(g, rsqrt(sub(1, square(input))))),)

    def reference(x):
        return np.arccos(x)


@declare
class atan(Elementary):
    """Inverse tangent."""

    functions = ("atan", "arctan")
    methods = ("atan", "arctan")

    def lower(k, x):
        return evaluate(k, "atan", x)

    def vjp(g, out, input):
        return (chain(g, one_over(add(square(input), 1))),)

    def reference(x):
        return np.arctan(x)


@declare
class atan2(Elementwise):
    """Angle of the point (other, input), in [-pi, pi]. Raises: RuntimeError for complex."""

    functions = ("atan2", "arctan2")
    methods = ("atan2", "arctan2")
    promotion = FLOAT
    expensive = True
    kinds = "buif"
    samples = pair_samples

    def signature(input: Tensor, other: Tensor): ...

    def lower(k, y, x):
        return vmath.atan2(k, y, x)

    def vjp(g, out, input, other):
        size = add(square(input), square(other))
        inverse = where(REGISTRY["eq"](size, 0), 0, one_over(size))
        return pair_vjp(
            g, input, other, lambda: chain(g, mul(other, inverse)), lambda: neg(chain(g, mul(input, inverse)))
        )

    def reference(y, x):
        return np.arctan2(y, x)


# ---------------------------------------------------------------------- hyperbolic functions
@declare
class sinh(Elementary):
    """Hyperbolic sine."""

    def lower(k, x):
        return evaluate(k, "sinh", x)

    def vjp(g, out, input):
        return (chain(g, cosh(input)),)

    def reference(x):
        return np.sinh(x)


@declare
class cosh(Elementary):
    """Hyperbolic cosine."""

    def lower(k, x):
        return evaluate(k, "cosh", x)

    def vjp(g, out, input):
        return (chain(g, sinh(input)),)

    def reference(x):
        return np.cosh(x)


@declare
class tanh(Elementary):
    """Hyperbolic tangent."""

    functions = ("tanh", "nn.functional.tanh")

    def lower(k, x):
        return evaluate(k, "tanh", x)

    def vjp(g, out, input):
        return (chain(g, sub(1, mul(out, out))),)

    def reference(x):
        return np.tanh(x)


@declare
class asinh(Elementary):
    """Inverse hyperbolic sine."""

    functions = ("asinh", "arcsinh")
    methods = ("asinh", "arcsinh")

    def lower(k, x):
        return evaluate(k, "asinh", x)

    def vjp(g, out, input):
        return (chain(g, rsqrt(add(square(input), 1))),)

    def reference(x):
        return np.arcsinh(x)


@declare
class acosh(Elementary):
    """Inverse hyperbolic cosine; NaN below 1."""

    functions = ("acosh", "arccosh")
    methods = ("acosh", "arccosh")
    domain = (1.1, 3.0)

    def lower(k, x):
        return evaluate(k, "acosh", x)

    def vjp(g, out, input):
        if input.spec.dtype.is_complex:  # two roots: their product has the cut of the function
            return (chain(g, mul(rsqrt(sub(input, 1)), rsqrt(add(input, 1)))),)
        return (chain(g, rsqrt(sub(square(input), 1))),)

    def reference(x):
        return np.arccosh(x)


@declare
class atanh(InUnit):
    """Inverse hyperbolic tangent; NaN outside [-1, 1]."""

    functions = ("atanh", "arctanh")
    methods = ("atanh", "arctanh")

    def lower(k, x):
        return evaluate(k, "atanh", x)

    def vjp(g, out, input):
        return (chain(g, one_over(sub(1, square(input)))),)

    def reference(x):
        return np.arctanh(x)


# ---------------------------------------------------------------------- degrees and sinc
class Scaling(Elementwise):
    promotion = FLOAT
    kinds = "buif"
    samples = unary_samples

    def signature(input: Tensor): ...


@declare
class deg2rad(Scaling):
    """Degrees as radians."""

    def lower(k, x):
        return x * (math.pi / 180.0)

    def vjp(g, out, input):
        return (mul(g, math.pi / 180.0),)

    def reference(x):
        return np.deg2rad(x)


@declare
class rad2deg(Scaling):
    """Radians as degrees."""

    def lower(k, x):
        return x * (180.0 / math.pi)

    def vjp(g, out, input):
        return (mul(g, 180.0 / math.pi),)

    def reference(x):
        return np.rad2deg(x)


@declare
class sinc(Elementary):
    """sin(pi x) / (pi x), 1 at 0."""

    functions = ("sinc", "special.sinc")

    def lower(k, x):
        turned = x * math.pi
        value = evaluate(k, "sin", turned) / turned
        if isinstance(x, Complex):
            zero = x.eq(0)
            return Complex(k.select(zero, 1.0, value.real), k.select(zero, 0.0, value.imag))
        return k.select(x.eq(0.0), 1.0, value)

    def vjp(g, out, input):
        slope = true_divide(sub(cos(mul(input, math.pi)), out), input)
        return (where(REGISTRY["eq"](input, 0), 0, chain(g, slope)),)

    def reference(x):
        return np.sinc(x)


# ---------------------------------------------------------------------- sums of exponentials
class LogAdd(Elementwise):
    kinds = "f"
    expensive = True
    in_place = False
    samples = pair_samples

    def signature(input: Tensor, other: Tensor): ...


def add_in_logs(k, x, y, power, logarithm):
    """log(base**x + base**y) from the larger exponent; equal infinities stay."""
    high, low = k.maximum(x, y), k.minimum(x, y)
    gap = k.select(high.eq(low), 0.0, low - high)
    return high + logarithm(power(gap))


@declare
class logaddexp(LogAdd):
    """log(exp(input) + exp(other)) without overflow."""

    kinds = "fc"

    def lower(k, x, y):
        if isinstance(x, Complex):
            first = x.real >= y.real
            high = Complex(k.select(first, x.real, y.real), k.select(first, x.imag, y.imag))
            low = Complex(k.select(first, y.real, x.real), k.select(first, y.imag, x.imag))
            return high + complex_math.log1p(k, complex_math.exp(k, low - high))
        return add_in_logs(k, x, y, lambda gap: vmath.exp(k, gap), lambda p: vmath.log1p(k, p))

    def vjp(g, out, input, other):
        return pair_vjp(g, input, other, lambda: chain(g, exp(sub(input, out))), lambda: chain(g, exp(sub(other, out))))

    def reference(x, y):
        return np.logaddexp(x, y)


@declare
class logaddexp2(LogAdd):
    """log2(2**input + 2**other) without overflow."""

    def lower(k, x, y):
        return add_in_logs(k, x, y, lambda gap: vmath.exp2(k, gap), lambda p: vmath.log1p(k, p) * (1.0 / math.log(2.0)))

    def vjp(g, out, input, other):
        return pair_vjp(
            g, input, other, lambda: chain(g, exp2(sub(input, out))), lambda: chain(g, exp2(sub(other, out)))
        )

    def reference(x, y):
        return np.logaddexp2(x, y)


# ---------------------------------------------------------------------- products with logarithms
class TimesLog(Elementwise):
    promotion = FLOAT
    kinds = "buif"
    expensive = True

    def signature(input: Operand, other: Operand): ...

    def samples(t):
        yield case(t(3, 5), REGISTRY["abs"](t(3, 5)))
        yield case(0.0, REGISTRY["abs"](t(5)))
        yield case(t(3, 5), 2.0)
        yield case(t(2, 3), t(4), raises=(RuntimeError, "must broadcast"))


@declare
class xlogy(TimesLog):
    """input * log(other), 0 where input is 0 (and other is not NaN)."""

    functions = ("xlogy", "special.xlogy")

    def lower(k, x, y):
        return k.select(y.is_nan(), y, k.select(x.eq(0.0), 0.0, x * vmath.log(k, y)))

    def vjp(g, out, input, other):
        x, y = in_type_of(input, out), in_type_of(other, out)
        zero = REGISTRY["logical_and"](REGISTRY["eq"](x, 0), REGISTRY["le"](y, 0))
        return pair_vjp(g, input, other, lambda: where(zero, 0, chain(g, log(y))), lambda: chain(g, true_divide(x, y)))

    def reference(x, y):
        return np.where(np.asarray(x) == 0, 0.0, x * np.log(np.where(np.asarray(x) == 0, 1.0, y)))


@declare
class xlog1py(TimesLog):
    """input * log(1 + other), 0 where input is 0 (and other is not NaN)."""

    functions = ("special.xlog1py",)

    def lower(k, x, y):
        return k.select(y.is_nan(), y, k.select(x.eq(0.0), 0.0, x * vmath.log1p(k, y)))

    def vjp(g, out, input, other):
        x, y = in_type_of(input, out), in_type_of(other, out)
        zero = REGISTRY["logical_and"](REGISTRY["eq"](x, 0), REGISTRY["le"](y, -1))
        return pair_vjp(
            g, input, other, lambda: where(zero, 0, chain(g, log1p(y))), lambda: chain(g, true_divide(x, add(y, 1)))
        )

    def reference(x, y):
        return np.where(np.asarray(x) == 0, 0.0, x * np.log1p(np.where(np.asarray(x) == 0, 1.0, y)))
