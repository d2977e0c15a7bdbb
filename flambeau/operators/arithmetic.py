"""Elementwise arithmetic: sums, products, quotients, and the product that gradients are chained with.

Remainders and integer division are in `rounding`, powers and roots in `powers`.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import bool_
from flambeau.core.spec import NumberSpec
from flambeau.ir.kinds import FLOAT, LINEAR, pointwise_types
from flambeau.ir.op import declare
from flambeau.kernel import integers, vmath
from flambeau.kernel.complexes import Complex, choose
from flambeau.operators.rules import (
    Elementwise,
    binary_samples,
    case,
    chain,
    common_type,
    conjugate,
    in_type_of,
    pair_vjp,
    scaled,
    sum_to,
    unary_samples,
    zeros_like,
)


def checked_alpha(op, input, other, alpha):
    """Meta of sums with a factor. Raises: RuntimeError for a factor of a higher kind than the result."""
    result = Elementwise.meta(op, input, other, alpha)
    compute = pointwise_types(op, (input, other, alpha))[0][0]
    kind = alpha.dtype.kind if isinstance(alpha, NumberSpec) else "i" if type(alpha) is int else type(alpha).__name__[0]
    if kind == "f" and compute.is_integral:
        raise RuntimeError(
            f"{op.name}: for integral input tensors, argument alpha must not be a floating point number, got dtype "
            f"{compute.name}. Convert the tensor, or multiply first."
        )
    if kind == "b" and compute is not bool_:
        raise RuntimeError(
            f"{op.name}: boolean alpha only supported for Boolean results, got dtype {compute.name}. Use alpha=1."
        )
    return result


def times(y, alpha):
    """y * alpha in a lowering; alpha is a Python number at its default."""
    if isinstance(alpha, int) and alpha == 1:
        return y
    return y & alpha if not isinstance(y, Complex) and y.type.kind == "b" else y * alpha


@declare
class add(Elementwise):
    """Sum, `input + alpha * other`, with broadcasting.

    Dtypes: promoted; bool + bool is logical or.
    """

    methods = ("add", "__add__", "__radd__")
    meta = checked_alpha
    numbers_only = True

    def signature(input: Operand, other: Operand, *, alpha: Scalar = 1): ...

    def neutral(d):
        zero = 0 if d.is_integral else -0.0  # -0.0 + 0.0 is 0.0
        return {"input": zero, "other": zero}

    def lower(k, x, y, alpha):
        y = times(y, alpha)
        return x | y if x.type.kind == "b" else x + y

    def vjp(g, out, input, other, alpha):
        return sum_to(g, input), sum_to(scaled(g, conjugate(alpha)), other)

    def reference(input, other, *, alpha=1):
        return np.add(input, np.multiply(other, alpha))

    def samples(t):
        yield from binary_samples(t)
        yield case(t(3, 4), t(4), alpha=2.5)


@declare
class sub(Elementwise):
    """Difference, `input - alpha * other`, with broadcasting.

    Raises: RuntimeError for bool.
    """

    functions = ("sub", "subtract")
    methods = ("sub", "subtract", "__sub__")
    kinds = "uifc"
    instead = "Subtraction, the `-` operator, with two bool tensors is not supported: use the `^` or `logical_xor()` operator instead."
    meta = checked_alpha
    numbers_only = True

    def signature(input: Operand, other: Operand, *, alpha: Scalar = 1): ...

    def neutral(d):
        return {"other": 0}

    def lower(k, x, y, alpha):
        return x - times(y, alpha)

    def vjp(g, out, input, other, alpha):
        return sum_to(g, input), sum_to(neg(scaled(g, conjugate(alpha))), other)

    def reference(input, other, *, alpha=1):
        return np.subtract(input, np.multiply(other, alpha))

    def samples(t):
        yield from binary_samples(t)
        yield case(t(3, 4), t(4), alpha=2.5)


@declare
class rsub(Elementwise):
    """Difference the other way round, `other - alpha * input`."""

    methods = ("__rsub__", "rsub")
    kinds = sub.rules.kinds
    instead = sub.rules.instead
    meta = checked_alpha

    def signature(input: Tensor, other: Operand, *, alpha: Scalar = 1): ...

    def lower(k, x, y, alpha):
        return y - times(x, alpha)

    def vjp(g, out, input, other, alpha):
        return sum_to(neg(scaled(g, conjugate(alpha))), input), sum_to(g, other)

    def reference(input, other, *, alpha=1):
        return np.subtract(other, np.multiply(input, alpha))

    samples = sub.rules.samples


@declare
class mul(Elementwise):
    """Elementwise product with broadcasting."""

    functions = ("mul", "multiply")
    methods = ("mul", "multiply", "__mul__", "__rmul__")
    numbers_only = True

    def signature(input: Operand, other: Operand): ...

    def neutral(d):
        return {"input": 1, "other": 1}

    def lower(k, x, y):
        return x & y if x.type.kind == "b" else x * y

    def vjp(g, out, input, other):
        return pair_vjp(g, input, other, lambda: mul(g, conjugate(other)), lambda: mul(g, conjugate(input)))

    def reference(x, y):
        return np.multiply(x, y)

    samples = binary_samples


@declare
class chain_product(Elementwise):
    """The product g * derivative that is zero where g is, even if the derivative is infinite or NaN."""

    functions = ()
    methods = ()
    in_place = False
    numbers_only = True

    def signature(g: Operand, derivative: Operand): ...

    def neutral(d):
        return {"derivative": 1}

    def lower(k, g, derivative):
        return choose(k, g.eq(0), g, g * derivative)

    def vjp(g2, out, g, derivative):
        return pair_vjp(g2, g, derivative, lambda: chain(g2, derivative), lambda: chain(g2, g))

    def reference(g, derivative):
        return np.where(g == 0, g, np.multiply(g, derivative))

    samples = binary_samples


# ---------------------------------------------------------------------- quotients
@declare
class true_divide(Elementwise):
    """Elementwise quotient; integers divide as floats."""

    promotion = FLOAT
    methods = ("true_divide", "__truediv__")
    numbers_only = True

    def signature(input: Operand, other: Operand): ...

    def neutral(d):
        return {"other": 1}

    def lower(k, x, y):
        return x / y

    def vjp(g, out, input, other):
        return quotient_gradients(g, out, input, other)

    def reference(x, y):
        return np.true_divide(x, y)

    samples = binary_samples


def quotient_gradients(g, out, numerator, denominator):
    """Gradients of out = numerator / denominator."""
    return pair_vjp(
        g,
        numerator,
        denominator,
        lambda: chain(g, reflected_divide(in_type_of(denominator, out), 1)),
        lambda: neg(chain(g, true_divide(out, denominator))),
    )


@declare
class reflected_divide(Elementwise):
    """`other / input`: what `number / tensor` calls."""

    promotion = FLOAT
    functions = ()
    methods = ("__rtruediv__", "__rdiv__")
    in_place = False
    numbers_only = True

    def signature(input: Operand, other: Operand): ...

    def lower(k, x, y):
        return y / x

    def vjp(g, out, input, other):
        return quotient_gradients(g, out, other, input)[::-1]

    def reference(x, y):
        return np.true_divide(y, x)

    samples = binary_samples


def quotient_types(operands, args):
    """Floats unless the quotient is rounded, which keeps integers."""
    common = common_type(operands)
    d = FLOAT(common)[0] if args[2] is None else common
    return (d, d), d


def round_quotient(k, x, y, how):
    """x / y rounded: "trunc" or "floor"."""
    if x.type.kind == "f":
        return vmath.trunc(k, x / y) if how == "trunc" else vmath.floor_divide(k, x, y)
    return integers.quotient(k, x, y) if how == "trunc" else integers.floor_divide(k, x, y)


@declare
class div(Elementwise):
    """Quotient; `rounding_mode` "trunc" or "floor" rounds it and keeps integers integers.

    Integer division by zero gives 0. Raises: RuntimeError for another mode, or for rounding bool or complex.
    """

    functions = ("div", "divide")
    methods = ("div", "divide")
    types = quotient_types
    numbers_only = True

    def signature(input: Operand, other: Operand, *, rounding_mode=None): ...

    def meta(op, input, other, rounding_mode):
        if rounding_mode not in (None, "trunc", "floor"):
            raise RuntimeError(
                f"div: expected rounding_mode to be one of None, 'trunc', or 'floor' but found {rounding_mode!r}. "
                f"Leave it out for the exact quotient."
            )
        if rounding_mode is not None and pointwise_types(op, (input, other, rounding_mode))[1].kind in "bc":
            raise RuntimeError(
                "div: with a rounding_mode the dtype must be integer or floating point, got bool or complex. "
                "Convert with .to(dtype)."
            )
        return Elementwise.meta(op, input, other, rounding_mode)

    def lower(k, x, y, rounding_mode):
        return x / y if rounding_mode is None else round_quotient(k, x, y, rounding_mode)

    def vjp(g, out, input, other, rounding_mode):
        if rounding_mode is not None:
            return zeros_like(input), zeros_like(other)
        return quotient_gradients(g, out, input, other)

    def reference(x, y, *, rounding_mode=None):
        if rounding_mode is None:
            return np.true_divide(x, y)
        return np.trunc(np.true_divide(x, y)) if rounding_mode == "trunc" else np.floor_divide(x, y)

    def samples(t):
        yield from binary_samples(t)
        for mode in ("trunc", "floor"):
            yield case(t(3, 4), t(4), rounding_mode=mode)
        yield case(t(3), t(3), rounding_mode="ceil", raises=(RuntimeError, "expected rounding_mode"))


# ---------------------------------------------------------------------- signs
@declare
class neg(Elementwise):
    """The negative of each element."""

    functions = ("neg", "negative")
    methods = ("neg", "negative", "__neg__")
    involution = True
    kinds = "uifc"
    instead = "Negation, the `-` operator, on a bool tensor is not supported: use the `~` or `logical_not()` operator instead."

    def signature(input: Tensor): ...

    def lower(k, x):
        return -x

    def vjp(g, out, input):
        return (neg(g),)

    jvp = LINEAR

    def reference(x):
        return np.negative(x)

    samples = unary_samples


@declare
class positive(Elementwise):
    """The elements as they are. Raises: RuntimeError for bool."""

    methods = ("positive", "__pos__")
    kinds = "uifc"
    instead = "The `+` operator, on a bool tensor is not supported."
    in_place = False

    def signature(input: Tensor): ...

    def lower(k, x):
        return x

    def vjp(g, out, input):
        return (g,)

    jvp = LINEAR

    def reference(x):
        return np.positive(x)

    samples = unary_samples


# ---------------------------------------------------------------------- three operands
def three_samples(t):
    """Equal, broadcast and empty operands, and a factor."""
    yield case(t(3, 4), t(3, 4), t(3, 4))
    yield case(t(3, 4), t(4), t(3, 1), value=0.5)
    yield case(t(0, 4), t(4), t(4))
    yield case(t(3), t(4), t(4), raises=(RuntimeError, "must broadcast"))


def checked_value(op, input, tensor1, tensor2, value):
    """Raises: RuntimeError where integers would have to be scaled by a float or divided."""
    result = Elementwise.meta(op, input, tensor1, tensor2, value)
    compute = pointwise_types(op, (input, tensor1, tensor2, value))[0][0]
    if compute.is_integral and isinstance(value, NumberSpec) and value.type is float:
        raise RuntimeError(
            f"{op.name}: for integral input tensors, argument value must not be a floating point number, got dtype "
            f"{compute.name}. Convert the tensors with .to(dtype)."
        )
    return result


@declare
class addcmul(Elementwise):
    """`input + value * tensor1 * tensor2`."""

    kinds = "uifc"
    meta = checked_value

    def signature(input: Tensor, tensor1: Operand, tensor2: Operand, *, value: Scalar = 1): ...

    def lower(k, x, a, b, value):
        return x + times(a * b, value)

    def vjp(g, out, input, tensor1, tensor2, value):
        scaled_g = scaled(g, conjugate(value))
        return (
            sum_to(g, input),
            *pair_vjp(
                g,
                tensor1,
                tensor2,
                lambda: mul(scaled_g, conjugate(tensor2)),
                lambda: mul(scaled_g, conjugate(tensor1)),
            ),
        )

    def reference(x, a, b, *, value=1):
        return x + value * a * b

    samples = three_samples


@declare
class addcdiv(Elementwise):
    """`input + value * tensor1 / tensor2`. Raises: RuntimeError for integers."""

    kinds = "fc"
    instead = "Integer division with addcdiv is no longer supported: use input + value * (tensor1 / tensor2), or div with a rounding_mode."
    meta = checked_value

    def signature(input: Tensor, tensor1: Operand, tensor2: Operand, *, value: Scalar = 1): ...

    def lower(k, x, a, b, value):
        return x + times(a, value) / b

    def vjp(g, out, input, tensor1, tensor2, value):
        inverse = reflected_divide(in_type_of(tensor2, out), 1)
        scaled_g = scaled(g, conjugate(value))
        return (
            sum_to(g, input),
            *pair_vjp(
                g,
                tensor1,
                tensor2,
                lambda: chain(scaled_g, inverse),
                lambda: neg(chain(scaled_g, mul(tensor1, mul(inverse, inverse)))),
            ),
        )

    def reference(x, a, b, *, value=1):
        return x + value * (a / b)

    samples = three_samples


@declare
class lerp(Elementwise):
    """`input + weight * (end - input)`, from whichever end is nearer so that weight 1 gives `end` exactly."""

    kinds = "fc"

    def signature(input: Tensor, end: Operand, weight: Operand): ...

    def meta(op, input, end, weight):
        if end.dtype is not input.dtype:
            raise RuntimeError(
                f"lerp: expected dtype {input.dtype.name} for `end`, got dtype {end.dtype.name}. Convert with .to(dtype)."
            )
        return Elementwise.meta(op, input, end, weight)

    def lower(k, start, end, weight):
        gap = end - start
        size = weight.real * weight.real + weight.imag * weight.imag if hasattr(weight, "imag") else weight * weight
        return choose(k, size < 0.25, start + weight * gap, end - gap * (1 - weight))

    def vjp(g, out, input, end, weight):
        moved = mul(g, conjugate(weight))
        return (
            sum_to(sub(g, moved), input),
            sum_to(moved, end),
            pair_vjp(g, weight, 0, lambda: mul(g, conjugate(sub(end, input))), None)[0],
        )

    def reference(start, end, weight):
        return start + weight * (end - start)

    def samples(t):
        yield case(t(3, 4), t(3, 4), 0.3)
        yield case(t(3, 4), t(4), t(3, 1))
        yield case(t(3), t(3), 2.0)
        yield case(t(3), t(4), 0.5, raises=(RuntimeError, "must broadcast"))
