"""Orthogonal polynomials of `special`: value of the polynomial of degree n at each element, by recurrence.

Degrees are truncated to integers; negative ones give 0. May not know: how the recurrences stop (`kernel.vmath.orthogonal`).
"""

from __future__ import annotations

from flambeau.base.lazy import np, scipy_special
from flambeau.ir.kinds import FLOAT
from flambeau.ir.op import Refused, declare
from flambeau.kernel import vmath
from flambeau.operators.rules import Elementwise, case


class Polynomial(Elementwise):
    promotion = FLOAT
    kinds = "buif"
    expensive = True
    methods = ()
    in_place = False
    domain = (-0.9, 0.9)
    vjp = Refused("the derivative is a polynomial of another family, which is not here")

    def signature(input: Operand, n: Operand): ...

    def samples(t):
        yield case(t(3, 5), 3)
        yield case(t(5), 0)
        yield case(t(3, 5), 7.0)
        yield case(t(0, 3), 2)


def on_unit(x):
    """[0, 1] as [-1, 1]."""
    return 2 * np.asarray(x) - 1


def third(n, x):
    """Chebyshev's V by its difference of U."""
    return scipy_special.eval_chebyu(n, x) - scipy_special.eval_chebyu(np.asarray(n) - 1, x)


def fourth(n, x):
    """Chebyshev's W by its sum of U."""
    return scipy_special.eval_chebyu(n, x) + scipy_special.eval_chebyu(np.asarray(n) - 1, x)


@declare
class chebyshev_polynomial_t(Polynomial):
    """Chebyshev polynomial of the first kind of degree n."""

    functions = ("special.chebyshev_polynomial_t",)

    def lower(k, x, n):
        return vmath.polynomial_chebyshev_t(k, x, n)

    def reference(x, n):
        return scipy_special.eval_chebyt(n, x)


@declare
class chebyshev_polynomial_u(Polynomial):
    """Chebyshev polynomial of the second kind of degree n."""

    functions = ("special.chebyshev_polynomial_u",)

    def lower(k, x, n):
        return vmath.polynomial_chebyshev_u(k, x, n)

    def reference(x, n):
        return scipy_special.eval_chebyu(n, x)


@declare
class chebyshev_polynomial_v(Polynomial):
    """Chebyshev polynomial of the third kind of degree n."""

    functions = ("special.chebyshev_polynomial_v",)

    def lower(k, x, n):
        return vmath.polynomial_chebyshev_v(k, x, n)

    def reference(x, n):
        return third(n, x)


@declare
class chebyshev_polynomial_w(Polynomial):
    """Chebyshev polynomial of the fourth kind of degree n."""

    functions = ("special.chebyshev_polynomial_w",)

    def lower(k, x, n):
        return vmath.polynomial_chebyshev_w(k, x, n)

    def reference(x, n):
        return fourth(n, x)


@declare
class shifted_chebyshev_polynomial_t(Polynomial):
    """Chebyshev polynomial of the first kind, on [0, 1] of degree n."""

    functions = ("special.shifted_chebyshev_polynomial_t",)

    def lower(k, x, n):
        return vmath.polynomial_shifted_chebyshev_t(k, x, n)

    def reference(x, n):
        return scipy_special.eval_sh_chebyt(n, x)


@declare
class shifted_chebyshev_polynomial_u(Polynomial):
    """Chebyshev polynomial of the second kind, on [0, 1] of degree n."""

    functions = ("special.shifted_chebyshev_polynomial_u",)

    def lower(k, x, n):
        return vmath.polynomial_shifted_chebyshev_u(k, x, n)

    def reference(x, n):
        return scipy_special.eval_sh_chebyu(n, x)


@declare
class shifted_chebyshev_polynomial_v(Polynomial):
    """Chebyshev polynomial of the third kind, on [0, 1] of degree n."""

    functions = ("special.shifted_chebyshev_polynomial_v",)

    def lower(k, x, n):
        return vmath.polynomial_shifted_chebyshev_v(k, x, n)

    def reference(x, n):
        return third(n, on_unit(x))


@declare
class shifted_chebyshev_polynomial_w(Polynomial):
    """Chebyshev polynomial of the fourth kind, on [0, 1] of degree n."""

    functions = ("special.shifted_chebyshev_polynomial_w",)

    def lower(k, x, n):
        return vmath.polynomial_shifted_chebyshev_w(k, x, n)

    def reference(x, n):
        return fourth(n, on_unit(x))


@declare
class hermite_polynomial_h(Polynomial):
    """Physicist's Hermite polynomial of degree n."""

    functions = ("special.hermite_polynomial_h",)

    def lower(k, x, n):
        return vmath.polynomial_hermite_h(k, x, n)

    def reference(x, n):
        return scipy_special.eval_hermite(np.asarray(n).astype(int), x)


@declare
class hermite_polynomial_he(Polynomial):
    """Probabilist's Hermite polynomial of degree n."""

    functions = ("special.hermite_polynomial_he",)

    def lower(k, x, n):
        return vmath.polynomial_hermite_he(k, x, n)

    def reference(x, n):
        return scipy_special.eval_hermitenorm(np.asarray(n).astype(int), x)


@declare
class laguerre_polynomial_l(Polynomial):
    """Laguerre polynomial of degree n."""

    functions = ("special.laguerre_polynomial_l",)

    def lower(k, x, n):
        return vmath.polynomial_laguerre_l(k, x, n)

    def reference(x, n):
        return scipy_special.eval_laguerre(n, x)


@declare
class legendre_polynomial_p(Polynomial):
    """Legendre polynomial of degree n."""

    functions = ("special.legendre_polynomial_p",)

    def lower(k, x, n):
        return vmath.polynomial_legendre_p(k, x, n)

    def reference(x, n):
        return scipy_special.eval_legendre(n, x)
