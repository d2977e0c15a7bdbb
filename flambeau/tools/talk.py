"""`generate` and `chat` for the terminal: load, stream, report speed and memory."""

from __future__ import annotations

import argparse
import resource
import sys
import time

import flambeau
from flambeau.models import checkpoints
from flambeau.models.generation import Sampling, Speed
from flambeau.models.generation import generate as pieces
from flambeau.models.llama import KVCache, Llama
from flambeau.models.tokenizer import Tokenizer


def report(text: str, quiet: bool = False) -> None:
    """A line on standard error."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def memory_bytes() -> int:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def opened(o: argparse.Namespace) -> tuple[Llama, Tokenizer]:
    if o.threads is not None:
        flambeau.set_num_threads(o.threads)
    start = time.perf_counter()
    model, tokenizer = checkpoints.load(o.model, getattr(flambeau, o.dtype) if o.dtype else None)
    seconds = time.perf_counter() - start
    count = sum(p.numel() for p in model.parameters())
    size = sum(p.nbytes for p in model.parameters())
    report(
        f"loaded {count / 1e6:.0f} M parameters, {size / 1e6:.0f} MB of {model.embed_tokens.weight.dtype.name}, in {seconds:.1f} s "
        f"({flambeau.get_num_threads()} threads)",
        o.quiet,
    )
    return model, tokenizer


def sampling_of(o: argparse.Namespace) -> Sampling:
    return Sampling(o.temperature, o.top_k, o.top_p, o.seed)


def stream(
    model: Llama, tokenizer: Tokenizer, ids: list[int], o: argparse.Namespace, cache: KVCache | None = None
) -> tuple[str, Speed]:
    """Print a reply as it comes; returns it and what it took."""
    speed, text = Speed(), []
    for piece in pieces(model, tokenizer, ids, limit=o.max_tokens, sampling=sampling_of(o), speed=speed, cache=cache):
        text.append(piece)
        print(piece, end="", flush=True)
    print(flush=True)
    report(f"{speed}; memory {memory_bytes() / 1e6:.0f} MB", o.quiet)
    return "".join(text), speed


def generate(o: argparse.Namespace) -> int:
    """`flambeau generate`."""
    prompt = sys.stdin.read() if o.prompt == "-" else o.prompt
    sampling_of(o)  # complain before loading
    model, tokenizer = opened(o)
    if o.raw:
        ids = tokenizer.encode(prompt, special=True)
    else:
        ids = tokenizer.chat([*_system(o), {"role": "user", "content": prompt}])
    stream(model, tokenizer, ids, o)
    return 0


def _system(o: argparse.Namespace) -> list[dict[str, str]]:
    return [{"role": "system", "content": o.system}] if o.system else []


def chat(o: argparse.Namespace) -> int:
    """`flambeau chat`: what is new in the conversation goes through the model once; the rest is in the cache."""
    sampling_of(o)
    model, tokenizer = opened(o)
    report("Write a message and press Enter. An empty line or Ctrl-D ends the conversation.", o.quiet)
    messages = _system(o)
    cache, seen = None, []
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return 0
        if not line.strip():
            return 0
        messages.append({"role": "user", "content": line})
        ids = tokenizer.chat(messages)
        if cache is None:
            cache = KVCache(model.config, 1, model.config.context_length, model.embed_tokens.weight.dtype)
        common = 0
        while common < min(len(seen), len(ids) - 1, cache.used) and seen[common] == ids[common]:
            common += 1
        cache.used = common
        if len(ids) >= cache.length:
            report("The conversation no longer fits the model's context; its oldest messages are dropped.", o.quiet)
            messages = [*_system(o), messages[-1]]
            ids, cache.used = tokenizer.chat(messages), 0
            common = 0
        reply, speed = stream(model, tokenizer, ids[common:], o, cache)
        seen = [*ids, *speed.ids]
        messages.append({"role": "assistant", "content": reply})
