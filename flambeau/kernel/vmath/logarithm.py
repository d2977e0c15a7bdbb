"""Logarithms and powers: log log2 log10 log1p logaddexp logaddexp2 pow.

    y = log(k, x)         # x f32 or f64, scalar or vector

x = 2^n (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1]. f32: log(1 + f) is a polynomial in f. f64: with s = f / (2 + f),
log(1 + f) = 2 atanh(s), summed so that f itself enters exactly (Ng, in fdlibm's description of the method).
pow: f32 in f64 arithmetic, f64 with a double-word logarithm (Tang 1991 on the error budget).
Constants: benchmarks/minimax.py. May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import (
    EXPONENT_BIAS,
    INFINITY,
    MANTISSA_BITS,
    NAN,
    SMALLEST_NORMAL,
    absolute,
    at_least,
    at_most,
    bits,
    copysign,
    fast_two_sum,
    from_bits,
    integer_type,
    multiply_words,
    pick,
    polynomial,
    polynomial_halves,
    power_of_two,
    round_to_integer,
    two_product,
)
from flambeau.kernel.vmath.exponential import LN2_F64 as LN2_SPLIT_F64
from flambeau.kernel.vmath.exponential import exp, exp2, scaled_exp

# (log1p(f) - f + f^2 / 2) / f^3, error relative to log1p(f): 2^-29.3
LOG_F32 = (
    0.3333331346511841,
    -0.2500016391277313,
    0.20002220571041107,
    -0.16659513115882874,
    0.1420975625514984,
    -0.1254751980304718,
    0.12105397880077362,
    -0.10926678776741028,
    0.05357843637466431,
)
# (log1p(f) - f) / ln2 / f^2: 2^-29.6; the same over ln10: 2^-30.5
LOG2_F32 = (
    -0.7213475108146667,
    0.48089799284935,
    -0.360675185918808,
    0.28857341408729553,
    -0.24042078852653503,
    0.2050420194864273,
    -0.17962923645973206,
    0.17279790341854095,
    -0.16541142761707306,
    0.09119606763124466,
)
LOG10_F32 = (
    -0.21714724600315094,
    0.14476466178894043,
    -0.1085725799202919,
    0.08687257766723633,
    -0.07243961840867996,
    0.061704520136117935,
    -0.0530121885240078,
    0.051163770258426666,
    -0.05546080321073532,
    0.0359494686126709,
)
# (2 atanh(s) / s - 2) / s^2 in s^2: 2^-58.5 of 2 atanh(s) / s
LOG_F64 = (
    0.6666666666666735,
    0.3999999999940933,
    0.28571428743697136,
    0.22222198427394355,
    0.1818357242650232,
    0.15313831623668564,
    0.14798243069919173,
)
# 2 atanh(s) / s / ln2 in s^2: 2^-44.5; 2^r on |r| <= 1/2: 2^-31.5
POW_LOG2 = (
    2.885390081777849,
    0.9617966941151403,
    0.5770779418417837,
    0.41220930446184334,
    0.3199035785287052,
    0.282930409536684,
)
POW_EXP2 = (
    0.9999999999615916,
    0.6931471820613458,
    0.24022651203537632,
    0.0555040917102474,
    0.009618012011393878,
    0.0013333157081016347,
    0.0001547630566446836,
    1.5657410005552254e-05,
)
# (2 atanh(s) - 2 s - 2/3 s^3) / s^5 in s^2: 2^-73.5 of 2 atanh(s)
POW_LOG_F64 = (
    0.3999999999999998,
    0.2857142857144387,
    0.22222222217778698,
    0.18181818845710437,
    0.1538455829329349,
    0.13336270232469216,
    0.11675655843970399,
    0.1198285047875771,
)
LN2_F32 = (float.fromhex("0x1.62e43p-1"), float.fromhex("-0x1.05c61p-29"))
LN2_F64 = (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56"))
LOG2E_F32 = (float.fromhex("0x1.715476p+0"), float.fromhex("0x1.4ae0cp-26"))
LOG2E_F64 = (float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56"))
LOG10E_F32 = (float.fromhex("0x1.bcb7b2p-2"), float.fromhex("-0x1.5b235ep-27"))
LOG10E_F64 = (float.fromhex("0x1.bcb7b1526e50ep-2"), float.fromhex("0x1.95355baaafad3p-57"))
LOG10_2_F32 = (float.fromhex("0x1.344136p-2"), float.fromhex("-0x1.ec10cp-27"))
LOG10_2_F64 = (float.fromhex("0x1.34413509f79ffp-2"), float.fromhex("-0x1.9dc1da994fd21p-59"))
TWO_THIRDS_LOW = 2.0**-54 * 2 / 3  # 2/3 - fl(2/3)
HALF_ROOT = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}  # bits of sqrt(1/2)


def exponent_and_mantissa(k: Function, x: Value) -> tuple[Value, Value]:
    """(e, m): x = 2^(e - bias) m, m in [sqrt(1/2), sqrt(2)), e a small positive integer; x positive and normal."""
    name = x.type.element.name
    shift = MANTISSA_BITS[name]
    moved = bits(x) + ((EXPONENT_BIAS[name] << shift) - HALF_ROOT[name])
    return moved.lshr(shift), from_bits(k, (moved & ((1 << shift) - 1)) + HALF_ROOT[name])


def reduce(k: Function, x: Value) -> tuple[Value, Value]:
    """(n, f): x = 2^n (1 + f), n a float; subnormal x too."""
    name = x.type.element.name
    shift, bias = float(MANTISSA_BITS[name]), float(EXPONENT_BIAS[name])
    tiny = x < SMALLEST_NORMAL[name]
    e, m = exponent_and_mantissa(k, k.select(tiny, x * 2.0**shift, x))
    total = 2.0**shift + bias
    n = from_bits(k, e | (int(bias + shift) << int(shift))) - k.select(
        tiny, k.const(x.type, total + shift), k.const(x.type, total)
    )
    return n, m - 1.0


def log1p_tail(k: Function, f: Value) -> Value:
    """log(1 + f) - f for f in [sqrt(1/2) - 1, sqrt(2) - 1]."""
    square = f * f
    if f.type.element is f32:
        return square * k.fma(f, polynomial_halves(k, f, square, LOG_F32), -0.5)
    half_square = square * 0.5
    s = f / (f + 2.0)
    z = s * s
    return k.fma(s, k.fma(polynomial(k, z, LOG_F64), z, half_square), -half_square)


def outside(k: Function, x: Value, y: Value) -> Value:
    """y where 0 < x < inf; a logarithm's value elsewhere."""
    y = k.select(x < INFINITY, y, x)
    return k.select(x <= 0.0, k.select(x < 0.0, k.const(x.type, NAN), k.const(x.type, -INFINITY)), y)


def log(k: Function, x: Value) -> Value:
    """Natural logarithm; -inf at 0, NaN below."""
    n, f = reduce(k, x)
    high, low = pick(x, LN2_F32, LN2_F64)
    return outside(k, x, k.fma(n, high, f + k.fma(n, low, log1p_tail(k, f))))


def log2(k: Function, x: Value) -> Value:
    """Logarithm to base 2; exact for powers of two."""
    n, f = reduce(k, x)
    high, low = pick(x, LOG2E_F32, LOG2E_F64)
    tail = f * f * polynomial(k, f, LOG2_F32) if x.type.element is f32 else log1p_tail(k, f) * high
    return outside(k, x, n + k.fma(f, high, k.fma(f, low, tail)))


def log10(k: Function, x: Value) -> Value:
    """Logarithm to base 10."""
    n, f = reduce(k, x)
    high, low = pick(x, LOG10E_F32, LOG10E_F64)
    n_high, n_low = pick(x, LOG10_2_F32, LOG10_2_F64)
    tail = f * f * polynomial(k, f, LOG10_F32) if x.type.element is f32 else log1p_tail(k, f) * high
    return outside(k, x, k.fma(n, n_high, k.fma(f, high, k.fma(n, n_low, k.fma(f, low, tail)))))


def log1p(k: Function, x: Value) -> Value:
    """log(1 + x), right for small x."""
    return copysign(k, log1p_words(k, x, None, None), x)


def log1p_words(k: Function, x: Value, low: Value | None, doubled: Value | None) -> Value:
    """log(1 + x + low), plus ln2 where `doubled`; |low| <= ulp(x).

    The power of two comes from the rounded 1 + x, but f from x itself."""
    name = x.type.element.name
    shift, bias = MANTISSA_BITS[name], EXPONENT_BIAS[name]
    u = x + 1.0
    e, m = exponent_and_mantissa(k, u)
    s = power_of_two(k, 2 * bias - e, x)  # 2^-n
    huge = x > 2.0**60
    f = k.select(huge, m - 1.0, k.fma(x, s, s - 1.0))
    n = from_bits(k, e | ((bias + shift) << shift)) - (2.0**shift + bias)
    if doubled is not None:
        n = k.select(doubled, n + 1.0, n)
    tail = log1p_tail(k, f)
    if low is not None:
        tail = k.fma(
            k.select(huge, 0.0, low * s), k.fma(f, f - 1.0, 1.0), tail
        )  # / (1 + f), near enough for a part of an ulp
    high, rest = pick(x, LN2_F32, LN2_F64)
    return outside(k, u, k.fma(n, high, f + k.fma(n, rest, tail)))


def logaddexp(k: Function, x: Value, y: Value) -> Value:
    """log(e^x + e^y) without overflow on the way."""
    larger, term = _larger_and_difference(k, x, y)
    return larger + log1p(k, exp(k, term))


def logaddexp2(k: Function, x: Value, y: Value) -> Value:
    """log2(2^x + 2^y) without overflow on the way."""
    larger, term = _larger_and_difference(k, x, y)
    return k.fma(log1p(k, exp2(k, term)), LOG2E_F64[0], larger)


def _larger_and_difference(k: Function, x: Value, y: Value) -> tuple[Value, Value]:
    """(max(x, y), -|x - y|), NaN if either is; equal infinities differ by -infinity, so that they are their own sum."""
    x, y = k.unify(x, y)
    larger = k.select(x > y, x, k.select(x.is_nan(), x, y))
    difference = -absolute(k, x - y)
    return larger, k.select(absolute(k, x).eq(INFINITY) & x.eq(y), -INFINITY, difference)


# ---------------------------------------------------------------------- powers
def pow(k: Function, x: Value, y: Value) -> Value:
    """x**y with C's special cases. f32 in f64 arithmetic (0.5 ulp), f64 with a logarithm in double words."""
    x, y = k.unify(x, y)
    a = absolute(k, x)
    size = _power_f32(k, a, y) if x.type.element is f32 else _power_f64(k, a, y)
    size = k.select(a.eq(1.0) & absolute(k, y).eq(INFINITY), 1.0, size)
    whole = k.math("trunc", y).eq(y)
    half = y * 0.5
    odd = whole & k.math("trunc", half).ne(half)
    integer = integer_type(x)
    sign = k.select(odd, bits(x) & -(1 << (x.type.size * 8 - 1)), k.const(integer, 0))
    size = from_bits(k, bits(size) | sign)
    size = k.select((x < 0.0) & (x > -INFINITY) & ~whole, k.const(x.type, NAN), size)
    return k.select(x.eq(1.0) | y.eq(0.0), 1.0, size)


def _power_f32(k: Function, a: Value, y: Value) -> Value:
    x, y = a.to(f64), y.to(f64)
    e, m = exponent_and_mantissa(k, x)
    n = from_bits(k, e | (1075 << 52)) - (2.0**52 + 1023)
    s = (m - 1.0) / (m + 1.0)
    logarithm = k.fma(s, polynomial(k, s * s, POW_LOG2), n)
    logarithm = k.select(x < INFINITY, logarithm, x)  # infinity and NaN
    logarithm = k.select(x.eq(0.0), -INFINITY, logarithm)
    power = at_most(k, at_least(k, y * logarithm, -300.0), 300.0)
    n, biased = round_to_integer(k, power, 1.0, 1023)
    return (polynomial(k, power - n, POW_EXP2) * power_of_two(k, biased, x)).to(f32)


def _power_f64(k: Function, a: Value, y: Value) -> Value:
    n, f = reduce(k, a)
    # s = f / (2 + f) in double words; f is exact, 2 + f = high + low
    high = f + 2.0
    low = f - (high - 2.0)
    inverse = 1.0 / high
    s = f * inverse
    s_low = k.fma(-s, low, k.fma(-s, high, f)) * inverse
    z, z_low = two_product(k, s, s)
    z_low = k.fma(s + s, s_low, z_low)
    # 2 atanh(s) = 2 s + s z (2/3 + z P(z))
    p = polynomial(k, z, POW_LOG_F64)
    t = fast_two_sum(k.const(a.type, 2.0 / 3.0), z * p)
    t = (t[0], t[1] + k.fma(z_low, p, k.const(a.type, TWO_THIRDS_LOW)))
    cubic = multiply_words(k, multiply_words(k, (s, s_low), (z, z_low)), t)
    total, rest = fast_two_sum(n * LN2_SPLIT_F64[0], s + s)  # exact: 42 bits of ln2
    rest = rest + k.fma(n, LN2_SPLIT_F64[1], k.fma(2.0, s_low, cubic[1]))
    total, low = fast_two_sum(total, cubic[0])
    total, low = fast_two_sum(total, low + rest)
    total = k.select(a < INFINITY, total, a)
    total = k.select(a.eq(0.0), -INFINITY, total)
    product = y * total
    tail = k.fma(y, low, k.fma(y, total, -product))
    tail = k.select(absolute(k, product) < 1000.0, tail, 0.0)
    p, s, t = scaled_exp(k, product, tail)
    return (p * s) * t
