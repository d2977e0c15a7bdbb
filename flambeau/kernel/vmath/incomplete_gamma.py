"""Regularised incomplete gamma functions: gammainc gammaincc.

    p = gammainc(k, a, x)    # f32 or f64, scalars or vectors

Four methods, each run for the lanes that need it (Gautschi 1979; DiDonato & Morris 1986): the power series for P where
x < a, one for Q where x and a are small, the continued fraction for Q elsewhere, and for a > 20 with x near a
Temme's uniform expansion (1979). The loops end when all lanes have converged; f32 in f64 arithmetic.
May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import INFINITY, NAN, absolute, at_least, polynomial
from flambeau.kernel.vmath.error_function import erfcx
from flambeau.kernel.vmath.exponential import exp, expm1
from flambeau.kernel.vmath.gamma import HALF_LOG_2PI, log_gamma_of_one_more, log_gamma_series
from flambeau.kernel.vmath.logarithm import log, log1p_tail

# C_k(eta) a^-k, DLMF 8.12.8, by the recurrence (n + 2) d[k-1, n+2] - d[k-1, 1] d[0, n]; terms below 1e-17 at a = 20 left out
TEMME = (
    (
        -0.3333333333333333,
        0.08333333333333333,
        -0.014814814814814815,
        0.0011574074074074073,
        0.0003527336860670194,
        -0.0001787551440329218,
        3.919263178522438e-05,
        -2.185448510679992e-06,
        -1.85406221071516e-06,
        8.296711340953087e-07,
        -1.7665952736826078e-07,
        6.707853543401498e-09,
        1.0261809784240309e-08,
        -4.382036018453353e-09,
        9.14769958223679e-10,
    ),
    (
        -0.001851851851851852,
        -0.003472222222222222,
        0.0026455026455026454,
        -0.0009902263374485596,
        0.00020576131687242798,
        -4.018775720164609e-07,
        -1.8098550334489977e-05,
        7.64916091608111e-06,
        -1.6120900894563446e-06,
        4.647127802807434e-09,
        1.378633446915721e-07,
        -5.752545603517705e-08,
        1.1951628599778148e-08,
        -1.7543241719747647e-11,
        -1.0091543710600413e-09,
    ),
    (
        0.004133597883597883,
        -0.0026813271604938273,
        0.0007716049382716049,
        2.0093878600823047e-06,
        -0.0001073665322636516,
        5.2923448829120125e-05,
        -1.2760635188618728e-05,
        3.423578734096138e-08,
        1.3721957309062934e-06,
        -6.298992138380055e-07,
        1.4280614206064242e-07,
        -2.0477098421990866e-10,
        -1.409252991086752e-08,
        6.228974084922022e-09,
    ),
    (
        0.0006494341563786008,
        0.00022947209362139917,
        -0.0004691894943952557,
        0.00026772063206283885,
        -7.561801671883977e-05,
        -2.396505113867297e-07,
        1.1082654115347302e-05,
        -5.6749528269915965e-06,
        1.4230900732435883e-06,
        -2.7861080291528143e-11,
        -1.6958404091930278e-07,
        8.099464905388083e-08,
    ),
    (
        -0.0008618882909167117,
        0.0007840392217200666,
        -0.0002990724803031902,
        -1.4638452578843418e-06,
        6.641498215465122e-05,
        -3.968365047179435e-05,
        1.1375726970678419e-05,
        2.507497226237533e-10,
        -1.6954149536558305e-06,
        8.907507532205309e-07,
        -2.292934834000805e-07,
    ),
    (
        -0.00033679855336635813,
        -6.972813758365857e-05,
        0.0002772753244959392,
        -0.00019932570516188847,
        6.797780477937208e-05,
        1.419062920643967e-07,
        -1.3594048189768693e-05,
        8.018470256334202e-06,
        -2.291481176508095e-06,
    ),
    (
        0.0005313079364639922,
        -0.0005921664373536939,
        0.0002708782096718045,
        7.902353232660328e-07,
        -8.153969367561969e-05,
        5.61168275310625e-05,
        -1.8329116582843375e-05,
    ),
    (
        0.00034436760689237765,
        5.171790908260592e-05,
        -0.00033493161081142234,
        0.0002812695154763237,
        -0.00010976582244684731,
        -1.2741009095484485e-07,
        2.7744451511563645e-05,
    ),
    (
        -0.0006526239185953094,
        0.0008394987206720873,
        -0.000438297098541721,
        -6.969091458420552e-07,
        0.00016644846642067547,
        -0.00012783517679769218,
    ),
    (-0.0005967612901927463, -7.204895416020011e-05, 0.0006782308837667328, -0.0006401475260262758),
    (0.0013324454494800656, -0.0019144384985654776, 0.0011089369134596636),
)
EPSILON = 2.0**-53
ROOT_2PI = 2.5066282746310002


def gammainc(k: Function, a: Value, x: Value) -> Value:
    """P(a, x), the lower one: 0 at x = 0. NaN where a or x is negative."""
    return _regularised(k, a, x, upper=False)


def gammaincc(k: Function, a: Value, x: Value) -> Value:
    """Q(a, x) = 1 - P(a, x), the upper one, right where it is small."""
    return _regularised(k, a, x, upper=True)


def _regularised(k: Function, a: Value, x: Value, *, upper: bool) -> Value:
    a, x = k.unify(a, x)
    if a.type.element is f32:
        return _regularised(k, a.to(f64), x.to(f64), upper=upper).to(f32)
    ordinary = (a > 0.0) & (x > 0.0) & (a < INFINITY) & (x < INFINITY)
    a_in, x_in = a, x
    a, x = k.select(ordinary, a, 1.0), k.select(ordinary, x, 1.0)
    difference = x - a
    mu = difference / a
    logarithm = log(k, x)
    uniform = (a > 20.0) & (absolute(k, mu) < 0.28)
    # Beside x = 0, Q is the small one only if a is small too (Cephes' bounds).
    bound = k.select(x <= 0.5, -0.4 / k.select(x < 0.9, logarithm, -1.0), x * 1.1)
    small = (x <= 1.1) & (bound >= a)
    lower = ~(uniform | small) & ((x <= 1.1) | (x < a))
    fraction = ~(uniform | small | lower)

    phi = k.select(uniform, -log1p_tail(k, k.select(uniform, mu, 0.0)), mu - (logarithm - log(k, a)))
    log_gamma = log_gamma_of_one_more(k, a)
    # x^a e^-x / gamma(a + 1); for large a all that cancels is in phi
    far = k.fma(-a, phi, -(HALF_LOG_2PI + 0.5 * log(k, a)) - log_gamma_series(k, at_least(k, a, 8.0)))
    factor = exp(k, k.select(a < 10.0, k.fma(a, logarithm, -x) - log_gamma, far))

    value = k.var(a.type, 0.0)
    with k.when(k.any(lower)):
        value.set(factor * _power_series(k, a, x, lower))
    fraction = fraction & (factor > 0.0)  # elsewhere Q underflows, and x may overflow the recurrence
    with k.when(k.any(fraction)):
        value.set(k.select(fraction, factor * a * _continued_fraction(k, a, x, fraction), value.get()))
    with k.when(k.any(small)):
        exponent = a * logarithm - log_gamma
        total = _alternating_series(k, a, x, small)
        value.set(k.select(small, -expm1(k, exponent) - a * exp(k, exponent) * total, value.get()))
    with k.when(k.any(uniform)):
        value.set(k.select(uniform, _uniform(k, a, mu, phi), value.get()))
    is_upper = ~lower & ~(uniform & (mu <= 0.0))
    y = value.get()
    y = k.select(is_upper if upper else ~is_upper, y, 1.0 - y)
    return k.select(ordinary, y, _edges(k, a_in, x_in, upper=upper))


def _edges(k: Function, a: Value, x: Value, *, upper: bool) -> Value:
    """Values where a or x is 0, infinite, negative or NaN."""
    nothing, all_ = (k.const(a.type, v) for v in ((1.0, 0.0) if upper else (0.0, 1.0)))
    wrong = (
        (a < 0.0) | (x < 0.0) | a.is_nan() | x.is_nan() | (a.eq(0.0) & x.eq(0.0)) | (a.eq(INFINITY) & x.eq(INFINITY))
    )
    y = k.select(x.eq(0.0) | a.eq(INFINITY), nothing, all_)
    return k.select(wrong, k.const(a.type, NAN), y)


def _power_series(k: Function, a: Value, x: Value, active: Value) -> Value:
    """1 + x / (a + 1) + x^2 / ((a + 1) (a + 2)) + ..."""
    step = k.var(a.type, a)
    term = k.var(a.type, k.select(active, 1.0, k.const(a.type, 0.0)))
    total = k.var(a.type, 1.0)
    with k.loop_while(lambda: k.any(term.get() > total.get() * EPSILON)):
        step.set(step.get() + 1.0)
        term.set(term.get() * (x / step.get()))
        total.set(total.get() + term.get())
    return total.get()


def _alternating_series(k: Function, a: Value, x: Value, active: Value) -> Value:
    """sum of (-x)^n / (n! (a + n)) over n >= 1."""
    n = k.var(a.type, 0.0)
    power = k.var(a.type, 1.0)
    total = k.var(a.type, 0.0)
    change = k.var(a.type, k.select(active, 1.0, k.const(a.type, 0.0)))
    with k.loop_while(lambda: k.any(absolute(k, change.get()) > absolute(k, total.get()) * EPSILON)):
        n.set(n.get() + 1.0)
        power.set(power.get() * (-x / n.get()))
        change.set(k.select(active, power.get() / (a + n.get()), 0.0))
        total.set(total.get() + change.get())
    return total.get()


def _continued_fraction(k: Function, a: Value, x: Value, active: Value) -> Value:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / ...)) by its convergents."""
    n = k.var(a.type, 0.0)
    b = k.var(a.type, x + 1.0 - a)
    over, over_before = k.var(a.type, 1.0), k.var(a.type, 0.0)
    under, under_before = k.var(a.type, b.get()), k.var(a.type, 1.0)
    value = k.var(a.type, 1.0 / b.get())
    change = k.var(a.type, k.select(active, 1.0, k.const(a.type, 0.0)))
    with k.loop_while(lambda: k.any(change.get() > 4.0 * EPSILON)):
        n.set(n.get() + 1.0)
        b.set(b.get() + 2.0)
        coefficient = n.get() * (a - n.get())
        above = k.fma(b.get(), over.get(), coefficient * over_before.get())
        below = k.fma(b.get(), under.get(), coefficient * under_before.get())
        following = above / below
        change.set(k.select(active, absolute(k, (following - value.get()) / following), 0.0))
        value.set(following)
        scale = k.select(absolute(k, below) > 2.0**300, k.const(a.type, 2.0**-300), k.const(a.type, 1.0))
        over_before.set(over.get() * scale)
        under_before.set(under.get() * scale)
        over.set(above * scale)
        under.set(below * scale)
    return value.get()


def _uniform(k: Function, a: Value, mu: Value, phi: Value) -> Value:
    """The smaller of P and Q: Q where mu > 0."""
    eta = k.math("sqrt", at_least(k, phi, 0.0) * 2.0)
    eta = k.math("copysign", eta, mu)
    inverse = 1.0 / a
    series = polynomial(
        k, inverse, [polynomial(k, eta, row) if len(row) > 1 else k.const(a.type, row[0]) for row in TEMME]
    )
    series = k.select(mu > 0.0, series, -series)
    tail = erfcx(k, absolute(k, eta) * k.math("sqrt", a * 0.5))
    return exp(k, -(a * phi)) * k.fma(series, 1.0 / (k.math("sqrt", a) * ROOT_2PI), tail * 0.5)
