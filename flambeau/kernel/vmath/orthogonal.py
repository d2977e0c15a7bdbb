"""Orthogonal polynomials of an integer degree given at run time: Chebyshev, Hermite, Laguerre, Legendre.

    y = polynomial_legendre_p(k, x, n)       # n: a float value like x, one degree per lane, truncated

Three-term recurrences in f64 (DLMF 18.9) that run to the largest degree among the lanes; Chebyshev's of higher degree use
their trigonometric form inside (-1, 1). Negative degrees give 0. May not know: targets.
"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32, f64
from flambeau.kernel.vmath.arithmetic import NAN, absolute
from flambeau.kernel.vmath.trigonometric import acos, sine_and_cosine

Step = Callable[[Value, Value, Value], Value]
Polynomial = Callable[[Function, Value, Value], Value]


def _recurrence(k: Function, n: Value, first: Value, step: Step, active: Value) -> Value:
    """q_n from q_0 = 1, q_1 = `first`, q_(i+1) = step(i, q_(i-1), q_i), in the active lanes."""
    count = k.select(active, n, 0.0)
    i = k.var(n.type, 1.0)
    before, now = k.var(n.type, 1.0), k.var(n.type, first)
    with k.loop_while(lambda: k.any(i.get() < count)):
        going = i.get() < count
        following = step(i.get(), before.get(), now.get())
        before.set(k.select(going, now.get(), before.get()))
        now.set(k.select(going, following, now.get()))
        i.set(i.get() + 1.0)
    return k.select(n.eq(0.0), 1.0, now.get())


def _polynomial(function: Callable[[Function, Value, Value, bool], Value]) -> Polynomial:
    """Degrees truncated, negative ones 0, f32 by way of f64."""

    def whole(k: Function, x: Value, n: Value) -> Value:
        x, n = k.unify(x, n)
        single = x.type.element is f32
        x, n = x.to(f64), k.math("trunc", n.to(f64))
        y = k.select(n < 0.0, 0.0, function(k, x, n, single))
        y = k.select(n.is_nan(), k.const(y.type, NAN), y)
        return y.to(f32) if single else y

    whole.__name__, whole.__doc__ = function.__name__, function.__doc__
    return whole


# ---------------------------------------------------------------------- Chebyshev
def _chebyshev(k: Function, x: Value, n: Value, kind: str) -> Value:
    """First to fourth kind: T U V W."""
    inside = (absolute(k, x) < 1.0) & (n > (6.0 if kind == "t" else 8.0))
    end = absolute(k, x).eq(1.0)
    double = x + x
    first = {"t": x, "u": double, "v": double - 1.0, "w": double + 1.0}[kind]
    low = _recurrence(k, n, first, lambda i, before, now: k.fma(double, now, -before), ~(inside | end))
    # at 1 and -1
    odd = k.math("trunc", n * 0.5).ne(n * 0.5)
    one = k.const(x.type, 1.0)
    sign = k.select(odd, -one, one)
    right, left = {"t": (one, one), "u": (n + 1.0, n + 1.0), "v": (one, n + n + 1.0), "w": (n + n + 1.0, one)}[kind]
    y = k.select(end, k.select(x > 0.0, right, sign * left), low)
    # cos(n t), sin((n + 1) t) / sin(t), cos((n + 1/2) t) / cos(t / 2), sin((n + 1/2) t) / sin(t / 2), x = cos(t)
    t = acos(k, k.select(inside, x, 0.0))
    sine, cosine = sine_and_cosine(k, k.select(inside, n + {"t": 0.0, "u": 1.0, "v": 0.5, "w": 0.5}[kind], 0.0) * t)
    match kind:
        case "t":
            high = cosine
        case "u":
            high = sine / k.math("sqrt", (1.0 - x) * (1.0 + x))
        case "v":
            high = cosine / k.math("sqrt", k.fma(x, 0.5, 0.5))
        case _:
            high = sine / k.math("sqrt", k.fma(x, -0.5, 0.5))
    return k.select(inside, high, y)


@_polynomial
def polynomial_chebyshev_t(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Chebyshev polynomial of the first kind."""
    return _chebyshev(k, x, n, "t")


@_polynomial
def polynomial_chebyshev_u(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Chebyshev polynomial of the second kind."""
    return _chebyshev(k, x, n, "u")


@_polynomial
def polynomial_chebyshev_v(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Chebyshev polynomial of the third kind."""
    return _chebyshev(k, x, n, "v")


@_polynomial
def polynomial_chebyshev_w(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Chebyshev polynomial of the fourth kind."""
    return _chebyshev(k, x, n, "w")


@_polynomial
def polynomial_shifted_chebyshev_t(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Chebyshev polynomial of the first kind in 2 x - 1."""
    return _chebyshev(k, k.fma(x, 2.0, -1.0), n, "t")


@_polynomial
def polynomial_shifted_chebyshev_u(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Chebyshev polynomial of the second kind in 2 x - 1."""
    return _chebyshev(k, k.fma(x, 2.0, -1.0), n, "u")


@_polynomial
def polynomial_shifted_chebyshev_v(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Chebyshev polynomial of the third kind in 2 x - 1."""
    return _chebyshev(k, k.fma(x, 2.0, -1.0), n, "v")


@_polynomial
def polynomial_shifted_chebyshev_w(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Chebyshev polynomial of the fourth kind in 2 x - 1."""
    return _chebyshev(k, k.fma(x, 2.0, -1.0), n, "w")


# ---------------------------------------------------------------------- Hermite, Laguerre, Legendre
def _below_limit(k: Function, n: Value, y: Value, single: bool) -> Value:
    """PyTorch gives NaN where a Hermite polynomial would overflow anyway: beyond degree 128 (f32), 512 (f64)."""
    return k.select(n > (128.0 if single else 512.0), k.const(y.type, NAN), y)


@_polynomial
def polynomial_hermite_h(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Physicists' Hermite polynomial."""
    double = x + x
    active = n <= (128.0 if single else 512.0)
    y = _recurrence(k, n, double, lambda i, before, now: k.fma(double, now, -((i + i) * before)), active)
    return _below_limit(k, n, y, single)


@_polynomial
def polynomial_hermite_he(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Probabilists' Hermite polynomial."""
    active = n <= (128.0 if single else 512.0)
    y = _recurrence(k, n, x, lambda i, before, now: k.fma(x, now, -(i * before)), active)
    return _below_limit(k, n, y, single)


@_polynomial
def polynomial_laguerre_l(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Laguerre polynomial."""
    base = 1.0 - x

    def step(i: Value, before: Value, now: Value) -> Value:
        return k.fma(i + i + base, now, -(i * before)) / (i + 1.0)

    return _recurrence(k, n, base, step, n >= 0.0)


@_polynomial
def polynomial_legendre_p(k: Function, x: Value, n: Value, single: bool) -> Value:
    """Legendre polynomial."""

    def step(i: Value, before: Value, now: Value) -> Value:
        return k.fma((i + i + 1.0) * x, now, -(i * before)) / (i + 1.0)

    return _recurrence(k, n, x, step, n >= 0.0)
