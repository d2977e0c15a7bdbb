"""Vector math: functions of f32 and f64 values, scalars or vectors, printed as generic IR.

    y = vmath.tanh(k, x)                     # k: a dsl.Function, x: a Value

    arithmetic        polynomials, bits of floats, double words
    reduction         angles modulo pi
    exponential       exp exp2 expm1 sigmoid tanh
    logarithm         log log2 log10 log1p logaddexp logaddexp2 pow
    hyperbolic        sinh cosh asinh acosh atanh
    trigonometric     sin cos tan asin acos atan atan2
    roots             sqrt rsqrt cbrt hypot
    rounding          floor ceil trunc round fmod remainder floor_divide frexp ldexp nextafter
    error_function    erf gelu erfc erfcx erfinv ndtr ndtri log_ndtr
    gamma             lgamma digamma polygamma zeta
    incomplete_gamma  gammainc gammaincc
    bessel            i0 i0e i1 i1e k0 k1 scaled_k0 scaled_k1 j0 j1 y0 y1 spherical_j0
    airy              airy_ai
    orthogonal        polynomial_chebyshev_t ... polynomial_legendre_p

No libm: every line is one instruction on AVX2, AVX-512 and NEON, and gives the same bits on vectors of any width (erf,
gelu, tanh and sigmoid of f32: with tables in registers, where the module has them, other ones).
Down to `error_function` (erf, erfc) the error is at most 2 ulp, below it 1e-12 of the value or of the oscillation's amplitude;
tests/kernel/test_vmath.py holds the measured bounds. exp, log, tanh, sigmoid, erf, sin and cos of f32 are pure f32.
f16 and bf16: convert to f32 first. May not know: tensors, targets. Entry: the names below.
"""

from flambeau.kernel.vmath.airy import airy_ai
from flambeau.kernel.vmath.arithmetic import copysign
from flambeau.kernel.vmath.bessel import i0, i0e, i1, i1e, j0, j1, k0, k1, scaled_k0, scaled_k1, spherical_j0, y0, y1
from flambeau.kernel.vmath.error_function import erf, erfc, erfcx, erfinv, gelu, log_ndtr, ndtr, ndtri
from flambeau.kernel.vmath.exponential import exp, exp2, exp2_normal, expm1, sigmoid, tanh
from flambeau.kernel.vmath.gamma import digamma, lgamma, polygamma, zeta
from flambeau.kernel.vmath.hyperbolic import acosh, asinh, atanh, cosh, sinh
from flambeau.kernel.vmath.incomplete_gamma import gammainc, gammaincc
from flambeau.kernel.vmath.logarithm import log, log1p, log2, log10, logaddexp, logaddexp2, pow
from flambeau.kernel.vmath.orthogonal import (
    polynomial_chebyshev_t,
    polynomial_chebyshev_u,
    polynomial_chebyshev_v,
    polynomial_chebyshev_w,
    polynomial_hermite_h,
    polynomial_hermite_he,
    polynomial_laguerre_l,
    polynomial_legendre_p,
    polynomial_shifted_chebyshev_t,
    polynomial_shifted_chebyshev_u,
    polynomial_shifted_chebyshev_v,
    polynomial_shifted_chebyshev_w,
)
from flambeau.kernel.vmath.roots import cbrt, hypot, rsqrt, sqrt
from flambeau.kernel.vmath.rounding import (
    ceil,
    floor,
    floor_divide,
    fmod,
    frexp,
    ldexp,
    nextafter,
    remainder,
    round,
    round_decimals,
    trunc,
)
from flambeau.kernel.vmath.trigonometric import acos, asin, atan, atan2, cos, sin, tan

__all__ = [
    "acos",
    "acosh",
    "airy_ai",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp",
    "exp2",
    "exp2_normal",
    "expm1",
    "floor",
    "floor_divide",
    "fmod",
    "frexp",
    "gammainc",
    "gammaincc",
    "gelu",
    "hypot",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "j0",
    "j1",
    "k0",
    "k1",
    "ldexp",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_ndtr",
    "logaddexp",
    "logaddexp2",
    "ndtr",
    "ndtri",
    "nextafter",
    "polygamma",
    "polynomial_chebyshev_t",
    "polynomial_chebyshev_u",
    "polynomial_chebyshev_v",
    "polynomial_chebyshev_w",
    "polynomial_hermite_h",
    "polynomial_hermite_he",
    "polynomial_laguerre_l",
    "polynomial_legendre_p",
    "polynomial_shifted_chebyshev_t",
    "polynomial_shifted_chebyshev_u",
    "polynomial_shifted_chebyshev_v",
    "polynomial_shifted_chebyshev_w",
    "pow",
    "remainder",
    "round",
    "round_decimals",
    "rsqrt",
    "scaled_k0",
    "scaled_k1",
    "sigmoid",
    "sin",
    "sinh",
    "spherical_j0",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "y0",
    "y1",
    "zeta",
]
