"""`multi_head_attention_forward`: projections, attention of all heads, projection back.

Without weights to return the attention is one op (`scaled_dot_product_attention`). May not know: modules.
"""

from __future__ import annotations

import math
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.dtype import bool_
from flambeau.ir.op import REGISTRY
from flambeau.nn.attention_forms import scaled_dot_product_attention
from flambeau.nn.random_forms import dropout

__all__ = ["multi_head_attention_forward"]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return REGISTRY["linear"](x, weight, bias)


def _cat(parts: list[Tensor], dim: int) -> Tensor:
    return REGISTRY["cat"](tuple(parts), dim)


def _zeros(shape: tuple, like: Tensor) -> Tensor:
    return REGISTRY["full"](shape, 0, dtype=like.dtype, device=like.device)


def _projected(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value through one packed weight [3 E, E]; inputs that are the same tensor take one product."""
    e = q.shape[-1]
    if k is v:
        if q is k:
            packed = _linear(q, weight, bias)
            return packed[..., :e], packed[..., e : 2 * e], packed[..., 2 * e :]
        pairs = _linear(k, weight[e:], None if bias is None else bias[e:])
        return _linear(q, weight[:e], None if bias is None else bias[:e]), pairs[..., :e], pairs[..., e:]
    parts = [
        (x, weight[i * e : (i + 1) * e], None if bias is None else bias[i * e : (i + 1) * e])
        for i, x in enumerate((q, k, v))
    ]
    return tuple(_linear(*p) for p in parts)


def _mask(name: str, mask: Tensor | None, target: Tensor) -> Tensor | None:
    """A mask as numbers to add: bool masks become 0 and -inf."""
    if mask is None:
        return None
    if mask.dtype is bool_:
        return REGISTRY["masked_fill"](_zeros(tuple(mask.shape), target), mask, -math.inf)
    if not mask.dtype.is_floating_point:
        raise AssertionError(
            message(
                "multi_head_attention_forward", f"only bool and floating types of {name} are supported", mask.dtype.name
            )
        )
    return mask


def _check_shapes(
    query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, mask: Tensor | None, heads: int
) -> bool:
    """Whether the query has a batch dim. Raises: AssertionError for shapes that do not fit."""
    op = "multi_head_attention_forward"
    if query.ndim not in (2, 3):
        raise AssertionError(
            message(op, "query should be unbatched 2D or batched 3D tensor", f"a {query.ndim}-D query tensor")
        )
    batched = query.ndim == 3
    if key.ndim != query.ndim or value.ndim != query.ndim:
        raise AssertionError(
            message(op, f"key and value must have {query.ndim} dims as the query has", f"{key.ndim} and {value.ndim}")
        )
    if padding is not None and padding.ndim != query.ndim - 1:
        raise AssertionError(message(op, f"key_padding_mask must have {query.ndim - 1} dims", f"{padding.ndim}"))
    if mask is not None and mask.ndim not in (2, 3):
        raise AssertionError(message(op, "attn_mask must have 2 or 3 dims", f"{mask.ndim}"))
    if (
        not batched
        and mask is not None
        and mask.ndim == 3
        and tuple(mask.shape) != (heads, query.shape[0], key.shape[0])
    ):
        raise AssertionError(
            message(op, f"attn_mask must have shape {(heads, query.shape[0], key.shape[0])}", f"{tuple(mask.shape)}")
        )
    return batched


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(output, attention weights or None) of multi-head attention.

    Shapes: query [L, N, E], key [S, N, kdim], value [S, N, vdim] (N may be left out), weights [N, L, S] or [N, heads, L, S].
    Raises: AssertionError for shapes that do not fit; RuntimeError for is_causal without attn_mask.
    """
    op = "multi_head_attention_forward"
    batched = _check_shapes(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        same = key is query, value is key
        query = query.unsqueeze(1)
        key = query if same[0] else key.unsqueeze(1)
        value = key if same[1] else value.unsqueeze(1)
        key_padding_mask = key_padding_mask.unsqueeze(0) if key_padding_mask is not None else None
    length, batch, embed = query.shape
    sources = key.shape[0]
    if embed != embed_dim_to_check:
        raise AssertionError(message(op, f"was expecting embedding dimension of {embed_dim_to_check}", f"{embed}"))
    head = embed // num_heads
    if head * num_heads != embed:
        raise AssertionError(
            message(op, "embed_dim must be divisible by num_heads", {"embed_dim": embed, "num_heads": num_heads})
        )
    if is_causal and attn_mask is None:
        raise RuntimeError(f"{op}: Need attn_mask if specifying the is_causal hint. Pass the mask, or is_causal=False.")
    key_padding_mask = _mask("key_padding_mask", key_padding_mask, query)
    causal = is_causal and key_padding_mask is None and not need_weights
    attn_mask = None if causal else _mask("attn_mask", attn_mask, query)
    q, k, v = _heads_in(
        query,
        key,
        value,
        in_proj_weight,
        in_proj_bias,
        use_separate_proj_weight,
        (q_proj_weight, k_proj_weight, v_proj_weight),
    )
    if attn_mask is not None:
        if attn_mask.ndim == 2:
            if tuple(attn_mask.shape) != (length, sources):
                raise RuntimeError(
                    f"{op}: The shape of the 2D attn_mask is {attn_mask.shape}, but should be {(length, sources)}."
                )
            attn_mask = attn_mask.unsqueeze(0)
        elif tuple(attn_mask.shape) != (batch * num_heads, length, sources):
            raise RuntimeError(
                f"{op}: The shape of the 3D attn_mask is {attn_mask.shape}, but should be {(batch * num_heads, length, sources)}."
            )
    if bias_k is not None and bias_v is not None:
        k, v = _cat([k, bias_k.expand(1, batch, embed)], 0), _cat([v, bias_v.expand(1, batch, embed)], 0)
        attn_mask, key_padding_mask = _widened(attn_mask), _widened(key_padding_mask)
    q = q.reshape(length, batch * num_heads, head).transpose(0, 1)
    k = static_k if static_k is not None else k.reshape(k.shape[0], batch * num_heads, head).transpose(0, 1)
    v = static_v if static_v is not None else v.reshape(v.shape[0], batch * num_heads, head).transpose(0, 1)
    if add_zero_attn:
        nothing = (batch * num_heads, 1, head)
        k, v = _cat([k, _zeros(nothing, k)], 1), _cat([v, _zeros(nothing, v)], 1)
        attn_mask, key_padding_mask = _widened(attn_mask), _widened(key_padding_mask)
    sources = k.shape[1]
    if key_padding_mask is not None:
        if tuple(key_padding_mask.shape) != (batch, sources):
            raise AssertionError(
                message(
                    op, f"expecting key_padding_mask shape of {(batch, sources)}", f"{tuple(key_padding_mask.shape)}"
                )
            )
        padding = (
            key_padding_mask.view(batch, 1, 1, sources)
            .expand(-1, num_heads, -1, -1)
            .reshape(batch * num_heads, 1, sources)
        )
        attn_mask = padding if attn_mask is None else attn_mask + padding
    p = dropout_p if training else 0.0
    if need_weights:
        return _with_weights(
            q, k, v, attn_mask, p, batch, num_heads, out_proj_weight, out_proj_bias, average_attn_weights, batched
        )
    if attn_mask is not None:
        attn_mask = (
            attn_mask.unsqueeze(0)
            if attn_mask.shape[0] == 1 and attn_mask.ndim == 3
            else attn_mask.view(batch, num_heads, -1, sources)
        )
    q, k, v = (
        x.view(batch, num_heads, x.shape[1], head)
        if x.is_contiguous()
        else x.reshape(batch, num_heads, x.shape[1], head)
        for x in (q, k, v)
    )
    output = scaled_dot_product_attention(q, k, v, attn_mask, p, causal)
    output = _linear(output.permute(2, 0, 1, 3).reshape(length, batch, embed), out_proj_weight, out_proj_bias)
    return (output if batched else output.squeeze(1)), None


def _heads_in(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    separate: bool,
    weights: tuple,
) -> tuple:
    if not separate:
        if weight is None:
            raise AssertionError(
                "multi_head_attention_forward: use_separate_proj_weight is False but in_proj_weight is None. Give it."
            )
        return _projected(query, key, value, weight, bias)
    if any(w is None for w in weights):
        raise AssertionError(
            "multi_head_attention_forward: use_separate_proj_weight is True but one of the projection weights is None. Give all three."
        )
    e = query.shape[-1]
    biases: list[Any] = [None if bias is None else bias[i * e : (i + 1) * e] for i in range(3)]
    return tuple(_linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))


def _widened(mask: Tensor | None) -> Tensor | None:
    """A mask with one more source, attended by all."""
    return None if mask is None else _cat([mask, _zeros((*mask.shape[:-1], 1), mask)], -1)


def _with_weights(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    p: float,
    batch: int,
    heads: int,
    weight: Tensor,
    bias: Tensor | None,
    average: bool,
    batched: bool,
) -> tuple[Tensor, Tensor]:
    _, length, head = q.shape
    scores = REGISTRY["bmm"](q * math.sqrt(1.0 / head), k.transpose(-2, -1))
    weights = REGISTRY["softmax"](scores if mask is None else scores + mask, -1)
    weights = dropout(weights, p) if p > 0.0 else weights
    output = REGISTRY["bmm"](weights, v).transpose(0, 1).reshape(length * batch, heads * head)
    output = _linear(output, weight, bias).view(length, batch, weight.shape[0])
    weights = weights.view(batch, heads, length, k.shape[1])
    weights = weights.mean(1) if average else weights
    return (output, weights) if batched else (output.squeeze(1), weights.squeeze(0))
