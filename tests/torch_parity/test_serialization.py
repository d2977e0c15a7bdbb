"""Files exchanged with PyTorch: what torch.save writes is read, what is written torch.load reads without running code."""

from __future__ import annotations

import collections
import io

import numpy as np
import pytest
import torch

import flambeau
from flambeau import serialization
from flambeau.checkpoint import torch_format
from flambeau.checkpoint.pickle_writer import Described, TensorEntry
from flambeau.checkpoint.records import (
    ITEM_BYTES,
    ArrayRecord,
    CheckpointError,
    DeviceRecord,
    DtypeRecord,
    ParameterRecord,
    SizeRecord,
    StorageRecord,
    TensorRecord,
)
from flambeau.interop import safetensors
from flambeau.nn.parameter import Parameter

FORMATS = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


def torch_bytes(value: object, *, legacy: bool = False) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


def read(data: bytes) -> object:
    return torch_format.read(data)[0]


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy())


def describe(value: object) -> Described:
    """PyTorch's own tensors, described for the writer."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        key = storage.data_ptr()
        if key not in _storages:
            held = bytes(storage)
            _storages[key] = StorageRecord(str(key), len(held), "cpu", memoryview(held))
            _alive.append(storage)
        record = TensorRecord(
            str(value.dtype).removeprefix("torch."), tuple(value.shape), value.stride(), value.storage_offset(), _storages[key],
            value.requires_grad, value.is_conj(), value.is_neg(),
        )  # fmt: skip
        return TensorEntry(record, isinstance(value, torch.nn.Parameter))
    if isinstance(value, torch.Size):
        return SizeRecord(value)
    if isinstance(value, torch.dtype):
        return DtypeRecord(str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return DeviceRecord(value.type, value.index)
    return None


_storages: dict[int, StorageRecord] = {}
_alive: list[object] = []


def written(value: object) -> bytes:
    _storages.clear()
    stream = io.BytesIO()
    torch_format.write(value, stream, describe)
    return stream.getvalue()


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    return bits.view(dtype)[..., 0] if dtype.itemsize > 1 else bits[..., 0].view(dtype)


DTYPES = [getattr(torch, name) for name in ITEM_BYTES]


# ---------------------------------------------------------------------- from PyTorch
@FORMATS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reads_every_dtype(dtype, legacy):
    tensor = random_tensor(dtype)
    record = read(torch_bytes(tensor, legacy=legacy))
    assert (record.dtype, record.shape, record.tobytes()) == (str(dtype).removeprefix("torch."), (3, 4), raw(tensor))


@FORMATS
def test_reads_views_and_their_sharing(legacy):
    base = torch.arange(60.0).reshape(3, 4, 5)
    value = {
        "t": base.transpose(0, 2),
        "row": base[1],
        "step": base[:, ::2, 1],
        "wide": base[:1].expand(7, 4, 5),
        "empty": base[:0],
    }
    back = read(torch_bytes(value, legacy=legacy))
    assert len({id(record.storage) for record in back.values()}) == 1
    for name, tensor in value.items():
        assert (back[name].shape, back[name].strides, back[name].offset) == (
            tuple(tensor.shape),
            tensor.stride(),
            tensor.storage_offset(),
        )
        assert back[name].tobytes() == raw(tensor)


@FORMATS
def test_reads_a_training_state(legacy):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    model(torch.randn(5, 3)).sum().backward()
    optimiser.step()
    state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "parameters": list(model.parameters()), "epoch": 3,
             "size": torch.Size([1, 2]), "dtype": torch.bfloat16, "device": torch.device("cuda", 1), "loss": np.float64(0.5),
             "history": np.arange(6, dtype=np.float32).reshape(2, 3)}  # fmt: skip
    back = read(torch_bytes(state, legacy=legacy))
    assert back["model"]._metadata == model.state_dict()._metadata
    for name, tensor in model.state_dict().items():
        assert back["model"][name].tobytes() == raw(tensor)
    for index, slots in optimiser.state_dict()["state"].items():
        for name, tensor in slots.items():
            assert back["optimiser"]["state"][index][name].tobytes() == raw(tensor)
    assert back["optimiser"]["param_groups"] == optimiser.state_dict()["param_groups"]
    assert all(isinstance(parameter, ParameterRecord) and parameter.requires_grad for parameter in back["parameters"])
    assert back["parameters"][0].tensor.storage is back["model"]["0.weight"].storage
    assert (back["size"], back["dtype"], back["device"], back["loss"]) == (
        (1, 2),
        DtypeRecord("bfloat16"),
        DeviceRecord("cuda", 1),
        0.5,
    )
    assert isinstance(back["history"], ArrayRecord)
    assert np.array_equal(np.frombuffer(back["history"].data, np.float32).reshape(2, 3), state["history"])


def test_reads_conjugates_attributes_and_every_pickle_protocol():
    tensor = torch.ones(2, dtype=torch.complex64).conj()
    record = read(torch_bytes(tensor))
    assert (record.conj, record.neg) == (True, False)
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.tag = "decay"
    assert read(torch_bytes(parameter)).state == {"tag": "decay"}
    tagged = torch.ones(2)
    tagged.tag = "plain"
    assert read(torch_bytes(tagged)).tobytes() == raw(tagged)
    for protocol in (2, 3, 4, 5):
        stream = io.BytesIO()
        torch.save({"w": torch.ones(3), "b": b"x"}, stream, pickle_protocol=protocol)
        assert read(stream.getvalue())["w"].tobytes() == raw(torch.ones(3))


def test_several_legacy_streams_in_one_file():
    first, second = torch_bytes({"a": torch.ones(2)}, legacy=True), torch_bytes([torch.zeros(3)], legacy=True)
    value, end = torch_format.read(first + second)
    assert end == len(first)
    assert value["a"].tobytes() == raw(torch.ones(2))
    assert torch_format.read((first + second)[end:])[0][0].shape == (3,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.nn.Linear(2, 2), r"'torch\.nn\.modules\.linear\.Linear', which is not data"),
        (lambda: torch.eye(3).to_sparse(), "sparse tensors are not read"),
        (lambda: torch.empty(3, device="meta"), "meta device has no data"),
        (lambda: torch.ones(2).untyped_storage(), "holds a storage"),
        (lambda: collections.defaultdict(list), r"'collections\.defaultdict', which is not data"),
    ],
)
def test_what_is_not_read_says_so(make, message):
    with pytest.raises(CheckpointError, match=message):
        read(torch_bytes({"value": make()}))


def test_quantised_tensors_say_so():
    with pytest.warns(UserWarning):
        tensor = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(CheckpointError, match="quantised tensors are not read"):
        read(torch_bytes([tensor]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_module_says_so(tmp_path):
    path = tmp_path / "module.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    with pytest.raises(CheckpointError, match="TorchScript archive, which holds code"):
        read(path.read_bytes())


def test_a_flipped_payload_byte_is_noticed_here_and_not_there():
    data = bytearray(torch_bytes({"w": torch.arange(100.0)}))
    data[data.index(np.float32(99).tobytes())] ^= 1
    assert torch.load(io.BytesIO(bytes(data)))["w"][99] != 99
    with pytest.raises(CheckpointError, match="CRC check"):
        read(bytes(data))


# ---------------------------------------------------------------------- to PyTorch
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torch_reads_every_dtype(dtype, mmap, tmp_path):
    tensor = random_tensor(dtype)
    path = tmp_path / "t.pt"
    path.write_bytes(written({"t": tensor, "u": tensor[1:]}))
    back = torch.load(path, weights_only=True, mmap=mmap)
    assert back["t"].dtype is dtype
    assert raw(back["t"]) == raw(tensor)
    assert raw(back["u"]) == raw(tensor[1:])
    assert back["u"].untyped_storage().data_ptr() == back["t"].untyped_storage().data_ptr()


def test_torch_reads_every_kind_of_value():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    value = {
        "state": model.state_dict(), "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "grad": torch.ones(2, requires_grad=True), "none": None, "flags": [True, False], "float": 1.5, "complex": 1 - 2j,
        "numbers": [0, 255, 256, 65536, -1, 2**31, -(2**40), 2**62],
        "text": "é漢", "bytes": b"\x00\xff", "nothing": b"", "array": bytearray(b"ab"), "tuple": (1, (2,), ()), "set": {1, "b"},
        7: {(1, "x"): []}, "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cpu"),
        "cuda": torch.device("cuda", 1),
        "conj": torch.ones(2, dtype=torch.complex64).conj(), "scalar": torch.tensor(3), "empty": torch.zeros(0, 4),
    }  # fmt: skip
    back = torch.load(io.BytesIO(written(value)), weights_only=True)
    assert list(back) == list(value)
    assert back["state"]._metadata == value["state"]._metadata
    for name, item in value.items():
        if isinstance(item, torch.Tensor):
            assert torch.equal(back[name], item)
            assert (back[name].requires_grad, back[name].is_conj(), type(back[name])) == (
                item.requires_grad,
                item.is_conj(),
                type(item),
            )
        elif name != "state":
            assert back[name] == item
            assert type(back[name]) is type(item)
    model.load_state_dict(back["state"])


def test_torch_reads_slices_with_their_sharing():
    base = torch.arange(10)
    back = torch.load(io.BytesIO(written([base[:4], base[6:], base[2:4]])), weights_only=True)
    assert [tensor.tolist() for tensor in back] == [[0, 1, 2, 3], [6, 7, 8, 9], [2, 3]]
    assert len({tensor.untyped_storage().data_ptr() for tensor in back}) == 1
    back[0][2] = 50
    assert back[2].tolist() == [50, 3]
    assert len(written(torch.zeros(100_000)[:5])) < 2500 < len(torch_bytes(torch.zeros(100_000)[:5]))


def test_torch_reads_one_storage_seen_as_two_dtypes():
    base = torch.arange(8.0)
    back = torch.load(io.BytesIO(written([base, base.view(torch.int16)[4:]])), weights_only=True)
    assert torch.equal(back[0], base)
    assert torch.equal(back[1], base.view(torch.int16)[4:])


# ---------------------------------------------------------------------- tensors both ways
SHARED_DTYPES = [dtype for dtype in DTYPES if hasattr(flambeau, str(dtype).removeprefix("torch."))]


@FORMATS
@pytest.mark.parametrize("dtype", SHARED_DTYPES, ids=str)
def test_tensors_of_every_dtype_come_over_and_go_back(dtype, legacy, tmp_path):
    tensor = random_tensor(dtype)
    torch.save({"t": tensor, "turned": tensor.T}, tmp_path / "there.pt", _use_new_zipfile_serialization=not legacy)
    ours = serialization.load(tmp_path / "there.pt")
    assert str(ours["t"].dtype).removeprefix("flambeau.") == str(dtype).removeprefix("torch.")
    assert ours["turned"].stride() == tensor.T.stride()
    serialization.save(ours, tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert raw(back["t"]) == raw(tensor)
    assert raw(back["turned"]) == raw(tensor.T)
    assert back["t"].untyped_storage().data_ptr() == back["turned"].untyped_storage().data_ptr()


def test_a_training_state_comes_over_and_goes_back():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    model(torch.randn(5, 3)).sum().backward()
    optimiser.step()
    state = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "parameter": model[0].weight,
        "size": torch.Size([2]),
    }
    ours = serialization.load(io.BytesIO(torch_bytes(state)))
    assert isinstance(ours["parameter"], Parameter)
    assert ours["parameter"].requires_grad
    stream = io.BytesIO()
    serialization.save(ours, stream)
    stream.seek(0)
    back = torch.load(stream, weights_only=True)
    assert back["model"]._metadata == state["model"]._metadata
    assert all(torch.equal(back["model"][name], tensor) for name, tensor in state["model"].items())
    assert isinstance(back["parameter"], torch.nn.Parameter)
    assert back["size"] == state["size"]
    again = torch.optim.AdamW(model.parameters(), 1e-3)
    again.load_state_dict(back["optimiser"])
    model.load_state_dict(back["model"])
    assert torch.equal(again.state_dict()["state"][0]["exp_avg"], optimiser.state_dict()["state"][0]["exp_avg"])


def test_lazy_conjugates_and_negatives_are_resolved():
    value = torch.tensor([1 + 2j, 3 - 4j])
    for lazy in (value.conj(), value.conj().imag):
        assert lazy.is_conj() or lazy.is_neg()
        assert serialization.load(io.BytesIO(torch_bytes(lazy))).tolist() == lazy.tolist()


def test_safetensors_files_are_those_of_the_library(tmp_path):
    library = pytest.importorskip("safetensors.torch")
    tensors = {str(dtype): random_tensor(dtype) for dtype in SHARED_DTYPES if dtype is not torch.complex128}
    library.save_file(tensors, tmp_path / "there", {"format": "pt"})
    ours = safetensors.load_file(tmp_path / "there")
    safetensors.save_file(ours, tmp_path / "back", {"format": "pt"})
    back = library.load_file(tmp_path / "back")
    assert all(raw(back[name]) == raw(tensor) for name, tensor in tensors.items())
    assert set(back) == set(tensors)
