"""Zip archives: what other tools write, what other tools read, and sizes beyond 32 bits."""

from __future__ import annotations

import io
import mmap
import zipfile
import zlib

import pytest

from flambeau.checkpoint.records import CheckpointError
from flambeau.checkpoint.zip_format import ZipReader, ZipWriter


def written(records: dict[str, bytes], stream: io.BytesIO | None = None) -> bytes:
    stream = stream or io.BytesIO()
    writer = ZipWriter(stream)
    for name, data in records.items():
        writer.write(name, [data[:1], data[1:]])
    writer.finish()
    return stream.getvalue()


RECORDS = {"a/one": b"first", "a/empty": b"", "a/é": bytes(range(256)) * 100}


def test_round_trip_and_the_standard_library():
    data = written(RECORDS)
    reader = ZipReader(memoryview(data))
    assert {name: bytes(reader.read(name)) for name in reader.entries} == RECORDS
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == RECORDS


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_reads_what_the_standard_library_writes(wide, seekable):
    """Unseekable streams put sizes after the data; `force_zip64` puts them in extra fields."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return seekable

        def seek(self, *args: int) -> int:
            if not seekable:
                raise io.UnsupportedOperation
            return super().seek(*args)

    stream = Pipe()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in RECORDS.items():
            with archive.open(name, "w", force_zip64=wide) as record:
                record.write(data)
        archive.comment = b"a comment that holds PK\5\6 itself"
    reader = ZipReader(memoryview(stream.getvalue()))
    assert {name: bytes(reader.read(name)) for name in reader.entries} == RECORDS


@pytest.mark.slow
def test_more_records_than_16_bits_count():
    records = {f"a/{i}": b"" for i in range(70_000)}
    data = written(records)
    assert list(ZipReader(memoryview(data)).entries) == list(records)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert len(archive.namelist()) == 70_000


def test_compressed_records_are_listed_but_not_read():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/bomb", bytes(10_000_000))
    reader = ZipReader(memoryview(stream.getvalue()))
    with pytest.raises(CheckpointError, match="must be stored uncompressed, got method 8"):
        reader.read("a/bomb")


@pytest.mark.slow
def test_records_and_offsets_beyond_32_bits(tmp_path):
    size = (1 << 32) + 5
    zeros = memoryview(bytes(1 << 20))

    class Sparse:
        """A file in which runs of zeros take no room."""

        def __init__(self, file: io.BufferedRandom) -> None:
            self.file = file

        def write(self, data: memoryview | bytes) -> int:
            if len(data) >= len(zeros) and not any(data[:64]):
                self.file.seek(len(data), io.SEEK_CUR)
            else:
                self.file.write(data)
            return len(data)

    path = tmp_path / "large.zip"
    with open(path, "wb+") as file:
        writer = ZipWriter(Sparse(file))
        writer.write("a/large", [zeros] * (size >> 20) + [b"tail!"])
        writer.write("a/after", [b"small"])
        writer.finish()
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        reader = ZipReader(view)
        assert reader.entries["a/large"].size == size
        assert bytes(reader.read("a/after")) == b"small"
        with reader.read("a/large") as record:
            assert bytes(record[-5:]) == b"tail!"
        assert reader.entries["a/after"].crc == zlib.crc32(b"small")
        reader.data.release()
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("a/large").file_size == size
        assert archive.read("a/after") == b"small"
