"""Philox4x32-10: four random 32-bit words from a counter and a key, in every lane.

    words = philox(k, index, stream, seed)     # i64 values -> four u64 values below 2**32
    u = uniform(k, words[0], f32)              # [0, 1), 24 bits
    a, b = normal_pair(k, words[0], words[1])  # f32, Box-Muller

The counter is (index, stream), 64 bits each, the key is the seed, so a value depends on its place and on nothing else: the same
numbers come for any number of threads, lanes and strides. Rounds run in 64-bit lanes whose upper halves are ignored by the one
multiplication that reads them (vpmuludq): no shuffles.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
May not know: tensors, generators.
"""

from __future__ import annotations

from flambeau.kernel import vmath
from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import Type, f32, f64, i64, u64

ROUNDS = 10
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
STEP_0, STEP_1 = 0x9E3779B9, 0xBB67AE85
LOW = 0xFFFFFFFF
TWO_PI = 6.283185307179586


def philox(k: Function, index: Value, stream: Value, seed: Value) -> tuple[Value, Value, Value, Value]:
    """Four words of 32 bits, each in a u64 lane. `index`, `stream`, `seed`: i64, scalars or vectors."""
    lanes = max(index.type.lanes, stream.type.lanes, seed.type.lanes)
    index, stream, seed = (k.splat(v, lanes).to(u64) for v in (index, stream, seed))
    c0, c1, c2, c3 = index, index >> 32, stream, stream >> 32
    k0, k1 = seed & LOW, seed >> 32
    for _ in range(ROUNDS):
        p0, p1 = (c0 & LOW) * MULTIPLIER_0, (c2 & LOW) * MULTIPLIER_1
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1, (p0 >> 32) ^ c3 ^ k1, p0
        k0, k1 = k0 + STEP_0, k1 + STEP_1
    return c0 & LOW, c1 & LOW, c2 & LOW, c3 & LOW


def wide(high: Value, low: Value) -> Value:
    """Two words as one 64-bit value."""
    return (high << 32) | low


def uniform(k: Function, word: Value, kind: Type, bits: int | None = None) -> Value:
    """[0, 1) from a word of 32 bits (f32: 24 of them unless told) or 64 bits (f64: 53)."""
    if kind.element is f64:
        return (word >> 11).to(i64).to(f64) * 2.0**-53
    bits = bits or 24
    return (word >> (32 - bits)).to(i64).to(f32) * 2.0**-bits


def uniform_above_zero(k: Function, word: Value, kind: Type) -> Value:
    """(0, 1], down to 2**-32 (f32) or 2**-53: safe to take the logarithm of."""
    if kind.element is f64:
        return ((word >> 11).to(i64) + 1).to(f64) * 2.0**-53
    return (word.to(i64) + 1).to(f32) * 2.0**-32


def normal_pair(k: Function, first: Value, second: Value, kind: Type = f32) -> tuple[Value, Value]:
    """Two independent standard normal values (Box and Muller) from two words (64-bit words for f64)."""
    radius, angle = _polar(k, first, second, kind)
    return radius * vmath.cos(k, angle), radius * vmath.sin(k, angle)


def normal(k: Function, first: Value, second: Value, kind: Type = f32) -> Value:
    """The first of `normal_pair` alone."""
    radius, angle = _polar(k, first, second, kind)
    return radius * vmath.cos(k, angle)


def _polar(k: Function, first: Value, second: Value, kind: Type) -> tuple[Value, Value]:
    radius = vmath.sqrt(k, vmath.log(k, uniform_above_zero(k, first, kind)) * -2.0)
    return radius, (uniform(k, second, kind) - 0.5) * TWO_PI


__all__ = ["normal", "normal_pair", "philox", "uniform", "uniform_above_zero", "wide"]
