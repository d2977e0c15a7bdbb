"""Rounding, remainders and integer division, common divisors, the parts of floats.

Integer division by zero gives 0, here and in the remainders; the smallest integer divided by -1 gives itself.
"""

from __future__ import annotations

import math

from flambeau.base.errors import UnsupportedError
from flambeau.base.lazy import np
from flambeau.core.dtype import int32
from flambeau.core.spec import Spec
from flambeau.ir.kinds import FLOAT, NOT_DIFFERENTIABLE, Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel import integers, vmath
from flambeau.kernel.vmath.arithmetic import absolute, bits, copysign, from_bits, integer_type
from flambeau.operators.arithmetic import div, mul, neg, round_quotient
from flambeau.operators.logic import whole
from flambeau.operators.rules import (
    Composed,
    Elementwise,
    binary_samples,
    case,
    common_type,
    pair_samples,
    pair_vjp,
    sum_to,
    unary_samples,
    zeros_like,
)


class Rounding(Elementwise):
    kinds = "uif"
    samples = unary_samples

    def signature(input: Tensor): ...

    def vjp(g, out, input):
        return (zeros_like(input),)


@declare
class floor(Rounding):
    """Largest integer not above each element; integers stay."""

    idempotent = True
    methods = ("floor", "__floor__")

    def lower(k, x):
        return vmath.floor(k, x) if x.type.kind == "f" else x

    def reference(x):
        return np.floor(x)


@declare
class ceil(Rounding):
    """Smallest integer not below each element; integers stay."""

    idempotent = True
    methods = ("ceil", "__ceil__")

    def lower(k, x):
        return vmath.ceil(k, x) if x.type.kind == "f" else x

    def reference(x):
        return np.ceil(x)


@declare
class trunc(Rounding):
    """Elements without their fraction; integers stay."""

    functions = ("trunc", "fix")
    idempotent = True
    methods = ("trunc", "fix", "__trunc__")

    def lower(k, x):
        return vmath.trunc(k, x) if x.type.kind == "f" else x

    def reference(x):
        return np.trunc(x)


@declare
class round_(Rounding):
    """Nearest integer, halves to even; with `decimals`, to that many decimal places (negative: tens, hundreds …).

    Raises: RuntimeError for decimals other than 0 with integers.
    """

    name = "round"
    functions = ("round", "special.round")

    def signature(input: Tensor, *, decimals=0): ...

    def meta(op, input, decimals):
        if decimals and input.dtype.is_integral:
            raise UnsupportedError(
                f"round: decimals must be 0 for integers ('round_cpu' not implemented for '{input.dtype.name}'), "
                f"got {decimals}. Convert with .to(float64)."
            )
        return Elementwise.meta(op, input, decimals)

    def lower(k, x, decimals):
        return vmath.round_decimals(k, x, decimals) if x.type.kind == "f" else x

    def vjp(g, out, input, decimals):
        return (zeros_like(input),)

    def reference(x, *, decimals=0):
        return np.round(x, decimals)

    def samples(t):
        yield from unary_samples(t)
        yield case(t(3, 4), decimals=2)
        yield case(t(3, 4), decimals=-1)


@declare
class frac(Elementwise):
    """The fraction, with the sign of the element. Raises: RuntimeError for integers."""

    kinds = "f"

    def signature(input: Tensor): ...

    def lower(k, x):
        return x - vmath.trunc(k, x)

    def vjp(g, out, input):
        return (g,)

    def reference(x):
        return np.fmod(x, 1)

    samples = unary_samples


# ---------------------------------------------------------------------- integer division and remainders
class Division(Elementwise):
    kinds = "uif"
    samples = binary_samples

    def signature(input: Operand, other: Operand): ...


@declare
class floor_divide(Division):
    """Quotient rounded down, in the promoted type. An integer divided by 0 gives 0 (kernels do not trap)."""

    methods = ("floor_divide", "__floordiv__")
    numbers_only = True
    vjp = NOT_DIFFERENTIABLE

    def lower(k, x, y):
        return round_quotient(k, x, y, "floor")

    def reference(x, y):
        return np.floor_divide(x, y)


@declare
class reflected_floor_divide(Division):
    """`other // input`: what `number // tensor` calls."""

    functions = ()
    methods = ("__rfloordiv__",)
    in_place = False
    vjp = NOT_DIFFERENTIABLE

    def signature(input: Tensor, other: Operand): ...

    def lower(k, x, y):
        return round_quotient(k, y, x, "floor")

    def reference(x, y):
        return np.floor_divide(y, x)


def python_remainder(k, x, y):
    return vmath.remainder(k, x, y) if x.type.kind == "f" else integers.remainder(k, x, y)


@declare
class remainder(Division):
    """Python's `%`: input - other * floor(input / other), with the sign of other. An integer modulo 0 is 0."""

    methods = ("remainder", "__mod__")

    def lower(k, x, y):
        return python_remainder(k, x, y)

    def vjp(g, out, input, other):
        return pair_vjp(g, input, other, lambda: g, lambda: neg(mul(g, div(input, other, rounding_mode="floor"))))

    def reference(x, y):
        return np.remainder(x, y)


@declare
class reflected_remainder(Division):
    """`other % input`: what `number % tensor` calls."""

    functions = ()
    methods = ("__rmod__",)
    in_place = False

    def signature(input: Tensor, other: Operand): ...

    def lower(k, x, y):
        return python_remainder(k, y, x)

    def vjp(g, out, input, other):
        return pair_vjp(g, input, other, lambda: neg(mul(g, div(other, input, rounding_mode="floor"))), lambda: g)

    def reference(x, y):
        return np.remainder(y, x)


@declare
class fmod(Division):
    """C's remainder: input - other * trunc(input / other), with the sign of input. An integer modulo 0 is 0."""

    def signature(input: Tensor, other: Operand): ...

    def lower(k, x, y):
        return vmath.fmod(k, x, y) if x.type.kind == "f" else integers.rest(k, x, y)

    def vjp(g, out, input, other):
        return pair_vjp(g, input, other, lambda: g, lambda: neg(mul(g, div(input, other, rounding_mode="trunc"))))

    def reference(x, y):
        return np.fmod(x, y)


# ---------------------------------------------------------------------- common divisors
class Divisor(Elementwise):
    kinds = "ui"
    vjp = NOT_DIFFERENTIABLE

    def signature(input: Tensor, other: Tensor): ...

    def samples(t):
        yield case(whole(t, 17), whole(t, 17))
        yield case(whole(t, 3, 5), whole(t, 5))
        yield case(t(3), t(3), raises=(NotImplementedError, "dtype must be"))


@declare
class gcd(Divisor):
    """Greatest common divisor, not negative."""

    def lower(k, x, y):
        return integers.gcd(k, x, y)

    def reference(x, y):
        return np.gcd(x, y)


@declare
class lcm(Divisor):
    """Least common multiple, not negative."""

    def lower(k, x, y):
        return integers.lcm(k, x, y)

    def reference(x, y):
        return np.lcm(x, y)


# ---------------------------------------------------------------------- parts of floats
class Parts(Elementwise):
    kinds = "f"
    functions = ()
    methods = ()
    in_place = False
    samples = unary_samples

    def signature(input: Tensor): ...


@declare
class frexp_mantissa(Parts):
    """m of x = m 2^e with 1/2 <= |m| < 1."""

    def lower(k, x):
        return vmath.frexp(k, x)[0]

    def vjp(g, out, input):
        scale = REGISTRY["exp2"](neg(REGISTRY["to_dtype"](frexp_exponent(input), g.spec.dtype)))
        return (mul(g, scale),)

    def reference(x):
        return np.frexp(x)[0]


@declare
class frexp_exponent(Parts):
    """e of x = m 2^e with 1/2 <= |m| < 1, as int32."""

    vjp = NOT_DIFFERENTIABLE

    def types(operands, args):
        return (operands[0].dtype,), int32

    def lower(k, x):
        return vmath.frexp(k, x)[1]

    def reference(x):
        return np.frexp(x)[1]


@declare
class frexp(Composite):
    """(mantissa, exponent) with input = mantissa 2^exponent, 1/2 <= |mantissa| < 1."""

    outputs = 2
    fields = ("mantissa", "exponent")

    def signature(input: Tensor): ...

    def meta(op, input):
        if not input.dtype.is_floating_point:
            raise RuntimeError(
                f"frexp: only supports floating-point dtypes, got {input.dtype.name}. Convert with .to(float32)."
            )
        mantissa = Elementwise.meta(frexp_mantissa, input)
        return mantissa, mantissa.with_dtype(int32)

    def body(input):
        return frexp_mantissa(input), frexp_exponent(input)

    def reference(x):
        return np.frexp(x)

    samples = unary_samples


@declare
class ldexp(Composed):
    """`input * 2**other`; integers become floats."""

    def signature(input: Tensor, other: Tensor): ...

    def types(operands, args):
        power = FLOAT(common_type(operands[1:]))[1]
        d = common_type((operands[0], Spec.of(operands[1].shape, power) if operands[1].ndim else operands[1]))
        d = FLOAT(d)[1]
        return (d, d), d

    def body(input, other):
        return mul(input, REGISTRY["exp2"](other) if hasattr(other, "spec") else 2.0**other)

    def reference(x, n):
        return np.multiply(x, np.exp2(n))

    samples = pair_samples


@declare
class next_float(Elementwise):
    """The float next to `input` in the direction of `other`, of a format with `digits` bits of mantissa."""

    functions = methods = ()
    kinds = "f"

    def signature(input: Tensor, other: Tensor, digits=23): ...

    def lower(k, x, y, digits):
        return vmath.nextafter(k, x, y) if digits == 23 else next_narrow(k, x, y, digits)

    def vjp(g, out, input, other, digits):
        moved = REGISTRY["where"](REGISTRY["ne"](input, other), g, 0.0)  # `other` itself where they are equal
        return sum_to(moved, input), zeros_like(other)

    def reference(x, y, digits=23):
        return np.nextafter(x, y)

    samples = pair_samples


def next_narrow(k, x, y, digits):
    """`nextafter` of float16 (10 digits) and bfloat16 (7), which arrive as exact float32 values."""
    integer = integer_type(x)
    step = 1 << (23 - digits)
    outward = k.select((x < y) ^ (bits(x) < 0), k.const(integer, step), k.const(integer, -step))
    moved = from_bits(k, bits(x) + outward)
    size = absolute(k, x)
    normal, smallest, largest = (2.0**-14, 2.0**-24, 65504.0) if digits == 10 else (0.0, 2.0**-133, None)
    step_up = k.select(x < y, k.const(x.type, smallest), k.const(x.type, -smallest))
    near = x + step_up
    near = k.select(near.eq(0.0), copysign(k, near, x), near)
    moved = k.select(size <= normal, near, moved)  # evenly spaced around 0
    if largest is not None:
        moved = k.select(size > largest, copysign(k, k.const(x.type, largest), x), moved)
    moved = k.select(x.eq(y), y, moved)
    return k.select(x.is_nan() | y.is_nan(), k.const(x.type, math.nan), moved)


@declare
class nextafter(Composed):
    """The float next to `input` in the direction of `other`."""

    kinds = "f"

    def signature(input: Tensor, other: Tensor): ...

    def body(input, other):
        dtype = common_type((input.spec, other.spec))
        return next_float(input, other, {"float16": 10, "bfloat16": 7}.get(dtype.name, 23))

    def reference(x, y):
        return np.nextafter(x, y)

    samples = pair_samples
