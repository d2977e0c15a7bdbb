"""GGUF files as tensors: every type against NumPy, to the bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

import flambeau
from flambeau.checkpoint.records import CheckpointError
from flambeau.core.block_format import BLOCK_FORMATS
from flambeau.interop.arrays import to_numpy
from flambeau.models import gguf
from tests.serialization import gguf_files
from tests.templates.quantised_blocks import MEANING, quantise, random_blocks

RNG = np.random.default_rng(0)


def opened(tmp_path, tensors: dict, metadata: dict | None = None) -> gguf.GGUF:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_files.file(metadata or {}, tensors))
    return gguf.read(path)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_quantised_tensors(name, tmp_path):
    layout = BLOCK_FORMATS[name]
    raw = random_blocks(name, 2 * 3 * 2, RNG)
    shape = (2, 3, 2 * layout.weights)
    file = opened(tmp_path, {"first": ("F32", (3,), bytes(12)), "w": (name, shape, raw.tobytes())})
    w = file.tensor("w")
    assert (w.dtype, w.shape) == (flambeau.float32, shape)
    assert np.array_equal(to_numpy(w), MEANING[name](raw).reshape(shape))
    blocks = file.blocks("w")
    assert (blocks.dtype, blocks.shape) == (flambeau.uint8, (2, 3, 2 * layout.nbytes))
    assert np.array_equal(to_numpy(blocks).ravel(), raw.ravel())


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_quantised_weights_come_back(name, tmp_path):
    weights = RNG.standard_normal((4, 256)).astype(np.float32)
    back = to_numpy(opened(tmp_path, {"w": (name, (4, 256), quantise(name, weights).tobytes())}).tensor("w"))
    assert np.abs(back - weights).max() < {"Q4_0": 0.6, "Q4_1": 0.5, "Q8_0": 0.04, "Q4_K": 0.5, "Q6_K": 0.12}[name]


def test_plain_tensors_lie_in_the_file(tmp_path):
    single, half = RNG.standard_normal((2, 3)).astype(np.float32), RNG.standard_normal(5).astype(np.float16)
    bits = (single.view(np.uint32) >> 16).astype(np.uint16)
    tensors = {"s": ("F32", (2, 3), single.tobytes()), "h": ("F16", (5,), half.tobytes()), "b": ("BF16", (2, 3), bits.tobytes()),
               "none": ("F32", (0, 4), b""), "one": ("F32", (), single[0, :1].tobytes())}  # fmt: skip
    file = opened(tmp_path, tensors, {"general.name": "small"})
    assert file.metadata == {"general.name": "small"}
    assert "5 tensors of BF16, F16, F32" in repr(file)
    assert np.array_equal(to_numpy(file.tensor("s")), single)
    assert np.array_equal(to_numpy(file.tensor("h")), half)
    assert np.array_equal(
        to_numpy(file.tensor("b").to(flambeau.float32)), (bits.astype(np.uint32) << 16).view(np.float32)
    )
    assert np.array_equal(to_numpy(file.tensor("h", flambeau.float32)), half.astype(np.float32))
    assert file.tensor("none").shape == (0, 4)
    assert file.tensor("one").item() == single[0, 0]
    assert type(file.tensor("s").storage).__name__ == "ForeignStorage"


def test_writing_to_a_tensor_does_not_change_the_file(tmp_path):
    file = opened(tmp_path, {"s": ("F32", (2,), bytes(8))})
    before = (tmp_path / "model.gguf").read_bytes()
    to_numpy(file.tensor("s"))[:] = 7
    assert (tmp_path / "model.gguf").read_bytes() == before


def test_many_blocks_are_divided_over_threads(tmp_path):
    raw = random_blocks("Q4_1", 20_000, RNG)
    file = opened(tmp_path, {"w": ("Q4_1", (20_000, 32), raw.tobytes())})
    assert np.array_equal(to_numpy(file.tensor("w")), MEANING["Q4_1"](raw))


def test_errors(tmp_path):
    file = opened(tmp_path, {"s": ("F32", (2,), bytes(8))})
    with pytest.raises(KeyError, match="must have tensor 'w', got 1 others"):
        file.tensor("w")
    with pytest.raises(TypeError, match="blocks are of quantised tensors, 's' is F32"):
        file.blocks("s")
    with pytest.raises(CheckpointError, match="type Q5_0, which is not read"):
        opened(tmp_path, {"w": ("Q5_0", (32,), bytes(22))})
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match="must start with GGUF"):
        gguf.read(tmp_path / "empty.gguf")


def test_damaged_files_give_tensors_or_errors(tmp_path):
    raw = random_blocks("Q4_K", 4, RNG)
    data = gguf_files.file(
        {"general.architecture": "llama"}, {"w": ("Q4_K", (2, 512), raw.tobytes()), "b": ("F32", (4,), bytes(16))}
    )
    rng = random.Random(0)
    path = tmp_path / "damaged.gguf"
    for _ in range(150):
        damaged = bytearray(data)
        damaged[rng.randrange(160)] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged[: rng.choice([len(data), len(data), rng.randrange(len(data))])]))
        try:
            file = gguf.read(path)
        except CheckpointError:
            continue
        for name in file.tensors:
            assert file.tensor(name).numel() <= len(data) * 2
