"""Choosing between elements: where, masks, limits, extremes of two, what stands for NaN.

out = REGISTRY["where"](mask, x, 0.0)
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import bool_, uint8
from flambeau.core.spec import NumberSpec
from flambeau.ir.kinds import uniform
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel.complexes import Complex, choose
from flambeau.kernel.vmath import arithmetic as floats
from flambeau.operators.arithmetic import mul
from flambeau.operators.batched import aligned, element_ndim
from flambeau.operators.rules import (
    Composed,
    Elementwise,
    binary_samples,
    case,
    common_type,
    pair_samples,
    pair_vjp,
    sum_to,
    takes_gradient,
    unary_samples,
    zeros_like,
)


def kept(mask, g):
    """The gradient g where mask holds, zero elsewhere."""
    return where(mask, g, 0)


@declare
class where(Elementwise):
    """`input` where `condition` holds, `other` elsewhere. The element not chosen gets a gradient of exactly zero.

    Dtypes: condition bool (or uint8); the others promoted. Raises: RuntimeError for another condition dtype.
    """

    methods = ()
    in_place = False

    def signature(condition: Tensor, input: Operand, other: Operand): ...

    def types(operands, args):
        d = common_type(operands[1:])
        return (bool_, d, d), d

    def meta(op, condition, input, other):
        if condition.dtype not in (bool_, uint8):
            raise RuntimeError(
                f"where: expected condition to be a boolean tensor, but got a tensor with dtype {condition.dtype.name}. "
                f"Compare first, for instance x != 0."
            )
        return Elementwise.meta(op, condition, input, other)

    def simplify(out, condition, input, other):
        known = uniform(condition)
        return None if known is None else input if known else other

    def lower(k, condition, x, y):
        return choose(k, condition, x, y)

    def vjp(g, out, condition, input, other):
        return (None, *pair_vjp(g, input, other, lambda: kept(condition, g), lambda: where(condition, 0, g)))

    def reference(condition, x, y):
        return np.where(condition, x, y)

    def samples(t):
        def mask(*shape):
            return REGISTRY["gt"](t(*shape), 0)

        yield case(mask(3, 5), t(3, 5), t(5))
        yield case(mask(5), t(3, 1), 2.0)
        yield case(mask(0, 3), t(3), t(3))
        yield case(t(3), t(3), t(3), raises=(RuntimeError, "condition to be a boolean"))


def fill_types(operands, args):
    """The tensor keeps its type; the value takes it."""
    d = operands[0].dtype
    return (d, bool_, d), d


@declare
class masked_fill(Elementwise):
    """`value` where `mask` holds, `input` elsewhere.

    Dtypes: input's, which the value is converted to. Raises: RuntimeError unless mask is bool and value a number or 0-dim tensor.
    """

    types = fill_types

    def signature(input: Tensor, mask: Tensor, value: Operand): ...

    def meta(op, input, mask, value):
        if mask.dtype is not bool_:
            raise RuntimeError(
                f"masked_fill: only supports boolean masks, but got mask with dtype {mask.dtype.name}. "
                f"Compare first, for instance mask != 0."
            )
        if value.ndim:
            raise RuntimeError(
                f"masked_fill: only supports a 0-dimensional value tensor, but got tensor with {value.ndim} dimension(s). "
                f"Use where(mask, value, input)."
            )
        if value.dtype.is_complex and not input.dtype.is_complex:
            raise RuntimeError(
                f"masked_fill: value cannot be converted to type {input.dtype.name} without overflow, "
                f"got {value.dtype.name}. Convert the input with .to(dtype)."
            )
        return Elementwise.meta(op, input, mask, value)

    def lower(k, x, mask, value):
        return choose(k, mask, value, x)

    def batch(size, dims, input, mask, value):
        longest = max(element_ndim(input, dims[0]), element_ndim(mask, dims[1]))
        input, mask = aligned(input, dims[0], longest), aligned(mask, dims[1], longest)
        if dims[2] is None:
            return masked_fill(input, mask, value), 0
        return where(mask, REGISTRY["to_dtype"](aligned(value, 0, longest), input.spec.dtype), input), 0

    def vjp(g, out, input, mask, value):
        return (sum_to(where(mask, 0, g), input), None, sum_to(kept(mask, g), value))

    def reference(x, mask, value):
        return np.where(mask, value, x).astype(np.asarray(x).dtype)

    def samples(t):
        yield case(t(3, 5), REGISTRY["gt"](t(3, 5), 0), 1.5)
        yield case(t(3, 5), REGISTRY["gt"](t(5), 0), t())
        yield case(t(3, 5), t(3, 5), 0.0, raises=(RuntimeError, "boolean masks"))


# ---------------------------------------------------------------------- limits
def checked_limits(op, input, *limits):
    """Raises: RuntimeError without any limit."""
    if all(x is None for x in limits):
        raise RuntimeError(f"{op.name}: at least one of 'min' or 'max' must not be None, got None for both. Give one.")
    return Elementwise.meta(op, input, *limits)


def limit_samples(t):
    yield case(t(3, 5), -0.5, 0.5)
    yield case(t(3, 5), None, 0.5)
    yield case(t(3, 5), t(5), t(3, 1))
    yield case(t(3, 5), 0.5, -0.5)
    yield case(t(0, 5), 0.0)
    yield case(t(3), raises=(RuntimeError, "must not be None"))


@declare
class clamp(Elementwise):
    """Elements limited to [min, max]; max where min is larger. NaN elements and NaN limits give NaN."""

    functions = ("clamp", "clip")
    methods = ("clamp", "clip")
    kinds = "buif"

    def signature(input: Tensor, min: Operand = None, max: Operand = None): ...

    meta = checked_limits

    def lower(k, x, low, high):
        x = x if low is None else larger(k, x, low)
        return x if high is None else smaller(k, x, high)

    def vjp(g, out, input, min, max):
        ops = REGISTRY
        inside = None if min is None else ops["ge"](input, min)
        if max is not None:
            below = ops["le"](input, max)
            inside = below if inside is None else ops["logical_and"](inside, below)
        of_low = of_high = None
        if takes_gradient(min):
            wins = ops["lt"](input, min)
            of_low = sum_to(kept(wins if max is None else ops["logical_and"](wins, ops["lt"](min, max)), g), min)
        if takes_gradient(max):
            wins = ops["gt"](input, max)
            of_high = sum_to(kept(wins if min is None else ops["logical_or"](wins, ops["lt"](max, min)), g), max)
        return sum_to(kept(inside, g), input), of_low, of_high

    def reference(x, min=None, max=None):
        return np.clip(x, min, max)

    samples = limit_samples


@declare
class clamp_min(Elementwise):
    """Elements that are at least `min`."""

    kinds = "buif"

    def signature(input: Tensor, min: Operand): ...

    def lower(k, x, low):
        return larger(k, x, low)

    def vjp(g, out, input, min):
        return pair_vjp(
            g, input, min, lambda: kept(REGISTRY["ge"](input, min), g), lambda: kept(REGISTRY["lt"](input, min), g)
        )

    def reference(x, min):
        return np.maximum(x, min)

    samples = binary_samples


@declare
class clamp_max(Elementwise):
    """Elements that are at most `max`."""

    kinds = "buif"

    def signature(input: Tensor, max: Operand): ...

    def lower(k, x, high):
        return smaller(k, x, high)

    def vjp(g, out, input, max):
        return pair_vjp(
            g, input, max, lambda: kept(REGISTRY["le"](input, max), g), lambda: kept(REGISTRY["gt"](input, max), g)
        )

    def reference(x, max):
        return np.minimum(x, max)

    samples = binary_samples


# ---------------------------------------------------------------------- extremes of two
def larger(k, x, y):
    return x | y if x.type.kind == "b" else k.maximum(x, y)


def smaller(k, x, y):
    return x & y if x.type.kind == "b" else k.minimum(x, y)


def shared(g, input, other, wins: str):
    """The gradient of an extreme of two: to the winner, in halves where they tie."""
    ops = REGISTRY
    half = where(ops["eq"](input, other), mul(g, 0.5), g)
    loses = "lt" if wins == "gt" else "gt"
    return pair_vjp(
        g,
        input,
        other,
        lambda: where(ops[loses](input, other), 0, half),
        lambda: where(ops[wins](input, other), 0, half),
    )


@declare
class maximum(Elementwise):
    """The larger of two elements; NaN if either is. Ties share the gradient."""

    kinds = "buif"
    in_place = False

    def signature(input: Tensor, other: Tensor): ...

    def lower(k, x, y):
        return larger(k, x, y)

    def vjp(g, out, input, other):
        return shared(g, input, other, "gt")

    def reference(x, y):
        return np.maximum(x, y)

    samples = pair_samples


@declare
class minimum(Elementwise):
    """The smaller of two elements; NaN if either is. Ties share the gradient."""

    kinds = "buif"
    in_place = False

    def signature(input: Tensor, other: Tensor): ...

    def lower(k, x, y):
        return smaller(k, x, y)

    def vjp(g, out, input, other):
        return shared(g, input, other, "lt")

    def reference(x, y):
        return np.minimum(x, y)

    samples = pair_samples


def numbers_first(k, x, y, pick):
    """pick(x, y), or the other where one is NaN."""
    if x.type.kind != "f":
        return pick(k, x, y)
    return k.select(x.is_nan(), y, k.select(y.is_nan(), x, pick(k, x, y)))


def first_wins(g, input, other, better: str):
    """The gradient of fmax and fmin: to `input` unless `other` is better, or input is NaN."""
    ops = REGISTRY
    mine = ops["logical_or"](ops[better](input, other), ops["isnan"](other))
    return pair_vjp(g, input, other, lambda: kept(mine, g), lambda: where(mine, 0, g))


@declare
class fmax(Elementwise):
    """The larger of two elements; a number beats NaN."""

    kinds = "buif"
    in_place = False

    def signature(input: Tensor, other: Tensor): ...

    def lower(k, x, y):
        return numbers_first(k, x, y, larger)

    def vjp(g, out, input, other):
        return first_wins(g, input, other, "ge")

    def reference(x, y):
        return np.fmax(x, y)

    samples = pair_samples


@declare
class fmin(Elementwise):
    """The smaller of two elements; a number beats NaN."""

    kinds = "buif"
    in_place = False

    def signature(input: Tensor, other: Tensor): ...

    def lower(k, x, y):
        return numbers_first(k, x, y, smaller)

    def vjp(g, out, input, other):
        return first_wins(g, input, other, "le")

    def reference(x, y):
        return np.fmin(x, y)

    samples = pair_samples


# ---------------------------------------------------------------------- what stands for something else
def replaced(k, x, nan, posinf, neginf):
    """x with NaN and infinities replaced; what is too large for x's type becomes its largest number."""
    limit = floats.LARGEST[x.type.element.name]
    x = k.select(x.is_nan(), k.const(x.type, 0.0 if nan is None else nan), x)
    x = k.select(x.eq(floats.INFINITY), k.const(x.type, limit if posinf is None else posinf), x)
    return k.select(x.eq(-floats.INFINITY), k.const(x.type, -limit if neginf is None else neginf), x)


@declare
class replace_non_finite(Elementwise):
    """NaN and infinities replaced by three numbers; None: 0 and the extremes of the compute type."""

    functions = ()
    methods = ()
    in_place = False

    def signature(input: Tensor, nan=None, posinf=None, neginf=None): ...

    def lower(k, x, nan, posinf, neginf):
        if isinstance(x, Complex):
            return Complex(replaced(k, x.real, nan, posinf, neginf), replaced(k, x.imag, nan, posinf, neginf))
        return replaced(k, x, nan, posinf, neginf) if x.type.kind == "f" else x

    def vjp(g, out, input, nan, posinf, neginf):
        return (kept(REGISTRY["isfinite"](input), g),)

    def reference(x, nan=None, posinf=None, neginf=None):
        return np.nan_to_num(x, nan=nan or 0.0, posinf=posinf, neginf=neginf)

    def samples(t):
        yield from unary_samples(t)
        yield case(REGISTRY["true_divide"](t(5), 0), 1.0, 2.0, 3.0)


LARGEST_HALF = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}


@declare
class nan_to_num(Composed):
    """NaN replaced by `nan` (0), infinities by `posinf` and `neginf` (the largest and smallest number of the dtype)."""

    def signature(input: Tensor, nan=None, posinf=None, neginf=None): ...

    def body(input, nan, posinf, neginf):
        largest = LARGEST_HALF.get(input.spec.dtype.name)  # computed in float32, which holds more
        if largest is not None:
            posinf, neginf = largest if posinf is None else posinf, -largest if neginf is None else neginf
        return replace_non_finite(input, nan, posinf, neginf)

    reference = replace_non_finite.rules.reference
    samples = replace_non_finite.rules.samples


@declare
class heaviside(Elementwise):
    """0 below zero, 1 above, `values` at zero. Raises: RuntimeError for operands of different dtypes."""

    kinds = "buif"

    def signature(input: Tensor, values: Tensor): ...

    def meta(op, input, values):
        if not isinstance(values, NumberSpec) and values.dtype is not input.dtype:
            raise RuntimeError(
                f"heaviside: is not yet implemented for tensors with different dtypes, got {input.dtype.name} and "
                f"{values.dtype.name}. Convert one with .to(dtype)."
            )
        return Elementwise.meta(op, input, values)

    def lower(k, x, values):
        if x.type.kind == "b":
            return x | values
        zero, one = k.const(x.type, 0), k.const(x.type, 1)
        return k.select(x.eq(0), values, k.select(x > 0, one, zero))

    def vjp(g, out, input, values):
        return zeros_like(input), sum_to(kept(REGISTRY["eq"](input, 0), g), values)

    def reference(x, values):
        return np.heaviside(x, values)

    samples = pair_samples


@declare
class copysign(Elementwise):
    """The magnitude of `input` with the sign of `other` (the sign bit: -0.0 counts). Integers become floats."""

    kinds = "buif"

    def signature(input: Tensor, other: Operand): ...

    def types(operands, args):
        from_common = REGISTRY["true_divide"].rules.promotion(common_type(operands))
        return (from_common[0],) * 2, from_common[1]

    def lower(k, x, y):
        return floats.copysign(k, x, y)

    def vjp(g, out, input, other):
        ops = REGISTRY
        ratio = where(ops["eq"](input, 0), 0, ops["true_divide"](out, input))
        return sum_to(mul(g, ratio), input), zeros_like(other)

    def reference(x, y):
        return np.copysign(x, y)

    samples = binary_samples
