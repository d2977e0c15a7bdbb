"""Roots and lengths: sqrt rsqrt cbrt hypot.

    y = cbrt(k, x)        # x f32 or f64, scalar or vector

May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import (
    EXPONENT_BIAS,
    INFINITY,
    absolute,
    copysign,
    polynomial,
    power_of_two,
    round_to_integer,
    two_product,
    two_sum,
)
from flambeau.kernel.vmath.logarithm import reduce

# m^(-1/3) on [0.3535, 2.829]: 2^-7.2
INVERSE_CBRT = (1.8918129205703735, -1.7633252143859863, 1.2274844646453857, -0.41548770666122437, 0.05295611172914505)


def sqrt(k: Function, x: Value) -> Value:
    """Square root, correctly rounded."""
    return k.math("sqrt", x)


def rsqrt(k: Function, x: Value) -> Value:
    """1 / sqrt(x)."""
    return 1.0 / k.math("sqrt", x)


def cbrt(k: Function, x: Value) -> Value:
    """Cube root, of negative x too; f32 in f64 arithmetic. Iterates on m^(-1/3): no division."""
    if x.type.element is f32:
        return cbrt(k, x.to(f64)).to(f32)
    a = absolute(k, x)
    n, f = reduce(k, a)
    third, biased = round_to_integer(k, n, 1.0 / 3.0, EXPONENT_BIAS["double"])
    rest = k.fma(third, -3.0, n)  # -1, 0 or 1
    m = f + 1.0
    m = m * k.select(
        rest > 0.5, k.const(m.type, 2.0), k.select(rest < -0.5, k.const(m.type, 0.5), k.const(m.type, 1.0))
    )
    z = polynomial(k, m, INVERSE_CBRT)
    for series in ((1.0 / 3.0, 2.0 / 9.0, 14.0 / 81.0), (1.0 / 3.0, 2.0 / 9.0)):
        h = k.fma(-m * z, z * z, 1.0)  # z (1 - h)^(-1/3)
        z = k.fma(z * h, polynomial(k, h, series), z)
    y = m * z * z
    square, square_low = two_product(k, y, y)
    error = k.fma(-square_low, y, k.fma(-square, y, m))
    y = k.fma(error, z * z * (1.0 / 3.0), y) * power_of_two(k, biased, x)
    return copysign(k, k.select((a > 0.0) & (a < INFINITY), y, a), x)


def hypot(k: Function, x: Value, y: Value) -> Value:
    """sqrt(x^2 + y^2) without overflow on the way; infinite if either is."""
    x, y = k.unify(x, y)
    if x.type.element is f32:
        a, b = x.to(f64), y.to(f64)
        r = k.math("sqrt", k.fma(a, a, b * b)).to(f32)
    else:
        a, b = absolute(k, x), absolute(k, y)
        size = k.select(a > b, a, b)
        up, down, one = (k.const(x.type, v) for v in (2.0**600, 2.0**-600, 1.0))
        scale = k.select(size > 2.0**500, down, k.select(size < 2.0**-400, up, one))
        back = k.select(size > 2.0**500, up, k.select(size < 2.0**-400, down, one))
        a, b = a * scale, b * scale
        p, p_low = two_product(k, a, a)
        q, q_low = two_product(k, b, b)
        total, low = two_sum(p, q)
        root = k.math("sqrt", total)
        low = k.fma(-root, root, total) + (low + (p_low + q_low))
        r = (root + k.select(root > 0.0, low * 0.5 / root, 0.0)) * back
    infinite = absolute(k, x).eq(INFINITY) | absolute(k, y).eq(INFINITY)
    return k.select(infinite, INFINITY, r)
