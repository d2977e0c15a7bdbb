"""Pooling: maxima, means, norms over windows, and over adaptive windows."""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.nn import functional as F
from flambeau.nn.modules.module import Module

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]


def _ntuple(value: Any, n: int) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


class _MaxPoolNd(Module):
    __constants__ = ["kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode"]
    spatial = 0

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ):
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride if stride is not None else kernel_size
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[self.spatial - 1]
        return function(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
            return_indices=self.return_indices,
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPoolNd):
    """Largest value of each window. Shapes: [N, C, L] or [C, L]."""

    spatial = 1


class MaxPool2d(_MaxPoolNd):
    """Largest value of each window. Shapes: [N, C, H, W] or [C, H, W]."""

    spatial = 2


class MaxPool3d(_MaxPoolNd):
    """Largest value of each window. Shapes: [N, C, D, H, W] or [C, D, H, W]."""

    spatial = 3


class _MaxUnpoolNd(Module):
    spatial = 0

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0):
        super().__init__()
        n = self.spatial
        self.kernel_size = _ntuple(kernel_size, n)
        self.stride = _ntuple(stride if stride is not None else kernel_size, n)
        self.padding = _ntuple(padding, n)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        function = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[self.spatial - 1]
        return function(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpoolNd):
    """Puts maxima back where they were, zeros elsewhere."""

    spatial = 1


class MaxUnpool2d(_MaxUnpoolNd):
    """Puts maxima back where they were, zeros elsewhere."""

    spatial = 2


class MaxUnpool3d(_MaxUnpoolNd):
    """Puts maxima back where they were, zeros elsewhere."""

    spatial = 3


class AvgPool1d(Module):
    """Mean of each window. Shapes: [N, C, L] or [C, L]."""

    __constants__ = ["kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"]

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ):
        super().__init__()
        self.kernel_size = _ntuple(kernel_size, 1)
        self.stride = _ntuple(stride if stride is not None else self.kernel_size, 1)
        self.padding = _ntuple(padding, 1)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPoolNd(Module):
    __constants__ = ["kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"]
    spatial = 0

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ):
        super().__init__()
        self.kernel_size, self.stride, self.padding = (
            kernel_size,
            stride if stride is not None else kernel_size,
            padding,
        )
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        function = F.avg_pool2d if self.spatial == 2 else F.avg_pool3d
        return function(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPoolNd):
    """Mean of each window. Shapes: [N, C, H, W] or [C, H, W]."""

    spatial = 2


class AvgPool3d(_AvgPoolNd):
    """Mean of each window. Shapes: [N, C, D, H, W] or [C, D, H, W]."""

    spatial = 3


class _FractionalMaxPool(Module):
    spatial = 0

    def __init__(
        self,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ):
        super().__init__()
        n = self.spatial
        self.kernel_size, self.return_indices = _ntuple(kernel_size, n), return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = _ntuple(output_size, n) if output_size is not None else None
        self.output_ratio = _ntuple(output_ratio, n) if output_ratio is not None else None
        if output_size is None and output_ratio is None:
            raise ValueError(f"FractionalMaxPool{n}d requires specifying either an output size, or a pooling ratio")
        if output_size is not None and output_ratio is not None:
            raise ValueError("only one of output_size and output_ratio may be specified")
        if self.output_ratio is not None and not all(0 < r < 1 for r in self.output_ratio):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {output_ratio})")

    def forward(self, input: Tensor) -> Any:
        function = F.fractional_max_pool2d if self.spatial == 2 else F.fractional_max_pool3d
        return function(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            _random_samples=self._random_samples,
        )


class FractionalMaxPool2d(_FractionalMaxPool):
    """Largest value of windows at random steps. Source: Graham (2015)."""

    spatial = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """Largest value of windows at random steps. Source: Graham (2015)."""

    spatial = 3


class _LPPoolNd(Module):
    __constants__ = ["norm_type", "kernel_size", "stride", "ceil_mode"]
    spatial = 0

    def __init__(self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False):
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        function = (F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)[self.spatial - 1]
        return function(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPoolNd):
    """p-norm of each window. Shapes: [N, C, L] or [C, L]."""

    spatial = 1


class LPPool2d(_LPPoolNd):
    """p-norm of each window. Shapes: [N, C, H, W] or [C, H, W]."""

    spatial = 2


class LPPool3d(_LPPoolNd):
    """p-norm of each window. Shapes: [N, C, D, H, W] or [C, D, H, W]."""

    spatial = 3


class _AdaptiveAvgPoolNd(Module):
    __constants__ = ["output_size"]
    spatial = 0

    def __init__(self, output_size: Any):
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[self.spatial - 1](
            input, self.output_size
        )

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd):
    """Means over windows that give `output_size` results."""

    spatial = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd):
    """Means over windows that give `output_size` results (None: as many as there are)."""

    spatial = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd):
    """Means over windows that give `output_size` results (None: as many as there are)."""

    spatial = 3


class _AdaptiveMaxPoolNd(Module):
    __constants__ = ["output_size", "return_indices"]
    spatial = 0

    def __init__(self, output_size: Any, return_indices: bool = False):
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: Tensor) -> Any:
        function = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[self.spatial - 1]
        return function(input, self.output_size, return_indices=self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPoolNd):
    """Maxima over windows that give `output_size` results."""

    spatial = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPoolNd):
    """Maxima over windows that give `output_size` results (None: as many as there are)."""

    spatial = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPoolNd):
    """Maxima over windows that give `output_size` results (None: as many as there are)."""

    spatial = 3
