"""One launch of a loop nest over many sets of operands: the body is one program, units are divided over all of them.

    recipe = segmented(nest, common=(4, 5))
    params = segment_params([(units, grain, block), ...])       # slots: table, the common operands, the block

A segment is what would otherwise be a launch of its own. Its operands' addresses are a row of the table, except those in `common` slots,
which all segments share (numbers, the error block); its parameter block lies in the block of the launch:

    [total, grain, segments, words of a segment's block, first unit of each segment …, total, block of each segment …]

Compile time does not depend on how many segments there are, and a segment computes what it would compute alone, bit for bit.
May not know: which launches may become one (`schedule.horizontal`).
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.kernel.dsl import Module
from flambeau.kernel.types import i64, ptr
from flambeau.templates.launch import Recipe
from flambeau.templates.loop_nest import NestEmitter, numerics
from flambeau.templates.loop_program import LoopNest

SEGMENTS, WORDS, FIRST_UNITS = 2, 3, 4  # positions in the block
SCALE = 1024  # work is counted in parts of a grain


def segmented(nest: LoopNest, common: tuple[int, ...]) -> Recipe:
    """The recipe of a nest over many segments; it must leave no partial results."""
    return Recipe("segments", (common, nest), build_segments)


def build_segments(target, common: tuple[int, ...], nest: LoopNest) -> Module:
    """The kernel: finds the segment of its first unit, then runs the nest on what each one has of its units."""
    module = Module(max(256, target.vector_bytes * 8), **numerics(target))
    params = [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)]
    body = module.function("segment", [*params, ("block", ptr)], internal=True)
    NestEmitter(nest, body, *body.args[:4]).build(body.args[4])
    k = module.function("kernel", params)
    slots, begin, end, tid = k.args
    table, block = k.load(slots, ptr, 0), k.load(slots, ptr, 1 + len(common))
    count, words = k.load(block, i64, SEGMENTS), k.load(block, i64, WORDS)
    firsts = k.offset(block, 8 * FIRST_UNITS)
    blocks = k.offset(firsts, count * 8 + 8)
    own = k.stack(8 * max(1, nest.slots), align=16)
    for i, slot in enumerate(common):
        k.store(own, k.load(slots, i64, 1 + i), slot)
    listed = [s for s in range(nest.slots) if s not in common]
    low, high = k.var(i64, 0), k.var(i64, count)  # the segment is in [low, high)
    with k.loop_while(lambda: high.get() - low.get() > 1):
        middle = (low.get() + high.get()).lshr(1)
        after = k.load(firsts, i64, middle) <= begin
        low.set(k.select(after, middle, low.get()))
        high.set(k.select(after, high.get(), middle))
    unit = k.var(i64, begin)
    with k.loop_while(lambda: unit.get() < end):
        segment = low.get()
        first = k.load(firsts, i64, segment)
        stop = k.minimum(k.load(firsts, i64, segment + 1), end)
        row = k.offset(table, segment * (8 * len(listed)))
        for i, slot in enumerate(listed):
            k.store(own, k.load(row, i64, i), slot)
        k.call(body, own, unit.get() - first, stop - first, tid, k.offset(blocks, segment * words * 8))
        unit.set(stop)
        low.set(segment + 1)
    k.ret()
    return module


def segment_params(blocks: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The parameter block of a launch over segments with these ones. A chunk is about as much work as a chunk of theirs on average."""
    firsts, work = [0], 0
    for block in blocks:
        firsts.append(firsts[-1] + block[0])
        work += block[0] * SCALE // block[1]
    total = firsts[-1]
    grain = max(1, total * SCALE // max(1, work))
    return (total, grain, len(blocks), len(blocks[0]), *firsts, *(word for block in blocks for word in block))
