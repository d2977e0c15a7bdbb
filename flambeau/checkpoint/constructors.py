"""The only names a checkpoint may mention, and what each of them makes.

A pickle stream names classes and functions by module and name. Nothing is imported or looked up for them: the name
is a key of the table below, and the value is a function of this file that checks its arguments and makes a plain
value through the builder. Names outside the table are refused, known families of them with a reason of their own.

May not know: the opcodes, archives, tensors. Entry: find_constructor.

    find_constructor(reader, "torch", "Size").build(reader, ((2, 3),))
"""

from __future__ import annotations

import collections
import dataclasses
import struct
from collections.abc import Callable, Mapping
from typing import Protocol

from flambeau.checkpoint.records import (
    DAMAGED,
    HOSTILE,
    ITEM_BYTES,
    MAX_INT64,
    RESAVE,
    ArrayRecord,
    Builder,
    CheckpointError,
    StorageRecord,
    TensorRecord,
    element_end,
    swap_bytes,
)


class Reader(Protocol):
    """What a constructor may use of the reader that calls it."""

    builder: Builder
    states: list[object]
    dtypes: dict[str, object]

    def error(self, message: str) -> CheckpointError: ...
    def charge(self, count: int) -> None: ...
    def check_key(self, key: object) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Constructor:
    """A name that can be applied to arguments."""

    name: str
    build: Callable[[Reader, tuple], object]
    is_class: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class StorageType:
    """A storage class such as torch.FloatStorage; dtype None is the untyped one (bytes)."""

    name: str
    dtype: str | None

    @property
    def item_bytes(self) -> int:
        return 1 if self.dtype is None else ITEM_BYTES[self.dtype]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TypedStorage:
    """A storage as a persistent id names it: the bytes, their dtype, and the `count` elements from `start` that
    belong to it (legacy files have storages that are views of others)."""

    record: StorageRecord
    dtype: str | None
    start: int
    count: int

    @property
    def item_bytes(self) -> int:
        return 1 if self.dtype is None else ITEM_BYTES[self.dtype]


@dataclasses.dataclass(slots=True, eq=False)
class PendingDtype:
    """A NumPy dtype: `kind` such as "f4", then its byte order from the state that follows."""

    kind: str
    swapped: bool = False
    value: object = None

    def fill(self, reader: Reader, state: object) -> PendingDtype:
        if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise reader.error(f"a NumPy dtype needs its byte order. {DAMAGED}")
        if any(part is not None for part in state[2:5]):
            raise reader.error("a NumPy dtype must be one plain number, got a structured one. Save the fields apart.")
        self.swapped = state[1] == ">"
        return self


@dataclasses.dataclass(slots=True, eq=False)
class PendingArray:
    """A NumPy array whose contents follow in a BUILD opcode."""

    value: object = None

    def fill(self, reader: Reader, state: object) -> object:
        if type(state) is not tuple or len(state) != 5:
            raise reader.error(f"a NumPy array needs a state of five parts. {DAMAGED}")
        _, shape, dtype, fortran, data = state
        self.value = _array(reader, shape, dtype, fortran, data)
        return self.value


# NumPy's letters, with the element's size.
_NUMPY_KINDS = {
    "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128", "b1": "bool",
    "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
}  # fmt: skip

_STRUCT_CODES = {
    "f2": "<e", "f4": "<f", "f8": "<d", "b1": "<?", "i1": "<b", "i2": "<h", "i4": "<i", "i8": "<q",
    "u1": "<B", "u2": "<H", "u4": "<I", "u8": "<Q",
}  # fmt: skip

_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128", "BoolStorage": "bool",
    "ByteStorage": "uint8", "CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32", "LongStorage": "int64",
    "UntypedStorage": None,
}  # fmt: skip

_DTYPE_ALIASES = {"half": "float16", "float": "float32", "double": "float64", "cfloat": "complex64", "cdouble": "complex128",
                  "short": "int16", "int": "int32", "long": "int64"}  # fmt: skip

MAX_TENSOR_DIMENSIONS = 64


# ---------------------------------------------------------------------- tensors
def _count(reader: Reader, value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INT64:
        shown = value if type(value) is int and value.bit_length() <= 64 else type(value).__name__
        raise reader.error(f"{what} must be a non-negative 64-bit integer, got {shown}. {DAMAGED}")
    return value


def _counts(reader: Reader, values: object, what: str) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)):
        raise reader.error(f"{what} must be a tuple of integers, got {type(values).__name__}. {DAMAGED}")
    if len(values) > MAX_TENSOR_DIMENSIONS:
        raise reader.error(
            f"a tensor must have at most {MAX_TENSOR_DIMENSIONS} dimensions, got {len(values)}. {DAMAGED}"
        )
    return tuple(_count(reader, v, what) for v in values)


def _arguments(reader: Reader, name: str, arguments: tuple, least: int, most: int) -> tuple:
    if not least <= len(arguments) <= most:
        raise reader.error(f"{name} takes {least} to {most} arguments, got {len(arguments)}. {DAMAGED}")
    return arguments + (None,) * (most - len(arguments))


def _tensor_record(
    reader: Reader,
    storage: object,
    dtype: str | None,
    offset: object,
    size: object,
    stride: object,
    requires_grad: object,
    hooks: object,
    metadata: object,
) -> object:
    if not isinstance(storage, TypedStorage):
        raise reader.error(f"a tensor needs a storage, got {type(storage).__name__}. {DAMAGED}")
    dtype = dtype or storage.dtype
    if storage.start and dtype != storage.dtype:
        raise reader.error(f"a tensor over part of a storage must have the storage's dtype. {DAMAGED}")
    if dtype is None:
        raise reader.error(f"a tensor over an untyped storage must say its dtype. {DAMAGED}")
    shape = _counts(reader, size, "a tensor's size")
    strides = _counts(reader, stride, "a tensor's stride")
    if len(shape) != len(strides):
        raise reader.error(
            f"a tensor needs as many strides as sizes, got size {list(shape)} and stride {list(strides)}. {DAMAGED}"
        )
    offset = _count(reader, offset, "a tensor's storage offset")
    numel = 1
    for n in shape:
        numel *= n
    end = element_end(shape, strides, offset)
    held = storage.count if dtype == storage.dtype else storage.count * storage.item_bytes // ITEM_BYTES[dtype]
    if end > held or numel > MAX_INT64:
        raise reader.error(
            f"a tensor must lie within its storage, got size {list(shape)}, stride {list(strides)}, offset {offset} "
            f"over storage {storage.record.key!r} of {held} elements. {HOSTILE}"
        )
    if hooks:
        raise reader.error("a tensor must not carry backward hooks. Remove them before saving.")
    if metadata is None:
        metadata = {}
    if type(metadata) is not dict or not set(metadata) <= {"conj", "neg"}:
        raise reader.error("a tensor's metadata may only say conj and neg. " + RESAVE)
    conj, neg = bool(metadata.get("conj")), bool(metadata.get("neg"))
    return reader.builder.tensor(
        TensorRecord(dtype, shape, strides, storage.start + offset, storage.record, bool(requires_grad), conj, neg)
    )


def _rebuild_tensor(reader: Reader, arguments: tuple) -> object:
    storage, offset, size, stride = _arguments(reader, "_rebuild_tensor", arguments, 4, 4)
    return _tensor_record(reader, storage, None, offset, size, stride, False, None, None)


def _rebuild_tensor_v2(reader: Reader, arguments: tuple) -> object:
    storage, offset, size, stride, grad, hooks, metadata = _arguments(reader, "_rebuild_tensor_v2", arguments, 6, 7)
    return _tensor_record(reader, storage, None, offset, size, stride, grad, hooks, metadata)


def _rebuild_tensor_v3(reader: Reader, arguments: tuple) -> object:
    storage, offset, size, stride, grad, hooks, dtype, metadata = _arguments(
        reader, "_rebuild_tensor_v3", arguments, 7, 8
    )
    for name, value in reader.dtypes.items():
        if value is dtype:
            return _tensor_record(reader, storage, name, offset, size, stride, grad, hooks, metadata)
    raise reader.error(f"_rebuild_tensor_v3 needs a dtype, got {type(dtype).__name__}. {DAMAGED}")


def _attributes(reader: Reader, state: object) -> Mapping[str, object]:
    """The Python attributes saved with a tensor: a dict, or a pair of a dict and a dict of slots."""
    if type(state) is tuple and len(state) == 2 and all(part is None or type(part) is dict for part in state):
        state = {**(state[0] or {}), **(state[1] or {})}
    if state is None:
        return {}
    if type(state) is not dict or not all(isinstance(name, str) for name in state):
        raise reader.error(f"a tensor's attributes must be a dict with text keys, got {type(state).__name__}. {RESAVE}")
    reader.charge(len(state))
    reader.states.append(state)
    return state


def _parameter(
    reader: Reader, tensor: object, requires_grad: object, hooks: object, state: Mapping[str, object]
) -> object:
    if not isinstance(tensor, reader.builder.tensor_type):
        raise reader.error(f"a parameter must be made of a tensor, got {type(tensor).__name__}. {DAMAGED}")
    if hooks:
        raise reader.error("a parameter must not carry backward hooks. Remove them before saving.")
    return reader.builder.parameter(tensor, bool(requires_grad), state)


def _rebuild_parameter(reader: Reader, arguments: tuple) -> object:
    tensor, requires_grad, hooks = _arguments(reader, "_rebuild_parameter", arguments, 2, 3)
    return _parameter(reader, tensor, requires_grad, hooks, {})


def _rebuild_parameter_with_state(reader: Reader, arguments: tuple) -> object:
    tensor, requires_grad, hooks, state = _arguments(reader, "_rebuild_parameter_with_state", arguments, 4, 4)
    return _parameter(reader, tensor, requires_grad, hooks, _attributes(reader, state))


def _rebuild_from_type(reader: Reader, arguments: tuple) -> object:
    """Tensors with Python attributes: (function, type, arguments, state)."""
    function, type_, inner, state = _arguments(reader, "_rebuild_from_type_v2", arguments, 4, 4)
    if not isinstance(function, Constructor) or function.build not in _REBUILDS:
        raise reader.error(f"_rebuild_from_type_v2 must name one of the functions that rebuild tensors. {HOSTILE}")
    if type_ not in (_TENSOR, _PARAMETER):
        raise reader.error("_rebuild_from_type_v2 must make a torch.Tensor or a Parameter. " + RESAVE)
    if type(inner) is not tuple:
        raise reader.error(f"_rebuild_from_type_v2 needs a tuple of arguments. {DAMAGED}")
    return reader.builder.attributes(function.build(reader, inner), _attributes(reader, state))


_REBUILDS = (_rebuild_tensor, _rebuild_tensor_v2, _rebuild_tensor_v3, _rebuild_parameter, _rebuild_parameter_with_state)


# ---------------------------------------------------------------------- values of torch
def _size(reader: Reader, arguments: tuple) -> object:
    (sizes,) = _arguments(reader, "torch.Size", arguments, 1, 1)
    return reader.builder.size(_counts(reader, sizes, "torch.Size"))


def _device(reader: Reader, arguments: tuple) -> object:
    type_, index = _arguments(reader, "torch.device", arguments, 1, 2)
    if isinstance(type_, str) and ":" in type_ and index is None:
        type_, _, number = type_.partition(":")
        index = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else -1
    known = isinstance(type_, str) and type_.isidentifier() and len(type_) < 32
    if not known or not (index is None or (type(index) is int and 0 <= index < 1 << 16)):
        raise reader.error(f"torch.device needs a device type and an index. {DAMAGED}")
    return reader.builder.device(type_, index)


# ---------------------------------------------------------------------- Python's own
def _encode(reader: Reader, arguments: tuple) -> bytes:
    """How protocol 2 spells bytes: text in which every character is a byte."""
    text, encoding = _arguments(reader, "_codecs.encode", arguments, 1, 2)
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise reader.error(f"_codecs.encode must turn latin1 text into bytes. {HOSTILE}")
    reader.charge(len(text))
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        raise reader.error(f"_codecs.encode got text that is not latin1. {DAMAGED}") from None


def _make_bytes(reader: Reader, arguments: tuple) -> bytes:
    if arguments:
        return bytes(_raw(reader, "bytes", arguments))
    return b""


def _make_bytearray(reader: Reader, arguments: tuple) -> bytearray:
    return bytearray(_raw(reader, "bytearray", arguments)) if arguments else bytearray()


def _raw(reader: Reader, name: str, arguments: tuple) -> bytes:
    if len(arguments) == 2:
        return _encode(reader, arguments)
    if len(arguments) != 1 or not isinstance(arguments[0], (bytes, bytearray)):  # an integer would allocate that much
        raise reader.error(f"{name} must be given its bytes. {HOSTILE}")
    reader.charge(len(arguments[0]))
    return arguments[0]


def _items(reader: Reader, name: str, arguments: tuple) -> list[object] | tuple:
    (items,) = _arguments(reader, name, arguments or ([],), 1, 1)
    if not isinstance(items, (list, tuple)):
        raise reader.error(f"{name} needs a list of items, got {type(items).__name__}. {DAMAGED}")
    reader.charge(len(items))
    return items


def _make_set(reader: Reader, arguments: tuple) -> set:
    items = _items(reader, "set", arguments)
    for item in items:
        reader.check_key(item)
    return set(items)


def _make_frozenset(reader: Reader, arguments: tuple) -> frozenset:
    return frozenset(_make_set(reader, arguments))


def _make_complex(reader: Reader, arguments: tuple) -> complex:
    if len(arguments) != 2 or not all(type(part) in (int, float) for part in arguments):
        raise reader.error(f"complex needs two numbers. {DAMAGED}")
    try:
        return complex(*arguments)
    except OverflowError:
        raise reader.error(f"complex needs numbers within a double's range. {DAMAGED}") from None


def _make_slice(reader: Reader, arguments: tuple) -> slice:
    if not 1 <= len(arguments) <= 3 or not all(part is None or type(part) is int for part in arguments):
        raise reader.error(f"slice needs one to three integers. {DAMAGED}")
    return slice(*arguments)


def _make_range(reader: Reader, arguments: tuple) -> range:
    if not 1 <= len(arguments) <= 3 or not all(type(part) is int for part in arguments) or arguments[2:] == (0,):
        raise reader.error(f"range needs one to three integers and a step that is not 0. {DAMAGED}")
    return range(*arguments)


def _make_ordered_dict(reader: Reader, arguments: tuple) -> collections.OrderedDict:
    made: collections.OrderedDict = collections.OrderedDict()
    for pair in _items(reader, "OrderedDict", arguments):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise reader.error(f"OrderedDict needs pairs of key and value. {DAMAGED}")
        reader.check_key(pair[0])
        made[pair[0]] = pair[1]
    return made


def _make_counter(reader: Reader, arguments: tuple) -> collections.Counter:
    (counts,) = _arguments(reader, "Counter", arguments or ({},), 1, 1)
    if type(counts) is not dict:
        raise reader.error(f"Counter needs a dict of counts. {DAMAGED}")
    reader.charge(len(counts))
    return collections.Counter(counts)


# ---------------------------------------------------------------------- NumPy
_PLAIN_FIRST = "Convert text and objects to plain Python values before saving."


def _numpy_dtype(reader: Reader, arguments: tuple) -> PendingDtype:
    kind = arguments[0] if arguments else None
    swapped = False
    if isinstance(kind, str) and kind[:1] in ("<", ">", "|", "="):
        swapped, kind = kind[0] == ">", kind[1:]
    if not isinstance(kind, str) or kind not in _NUMPY_KINDS:
        shown = kind if isinstance(kind, str) and len(kind) < 20 else type(kind).__name__
        raise reader.error(f"a NumPy dtype must be a number or bool, got {shown}. {_PLAIN_FIRST}")
    return PendingDtype(kind, swapped)


def _native(dtype: PendingDtype, data: bytes) -> bytes:
    if not dtype.swapped:
        return bytes(data)
    size = int(dtype.kind[1:])
    return swap_bytes(memoryview(data), size // 2 if dtype.kind[0] == "c" else size)


def _array_bytes(reader: Reader, data: object) -> bytes:
    if isinstance(data, str):  # Python 2 wrote bytes as text
        return _encode(reader, (data, "latin1"))
    if not isinstance(data, (bytes, bytearray)):
        raise reader.error(f"a NumPy value must be given as bytes, got {type(data).__name__}. {_PLAIN_FIRST}")
    reader.charge(len(data))
    return bytes(data)


def _array(reader: Reader, shape: object, dtype: object, fortran: object, data: object) -> object:
    if not isinstance(dtype, PendingDtype):
        raise reader.error(f"a NumPy array needs a dtype. {DAMAGED}")
    sizes = _counts(reader, shape, "a NumPy array's shape")
    raw = _array_bytes(reader, data)
    needed = int(dtype.kind[1:])
    for size in sizes:
        needed *= size
    if needed != len(raw):
        raise reader.error(f"a NumPy array of shape {list(sizes)} needs {needed} bytes, got {len(raw)}. {DAMAGED}")
    return reader.builder.array(ArrayRecord(_NUMPY_KINDS[dtype.kind], sizes, bool(fortran), _native(dtype, raw)))


def _numpy_reconstruct(reader: Reader, arguments: tuple) -> PendingArray:
    type_, _, _ = _arguments(reader, "numpy _reconstruct", arguments, 3, 3)
    if type_ is not _NDARRAY:
        raise reader.error("numpy _reconstruct must make an ndarray. " + RESAVE)
    return PendingArray()


def _numpy_frombuffer(reader: Reader, arguments: tuple) -> object:
    data, dtype, shape, order = _arguments(reader, "numpy _frombuffer", arguments, 4, 4)
    return _array(reader, shape, dtype, order == "F", data)


def _numpy_scalar(reader: Reader, arguments: tuple) -> object:
    """A NumPy scalar, given back as Python's number."""
    dtype, data = _arguments(reader, "numpy scalar", arguments, 2, 2)
    if not isinstance(dtype, PendingDtype):
        raise reader.error(f"a NumPy scalar needs a dtype. {DAMAGED}")
    raw = _array_bytes(reader, data)
    if len(raw) != int(dtype.kind[1:]):
        raise reader.error(
            f"a NumPy scalar of kind {dtype.kind} needs {dtype.kind[1:]} bytes, got {len(raw)}. {DAMAGED}"
        )
    native = _native(dtype, raw)
    if dtype.kind[0] == "c":
        return complex(*struct.unpack("<2f" if dtype.kind == "c8" else "<2d", native))
    return struct.unpack(_STRUCT_CODES[dtype.kind], native)[0]


def _applied_nowhere(reader: Reader, arguments: tuple) -> object:
    raise reader.error(f"a class that only names a type is applied. {HOSTILE}")


# ---------------------------------------------------------------------- the table
_TENSOR = Constructor("torch.Tensor", _applied_nowhere)
_PARAMETER = Constructor("torch.nn.parameter.Parameter", _applied_nowhere)
_NDARRAY = Constructor("numpy.ndarray", _applied_nowhere)

_FUNCTIONS: dict[str, Callable[[Reader, tuple], object]] = {
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter_with_state,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    "_codecs.encode": _encode,
    "numpy.core.multiarray.scalar": _numpy_scalar,
    "numpy._core.multiarray.scalar": _numpy_scalar,
    "numpy.core.multiarray._reconstruct": _numpy_reconstruct,
    "numpy._core.multiarray._reconstruct": _numpy_reconstruct,
    "numpy.core.numeric._frombuffer": _numpy_frombuffer,
    "numpy._core.numeric._frombuffer": _numpy_frombuffer,
}

_CLASSES: dict[str, Callable[[Reader, tuple], object]] = {
    "collections.OrderedDict": _make_ordered_dict,
    "collections.Counter": _make_counter,
    "torch.Size": _size,
    "torch.device": _device,
    "builtins.set": _make_set,
    "builtins.frozenset": _make_frozenset,
    "builtins.complex": _make_complex,
    "builtins.slice": _make_slice,
    "builtins.range": _make_range,
    "builtins.xrange": _make_range,
    "builtins.bytes": _make_bytes,
    "builtins.bytearray": _make_bytearray,
    "numpy.dtype": _numpy_dtype,
}

_NAMES: dict[str, Constructor] = {
    **{name: Constructor(name, build) for name, build in _FUNCTIONS.items()},
    **{name: Constructor(name, build, is_class=True) for name, build in _CLASSES.items()},
    "torch.Tensor": _TENSOR,
    "torch.nn.parameter.Parameter": _PARAMETER,
    "numpy.ndarray": _NDARRAY,
}

# Families of names that PyTorch may read and we do not, each with what to do about it.
_REFUSED: dict[str, str] = {
    "torch._utils._rebuild_qtensor": "quantised tensors are not read. Save tensor.dequantize(), or integers and scales apart.",
    "torch._utils._rebuild_sparse_tensor": "sparse tensors are not read. Save tensor.to_dense(), or the indices and values apart.",
    "torch._utils._rebuild_nested_tensor": "nested tensors are not read. Save the list that tensor.unbind() gives.",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor on the meta device has no data. Save tensors that hold values.",
    "torch._utils._rebuild_wrapper_subclass": "tensor subclasses are not read. Save plain tensors.",
    "torch._utils._rebuild_device_tensor_from_numpy": "tensors of this device are not read. Save tensor.cpu().",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "tensors of this device are not read. Save tensor.cpu().",
    "torch.storage._load_from_bytes": "a pickle inside the pickle is not read. Save with torch.save rather than pickle.dump.",
}


def find_constructor(reader: Reader, module: str, name: str) -> object:
    """The value of a global: a constructor, a storage type or a dtype."""
    if module == "__builtin__":  # Python 2's name, which protocol 2 keeps
        module = "builtins"
    full = f"{module}.{name}"
    found = _NAMES.get(full)
    if found is not None:
        return found
    if module in ("torch", "torch.cuda", "torch.storage") and name in _STORAGES:
        return StorageType(full, _STORAGES[name])
    if module == "torch":
        dtype = _DTYPE_ALIASES.get(name, name)
        if dtype in ITEM_BYTES:
            if dtype not in reader.dtypes:
                reader.dtypes[dtype] = reader.builder.dtype(dtype)
            return reader.dtypes[dtype]
        if name.startswith(("QInt", "QUInt", "qint", "quint")):
            raise reader.error(f"{full}: {_REFUSED['torch._utils._rebuild_qtensor']}")
    if full in _REFUSED:
        raise reader.error(f"{full}: {_REFUSED[full]}")
    shown = full if len(full) <= 120 else full[:117] + "..."
    raise reader.error(f"the file names {shown!r}, which is not data, and Flambeau runs nothing from a file. {RESAVE}")
