"""Quantised blocks to float32: one kernel per block format, one unit per block.

    lowered = dequant("Q4_1", blocks)        # operands: packed bytes, float32 output

Every product below is exact in float32 (an 11-bit half times integers of at most 8 bits), so a weight is rounded at most
once and the result does not depend on whether the machine fuses multiply and add.

The layouts are described in `core/block_format.py`. May not know: tensors, files. Entry: `dequant`.
"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.core.block_format import BLOCK_FORMATS
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import f16, f32, i8, i32, i64, ptr, u8
from flambeau.templates.launch import Launch, Lowered, Recipe

LANES = 16
GRAIN_WEIGHTS = 1 << 15  # 128 KiB of output: a few microseconds, well above the cost of handing out a chunk
F = f32.vec(LANES)
B = u8.vec(LANES)


def dequant(format_name: str, blocks: int) -> Lowered:
    """One launch that unpacks `blocks` blocks. Operands: 0 the packed bytes, 1 the float32 weights, in row order."""
    if format_name not in _EMITTERS:
        raise ValueError(
            f"dequant: format must be one of {', '.join(_EMITTERS)}, got {format_name}. Convert the weights to one of them."
        )
    grain = GRAIN_WEIGHTS // BLOCK_FORMATS[format_name].weights
    recipe = Recipe(f"dequant_{format_name.lower()}", (format_name,), build_dequant)
    return Lowered((Launch(recipe, (0, 1), (blocks, grain)),))


def build_dequant(target: Target, format_name: str) -> Module:
    """The kernel of a format: units are blocks."""
    layout = BLOCK_FORMATS[format_name]
    emit = _EMITTERS[format_name]
    module = Module(vector_bits=max(256, target.vector_bytes * 8))
    k = module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])
    slots, begin, end, _ = k.args
    source, weights = k.load(slots, ptr, 0), k.load(slots, ptr, 1)
    with k.range(begin, end) as block:
        emit(k, k.offset(source, block * layout.nbytes), k.offset(weights, block * (4 * layout.weights)))
    k.ret()
    return module


# ---------------------------------------------------------------------- reading and writing
def _half(k: Function, block: Value, offset_bytes: int) -> Value:
    return k.load(k.offset(block, offset_bytes), f16).to(f32)


def _bytes(k: Function, block: Value, offset_bytes: int) -> Value:
    return k.load(k.offset(block, offset_bytes), B)


def _float(q: Value) -> Value:
    return q.to(i32).to(f32)  # by way of i32: machines convert signed 32-bit integers only


def _put(k: Function, weights: Value, first: int, values: Value) -> None:
    k.store(k.offset(weights, 4 * first), values, align=4)


# ---------------------------------------------------------------------- blocks of 32
def dequant_q4_0(k: Function, block: Value, weights: Value) -> None:
    d = _half(k, block, 0)
    q = _bytes(k, block, 2)
    _put(k, weights, 0, _float((q & 15).to(i32) - 8) * d)
    _put(k, weights, 16, _float((q >> 4).to(i32) - 8) * d)


def dequant_q4_1(k: Function, block: Value, weights: Value) -> None:
    d, m = k.splat(_half(k, block, 0), LANES), k.splat(_half(k, block, 2), LANES)
    q = _bytes(k, block, 4)
    _put(k, weights, 0, k.fma(_float(q & 15), d, m))
    _put(k, weights, 16, k.fma(_float(q >> 4), d, m))


def dequant_q8_0(k: Function, block: Value, weights: Value) -> None:
    d = _half(k, block, 0)
    for first in (0, 16):
        q = k.load(k.offset(block, 2 + first), i8.vec(LANES))
        _put(k, weights, first, _float(q) * d)


# ---------------------------------------------------------------------- blocks of 256
def _six_bit_pairs(k: Function, block: Value) -> list[tuple[Value, Value]]:
    """The (s, t) of the eight groups: bytes 0..3 and 4..7 hold those of groups 0..3 in their low six bits; the
    others have their low halves in bytes 8..11 and their high pairs on top of bytes 0..7."""
    raw = [k.load(k.offset(block, 4 + i), u8).to(i32) for i in range(12)]
    pairs = [(raw[g] & 63, raw[g + 4] & 63) for g in range(4)]
    for g in range(4):
        s = (raw[g + 8] & 15) | ((raw[g] >> 6) << 4)
        t = (raw[g + 8] >> 4) | ((raw[g + 4] >> 6) << 4)
        pairs.append((s, t))
    return pairs


def dequant_q4_k(k: Function, block: Value, weights: Value) -> None:
    d, m = _half(k, block, 0), _half(k, block, 2)
    scales = [(k.splat(d * s.to(f32), LANES), k.splat(m * t.to(f32), LANES)) for s, t in _six_bit_pairs(k, block)]
    for group in range(0, 8, 2):  # 32 bytes hold two groups: low halves, then high halves
        for part in (0, 16):
            q = _bytes(k, block, 16 + 16 * group + part)
            for high, nibble in enumerate((q & 15, q >> 4)):
                scale, least = scales[group + high]
                _put(k, weights, 32 * (group + high) + part, k.fma(_float(nibble), scale, -least))


def dequant_q6_k(k: Function, block: Value, weights: Value) -> None:
    d = _half(k, block, 208)
    scales = [k.splat(d * k.load(k.offset(block, 192 + g), i8).to(i32).to(f32), LANES) for g in range(16)]
    for half in (0, 1):  # 128 weights: 64 bytes of low halves, 32 bytes of high pairs
        for part in (0, 16):
            low = [_bytes(k, block, 64 * half + part), _bytes(k, block, 64 * half + 32 + part)]
            pairs = _bytes(k, block, 128 + 32 * half + part)
            for quarter in range(4):
                nibble = low[quarter % 2] & 15 if quarter < 2 else low[quarter % 2] >> 4
                q = nibble | (((pairs >> (2 * quarter)) & 3) << 4)
                group = 8 * half + 2 * quarter + part // 16
                _put(k, weights, 128 * half + 32 * quarter + part, _float(q.to(i32) - 32) * scales[group])


_EMITTERS: dict[str, Callable[[Function, Value, Value], None]] = {
    "Q4_0": dequant_q4_0,
    "Q4_1": dequant_q4_1,
    "Q8_0": dequant_q8_0,
    "Q4_K": dequant_q4_k,
    "Q6_K": dequant_q6_k,
}
