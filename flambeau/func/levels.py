"""Wrapped tensors of function transforms: a value one level down, with what the level adds to it.

A level is an interpreter on the stack. It unwraps its own tensors, runs the op below itself and wraps the results, so transforms
nest in any order. May not know: rules of particular ops (`batching`, `forward`).
"""

from __future__ import annotations

import itertools
from typing import Any

from flambeau._tensor import Tensor, new_tensor
from flambeau.core.spec import Spec
from flambeau.ir.op import REGISTRY

_numbers = itertools.count(1)


class Level:
    """One transform in force. Wrapped tensors carry (level, value below, extra)."""

    def __init__(self) -> None:
        self.number = next(_numbers)

    def wrap(self, value: Tensor, extra: Any, spec: Spec | None = None) -> Tensor:
        """A tensor of this level that shows `spec` (the value's own unless told)."""
        t = new_tensor((spec or value.spec).slow(), None, None)
        t.__dict__["_wrapped"] = (self, value, extra)
        return t

    def unwrap(self, x: Any) -> tuple[Any, Any]:
        """(value below, extra) of a tensor of this level; (x, None) for others."""
        found = x.__dict__.get("_wrapped") if isinstance(x, Tensor) else None
        if found is not None and found[0] is self:
            return found[1], found[2]
        return x, None

    def is_mine(self, x: Any) -> bool:
        found = x.__dict__.get("_wrapped") if isinstance(x, Tensor) else None
        return found is not None and found[0] is self


def innermost(x: Tensor) -> Tensor:
    """The value under all wrappings (for printing)."""
    while "_wrapped" in x.__dict__:
        x = x.__dict__["_wrapped"][1]
    return x


def move_dim(x: Tensor, source: int, target: int) -> Tensor:
    """The tensor with one dim at another place."""
    if source == target:
        return x
    order = [d for d in range(x.spec.ndim) if d != source]
    order.insert(target, source)
    return REGISTRY["permute"](x, tuple(order))
