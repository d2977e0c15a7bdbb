"""The gamma function's relatives: lgamma digamma polygamma zeta.

    y = lgamma(k, x)      # x f32 or f64, scalar or vector

Stirling's series from 8 on, reached by a product of eight factors; a polynomial around the zeros at 1 and 2;
reflection for negative x. zeta is Hurwitz's, by Euler and Maclaurin (DLMF 25.11.28). Between the negative poles the error
of lgamma and digamma is absolute (1e-15 of the terms), not relative to their zeros there.
f32 in f64 arithmetic. Constants: Chebyshev interpolation in 50 digits. May not know: targets.
"""

from __future__ import annotations

import math

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import Type, f32, f64
from flambeau.kernel.vmath.arithmetic import INFINITY, NAN, absolute, copysign, polynomial
from flambeau.kernel.vmath.logarithm import log, pow
from flambeau.kernel.vmath.trigonometric import half_wave

# lgamma(1 + u) / (u (u - 1)) in (u - 1/2) / 0.7 on -0.2 <= u <= 1.2: 2e-17
LGAMMA_NEAR = (
    0.4831289505409809,
    -0.10217192714001426,
    0.03082658652653495,
    -0.010738811212845928,
    0.004032983381452252,
    -0.001584164364961474,
    0.0006407703166722376,
    -0.0002645281111440045,
    0.00011085231473370709,
    -4.6988335760307833e-05,
    2.009856904483928e-05,
    -8.660516144830721e-06,
    3.755569570040934e-06,
    -1.6367373722524774e-06,
    7.142338915261734e-07,
    -3.138646905956308e-07,
    1.4296630008188557e-07,
    -6.328044023896028e-08,
    2.1819515118123817e-08,
    -9.662086807368935e-09,
    1.0093114376733863e-08,
    -4.532591486092309e-09,
    -1.4287828233180657e-09,
    6.496682761642151e-10,
    9.10465217210718e-10,
    -4.107802797965895e-10,
)
# (lgamma(y) - (y - 1/2) log y + y - log(2 pi) / 2) y in 128 / y^2 - 1 on y >= 8: 5e-17
STIRLING = (
    0.08331168010429436,
    -2.1605346910997007e-05,
    4.760738262224275e-08,
    -2.718191768252192e-10,
    2.8769112170847075e-12,
    -4.8106265025283106e-14,
    1.15185352118627e-15,
)
# (log y - 1 / (2 y) - digamma(y)) y^2 in the same: 2e-16
DIGAMMA = (
    0.08326846941047238,
    -6.462561120254871e-05,
    2.3640599785776808e-07,
    -1.8797186991633922e-09,
    2.5411776143428023e-11,
    -5.155955815110614e-13,
    1.4465855628337422e-14,
)
# B(2 j) / (2 j)!, j = 1 ... 12
EULER_MACLAURIN = (
    0.08333333333333333,
    -0.001388888888888889,
    3.306878306878307e-05,
    -8.267195767195768e-07,
    2.08767569878681e-08,
    -5.284190138687493e-10,
    1.3382536530684679e-11,
    -3.3896802963225827e-13,
    8.586062056277845e-15,
    -2.174868698558062e-16,
    5.5090028283602295e-18,
    -1.3954464685812522e-19,
)

HALF_LOG_2PI = 0.9189385332046728
SHIFT = 8
ZETA_TERMS = 10


def log_gamma_series(k: Function, y: Value) -> Value:
    """lgamma(y) - ((y - 1/2) log y - y + log(2 pi) / 2) for y >= 8."""
    inverse = 1.0 / y
    return polynomial(k, k.fma(inverse * inverse, 128.0, -1.0), STIRLING) * inverse


def log_gamma_near(k: Function, u: Value) -> Value:
    """lgamma(1 + u) for -0.2 <= u <= 1.2, its zeros at 0 and 1 in factors."""
    return u * (u - 1.0) * polynomial(k, (u - 0.5) * (1.0 / 0.7), LGAMMA_NEAR)


def log_gamma_positive(k: Function, a: Value) -> Value:
    """lgamma for a >= 0, f64; relative accuracy beside the zeros 1 and 2 too."""
    # up to 3.2: one step of the recurrence to the polynomial
    below, above, near = a < 0.8, a > 2.2, a <= 3.2
    u = k.select(below, a, k.select(above, a - 2.0, a - 1.0))
    # beyond: eight steps to the series
    small = a < float(SHIFT)
    product = a
    for i in range(1, SHIFT):
        product = product * (a + float(i))
    y = k.select(small, a + float(SHIFT), a)
    far = k.fma(y - 0.5, log(k, y) - 1.0, HALF_LOG_2PI - 0.5) + log_gamma_series(k, y)
    one = k.const(a.type, 1.0)
    step = k.select(near, k.select(below, a, k.select(above, a - 1.0, one)), k.select(small, product, one))
    rest = log(k, step)
    return k.select(near, log_gamma_near(k, u), far) - k.select(near & above, -rest, rest)


def log_gamma_of_one_more(k: Function, a: Value) -> Value:
    """lgamma(1 + a) for a >= 0 without rounding 1 + a where that counts."""
    return k.select(a <= 1.2, log_gamma_near(k, a), log_gamma_positive(k, a + 1.0))


def lgamma(k: Function, x: Value) -> Value:
    """log |gamma(x)|; infinite at 0 and the negative integers."""
    if x.type.element is f32:
        return lgamma(k, x.to(f64)).to(f32)
    a = absolute(k, x)
    y = log_gamma_positive(k, a)
    r = a - k.math("roundeven", a)
    sine = absolute(k, half_wave(k, r * math.pi))
    reflected = k.select(sine.eq(0.0), INFINITY, log(k, math.pi / (a * sine)) - y)
    return k.select(a.eq(INFINITY), INFINITY, k.select(x < -1e-17, reflected, y))


def digamma(k: Function, x: Value) -> Value:
    """Derivative of lgamma; -inf at 0 (inf at -0), NaN at the negative integers."""
    if x.type.element is f32:
        return digamma(k, x.to(f64)).to(f32)
    left = x < 0.0
    a = k.select(left, 1.0 - x, x)
    over, under = k.const(x.type, 1.0), a  # sum of 1 / (a + i) as one fraction
    for i in range(1, SHIFT):
        step = a + float(i)
        over, under = k.fma(over, step, under), under * step
    small = a < float(SHIFT)
    y = k.select(small, a + float(SHIFT), a)
    inverse = 1.0 / y
    z = inverse * inverse
    far = k.fma(-z, polynomial(k, k.fma(z, 128.0, -1.0), DIGAMMA), k.fma(inverse, -0.5, log(k, y)))
    value = far - k.select(small, over / under, 0.0)
    r = x - k.math("roundeven", x)
    cotangent = half_wave(k, k.fma(absolute(k, r), -math.pi, math.pi / 2)) / half_wave(k, r * math.pi)
    value = k.select(left, k.fma(cotangent, -math.pi, value), value)
    value = k.select(left & r.eq(0.0), k.const(x.type, NAN), value)
    return k.select(x.eq(0.0), copysign(k, k.const(x.type, INFINITY), -x), value)


def polygamma(k: Function, x: Value, n: int) -> Value:
    """The n-th derivative of digamma."""
    if n == 0:
        return digamma(k, x)
    if x.type.element is f32:
        return polygamma(k, x.to(f64), n).to(f32)
    return zeta(k, k.const(x.type, n + 1.0), x) * ((-1.0) ** (n + 1) * float(math.factorial(n)))


def zeta(k: Function, s: Value, q: Value) -> Value:
    """Hurwitz zeta: sum of (q + n)^-s over n >= 0. NaN where s < 1, or q < 0 and s is no integer; infinite at its poles."""
    s, q = k.unify(s, q)
    if s.type.element is f32:
        return zeta(k, s.to(f64), q.to(f64)).to(f32)
    positive = _zeta_positive(k, s.type)
    negative = q < 0.0
    result = k.var(s.type, k.call(positive, s, k.select(negative, 1.0, q)))
    whole = k.math("floor", q)
    fraction = q - whole
    with k.when(k.any(negative)):
        # The terms left of 0 are those of zeta(s, 1 - fraction), up to sign, without all but the first -whole.
        here = k.select(negative & (fraction > 0.0), fraction, 0.5)
        mirror = 1.0 - here
        left = k.call(positive, s, mirror) - k.call(positive, s, mirror - k.select(negative, whole, 0.0))
        odd = k.math("trunc", s * 0.5).ne(s * 0.5)
        total = k.call(positive, s, here) + k.select(odd, -left, left)
        total = k.select(k.math("trunc", s).eq(s), total, k.const(s.type, NAN))
        result.set(k.select(negative, total, result.get()))
    pole = (q <= 0.0) & fraction.eq(0.0) | s.eq(1.0)
    value = k.select(pole, INFINITY, result.get())
    return k.select(s < 1.0, k.const(s.type, NAN), value)


def _zeta_positive(k: Function, type_: Type) -> Function:
    """The module's function for q >= 0: a call, since four copies of its loop over powers would be long."""
    name = f"vmath_zeta_{type_.suffix}"
    for f in k.module.functions:
        if f.name == name:
            return f
    f = k.module.function(name, [("s", type_), ("q", type_)], type_, internal=True)
    s, q = f.args
    a = f.var(type_, q)
    total = f.var(type_, 0.0)
    with f.range(0, ZETA_TERMS):
        total.set(total.get() + pow(f, a.get(), -s))
        a.set(a.get() + 1.0)
    end = a.get()
    power = pow(f, end, -s)
    inverse = 1.0 / end
    tail = power * end / (s - 1.0) + power * 0.5
    factor = power * s * inverse
    for j, c in enumerate(EULER_MACLAURIN):
        tail = f.fma(factor, c, tail)
        factor = factor * ((s + (2.0 * j + 1.0)) * inverse) * ((s + (2.0 * j + 2.0)) * inverse)
    f.ret(total.get() + f.select(power.eq(0.0), 0.0, tail))
    return f
