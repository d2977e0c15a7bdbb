"""Vector math against references of higher precision: largest error in ulp, special values, one result on every width.

References are NumPy's long double functions (64 bits of mantissa on x86) or mpmath.
"""

from __future__ import annotations

import ctypes
import dataclasses
import platform
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from flambeau.kernel import cache, target, vmath
from flambeau.kernel import compile as compiler
from flambeau.kernel.dsl import Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, f16, f32, f64, i64, ptr

TYPES = {"f32": f32, "f64": f64}
DTYPES = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
mpmath = pytest.importorskip("mpmath")
special = pytest.importorskip("scipy.special")


def build(
    machine: Target,
    name: str,
    type_name: str,
    vector_bytes: int,
    arity: int,
    constants: tuple[int, ...] = (),
    scalef: bool = False,
    tables: bool = False,
) -> Module:
    """outputs[i] = vmath.name(inputs[i] ..., *constants) over [begin, end), whole vectors only."""
    type_: Type = TYPES[type_name]
    lanes = vector_bytes // type_.size
    module = Module(max(128, vector_bytes * 8), native_scalef=scalef, native_tables=tables)
    k = module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])
    slots, begin, end, _ = k.args
    pointers = [k.load(slots, ptr, i) for i in range(arity + 1)]
    with k.range(begin, end, max(1, lanes)) as i:
        inputs = [k.load(p, type_.vec(lanes), i) for p in pointers[:arity]]
        k.store(pointers[arity], FUNCTIONS.get(name, getattr(vmath, name, None))(k, *inputs, *constants), i)
    k.ret()
    return module


# Functions that do not map floats to one float
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "frexp_mantissa": lambda k, x: vmath.frexp(k, x)[0],
    "frexp_exponent": lambda k, x: vmath.frexp(k, x)[1].to(x.type.element),
    "ldexp": lambda k, x, n: vmath.ldexp(k, x, n.to(i64)),
}


def evaluate(
    name: str,
    *inputs: np.ndarray,
    vector_bytes: int | None = None,
    constants: tuple[int, ...] = (),
    scalef: bool = False,
    tables: bool = False,
) -> np.ndarray:
    """vmath's function on arrays of one dtype, on vectors of `vector_bytes` (0: scalars)."""
    type_name = "f32" if inputs[0].dtype == np.float32 else "f64"
    width = target.current().vector_bytes if vector_bytes is None else vector_bytes
    address = cache.address("test_vmath", (name, type_name, width, len(inputs), constants, scalef, tables), build)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)
    count = -(-inputs[0].size // 64) * 64
    padded = [np.ones(count, DTYPES[type_name]) for _ in range(len(inputs) + 1)]
    for whole, part in zip(padded, inputs, strict=False):
        whole[: part.size] = part.ravel()
    slots = np.array([a.ctypes.data for a in padded], np.int64)
    call(slots.ctypes.data, 0, count, 0)
    return padded[-1][: inputs[0].size].reshape(inputs[0].shape)


def errors_ulp(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|got - exact| in units of the last place of exact; infinite where NaN, infinity or overflow disagree."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        _, exponent = np.frexp(np.abs(exact))
        unit = np.ldexp(np.longdouble(1), np.maximum(exponent - info.nmant - 1, info.minexp - info.nmant))
        error = np.abs(got.astype(np.longdouble) - exact) / unit
        infinite = np.isinf(got) | np.isinf(rounded)
        error = np.where(infinite, np.where(got == rounded, 0.0, np.inf), error)
        error = np.where(infinite & (np.minimum(np.abs(got), np.abs(rounded)) == info.max), 1.0, error)
    return np.where(
        np.isnan(got) | np.isnan(exact), np.where(np.isnan(got) & np.isnan(exact), 0.0, np.inf), error
    ).astype(np.float64)


def special_values(dtype: np.dtype) -> np.ndarray:
    info = np.finfo(dtype)
    positive = [
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        3.0,
        10.0,
        info.eps,
        1 + info.eps,
        1 - info.eps / 2,
        info.tiny,
        info.smallest_subnormal,
        info.max,
    ]
    return np.array([*positive, *(-v for v in positive), np.inf, -np.inf, np.nan], dtype)


def samples(dtype: np.dtype, ranges: Sequence[tuple[float, float]], count: int) -> np.ndarray:
    """Special values, `count` points in each range, and as many of any exponent and sign."""
    random = np.random.default_rng(20)
    info = np.finfo(dtype)
    exponents = random.uniform(info.minexp - info.nmant, info.maxexp - 0.01, count)
    with np.errstate(under="ignore"):
        spread = (np.exp2(exponents.astype(np.longdouble)) * random.choice([-1.0, 1.0], count)).astype(dtype)
    return np.concatenate(
        [special_values(dtype), spread, *(random.uniform(lo, hi, count).astype(dtype) for lo, hi in ranges)]
    )


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of one argument, what it should be, where to look, and the largest error allowed (ulp of f32, of f64)."""

    name: str
    reference: Callable[[np.ndarray], np.ndarray]
    ranges: tuple[tuple[float, float], ...]
    bound: tuple[float, float] = (2.0, 2.0)

    def __str__(self) -> str:
        return self.name


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x > 0, 1, e) / (1 + e)


# The bounds are what was measured on denser samples, rounded up: a worse polynomial or a lost low part fails.
CASES = [
    Case("exp", np.exp, ((-1, 1), (-104, 89), (-746, 710)), (0.9, 0.9)),
    Case("exp2", np.exp2, ((-1, 1), (-150, 128), (-1075, 1024)), (0.95, 0.85)),
    Case("expm1", np.expm1, ((-1, 1), (-20, 20), (-100, 710)), (1.65, 1.75)),
    Case("sigmoid", sigmoid, ((-1, 1), (-20, 20), (-110, 20), (-750, 20)), (1.5, 1.5)),
    Case("tanh", np.tanh, ((-1, 1), (-0.3, 0.3), (-25, 25)), (1.75, 1.7)),
    Case("sinh", np.sinh, ((-2, 2), (-90, 90), (-711, 711)), (1.65, 1.65)),
    Case("cosh", np.cosh, ((-2, 2), (-90, 90), (-711, 711)), (1.3, 1.3)),
    Case("asinh", np.arcsinh, ((-2, 2), (-90, 90), (-1e10, 1e10)), (0.51, 1.7)),
    Case("acosh", np.arccosh, ((1, 1.01), (1, 2), (1, 90)), (0.51, 1.5)),
    Case("atanh", np.arctanh, ((-1, 1), (-0.1, 0.1)), (0.51, 1.5)),
    Case("log", np.log, ((0, 2), (0.9, 1.1), (0, 1e4)), (0.95, 0.9)),
    Case("log2", np.log2, ((0, 2), (0.9, 1.1), (0, 1e4)), (0.95, 1.05)),
    Case("log10", np.log10, ((0, 2), (0.9, 1.1), (0, 1e4)), (0.95, 0.95)),
    Case("log1p", np.log1p, ((-1, 1), (-0.1, 0.1), (0, 1e4)), (1.45, 0.95)),
    Case("sin", np.sin, ((-4, 4), (-100, 100), (-2e5, 2e5), (-1e9, 1e9)), (1.85, 1.7)),
    Case("cos", np.cos, ((-4, 4), (-100, 100), (-2e5, 2e5), (-1e9, 1e9)), (1.85, 1.7)),
    Case("tan", np.tan, ((-4, 4), (-100, 100), (-2e5, 2e5), (-1e9, 1e9)), (0.51, 0.9)),
    Case("asin", np.arcsin, ((-1, 1), (0.4, 0.6), (0.99, 1)), (0.65, 0.65)),
    Case("acos", np.arccos, ((-1, 1), (0.4, 0.6), (0.99, 1)), (0.65, 0.65)),
    Case("atan", np.arctan, ((-1, 1), (-10, 10)), (0.85, 0.85)),
    Case("sqrt", np.sqrt, ((0, 1), (0, 1e4)), (0.5, 0.5)),
    Case("rsqrt", lambda x: 1 / np.sqrt(x), ((0, 1), (0, 1e4)), (1.5, 1.5)),
    Case("cbrt", np.cbrt, ((-1, 1), (-1e3, 1e3)), (0.51, 0.51)),
    Case("floor", np.floor, ((-3, 3),), (0, 0)),
    Case("ceil", np.ceil, ((-3, 3),), (0, 0)),
    Case("trunc", np.trunc, ((-3, 3),), (0, 0)),
    Case("round", np.rint, ((-3, 3),), (0, 0)),
    Case("frexp_mantissa", lambda x: np.frexp(x)[0], ((-3, 3),), (0, 0)),
    Case("frexp_exponent", lambda x: np.frexp(x)[1].astype(x.dtype), ((-3, 3),), (0, 0)),
]

long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason=f"long double is double on {platform.machine()}"
)


@long_double
@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_error_in_ulp(case: Case, type_name: str) -> None:
    x = samples(DTYPES[type_name], case.ranges, 30000)
    got = evaluate(case.name, x)
    with np.errstate(all="ignore"):
        # frexp must see the type itself: its exponent range differs from long double's
        exact = case.reference(x if case.name.startswith("frexp") else x.astype(np.longdouble)).astype(np.longdouble)
    error = errors_ulp(got, exact)
    worst = int(error.argmax())
    assert error[worst] <= case.bound[type_name == "f64"], f"x {x[worst]!r}: got {got[worst]!r}, exact {exact[worst]!r}"
    zeros = exact == 0
    assert np.array_equal(np.signbit(got[zeros]), np.signbit(exact[zeros])), f"sign of zero at {x[zeros]}"


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_width_gives_the_same_bits(case: Case, type_name: str) -> None:
    x = samples(DTYPES[type_name], case.ranges, 2000)
    native = evaluate(case.name, x)
    results = [evaluate(case.name, x, vector_bytes=n) for n in (0, 16, 32)]
    with target.override("avx2") if target.current().arch == "x86_64" else target.override("native"):
        results.append(evaluate(case.name, x, vector_bytes=32))
    for other in results:
        np.testing.assert_array_equal(other, native)


@pytest.mark.isa("avx512f", "avx512vl")
@pytest.mark.parametrize("vector_bytes", [32, 64])
@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("name", ["exp", "exp2", "sigmoid"])
def test_scalef_gives_the_same_bits(name: str, type_name: str, vector_bytes: int) -> None:
    x = samples(DTYPES[type_name], ((-1, 1), (-160, 140), (-1100, 1030)), 10000)
    plain = evaluate(name, x, vector_bytes=vector_bytes)
    np.testing.assert_array_equal(evaluate(name, x, vector_bytes=vector_bytes, scalef=True), plain)


# ---------------------------------------------------------------------- tables in registers
TABLE_RANGES = ((-1, 1), (-0.14, 0.14), (-6, 6), (-1e-3, 1e-3), (3, 6), (-6, -3))


@pytest.mark.isa("avx512f", "avx512vl")
@pytest.mark.parametrize("name", ["erf", "gelu", "tanh", "sigmoid"])
def test_tables_give_the_same_bits_on_every_width(name: str) -> None:
    x = samples(DTYPES["f32"], TABLE_RANGES, 3000)
    plain = evaluate(name, x, vector_bytes=64, tables=True)
    for width in (0, 16, 32, 128):
        np.testing.assert_array_equal(evaluate(name, x, vector_bytes=width, tables=True), plain)


@long_double
@pytest.mark.isa("avx512f", "avx512vl")
def test_erf_by_tables() -> None:
    x = samples(DTYPES["f32"], TABLE_RANGES, 200000)
    got = evaluate("erf", x, tables=True)
    exact = special.erf(x.astype(np.float64)).astype(np.longdouble)  # good to 1e-16
    exact[np.isnan(x)] = np.nan
    error = errors_ulp(got, exact)
    assert error.max() <= 1.75, f"at {x[error.argmax()]!r}"
    assert np.array_equal(np.signbit(got), np.signbit(x) | (np.isnan(x) & np.signbit(got)))


@long_double
@pytest.mark.isa("avx512f", "avx512vl")
@pytest.mark.parametrize(("name", "bound"), [("tanh", 1.1), ("sigmoid", 1.5)])
def test_tanh_and_sigmoid_by_tables(name: str, bound: float) -> None:
    """Float32 with |x| in [2^-31, 120] and every 997th beyond were compared once with double: 1.05 and 1.49."""
    case = next(c for c in CASES if c.name == name)
    x = samples(DTYPES["f32"], ((-1, 1), (-0.3, 0.3), (-10, 10), (-25, 25), (-110, 20)), 100000)
    got = evaluate(name, x, tables=True)
    with np.errstate(all="ignore"):
        exact = case.reference(x.astype(np.longdouble))
    error = errors_ulp(got, exact)
    assert error.max() <= bound, f"at {x[error.argmax()]!r}"
    assert not (np.abs(got) > 1).any()
    if name == "tanh":
        np.testing.assert_array_equal(evaluate(name, -x, tables=True), -got)
        assert np.array_equal(np.signbit(got), np.signbit(x) | (np.isnan(x) & np.signbit(got)))
        assert (got[x > 9.1] == 1).all()


@pytest.mark.isa("avx512f", "avx512vl")
@pytest.mark.parametrize("tables", [False, True])
def test_gelu(tables: bool) -> None:
    """2.5 ulp for positive x, 2^-22.5 |x| for any; with tables 4 ulp down to -3 and 2^-14 down to -5.4."""
    x = samples(DTYPES["f32"], TABLE_RANGES, 100000)
    x = x[np.isfinite(x)]
    got = evaluate("gelu", x, tables=tables)
    exact = (x.astype(np.float64) * special.ndtr(x.astype(np.float64))).astype(np.longdouble)
    error = errors_ulp(got, exact)
    above = (x >= 0) & ((x > 1e-30) | (x == 0))
    assert error[above].max() <= 2.5, f"at {x[above][error[above].argmax()]!r}"
    absolute = np.abs(got - exact)
    assert (absolute <= np.abs(x) * 2.0**-22.5 + 1e-38).all(), f"at {x[absolute.argmax()]!r}"
    if tables:
        near = (x > -3) & (x < -1e-30)
        assert error[near].max() <= 4, f"at {x[near][error[near].argmax()]!r}"
        middle = (x > -5.4) & (x < -1e-30)
        assert (absolute[middle] <= np.abs(exact[middle]) * 2.0**-14).all()


def test_gelu_of_special_values() -> None:
    x = np.array([np.inf, np.nan, 0.0, 100.0, -100.0], np.float32)
    for tables in (False, True):
        got = evaluate("gelu", x, tables=tables and target.current().has("avx512f", "avx512vl"))
        np.testing.assert_array_equal(got, np.array([np.inf, np.nan, 0.0, 100.0, 0.0], np.float32))


# ---------------------------------------------------------------------- two arguments
def pairs(
    dtype: np.dtype, ranges: Sequence[tuple[float, float, float, float]], count: int = 40000
) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special values, random ones of any exponent, and random ones in rectangles."""
    random = np.random.default_rng(21)
    special = special_values(dtype)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    limit = np.finfo(dtype).maxexp - 2
    wide = [
        (np.exp2(random.uniform(-limit, limit, count)) * random.choice([-1, 1], count)).astype(dtype) for _ in range(2)
    ]
    xs = [x, wide[0], *(random.uniform(a, b, count).astype(dtype) for a, b, _, _ in ranges)]
    ys = [y, wide[1], *(random.uniform(c, d, count).astype(dtype) for _, _, c, d in ranges)]
    return np.concatenate(xs), np.concatenate(ys)


@long_double
@pytest.mark.parametrize("type_name", TYPES)
def test_pow(type_name: str) -> None:
    dtype = DTYPES[type_name]
    x, y = pairs(dtype, [(0, 2, -10, 10), (0, 100, -5, 5), (0.9, 1.1, -500, 500), (-10, 10, -3, 3)])
    limit = np.finfo(dtype).maxexp
    exponent = np.random.default_rng(22).uniform(-limit + 2, limit - 2, 40000)
    x = np.concatenate([x, np.exp2(exponent).astype(dtype), -np.arange(1, 33, dtype=dtype)])
    # products near the ends of the range: subnormal results, and where the logarithm's error counts most
    near_limit = np.random.default_rng(23).uniform(-1.1, 1.1, 40000) * limit / exponent
    y = np.concatenate([y, near_limit.astype(dtype), np.arange(32, dtype=dtype)])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    got = evaluate("pow", x, y)
    error = errors_ulp(got, exact)
    worst = int(error.argmax())
    assert error[worst] <= (0.51, 1.0)[type_name == "f64"], (x[worst], y[worst], got[worst], exact[worst])
    assert np.array_equal(np.signbit(got[got == 0]), np.signbit(exact[got == 0]))


@long_double
@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize(("name", "reference", "bound"), [("atan2", np.arctan2, 0.85), ("hypot", np.hypot, 0.51)])
def test_error_in_ulp_of_two_arguments(name: str, reference: Callable, bound: float, type_name: str) -> None:
    x, y = pairs(DTYPES[type_name], [(-1, 1, -1, 1), (-1, 1, -1e3, 1e3), (-1e3, 1e3, -1, 1)])
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.longdouble), y.astype(np.longdouble))
    got = evaluate(name, x, y)
    error = errors_ulp(got, exact)
    worst = int(error.argmax())
    assert error[worst] <= bound, (x[worst], y[worst], got[worst], exact[worst])
    number = ~np.isnan(exact)
    assert np.array_equal(np.signbit(got[number]), np.signbit(exact[number]))


def floor_mod(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    r = np.fmod(x, y)
    return np.where((r != 0) & ((r < 0) != (y < 0)), r + y, r)


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize(
    ("name", "reference"),
    [("fmod", np.fmod), ("remainder", floor_mod), ("floor_divide", np.floor_divide), ("nextafter", np.nextafter)],
)
def test_exact_functions_of_two_arguments(name: str, reference: Callable, type_name: str) -> None:
    x, y = pairs(DTYPES[type_name], [(-100, 100, -10, 10)], 4000)
    with np.errstate(all="ignore"):
        expected = reference(x, y).astype(x.dtype)
    for width in (None, 0, 32):
        got = evaluate(name, x, y, vector_bytes=width)
        np.testing.assert_array_equal(got, expected)
        numbers = ~np.isnan(got)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("type_name", TYPES)
def test_ldexp_rounds_once(type_name: str) -> None:
    x, _ = pairs(DTYPES[type_name], [], 20000)
    n = np.random.default_rng(24).integers(-2300, 2300, x.size)
    with np.errstate(all="ignore"):
        expected = np.ldexp(x, n.astype(np.int32))
    np.testing.assert_array_equal(evaluate("ldexp", x, n.astype(x.dtype)), expected)


@pytest.mark.parametrize("type_name", TYPES)
def test_round_decimals(type_name: str) -> None:
    x = np.array([0.125, 2.5, -2.5, 1234.5678, -0.05, 15, 25, np.inf, np.nan] * 8, DTYPES[type_name])
    for decimals in (0, 1, 2, -1, -2):
        ten = x.dtype.type(10.0 ** abs(decimals))
        expected = np.rint(x * ten) / ten if decimals >= 0 else np.rint(x / ten) * ten
        np.testing.assert_array_equal(evaluate("round_decimals", x, constants=(decimals,)), expected)


# ---------------------------------------------------------------------- known hard places
def test_sine_far_out() -> None:
    """Arguments closest to a multiple of pi / 2 (Kahan; Ng's list) and the largest float."""
    hard = [
        6381956970095103.0 * 2.0**797,
        6411027962775774.0 * 2.0**-48,
        2.0**1023,
        np.finfo(np.float64).max,
        1e22,
        1.2345e19,
    ]
    x = np.resize(np.array(hard), 64)
    with mpmath.workprec(1300):
        for name in ("sin", "cos", "tan"):
            exact = np.array([float(getattr(mpmath, name)(mpmath.mpf(v))) for v in x])
            np.testing.assert_array_max_ulp(evaluate(name, x), exact, 2)


def test_angles_are_right_beside_huge_ones() -> None:
    """The slow path of one lane leaves its neighbours alone."""
    x = np.linspace(-3, 3, 64).astype(np.float32)
    calm = evaluate("sin", x)
    x[5] = 1e30
    x[40] = np.inf
    mixed = evaluate("sin", x)
    keep = (np.arange(64) != 5) & (np.arange(64) != 40)
    np.testing.assert_array_equal(mixed[keep], calm[keep])
    assert np.isnan(mixed[40])
    assert mixed[5] == np.float32(np.sin(np.float64(np.float32(1e30))))


@pytest.mark.parametrize("type_name", TYPES)
def test_powers_of_two_are_exact(type_name: str) -> None:
    info = np.finfo(DTYPES[type_name])
    n = np.arange(info.minexp - info.nmant, info.maxexp).astype(info.dtype)
    powers = np.ldexp(info.dtype.type(1), n.astype(np.int32))
    np.testing.assert_array_equal(evaluate("exp2", n), powers)
    np.testing.assert_array_equal(evaluate("log2", powers), n)


@pytest.mark.parametrize("type_name", TYPES)
def test_sine_stays_within_one(type_name: str) -> None:
    random = np.random.default_rng(25)
    peaks = (random.integers(0, 1000, 100000) * (np.pi / 2) + random.normal(0, 1e-3, 100000)).astype(DTYPES[type_name])
    assert np.abs(evaluate("sin", peaks)).max() <= 1
    assert np.abs(evaluate("cos", peaks)).max() <= 1


def test_masked_softmax_terms_are_zero() -> None:
    x = np.full(64, -np.inf, np.float32)
    assert not evaluate("exp", x).any()


def test_half_must_be_converted_first() -> None:
    k = Module().function("kernel", [("x", f16)])
    with pytest.raises(TypeError, match="f32 or f64"):
        vmath.exp(k, k.args[0])


# ---------------------------------------------------------------------- code
@pytest.mark.parametrize(("machine", "width"), [("avx512", 64), ("avx2", 32), ("neon", 16)])
def test_no_function_of_libm_is_called(machine: str, width: int) -> None:
    chosen = target.named(machine)
    for case in CASES:
        for type_name in TYPES:
            text = compiler.assembly(build(chosen, case.name, type_name, width, 1).text(), chosen)
            called = set(re.findall(r"^\s+(?:callq?|bl)\s+([A-Za-z_]\w*)", text, re.MULTILINE))
            assert called <= {"vmath_payne_hanek"}, (case.name, type_name)
