"""Vector math: functions of f32 and f64 values, scalars or vectors, printed as generic IR.

    y = vmath.tanh(k, x)                     # k: a dsl.Function, x: a Value

    arithmetic      polynomials, bits of floats, double words
    reduction       angles modulo pi
    exponential     exp exp2 expm1 sigmoid tanh
    logarithm       log log2 log10 log1p pow
    trigonometric   sin cos tan
    roots           sqrt rsqrt
    error_function  erf erfc

No libm: every line is one instruction on AVX2, AVX-512 and NEON. Errors in ulp are asserted in tests/kernel/test_vmath.py.
f16 and bf16: convert to f32 first. May not know: tensors, targets. Entry: the names below.
"""

from flambeau.kernel.vmath.error_function import erf, erfc
from flambeau.kernel.vmath.exponential import exp, exp2, expm1, sigmoid, tanh
from flambeau.kernel.vmath.logarithm import log, log1p, log2, log10, pow
from flambeau.kernel.vmath.roots import rsqrt, sqrt
from flambeau.kernel.vmath.trigonometric import cos, sin, tan

__all__ = [
           "cos",
           "erf",
           "erfc",
           "exp",
           "exp2",
           "expm1",
           "log",
           "log1p",
           "log2",
           "log10",
           "pow",
           "rsqrt",
           "sigmoid",
           "sin",
           "sqrt",
           "tan",
           "tanh",
]
