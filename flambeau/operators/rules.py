"""Pieces that many declarations share: summing gradients back to an operand's shape, samples.

May not know: any particular op beyond what it imports from the registry by name at call time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flambeau.ir.op import REGISTRY


class Case:
    """Arguments of one sample call; `raises` is (exception type, pattern) for wrong input."""

    __slots__ = ("args", "kwargs", "raises")

    def __init__(self, args: tuple, kwargs: dict, raises: tuple[type[Exception], str] | None = None):
        self.args, self.kwargs, self.raises = args, kwargs, raises


def case(*args: Any, raises: tuple[type[Exception], str] | None = None, **kwargs: Any) -> Case:
    """One sample: `case(t(2, 3), dim=1)`."""
    return Case(args, kwargs, raises)


def is_tensor(x: Any) -> bool:
    return hasattr(x, "spec")


def sum_to(g: Any, like: Any) -> Any:
    """The gradient g of a broadcast operand, summed to the operand's shape and in its dtype; None for a number."""
    if not is_tensor(like):
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
    if source.is_complex and not target.is_complex:
        g = REGISTRY["real"](g)
    return REGISTRY["to_dtype"](g, target) if g.spec.dtype is not target else g


def scaled(g: Any, by: Any) -> Any:
    """g * by, where `by` is a Scalar: a Python number if it is baked in, a stand-in if it is given at run time."""
    return g if not is_tensor(by) and by == 1 else REGISTRY["mul"](g, by)


def pair_vjp(g: Any, a: Any, b: Any, left: Callable, right: Callable) -> tuple:
    """Gradients of a binary op; a number's side is not computed."""
    return (sum_to(left(), a) if is_tensor(a) else None, sum_to(right(), b) if is_tensor(b) else None)


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


def reduction_samples(t: Callable) -> Iterator[Case]:
    """Every dim and keepdim of some shapes, and a dim out of range."""
    for shape, dim, keepdim in (
        ((5,), None, False), ((3, 4), 0, False), ((3, 4), 1, True), ((2, 3, 4), (0, 2), False), ((), None, False), ((2, 37), -1, False),
    ):
        yield case(t(*shape), dim, keepdim)
    yield case(t(2, 3), 5, raises=(IndexError, "dim must be in"))
