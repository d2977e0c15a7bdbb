"""`load` and `save`: PyTorch's checkpoint files as tensors, both ways, without running anything from a file.

The formats are read and written as records by `flambeau/checkpoint/`; this module turns records into tensors and back.
Tensors that share a storage in the file share one in memory, and the other way round.

May not know: file formats. Entry: `load`, `save`; for other formats `TensorBuilder`, `StorageTable`, `opened`.

    flambeau.save(model.state_dict(), "model.pt")
    model.load_state_dict(flambeau.load("model.pt"))
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap as mapping
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from flambeau._tensor import ForeignStorage, Tensor, empty, new_tensor
from flambeau.base.errors import UnsupportedError
from flambeau.base.lazy import np
from flambeau.checkpoint import torch_format
from flambeau.checkpoint.atomic import atomic_file
from flambeau.checkpoint.pickle_writer import Described, TensorEntry
from flambeau.checkpoint.records import (
    DAMAGED,
    ArrayRecord,
    Builder,
    CheckpointError,
    DeviceRecord,
    DtypeRecord,
    SizeRecord,
    StorageRecord,
    TensorRecord,
)
from flambeau.core.device import CPU, device
from flambeau.core.dtype import BY_NAME, dtype, uint8
from flambeau.core.spec import Size, Spec
from flambeau.engine import recording
from flambeau.ir.op import REGISTRY
from flambeau.nn.parameter import Buffer, Parameter, is_lazy

__all__ = ["CheckpointError", "load", "save"]

File = str | os.PathLike[str] | BinaryIO
MapLocation = str | device | Mapping[str, str | device] | Callable[[Any, str], Any] | None


# ---------------------------------------------------------------------- the two functions
def load(
    f: File,
    map_location: MapLocation = None,
    pickle_module: None = None,
    *,
    weights_only: bool = True,
    mmap: bool | None = None,
) -> Any:
    """Read a file that `save` or `torch.save` wrote (zip format, or the stream from before PyTorch 1.6).

    f: a path, or a binary file that is read from where it stands; a stream is left after its last byte.
    map_location: where tensors go: a device for all, a dict from saved to wanted devices, or a function (storage, location)
    that returns the storage (stay on the CPU), a device, or None (where it was saved).
    mmap: tensors lie in the file's own pages, copied when first written to; the file must not change meanwhile. Needs a path.

    Numbers, text, containers, tensors, parameters, dtypes, devices and shapes are read; a device that Flambeau does not have
    becomes its name, a NumPy scalar a Python number. Nothing is executed: anything else raises.

    Raises: CheckpointError (a RuntimeError) for a file that is damaged, does not match its checksums, or holds more than data;
    UnsupportedError for weights_only=False.
    Source: torch.load.
    """
    if not weights_only or pickle_module is not None:
        raise UnsupportedError(
            "load: weights_only must be True: Flambeau never runs pickle code, and has no other way to make what a file names. "
            "Load the file in PyTorch, and save a dict of tensors and plain values."
        )
    where = Locations(map_location)
    if isinstance(f, str | os.PathLike):
        with opened(f, shared=bool(mmap)) as data:
            return torch_format.read(data, TensorBuilder(where, shared=bool(mmap)))[0]
    if mmap:
        raise ValueError(f"load: mmap=True needs a path, got {type(f).__name__}. Pass the file's name.")
    if not callable(getattr(f, "read", None)):
        raise TypeError(f"load: f must be a path or a binary file, got {type(f).__name__}.")
    return _load_stream(f, TensorBuilder(where, shared=False))


def _load_stream(f: BinaryIO, builder: TensorBuilder) -> Any:
    data = f.read()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(
            f"load: f must be a binary file, got one that gives {type(data).__name__}. Open it with mode 'rb'."
        )
    value, used = torch_format.read(data, builder)
    if used < len(data) and f.seekable():
        f.seek(used - len(data), io.SEEK_CUR)
    return value


def save(obj: Any, f: File) -> None:
    """Write tensors and plain data in PyTorch's zip format; `torch.load(f, weights_only=True)` reads it.

    obj: tensors, parameters, numbers, text, bytes, None, dtypes, devices, shapes, and dicts, OrderedDicts, lists, tuples and sets of
    them. Tensors that share memory share it in the file too, and of that memory only what they reach is written.

    f: a path (replaced whole once everything is on disk, or not at all) or a binary file.

    Raises: TypeError, naming the key path, for anything else in `obj`.
    Determinism: equal values give equal files. Source: torch.save.
    """
    recording.refuse_values("save")
    describe = TensorDescriber()
    if isinstance(f, str | os.PathLike):
        with atomic_file(f) as stream:
            torch_format.write(obj, stream, describe)
        return
    if not callable(getattr(f, "write", None)):
        raise TypeError(f"save: f must be a path or a binary file, got {type(f).__name__}.")
    torch_format.write(obj, f, describe)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], *, shared: bool) -> Iterator[memoryview]:
    """The bytes of a file, mapped. `shared`: the pages are private copies on writing, and outlive the block with what uses them."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        pages = mapping.mmap(file.fileno(), 0, access=mapping.ACCESS_COPY if shared else mapping.ACCESS_READ)
    yield memoryview(pages)


# ---------------------------------------------------------------------- records to tensors
class Locations:
    """Where a storage goes, by `map_location`."""

    def __init__(self, map_location: MapLocation):
        self.map_location = map_location

    def of(self, record: StorageRecord) -> device:
        wanted = self.map_location
        if wanted is None:
            return self._saved(record.location)
        if isinstance(wanted, str | device):
            return self._wanted(wanted)
        if isinstance(wanted, Mapping):
            found = wanted.get(record.location)
            return self._saved(record.location) if found is None else self._wanted(found)
        if not callable(wanted):
            raise TypeError(f"load: map_location must be a device, a dict or a function, got {type(wanted).__name__}.")
        found = wanted(record, record.location)
        if found is None:
            return self._saved(record.location)
        return CPU if found is record else self._wanted(found)

    @staticmethod
    def _wanted(name: Any) -> device:
        if not isinstance(name, str | device):
            raise TypeError(f"load: map_location must give a device or the storage itself, got {type(name).__name__}.")
        found = device(name)
        if found.type == "meta":
            raise UnsupportedError("load: map_location cannot be meta: what is read has values. Use 'cpu'.")
        return found

    @staticmethod
    def _saved(name: str) -> device:
        try:
            return Locations._wanted(name)
        except RuntimeError:
            raise CheckpointError(
                f"load: the file's tensors were saved on {name[:60]!r}, which Flambeau does not have. Pass map_location='cpu'."
            ) from None


class TensorBuilder(Builder):
    """Makes tensors. `shared`: on the file's own (writable) bytes where these are aligned, else on memory of their own."""

    tensor_type = Tensor

    def __init__(self, locations: Locations | None = None, *, shared: bool):
        self.locations = locations or Locations("cpu")
        self.shared = shared
        self.storages: dict[int, tuple[StorageRecord, Any, device]] = {}

    def tensor(self, record: TensorRecord) -> Tensor:
        type_ = _dtype_of(record.dtype)
        storage, where = self._storage(record.storage, type_)
        t = new_tensor(
            Spec.get(record.shape, record.strides, type_, where), storage.ptr + record.offset * type_.itemsize, storage
        )
        if record.conj:
            t = REGISTRY["conj"](t)
        if record.neg:
            t = REGISTRY["neg"](t)
        t.needs_grad = record.requires_grad and type_.is_inexact
        return t

    def _storage(self, record: StorageRecord, type_: dtype) -> tuple[Any, device]:
        found = self.storages.get(id(record))
        if found is None:
            if type_.name == "bool" and bytes(record.data).translate(None, b"\0\1"):
                raise CheckpointError(f"load: storage {record.key!r} of bools must hold zeros and ones. {DAMAGED}")
            where = self.locations.of(record)
            storage = self._shared(record, type_) if self.shared and where is CPU else None
            if storage is None:
                storage = self._copied(record, where)
            found = self.storages[id(record)] = (record, storage, where)
        return found[1], found[2]

    @staticmethod
    def _shared(record: StorageRecord, type_: dtype) -> ForeignStorage | None:
        if not record.nbytes or record.data.readonly:
            return None
        address = ctypes.addressof(ctypes.c_char.from_buffer(record.data))
        return None if address % type_.itemsize else ForeignStorage(address, record.data, record.nbytes)

    @staticmethod
    def _copied(record: StorageRecord, where: device) -> Any:
        whole = empty(Spec.of((record.nbytes,), uint8))
        memory(whole.ptr, record.nbytes)[:] = record.data
        moved = whole if where is CPU else whole.to(where)
        if moved.device is not where:
            raise UnsupportedError(f"load: tensors cannot be moved to {where}. Pass map_location='cpu'.")
        return moved.storage

    def parameter(self, tensor: object, requires_grad: bool, state: Mapping[str, object]) -> Parameter:
        made = Parameter(tensor.detach(), requires_grad=requires_grad and tensor.dtype.is_inexact)
        return self.attributes(made, state)

    def attributes(self, tensor: object, state: Mapping[str, object]) -> object:
        for name, value in state.items():
            if not name.isidentifier() or name.startswith("_") or hasattr(type(tensor), name):
                raise CheckpointError(
                    f"load: {name[:60]!r} cannot be an attribute of a tensor. Delete it before saving."
                )
            vars(tensor)[name] = value
        return tensor

    def array(self, record: ArrayRecord) -> Any:
        return (
            np.frombuffer(record.data, record.dtype)
            .reshape(record.shape, order="F" if record.fortran else "C")
            .copy(order="K")
        )

    def dtype(self, name: str) -> dtype:
        return _dtype_of(name)

    def device(self, type_: str, index: int | None) -> device | str:
        name = type_ if index is None else f"{type_}:{index}"
        return device(name) if type_ in device.TYPES else name

    def size(self, sizes: tuple[int, ...]) -> Size:
        return Size(sizes)


def _dtype_of(name: str) -> dtype:
    found = BY_NAME.get(name)
    if found is None:
        raise CheckpointError(
            f"load: the file holds dtype {name}, which Flambeau does not have. Save it as one of {', '.join(BY_NAME)}."
        )
    return found


def memory(address: int, count: int) -> memoryview:
    """The bytes at an address. The caller keeps them alive."""
    return memoryview((ctypes.c_char * count).from_address(address)).cast("B")


# ---------------------------------------------------------------------- tensors to records
class TensorStorage(StorageRecord):
    """The memory behind tensors that are being saved: as far as the furthest of them reaches. Read once all are known."""

    __slots__ = ("_bytes", "owner", "where")

    def __init__(self, owner: Any, where: device):
        self.key, self.location, self.nbytes = str(id(owner)), str(where), 0
        self.owner, self.where = owner, where
        self._bytes: memoryview | None = None

    @property
    def data(self) -> memoryview:
        if self._bytes is None:
            if self.where is CPU:
                self._bytes = memory(self.owner.ptr, self.nbytes)
            else:
                here = new_tensor(Spec.of((self.nbytes,), uint8, self.where), self.owner.ptr, self.owner).cpu()
                self._bytes = memoryview(bytes(memory(here.ptr, self.nbytes)))
        return self._bytes


class TensorDescriber:
    """Says what tensors, dtypes, devices and shapes are; one storage record for each storage.

    Raises: TypeError with what must hold, for the caller to put the place before it.
    """

    def __init__(self) -> None:
        self.storages: dict[int, TensorStorage] = {}

    def __call__(self, value: object) -> Described:
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, dtype):
            return DtypeRecord(value.name)
        if isinstance(value, device):
            return DeviceRecord(value.type, value.index)
        return SizeRecord(value) if isinstance(value, Size) else None

    def tensor(self, value: Tensor) -> TensorEntry:
        if type(value) not in (Tensor, Parameter, Buffer):
            advice = "Run the module once first." if is_lazy(value) else "Save tensor.as_subclass(Tensor)."
            raise TypeError(f"must be a plain tensor, parameter or buffer, got {type(value).__name__}. {advice}")
        if value.ptr is None:
            raise TypeError(
                "must hold values, got a tensor of a trace or of the meta device. Save outside of the traced function."
            )
        spec, owner = value.spec, value.storage
        storage = self.storages.get(id(owner))
        if storage is None:
            storage = self.storages[id(owner)] = TensorStorage(owner, spec.device)
        record = TensorRecord(
            spec.dtype.name, spec.shape, spec.strides, value.storage_offset(), storage, value.requires_grad
        )
        storage.nbytes = max(storage.nbytes, record.end * spec.dtype.itemsize if spec.numel else 0)
        attributes = {name: item for name, item in vars(value).items() if not name.startswith("_")}
        return TensorEntry(record, isinstance(value, Parameter), attributes)
