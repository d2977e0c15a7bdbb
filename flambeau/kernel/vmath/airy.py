"""The Airy function: airy_ai.

    y = airy_ai(k, x)     # x f32 or f64, scalar or vector

A polynomial around 0, beyond it polynomials in 1 / z times waves or an exponential, z = 2/3 |x|^(3/2) (DLMF 9.7).
The error is about 1e-15 of the amplitude, and grows with z for large |x| as the phase's own rounding does.
Constants: Chebyshev interpolation in 50 digits. May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import absolute, at_most, polynomial
from flambeau.kernel.vmath.exponential import scaled_exp
from flambeau.kernel.vmath.trigonometric import sine_and_cosine

# Ai(x) in (x + 1) / 3 on [-4, 2], absolute error 1e-15
MIDDLE = (
    0.5355608832923511,
    -0.030481701349935678,
    -2.410023974815188,
    2.4557465268405076,
    1.7389341530485178,
    -4.358618303080521,
    1.6884916288968737,
    2.051875877668006,
    -2.372841416697845,
    0.37669987546847905,
    0.8528469756123216,
    -0.6132456049202779,
    0.018903221111336153,
    0.1829876565254999,
    -0.09190946187669946,
    -0.0054118149139363745,
    0.02402946725314286,
    -0.00894454211494305,
    -0.0011785569515404403,
    0.0021328679392304726,
    -0.0006146988861750449,
    -0.00012198078683824279,
    0.00014272571166674093,
    -3.020413198048238e-05,
    -1.1811502183356276e-05,
    6.643678548359913e-06,
    1.645404127326349e-07,
    -4.651355575006365e-07,
)
# 2 sqrt(pi) x^(1/4) exp(z) Ai(x) in 2 ZETA_2 / z - 1, z = 2/3 x^(3/2), on x >= 2: 1e-16
RIGHT = (
    0.983679282828043,
    -0.014613458724023268,
    0.001413201471694022,
    -0.00022785221368327573,
    4.8463340896307466e-05,
    -1.2354390964810916e-05,
    3.5878272455367663e-06,
    -1.1510219789683378e-06,
    3.9975507061704766e-07,
    -1.481529439750848e-07,
    5.7802411679313104e-08,
    -2.367212295846471e-08,
    1.0623869236797298e-08,
    -4.763854242571864e-09,
    1.2143566554889208e-09,
    -4.805015033021062e-10,
    1.3767515447285346e-09,
    -7.542636678618938e-10,
    -4.687238153849221e-10,
    2.7602939238588155e-10,
    2.1097184217698701e-10,
    -1.1910601813898607e-10,
)
# Amplitudes of cos(z - pi/4) and (times z) of sin(z - pi/4) in sqrt(pi) |x|^(1/4) Ai(x), in 2 ZETA_4^2 / z^2 - 1, on x <= -4: 3e-16
LEFT_COSINE = (
    0.999363720981151,
    -0.0006209941418020204,
    1.4258707706491855e-05,
    -9.054529690232855e-07,
    1.0042136966924489e-07,
    -1.5925167025417853e-08,
    3.2419414066893684e-09,
    -7.936549831099796e-10,
    2.226111105580881e-10,
    -7.003524724547076e-11,
    2.6990321489613368e-11,
    -1.0485193177501579e-11,
    9.805643392003682e-13,
    -1.2644229005895244e-13,
    2.003510526290054e-12,
    -1.005939757424972e-12,
)
LEFT_SINE = (
    0.06880857417665426,
    -0.0006071316848868476,
    2.6011127097115112e-05,
    -2.3247007387463935e-06,
    3.2297355504894116e-07,
    -6.03015042435361e-08,
    1.3920844502072345e-08,
    -3.770048792505157e-09,
    1.1456180714807653e-09,
    -3.8625215836978856e-10,
    1.6484451745512192e-10,
    -6.818562165995341e-11,
    2.079692014844536e-12,
    1.3707498004814226e-12,
    1.5461892103549407e-11,
    -8.043377127213995e-12,
)

ZETA_2 = 2.0 / 3.0 * 2.0**1.5
ZETA_4 = 16.0 / 3.0
HALF_ROOT_PI = 0.28209479177387814  # 1 / (2 sqrt(pi))
RIGHT_END = 110.0  # Ai underflows before


def airy_ai(k: Function, x: Value) -> Value:
    """Airy function of the first kind; f32 in f64 arithmetic."""
    if x.type.element is f32:
        return airy_ai(k, x.to(f64)).to(f32)
    a = absolute(k, x)
    middle = polynomial(k, (x + 1.0) * (1.0 / 3.0), MIDDLE)
    b = k.select(x > 0.0, at_most(k, a, RIGHT_END), a)
    root = k.math("sqrt", b)
    fourth = k.math("sqrt", root)
    z = b * root * (2.0 / 3.0)
    inverse = 1.0 / z
    p, s, t = scaled_exp(k, -z)
    right = (polynomial(k, k.fma(inverse, 2.0 * ZETA_2, -1.0), RIGHT) * (HALF_ROOT_PI / fourth) * p * s) * t
    sine, cosine = sine_and_cosine(k, z)
    u = k.fma(inverse * inverse, 2.0 * ZETA_4**2, -1.0)
    # cos(z - pi/4) and sin(z - pi/4) without their 1 / sqrt(2), which the amplitude has
    waves = k.fma(cosine + sine, polynomial(k, u, LEFT_COSINE), (sine - cosine) * inverse * polynomial(k, u, LEFT_SINE))
    left = waves * (2.0 * HALF_ROOT_PI * 0.7071067811865476) / fourth
    y = k.select(x > 2.0, right, k.select(x < -4.0, left, middle))
    return k.select(x >= RIGHT_END, 0.0, y)
