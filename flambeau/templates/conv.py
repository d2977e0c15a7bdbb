"""Direct convolution: register tiles of channels by neighbouring places, read where they lie in padded planes.

Places are counted through a plane (see `conv_planes`) row by row: a vector of places may run over a row's end, and what lies between
rows is computed and not stored.
    conv_weights  packs the weights into panels of `height` output channels, in float32 or wider
    conv_tiles    height x 2 vectors of sums, one fused multiply-add each per channel and tap, from the bias on
The sum of an element starts with the bias and runs over channels, then taps: it does not depend on threads or tiles.

bfloat16 goes to `conv_amx` where the machine has tiles. May not know: tensors, gradients. Entry: `convolution`, `takes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flambeau.base.record import record, replace
from flambeau.kernel import target as targets
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, i64, ptr
from flambeau.templates import conv_amx
from flambeau.templates.choice import Question, asked, size_class
from flambeau.templates.conv_amx import lower_amx
from flambeau.templates.conv_planes import Planes, fused, multiply_add, planes_of, weight_offsets
from flambeau.templates.conv_store import (
    INDEX_FIELDS,
    VECTORS,
    index_before,
    index_places,
    lies_whole,
    record_bytes,
    store_tile,
)
from flambeau.templates.epilogue import EpilogueCode, Finishing
from flambeau.templates.gemm_pack import pack_function, padded_depth
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_program import MEMORY, REGISTER
from flambeau.templates.windows import ABI

DTYPES = ("float32", "float64", "float16", "bfloat16")
MOST_UNROLLED = 9  # taps written out one after the other
FINISHED_TILES = 8  # of places in one call of an epilogue, where all panels pass by a tile
TILES = 64  # column tiles of a unit at most: their indices stay in L1
PANEL_BYTES = 3 << 18  # panels that stay in L2 while tiles of places pass by

WEIGHT_FIELDS = (
    "units",
    "grain",
    "rows",
    "panels",
    "channels",
    "taps",
    "group_step",
    "row_step",
    "channel_step",
    "panel_size",
)
TILE_FIELDS = (
    "units", "grain", "rows", "panels", "channels", "taps", "images", "groups", "row_blocks", "block_panels", "column_blocks", "block_tiles",
    *INDEX_FIELDS, "plane", "image", "panel_size", "out_row", "out_at", "has_bias", "bias_step",
)  # fmt: skip


def takes(dtype: str) -> bool:
    """Whether these kernels serve a dtype."""
    return dtype in DTYPES


# ------------------------------------------------------------------ weights
def build_weights(target: Target, dtype: str, height: int, order: str) -> Module:
    """Slots: w, packed, block; then the taps' offsets in w. A unit is one panel of one group: `height` rows side by side.

    `order` is "depth" where channels and taps of a row run on without gaps, "width" where rows of one tap are neighbours, else "any".
    """
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    module = Module(target.vector_bytes * 8)
    if order != "any":
        pack = pack_function(module, "pack", memory, compute, height, target.vector_bytes // compute.size, order)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    w, packed, block = (k.load(slots, ptr, i) for i in range(3))
    p = {name: k.load(block, i64, i) for i, name in enumerate(WEIGHT_FIELDS)}
    table, depth = k.offset(block, 8 * len(WEIGHT_FIELDS)), p["channels"] * p["taps"]
    with k.range(begin, end) as unit:
        group, panel = unit // p["panels"], unit % p["panels"]
        row = panel * height
        source = k.offset(w, group * p["group_step"] + row * p["row_step"], memory)
        to = k.offset(packed, unit * p["panel_size"], compute)
        rows = k.minimum(p["rows"] - row, height)
        if order != "any":
            step = 1 if order == "depth" else p["channel_step"]
            k.call(pack, source, p["row_step"], step, rows, depth, to, p["panel_size"])
        else:
            with k.range(0, height) as i, k.range(0, p["channels"]) as c, k.range(0, p["taps"]) as t:
                # Rows that are not there repeat the last one: their sums are not stored.
                line = k.offset(source, k.minimum(i, rows - 1) * p["row_step"] + c * p["channel_step"], memory)
                value = k.load(line, memory, k.load(table, i64, t)).to(compute)
                k.store(to, value, (c * p["taps"] + t) * height + i)
    k.ret()
    return module


# ------------------------------------------------------------------ register tiles
def build_tiles(
    target: Target,
    dtype: str,
    height: int,
    taps: int,
    direct: bool,
    tiles_outside: bool,
    epilogue: EpilogueCode | None = None,
) -> Module:
    """Slots: planes (or the input itself if `direct`), packed weights, bias, out, scratch, those of the epilogue, block; then the taps'
    offsets in the block.

    A unit is a block of panels by a block of column tiles of one group of one image. `taps` are written out (0: a loop). With
    `tiles_outside` the panels, which stay in L2, pass by one tile of places, which stays in L1; else the other way round.
    """
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    width = lanes * VECTORS
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    micro = {
        masked: build_micro(module, target, compute, memory, height, taps, masked)
        for masked in ((False, True) if direct else (False,))
    }
    k = module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    finishing = Finishing(epilogue)
    slot = finishing.slots(k, slots, ("planes", "packed", "bias", "out", "scratch"))
    p = {name: k.load(slot["block"], i64, i) for i, name in enumerate(TILE_FIELDS)}
    table = k.offset(slot["block"], 8 * len(TILE_FIELDS))
    finishing.over(k, k.offset(table, p["taps"] * 8))
    record = record_bytes(lanes)
    scratch = k.offset(slot["scratch"], tid * (TILES * record))
    with k.range(begin, end) as unit:
        rest, column_block = unit // p["column_blocks"], unit % p["column_blocks"]
        rest, row_block = rest // p["row_blocks"], rest % p["row_blocks"]
        image, group = rest // p["groups"], rest % p["groups"]
        first = column_block * p["block_tiles"]
        tiles = k.minimum(p["block_tiles"], (p["places"] + (width - 1)) // width - first)
        with k.range(0, tiles) as tile:
            index_places(k, p, (first + tile) * width, k.offset(scratch, tile * record), lanes)
        channels = k.offset(slot["planes"], image * p["image"] + group * p["channels"] * p["plane"], compute)
        panel0 = row_block * p["block_panels"]
        last = k.minimum(p["panels"], panel0 + p["block_panels"])

        def one(panel: Value, tile: Value) -> None:
            a = k.offset(slot["packed"], (group * p["panels"] + panel) * p["panel_size"], compute)
            row = group * p["rows"] + panel * height
            out = k.offset(slot["out"], (image * p["groups"] * p["rows"] + row) * p["out_row"] + p["out_at"], memory)
            rows = k.minimum(p["rows"] - panel * height, height)
            place = (first + tile) * width
            arguments = (p["channels"], p["taps"], table, a, k.offset(channels, place, compute), p["plane"], out, p["out_row"],
                         k.offset(scratch, tile * record), rows, k.offset(slot["bias"], row * p["bias_step"], memory),
                         p["has_bias"], p["bias_step"], p["places"] - place)  # fmt: skip
            if direct:
                k.when_else(
                    place + width > p["places"],
                    lambda: k.call(micro[True], *arguments),
                    lambda: k.call(micro[False], *arguments),
                )
            else:
                k.call(micro[False], *arguments)

        def finish(panels: tuple[Value, Value], tiles: tuple[Value | int, Value]) -> None:
            channel = (image * p["groups"] + group) * p["rows"]
            rows = [channel + k.minimum(panel * height, p["rows"]) for panel in panels]
            finishing.piece(k, *rows, *(index_before(k, p, (first + tile) * width) for tile in tiles))

        if tiles_outside:
            with k.range(0, tiles) as tile:
                with k.range(panel0, last) as panel:
                    one(panel, tile)
                if finishing:
                    reach = tile + 1
                    with k.when(reach.eq(tiles) | (reach % FINISHED_TILES).eq(0)):
                        finish((panel0, last), (tile // FINISHED_TILES * FINISHED_TILES, reach))
        else:
            with k.range(panel0, last) as panel:
                with k.range(0, tiles) as tile:
                    one(panel, tile)
                if finishing:
                    finish((panel, panel + 1), (k.const(i64, 0), tiles))
    k.ret()
    return module


def build_micro(
    module: Module, target: Target, compute: Type, memory: Type, height: int, taps: int, masked: bool
) -> Function:
    """The sums of `height` channels by two vectors of places over all input channels and taps, stored where the record says."""
    k = module.function(
        "tile_masked" if masked else "tile",
        [("channels", i64), ("taps", i64), ("table", ptr), ("a", ptr), ("b", ptr), ("plane", i64), ("out", ptr), ("out_row", i64), ("record", ptr),
         ("rows", i64), ("bias", ptr), ("has_bias", i64), ("bias_step", i64), ("left", i64)],
        internal=True,
    )  # fmt: skip
    channels, count, table, a, b, plane, out, out_row, record, rows, bias, has_bias, bias_step, left = k.args
    lanes, one = target.vector_bytes // compute.size, fused(target)
    vector = compute.vec(lanes)
    sums = [[k.var(vector, 0) for _ in range(VECTORS)] for _ in range(height)]
    with k.when(has_bias.ne(0)):
        for i, line in enumerate(sums):
            start = k.splat(k.load(bias, memory, k.minimum(rows - 1, i) * bias_step).to(compute), lanes)
            for total in line:
                total.set(start)
    a_now, b_now = k.var(ptr, a), k.var(ptr, b)
    masks = [k.tail_mask(left - v * lanes, lanes) if masked else None for v in range(VECTORS)]

    def step(weights: Value, line: Value, at: int) -> None:
        y = [k.load(line, vector, v * lanes, mask=masks[v]) for v in range(VECTORS)]
        if taps == 1:  # rows of one tap are far apart: fetch those of the next tile while there is time
            for v in range(VECTORS):
                k.prefetch(line, (3 * VECTORS + v) * lanes * compute.size)
        for i in range(height):
            x = k.splat(k.load(k.offset(weights, (at * height + i) * compute.size), compute), lanes)
            for v in range(VECTORS):
                sums[i][v].set(multiply_add(k, one, x, y[v], sums[i][v].get()))

    def channel(many: int) -> None:
        """The next `many` channels (one, unless there is one tap)."""
        weights, here = a_now.get(), b_now.get()
        if taps:
            for c in range(many):
                base = here if c == 0 else k.offset(here, plane * (compute.size * c))
                for t in range(taps):
                    line = k.offset(base, k.load(table, i64, t), compute)
                    step(weights, line, c * taps + t)
            a_now.set(k.offset(weights, many * taps * height * compute.size))
        else:
            with k.range(0, count) as t:
                step(a_now.get(), k.offset(here, k.load(table, i64, t), compute), 0)
                a_now.set(k.offset(a_now.get(), height * compute.size))
        b_now.set(k.offset(here, plane * (compute.size * many)))

    many = 4 if taps == 1 else 1
    if many > 1:
        with k.range(0, channels >> 2):
            channel(many)
    with k.range(0, channels & (many - 1) if many > 1 else channels):
        channel(1)

    tile = k.stack(height * VECTORS * lanes * compute.size)

    def straight() -> None:
        to = k.offset(out, k.load(record, i64), memory)
        for i in range(height):
            for v in range(VECTORS):
                k.store(k.offset(to, out_row * i, memory), sums[i][v].get().to(memory), v * lanes)

    def by_index() -> None:
        for i in range(height):
            for v in range(VECTORS):
                k.store(tile, sums[i][v].get(), (i * VECTORS + v) * lanes)
        store_tile(k, target, tile, record, out, out_row, rows, compute, memory, lanes)

    k.when_else((rows >= height) & lies_whole(k, record, lanes), straight, by_index)
    k.ret()
    return k


# ------------------------------------------------------------------ lowering
def best_height(rows: int, most: int) -> int:
    """The register tile's rows: as few unused ones as possible, then as many as possible."""
    if rows <= most:
        return rows
    return min(range(max(1, most * 2 // 3), most + 1), key=lambda h: (-(-rows // h) * h, -h))


@record
class Sums:
    """Sums over channels and taps of what planes hold, for some places of a result; all steps in elements."""

    images: int
    groups: int
    rows: int  # channels of the result in a group
    channels: int  # of the planes in a group
    planes: Planes
    counts: tuple[int, int, int]  # places of the result
    taps: tuple[int, ...]  # where in a plane each is read, from the place on
    w_steps: tuple[int, int, int]  # of group, row and channel in the weights
    w_taps: tuple[int, ...]
    out_row: int  # elements of one channel of the result
    out_at: int  # where its first place is
    out_steps: tuple[int, int, int]
    bias_stride: int | None
    dtype: str


@record
class Blocking:
    """How the work is cut, which changes no bit of the result."""

    height: int  # rows of a register tile
    tiles: int  # of places in a unit at most
    panels: int  # of rows in a unit at most; 0: all
    tiles_outside: bool  # panels pass by one tile of places, or the other way round
    per_thread: int  # units wanted


def blocking_of(s: Sums, target: Target, threads: int, height: int = 0) -> Blocking:
    """The blocking by sizes, with register tiles of the best height or of the one that is given."""
    height = height or best_height(s.rows, 14 if target.vector_bytes == 64 or target.arch == "aarch64" else 6)
    _, panels, panel_size = _unit_of(s, target, threads, Blocking(height, TILES, 0, False, 4))
    # More channels out than sums are deep: writing counts, which wants few lines at a time.
    depth = s.channels * len(s.taps)
    tiles_outside = depth > s.rows and panels * panel_size * REGISTER[s.dtype].size <= PANEL_BYTES
    return Blocking(height, TILES, 0, tiles_outside, 4)


def blockings(s: Sums, target: Target, threads: int) -> tuple[Blocking, ...]:
    """The blocking by sizes first, then others."""
    first = blocking_of(s, target, threads)
    most = min(s.rows, 14 if target.vector_bytes == 64 or target.arch == "aarch64" else 6)
    heights = dict.fromkeys((first.height, most, *(h for h in (13, 12, 11, 10, 8, 6, 4) if h <= most)))
    starts = [blocking_of(s, target, threads, h) for h in heights]
    found = dict.fromkeys((first, *starts, *(replace(b, tiles_outside=not b.tiles_outside) for b in starts)))
    for b in (first, replace(first, tiles_outside=not first.tiles_outside)):
        found |= dict.fromkeys(replace(b, tiles=n) for n in (4, 8, 16, 32))
        found |= dict.fromkeys(replace(b, per_thread=n) for n in (1, 2, 8))
        found |= dict.fromkeys(replace(b, panels=n) for n in (1, 2, 4))
    return tuple(found)


def _unit_of(s: Sums, target: Target, threads: int, b: Blocking) -> tuple[int, int, int]:
    """(tiles of places, panels) of a unit, and the elements of a panel."""
    width = target.vector_bytes // REGISTER[s.dtype].size * VECTORS
    panels = -(-s.rows // b.height)
    column_tiles = -(-s.planes.places_of(s.counts) // width)
    block_tiles, block_panels = min(b.tiles, column_tiles), min(b.panels, panels) if b.panels else panels
    wanted = b.per_thread * threads if threads > 1 else 1

    def blocks() -> int:
        return s.images * s.groups * -(-column_tiles // block_tiles) * -(-panels // block_panels)

    while blocks() < wanted and block_tiles > 4:
        block_tiles = -(-block_tiles // 2)
    while blocks() < wanted and block_panels > 1:
        block_panels = -(-block_panels // 2)
    return block_tiles, block_panels, padded_depth(s.channels * len(s.taps)) * b.height + 64


def sums_over_planes(
    s: Sums, out: int, packed: int, threads: int, blocking: Blocking | conv_amx.Blocking | None = None
) -> Lowered:
    """Launches from the planes and operands 1 w and, if there is one, 2 bias; scratch buffers `packed` and the next one."""
    target, compute = targets.current(), REGISTER[s.dtype]
    if s.planes.paired:
        return lower_amx(s, out, packed, threads)
    lanes = target.vector_bytes // compute.size
    rows, channels, taps = s.rows, s.channels, len(s.taps)
    b = blocking or blocking_of(s, target, threads)
    height, tiles_outside = b.height, b.tiles_outside
    panels, depth = -(-rows // height), channels * taps
    block_tiles, block_panels, panel_size = _unit_of(s, target, threads, b)
    launches = []
    if depth:
        order = "width" if s.w_taps == (0,) and s.w_steps[1] == 1 else "any"
        if s.w_taps == tuple(range(taps)) and (channels == 1 or s.w_steps[2] == taps):
            order = "depth"
        grain = max(1, 8192 // (depth * height))
        fields = (s.groups * panels, grain, rows, panels, channels, taps, *s.w_steps, panel_size, *s.w_taps)
        launches.append(Launch(Recipe("conv_weights", (s.dtype, height, order), build_weights), (1, packed), fields))

    width = lanes * VECTORS
    pitch, plane_pitch = s.planes.pitch, s.planes.plane_pitch
    places = s.planes.places_of(s.counts)
    column_tiles = -(-places // width)
    blocks = s.images * s.groups * -(-column_tiles // block_tiles) * -(-panels // block_panels)
    work = block_tiles * width * block_panels * height * max(depth, 16)  # where nothing is summed, zeros are written
    fields = (blocks, max(1, (1 << 17) // work), rows, panels, channels, taps, s.images, s.groups, -(-panels // block_panels),
              block_panels, -(-column_tiles // block_tiles), block_tiles, places, pitch, plane_pitch, *s.counts, *s.out_steps,
              s.planes.channel_step, s.planes.image_step, panel_size, s.out_row, s.out_at, int(s.bias_stride is not None), s.bias_stride or 0,
              *s.taps)  # fmt: skip
    written_out = taps if taps <= MOST_UNROLLED else 0
    direct = s.planes.launch is None
    recipe = Recipe("conv_tiles", (s.dtype, height, written_out, direct, tiles_outside), build_tiles)
    flops = 2 * s.images * s.groups * rows * math.prod(s.counts) * depth
    launches.append(Launch(recipe, (s.planes.slot, packed, 2, out, packed + 1), fields, flops))
    own = TILES * record_bytes(lanes)
    return Lowered(tuple(launches), ((s.groups * panels * panel_size + 64) * compute.size, threads * own + 64))


def convolution(
    x_shape: Sequence[int],
    x_strides: Sequence[int],
    w_shape: Sequence[int],
    w_strides: Sequence[int],
    counts: Sequence[int],
    stride: Sequence[int],
    low: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: str,
    bias_stride: int | None,
    *,
    threads: int,
) -> Lowered:
    """Launches for out [N, O, *counts] from operands 0 x [N, C, *L], 1 w [O, C / groups, *kernel], 2 bias [O] if there is one.

    `low` zeros lie in front of every spatial dim (fewer than none: elements are cut off). Determinism: bitwise.
    """
    images = x_shape[0]
    outs, channels, *kernel = w_shape
    if images * outs * math.prod(counts) == 0:
        return Lowered(())
    out = 2 if bias_stride is None else 3
    paired = groups if conv_amx.serves(dtype, targets.current()) else 0
    planes = planes_of(x_shape, x_strides, kernel, counts, stride, low, dilation, dtype, out + 1, pair_groups=paired)
    filled = Lowered(()) if planes.launch is None else Lowered((planes.launch,), (planes.scratch_bytes,))
    size = math.prod(counts)
    steps = (planes.counts[1] * planes.counts[2], planes.counts[2], 1)
    w_steps = (outs // groups * w_strides[0], *w_strides[:2])
    sums = Sums(
        images, groups, outs // groups, channels, planes, planes.counts, planes.taps, w_steps, tuple(weight_offsets(kernel, w_strides[2:])),
        size, 0, steps, bias_stride, dtype,
    )  # fmt: skip

    def lowered(blocking: Blocking | conv_amx.Blocking | None) -> Lowered:
        summed = sums_over_planes(sums, out, out + 1 + len(filled.scratch_bytes), threads, blocking)
        return Lowered((*filled.launches, *summed.launches), (*filled.scratch_bytes, *summed.scratch_bytes))

    def question() -> Question | None:
        """Which blocking is best; None where memory is read backwards or there is nothing to sum."""
        if min((*x_strides, *w_strides, bias_stride or 0)) < 0 or math.prod((*x_shape, *w_shape)) == 0:
            return None
        words = (*x_shape[1:], *x_strides, *w_shape, *w_strides, *counts, *stride, *low, *dilation, groups, bias_stride)
        operands = [(dtype, extent(x_shape, x_strides)), (dtype, extent(w_shape, w_strides))]
        if bias_stride is not None:
            operands.append((dtype, extent((outs,), (bias_stride,))))
        operands.append((dtype, images * outs * size))
        return Question(
            "convolution",
            (dtype, size_class(images), *words),
            conv_amx.blockings(sums, threads) if planes.paired else blockings(sums, targets.current(), threads),
            tuple(operands),
            True,
            threads,
            lowered,
        )

    return lowered(asked(question))


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of a tensor."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
