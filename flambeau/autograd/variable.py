"""`Variable`, the name tensors with gradients once had: `Variable(x, requires_grad=True)` is a tensor on x's memory.

Prefer `x.requires_grad_()`. May not know: the tape.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message

__all__ = ["Variable"]


class _VariableType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor)

    def __call__(cls, data: Tensor, requires_grad: bool = False) -> Tensor:
        if not isinstance(data, Tensor):
            raise TypeError(
                message("Variable", "data must be a tensor", type(data).__name__, "Make one with tensor(...).")
            )
        return data.detach().requires_grad_(requires_grad)


class Variable(metaclass=_VariableType):
    """Every tensor is one. Calling it gives a tensor on the same memory without history."""
