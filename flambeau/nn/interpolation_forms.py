"""`interpolate` and its relatives: sizes and scale factors worked out, then one op per resampled dim.

    interpolate(x, scale_factor=2, mode="bilinear")

May not know: how places and weights are computed. Exported by `nn.functional`.
"""

from __future__ import annotations

import math
from typing import Any

from flambeau._tensor import Tensor
from flambeau.core.dtype import bfloat16, float16, float32
from flambeau.ir.op import REGISTRY

__all__ = ["affine_grid", "grid_sample", "interpolate", "upsample", "upsample_bilinear", "upsample_nearest"]

MODES = ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area")
OF_RANK = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Spatial dims of [N, C, *L] resampled to `size`, or by `scale_factor`.

    Modes: nearest, nearest-exact, linear (3D input), bilinear and bicubic (4D), trilinear (5D), area. Raises: ValueError where
    arguments do not go together.
    """
    if mode not in MODES:
        raise NotImplementedError(f"interpolate: mode must be one of {', '.join(MODES)}, got {mode!r}.")
    rank = input.ndim - 2
    if mode in ("nearest", "area", "nearest-exact"):
        if align_corners is not None:
            raise ValueError(
                f"interpolate: align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear, got "
                f"mode={mode!r}."
            )
    if rank not in (1, 2, 3):
        raise NotImplementedError(
            f"interpolate: Input Error: Only 3D, 4D and 5D input Tensors supported (got {input.ndim}D) for the modes: {' | '.join(MODES)} "
            f"(got {mode})."
        )
    if mode in OF_RANK and OF_RANK[mode] != rank:
        raise NotImplementedError(
            f"interpolate: Got {input.ndim}D input, but {mode} mode needs {OF_RANK[mode] + 2}D input. Add or squeeze a dim."
        )
    if antialias and not (mode in ("bilinear", "bicubic") and rank == 2):
        raise ValueError(
            f"interpolate: Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input, got mode={mode!r}."
        )
    sizes, factors = _sizes(input, size, scale_factor, recompute_scale_factor, rank)
    if any(n <= 0 for n in (*sizes, *input.shape[2:])) or input.shape[1] == 0:
        raise RuntimeError(
            f"interpolate: Input and output sizes should be greater than 0, but got input {list(input.shape)}, output {list(sizes)}."
        )
    if mode == "area":
        return REGISTRY["adaptive_avg_pool"](input, sizes)
    if mode in ("nearest", "nearest-exact"):
        return REGISTRY["resample_nearest"](input, sizes, factors, mode == "nearest-exact")
    narrow = input.dtype if input.dtype in (float16, bfloat16) else None
    if narrow is not None:  # one rounding for all dims
        input = input.to(float32)
    for d in range(rank - 1, -1, -1):
        unchanged = sizes[d] == input.shape[2 + d] and factors[d] in (None, 1.0)
        if unchanged and not (d == 0 and rank == 1):
            continue
        kind = "cubic" if mode == "bicubic" else "linear"
        input = REGISTRY["resample"](input, 2 + d, kind, sizes[d], factors[d], bool(align_corners), antialias)
    return input if narrow is None else input.to(narrow)


def _sizes(
    input: Tensor, size: Any, scale_factor: Any, recompute: bool | None, rank: int
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """(result sizes, factors that places are computed with)."""
    if (size is None) == (scale_factor is None):
        both = (
            "only one of size or scale_factor should be defined"
            if size is not None
            else "either size or scale_factor should be defined"
        )
        raise ValueError(f"interpolate: {both}, got size={size}, scale_factor={scale_factor}.")
    if size is not None:
        sizes = tuple(int(n) for n in size) if isinstance(size, (tuple, list)) else (int(size),) * rank
        if len(sizes) != rank:
            raise ValueError(
                f"interpolate: Input and output must have the same number of spatial dimensions, but got input with spatial dimensions of "
                f"{list(input.shape[2:])} and output size of {list(sizes)}."
            )
        if recompute:
            raise ValueError(
                f"interpolate: recompute_scale_factor is not meaningful with an explicit size, got size={list(sizes)}."
            )
        return sizes, (None,) * rank
    factors = (
        tuple(float(f) for f in scale_factor)
        if isinstance(scale_factor, (tuple, list))
        else (float(scale_factor),) * rank
    )
    if len(factors) != rank:
        raise ValueError(
            f"interpolate: scale_factor shape must match input shape: Input is {rank}D, scale_factor size is {len(factors)}."
        )
    sizes = tuple(math.floor(float(n) * f) for n, f in zip(input.shape[2:], factors))
    return sizes, ((None,) * rank if recompute else factors)


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """`interpolate` under its former name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` to the nearest elements."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` bilinearly with aligned corners."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """input [N, C, *L] sampled at the places of grid [N, *P, rank], from -1 to 1 over the image."""
    return REGISTRY["grid_sample"](input, grid, mode, padding_mode, bool(align_corners))


def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Tensor:
    """The sampling grid of affine maps theta [N, 2, 3] or [N, 3, 4] for a result of `size`."""
    return REGISTRY["affine_grid"](theta, tuple(int(n) for n in size), bool(align_corners))
