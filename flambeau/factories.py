"""Tensors from Python data, and filled ones."""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau._tensor import empty as _empty
from flambeau.core.device import as_device
from flambeau.core.dtype import dtype, get_default_dtype
from flambeau.core.spec import Spec
from flambeau.ir.op import REGISTRY

__all__ = ["empty", "zeros", "ones"]


def _sizes(sizes: tuple) -> tuple[int, ...]:
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    return tuple(int(n) for n in sizes)


def empty(*size: Any, dtype: dtype | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor whose values are not set."""
    return _empty(Spec.of(_sizes(size), dtype or get_default_dtype(), as_device(device))).requires_grad_(requires_grad)


def zeros(*size: Any, dtype: dtype | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    return REGISTRY["full"](_sizes(size), 0, dtype=dtype or get_default_dtype(), device=device).requires_grad_(requires_grad)


def ones(*size: Any, dtype: dtype | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    return REGISTRY["full"](_sizes(size), 1, dtype=dtype or get_default_dtype(), device=device).requires_grad_(requires_grad)
