"""What AMX tiles compute, by vector instructions that add dot products of 4 bytes (VNNI) or 2 bfloat16 (AVX512-BF16) to each lane.

Operands are packed as tiles are: `gemm_amx` and `conv_amx` put these loops in place of a register tile where a machine has no tiles.
VNNI multiplies unsigned by signed bytes: the left operand has 128 added (its sign bits flipped, `FLIPPED`), and 128 times the sums of the right
one, kept beside the others, is taken off in the end. Sums wrap around.

May not know: blocks, where operands come from. Entry: `serves`, `multiply`.
"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.kernel import instructions as x86
from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, bf16, f32, i8, i32, u8, u32

FLIPPED = 0x80808080  # sign bits of four bytes
LINES = 16  # of a tile
LINE_BYTES = 64
UNROLL = 4


def serves(dtype: str, target: Target) -> bool:
    """Whether the machine has such instructions for int8 or bfloat16, and they pay."""
    lanes = target.vector_bytes // 4
    if dtype == "int8":
        return target.vector_bytes >= 32 and x86.vpdpbusd.available(target, i32.vec(lanes))
    # Intel's cores take two cycles for it, so that float32 is faster there (docs/log.md).
    fast = target.cpu.startswith("znver") and target.vector_bytes == 64
    return dtype == "bfloat16" and fast and x86.vdpbf16ps.available(target, f32.vec(lanes))


def multiply(
    k: Function,
    target: Target,
    sum_type: Type,
    rows: int,
    columns: int,
    left: Value,
    right: Value,
    right_tile: Value | int,
    pitch: Value | int,
    steps: Callable[[Callable[[Value, Value], None], Value, Value], None],
    sums: Callable[[int, int], Value],
    add: Value | None = None,
) -> None:
    """sums (+)= left @ right for rows x columns tiles (1 or 2 each).

    `steps(step, left, right)` calls `step(left, right)` for each 64 bytes of depth: left tiles are a kilobyte apart, right ones `right_tile`
    bytes, and their lines `pitch`. `sums(i, c)` is where row i of column tile c belongs; with `add` not 0, what is there is added to.
    """
    lanes = target.vector_bytes // 4
    vector, pieces = sum_type.vec(lanes), LINES // lanes
    bytes_ = sum_type is i32
    # A register tile: as many rows as leave room for lines of the right, a value of the left and, for bytes, the sums to take off.
    groups = [range(columns)] if lanes == LINES else [range(c, c + 1) for c in range(columns)]
    for group in groups:
        cells = [(c, u) for c in group for u in range(pieces)]
        most = (2 * lanes - 1 - len(cells) * (2 if bytes_ else 1)) // len(cells)
        height = -(-LINES * rows // -(-LINES * rows // most))
        for first in range(0, LINES * rows, height):
            block = range(first, min(first + height, LINES * rows))
            total = {(i, *cell): k.var(vector, 0) for i in block for cell in cells}
            excess = {cell: k.var(vector, 0) for cell in cells} if bytes_ else {}
            if add is not None:
                with k.when(add.ne(0)):
                    for (i, c, u), value in total.items():
                        value.set(k.load(sums(i, c), vector, u * lanes))

            def step(a: Value, b: Value, block=block, cells=cells, total=total, excess=excess) -> None:
                with k.range(0, LINES, UNROLL) as j:
                    a_now, b_now = k.offset(a, j * 4), k.offset(b, j * pitch)
                    for q in range(UNROLL):
                        line = b_now if q == 0 else k.offset(b_now, q * pitch)
                        found = {
                            (c, u): k.load(k.offset(line, c * right_tile) if c else line, vector, u * lanes)
                            for c, u in cells
                        }
                        if bytes_:
                            ones = k.const(u32.vec(lanes), FLIPPED)
                            for cell in cells:
                                excess[cell].set(_dot(k, excess[cell].get(), ones, found[cell]))
                        for i in block:
                            at = i // LINES * LINES * LINE_BYTES + i % LINES * LINE_BYTES + 4 * q
                            x = k.splat(k.load(k.offset(a_now, at), u32), lanes)
                            for cell in cells:
                                total[i, *cell].set(_dot(k, total[i, *cell].get(), x, found[cell]))

            steps(step, left, right)
            for (i, c, u), value in total.items():
                found = value.get() - excess[c, u].get() if bytes_ else value.get()
                k.store(sums(i, c), found, u * lanes)


def _dot(k: Function, total: Value, x: Value, y: Value) -> Value:
    """total + the products of what four bytes of each lane hold."""
    lanes = total.type.lanes
    if total.type.element is i32:
        return x86.vpdpbusd(k, total, x.bitcast(u8.vec(4 * lanes)), y.bitcast(i8.vec(4 * lanes)))
    return x86.vdpbf16ps(k, total, x.bitcast(bf16.vec(2 * lanes)), y.bitcast(bf16.vec(2 * lanes)))
