"""Functions of `nn.functional` on indices whose call form is not an op's: embedding, one_hot, pad.

Dispatch only; every rule is in the ops they call.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.dtype import int64
from flambeau.ir.op import REGISTRY
from flambeau.tape.grad_mode import no_grad

__all__ = ["embedding", "one_hot", "pad"]


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of `weight`, one per index. Row `padding_idx` gets no gradient; rows looked up that are longer than `max_norm` are shortened in
    place.

    Raises: RuntimeError for a bad `padding_idx`, IndexError for an index out of bounds, NotImplementedError for sparse gradients.
    """
    if sparse:
        raise NotImplementedError(
            "embedding: sparse gradients need a sparse layout, which Flambeau does not have. Use sparse=False."
        )
    if weight.spec.ndim != 2:
        raise RuntimeError(
            message("embedding", "weight must have 2 dims ('weight' must be 2-D)", f"shape {list(weight.shape)}")
        )
    rows = weight.spec.shape[0]
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise AssertionError(
                message(
                    "embedding",
                    f"padding_idx must be within num_embeddings ({rows}) (Padding_idx must be within num_embeddings)",
                    padding_idx,
                )
            )
        padding_idx %= rows
    if max_norm is not None:
        _shorten(weight, input, max_norm, norm_type)
    return REGISTRY["embedding_lookup"](weight, input, -1 if padding_idx is None else padding_idx, scale_grad_by_freq)


def _shorten(weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> None:
    """Rows that are looked up and longer than max_norm, scaled to it in place."""
    ops = REGISTRY
    with no_grad():
        flat = ops["reshape"](input, (input.spec.numel,))
        found = ops["index_select"](weight.detach(), 0, flat)
        size = ops["power"](ops["sum"](ops["power"](ops["abs"](found), norm_type), 1, True), 1.0 / norm_type)
        scale = ops["where"](ops["gt"](size, max_norm), ops["true_divide"](max_norm, ops["add"](size, 1e-7)), 1.0)
        weight.index_copy_(0, flat, ops["mul"](found, ops["to_dtype"](scale, found.dtype)))


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A 1 at each index in a new last dim of size `num_classes` (the largest index + 1 unless told).

    Raises: RuntimeError for an index that is negative or too large, or indices that are not int64.
    """
    if tensor.spec.dtype is not int64:
        raise RuntimeError(
            message(
                "one_hot",
                "indices must be int64 (one_hot is only applicable to index tensor of type LongTensor)",
                tensor.dtype.name,
            )
        )
    if not tensor.spec.numel:
        if num_classes <= 0:
            raise RuntimeError(
                message(
                    "one_hot",
                    "num_classes must be given for an empty tensor (Can not infer total number of classes "
                    "from empty tensor.)",
                    num_classes,
                )
            )
    elif tensor.ptr is not None:
        if int(REGISTRY["amin"](tensor).item()) < 0:
            raise RuntimeError(
                message(
                    "one_hot",
                    "indices must be non-negative (Class values must be non-negative.)",
                    int(tensor.min().item()),
                )
            )
        most = int(REGISTRY["amax"](tensor).item())
        if num_classes == -1:
            num_classes = most + 1
        elif num_classes < 1:
            raise RuntimeError(
                message("one_hot", "num_classes must be positive (num_classes should be positive)", num_classes)
            )
        elif most >= num_classes:
            raise RuntimeError(
                message(
                    "one_hot",
                    "indices must be smaller than num_classes (Class values must be smaller than num_classes.)",
                    f"{most} and {num_classes}",
                )
            )
    elif num_classes < 1:
        raise RuntimeError(
            message(
                "one_hot",
                "num_classes must be given while a function is traced, where values are not known",
                num_classes,
            )
        )
    classes = REGISTRY["iota"]((num_classes,), device=tensor.device)
    return REGISTRY["to_dtype"](REGISTRY["eq"](REGISTRY["unsqueeze"](tensor, -1), classes), int64)


def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """The input with `pad` = (left, right) pairs, last dim first, around it: a constant, or what the input holds (reflect, replicate,
    circular).

    Raises: RuntimeError or NotImplementedError where pad does not fit the input or the mode.
    """
    pad = tuple(int(n) for n in pad)
    if mode == "constant":
        return REGISTRY["constant_pad_nd"](input, pad, 0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(
            message("pad", "mode must be constant, reflect, replicate or circular (Unrecognised padding mode)", mode)
        )
    if value:
        raise ValueError(
            message("pad", f"mode {mode} takes no value (Padding mode doesn't take in value argument)", value)
        )
    dims, n = len(pad) // 2, input.spec.ndim
    if len(pad) % 2 or not 1 <= dims <= 3 or n not in (dims + 1, dims + 2):
        raise NotImplementedError(
            message(
                "pad",
                f"mode {mode} pads the last 1 dim of 2D or 3D, 2 of 3D or 4D, 3 of 4D or 5D inputs (Only "
                "2D, 3D, 4D, 5D padding with non-constant padding are supported for "
                "now)",
                f"{n}D and pad={list(pad)}",
            )
        )
    if any(not m for m in input.spec.shape[n - dims - 1 :]):
        raise RuntimeError(
            message(
                "pad",
                f"mode {mode} needs non-empty dims beside the batch (Expected input to have non-zero size for "
                "non-batch dimensions)",
                f"shape {list(input.shape)}",
            )
        )
    return REGISTRY[f"pad_{mode}"](input, pad)
