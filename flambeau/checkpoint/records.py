"""What a checkpoint says, as plain records: storages, tensors, arrays, and the builder that turns them into values.

A reader makes one `StorageRecord` per storage of the file and one `TensorRecord` per tensor; records that share
a storage are views of one another. A `Builder` turns records into whatever the caller wants: the base class
returns the records themselves, the adapter in `flambeau/serialization.py` returns tensors.

May not know: file formats, tensors. Entry: TensorRecord, Builder.

    storage = StorageRecord("0", 8, "cpu", memoryview(b"\\0" * 8))
    TensorRecord("float32", (2,), (1,), 0, storage)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


class CheckpointError(RuntimeError):
    """A file that breaks its format, does not match its own checksums, or asks for something that is not data."""


# Bytes of one element, by the name of the dtype. The order is that of PyTorch's documentation.
ITEM_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}

# Tensors of these dtypes are a plain sequence of numbers of this size when bytes must be swapped.
SWAP_BYTES: Mapping[str, int] = {"complex64": 4, "complex128": 8}

MAX_INT64 = 2**63 - 1

# How errors about files end: what to do next.
DAMAGED = "The file is truncated or damaged; fetch or save it again."
HOSTILE = "The file is damaged or hostile; do not use it."
RESAVE = "Re-save it in PyTorch as a dict of tensors and plain values (torch.save(model.state_dict(), path))."


class StorageRecord:
    """A run of bytes that tensors share. `key` is its name in the file, `location` the device it was saved from."""

    __slots__ = ("key", "nbytes", "location", "data")

    def __init__(self, key: str, nbytes: int, location: str, data: memoryview):
        self.key = key
        self.nbytes = nbytes
        self.location = location
        self.data = data

    def __repr__(self) -> str:
        return f"StorageRecord(key={self.key!r}, nbytes={self.nbytes}, location={self.location!r})"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TensorRecord:
    """A tensor as the file declares it: strides and offset count elements of `dtype`."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: StorageRecord
    requires_grad: bool = False
    conj: bool = False
    neg: bool = False

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def end(self) -> int:
        """One past the last element that the tensor can reach, counted from the storage's start."""
        return element_end(self.shape, self.strides, self.offset)

    def tobytes(self) -> bytes:
        """The elements in row-major order."""
        return gather_bytes(self.storage.data, ITEM_BYTES[self.dtype], self.offset, self.shape, self.strides)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ParameterRecord:
    """A tensor that was saved as a parameter; `state` holds its extra Python attributes."""

    tensor: object
    requires_grad: bool
    state: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ArrayRecord:
    """A NumPy array inside a PyTorch file: C or Fortran order, native byte order, elements of `dtype`."""

    dtype: str
    shape: tuple[int, ...]
    fortran: bool
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class DtypeRecord:
    """A dtype as a value, such as `torch.float16` in a configuration."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device as a value."""

    type: str
    index: int | None = None


class SizeRecord(tuple):
    """A shape as a value (`torch.Size`)."""

    __slots__ = ()


class Builder:
    """Turns records into values. This one keeps the records; subclasses make tensors. `tensor_type`: what `tensor` returns."""

    tensor_type: type = TensorRecord

    def tensor(self, record: TensorRecord) -> object:
        return record

    def parameter(self, tensor: object, requires_grad: bool, state: Mapping[str, object]) -> object:
        return ParameterRecord(tensor, requires_grad, state)

    def attributes(self, tensor: object, state: Mapping[str, object]) -> object:
        """A tensor that was saved with Python attributes of its own."""
        return tensor

    def array(self, record: ArrayRecord) -> object:
        return record

    def dtype(self, name: str) -> object:
        return DtypeRecord(name)

    def device(self, type_: str, index: int | None) -> object:
        return DeviceRecord(type_, index)

    def size(self, sizes: tuple[int, ...]) -> object:
        return SizeRecord(sizes)


def element_end(shape: Sequence[int], strides: Sequence[int], offset: int) -> int:
    """One past the last element of a strided view; `offset` itself for an empty one."""
    if 0 in shape:
        return offset
    return offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides; a dimension of size 0 counts as 1, as in PyTorch."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def gather_bytes(data: memoryview, item_bytes: int, offset: int, shape: Sequence[int], strides: Sequence[int]) -> bytes:
    """The elements of a strided view, packed in row-major order.

    Runs one C-level strided copy per line of the longest dimension, so the cost in Python is the number of lines.
    """
    shape, strides = list(shape), list(strides)
    if 0 in shape:
        return b""
    if item_bytes == 16:  # memoryview has no 16-byte element: a complex128 is a line of two
        return gather_bytes(data, 8, 2 * offset, [*shape, 2], [*(2 * s for s in strides), 1])
    shape, strides = _merge_dimensions(shape, strides)
    code = {1: "B", 2: "H", 4: "I", 8: "Q"}[item_bytes]
    last = element_end(shape, strides, offset)
    units = data[: last * item_bytes].cast("B").cast(code)
    size, step = shape[-1], strides[-1]
    lines = [offset]
    for outer, jump in zip(shape[:-1], strides[:-1], strict=True):
        lines = [start + i * jump for start in lines for i in range(outer)]
    if step == 0:
        return b"".join(units[start : start + 1].tobytes() * size for start in lines)
    return b"".join(units[start : start + (size - 1) * step + 1 : step].tobytes() for start in lines)


def _merge_dimensions(shape: list[int], strides: list[int]) -> tuple[list[int], list[int]]:
    """Neighbouring dimensions that step through memory as one become one."""
    merged_shape, merged_strides = [1], [1]
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if merged_shape[-1] == 1:
            merged_shape[-1], merged_strides[-1] = size, stride
        elif merged_strides[-1] == size * stride:
            merged_shape[-1] *= size
            merged_strides[-1] = stride
        else:
            merged_shape.append(size)
            merged_strides.append(stride)
    return merged_shape, merged_strides


def swap_bytes(data: memoryview, item_bytes: int) -> bytes:
    """The same numbers in the other byte order."""
    if item_bytes == 1:
        return bytes(data)
    swapped = bytearray(len(data))
    for i in range(item_bytes):
        swapped[i::item_bytes] = data[item_bytes - 1 - i :: item_bytes]
    return bytes(swapped)
