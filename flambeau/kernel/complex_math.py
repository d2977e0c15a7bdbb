"""Elementary functions of complex values: exp log powers, circular and hyperbolic functions and their inverses.

    w = log(k, z)         # z: a complexes.Complex of f32 or f64 parts

Single precision is computed in double, so that sums of squares neither overflow nor cancel. Branch cuts and signs of zero as in
Kahan, "Branch cuts for complex elementary functions" (1987), whose formulas the inverse functions use.
May not know: tensors, targets. Entry: the functions named as in `vmath`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flambeau.kernel import vmath
from flambeau.kernel.complexes import Complex, choose
from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64

INFINITY = float("inf")
HALF_PI = math.pi / 2


def in_double(function: Callable) -> Callable:
    """The function of f64 parts, applied to f32 parts by way of f64."""

    def compute(k: Function, *values: Complex) -> Complex:
        if values[0].type.element is not f32:
            return function(k, *values)
        result = function(k, *(Complex(z.real.to(f64), z.imag.to(f64)) for z in values))
        return Complex(result.real.to(f32), result.imag.to(f32))

    compute.__doc__, compute.__name__ = function.__doc__, function.__name__
    return compute


def times_i(z: Complex) -> Complex:
    return Complex(-z.imag, z.real)


def over_i(z: Complex) -> Complex:
    return Complex(z.imag, -z.real)


def is_finite(k: Function, x: Value) -> Value:
    return k.math("fabs", x) < INFINITY


def is_infinite(k: Function, z: Complex) -> Value:
    """Whether either part is infinite."""
    return k.math("fabs", z.real).eq(INFINITY) | k.math("fabs", z.imag).eq(INFINITY)


def shifted(z: Complex, by: float) -> Complex:
    """z + by, with the sign of a zero imaginary part kept: it says on which side of a cut z lies."""
    return Complex(z.real + by, z.imag)


def absolute(k: Function, z: Complex) -> Value:
    """|z| without overflow on the way."""
    return vmath.hypot(k, z.real, z.imag)


def angle(k: Function, z: Complex) -> Value:
    """The argument, in [-pi, pi]."""
    return vmath.atan2(k, z.imag, z.real)


def from_polar(k: Function, size: Value, phase: Value) -> Complex:
    return Complex(size * vmath.cos(k, phase), size * vmath.sin(k, phase))


# ---------------------------------------------------------------------- exponentials and powers
def exp(k: Function, z: Complex) -> Complex:
    """e**z; real where z is."""
    endless = ~is_finite(k, z.imag)
    y = k.select(endless & z.real.eq(-INFINITY), 0.0, z.imag)
    size = vmath.exp(k, z.real)
    real = k.select(endless & z.real.eq(INFINITY), INFINITY, size * vmath.cos(k, y))
    return Complex(real, k.select(y.eq(0.0), y, size * vmath.sin(k, y)))


def exp2(k: Function, z: Complex) -> Complex:
    """2**z."""
    size, phase = vmath.exp2(k, z.real), z.imag * math.log(2.0)
    return Complex(size * vmath.cos(k, phase), k.select(phase.eq(0.0), phase, size * vmath.sin(k, phase)))


def expm1(k: Function, z: Complex) -> Complex:
    """e**z - 1, right for small z."""
    half = vmath.sin(k, z.imag * 0.5)
    real = vmath.expm1(k, z.real) * vmath.cos(k, z.imag) - half * half * 2.0
    return Complex(real, vmath.exp(k, z.real) * vmath.sin(k, z.imag))


@in_double
def log(k: Function, z: Complex) -> Complex:
    """The principal logarithm; near |z| = 1 by log1p of |z|^2 - 1."""
    a, b = k.math("fabs", z.real), k.math("fabs", z.imag)
    large, small = k.select(a > b, a, b), k.select(a > b, b, a)
    near = (large > 0.5) & (large < 2.0)
    excess = k.fma(large - 1.0, large + 1.0, small * small)
    close = vmath.log1p(k, k.select(near, excess, 0.0)) * 0.5
    return Complex(k.select(near, close, vmath.log(k, vmath.hypot(k, a, b))), angle(k, z))


def log2(k: Function, z: Complex) -> Complex:
    """The principal logarithm to base 2."""
    return log(k, z) * (1.0 / math.log(2.0))


def log10(k: Function, z: Complex) -> Complex:
    """The principal logarithm to base 10."""
    return log(k, z) * (1.0 / math.log(10.0))


@in_double
def log1p(k: Function, z: Complex) -> Complex:
    """log(1 + z), right for small z."""
    x, y = z.real, z.imag
    whole = log(k, Complex(x + 1.0, y))
    small = k.math("fabs", x) + k.math("fabs", y) < 0.5
    return Complex(k.select(small, vmath.log1p(k, k.fma(x, x + 2.0, y * y)) * 0.5, whole.real), whole.imag)


@in_double
def sqrt(k: Function, z: Complex) -> Complex:
    """The root with a real part of at least 0."""
    x, y = z.real, z.imag
    ax, ay = k.math("fabs", x), k.math("fabs", y)
    tiny = (ax < 2.0**-900) & (ay < 2.0**-900)
    up = k.select(tiny, 2.0**200, k.const(x.type, 0.25))
    down = k.select(tiny, 2.0**-100, k.const(x.type, 2.0))
    t = k.math("sqrt", (ax * up + vmath.hypot(k, ax * up, ay * up)) * 0.5) * down
    other = k.select(t.eq(0.0), ay, ay / (t * 2.0))
    infinite = ay.eq(INFINITY)
    t, other = k.select(infinite, ay, t), k.select(infinite, ay, other)
    flat = ~(x < 0.0)
    return Complex(k.select(flat, t, other), vmath.copysign(k, k.select(flat, other, t), y))


def rsqrt(k: Function, z: Complex) -> Complex:
    """1 / sqrt(z)."""
    return 1.0 / sqrt(k, z)


@in_double
def pow(k: Function, z: Complex, w: Complex) -> Complex:
    """z**w as exp(w log z); 1 for w = 0, and 0 for z = 0 if the real part of w is positive."""
    result = exp(k, w * log(k, z))
    zero = z.real.eq(0.0) & z.imag.eq(0.0)
    result = choose(k, zero & (w.real > 0.0), 0.0, result)
    return choose(k, w.real.eq(0.0) & w.imag.eq(0.0), 1.0, result)


def sigmoid(k: Function, z: Complex) -> Complex:
    """1 / (1 + exp(-z))."""
    return 1.0 / shifted(exp(k, -z), 1.0)


# ---------------------------------------------------------------------- hyperbolic and circular
def cosh(k: Function, z: Complex) -> Complex:
    """Hyperbolic cosine."""
    x, y = z.real, z.imag
    endless = ~is_finite(k, y) & k.math("fabs", x).eq(INFINITY)
    real = k.select(endless, INFINITY, vmath.cosh(k, x) * vmath.cos(k, y))
    flat = y.eq(0.0) | (x.eq(0.0) & ~is_finite(k, y))
    zero = vmath.copysign(
        k, k.const(x.type, 0.0), vmath.copysign(k, k.const(x.type, 1.0), x) * vmath.copysign(k, k.const(x.type, 1.0), y)
    )
    return Complex(real, k.select(flat, zero, vmath.sinh(k, x) * vmath.sin(k, y)))


def sinh(k: Function, z: Complex) -> Complex:
    """Hyperbolic sine."""
    x, y = z.real, z.imag
    kept = ~is_finite(k, y) & (x.eq(0.0) | k.math("fabs", x).eq(INFINITY))
    real = k.select(kept, x, vmath.sinh(k, x) * vmath.cos(k, y))
    return Complex(real, k.select(y.eq(0.0), y, vmath.cosh(k, x) * vmath.sin(k, y)))


@in_double
def tanh(k: Function, z: Complex) -> Complex:
    """Hyperbolic tangent; far out by its limit."""
    x, y = z.real, z.imag
    far = k.math("fabs", x) > 20.0
    t, s = vmath.tan(k, y), vmath.sinh(k, k.select(far, 0.0, x))
    beta = t * t + 1.0
    below = k.fma(beta * s, s, 1.0)
    real = beta * k.math("sqrt", k.fma(s, s, 1.0)) * s / below
    decay = vmath.exp(k, k.math("fabs", x) * -2.0)
    limit = vmath.sin(k, y) * vmath.cos(k, y) * 4.0 * decay
    endless = ~is_finite(k, y)
    end = k.math("fabs", x).eq(INFINITY)
    limit = k.select(end & endless, vmath.copysign(k, k.const(x.type, 0.0), y), limit)
    imag = k.select(y.eq(0.0), y, k.select(far, limit, t / below))
    real = k.select(far & ~(endless & ~end), vmath.copysign(k, k.const(x.type, 1.0), x), k.select(x.eq(0.0), x, real))
    return Complex(real, imag)


def cos(k: Function, z: Complex) -> Complex:
    """Cosine."""
    return cosh(k, times_i(z))


def sin(k: Function, z: Complex) -> Complex:
    """Sine."""
    return over_i(sinh(k, times_i(z)))


def tan(k: Function, z: Complex) -> Complex:
    """Tangent."""
    return over_i(tanh(k, times_i(z)))


# ---------------------------------------------------------------------- inverses
@in_double
def asin(k: Function, z: Complex) -> Complex:
    """Inverse sine."""
    left, right = sqrt(k, shifted(-z, 1.0)), sqrt(k, shifted(z, 1.0))
    near = Complex(vmath.atan2(k, z.real, (left * right).real), vmath.asinh(k, (left.conj() * right).imag))
    far = Complex(vmath.atan2(k, z.real, k.math("fabs", z.imag)), vmath.copysign(k, k.const(z.type, INFINITY), z.imag))
    near = Complex(k.select(z.real.eq(0.0), z.real, near.real), near.imag)
    return choose(k, is_infinite(k, z), far, near)


@in_double
def acos(k: Function, z: Complex) -> Complex:
    """Inverse cosine."""
    left, right = sqrt(k, shifted(-z, 1.0)), sqrt(k, shifted(z, 1.0))
    near = Complex(vmath.atan2(k, left.real, right.real) * 2.0, vmath.asinh(k, (right.conj() * left).imag))
    far = Complex(vmath.atan2(k, k.math("fabs", z.imag), z.real), vmath.copysign(k, k.const(z.type, INFINITY), -z.imag))
    near = Complex(k.select(z.real.eq(0.0), k.const(z.type, HALF_PI), near.real), near.imag)
    return choose(k, is_infinite(k, z), far, near)


@in_double
def acosh(k: Function, z: Complex) -> Complex:
    """Inverse hyperbolic cosine."""
    left, right = sqrt(k, shifted(z, -1.0)), sqrt(k, shifted(z, 1.0))
    near = Complex(vmath.asinh(k, (left.conj() * right).real), vmath.atan2(k, left.imag, right.real) * 2.0)
    return choose(k, is_infinite(k, z), Complex(k.const(z.type, INFINITY), vmath.atan2(k, z.imag, z.real)), near)


def asinh(k: Function, z: Complex) -> Complex:
    """Inverse hyperbolic sine."""
    return over_i(asin(k, times_i(z)))


@in_double
def atanh(k: Function, z: Complex) -> Complex:
    """Inverse hyperbolic tangent."""
    x, y = k.math("fabs", z.real), z.imag
    far = (x > 2.0**500) | (k.math("fabs", y) > 2.0**500)
    gap = k.const(x.type, 1.0) - x
    square = y * y
    real = vmath.log1p(k, x * 4.0 / k.fma(gap, gap, square)) * 0.25
    pole = gap.eq(0.0) & (k.math("fabs", y) < 2.0**-500)  # y squared is 0 there
    real = k.select(pole, vmath.log(k, 2.0 / k.math("fabs", y)) * 0.5, real)
    imag = vmath.atan2(k, y * 2.0, k.fma(gap, x + 1.0, -square)) * 0.5
    imag = k.select(far & ~y.is_nan(), vmath.copysign(k, k.const(x.type, HALF_PI), y), imag)
    small = k.select(is_infinite(k, z), 0.0, (1.0 / Complex(x, y)).real)
    real = k.select(x.eq(0.0), x, k.select(far, small, real))
    return Complex(vmath.copysign(k, real, z.real), imag)


def atan(k: Function, z: Complex) -> Complex:
    """Inverse tangent."""
    return over_i(atanh(k, times_i(z)))
