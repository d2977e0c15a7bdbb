"""Tensors through files and back: `load` and `save`."""

from __future__ import annotations

import ast
import collections
import io
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flambeau
from flambeau import checkpoint, serialization
from flambeau._tensor import new_tensor
from flambeau.base.errors import UnsupportedError
from flambeau.checkpoint.records import CheckpointError, gather_bytes
from flambeau.core.device import CPU, device
from flambeau.core.dtype import BY_NAME
from flambeau.core.spec import Size, Spec
from flambeau.interop.arrays import from_numpy
from flambeau.nn.parameter import Buffer, Parameter, UninitializedParameter
from flambeau.serialization import load, memory, save
from tests.serialization import streams

Tensor = flambeau.Tensor


def tensor(values: object, dtype: str = "float32") -> Tensor:
    return from_numpy(np.array(values, dtype))


def arange(count: int, dtype: str = "int64") -> Tensor:
    return from_numpy(np.arange(count).astype(dtype))


def through(value: object, **options: object) -> object:
    stream = io.BytesIO()
    save(value, stream)
    stream.seek(0)
    return load(stream, **options)


def part(
    t: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, dtype: str | None = None
) -> Tensor:
    """A view as the engine makes them, of any layout and dtype."""
    spec = Spec.get(shape, strides, BY_NAME[dtype] if dtype else t.dtype)
    return new_tensor(spec, t.ptr + offset * spec.dtype.itemsize, t.storage)


def raw(t: Tensor) -> bytes:
    return gather_bytes(memory(t.ptr, t.spec.nbytes), t.itemsize, 0, t.shape, t.stride()) if t.numel() else b""


def pointer(t: Tensor) -> int:
    return t.storage.ptr


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("name", BY_NAME)
def test_every_dtype(name, mmap, tmp_path):
    bits = np.random.default_rng(0).integers(
        0, 2 if name == "bool" else 256, (6, BY_NAME[name].itemsize), dtype=np.uint8
    )
    t = part(from_numpy(bits), (6,), (1,), 0, name)
    end = part(t, (4,), (1,), 2)
    path = tmp_path / "t.pt"
    save([t, end], path)
    back, back_end = load(path, mmap=mmap)
    assert back.dtype is BY_NAME[name]
    assert raw(back) == raw(t)
    assert raw(back_end) == raw(end)
    assert pointer(back) == pointer(back_end)


def test_shapes_strides_and_gradients():
    base = arange(24, "float32").reshape(2, 3, 4)
    turned, row, empty = part(base, (4, 2, 3), (1, 12, 4)), part(base, (4,), (1,), 20), part(base, (0, 4), (4, 1))
    leaf = tensor([1, 2]).requires_grad_()
    value = {"plain": base, "turned": turned, "row": row, "scalar": tensor(5), "empty": empty, "leaf": leaf}
    back = through(value)
    for name, t in value.items():
        assert back[name].shape == t.shape
        assert raw(back[name]) == raw(t)
        assert back[name].requires_grad == t.requires_grad
    assert back["turned"].stride() == (1, 12, 4)
    assert len({pointer(back[name]) for name in ("plain", "turned", "row", "empty")}) == 1


def test_writes_to_a_loaded_view_show_in_the_others():
    c = arange(10)
    first, second, third = through([part(c, (4,), (1,)), part(c, (4,), (1,), 6), part(c, (2,), (1,), 2)])
    assert (first.tolist(), second.tolist(), third.tolist()) == ([0, 1, 2, 3], [6, 7, 8, 9], [2, 3])
    memory(first.ptr + 16, 8)[:] = struct.pack("<q", 50)
    assert third.tolist() == [50, 3]


def test_a_slice_of_a_large_tensor_is_small_on_disk(tmp_path):
    save(part(from_numpy(np.zeros(100_000, np.float32)), (5,), (1,), 7), tmp_path / "t.pt")
    assert os.path.getsize(tmp_path / "t.pt") < 2500


def test_values_that_are_not_tensors():
    value = {"size": Size((2, 3)), "dtype": flambeau.float16, "device": CPU, "sim": device("sim", 1), "n": 3, "flags": (True, None),
             "x": 1.5, "names": {"a", "b"}, 7: [b"raw", "text", 1 + 2j], "numpy": np.float32(0.5)}  # fmt: skip
    back = through(value)
    assert back == value
    assert back["dtype"] is flambeau.float16
    assert back["device"] is CPU
    assert type(back["size"]) is Size
    assert type(back["numpy"]) is float


def test_parameters_state_dicts_and_attributes():
    state = collections.OrderedDict(
        weight=Parameter(tensor([1, 2])), frozen=Parameter(tensor([3]), requires_grad=False)
    )
    state["steps"], state["mean"] = tensor(4), Buffer(tensor([5, 6]))
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    state["weight"].decay = 0.1
    state["steps"].note = "plain"
    back = through(state)
    assert type(back) is collections.OrderedDict
    assert back._metadata == state._metadata
    assert [type(t) for t in back.values()] == [Parameter, Parameter, Tensor, Tensor]
    assert [t.requires_grad for t in back.values()] == [True, False, False, False]
    assert (back["weight"].decay, back["steps"].note) == (0.1, "plain")
    assert back["weight"].tolist() == [1, 2]


def test_the_same_object_twice_is_one_object():
    t = tensor([1, 2])
    back = through({"a": t, "b": t, "c": t.detach()})
    assert back["a"] is back["b"]
    assert back["a"] is not back["c"]
    assert pointer(back["a"]) == pointer(back["c"])


def test_mapped_tensors_can_be_written_and_the_file_does_not_change(tmp_path):
    path = tmp_path / "t.pt"
    save(tensor([1, 2, 3]), path)
    before = path.read_bytes()
    mapped = load(path, mmap=True)
    memory(mapped.ptr, 4)[:] = struct.pack("<f", 9)
    assert mapped.tolist() == [9, 2, 3]
    assert path.read_bytes() == before
    save(tensor([7]), path)
    assert mapped.tolist() == [9, 2, 3]
    assert load(path).tolist() == [7]


def test_saving_over_the_file_that_is_mapped(tmp_path):
    path = tmp_path / "t.pt"
    save(tensor([1, 2, 3]), path)
    save(load(path, mmap=True), path)
    assert load(path).tolist() == [1, 2, 3]


def test_failed_saves_leave_the_old_file(tmp_path):
    path = tmp_path / "t.pt"
    save({"a": 1}, path)
    with pytest.raises(TypeError, match=r"the object\['b'\]\[0\] must be data, got builtins\.object"):
        save({"a": tensor([1]), "b": [object()]}, path)
    assert load(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["t.pt"]


def test_what_cannot_be_saved():
    class Kind(Tensor):
        pass

    with pytest.raises(
        TypeError, match=r"save: the object\['x'\] must be a plain tensor, parameter or buffer, got Kind"
    ):
        through({"x": tensor([1])._as(Kind)})
    with pytest.raises(TypeError, match="Run the module once first"):
        through([UninitializedParameter()])
    with pytest.raises(TypeError, match=r"Save flambeau\.from_numpy"):
        through({"x": np.zeros(3)})
    with pytest.raises(TypeError, match="f must be a path or a binary file"):
        save(1, 5)


def test_streams_are_read_from_where_they_stand():
    stream = io.BytesIO(b"before")
    stream.seek(6)
    save([1, 2], stream)
    stream.seek(6)
    assert load(stream) == [1, 2]
    with pytest.raises(TypeError, match="binary file"):
        load(io.StringIO("text"))
    with pytest.raises(TypeError, match="must be a path or a binary file, got int"):
        load(3)
    with pytest.raises(ValueError, match="mmap=True needs a path"):
        load(io.BytesIO(b""), mmap=True)


def test_public_names_load_the_package_when_first_used():
    program = (
        "import sys, flambeau\n"
        "assert 'flambeau.serialization' not in sys.modules\n"
        "assert flambeau.load is flambeau.serialization.load and flambeau.save is flambeau.serialization.save\n"
        "assert 'pickle' not in flambeau.serialization.__dict__\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(flambeau.__file__).parents[1])


def test_nothing_here_imports_pickle():
    folder = Path(checkpoint.__file__).parent
    for path in [*folder.glob("*.py"), Path(serialization.__file__)]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = getattr(node, "module", "") or ""
            assert not {"pickle", "_pickle", "marshal", "importlib"} & {*names, module}, path


def test_code_is_never_run(tmp_path):
    with pytest.raises(UnsupportedError, match="never runs pickle code"):
        load(tmp_path / "none.pt", weights_only=False)


# ---------------------------------------------------------------------- devices
def saved_on(location: str) -> io.BytesIO:
    body = streams.tensor((2,), (1,), held=streams.storage(numel=2, location=location))
    return io.BytesIO(streams.archive(streams.protocol(body), {"0": struct.pack("<2f", 1, 2)}))


def test_map_location():
    with pytest.raises(
        CheckpointError, match=r"saved on 'cuda:0', which Flambeau does not have. Pass map_location='cpu'"
    ):
        load(saved_on("cuda:0"))
    wanted = [
        "cpu",
        CPU,
        {"cuda:0": "cpu"},
        lambda storage, location: storage,
        lambda storage, location: {"cuda:0": "cpu"}[location],
    ]
    for map_location in wanted:
        back = load(saved_on("cuda:0"), map_location)
        assert (back.device, back.tolist()) == (CPU, [1, 2])
    for map_location in ({"cuda:1": "cpu"}, lambda storage, location: None):
        with pytest.raises(CheckpointError, match="Pass map_location='cpu'"):
            load(saved_on("cuda:0"), map_location)
    assert load(saved_on("cpu"), {"cuda:1": "cpu"}).tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="type must be one of"):
        load(saved_on("cpu"), "cuda")
    with pytest.raises(UnsupportedError, match="cannot be meta"):
        load(saved_on("cpu"), "meta")
    for bad in (3, lambda storage, location: 3):
        with pytest.raises(TypeError, match="map_location must"):
            load(saved_on("cpu"), bad)


def test_devices_flambeau_does_not_have_become_names():
    body = streams.name("torch", "device") + streams.items(streams.text("cuda"), streams.number(1)) + b"R"
    assert load(io.BytesIO(streams.archive(streams.protocol(body)))) == "cuda:1"


def test_dtypes_flambeau_does_not_have():
    with pytest.raises(CheckpointError, match="dtype uint16, which Flambeau does not have"):
        load(io.BytesIO(streams.archive(streams.protocol(streams.name("torch", "uint16")))))


def test_bools_must_be_zeros_and_ones():
    body = streams.tensor((2,), (1,), held=streams.storage("BoolStorage", numel=2))
    assert load(io.BytesIO(streams.archive(streams.protocol(body), {"0": b"\0\1"}))).tolist() == [False, True]
    with pytest.raises(CheckpointError, match="must hold zeros and ones"):
        load(io.BytesIO(streams.archive(streams.protocol(body), {"0": b"\0\2"})))


def test_attributes_cannot_shadow_what_a_tensor_has():
    hooks = streams.name("collections", "OrderedDict") + b")R"
    for name in ("backward", "_grad", "__class__"):
        state = b"}" + streams.text(name) + b"K\x01s"
        arguments = streams.items(streams.tensor((4,), (1,)), b"\x88", hooks, state)
        body = streams.name("torch._utils", "_rebuild_parameter_with_state") + arguments + b"R"
        with pytest.raises(CheckpointError, match=f"'{name}' cannot be an attribute"):
            load(io.BytesIO(streams.archive(streams.protocol(body), {"0": bytes(16)})))


def test_numpy_arrays_come_back_as_arrays():
    data = numpy_bytes(struct.pack("<2f", 1, 2))
    state = streams.items(streams.number(1), streams.items(streams.number(2)), numpy_dtype("f4"), b"\x89", data)
    made = streams.items(streams.name("numpy", "ndarray"), streams.items(streams.number(0)), numpy_bytes(b"b"))
    body = streams.name("numpy.core.multiarray", "_reconstruct") + made + b"R" + state + b"b"
    back = load(io.BytesIO(streams.archive(streams.protocol(body))))
    assert isinstance(back, np.ndarray)
    assert back.tolist() == [1, 2]
    back[0] = 5


def numpy_dtype(kind: str) -> bytes:
    made = streams.name("numpy", "dtype") + streams.items(streams.text(kind), b"\x89", b"\x88") + b"R"
    return made + streams.items(streams.number(3), streams.text("<"), b"N", b"N", b"N") + b"b"


def numpy_bytes(data: bytes) -> bytes:
    return (
        streams.name("_codecs", "encode")
        + streams.items(streams.text(data.decode("latin1")), streams.text("latin1"))
        + b"R"
    )


def test_a_folder_that_is_not_there_is_named(tmp_path) -> None:
    path = tmp_path / "missing" / "a.pt"
    with pytest.raises(FileNotFoundError, match=rf"save: the folder of the file must exist, got '{path}'"):
        flambeau.save(1, path)
