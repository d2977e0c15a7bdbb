"""The small products of attention: register tiles and AMX tiles over scratch, all strides known when the kernel is compiled.

    tile = product(module, "scores_14", f32, 16, Shape(rows=14, vectors=2, a_row=64, a_step=1, b_step=32, c_row=128), steps=64)
    k.call(tile, 0, a, b, c, factors)

Sizes of heads are few and kernels are compiled for them, so that every address but four pointers is a constant in an instruction.
May not know: what is multiplied. Entry: `product`, `amx_product`, `row_tiles`; `load_line` and `store_line` for what comes in and goes out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.types import Type, i64, ptr
from flambeau.templates.gemm_amx import tile_instruction

UNROLL = 4
AMX_ROWS = 32  # of a product of 2 x 2 tiles


class Shape(NamedTuple):
    """c[rows, vectors] = a @ b. Strides in elements."""

    rows: int
    vectors: int
    a_row: int
    a_step: int
    b_step: int
    c_row: int
    starts: str = (
        "zero"  # from what the sums start: "zero", "c" (what is there), "scaled" (that, times a factor for each row)
    )


def product(module: Module, name: str, element: Type, lanes: int, shape: Shape, steps: int = 0) -> Function:
    """name(steps, a, b, c, factors): a register tile over `steps` of depth (a constant, if it is given here)."""
    params = [("steps", i64), ("a", ptr), ("b", ptr), ("c", ptr), ("factors", ptr)]
    k = module.function(name, params, internal=True)
    count, a, b, c, factors = k.args
    size, vector = element.size, element.vec(lanes)
    rows, columns = range(shape.rows), range(shape.vectors)

    def start(i: int, j: int) -> Value:
        if shape.starts == "zero":
            return k.const(vector, 0)
        old = k.load(c, vector, 0) if i == j == 0 else k.load(k.offset(c, i * shape.c_row + j * lanes, element), vector)
        return old * k.splat(k.load(factors, element, i), lanes) if shape.starts == "scaled" else old

    sums = [[k.var(vector, start(i, j)) for j in columns] for i in rows]
    a_now, b_now = k.var(ptr, a), k.var(ptr, b)

    def turn(many: int) -> None:
        x, y = a_now.get(), b_now.get()
        for u in range(many):
            lines = [k.load(k.offset(y, u * shape.b_step + j * lanes, element), vector) for j in columns]
            for i in rows:
                one = k.splat(k.load(x, element, i * shape.a_row + u * shape.a_step), lanes)
                for j in columns:
                    sums[i][j].set(k.fma(one, lines[j], sums[i][j].get()))
        a_now.set(k.offset(x, many * shape.a_step * size))
        b_now.set(k.offset(y, many * shape.b_step * size))

    whole = steps // UNROLL if steps else count >> (UNROLL.bit_length() - 1)
    with k.range(0, whole):
        turn(UNROLL)
    if not steps or steps % UNROLL:
        with k.range(0, steps % UNROLL if steps else count & (UNROLL - 1)):
            turn(1)
    for i in rows:
        for j in columns:
            k.store(k.offset(c, i * shape.c_row + j * lanes, element), sums[i][j].get())
    k.ret()
    return k


class AmxShape(NamedTuple):
    """c[32, 32] = a @ b in tiles of 16 x 16. Strides in bytes."""

    a_row: int
    a_step: int  # to the next 64 bytes of depth
    b_row: int  # between lines of a tile of b
    b_next: int  # to the tile beside it
    b_step: int
    c_row: int
    adds: bool = False  # to what is there


def amx_product(module: Module, name: str, shape: AmxShape, steps: int = 0) -> Function:
    """name(steps, a, b, c): bfloat16 tiles with float32 sums, over `steps` of 32 (a constant, if it is given here)."""
    k = module.function(name, [("steps", i64), ("a", ptr), ("b", ptr), ("c", ptr)], internal=True)
    count, a, b, c = k.args
    a_row, b_row, c_row = (k.const(i64, n) for n in (shape.a_row, shape.b_row, shape.c_row))
    cells = [k.offset(c, tile // 2 * 16 * shape.c_row + tile % 2 * 64) for tile in range(4)]
    for tile, cell in enumerate(cells):
        if shape.adds:
            tile_instruction(k, "tileloadd64", tile, cell, c_row)
        else:
            tile_instruction(k, "tilezero", tile)

    def step(left: Value, right: Value) -> None:
        tile_instruction(k, "tileloadd64", 4, left, a_row)
        tile_instruction(k, "tileloadd64", 6, right, b_row)
        tile_instruction(k, "tdpbf16ps", 0, 4, 6)
        tile_instruction(k, "tileloadd64", 7, k.offset(right, shape.b_next), b_row)
        tile_instruction(k, "tdpbf16ps", 1, 4, 7)
        tile_instruction(k, "tileloadd64", 5, k.offset(left, 16 * shape.a_row), a_row)
        tile_instruction(k, "tdpbf16ps", 2, 5, 6)
        tile_instruction(k, "tdpbf16ps", 3, 5, 7)

    if steps:
        for i in range(steps):
            step(k.offset(a, i * shape.a_step), k.offset(b, i * shape.b_step))
    else:
        with k.range(0, count) as i:
            step(k.offset(a, i * shape.a_step), k.offset(b, i * shape.b_step))
    for tile, cell in enumerate(cells):
        tile_instruction(k, "tilestored64", tile, cell, c_row)
    k.ret()
    return k


def row_tiles(k: Function, heights: tuple[int, ...], rows: Value, emit: Callable[[Value, int], None]) -> None:
    """Cover `rows` by tiles of falling heights, the last of which may reach past them: emit(first row, height)."""
    most = heights[0]
    whole = rows // most * most
    with k.range(0, whole, most) as i:
        emit(i, most)
    left = rows - whole
    for height, smaller in zip(heights, (*heights[1:], 0), strict=True):
        with k.when((left > smaller) & (left <= height)):
            emit(whole, height)


def load_line(k: Function, source: Value, memory: Type, element: Value, size: int, to: Value, register: Type, lanes: int, padded: int = 0) -> None:  # fmt: skip
    """`size` elements of a line, `element` apart, converted to `register` at `to`; zeros up to `padded`."""

    def along() -> None:
        for j in range(0, max(size, padded), lanes):
            if j >= size:
                k.store(to, k.const(register.vec(lanes), 0), j)
                continue
            cut = k.tail_mask(k.const(i64, size - j), lanes) if size - j < lanes else None
            value = k.load(k.offset(source, j, memory), memory.vec(lanes), mask=cut).to(register)
            k.store(k.offset(to, j, register), value, mask=None if j + lanes <= padded else cut)

    def apart() -> None:
        with k.range(0, size) as j:
            k.store(to, k.load(source, memory, j * element).to(register), j)
        with k.range(size, padded) as j:
            k.store(to, k.const(register, 0), j)

    k.when_else(element.eq(1), along, apart)


def store_line(k: Function, source: Value, register: Type, factor: Value, size: int, to: Value, memory: Type, element: Value, lanes: int) -> None:  # fmt: skip
    """`size` elements of a line of `register`, times `factor`, to memory `element` apart."""

    def along() -> None:
        wide = k.splat(factor, lanes)
        for j in range(0, size, lanes):
            cut = k.tail_mask(k.const(i64, size - j), lanes) if size - j < lanes else None
            value = k.load(k.offset(source, j, register), register.vec(lanes)) * wide
            k.store(k.offset(to, j, memory), value.to(memory), mask=cut)

    def apart() -> None:
        with k.range(0, size) as j:
            k.store(to, (k.load(source, register, j) * factor).to(memory), j * element)

    k.when_else(element.eq(1), along, apart)
