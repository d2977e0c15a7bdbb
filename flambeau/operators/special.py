"""Special functions: error functions, gamma functions, Bessel and Airy functions. Orthogonal polynomials are in `polynomials`.

Integers become floats. Series and bounds are in `kernel.vmath`.
"""

from __future__ import annotations

import math

from flambeau.base.lazy import np, scipy_special
from flambeau.ir.kinds import FLOAT
from flambeau.ir.op import REGISTRY, Refused, declare
from flambeau.kernel import vmath
from flambeau.kernel.types import f64
from flambeau.operators.arithmetic import add, mul, neg, reflected_divide, sub, true_divide
from flambeau.operators.elementary import cos, exp, log, one_over
from flambeau.operators.powers import square
from flambeau.operators.rules import Composed, Elementwise, case, chain, pair_vjp, sum_to, unary_samples
from flambeau.operators.selection import where


class Special(Elementwise):
    promotion = FLOAT
    kinds = "buif"
    expensive = True
    methods = ()
    in_place = False
    samples = unary_samples

    def signature(input: Tensor): ...


class Public(Special):
    methods = None
    in_place = True


class Positive(Special):
    domain = (0.1, 3.0)


def slope_by_differences(k, function, a, scale):
    """df/da by the difference of order four, in f64: about 1e-9 of the function over `scale`, the distance on which it changes."""
    wide, step = a.to(f64), scale.to(f64) * 1e-3
    near = function(wide + step) - function(wide - step)
    far = function(wide + step * 2.0) - function(wide - step * 2.0)
    return (near * (2.0 / 3.0) - far * (1.0 / 12.0)) / step


# ---------------------------------------------------------------------- error functions
@declare
class erf(Public):
    """Error function."""

    functions = ("erf", "special.erf")

    def lower(k, x):
        return vmath.erf(k, x)

    def vjp(g, out, input):
        return (mul(g, mul(exp(neg(square(input))), 2.0 / math.sqrt(math.pi))),)

    def reference(x):
        return scipy_special.erf(x)


@declare
class erfc(Public):
    """1 - erf(x), right for large x."""

    functions = ("erfc", "special.erfc")

    def lower(k, x):
        return vmath.erfc(k, x)

    def vjp(g, out, input):
        return (mul(g, mul(exp(neg(square(input))), -2.0 / math.sqrt(math.pi))),)

    def reference(x):
        return scipy_special.erfc(x)


@declare
class erfinv(Public):
    """Inverse of erf; NaN outside [-1, 1]."""

    functions = ("erfinv", "special.erfinv")
    domain = (-0.9, 0.9)

    def lower(k, x):
        return vmath.erfinv(k, x)

    def vjp(g, out, input):
        return (chain(g, mul(exp(square(out)), math.sqrt(math.pi) / 2.0)),)

    def reference(x):
        return scipy_special.erfinv(x)


@declare
class erfcx(Special):
    """exp(x**2) * erfc(x)."""

    functions = ("special.erfcx",)

    def lower(k, x):
        return vmath.erfcx(k, x)

    def vjp(g, out, input):
        return (chain(g, sub(mul(mul(input, out), 2.0), 2.0 / math.sqrt(math.pi))),)

    def reference(x):
        return scipy_special.erfcx(x)


@declare
class ndtr(Special):
    """Distribution function of the standard normal."""

    functions = ("special.ndtr",)

    def lower(k, x):
        return vmath.ndtr(k, x)

    def vjp(g, out, input):
        return (mul(g, mul(exp(mul(square(input), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))),)

    def reference(x):
        return scipy_special.ndtr(x)


@declare
class ndtri(Special):
    """Quantile of the standard normal; NaN outside [0, 1]."""

    functions = ("special.ndtri",)
    domain = (0.05, 0.95)

    def lower(k, x):
        return vmath.ndtri(k, x)

    def vjp(g, out, input):
        return (chain(g, mul(exp(mul(square(out), 0.5)), math.sqrt(2.0 * math.pi))),)

    def reference(x):
        return scipy_special.ndtri(x)


@declare
class log_ndtr(Special):
    """Logarithm of the standard normal's distribution function."""

    functions = ("special.log_ndtr",)

    def lower(k, x):
        return vmath.log_ndtr(k, x)

    def vjp(g, out, input):
        return (mul(g, reflected_divide(erfcx(mul(input, -math.sqrt(0.5))), math.sqrt(2.0 / math.pi))),)

    def reference(x):
        return scipy_special.log_ndtr(x)


@declare
class entr(Special):
    """-x log(x): 0 at 0, -inf below."""

    functions = ("special.entr",)
    domain = (0.1, 3.0)

    def lower(k, x):
        positive = -x * vmath.log(k, x)
        return k.select(
            x.is_nan(),
            x,
            k.select(x > 0.0, positive, k.select(x.eq(0.0), k.const(x.type, 0.0), k.const(x.type, -math.inf))),
        )

    def vjp(g, out, input):
        return (chain(g, sub(-1.0, log(input))),)

    def reference(x):
        return scipy_special.entr(x)


@declare
class logit(Public):
    """log(x / (1 - x)); with `eps` x is limited to [eps, 1 - eps] first."""

    functions = ("logit", "special.logit")
    domain = (0.05, 0.95)

    def signature(input: Tensor, eps=None): ...

    def lower(k, x, eps):
        if eps is not None:
            x = k.minimum(k.maximum(x, eps), 1.0 - eps)
        return vmath.log(k, x / (1.0 - x))

    def vjp(g, out, input, eps):
        ops = REGISTRY
        slope = one_over(mul(input, sub(1.0, input)))
        low, high = (0.0, 1.0) if eps is None else (eps, 1.0 - eps)
        inside = ops["logical_and"](ops["ge"](input, low), ops["le"](input, high))
        return (chain(g, where(inside, slope, math.nan if eps is None else 0)),)

    def reference(x, eps=None):
        return scipy_special.logit(x if eps is None else np.clip(x, eps, 1 - eps))

    def samples(t):
        yield from unary_samples(t)
        yield case(t(3, 4), 0.2)


# ---------------------------------------------------------------------- gamma functions
@declare
class lgamma(Public):
    """Logarithm of the absolute gamma function."""

    functions = ("lgamma", "special.gammaln")
    domain = (0.1, 3.0)

    def lower(k, x):
        return vmath.lgamma(k, x)

    def vjp(g, out, input):
        return (chain(g, digamma(input)),)

    def reference(x):
        return scipy_special.gammaln(x)


@declare
class digamma(Public):
    """Derivative of log gamma."""

    functions = ("digamma", "special.digamma", "special.psi")
    domain = (0.1, 3.0)

    def lower(k, x):
        return vmath.digamma(k, x)

    def vjp(g, out, input):
        return (chain(g, polygamma(input, 1)),)

    def reference(x):
        return scipy_special.digamma(x)


@declare
class polygamma(Positive):
    """The n-th derivative of digamma. (The public function takes n first.) Raises: RuntimeError for a negative n."""

    functions = ()
    in_place = True

    def signature(input: Tensor, n): ...

    def meta(op, input, n):
        if n < 0:
            raise RuntimeError(f"polygamma: polygamma(n, x) does not support negative n, got {n}. Use 0 or more.")
        return Elementwise.meta(op, input, n)

    def lower(k, x, n):
        return vmath.digamma(k, x) if n == 0 else vmath.polygamma(k, x, n)

    def vjp(g, out, input, n):
        return (chain(g, polygamma(input, n + 1)),)

    def reference(x, n):
        return scipy_special.polygamma(n, x)

    def samples(t):
        for n in (0, 1, 2, 5):
            yield case(t(3, 4), n)
        yield case(t(3), -1, raises=(RuntimeError, "negative n"))


@declare
class mvlgamma(Composed):
    """Logarithm of the multivariate gamma function of dimension p. Raises: RuntimeError for p below 1."""

    promotion = FLOAT
    kinds = "uif"
    functions = ("mvlgamma", "special.multigammaln")
    domain = (4.0, 7.0)

    def signature(input: Tensor, p): ...

    def meta(op, input, p):
        if p < 1:
            raise RuntimeError(f"mvlgamma: p has to be greater than or equal to 1, got {p}. Use lgamma for p=1.")
        return Elementwise.meta(op, input, p)

    def body(input, p):
        total = lgamma(input)
        for i in range(1, p):
            total = add(total, lgamma(sub(input, i / 2.0)))
        return add(total, p * (p - 1) / 4.0 * math.log(math.pi)) if p > 1 else total

    def reference(x, p):
        return np.vectorize(lambda v: scipy_special.multigammaln(v, p), otypes=[float])(x)

    def samples(t):
        yield case(t(3, 4), 1)
        yield case(t(3, 4), 3)
        yield case(t(3), 0, raises=(RuntimeError, "greater than or equal to 1"))


class TwoPositive(Elementwise):
    kinds = "f"
    expensive = True
    domain = (0.1, 3.0)

    def signature(input: Tensor, other: Tensor): ...

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 1), t(4))
        yield case(t(3), t(4), raises=(RuntimeError, "must broadcast"))


class Slope(TwoPositive):
    functions = ()
    methods = ()
    in_place = False
    vjp = Refused("it is itself a derivative taken by differences")


@declare
class igamma_slope(Slope):
    """Derivative of the regularised lower incomplete gamma function in its first argument, by differences."""

    def lower(k, a, x):
        y = x.to(f64)
        slope = slope_by_differences(k, lambda b: vmath.gammainc(k, b, y), a, k.minimum(a, 1.0))
        return slope.to(a.type.element)

    def reference(a, x):
        h = 1e-6
        return (scipy_special.gammainc(a + h, x) - scipy_special.gammainc(a - h, x)) / (2 * h)


def incomplete_gradients(g, a, x, sign: float):
    """Gradients of the regularised incomplete gamma functions: of x by the integrand, of a by differences."""
    density = exp(sub(sub(mul(sub(a, 1.0), log(x)), x), lgamma(a)))
    return sum_to(mul(g, mul(igamma_slope(a, x), sign)), a), sum_to(mul(g, mul(density, sign)), x)


@declare
class igamma(TwoPositive):
    """Regularised lower incomplete gamma function of (a, x) = (input, other)."""

    functions = ("igamma", "special.gammainc")

    def lower(k, a, x):
        return vmath.gammainc(k, a, x)

    def vjp(g, out, input, other):
        return incomplete_gradients(g, input, other, 1.0)

    def reference(a, x):
        return scipy_special.gammainc(a, x)


@declare
class igammac(TwoPositive):
    """Regularised upper incomplete gamma function of (a, x) = (input, other)."""

    functions = ("igammac", "special.gammaincc")

    def lower(k, a, x):
        return vmath.gammaincc(k, a, x)

    def vjp(g, out, input, other):
        return incomplete_gradients(g, input, other, -1.0)

    def reference(a, x):
        return scipy_special.gammaincc(a, x)


class Zeta(Elementwise):
    promotion = FLOAT
    kinds = "buif"
    expensive = True
    methods = ()
    in_place = False
    domain = (1.5, 4.0)


@declare
class zeta_above(Zeta):
    """zeta(input + shift, other): what derivatives of zeta are made of."""

    functions = ()

    def signature(input: Operand, other: Operand, shift): ...

    def lower(k, s, q, shift):
        return vmath.zeta(k, s + float(shift), q)

    def vjp(g, out, input, other, shift):
        return zeta_gradients(g, out, input, other, shift)

    def reference(s, q, shift):
        return scipy_special.zeta(s + shift, q)

    def samples(t):
        yield case(t(3, 4), t(3, 4), 1)


@declare
class zeta_slope(Zeta):
    """Derivative of zeta(input + shift, other) in its first argument, by differences."""

    functions = ()
    vjp = Refused("it is itself a derivative taken by differences")

    def signature(input: Operand, other: Operand, shift): ...

    def lower(k, s, q, shift):
        w, s = q.to(f64), s.to(f64) + float(shift)
        slope = slope_by_differences(k, lambda b: vmath.zeta(k, b, w), s, k.minimum(s - 1.0, 1.0))
        return slope.to(q.type.element)

    def reference(s, q, shift):
        h = 1e-6
        return (scipy_special.zeta(s + shift + h, q) - scipy_special.zeta(s + shift - h, q)) / (2 * h)

    samples = zeta_above.rules.samples


def zeta_gradients(g, out, s, q, shift):
    """Gradients of zeta(s + shift, q)."""

    def of_q():
        slope = mul(g, zeta_above(s, q, shift + 1))
        return neg(add(mul(slope, s), slope, alpha=shift) if shift else mul(slope, s))

    return pair_vjp(g, s, q, lambda: mul(g, zeta_slope(s, q, shift)), of_q)


@declare
class zeta(Zeta):
    """Hurwitz zeta function: the sum of (k + other)**-input over k >= 0. The derivative in `input` is taken by differences."""

    functions = ("special.zeta",)

    def signature(input: Operand, other: Operand): ...

    def lower(k, s, q):
        return vmath.zeta(k, s, q)

    def vjp(g, out, input, other):
        return zeta_gradients(g, out, input, other, 0)

    def reference(s, q):
        return scipy_special.zeta(s, q)

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 1), t(4))
        yield case(2.5, t(4))


# ---------------------------------------------------------------------- Bessel functions
@declare
class i0(Public):
    """Modified Bessel function of the first kind, order 0."""

    functions = ("i0", "special.i0")

    def lower(k, x):
        return vmath.i0(k, x)

    def vjp(g, out, input):
        return (chain(g, i1(input)),)

    def reference(x):
        return scipy_special.i0(x)


@declare
class i0e(Special):
    """exp(-|x|) * i0(x)."""

    functions = ("special.i0e",)

    def lower(k, x):
        return vmath.i0e(k, x)

    def vjp(g, out, input):
        return (chain(g, sub(i1e(input), mul(REGISTRY["sgn"](input), out))),)

    def reference(x):
        return scipy_special.i0e(x)


def with_limit(input, limit: float, slope):
    """A slope that has x in a denominator, with its limit at 0."""
    return where(REGISTRY["eq"](input, 0), limit, slope)


@declare
class i1(Special):
    """Modified Bessel function of the first kind, order 1."""

    functions = ("special.i1",)

    def lower(k, x):
        return vmath.i1(k, x)

    def vjp(g, out, input):
        return (chain(g, with_limit(input, 0.5, sub(i0(input), true_divide(out, input)))),)

    def reference(x):
        return scipy_special.i1(x)


@declare
class i1e(Special):
    """exp(-|x|) * i1(x)."""

    functions = ("special.i1e",)

    def lower(k, x):
        return vmath.i1e(k, x)

    def vjp(g, out, input):
        slope = sub(i0e(input), mul(out, add(REGISTRY["sgn"](input), one_over(input))))
        return (chain(g, with_limit(input, 0.5, slope)),)

    def reference(x):
        return scipy_special.i1e(x)


@declare
class modified_bessel_i0(Special):
    """Modified Bessel function of the first kind, order 0 (as `i0`)."""

    functions = ("special.modified_bessel_i0",)

    def lower(k, x):
        return vmath.i0(k, x)

    def vjp(g, out, input):
        return (chain(g, i1(input)),)

    def reference(x):
        return scipy_special.i0(x)


@declare
class modified_bessel_i1(Special):
    """Modified Bessel function of the first kind, order 1 (as `i1`)."""

    functions = ("special.modified_bessel_i1",)

    def lower(k, x):
        return vmath.i1(k, x)

    def vjp(g, out, input):
        return i1.rules.vjp(g, out, input)

    def reference(x):
        return scipy_special.i1(x)


@declare
class modified_bessel_k0(Positive):
    """Modified Bessel function of the second kind, order 0."""

    functions = ("special.modified_bessel_k0",)

    def lower(k, x):
        return vmath.k0(k, x)

    def vjp(g, out, input):
        return (neg(chain(g, modified_bessel_k1(input))),)

    def reference(x):
        return scipy_special.k0(x)


@declare
class modified_bessel_k1(Positive):
    """Modified Bessel function of the second kind, order 1."""

    functions = ("special.modified_bessel_k1",)

    def lower(k, x):
        return vmath.k1(k, x)

    def vjp(g, out, input):
        return (neg(chain(g, add(modified_bessel_k0(input), true_divide(out, input)))),)

    def reference(x):
        return scipy_special.k1(x)


@declare
class scaled_modified_bessel_k0(Positive):
    """exp(x) * modified_bessel_k0(x)."""

    functions = ("special.scaled_modified_bessel_k0",)

    def signature(x: Tensor): ...

    def lower(k, x):
        return vmath.scaled_k0(k, x)

    def vjp(g, out, x):
        return (chain(g, sub(out, scaled_modified_bessel_k1(x))),)

    def reference(x):
        return scipy_special.k0e(x)


@declare
class scaled_modified_bessel_k1(Positive):
    """exp(x) * modified_bessel_k1(x)."""

    functions = ("special.scaled_modified_bessel_k1",)

    def signature(x: Tensor): ...

    def lower(k, x):
        return vmath.scaled_k1(k, x)

    def vjp(g, out, x):
        return (chain(g, sub(sub(out, scaled_modified_bessel_k0(x)), true_divide(out, x))),)

    def reference(x):
        return scipy_special.k1e(x)


@declare
class bessel_j0(Special):
    """Bessel function of the first kind, order 0."""

    functions = ("special.bessel_j0",)

    def lower(k, x):
        return vmath.j0(k, x)

    def vjp(g, out, input):
        return (neg(chain(g, bessel_j1(input))),)

    def reference(x):
        return scipy_special.j0(x)


@declare
class bessel_j1(Special):
    """Bessel function of the first kind, order 1."""

    functions = ("special.bessel_j1",)

    def lower(k, x):
        return vmath.j1(k, x)

    def vjp(g, out, input):
        return (chain(g, with_limit(input, 0.5, sub(bessel_j0(input), true_divide(out, input)))),)

    def reference(x):
        return scipy_special.j1(x)


@declare
class bessel_y0(Positive):
    """Bessel function of the second kind, order 0."""

    functions = ("special.bessel_y0",)

    def lower(k, x):
        return vmath.y0(k, x)

    def vjp(g, out, input):
        return (neg(chain(g, bessel_y1(input))),)

    def reference(x):
        return scipy_special.y0(x)


@declare
class bessel_y1(Positive):
    """Bessel function of the second kind, order 1."""

    functions = ("special.bessel_y1",)

    def lower(k, x):
        return vmath.y1(k, x)

    def vjp(g, out, input):
        return (chain(g, sub(bessel_y0(input), true_divide(out, input))),)

    def reference(x):
        return scipy_special.y1(x)


@declare
class spherical_bessel_j0(Special):
    """sin(x) / x, 1 at 0."""

    functions = ("special.spherical_bessel_j0",)

    def signature(x: Tensor): ...

    def lower(k, x):
        return vmath.spherical_j0(k, x)

    def vjp(g, out, x):
        return (chain(g, with_limit(x, 0.0, true_divide(sub(cos(x), out), x))),)

    def reference(x):
        return scipy_special.spherical_jn(0, x)


@declare
class airy_ai(Special):
    """Airy function of the first kind."""

    functions = ("special.airy_ai",)

    def signature(x: Tensor): ...

    def lower(k, x):
        return vmath.airy_ai(k, x)

    vjp = Refused("the derivative of Ai is a function of its own, which is not here")

    def reference(x):
        return scipy_special.airy(x)[0]
