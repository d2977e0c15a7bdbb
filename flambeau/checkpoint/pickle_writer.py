"""Writes plain data and tensors as the pickle stream (protocol 2) of a PyTorch checkpoint.

It writes what `pickle_reader.py` and torch.load(weights_only=True) both read: None, bool, int, float, complex, str,
bytes, bytearray, list, tuple, dict, OrderedDict, set, and the things a describer recognises (tensors, parameters,
dtypes, devices, shapes). Anything else is refused with the key path where it was found.

May not know: Tensor (a describer is given), archives. Entry: PickleWriter(describe, placements).write(value)

    PickleWriter(lambda value: None).write({"epoch": 3})
"""

from __future__ import annotations

import collections
import dataclasses
import struct
import sys
from collections.abc import Callable, Mapping

from flambeau.checkpoint.layout import Placement
from flambeau.checkpoint.pickle_reader import MAX_DEPTH, MAX_KEY_PARTS
from flambeau.checkpoint.records import ITEM_BYTES, MAX_INT64, DeviceRecord, DtypeRecord, SizeRecord, TensorRecord

STORAGE_NAMES = {
    "float32": "FloatStorage", "float64": "DoubleStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage",
    "complex64": "ComplexFloatStorage", "complex128": "ComplexDoubleStorage", "bool": "BoolStorage", "uint8": "ByteStorage",
    "int8": "CharStorage", "int16": "ShortStorage", "int32": "IntStorage", "int64": "LongStorage",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TensorEntry:
    """A tensor to write. `attributes` are Python attributes that travel with it."""

    record: TensorRecord
    parameter: bool = False
    attributes: Mapping[str, object] | None = None


Described = TensorEntry | DtypeRecord | DeviceRecord | SizeRecord | None
Describer = Callable[[object], Described]


class PickleWriter:
    """One stream. Without `placements` the storages are not known yet, and the bytes are good for nothing but a survey.

    `describe` raises TypeError("must ...") for what it knows but cannot give.
    """

    def __init__(self, describe: Describer, placements: Mapping[int, Placement] | None = None):
        self._describe = describe
        self.placements = placements
        self.tensors: list[TensorEntry] = []
        self.out = bytearray()
        self.memo: dict[object, int] = {}
        self.alive: list[object] = []  # what the memo's identities belong to
        self.described: dict[int, Described] = {}
        self.active: list[int] = []  # identities of the containers that are being written
        self.path: list[str] = []

    def write(self, value: object) -> bytes:
        self.out += b"\x80\x02"
        self._value(value)
        self.out += b"."
        return bytes(self.out)

    def describe(self, value: object) -> Described:
        """What `value` is; the same answer for the same object, however often it is asked."""
        key = id(value)
        if key not in self.described:
            self.described[key] = self._describe(value)
            self.alive.append(value)
        return self.described[key]

    def _where(self) -> str:
        return "the object" + "".join(self.path)

    # ------------------------------------------------------------------ values
    def _value(self, value: object) -> None:
        known = _SCALARS.get(type(value))
        if known is not None:
            known(self, value)
        elif self._recall(value):
            pass
        elif type(value) in _CONTAINERS:
            self._container(value)
        else:
            self._described(value)

    def _described(self, value: object) -> None:
        try:
            described = self.describe(value)
        except TypeError as error:
            raise TypeError(f"save: {self._where()} {error}") from None
        match described:
            case TensorEntry():
                self.tensors.append(described)
                self._tensor(described)
                self._remember(value)
            case DtypeRecord(name=name):
                self._global("torch", name)
            case DeviceRecord(type=type_, index=index):
                self._apply("torch", "device", (type_,) if index is None else (type_, index))
            case SizeRecord():
                self._apply("torch", "Size", (tuple(int(size) for size in described),))
            case _:
                self._foreign(value)

    def _foreign(self, value: object) -> None:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and type(value.item()) in _SCALARS:
            self._value(value.item())
            return
        advice = "Save tensors, numbers, text, and dicts, lists, tuples and sets of them."
        if numpy is not None and isinstance(value, numpy.ndarray):
            advice = "Save flambeau.from_numpy(array)."
        elif hasattr(value, "state_dict"):
            advice = "Save its state_dict() instead."
        elif isinstance(value, (dict, list, tuple, set)):
            advice = "Convert it to a plain dict, list, tuple or set."
        kind = type(value)
        raise TypeError(f"save: {self._where()} must be data, got {kind.__module__}.{kind.__qualname__}. {advice}")

    def _container(self, value: object) -> None:
        if len(self.active) >= MAX_DEPTH:
            raise TypeError(
                f"save: {self._where()[:200]} is nested more than {MAX_DEPTH} deep. Flatten it before saving."
            )
        self.active.append(id(value))
        _CONTAINERS[type(value)](self, value)
        self.active.pop()

    def _child(self, key: object, value: object) -> None:
        self.path.append(f"[{key!r:.80}]")
        self._value(value)
        self.path.pop()

    # ------------------------------------------------------------------ memo
    def _recall(self, value: object) -> bool:
        """Refer to an object that was written before, so that shared objects stay shared."""
        index = self.memo.get(id(value))
        if index is None:
            return False
        if id(value) in self.active:
            raise TypeError(f"save: {self._where()} must not contain itself. Break the cycle before saving.")
        self._index(b"hj", index)
        return True

    def _remember(self, value: object) -> None:
        self.alive.append(value)
        self._store(id(value))

    def _store(self, key: object) -> None:
        index = len(self.memo)
        self.memo[key] = index
        self._index(b"qr", index)

    def _index(self, codes: bytes, index: int) -> None:
        self.out += bytes((codes[0], index)) if index < 256 else codes[1:] + struct.pack("<I", index)

    # ------------------------------------------------------------------ constructors
    def _global(self, module: str, name: str) -> None:
        index = self.memo.get((module, name))
        if index is not None:
            self._index(b"hj", index)
            return
        self.out += f"c{module}\n{name}\n".encode("ascii")
        self._store((module, name))

    def _apply(self, module: str, name: str, arguments: tuple) -> None:
        self._global(module, name)
        self._plain_tuple(arguments)
        self.out += b"R"

    def _plain_tuple(self, items: tuple) -> None:
        """A tuple of scalars and tuples that is written in place."""
        self.out += b"("
        for item in items:
            if type(item) is tuple:
                self._plain_tuple(item)
            else:
                _SCALARS[type(item)](self, item)
        self.out += b"t"

    def _tensor(self, entry: TensorEntry) -> None:
        record, attributes = entry.record, dict(entry.attributes or {})
        if entry.parameter:
            self._global("torch._utils", "_rebuild_parameter_with_state" if attributes else "_rebuild_parameter")
            self.out += b"("
            self._plain_tensor(record, False, b"R")
            self._boolean(record.requires_grad)
            self._apply("collections", "OrderedDict", ())
            if attributes:
                self._child("attributes", attributes)
            self.out += b"tR"
        elif attributes:
            self._global("torch._tensor", "_rebuild_from_type_v2")
            self.out += b"("
            self._plain_tensor(record, record.requires_grad, b"")
            self._child("attributes", attributes)
            self.out += b"tR"
        else:
            self._plain_tensor(record, record.requires_grad, b"R")

    def _plain_tensor(self, record: TensorRecord, requires_grad: bool, end: bytes) -> None:
        """Function and arguments: applied where `end` is R, else left beside each other with the type between them."""
        if self.placements is None:  # a survey
            self.out += b"N"
            return
        place = self.placements[id(record)]
        storage = place.storage
        # A storage that is seen through several dtypes, or one without a storage class, goes untyped.
        name = STORAGE_NAMES.get(storage.dtype or "")
        self._global("torch._utils", "_rebuild_tensor_v2" if name else "_rebuild_tensor_v3")
        if not end:
            self._global("torch", "Tensor")
        self.out += b"(("
        self._text("storage")
        self._global("torch" if name else "torch.storage", name or "UntypedStorage")
        self._text(storage.key)
        self._text("cpu")
        self._integer(storage.nbytes // ITEM_BYTES[storage.dtype] if name else storage.nbytes)
        self.out += b"tQ"
        self._integer(place.offset)
        self._plain_tuple(record.shape)
        self._plain_tuple(place.strides)
        self._boolean(requires_grad)
        self._apply("collections", "OrderedDict", ())
        if not name:
            self._global("torch", record.dtype)
        bits = {bit: True for bit in ("conj", "neg") if getattr(record, bit)}
        if bits:
            self._dict_items(b"}", bits)
        self.out += b"t" + end

    # ------------------------------------------------------------------ scalars
    def _none(self, value: None) -> None:
        self.out += b"N"

    def _boolean(self, value: bool) -> None:
        self.out += b"\x88" if value else b"\x89"

    def _integer(self, value: int) -> None:
        if 0 <= value < 256:
            self.out += b"K" + struct.pack("<B", value)
        elif 0 <= value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        elif -(2**31) <= value < 2**31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            count = value.bit_length() // 8 + 1
            if count > 255:
                raise TypeError(
                    f"save: {self._where()} must be an integer of at most 255 bytes, got {count}. Save it as text."
                )
            self.out += b"\x8a" + struct.pack("<B", count) + value.to_bytes(count, "little", signed=True)

    def _float(self, value: float) -> None:
        self.out += b"G" + struct.pack(">d", value)

    def _complex(self, value: complex) -> None:
        self._apply("__builtin__", "complex", (value.real, value.imag))

    def _text(self, value: str) -> None:
        index = self.memo.get(value)
        if index is not None:
            self._index(b"hj", index)
            return
        encoded = value.encode("utf-8", "surrogatepass")
        if len(encoded) > 0xFFFFFFFF:
            raise TypeError(f"save: {self._where()} must be text of less than 4 GiB. Save it as a uint8 tensor.")
        self.out += b"X" + struct.pack("<I", len(encoded)) + encoded
        self._store(value)

    def _bytes(self, value: bytes) -> None:
        """Protocol 2 has no bytes: they are text in which every character is one."""
        self._apply("_codecs", "encode", (value.decode("latin1"), "latin1"))

    def _byte_array(self, value: bytearray) -> None:
        self._global("__builtin__", "bytearray")
        self.out += b"("
        self._bytes(bytes(value))
        self.out += b"tR"

    # ------------------------------------------------------------------ containers
    def _list(self, value: list) -> None:
        self.out += b"]"
        self._remember(value)
        self.out += b"("
        for i, item in enumerate(value):
            self._child(i, item)
        self.out += b"e"

    def _tuple(self, value: tuple) -> None:
        self.out += b"("
        for i, item in enumerate(value):
            self._child(i, item)
        self.out += b"t"
        self._remember(value)

    def _set(self, value: set) -> None:
        self._global("__builtin__", "set")
        self.out += b"(]("
        for item in sorted(value, key=repr):  # a fixed order, so that equal values are equal files
            self._key(item)
        self.out += b"etR"
        self._remember(value)

    def _dict(self, value: dict) -> None:
        self._dict_items(b"}", value)

    def _ordered_dict(self, value: collections.OrderedDict) -> None:
        self._apply("collections", "OrderedDict", ())
        self._dict_items(b"", value)
        attributes = vars(value)
        if attributes:  # a module's state_dict carries its _metadata so
            self._child("attributes", dict(attributes))
            self.out += b"b"

    def _dict_items(self, start: bytes, value: Mapping[object, object]) -> None:
        self.out += start
        self._remember(value)
        self.out += b"("
        for key, item in value.items():
            self._key(key)
            self._child(key, item)
        self.out += b"u"

    def _key(self, key: object) -> None:
        """A dict key or set item, within what the reader accepts."""
        parts = [key]
        seen = 0
        while parts:
            part = parts.pop()
            seen += 1
            if type(part) is tuple and seen <= MAX_KEY_PARTS:
                parts += part
            elif seen > MAX_KEY_PARTS or (type(part) is int and not -MAX_INT64 - 1 <= part <= MAX_INT64):
                raise TypeError(
                    f"save: a key or set item of {self._where()} must have at most {MAX_KEY_PARTS} parts and 64-bit integers. "
                    "Convert it to text."
                )
            elif part is not None and type(part) not in (str, int, float, bool, bytes):
                kind = type(part)
                raise TypeError(
                    f"save: a key or set item of {self._where()} must be text, a number or a tuple of such, "
                    f"got {kind.__module__}.{kind.__qualname__}. Convert it, for instance with str()."
                )
        self._value(key)


_SCALARS: dict[type, Callable[[PickleWriter, object], None]] = {
    type(None): PickleWriter._none,
    bool: PickleWriter._boolean,
    int: PickleWriter._integer,
    float: PickleWriter._float,
    complex: PickleWriter._complex,
    str: PickleWriter._text,
    bytes: PickleWriter._bytes,
    bytearray: PickleWriter._byte_array,
}
_CONTAINERS: dict[type, Callable[[PickleWriter, object], None]] = {
    list: PickleWriter._list,
    tuple: PickleWriter._tuple,
    set: PickleWriter._set,
    dict: PickleWriter._dict,
    collections.OrderedDict: PickleWriter._ordered_dict,
}
