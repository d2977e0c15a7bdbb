"""The data-only pickle interpreter: what it reads, and what it refuses."""

from __future__ import annotations

import collections
import pickle
import random

import numpy as np
import pytest

from flambeau.checkpoint.pickle_reader import PickleReader
from flambeau.checkpoint.records import ArrayRecord, Builder, CheckpointError, DeviceRecord, DtypeRecord, SizeRecord
from tests.serialization import streams


def read(stream: bytes) -> object:
    return PickleReader(stream, Builder(), None).read()


PLAIN = {
    "none": None,
    "flags": [True, False],
    "integers": [0, 1, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**62, -(2**63), 2**200, -(2**2000)],
    "floats": [0.0, -0.0, 1.5, float("inf"), 1e-310, -2.25],
    "complex": 1.5 - 2j,
    "text": ["", "a", "é漢字🜂", "x" * 300, "line\nbreak \\ 'quote' \"both\""],
    "bytes": [b"", b"abc\n\x00\xff", b"y" * 300],
    "array": bytearray(b"hi\x80"),
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "nested": {"a": [{"b": ({"c": [1]},)}], 7: None, (1, "x"): 2.0},
    "set": {1, 2, "three"},
    "frozen": frozenset([4, 5]),
    "ordered": collections.OrderedDict([("z", 1), ("a", 2)]),
    "counter": collections.Counter({"a": 3}),
    "slice": slice(1, None, 2),
    "range": range(3, 9, 2),
}


@pytest.mark.parametrize("protocol", range(6))
def test_reads_plain_data_of_every_protocol(protocol):
    value = read(pickle.dumps(PLAIN, protocol))
    assert value == PLAIN
    assert list(map(type, value.values())) == list(map(type, PLAIN.values()))
    assert type(value["flags"][0]) is bool


@pytest.mark.parametrize("protocol", range(6))
def test_reads_random_trees_as_pickle_does(protocol):
    rng = random.Random(protocol)

    def tree(depth: int) -> object:
        kind = rng.randrange(8 if depth else 5)
        if kind == 0:
            return rng.randrange(-(10 ** rng.randrange(1, 30)), 10**9)
        if kind == 1:
            return rng.uniform(-1e9, 1e9)
        if kind == 2:
            return "".join(chr(rng.choice([65, 233, 0x4E2D, 10, 92])) for _ in range(rng.randrange(6)))
        if kind == 3:
            return bytes(rng.randrange(256) for _ in range(rng.randrange(6)))
        if kind == 4:
            return rng.choice([None, True, False])
        if kind == 5:
            return [tree(depth - 1) for _ in range(rng.randrange(5))]
        if kind == 6:
            return tuple(tree(depth - 1) for _ in range(rng.randrange(5)))
        return {rng.randrange(1000): tree(depth - 1) for _ in range(rng.randrange(5))}

    for _ in range(100):
        value = tree(5)
        assert read(pickle.dumps(value, protocol)) == value


def test_shared_objects_stay_shared():
    inner = [1]
    value = read(pickle.dumps({"a": inner, "b": inner}))
    assert value["a"] is value["b"]


def test_numpy_scalars_become_python_numbers():
    for protocol in (2, 4, 5):
        for scalar in (
            np.float64(1.5),
            np.float32(0.1),
            np.float16(-2.5),
            np.int8(-3),
            np.uint64(2**63),
            np.bool_(True),
            np.complex64(1j),
        ):
            value = read(pickle.dumps(scalar, protocol))
            assert value == scalar.item()
            assert type(value) is type(scalar.item())


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1 c8 c16 >f4 >i2 >c8".split())
def test_numpy_arrays(dtype, order):
    array = np.asarray(np.arange(6).reshape(2, 3), dtype=dtype, order=order)
    for protocol in (2, 3, 4):
        record = read(pickle.dumps([array, array], protocol))[1]
        assert isinstance(record, ArrayRecord)
        native = array.astype(array.dtype.newbyteorder("="))
        assert record.dtype == native.dtype.name
        assert record.shape == (2, 3)
        back = np.frombuffer(record.data, native.dtype).reshape(record.shape, order="F" if record.fortran else "C")
        assert np.array_equal(back, native)


def test_numpy_text_and_objects_are_refused():
    for array in (np.array(["a"]), np.array([object], dtype=object), np.zeros(2, dtype=[("a", "f4")])):
        with pytest.raises(CheckpointError, match="NumPy dtype must be"):
            read(pickle.dumps(array, 2))


def test_torch_values():
    dtype = streams.name("torch", "float16")
    device = streams.name("torch", "device") + streams.items(streams.text("cuda"), streams.number(1)) + b"R"
    other = streams.name("torch", "device") + streams.items(streams.text("cuda:3")) + b"R"
    size = streams.name("torch", "Size") + streams.items(streams.items(streams.number(2), streams.number(3))) + b"R"
    value = read(streams.protocol(streams.items(dtype, device, other, size)))
    assert value == (DtypeRecord("float16"), DeviceRecord("cuda", 1), DeviceRecord("cuda", 3), (2, 3))
    assert type(value[3]) is SizeRecord


def test_ordered_dict_keeps_its_metadata():
    made = collections.OrderedDict(weight=1)
    made._metadata = {"": {"version": 1}}
    for protocol in (2, 4):
        assert read(pickle.dumps(made, protocol))._metadata == {"": {"version": 1}}


# ---------------------------------------------------------------------- hostile streams
class _Runs:
    """Pickles to a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_foreign_names_are_refused_with_their_key_path(protocol, tmp_path):
    import os

    trace = tmp_path / "ran"
    stream = pickle.dumps({"model": {"layer": [1, _Runs(os.system, f"touch {trace}")]}}, protocol)
    with pytest.raises(CheckpointError, match=r"'posix\.system', which is not data.*Re-save") as raised:
        read(stream)
    assert not trace.exists()
    if protocol >= 1:  # protocol 0 sets items one by one
        assert "['model']['layer'][1]" in str(raised.value)


@pytest.mark.parametrize(
    "target",
    ["builtins eval", "builtins exec", "builtins getattr", "builtins __import__", "builtins type", "os system", "torch load",
     "torch.hub load", "torch._utils _import_dotted_name", "collections defaultdict", "functools partial",
     "numpy.core.multiarray fromfile", "torch.storage _load_from_bytes",
     "torch._utils _rebuild_qtensor", "torch QInt8Storage", "torch quint8", "torch._utils _rebuild_sparse_tensor", "torch.jit ScriptModule",
     "__builtin__ eval", "torch Size.__class__", "torch float32.__class__"],
)  # fmt: skip
def test_names_outside_the_table(target):
    module, attribute = target.split(" ")
    with pytest.raises(CheckpointError, match="not data|are not read|is not read"):
        read(streams.protocol(streams.name(module, attribute)))
    with pytest.raises(CheckpointError, match="not data|are not read|is not read"):
        read(b"\x80\x04" + streams.text(module) + streams.text(attribute) + b"\x93.")


def test_classes_are_not_left_as_values():
    for body in (
        streams.name("torch", "FloatStorage"),
        streams.name("collections", "OrderedDict"),
        streams.name("torch", "Tensor"),
    ):
        with pytest.raises(CheckpointError, match=r"\['kind'\] holds the name .* as a value"):
            read(streams.protocol(b"}" + streams.text("kind") + body + b"s"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"]" + b"K\x01K\x02s", "set-item must act on a dict, got a list"),
        (b")" + b"(K\x01K\x02u", "set-item must act on a dict, got a tuple"),
        (streams.name("torch", "Size") + b"K\x01K\x02s", "set-item must act on a dict, got the name torch.Size"),
        (streams.text("a") + b"(K\x01K\x02u", "set-item must act on a dict, got a str"),
        (b"}K\x01a", "append must act on a list, got a dict"),
        (b"](K\x01\x90", "add-items must act on a set, got a list"),
        (b"}(K\x01u", "pairs of key and value"),
        (b"}]K\x01s", "key or set item must be text, a number or a tuple"),
        (b"}" + streams.number(2**64) + b"K\x01s", "must fit in 64 bits"),
        (b"}}b", "set-state must act on an OrderedDict"),
        (streams.name("collections", "OrderedDict") + b")R}" + streams.text("items") + b"K\x01sb", "cannot be an attribute"),
        (streams.name("collections", "OrderedDict") + b")R}" + streams.text("__class__") + b"K\x01sb", "cannot be an attribute"),
        (b"K\x01)R", "only a constructor can be applied, got a int"),
        (streams.name("torch", "Tensor") + b")R", "only names a type"),
        (streams.name("torch", "Size") + b"K\x01R", "needs a tuple of arguments"),
        (streams.name("torch", "Size") + b"K\x01\x85R", "must be a tuple of integers"),
        (streams.name("torch", "Size") + b"J\xff\xff\xff\xff\x85\x85R", "non-negative 64-bit integer, got -1"),
        (streams.name("builtins", "bytearray") + streams.number(2**40) + b"\x85R", "must be given its bytes"),
        (streams.name("builtins", "bytes") + streams.number(2**40) + b"\x85R", "must be given its bytes"),
        (streams.name("_codecs", "encode") + streams.text("a") + streams.text("rot13") + b"\x86R", "latin1"),
        (streams.name("builtins", "range") + b"K\x00K\x09K\x00\x87R", "step that is not 0"),
        (streams.name("torch", "float32") + b")R", "only a constructor can be applied"),
        (streams.name("torch._utils", "_rebuild_tensor_v2") + b")\x81", "not a class"),
        (b"\x82\x01", "opcode EXT1 builds objects by running code"),
        (b"(ios\nsystem\n", "opcode INST"),
        (b"(o", "opcode OBJ"),
        (b"\xff", "unknown pickle opcode 0xff"),
        (b"h\x05", "memo entry 5 is read before it is written"),
        (b"R", "more values than the stack holds"),
        (b"K\x01\x86", "more values than the stack holds"),
        (b"e", "needs a mark"),
        (b"q\x00", "needs a value on the stack"),
        (b"(K\x01\x85", None),
        (b"K\x01K\x02", "must end with one value"),
        (b"X\xff\xff\xff\xffabc", "ends early"),
        (b"\x8b\xff\xff\xff\xff", "size must not be negative"),
        (b"X\x01\x00\x00\x00\xff", "must be UTF-8"),
        (b"I12x\n", "not a number"),
        (b"I" + b"9" * 5000 + b"\n", "text line must end"),
        (b"I" + b"9" * 4090 + b"\n", None),
        (b"Q", "more values"),
        (b"K\x01Q", "has none"),
        (b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f", "frame is longer"),
    ],
)  # fmt: skip
def test_broken_streams(body, message):
    if message is None:  # a stream that ends in a value or an error, but never in another exception
        try:
            read(streams.protocol(body))
        except CheckpointError:
            return
        return
    with pytest.raises(CheckpointError, match=message) as raised:
        read(streams.protocol(body))
    assert str(raised.value).startswith("load: ")


def test_containers_that_contain_themselves_are_refused():
    loop: list = [1]
    loop.append({"again": loop})
    with pytest.raises(CheckpointError, match="contains itself"):
        read(pickle.dumps(loop, 2))
    with pytest.raises(CheckpointError, match="contains itself"):
        read(streams.protocol(b"]q\x00h\x00a"))


def test_depth_is_bounded():
    assert read(streams.protocol(b"]" * 150 + b"a" * 149))
    with pytest.raises(CheckpointError, match="nested at most"):
        read(streams.protocol(b"]" * 100_000 + b"a" * 99_999))


def test_shared_structure_costs_no_more_than_the_stream():
    """Each level holds the one below twice: 2**60 paths, 60 containers."""
    body = b"]q\x00"
    for level in range(60):
        body += b"](h" + bytes([level]) + b"h" + bytes([level]) + b"eq" + bytes([level + 1])
    assert len(read(streams.protocol(items_to_tuple(body)))) == 61


def items_to_tuple(body: bytes) -> bytes:
    return MARK_ALL + body + b"t"


MARK_ALL = b"("


def test_keys_that_are_slow_to_hash_are_refused():
    body = b")q\x00"
    for level in range(40):
        body += b"h" + bytes([level]) + b"h" + bytes([level]) + b"\x86q" + bytes([level + 1])
    with pytest.raises(CheckpointError, match="at most 64 parts"):
        read(streams.protocol(b"(" + body + b"}h\x28K\x01st"))


def test_copies_are_charged_against_the_length_of_the_stream():
    many = b"](" + b"K\x01" * 1000 + b"eq\x00"
    copies = (streams.name("builtins", "set") + b"h\x00\x85R") * 500
    with pytest.raises(CheckpointError, match="larger than the file"):
        read(streams.protocol(b"(" + many + copies + b"t"))


def test_damaged_streams_end_in_a_checkpoint_error():
    stream = pickle.dumps({**PLAIN, "array": np.arange(3)}, 2)
    for end in range(len(stream)):
        with pytest.raises(CheckpointError):
            read(stream[:end])
    rng = random.Random(0)
    for _ in range(3000):
        damaged = bytearray(stream)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            read(bytes(damaged))
        except CheckpointError:
            pass
