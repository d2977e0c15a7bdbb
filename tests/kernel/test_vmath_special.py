"""Special functions of vector math against mpmath, on a few hundred points each: they take milliseconds there."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from flambeau.kernel import compile as compiler
from flambeau.kernel import target
from tests.kernel.test_vmath import DTYPES, TYPES, build, evaluate

mpmath = pytest.importorskip("mpmath")
mpf = mpmath.mpf

Ranges = tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of one argument, mpmath's form of it, where to look, the relative error allowed, and the absolute one beside zeros."""

    name: str
    reference: Callable
    ranges: Ranges
    relative: float = 1e-14
    absolute: float = 0.0
    constants: tuple[int, ...] = ()
    count: int = 40  # points in each range

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.constants)])


def erfcx(x):
    return mpmath.exp(x * x) * mpmath.erfc(x)


def ndtri(p):
    """By bisection on the logarithm: mpmath has none for small p."""
    start = -mpmath.sqrt(-2 * mpmath.log(min(p, 1 - p)))
    x = mpmath.findroot(lambda t: mpmath.log(mpmath.erfc(-t / mpmath.sqrt(2)) / 2) - mpmath.log(min(p, 1 - p)), start)
    return x if p < 0.5 else -x


def log_ndtr(x):
    return (
        mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2)
        if x < 5
        else mpmath.log1p(-mpmath.erfc(x / mpmath.sqrt(2)) / 2)
    )


def lgamma(x):
    return mpmath.log(abs(mpmath.gamma(x))) if x < 100 else mpmath.loggamma(x)


AROUND_ZERO: Ranges = ((-10, 10), (-0.5, 0.5), (-60, 60))
POSITIVE: Ranges = ((0, 2.2), (1.9, 9), (7, 60))
FEW = 10  # points in each range where mpmath is slow
CASES = [
    Case("ndtr", lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2, ((-8, 8), (-1, 1)), 2e-14),
    Case("erf", mpmath.erf, ((-6, 6), (-1, 1), (0.85, 1.05)), 2.5e-16),
    Case("erfc", mpmath.erfc, ((-6, 6), (0.4, 0.6), (0, 26)), 4e-16),
    Case("erfcx", erfcx, ((-20, 3), (0.4, 0.6), (0, 60)), 8e-16),
    Case("erfinv", mpmath.erfinv, ((-1, 1), (-1e-3, 1e-3), (0.999, 1)), 5e-16),
    Case("ndtri", ndtri, ((0, 1), (0, 1e-5), (0.4, 0.6)), 2e-14, 2e-16),
    Case("log_ndtr", log_ndtr, ((-30, 8), (-1.2, -0.8)), 1e-14),
    Case("lgamma", lgamma, ((0, 0.8), (0.8, 2.2), (2.2, 9), (3, 500), (1e5, 1e6)), 1e-14),
    Case("lgamma", lgamma, ((-3, 0), (-20, 0)), 5e-15, 2e-14),
    Case("digamma", mpmath.digamma, ((0, 3), (3, 300)), 3e-15, 3e-15),
    Case("digamma", mpmath.digamma, ((-3.9, 0), (-20, 0)), 3e-13, 3e-13),
    Case("polygamma", lambda x: mpmath.polygamma(1, x), ((-4, 0), (0, 3), (3, 300)), 3e-15, constants=(1,)),
    Case("polygamma", lambda x: mpmath.polygamma(2, x), ((0, 3), (3, 300)), 3e-15, constants=(2,)),
    Case("polygamma", lambda x: mpmath.polygamma(3, x), ((-4, 0), (0, 3), (3, 300)), 1e-14, constants=(3,)),
    Case("i0", lambda x: mpmath.besseli(0, x), (*AROUND_ZERO, (-713, 713)), 3e-15),
    Case("i0e", lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x)), (*AROUND_ZERO, (-800, 800)), 3e-15),
    Case("i1", lambda x: mpmath.besseli(1, x), (*AROUND_ZERO, (-713, 713)), 3e-15),
    Case("i1e", lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)), (*AROUND_ZERO, (-800, 800)), 3e-15),
    Case("k0", lambda x: mpmath.besselk(0, x), POSITIVE, 4e-15, count=FEW),
    Case("k1", lambda x: mpmath.besselk(1, x), POSITIVE, 4e-15, count=FEW),
    Case("scaled_k0", lambda x: mpmath.besselk(0, x) * mpmath.exp(x), (*POSITIVE, (1, 900)), 4e-15, count=FEW),
    Case("scaled_k1", lambda x: mpmath.besselk(1, x) * mpmath.exp(x), (*POSITIVE, (1, 900)), 4e-15, count=FEW),
    Case("j0", lambda x: mpmath.besselj(0, x), AROUND_ZERO, 0, 1e-15),
    Case("j1", lambda x: mpmath.besselj(1, x), AROUND_ZERO, 0, 1e-15),
    Case("j1", lambda x: mpmath.besselj(1, x), ((-1, 1),), 1e-15),
    Case("y0", lambda x: mpmath.bessely(0, x), POSITIVE, 2e-15, 2e-15),
    Case("y1", lambda x: mpmath.bessely(1, x), POSITIVE, 2e-15, 2e-15),
    Case("spherical_j0", mpmath.sinc, AROUND_ZERO, 0, 3e-16),
    Case("airy_ai", mpmath.airyai, ((-4.5, 2), (-10, 0)), 0, 1e-14),
    Case("airy_ai", mpmath.airyai, ((0, 2), (1.9, 2.1), (2, 20)), 4e-14),
]


def points(ranges: Ranges, count: int) -> np.ndarray:
    random = np.random.default_rng(30)
    return np.concatenate([random.uniform(lo, hi, count) for lo, hi in ranges])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_error(case: Case) -> None:
    x = points(case.ranges, case.count)
    got = evaluate(case.name, x, constants=case.constants)
    with mpmath.workprec(110):
        for value, argument in zip(got, x, strict=True):
            exact = case.reference(mpf(float(argument)))
            allowed = max(case.relative * abs(exact), case.absolute)
            assert abs(mpf(float(value)) - exact) <= allowed, f"{case.name}({argument!r}): got {value!r}, exact {exact}"


@pytest.mark.parametrize("case", [c for c in CASES if c.name != "erf"], ids=str)  # erf of f32 has its own polynomials
def test_f32_is_the_rounded_f64_result(case: Case) -> None:
    x = points(case.ranges, 2000).astype(np.float32)
    double = evaluate(case.name, x.astype(np.float64), constants=case.constants)
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_array_equal(evaluate(case.name, x, constants=case.constants), double.astype(np.float32))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_width_gives_the_same_bits(case: Case) -> None:
    x = points(case.ranges, 500)
    native = evaluate(case.name, x, constants=case.constants)
    for width in (0, 32):
        np.testing.assert_array_equal(evaluate(case.name, x, vector_bytes=width, constants=case.constants), native)


INF, NAN = np.inf, np.nan
# function: (argument, value) ...
EDGES: dict[str, list[tuple[float, float]]] = {
    "erf": [(0.0, 0.0), (INF, 1), (-INF, -1), (NAN, NAN)],
    "erfc": [(0.0, 1), (INF, 0), (-INF, 2), (30, 0), (NAN, NAN)],
    "erfcx": [(0.0, 1), (INF, 0), (-INF, INF), (-30, INF), (NAN, NAN)],
    "erfinv": [(0.0, 0), (1, INF), (-1, -INF), (1.5, NAN), (-INF, NAN), (5e-324, 5e-324)],
    "ndtri": [(0.0, -INF), (1, INF), (0.5, 0), (-0.1, NAN), (1.1, NAN), (NAN, NAN)],
    "ndtr": [(0.0, 0.5), (INF, 1), (-INF, 0), (NAN, NAN)],
    "log_ndtr": [(INF, 0), (-INF, -INF), (NAN, NAN)],
    "lgamma": [
        (5e-324, 744.4400719213812),
        *((v, INF) for v in (0.0, -1, -2, INF, -INF, -1e300)),
        (1, 0),
        (2, 0),
        (NAN, NAN),
    ],
    "digamma": [(0.0, -INF), (-0.0, INF), (-1, NAN), (INF, INF), (-INF, NAN), (NAN, NAN)],
    "i0": [(0.0, 1), (INF, INF), (-INF, INF), (800, INF), (NAN, NAN)],
    "i1": [(0.0, 0), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "i0e": [(0.0, 1), (INF, 0), (NAN, NAN)],
    "i1e": [(0.0, 0), (INF, 0), (-INF, 0), (NAN, NAN)],
    "k0": [(0.0, INF), (-1, NAN), (INF, 0), (NAN, NAN)],
    "k1": [(0.0, INF), (-1, NAN), (INF, 0), (NAN, NAN)],
    "scaled_k0": [(0.0, INF), (-1, NAN), (INF, 0), (NAN, NAN)],
    "scaled_k1": [(0.0, INF), (-1, NAN), (INF, 0), (NAN, NAN)],
    "j0": [(0.0, 1), (NAN, NAN)],
    "j1": [(0.0, 0), (-0.0, -0.0), (NAN, NAN)],
    "y0": [(0.0, -INF), (-1, NAN), (NAN, NAN)],
    "y1": [(0.0, -INF), (-1, NAN), (5e-324, -INF), (NAN, NAN)],
    "spherical_j0": [(0.0, 1), (INF, 0), (-INF, 0), (NAN, NAN)],
    "airy_ai": [(INF, 0), (200, 0), (NAN, NAN)],
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    x, expected = np.array(EDGES[name], np.float64).T.copy()
    np.testing.assert_array_equal(evaluate(name, x), expected)


# ---------------------------------------------------------------------- two arguments
def check_pairs(name: str, a: Sequence[float], x: Sequence[float], reference: Callable, relative: float) -> None:
    got = evaluate(name, np.array(a), np.array(x))
    with mpmath.workprec(300):  # mpmath's zeta needs that many for 53 right ones
        for value, first, second in zip(got, a, x, strict=True):
            exact = reference(mpf(float(first)), mpf(float(second)))
            assert abs(mpf(float(value)) - exact) <= relative * abs(exact), (
                f"{name}({first!r}, {second!r}): got {value!r}, exact {exact}"
            )


def test_zeta() -> None:
    random = np.random.default_rng(31)
    check_pairs("zeta", random.uniform(1, 40, 150), random.uniform(0, 60, 150), mpmath.zeta, 3e-15)
    whole = random.integers(2, 9, 40).astype(np.float64)
    check_pairs("zeta", whole, random.uniform(-9, 0, 40), mpmath.zeta, 1e-13)


def test_zeta_edges() -> None:
    s = np.array([1, 0.5, 2, 2, 2.5, INF, INF, INF, 2, NAN])
    q = np.array([3, 3, 0, -2, -0.5, 1, 2, 0.5, INF, 1])
    np.testing.assert_array_equal(evaluate("zeta", s, q), [INF, NAN, INF, INF, NAN, 1, 0, INF, 0, NAN])


GAMMA_PAIRS = {
    "around one": lambda r: (r.uniform(0, 5, 60), r.uniform(0, 8, 60)),
    "small": lambda r: (10 ** r.uniform(-6, 0, 60), 10 ** r.uniform(-8, 1, 60)),
    "medium": lambda r: (r.uniform(5, 60, 60), r.uniform(0, 100, 60)),
    "transition": lambda r: (a := 10 ** r.uniform(1, 4, 60), a + r.normal(0, 2, 60) * np.sqrt(a)),
}


@pytest.mark.parametrize("kind", GAMMA_PAIRS)
def test_incomplete_gamma(kind: str) -> None:
    a, x = GAMMA_PAIRS[kind](np.random.default_rng(32))
    x = np.abs(x)
    check_pairs("gammainc", a, x, lambda a, x: mpmath.gammainc(a, 0, x, regularized=True), 1e-13)
    check_pairs("gammaincc", a, x, lambda a, x: mpmath.gammainc(a, x, mpmath.inf, regularized=True), 1e-13)


def test_incomplete_gamma_edges() -> None:
    a = np.array([0, 0, 1, INF, INF, 2, -1, 1, NAN, 1, 1e300])
    x = np.array([0, 1, 0, 1, INF, INF, 1, -1, 1, NAN, 1])
    lower = np.array([NAN, 1, 0, 0, NAN, 1, NAN, NAN, NAN, NAN, 0])
    np.testing.assert_array_equal(evaluate("gammainc", a, x), lower)
    np.testing.assert_array_equal(evaluate("gammaincc", a, x), 1 - lower)


@pytest.mark.parametrize("type_name", TYPES)
def test_logaddexp(type_name: str) -> None:
    dtype = DTYPES[type_name]
    random = np.random.default_rng(33)
    special = np.array([0, 1, -1, INF, -INF, NAN, 1e30, -1e30, 800])
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    x = np.concatenate([x, random.uniform(-50, 50, 2000)]).astype(dtype)
    y = np.concatenate([y, random.uniform(-50, 50, 2000)]).astype(dtype)
    for name in ("logaddexp", "logaddexp2"):
        with np.errstate(invalid="ignore"):
            exact = getattr(np, name)(x.astype(np.float64), y.astype(np.float64))
        tolerance = 4 * np.finfo(dtype).eps
        np.testing.assert_allclose(evaluate(name, x, y), exact.astype(dtype), rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------- orthogonal polynomials
def chebyshev_v(n, x):
    t = mpmath.acos(x)
    return mpmath.cos((n + 0.5) * t) / mpmath.cos(t / 2)


def chebyshev_w(n, x):
    t = mpmath.acos(x)
    return mpmath.sin((n + 0.5) * t) / mpmath.sin(t / 2)


POLYNOMIALS = {
    "chebyshev_t": mpmath.chebyt,
    "chebyshev_u": mpmath.chebyu,
    "chebyshev_v": chebyshev_v,
    "chebyshev_w": chebyshev_w,
    "hermite_h": mpmath.hermite,
    "hermite_he": lambda n, x: 2 ** (-n / 2) * mpmath.hermite(n, x / mpmath.sqrt(2)),
    "laguerre_l": lambda n, x: mpmath.laguerre(n, 0, x),
    "legendre_p": mpmath.legendre,
}


@pytest.mark.parametrize("name", [*POLYNOMIALS, *(f"shifted_{n}" for n in POLYNOMIALS if "chebyshev" in n)])
def test_orthogonal_polynomials(name: str) -> None:
    shifted, plain = name.startswith("shifted_"), name.removeprefix("shifted_")
    random = np.random.default_rng(34)
    x = random.uniform(0 if shifted else -1, 1, 100)
    n = random.integers(0, 25, 100).astype(np.float64)
    got = evaluate(f"polynomial_{name}", x, n)
    largest: dict[float, float] = {}
    with mpmath.workprec(140):
        exact = [
            POLYNOMIALS[plain](mpf(int(d)), (2 * mpf(float(v)) - 1) if shifted else mpf(float(v)))
            for v, d in zip(x, n, strict=True)
        ]
        for value, degree in zip(exact, n, strict=True):
            largest[degree] = max(largest.get(degree, 1.0), abs(float(value)))
        for value, right, degree in zip(got, exact, n, strict=True):
            assert abs(float(mpf(float(value)) - right)) <= 2e-14 * largest[degree] * (1 + degree / 10), (
                degree,
                value,
                right,
            )


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_degrees(name: str) -> None:
    """Negative degrees are 0, degree 0 is 1, fractions are cut, every lane has its own."""
    x = np.full(64, 0.3)
    n = np.tile([-3.0, -1.0, 0.0, 0.9, 1.0, 1.9, 7.0, 12.0], 8)
    y = evaluate(f"polynomial_{name}", x, n)
    assert not y[n <= -1].any()
    assert (y[(n >= 0) & (n < 1)] == 1).all()
    assert (y[n == 1.9] == y[4]).all()


def test_chebyshev_at_the_ends_does_not_loop() -> None:
    x = np.array([1.0, -1.0, -1.0, 1.0] * 2)
    n = np.array([1e15, 1e15, 1e15 + 1, 3.0] * 2)
    np.testing.assert_array_equal(evaluate("polynomial_chebyshev_t", x, n), [1, 1, -1, 1] * 2)


@pytest.mark.parametrize("machine", ["avx2", "neon"])
def test_no_function_of_libm_is_called(machine: str) -> None:
    chosen = target.named(machine)
    ours = r"vmath_payne_hanek|vmath_zeta_\w+"
    for case in {c.name: c for c in CASES}.values():
        text = compiler.assembly(build(chosen, case.name, "f64", chosen.vector_bytes, 1, case.constants).text(), chosen)
        called = set(re.findall(r"^\s+(?:callq?|bl)\s+([A-Za-z_]\w*)", text, re.MULTILINE))
        assert all(re.fullmatch(ours, name) for name in called), (case.name, called)


def test_erf_of_f32() -> None:
    x = np.concatenate([points(((-5, 5), (-1, 1), (0.85, 1.05)), 300), [0.0, -0.0, INF, -INF, NAN, 1e-40]]).astype(
        np.float32
    )
    got = evaluate("erf", x)
    exact = np.array([float(mpmath.erf(mpf(float(v)))) for v in x])
    assert np.nanmax(np.abs(got - exact) / np.spacing(np.abs(exact).astype(np.float32))) <= 1.3
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    np.testing.assert_array_equal(np.signbit(got[:-3]), np.signbit(x[:-3]))
