"""Gradients of convolutions by their weights: register tiles of pairs (channel, tap) by output channels, summed over places.

Lanes are output channels: `g` is packed into panels of places by channels, and each pair broadcasts the elements that its tap reads,
from planes (see `conv_planes`) or from the input where it lies.
    conv_gradient  packs g into panels of `width` channels, in float32 or wider
    conv_pairs     for each part of the images, height x vectors sums over its places, a block of lines at a time
    conv_gather    adds the parts up in order and turns [pair, channel] into [channel, pair]
How many parts there are depends on sizes and instruction set only, so sums do not depend on threads.

Few channels go to `conv_weight_lines`. May not know: tensors. Entry: `weight_gradient`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flambeau.kernel import target as targets
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, i64, ptr
from flambeau.templates.conv_planes import build_planes, fused, multiply_add, planes_of
from flambeau.templates.conv_weight_lines import MOST_CHANNELS, lower_lines
from flambeau.templates.gemm_pack import order_of, pack_function, padded_depth, transposed
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_program import MEMORY, REGISTER
from flambeau.templates.windows import ABI, three

PANEL_BYTES = 28 << 10  # of g that a block of tiles passes over: it stays in L1
MOST_TILES = 16  # of pairs in a unit
LEAST_TILES = 16  # below which images are divided into parts
STEPS = {1: 4, 2: 2, 3: 1}  # places written out one after the other, by vectors

GRADIENT_FIELDS = (
    "units",
    "grain",
    "channels",
    "outs",
    "panels",
    "places",
    "image_step",
    "channel_step",
    "place_step",
    "panel_size",
)
PAIR_FIELDS = (
    "units", "grain", "pairs", "tiles", "taps", "channels", "groups", "panels", "images", "parts", "block_tiles", "blocks", "c0", "c1", "c2",
    "lines", "segment", "pitch", "plane_pitch", "plane", "image", "panel_size", "sums_size", "part_size",
)  # fmt: skip
GATHER_FIELDS = ("units", "grain", "pairs", "outs", "panels", "parts", "pair_blocks", "sums_size", "part_size")


# ------------------------------------------------------------------ g in panels
def build_gradient(target: Target, dtype: str, width: int, order: str) -> Module:
    """Slots: g, packed, block. A unit is one panel of one group of one image: [place][width] output channels."""
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    module = Module(target.vector_bytes * 8)
    pack = pack_function(module, "pack", memory, compute, width, target.vector_bytes // compute.size, order)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    g, packed, block = (k.load(slots, ptr, i) for i in range(3))
    p = {name: k.load(block, i64, i) for i, name in enumerate(GRADIENT_FIELDS)}
    with k.range(begin, end) as unit:
        rest, panel = unit // p["panels"], unit % p["panels"]
        groups = p["channels"] // p["outs"]
        image, group = rest // groups, rest % groups
        first = panel * width
        channel = group * p["outs"] + first
        source = k.offset(g, image * p["image_step"] + channel * p["channel_step"], memory)
        to = k.offset(packed, unit * p["panel_size"], compute)
        many = k.minimum(p["outs"] - first, width)
        k.call(pack, source, p["channel_step"], p["place_step"], many, p["places"], to, p["panel_size"])
    k.ret()
    return module


# ------------------------------------------------------------------ register tiles
def build_pairs(target: Target, dtype: str, height: int, vectors: int) -> Module:
    """Slots: planes (or the input itself), packed g, sums, block; then the taps' offsets in a plane.

    A unit is a block of tiles of pairs by one panel of one group, over the images of one part.
    """
    compute = REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    width = vectors * lanes
    module = Module(target.vector_bytes * 8)
    micro = build_micro(module, target, compute, lanes, height, vectors)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    x, g, sums, block = (k.load(slots, ptr, i) for i in range(4))
    p = {name: k.load(block, i64, i) for i, name in enumerate(PAIR_FIELDS)}
    table = k.offset(block, 8 * len(PAIR_FIELDS))
    offsets = k.stack(MOST_TILES * height * 8)
    with k.range(begin, end) as unit:
        rest, tile_block = unit // p["blocks"], unit % p["blocks"]
        rest, panel = rest // p["panels"], rest % p["panels"]
        part, group = rest // p["groups"], rest % p["groups"]
        first = tile_block * p["block_tiles"]
        tiles = k.minimum(p["tiles"] - first, p["block_tiles"])
        with k.range(0, tiles * height) as i:  # pairs that are not there repeat the last one
            pair = k.minimum(first * height + i, p["pairs"] - 1)
            channel = pair // p["taps"]
            k.store(offsets, channel * p["plane"] + k.load(table, i64, pair - channel * p["taps"]), i)
        to = k.offset(
            sums,
            part * p["part_size"] + (group * p["panels"] + panel) * p["sums_size"] + first * (height * width),
            compute,
        )
        image0, image1 = part * p["images"] // p["parts"], (part + 1) * p["images"] // p["parts"]
        more = k.var(i64, 0)
        with k.range(image0, image1) as image:
            planes = k.offset(x, image * p["image"] + group * p["channels"] * p["plane"], compute)
            panels = k.offset(g, ((image * p["groups"] + group) * p["panels"] + panel) * p["panel_size"], compute)
            with k.range(0, p["c0"]) as a, k.range(0, p["c1"], p["lines"]) as b, k.range(0, p["c2"], p["segment"]) as c:
                lines, places = k.minimum(p["c1"] - b, p["lines"]), k.minimum(p["c2"] - c, p["segment"])
                here = k.offset(planes, a * p["plane_pitch"] + b * p["pitch"] + c, compute)
                rows = k.offset(panels, ((a * p["c1"] + b) * p["c2"] + c) * width, compute)
                with k.range(0, tiles) as tile:
                    at = k.offset(offsets, tile * (8 * height))
                    k.call(micro, at, here, p["pitch"], rows, p["c2"] * width, lines, places,
                           k.offset(to, tile * (height * width), compute), more.get())  # fmt: skip
                more.set(k.const(i64, 1))
    k.ret()
    return module


def build_micro(module: Module, target: Target, compute: Type, lanes: int, height: int, vectors: int) -> Function:
    """sums (+)= over `lines` of `places`: the element that each pair reads, times `vectors` of output channels."""
    k = module.function(
        "tile",
        [("offsets", ptr), ("x", ptr), ("pitch", i64), ("g", ptr), ("g_line", i64), ("lines", i64), ("places", i64), ("sums", ptr), ("more", i64)],
        internal=True,
    )  # fmt: skip
    offsets, x, pitch, g, g_line, lines, places, to, more = k.args
    vector, width, steps = compute.vec(lanes), vectors * lanes, STEPS[vectors]
    cells = [(i, v) for i in range(height) for v in range(vectors)]
    sums = {cell: k.var(vector, 0) for cell in cells}
    one = fused(target)
    with k.when(more.ne(0)):
        for i, v in cells:
            sums[i, v].set(k.load(to, vector, i * width + v * lanes))
    x_line, g_now = k.var(ptr, x), k.var(ptr, g)

    def places_from(at: Value, g_at: Value, many: int) -> None:
        rows = [[k.load(g_at, vector, u * width + v * lanes) for v in range(vectors)] for u in range(many)]
        for i in range(height):
            line = k.offset(at, k.load(offsets, i64, i), compute)
            for u in range(many):
                value = k.splat(k.load(line, compute, u), lanes)
                for v in range(vectors):
                    sums[i, v].set(multiply_add(k, one, value, rows[u][v], sums[i, v].get()))

    with k.range(0, lines):
        line, row = x_line.get(), g_now.get()
        whole = places // steps * steps
        with k.range(0, whole, steps) as c:
            places_from(k.offset(line, c, compute), k.offset(row, c * width, compute), steps)
        if steps > 1:
            with k.range(whole, places) as c:
                places_from(k.offset(line, c, compute), k.offset(row, c * width, compute), 1)
        x_line.set(k.offset(line, pitch, compute))
        g_now.set(k.offset(row, g_line, compute))
    for i, v in cells:
        k.store(to, sums[i, v].get(), i * width + v * lanes)
    k.ret()
    return k


# ------------------------------------------------------------------ the result
def build_gather(target: Target, dtype: str, vectors: int) -> Module:
    """Slots: sums, out, block. A unit is `lanes` pairs by one panel of one group: parts added up in order, then turned."""
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    width = vectors * lanes
    module = Module(target.vector_bytes * 8, native_bf16=target.has("avx512bf16"))
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    sums, out, block = (k.load(slots, ptr, i) for i in range(3))
    p = {name: k.load(block, i64, i) for i, name in enumerate(GATHER_FIELDS)}
    square, vector = k.stack(lanes * lanes * compute.size), compute.vec(lanes)
    with k.range(begin, end) as unit:
        rest, pair_block = unit // p["pair_blocks"], unit % p["pair_blocks"]
        group, panel = rest // p["panels"], rest % p["panels"]
        pair = pair_block * lanes
        source = k.offset(sums, rest * p["sums_size"] + pair * width, compute)
        mask = k.tail_mask(p["pairs"] - pair, lanes)
        for v in range(vectors):
            with k.range(0, lanes) as i:
                total = k.var(vector, k.load(source, vector, i * width + v * lanes))
                with k.range(1, p["parts"]) as part:
                    more = k.offset(source, part * p["part_size"], compute)
                    total.set(total.get() + k.load(more, vector, i * width + v * lanes))
                k.store(square, total.get(), i * lanes)
            for i, line in enumerate(transposed(k, [k.load(square, vector, i * lanes) for i in range(lanes)])):
                k.store(square, line, i * lanes)
            first = panel * width + v * lanes
            with k.range(0, k.minimum(p["outs"] - first, lanes)) as i:
                row = k.offset(out, (group * p["outs"] + first + i) * p["pairs"], memory)
                k.store(row, k.load(square, vector, i * lanes).to(memory), pair, mask=mask)
    k.ret()
    return module


# ------------------------------------------------------------------ lowering
def register_tile(pairs: int, outs: int, lanes: int, registers: int) -> tuple[int, int]:
    """(height, vectors) of a register tile: as few lanes and rows in vain as possible."""
    vectors = min((2, 3, 1), key=lambda v: -(-outs // (v * lanes)) * v)
    most = (registers - 1 - vectors * STEPS[vectors]) // vectors
    if pairs <= most:
        return pairs, vectors
    return min(range(max(1, most * 2 // 3), most + 1), key=lambda h: (-(-pairs // h) * h, -h)), vectors


def weight_gradient(
    x_shape: Sequence[int],
    x_strides: Sequence[int],
    g_shape: Sequence[int],
    g_strides: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    low: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: str,
    *,
    threads: int,
) -> Lowered:
    """Launches for out [O, C / groups, *kernel] from operands 0 x [N, C, *L], 1 g [N, O, *counts]. Determinism: bitwise."""
    target, compute = targets.current(), REGISTER[dtype]
    lanes = target.vector_bytes // compute.size
    images, channels, *_ = x_shape
    images, all_outs, *counts = g_shape
    outs, channels, places = all_outs // groups, channels // groups, math.prod(counts)
    planes = planes_of(x_shape, x_strides, kernel, counts, stride, low, dilation, dtype, 3)
    taps = len(planes.taps)
    pairs = channels * taps
    if channels <= MOST_CHANNELS and contiguous_places(g_shape, g_strides):
        return lower_lines(planes, images, groups, outs, channels, tuple(g_strides[:2]), dtype, threads)
    wide = target.vector_bytes == 64 or target.arch == "aarch64"
    height, vectors = register_tile(pairs, outs, lanes, 32 if wide else 16)
    width = vectors * lanes
    direct = planes.launch is None
    launches, scratch = ([], []) if direct else ([planes.launch], [planes.scratch_bytes])

    panels, panel_size = -(-outs // width), padded_depth(places) * width
    source, steps = _places_in_line(g_shape, g_strides, dtype, 3 + len(scratch), launches, scratch)
    packed = 3 + len(scratch)
    fields = (
        images * groups * panels,
        max(1, 16384 // (places * width)),
        all_outs,
        outs,
        panels,
        places,
        *steps,
        panel_size,
    )
    # What was copied for its gaps is in the compute type already.
    given = dtype if source == 1 else compute_name(dtype)
    recipe = Recipe("conv_gradient", (given, width, order_of(*steps[1:])), build_gradient)
    launches.append(Launch(recipe, (source, packed), fields))
    scratch.append((images * groups * panels * panel_size + lanes) * compute.size)

    c0, c1, c2 = planes.counts
    if planes.pitch == c2:  # lines run on without a gap
        c1, c2 = 1, c1 * c2
    if planes.plane_pitch == c2:
        c0, c2 = 1, c0 * c2
    most = max(1, PANEL_BYTES // (width * compute.size))
    segment = -(-c2 // -(-c2 // most))
    lines = max(1, most // c2)
    tiles = -(-pairs // height)
    parts = min(images, -(-LEAST_TILES // (tiles * panels * groups)))
    block_tiles = min(MOST_TILES, tiles)
    while threads > 1 and block_tiles > 1 and parts * groups * panels * -(-tiles // block_tiles) < 8 * threads:
        block_tiles -= 1
    blocks = -(-tiles // block_tiles)
    sums_size = (tiles * height + lanes) * width  # what is turned may start with the last pair
    part_size = groups * panels * sums_size
    work = block_tiles * height * width * places * images // parts
    fields = (parts * groups * panels * blocks, max(1, (1 << 17) // work), pairs, tiles, taps, channels, groups, panels, images, parts, block_tiles, blocks,
              c0, c1, c2, lines, segment, planes.pitch, planes.plane_pitch, planes.channel_step, planes.image_step, panel_size, sums_size, part_size,
              *planes.taps)  # fmt: skip
    sums = 3 + len(scratch)
    recipe = Recipe("conv_pairs", (compute_name(dtype), height, vectors), build_pairs)
    launches.append(
        Launch(recipe, (planes.slot, packed, sums), fields, flops=2 * images * places * outs * groups * pairs)
    )
    scratch.append(parts * part_size * compute.size)

    pair_blocks = -(-pairs // lanes)
    fields = (
        groups * panels * pair_blocks,
        max(1, 32768 // (lanes * width * parts)),
        pairs,
        outs,
        panels,
        parts,
        pair_blocks,
        sums_size,
        part_size,
    )
    launches.append(Launch(Recipe("conv_gather", (dtype, vectors), build_gather), (sums, 2), fields))
    return Lowered(tuple(launches), tuple(scratch))


def contiguous_places(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the places of a channel are neighbours, in order."""
    return all(n == 1 or s == math.prod(shape[d + 1 :]) for d, (n, s) in enumerate(zip(shape, strides)) if d >= 2)


def compute_name(dtype: str) -> str:
    """The dtype that planes of a dtype hold."""
    return "float64" if dtype == "float64" else "float32"


def _places_in_line(
    shape: Sequence[int], strides: Sequence[int], dtype: str, slot: int, launches: list[Launch], scratch: list[int]
) -> tuple[int, tuple[int, int, int]]:
    """(operand, steps of image, channel and place) of g, copied into buffer `slot` if its places have no common step."""
    n3, s3 = three(shape[2:], 1), three(strides[2:], 0)
    dims = [(n, s) for n, s in zip(n3, s3) if n != 1]
    step = dims[-1][1] if dims else 1
    if all(s == step * math.prod(n for n, _ in dims[i + 1 :]) for i, (_, s) in enumerate(dims)):
        return 1, (strides[0], strides[1], step)
    plane, units = math.prod(n3), shape[0] * shape[1]
    fields = (units, max(1, 16384 // plane), *n3, 0, 0, 0, 1, 1, 1, 1, 1, 1, *n3, *s3, shape[1], *strides[:2])
    launches.append(
        Launch(Recipe("conv_planes", (dtype, "row" if s3[2] == 1 else "any"), build_planes), (1, slot), fields)
    )
    scratch.append((units * plane + 64) * REGISTER[dtype].size)
    return slot, (plane * shape[1], plane, 1)
