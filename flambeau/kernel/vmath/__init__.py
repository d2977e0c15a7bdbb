"""Vector math: functions of f32 and f64 values, scalars or vectors, printed as generic IR.

    y = vmath.tanh(k, x)                     # k: a dsl.Function, x: a Value

    arithmetic      polynomials, bits of floats, double words
    reduction       angles modulo pi
    exponential     exp exp2 expm1 sigmoid tanh
    logarithm       log log2 log10 log1p pow
    hyperbolic      sinh cosh asinh acosh atanh
    trigonometric   sin cos tan asin acos atan atan2
    roots           sqrt rsqrt cbrt hypot
    rounding        floor ceil trunc round fmod remainder floor_divide frexp ldexp nextafter
    error_function  erf erfc

No libm: every line is one instruction on AVX2, AVX-512 and NEON. Errors in ulp are asserted in tests/kernel/test_vmath.py.
f16 and bf16: convert to f32 first. May not know: tensors, targets. Entry: the names below.
"""

from flambeau.kernel.vmath.arithmetic import copysign
from flambeau.kernel.vmath.error_function import erf, erfc
from flambeau.kernel.vmath.exponential import exp, exp2, expm1, sigmoid, tanh
from flambeau.kernel.vmath.hyperbolic import acosh, asinh, atanh, cosh, sinh
from flambeau.kernel.vmath.logarithm import log, log1p, log2, log10, pow
from flambeau.kernel.vmath.roots import cbrt, hypot, rsqrt, sqrt
from flambeau.kernel.vmath.rounding import ceil, floor, floor_divide, fmod, frexp, ldexp, nextafter, remainder, round, round_decimals, trunc
from flambeau.kernel.vmath.trigonometric import acos, asin, atan, atan2, cos, sin, tan

__all__ = [
    "acos",
    "acosh",
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
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmod",
    "frexp",
    "hypot",
    "ldexp",
    "log",
    "log1p",
    "log2",
    "log10",
    "nextafter",
    "pow",
    "remainder",
    "round",
    "round_decimals",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
