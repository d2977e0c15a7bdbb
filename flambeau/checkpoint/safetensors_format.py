"""The safetensors format: an eight-byte length, a JSON header, then the tensors' bytes without gaps.

The reader checks all that the format promises: the header is JSON without repeated names, every tensor's byte range is
exactly its shape times its dtype, ranges cover the data in order without gap or overlap. Tensors are slices of the input.

May not know: Tensor, files. Entry: read, write.

    records, metadata = read(memoryview(data))
    write({"weight": record}, stream, {"format": "pt"})
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

from flambeau.checkpoint.records import (
    DAMAGED,
    ITEM_BYTES,
    MAX_INT64,
    CheckpointError,
    StorageRecord,
    TensorRecord,
    contiguous_strides,
    gather_bytes,
)
from flambeau.checkpoint.zip_format import CHUNK, Stream

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
METADATA = "__metadata__"

DTYPES: dict[str, str] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read(data: memoryview) -> tuple[dict[str, TensorRecord], dict[str, str]]:
    """The tensors in the order of the header, and the file's own metadata."""
    header, start = _read_header(data)
    metadata = _read_metadata(header.pop(METADATA, {}))
    held = len(data) - start
    records: dict[str, TensorRecord] = {}
    ranges: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        dtype, shape, begin, end = _read_entry(name, entry, held)
        ranges.append((begin, end, name))
        storage = StorageRecord(name, end - begin, "cpu", data[start + begin : start + end])
        records[name] = TensorRecord(dtype, shape, contiguous_strides(shape), 0, storage)
    _check_coverage(ranges, held)
    return records, metadata


def _error(message: str) -> CheckpointError:
    return CheckpointError(f"load_file: {message}")


def _read_header(data: memoryview) -> tuple[dict[str, object], int]:
    if len(data) < 8:
        raise _error(f"a safetensors file must have at least 8 bytes, got {len(data)}. {DAMAGED}")
    (size,) = struct.unpack_from("<Q", data)
    if size > min(MAX_HEADER_BYTES, len(data) - 8):
        raise _error(
            f"the header must fit in the file and in {MAX_HEADER_BYTES} bytes, got {size} of {len(data) - 8}. {DAMAGED}"
        )
    try:
        header = json.loads(bytes(data[8 : 8 + size]), object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except RecursionError:
        raise _error(f"the header is nested too deep. {DAMAGED}") from None
    except ValueError as error:  # of JSON and of UTF-8
        raise _error(f"the header must be JSON, got an error: {str(error)[:200]}. {DAMAGED}") from None
    if type(header) is not dict:
        raise _error(f"the header must be a JSON object, got {type(header).__name__}. {DAMAGED}")
    return header, 8 + size


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(n for n in names if names.count(n) > 1)[:80]!r} occurs twice")
    return made


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def _read_metadata(metadata: object) -> dict[str, str]:
    if type(metadata) is not dict or not all(isinstance(value, str) for value in metadata.values()):
        raise _error(f"{METADATA} must map text to text. {DAMAGED}")
    return metadata


def _read_entry(name: str, entry: object, held: int) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of a tensor."""
    shown = repr(name[:80])
    if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _error(f"tensor {shown} must have dtype, shape and data_offsets. {DAMAGED}")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise _error(
            f"tensor {shown} must have one of the dtypes {', '.join(DTYPES)}, got {entry['dtype']!r:.40}. Convert it first."
        )
    shape, offsets = entry["shape"], entry["data_offsets"]
    for what, numbers in (("shape", shape), ("data_offsets", offsets)):
        if type(numbers) is not list or not all(type(n) is int and 0 <= n <= MAX_INT64 for n in numbers):
            raise _error(f"{what} of tensor {shown} must be non-negative 64-bit integers. {DAMAGED}")
    nbytes = ITEM_BYTES[dtype]
    for size in shape:
        nbytes *= size
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= held or offsets[1] - offsets[0] != nbytes:
        raise _error(
            f"tensor {shown} of shape {shape[:16]} and dtype {entry['dtype']} must have {nbytes if nbytes <= MAX_INT64 else 'too many'} "
            f"bytes within the {held} of the file, got offsets {offsets[:4]}. {DAMAGED}"
        )
    return dtype, tuple(shape), offsets[0], offsets[1]


def _check_coverage(ranges: list[tuple[int, int, str]], held: int) -> None:
    position = 0
    for begin, end, name in sorted(ranges):
        if begin != position:
            what = "overlaps another" if begin < position else f"leaves a gap of {begin - position} bytes before it"
            raise _error(
                f"the bytes of tensor {name[:80]!r} must follow those of the one before, but it {what}. {DAMAGED}"
            )
        position = end
    if position != held:
        raise _error(f"the tensors must cover the {held} bytes of data, got {position}. {DAMAGED}")


# ---------------------------------------------------------------------- writing
def write(records: Mapping[str, TensorRecord], stream: Stream, metadata: Mapping[str, str] | None = None) -> None:
    """Write records that share nothing; wide dtypes come first, so that every tensor is aligned to its items."""
    _check_names(records, metadata or {})
    header: dict[str, object] = {}
    if metadata:
        header[METADATA] = dict(metadata)
    order = sorted(
        records, key=lambda name: (-ITEM_BYTES[records[name].dtype], _NAMES.get(records[name].dtype, ""), name)
    )
    position = 0
    for name in order:
        record = records[name]
        if record.dtype not in _NAMES:
            readable = ", ".join(_NAMES)
            raise TypeError(
                f"save_file: tensor {name!r} must have a dtype of the format, got {record.dtype}. Convert it to {readable}."
            )
        nbytes = record.numel * ITEM_BYTES[record.dtype]
        header[name] = {
            "dtype": _NAMES[record.dtype],
            "shape": list(record.shape),
            "data_offsets": [position, position + nbytes],
        }
        position += nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(
            f"save_file: the header must have at most {MAX_HEADER_BYTES} bytes, got {len(text)}. Split the file."
        )
    stream.write(struct.pack("<Q", len(text)) + text)
    for name in order:
        _write_elements(records[name], stream)


def _write_elements(record: TensorRecord, stream: Stream) -> None:
    item = ITEM_BYTES[record.dtype]
    if record.numel and record.strides == contiguous_strides(record.shape):
        start = record.offset * item
        data = record.storage.data[start : start + record.numel * item]
    else:
        data = memoryview(gather_bytes(record.storage.data, item, record.offset, record.shape, record.strides))
    for at in range(0, len(data), CHUNK):
        stream.write(data[at : at + CHUNK])


def _check_names(records: Mapping[str, TensorRecord], metadata: Mapping[str, str]) -> None:
    for name in records:
        if not isinstance(name, str) or name == METADATA:
            raise TypeError(f"save_file: a tensor's name must be text other than {METADATA}, got {name!r}.")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"save_file: metadata must map text to text, got {key!r}: {value!r}. Convert it with str() or json.dumps()."
            )
