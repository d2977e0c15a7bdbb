"""Gradients of convolutions by their weights, for few channels: register tiles of output channels by pairs (channel, tap), lanes along places.

Where a group has few pairs, putting `g` into panels (`conv_weight`) costs more than the sums. Here g is read where it lies, by lines, and so is
what a pair's tap reads of the planes; lanes are added up in the end.
    conv_line_sums    for each part of the images and each tile of output channels, the sums of all pairs, a block of lines at a time
    conv_line_gather  adds the parts up in order
How many parts there are depends on sizes and instruction set only. May not know: tensors. Entry: `lower_lines`.
"""

from __future__ import annotations

from flambeau.kernel import target as targets
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, i64, ptr
from flambeau.templates.conv_planes import Planes, fused, multiply_add
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_program import MEMORY, REGISTER
from flambeau.templates.windows import ABI

MOST_CHANNELS = 4  # of a group
LINE_BYTES = 12 << 10  # of g that all pairs pass over: it stays in L1
LEAST_UNITS = 16

FIELDS = (
    "units", "grain", "pairs", "pair_tiles", "taps", "channels", "groups", "outs", "out_tiles", "images", "parts", "c0", "c1", "c2", "lines",
    "pitch", "plane_pitch", "plane", "image", "g_image", "g_channel", "part_size", "scratch",
)  # fmt: skip


def register_tile(target: Target) -> tuple[int, int]:
    """(output channels, pairs)"""
    return (4, 6) if target.vector_bytes == 64 or target.arch == "aarch64" else (3, 3)


def build_sums(target: Target, dtype: str) -> Module:
    """Slots: planes (or the input itself), g, sums, scratch, block; then the taps' offsets in a plane. A unit is a tile of channels of a part."""
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    height, width = register_tile(target)
    vector, tile_bytes = compute.vec(lanes), height * width * target.vector_bytes
    module = Module(target.vector_bytes * 8)
    micro = build_micro(module, target, memory, compute)
    k = module.function("kernel", ABI)
    slots, begin, end, tid = k.args
    x, g, sums, scratch, block = (k.load(slots, ptr, i) for i in range(5))
    p = {name: k.load(block, i64, i) for i, name in enumerate(FIELDS)}
    table = k.offset(block, 8 * len(FIELDS))
    offsets = k.offset(scratch, tid * p["scratch"])  # of each pair, in bytes
    totals = k.offset(offsets, (p["pair_tiles"] * (width * 8) + 63) & -64)
    with k.range(0, p["pair_tiles"] * width) as i:  # pairs that are not there repeat the last one
        pair = k.minimum(i, p["pairs"] - 1)
        channel = pair // p["taps"]
        at = channel * p["plane"] + k.load(table, i64, pair - channel * p["taps"])
        k.store(offsets, at * compute.size, i)
    with k.range(begin, end) as unit:
        rest, out_tile = unit // p["out_tiles"], unit % p["out_tiles"]
        part, group = rest // p["groups"], rest % p["groups"]
        first = out_tile * height
        with k.range(0, p["pair_tiles"] * (height * width)) as i:
            k.store(totals, k.const(vector, 0), i * lanes)
        rows = k.minimum(p["outs"] - first, height)
        image0, image1 = part * p["images"] // p["parts"], (part + 1) * p["images"] // p["parts"]
        with k.range(image0, image1) as image:
            planes = k.offset(x, image * p["image"] + group * p["channels"] * p["plane"], compute)
            channel = k.offset(g, image * p["g_image"] + (group * p["outs"] + first) * p["g_channel"], memory)
            with k.range(0, p["c0"]) as a, k.range(0, p["c1"], p["lines"]) as b:
                lines = k.minimum(p["c1"] - b, p["lines"])
                here = k.offset(planes, a * p["plane_pitch"] + b * p["pitch"], compute)
                line = k.offset(channel, (a * p["c1"] + b) * p["c2"], memory)
                with k.range(0, p["pair_tiles"]) as tile:
                    k.call(micro, k.offset(offsets, tile * (width * 8)), here, p["pitch"], line, p["g_channel"], rows, lines, p["c2"],
                           k.offset(totals, tile * tile_bytes))  # fmt: skip
        to = k.offset(sums, part * p["part_size"] + (group * p["outs"] + first) * p["pairs"], compute)
        with k.range(0, p["pairs"]) as pair, k.range(0, rows) as i:
            tile = pair // width
            found = k.load(
                k.offset(totals, tile * tile_bytes + (i * width + pair - tile * width) * target.vector_bytes), vector
            )
            k.store(to, k.reduce(found, lambda a, b: a + b), i * p["pairs"] + pair)
    k.ret()
    return module


def build_micro(module: Module, target: Target, memory: Type, compute: Type) -> Function:
    """totals += over `lines` of `places`: g of each output channel times what each pair reads. Channels that are not there repeat the last one."""
    k = module.function(
        "tile",
        [("offsets", ptr), ("x", ptr), ("pitch", i64), ("g", ptr), ("g_channel", i64), ("rows", i64), ("lines", i64), ("places", i64), ("totals", ptr)],
        internal=True,
    )  # fmt: skip
    offsets, x, pitch, g, g_channel, rows, lines, places, totals = k.args
    lanes = target.vector_bytes // compute.size
    height, width = register_tile(target)
    vector, one = compute.vec(lanes), fused(target)
    cells = [(i, j) for i in range(height) for j in range(width)]
    sums = {(i, j): k.var(vector, k.load(totals, vector, (i * width + j) * lanes)) for i, j in cells}
    sources = [k.offset(x, k.load(offsets, i64, j)) for j in range(width)]
    channels = [k.offset(g, k.minimum(rows - 1, i) * g_channel, memory) for i in range(height)]
    whole = places // lanes * lanes
    with k.range(0, lines) as line:

        def step(c: Value, mask: Value | None, line: Value = line) -> None:
            x_at, g_at = line * pitch + c, line * places + c
            values = [k.load(channel, memory.vec(lanes), g_at, mask=mask).to(compute) for channel in channels]
            for j, source in enumerate(sources):
                read = k.load(source, vector, x_at, mask=mask)
                for i, value in enumerate(values):
                    sums[i, j].set(multiply_add(k, one, read, value, sums[i, j].get()))

        with k.range(0, whole, lanes) as c:
            step(c, None)
        with k.when(whole < places):
            step(whole, k.tail_mask(places - whole, lanes))
    for i, j in cells:
        k.store(totals, sums[i, j].get(), (i * width + j) * lanes)
    k.ret()
    return k


def build_gather(target: Target, dtype: str) -> Module:
    """Slots: sums, out, block (units, grain, elements, parts). A unit is a vector of elements."""
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    sums, out, block = (k.load(slots, ptr, i) for i in range(3))
    elements, parts = k.load(block, i64, 2), k.load(block, i64, 3)
    with k.range(begin, end) as unit:
        at = unit * lanes
        mask = k.tail_mask(elements - at, lanes)
        total = k.var(compute.vec(lanes), k.load(sums, compute.vec(lanes), at, mask=mask))
        with k.range(1, parts) as part:
            total.set(total.get() + k.load(sums, compute.vec(lanes), part * elements + at, mask=mask))
        k.store(out, total.get().to(memory), at, mask=mask)
    k.ret()
    return module


def lower_lines(
    planes: Planes,
    images: int,
    groups: int,
    outs: int,
    channels: int,
    g_steps: tuple[int, int],
    dtype: str,
    threads: int,
) -> Lowered:
    """Launches for out [O, C / groups, *kernel] from planes and operand 1, g, whose places run on without gaps; scratch from 3 on is the planes',
    if they have any, then that of these launches."""
    target, compute = targets.current(), REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    height, width = register_tile(target)
    taps, (c0, c1, c2) = len(planes.taps), planes.counts
    pairs = channels * taps
    out_tiles, pair_tiles = -(-outs // height), -(-pairs // width)
    parts = min(images, -(-LEAST_UNITS // (out_tiles * groups)))
    lines = max(1, LINE_BYTES // (c2 * height * compute.size))
    elements = groups * outs * pairs
    own = -(-(pair_tiles * width * (8 + height * target.vector_bytes) + 64) // 4096) * 4096 + 128
    fields = (parts * groups * out_tiles, 1, pairs, pair_tiles, taps, channels, groups, outs, out_tiles, images, parts, c0, c1, c2, lines,
              planes.pitch, planes.plane_pitch, planes.channel_step, planes.image_step, *g_steps, elements, own, *planes.taps)  # fmt: skip
    first, scratch = ([], []) if planes.launch is None else ([planes.launch], [planes.scratch_bytes])
    sums = 3 + len(scratch)
    flops = 2 * images * c0 * c1 * c2 * elements
    main = Launch(Recipe("conv_line_sums", (dtype,), build_sums), (planes.slot, 1, sums, sums + 1), fields, flops)
    gather = (-(-elements // lanes), 1024, elements, parts)
    last = Launch(Recipe("conv_line_gather", (dtype,), build_gather), (sums, 2), gather)
    return Lowered((*first, main, last), (*scratch, parts * elements * compute.size, threads * own))
