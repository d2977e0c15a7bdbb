"""The stream that torch.save wrote before version 1.6: five pickles, then the raw storages.

    magic number, protocol version, system information, the value, list of storage keys,
    and for each key an int64 count of elements followed by the elements

The storages come after the value that refers to them, so the value is interpreted twice: once as records, which
finds the end of it and the declared sizes, and once more when the bytes are known.

May not know: Tensor, archives. Entry: read.
"""

from __future__ import annotations

from flambeau.checkpoint.pickle_reader import PickleReader
from flambeau.checkpoint.records import DAMAGED, HOSTILE, Builder, CheckpointError
from flambeau.checkpoint.storage_table import StorageTable

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001


def read(data: memoryview, builder: Builder) -> tuple[object, int]:
    """The value in a legacy stream and the number of bytes it took."""
    position = _read_header(data)
    found = StorageTable(lambda key, nbytes: memoryview(b""))
    reader = PickleReader(data, Builder(), found.resolve, position)
    found.error = reader.error
    reader.read()
    contents, end = _read_storages(data, reader.position, found)
    final = StorageTable(lambda key, nbytes: contents[key])
    again = PickleReader(data, builder, final.resolve, position)
    final.error = again.error
    return again.read(), end


def _read_header(data: memoryview) -> int:
    """Checks the first three pickles; returns where the value starts."""
    reader = PickleReader(data, Builder(), None)
    try:
        magic = reader.read()
    except CheckpointError as error:
        raise CheckpointError(
            f"load: the file must be a PyTorch checkpoint (zip or legacy format), and it is neither. ({error})"
        ) from None
    if magic != MAGIC:
        raise CheckpointError(
            f"load: the file must be a PyTorch checkpoint, got a pickle of {type(magic).__name__}. "
            "Save with torch.save rather than pickle.dump."
        )
    reader = PickleReader(data, Builder(), None, reader.position)
    protocol = reader.read()
    if protocol != PROTOCOL:
        raise CheckpointError(f"load: the legacy protocol must be {PROTOCOL}, got {protocol!r:.40}. {DAMAGED}")
    reader = PickleReader(data, Builder(), None, reader.position)
    system = reader.read()
    if type(system) is not dict or system.get("little_endian") is not True:
        raise CheckpointError(
            "load: a legacy file must come from a little-endian machine. Save it again in PyTorch in the zip format."
        )
    return reader.position


def _read_storages(data: memoryview, position: int, table: StorageTable) -> tuple[dict[str, memoryview], int]:
    """The bytes of every storage, in the order of the key list that follows the value."""
    reader = PickleReader(data, Builder(), None, position)
    keys = reader.read()
    if type(keys) is not list or len(set(map(str, keys))) != len(keys):
        raise CheckpointError(f"load: the list of storage keys must hold each key once. {DAMAGED}")
    at = reader.position
    contents: dict[str, memoryview] = {}
    for key in map(str, keys):
        record = table.records.get(key)
        if record is None:
            raise CheckpointError(
                f"load: storage {key[:60]!r} is in the file but no tensor uses it, so its type is unknown. {DAMAGED}"
            )
        item_bytes = table.types[key].item_bytes
        numel = int.from_bytes(data[at : at + 8], "little", signed=True)
        end = at + 8 + record.nbytes
        if at + 8 > len(data) or end > len(data):
            raise CheckpointError(
                f"load: storage {key!r} of {record.nbytes} bytes reaches past the end of the file. {DAMAGED}"
            )
        if numel * item_bytes != record.nbytes:
            raise CheckpointError(
                f"load: storage {key!r} must have the {record.nbytes // item_bytes} elements its tensors declare, got {numel}. {HOSTILE}"
            )
        contents[key] = data[at + 8 : end]
        at = end
    missing = [key for key in table.records if key not in contents]
    if missing:
        raise CheckpointError(f"load: the file holds no data for storage {missing[0]!r}. {DAMAGED}")
    return contents, at
