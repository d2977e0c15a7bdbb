"""Losses whose call form is not an op's: lengths given as lists, variances as numbers, distances as Python functions.

May not know: how losses are computed. Exported by `nn.functional`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.factories import tensor
from flambeau.ir.op import REGISTRY

__all__ = ["ctc_loss", "triplet_margin_with_distance_loss"]


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Connectionist temporal classification loss of log probabilities [T, N, C]; lengths are tensors or lists.

    Raises: RuntimeError where lengths, labels or the blank do not fit.
    """
    samples = log_probs.shape[1] if log_probs.ndim == 3 else 1
    rows = [
        _lengths("input_lengths", input_lengths, samples, log_probs.shape[0]),
        _lengths("target_lengths", target_lengths, samples, None),
    ]
    return REGISTRY["ctc_loss"](log_probs, targets, *rows, blank, reduction, zero_infinity)


def _lengths(what: str, given: Any, samples: int, most: int | None) -> Tensor:
    values = (
        given.reshape(-1).tolist()
        if isinstance(given, Tensor)
        else [int(n) for n in (given if isinstance(given, (list, tuple)) else (given,))]
    )
    if len(values) != samples:
        raise RuntimeError(f"ctc_loss: {what} must be of size batch_size, got {len(values)} for {samples} samples.")
    if any(n < 0 for n in values):
        raise RuntimeError(f"ctc_loss: Expected {what} to have value at least 0, got {min(values)}.")
    if most is not None and any(n > most for n in values):
        raise RuntimeError(f"ctc_loss: Expected {what} to have value at most {most}, but got value {max(values)}.")
    if isinstance(given, Tensor):
        return given.reshape((-1,))
    return tensor(values)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin + d(anchor, positive) - d(anchor, negative)) for a distance d (pairwise_distance unless given)."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            f"triplet_margin_with_distance_loss: {reduction} is not a valid value for reduction, got {reduction!r}."
        )
    if margin <= 0:
        raise ValueError(f"triplet_margin_with_distance_loss: margin must be greater than 0, got {margin}.")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            f"triplet_margin_with_distance_loss: The anchor, positive, and negative tensors are expected to have the same number of dimensions, "
            f"but got: anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs."
        )
    distance = REGISTRY["pairwise_distance"] if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = REGISTRY["minimum"](far, distance(positive, negative))
    terms = REGISTRY["clamp_min"](near - far + margin, 0)
    return terms if reduction == "none" else REGISTRY[reduction](terms)
