"""Generating text: prompt in one pass, then token by token.

    for piece in generate(model, tokenizer, ids, limit=200):
        print(piece, end="", flush=True)

May not know: the command line. Determinism: greedy unless `temperature` > 0; sampling is reproducible from `seed`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import flambeau
from flambeau import Tensor
from flambeau.models.llama import KVCache, Llama
from flambeau.models.tokenizer import Tokenizer


@dataclass
class Sampling:
    """How the next token is chosen. temperature 0: the likeliest. top_k 0 and top_p 1: no restriction."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"sampling: temperature must be 0 or more, got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling: top_p must be in (0, 1], got {self.top_p}.")
        if self.top_k < 0:
            raise ValueError(f"sampling: top_k must be 0 or more, got {self.top_k}.")


@dataclass
class Speed:
    """What a generation took. Times in seconds."""

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    tokens: int = 0
    decode_s: float = 0.0
    cache_bytes: int = 0
    stopped: str = ""
    ids: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        prompt = self.prompt_tokens / self.prompt_s if self.prompt_s else 0.0
        decode = (self.tokens - 1) / self.decode_s if self.decode_s and self.tokens > 1 else 0.0
        return f"prompt {self.prompt_tokens} tokens, {prompt:.0f} tokens/s; reply {self.tokens} tokens, {decode:.1f} tokens/s"


def next_token(logits: Tensor, sampling: Sampling, generator: flambeau.Generator | None) -> int:
    """A token number from logits [V]."""
    if sampling.temperature == 0:
        return int(logits.argmax().item())
    scores = logits.float() / sampling.temperature
    if sampling.top_k:
        least = scores.topk(min(sampling.top_k, scores.shape[0])).values[-1]
        scores = scores.masked_fill(scores < least, float("-inf"))
    if sampling.top_p < 1:
        ordered, places = scores.sort(descending=True)
        p = ordered.softmax(-1)
        drop = (p.cumsum(-1) - p) >= sampling.top_p
        scores = flambeau.empty_like(scores).scatter(0, places, ordered.masked_fill(drop, float("-inf")))
    return int(flambeau.multinomial(scores.softmax(-1), 1, generator=generator).item())


def generate(
    model: Llama,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    *,
    limit: int = 256,
    sampling: Sampling | None = None,
    speed: Speed | None = None,
    cache: KVCache | None = None,
) -> Iterator[str]:
    """Pieces of text as they are generated, until an end token, `limit` tokens or the end of the context.

    `cache` continues a conversation: `ids` are then what is new in it. Raises: ValueError for an empty prompt or one that is too long.
    """
    if not ids:
        raise ValueError("generate: the prompt must have at least one token, got none.")
    sampling, speed = sampling or Sampling(), speed if speed is not None else Speed()
    context = model.config.context_length
    if cache is None:
        if len(ids) >= context:
            raise ValueError(
                f"generate: the prompt must be shorter than the model's context of {context} tokens, got {len(ids)}. Shorten it."
            )
        cache = KVCache(model.config, 1, min(context, len(ids) + limit), model.embed_tokens.weight.dtype)
    generator = None
    if sampling.temperature:
        generator = flambeau.Generator()
        generator.manual_seed(sampling.seed) if sampling.seed is not None else generator.seed()
    with flambeau.inference_mode():
        start = time.perf_counter()
        logits = model(flambeau.tensor([list(ids)]), cache)[0]
        token = next_token(logits, sampling, generator)
        speed.prompt_tokens, speed.prompt_s = len(ids), time.perf_counter() - start
        speed.cache_bytes = cache.nbytes()
        start = time.perf_counter()
        shown = ""
        speed.stopped = "limit"
        for _ in range(limit):
            if token in tokenizer.end_tokens:
                speed.stopped = "end"
                break
            speed.ids.append(token)
            speed.tokens += 1
            text = tokenizer.decode(speed.ids)
            if not text.endswith("\ufffd"):  # else part of a character: wait for the rest
                yield text[len(shown) :]
                shown = text
            if cache.used >= cache.length:
                speed.stopped = "context"
                break
            token = next_token(model(flambeau.tensor([[token]]), cache)[0], sampling, generator)
            speed.decode_s = time.perf_counter() - start
