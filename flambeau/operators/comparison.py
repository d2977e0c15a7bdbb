"""Comparisons and tests of elements: bool results, no gradients."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import bool_, get_default_dtype
from flambeau.ir.kinds import COMPARE, FLOAT_TO_BOOL, NOT_DIFFERENTIABLE
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel.complexes import Complex
from flambeau.kernel.vmath import arithmetic as floats
from flambeau.operators.rules import Composed, Elementwise, binary_samples, case, unary_samples


class Comparison(Elementwise):
    promotion = COMPARE
    vjp = NOT_DIFFERENTIABLE
    samples = binary_samples

    def signature(input: Tensor, other: Operand): ...


class Order(Comparison):
    kinds = "buif"
    instead = "Complex numbers have no order: compare abs() or real parts."


@declare
class eq(Comparison):
    """Where the operands are equal."""

    methods = ("eq", "__eq__")

    def lower(k, x, y):
        return x.eq(y)

    def reference(x, y):
        return np.equal(x, y)


@declare
class ne(Comparison):
    """Where the operands differ; NaN differs from everything."""

    functions = ("ne", "not_equal")
    methods = ("ne", "not_equal", "__ne__")

    def lower(k, x, y):
        return x.ne(y)

    def reference(x, y):
        return np.not_equal(x, y)


@declare
class lt(Order):
    """Where input < other."""

    functions = ("lt", "less")
    methods = ("lt", "less", "__lt__")

    def lower(k, x, y):
        return x < y

    def reference(x, y):
        return np.less(x, y)


@declare
class le(Order):
    """Where input <= other."""

    functions = ("le", "less_equal")
    methods = ("le", "less_equal", "__le__")

    def lower(k, x, y):
        return x <= y

    def reference(x, y):
        return np.less_equal(x, y)


@declare
class gt(Order):
    """Where input > other."""

    functions = ("gt", "greater")
    methods = ("gt", "greater", "__gt__")

    def lower(k, x, y):
        return x > y

    def reference(x, y):
        return np.greater(x, y)


@declare
class ge(Order):
    """Where input >= other."""

    functions = ("ge", "greater_equal")
    methods = ("ge", "greater_equal", "__ge__")

    def lower(k, x, y):
        return x >= y

    def reference(x, y):
        return np.greater_equal(x, y)


# ---------------------------------------------------------------------- tests of one element
class Test(Elementwise):
    promotion = FLOAT_TO_BOOL
    vjp = NOT_DIFFERENTIABLE
    in_place = False
    samples = unary_samples

    def signature(input: Tensor): ...


def finite(k, x):
    return k.math("fabs", x) < floats.INFINITY


def never(k, x):
    return k.const(x.type, 0).ne(0) if x.type.kind != "b" else x ^ x


@declare
class isnan(Test):
    """Where elements are not a number (complex: either part)."""

    def lower(k, x):
        return x.is_nan() if isinstance(x, Complex) or x.type.kind == "f" else never(k, x)

    def reference(x):
        return np.isnan(x)


@declare
class isinf(Test):
    """Where elements are infinite (complex: either part)."""

    def lower(k, x):
        if isinstance(x, Complex):
            return k.math("fabs", x.real).eq(floats.INFINITY) | k.math("fabs", x.imag).eq(floats.INFINITY)
        return k.math("fabs", x).eq(floats.INFINITY) if x.type.kind == "f" else never(k, x)

    def reference(x):
        return np.isinf(x)


@declare
class isfinite(Test):
    """Where elements are neither infinite nor NaN (complex: both parts)."""

    def lower(k, x):
        if isinstance(x, Complex):
            return finite(k, x.real) & finite(k, x.imag)
        return finite(k, x) if x.type.kind == "f" else ~never(k, x)

    def reference(x):
        return np.isfinite(x)


@declare
class isposinf(Test):
    """Where elements are positive infinity. Raises: RuntimeError for complex."""

    kinds = "buif"

    def lower(k, x):
        return x.eq(floats.INFINITY) if x.type.kind == "f" else never(k, x)

    def reference(x):
        return np.isposinf(x)


@declare
class isneginf(Test):
    """Where elements are negative infinity. Raises: RuntimeError for complex."""

    kinds = "buif"

    def lower(k, x):
        return x.eq(-floats.INFINITY) if x.type.kind == "f" else never(k, x)

    def reference(x):
        return np.isneginf(x)


@declare
class isreal(Test):
    """Where elements have no imaginary part."""

    def lower(k, x):
        return x.imag.eq(0) if isinstance(x, Complex) else ~never(k, x)

    def reference(x):
        return np.isreal(x)


@declare
class signbit(Test):
    """Where the sign bit is set: of -0.0 too. Raises: RuntimeError for complex."""

    kinds = "buif"

    def lower(k, x):
        if x.type.kind == "f":
            return floats.bits(x) < 0
        return x < 0 if x.type.kind == "i" else never(k, x)

    def reference(x):
        return np.signbit(x)


# ---------------------------------------------------------------------- near
@declare
class isclose(Composed):
    """Where |input - other| <= atol + rtol |other|, or both are equal; NaN equals NaN if `equal_nan`.

    Raises: RuntimeError for operands of different dtypes, or negative tolerances.
    """

    in_place = False

    def signature(input: Tensor, other: Tensor, rtol=1e-05, atol=1e-08, equal_nan=False): ...

    def types(operands, args):
        return (operands[0].dtype,) * 2, bool_

    def meta(op, input, other, rtol, atol, equal_nan):
        if input.dtype is not other.dtype:
            raise RuntimeError(
                f"isclose: dtypes must match, got {input.dtype.name} ({input.dtype.name} did not match {other.dtype.name}). "
                f"Convert one with .to(dtype)."
            )
        if rtol < 0 or atol < 0:
            raise RuntimeError(
                f"isclose: rtol and atol must be greater than or equal to zero, but got rtol={rtol}, atol={atol}. "
                f"Give positive ones."
            )
        return Elementwise.meta(op, input, other, rtol, atol, equal_nan)

    def body(input, other, rtol, atol, equal_nan):
        ops = REGISTRY
        close = ops["eq"](input, other)
        if equal_nan and input.spec.dtype.is_inexact:
            close = ops["logical_or"](close, ops["logical_and"](ops["isnan"](input), ops["isnan"](other)))
        if rtol == 0 and atol == 0:
            return close
        if input.spec.dtype.is_integral:
            input, other = (ops["to_dtype"](x, get_default_dtype()) for x in (input, other))
        allowed = ops["add"](ops["abs"](ops["mul"](other, rtol)), atol)
        actual = ops["abs"](ops["sub"](input, other))
        near = ops["logical_and"](ops["isfinite"](actual), ops["le"](actual, allowed))
        return ops["logical_or"](close, near)

    vjp = NOT_DIFFERENTIABLE

    def reference(x, y, rtol=1e-05, atol=1e-08, equal_nan=False):
        return np.isclose(x, y, rtol, atol, equal_nan)

    def samples(t):
        yield case(t(3, 5), t(3, 5), 0.5, 0.5)
        yield case(t(3, 5), t(5), equal_nan=True)
        yield case(t(3), t(3), rtol=-1.0, raises=(RuntimeError, "greater than or equal to zero"))
