"""The error function and its relatives: erf gelu erfc erfcx erfinv ndtr ndtri log_ndtr.

    y = erf(k, x)         # x f32 or f64, scalar or vector

erf f32: an odd polynomial below 0.92, above it 1 - 2^Q(|x|), Q a polynomial for log2 erfc; where registers hold tables, 16 pieces
(`pieces`), and so gelu, whose result for negative x is then right to 2^-15 where the formula cancels. erfc and erf f64:
exp(x^2) erfc(x) (1 + 2 x) is a polynomial in (x - 3) / (x + 3) (Shepherd & Laframboise 1981). The inverse: a polynomial in
w = -log(1 - y^2) good to 1e-6 (Giles 2010), then one step of Halley's method on erf or erfc.
Constants: benchmarks/minimax.py. May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import (
    INFINITY,
    NAN,
    absolute,
    at_least,
    at_most,
    copysign,
    divide_words,
    fast_two_sum,
    polynomial,
    polynomial_halves,
    power_of_two,
    round_to_integer,
    two_product,
    two_sum,
)
from flambeau.kernel.vmath.exponential import EXP2_F32, scaled_exp_words
from flambeau.kernel.vmath.logarithm import log, log1p
from flambeau.kernel.vmath.pieces import by_registers, in_pieces, suits_pieces

# erf(x) / x - 1 in x^2: |x| <= 0.95, error 2^-25.4 of erf(x); |x| <= 1, 2^-55.9
ERF_SMALL_F32 = (
    0.12837916612625122,
    -0.3761262893676758,
    0.1128363236784935,
    -0.026856452226638794,
    0.005194839555770159,
    -0.0008082092390395701,
    8.144361345330253e-05,
)
ERF_SMALL_F64 = (
    0.12837916709551256,
    -0.3761263890318331,
    0.1128379167093527,
    -0.026866170641663488,
    0.005223977594151679,
    -0.0008548325354973035,
    0.00012055276446487315,
    -1.4924384976627601e-05,
    1.6443121812985119e-06,
    -1.6175864881809386e-07,
    1.3580505917611139e-08,
    -7.538348079167386e-10,
)
# log2(erfc(x)) on [0.9, 4]: 2^-29.1 of erf(x)
LOG2_ERFC_F32 = (
    -0.0002402530808467418,
    -1.627066969871521,
    -0.9189631342887878,
    -0.15020349621772766,
    0.03219367191195488,
    -0.004422476515173912,
    0.0002859615196939558,
)
# erf by pieces of this width, of x - x in the first: 2^-25 of erf(x)
ERF_WIDTH = 1075 / 4096  # few bits, and erf of it lies beside an f32
ERF_PIECES = (
    (
        0.0,
        0.28948312997817993,
        0.542108952999115,
        0.7345002293586731,
        0.8623629212379456,
        0.9365193843841553,
        0.9740508794784546,
        0.9906268119812012,
        0.9970151782035828,
        0.9991635680198669,
        0.999794065952301,
        0.9999554753303528,
        0.9999915957450867,
        0.9999986290931702,
        0.9999998211860657,
        1.0,
    ),
    (
        0.12837916612625122,
        1.0532722473144531,
        0.856637716293335,
        0.6070505380630493,
        0.37482064962387085,
        0.20164768397808075,
        0.09452224522829056,
        0.038605205714702606,
        0.01373816654086113,
        0.004259737208485603,
        0.0011508218012750149,
        0.0002708973188418895,
        5.556136602535844e-05,
        9.92917011899408e-06,
        1.5460558415725245e-06,
        3.7585919017146807e-06,
    ),
    (
        2.844508344423957e-07,
        -0.27642568945884705,
        -0.44964301586151123,
        -0.47795969247817993,
        -0.3934900462627411,
        -0.26461705565452576,
        -0.14884760975837708,
        -0.0709247961640358,
        -0.028844552114605904,
        -0.010061239823698997,
        -0.0030199687462300062,
        -0.0007818856392987072,
        -0.00017491639300715178,
        -3.3856136724352837e-05,
        -5.675549346051412e-06,
        7.135576743166894e-05,
    ),
    (
        -0.37614232301712036,
        -0.30274853110313416,
        -0.12821437418460846,
        0.04852386936545372,
        0.15044665336608887,
        0.1642782837152481,
        0.124752938747406,
        0.07399910688400269,
        0.03579655662178993,
        0.01442438829690218,
        0.0049007730558514595,
        0.0014147228794172406,
        0.0003487931389827281,
        7.371457468252629e-05,
        1.3390857020567637e-05,
        0.0003695630584843457,
    ),
    (
        0.0002978494158014655,
        0.13080033659934998,
        0.18227176368236542,
        0.13964785635471344,
        0.052434660494327545,
        -0.0190096627920866,
        -0.04818139970302582,
        -0.04418918862938881,
        -0.02800065092742443,
        -0.013762055896222591,
        -0.0054826741106808186,
        -0.0018100865418091416,
        -0.0005016634822823107,
        -0.00011768964031944051,
        -2.3504753698944114e-05,
        0.0,
    ),
    (
        0.11091145128011703,
        0.0778372511267662,
        0.0008514433866366744,
        -0.05791196972131729,
        -0.06663677841424942,
        -0.03901262581348419,
        -0.007020920515060425,
        0.010192641988396645,
        0.012672239914536476,
        0.008601409383118153,
        0.0042477864772081375,
        0.001650745514780283,
        0.0005224192864261568,
        0.00013717148976866156,
        3.022611235792283e-05,
        0.0,
    ),
)
# erfc(x / sqrt(2)) / 2 by pieces, 0 from 5.625 on: 2^-23 of it below 3, 2^-15 below 5.4, 2^-26 in all
UPPER_TAIL_WIDTH = 0.375
UPPER_TAIL_PIECES = (
    (
        0.5,
        0.3538302481174469,
        0.22662734985351562,
        0.13029451668262482,
        0.06680720299482346,
        0.030396360903978348,
        0.01222447119653225,
        0.00433244789019227,
        0.0013498981716111302,
        0.0003690786543302238,
        8.841742237564176e-05,
        1.8536798961577006e-05,
        3.397693717488437e-06,
        5.440478503260238e-07,
        7.605083141015712e-08,
        0.0,
    ),
    (
        -0.3989422619342804,
        -0.37185508012771606,
        -0.30113741755485535,
        -0.21187664568424225,
        -0.12951761484146118,
        -0.06878629326820374,
        -0.03173966705799103,
        -0.012724185362458229,
        -0.004431845620274544,
        -0.0013411144027486444,
        -0.0003525925276335329,
        -8.053890633163974e-05,
        -1.5983157936716452e-05,
        -2.7557669000088936e-06,
        -4.1280375739916053e-07,
        -9.449104254599661e-07,
    ),
    (
        -3.677161828363751e-07,
        0.0697210282087326,
        0.11292445659637451,
        0.11917971819639206,
        0.09713862836360931,
        0.06448806077241898,
        0.03570776805281639,
        0.016700686886906624,
        0.006647705100476742,
        0.002263016998767853,
        0.000661035068333149,
        0.0001660769630689174,
        3.595015004975721e-05,
        6.713881248288089e-06,
        1.0828667882378795e-06,
        -1.2535841960925609e-05,
    ),
    (
        0.0664980411529541,
        0.053257402032613754,
        0.021955344825983047,
        -0.00938035361468792,
        -0.026981046423316002,
        -0.028837639838457108,
        -0.021488811820745468,
        -0.012491895817220211,
        -0.00590952904894948,
        -0.002323032123968005,
        -0.000767984485719353,
        -0.00021515574189834297,
        -5.1345472456887364e-05,
        -1.0476154784555547e-05,
        -1.8324883512832457e-06,
        -4.54860164609272e-05,
    ),
    (
        -6.876144470879808e-05,
        -0.016475725919008255,
        -0.02277911826968193,
        -0.01715676672756672,
        -0.006104893982410431,
        0.002698631025850773,
        0.006085799541324377,
        0.0053990790620446205,
        0.0033294090535491705,
        0.001592239597812295,
        0.0006161578930914402,
        0.0001971359015442431,
        5.281002086121589e-05,
        1.1942212040594313e-05,
        2.2924880340724485e-06,
        0.0,
    ),
    (
        -0.009732424281537533,
        -0.006648304872214794,
        0.00019348796922713518,
        0.005260918289422989,
        0.005807385314255953,
        0.0032304881606251,
        0.0004353982803877443,
        -0.0009681544615887105,
        -0.0010956728365272284,
        -0.0007080058567225933,
        -0.00033486398751847446,
        -0.00012461745063774288,
        -3.769238173845224e-05,
        -9.433255399926566e-06,
        -1.975157147171558e-06,
        0.0,
    ),
)
# exp(x^2) erfc(x) (1 + 2 x) in t = (x - 3) / (x + 3) on [0.46, 27.3]: 2^-54.5
ERFCX_F64 = (
    1.2530080582697296,
    -0.13562110612458084,
    -0.04756229435343415,
    0.12964515870271623,
    -0.11927366341633816,
    0.06830802734576859,
    -0.023770514893814345,
    0.002529391782843734,
    0.0018886900535022926,
    -0.0007798319318059156,
    -0.00010515761913612824,
    0.00012509724536561605,
    4.939879005919182e-06,
    -2.0092336255655613e-05,
    -7.046944188799828e-07,
    3.4519345795887604e-06,
    3.0957938887813224e-07,
    -5.850015119298569e-07,
    -9.09386375152478e-08,
    7.375027741347161e-08,
    1.1515364331703852e-08,
    -1.5906948998526313e-09,
)

# erfinv(y) / y in 0.4 w - 1, w = -log(1 - y^2), on w <= 5: 2^-21.8
INVERSE_NEAR = (
    1.501409179289464,
    0.6166035487945299,
    -0.026101616936658006,
    -0.019603594316779778,
    0.00848968635709622,
    -0.00039985578018217794,
    -0.0007778007974646933,
    0.00019265995537233612,
)
# erfinv(y) / sqrt(w) in (1 / sqrt(w) - centre) scale on 5 <= w <= 746: 2^-19.6
INVERSE_FAR = (
    0.9615544317533864,
    -0.0409411191164442,
    0.0027760885479185373,
    0.005123132937783658,
    -0.0015075885549136142,
    0.00013641778126744386,
    -0.0003993861703098341,
    0.00024090930500920147,
)
ERFCX_SERIES = (
    1.0,
    -0.5,
    0.75,
    -1.875,
    6.5625,
    -29.53125,
    162.421875,
    -1055.7421875,
)  # sqrt(pi) x erfcx(x) in 1 / x^2, DLMF 7.12.1
INVERSE_CENTRE = float.fromhex("0x1.ef702270c32f6p-3")
INVERSE_SCALE = float.fromhex("0x1.37bcf84e08ce4p+2")
HALF_ROOT_PI = 0.886226925452758
INVERSE_ROOT_PI = 0.5641895835477563
ROOT_2 = 1.4142135623730951
INVERSE_ROOT_2 = 0.7071067811865476


def erf(k: Function, x: Value) -> Value:
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    if suits_pieces(k, x):
        return by_registers(k, x, _erf_by_pieces)
    if x.type.element is f32:
        return _erf_f32(k, x)
    a = absolute(k, x)
    far = 1.0 - _complement(k, at_most(k, a, 6.0))
    return k.select(a < 1.0, _near_zero(k, x, ERF_SMALL_F64), copysign(k, far, x))


def _near_zero(k: Function, x: Value, coefficients: tuple[float, ...]) -> Value:
    return k.fma(x, polynomial(k, x * x, coefficients), x)


def _erf_f32(k: Function, x: Value) -> Value:
    a = at_most(k, absolute(k, x), 4.0)
    square = a * a
    near = k.fma(a, polynomial(k, square, ERF_SMALL_F32), a)
    q = polynomial_halves(k, a, square, LOG2_ERFC_F32)
    n, biased = round_to_integer(k, q, 1.0, 127)
    far = k.fma(-polynomial(k, q - n, (1.0, *EXP2_F32)), power_of_two(k, biased, q), 1.0)
    return copysign(k, k.select(a < 0.92, near, far), x)


def _erf_by_pieces(k: Function, x: Value) -> Value:
    y, n, d = in_pieces(k, at_most(k, absolute(k, x), 15 * ERF_WIDTH), ERF_WIDTH, ERF_PIECES)
    return copysign(k, k.select(n.eq(0.0), y + d, y), x)  # the leading 1 apart: its rounding would cost an ulp


def gelu(k: Function, x: Value) -> Value:
    """x times the probability that a standard normal variable falls below x."""
    if suits_pieces(k, x):
        return by_registers(k, x, _gelu_by_pieces)
    return x * 0.5 * (erf(k, x * INVERSE_ROOT_2) + 1.0)


def _gelu_by_pieces(k: Function, x: Value) -> Value:
    a = at_most(k, absolute(k, x), 15 * UPPER_TAIL_WIDTH)
    above, _, _ = in_pieces(k, a, UPPER_TAIL_WIDTH, UPPER_TAIL_PIECES)
    return k.fma(-a, above, at_least(k, x, 0.0))


def _scaled_complement(k: Function, a: Value) -> tuple[Value, Value]:
    """exp(a^2) erfc(a) in double words, 0.46 <= a <= 27.3, f64."""
    t = (a - 3.0) / (a + 3.0)
    top = fast_two_sum(k.const(a.type, ERFCX_F64[0]), t * polynomial(k, t, ERFCX_F64[1:]))
    return divide_words(k, top, two_sum(a + a, k.const(a.type, 1.0)))


def _exp_of_square(k: Function, a: Value, sign: float) -> tuple[Value, Value, Value, Value]:
    """(p, low, s, t): exp(sign a^2) = (p + low) s t, as if a^2 were exact."""
    square, square_low = two_product(k, a, a)
    p, low, s, t = scaled_exp_words(k, square * sign, square_low * sign)
    return p, low, s, t


def _complement(k: Function, a: Value) -> Value:
    """erfc(a), 0.46 <= a, f64. The quotient and its product in double words: five roundings would make 3 ulp."""
    p, p_low, s, t = _exp_of_square(k, a, -1.0)
    q, q_low = _scaled_complement(k, a)
    product = p * q
    product = product + (k.fma(p, q, -product) + k.fma(p, q_low, p_low * q))
    return (product * s) * t


def erfc(k: Function, x: Value) -> Value:
    """1 - erf(x), right for large x; f32 in f64 arithmetic."""
    if x.type.element is f32:
        return erfc(k, x.to(f64)).to(f32)
    a = absolute(k, x)
    far = _complement(k, at_most(k, a, 28.0))
    far = k.select(x < 0.0, 2.0 - far, far)
    return k.select(a < 0.5, 1.0 - _near_zero(k, x, ERF_SMALL_F64), far)


def erfcx(k: Function, x: Value) -> Value:
    """exp(x^2) erfc(x), which decays as 1 / x only."""
    if x.type.element is f32:
        return erfcx(k, x.to(f64)).to(f32)
    a = absolute(k, x)
    p, low, s, t = _exp_of_square(k, at_most(k, a, 27.0), 1.0)
    growth = ((p + low) * s) * t
    near = growth * (1.0 - _near_zero(k, a, ERF_SMALL_F64))
    q, q_low = _scaled_complement(k, at_most(k, a, 27.0))
    inverse = 1.0 / a
    u = inverse * inverse
    far = inverse * INVERSE_ROOT_PI * polynomial(k, u, ERFCX_SERIES)
    y = k.select(a < 0.5, near, k.select(a < 27.0, q + q_low, far))
    return k.select(x < 0.0, k.fma(growth, 2.0, -y), y)


# ---------------------------------------------------------------------- inverses
def _inverse(k: Function, q: Value, y: Value) -> Value:
    """x >= 0 with erfc(x) = q, erf(x) = y, where q + y = 1 and whichever is small is exact; f64."""
    w = -log(k, q * (y + 1.0))
    root = k.math("sqrt", w)
    near = y * polynomial(k, k.fma(w, 0.4, -1.0), INVERSE_NEAR)
    far = root * polynomial(k, (1.0 / root - INVERSE_CENTRE) * INVERSE_SCALE, INVERSE_FAR)
    x = k.select(w < 5.0, near, far)
    missing = k.select(y < 0.6, y - _near_zero(k, x, ERF_SMALL_F64), _complement(k, at_most(k, x, 28.0)) - q)
    p, low, s, t = _exp_of_square(k, x, 1.0)
    d = ((missing * HALF_ROOT_PI * (p + low)) * s) * t
    return x + d / k.fma(-x, d, 1.0)


def erfinv(k: Function, y: Value) -> Value:
    """x with erf(x) = y; infinite at 1 and -1, NaN beyond."""
    if y.type.element is f32:
        return erfinv(k, y.to(f64)).to(f32)
    a = absolute(k, y)
    x = _inverse(k, 1.0 - a, a)
    x = k.select(a < 1.0, x, k.select(a.eq(1.0), k.const(y.type, INFINITY), k.const(y.type, NAN)))
    return copysign(k, x, y)


def ndtri(k: Function, p: Value) -> Value:
    """x below which a standard normal variable falls with probability p."""
    if p.type.element is f32:
        return ndtri(k, p.to(f64)).to(f32)
    low = p < 0.5
    tail = k.select(low, p, 1.0 - p)
    x = _inverse(k, tail * 2.0, absolute(k, k.fma(p, -2.0, 1.0))) * ROOT_2
    inside = (p > 0.0) & (p < 1.0)
    x = k.select(inside, x, k.select(p.eq(0.0) | p.eq(1.0), k.const(p.type, INFINITY), k.const(p.type, NAN)))
    return k.select(low, -x, x)


def ndtr(k: Function, x: Value) -> Value:
    """Probability that a standard normal variable falls below x."""
    return erfc(k, x.to(f64) * -INVERSE_ROOT_2).to(x.type.element) * 0.5


def log_ndtr(k: Function, x: Value) -> Value:
    """Logarithm of the probability that a standard normal variable falls below x."""
    if x.type.element is f32:
        return log_ndtr(k, x.to(f64)).to(f32)
    t = x * INVERSE_ROOT_2
    left = log(k, erfcx(k, -t) * 0.5) - t * t
    return k.select(x < -1.0, left, log1p(k, erfc(k, t) * -0.5))
