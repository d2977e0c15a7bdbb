"""Exponentials and hyperbolic functions: exp exp2 expm1 sigmoid tanh.

    y = tanh(k, x)        # x f32 or f64, scalar or vector

Method: x = n ln2 + r (Cody & Waite 1980), a minimax polynomial on r, scaling by powers of two made from bits.
Constants: benchmarks/minimax.py. Generic IR that is one instruction a line on AVX2, AVX-512 and NEON, but for AVX-512's scalef
where the module allows it (exp of f32: 0.20 ns against 0.25). May not know: targets.
"""

from __future__ import annotations

import math

from flambeau.kernel import instructions
from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32
from flambeau.kernel.vmath.arithmetic import (
    EXPONENT_BIAS,
    absolute,
    at_least,
    at_most,
    copysign,
    fast_two_sum,
    pick,
    polynomial,
    polynomial_halves,
    power_of_two,
    round_to_integer,
    split_power,
)

# (exp(r) - 1 - r) / r^2 on |r| <= ln2 / 2, error relative to exp(r): 2^-28.1, 2^-57.7
EXP_F32 = (0.4999999403953552, 0.16666513681411743, 0.04166822507977486, 0.008369403891265392, 0.001382499816827476)
EXP_F64 = (
    0.5000000000000011,
    0.16666666666666252,
    0.041666666666523515,
    0.008333333333605685,
    0.0013888888945869473,
    0.00019841269250352446,
    2.4801490385519906e-05,
    2.755782697725763e-06,
    2.7631329472513946e-07,
    2.4920672107126963e-08,
)
# (2^r - 1) / r on |r| <= 1/2, error relative to 2^r: 2^-26.2, 2^-57.1
EXP2_F32 = (
    0.6931471824645996,
    0.24022594094276428,
    0.05550365895032883,
    0.009625384584069252,
    0.0013388055376708508,
    0.0001336743589490652,
)
EXP2_F64 = (
    0.6931471805599453,
    0.24022650695910175,
    0.055504108664824574,
    0.009618129107576078,
    0.0013333558145577087,
    0.00015403530480075778,
    1.5252734720337173e-05,
    1.321542388087138e-06,
    1.0177666679336751e-07,
    7.0757187302819255e-09,
    4.5172446138016603e-10,
)
# (expm1(r) - r) / r^2 on |r| <= ln2 / 2, error relative to expm1(r): 2^-26.0, 2^-61.3
EXPM1_F32 = (0.4999999701976776, 0.16666537523269653, 0.0416673943400383, 0.008367176167666912, 0.0013879506150260568)
EXPM1_F64 = (
    0.5,
    0.1666666666666668,
    0.04166666666666672,
    0.008333333333318938,
    0.0013888888888842466,
    0.00019841269893321336,
    2.4801587426923624e-05,
    2.755723678611764e-06,
    2.755717895349257e-07,
    2.511164540878593e-08,
    2.094443848185289e-09,
)
LN2_F32 = (float.fromhex("0x1.62e400p-1"), float.fromhex("0x1.7f7d1cf7p-20"))  # 15 bits + the rest
LN2_F64 = (float.fromhex("0x1.62e42fefa3800p-1"), float.fromhex("0x1.ef35793c76730p-45"))  # 42 bits + the rest
# At the ends 2^n is exactly 0 or infinity. The lower end lies far below the smallest subnormal on purpose: a masked
# softmax is full of exp(-inf), and a product that underflows costs a microcode assist (measured 4 ns an element).
EXP_RANGE = ((-176.0625, 89.5), (-1418.1875, 710.5))
EXP2_RANGE = ((-254.0, 129.0), (-2046.0, 1025.0))


def scaled_exp(k: Function, x: Value, low: Value | None = None) -> tuple[Value, Value, Value]:
    """(p, s, t) with exp(x + low) = p s t, p in [0.7, 1.42]."""
    p, rest, s, t = scaled_exp_words(k, x, low)
    return (p if rest is None else p + rest), s, t


def scaled_exp_words(k: Function, x: Value, low: Value | None) -> tuple[Value, Value | None, Value, Value]:
    """(p, rest, s, t) with exp(x + low) = (p + rest) s t; without `low`, p is rounded and `rest` None."""
    n, biased, first, r = _reduce(k, x)
    s, t = split_power(k, biased, x)
    q = polynomial(k, r, pick(x, EXP_F32, EXP_F64))
    y = k.fma(r, k.fma(r, q, 1.0), 1.0)
    if low is None:
        return y, None, s, t
    low = low + k.fma(n, -pick(x, LN2_F32, LN2_F64)[1], first - r)
    p, rest = fast_two_sum(k.const(x.type, 1.0), r)
    return p, rest + k.fma(r * r, q, low * y), s, t


def _reduce(k: Function, x: Value) -> tuple[Value, Value, Value, Value]:
    """(n, n + 2 bias in the low bits, x - n c1, r): x bounded = n ln2 + r, ln2 = c1 + c2."""
    bottom, top = pick(x, *EXP_RANGE)
    return _reduce_bounded(k, at_most(k, at_least(k, x, bottom), top))


def _reduce_bounded(k: Function, x: Value) -> tuple[Value, Value, Value, Value]:
    c1, c2 = pick(x, LN2_F32, LN2_F64)
    n, biased = round_to_integer(k, x, 1.0 / math.log(2.0), 2 * EXPONENT_BIAS[x.type.element.name])
    first = k.fma(n, -c1, x)
    return n, biased, first, k.fma(n, -c2, first)


def _scales_natively(k: Function, x: Value) -> bool:
    """Whether `_scaled` takes such a value: vectors of registers, or several at once."""
    least = min(f.result.lanes for f in pick(x, instructions.vscalefps, instructions.vscalefpd).forms)
    return k.module.native_scalef and x.type.lanes > 0 and x.type.lanes % least == 0


def _scaled(k: Function, p: Value, n: Value, vanishes: Value) -> Value:
    """p 2^n; 0 where `vanishes`. Lanes that are masked out cost no assist when they underflow, whatever p and n are there."""
    scalef = pick(p, instructions.vscalefps, instructions.vscalefpd)
    if any(f.result.text == p.type.text for f in scalef.forms):
        return k.select(~vanishes, scalef(k, p, n), 0.0)
    half = p.type.lanes // 2
    low, high = (
        _scaled(k, *(k.shuffle(v, None, lanes) for v in (p, n, vanishes)))
        for lanes in (range(half), range(half, 2 * half))
    )
    return k.shuffle(low, high, range(2 * half))


def exp(k: Function, x: Value) -> Value:
    """e**x."""
    native = _scales_natively(k, x)
    n, biased, _, r = _reduce_bounded(k, at_most(k, x, pick(x, *EXP_RANGE)[1])) if native else _reduce(k, x)
    q = polynomial(k, r, pick(x, EXP_F32, EXP_F64))
    y = k.fma(r, k.fma(r, q, 1.0), 1.0)
    if native:
        return _scaled(k, y, n, x < pick(x, -104.0, -746.0))
    s, t = split_power(k, biased, y)
    return (y * s) * t


def exp2(k: Function, x: Value) -> Value:
    """2**x; exact for integers."""
    bottom, top = pick(x, *EXP2_RANGE)
    native = _scales_natively(k, x)
    bounded = at_most(k, x if native else at_least(k, x, bottom), top)
    n, biased = round_to_integer(k, bounded, 1.0, 2 * EXPONENT_BIAS[x.type.element.name])
    p = polynomial(k, bounded - n, (1.0, *pick(x, EXP2_F32, EXP2_F64)))
    if native:
        return _scaled(k, p, n, x < pick(x, -151.0, -1076.0))
    s, t = split_power(k, biased, p)
    return (p * s) * t


def expm1_reduced(k: Function, x: Value, bias: int) -> tuple[Value, Value]:
    """(p, s): p = expm1(r), x = n ln2 + r, |r| <= ln2 / 2, s = 2^n with the exponent's bias replaced by `bias`."""
    c1, c2 = pick(x, LN2_F32, LN2_F64)
    n, biased = round_to_integer(k, x, 1.0 / math.log(2.0), bias)
    first = k.fma(n, -c1, x)
    r = k.fma(n, -c2, first)
    square = r * r
    q = polynomial_halves(k, r, square, pick(x, EXPM1_F32, EXPM1_F64))
    if x.type.element is f32:
        return k.fma(square, q, r), power_of_two(k, biased, x)
    # f64 comes close to 2 ulp beside n = 1 without what r lost
    return k.fma(square, q, k.fma(n, -c2, first - r)) + r, power_of_two(k, biased, x)


def expm1(k: Function, x: Value) -> Value:
    """e**x - 1, right for small x."""
    bounded = at_most(k, at_least(k, x, pick(x, -80.0, -600.0)), pick(x, 89.0, 710.0))
    # half of 2^n, so that the last binade does not overflow before its sum is known
    p, half = expm1_reduced(k, bounded, EXPONENT_BIAS[x.type.element.name] - 1)
    y = k.fma(half, p, half - 0.5) * 2.0
    return copysign(k, k.select(absolute(k, x) < 0.25, p, y), x)  # n = 0: halving would lose bits of subnormals


def quotient_with_sum(k: Function, numerator: Value, e: Value, constant: float) -> Value:
    """numerator / (e + constant), e >= 0, as if the sum were not rounded: 1 ulp saved for six instructions."""
    d = e + constant
    inverse = 1.0 / d
    q = numerator * inverse
    remainder = k.fma(-q, e - (d - constant), k.fma(-q, d, numerator))
    return k.fma(remainder, inverse, q)


def sigmoid(k: Function, x: Value) -> Value:
    """1 / (1 + e**-x); subnormal results for very negative x are kept."""
    e = exp(k, -absolute(k, x))
    return quotient_with_sum(k, k.select(x > 0.0, k.const(x.type, 1.0), e), e, 1.0)


def tanh(k: Function, x: Value) -> Value:
    """tanh x = e / (e + 2) with e = expm1(2 |x|)."""
    a = at_most(k, absolute(k, x), pick(x, 10.0, 20.0))
    p, s = expm1_reduced(k, a + a, EXPONENT_BIAS[x.type.element.name])
    e = k.fma(s, p, s - 1.0)
    return copysign(k, quotient_with_sum(k, e, e, 2.0), x)
