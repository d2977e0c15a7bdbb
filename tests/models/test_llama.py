"""A tiny Llama: the cache, both rotary layouts, loading by name, generation."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import flambeau
from flambeau.models import checkpoints
from flambeau.models.generation import Sampling, Speed, generate
from flambeau.models.llama import KVCache, Llama, LlamaConfig

CONFIG = LlamaConfig(
    vocab_size=31, hidden_size=24, intermediate_size=40, layers=2, heads=4, kv_heads=2, head_dim=6, context_length=64
)


class Letters:
    """A stand-in for a tokenizer: one letter per token."""

    end_tokens = (30,)

    def decode(self, ids) -> str:
        return "".join(chr(ord("a") + i % 26) for i in ids)


@pytest.fixture
def model() -> Llama:
    flambeau.manual_seed(0)
    found = Llama(CONFIG).eval()
    with flambeau.no_grad():
        for p in found.parameters():
            p.copy_(flambeau.randn(*p.shape) * 0.3)
    return found


def ids(*numbers: int) -> flambeau.Tensor:
    return flambeau.tensor([list(numbers)])


def reference(model: Llama, tokens: list[int]) -> np.ndarray:
    """Logits of every position, in float64 NumPy."""
    c = model.config
    w = {n: p.detach().numpy().astype(np.float64) for n, p in model.named_parameters()}
    x = w["embed_tokens.weight"][tokens]
    half = np.arange(0, c.head_dim, 2) / c.head_dim
    angle = np.arange(len(tokens))[:, None] * c.rope_base**-half
    cos, sin = np.cos(angle), np.sin(angle)

    def norm(v, weight):
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + c.norm_eps) * weight

    def turn(v):
        a, b = (v[..., 0::2], v[..., 1::2]) if c.interleaved else np.split(v, 2, -1)
        first, second = a * cos - b * sin, b * cos + a * sin
        return np.stack((first, second), -1).reshape(v.shape) if c.interleaved else np.concatenate((first, second), -1)

    for i in range(c.layers):
        p = f"layers.{i}."
        h = norm(x, w[p + "input_layernorm.weight"])
        q, k, v = (
            (h @ w[p + f"self_attn.{n}_proj.weight"].T).reshape(len(tokens), -1, c.head_dim).transpose(1, 0, 2)
            for n in "qkv"
        )
        q, k = turn(q), turn(k)
        k, v = (np.repeat(y, c.heads // c.kv_heads, 0) for y in (k, v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(c.head_dim)
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = (weights / weights.sum(-1, keepdims=True)) @ v
        x = x + out.transpose(1, 0, 2).reshape(len(tokens), -1) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, w[p + "post_attention_layernorm.weight"])
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    return norm(x, w["norm.weight"]) @ w["embed_tokens.weight"].T


@pytest.mark.parametrize("interleaved", [False, True])
def test_logits(model: Llama, interleaved: bool) -> None:
    model.config = dataclasses.replace(CONFIG, interleaved=interleaved)
    for block in model.layers:
        block.self_attn.config = model.config
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    with flambeau.no_grad():
        got = model(ids(*tokens), every_position=True)[0]
    np.testing.assert_allclose(got.numpy(), reference(model, tokens), rtol=1e-3, atol=1e-4)


def test_cache_gives_what_the_whole_gives(model: Llama) -> None:
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    with flambeau.no_grad():
        whole = model(ids(*tokens), every_position=True)[0].numpy()
        cache = KVCache(CONFIG, 1, 16)
        parts = [
            model(ids(*tokens[:4]), cache),
            model(ids(*tokens[4:7]), cache),
        ]  # a prompt, more of it, then one by one
        parts += [model(ids(t), cache) for t in tokens[7:]]
    for at, part in zip((3, 6, 7, 8), parts):
        np.testing.assert_allclose(part[0].numpy(), whole[at], rtol=1e-3, atol=1e-4)
    assert cache.used == len(tokens)


def test_compiled_and_then_eager(model: Llama) -> None:
    tokens = ids(1, 2, 3)
    with flambeau.no_grad():
        compiled = flambeau.compile(model, fullgraph=True)
        expected = compiled(tokens).numpy()
        np.testing.assert_allclose(model(tokens).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_compiled_with_a_cache_advances_it(model: Llama) -> None:
    cache = KVCache(CONFIG, 1, 8)
    compiled = flambeau.compile(lambda x: model(x, cache))
    with flambeau.no_grad(), pytest.warns(UserWarning, match="advance sets self.used"):
        for used, tokens in enumerate(([1], [2], [3]), 1):
            found = compiled(ids(*tokens)).numpy()
            assert cache.used == used
        np.testing.assert_allclose(found[0], reference(model, [1, 2, 3])[-1], rtol=1e-4, atol=1e-5)


def test_full_cache_is_an_error(model: Llama) -> None:
    cache = KVCache(CONFIG, 1, 3)
    with flambeau.no_grad(), pytest.raises(ValueError, match="room for 3 positions"):
        model(ids(1, 2, 3, 4), cache)
    with pytest.raises(ValueError, match="context of 64"):
        KVCache(CONFIG, 1, 65)


def test_generation_is_greedy_and_stops(model: Llama) -> None:
    speed = Speed()
    text = "".join(generate(model, Letters(), [1, 2, 3], limit=12, speed=speed))
    assert len(speed.ids) == speed.tokens <= 12
    assert text == Letters().decode(speed.ids)
    sequence = [1, 2, 3]
    for token in speed.ids:
        assert token == int(reference(model, sequence)[-1].argmax())
        sequence.append(token)


def test_sampling_repeats_with_its_seed(model: Llama) -> None:
    def once(seed: int) -> str:
        return "".join(
            generate(
                model, Letters(), [1, 2], limit=10, sampling=Sampling(temperature=1.0, top_k=10, top_p=0.9, seed=seed)
            )
        )

    assert once(1) == once(1)
    assert len({once(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [({"temperature": -1.0}, "temperature"), ({"top_p": 0.0}, "top_p"), ({"top_k": -1}, "top_k")],
)
def test_bad_sampling(arguments: dict, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        Sampling(**arguments)


def test_empty_prompt(model: Llama) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        next(iter(generate(model, Letters(), [])))


# ------------------------------------------------------------------ files
def test_typo_in_a_path(tmp_path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"Did you mean.*model\.gguf"):
        checkpoints.find(str(tmp_path / "modle.gguf"))


def test_folder_without_weights(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        checkpoints.load(str(tmp_path))
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "vocab_size": 8,
                "hidden_size": 4,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            }
        )
    )
    with pytest.raises(FileNotFoundError, match="safetensors"):
        checkpoints.load(str(tmp_path))


def test_other_architecture() -> None:
    with pytest.raises(ValueError, match="architecture must be"):
        checkpoints.config_of_folder({"architectures": ["GPT2LMHeadModel"]})
    with pytest.raises(ValueError, match="architecture must be llama"):
        checkpoints.config_of_gguf({"general.architecture": "bert"})


def test_names_of_gguf_tensors() -> None:
    assert checkpoints.gguf_parameter("blk.3.ffn_up.weight") == "layers.3.mlp.up_proj.weight"
    with pytest.raises(ValueError, match="no place for"):
        checkpoints.gguf_parameter("blk.3.ssm_in.weight")


def test_wrong_shape_is_named() -> None:
    def take(name: str) -> flambeau.Tensor:
        return flambeau.zeros(1)

    names = {n for n, _ in Llama(CONFIG).named_parameters()}
    with pytest.raises(ValueError, match="must have shape"):
        checkpoints._filled(CONFIG, names, take)
    with pytest.raises(ValueError, match="missing"):
        checkpoints._filled(CONFIG, names - {"norm.weight"}, take)
