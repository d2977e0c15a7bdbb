"""Pooling functions that return indices if asked, and random pooling: forms over the ops of `operators.pooling`.

max_pool2d(x, 2, return_indices=True)    # (values, indices)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.ir.op import REGISTRY
from flambeau.operators.pool_forms import sizes_of
from flambeau.operators.pooling import check_input, per_dim
from flambeau.random import rand

__all__ = [
    "adaptive_max_pool1d", "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices", "fractional_max_pool2d", "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d", "fractional_max_pool3d_with_indices", "max_pool1d", "max_pool1d_with_indices", "max_pool2d",
    "max_pool2d_with_indices", "max_pool3d", "max_pool3d_with_indices", "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip


def _max_pool(rank: int) -> tuple[Callable, Callable]:
    def with_indices(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> tuple[Tensor, Tensor]:
        return REGISTRY["max_pool"](input, rank, kernel_size, stride, padding, dilation, ceil_mode)

    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        found = with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)
        return found if return_indices else found[0]

    return _named(
        pool,
        with_indices,
        f"max_pool{rank}d",
        f"Maxima of windows over the last {rank} dims; with `return_indices` also where they are.",
    )


def _adaptive_max_pool(rank: int) -> tuple[Callable, Callable]:
    def with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> tuple[Tensor, Tensor]:
        return REGISTRY["adaptive_max_pool"](input, sizes_of(rank, output_size, input.ndim))

    def pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        found = with_indices(input, output_size)
        return found if return_indices else found[0]

    return _named(
        pool,
        with_indices,
        f"adaptive_max_pool{rank}d",
        f"Maxima over the last {rank} dims in windows of a given count.",
    )


def _fractional_max_pool(rank: int) -> tuple[Callable, Callable]:
    name = f"fractional_max_pool{rank}d"

    def with_indices(
        input: Tensor,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        check_input(name, input.spec, rank)
        if (output_size is None) == (output_ratio is None):
            raise ValueError(
                f"{name}: requires specifying either an output_size or an output_ratio, got {output_size} and {output_ratio}."
            )
        limits = input.shape[input.ndim - rank :]
        if output_size is None:
            ratio = output_ratio if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * rank
            if not all(0 < r < 1 for r in ratio):
                raise ValueError(f"{name}: output_ratio must be between 0 and 1, got {output_ratio}.")
            output_size = tuple(int(n * r) for n, r in zip(limits, ratio))
        sizes = per_dim(name, "output_size", output_size, rank)
        batch = input.shape[0] if input.ndim == rank + 2 else 1
        channels = input.shape[input.ndim - rank - 1]
        if _random_samples is None:
            _random_samples = rand(batch, channels, rank, dtype=input.dtype, device=input.device)
        wide = input if input.ndim == rank + 2 else input.unsqueeze(0)
        values, indices = REGISTRY["fractional_max_pool"](wide, _random_samples, kernel_size, sizes)
        return (values, indices) if wide is input else (values.squeeze(0), indices.squeeze(0))

    def pool(
        input: Tensor,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> Any:
        found = with_indices(input, kernel_size, output_size, output_ratio, return_indices, _random_samples)
        return found if return_indices else found[0]

    return _named(pool, with_indices, name, f"Maxima over the last {rank} dims in windows at random places.")


def _max_unpool(rank: int) -> Callable:
    name = f"max_unpool{rank}d"

    def unpool(
        input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
    ) -> Tensor:
        kernel = per_dim(name, "kernel_size", kernel_size, rank)
        stride = kernel if stride is None else per_dim(name, "stride", stride, rank)
        padding = per_dim(name, "padding", padding, rank)
        if output_size is None:
            sizes = tuple((n - 1) * s + k - 2 * p for n, s, k, p in zip(input.shape[-rank:], stride, kernel, padding))
        else:
            sizes = tuple(output_size)[-rank:]
        return REGISTRY["max_unpool"](input, indices, sizes)

    unpool.__name__ = unpool.__qualname__ = name
    unpool.__doc__ = f"Zeros with the pooled elements where they came from, over the last {rank} dims."
    return unpool


def _named(pool: Callable, with_indices: Callable, name: str, doc: str) -> tuple[Callable, Callable]:
    pool.__name__ = pool.__qualname__ = name
    with_indices.__name__ = with_indices.__qualname__ = name + "_with_indices"
    pool.__doc__, with_indices.__doc__ = doc, doc + " Returns (values, indices)."
    return pool, with_indices


max_pool1d, max_pool1d_with_indices = _max_pool(1)
max_pool2d, max_pool2d_with_indices = _max_pool(2)
max_pool3d, max_pool3d_with_indices = _max_pool(3)
adaptive_max_pool1d, adaptive_max_pool1d_with_indices = _adaptive_max_pool(1)
adaptive_max_pool2d, adaptive_max_pool2d_with_indices = _adaptive_max_pool(2)
adaptive_max_pool3d, adaptive_max_pool3d_with_indices = _adaptive_max_pool(3)
fractional_max_pool2d, fractional_max_pool2d_with_indices = _fractional_max_pool(2)
fractional_max_pool3d, fractional_max_pool3d_with_indices = _fractional_max_pool(3)
max_unpool1d, max_unpool2d, max_unpool3d = (_max_unpool(rank) for rank in (1, 2, 3))
