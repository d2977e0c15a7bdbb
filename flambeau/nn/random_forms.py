"""Functions of `nn.functional` that draw random numbers: dropout in its forms, Gumbel softmax.

    dropout(x, p=0.5, training=True)

The mask is a function of the generator's seed and count, drawn in the kernel that applies it and drawn again by its backward.
Every rule is in `operators.dropout`.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from flambeau._tensor import Tensor
from flambeau.engine import in_place
from flambeau.ir.op import REGISTRY
from flambeau.random import draw

__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout", "gumbel_softmax"]

ALPHA = -1.7580993408473766  # where SELU saturates: -scale * alpha


def _checked(p: float) -> float:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return float(p)


def _apply(name: str, input: Tensor, inplace: bool, *numbers: Any) -> Tensor:
    op = REGISTRY[name]
    args = (
        (input, *numbers[:-1], *draw(None)) if numbers[-1] is None else (input, *numbers[:-1], *draw(None), numbers[-1])
    )
    return in_place.run(op, args) if inplace else op(*args)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Elements zeroed with probability p while training; the others are divided by 1 - p. Raises: ValueError for p outside [0, 1]."""
    p = _checked(p)
    if not training or p == 0.0 or not input.spec.numel:
        return input
    return _apply("random_dropout", input, inplace, p, 1.0 / (1.0 - p) if p < 1.0 else 0.0, None)


def _features(input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    if not training or p == 0.0 or not input.spec.numel:
        return input
    return _apply("random_feature_dropout", input, inplace, 1.0 - p, 1.0 / (1.0 - p) if p < 1.0 else 0.0, None)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels zeroed. Shapes: [N, C, L] or [C, L]. Raises: RuntimeError for other numbers of dims."""
    p = _checked(p)
    if input.ndim not in (2, 3):
        raise RuntimeError(
            f"dropout1d: Expected 2D or 3D input, but received a {input.ndim}D input. Note that dropout1d exists to provide "
            f"channel-wise dropout on inputs with 1 spatial dimension, a channel dimension, and an optional batch dimension."
        )
    return _features(input, p, training, inplace) if input.ndim == 3 else _unbatched(input, p, training, inplace)


def _unbatched(input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    whole = _features(input.unsqueeze(0), p, training, inplace)
    return input if inplace else whole.squeeze(0)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels zeroed. Shapes: [N, C, H, W] (or [N, C, L], as it always was)."""
    p = _checked(p)
    if input.ndim not in (3, 4):
        warnings.warn(
            f"dropout2d: Received a {input.ndim}-D input to dropout2d, which is deprecated and will result in an error in a future "
            f"release. "
            f"To retain the behavior and silence this warning, please use dropout instead.",
            stacklevel=2,
        )
    if input.ndim == 3:
        warnings.warn(
            "dropout2d: Received a 3D input to dropout2d and assuming that channel-wise 1D dropout behavior is desired - input is "
            "interpreted "
            "as shape (N, C, L), where C is the channel dim.",
            stacklevel=2,
        )
    return _features(input, p, training, inplace)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels zeroed. Shapes: [N, C, D, H, W] or [C, D, H, W]."""
    p = _checked(p)
    if input.ndim not in (4, 5):
        warnings.warn(
            f"dropout3d: Received a {input.ndim}-D input to dropout3d, which is deprecated and will result in an error in a future "
            f"release. "
            f"To retain the behavior and silence this warning, please use dropout instead.",
            stacklevel=2,
        )
    return _features(input, p, training, inplace) if input.ndim != 4 else _unbatched(input, p, training, inplace)


def _alpha(input: Tensor, p: float, training: bool, inplace: bool, features: bool) -> Tensor:
    p = _checked(p)
    if not training or p == 0.0 or not input.spec.numel:
        return input
    keep = 1.0 - p
    a = 1.0 / math.sqrt((ALPHA * ALPHA * p + 1) * keep) if p < 1.0 else 0.0
    c = (
        -ALPHA * a
    )  # x noise a + (noise - 1) c + c p: a dropped element becomes alpha, then mean and variance are put right
    return _apply("random_alpha_dropout", input, inplace, keep, a, c, c * p, features)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean 0 and variance 1, for SELU networks. Source: Klambauer et al. (2017)."""
    return _alpha(input, p, training, inplace, False)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels (dim 1)."""
    return _alpha(input, p, training, inplace, True)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A sample of the relaxed categorical distribution; with `hard`, one-hot forward and relaxed backward.

    Source: Jang et al. (2016); Maddison et al. (2016).
    """
    if eps != 1e-10:
        warnings.warn("`eps` parameter is deprecated and has no effect.", stacklevel=2)
    ops = REGISTRY
    noise = ops["neg"](
        ops["log"](ops["random_exponential"](None, tuple(logits.shape), 1.0, *draw(None), logits.dtype, logits.device))
    )
    soft = ops["softmax"](ops["true_divide"](ops["add"](logits, noise), tau), dim)
    if not hard:
        return soft
    index = soft.detach().max(dim, keepdim=True)[1]
    chosen = ops["full"](tuple(logits.shape), 0, dtype=logits.dtype, device=logits.device).scatter_(dim, index, 1.0)
    return chosen - soft.detach() + soft


# ------------------------------------------------------------------ the names outside nn.functional
def torch_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`dropout` with every argument given."""
    return dropout(input, p, train)


def torch_feature_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Whole channels (dim 1) zeroed."""
    return _features(input, _checked(p), train, False)


def torch_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """`dropout` in place."""
    return dropout(input, p, train, inplace=True)


def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """(the input after dropout, the mask of what was kept)."""
    if train is False or p == 0:
        return input.clone(), REGISTRY["full"](tuple(input.shape), True, device=input.device)
    keep = 1.0 - _checked(p)
    mask = REGISTRY["random_bernoulli"](None, tuple(input.shape), keep, *draw(None), input.dtype, input.device)
    return input * mask * (1.0 / keep if keep else 0.0), mask.bool()
