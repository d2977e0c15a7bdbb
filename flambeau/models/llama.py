"""Llama-shaped decoders: Llama, SmolLM, Mistral, Qwen2-like models with RoPE, grouped-query attention, RMSNorm and SwiGLU.

    model = Llama(config, weights)            # weights: dict of tensors by the names below
    cache = KVCache(model.config, batch=1, length=512)
    logits = model(ids, cache)                # [B, V] of the last position; the cache grows by T

May not know: file formats (`checkpoints`), tokens as text (`tokenizer`), sampling (`generation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flambeau
from flambeau import Tensor, nn
from flambeau.nn import functional as F
from flambeau.operators.rotary import rotate_pairs


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a model. `interleaved`: rotary pairs are neighbours (GGUF's order) instead of halves (Hugging Face's)."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    interleaved: bool = False
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    end_tokens: tuple[int, ...] = ()


def rope_frequencies(config: LlamaConfig) -> Tensor:
    """Angle per position of each rotary pair, [head_dim / 2]; Llama 3's scaling where the config has it."""
    half = flambeau.arange(0, config.head_dim, 2, dtype=flambeau.float32) / config.head_dim
    frequencies = config.rope_base**-half
    scaling = dict(config.rope_scaling)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", None):
        return frequencies
    if kind == "linear":
        return frequencies / scaling["factor"]
    if kind != "llama3":
        raise NotImplementedError(
            f"llama: rope scaling must be default, linear or llama3, got {kind!r}. Use a model without it, or convert the checkpoint."
        )
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * 3.141592653589793)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (smooth + (1 - smooth) / scaling["factor"])


class KVCache:
    """Keys and values of every layer, [B, kv_heads, length, head_dim] each, filled up to `used` positions."""

    def __init__(self, config: LlamaConfig, batch: int, length: int, dtype: Any = None):
        if length > config.context_length:
            raise ValueError(
                f"KVCache: length must be at most the model's context of {config.context_length} tokens, got {length}. Shorten the prompt or "
                f"ask for fewer tokens."
            )
        shape = (batch, config.kv_heads, length, config.head_dim)
        self.keys = [flambeau.empty(shape, dtype=dtype) for _ in range(config.layers)]
        self.values = [flambeau.empty(shape, dtype=dtype) for _ in range(config.layers)]
        self.length, self.used = length, 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values [B, K, T, D] of a layer behind what is there; returns everything so far."""
        end = self.used + k.shape[2]
        if end > self.length:
            raise ValueError(f"KVCache: room for {self.length} positions, got {end}. Make the cache longer.")
        keys, values = self.keys[layer], self.values[layer]
        keys.narrow(2, self.used, k.shape[2]).copy_(k)
        values.narrow(2, self.used, k.shape[2]).copy_(v)
        return keys.narrow(2, 0, end), values.narrow(2, 0, end)

    def advance(self, count: int) -> None:
        """Count the positions that every layer has stored."""
        self.used += count

    def nbytes(self) -> int:
        """Bytes held, used or not."""
        return sum(t.nbytes for t in (*self.keys, *self.values))


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: LlamaConfig, bias: bool = False):
        super().__init__()
        self.config = config
        width, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, kv, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, kv, bias=bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: KVCache | None, layer: int) -> Tensor:
        c = self.config
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, c.heads, c.head_dim).transpose(1, 2)  # [B, H, T, D]
        k = self.k_proj(x).view(b, t, c.kv_heads, c.head_dim).transpose(1, 2)  # [B, K, T, D]
        v = self.v_proj(x).view(b, t, c.kv_heads, c.head_dim).transpose(1, 2)
        q, k = rotate(q, rotation, c.interleaved), rotate(k, rotation, c.interleaved)
        past = 0
        if cache is not None:
            past = cache.used
            k, v = cache.append(layer, k, v)
        mask = None
        if t > 1 and past:
            mask = flambeau.ones(t, past + t, dtype=flambeau.bool).tril(past)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=t > 1 and not past, enable_gqa=c.heads != c.kv_heads
        )
        return self.o_proj(out.transpose(1, 2).reshape(b, t, c.heads * c.head_dim))


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor], interleaved: bool) -> Tensor:
    """x [B, H, T, D] turned by the angles of its positions; cos and sin are [T, D / 2]."""
    return rotate_pairs(x, *rotation, interleaved)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to the stream."""

    def __init__(self, config: LlamaConfig, attention_bias: bool = False):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.self_attn = Attention(config, attention_bias)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: KVCache | None, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, cache, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The decoder. Parameter names are Hugging Face's without the leading `model.`; the head shares the embedding if `tied`."""

    def __init__(self, config: LlamaConfig, *, tied: bool = True, attention_bias: bool = False):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Block(config, attention_bias) for _ in range(config.layers)])
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: Tensor, cache: KVCache | None = None, *, every_position: bool = False) -> Tensor:
        """Logits of the last position [B, V], or of every one [B, T, V].

        Shapes: ids int64 [B, T]. Raises: ValueError if the cache is full.
        """
        past = cache.used if cache is not None else 0
        t = ids.shape[1]
        frequencies = rope_frequencies(self.config)
        angles = flambeau.arange(past, past + t, dtype=flambeau.float32)[:, None] * frequencies  # [T, D / 2]
        x = self.embed_tokens(ids)
        rotation = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for i, block in enumerate(self.layers):
            x = block(x, rotation, cache, i)
        if cache is not None:
            cache.advance(t)
        if not every_position:
            x = x[:, -1]
        x = self.norm(x)
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)
