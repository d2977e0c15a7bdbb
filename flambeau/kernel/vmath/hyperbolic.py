"""Hyperbolic functions and their inverses: sinh cosh asinh acosh atanh.

    y = asinh(k, x)       # x f32 or f64, scalar or vector

The inverses are logarithms of 1 + w with w in double words; their f32 forms run in f64 arithmetic. tanh is in
`exponential`. Constants: benchmarks/minimax.py. May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import (
    INFINITY,
    NAN,
    absolute,
    copysign,
    divide_words,
    fast_two_sum,
    pick,
    polynomial,
    two_product,
    two_sum,
)
from flambeau.kernel.vmath.exponential import scaled_exp
from flambeau.kernel.vmath.logarithm import log1p_words

# (sinh(x) - x) / x^3 in x^2 on |x| <= 1: 2^-25.2, 2^-61.8 of x
SINH_F32 = (0.166667178273201, 0.008330223150551319, 0.00020376642351038754)
SINH_F64 = (
    0.16666666666666669,
    0.008333333333332915,
    0.00019841269841589242,
    2.755731910848937e-06,
    2.5052130673986125e-08,
    1.605668732505363e-10,
    7.775680951499397e-13,
)
LARGE = 2.0**60  # above, log(x + sqrt(x^2 + 1)) is log(2 x) and 1 does not count


def half_exp(k: Function, x: Value) -> Value:
    """exp(x) / 2, finite wherever sinh x is."""
    p, s, t = scaled_exp(k, x)
    return (p * 0.5 * s) * t


def sinh(k: Function, x: Value) -> Value:
    """(e^x - e^-x) / 2."""
    a = absolute(k, x)
    z = a * a
    near = k.fma(a * z, polynomial(k, z, pick(x, SINH_F32, SINH_F64)), a)
    e = half_exp(k, a)
    return copysign(k, k.select(a < 1.0, near, e - 0.25 / e), x)


def cosh(k: Function, x: Value) -> Value:
    """(e^x + e^-x) / 2."""
    e = half_exp(k, absolute(k, x))
    return e + 0.25 / e


def asinh(k: Function, x: Value) -> Value:
    """log(x + sqrt(x^2 + 1)) = log(1 + (a + a^2 / (1 + sqrt(a^2 + 1)))), a = |x|."""
    if x.type.element is f32:
        return asinh(k, x.to(f64)).to(f32)
    a = absolute(k, x)
    large = a > LARGE
    b = k.select(large, 1.0, a)
    square, square_low = two_product(k, b, b)
    root = k.math("sqrt", square + 1.0)
    q = square / (root + 1.0)
    w, low = two_sum(b, q)
    w = k.select(large, a, w)
    return copysign(k, log1p_words(k, w, k.select(large, 0.0, low), large), x)


def acosh(k: Function, x: Value) -> Value:
    """log(1 + (t + sqrt(t^2 + 2 t))), t = x - 1; NaN below 1."""
    if x.type.element is f32:
        return acosh(k, x.to(f64)).to(f32)
    large = x > LARGE
    t = k.select(large, 1.0, x - 1.0)
    square, square_low = two_product(k, t, t)
    square, low = two_sum(square, t + t)
    low = low + square_low
    root = k.math("sqrt", square)
    root_low = k.select(square > 0.0, (k.fma(-root, root, square) + low) * 0.5 / root, 0.0)
    w, low = two_sum(t, root)
    w = k.select(large, x, w)
    low = k.select(large, 0.0, low + root_low)
    return k.select(x < 1.0, k.const(x.type, NAN), log1p_words(k, w, low, large))


def atanh(k: Function, x: Value) -> Value:
    """log((1 + x) / (1 - x)) / 2 = log(1 + 2 a / (1 - a)) / 2, a = |x|."""
    if x.type.element is f32:
        return atanh(k, x.to(f64)).to(f32)
    a = absolute(k, x)
    under = fast_two_sum(k.const(a.type, 1.0), -a)
    quotient = (a + a) / under[0]
    w, low = divide_words(k, (a + a, k.const(a.type, 0.0)), under)
    finite = quotient < INFINITY
    w, low = k.select(finite, w, quotient), k.select(finite, low, 0.0)
    return copysign(k, log1p_words(k, w, low, None) * 0.5, x)
