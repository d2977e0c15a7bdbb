"""Gradients kept in bounds: by their norm together, or one by one.

clip_grad_norm_(model.parameters(), max_norm=1.0)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.engine import update
from flambeau.factories import tensor
from flambeau.ir.op import REGISTRY
from flambeau.tape.grad_mode import no_grad

__all__ = ["clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def _listed(values: Any) -> list[Tensor]:
    return [values] if isinstance(values, Tensor) else list(values)


def _gradients(parameters: Any) -> list[Tensor]:
    return [p.grad for p in _listed(parameters) if p.grad is not None]


def _norm_of_norms(*values: Any) -> tuple:
    *grads, p = values
    norm = REGISTRY["vector_norm"]
    norms = [norm(g, p) for g in grads]
    return (norms[0] if len(norms) == 1 else norm(REGISTRY["stack"](tuple(norms), 0), p),)


def _scaled(g: Any, factor: Any) -> tuple:
    return (g * factor,)


@no_grad()
def get_total_norm(
    tensors: Iterable[Tensor] | Tensor,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all tensors together. Raises: RuntimeError if it is not finite and `error_if_nonfinite`."""
    found = _listed(tensors)
    if not found:
        return tensor(0.0)
    (total,) = update.compute(_norm_of_norms, [t.detach() for t in found], (), (float(norm_type),))
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped. To disable this "
            f"error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


@no_grad()
def clip_grads_with_norm_(
    parameters: Iterable[Tensor] | Tensor, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale the gradients by max_norm / total_norm where that is below 1."""
    grads = _gradients(parameters)
    if not grads:
        return
    factor = REGISTRY["clamp"](float(max_norm) / (total_norm + 1e-6), None, 1.0)
    for g in grads:
        update.run(_scaled, (0,), (g, factor))


def clip_grad_norm_(
    parameters: Iterable[Tensor] | Tensor,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients so that their norm together is at most `max_norm`. Returns the norm before."""
    parameters = _listed(parameters)
    if not parameters:
        warnings.warn("`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=2)
    total = get_total_norm(_gradients(parameters), norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(parameters, max_norm, total, foreach)
    return total


def clip_grad_norm(
    parameters: Iterable[Tensor] | Tensor,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The older name of `clip_grad_norm_`."""
    warnings.warn(
        "torch.nn.utils.clip_grad_norm is now deprecated in favor of torch.nn.utils.clip_grad_norm_.",
        FutureWarning,
        stacklevel=2,
    )
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def _limited(g: Any, low: Any, high: Any) -> tuple:
    return (REGISTRY["clamp"](g, low, high),)


@no_grad()
def clip_grad_value_(parameters: Iterable[Tensor] | Tensor, clip_value: float, foreach: bool | None = None) -> None:
    """Limit every element of the gradients to ±clip_value."""
    for g in _gradients(parameters):
        update.run(_limited, (0,), (g,), (-float(clip_value), float(clip_value)))
