"""Circular functions and their inverses: sin cos tan asin acos atan atan2.

    y = sin(k, x)         # x f32 or f64, scalar or vector; right for every finite x

sin and cos reduce to [-pi/2, pi/2], where one odd polynomial serves both and the sign is a bit of the count.
atan and atan2 reduce to [0, tan(pi/8)] by one division whose remainder is kept; asin and acos to |x| <= 1/2 by a root.
Constants: benchmarks/minimax.py. May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import (
    INFINITY,
    absolute,
    at_least,
    at_most,
    bits,
    copysign,
    fast_two_sum,
    from_bits,
    pick,
    polynomial,
    two_product,
    two_sum,
)
from flambeau.kernel.vmath.reduction import reduce

# (sin(r) - r) / r^3 in r^2 on |r| <= pi / 2, error relative to sin(r): 2^-31.0, 2^-61.2
SIN_F32 = (
    -0.1666666716337204,
    0.008333350531756878,
    -0.00019843090558424592,
    2.762672920653131e-06,
    -2.5494092170674776e-08,
)
SIN_F64 = (
    -0.16666666666666666,
    0.0083333333333332,
    -0.00019841269841208557,
    2.7557319210738988e-06,
    -2.5052106817992716e-08,
    1.6058936260985105e-10,
    -7.642887817842321e-13,
    2.7199643810271507e-15,
)
# The same on |r| <= pi / 4: 2^-57.8, and (cos(r) - 1 + r^2 / 2) / r^4: 2^-63.9
QUARTER_SIN = (
    -0.16666666666666627,
    0.008333333333321079,
    -0.00019841269828701068,
    2.7557313296377186e-06,
    -2.505069459622673e-08,
    1.5893032853431287e-10,
)
QUARTER_COS = (
    0.04166666666666659,
    -0.0013888888888872056,
    2.4801587288144665e-05,
    -2.7557313954247333e-07,
    2.087566776044924e-09,
    -1.135670931827998e-11,
)

# (asin(x) - x) / x^3 in x^2 on |x| <= 1/2: 2^-31.7, 2^-59.7 of x
ASIN_F32 = (
    0.16666659712791443,
    0.07500521093606949,
    0.044513728469610214,
    0.03183441981673241,
    0.014338412322103977,
    0.03765633702278137,
)
ASIN_F64 = (
    0.16666666666666766,
    0.07499999999969324,
    0.04464285717605263,
    0.03038194263759837,
    0.022372216984912645,
    0.017351575891091518,
    0.013981255916197276,
    0.011395331911219378,
    0.010800429293414994,
    0.0036297323619789096,
    0.021895288452645545,
    -0.021266910097745367,
    0.03279751375283801,
)
# (atan(x) - x) / x^3 in x^2 on |x| <= tan(pi / 8): 2^-30.4, 2^-59.4 of x
ATAN_F32 = (-0.33333316445350647, 0.19998528063297272, -0.14244379103183746, 0.10598964244127274, -0.06089220941066742)
ATAN_F64 = (
    -0.333333333333332,
    0.19999999999953627,
    -0.14285714280189712,
    0.11111110782734451,
    -0.09090897728224266,
    0.07692059561236907,
    -0.0666309533448605,
    0.0584781746104191,
    -0.05038946162969473,
    0.03805463342645987,
    -0.017895504560345398,
)
HALF_PI_F32 = (float.fromhex("0x1.921fb6p+0"), float.fromhex("-0x1.777a5cp-25"))
HALF_PI_F64 = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"))


def _sign_bit(x: Value) -> int:
    return 1 << (x.type.size * 8 - 1)


def half_wave(k: Function, r: Value) -> Value:
    """sin r, |r| <= pi / 2; rounding alone could pass 1."""
    z = r * r
    y = k.fma(r * z, polynomial(k, z, pick(r, SIN_F32, SIN_F64)), r)
    return at_most(k, at_least(k, y, -1.0), 1.0)


def sin(k: Function, x: Value) -> Value:
    """sin x, x in radians."""
    r, _, n = reduce(k, absolute(k, x), halves=1, centre=0, low=False)
    flip = (n << (x.type.size * 8 - 1)) ^ (bits(x) & _sign_bit(x))
    return from_bits(k, bits(half_wave(k, r)) ^ flip)


def cos(k: Function, x: Value) -> Value:
    """cos x, x in radians: a = (n + 1/2) pi + r, so cos a = -(-1)^n sin r."""
    r, _, n = reduce(k, absolute(k, x), halves=1, centre=1, low=False)
    return from_bits(k, bits(half_wave(k, r)) ^ ((n + 1) << (x.type.size * 8 - 1)))


def tan(k: Function, x: Value) -> Value:
    """tan x, x in radians; f32 in f64 arithmetic."""
    if x.type.element is f32:
        return tan(k, x.to(f64)).to(f32)
    (s, s_low), (c, c_low), n = _quarter_waves(k, absolute(k, x))
    odd = (n & 1).ne(0)
    over, over_low = k.select(odd, -c, s), k.select(odd, -c_low, s_low)
    under, under_low = k.select(odd, s, c), k.select(odd, s_low, c_low)
    t = over / under
    t = t + (k.fma(-t, under, over) + (over_low - t * under_low)) / under
    return from_bits(k, bits(t) ^ (bits(x) & _sign_bit(x)))


def sine_and_cosine(k: Function, a: Value) -> tuple[Value, Value]:
    """(sin a, cos a) for f64 a >= 0, to 0.6 ulp."""
    (s, s_low), (c, c_low), n = _quarter_waves(k, a)
    s, c = s + s_low, c + c_low
    odd = (n & 1).ne(0)
    sine, cosine = k.select(odd, c, s), k.select(odd, s, c)
    sign = _sign_bit(a)
    return (
        from_bits(k, bits(sine) ^ ((n << (a.type.size * 8 - 2)) & sign)),
        from_bits(k, bits(cosine) ^ (((n + 1) << (a.type.size * 8 - 2)) & sign)),
    )


Words = tuple[Value, Value]


def _quarter_waves(k: Function, a: Value) -> tuple[Words, Words, Value]:
    """(sin r, cos r, n) in double words, a = n pi / 2 + r, |r| <= pi / 4; f64."""
    r, low, n = reduce(k, a, halves=2, centre=0, low=True)
    z, z_low = two_product(k, r, r)
    sine = fast_two_sum(r, k.fma(r * z, polynomial(k, z, QUARTER_SIN), low * k.fma(z, -0.5, 1.0)))
    half = z * 0.5
    c = 1.0 - half
    c_low = ((1.0 - c) - half) + k.fma(z * z, polynomial(k, z, QUARTER_COS), k.fma(-r, low, z_low * -0.5))
    return sine, fast_two_sum(c, c_low), n


# ---------------------------------------------------------------------- inverses
def _asin_near(k: Function, x: Value) -> Value:
    """asin(x) - x for |x| <= 1/2."""
    z = x * x
    return x * z * polynomial(k, z, pick(x, ASIN_F32, ASIN_F64))


def _asin_far(k: Function, a: Value) -> tuple[Value, Value]:
    """(h, l): asin(sqrt((1 - a) / 2)) = h + l, which is acos(a) / 2; for 1/2 <= a <= 1."""
    z = k.fma(a, -0.5, 0.5)
    s = k.math("sqrt", z)
    low = k.select(z > 0.0, k.fma(-s, s, z) * 0.5 / s, 0.0)
    return s, k.fma(s * z, polynomial(k, z, pick(a, ASIN_F32, ASIN_F64)), low)


def asin(k: Function, x: Value) -> Value:
    """Arc sine in [-pi/2, pi/2]; NaN where |x| > 1."""
    a = absolute(k, x)
    high, low = _asin_far(k, a)
    quarter, quarter_low = pick(x, HALF_PI_F32, HALF_PI_F64)
    total, rest = fast_two_sum(k.const(x.type, quarter), high * -2.0)
    far = total + (rest + k.fma(low, -2.0, quarter_low))
    return copysign(k, k.select(a < 0.5, a + _asin_near(k, a), far), x)


def acos(k: Function, x: Value) -> Value:
    """Arc cosine in [0, pi]; NaN where |x| > 1."""
    quarter, quarter_low = pick(x, HALF_PI_F32, HALF_PI_F64)
    total, rest = fast_two_sum(k.const(x.type, quarter), -x)
    near = total + (rest + (quarter_low - _asin_near(k, x)))
    a = absolute(k, x)
    high, low = _asin_far(k, a)
    high, low = high * 2.0, low * 2.0
    total, rest = fast_two_sum(k.const(x.type, 2.0 * quarter), -high)
    negative = total + (rest + (2.0 * quarter_low - low))
    return k.select(a < 0.5, near, k.select(x < 0.0, negative, high + low))


def _angle(k: Function, over: Value, under: Value) -> tuple[Value, Value]:
    """(h, l): atan(over / under) = h + l for over, under >= 0, not both 0, in a middle range."""
    small = over <= under * 0.41421356237309503  # tan(pi / 8)
    large = over * 0.41421356237309503 >= under
    difference, difference_low = two_sum(over, -under)
    total, total_low = two_sum(over, under)
    n = k.select(small, over, k.select(large, -under, difference))
    d = k.select(small, under, k.select(large, over, total))
    outer = small | large
    n_low = k.select(outer, 0.0, difference_low)
    d_low = k.select(outer, 0.0, total_low)
    t = n / d
    t_low = (k.fma(-t, d, n) + k.fma(-t, d_low, n_low)) / d
    z = t * t
    bend = k.fma(t * z, polynomial(k, z, pick(over, ATAN_F32, ATAN_F64)), t_low)
    half, half_low = pick(over, HALF_PI_F32, HALF_PI_F64)
    base = k.select(small, 0.0, k.select(large, k.const(t.type, half), k.const(t.type, half / 2)))
    base_low = k.select(small, 0.0, k.select(large, k.const(t.type, half_low), k.const(t.type, half_low / 2)))
    high, low = fast_two_sum(base, t)
    return high, low + (bend + base_low)


def atan(k: Function, x: Value) -> Value:
    """Arc tangent in [-pi/2, pi/2]."""
    a = at_most(k, absolute(k, x), 2.0 ** pick(x, 60, 120))
    high, low = _angle(k, a, k.const(x.type, 1.0))
    return copysign(k, high + low, x)


def atan2(k: Function, y: Value, x: Value) -> Value:
    """Angle of the point (x, y) in [-pi, pi], C's cases for zeros and infinities."""
    y, x = k.unify(y, x)
    over, under = absolute(k, y), absolute(k, x)
    over_infinite, under_infinite = over.eq(INFINITY), under.eq(INFINITY)
    # an infinity stands for 1 beside 0; times 0 keeps a NaN
    over, under = (
        k.select(over_infinite, 1.0, k.select(under_infinite, over * 0.0, over)),
        k.select(under_infinite, 1.0, k.select(over_infinite, under * 0.0, under)),
    )
    size = k.select(over > under, over, under)
    step = pick(x, 2.0**60, 2.0**500)
    scale = k.select(size > step, 1.0 / step, k.select(size < 1.0 / step, k.const(x.type, step), k.const(x.type, 1.0)))
    over, under = over * scale, under * scale
    under = k.select(size.eq(0.0), 1.0, under)
    high, low = _angle(k, over, under)
    half, half_low = pick(x, HALF_PI_F32, HALF_PI_F64)
    total, rest = fast_two_sum(k.const(x.type, 2.0 * half), -high)
    left = total + (rest + (2.0 * half_low - low))
    return copysign(k, k.select(bits(x) < 0, left, high + low), y)
