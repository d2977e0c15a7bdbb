"""bfloat16 and int8 products on AMX tiles, or vectors in their place: 64 bytes of depth at a time into 16 x 16 float32 or int32, rounded once at the end.

The left operand wants rows that run along depth, the right one 4 bytes of depth interleaved (VNNI). Both are packed into
kilobyte tiles, two side by side, so that a register tile of 32 x 32 reads two straight streams; a left operand that
lies right already is read in place. For a linear layer with few rows the weights are the left operand: they are read
once, unpacked, and the result is stored transposed.

Numerics: products of bfloat16 are exact in float32 and added in pairs, denormals read as 0, as the instruction does it.
The order of summation depends on depth only. Sums of int8 wrap around.

May not know: other ways to multiply. Entry: `lower_amx`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flambeau.kernel import target as targets
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, f32, i8, i32, i64, ptr, u8, u16, u32, void
from flambeau.templates import gemm_vector_tiles as vectors
from flambeau.templates.epilogue import EpilogueCode, Finishing
from flambeau.templates.gemm_pack import order_of, transposed
from flambeau.templates.gemm_problem import (
    Grid,
    Problem,
    after_batch,
    blocks_of,
    launch,
    main_launch,
    packed_batch,
    round_up,
    unit_blocks,
)
from flambeau.templates.gemm_tiles import ABI, ELEMENTS, finish_function, unit_offsets
from flambeau.templates.gemm_vector_tiles import FLIPPED
from flambeau.templates.launch import Lowered

PANEL = 32  # rows of a left panel, columns of a right one: two tiles
STEP_BYTES = 64  # depth of a tile
PAIR_BYTES = 2048  # two tiles
STAGE_BYTES = 4096  # four tiles of sums
BLOCK_BYTES = 4096  # of depth
FETCHES = 4  # lines of the next right panel asked into L2 in a step: all of it while 256 rows pass
PACK_COLUMNS = 768  # of a result: so many repay packing a left operand that lies right
L1_BYTES, L2_BYTES = 48 << 10, 2 << 20
FINISHED_PANELS = 16  # of columns in a call of an epilogue: lines are then worth a loop each, and all of it stays in L2
PACKED_PANELS = 8  # in a unit of packing: pieces of lines long enough to be prefetched

FIELDS = (
    "units", "grain", "m", "n", "k", "a_row", "a_step", "b_step", "b_column", "c_row", "c_column", "bias_row", "bias_column",
    "block_m", "block_n", "block_k", "tiles_m", "tiles_n", "scratch_stride", "in_place", "stage_stride", "by_rows", "flags",
)  # fmt: skip
BATCH = len(FIELDS)


class Element(NamedTuple):
    """What tiles are made of."""

    bits: Type  # an element as it is moved about
    sums: Type
    multiply: str  # the instruction

    @property
    def step(self) -> int:
        """Depth of a tile."""
        return STEP_BYTES // self.bits.size


TILES = {"bfloat16": Element(u16, f32, "tdpbf16ps"), "int8": Element(u8, i32, "tdpbssd")}


def has_tiles(dtype: str, target: Target) -> bool:
    """Whether the machine has tiles for a dtype."""
    needs = {"bfloat16": ("amx-bf16", "avx512bf16"), "int8": ("amx-int8",)}.get(dtype)
    return bool(needs) and target.has(*needs) and target.vector_bytes == 64


def tile_instruction(k: Function, operation: str, *arguments: Value | int) -> None:
    values = [a if isinstance(a, Value) else k.const(i8, a) for a in arguments]
    k.intrinsic(f"llvm.x86.{operation}", void, *values)


def _pack_function(module: Module, name: str, role: str, order: str, bits: Type, flip: bool = False) -> Function:
    """name(source, stride, step, count, depth, out): one half (16 rows or columns) of a panel, its tiles PAIR_BYTES apart.

    Depth is filled up with zeros to whole tiles. Rows past `count` hold anything. With `flip` bytes have 128 added.
    """

    def store(tile: Value, lines: list[Value]) -> None:
        _store_tile(k, tile, [line ^ FLIPPED for line in lines] if flip else lines)

    k = module.function(
        name,
        [("source", ptr), ("stride", i64), ("step", i64), ("count", i64), ("depth", i64), ("out", ptr)],
        internal=True,
    )
    source, stride, step, count, depth, out = k.args
    deep = STEP_BYTES // bits.size
    whole = depth & -deep

    def tile_at(p: Value) -> Value:
        return k.offset(out, p * (PAIR_BYTES // deep))

    if order == "depth":  # lines along depth: a row of a left tile, a column of a right one
        rows = [k.offset(source, k.minimum(count - 1, i) * stride, bits) for i in range(16)]

        def square(p: Value, tail: bool) -> None:
            mask = k.tail_mask(depth - p, deep) if tail else None
            lines = [k.load(row, bits.vec(deep), p, mask=mask).bitcast(u32.vec(16)) for row in rows]
            store(tile_at(p), transposed(k, lines) if role == "right" else lines)
    else:
        lanes = k.tail_mask(count, 16)
        indices = None if order == "width" else k.iota(i64.vec(16)) * k.splat(stride, 16)

        def square(p: Value, tail: bool) -> None:
            lines = []
            for i in range(0, deep, 4 // bits.size):
                parts = []
                for q in range(i, i + 4 // bits.size):
                    mask = lanes & k.splat(p + q < depth, 16) if tail else lanes
                    line = k.offset(source, (p + q) * step, bits)
                    parts.append(
                        k.load(line, bits.vec(16), mask=mask)
                        if indices is None
                        else k.gather(line, bits, indices, mask=mask)
                    )
                lines.append(woven(k, parts).bitcast(u32.vec(16)))
            store(tile_at(p), transposed(k, lines) if role == "left" else lines)

    with k.range(0, whole, deep) as p:
        square(p, False)
    with k.when(whole < depth):
        square(whole, True)
    k.ret()
    return k


def woven(k: Function, parts: list[Value]) -> Value:
    """The first elements of 2 or 4 vectors, then the second ones, and so on."""
    while len(parts) > 1:
        half = len(parts) // 2  # of 4: the first with the third, so that the second round puts them in order
        lanes = range(parts[0].type.lanes)
        count = len(lanes)
        parts = [k.shuffle(parts[i], parts[i + half], [x for j in lanes for x in (j, count + j)]) for i in range(half)]
    return parts[0]


def _store_tile(k: Function, tile: Value, lines: list[Value]) -> None:
    for i, line in enumerate(lines):
        k.store(tile, line, i * 16)


def _pack_panels(k: Function, half: Function, order: str, source: Value, stride: Value, step: Value, count: Value, depth: Value,
                 out: Value, panel_bytes: Value, bits: Type) -> None:  # fmt: skip
    """`count` rows or columns into panels, `panel_bytes` apart."""
    unit = STEP_BYTES // bits.size

    def one(i: Value, p: Value | int, deep: Value) -> None:
        to = k.offset(out, i // PANEL * panel_bytes + (p * (PAIR_BYTES // unit)))
        at = k.offset(source, i * stride + p * step, bits)
        k.call(half, at, stride, step, count - i, deep, to)
        with k.when(count - i > 16):
            k.call(
                half, k.offset(at, stride * 16, bits), stride, step, count - i - 16, deep, k.offset(to, PAIR_BYTES // 2)
            )

    if order == "depth":
        with k.range(0, count, PANEL) as i:
            one(i, k.const(i64, 0), depth)
    else:  # lines across: a step of depth over all panels, so that reads run on along the lines
        with k.range(0, depth, unit) as p, k.range(0, count, PANEL) as i:
            one(i, p, k.minimum(depth - p, unit))


def _store_line(k: Function, sums: Value, out: Value, c_line: Value, i: Value, sum_type: Type, out_type: Type) -> None:
    """Line i of four tiles of sums to a result with unit stride, all 32 columns of it."""
    source, target = k.offset(sums, (i >> 4) * 2048 + (i & 15) * 64), k.offset(out, i * c_line)
    for half in range(2):
        k.store(target, k.load(k.offset(source, 1024 * half), sum_type.vec(16)).to(out_type), 16 * half)


MICRO_ARGUMENTS = [
    ("steps", i64), ("a", ptr), ("a_half", i64), ("a_line", i64), ("a_next", i64), ("b", ptr), ("sums", ptr), ("add", i64),
    ("before", ptr), ("due", i64), ("out", ptr), ("c_line", i64), ("ahead", ptr), ("next_b", ptr),
]  # fmt: skip


def _micro(
    module: Module, element: Element, rows: int, columns: int, once: bool, prefetch_steps: int, out_type: Type
) -> Function:
    """sums (+)= left @ right for rows x columns tiles (1 or 2 each), over `steps` tiles of depth.

    Left tiles are at a and a + a_half, lines `a_line` apart, the next ones `a_next` on (bytes); right ones are packed.
    Meanwhile `due` lines of the tiles before, which are at `before`, go to their result: one a step, when the vector
    units have nothing to do and the tiles have long left the pipeline. `once` keeps the left from pushing the panel of
    the right out of L1. `next_b` is asked into L2, FETCHES lines a step.
    """
    k = module.function(f"tile_{rows}x{columns}", MICRO_ARGUMENTS, internal=True)
    steps, a, a_half, a_line, a_next, b, sums, add, before, due, out, c_line, c_ahead, next_b = k.args
    line = k.const(i64, 64)
    load_left = "tileloaddt164" if once else "tileloadd64"
    cells = [(r, c) for r in range(rows) for c in range(columns)]

    def zero() -> None:
        for r, c in cells:
            tile_instruction(k, "tilezero", 2 * r + c)

    def reload() -> None:
        for r, c in cells:
            tile_instruction(k, "tileloadd64", 2 * r + c, k.offset(sums, 1024 * (2 * r + c)), line)

    k.when_else(add.eq(0), zero, reload)
    for i in range(PANEL):
        k.prefetch(c_ahead, c_line * i, write=True)
    left, right, coming = k.var(ptr, a), k.var(ptr, b), k.var(ptr, next_b)
    with k.range(0, steps) as step:
        x, y = left.get(), right.get()
        tile_instruction(k, load_left, 4, x, a_line)
        for c in range(columns):
            tile_instruction(k, "tileloadd64", 6 + c, k.offset(y, 1024 * c), line)
            tile_instruction(k, element.multiply, c, 4, 6 + c)
        if rows == 2:
            tile_instruction(k, load_left, 5, k.offset(x, a_half), a_line)
            for c in range(columns):
                tile_instruction(k, element.multiply, 2 + c, 5, 6 + c)
        if prefetch_steps:
            ahead = k.offset(x, a_next * prefetch_steps)
            for i in range(16 * rows):
                k.prefetch(k.offset(ahead, a_line * i))
        if not prefetch_steps:
            for i in range(FETCHES):
                k.prefetch(coming.get(), 64 * i, locality=2)
            coming.set(k.offset(coming.get(), 64 * FETCHES))
        with k.when(step < due):
            _store_line(k, before, out, c_line, step, element.sums, out_type)
        left.set(k.offset(x, a_next))
        right.set(k.offset(y, PAIR_BYTES))
    for r, c in cells:
        tile_instruction(k, "tilestored64", 2 * r + c, k.offset(sums, 1024 * (2 * r + c)), line)
    with k.range(k.minimum(steps, due), due) as i:
        _store_line(k, before, out, c_line, i, element.sums, out_type)
    k.ret()
    return k


def _vector_micro(
    module: Module, target: Target, element: Element, rows: int, columns: int, out_type: Type
) -> Function:
    """What `_micro` does, of packed operands, by vectors: `due` lines of the tiles before are stored first."""
    k = module.function(f"tile_{rows}x{columns}", MICRO_ARGUMENTS, internal=True)
    count, a, _, _, _, b, sums, add, before, due, out, c_line, _, _ = k.args
    with k.range(0, due) as i:
        _store_line(k, before, out, c_line, i, element.sums, out_type)

    def steps(step: Callable[[Value, Value], None], a: Value, b: Value) -> None:
        with k.range(0, count) as at:
            step(k.offset(a, at * PAIR_BYTES), k.offset(b, at * PAIR_BYTES))

    def line_of(i: int, c: int) -> Value:
        return k.offset(sums, 1024 * (2 * (i // 16) + c) + i % 16 * 64)

    vectors.multiply(k, target, element.sums, rows, columns, a, b, PAIR_BYTES // 2, 64, steps, line_of, add)
    k.ret()
    return k


def _store_function(module: Module, finish: Function, sum_type: Type, out_type: Type) -> Function:
    """store(sums, out, …): the four tiles of a stage to the result, by lines where it has unit stride either way."""
    k = module.function(
        "store",
        [("sums", ptr), ("out", ptr), ("c_row", i64), ("c_column", i64), ("rows", i64), ("columns", i64),
         ("bias", ptr), ("bias_row", i64), ("bias_column", i64), ("flags", i64)],
        internal=True,
    )  # fmt: skip
    sums, out, c_row, c_column, rows, columns, bias, bias_row, bias_column, flags = k.args

    def cell(r: int, c: int) -> Value:
        return k.offset(sums, 1024 * (2 * r + c))

    # Results that run down the columns: turn the sums round, so that they are stored by lines too.
    turned = c_row.eq(1) & c_column.ne(1)
    with k.when(turned):
        squares = {}
        for r, c in ((0, 0), (1, 1), (0, 1), (1, 0)):
            squares[r, c] = transposed(k, [k.load(cell(r, c), sum_type.vec(16), 16 * i) for i in range(16)])
            if r == c:
                _store_tile(k, cell(r, c), squares[r, c])
        _store_tile(k, cell(0, 1), squares[1, 0])
        _store_tile(k, cell(1, 0), squares[0, 1])

    def pick(a: Value, b: Value) -> tuple[Value, Value]:
        return k.select(turned, b, a), k.select(turned, a, b)

    (row, column), (down, across) = pick(c_row, c_column), pick(rows, columns)
    bias_down, bias_across = pick(bias_row, bias_column)
    for r in range(2):
        for c in range(2):
            with k.when((down > 16 * r) & (across > 16 * c)):
                to = k.offset(out, row * (16 * r) + column * (16 * c), out_type)
                bias_at = k.offset(bias, bias_down * (16 * r) + bias_across * (16 * c), out_type)
                k.call(
                    finish,
                    cell(r, c),
                    16,
                    to,
                    row,
                    column,
                    k.minimum(down - 16 * r, 16),
                    k.minimum(across - 16 * c, 16),
                    bias_at,
                    bias_down,
                    bias_across,
                    flags,
                )
    k.ret()
    return k


def configure(k: Function) -> None:
    """Palette 1: eight tiles of 16 lines of 64 bytes. Each call does it, since threads have their own."""
    config = k.stack(64)
    k.store(config, k.const(i64.vec(8), 0))
    k.store(config, k.const(i8, 1))
    for tile in range(8):
        k.store(k.offset(config, 16 + 2 * tile), k.const(u16, 64))
        k.store(k.offset(config, 48 + tile), k.const(i8, 16))
    tile_instruction(k, "ldtilecfg", config)


def build_amx(
    target: Target,
    dtype: str,
    order: str,
    out: str,
    once: bool,
    prefetch_steps: int,
    epilogue: EpilogueCode | None = None,
) -> Module:
    """Slots: left, packed right, bias (anything if there is none), out, scratch, those of the epilogue, block.

    Scratch of a thread: sums, then packed rows of the left.
    """
    element, out_type = TILES[dtype], ELEMENTS[out][0]
    bits = element.bits
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    tiles = has_tiles(dtype, target)
    half = _pack_function(module, "pack_left", "left", order, bits, flip=not tiles and bits is u8)
    if tiles:
        micro = {(r, c): _micro(module, element, r, c, once, prefetch_steps, out_type) for r in (1, 2) for c in (1, 2)}
    else:
        micro = {(r, c): _vector_micro(module, target, element, r, c, out_type) for r in (1, 2) for c in (1, 2)}
    store = _store_function(
        module, finish_function(module, element.sums, out_type, 16, turns=False), element.sums, out_type
    )
    finishing = Finishing(epilogue)
    k = module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    slot = finishing.slots(k, slots, ("a", "b", "bias", "out", "scratch"))
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(FIELDS)}
    words = k.offset(slot["block"], 8 * BATCH)
    finishing.over(k, after_batch(k, words))
    stage = k.offset(slot["scratch"], tid * p["scratch_stride"])
    panels_n = (p["block_n"] + (PANEL - 1)) // PANEL
    panels_m = (p["block_m"] + (PANEL - 1)) // PANEL
    packed_left = k.offset(stage, k.maximum(panels_m * panels_n * p["stage_stride"], 2 * STAGE_BYTES))
    padded_n = (p["n"] + (PANEL - 1)) & -PANEL
    if tiles:
        configure(k)
    # Of a result with unit stride and nothing to add, tiles are stored while the next ones are computed, in turns.
    before, before_out, due, turn = k.var(ptr, stage), k.var(ptr, stage), k.var(i64, 0), k.var(i64, 0)
    straight = p["c_column"].eq(1) & p["flags"].eq(0)
    single = p["stage_stride"].eq(0).to(i64)
    c_line = p["c_row"] * out_type.size

    def store_due() -> None:
        with k.range(0, due.get()) as i:
            _store_line(k, before.get(), before_out.get(), c_line, i, element.sums, out_type)
        due.set(0)

    with k.range(begin, end) as unit:
        rest, column_tile = unit // p["tiles_n"], unit % p["tiles_n"]
        batch, row_tile = rest // p["tiles_m"], rest % p["tiles_m"]
        a_at, b_at, c_at = unit_offsets(k, words, batch, 3)
        row0, column0 = row_tile * p["block_m"], column_tile * p["block_n"]
        rows, columns = k.minimum(p["m"] - row0, p["block_m"]), k.minimum(p["n"] - column0, p["block_n"])
        a_unit = k.offset(slot["a"], a_at + row0 * p["a_row"], bits)
        b_unit = k.offset(slot["b"], b_at, bits)
        out_unit = k.offset(slot["out"], c_at + row0 * p["c_row"] + column0 * p["c_column"], out_type)
        bias_unit = k.offset(slot["bias"], row0 * p["bias_row"] + column0 * p["bias_column"], out_type)
        with k.range(0, p["k"], p["block_k"]) as at:
            depth = k.minimum(p["k"] - at, p["block_k"])
            steps = (depth + (element.step - 1)) // element.step
            left_bytes = steps * PAIR_BYTES  # of a panel, left or right
            a_block = k.offset(a_unit, at * p["a_step"], bits)
            b_block = k.offset(b_unit, at * padded_n + column0 * steps * element.step, bits)
            # In place, only the last rows are packed: tiles are loaded whole.
            first = k.select(p["in_place"].ne(0), rows & -PANEL, k.const(i64, 0))
            _pack_panels(
                k,
                half,
                order,
                k.offset(a_block, first * p["a_row"], bits),
                p["a_row"],
                p["a_step"],
                rows - first,
                depth,
                k.offset(packed_left, first // PANEL * left_bytes),
                left_bytes,
                bits,
            )
            add = at.ne(0).to(i64)
            last = (at + depth).eq(p["k"])
            row_bytes = p["a_row"] * bits.size
            by_rows = p["by_rows"].ne(0)
            with k.range(0, k.select(by_rows, rows, columns), PANEL) as outer:
                with k.range(0, k.select(by_rows, columns, rows), PANEL) as inner:
                    i, j = k.select(by_rows, outer, inner), k.select(by_rows, inner, outer)
                    b_panel = k.offset(b_block, j // PANEL * left_bytes)
                    here = i < first
                    a_panel = k.select(
                        here, k.offset(a_block, i * p["a_row"], bits), k.offset(packed_left, i // PANEL * left_bytes)
                    )
                    a_line = k.select(here, row_bytes, k.const(i64, 64))
                    a_half = k.select(here, row_bytes * 16, k.const(i64, PAIR_BYTES // 2))
                    a_next = k.select(here, k.const(i64, 64), k.const(i64, PAIR_BYTES))
                    sums = k.offset(
                        stage, (i // PANEL * panels_n + j // PANEL) * p["stage_stride"] + turn.get() * STAGE_BYTES
                    )
                    turn.set((turn.get() ^ 1) & single)
                    out_panel = k.offset(out_unit, i * p["c_row"] + j * p["c_column"], out_type)
                    # The piece of the next right panel to fetch meanwhile; of this one where there is none, or it is near.
                    ahead = k.select(by_rows | (columns - j <= PANEL), k.const(i64, 0), left_bytes)
                    next_b = k.offset(
                        b_panel, ahead + (i // PANEL * steps * (64 * FETCHES)).rem(k.maximum(left_bytes, 1))
                    )
                    wide, tall = columns - j > 16, rows - i > 16
                    for r in (1, 2):
                        for c in (1, 2):
                            right_shape = (tall if r == 2 else ~tall) & (wide if c == 2 else ~wide)
                            with k.when(right_shape):
                                k.call(
                                    micro[r, c],
                                    steps,
                                    a_panel,
                                    a_half,
                                    a_line,
                                    a_next,
                                    b_panel,
                                    sums,
                                    add,
                                    before.get(),
                                    due.get(),
                                    before_out.get(),
                                    c_line,
                                    out_panel,
                                    next_b,
                                )
                    due.set(0)
                    height, width = k.minimum(rows - i, PANEL), k.minimum(columns - j, PANEL)

                    def store_later(sums=sums, out_panel=out_panel, height=height) -> None:
                        before.set(sums)
                        before_out.set(out_panel)
                        due.set(height)

                    def store_now(sums=sums, out_panel=out_panel, height=height, width=width, i=i, j=j) -> None:
                        bias_panel = k.offset(bias_unit, i * p["bias_row"] + j * p["bias_column"], out_type)
                        k.call(
                            store,
                            sums,
                            out_panel,
                            p["c_row"],
                            p["c_column"],
                            height,
                            width,
                            bias_panel,
                            p["bias_row"],
                            p["bias_column"],
                            p["flags"],
                        )

                    with k.when(last):
                        k.when_else(straight & width.eq(PANEL), store_later, store_now)
                if finishing:
                    # A row of panels, or columns enough for lines that are worth fetching; what waits is stored first.
                    most = k.select(by_rows, rows, columns)
                    reach = k.minimum(outer + PANEL, most)
                    span = PANEL * FINISHED_PANELS
                    span = (
                        k.const(i64, span)
                        if epilogue.turned
                        else k.select(by_rows, k.const(i64, PANEL), k.const(i64, span))
                    )
                    with k.when(last & (reach.eq(most) | (reach & (span - 1)).eq(0))):
                        store_due()
                        start = outer & (k.const(i64, 0) - span)
                        count, zero = reach - start, k.const(i64, 0)
                        i, height = k.select(by_rows, start, zero), k.select(by_rows, count, rows)
                        j, width = k.select(by_rows, zero, start), k.select(by_rows, columns, count)
                        finishing.block(k, (p["m"], p["n"]), batch, row0 + i, height, column0 + j, width)
        store_due()
    if tiles:
        tile_instruction(k, "tilerelease")
    k.ret()
    return module


def build_amx_pack(target: Target, dtype: str, order: str) -> Module:
    """Packs the right operand. Slots: b, packed, block; a unit is PACKED_PANELS panels of one depth block of one matrix."""
    module, bits = Module(target.vector_bytes * 8), TILES[dtype].bits
    step = TILES[dtype].step
    half = _pack_function(module, "pack_right", "right", order, bits)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    source, packed, block = (k.load(slots, ptr, i) for i in range(3))
    p = {name: k.load(block, i64, i) for i, name in enumerate(FIELDS)}
    padded_n = (p["n"] + (PANEL - 1)) & -PANEL
    padded_k = (p["k"] + (step - 1)) & -step
    columns = PANEL * PACKED_PANELS  # of a unit
    groups = (p["n"] + (columns - 1)) // columns
    blocks = (p["k"] + (p["block_k"] - 1)) // p["block_k"]
    with k.range(begin, end) as unit:
        rest, group = unit // groups, unit % groups
        batch, depth_block = rest // blocks, rest % blocks
        _, b_at = unit_offsets(k, k.offset(block, 8 * BATCH), batch, 2)
        at, column = depth_block * p["block_k"], group * columns
        depth = k.minimum(p["k"] - at, p["block_k"])
        stored = (depth + (step - 1)) & -step
        to = k.offset(packed, (batch * padded_k + at) * padded_n + column * stored, bits)
        start = k.offset(source, b_at + at * p["b_step"] + column * p["b_column"], bits)
        count = k.minimum(p["n"] - column, columns)
        _pack_panels(
            k, half, order, start, p["b_column"], p["b_step"], count, depth, to, stored * (PANEL * bits.size), bits
        )
    k.ret()
    return module


def swaps(p: Problem) -> bool:
    """Of the two ways round, the one that packs the smaller operand for all and walks the larger once.

    The other way round results are stored across, which takes some depth to be worth it.
    """
    return p.n >= 2 * p.m and (p.k >= 512 or (p.m <= PANEL and p.b[0] == 1))


def lower_amx(p: Problem, threads: int, *, panels: int = 0, columns: int = 0) -> Lowered:
    """bfloat16 or int8 on tiles. A unit has at most so many panels of rows, and columns, where a number is given."""
    element = TILES[p.dtype]
    size, step = element.bits.size, element.step
    in_place = p.a[1] == 1 and p.k % step == 0 and has_tiles(p.dtype, targets.current())
    streaming = in_place and p.n <= 4 * PANEL and p.m >= 2 * p.n  # rows are read once, ahead
    in_place = in_place and p.n < PACK_COLUMNS
    block_k = blocks_of(p.k, (BLOCK_BYTES if not streaming else 2 * BLOCK_BYTES) // size, step)
    most_rows = (
        2 * PANEL if streaming else max(PANEL, min(256, L2_BYTES // (2 * size * block_k)))
    )  # half of L2 for the left
    most_rows = panels * PANEL or most_rows
    most_columns = columns or (1024 if block_k < p.k else 4096)  # sums that wait for more depth stay near
    grid = Grid(PANEL, PANEL, most_rows, most_columns, 0 if streaming else 48, 32)
    block_m, block_n = unit_blocks(p, grid, threads)
    tiles_m, tiles_n = -(-p.m // block_m), -(-p.n // block_n)
    by_rows = size * p.k * block_n <= L2_BYTES // 4  # all of the right stays in L2: results are written line by line
    stage_stride = STAGE_BYTES if block_k < p.k else 0
    stages = -(-block_m // PANEL) * -(-block_n // PANEL) * stage_stride
    scratch_stride = max(stages, 2 * STAGE_BYTES) + round_up(block_m, PANEL) * block_k * size
    scratch_stride = round_up(scratch_stride, 4096) + 128
    matrix = round_up(p.k, step) * round_up(p.n, PANEL)
    matrices, packing, reading = packed_batch(p, matrix)
    packs = matrices * -(-p.n // (PANEL * PACKED_PANELS)) * -(-p.k // block_k)
    fields = (p.m, p.n, p.k, *p.a, *p.b, *p.out, *(p.bias or (0, 0)), block_m, block_n, block_k, tiles_m, tiles_n, scratch_stride,
              int(in_place), stage_stride, int(by_rows), p.flags)  # fmt: skip
    units = p.matrices * tiles_m * tiles_n
    grain = 0 if p.is_short else 1
    out = p.inputs
    pack = launch(
        "gemm_amx_pack",
        (p.dtype, order_of(p.b[1], p.b[0])),
        build_amx_pack,
        (1, out + 1),
        packs,
        grain,
        (*fields, *packing),
    )
    once = size * PANEL * block_k <= 2 * L1_BYTES // 3 and not streaming and not by_rows
    kind = (p.dtype, order_of(*p.a), p.out_dtype, once, 8 if streaming else 0)
    main = main_launch(p, "gemm_amx", kind, build_amx, (0, out + 1, 2, out, out + 2), units, grain, (*fields, *reading))
    return Lowered((pack, main), (matrices * matrix * size, scratch_stride * threads))
