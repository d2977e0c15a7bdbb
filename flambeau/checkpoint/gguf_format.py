"""GGUF files (versions 2 and 3): the header's keys and values, and where each tensor lies.

Layout: magic, version, counts, key/value pairs, tensor descriptions, padding to the alignment, data. Every count, length
and offset is checked against the file before anything is made of it, so reading costs no more than the file's size.

May not know: Tensor, what the quantised blocks mean. Entry: read_header.

    header = read_header(memoryview(data))
    header.metadata["general.architecture"], header.tensors["output.weight"].shape
"""

from __future__ import annotations

import dataclasses
import struct

from flambeau.checkpoint.records import DAMAGED, CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_KEY_BYTES = 65535
MAX_ARRAY_DEPTH = 4

# Value types of the header: struct code, or None for the two that have a length.
_VALUE_CODES: dict[int, str | None] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 8: None, 9: None, 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9

# Tensor types that are read: number, weights and bytes of a block.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144), 14: ("Q6_K", 256, 210), 30: ("BF16", 1, 2),
}  # fmt: skip
# Names of the others, so that an error can say which it is.
_OTHER_TYPES: dict[int, str] = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of the file: row-major shape (the file lists sizes the other way), type, and its bytes' place."""

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """All that a GGUF file says about itself."""

    version: int
    metadata: dict[str, object]
    tensors: dict[str, TensorInfo]
    alignment: int


def read_header(data: memoryview) -> Header:
    """Read and check everything but the tensors' bytes."""
    cursor = _Cursor(data)
    if bytes(data[:4]) != MAGIC:
        raise _error(
            f"the file must start with {MAGIC.decode()}, got {bytes(data[:4])!r}. Check that it is a GGUF file"
        )
    cursor.at = 4
    version = cursor.number("I")
    if version not in VERSIONS:
        if version in (1 << 24, 2 << 24, 3 << 24):
            raise _error("the file is big-endian, which is not read. Convert it to a little-endian one")
        raise _error(f"the version must be 2 or 3, got {version}. Convert the file with current tools")
    tensors, pairs = cursor.number("Q"), cursor.number("Q")
    # A pair takes at least 13 bytes (key length, type, one byte), a description 24.
    if pairs * 13 + tensors * 24 > len(data):
        raise _error(f"{pairs} keys and {tensors} tensors cannot fit in {len(data)} bytes. {DAMAGED}")
    metadata: dict[str, object] = {}
    for _ in range(pairs):
        key = cursor.text("a key", MAX_KEY_BYTES)
        if key in metadata:
            raise _error(f"key {key[:80]!r} occurs twice. {DAMAGED}")
        metadata[key] = _value(cursor, cursor.number("I"), key)
    alignment = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment % 8 or alignment > 1 << 20:
        raise _error(f"{ALIGNMENT_KEY} must be a multiple of 8 up to 1 MiB, got {alignment!r:.40}. {DAMAGED}")
    described = [_description(cursor) for _ in range(tensors)]
    first = -(-cursor.at // alignment) * alignment
    return Header(version, metadata, _placed(described, first, alignment, len(data)), alignment)


def _error(message: str) -> CheckpointError:
    return CheckpointError(f"gguf: {message}" + ("" if message.endswith(".") else "."))


class _Cursor:
    """A place in the header, which never leaves the file."""

    __slots__ = ("at", "data")

    def __init__(self, data: memoryview):
        self.data = data
        self.at = 0

    def take(self, count: int) -> memoryview:
        start = self.at
        if count > len(self.data) - start:
            raise _error(
                f"the header ends early: {count} bytes needed at byte {start}, {len(self.data) - start} left. {DAMAGED}"
            )
        self.at = start + count
        return self.data[start : self.at]

    def number(self, code: str) -> int:
        layout = "<" + code
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self, what: str, limit: int) -> str:
        size = self.number("Q")
        if size > limit:
            raise _error(f"{what} must have at most {limit} bytes, got {size}. {DAMAGED}")
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise _error(f"{what} must be UTF-8. {DAMAGED}") from None


def _value(cursor: _Cursor, type_: int, key: str, depth: int = 0) -> object:
    if type_ not in _VALUE_CODES:
        raise _error(f"key {key[:80]!r} has a value of unknown type {type_}. {DAMAGED}")
    if type_ == _STRING:
        return _strings(cursor, 1, key)[0]
    if type_ == _ARRAY:
        return _array(cursor, key, depth)
    return _checked(cursor.take(struct.calcsize("<" + _VALUE_CODES[type_])), type_, 1, key)[0]


def _array(cursor: _Cursor, key: str, depth: int) -> list[object]:
    if depth >= MAX_ARRAY_DEPTH:
        raise _error(f"the value of {key[:80]!r} must be nested at most {MAX_ARRAY_DEPTH} deep. {DAMAGED}")
    type_, count = cursor.number("I"), cursor.number("Q")
    code = _VALUE_CODES.get(type_)
    least = struct.calcsize("<" + code) if code else {_STRING: 8, _ARRAY: 12}.get(type_, 1)
    if count * least > len(cursor.data) - cursor.at:
        raise _error(f"the value of {key[:80]!r} declares {count} items, more than the file can hold. {DAMAGED}")
    if code:
        return _checked(cursor.take(count * least), type_, count, key)
    if type_ == _STRING:
        return _strings(cursor, count, key)
    return [_value(cursor, type_, key, depth + 1) for _ in range(count)]


def _strings(cursor: _Cursor, count: int, key: str) -> list[object]:
    """Vocabularies have 10^5 of them, so this loop is kept bare."""
    data, at, total = cursor.data, cursor.at, len(cursor.data)
    size_at = struct.Struct("<Q").unpack_from
    found: list[object] = []
    for _ in range(count):
        end = at + 8 + size_at(data, at)[0] if at + 8 <= total else total + 1
        if end > total:
            raise _error(f"the strings of {key[:80]!r} reach past the end of the file. {DAMAGED}")
        found.append(str(data[at + 8 : end], "utf-8", "surrogateescape"))  # tokens may be pieces of characters
        at = end
    cursor.at = at
    return found


def _checked(raw: memoryview, type_: int, count: int, key: str) -> list[object]:
    if type_ == _BOOL and bytes(raw).strip(b"\0\1"):
        raise _error(f"a bool of {key[:80]!r} must be 0 or 1. {DAMAGED}")
    return list(struct.unpack(f"<{count}{_VALUE_CODES[type_]}", raw))


def _description(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """(name, row-major shape, type, offset) of a tensor."""
    name = cursor.text("a tensor's name", MAX_KEY_BYTES)
    dimensions = cursor.number("I")
    if dimensions > MAX_DIMENSIONS:
        raise _error(f"tensor {name[:80]!r} must have at most {MAX_DIMENSIONS} dimensions, got {dimensions}. {DAMAGED}")
    sizes = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions))
    return name, sizes[::-1], cursor.number("I"), cursor.number("Q")


def _placed(
    described: list[tuple[str, tuple[int, ...], int, int]], first: int, alignment: int, total: int
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, shape, number, offset in described:
        if name in tensors:
            raise _error(f"tensor {name[:80]!r} occurs twice. {DAMAGED}")
        if number not in TENSOR_TYPES:
            other = _OTHER_TYPES.get(number, f"number {number}")
            readable = ", ".join(kind for kind, _, _ in TENSOR_TYPES.values())
            raise _error(f"tensor {name[:80]!r} has type {other}, which is not read. Convert it to one of {readable}")
        kind, weights, block_bytes = TENSOR_TYPES[number]
        columns = shape[-1] if shape else 1
        if columns % weights:
            raise _error(
                f"rows of tensor {name[:80]!r} ({kind}) must be multiples of {weights}, got {columns}. {DAMAGED}"
            )
        nbytes = columns // weights * block_bytes
        for size in shape[:-1]:
            nbytes *= size
        start = first + offset
        if offset % alignment or start + nbytes > total:
            raise _error(
                f"tensor {name[:80]!r} must lie within the file at a multiple of {alignment}, "
                f"got {nbytes} bytes at offset {offset} of {max(0, total - first)}. {DAMAGED}"
            )
        tensors[name] = TensorInfo(name, kind, shape, start, nbytes)
    previous = None
    for info in sorted(tensors.values(), key=lambda info: (info.start, info.nbytes)):
        if previous is not None and info.start < previous.start + previous.nbytes:
            raise _error(f"tensors {previous.name[:80]!r} and {info.name[:80]!r} overlap. {DAMAGED}")
        previous = info
    return tensors
