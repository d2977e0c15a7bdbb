"""safetensors on records, against the reference library and against hostile headers."""

from __future__ import annotations

import io
import json
import random
import struct

import numpy as np
import pytest

from flambeau.checkpoint import safetensors_format
from flambeau.checkpoint.records import CheckpointError, StorageRecord, TensorRecord, contiguous_strides

safetensors = pytest.importorskip("safetensors")
NUMPY = [
    "float64",
    "float32",
    "float16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
    "complex64",
]


def read(data: bytes) -> dict[str, TensorRecord]:
    return safetensors_format.read(memoryview(data))[0]


def write(records: dict[str, TensorRecord], metadata: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    safetensors_format.write(records, stream, metadata)
    return stream.getvalue()


def record(array: np.ndarray, dtype: str | None = None) -> TensorRecord:
    data = array.tobytes()
    storage = StorageRecord("", len(data), "cpu", memoryview(data))
    return TensorRecord(dtype or array.dtype.name, array.shape, contiguous_strides(array.shape), 0, storage)


def file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {f"layer.{dtype}": rng.integers(0, 2, (3, 5)).astype(dtype) for dtype in NUMPY}
    return {**made, "empty": np.zeros((0, 4), np.float32), "scalar": np.array(7, np.int64), "é": np.ones(3, np.uint8)}


def test_reads_what_the_library_writes():
    from safetensors.numpy import save

    expected = arrays()
    data = save(expected, {"format": "np"})
    found, metadata = safetensors_format.read(memoryview(data))
    assert metadata == {"format": "np"}
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape, found[name].tobytes()) == (
            array.dtype.name,
            array.shape,
            array.tobytes(),
        )


def test_the_library_reads_what_is_written():
    from safetensors.numpy import load

    expected = arrays()
    back = load(write({name: record(array) for name, array in expected.items()}, {"format": "pt"}))
    assert set(back) == set(expected)
    for name, array in expected.items():
        assert back[name].dtype == array.dtype
        assert np.array_equal(back[name], array)


def test_round_trip_of_dtypes_numpy_lacks_and_of_strided_views():
    bits = np.arange(12, dtype=np.uint16)
    half = record(bits, "bfloat16")
    column = TensorRecord("bfloat16", (3, 2), (1, 4), 2, half.storage)
    data = write({"half": half, "column": column, "eighth": record(np.arange(5, dtype=np.uint8), "float8_e4m3fn")})
    back = read(data)
    assert (back["half"].dtype, back["half"].tobytes()) == ("bfloat16", bits.tobytes())
    expected = np.lib.stride_tricks.as_strided(bits[2:], (3, 2), (2, 8))
    assert (back["column"].shape, back["column"].tobytes()) == ((3, 2), expected.tobytes())
    assert back["eighth"].dtype == "float8_e4m3fn"


def test_data_starts_and_tensors_lie_at_multiples_of_their_items():
    data = write(
        {"a": record(np.zeros(3, np.int8)), "b": record(np.zeros(3, np.float64)), "c": record(np.zeros(3, np.int16))}
    )
    (size,) = struct.unpack_from("<Q", data)
    assert size % 8 == 0
    header = json.loads(data[8 : 8 + size])
    assert {name: entry["data_offsets"][0] for name, entry in header.items()} == {"b": 0, "c": 24, "a": 30}


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "at least 8 bytes"),
        (b"\0" * 7, "at least 8 bytes"),
        (struct.pack("<Q", 2**63) + b"{}", "header must fit"),
        (struct.pack("<Q", 3) + b"{}", "header must fit"),
        (file(b"{"), "must be JSON"),
        (file(b"\xff{}"), "must be JSON"),
        (file(b"[" * 100_000), "nested too deep|must be JSON"),
        (file(b"[]"), "JSON object, got list"),
        (file(b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":1}'), "'a' occurs twice"),
        (file(b'{"a":NaN}'), "NaN is not JSON"),
        (file({"__metadata__": {"a": 1}}), "must map text to text"),
        (file({"a": 1}), "must have dtype, shape and data_offsets"),
        (file({"a": {**ENTRY, "more": 1}}, bytes(8)), "must have dtype, shape and data_offsets"),
        (file({"a": {**ENTRY, "dtype": "Q4"}}, bytes(8)), "one of the dtypes .* got 'Q4'"),
        (file({"a": {**ENTRY, "dtype": ["F32"]}}, bytes(8)), "one of the dtypes"),
        (file({"a": {**ENTRY, "shape": [-2]}}, bytes(8)), "non-negative"),
        (file({"a": {**ENTRY, "shape": [True]}}, bytes(8)), "non-negative"),
        (file({"a": {**ENTRY, "shape": [2.0]}}, bytes(8)), "non-negative"),
        (file({"a": {**ENTRY, "shape": [2**63]}}, bytes(8)), "non-negative"),
        (file({"a": {**ENTRY, "shape": [2**62, 2**62]}}, bytes(8)), "too many bytes"),
        (file({"a": {**ENTRY, "shape": [3]}}, bytes(8)), "must have 12 bytes"),
        (file({"a": {**ENTRY, "data_offsets": [8, 0]}}, bytes(8)), "must have 8 bytes"),
        (file({"a": {**ENTRY, "data_offsets": [0, 8, 8]}}, bytes(8)), "must have 8 bytes"),
        (file({"a": ENTRY}, bytes(7)), "must have 8 bytes"),
        (file({"a": ENTRY}, bytes(9)), "must cover the 9 bytes"),
        (file({"a": ENTRY, "b": ENTRY}, bytes(8)), "overlaps another"),
        (file({"a": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)), "gap of 4 bytes"),
    ],
)
def test_broken_files(data, message):
    with pytest.raises(CheckpointError, match=message) as raised:
        read(data)
    assert str(raised.value).startswith("load_file: ")


def test_damage_ends_in_a_checkpoint_error_and_truncation_is_noticed():
    data = write({name: record(array) for name, array in arrays().items()}, {"a": "b"})
    for end in range(0, len(data), 7):
        with pytest.raises(CheckpointError):
            read(data[:end])
    rng = random.Random(0)
    (size,) = struct.unpack_from("<Q", data)
    for _ in range(3000):
        damaged = bytearray(data)
        damaged[rng.randrange(8 + size)] ^= 1 << rng.randrange(8)
        try:
            read(bytes(damaged))
        except CheckpointError:
            pass


def test_what_cannot_be_written():
    good = record(np.zeros(2, np.float32))
    for records, metadata, message in [
        ({"a": record(np.zeros(2), "complex128")}, None, "must have a dtype of the format, got complex128"),
        ({"__metadata__": good}, None, "name must be text"),
        ({1: good}, None, "name must be text"),
        ({"a": good}, {"epoch": 3}, "map text to text"),
    ]:
        with pytest.raises(TypeError, match=message):
            write(records, metadata)
