"""Losses whose call form is not an op's: values checked, lengths given as lists, variances as numbers, distances as Python functions.

May not know: how losses are computed. Exported by `nn.functional`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.engine.host import has_values
from flambeau.factories import tensor
from flambeau.ir.op import FUNCTIONS, REGISTRY

__all__ = [
    "binary_cross_entropy",
    "ctc_loss",
    "huber_loss",
    "l1_loss",
    "linear_cross_entropy",
    "mse_loss",
    "smooth_l1_loss",
    "triplet_margin_with_distance_loss",
]


# ------------------------------------------------------------------ probabilities
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of probabilities against targets. Raises: RuntimeError for values outside of [0, 1], except in compiled functions."""
    for name, x in (("input", input), ("target", target)):
        if has_values(x):
            x = x.detach()
            if not bool(((x >= 0) & (x <= 1)).all()):
                raise RuntimeError(
                    f"binary_cross_entropy: all elements of {name} should be between 0 and 1. Take sigmoid() of scores, or "
                    "binary_cross_entropy_with_logits() in its place."
                )
    return REGISTRY["binary_cross_entropy"](input, target, weight, size_average, reduce, reduction)


# ------------------------------------------------------------------ differences
def _warn_of_broadcast(name: str, input: Tensor, target: Tensor) -> None:
    """Shapes that differ are most often a mistake: [N, 1] against [N] gives N * N differences."""
    warnings.warn(
        f"{name}: Using a target size ({target.size()}) that is different to the input size ({input.size()}). "
        "This will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
        stacklevel=3,
    )


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Squared differences: their mean, sum, or all of them. Warns of shapes that differ."""
    if input.shape != target.shape:
        _warn_of_broadcast("mse_loss", input, target)
    return REGISTRY["mse_loss"](input, target, size_average, reduce, reduction, weight)


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Absolute differences: their mean, sum, or all of them. Warns of shapes that differ."""
    if input.shape != target.shape:
        _warn_of_broadcast("l1_loss", input, target)
    return REGISTRY["l1_loss"](input, target, size_average, reduce, reduction, weight)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """|d| - beta / 2 where |d| >= beta, d^2 / (2 beta) below. Warns of shapes that differ."""
    if input.shape != target.shape:
        _warn_of_broadcast("smooth_l1_loss", input, target)
    return REGISTRY["smooth_l1_loss"](input, target, size_average, reduce, reduction, beta)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """d^2 / 2 where |d| <= delta, delta (|d| - delta / 2) beyond. Warns of shapes that differ."""
    if input.shape != target.shape:
        _warn_of_broadcast("huber_loss", input, target)
    return REGISTRY["huber_loss"](input, target, reduction, delta, weight)


# ------------------------------------------------------------------ others


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


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Tensor:
    """Cross entropy of the logits `linear(input, linear_weight, linear_bias)`.

    Shapes: input [N, features] or [features]; linear_weight [C, *K, features], whose logits are [N, C, *K]. `options` says how PyTorch
    divides the work to save memory; the result does not depend on it, and the logits are computed whole.
    Raises: RuntimeError where shapes do not fit.
    """
    if linear_weight.ndim < 2 or input.ndim not in (1, 2) or input.shape[-1] != linear_weight.shape[-1]:
        raise RuntimeError(
            f"linear_cross_entropy: input must be [N, features] or [features] and linear_weight [C, ..., features] with as many features, got "
            f"{list(input.shape)} and {list(linear_weight.shape)}."
        )
    classes = tuple(linear_weight.shape[:-1])
    if len(classes) > 1 and input.ndim == 1:
        raise RuntimeError(
            f"linear_cross_entropy: a linear_weight of more than 2 dims needs batched input [N, features], got input {list(input.shape)}."
        )
    bias = None if linear_bias is None else linear_bias.reshape((-1,))
    logits = REGISTRY["linear"](input, linear_weight.flatten(0, -2), bias)
    if len(classes) > 1:
        logits = logits.reshape((input.shape[0], *classes))
    if ignore_index is not None and target.dtype.is_floating_point:
        raise RuntimeError(
            f"linear_cross_entropy: ignore_index cannot be specified when target contains probabilities, got {ignore_index}. Leave it out."
        )
    ignored = -100 if ignore_index is None else ignore_index
    return FUNCTIONS["nn.functional.cross_entropy"](
        logits, target, weight, None, ignored, None, reduction, label_smoothing
    )
