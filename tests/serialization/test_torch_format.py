"""PyTorch's zip and legacy formats on records: what is read, what is refused, and what is written."""

from __future__ import annotations

import collections
import io
import pickle
import random
import struct
import zipfile
import zlib

import pytest

from flambeau.checkpoint import layout, legacy_format, torch_format
from flambeau.checkpoint.pickle_writer import Described, TensorEntry
from flambeau.checkpoint.records import (
    ITEM_BYTES,
    CheckpointError,
    DeviceRecord,
    DtypeRecord,
    ParameterRecord,
    SizeRecord,
    StorageRecord,
    TensorRecord,
    contiguous_strides,
)
from tests.serialization import streams

FLOATS = struct.pack("<4f", 1, 2, 3, 4)
ONE = streams.tensor((1,), (1,))


def load(data: bytes) -> object:
    return torch_format.read(data)[0]


def describe(value: object) -> Described:
    """Records describe themselves."""
    if isinstance(value, TensorRecord):
        return TensorEntry(value)
    if isinstance(value, ParameterRecord):
        record = value.tensor
        assert isinstance(record, TensorRecord)
        moved = TensorRecord(
            record.dtype, record.shape, record.strides, record.offset, record.storage, value.requires_grad
        )
        return TensorEntry(moved, True, value.state)
    return value if isinstance(value, (DtypeRecord, DeviceRecord, SizeRecord)) else None


def save(value: object) -> bytes:
    stream = io.BytesIO()
    torch_format.write(value, stream, describe)
    return stream.getvalue()


def tensor(dtype: str, shape: tuple[int, ...], data: bytes) -> TensorRecord:
    storage = StorageRecord("x", len(data), "cpu", memoryview(data))
    return TensorRecord(dtype, shape, contiguous_strides(shape), 0, storage)


# ---------------------------------------------------------------------- reading
def test_reads_an_archive():
    body = b"}" + streams.text("weight") + streams.tensor((2, 2), (2, 1)) + b"s"
    record = load(streams.archive(streams.protocol(body), {"0": FLOATS}))["weight"]
    assert (record.dtype, record.shape, record.strides, record.offset) == ("float32", (2, 2), (2, 1), 0)
    assert record.tobytes() == FLOATS


def test_tensors_of_one_storage_share_it():
    whole, part = streams.tensor((4,), (1,)), streams.tensor((2,), (1,), 2)
    a, b = load(streams.archive(streams.protocol(streams.items(whole, part)), {"0": FLOATS}))
    assert a.storage is b.storage
    assert b.tobytes() == FLOATS[8:]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("FloatStorage", "float32"), ("DoubleStorage", "float64"), ("HalfStorage", "float16"), ("BFloat16Storage", "bfloat16"),
     ("ComplexFloatStorage", "complex64"), ("ComplexDoubleStorage", "complex128"), ("BoolStorage", "bool"), ("ByteStorage", "uint8"),
     ("CharStorage", "int8"), ("ShortStorage", "int16"), ("IntStorage", "int32"), ("LongStorage", "int64")],
)  # fmt: skip
@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_every_dtype_in_both_byte_orders(kind, dtype, byteorder):
    part = ITEM_BYTES[dtype] // (2 if dtype.startswith("complex") else 1)
    numbers = bytes(range(3 * ITEM_BYTES[dtype]))
    stored = (
        numbers
        if byteorder == "little"
        else b"".join(numbers[i : i + part][::-1] for i in range(0, len(numbers), part))
    )
    body = streams.tensor((3,), (1,), held=streams.storage(kind, numel=3))
    record = load(streams.archive(streams.protocol(body), {"0": stored}, byteorder=byteorder))
    assert record.dtype == dtype
    assert record.tobytes() == numbers


def test_untyped_storages_and_dtypes_given_apart():
    kind = streams.name("torch.storage", "UntypedStorage")
    held = (
        streams.items(streams.text("storage"), kind, streams.text("0"), streams.text("cpu"), streams.number(6)) + b"Q"
    )
    hooks = streams.name("collections", "OrderedDict") + b")R"
    numbers = streams.number(1), streams.items(streams.number(2)), streams.items(streams.number(1))
    arguments = streams.items(held, *numbers, b"\x89", hooks, streams.name("torch", "uint16"))
    body = streams.name("torch._utils", "_rebuild_tensor_v3") + arguments + b"R"
    record = load(streams.archive(streams.protocol(body), {"0": b"abcdef"}))
    assert (record.dtype, record.tobytes()) == ("uint16", b"cdef")
    with pytest.raises(CheckpointError, match="must say its dtype"):
        load(streams.archive(streams.protocol(streams.tensor((2,), (1,), held=held)), {"0": b"abcdef"}))


def test_parameters_keep_their_attributes():
    hooks = streams.name("collections", "OrderedDict") + b")R"
    state = b"}" + streams.text("tag") + streams.text("decay") + b"s"
    arguments = streams.items(streams.tensor((4,), (1,)), b"\x88", hooks, state)
    body = streams.name("torch._utils", "_rebuild_parameter_with_state") + arguments + b"R"
    value = load(streams.archive(streams.protocol(body), {"0": FLOATS}))
    assert isinstance(value, ParameterRecord)
    assert (value.requires_grad, value.state) == (True, {"tag": "decay"})


@pytest.mark.parametrize(
    ("body", "records", "message"),
    [
        (streams.tensor((4,), (1,)), {"0": FLOATS[:-4]}, r"declared 16, got 12"),
        (streams.tensor((4,), (1,)), {"0": FLOATS + b"\0"}, r"declared 16, got 17"),
        (streams.tensor((4,), (1,)), {"1": FLOATS}, "has no record 'archive/data/0'"),
        (streams.tensor((5,), (1,)), {"0": FLOATS}, "must lie within its storage"),
        (streams.tensor((2, 2), (3, 1)), {"0": FLOATS}, "must lie within its storage"),
        (streams.tensor((4,), (1,), 1), {"0": FLOATS}, "must lie within its storage"),
        (streams.tensor((2,), (2**62,)), {"0": FLOATS}, "must lie within its storage"),
        (streams.tensor((2**40, 2**40), (0, 0)), {"0": FLOATS}, "must lie within its storage"),
        (streams.tensor((0,), (1,), 5), {"0": FLOATS}, "must lie within its storage"),
        (streams.tensor((-1,), (1,)), {"0": FLOATS}, "must be a non-negative 64-bit integer, got -1"),
        (streams.tensor((2,), (-1,), 1), {"0": FLOATS}, "must be a non-negative 64-bit integer, got -1"),
        (streams.tensor((2**64,), (0,)), {"0": FLOATS}, "must be a non-negative 64-bit integer"),
        (streams.tensor((4,), (1, 1)), {"0": FLOATS}, "as many strides as sizes"),
        (streams.tensor((1,) * 65, (1,) * 65), {"0": FLOATS}, "at most 64 dimensions"),
        (streams.tensor((1,), (1,), held=streams.storage(numel=2**62)), {"0": FLOATS}, "64-bit size"),
        (streams.tensor((1,), (1,), held=streams.storage(numel=-1)), {"0": FLOATS}, "64-bit size"),
        (streams.tensor((1,), (1,), held=streams.storage("QInt8Storage")), {"0": FLOATS}, "quantised tensors are not read"),
        (streams.tensor((1,), (1,), held=b"K\x01"), {"0": FLOATS}, "needs a storage, got int"),
        (ONE + streams.tensor((1,), (1,), held=streams.storage("IntStorage")) + b"\x86", {"0": FLOATS}, "declared twice"),
        (streams.tensor((1,), (1,), held=streams.items(streams.text("module")) + b"Q"), {"0": FLOATS}, "whole module"),
        (streams.storage(), {"0": FLOATS}, "holds a storage as a value"),
    ],
)  # fmt: skip
def test_declared_sizes_must_match_the_archive(body, records, message):
    with pytest.raises(CheckpointError, match=message):
        load(streams.archive(streams.protocol(b"}" + streams.text("w") + body + b"s"), records))


def test_errors_name_the_key_path():
    broken = streams.tensor((5,), (1,))
    body = (
        b"}"
        + streams.text("model")
        + b"}("
        + streams.text("a")
        + streams.tensor((4,), (1,))
        + streams.text("b")
        + broken
        + b"us"
    )
    with pytest.raises(CheckpointError, match=r"inside \['model'\]\['b'\]"):
        load(streams.archive(streams.protocol(body), {"0": FLOATS}))


def test_an_archive_that_is_not_from_torch_save():
    def rezip(names: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for name, data in names.items():
                archive.writestr(name, data)
        return out.getvalue()

    stream = streams.protocol(b"K\x07")
    assert load(rezip({"m/data.pkl": stream})) == 7
    for names, message in [
        ({"m/other": b""}, "must hold m/data.pkl"),
        ({"data.pkl": stream}, "one folder"),
        ({"m/data.pkl": stream, "n/data/0": b""}, "one folder"),
        ({}, "one folder"),
        ({"m/data.pkl": stream, "m/constants.pkl": b""}, "TorchScript archive"),
        ({"m/data.pkl": stream, "m/version": b"11\n"}, "version must be at most"),
        ({"m/data.pkl": stream, "m/version": b"x"}, "version must be at most"),
        ({"m/data.pkl": stream, "m/byteorder": b"middle"}, "byteorder must be little or big"),
        ({"m/data.pkl": stream + b"more"}, "must end with its value"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            load(rezip(names))
    with pytest.raises(CheckpointError, match="stored uncompressed"):
        load(rezip({"m/data.pkl": stream, "m/data/0": bytes(1 << 20)}, zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "empty file"), (b"GGUF" + bytes(20), "GGUF file"), (struct.pack("<Q", 2) + b"{}", "safetensors file"),
     (b"hello world", "neither"), (b"\x89HDF\r\n", "HDF5"), (b"\x93NUMPY", "numpy.load"), (b"\x1f\x8b\x08", "compressed"),
     (bytes(257) + b"ustar" + bytes(300), "tar format"),
     (b"version https://git-lfs", "LFS"), (pickle.dumps([1], 2), "got a pickle of list"), (b"PK\3\4" + bytes(40), "no end record")],
)  # fmt: skip
def test_files_of_other_kinds(data, message):
    with pytest.raises(CheckpointError, match=message):
        load(data)


# ---------------------------------------------------------------------- damage
def small_archive() -> bytes:
    body = b"}" + streams.text("weight") + streams.tensor((4,), (1,)) + b"s"
    return streams.archive(streams.protocol(body), {"0": FLOATS, "unused": b"spare"})


def test_one_flipped_bit_anywhere_is_noticed():
    """In the payload a CRC error, in the structure another error; padding and dates say nothing."""
    data = small_archive()
    expected = load(data)["weight"].tobytes()
    payloads = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            start = info.header_offset + 30 + sum(struct.unpack_from("<HH", data, info.header_offset + 26))
            payloads.append(range(start, start + info.file_size))
    for at in range(len(data)):
        for bit in (0, 7):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            if any(at in payload for payload in payloads):
                with pytest.raises(CheckpointError, match="CRC check"):
                    load(bytes(damaged))
                continue
            try:
                value = load(bytes(damaged))
            except CheckpointError:
                continue
            assert value["weight"].tobytes() == expected


def test_truncated_and_extended_archives():
    data = small_archive()
    for end in range(len(data)):
        with pytest.raises(CheckpointError):
            load(data[:end])
    with pytest.raises(CheckpointError):
        load(data + b"x")
    with pytest.raises(CheckpointError):
        load(data[1:])


def test_random_damage_ends_in_a_checkpoint_error():
    rng = random.Random(1)
    data = small_archive()
    for _ in range(2000):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 5)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            load(bytes(damaged))
        except CheckpointError:
            pass


def _directory(data: bytes) -> int:
    return struct.unpack_from("<I", data, len(data) - 6)[0]


def test_duplicated_and_overlapping_records_are_refused():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("m/data.pkl", streams.protocol(b"K\x01"))
        archive.writestr("m/data.pkl", streams.protocol(b"K\x02"))
    with pytest.raises(CheckpointError, match="occurs twice"):
        load(out.getvalue())

    out = io.BytesIO()
    inner = b"PK\3\4" + struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0, zlib.crc32(b"evil"), 4, 4, 3, 0) + b"m/b" + b"evil"
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("m/data.pkl", streams.protocol(b"K\x01"))
        archive.writestr("m/a", inner)
        archive.writestr("m/b", b"evil")
    data = bytearray(out.getvalue())
    entry = data.index(b"PK\1\2", data.index(b"PK\1\2", data.index(b"PK\1\2") + 4) + 4)
    struct.pack_into("<I", data, entry + 42, data.index(inner))  # m/b is inside m/a
    with pytest.raises(CheckpointError, match="overlap"):
        load(bytes(data))


def test_header_and_directory_must_agree():
    data = bytearray(small_archive())
    at = data.index(b"archive/data/0")
    data[at + 13 : at + 14] = b"7"
    with pytest.raises(CheckpointError, match="differs between the zip archive's directory and its header"):
        load(bytes(data))


# ---------------------------------------------------------------------- legacy
def legacy(
    value: bytes, keys: list[str], storages: bytes, *, magic=legacy_format.MAGIC, protocol=1001, little=True
) -> bytes:
    system = {"protocol_version": protocol, "little_endian": little, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = b"".join(pickle.dumps(part, 2) for part in (magic, protocol, system))
    return head + streams.protocol(value) + pickle.dumps(keys, 2) + storages


def legacy_storage(view: bytes = b"N", numel: int = 4) -> bytes:
    return streams.items(streams.text("storage"), streams.name("torch", "FloatStorage"), streams.text("94"), streams.text("cpu"),
                         streams.number(numel), view) + b"Q"  # fmt: skip


def test_reads_a_legacy_stream_and_says_where_it_ends():
    body = streams.items(
        streams.tensor((2, 2), (2, 1), held=legacy_storage()), streams.tensor((2,), (1,), 2, held=legacy_storage())
    )
    data = legacy(body, ["94"], struct.pack("<q", 4) + FLOATS)
    (a, b), end = torch_format.read(data + b"another stream")
    assert end == len(data)
    assert a.storage is b.storage
    assert (a.tobytes(), b.tobytes()) == (FLOATS, FLOATS[8:])


def test_legacy_storages_that_are_views():
    view = streams.items(streams.text("v"), streams.number(1), streams.number(3))
    body = streams.tensor((2,), (1,), 1, held=legacy_storage(view))
    record = load(legacy(body, ["94"], struct.pack("<q", 4) + FLOATS))
    assert record.tobytes() == FLOATS[8:]
    for part, message in [((1, 4), "view of storage"), ((0, 2), "must lie within its storage")]:
        view = streams.items(streams.text("v"), *map(streams.number, part))
        with pytest.raises(CheckpointError, match=message):
            load(
                legacy(streams.tensor((2,), (1,), 1, held=legacy_storage(view)), ["94"], struct.pack("<q", 4) + FLOATS)
            )


def test_legacy_streams_that_do_not_match_themselves():
    body = streams.tensor((4,), (1,), held=legacy_storage())
    good = struct.pack("<q", 4) + FLOATS
    for data, message in [
        (legacy(body, ["94"], struct.pack("<q", 5) + FLOATS), "must have the 4 elements its tensors declare, got 5"),
        (legacy(body, ["94"], good[:-1]), "past the end of the file"),
        (legacy(body, ["94"], b""), "past the end of the file"),
        (legacy(body, [], b""), "holds no data for storage"),
        (legacy(body, ["94", "94"], good * 2), "each key once"),
        (legacy(body, ["94", "95"], good * 2), "no tensor uses it"),
        (legacy(body, ["94"], good, magic=1), "got a pickle of int"),
        (legacy(body, ["94"], good, protocol=1002), "protocol must be 1001"),
        (legacy(body, ["94"], good, little=False), "little-endian machine"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            load(data)
    whole = legacy(body, ["94"], good)
    for end in range(len(whole)):
        with pytest.raises(CheckpointError):
            load(whole[:end])


# ---------------------------------------------------------------------- writing
def test_round_trip_of_plain_data():
    value = {
        "none": None, "flags": [True, False], "numbers": [0, 255, 256, 65536, -1, 2**31, 2**62, 2**200], "floats": (1.5, float("inf")),
        "complex": 1 - 2j, "text": "é漢", "bytes": b"\x00\xff", "empty": b"", "array": bytearray(b"ab"), "set": {1, "b"}, 7: {(1, "x"): []},
        "dtype": DtypeRecord("bfloat16"), "device": DeviceRecord("cpu"), "cuda": DeviceRecord("cuda", 1), "size": SizeRecord((2, 3)),
        "ordered": collections.OrderedDict(z=1, a=2),
    }  # fmt: skip
    back = load(save(value))
    assert back == value
    assert [type(v) for v in back.values()] == [type(v) for v in value.values()]


def test_round_trip_keeps_metadata_attributes_and_identity():
    state = collections.OrderedDict(weight=ParameterRecord(tensor("float32", (2, 2), FLOATS), True, {"tag": "x"}))
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    shared = [1]
    back = load(save({"state": state, "a": shared, "b": shared}))
    assert back["state"]._metadata == {"": {"version": 1}}
    assert back["a"] is back["b"]
    parameter = back["state"]["weight"]
    assert (parameter.requires_grad, parameter.state, parameter.tensor.tobytes()) == (True, {"tag": "x"}, FLOATS)


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_round_trip_of_every_dtype(dtype):
    data = bytes(range(6 * ITEM_BYTES[dtype]))
    back = load(save([tensor(dtype, (2, 3), data)]))[0]
    assert (back.dtype, back.shape, back.tobytes()) == (dtype, (2, 3), data)


def test_zero_sized_scalar_conjugate_and_expanded_tensors():
    empty, scalar = tensor("float32", (0, 3), b""), tensor("int64", (), bytes(8))
    conjugate = TensorRecord(
        "complex64", (2,), (1,), 0, tensor("complex64", (2,), bytes(16)).storage, True, True, False
    )
    expanded = TensorRecord("float32", (1000, 4), (0, 1), 0, tensor("float32", (4,), FLOATS).storage)
    back = load(save([empty, scalar, conjugate, expanded]))
    assert [record.shape for record in back] == [(0, 3), (), (2,), (1000, 4)]
    assert (back[2].conj, back[2].neg, back[2].requires_grad) == (True, False, True)
    assert (back[3].strides, back[3].storage.nbytes) == ((0, 1), 16)


def test_equal_values_are_equal_files():
    value = {"a": tensor("float32", (4,), FLOATS), "names": {"x", "y", "zz"}}
    assert save(value) == save(value)


def test_records_are_aligned_and_the_archive_is_a_plain_zip():
    data = save([tensor("float32", (4,), FLOATS), tensor("int8", (3,), b"abc")])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert names[0] == "archive/data.pkl"
        assert {"archive/byteorder", "archive/version", "archive/data/0", "archive/data/1", "archive/.data/serialization_id",
                "archive/.format_version", "archive/.storage_alignment"} <= set(names)  # fmt: skip
        assert archive.read("archive/version") == b"3\n"
        for info in archive.infolist():
            start = info.header_offset + 30 + sum(struct.unpack_from("<HH", data, info.header_offset + 26))
            assert start % 64 == 0
            assert info.compress_type == zipfile.ZIP_STORED


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"the object\['a'\]\[1\] must be data, got builtins\.object"),
        ({"f": print}, r"the object\['f'\] must be data, got builtins\.builtin_function_or_method"),
        ([frozenset()], r"the object\[0\] must be data, got builtins\.frozenset"),
        ({"d": collections.defaultdict(list)}, r"defaultdict\. Convert it to a plain dict"),
        ({object(): 1}, "a key or set item of the object must be text, a number or a tuple"),
        ({2**64: 1}, "64-bit integers"),
        ([2 ** (8 * 300)], "at most 255 bytes"),
    ],
)
def test_anything_else_is_refused_with_its_key_path(value, message):
    with pytest.raises(TypeError, match=message):
        save(value)


def test_cycles_and_depth_are_refused():
    loop: list = []
    loop.append([loop])
    with pytest.raises(TypeError, match=r"the object\[0\]\[0\] must not contain itself"):
        save(loop)
    deep: list = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(TypeError, match="nested more than 200 deep"):
        save(deep)


# ---------------------------------------------------------------------- what is written of a storage
def views(dtype: str, count: int, *parts: tuple[tuple[int, ...], tuple[int, ...], int]) -> list[TensorRecord]:
    """Views (shape, strides, offset) of one storage of `count` elements with distinct bytes."""
    item = ITEM_BYTES[dtype]
    data = b"".join(i.to_bytes(4, "little").ljust(item, b"\1")[:item] for i in range(count))
    storage = StorageRecord("s", len(data), "cpu", memoryview(data))
    return [TensorRecord(dtype, shape, strides, offset, storage) for shape, strides, offset in parts]


def test_two_slices_of_one_storage_are_both_right_and_stored_once():
    a, b = views("int64", 10, ((4,), (1,), 0), ((4,), (1,), 6))
    data = save([a, b])
    back = load(data)
    assert [r.tobytes() for r in back] == [a.tobytes(), b.tobytes()]
    assert back[0].storage is back[1].storage
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert [name for name in archive.namelist() if "/data/" in name and not name.endswith("id")] == [
            "archive/data/0"
        ]


def test_a_small_slice_of_a_large_storage_is_small_on_disk():
    (part,) = views("float32", 100_000, ((5,), (1,), 50_000))
    assert len(save([part])) < 2500
    assert load(save([part]))[0].tobytes() == part.tobytes()


def test_aliases_stay_aliases():
    parts = views("float32", 1000, ((4,), (1,), 500), ((2,), (1,), 502), ((2, 2), (1, 2), 500), ((3,), (1,), 900))
    back = load(save(parts))
    assert len({id(record.storage) for record in back}) == 1
    assert back[0].storage.nbytes <= 16 + 16
    assert [record.tobytes() for record in back] == [record.tobytes() for record in parts]
    assert back[1].offset == back[0].offset + 2
    assert back[2].strides == (1, 2)


def test_a_column_of_a_matrix_is_packed_and_keeps_its_order():
    for shape, strides, offset in [
        ((100,), (100,), 7),
        ((10, 5, 3), (1000, 2, 30), 1),
        ((3, 5), (1, 100), 0),
        ((4, 1, 2), (0, 7, 50), 3),
    ]:
        (part,) = views("int32", 10_000, (shape, strides, offset))
        back = load(save([part]))[0]
        assert back.tobytes() == part.tobytes()
        distinct = 1
        for size, stride in zip(shape, strides, strict=True):
            distinct *= size if stride else 1
        assert back.storage.nbytes == 4 * distinct
        stepping = [d for d in range(len(shape)) if shape[d] > 1]
        assert sorted(stepping, key=lambda d: -back.strides[d]) == sorted(stepping, key=lambda d: -strides[d])


def test_views_that_overlap_themselves_are_written_as_they_are():
    (windows,) = views("int16", 50, ((5, 4), (2, 1), 10))
    back = load(save([windows]))[0]
    assert (back.strides, back.storage.nbytes, back.tobytes()) == ((2, 1), 24, windows.tobytes())


def test_one_storage_seen_as_two_dtypes():
    (whole,) = views("float32", 64, ((64,), (1,), 0))
    part = TensorRecord("int16", (3,), (1,), 21, whole.storage)
    complex_part = TensorRecord("complex128", (1,), (1,), 3, whole.storage)
    for value in ([whole, part, complex_part], [part, complex_part]):
        back = load(save(value))
        assert len({id(record.storage) for record in back}) == 1
        assert [(record.dtype, record.tobytes()) for record in back] == [
            (record.dtype, record.tobytes()) for record in value
        ]


def test_random_groups_of_views():
    rng = random.Random(2)
    for _ in range(200):
        dtype = rng.choice(["int8", "float16", "float32", "complex128"])
        parts = []
        for _ in range(rng.randrange(1, 6)):
            shape = tuple(rng.randrange(4) for _ in range(rng.randrange(4)))
            strides = tuple(rng.choice([0, 1, 2, 7, 30]) for _ in shape)
            parts.append((shape, strides, rng.randrange(200)))
        records = views(dtype, 500, *parts)
        storages, placed = layout.plan_storages(records)
        assert len(storages) == 1
        assert storages[0].nbytes == sum(len(segment) for segment in storages[0].segments)
        assert storages[0].nbytes <= 500 * ITEM_BYTES[dtype] + 16 * len(parts)
        back = load(save(records))
        assert [record.tobytes() for record in back] == [record.tobytes() for record in records]
