"""The zip archives that hold PyTorch checkpoints: stored (uncompressed) records, each with a CRC-32.

The reader takes nothing on trust: the directory must lie exactly at the end, every record must agree with its
local header, lie inside the file and overlap no other, names are unique, and every byte handed out has passed its
CRC. Compressed or encrypted records are refused, so a file never describes more than it holds. The writer aligns
every record to 64 bytes, so that a mapped file can back tensors directly.

May not know: what the records mean. Entry: ZipReader(data), ZipWriter(stream).

    writer = ZipWriter(stream)
    writer.write("archive/data/0", [payload])
    writer.finish()
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Sequence
from typing import Protocol

from flambeau.checkpoint.records import DAMAGED, HOSTILE, CheckpointError

LOCAL, CENTRAL, END, END64, LOCATOR64, DESCRIPTOR = b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\7\x08"
ALIGNMENT = 64
CHUNK = 1 << 22  # bytes checked or written at a time
_LIMIT32 = 0xFFFFFFFF
_LIMIT16 = 0xFFFF


class Stream(Protocol):
    def write(self, data: memoryview | bytes, /) -> int | None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """Where a record lies: its local header, its data, and the CRC they must have. Only method 0 (stored) can be read."""

    name: str
    header: int
    start: int
    size: int
    crc: int
    method: int = 0


def _error(message: str) -> CheckpointError:
    return CheckpointError(f"load: {message}")


class ZipReader:
    """The records of an archive in memory (or mapped): `names`, `read(name)`, `check_all()`."""

    def __init__(self, data: memoryview):
        self.data = data
        count, start, size = self._find_directory()
        self.entries = self._read_directory(count, start, size)
        self._checked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def read(self, name: str) -> memoryview:
        """The bytes of a record, after its CRC has been checked."""
        entry = self.entries[name]
        if entry.method:
            raise _error(
                f"record {name!r} must be stored uncompressed, got method {entry.method}. Unpack and store it again."
            )
        record = self.data[entry.start : entry.start + entry.size]
        if name not in self._checked:
            crc = 0
            for at in range(0, entry.size, CHUNK):
                crc = zlib.crc32(record[at : at + CHUNK], crc)
            if crc != entry.crc:
                raise _error(
                    f"record {name!r} fails its CRC check: stored 0x{entry.crc:08x}, computed 0x{crc:08x}. "
                    "Its bytes changed after it was written; fetch or save the file again."
                )
            self._checked.add(name)
        return record

    def check_all(self) -> None:
        """Check the CRC of every record that has not been read."""
        for name in self.entries:
            self.read(name)

    # ------------------------------------------------------------------ directory
    def _unpack(self, layout: str, at: int, what: str) -> tuple[int, ...]:
        if at < 0 or at + struct.calcsize(layout) > len(self.data):
            raise _error(f"the zip archive's {what} lies outside the file. {DAMAGED}")
        return struct.unpack_from(layout, self.data, at)

    def _find_directory(self) -> tuple[int, int, int]:
        """(number of entries, offset, size) of the central directory, which must end where its end record starts."""
        total = len(self.data)
        tail_start = max(0, total - 22 - _LIMIT16)
        tail = bytes(self.data[tail_start:])
        at = tail.rfind(END)
        while at >= 0 and not (
            at + 22 <= len(tail) and at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little") == len(tail)
        ):
            at = tail.rfind(END, 0, at)
        if at < 0:
            raise _error(f"the zip archive has no end record in its {total} bytes. {DAMAGED}")
        at += tail_start
        disk, first_disk, here, count, size, start, _ = self._unpack("<HHHHIIH", at + 4, "end record")
        directory_end = at
        if at >= 20 and bytes(self.data[at - 20 : at - 16]) == LOCATOR64:
            _, at64, disks = self._unpack("<IQI", at - 16, "zip64 locator")
            if disks != 1 or at64 > total or bytes(self.data[at64 : at64 + 4]) != END64:
                raise _error(f"the zip archive's zip64 end record is missing. {DAMAGED}")
            length, _, _, disk, first_disk, here, count, size, start = self._unpack(
                "<QHHIIQQQQ", at64 + 4, "zip64 end record"
            )
            if at64 + 12 + length != at - 20:
                raise _error(f"the zip archive's zip64 end record has a wrong length. {DAMAGED}")
            directory_end = at64
        if disk or first_disk or here != count:
            raise _error("a zip archive must be one file, got one part of several. Join the parts.")
        if start + size != directory_end:
            raise _error(
                f"the zip archive's directory must end at byte {directory_end}, got {start} + {size}. {DAMAGED}"
            )
        if count * 46 > size:
            raise _error(f"the zip archive's directory of {size} bytes cannot hold {count} records. {DAMAGED}")
        return count, start, size

    def _read_directory(self, count: int, start: int, size: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        at, end = start, start + size
        for _ in range(count):
            if bytes(self.data[at : at + 4]) != CENTRAL or at + 46 > end:
                raise _error(f"the zip archive's directory is broken at byte {at}. {DAMAGED}")
            (_, _, flags, method, _, _, crc, packed, plain, name_size, extra_size, note_size, _, _, _, header) = (
                self._unpack("<HHHHHHIIIHHHHHII", at + 4, "directory")
            )
            following = at + 46 + name_size + extra_size + note_size
            if following > end:
                raise _error(f"the zip archive's directory is broken at byte {at}. {DAMAGED}")
            name = self._name(at + 46, name_size)
            extra = self.data[at + 46 + name_size : at + 46 + name_size + extra_size]
            plain, packed, header = _wide_sizes(name, extra, plain, packed, header)
            if flags & 1:
                raise _error(f"record {name!r} is encrypted. Decrypt the archive first.")
            if method == 0 and packed != plain:
                raise _error(f"record {name!r} must have one size, got {packed} and {plain}. {DAMAGED}")
            if name in entries:
                raise _error(f"record {name!r} occurs twice in the zip archive. {HOSTILE}")
            entries[name] = self._locate(name, header, packed, plain, crc, method, start)
            at = following
        if at != end:
            raise _error(f"the zip archive's directory must end at byte {end}, got {at}. {DAMAGED}")
        _check_disjoint(entries)
        return entries

    def _name(self, at: int, size: int) -> str:
        try:
            return str(self.data[at : at + size], "utf-8")
        except UnicodeDecodeError:
            raise _error(f"a record's name at byte {at} is not UTF-8. {DAMAGED}") from None

    def _locate(self, name: str, header: int, size: int, unpacked: int, crc: int, method: int, limit: int) -> Entry:
        """Follow an entry to its local header, which must tell the same story."""
        if header + 30 > limit or bytes(self.data[header : header + 4]) != LOCAL:
            raise _error(f"record {name!r} has no header at byte {header}. {DAMAGED}")
        _, flags, local_method, _, _, local_crc, packed, plain, name_size, extra_size = self._unpack(
            "<HHHHHIIIHH", header + 4, "header"
        )
        start = header + 30 + name_size + extra_size
        if start + size > limit:
            raise _error(f"record {name!r} of {size} bytes reaches past the zip archive's directory. {DAMAGED}")
        if self._name(header + 30, name_size) != name or local_method != method or flags & 1:
            raise _error(f"record {name!r} differs between the zip archive's directory and its header. {DAMAGED}")
        extra = self.data[header + 30 + name_size : start]
        plain, packed, _ = _wide_sizes(name, extra, plain, packed, 0)
        late = flags & 8  # CRC and sizes follow the data
        if not late and (plain, packed, local_crc) != (unpacked, size, crc):
            raise _error(f"record {name!r} differs between the zip archive's directory and its header. {DAMAGED}")
        if late:
            self._check_descriptor(name, start + size, size, unpacked, crc, limit)
        return Entry(name, header, start, size, crc, method)

    def _check_descriptor(self, name: str, at: int, size: int, unpacked: int, crc: int, limit: int) -> None:
        found = bytes(self.data[at : min(at + 24, limit)])
        if found.startswith(DESCRIPTOR):
            found = found[4:]
        narrow = struct.pack("<III", crc, size & _LIMIT32, unpacked & _LIMIT32)
        wide = struct.pack("<IQQ", crc, size, unpacked)
        if not (found.startswith(wide) or (max(size, unpacked) <= _LIMIT32 and found.startswith(narrow))):
            raise _error(
                f"record {name!r} differs between the zip archive's directory and the descriptor after its data. {DAMAGED}"
            )


def _wide_sizes(name: str, extra: memoryview, plain: int, packed: int, header: int) -> tuple[int, int, int]:
    """Values that do not fit 32 bits are in the zip64 extra field, in this order."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        body = extra[at + 4 : at + 4 + size]
        if len(body) != size:
            break  # padding that only looks like a field
        if kind == 1:
            values = iter(struct.unpack_from(f"<{size // 8}Q", body))
            try:
                plain = next(values) if plain == _LIMIT32 else plain
                packed = next(values) if packed == _LIMIT32 else packed
                header = next(values) if header == _LIMIT32 else header
            except StopIteration:
                raise _error(f"record {name!r} has a broken zip64 field. {DAMAGED}") from None
            break
        at += 4 + size
    return plain, packed, header


def _check_disjoint(entries: dict[str, Entry]) -> None:
    previous = None
    for entry in sorted(entries.values(), key=lambda e: e.header):
        if previous is not None and entry.header < previous.start + previous.size:
            raise _error(f"records {previous.name!r} and {entry.name!r} overlap. {HOSTILE}")
        previous = entry


# ---------------------------------------------------------------------- writing
class ZipWriter:
    """Writes records one after the other to a stream; offsets count from its first byte."""

    def __init__(self, stream: Stream):
        self.stream = stream
        self.position = 0
        self.entries: list[Entry] = []

    def write(self, name: str, segments: Sequence[memoryview | bytes]) -> int:
        """Append a record made of `segments`; returns its CRC. Its data starts at a multiple of 64 bytes."""
        views = [memoryview(segment).cast("B") for segment in segments]
        size = sum(len(view) for view in views)
        crc = 0
        for view in views:
            for at in range(0, len(view), CHUNK):
                crc = zlib.crc32(view[at : at + CHUNK], crc)
        encoded = name.encode()
        wide = struct.pack("<HHQQ", 1, 16, size, size) if size >= _LIMIT32 else b""
        unpadded = self.position + 30 + len(encoded) + len(wide) + 4
        padding = -unpadded % ALIGNMENT
        extra = wide + struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        shown = _LIMIT32 if wide else size
        header = self.position
        self._put(
            struct.pack(
                "<4sHHHHHIIIHH",
                LOCAL,
                45 if wide else 20,
                0x0800,
                0,
                0,
                0x21,
                crc,
                shown,
                shown,
                len(encoded),
                len(extra),
            )
        )
        self._put(encoded + extra)
        self.entries.append(Entry(name, header, self.position, size, crc))
        for view in views:
            for at in range(0, len(view), CHUNK):
                self._put(view[at : at + CHUNK])
        return crc

    def finish(self) -> None:
        """Write the directory."""
        start = self.position
        for entry in self.entries:
            self._put(_central_header(entry))
        size, count = self.position - start, len(self.entries)
        if count >= _LIMIT16 or start >= _LIMIT32 or size >= _LIMIT32:
            at = self.position
            self._put(struct.pack("<4sQHHIIQQQQ", END64, 44, 45, 45, 0, 0, count, count, size, start))
            self._put(struct.pack("<4sIQI", LOCATOR64, 0, at, 1))
        short = min(count, _LIMIT16)
        self._put(struct.pack("<4sHHHHIIH", END, 0, 0, short, short, min(size, _LIMIT32), min(start, _LIMIT32), 0))

    def _put(self, data: memoryview | bytes) -> None:
        written = self.stream.write(data)
        if written is not None and written != len(data):
            raise OSError(f"save: the stream must take all of {len(data)} bytes, took {written}. Pass a buffered file.")
        self.position += len(data)


def _central_header(entry: Entry) -> bytes:
    encoded = entry.name.encode()
    wide = b""
    if entry.size >= _LIMIT32:
        wide += struct.pack("<QQ", entry.size, entry.size)
    if entry.header >= _LIMIT32:
        wide += struct.pack("<Q", entry.header)
    extra = struct.pack("<HH", 1, len(wide)) + wide if wide else b""
    shown = min(entry.size, _LIMIT32)
    version = 45 if wide else 20
    fixed = struct.pack(
        "<4sHHHHHHIIIHHHHHII",
        CENTRAL, version, version, 0x0800, 0, 0, 0x21, entry.crc, shown, shown,
        len(encoded), len(extra), 0, 0, 0, 0, min(entry.header, _LIMIT32),
    )  # fmt: skip
    return fixed + encoded + extra
