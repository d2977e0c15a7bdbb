"""safetensors files as tensors."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

import flambeau
from flambeau._tensor import new_tensor
from flambeau.checkpoint.records import CheckpointError
from flambeau.core.dtype import BY_NAME
from flambeau.core.spec import Spec
from flambeau.interop import safetensors
from flambeau.interop.arrays import from_numpy
from flambeau.serialization import memory


def test_round_trip_through_a_file(tmp_path):
    path = tmp_path / "model.safetensors"
    names = [name for name in BY_NAME if name not in ("bfloat16", "complex128")]
    tensors = {f"t.{name}": from_numpy(np.arange(6).astype(name).reshape(2, 3)) for name in names}
    tensors["half"] = tensors["t.float32"].to(flambeau.bfloat16)
    tensors["turned"] = from_numpy(np.arange(6.0).reshape(2, 3).T)
    tensors["empty"] = from_numpy(np.zeros((0, 3)))
    safetensors.save_file(tensors, path, {"format": "pt"})
    back = safetensors.load_file(path)
    assert set(back) == set(tensors)
    for name, t in tensors.items():
        assert back[name].dtype is t.dtype
        assert back[name].shape == t.shape
        assert back[name].tolist() == t.tolist()
    assert safetensors.metadata(path) == {"format": "pt"}
    assert {name: t.tolist() for name, t in safetensors.load(path.read_bytes()).items()} == {
        name: t.tolist() for name, t in back.items()
    }
    assert safetensors.save(tensors, {"format": "pt"}) == path.read_bytes()


def test_the_library_and_this_module_read_each_other(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    library.save_file({"a": array}, tmp_path / "a")
    assert safetensors.load_file(tmp_path / "a")["a"].tolist() == array.tolist()
    safetensors.save_file({"a": from_numpy(array)}, tmp_path / "b")
    assert np.array_equal(library.load_file(tmp_path / "b")["a"], array)


def test_tensors_lie_in_the_file_until_they_are_written(tmp_path):
    path = tmp_path / "a"
    safetensors.save_file({"a": from_numpy(np.arange(4.0))}, path)
    before = path.read_bytes()
    t = safetensors.load_file(path)["a"]
    assert type(t.storage).__name__ == "ForeignStorage"
    memory(t.ptr, 8)[:] = struct.pack("<d", 7)
    assert t.tolist() == [7, 1, 2, 3]
    assert path.read_bytes() == before


def test_tensors_that_are_not_aligned_in_the_file_are_copied(tmp_path):
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))
    assert len(header) % 4
    t = safetensors.load_file(tmp_path / "a")["a"]
    assert t.tolist() == [1, 2]
    assert t.ptr % 4 == 0


def test_what_cannot_be_saved(tmp_path):
    t = from_numpy(np.arange(8.0))
    first, rest = (new_tensor(Spec.of((n,), t.dtype), t.ptr + 8 * start, t.storage) for start, n in ((0, 3), (3, 5)))
    with pytest.raises(RuntimeError, match="must not share memory, got 'a' and 'b'"):
        safetensors.save_file({"a": t, "b": rest}, tmp_path / "a")
    safetensors.save_file({"a": first, "b": rest}, tmp_path / "a")
    assert safetensors.load_file(tmp_path / "a")["b"].tolist() == [3, 4, 5, 6, 7]
    with pytest.raises(TypeError, match="'n' must be a tensor, got int"):
        safetensors.save_file({"n": 3}, tmp_path / "b")
    with pytest.raises(TypeError, match="must have a dtype of the format, got complex128"):
        safetensors.save_file({"z": from_numpy(np.zeros(2, np.complex128))}, tmp_path / "b")
    assert sorted(os.listdir(tmp_path)) == ["a"]


def test_broken_files(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(CheckpointError, match="at least 8 bytes"):
        safetensors.load_file(tmp_path / "a")
