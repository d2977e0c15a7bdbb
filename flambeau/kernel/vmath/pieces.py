"""Piecewise polynomials with their coefficients in registers: 16 pieces, one permutation a coefficient (AVX-512, f32).

    y, n, d = in_pieces(k, a, width, rows)      # a in [0, 15 width], 16 lanes; rows from benchmarks/minimax.py --pieces

Half the instructions of one polynomial for all arguments: 6 permutations and 5 fma where erf takes 13 fma, and permutations have
a port that fma leaves free. Only where the module says `native_tables`; any width of vector gives the same bits.
May not know: what function it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flambeau.kernel import instructions
from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import f32
from flambeau.kernel.vmath.arithmetic import polynomial, round_to_integer

PIECES = 16  # lanes of a register


def suits_pieces(k: Function, x: Value) -> bool:
    return k.module.native_tables and x.type.element is f32


def by_registers(k: Function, x: Value, function: Callable[[Function, Value], Value]) -> Value:
    """function(x) on vectors of 16 lanes: narrower ones are padded, wider ones halved."""
    lanes = x.type.lanes
    if lanes == PIECES:
        return function(k, x)
    if lanes == 0:
        return k.extract(function(k, k.splat(x, PIECES)), 0)
    if lanes < PIECES:
        padded = k.shuffle(x, None, [*range(lanes), *[-1] * (PIECES - lanes)])
        return k.shuffle(function(k, padded), None, range(lanes))
    half = lanes // 2
    low, high = (by_registers(k, k.shuffle(x, None, at), function) for at in (range(half), range(half, lanes)))
    return k.shuffle(low, high, range(lanes))


def in_pieces(k: Function, a: Value, width: float, rows: Sequence[Sequence[float]]) -> tuple[Value, Value, Value]:
    """(sum rows[j][n] d^j, n, d): n the nearest multiple of width, d what is left of a."""
    n, index = round_to_integer(k, a, 1.0 / width)
    d = k.fma(n, -width, a)
    picked = [instructions.vpermps(k, k.consts(f32.vec(PIECES), row), index) for row in rows]
    return polynomial(k, d, picked), n, d
