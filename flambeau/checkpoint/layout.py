"""What to write of each storage, so that a file holds what its tensors reach and no more.

Tensors that share a storage stay views of one storage in the file. Of that storage only the runs that some tensor
can reach are kept; the gaps between runs are dropped and the offsets moved. A run that belongs to one tensor alone
and has holes (a column of a matrix) is packed, in the order its elements have in memory.

May not know: files, tensors. Entry: plan_storages.

    storages, placed = plan_storages([record])     # placed[id(record)].offset, storages[0].segments
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from flambeau.checkpoint.records import ITEM_BYTES, StorageRecord, TensorRecord, gather_bytes

# Runs start at multiples of this, so that views of any dtype keep whole offsets; the widest element has 16 bytes.
RUN_ALIGNMENT = 16


@dataclasses.dataclass(slots=True, eq=False)
class PlannedStorage:
    """A storage to write: its key, its dtype (None if views of several dtypes share it) and its bytes in pieces."""

    key: str
    dtype: str | None
    segments: list[memoryview | bytes]
    nbytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where a tensor lies in its planned storage: offset and strides in elements."""

    storage: PlannedStorage
    offset: int
    strides: tuple[int, ...]


def plan_storages(records: Sequence[TensorRecord]) -> tuple[list[PlannedStorage], dict[int, Placement]]:
    """The storages to write, and each record's placement by its identity."""
    groups: dict[int, tuple[StorageRecord, list[TensorRecord]]] = {}
    for record in records:
        groups.setdefault(id(record.storage), (record.storage, []))[1].append(record)
    storages: list[PlannedStorage] = []
    placed: dict[int, Placement] = {}
    for number, (storage, members) in enumerate(groups.values()):
        planned = _plan_storage(str(number), storage, members, placed)
        storages.append(planned)
    return storages, placed


def _plan_storage(
    key: str, storage: StorageRecord, members: list[TensorRecord], placed: dict[int, Placement]
) -> PlannedStorage:
    dtypes = {record.dtype for record in members}
    planned = PlannedStorage(key, dtypes.pop() if len(dtypes) == 1 else None, [])
    for start, end, run in _runs(members):
        packed = _pack(run[0]) if _same_view(run) else None
        _fill(planned, -planned.nbytes % RUN_ALIGNMENT)
        if packed is not None:
            data, strides = packed
            offset = planned.nbytes // ITEM_BYTES[run[0].dtype]
            for record in run:
                placed[id(record)] = Placement(planned, offset, strides)
        else:
            data = storage.data[start:end]
            if planned.dtype is None:  # keep the place modulo the alignment, or wider dtypes would get broken offsets
                _fill(planned, start % RUN_ALIGNMENT)
            for record in run:
                item = ITEM_BYTES[record.dtype]
                placed[id(record)] = Placement(
                    planned, (planned.nbytes + record.offset * item - start) // item, record.strides
                )
        planned.segments.append(data)
        planned.nbytes += len(data)
    for record in members:
        if 0 in record.shape:
            placed[id(record)] = Placement(planned, 0, record.strides)
    return planned


def _runs(members: list[TensorRecord]) -> list[tuple[int, int, list[TensorRecord]]]:
    """The byte ranges that tensors reach, with those tensors; ranges that overlap are merged."""
    extents = []
    for record in members:
        if 0 not in record.shape:
            item = ITEM_BYTES[record.dtype]
            extents.append((record.offset * item, record.end * item, record))
    extents.sort(key=lambda extent: extent[:2])
    runs: list[tuple[int, int, list[TensorRecord]]] = []
    for start, end, record in extents:
        if runs and start < runs[-1][1]:
            first, last, held = runs[-1]
            runs[-1] = (first, max(last, end), [*held, record])
        else:
            runs.append((start, end, [record]))
    return runs


def _same_view(run: list[TensorRecord]) -> bool:
    """True if all records are one view: the same elements in the same shape."""
    return len({(r.dtype, r.shape, r.strides, r.offset) for r in run}) == 1


def _pack(record: TensorRecord) -> tuple[bytes, tuple[int, ...]] | None:
    """A view with holes as packed bytes and the strides that fit them; None when it has none, or overlaps itself."""
    stepping = [
        d for d, (size, stride) in enumerate(zip(record.shape, record.strides, strict=True)) if size > 1 and stride > 0
    ]
    stepping.sort(key=lambda d: -record.strides[d])  # outermost first
    strides = list(record.strides)
    packed = reached = 1  # elements packed so far, and the length of memory they come from
    for d in reversed(stepping):
        if strides[d] < reached:
            return None
        reached += (record.shape[d] - 1) * strides[d]
        strides[d] = packed
        packed *= record.shape[d]
    if packed == reached:
        return None
    shape = [record.shape[d] for d in stepping]
    steps = [record.strides[d] for d in stepping]
    data = gather_bytes(record.storage.data, ITEM_BYTES[record.dtype], record.offset, shape, steps)
    return data, tuple(strides)


def _fill(planned: PlannedStorage, count: int) -> None:
    if count:
        planned.segments.append(bytes(count))
        planned.nbytes += count
