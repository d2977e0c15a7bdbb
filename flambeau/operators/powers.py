"""Powers, roots and lengths."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import bool_, complex128, float64, get_default_dtype, int64
from flambeau.ir.kinds import FLOAT
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel import complex_math, integers, vmath
from flambeau.kernel.complexes import Complex
from flambeau.operators.arithmetic import mul, neg, reflected_divide
from flambeau.operators.rules import (
    Composed,
    Elementwise,
    case,
    chain,
    common_type,
    conjugate,
    in_type_of,
    pair_samples,
    pair_vjp,
    takes_gradient,
    unary_samples,
    zeros_like,
)
from flambeau.operators.selection import where


def raised(k, x, y):
    """x**y for any kind of value."""
    if isinstance(x, Complex):
        return complex_math.pow(k, x, y)
    if x.type.kind == "b":
        return x | ~y  # False**True is the only False
    return vmath.pow(k, x, y) if x.type.kind == "f" else integers.power(k, x, y)


def power_gradients(g, out, base, exponent, shift=0):
    """Gradients of out = base**(exponent + shift). The shift stays a Python number: beside float64 a run-time one would be rounded."""
    ops = REGISTRY

    def of_base():
        slope = chain(g, power(base, exponent, shift - 1))
        slope = (
            ops["add"](mul(slope, conjugate(exponent)), slope, alpha=shift)
            if shift
            else mul(slope, conjugate(exponent))
        )
        return where(ops["eq"](in_type_of(exponent, out), -shift), 0, slope)

    def of_exponent():
        x = in_type_of(base, out)
        flat = ops["eq"](x, 0)  # there the derivative is 0 for exponents that are positive
        flat = ops["logical_and"](flat, ops["ge"](exponent, -shift)) if not exponent.spec.dtype.is_complex else flat
        return where(flat, 0, chain(g, mul(out, ops["log"](x))))

    return pair_vjp(g, base, exponent, of_base, of_exponent)


@declare
class power(Elementwise):
    """`input ** (exponent + shift)`, elementwise in the promoted type.

    Integers wrap; their negative powers are what truncation leaves.
    """

    functions = ()
    methods = ()
    expensive = True

    def signature(input: Operand, exponent: Operand, shift=0): ...

    def lower(k, x, y, shift):
        return raised(k, x, y + shift if shift else y)

    def vjp(g, out, input, exponent, shift):
        return power_gradients(g, out, input, exponent, shift)

    def reference(x, y, shift=0):
        return np.power(x, y + shift)

    def samples(t):
        yield case(REGISTRY["abs"](t(17)), t(17))
        yield case(REGISTRY["abs"](t(3, 5)), t(5))
        yield case(2.0, t(3, 5))
        yield case(REGISTRY["abs"](t(3, 5)), 1.5)
        yield case(t(2, 3), t(4), raises=(RuntimeError, "must broadcast"))


@declare
class reflected_power(Elementwise):
    """`other ** input`: what `number ** tensor` calls."""

    functions = ()
    methods = ("__rpow__",)
    in_place = False
    expensive = True

    def signature(input: Tensor, other: Operand): ...

    def lower(k, x, y):
        return raised(k, y, x)

    def vjp(g, out, input, other):
        return power_gradients(g, out, other, input)[::-1]

    def reference(x, y):
        return np.power(y, x)

    def samples(t):
        yield case(t(3, 5), 2.0)
        yield case(t(5), 3)


SIMPLE = {0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 1.5}  # exponents worth code of their own


def repeated(x, n: int):
    """x**n for a small n > 0 by squaring."""
    result = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        x = x * x if n else x
    return result


@declare
class power_of_number(Elementwise):
    """`input ** exponent` for one of a few exponents that are part of the code: products and roots instead of a logarithm."""

    functions = ()
    methods = ()

    def signature(input: Tensor, exponent): ...

    def types(operands, args):
        d = operands[0].dtype
        if isinstance(args[1], float) and d.is_integral:
            d = get_default_dtype()
        return (d,), d

    def lower(k, x, exponent):
        if exponent == 0:
            return k.const(x.type, 1)
        if exponent in (0.5, -0.5, 1.5):
            root = complex_math.sqrt(k, x) if isinstance(x, Complex) else vmath.sqrt(k, x)
            return root if exponent == 0.5 else 1.0 / root if exponent == -0.5 else x * root
        result = repeated(x, int(abs(exponent)))
        return result if exponent > 0 else 1.0 / result

    def vjp(g, out, input, exponent):
        if exponent == 0:
            return (zeros_like(input),)
        if exponent == 1:
            return (g,)
        return (chain(g, mul(power_number(input, exponent - 1), exponent)),)

    def reference(x, exponent):
        return np.power(x, exponent)

    def samples(t):
        for exponent in sorted(SIMPLE):
            yield case(REGISTRY["abs"](t(3, 5)), exponent)


def power_number(x, exponent):
    """x to a Python number, by code of its own if that is one of the simple ones."""
    return power_of_number(x, exponent) if exponent in SIMPLE else power(x, exponent)


@declare
class float_power(Composed):
    """`input ** exponent` computed in float64, or in complex128 if an operand is complex."""

    def signature(input: Operand, exponent: Operand): ...

    def types(operands, args):
        d = complex128 if common_type(operands).is_complex else float64
        return (d, d), d

    def body(input, exponent):
        is_complex = any(
            x.spec.dtype.is_complex if hasattr(x, "spec") else isinstance(x, complex) for x in (input, exponent)
        )
        wanted = complex128 if is_complex else float64
        return power(*(REGISTRY["to_dtype"](x, wanted) if takes_gradient(x) else x for x in (input, exponent)))

    def reference(x, y):
        return np.float_power(x, y)

    samples = power.rules.samples


# ---------------------------------------------------------------------- squares and roots
@declare
class square(Elementwise):
    """Each element times itself; bool counts as int64."""

    def signature(input: Tensor): ...

    def types(operands, args):
        d = int64 if operands[0].dtype is bool_ else operands[0].dtype
        return (d,), d

    def lower(k, x):
        return x * x

    def vjp(g, out, input):
        return (mul(g, conjugate(mul(input, 2))),)

    def reference(x):
        return np.square(x)

    samples = unary_samples


@declare
class sqrt(Elementwise):
    """Square root; NaN for negative numbers. Integers become floats."""

    promotion = FLOAT
    domain = (0.0, 3.0)

    def signature(input: Tensor): ...

    def lower(k, x):
        return complex_math.sqrt(k, x) if isinstance(x, Complex) else vmath.sqrt(k, x)

    def vjp(g, out, input):
        return (chain(g, reflected_divide(mul(out, 2), 1)),)

    def reference(x):
        return np.sqrt(x)

    samples = unary_samples


@declare
class rsqrt(Elementwise):
    """One over the square root."""

    promotion = FLOAT
    domain = (0.1, 3.0)

    def signature(input: Tensor): ...

    def lower(k, x):
        return complex_math.rsqrt(k, x) if isinstance(x, Complex) else vmath.rsqrt(k, x)

    def vjp(g, out, input):
        return (chain(g, mul(mul(mul(out, out), out), -0.5)),)

    def reference(x):
        return 1 / np.sqrt(x)

    samples = unary_samples


@declare
class reciprocal(Elementwise):
    """One over each element; integers become floats."""

    promotion = FLOAT
    domain = (0.1, 3.0)

    def signature(input: Tensor): ...

    def lower(k, x):
        return 1.0 / x

    def vjp(g, out, input):
        return (neg(chain(g, mul(out, out))),)

    def reference(x):
        return 1.0 / np.asarray(x)

    samples = unary_samples


@declare
class hypot(Elementwise):
    """sqrt(input**2 + other**2) without overflow on the way."""

    kinds = "f"

    def signature(input: Tensor, other: Tensor): ...

    def lower(k, x, y):
        return vmath.hypot(k, x, y)

    def vjp(g, out, input, other):
        inverse = reflected_divide(out, 1)
        return pair_vjp(g, input, other, lambda: chain(g, mul(input, inverse)), lambda: chain(g, mul(other, inverse)))

    def reference(x, y):
        return np.hypot(x, y)

    samples = pair_samples
