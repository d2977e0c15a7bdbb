"""The storages of one PyTorch file: resolves the persistent ids that its pickle stream uses for them.

A persistent id is ("storage", type, key, location, numel), with a sixth part in legacy files. The declared size must
be exactly the size of the bytes the file holds under that key.

May not know: how those bytes are found (a function is given), tensors. Entry: StorageTable(...).resolve
"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.checkpoint.constructors import StorageType, TypedStorage
from flambeau.checkpoint.records import (
    DAMAGED,
    HOSTILE,
    MAX_INT64,
    SWAP_BYTES,
    CheckpointError,
    StorageRecord,
    swap_bytes,
)

MAX_NAME = 256


class StorageTable:
    """`fetch(key, nbytes)` gives the bytes of a storage and raises when the file holds another number of them.

    Persistent ids come from a pickle stream; errors are made by `error`, which knows the place in it.
    """

    def __init__(self, fetch: Callable[[str, int], memoryview], *, swapped: bool = False):
        self.fetch = fetch
        self.swapped = swapped
        self.error: Callable[[str], CheckpointError] = CheckpointError
        self.records: dict[str, StorageRecord] = {}
        self.types: dict[str, StorageType] = {}

    def resolve(self, identity: object) -> TypedStorage:
        if type(identity) is not tuple or not 5 <= len(identity) <= 6 or identity[0] != "storage":
            if type(identity) is tuple and identity[:1] == ("module",):
                raise self.error("the file holds a whole module with its source code. Save model.state_dict() instead.")
            raise self.error(f"a persistent id must be a tuple that names a storage. {DAMAGED}")
        _, type_, key, location, numel, *view = identity
        if not isinstance(type_, StorageType):
            raise self.error(f"a storage must have a storage type. {DAMAGED}")
        if type(key) is int:  # before 1.0 keys were addresses
            key = str(key)
        for what, text in (("key", key), ("location", location)):
            if type(text) is not str or len(text) > MAX_NAME:
                raise self.error(f"a storage's {what} must be a short string, got {type(text).__name__}. {DAMAGED}")
        if type(numel) is not int or not 0 <= numel <= MAX_INT64 // type_.item_bytes:
            raise self.error(f"storage {key!r} must have a non-negative 64-bit size. {DAMAGED}")
        record = self._record(type_, key, location, numel)
        if view and view[0] is not None:
            return self._view(record, type_, view[0])
        return TypedStorage(record, type_.dtype, 0, numel)

    def _record(self, type_: StorageType, key: str, location: str, numel: int) -> StorageRecord:
        nbytes = numel * type_.item_bytes
        record = self.records.get(key)
        if record is None:
            data = self.fetch(key, nbytes)
            if self.swapped:
                data = self._swap(type_, key, data)
            record = StorageRecord(key, nbytes, location, data)
            self.records[key] = record
            self.types[key] = type_
        elif record.nbytes != nbytes or self.types[key].dtype != type_.dtype:
            raise self.error(
                f"storage {key!r} is declared twice, as {self.types[key].name} of {record.nbytes} bytes "
                f"and as {type_.name} of {nbytes}. {HOSTILE}"
            )
        return record

    def _swap(self, type_: StorageType, key: str, data: memoryview) -> memoryview:
        if type_.dtype is None:
            raise self.error(f"storage {key!r} is untyped in a big-endian file. Save it on a little-endian machine.")
        return memoryview(swap_bytes(data, SWAP_BYTES.get(type_.dtype, type_.item_bytes)))

    def _view(self, record: StorageRecord, type_: StorageType, view: object) -> TypedStorage:
        """A storage that is a part of `record` (legacy files): (key of the view, offset, size)."""
        held = record.nbytes // type_.item_bytes
        if type(view) is tuple and len(view) == 3:
            _, start, count = view
            if type(start) is int and type(count) is int and start >= 0 and count >= 0 and start + count <= held:
                return TypedStorage(record, type_.dtype, start, count)
        raise self.error(f"a view of storage {record.key!r} must lie within its {held} elements. {HOSTILE}")
