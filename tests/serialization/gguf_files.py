"""Writes small GGUF files for the tests."""

from __future__ import annotations

import struct

CODES = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11, "d": 12}
TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q6_K": 14,
    "BF16": 30,
    "Q5_0": 6,
    "IQ4_XS": 23,
}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(item: object) -> bytes:
    """A typed value: text, a (code, number) pair, or a list of either."""
    if isinstance(item, str | bytes):
        return struct.pack("<I", 8) + text(item)
    if isinstance(item, list):
        parts = [value(i) for i in item]
        return (
            struct.pack("<I", 9) + parts[0][:4] + struct.pack("<Q", len(parts)) + b"".join(part[4:] for part in parts)
        )
    code, number = item
    return struct.pack("<I" + code, CODES[code], number)


def pair(key: str, item: object) -> bytes:
    return text(key) + value(item)


def description(name: str, kind: str | int, shape: tuple[int, ...], offset: int) -> bytes:
    number = TYPES[kind] if isinstance(kind, str) else kind
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], number, offset)


def file(
    metadata: dict[str, object],
    tensors: dict[str, tuple[str | int, tuple[int, ...], bytes]],
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file; tensors are (type, row-major shape, bytes)."""
    body = b"".join(pair(key, item) for key, item in metadata.items())
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        data += bytes(-len(data) % alignment)
        body += description(name, kind, shape, len(data))
        data += raw
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + body
    return head + bytes(-len(head) % alignment) + data
