"""Special functions: error functions, gamma functions, Bessel and Airy functions. Orthogonal polynomials are in `polynomials`.

Integers become floats. Series and bounds are in `kernel.vmath`.
"""

from __future__ import annotations

import math

from flambeau.base.errors import UnsupportedError
from flambeau.base.lazy import np, scipy_special
from flambeau.core.spec import Spec
from flambeau.ir.kinds import FLOAT, External
from flambeau.ir.op import REGISTRY, Refused, declare
from flambeau.kernel import vmath
from flambeau.operators.arithmetic import add, mul, neg, reflected_divide, sub, true_divide
from flambeau.operators.elementary import cos, exp, log, one_over
from flambeau.operators.powers import square
from flambeau.operators.rules import Composed, Elementwise, case, chain, pair_vjp, sum_to, takes_gradient, unary_samples
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


@declare
class refused_gradient(External):
    """Stands for a gradient that there is no formula for; raises when it is wanted."""

    functions = ()
    methods = ()

    def signature(like: Tensor, reason): ...

    def meta(op, like, reason):
        return Spec.of(like.shape, like.dtype, like.device)

    def run(ins, outs, args):
        raise UnsupportedError(args[1])

    vjp = Refused("it stands for a gradient that does not exist")

    def reference(like, reason):
        return np.zeros_like(like)

    def samples(t):
        return iter(())


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
        return k.select(x.is_nan(), x, k.select(x > 0.0, positive, k.select(x.eq(0.0), k.const(x.type, 0.0), k.const(x.type, -math.inf))))

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
        slope = chain(g, one_over(mul(input, sub(1.0, input))))
        low, high = (0.0, 1.0) if eps is None else (eps, 1.0 - eps)
        inside = ops["logical_and"](ops["ge"](input, low), ops["le"](input, high))
        return (where(inside, slope, math.nan if eps is None else 0),)

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


class Incomplete(Elementwise):
    kinds = "f"
    expensive = True
    domain = (0.1, 3.0)

    def signature(input: Tensor, other: Tensor): ...

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 1), t(4))
        yield case(t(3), t(4), raises=(RuntimeError, "must broadcast"))


def incomplete_gradients(g, a, x, sign: float):
    """Gradients of the regularised incomplete gamma functions: of x by the integrand; there is none of a."""
    density = exp(sub(sub(mul(sub(a, 1.0), log(x)), x), lgamma(a)))
    of_a = refused_gradient(a, "igamma: the derivative in `input` (a) has no closed form here. Detach it, or differentiate numerically.")
    return of_a if takes_gradient(a) else None, sum_to(mul(g, mul(density, sign)), x)


@declare
class igamma(Incomplete):
    """Regularised lower incomplete gamma function of (a, x) = (input, other)."""

    functions = ("igamma", "special.gammainc")

    def lower(k, a, x):
        return vmath.gammainc(k, a, x)

    def vjp(g, out, input, other):
        return incomplete_gradients(g, input, other, 1.0)

    def reference(a, x):
        return scipy_special.gammainc(a, x)


@declare
class igammac(Incomplete):
    """Regularised upper incomplete gamma function of (a, x) = (input, other)."""

    functions = ("igammac", "special.gammaincc")

    def lower(k, a, x):
        return vmath.gammaincc(k, a, x)

    def vjp(g, out, input, other):
        return incomplete_gradients(g, input, other, -1.0)

    def reference(a, x):
        return scipy_special.gammaincc(a, x)


@declare
class zeta(Elementwise):
    """Hurwitz zeta function: the sum of (k + other)**-input over k >= 0."""

    promotion = FLOAT
    kinds = "buif"
    expensive = True
    functions = ("special.zeta",)
    methods = ()
    in_place = False
    domain = (1.5, 4.0)

    def signature(input: Operand, other: Operand): ...

    def lower(k, s, q):
        return vmath.zeta(k, s, q)

    def vjp(g, out, input, other):
        refused = "zeta: the derivative in `input` has no closed form here. Detach it, or differentiate numerically."
        return pair_vjp(g, input, other, lambda: refused_gradient(out, refused),
                        lambda: neg(mul(g, mul(input, zeta(add(input, 1.0), other)))))

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


