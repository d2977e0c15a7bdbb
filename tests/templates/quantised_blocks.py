"""Quantised blocks in NumPy: what the formats mean, written apart from the kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flambeau.core.block_format import BLOCK_FORMATS


def _half(raw: np.ndarray, at: int) -> np.ndarray:
    return raw[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(raw: np.ndarray) -> np.ndarray:
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float32)


def q4_0(raw: np.ndarray) -> np.ndarray:
    return (_nibbles(raw[:, 2:]) - 8) * _half(raw, 0)


def q4_1(raw: np.ndarray) -> np.ndarray:
    return _nibbles(raw[:, 4:]) * _half(raw, 0) + _half(raw, 2)


def q8_0(raw: np.ndarray) -> np.ndarray:
    return raw[:, 2:].view(np.int8).astype(np.float32) * _half(raw, 0)


def q4_k(raw: np.ndarray) -> np.ndarray:
    d, m = _half(raw, 0), _half(raw, 2)
    packed = raw[:, 4:16].astype(np.int32)
    out = np.empty((len(raw), 8, 32), np.float32)
    for g in range(8):
        if g < 4:
            s, t = packed[:, g] & 63, packed[:, g + 4] & 63
        else:
            s = (packed[:, g + 4] & 15) | ((packed[:, g - 4] >> 6) << 4)
            t = (packed[:, g + 4] >> 4) | ((packed[:, g] >> 6) << 4)
        q = raw[:, 16 + 32 * (g // 2) : 48 + 32 * (g // 2)]
        q = (q >> 4 if g % 2 else q & 15).astype(np.float32)
        out[:, g] = d * s[:, None].astype(np.float32) * q - m * t[:, None].astype(np.float32)
    return out.reshape(len(raw), 256)


def q6_k(raw: np.ndarray) -> np.ndarray:
    d = _half(raw, 208)
    scales = raw[:, 192:208].view(np.int8).astype(np.float32)
    out = np.empty((len(raw), 256), np.float32)
    for w in range(256):
        half, quarter, column = w // 128, w % 128 // 32, w % 32
        low = raw[:, 64 * half + 32 * (quarter % 2) + column]
        low = low >> 4 if quarter >= 2 else low & 15
        high = raw[:, 128 + 32 * half + column] >> (2 * quarter) & 3
        q = (low | high << 4).astype(np.float32) - 32
        out[:, w] = d[:, 0] * scales[:, w // 16] * q
    return out


MEANING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q6_K": q6_k,
}
_HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}


def random_blocks(name: str, blocks: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks [blocks, bytes] of random bits, with half-precision numbers that are finite and of every size."""
    raw = rng.integers(0, 256, (blocks, BLOCK_FORMATS[name].nbytes), dtype=np.uint8)
    for at in _HALVES[name]:
        values = (rng.standard_normal(blocks) * 2.0 ** rng.integers(-24, 10, blocks)).astype(np.float16)
        raw[:, at : at + 2] = values.view(np.uint8).reshape(blocks, 2)
    return raw


def quantise(name: str, weights: np.ndarray) -> np.ndarray:
    """Weights to the nearest the format can do with one scale per block (and one minimum where it has one)."""
    layout = BLOCK_FORMATS[name]
    rows = weights.reshape(-1, layout.weights).astype(np.float32)
    raw = np.zeros((len(rows), layout.nbytes), np.uint8)
    low, high, peak = rows.min(1), rows.max(1), np.abs(rows).max(1)
    levels = {"Q4_0": 7, "Q4_1": 15, "Q8_0": 127, "Q4_K": 15, "Q6_K": 31}[name]
    ranged = name in ("Q4_1", "Q4_K")
    d = ((high - np.minimum(low, 0) if ranged else peak) / levels).astype(np.float16)
    m = np.maximum(-low, 0).astype(np.float16)
    step = np.where(d == 0, 1, d.astype(np.float32))[:, None]
    shift = {"Q4_0": 8, "Q8_0": 0, "Q6_K": 32}.get(name)
    if ranged:
        q = np.clip(np.round((rows + m.astype(np.float32)[:, None]) / step), 0, 15).astype(np.uint8)
    else:
        q = (np.clip(np.round(rows / step), -levels, levels) + shift).astype(np.int8).view(np.uint8)
    halves = {"Q4_0": (d,), "Q4_1": (d, -m), "Q8_0": (d,), "Q4_K": (d, m), "Q6_K": (d,)}[name]
    for at, half in zip(_HALVES[name], halves, strict=True):
        raw[:, at : at + 2] = half.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if name == "Q8_0":
        raw[:, 2:] = q
    elif name in ("Q4_0", "Q4_1"):
        raw[:, layout.nbytes - 16 :] = q[:, :16] | q[:, 16:] << 4
    elif name == "Q4_K":
        raw[:, 4:12], raw[:, 12:16] = 1, 0x11  # every group's s and t are 1
        groups = q.reshape(-1, 4, 2, 32)
        raw[:, 16:] = (groups[:, :, 0] | groups[:, :, 1] << 4).reshape(-1, 128)
    else:
        raw[:, 192:208] = 1
        parts = q.reshape(-1, 2, 4, 32)
        raw[:, :128] = np.stack([parts[:, :, i] & 15 | (parts[:, :, i + 2] & 15) << 4 for i in (0, 1)], axis=2).reshape(
            -1, 128
        )
        raw[:, 128:192] = sum((parts[:, :, i] >> 4) << (2 * i) for i in range(4)).reshape(-1, 64)
    return raw
