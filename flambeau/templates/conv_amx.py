"""Convolution of bfloat16 on AMX tiles, or vectors in their place: 32 channels of the result by 32 neighbouring places, 16 pairs of channels deep at a time.

Planes hold pairs of channels (`conv_planes`), which is how tiles want their right operand: a tile's lines are the same 16 places of 16 planes.
Weights are packed into tiles of rows by pairs. A step of depth is 16 pairs at one tap where whole steps of pairs fill a group ("planes": tiles
are read where they lie), else 16 of all (pair, tap), whose lines are copied side by side first, once for all panels of rows ("lines").
    conv_amx_weights  packs the weights, 32 rows to a panel
    conv_amx          all steps into four tiles of sums in float32, then the bias, rounded once

Numerics: as in `gemm_amx`. The order of summation depends on channels and taps only. May not know: tensors. Entry: `lower_amx`, `serves`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from flambeau.base.record import record, replace
from flambeau.kernel import instructions as x86
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import bf16, f32, i64, ptr, u16, u32
from flambeau.templates import gemm_vector_tiles
from flambeau.templates.conv_store import INDEX_FIELDS, VECTORS, index_places, record_bytes, store_tile
from flambeau.templates.gemm_amx import configure, has_tiles
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.windows import ABI

if TYPE_CHECKING:
    from flambeau.templates.conv import Sums

LANES = 16
PANEL = 32  # rows, and places, of a register tile: two tiles
TILE_BYTES = 1024
STEP_BYTES = 2 * TILE_BYTES  # of packed weights, and of lines
LINE_BYTES = 128  # 32 places of a pair
TILES = 16  # of places in a unit at most
NEAR_BYTES = 1 << 20  # packed weights of a unit that stay in L2 while tiles of places pass by

WEIGHT_FIELDS = (
    "units",
    "grain",
    "rows",
    "panels",
    "channels",
    "pairs",
    "taps",
    "steps",
    "group_step",
    "row_step",
    "channel_step",
)
FIELDS = (
    "units", "grain", "rows", "panels", "pairs", "taps", "steps", "images", "groups", "row_blocks", "block_panels", "column_blocks", "block_tiles",
    "plane", "image", "out_row", "out_at", "has_bias", "bias_step", "scratch", *INDEX_FIELDS,
)  # fmt: skip


def serves(dtype: str, target: Target) -> bool:
    """Whether the machine has tiles for it, or vector instructions in their place."""
    return dtype == "bfloat16" and (has_tiles(dtype, target) or gemm_vector_tiles.serves(dtype, target))


# ------------------------------------------------------------------ weights
def build_weights(target: Target, by_planes: bool, forward: bool) -> Module:
    """Slots: w, packed, block; then the taps' offsets in w. A unit is one panel of one group: [step][row][16 pairs].

    `forward` says that channels are even in number and that a higher one lies behind: pairs are then put together from words that hold them.
    """
    module = Module(512)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    w, packed, block = (k.load(slots, ptr, i) for i in range(3))
    p = {name: k.load(block, i64, i) for i, name in enumerate(WEIGHT_FIELDS)}
    table = k.offset(block, 8 * len(WEIGHT_FIELDS))
    iota = k.iota(i64.vec(LANES))
    with k.range(begin, end) as unit:
        group, panel = unit // p["panels"], unit % p["panels"]
        row0 = panel * PANEL
        source = k.offset(w, group * p["group_step"] + row0 * p["row_step"], u16)
        rows = k.minimum(p["rows"] - row0, PANEL)
        with k.range(0, p["steps"]) as step:
            to = k.offset(packed, (unit * p["steps"] + step) * STEP_BYTES)
            if by_planes:
                pair = iota + k.splat(step // p["taps"] * LANES, LANES)
                tap = k.splat(k.load(table, i64, step % p["taps"]), LANES)
            else:
                line = iota + k.splat(step * LANES, LANES)
                pair = line // k.splat(p["taps"], LANES)
                place = line - pair * k.splat(p["taps"], LANES)
                tap = k.gather(table, i64, place)
            step_of = k.splat(p["channel_step"], LANES)
            low = pair * 2 * step_of + tap
            channels = k.splat(p["channels"], LANES)
            masks = [pair * 2 + i < channels for i in range(2)]
            with k.range(0, PANEL) as i:  # rows that are not there repeat the last one
                line = k.offset(source, k.minimum(i, rows - 1) * p["row_step"], u16)
                if (
                    forward
                ):  # the word behind the one of lower channel, and in front of the one of the higher, is of w too
                    first = k.gather(line, u32, low, mask=masks[0], unit=u16) & 0xFFFF
                    second = k.gather(k.offset(line, -2), u32, low + step_of, mask=masks[1], unit=u16) & 0xFFFF0000
                else:
                    first = k.gather(line, u16, low, mask=masks[0]).to(u32)
                    second = k.gather(line, u16, low + step_of, mask=masks[1]).to(u32) << 16
                k.store(k.offset(to, i * 64), first | second)
    k.ret()
    return module


# ------------------------------------------------------------------ register tiles
MICRO_ARGUMENTS = [
    ("outer", i64), ("inner", i64), ("table", ptr), ("a", ptr), ("b", ptr), ("b_step", i64), ("pitch", i64), ("sums", ptr),
]  # fmt: skip


def build_micro(module: Module, rows: int, columns: int, by_planes: bool) -> Function:
    """The sums of rows x columns tiles (1 or 2 each), to lines of 32.

    Over `outer` times `inner` steps: of weights one behind the other, of places at b + table[inner], `b_step` bytes on for each outer one,
    lines `pitch` bytes apart.
    """
    k = module.function(f"tile_{rows}x{columns}", MICRO_ARGUMENTS, internal=True)
    outer, inner, table, a, b, b_step, pitch, sums = k.args
    cells = [(r, c) for r in range(rows) for c in range(columns)]
    for r, c in cells:
        x86.tilezero(k, 2 * r + c)
    a_now, b_now = k.var(ptr, a), k.var(ptr, b)
    line = k.const(i64, 64)
    with k.range(0, outer):
        here = b_now.get()
        with k.range(0, inner) as t:
            weights = a_now.get()
            at = k.offset(here, k.load(table, i64, t), u32) if by_planes else here
            for c in range(columns):
                x86.tileloadd(k, 6 + c, k.offset(at, 64 * c), pitch)
            for r in range(rows):
                x86.tileloadd(k, 4 + r, k.offset(weights, TILE_BYTES * r), line)
            for r, c in cells:
                x86.tdpbf16ps(k, 2 * r + c, 4 + r, 6 + c)
            a_now.set(k.offset(weights, STEP_BYTES))
        b_now.set(k.offset(here, b_step))
    for r, c in cells:
        x86.tilestored(k, 2 * r + c, k.offset(sums, r * 16 * LINE_BYTES + 64 * c), k.const(i64, LINE_BYTES))
    k.ret()
    return k


def build_vector_micro(module: Module, target: Target, rows: int, columns: int, by_planes: bool) -> Function:
    """What `build_micro` does, by vectors."""
    k = module.function(f"tile_{rows}x{columns}", MICRO_ARGUMENTS, internal=True)
    outer, inner, table, a, b, b_step, pitch, sums = k.args

    def steps(step: Callable[[Value, Value], None], a: Value, b: Value) -> None:
        a_now, b_now = k.var(ptr, a), k.var(ptr, b)
        with k.range(0, outer):
            here = b_now.get()
            with k.range(0, inner) as t:
                weights = a_now.get()
                step(weights, k.offset(here, k.load(table, i64, t), u32) if by_planes else here)
                a_now.set(k.offset(weights, STEP_BYTES))
            b_now.set(k.offset(here, b_step))

    def line_of(i: int, c: int) -> Value:
        return k.offset(sums, i * LINE_BYTES + 64 * c)

    gemm_vector_tiles.multiply(k, target, f32, rows, columns, a, b, 64, pitch, steps, line_of)
    k.ret()
    return k


def build_amx(target: Target, by_planes: bool, tiles_outside: bool) -> Module:
    """Slots: planes, packed weights, bias, out, scratch, block; then the taps' offsets in a plane.

    A unit is a block of panels by a block of tiles of places of one group of one image. Scratch of a thread: records of its places, a register
    tile of sums, lines of a tile of places. With `tiles_outside` panels pass by one tile of places, else the other way round.
    """
    module = Module(512, native_bf16=True)
    tiles_there = has_tiles("bfloat16", target)
    shapes = [(r, c) for r in (1, 2) for c in (1, 2)]
    if tiles_there:
        micro = {shape: build_micro(module, *shape, by_planes) for shape in shapes}
    else:
        micro = {shape: build_vector_micro(module, target, *shape, by_planes) for shape in shapes}
    k = module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    slot = {
        name: k.load(slots, ptr, i) for i, name in enumerate(("planes", "packed", "bias", "out", "scratch", "block"))
    }
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(FIELDS)}
    table = k.offset(slot["block"], 8 * len(FIELDS))
    size = record_bytes(LANES)
    sums = k.offset(slot["scratch"], tid * p["scratch"])
    lines = k.offset(sums, PANEL * LINE_BYTES)
    records = k.offset(lines, p["steps"] * STEP_BYTES) if not by_planes else lines
    if tiles_there:
        configure(k)
    outer = p["steps"] // p["taps"] if by_planes else p["steps"]
    inner = p["taps"] if by_planes else k.const(i64, 1)
    b_step = p["plane"] * (LANES * 4) if by_planes else k.const(i64, STEP_BYTES)
    pitch = p["plane"] * 4 if by_planes else k.const(i64, LINE_BYTES)

    with k.range(begin, end) as unit:
        rest, column_block = unit // p["column_blocks"], unit % p["column_blocks"]
        rest, row_block = rest // p["row_blocks"], rest % p["row_blocks"]
        image, group = rest // p["groups"], rest % p["groups"]
        first = column_block * p["block_tiles"]
        tiles = k.minimum(p["block_tiles"], (p["places"] + (PANEL - 1)) // PANEL - first)
        with k.range(0, tiles) as tile:
            index_places(k, p, (first + tile) * PANEL, k.offset(records, tile * size), LANES)
        planes = k.offset(slot["planes"], image * p["image"] + group * p["pairs"] * p["plane"], u32)
        panel0 = row_block * p["block_panels"]
        last = k.minimum(p["panels"], panel0 + p["block_panels"])

        def one(panel: Value, tile: Value) -> None:
            place, row = (first + tile) * PANEL, panel * PANEL
            a = k.offset(slot["packed"], (group * p["panels"] + panel) * p["steps"] * STEP_BYTES)
            b = k.offset(planes, place, u32) if by_planes else lines
            rows, places = k.minimum(p["rows"] - row, PANEL), p["places"] - place
            for r in (1, 2):
                for c in (1, 2):
                    fits = (rows > 16 if r == 2 else rows <= 16) & (places > 16 if c == 2 else places <= 16)
                    with k.when(fits):
                        k.call(micro[r, c], outer, inner, table, a, b, b_step, pitch, sums)
            channel = group * p["rows"] + row
            bias = k.offset(slot["bias"], channel * p["bias_step"], bf16)
            with k.when(p["has_bias"].ne(0)), k.range(0, rows) as i:
                value = k.splat(k.load(bias, bf16, i * p["bias_step"]).to(f32), LANES)
                for v in range(VECTORS):
                    at = k.offset(sums, i * LINE_BYTES + 64 * v)
                    k.store(at, k.load(at, f32.vec(LANES)) + value)
            out = k.offset(slot["out"], (image * p["groups"] * p["rows"] + channel) * p["out_row"] + p["out_at"], bf16)
            store_tile(k, target, sums, k.offset(records, tile * size), out, p["out_row"], rows, f32, bf16, LANES)

        def copy_lines(tile: Value) -> None:
            """The tile's lines of all (pair, tap), then zeros up to whole steps."""
            here = k.offset(planes, (first + tile) * PANEL, u32)
            to = k.var(ptr, lines)
            with k.range(0, p["pairs"]) as pair:
                plane = k.offset(here, pair * p["plane"], u32)
                with k.range(0, p["taps"]) as t:
                    line = k.offset(plane, k.load(table, i64, t), u32)
                    for v in range(VECTORS):
                        k.store(to.get(), k.load(line, u32.vec(LANES), v * LANES), v * LANES)
                    to.set(k.offset(to.get(), LINE_BYTES))
            with k.range(p["pairs"] * p["taps"], p["steps"] * LANES) as line:
                for v in range(VECTORS):
                    k.store(k.offset(lines, line * LINE_BYTES + 64 * v), k.const(u32.vec(LANES), 0))

        if tiles_outside or not by_planes:
            with k.range(0, tiles) as tile:
                if not by_planes:
                    copy_lines(tile)
                with k.range(panel0, last) as panel:
                    one(panel, tile)
        else:
            with k.range(panel0, last) as panel, k.range(0, tiles) as tile:
                one(panel, tile)
    if tiles_there:
        x86.tilerelease(k)
    k.ret()
    return module


# ------------------------------------------------------------------ lowering
@record
class Blocking:
    """How the work is cut, which changes no bit of the result."""

    tiles: int  # of places in a unit at most
    panels: int  # of rows in a unit at most
    tiles_outside: bool
    by_planes: bool  # tiles are read where they lie; else copied


def blocking_of(s: Sums, threads: int) -> Blocking:
    """The blocking by sizes."""
    pairs, taps, panels = -(-s.channels // 2), len(s.taps), -(-s.rows // PANEL)
    by_planes = pairs % LANES == 0
    steps = -(-pairs * taps // LANES)
    block = max(1, min(panels, NEAR_BYTES // (max(steps, 1) * STEP_BYTES)))
    return Blocking(TILES, block, True, by_planes)


def blockings(s: Sums, threads: int) -> tuple[Blocking, ...]:
    """The blocking by sizes first, then others."""
    first = blocking_of(s, threads)
    found = {first: None}
    found |= {replace(first, tiles=n): None for n in (4, 8, 32)}
    found |= {replace(first, panels=n): None for n in (1, 2, 4)}
    if first.by_planes:
        found[replace(first, tiles_outside=not first.tiles_outside)] = None
    return tuple(found)


def lower_amx(s: Sums, out: int, packed: int, threads: int, blocking: Blocking | None = None) -> Lowered:
    """Launches from planes of pairs and operands 1 w and, if there is one, 2 bias; scratch buffers `packed` and the next one."""
    b = blocking or blocking_of(s, threads)
    pairs, taps, panels = -(-s.channels // 2), len(s.taps), -(-s.rows // PANEL)
    steps = -(-pairs * taps // LANES)
    launches = []
    if steps:
        forward = s.channels % 2 == 0 and s.w_steps[2] > 0
        fields = (
            s.groups * panels,
            max(1, 16 // steps),
            s.rows,
            panels,
            s.channels,
            pairs,
            taps,
            steps,
            *s.w_steps,
            *s.w_taps,
        )
        launches.append(Launch(Recipe("conv_amx_weights", (b.by_planes, forward), build_weights), (1, packed), fields))
    places = s.planes.places_of(s.counts)
    column_tiles = -(-places // PANEL)
    block_tiles, block_panels = min(b.tiles, column_tiles), min(b.panels, panels)
    wanted = 4 * threads if threads > 1 else 1

    def blocks() -> int:
        return s.images * s.groups * -(-column_tiles // block_tiles) * -(-panels // block_panels)

    while blocks() < wanted and block_tiles > 2:
        block_tiles = -(-block_tiles // 2)
    while blocks() < wanted and block_panels > 1:
        block_panels = -(-block_panels // 2)
    copied = 0 if b.by_planes else steps * STEP_BYTES
    own = -(-(PANEL * LINE_BYTES + copied + block_tiles * record_bytes(LANES)) // 4096) * 4096 + 128
    work = block_tiles * block_panels * (steps + 4)
    fields = (blocks(), max(1, 512 // work), s.rows, panels, pairs, taps, steps, s.images, s.groups, -(-panels // block_panels), block_panels,
              -(-column_tiles // block_tiles), block_tiles, s.planes.channel_step, s.planes.image_step, s.out_row, s.out_at,
              int(s.bias_stride is not None), s.bias_stride or 0, own, places, s.planes.pitch, s.planes.plane_pitch, *s.counts, *s.out_steps,
              *s.taps)  # fmt: skip
    flops = 2 * s.images * s.groups * s.rows * math.prod(s.counts) * s.channels * taps
    recipe = Recipe("conv_amx", (b.by_planes, b.tiles_outside), build_amx)
    launches.append(Launch(recipe, (s.planes.slot, packed, 2, out, packed + 1), fields, flops))
    return Lowered(tuple(launches), (s.groups * panels * steps * STEP_BYTES + 64, threads * own))
