"""Pieces that many declarations share: summing gradients back to an operand's shape, samples.

May not know: any particular op beyond what it imports from the registry by name at call time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flambeau.base.errors import UnsupportedError
from flambeau.core.dtype import dtype, result_type
from flambeau.core.spec import NumberSpec
from flambeau.ir.kinds import KEEP, Composite, Pointwise, Promotion, operand_entry, pointwise_types
from flambeau.ir.op import REGISTRY


class Case:
    """Arguments of one sample call; `raises` is (exception type, pattern) for wrong input, `no_gradient` a pattern of why it has none."""

    __slots__ = ("args", "kwargs", "raises", "no_gradient")

    def __init__(
        self, args: tuple, kwargs: dict, raises: tuple[type[Exception], str] | None = None, no_gradient: str = ""
    ):
        self.args, self.kwargs, self.raises, self.no_gradient = args, kwargs, raises, no_gradient


def case(*args: Any, raises: tuple[type[Exception], str] | None = None, no_gradient: str = "", **kwargs: Any) -> Case:
    """One sample: `case(t(2, 3), dim=1)`."""
    return Case(args, kwargs, raises, no_gradient)


def is_tensor(x: Any) -> bool:
    """Whether x is a tensor or a run-time number (which a rule sees as a stand-in)."""
    return hasattr(x, "spec")


def takes_gradient(x: Any) -> bool:
    """Whether x is a tensor: numbers, given or run-time, get no gradient."""
    return hasattr(x, "spec") and not isinstance(x.spec, NumberSpec)


def sum_to(g: Any, like: Any) -> Any:
    """The gradient g of a broadcast operand, summed to the operand's shape and in its dtype; None for a number."""
    if not takes_gradient(like):
        return None
    shape, wanted = g.spec.shape, like.spec.shape
    if shape != wanted:
        lead = len(shape) - len(wanted)
        dims = tuple(range(lead)) + tuple(i + lead for i, n in enumerate(wanted) if n == 1 and shape[i + lead] != 1)
        if dims:
            g = REGISTRY["sum"](g, dims, True)
        if lead:
            g = REGISTRY["reshape"](g, tuple(wanted))
    return to_type_of(g, like)


def to_type_of(g: Any, like: Any) -> Any:
    """g in the dtype of `like` (complex gradients of real operands keep their real part)."""
    source, target = g.spec.dtype, like.spec.dtype
    if source is target:
        return g
    return REGISTRY["to_dtype"](g, target)


def scaled(g: Any, by: Any) -> Any:
    """g * by, where `by` is a Scalar: a Python number if it is baked in, a stand-in if it is given at run time."""
    return g if not is_tensor(by) and by == 1 else REGISTRY["mul"](g, by)


def pair_vjp(g: Any, a: Any, b: Any, left: Callable, right: Callable) -> tuple:
    """Gradients of a binary op; a number's side is not computed."""
    return (sum_to(left(), a) if takes_gradient(a) else None, sum_to(right(), b) if takes_gradient(b) else None)


def conjugate(x: Any) -> Any:
    """The conjugate where x is complex; x itself otherwise."""
    if isinstance(x, complex):
        return x.conjugate()
    return REGISTRY["conj_physical"](x) if hasattr(x, "spec") and x.spec.dtype.is_complex else x


def chain(g: Any, derivative: Any) -> Any:
    """g times the conjugate of a derivative, where a zero g stays zero even if the derivative is infinite or NaN.

    So the branch that `where` did not take cannot poison the one it took.
    """
    return REGISTRY["chain_product"](g, conjugate(derivative))


def in_type_of(x: Any, like: Any) -> Any:
    """A number as a 0-dim tensor in the dtype of `like`, where rules compute with it alone; tensors stay.

    By itself a run-time number would be computed in the default dtype, and not be a tensor when a rule runs op by op.
    """
    if takes_gradient(x):
        return x
    return REGISTRY["add"](REGISTRY["full"]((), 0, dtype=like.spec.dtype, device=like.spec.device), x)


def zeros_like(x: Any) -> Any:
    """Zeros of x's shape and dtype: the gradient of what is piecewise constant. None for a number."""
    if not takes_gradient(x):
        return None
    return REGISTRY["full"](tuple(x.spec.shape), 0, dtype=x.spec.dtype, device=x.spec.device)


# ------------------------------------------------------------------ dtypes
KIND_NAMES = {"b": "bool", "u": "unsigned integer", "i": "integer", "f": "floating point", "c": "complex"}


def common_type(operands: Any) -> dtype:
    """The type that operands (specs) promote to."""
    return result_type([operand_entry(s) for s in operands])


def check_kinds(op: Any, d: dtype) -> None:
    """Raises: UnsupportedError if the op does not take dtype d; its `kinds` say what it takes, `instead` what to use."""
    if d.kind not in op.rules.kinds:
        names = ", ".join(KIND_NAMES[c] for c in op.rules.kinds)
        raise UnsupportedError(
            f"{op.name}: dtype must be {names}, got {d.name} (\"{op.name}\" not implemented for '{d.name}', "
            f"or not supported). {op.rules.instead}"
        )


class Elementwise(Pointwise):
    """A pointwise op that takes only some kinds of dtype, by the letters of `core.dtype`."""

    numbers_only = False
    kinds = "buifc"
    instead = "Convert with .to(dtype)."

    def meta(op, *args):
        """As of any pointwise op, after the dtypes have been checked."""
        compute, _ = pointwise_types(op, args)
        for d in compute:
            check_kinds(op, d)
        return Pointwise.meta(op, *args)


class Composed(Composite):
    """A composite whose result has the shape and dtype a pointwise op would have."""

    promotion: Promotion = KEEP
    types: Callable | None = None
    in_place = True
    numbers_only = False
    kinds = "buifc"
    instead = "Convert with .to(dtype)."
    meta = Elementwise.meta


# ------------------------------------------------------------------ samples
def unary_samples(t: Callable) -> Iterator[Case]:
    """Shapes that kernels treat differently: scalar, odd, longer than a vector, empty, several dims."""
    for shape in ((), (5,), (37,), (3, 4), (2, 0, 3)):
        yield case(t(*shape))


def binary_samples(t: Callable) -> Iterator[Case]:
    """Equal, broadcast, scalar and empty operands, and shapes that do not fit."""
    yield case(t(17), t(17))
    yield case(t(3, 5), t(5))
    yield case(t(3, 1), t(1, 4))
    yield case(t(), t(3))
    yield case(t(2, 3), 1.5)
    yield case(t(0, 3), t(3))
    yield case(t(2, 3), t(4), raises=(RuntimeError, "must broadcast"))


def pair_samples(t: Callable) -> Iterator[Case]:
    """As `binary_samples`, for ops whose operands must be tensors."""
    for x in binary_samples(t):
        if isinstance(x.args[1], float):
            x.raises = (TypeError, "must be a tensor")
        yield x


def reduction_samples(t: Callable) -> Iterator[Case]:
    """Every dim and keepdim of some shapes, and a dim out of range."""
    for shape, dim, keepdim in (
        ((5,), None, False),
        ((3, 4), 0, False),
        ((3, 4), 1, True),
        ((2, 3, 4), (0, 2), False),
        ((), None, False),
        ((2, 37), -1, False),
    ):
        yield case(t(*shape), dim, keepdim)
    yield case(t(2, 3), 5, raises=(IndexError, "dim must be in"))
