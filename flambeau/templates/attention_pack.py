"""Keys and values as attention's inner loops read them: packed once for all queries, in the type that is multiplied.

"panels": to be multiplied along the elements of a key; FMA: [size, width] for `width` keys, AMX: tiles of (pairs of elements) x 16 keys.
"rows": to be multiplied along keys; FMA: row by row, AMX: tiles of (pairs of keys) x 16 elements. AMX tiles lie two side by side.
Both are filled up to whole panels, rows with zeros: the key with padded number c lies at c * padded size elements.

May not know: what comes of the products. Entry: `lower_pack`, `Packed`.
"""

from __future__ import annotations

from typing import NamedTuple

from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, i64, ptr, u16, u32
from flambeau.templates.attention_problem import PACKED_COLUMNS, Cuts, Problem, Strides
from flambeau.templates.attention_tiles import load_line
from flambeau.templates.gemm_amx import woven
from flambeau.templates.gemm_pack import DEPTH_ALIGN, order_of, pack_function, transposed
from flambeau.templates.gemm_problem import launch, round_up
from flambeau.templates.gemm_tiles import ABI, ELEMENTS
from flambeau.templates.launch import Launch

AMX_STEP = 32  # bfloat16 of depth in a tile
TILE_BYTES = 1024
PANEL_BYTES = 64  # of 32 keys or 32 rows, for an element: two tiles' lines

FIELDS = ("units", "grain", "heads", "columns", "block_columns", "padded", "blocks", "pieces")
SOURCE_FIELDS = ("batch", "head", "row", "element")


class Packed(NamedTuple):
    """One packed form of keys or values."""

    form: str
    size: int
    order: str  # how the source lies, for panels

    def padded(self, lanes: int, tiles: bool) -> int:
        """Elements that a packed key takes."""
        if tiles:
            return round_up(max(self.size, 1), AMX_STEP)
        return round_up(max(self.size, 1), DEPTH_ALIGN if self.form == "panels" else 2 * lanes)


def packed(form: str, size: int, strides: Strides) -> Packed:
    return Packed(form, size, order_of(strides[2], strides[3]) if form == "panels" else "")


def panel_width(lanes: int, tiles: bool) -> int:
    """Keys in a panel."""
    return 32 if tiles else 2 * lanes


def lower_pack(
    p: Problem, tiles: bool, cuts: Cuts, forms: tuple[tuple[Packed, Strides], ...], buffers: tuple[int, ...]
) -> Launch:
    """Slots: the source of each form, then where each goes."""
    units = p.batch * p.heads * cuts.blocks * cuts.pieces
    fields = (p.heads, p.columns, cuts.block_columns, cuts.padded_columns, cuts.blocks, cuts.pieces)
    strides = tuple(s for _, each in forms for s in each)
    parameters = (p.dtype, tiles, tuple(form for form, _ in forms))
    return launch("attention_pack", parameters, build_pack, buffers, units, 1, (*fields, *strides))


def packed_bytes(p: Problem, cuts: Cuts, form: Packed, lanes: int, tiles: bool) -> int:
    """What a packed form takes, with room for a vector that is written past its end."""
    size = 2 if tiles else ELEMENTS[p.dtype][1].size
    return p.batch * p.heads * cuts.blocks * cuts.padded_columns * form.padded(lanes, tiles) * size + 256


def build_pack(target: Target, dtype: str, tiles: bool, forms: tuple[Packed, ...]) -> Module:
    """A unit is a piece of a block of keys of one head."""
    memory, compute = ELEMENTS[dtype]
    lanes = target.lanes(compute)
    if tiles:
        compute = memory
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    functions = [form_function(module, i, form, memory, compute, lanes, tiles) for i, form in enumerate(forms)]
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    pointers = [k.load(slots, ptr, i) for i in range(2 * len(forms) + 1)]
    block = pointers.pop()
    p = {name: k.load(block, i64, i) for i, name in enumerate(FIELDS)}
    with k.range(begin, end) as unit:
        rest, piece = unit // p["pieces"], unit % p["pieces"]
        shared, place = rest // p["blocks"], rest % p["blocks"]
        batch, head = shared // p["heads"], shared % p["heads"]
        inside = piece * PACKED_COLUMNS
        first = place * p["block_columns"] + inside
        stop = k.minimum((place + 1) * p["block_columns"], p["columns"])
        count = k.maximum(k.minimum(stop - first, PACKED_COLUMNS), 0)
        room = k.minimum(p["padded"] - inside, PACKED_COLUMNS)
        to = (shared * p["blocks"] + place) * p["padded"] + inside
        for i, (form, function) in enumerate(zip(forms, functions, strict=True)):
            steps = {name: k.load(block, i64, len(FIELDS) + 4 * i + j) for j, name in enumerate(SOURCE_FIELDS)}
            source = k.offset(pointers[i], batch * steps["batch"] + head * steps["head"] + first * steps["row"], memory)
            padded = form.padded(lanes, tiles)
            out = k.offset(pointers[len(forms) + i], to * padded, compute)
            call_form(k, function, form, source, steps["row"], steps["element"], count, room, out, lanes, tiles)
    k.ret()
    return module


def call_form(
    k: Function,
    function: Function,
    form: Packed,
    source: Value,
    row: Value,
    element: Value,
    count: Value,
    room: Value,
    out: Value,
    lanes: int,
    tiles: bool,
) -> None:
    """Pack `count` keys, `row` elements apart, where there is room for `room`."""
    if form.form == "panels" and not tiles:
        panel = panel_width(lanes, tiles) * form.padded(lanes, tiles)
        k.call(function, source, row, element, count, k.const(i64, form.size), out, panel)
    else:
        k.call(function, source, row, element, count, room, out)


def form_function(
    module: Module, number: int, form: Packed, memory: Type, compute: Type, lanes: int, tiles: bool
) -> Function:
    """What packs keys into a form: arguments as in `call_form`."""
    name = f"pack_{form.form}_{number}"
    if tiles:
        return (_key_tiles if form.form == "panels" else _row_tiles)(module, name, form.size)
    if form.form == "panels":
        return pack_function(module, name, memory, compute, 2 * lanes, lanes, form.order)
    k = _function(module, name)
    source, row, element, count, room, out = k.args
    padded = form.padded(lanes, tiles)
    with k.range(0, count) as i:
        line = k.offset(source, i * row, memory)
        load_line(k, line, memory, element, form.size, k.offset(out, i * padded, compute), compute, lanes, padded)
    with k.range(count, room) as i, k.range(0, padded, lanes) as j:
        k.store(k.offset(out, i * padded, compute), k.const(compute.vec(lanes), 0), j)
    k.ret()
    return k


def _function(module: Module, name: str) -> Function:
    """name(source, row, element, count, room, out): `count` keys of `room`, strides in elements."""
    return module.function(
        name,
        [("source", ptr), ("row", i64), ("element", i64), ("count", i64), ("room", i64), ("out", ptr)],
        internal=True,
    )


def read_lanes(k: Function, line: Value, element: Value, first: int, size: int, many: int) -> Value:
    """`many` 16-bit elements of a line from `first` on, `element` apart; zeros past `size`."""
    found = k.var(u16.vec(many), 0)
    if first >= size:
        return found.get()
    mask = None if first + many <= size else k.tail_mask(k.const(i64, size - first), many)

    def along() -> None:
        found.set(k.load(k.offset(line, first, u16), u16.vec(many), mask=mask))

    def apart() -> None:
        indices = (k.iota(i64.vec(many)) + first) * k.splat(element, many)
        found.set(k.gather(line, u16, indices, mask=mask))

    k.when_else(element.eq(1), along, apart)
    return found.get()


def _key_tiles(module: Module, name: str, size: int) -> Function:
    """Keys that are not there repeat the last one."""
    k = _function(module, name)
    source, row, element, count, room, out = k.args
    padded = round_up(max(size, 1), AMX_STEP)
    with k.when(count > 0), k.range(0, room, 16) as i:
        panel = k.offset(out, (i >> 5) * (padded * PANEL_BYTES) + (i & 16) * (TILE_BYTES // 16))
        lines = [k.offset(source, k.minimum(i + r, count - 1) * row, u16) for r in range(16)]
        for step in range(0, padded, AMX_STEP):
            words = [read_lanes(k, line, element, step, size, 32).bitcast(u32.vec(16)) for line in lines]
            tile = k.offset(panel, step // AMX_STEP * 2 * TILE_BYTES)
            for r, line in enumerate(transposed(k, words)):
                k.store(k.offset(tile, 64 * r), line)
    k.ret()
    return k


def _row_tiles(module: Module, name: str, size: int) -> Function:
    k = _function(module, name)
    source, row, element, count, room, out = k.args
    padded = round_up(max(size, 1), AMX_STEP)
    with k.range(0, room, 2) as i:
        step = k.offset(out, (i >> 5) * (padded * PANEL_BYTES) + (i & 31) * 32)  # two rows take one line of a tile
        for j in range(0, padded, 16):
            pair = []
            for r in range(2):
                line = k.offset(source, k.minimum(i + r, k.maximum(count - 1, 0)) * row, u16)
                found = k.var(u16.vec(16), 0)
                if j < size:
                    with k.when(i + r < count):
                        found.set(read_lanes(k, line, element, j, size, 16))
                pair.append(found.get())
            k.store(k.offset(step, j // 16 * TILE_BYTES), woven(k, pair))
    k.ret()
    return k
