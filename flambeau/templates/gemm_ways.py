"""The ways to multiply two matrices of real numbers: which serve a problem, which add in one order, which is taken unasked.

    way = analytic(p, target)                        # by dtype, sizes and layout, never by the number of threads
    lower_way(p, target, threads, way)
    candidates(p, target, threads, reorder=False)    # that way, then all others that give the same bits

May not know: who chooses. Entry: `lower_real`.
"""

from __future__ import annotations

from collections.abc import Iterator

from flambeau.base.record import record, replace
from flambeau.base.settings import settings
from flambeau.kernel.target import Target
from flambeau.templates import gemm_amx, gemm_dot, gemm_tiles, gemm_vector_tiles
from flambeau.templates.choice import Question, asked, size_class, stride_class
from flambeau.templates.gemm_amx import lower_amx
from flambeau.templates.gemm_dot import lower_dot
from flambeau.templates.gemm_problem import Problem, swapped, with_swapped_operands
from flambeau.templates.gemm_rows import MOST_ROWS, lower_rows
from flambeau.templates.gemm_tiles import ELEMENTS, lower_plain, lower_tiles
from flambeau.templates.launch import Lowered

# Where one way of multiplying overtakes another, measured with float32 on AVX-512 (benchmarks/bench_gemm.py).
FEW_ROWS = 28  # two register tiles: b, as it lies, is read twice at most
ONE_TILE = 9  # one register tile holds all rows: b is read once
FEW_COLUMNS = 16  # the same of b, whose panels would be mostly empty
PLAIN_DEPTH, PLAIN_BYTES = 384, 3 << 19  # a panel of b that stays in L1, all of b in L2
SMALL_BYTES = 1 << 19  # so little of b that it stays near whatever its depth
PACKED_ROWS, CLASH_BYTES = 96, 256  # lines of b that far apart share sets of L1: so many rows repay packing it
NARROW = 128  # each line of the long operand is used so few times that packing it does not pay
MANY_ROWS = 1024  # each panel of b is used so many times that all of it should be packed once
SHARED_BYTES = 1 << 28  # but not more memory than this for it
STREAM_BYTES = 1 << 20

SHORT_WORK = 1 << 24  # multiply-adds that one thread may do sooner than several agree on who does what


LONG_ARITHMETIC = 16  # of an epilogue, in multiply-adds: a transcendental function


@record
class Way:
    """One way to multiply. Numbers of 0 are left to the way itself."""

    name: str  # "amx", "dot", "rows", "plain" or "tiles"
    swapped: bool = False  # the transposed product
    plain_a: bool = False  # of tiles: see `lower_tiles`
    shared_b: bool = False
    panels: int = 0  # of register tiles in the rows of a unit, at most
    columns: int = 0  # of a unit at most; of `dot`, KiB of lines
    depth: int = 0  # of a block of tiles at most; of `rows`, lines of b at a time
    tile: tuple[int, ...] = ()  # of `dot`: rows, columns, vectors of depth
    serial: bool = False  # one thread does it all


def lower_real(p: Problem, target: Target, threads: int) -> Lowered:
    """One product of real numbers, its depth in one piece, the best way that is known."""
    return lower_way(p, target, threads, asked(lambda: question(p, target, threads)) or analytic(p, target))


def lower_way(p: Problem, target: Target, threads: int, way: Way) -> Lowered:
    """The product done one way, which must serve it."""
    if way.swapped:
        return with_swapped_operands(lower_way(swapped(p), target, threads, replace(way, swapped=False)))
    if way.name == "amx":
        lowered = lower_amx(p, threads, panels=way.panels, columns=way.columns)
    elif way.name == "dot":
        lowered = lower_dot(p, target, threads, tile=way.tile, unit_kib=way.columns)
    elif way.name == "rows":
        lowered = lower_rows(p, target, threads, columns=way.columns, depth=way.depth)
    elif way.name == "plain":
        lowered = lower_plain(p, target, threads, panels=way.panels, columns=way.columns)
    else:
        lowered = lower_tiles(
            p, target, threads,
            plain_a=way.plain_a, shared_b=way.shared_b, panels=way.panels, columns=way.columns, depth=way.depth,
        )  # fmt: skip
    if way.serial:
        alone = tuple(replace(s, params=(s.params[0], s.params[0], *s.params[2:])) for s in lowered.launches)
        lowered = replace(lowered, launches=alone)
    return lowered


def analytic(p: Problem, target: Target) -> Way:
    """The way by dtype, sizes and layout."""
    if on_tiles(p, target):
        return Way("amx", swapped=gemm_amx.swaps(p))
    if p.b[0] == 1 and streams_lines(p.m, p.n, p):
        return Way("dot")
    if p.a[1] == 1 and streams_lines(p.n, p.m, p):
        return Way("dot", swapped=True)
    size = ELEMENTS[p.dtype][0].size
    if p.m <= MOST_ROWS and p.b[1] == 1 and p.n * p.k * size >= STREAM_BYTES and p.k >= 16:
        return Way("rows")
    whole = is_whole(p)
    if lies_plainly(p):
        right = p.n * p.k * size
        near = right <= (PLAIN_BYTES if p.k <= PLAIN_DEPTH or p.m <= FEW_ROWS else SMALL_BYTES)
        if near and p.m >= PACKED_ROWS and p.n > FEW_COLUMNS and p.b[0] * size % CLASH_BYTES == 0:
            return Way("tiles", plain_a=True)
        if near or p.m <= ONE_TILE or p.n <= FEW_COLUMNS:
            return Way("plain")
    # A long operand whose rows run along depth is A, as it lies, against a narrow one packed once.
    if p.b[0] == 1 and p.m <= NARROW and p.n >= 4 * p.m:
        return Way("tiles", swapped=True, plain_a=whole, shared_b=True)
    if p.a[1] == 1 and p.n <= NARROW and p.m >= 4 * p.n:
        return Way("tiles", plain_a=whole, shared_b=True)
    shared = p.m >= MANY_ROWS and fits_packed(p)
    return Way("tiles", plain_a=whole and p.a[1] == 1 and p.m <= FEW_ROWS, shared_b=shared)


def stands_apart(p: Problem, target: Target) -> bool:
    """Whether the epilogue had better be a kernel of its own: much arithmetic over the short lines of a product done the other way round, whose
    tiles take less time than it does (docs/log.md)."""
    e = p.epilogue
    long = e is not None and e.cost >= LONG_ARITHMETIC
    return long and p.m > gemm_amx.PANEL and on_tiles(p, target) and gemm_amx.swaps(p)


# ------------------------------------------------------------------ what serves a problem
def on_tiles(p: Problem, target: Target) -> bool:
    """Whether the machine has tiles for it, or vector instructions in their place."""
    return p.k > 0 and (gemm_amx.has_tiles(p.dtype, target) or gemm_vector_tiles.serves(p.dtype, target))


def streams_lines(few: int, many: int, p: Problem) -> bool:
    """Whether `many` long lines, against few, should be read once, where they lie."""
    if p.k < 64:
        return False
    return few <= 4 or (few <= 24 and many * p.k * ELEMENTS[p.dtype][0].size >= STREAM_BYTES)


def is_whole(p: Problem) -> bool:
    """Whether elements are summed as they lie: narrow types are widened while they are packed."""
    size, compute = (t.size for t in ELEMENTS[p.dtype])
    return size == compute


def lies_plainly(p: Problem) -> bool:
    """Whether nothing needs packing."""
    return is_whole(p) and 1 in p.a and p.b[1] == 1 and p.out[1] == 1 and (p.bias is None or p.bias[0] == 0)


def fits_packed(p: Problem) -> bool:
    """Whether all of b may be packed at once."""
    return p.matrices * p.n * p.k * ELEMENTS[p.dtype][1].size <= SHARED_BYTES


def order(p: Problem, target: Target, way: Way) -> tuple:
    """In which order an element's products are added; equal for ways that give equal bits. Integers wrap around in any order."""
    if not ELEMENTS[p.dtype][1].is_float:
        return ()
    if way.swapped:
        p = swapped(p)
    if way.name == "amx":
        return ("amx",)  # sums that wait for more depth are put back into the tiles
    if way.name == "dot":
        block = gemm_dot.depth_block(p)
        unroll = (way.tile or gemm_dot.register_tile(target, p))[2]
        return ("dot", unroll, min(block, p.k))
    if way.name in ("rows", "plain"):
        return ("serial", p.k)
    block = gemm_tiles.depth_block(p, way.depth)
    if block >= p.k:
        return ("serial", p.k)
    # What is added to the product goes to the first block's sums or, where all sums wait, to the last's.
    return ("serial", block, gemm_tiles.is_staged(p)) if p.flags else ("serial", block)


def candidates(p: Problem, target: Target, threads: int, reorder: bool) -> tuple[Way, ...]:
    """The analytic way first, then others, likely ones first; with `reorder` those too that add in another order."""
    first = analytic(p, target)
    found = {first: None}
    wanted = order(p, target, first)
    for way in _every(p, target, first):
        if reorder or order(p, target, way) == wanted:
            found[way] = None
    if threads > 1 and p.work <= SHORT_WORK:
        found |= {replace(way, serial=True): None for way in list(found) if not (way.panels or way.columns)}
    return tuple(found)


def _every(p: Problem, target: Target, first: Way) -> Iterator[Way]:
    """All ways that serve it: as they are, then in other blocks."""
    plain = list(_ways(p, target))
    yield from plain
    for way in dict.fromkeys((first, *plain)):
        if way.swapped != first.swapped:
            continue  # of two ways round that are equal but for the blocks, one is enough
        if way.name == "amx":
            yield from (replace(way, panels=n) for n in (2, 4, 16))
            yield from (replace(way, columns=n) for n in (256, 512, 2048))
        elif way.name == "dot":
            yield from (replace(way, columns=n) for n in (64, 128, 1024))
        elif way.name == "rows":
            yield from (replace(way, columns=n, depth=d) for n in (512, 1024, 2048) for d in (4, 8))
        else:
            yield from (replace(way, panels=n) for n in (10, 14, 30))
            yield from (replace(way, columns=n) for n in (256, 512, 1024))
            if way.name == "tiles":
                yield from (replace(way, depth=n) for n in (192, 256, 384, 768))


def _ways(p: Problem, target: Target) -> Iterator[Way]:
    for turned in (False, True):
        q = swapped(p) if turned else p
        if on_tiles(q, target):
            yield Way("amx", turned)
        if lies_plainly(q):
            yield Way("plain", turned)
        if q.m <= MOST_ROWS and q.b[1] == 1 and q.k >= 16:
            yield Way("rows", turned)
        if q.b[0] == 1 and q.m <= 24 and q.k >= 64:
            yield Way("dot", turned)
            yield from (Way("dot", turned, tile=tile) for tile in gemm_dot.register_tiles(target, q))
        plain_a = (False, True) if is_whole(q) and 1 in q.a else (False,)
        shared_b = (False, True) if fits_packed(q) else (False,)
        yield from (Way("tiles", turned, plain, shared) for plain in plain_a for shared in shared_b)


# ------------------------------------------------------------------ asking
def question(p: Problem, target: Target, threads: int) -> Question | None:
    """Which way is best; None where there is nothing to multiply or memory is read backwards."""
    entries = [step for entry in p.batch for step in entry[1:]]
    if p.k == 0 or min((*p.a, *p.b, *p.out, *(p.bias or ()), *entries)) < 0:
        return None
    p = replace(p, base=(0, 0, 0), epilogue=None)  # what finishes the result costs all ways the same
    reorder = settings.tune_reorders
    size, out_size = ELEMENTS[p.dtype][0].size, ELEMENTS[p.out_dtype][0].size
    layouts = [tuple(stride_class(s, size) for s in strides) for strides in (p.a, p.b)]
    shape_class = (
        p.dtype,
        p.out_dtype,
        *(size_class(n) for n in (p.m, p.n, p.k, p.matrices)),
        *layouts,
        tuple(stride_class(s, out_size) for s in p.out),
        tuple(tuple(s != 0 for s in entry[1:]) for entry in p.batch),
        None if p.bias is None else tuple(stride_class(s, out_size) for s in p.bias),
        p.accumulate,
        reorder,
    )

    def extent(sizes: tuple[int, int], strides: tuple[int, int], which: int | None) -> int:
        far = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        return 1 + far + (0 if which is None else sum((e[0] - 1) * e[which] for e in p.batch))

    operands = [(p.dtype, extent((p.m, p.k), p.a, 1)), (p.dtype, extent((p.k, p.n), p.b, 2))]
    if p.bias is not None:
        operands.append((p.out_dtype, extent((p.m, p.n), p.bias, None)))
    operands.append((p.out_dtype, extent((p.m, p.n), p.out, 3)))
    return Question(
        "gemm",
        shape_class,
        candidates(p, target, threads, reorder),
        tuple(operands),
        not reorder,
        threads,
        lambda way: lower_way(p, target, threads, way),
    )


__all__ = ["Way", "analytic", "candidates", "lower_real", "lower_way", "order", "question", "stands_apart"]
