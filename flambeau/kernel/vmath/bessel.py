"""Bessel functions of order 0 and 1: j0 j1 y0 y1 i0 i1 k0 k1, i0e i1e scaled_k0 scaled_k1, spherical_j0.

    y = i0e(k, x)         # x f32 or f64, scalar or vector

Polynomials near 0 (with a logarithm for y and k), polynomials in 1 / x times sines or an exponential beyond (Hankel's
expansions, DLMF 10.17 and 10.40). The error is about 1e-15 of the amplitude: beside a zero of j or y it is not relative.
f32 in f64 arithmetic. Constants: Chebyshev interpolation in 50 digits. May not know: targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import INFINITY, NAN, absolute, copysign, polynomial
from flambeau.kernel.vmath.exponential import scaled_exp
from flambeau.kernel.vmath.logarithm import log
from flambeau.kernel.vmath.trigonometric import sin, sine_and_cosine

# I0(x), I1(x) / x in x^2 / 64 on |x| <= 8: 2^-57.6, 2^-62.2
I0_NEAR = (
    1.0,
    16.0,
    63.99999999999997,
    113.77777777778006,
    113.77777777770808,
    72.81777777889721,
    32.36345677925017,
    10.56765942906174,
    2.6419145399269754,
    0.5218606406417354,
    0.08349554279640264,
    0.011044157693156014,
    0.0012232615242973412,
    0.00011884412855164314,
    8.133040664944253e-06,
    1.0593557692803547e-06,
)
I1_NEAR = (
    0.5,
    4.0,
    10.666666666666666,
    14.222222222222282,
    11.377777777775792,
    6.068148148181202,
    2.311675484683369,
    0.6604787120745682,
    0.14677303767813177,
    0.02609301348281165,
    0.003795283739922203,
    0.00046013478810351404,
    4.708057470451394e-05,
    4.2269081587542365e-06,
    2.7675491245018665e-07,
    3.2289387621265434e-08,
)
# exp(-x) sqrt(x) I(x) in 16 / x - 1 on x >= 8: 6e-17
I0_FAR = (
    0.4021765094450081,
    0.0033605519836678913,
    0.00013621607438951463,
    1.114303378845176e-05,
    1.4838476780922646e-06,
    2.9735992084667734e-07,
    8.872014585661555e-08,
    3.932512321137824e-08,
    2.156780676115673e-08,
    7.559364098665437e-09,
    -6.856484545962442e-09,
    -1.3427511481900905e-08,
    -5.0175940345046716e-09,
    7.600254486433509e-09,
    6.522264862032271e-09,
    -3.5862834111582305e-09,
    -4.5305710768621196e-09,
    1.6084886155781772e-09,
    2.163681278413876e-09,
    -6.327909921997027e-10,
    -6.494591114401118e-10,
    1.7698085539456536e-10,
    9.114760157514253e-11,
    -2.4421972688131832e-11,
)
I1_FAR = (
    0.38939845902587233,
    -0.009749577193235765,
    -0.00021923576383137776,
    -1.5038547198221758e-05,
    -1.8349102493990178e-06,
    -3.4838563464253135e-07,
    -1.0001075046243961e-07,
    -4.3128498031006734e-08,
    -2.3394122958362557e-08,
    -8.432168972932417e-09,
    6.84757829926934e-09,
    1.4051746928735543e-08,
    5.5720183980930355e-09,
    -7.687251308765992e-09,
    -6.9444186339873875e-09,
    3.501765193290176e-09,
    4.763780078020254e-09,
    -1.5218214060680734e-09,
    -2.2624401109204446e-09,
    5.870664618471487e-10,
    6.7727478454462e-10,
    -1.6283264322621244e-10,
    -9.491890392992048e-11,
    2.2421768596847442e-11,
)
# J0(x), J1(x) / x in x^2 / 32 - 1 on |x| <= 8, absolute error 1e-16
J0_NEAR = (
    0.045829664859813754,
    0.9303012472958572,
    -0.6484692830871821,
    -0.8080888076696872,
    1.0383794611436883,
    -0.507468045847101,
    0.14598884856785535,
    -0.028472718610877044,
    0.00405807898810883,
    -0.0004435459224433769,
    3.8473200057927604e-05,
    -2.717749207626176e-06,
    1.595584886623164e-07,
    -7.91533375368561e-09,
    3.3794624520643e-10,
    -1.2430166156640003e-11,
)
J1_NEAR = (
    -0.05814382795599107,
    0.08105866038589796,
    0.15151665143806636,
    -0.2595948652859303,
    0.15858376432721838,
    -0.05474581821284725,
    0.012456814392263375,
    -0.0020290394945704573,
    0.00024949458135972767,
    -2.404574866003479e-05,
    1.8684526037182737e-06,
    -1.196708182234105e-07,
    6.43119017895857e-09,
    -2.943016833829492e-10,
    1.1658971884036515e-11,
    -4.0037632815796753e-13,
)
# Y0(x) - 2/pi log(x / 2) J0(x), and (Y1(x) - 2/pi log(x / 2) J1(x) + 2 / (pi x)) / x, in the same
Y0_NEAR = (
    -0.3620273432371452,
    -0.4179207423206952,
    1.360945659965543,
    -0.2124599944206596,
    -0.6193407826302778,
    0.44824604463563333,
    -0.1545367965235697,
    0.03380285696398703,
    -0.0052350276689755,
    0.0006104345644020021,
    -5.581830851725728e-05,
    4.122054319450062e-06,
    -2.51436472719399e-07,
    1.2898090169155057e-08,
    -5.674562050217625e-10,
    2.1435468615998184e-11,
)
Y1_NEAR = (
    0.04510266206869483,
    -0.20760857842830602,
    0.09022750636730927,
    0.12052035426888161,
    -0.12641995056569705,
    0.05439011630794635,
    -0.014131923394262674,
    0.0025271340466825557,
    -0.0003337225700557422,
    3.406363375379881e-05,
    -2.7765056994287677e-06,
    1.8524201757414394e-07,
    -1.0315248361331402e-08,
    4.87102633859335e-10,
    -1.9850545830630388e-11,
    6.991420949733099e-13,
)
# Amplitudes of the cosine and (times x / 8) of the sine beyond 8, in 128 / x^2 - 1: 1e-16
P0_FAR = (
    0.9994572757882519,
    -0.000536367319212998,
    6.13741608125692e-06,
    -2.052744819908975e-07,
    1.2803747958820875e-08,
    -1.212113319927827e-09,
    1.5506348898107537e-10,
    -2.490341621088381e-11,
    4.674986189266031e-12,
    -1.0238327024264009e-12,
    3.4522133160706755e-13,
    -9.956789357075715e-14,
)
Q0_FAR = (
    -0.015555113879513503,
    6.833149099343349e-05,
    -1.4771388337607956e-06,
    7.106214898484435e-08,
    -5.6687032442267705e-09,
    6.432736726927442e-10,
    -9.475742351179434e-11,
    1.7051726884410257e-11,
    -3.4904977440952908e-12,
    8.259713596314508e-13,
    -3.119994376116503e-13,
    9.575735875005847e-14,
)
P1_FAR = (
    1.0009070262780821,
    0.0008988049416705508,
    -7.959694699656698e-06,
    2.4536766267949663e-07,
    -1.4708498675907175e-08,
    1.360300632416571e-09,
    -1.7137215568191013e-10,
    2.722599260495964e-11,
    -5.072230977922283e-12,
    1.104039648785332e-12,
    -3.6942891113569033e-13,
    1.0611465423215105e-13,
)
Q1_FAR = (
    0.04677687402744896,
    -9.621458822053857e-05,
    1.821201852408518e-06,
    -8.291960750207848e-08,
    6.420118927317563e-09,
    -7.151057862334875e-10,
    1.0400745817311543e-10,
    -1.8544350761823707e-11,
    3.771644965774865e-12,
    -8.87712379064879e-13,
    3.3289005448364253e-13,
    -1.0179381589087164e-13,
)
# K0(x) + log(x / 2) I0(x), and (K1(x) - log(x / 2) I1(x) - 1 / x) / x, in x^2 / 2 - 1 on 0 < x <= 2
K0_NEAR = (
    -0.30362077291575545,
    0.3404973210133806,
    0.07177701034240509,
    0.005053392643196092,
    0.0001828055582791554,
    4.0545066199495615e-06,
    6.093361894172149e-08,
    6.623013277190278e-10,
    5.4525646625978115e-12,
    3.518611978846953e-14,
)
K1_NEAR = (
    -0.057455856135205326,
    -0.10866462148495122,
    -0.013254642948920608,
    -0.0006724746609653153,
    -1.910976234234459e-05,
    -3.495829795100053e-07,
    -4.473708980740458e-09,
    -4.235477489434306e-11,
    -3.089218079034393e-13,
    -1.7896554238196692e-15,
)
# I0(x), I1(x) / x in the same
I0_NEAREST = (
    1.5660829297563506,
    0.6358617281560686,
    0.07358986836105334,
    0.0039285651056368085,
    0.0001198206858163441,
    2.357578987893687e-06,
    3.2362273523765516e-08,
    3.273247845333528e-10,
    2.5398791969620098e-12,
    1.5591642386233993e-14,
)
I1_NEAREST = (
    0.6358617281560686,
    0.1471797367221067,
    0.011785695316910426,
    0.0004792827432651339,
    1.1787894939469932e-05,
    1.941736421611714e-07,
    2.2912734889380462e-09,
    2.031748145462629e-11,
    1.4032637886164457e-13,
    7.760612259882685e-16,
)
# exp(x) sqrt(x) K(x) in 4 / x - 1 on x >= 2: 1e-16
K0_FAR = (
    1.2185953385133905,
    -0.031071461824889582,
    0.0030328918102636862,
    -0.0004797690567564277,
    9.956054789199718e-05,
    -2.473520491312846e-05,
    7.002238201255268e-06,
    -2.1911725471550125e-06,
    7.428402833965886e-07,
    -2.689475930495757e-07,
    1.0267107342235164e-07,
    -4.115047857595318e-08,
    1.7877994022076155e-08,
    -7.831427757725499e-09,
    2.2461449296532357e-09,
    -9.171077661103289e-10,
    1.934023143487487e-09,
    -1.0347633956849988e-09,
    -6.001265682715459e-10,
    3.4902723333410547e-10,
    2.8621152776054687e-10,
    -1.5869915340278063e-10,
)
K1_FAR = (
    1.363151890371342,
    0.1033497377538653,
    -0.005566729880061879,
    0.000735724154897484,
    -0.00013959022007797642,
    3.284386594101113e-05,
    -8.961199256397943e-06,
    2.730035728169913e-06,
    -9.06774470658052e-07,
    3.2302579610742373e-07,
    -1.2172251669359815e-07,
    4.825643590588109e-08,
    -2.0724529834790288e-08,
    9.002864628585638e-09,
    -2.625846421132203e-09,
    1.0718338984465426e-09,
    -2.1434292269089625e-09,
    1.141693901870685e-09,
    6.527051008519092e-10,
    -3.7917045211910943e-10,
    -3.145455278920714e-10,
    1.7392609215952031e-10,
)
LN2 = 0.6931471805599453
TWO_OVER_PI = 0.6366197723675814


def _in_f64(function: Callable[[Function, Value], Value]) -> Callable[[Function, Value], Value]:
    """The function for f32 too, by way of f64."""

    def widened(k: Function, x: Value) -> Value:
        return function(k, x.to(f64)).to(f32) if x.type.element is f32 else function(k, x)

    widened.__name__, widened.__doc__ = function.__name__, function.__doc__
    return widened


# ---------------------------------------------------------------------- modified: i0 i1 k0 k1
def _modified_first(k: Function, x: Value, order: int, scaled: bool) -> Value:
    """I_order(x), times exp(-|x|) if scaled."""
    a = absolute(k, x)
    near = polynomial(k, (a * a) * (1.0 / 64.0), I1_NEAR if order else I0_NEAR)
    if order:
        near = near * a
    far = polynomial(k, 16.0 / a - 1.0, I1_FAR if order else I0_FAR) / k.math("sqrt", a)
    if scaled:
        p, s, t = scaled_exp(k, -a)
        y = k.select(a <= 8.0, near * (p * s * t), far)
        y = k.select(a.eq(INFINITY), 0.0, y)
    else:
        p, s, t = scaled_exp(k, a * 0.5)
        root = p * s * t  # exp(a) itself overflows before I(a)
        y = k.select(a <= 8.0, near, (root * far) * root)
        y = k.select(a.eq(INFINITY), a, y)
    return copysign(k, y, x) if order else y


@_in_f64
def i0(k: Function, x: Value) -> Value:
    """Modified Bessel function of the first kind, order 0."""
    return _modified_first(k, x, 0, False)


@_in_f64
def i0e(k: Function, x: Value) -> Value:
    """exp(-|x|) i0(x)."""
    return _modified_first(k, x, 0, True)


@_in_f64
def i1(k: Function, x: Value) -> Value:
    """Modified Bessel function of the first kind, order 1."""
    return _modified_first(k, x, 1, False)


@_in_f64
def i1e(k: Function, x: Value) -> Value:
    """exp(-|x|) i1(x)."""
    return _modified_first(k, x, 1, True)


def _modified_second(k: Function, x: Value, order: int, scaled: bool) -> Value:
    """K_order(x), times exp(x) if scaled; infinite at 0, NaN below."""
    t = k.fma(x * x, 0.5, -1.0)
    near = polynomial(k, t, I1_NEAREST if order else I0_NEAREST)
    rest = polynomial(k, t, K1_NEAR if order else K0_NEAR)
    logarithm = log(k, x) - LN2
    near = k.fma(logarithm * near, x, k.fma(rest, x, 1.0 / x)) if order else k.fma(-logarithm, near, rest)
    p, s, u = scaled_exp(k, x if scaled else -x)
    far = polynomial(k, 4.0 / x - 1.0, K1_FAR if order else K0_FAR) / k.math("sqrt", x)
    if scaled:
        near = (near * p * s) * u
    else:
        far = (far * p * s) * u
    y = k.select(x <= 2.0, near, far)
    y = k.select(x <= 0.0, k.select(x < 0.0, k.const(x.type, NAN), k.const(x.type, INFINITY)), y)
    return k.select(x.eq(INFINITY), 0.0, y)


@_in_f64
def k0(k: Function, x: Value) -> Value:
    """Modified Bessel function of the second kind, order 0."""
    return _modified_second(k, x, 0, False)


@_in_f64
def k1(k: Function, x: Value) -> Value:
    """Modified Bessel function of the second kind, order 1."""
    return _modified_second(k, x, 1, False)


@_in_f64
def scaled_k0(k: Function, x: Value) -> Value:
    """exp(x) k0(x)."""
    return _modified_second(k, x, 0, True)


@_in_f64
def scaled_k1(k: Function, x: Value) -> Value:
    """exp(x) k1(x)."""
    return _modified_second(k, x, 1, True)


# ---------------------------------------------------------------------- j0 j1 y0 y1
def _far_waves(k: Function, a: Value, order: int) -> tuple[Value, Value]:
    """(J, Y) of the order for a > 8: sqrt(2 / (pi a)) (P cos + Q sin) of a - (2 order + 1) pi / 4."""
    s, c = sine_and_cosine(k, a)
    root = 0.7071067811865476
    cosine, sine = ((s - c) * root, (s + c) * -root) if order else ((c + s) * root, (s - c) * root)
    inverse = 8.0 / a
    t = k.fma(inverse * inverse, 2.0, -1.0)
    p = polynomial(k, t, P1_FAR if order else P0_FAR)
    q = polynomial(k, t, Q1_FAR if order else Q0_FAR) * inverse
    amplitude = k.math("sqrt", inverse * (TWO_OVER_PI / 8.0))
    return amplitude * k.fma(p, cosine, -(q * sine)), amplitude * k.fma(p, sine, q * cosine)


def _near_wave(k: Function, a: Value, coefficients: Sequence[float], order: int) -> Value:
    """A polynomial in a^2 / 32 - 1, times a for order 1; a <= 8."""
    y = polynomial(k, k.fma(a * a, 1.0 / 32.0, -1.0), coefficients)
    return y * a if order else y


def _first(k: Function, x: Value, order: int) -> Value:
    a = absolute(k, x)
    near = _near_wave(k, a, J1_NEAR if order else J0_NEAR, order)
    y = k.select(a <= 8.0, near, _far_waves(k, a, order)[0])
    if not order:
        return y
    return k.select(x < 0.0, -y, y)


def _second(k: Function, x: Value, order: int) -> Value:
    wave = _near_wave(k, x, J1_NEAR if order else J0_NEAR, order)
    near = k.fma((log(k, x) - LN2) * TWO_OVER_PI, wave, _near_wave(k, x, Y1_NEAR if order else Y0_NEAR, order))
    if order:
        near = near - TWO_OVER_PI / x
    y = k.select(x <= 8.0, near, _far_waves(k, x, order)[1])
    return k.select(x <= 0.0, k.select(x < 0.0, k.const(x.type, NAN), k.const(x.type, -INFINITY)), y)


@_in_f64
def j0(k: Function, x: Value) -> Value:
    """Bessel function of the first kind, order 0."""
    return _first(k, x, 0)


@_in_f64
def j1(k: Function, x: Value) -> Value:
    """Bessel function of the first kind, order 1."""
    return _first(k, x, 1)


@_in_f64
def y0(k: Function, x: Value) -> Value:
    """Bessel function of the second kind, order 0; -inf at 0, NaN below."""
    return _second(k, x, 0)


@_in_f64
def y1(k: Function, x: Value) -> Value:
    """Bessel function of the second kind, order 1; -inf at 0, NaN below."""
    return _second(k, x, 1)


@_in_f64
def spherical_j0(k: Function, x: Value) -> Value:
    """sin(x) / x; 1 at 0, 0 at infinity."""
    y = sin(k, x) / x
    return k.select(x.eq(0.0), 1.0, k.select(absolute(k, x).eq(INFINITY), 0.0, y))
