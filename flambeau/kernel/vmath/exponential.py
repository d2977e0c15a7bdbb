"""Exponentials and hyperbolic functions: exp exp2 expm1 sigmoid tanh.

    y = tanh(k, x)        # x f32 or f64, scalar or vector

Method: x = n ln2 + r (Cody & Waite 1980), a minimax polynomial on r, scaling by powers of two made from bits.
Constants: benchmarks/minimax.py. Generic IR that is one instruction a line on AVX2, AVX-512 and NEON, but for AVX-512's scalef
where the module allows it (exp of f32: 0.20 ns against 0.25). tanh and sigmoid of f32 divide; where registers hold tables, tanh is 16
polynomials (`pieces`) and sigmoid takes an estimate of the reciprocal and one step of Newton's method. May not know: targets.
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
from flambeau.kernel.vmath.pieces import by_registers, in_pieces, suits_pieces

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
# 2^r to 2^-18.5
EXP2_SHORT = (0.9999992847442627, 0.6931217908859253, 0.240247443318367, 0.05591786280274391, 0.009570102207362652)
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
# tanh by pieces of this width: 2^-24.9 of it. 1 from the middle of the last on, which is 2^-24.7 too much there at most
TANH_WIDTH = 19 / 32
TANH_PIECES = (
    (
        0.0,
        0.5325872898101807,
        0.8298019170761108,
        0.9448294639587402,
        0.9828450083732605,
        0.9947366714477539,
        0.9983918070793152,
        0.9995092749595642,
        0.999850332736969,
        0.999954342842102,
        0.9999860525131226,
        0.999995768070221,
        0.9999986886978149,
        0.9999995827674866,
        0.9999998807907104,
        1.0,
    ),
    (
        1.0,
        0.716350793838501,
        0.3114287853240967,
        0.10729733854532242,
        0.03401564806699753,
        0.01049899309873581,
        0.0032137574162334204,
        0.0009812370408326387,
        0.00029936249484308064,
        9.130990656558424e-05,
        2.7848831450683065e-05,
        8.49349544296274e-06,
        2.590377562228241e-06,
        6.71079703806754e-07,
        1.230818327258021e-07,
        2.301563654327765e-06,
    ),
    (
        -1.7806505070439016e-07,
        -0.38151952624320984,
        -0.2584245800971985,
        -0.10137754678726196,
        -0.03343209624290466,
        -0.01044373493641615,
        -0.0032085906714200974,
        -0.0009807560127228498,
        -0.00029931784956716,
        -9.130578837357461e-05,
        -2.7848458557855338e-05,
        -8.49346452014288e-06,
        -2.590375515865162e-06,
        -7.900213176981197e-07,
        -2.409430237548804e-07,
        1.9942233848269098e-05,
    ),
    (
        -0.3333240747451782,
        -0.0355943888425827,
        0.11063261330127716,
        0.060018718242645264,
        0.021520009264349937,
        0.006889099255204201,
        0.0021321773529052734,
        0.0006531955441460013,
        0.00019948548288084567,
        6.086496068746783e-05,
        1.8565120626590215e-05,
        5.662261173711158e-06,
        1.7269125009988784e-06,
        1.1324119441269431e-05,
        1.0859988833544776e-05,
        4.500666545936838e-05,
    ),
    (
        -0.0001793124247342348,
        0.1461409628391266,
        -0.005640220362693071,
        -0.02292286418378353,
        -0.010007668286561966,
        -0.0033714789897203445,
        -0.0010591387981548905,
        -0.0003259276272729039,
        -9.967384539777413e-05,
        -3.0424089345615357e-05,
        -9.281176062359009e-06,
        -2.830817493304494e-06,
        -8.633709285277291e-07,
        -2.633153428632795e-07,
        -8.030679055082146e-08,
        0.0,
    ),
    (
        0.13495339453220367,
        -0.04991515725851059,
        -0.025301948189735413,
        0.004032779019325972,
        0.0034186055418103933,
        0.0012908229837194085,
        0.0004181833937764168,
        0.0001298596616834402,
        3.982203270425089e-05,
        1.216525834024651e-05,
        3.7120764773135306e-06,
        1.1322944146741065e-06,
        3.453465922120813e-07,
        -0.00024491993826813996,
        -0.0002427674480713904,
        0.0,
    ),
    (
        -0.007158608175814152,
        -0.030796758830547333,
        0.016737651079893112,
        0.0017216478008776903,
        -0.000751183950342238,
        -0.0003943531773984432,
        -0.00013720248534809798,
        -4.346583955339156e-05,
        -1.3408492122835014e-05,
        -4.1035505091713276e-06,
        -1.252833271792042e-06,
        -3.822154610588768e-07,
        -1.1658055854013583e-07,
        -3.5554453603481306e-08,
        -1.0843756115264114e-08,
        0.0,
    ),
    (
        -0.04063987731933594,
        0.02868686243891716,
        -0.0034439219161868095,
        -0.0017761661438271403,
        8.563629307900555e-06,
        9.037880226969719e-05,
        3.702273897943087e-05,
        1.2210438399051782e-05,
        3.8106054489617236e-06,
        1.1702595656970516e-06,
        3.5766248629443e-07,
        1.0915100290276314e-07,
        3.329569508991881e-08,
        0.0015886473702266812,
        0.0015742098912596703,
        0.0,
    ),
)
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


def exp2_normal(k: Function, x: Value, short: bool = False) -> Value:
    """2**x for x up to 127, 0 where that would be subnormal: numbers so small slow down what is computed from them many times.

    `short`: of f32 to 18 bits, where the result is rounded to bfloat16.
    """
    least = pick(x, -126.0, -1022.0)
    if not _scales_natively(k, x):
        return k.select(x < least, 0.0, exp2(k, x), x.type)
    n, _ = round_to_integer(k, x, 1.0)
    coefficients = EXP2_SHORT if short else (1.0, *pick(x, EXP2_F32, EXP2_F64))
    return _scaled(k, polynomial(k, x - n, coefficients), n, x < least)


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
    if suits_pieces(k, x):
        return by_registers(k, x, _sigmoid_of_register)
    e = exp(k, -absolute(k, x))
    return quotient_with_sum(k, k.select(x > 0.0, k.const(x.type, 1.0), e), e, 1.0)


def _sigmoid_of_register(k: Function, x: Value) -> Value:
    """The same with an estimate of 1 / (1 + e) and one step of Newton's method: a division takes as long as all the rest."""
    a = -absolute(k, x)
    n, _, _, r = _reduce_bounded(k, a)
    y = k.fma(r, k.fma(r, polynomial(k, r, EXP_F32), 1.0), 1.0)
    e = _scaled(k, y, n, a < -104.0)
    top = k.select(x > 0.0, k.const(x.type, 1.0), e)
    inverse = instructions.vrcp14ps(k, e + 1.0)
    q = top * inverse
    return k.fma(k.fma(-q, e, top - q), inverse, q)  # top - q is exact: top lies between q and 2 q


def tanh(k: Function, x: Value) -> Value:
    """tanh x = e / (e + 2) with e = expm1(2 |x|)."""
    if suits_pieces(k, x):
        return by_registers(k, x, _tanh_by_pieces)
    a = at_most(k, absolute(k, x), pick(x, 10.0, 20.0))
    p, s = expm1_reduced(k, a + a, EXPONENT_BIAS[x.type.element.name])
    e = k.fma(s, p, s - 1.0)
    return copysign(k, quotient_with_sum(k, e, e, 2.0), x)


def _tanh_by_pieces(k: Function, x: Value) -> Value:
    y, _, _ = in_pieces(k, at_most(k, absolute(k, x), 15 * TANH_WIDTH), TANH_WIDTH, TANH_PIECES)
    return copysign(k, y, x)
