"""The error function and its relatives: erf erfc.

    y = erf(k, x)         # x f32 or f64, scalar or vector

erf f32: an odd polynomial below 0.92, above it 1 - 2^Q(|x|), Q a polynomial for log2 erfc. erfc and erf f64:
exp(x^2) erfc(x) (1 + 2 x) is a polynomial in (x - 3) / (x + 3) (Shepherd & Laframboise 1981).
Constants: benchmarks/minimax.py. May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import (
    absolute,
    at_most,
    copysign,
    divide_words,
    fast_two_sum,
    polynomial,
    power_of_two,
    round_to_integer,
    two_product,
    two_sum,
)
from flambeau.kernel.vmath.exponential import EXP2_F32, scaled_exp_words

# erf(x) / x - 1 in x^2: |x| <= 0.95, error 2^-25.4 of erf(x); |x| <= 1, 2^-55.9
ERF_SMALL_F32 = (
    0.12837916612625122, -0.3761262893676758, 0.1128363236784935, -0.026856452226638794, 0.005194839555770159, -0.0008082092390395701,
    8.144361345330253e-05,
)
ERF_SMALL_F64 = (
    0.12837916709551256, -0.3761263890318331, 0.1128379167093527, -0.026866170641663488, 0.005223977594151679, -0.0008548325354973035,
    0.00012055276446487315, -1.4924384976627601e-05, 1.6443121812985119e-06, -1.6175864881809386e-07, 1.3580505917611139e-08,
    -7.538348079167386e-10,
)
# log2(erfc(x)) on [0.9, 4]: 2^-29.1 of erf(x)
LOG2_ERFC_F32 = (
    -0.0002402530808467418, -1.627066969871521, -0.9189631342887878, -0.15020349621772766, 0.03219367191195488, -0.004422476515173912,
    0.0002859615196939558,
)
# exp(x^2) erfc(x) (1 + 2 x) in t = (x - 3) / (x + 3) on [0.46, 27.3]: 2^-54.5
ERFCX_F64 = (
    1.2530080582697296, -0.13562110612458084, -0.04756229435343415, 0.12964515870271623, -0.11927366341633816, 0.06830802734576859,
    -0.023770514893814345, 0.002529391782843734, 0.0018886900535022926, -0.0007798319318059156, -0.00010515761913612824,
    0.00012509724536561605, 4.939879005919182e-06, -2.0092336255655613e-05, -7.046944188799828e-07, 3.4519345795887604e-06,
    3.0957938887813224e-07, -5.850015119298569e-07, -9.09386375152478e-08, 7.375027741347161e-08, 1.1515364331703852e-08,
    -1.5906948998526313e-09,
)


def erf(k: Function, x: Value) -> Value:
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    if x.type.element is f32:
        return _erf_f32(k, x)
    a = absolute(k, x)
    far = 1.0 - _complement(k, at_most(k, a, 6.0))
    return k.select(a < 1.0, _near_zero(k, x, ERF_SMALL_F64), copysign(k, far, x))


def _near_zero(k: Function, x: Value, coefficients: tuple[float, ...]) -> Value:
    return k.fma(x, polynomial(k, x * x, coefficients), x)


def _erf_f32(k: Function, x: Value) -> Value:
    a = at_most(k, absolute(k, x), 4.0)
    near = k.fma(a, polynomial(k, a * a, ERF_SMALL_F32), a)
    q = polynomial(k, a, LOG2_ERFC_F32)
    n, biased = round_to_integer(k, q, 1.0, 127)
    far = k.fma(-polynomial(k, q - n, (1.0, *EXP2_F32)), power_of_two(k, biased, q), 1.0)
    return copysign(k, k.select(a < 0.92, near, far), x)


def _complement(k: Function, a: Value) -> Value:
    """erfc(a), 0.46 <= a, f64."""
    t = (a - 3.0) / (a + 3.0)
    square, low = two_product(k, a, a)
    p, p_low, s, u = scaled_exp_words(k, -square, -low)
    # polynomial / (1 + 2 a) and its product with p in double words: five roundings would make 3 ulp
    top, top_low = fast_two_sum(k.const(a.type, ERFCX_F64[0]), t * polynomial(k, t, ERFCX_F64[1:]))
    under, under_low = two_sum(a + a, k.const(a.type, 1.0))
    q, q_low = divide_words(k, (top, top_low), (under, under_low))
    product = p * q
    product = product + (k.fma(p, q, -product) + k.fma(p, q_low, p_low * q))
    return (product * s) * u


def erfc(k: Function, x: Value) -> Value:
    """1 - erf(x), right for large x; f32 in f64 arithmetic."""
    if x.type.element is f32:
        return erfc(k, x.to(f64)).to(f32)
    a = absolute(k, x)
    far = _complement(k, at_most(k, a, 28.0))
    far = k.select(x < 0.0, 2.0 - far, far)
    return k.select(a < 0.5, 1.0 - _near_zero(k, x, ERF_SMALL_F64), far)
