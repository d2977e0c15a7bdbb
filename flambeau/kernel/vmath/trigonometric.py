"""Circular functions: sin cos tan.

    y = sin(k, x)         # x f32 or f64, scalar or vector; right for every finite x

sin and cos reduce to [-pi/2, pi/2], where one odd polynomial serves both and the sign is a bit of the count.
Constants: benchmarks/minimax.py. May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import absolute, at_least, at_most, bits, fast_two_sum, from_bits, pick, polynomial, two_product
from flambeau.kernel.vmath.reduction import reduce

# (sin(r) - r) / r^3 in r^2 on |r| <= pi / 2, error relative to sin(r): 2^-31.0, 2^-61.2
SIN_F32 = (-0.1666666716337204, 0.008333350531756878, -0.00019843090558424592, 2.762672920653131e-06, -2.5494092170674776e-08)
SIN_F64 = (
    -0.16666666666666666, 0.0083333333333332, -0.00019841269841208557, 2.7557319210738988e-06, -2.5052106817992716e-08,
    1.6058936260985105e-10, -7.642887817842321e-13, 2.7199643810271507e-15,
)
# The same on |r| <= pi / 4: 2^-57.8, and (cos(r) - 1 + r^2 / 2) / r^4: 2^-63.9
QUARTER_SIN = (
    -0.16666666666666627, 0.008333333333321079, -0.00019841269828701068, 2.7557313296377186e-06, -2.505069459622673e-08,
    1.5893032853431287e-10,
)
QUARTER_COS = (
    0.04166666666666659, -0.0013888888888872056, 2.4801587288144665e-05, -2.7557313954247333e-07, 2.087566776044924e-09,
    -1.135670931827998e-11,
)


def _sign_bit(x: Value) -> int:
    return 1 << (x.type.size * 8 - 1)


def _half_wave(k: Function, r: Value) -> Value:
    """sin r, |r| <= pi / 2; rounding alone could pass 1."""
    z = r * r
    y = k.fma(r * z, polynomial(k, z, pick(r, SIN_F32, SIN_F64)), r)
    return at_most(k, at_least(k, y, -1.0), 1.0)


def sin(k: Function, x: Value) -> Value:
    """sin x, x in radians."""
    r, _, n = reduce(k, absolute(k, x), halves=1, centre=0, low=False)
    flip = (n << (x.type.size * 8 - 1)) ^ (bits(x) & _sign_bit(x))
    return from_bits(k, bits(_half_wave(k, r)) ^ flip)


def cos(k: Function, x: Value) -> Value:
    """cos x, x in radians: a = (n + 1/2) pi + r, so cos a = -(-1)^n sin r."""
    r, _, n = reduce(k, absolute(k, x), halves=1, centre=1, low=False)
    return from_bits(k, bits(_half_wave(k, r)) ^ ((n + 1) << (x.type.size * 8 - 1)))


def tan(k: Function, x: Value) -> Value:
    """tan x, x in radians; f32 in f64 arithmetic."""
    if x.type.element is f32:
        return tan(k, x.to(f64)).to(f32)
    r, low, n = reduce(k, absolute(k, x), halves=2, centre=0, low=True)
    z, z_low = two_product(k, r, r)
    s, s_low = fast_two_sum(r, k.fma(r * z, polynomial(k, z, QUARTER_SIN), low * k.fma(z, -0.5, 1.0)))
    half = z * 0.5
    c = 1.0 - half
    c_low = ((1.0 - c) - half) + k.fma(z * z, polynomial(k, z, QUARTER_COS), k.fma(-r, low, z_low * -0.5))
    c, c_low = fast_two_sum(c, c_low)
    odd = (n & 1).ne(0)
    over, over_low = k.select(odd, -c, s), k.select(odd, -c_low, s_low)
    under, under_low = k.select(odd, s, c), k.select(odd, s_low, c_low)
    t = over / under
    t = t + (k.fma(-t, under, over) + (over_low - t * under_low)) / under
    return from_bits(k, bits(t) ^ (bits(x) & _sign_bit(x)))
