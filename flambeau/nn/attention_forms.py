"""Attention with dropout, and bags of embeddings, in PyTorch's call forms.

May not know: how they are computed. Exported by `nn.functional`.
"""

from __future__ import annotations

from flambeau._tensor import Tensor
from flambeau.ir.op import REGISTRY
from flambeau.nn.indexing_forms import _shorten as shorten
from flambeau.random import bernoulli

__all__ = ["embedding_bag", "scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.mT * scale + mask) @ value; with `dropout_p`, weights are dropped and the rest scaled up.

    Shapes: [*, L, E], [*, S, E], [*, S, Ev] -> [*, L, Ev]. A bool mask keeps where it is True; `is_causal` is aligned top left; a row
    that is masked altogether gives 0. Raises: RuntimeError where shapes do not fit.
    """
    if not dropout_p:
        return REGISTRY["scaled_dot_product_attention"](query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if not 0.0 < dropout_p <= 1.0:
        raise ValueError(
            f"scaled_dot_product_attention: dropout probability has to be between 0 and 1, but got {dropout_p}."
        )
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = REGISTRY["attention_weights"](query @ key.mT, attn_mask, scale, is_causal, query.dtype)
    keep = REGISTRY["full"](tuple(weights.shape), 1 - dropout_p, dtype=weights.dtype, device=weights.device)
    kept = bernoulli(keep)
    return (weights * kept / (1 - dropout_p if dropout_p < 1 else 1)) @ value


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of rows of `weight` per bag; `input` is [B, n], or [n] cut at `offsets`.

    Raises: ValueError where input and offsets do not go together.
    """
    if sparse:
        raise NotImplementedError(
            "embedding_bag: sparse gradients need a sparse layout, which Flambeau does not have. Use sparse=False."
        )
    if weight.dtype.is_integral and input.dtype.is_floating_point:
        input, weight = weight, input  # the order of arguments before PyTorch 0.4, which it still takes
    rows = weight.shape[0]
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise RuntimeError(
                f"embedding_bag: padding_idx must be within the number of embeddings ({rows}), got {padding_idx}."
            )
        padding_idx %= rows
    if per_sample_weights is not None and input.shape != per_sample_weights.shape:
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({list(per_sample_weights.shape)}) is not None, then it must have the same shape as the input "
            f"({list(input.shape)})."
        )
    if weight.ndim != 2:
        raise ValueError(f"embedding_bag: weight has to be a 2D Tensor, got {list(weight.shape)}.")
    if max_norm is not None:
        shorten(weight, input, max_norm, norm_type)
    if input.ndim == 2:
        if offsets is not None:
            raise ValueError(
                "embedding_bag: if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length sequences."
            )
        return REGISTRY["embedding_bag"](weight, input, mode, per_sample_weights, padding_idx, scale_grad_by_freq)
    if input.ndim != 1:
        raise ValueError(f"embedding_bag: input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}.")
    if offsets is None or offsets.ndim != 1:
        raise ValueError(
            f"embedding_bag: offsets has to be a 1D Tensor for 1D input, got {None if offsets is None else list(offsets.shape)}."
        )
    return REGISTRY["embedding_bag_offsets"](
        weight, input, offsets, mode, per_sample_weights, padding_idx, include_last_offset, scale_grad_by_freq
    )
