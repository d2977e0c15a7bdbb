"""GGUF headers: everything that is read, and everything that does not fit the file."""

from __future__ import annotations

import random
import struct

import pytest

from flambeau.checkpoint.gguf_format import TENSOR_TYPES, Header, read_header
from flambeau.checkpoint.records import CheckpointError
from flambeau.core.block_format import BLOCK_FORMATS
from tests.serialization import gguf_files

METADATA = {
    "general.architecture": "llama", "u8": ("B", 255), "i8": ("b", -1), "u16": ("H", 65535), "i16": ("h", -2), "u32": ("I", 2**32 - 1),
    "i32": ("i", -3), "f32": ("f", 0.5), "yes": ("?", True), "no": ("?", False), "u64": ("Q", 2**64 - 1), "i64": ("q", -(2**63)),
    "f64": ("d", 1e300), "tokens": ["a", "é", ""], "scores": [("f", 1.0), ("f", -2.0)], "nested": [[("B", 1)], [("B", 2)]],
    "flags": [("?", True), ("?", False)],
}  # fmt: skip
TENSORS = {
    "a": ("F32", (2, 3), bytes(24)), "b": ("F16", (5,), bytes(10)), "c": ("BF16", (1, 2, 3, 4), bytes(48)),
    "d": ("Q4_0", (2, 32), bytes(36)), "e": ("Q4_1", (64,), bytes(40)), "f": ("Q8_0", (1, 32), bytes(34)),
    "g": ("Q4_K", (2, 256), bytes(288)), "h": ("Q6_K", (256,), bytes(210)),
    "scalar": ("F32", (), bytes(4)), "empty": ("F32", (0, 4), b""),
}  # fmt: skip


def read(data: bytes) -> Header:
    return read_header(memoryview(data))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 64, 8])
def test_reads_every_type(version, alignment):
    metadata = METADATA if alignment is None else {**METADATA, "general.alignment": ("I", alignment)}
    data = gguf_files.file(metadata, TENSORS, version=version, alignment=alignment or 32)
    header = read(data)
    plain = {key: item[1] if isinstance(item, tuple) else item for key, item in metadata.items()}
    plain.update(scores=[1.0, -2.0], nested=[[1], [2]], flags=[True, False])
    assert header.metadata == plain
    assert type(header.metadata["yes"]) is bool
    assert header.version == version
    assert header.alignment == (alignment or 32)
    for name, (kind, shape, raw) in TENSORS.items():
        info = header.tensors[name]
        assert (info.type, info.shape, info.nbytes) == (kind, shape, len(raw))
        assert info.start % header.alignment == 0
        assert info.start + info.nbytes <= len(data)


def test_block_sizes_are_those_of_the_formats():
    for kind, weights, nbytes in TENSOR_TYPES.values():
        if kind in BLOCK_FORMATS:
            assert (weights, nbytes) == (BLOCK_FORMATS[kind].weights, BLOCK_FORMATS[kind].nbytes)
    assert set(BLOCK_FORMATS) <= {kind for kind, _, _ in TENSOR_TYPES.values()}


def test_tokens_that_are_pieces_of_characters_are_kept():
    header = read(gguf_files.file({"tokens": [b"\xe4\xb8", "ok"]}, {}))
    assert header.metadata["tokens"][0].encode("utf-8", "surrogateescape") == b"\xe4\xb8"


def head(tensors: int = 0, pairs: int = 0, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must start with GGUF"),
        (b"GGML" + bytes(40), "must start with GGUF, got b'GGML'"),
        (b"GGUF", "header ends early"),
        (head(version=1), "version must be 2 or 3, got 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (head(2**60, 0), "cannot fit"),
        (head(0, 2**63), "cannot fit"),
        (head(0, 1, struct.pack("<Q", 2**62) + bytes(20)), "at most 65535 bytes"),
        (head(0, 1, gguf_files.text("k") + struct.pack("<IQ", 13, 0)), "unknown type 13"),
        (head(0, 1, gguf_files.text("k") + struct.pack("<IQ", 8, 2**63)), "past the end"),
        (head(0, 1, gguf_files.text("k") + struct.pack("<IIQ", 9, 4, 2**61) + bytes(8)), "more than the file can hold"),
        (head(0, 1, gguf_files.text("k") + struct.pack("<IIQ", 9, 99, 1) + bytes(8)), "unknown type 99"),
        (
            head(0, 1, gguf_files.text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 6 + bytes(20)),
            "nested at most",
        ),
        (head(0, 1, gguf_files.text("k") + struct.pack("<IB", 7, 2)), "must be 0 or 1"),
        (head(0, 1, gguf_files.text(b"\xff\xff") + struct.pack("<IB", 0, 2)), "must be UTF-8"),
        (head(0, 2, gguf_files.pair("k", ("B", 1)) * 2), "'k' occurs twice"),
        (gguf_files.file({"general.alignment": ("I", 0)}, {}), "multiple of 8"),
        (gguf_files.file({"general.alignment": ("I", 12)}, {}), "multiple of 8"),
        (gguf_files.file({"general.alignment": "32"}, {}), "multiple of 8"),
        (
            gguf_files.file({}, {"w": ("Q5_0", (32,), bytes(22))}),
            "has type Q5_0, which is not read. Convert it to one of F32",
        ),
        (gguf_files.file({}, {"w": ("IQ4_XS", (256,), bytes(136))}), "has type IQ4_XS"),
        (gguf_files.file({}, {"w": (77, (32,), bytes(22))}), "has type number 77"),
        (gguf_files.file({}, {"w": ("Q4_0", (2, 16), bytes(18))}), "multiples of 32, got 16"),
        (gguf_files.file({}, {"w": ("F32", (1, 1, 1, 1, 1), bytes(4))}), "at most 4 dimensions"),
        (gguf_files.file({}, {"w": ("F32", (2,), bytes(7))}), "must lie within the file"),
        (gguf_files.file({}, {"w": ("F32", (2**40, 2**40), bytes(8))}), "must lie within the file"),
        (head(1, 0, gguf_files.description("w", "F32", (2,), 4) + bytes(100)), "multiple of 32"),
        (head(2, 0, gguf_files.description("w", "F32", (2,), 0) * 2 + bytes(100)), "'w' occurs twice"),
        (
            head(
                2,
                0,
                gguf_files.description("v", "F32", (9,), 0) + gguf_files.description("w", "F32", (2,), 32) + bytes(200),
            ),
            "overlap",
        ),
    ],
)
def test_broken_headers(data, message):
    with pytest.raises(CheckpointError, match=message) as raised:
        read(data)
    assert str(raised.value).startswith("gguf: ")


def test_truncation_is_noticed():
    data = gguf_files.file(METADATA, {name: entry for name, entry in TENSORS.items() if name != "empty"})
    for end in range(len(data)):
        with pytest.raises(CheckpointError):
            read(data[:end])


def test_flipped_bits_end_in_a_header_or_a_checkpoint_error():
    data = gguf_files.file(METADATA, TENSORS)
    rng = random.Random(0)
    for _ in range(5000):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 3)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            header = read(bytes(damaged))
        except CheckpointError:
            continue
        assert all(info.start + info.nbytes <= len(damaged) for info in header.tensors.values())
