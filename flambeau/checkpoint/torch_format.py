"""PyTorch's files: `read` takes the zip format and the older streams, `write` makes the zip format.

    read(data)            the value in a file's bytes, as records or as whatever a Builder makes, and the bytes it took
    write(value, stream)  the archive that torch.load(weights_only=True) reads

Layout of the archive, all records stored uncompressed under one folder: `data.pkl` (the value, with a persistent id
for each storage), `data/N` (the storages), `byteorder`, `version`, and a few marks about alignment and identity.

May not know: Tensor. Entry: read, write.

    value, used = torch_format.read(memoryview(open("model.pth", "rb").read()))
"""

from __future__ import annotations

import zlib

from flambeau.checkpoint import legacy_format
from flambeau.checkpoint.layout import plan_storages
from flambeau.checkpoint.pickle_reader import PickleReader
from flambeau.checkpoint.pickle_writer import Describer, PickleWriter
from flambeau.checkpoint.records import DAMAGED, HOSTILE, Builder, CheckpointError
from flambeau.checkpoint.storage_table import StorageTable
from flambeau.checkpoint.zip_format import ALIGNMENT, END, LOCAL, Stream, ZipReader, ZipWriter

VERSION = 3  # of the archive: what torch.save writes
NEWEST_VERSION = 10  # what PyTorch's own reader accepts
FOLDER = "archive"


def read(data: memoryview | bytes, builder: Builder | None = None) -> tuple[object, int]:
    """The value in a file, and the number of bytes it took (a legacy stream may be followed by others)."""
    data = memoryview(data).cast("B")
    builder = builder or Builder()
    start = bytes(data[:16])
    if start.startswith((LOCAL, END)):
        return _read_zip(data, builder), len(data)
    _refuse_foreign(data, start)
    return legacy_format.read(data, builder)


def _refuse_foreign(data: memoryview, start: bytes) -> None:
    """Files of other kinds get an error that says which they are."""
    if not start:
        raise CheckpointError(
            "load: the file must hold a checkpoint, got an empty file. Check that it was written to the end."
        )
    kind = None
    if start.startswith(b"GGUF"):
        kind = "a GGUF file. Read it with flambeau.models.gguf.read"
    elif start[8:9] == b"{":
        kind = "a safetensors file. Read it with flambeau.interop.safetensors.load_file"
    elif start.startswith(b"\x89HDF"):
        kind = "an HDF5 file. Convert it to a state dict first"
    elif start.startswith(b"\x93NUMPY"):
        kind = "a NumPy array. Read it with numpy.load"
    elif start.startswith((b"\x1f\x8b", b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd")):
        kind = "a compressed file. Decompress it first"
    elif start.startswith(b"version https"):
        kind = "a Git LFS pointer, not the file itself. Fetch it with git lfs pull"
    elif bytes(data[257:262]) == b"ustar":
        kind = "a checkpoint in the tar format of PyTorch before 0.1.10. Load and save it again with a PyTorch that reads it"
    if kind:
        raise CheckpointError(f"load: the file must be a PyTorch checkpoint, got {kind}.")


# ---------------------------------------------------------------------- reading the zip format
def _read_zip(data: memoryview, builder: Builder) -> object:
    archive = ZipReader(data)
    folder = _folder(archive)
    if f"{folder}/constants.pkl" in archive:
        raise CheckpointError(
            "load: the file is a TorchScript archive, which holds code. Save the module's state_dict() instead."
        )
    if f"{folder}/data.pkl" not in archive:
        raise CheckpointError(
            f"load: the archive must hold {folder}/data.pkl, got {_sample(archive)}. It is not a file of torch.save."
        )
    _check_version(archive, folder)
    swapped = _is_swapped(archive, folder)

    def fetch(key: str, nbytes: int) -> memoryview:
        name = f"{folder}/data/{key}"
        if name not in archive:
            raise table.error(f"storage {key!r} has no record {name!r} in the archive. {DAMAGED}")
        held = archive.entries[name].size
        if held != nbytes:
            raise table.error(
                f"storage {key!r} must have as many bytes as its record, declared {nbytes}, got {held}. {HOSTILE}"
            )
        return archive.read(name)

    table = StorageTable(fetch, swapped=swapped)
    reader = PickleReader(archive.read(f"{folder}/data.pkl"), builder, table.resolve)
    table.error = reader.error
    value = reader.read()
    if reader.position != reader.end:
        raise reader.error(
            f"data.pkl must end with its value, got {reader.end - reader.position} bytes more. {DAMAGED}"
        )
    archive.check_all()
    return value


def _folder(archive: ZipReader) -> str:
    """The one folder that every record is in."""
    folders = {name.split("/", 1)[0] if "/" in name else "" for name in archive.entries}
    if len(folders) != 1 or "" in folders:
        raise CheckpointError(
            f"load: the records must lie in one folder, got {_sample(archive)}. It is not a file of torch.save."
        )
    return folders.pop()


def _sample(archive: ZipReader) -> str:
    names = list(archive.entries)
    shown = ", ".join(repr(name[:60]) for name in names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown or "no records"


def _check_version(archive: ZipReader, folder: str) -> None:
    for name in (f"{folder}/version", f"{folder}/.data/version"):
        if name in archive:
            text = bytes(archive.read(name)[:32]).strip()
            if not text.isdigit() or int(text) > NEWEST_VERSION:
                raise CheckpointError(
                    f"load: the archive's version must be at most {NEWEST_VERSION}, got {text!r}. {DAMAGED}"
                )


def _is_swapped(archive: ZipReader, folder: str) -> bool:
    name = f"{folder}/byteorder"
    if name not in archive:
        return False  # before 2.1 only little-endian machines wrote files
    order = bytes(archive.read(name)[:16])
    if order not in (b"little", b"big"):
        raise CheckpointError(f"load: byteorder must be little or big, got {order!r}. {DAMAGED}")
    return order == b"big"


# ---------------------------------------------------------------------- writing
def write(value: object, stream: Stream, describe: Describer) -> None:
    """Write an archive. `describe(object)` says what a tensor, dtype, device or shape is, or None for plain data."""
    survey = PickleWriter(describe)  # a first pass finds the tensors, and refuses what is not data
    survey.write(value)
    storages, placed = plan_storages([entry.record for entry in survey.tensors])
    stream_bytes = PickleWriter(survey.describe, placed).write(value)
    archive = ZipWriter(stream)
    checks = [archive.write(f"{FOLDER}/data.pkl", [stream_bytes])]
    archive.write(f"{FOLDER}/.format_version", [b"1"])
    archive.write(f"{FOLDER}/.storage_alignment", [str(ALIGNMENT).encode()])
    archive.write(f"{FOLDER}/byteorder", [b"little"])
    for storage in storages:
        checks.append(archive.write(f"{FOLDER}/data/{storage.key}", storage.segments))
    archive.write(f"{FOLDER}/version", [f"{VERSION}\n".encode()])
    archive.write(f"{FOLDER}/.data/serialization_id", [_identity(archive, checks)])
    archive.finish()


def _identity(archive: ZipWriter, checks: list[int]) -> bytes:
    """Forty digits that depend on the names and contents alone, so that equal checkpoints are equal files."""
    names = "\n".join(entry.name for entry in archive.entries).encode()
    contents = b"".join(check.to_bytes(4, "little") for check in checks)
    return f"{zlib.crc32(names):020d}{zlib.crc32(contents):020d}".encode()
