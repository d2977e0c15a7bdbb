"""Batch and instance norm: they read and move running statistics, which no op may do.

    batch_norm(x, running_mean, running_var, weight, bias, training=True)    # running statistics are written in place

The arithmetic is in `operators.normalisation`. Entry: the functions.
"""

from __future__ import annotations

import math
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.ir.op import REGISTRY
from flambeau.tape.grad_mode import no_grad

__all__ = ["batch_norm", "instance_norm", "native_batch_norm"]


def _write(pairs: list[tuple[Tensor | None, Tensor]]) -> None:
    with no_grad():
        for running, value in pairs:
            if running is not None:
                running.copy_(value)


def _detached(x: Tensor | None) -> Tensor | None:
    """Running statistics get no gradient.

    Where they have none to get they stay the tensor they are: to a trace another tensor of the same memory would be an alias of what is
    written, and a compiled step whose tensors share memory runs eagerly.
    """
    if x is None or (x.node is None and not x.needs_grad and "_wrapped" not in x.__dict__):
        return x
    return x.detach()


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """The input normalised per channel (dim 1): by its own statistics while training, else by the running ones.

    Training moves `running_mean` and `running_var` by `momentum` in place. Raises: ValueError for one value per channel.
    """
    if training:
        values = math.prod(n for d, n in enumerate(input.shape) if d != 1)
        if values == 1:
            raise ValueError(
                message(
                    "batch_norm",
                    "expected more than 1 value per channel when training",
                    f"input size {list(input.shape)}",
                )
            )
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[0]


def _batch_norm(
    input: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple:
    if input.ndim < 2:
        if input.numel():
            raise RuntimeError(
                message("batch_norm", "expected at least 2 dims (batch, channels)", f"input size {list(input.shape)}")
            )
        nothing = REGISTRY["full"]((0,), 0, dtype=input.dtype, device=input.device)
        return REGISTRY["clone"](input), nothing, nothing
    if training:
        found = REGISTRY["batch_statistics_norm"](
            input, weight, bias, _detached(running_mean), _detached(running_var), momentum, eps
        )
        _write([(running_mean, found[3]), (running_var, found[4])])
        return found[:3]
    if running_mean is None or running_var is None:
        raise RuntimeError(
            message(
                "batch_norm",
                "expected running_mean and running_var to be defined when training=False",
                "None",
                "Pass training=True.",
            )
        )
    out = REGISTRY["batch_norm_inference"](input, weight, bias, _detached(running_mean), _detached(running_var), eps)
    nothing = REGISTRY["full"]((0,), 0, dtype=out.dtype, device=out.device)
    return out, nothing, nothing


def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(normalised, mean, 1 / standard deviation); the statistics are empty if not training."""
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """The input [N, C, *] normalised per instance and channel: by its own statistics, or by the running ones.

    Raises: ValueError for one value per instance and channel.
    """
    if not use_input_stats:
        return _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[0]
    if math.prod(input.shape[2:]) == 1:
        raise ValueError(
            message(
                "instance_norm", "expected more than 1 spatial element when training", f"input size {list(input.shape)}"
            )
        )
    found = REGISTRY["instance_statistics_norm"](
        input, weight, bias, _detached(running_mean), _detached(running_var), momentum, eps
    )
    _write([(running_mean, found[1]), (running_var, found[2])])
    return found[0]
