"""Truth and bits: logical and bitwise and, or, xor, not, and shifts."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import bool_, int32
from flambeau.ir.kinds import NOT_DIFFERENTIABLE, Pointwise
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel import integers
from flambeau.operators.rules import Elementwise, case, pair_samples, unary_samples


# ---------------------------------------------------------------------- truth
def truth_types(operands, args):
    """Every operand is asked whether it is not zero."""
    return (bool_,) * len(operands), bool_


class Logical(Pointwise):
    types = truth_types
    vjp = NOT_DIFFERENTIABLE
    samples = pair_samples

    def signature(input: Tensor, other: Tensor): ...


@declare
class logical_and(Logical):
    """Where both operands are not zero."""

    def lower(k, x, y):
        return x & y

    def reference(x, y):
        return np.logical_and(x, y)


@declare
class logical_or(Logical):
    """Where at least one operand is not zero."""

    def lower(k, x, y):
        return x | y

    def reference(x, y):
        return np.logical_or(x, y)


@declare
class logical_xor(Logical):
    """Where exactly one operand is not zero."""

    def lower(k, x, y):
        return x ^ y

    def reference(x, y):
        return np.logical_xor(x, y)


@declare
class logical_not(Logical):
    """Where elements are zero."""

    samples = unary_samples

    def signature(input: Tensor): ...

    def lower(k, x):
        return ~x

    def reference(x):
        return np.logical_not(x)


# ---------------------------------------------------------------------- bits
def whole(t, *shape):
    """A sample of integers."""
    return REGISTRY["to_dtype"](REGISTRY["mul"](t(*shape), 10), int32)


def bit_samples(t):
    """Integers, a number, and floats, which have no bits to speak of."""
    yield case(whole(t, 17), whole(t, 17))
    yield case(whole(t, 3, 5), whole(t, 5))
    yield case(whole(t, 3, 5), 3)
    yield case(whole(t, 0, 3), whole(t, 3))
    yield case(t(3), t(3), raises=(NotImplementedError, "dtype must be"))


class Bitwise(Elementwise):
    kinds = "bui"
    instead = "Use the logical_ ops, or convert with .to(dtype)."
    vjp = NOT_DIFFERENTIABLE
    samples = bit_samples

    def signature(input: Operand, other: Operand): ...


@declare
class bitwise_and(Bitwise):
    """Bits set in both operands. Dtypes: bool and integers."""

    methods = ("bitwise_and", "__and__", "__rand__")

    def lower(k, x, y):
        return x & y

    def reference(x, y):
        return np.bitwise_and(x, y)


@declare
class bitwise_or(Bitwise):
    """Bits set in either operand. Dtypes: bool and integers."""

    methods = ("bitwise_or", "__or__", "__ror__")

    def neutral(d):
        return {"input": 0, "other": 0}

    def lower(k, x, y):
        return x | y

    def reference(x, y):
        return np.bitwise_or(x, y)


@declare
class bitwise_xor(Bitwise):
    """Bits set in one operand only. Dtypes: bool and integers."""

    methods = ("bitwise_xor", "__xor__", "__rxor__")

    def neutral(d):
        return {"input": 0, "other": 0}

    def lower(k, x, y):
        return x ^ y

    def reference(x, y):
        return np.bitwise_xor(x, y)


@declare
class bitwise_not(Bitwise):
    """Every bit flipped; logical not of bool."""

    methods = ("bitwise_not", "__invert__")

    involution = True

    def signature(input: Tensor): ...

    def lower(k, x):
        return ~x

    def reference(x):
        return np.bitwise_not(x)

    def samples(t):
        yield case(whole(t, 17))
        yield case(whole(t, 0, 3))
        yield case(t(3), raises=(NotImplementedError, "dtype must be"))


class Shift(Bitwise):
    kinds = "ui"
    instead = "Convert to an integer dtype."


@declare
class bitwise_left_shift(Shift):
    """input * 2**other in wrapping integers; 0 where other is negative or not below the number of bits."""

    methods = ("bitwise_left_shift", "__lshift__")

    def lower(k, x, n):
        return integers.shift_left(k, x, n)

    def reference(x, n):
        bits = 8 * np.asarray(x).dtype.itemsize
        return np.where((n >= 0) & (np.asarray(n) < bits), np.left_shift(x, np.clip(n, 0, bits - 1)), 0)


@declare
class bitwise_right_shift(Shift):
    """input / 2**other rounded down; 0 or -1 by sign where other is negative or not below the number of bits."""

    methods = ("bitwise_right_shift", "__rshift__")

    def lower(k, x, n):
        return integers.shift_right(k, x, n)

    def reference(x, n):
        bits = 8 * np.asarray(x).dtype.itemsize
        return np.right_shift(x, np.where((n >= 0) & (np.asarray(n) < bits), n, bits - 1))


class SwappedShift(Shift):
    functions = ()
    in_place = False


@declare
class reflected_left_shift(SwappedShift):
    """`other << input`: what `number << tensor` calls."""

    methods = ("__rlshift__",)

    def lower(k, n, x):
        return integers.shift_left(k, x, n)

    def reference(n, x):
        return bitwise_left_shift.rules.reference(np.asarray(x), n)


@declare
class reflected_right_shift(SwappedShift):
    """`other >> input`: what `number >> tensor` calls."""

    methods = ("__rrshift__",)

    def lower(k, n, x):
        return integers.shift_right(k, x, n)

    def reference(n, x):
        return bitwise_right_shift.rules.reference(np.asarray(x), n)
