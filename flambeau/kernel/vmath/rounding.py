"""Rounding, remainders and the parts of a float: floor ceil trunc round fmod remainder frexp ldexp nextafter.

    r = fmod(k, x, y)     # exact for any ratio

All exact. May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Number, Value
from flambeau.kernel.types import f32, f64, i32
from flambeau.kernel.vmath.arithmetic import (
    EXPONENT_BIAS,
    INFINITY,
    MANTISSA_BITS,
    NAN,
    SMALLEST_NORMAL,
    absolute,
    bits,
    copysign,
    from_bits,
    integer_type,
    power_of_two,
    split_power,
)


def floor(k: Function, x: Value) -> Value:
    """Largest integer that is at most x."""
    return k.math("floor", x)


def ceil(k: Function, x: Value) -> Value:
    """Smallest integer that is at least x."""
    return k.math("ceil", x)


def trunc(k: Function, x: Value) -> Value:
    """x without its fraction."""
    return k.math("trunc", x)


def round(k: Function, x: Value) -> Value:
    """Nearest integer, halves to even."""
    return k.math("roundeven", x)


def round_decimals(k: Function, x: Value, decimals: int) -> Value:
    """x rounded to `decimals` decimal places (of tens, hundreds … if negative), as the quotient or product with 10^|decimals|."""
    ten = k.const(x.type, 10.0 ** abs(decimals))
    if decimals == 0:
        return round(k, x)
    return round(k, x * ten) / ten if decimals > 0 else round(k, x / ten) * ten


# ---------------------------------------------------------------------- remainders
def fmod(k: Function, x: Value, y: Value | Number) -> Value:
    """x - n y with n = x / y truncated, exact; the sign of x. NaN for infinite x or zero y."""
    x, y = k.unify(x, y)
    if x.type.element is f32:
        return fmod(k, x.to(f64), y.to(f64)).to(f32)
    ax, ay = absolute(k, x), absolute(k, y)
    valid = (ax < INFINITY) & (ay > 0.0)
    rest = k.var(x.type, k.select(valid, ax, 0.0))
    divisor = k.select(valid, ay, 1.0)
    exponent = bits(divisor).lshr(52)

    def unfinished() -> Value:
        return k.any(rest.get() >= divisor)

    # Each round takes n 2^e y off, n below 2^53: products and differences are exact, and 50 bits of the ratio go.
    with k.loop_while(unfinished):
        a = rest.get()
        ahead = bits(a).lshr(52) - exponent - 50
        ahead = k.select(ahead > 0, ahead, k.const(ahead.type, 0))
        s, t = split_power(k, ahead + 2 * EXPONENT_BIAS["double"], x)
        step = (divisor * s) * t
        r = k.fma(-k.math("trunc", a / step), step, a)
        r = k.select(r < 0.0, r + step, r)
        rest.set(k.select(a >= divisor, r, a))
    return copysign(k, k.select(valid, rest.get(), NAN), x)


def remainder(k: Function, x: Value, y: Value | Number) -> Value:
    """x - n y with n = x / y rounded down; the sign of y (Python's %)."""
    x, y = k.unify(x, y)
    if x.type.element is f32:
        return remainder(k, x.to(f64), y.to(f64)).to(f32)
    r = fmod(k, x, y)
    wrong = r.ne(0.0) & ((bits(r) ^ bits(y)) < 0)
    return k.select(wrong, r + y, r)


def floor_divide(k: Function, x: Value, y: Value | Number) -> Value:
    """The integer n of `remainder`; x / y where y is 0."""
    x, y = k.unify(x, y)
    r = fmod(k, x, y)
    n = (x - r) / y
    wrong = r.ne(0.0) & ((bits(r) ^ bits(y)) < 0)
    n = k.select(wrong, n - 1.0, n)
    whole = k.math("floor", n)
    whole = k.select(n - whole > 0.5, whole + 1.0, whole)
    quotient = x / y
    whole = k.select(n.eq(0.0), copysign(k, k.const(x.type, 0.0), quotient), whole)
    return k.select(y.eq(0.0), quotient, whole)


# ---------------------------------------------------------------------- parts of floats
def frexp(k: Function, x: Value) -> tuple[Value, Value]:
    """(m, e) with x = m 2^e, 1/2 <= |m| < 1, e an i32; zeros, infinities and NaN are (x, 0)."""
    name = x.type.element.name
    shift, bias = MANTISSA_BITS[name], EXPONENT_BIAS[name]
    ordinary = (absolute(k, x) > 0.0) & (absolute(k, x) < INFINITY)
    tiny = absolute(k, x) < SMALLEST_NORMAL[name]
    pattern = bits(k.select(tiny, x * 2.0**shift, x))
    field = pattern.lshr(shift) & (2 * bias + 1)
    mantissa = from_bits(k, (pattern & ~((2 * bias + 1) << shift)) | ((bias - 1) << shift))
    exponent = field.to(i32) - k.select(
        tiny, k.const(i32.like(x.type), bias - 1 + shift), k.const(i32.like(x.type), bias - 1)
    )
    return k.select(ordinary, mantissa, x), k.select(ordinary, exponent, k.const(exponent.type, 0))


def ldexp(k: Function, x: Value, n: Value) -> Value:
    """x 2^n for integers n, rounded once even where the result is subnormal."""
    name = x.type.element.name
    bias, shift = EXPONENT_BIAS[name], MANTISSA_BITS[name]
    n = n.to(integer_type(x))
    # A step below the smallest exponent goes only far enough to leave the next a normal number, so that just the last rounds.
    for _ in range(2):
        step = k.select(n < 1 - bias, 2 - bias + shift, k.minimum(n, bias))
        x = x * power_of_two(k, step + bias, x)
        n = n - step
    return x * power_of_two(k, k.minimum(k.maximum(n, 1 - bias), bias) + bias, x)


def nextafter(k: Function, x: Value, y: Value) -> Value:
    """The float beside x in the direction of y."""
    x, y = k.unify(x, y)
    integer = integer_type(x)
    outward = k.select((x < y) ^ (bits(x) < 0), k.const(integer, 1), k.const(integer, -1))
    moved = from_bits(k, bits(x) + outward)
    smallest = copysign(k, k.const(x.type, 2.0**-149 if x.type.size == 4 else 2.0**-1074), y)
    moved = k.select(x.eq(0.0), smallest, moved)
    moved = k.select(x.eq(y), y, moved)
    return k.select(x.is_nan() | y.is_nan(), k.const(x.type, NAN), moved)
