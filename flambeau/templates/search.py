"""Looking numbers up in sorted rows, and counting into bins.

    lowered = search(sequence, values, out, right=False, sorter=None, target=target)    # where values belong in a sorted sequence
    lowered = tally(positions, weights, out, target=target)                             # how often each bin is named

search: one value a lane, halving all lanes' ranges at once. Units are pieces of rows of values.
tally: one thread in order, so that sums of weights do not depend on the number of threads.

May not know: tensors. Entry: `search`, `tally`.
"""

from __future__ import annotations

from flambeau.core.spec import Spec
from flambeau.kernel.dsl import Module, Value
from flambeau.kernel.types import i64, ptr
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_program import MEMORY, REGISTER
from flambeau.templates.rows import load_lanes, row_bases, rows_of, store_lanes

PIECE = 1024  # values of a unit
GRAIN_PIECES = 4


def _frame(target) -> tuple[Module, object]:
    module = Module(vector_bits=max(256, target.vector_bytes * 8))
    return module, module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])


def search(sequence: Spec, values: Spec, out: Spec, *, right: bool, sorter: Spec | None, target) -> Lowered:
    """Launches that give, for every value, how many elements of its row of `sequence` are less (`right`: or equal).

    A one-dim sequence serves all values; else rows belong together. `sorter` holds the order that sorts an unsorted sequence.
    NaN is larger than anything. Operands: sequence, values, sorter if given, out.
    """
    lead = values.ndim - 1
    tables = [sequence] if sorter is None else [sequence, sorter]
    strides = [t.strides if t.ndim == values.ndim and t.ndim > 1 else (0,) * lead + (t.strides[-1],) for t in tables]
    rows = rows_of(values.shape, lead, (values.strides, out.strides, *strides))
    size = sequence.shape[-1]
    pieces = -(-rows.length // PIECE)
    total = rows.count * pieces
    if total == 0 or rows.length == 0:
        return Lowered(())
    params = (total, GRAIN_PIECES, rows.length, size, *rows.steps, *rows.params())
    key = (
        sequence.dtype.name,
        out.dtype.name,
        right,
        sorter is not None,
        rows.steps[0] == 1,
        rows.steps[1] == 1,
        len(rows.entries),
    )
    operands = (1, 3, 0, 2) if sorter is not None else (1, 2, 0)
    return Lowered((Launch(Recipe("search", key, build_search), operands, params),))


def build_search(
    target, dtype: str, out_dtype: str, right: bool, sorted_by: bool, unit_in: bool, unit_out: bool, entries: int
) -> Module:
    module, k = _frame(target)
    slots, begin, end, _ = k.args
    operands = 4 if sorted_by else 3
    pointers = [k.load(slots, ptr, i) for i in range(operands)]
    block = k.load(slots, ptr, operands)
    length, size = k.load(block, i64, 2), k.load(block, i64, 3)
    steps = [k.load(block, i64, 4 + j) for j in range(operands)]
    lanes = max(4, target.vector_bytes // 8)
    pieces = (length + (PIECE - 1)) // PIECE
    kind = i64.vec(lanes)

    def element(base: list[Value], places: Value, mask: Value):
        """Elements of the sequence, in sorted order."""
        if sorted_by:
            where = k.splat(base[3], lanes) + places * k.splat(steps[3], lanes)
            places = k.gather(pointers[3], i64, where, mask=mask)
        where = k.splat(base[2], lanes) + places * k.splat(steps[2], lanes)
        v = k.gather(pointers[2], MEMORY[dtype], where, mask=mask)
        return v.ne(0) if dtype == "bool" else v.to(REGISTER[dtype])

    def unit(u: Value) -> None:
        base = row_bases(k, block, u // pieces, 4 + operands, entries, operands)
        first = u % pieces * PIECE
        with k.range(first, k.minimum(first + PIECE, length), lanes) as x:
            mask = k.tail_mask(length - x, lanes)
            wanted = load_lanes(
                k,
                pointers[0],
                dtype,
                base[0] + (x if unit_in else x * steps[0]),
                None if unit_in else steps[0],
                lanes,
                mask,
            )
            low, high = k.var(kind, 0), k.var(kind, k.splat(size, lanes))
            with k.loop_while(lambda: k.any(low.get() < high.get())):
                a, b = low.get(), high.get()
                open_ = a < b
                middle = (a + b) >> 1
                v = element(base, middle, open_)
                # "not (v >= wanted)" rather than "v < wanted": NaN moves to the end
                stays = (v > wanted) if right else (v >= wanted)
                low.set(k.select(open_ & ~stays, middle + 1, a))
                high.set(k.select(open_ & stays, middle, b))
            at = base[1] + (x if unit_out else x * steps[1])
            store_lanes(
                k,
                pointers[1],
                out_dtype,
                low.get().to(REGISTER[out_dtype]),
                at,
                None if unit_out else steps[1],
                lanes,
                mask,
            )

    with k.range(begin, end) as u:
        unit(u)
    k.ret()
    return module


def tally(positions: Spec, weights: Spec | None, out: Spec, *, target) -> Lowered:
    """Launches that add up, per bin, how many positions (int64, one dim) name it, or their weights; positions outside are left out."""
    bins, count = out.shape[0], positions.shape[0]
    if bins == 0:
        return Lowered(())
    params = (1, 1, count, bins, positions.strides[0], weights.strides[0] if weights is not None else 0)
    recipe = Recipe("tally", (None if weights is None else weights.dtype.name, out.dtype.name), build_tally)
    return Lowered((Launch(recipe, (0, 1) if weights is None else (0, 2, 1), params),))


def build_tally(target, weight_dtype: str | None, out_dtype: str) -> Module:
    module, k = _frame(target)
    slots = k.args[0]
    operands = 2 if weight_dtype is None else 3
    positions, out = k.load(slots, ptr, 0), k.load(slots, ptr, 1)
    block = k.load(slots, ptr, operands)
    count, bins, step, weight_step = (k.load(block, i64, i) for i in (2, 3, 4, 5))
    kind = REGISTER[out_dtype]
    memory = MEMORY[out_dtype]
    with k.range(0, bins) as i:
        k.store(out, k.const(memory, 0), i)
    with k.range(0, count) as i:
        bin_ = k.load(positions, i64, i * step)
        with k.when((bin_ >= 0) & (bin_ < bins)):
            if weight_dtype is None:
                more = k.const(kind, 1)
            else:
                more = load_lanes(k, k.load(slots, ptr, 2), weight_dtype, i * weight_step, None, 0).to(kind)
            k.store(out, (k.load(out, memory, bin_).to(kind) + more).to(memory), bin_)
    k.ret()
    return module
