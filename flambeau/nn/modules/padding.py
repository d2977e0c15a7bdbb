"""Padding: constant, reflected, replicated, circular. `padding` counts from the last dim: (left, right, top, bottom, front, back)."""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.nn import functional as F
from flambeau.nn.modules.module import Module

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class _Pad(Module):
    __constants__ = ["padding"]
    spatial = 0
    mode = ""

    def __init__(self, padding: Any):
        super().__init__()
        self.padding = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * (2 * self.spatial)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPadNd(_Pad):
    __constants__ = ["padding", "value"]

    def __init__(self, padding: Any, value: float):
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ZeroPadNd(_ConstantPadNd):
    def __init__(self, padding: Any):
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _CircularPadNd(_Pad):
    mode = "circular"

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in (self.spatial + 1, self.spatial + 2):
            raise ValueError(f"expected {self.spatial + 1}D or {self.spatial + 2}D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        return F.pad(input, self.padding, "circular")


class _ReflectionPadNd(_Pad):
    mode = "reflect"


class _ReplicationPadNd(_Pad):
    mode = "replicate"


class ConstantPad1d(_ConstantPadNd):
    """Shapes: [N, C, L] or [C, L]."""

    spatial = 1


class ConstantPad2d(_ConstantPadNd):
    """Shapes: [N, C, H, W] or [C, H, W]."""

    spatial = 2


class ConstantPad3d(_ConstantPadNd):
    """Shapes: [N, C, D, H, W] or [C, D, H, W]."""

    spatial = 3


class ZeroPad1d(_ZeroPadNd):
    """Shapes: [N, C, L] or [C, L]."""

    spatial = 1


class ZeroPad2d(_ZeroPadNd):
    """Shapes: [N, C, H, W] or [C, H, W]."""

    spatial = 2


class ZeroPad3d(_ZeroPadNd):
    """Shapes: [N, C, D, H, W] or [C, D, H, W]."""

    spatial = 3


class CircularPad1d(_CircularPadNd):
    """Shapes: [N, C, L] or [C, L]."""

    spatial = 1


class CircularPad2d(_CircularPadNd):
    """Shapes: [N, C, H, W] or [C, H, W]."""

    spatial = 2


class CircularPad3d(_CircularPadNd):
    """Shapes: [N, C, D, H, W] or [C, D, H, W]."""

    spatial = 3


class ReflectionPad1d(_ReflectionPadNd):
    """Shapes: [N, C, L] or [C, L]."""

    spatial = 1


class ReflectionPad2d(_ReflectionPadNd):
    """Shapes: [N, C, H, W] or [C, H, W]."""

    spatial = 2


class ReflectionPad3d(_ReflectionPadNd):
    """Shapes: [N, C, D, H, W] or [C, D, H, W]."""

    spatial = 3


class ReplicationPad1d(_ReplicationPadNd):
    """Shapes: [N, C, L] or [C, L]."""

    spatial = 1


class ReplicationPad2d(_ReplicationPadNd):
    """Shapes: [N, C, H, W] or [C, H, W]."""

    spatial = 2


class ReplicationPad3d(_ReplicationPadNd):
    """Shapes: [N, C, D, H, W] or [C, D, H, W]."""

    spatial = 3
