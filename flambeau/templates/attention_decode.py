"""Attention of few queries to many keys: decoding with a cache, where all there is to do is to read it once.

The queries of all heads that share keys are one tile. Keys are divided into parts, so that all threads have work at batch 1; a unit packs
its part chunk by chunk in its own scratch and goes through the forward pass' loop, then the parts of a row are put together.

Determinism: parts depend on sizes only. May not know: block masks. Entry: `lower_decode`.
"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.kernel import vmath
from flambeau.kernel.dsl import Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64, ptr
from flambeau.templates.attention_forward import (
    FIELDS,
    Forward,
    ForwardBuilder,
    Layout,
    extent_of,
    float_bits,
    statistics,
)
from flambeau.templates.attention_frame import Extent, list_words, module_for
from flambeau.templates.attention_pack import Packed, call_form, form_function, packed
from flambeau.templates.attention_problem import NO_PROGRAMS, Problem, Programs
from flambeau.templates.attention_tiles import store_line
from flambeau.templates.gemm_amx import configure, has_tiles, tile_instruction
from flambeau.templates.gemm_problem import launch, round_up
from flambeau.templates.gemm_tiles import ABI, ELEMENTS
from flambeau.templates.launch import Launch, Lowered, Recipe

MOST_ROWS = 16  # queries of a group of heads
UNITS = 64  # that keys are divided for, at batch 1
LEAST_PART = 512  # keys of a part

SLOTS = ("q", "k", "v", "out", "lse", "most", "scratch")
PART_FIELDS = (
    *FIELDS,
    "parts",
    "part",
    "k_batch",
    "k_head",
    "k_row",
    "k_element",
    "v_batch",
    "v_head",
    "v_row",
    "v_element",
)
JOIN_FIELDS = ("units", "grain", "heads", "group", "rows", "parts", "out_batch", "out_head", "out_row", "out_element")


def suits(p: Problem) -> bool:
    """Whether a problem has so few queries."""
    return p.block is None and p.group * p.rows <= MOST_ROWS


def parts_of(p: Problem, chunk: int) -> tuple[int, int]:
    """(parts, keys in a part)."""
    wanted = max(1, min(-(-p.columns // LEAST_PART), -(-UNITS // max(1, p.batch * p.heads))))
    part = round_up(max(1, -(-p.columns // wanted)), chunk)
    return max(1, -(-p.columns // part)), part


class _Part(ForwardBuilder):
    """The kernel of a part of the keys: as a whole result, if there is one part, or to be joined."""

    def __init__(self, target: Target, kind: Forward, k_order: str, whole: bool):
        super().__init__(target, kind)
        self.whole = whole
        self.forms = Packed("panels", kind.size, k_order), Packed("rows", kind.value_size, "")
        self.functions = [
            form_function(self.module, i, form, self.memory, self.packed, self.lanes, kind.tiles)
            for i, form in enumerate(self.forms)
        ]

    def build(self) -> Module:
        kind, extent, place, memory = self.kind, self.extent, self.place, self.memory
        functions = [self.chunk_function(f"chunk{'_cut' * cut}", masks=True, cut=cut) for cut in (False, True)]
        k = self.module.function("kernel", ABI)
        slots, begin, end, tid = k.args
        slot = {name: k.load(slots, ptr, i) for i, name in enumerate(SLOTS)}
        block = k.load(slots, ptr, kind.slots)
        p = {name: k.load(block, i64, i) for i, name in enumerate(PART_FIELDS) if name != "scale"}
        scratch = k.offset(slot["scratch"], tid * scratch_bytes(place, extent, self.sizes, self.packed.size))
        if kind.tiles:
            configure(k)
        with k.range(begin, end) as unit:
            shared, part = unit // p["parts"], unit % p["parts"]
            batch, head = shared // p["heads"], shared % p["heads"]
            first_head = head * p["group"]
            rows = p["group"] * p["rows"]

            def line_of(name: str) -> Callable[[Value], Value]:
                base = k.offset(slot[name], batch * p[f"{name}_batch"], memory)

                def line(i: Value) -> Value:
                    at = (first_head + i // p["rows"]) * p[f"{name}_head"] + i % p["rows"] * p[f"{name}_row"]
                    return k.offset(base, at, memory)

                return line

            self.start(k, scratch, line_of("q"), p["q_element"], rows)
            low = part * p["part"]
            high = k.minimum(low + p["part"], p["columns"])
            if kind.causal:
                high = k.minimum(high, p["rows"] + p["shift"])
            room = (k.offset(scratch, at) for at in packed_places(place, extent, self.sizes, self.packed.size))
            packed_to = dict(zip("kv", room))
            with k.range(low, high, extent.chunk) as first:
                count = k.minimum(high - first, extent.chunk)
                width = (count + (self.width - 1)) // self.width * self.width
                for name, form, function in zip("kv", self.forms, self.functions):
                    at = batch * p[f"{name}_batch"] + head * p[f"{name}_head"] + first * p[f"{name}_row"]
                    source = k.offset(slot[name], at, memory)
                    call_form(
                        k, function, form, source, p[f"{name}_row"], p[f"{name}_element"], count, width, packed_to[name],
                        self.lanes, kind.tiles,
                    )  # fmt: skip
                cut = width.ne(count)
                if kind.causal:
                    cut = cut | (first + count - 1 > p["shift"])
                given = (
                    slots,
                    scratch,
                    packed_to["k"],
                    packed_to["v"],
                    width,
                    count,
                    first,
                    rows,
                    0,
                    batch,
                    first_head,
                )
                k.when_else(cut, lambda: k.call(functions[1], *given), lambda: k.call(functions[0], *given))
            if self.whole:
                at = shared * rows
                lse, most = (k.offset(slot[name], at, self.compute) for name in ("lse", "most"))
                self.end(k, scratch, line_of("out"), p["out_element"], lse, most, rows)
            else:
                self._leave(k, scratch, slot, unit * rows, rows)
        if kind.tiles:
            tile_instruction(k, "tilerelease")
        k.ret()
        return self.module

    def _leave(self, k, scratch: Value, slot: dict, at: Value, rows: Value) -> None:
        """O, sums and maxima of the rows as they are."""
        place, lanes, compute = self.place, self.lanes, self.compute
        with k.range(0, rows) as i:
            total = k.load(k.offset(scratch, i * (lanes * compute.size) + place.sum), self.vector)
            k.store(slot["lse"], k.reduce(total, lambda a, b: a + b), at + i)
            k.store(slot["most"], k.load(k.offset(scratch, place.most), compute, i), at + i)
            kept = k.offset(scratch, i * (place.o_row * compute.size) + place.o)
            to = k.offset(slot["out"], (at + i) * (place.o_row * compute.size))
            for j in range(0, place.o_row, lanes):
                k.store(to, k.load(kept, self.vector, j), j)


def packed_places(place: Layout, extent: Extent, sizes: tuple[int, int], element: int) -> tuple[int, int]:
    """Where a thread's packed chunk of keys and values are in its scratch."""
    return place.total, place.total + round_up(extent.chunk * sizes[0] * element + 256, 64)


def scratch_bytes(place: Layout, extent: Extent, sizes: tuple[int, int], element: int) -> int:
    return packed_places(place, extent, sizes, element)[1] + round_up(extent.chunk * sizes[1] * element + 256, 64)


def build_part(target: Target, kind: Forward, k_order: str, whole: bool) -> Module:
    """Slots: `SLOTS` (of a part: O, sums and maxima for out, lse and most), then what the programs read, then the block."""
    return _Part(target, kind, k_order, whole).build()


def build_join(target: Target, dtype: str, value_size: int, o_row: int) -> Module:
    """The parts of each row as one. Slots: O, sums, maxima, out, lse, most, block."""
    memory, compute = ELEMENTS[dtype]
    lanes = target.lanes(compute)
    module = module_for(target)
    vector = compute.vec(lanes)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    o, sums, tops, out, lse, most, block = (k.load(slots, ptr, i) for i in range(7))
    p = {name: k.load(block, i64, i) for i, name in enumerate(JOIN_FIELDS)}
    line = k.stack(o_row * compute.size)
    with k.range(begin, end) as unit:
        rows = p["group"] * p["rows"]
        shared, i = unit // rows, unit % rows
        first = shared * p["parts"] * rows + i
        best = k.var(compute, float("-inf"))
        with k.range(0, p["parts"]) as part:
            top = k.load(tops, compute, first + part * rows)
            best.set(k.select(top > best.get(), top, best.get()))
        bottom = k.select(best.get().eq(float("-inf")), k.const(compute, 0.0), best.get())
        total = k.var(compute, 0.0)
        for j in range(0, o_row, lanes):
            k.store(line, k.const(vector, 0.0), j)
        with k.range(0, p["parts"]) as part:
            at = first + part * rows
            factor = vmath.exp2_normal(k, k.splat(k.load(tops, compute, at) - bottom, lanes))
            total.set(total.get() + k.load(sums, compute, at) * k.extract(factor, 0))
            for j in range(0, o_row, lanes):
                kept = k.load(k.offset(o, at * (o_row * compute.size)), vector, j)
                k.store(line, k.fma(kept, factor, k.load(line, vector, j)), j)
        inverse = statistics(k, best.get(), total.get(), lse, most, unit)
        batch, head = shared // p["heads"], shared % p["heads"] * p["group"] + i // p["rows"]
        to = k.offset(out, batch * p["out_batch"] + head * p["out_head"] + i % p["rows"] * p["out_row"], memory)
        store_line(k, line, compute, inverse, value_size, to, memory, p["out_element"], lanes)
    k.ret()
    return module


def lower_decode(
    p: Problem,
    target: Target,
    threads: int,
    programs: Callable[[int, int], Programs] | None,
    captured: int,
) -> Lowered:
    """Operands: q, k, v, `captured` ones, then out, lse, greatest score."""
    tiles = has_tiles(p.dtype, target)
    extent = extent_of(target, tiles)
    compute = ELEMENTS[p.dtype][1]
    lanes = target.lanes(compute)
    forms = packed("panels", p.size, p.k), packed("rows", p.value_size, p.v)
    sizes = tuple(form.padded(lanes, tiles) for form in forms)
    slot = len(SLOTS)
    inner = programs(slot, len(PART_FIELDS)) if programs is not None else NO_PROGRAMS
    kind = Forward(
        p.dtype, tiles, p.size, p.value_size, p.causal, 0, inner.score, inner.mask, p.scale > 0,
        slot + len(inner.operands), True,
    )  # fmt: skip
    place = Layout(kind, extent, compute, lanes, sizes)
    parts, part = parts_of(p, extent.chunk)
    whole = parts == 1
    numbers = iter(range(3 + captured, 3 + captured + 7))
    out, lse, most, o, sums, tops, scratch = (next(numbers) for _ in range(7))
    results = (out, lse, most) if whole else (o, sums, tops)
    fields = (
        p.heads,
        p.group,
        p.rows,
        p.columns,
        *p.q,
        *p.out,
        float_bits(p.scale),
        p.shift,
        *(0,) * 6,
        *list_words(()),
    )
    main = Launch(
        Recipe("attention_part", (kind, forms[0].order, whole), build_part),
        (0, 1, 2, *results, scratch, *(i if i < 0 else 3 + i for i in inner.operands)),
        (p.batch * p.heads * parts, 1, *fields, parts, part, *p.k, *p.v, *inner.words),
        flops=2 * p.work,
    )
    rows = p.batch * p.query_heads * p.rows
    join = launch(
        "attention_join",
        (p.dtype, p.value_size, sizes[1]),
        build_join,
        (o, sums, tops, out, lse, most),
        rows,
        16,
        (p.heads, p.group, p.rows, parts, *p.out),
    )
    left = 0 if whole else rows * parts
    element = 2 if tiles else compute.size
    room = (
        left * sizes[1] * compute.size + 64,
        left * compute.size + 64,
        left * compute.size + 64,
        scratch_bytes(place, extent, sizes, element) * threads,
    )
    return Lowered((main,) if whole else (main, join), room)
