"""Text to token numbers and back, with the `tokenizers` library, and chat templates with `jinja2`.

    tokenizer = from_gguf(read("model.gguf"))       # or from_folder("model/")
    ids = tokenizer.chat([{"role": "user", "content": "Hello"}])

Raises: ModuleNotFoundError naming the extra to install where a library is missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flambeau.models.gguf import GGUF

# How the byte-level vocabularies of GGUF files split text before merging, by `tokenizer.ggml.pre`.
DIGITS_THEN_BYTES = ("smollm", "refact", "command-r", "starcoder")
GPT2_LIKE = ("default", "gpt-2", "gpt2")
LLAMA3_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def library() -> Any:
    try:
        import tokenizers
    except ImportError as e:
        raise ModuleNotFoundError(
            "tokenizer: needs the package 'tokenizers'. Install it with: pip install 'flambeau[text]'"
        ) from e
    return tokenizers


class Tokenizer:
    """A vocabulary, the tokens that end a reply, and a chat template."""

    def __init__(
        self,
        inner: Any,
        end_tokens: Sequence[int],
        template: str | None,
        begin_token: int | None = None,
        names: dict[str, str] | None = None,
    ):
        self.inner, self.end_tokens, self.template = inner, tuple(end_tokens), template
        self.begin_token, self.names = begin_token, names or {}

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token numbers of a text; `special` adds the begin token if the model wants one."""
        ids = self.inner.encode(text, add_special_tokens=False).ids
        return [self.begin_token, *ids] if special and self.begin_token is not None else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token numbers, special tokens left out."""
        return self.inner.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token numbers of a conversation up to where the assistant speaks. Raises: ValueError for a model without a chat template."""
        if self.template is None:
            raise ValueError(
                "chat: the model must have a chat template, this one has none. Use `flambeau generate --raw`, which continues text."
            )
        try:
            import jinja2
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as e:
            raise ModuleNotFoundError(
                "chat: needs the package 'jinja2'. Install it with: pip install 'flambeau[text]'"
            ) from e

        def refuse(text: str) -> None:
            raise jinja2.TemplateError(text)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = refuse
        text = environment.from_string(self.template).render(
            messages=list(messages), add_generation_prompt=True, **self.names
        )
        return self.inner.encode(text, add_special_tokens=False).ids


def from_gguf(file: GGUF) -> Tokenizer:
    """The tokenizer inside a GGUF file. Raises: NotImplementedError for vocabularies that are not byte-level BPE."""
    t = library()
    kv = file.metadata
    model = kv.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise NotImplementedError(
            f"tokenizer: the GGUF vocabulary must be byte-level BPE ('gpt2'), got {model!r}. Use the model's safetensors folder with "
            f"its tokenizer.json."
        )
    tokens = kv["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ", 1)) for m in kv["tokenizer.ggml.merges"]]
    inner = t.Tokenizer(
        t.models.BPE(
            {s: i for i, s in enumerate(tokens)}, merges, ignore_merges=kv.get("tokenizer.ggml.pre") == "llama-bpe"
        )
    )
    inner.pre_tokenizer = _splitter(t, kv.get("tokenizer.ggml.pre", "default"))
    inner.decoder = t.decoders.ByteLevel()
    control = [s for s, kind in zip(tokens, kv.get("tokenizer.ggml.token_type", ())) if kind == 3]
    inner.add_special_tokens(control)
    begin, end = kv.get("tokenizer.ggml.bos_token_id"), kv.get("tokenizer.ggml.eos_token_id")
    ends = [end] if end is not None else []
    ends += [tokens.index(s) for s in ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>") if s in control]
    names = {
        "bos_token": tokens[begin] if begin is not None else "",
        "eos_token": tokens[end] if end is not None else "",
    }
    wants_begin = kv.get("tokenizer.ggml.add_bos_token", False)
    return Tokenizer(
        inner, dict.fromkeys(ends), kv.get("tokenizer.chat_template"), begin if wants_begin else None, names
    )


def _splitter(t: Any, kind: str) -> Any:
    p = t.pre_tokenizers
    byte_level = p.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind in DIGITS_THEN_BYTES:
        return p.Sequence([p.Digits(individual_digits=True), byte_level])
    if kind in GPT2_LIKE:
        return byte_level
    pattern = {"llama-bpe": LLAMA3_PATTERN, "llama3": LLAMA3_PATTERN, "qwen2": QWEN2_PATTERN}.get(kind)
    if pattern is None:
        raise NotImplementedError(
            f"tokenizer: the pre-tokenizer {kind!r} is not known. Use the model's safetensors folder with its tokenizer.json."
        )
    return p.Sequence([p.Split(t.Regex(pattern), "isolated"), p.ByteLevel(add_prefix_space=False, use_regex=False)])


def from_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face model folder: tokenizer.json and tokenizer_config.json."""
    file = folder / "tokenizer.json"
    if not file.exists():
        raise FileNotFoundError(f"tokenizer: no tokenizer.json in {folder}. Put the model's tokenizer.json there.")
    inner = library().Tokenizer.from_file(str(file))
    config = _json(folder / "tokenizer_config.json")
    generation, model = _json(folder / "generation_config.json"), _json(folder / "config.json")
    end = generation.get("eos_token_id", model.get("eos_token_id"))
    ends = list(end) if isinstance(end, list) else [end] if end is not None else []
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((x["template"] for x in template if x.get("name") == "default"), None)
    separate = folder / "chat_template.jinja"
    if template is None and separate.exists():
        template = separate.read_text()
    names = {n: _token_text(config.get(n)) for n in ("bos_token", "eos_token")}
    for n in ("eos_token",):
        number = inner.token_to_id(names[n]) if names[n] else None
        if number is not None and number not in ends:
            ends.append(number)
    begin = inner.token_to_id(names["bos_token"]) if names["bos_token"] and config.get("add_bos_token", False) else None
    return Tokenizer(inner, ends, template, begin, names)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _token_text(value: Any) -> str:
    return value.get("content", "") if isinstance(value, dict) else value or ""
