"""Builds checkpoint files for the tests: archives with chosen records, and pickle streams opcode by opcode."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping

from flambeau.checkpoint.zip_format import ZipWriter

STOP = b"."
MARK = b"("


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def items(*parts: bytes) -> bytes:
    return MARK + b"".join(parts) + b"t"


def storage(kind: str = "FloatStorage", key: str = "0", numel: int = 4, location: str = "cpu") -> bytes:
    """A persistent id of a storage."""
    return items(text("storage"), name("torch", kind), text(key), text(location), number(numel)) + b"Q"


def tensor(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0, held: bytes | None = None) -> bytes:
    """A tensor over `held` (a persistent id)."""
    shape, steps = items(*map(number, size)), items(*map(number, stride))
    hooks = name("collections", "OrderedDict") + b")R"
    return (
        name("torch._utils", "_rebuild_tensor_v2")
        + items(held or storage(), number(offset), shape, steps, b"\x89", hooks)
        + b"R"
    )


def archive(
    stream: bytes, records: Mapping[str, bytes] | None = None, *, folder: str = "archive", byteorder: str = "little"
) -> bytes:
    """A PyTorch archive with `stream` as its data.pkl and `records` as its storages."""
    out = io.BytesIO()
    writer = ZipWriter(out)
    writer.write(f"{folder}/data.pkl", [stream])
    writer.write(f"{folder}/byteorder", [byteorder.encode()])
    for key, data in (records or {}).items():
        writer.write(f"{folder}/data/{key}", [data])
    writer.write(f"{folder}/version", [b"3\n"])
    writer.finish()
    return out.getvalue()


def protocol(body: bytes) -> bytes:
    return b"\x80\x02" + body + STOP
