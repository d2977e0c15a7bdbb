"""Scans: running sums, products, extremes and recurrences along a dim.

    lowered = scan("scan_sum", shape, dim, in_specs, out_specs, compute, reverse=False, exclusive=False, target=target)

The declared op says what a state is (`identity`, `lift`, `combine`, `result`); combine must be associative. Two kernels:
rows (lanes along the scanned dim, combined by doubling distances inside a vector, then with the carry of what lies before) and
columns (lanes along another dim, one element of each column after the other). Rows and blocks of columns are units.

Order of combination depends on layout and target only; an op whose `in_order(dtype)` holds is combined one element after the
other. `reverse` runs from the end; `exclusive` gives each element the state before it. May not know: what is scanned. Entry: `scan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import BY_NAME
from flambeau.core.spec import Spec
from flambeau.ir.op import REGISTRY
from flambeau.kernel.complexes import Complex
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.types import i64, ptr
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_memory import convert, fit
from flambeau.templates.rows import load_lanes, row_bases, rows_of, store_lanes

GRAIN_ELEMENTS = 16384  # per thread at least: a scan element costs about two of a map
COLUMN_VECTORS = 4  # vectors of columns in a unit: whole cache lines, and independent chains
FIRST = 3  # block: total, grain, length, then steps along the row, columns, entries


def scan(
    op: str,
    shape: Sequence[int],
    dim: int,
    ins: Sequence[Spec],
    outs: Sequence[Spec],
    compute: str,
    *,
    reverse: bool,
    exclusive: bool,
    target,
) -> Lowered:
    """Launches that scan `ins` (of one shape) along `dim` into `outs`, combining in dtype `compute`."""
    strides = [s.strides for s in (*ins, *outs)]
    rows = rows_of(shape, dim, strides)
    if rows.length == 0 or rows.count == 0:
        return Lowered(())
    in_order = getattr(REGISTRY[op].rules, "in_order", None)
    lanes = 1 if in_order is not None and in_order(BY_NAME[compute]) else max(2, target.vector_bytes // 8)
    operands = tuple(range(len(strides)))
    columns = _columns(rows, lanes)
    names = tuple(s.dtype.name for s in ins), tuple(s.dtype.name for s in outs)
    common = (op, *names, compute, reverse, exclusive, lanes)
    if columns is None:
        unit = tuple(s == 1 for s in rows.steps)
        params = (rows.count, max(1, GRAIN_ELEMENTS // rows.length), rows.length, *rows.steps, *rows.params())
        recipe = Recipe("scan_rows", (*common, unit, len(rows.entries)), build_rows)
    else:
        width, steps = rows.entries[columns]
        entries = rows.entries[:columns] + rows.entries[columns + 1 :]
        unit = tuple(s == 1 for s in steps)
        pieces = -(-width // (lanes * COLUMN_VECTORS))
        count = rows.count // width * pieces
        words = [word for size, moves in entries for word in (size, *moves)]
        grain = max(1, GRAIN_ELEMENTS // (rows.length * lanes * COLUMN_VECTORS))
        params = (count, grain, rows.length, *rows.steps, width, *steps, *words)
        recipe = Recipe("scan_columns", (*common, unit, len(entries)), build_columns)
    return Lowered((Launch(recipe, operands, params),))


def _columns(rows, lanes: int) -> int | None:
    """The entry that lanes should run along: the one that memory runs along, if it is wide enough and the row is not it."""
    if all(s == 1 for s in rows.steps) or rows.length == 1:
        return None
    best = None
    for e, (size, steps) in enumerate(rows.entries):
        if size >= lanes and all(s == 1 for s in steps):
            best = e
    if best is None and rows.entries and rows.entries[-1][0] >= lanes and 1 not in rows.steps:
        best = len(rows.entries) - 1
    return best


class _States:
    """What the declared op makes of elements, in lanes; complex parts are stored apart."""

    def __init__(self, k: Function, op: str, compute: str, outs: Sequence[str], lanes: int):
        self.k, self.rules, self.compute, self.outs, self.lanes = k, REGISTRY[op].rules, BY_NAME[compute], outs, lanes
        self.start = self.rules.identity(k, self.compute, lanes)

    def variables(self) -> list:
        return [self.k.var(v.type, v) for v in flatten(self.start)]

    def get(self, variables: list) -> tuple:
        return rebuild(self.start, [v.get() for v in variables])

    def set(self, variables: list, state: tuple) -> None:
        for v, x in zip(variables, flatten(state)):
            v.set(x)

    def lift(self, values: Sequence[tuple[Any, str]], position: Value) -> tuple:
        """Elements (value, dtype) at `position` as a state."""
        converted = [convert(self.k, v, BY_NAME[name], self.compute) for v, name in values]
        return self.rules.lift(self.k, *converted, position)

    def masked(self, state: tuple, mask: Value | None) -> tuple:
        if mask is None:
            return state
        return rebuild(self.start, [self.k.select(mask, x, s) for x, s in zip(flatten(state), flatten(self.start))])

    def combine(self, earlier: tuple, later: tuple) -> tuple:
        return self.rules.combine(self.k, earlier, later)

    def results(self, state: tuple) -> list:
        return [fit(self.k, v, BY_NAME[name]) for v, name in zip(self.rules.result(self.k, state), self.outs)]

    def moved(self, state: tuple, by: int) -> tuple:
        """Every lane's state from `by` lanes before it; the identity comes in from below."""
        n = self.lanes
        pick = [lane - by if lane >= by else n + lane for lane in range(n)]
        return rebuild(self.start, [self.k.shuffle(x, s, pick) for x, s in zip(flatten(state), flatten(self.start))])

    def last(self, state: tuple) -> tuple:
        """The last lane's state in every lane."""
        return rebuild(self.start, [self.k.shuffle(x, None, [self.lanes - 1] * self.lanes) for x in flatten(state)])

    def prefix(self, state: tuple) -> tuple:
        """Each lane combined with all lanes before it."""
        by = 1
        while by < self.lanes:
            state = self.combine(self.moved(state, by), state)
            by *= 2
        return state


def flatten(state: tuple) -> list[Value]:
    return [part for v in state for part in ((v.real, v.imag) if isinstance(v, Complex) else (v,))]


def rebuild(pattern: tuple, parts: Sequence[Value]) -> tuple:
    it = iter(parts)
    return tuple(Complex(next(it), next(it)) if isinstance(v, Complex) else next(it) for v in pattern)


def _frame(target):
    module = Module(vector_bits=max(256, target.vector_bytes * 8))
    k = module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])
    return module, k


def build_rows(target, op, in_names, out_names, compute, reverse, exclusive, lanes, unit, entries) -> Module:
    """Lanes along the scanned dim."""
    module, k = _frame(target)
    slots, begin, end, _ = k.args
    operands = len(in_names) + len(out_names)
    pointers = [k.load(slots, ptr, i) for i in range(operands)]
    block = k.load(slots, ptr, operands)
    length = k.load(block, i64, 2)
    steps = [None if unit[j] else k.load(block, i64, FIRST + j) for j in range(operands)]
    states = _States(k, op, compute, out_names, lanes)
    with k.range(begin, end) as row:
        bases = row_bases(k, block, row, FIRST + operands, entries, operands)
        carry = states.variables()

        def piece(x: Value, mask: Value | None) -> None:
            first = length - x - lanes if reverse else x  # the lowest position of the piece
            seen = mask if mask is None or not reverse else k.shuffle(mask, None, range(lanes - 1, -1, -1))

            def place(j):
                return bases[j] + (first if steps[j] is None else first * steps[j])

            values = []
            for j, name in enumerate(in_names):
                v = load_lanes(k, pointers[j], name, place(j), steps[j], lanes, seen)
                values.append((turned(k, v, lanes) if reverse else v, name))
            position = k.iota(i64.vec(lanes)) + k.splat(x, lanes)
            if reverse:
                position = k.splat(length - 1, lanes) - position
            before = states.get(carry)
            own = states.prefix(states.masked(states.lift(values, position), mask))
            whole = states.combine(before, own)
            shown = states.combine(before, states.moved(own, 1)) if exclusive else whole
            states.set(carry, states.last(whole))
            for j, (v, name) in enumerate(zip(states.results(shown), out_names), len(in_names)):
                store_lanes(
                    k, pointers[j], name, turned(k, v, lanes) if reverse else v, place(j), steps[j], lanes, seen
                )

        whole = length // lanes * lanes
        with k.range(0, whole, lanes) as x:
            piece(x, None)
        with k.when(whole < length):
            piece(whole, k.tail_mask(length - whole, lanes))
    k.ret()
    return module


def turned(k: Function, v: Any, lanes: int) -> Any:
    """The lanes in opposite order."""
    order = list(range(lanes - 1, -1, -1))
    if isinstance(v, Complex):
        return Complex(k.shuffle(v.real, None, order), k.shuffle(v.imag, None, order))
    return k.shuffle(v, None, order)


def build_columns(target, op, in_names, out_names, compute, reverse, exclusive, lanes, unit, entries) -> Module:
    """Lanes along another dim."""
    module, k = _frame(target)
    slots, begin, end, _ = k.args
    operands = len(in_names) + len(out_names)
    pointers = [k.load(slots, ptr, i) for i in range(operands)]
    block = k.load(slots, ptr, operands)
    length = k.load(block, i64, 2)
    steps = [k.load(block, i64, FIRST + j) for j in range(operands)]
    width = k.load(block, i64, FIRST + operands)
    across = [None if unit[j] else k.load(block, i64, FIRST + operands + 1 + j) for j in range(operands)]
    wide = lanes * COLUMN_VECTORS
    pieces = (width + (wide - 1)) // wide
    states = _States(k, op, compute, out_names, lanes)
    with k.range(begin, end) as u:
        bases = row_bases(k, block, u // pieces, FIRST + 2 * operands + 1, entries, operands)
        low = u % pieces * wide
        start = [b + (low if across[j] is None else low * across[j]) for j, b in enumerate(bases)]

        def run(vectors: int, first: Value | int, mask: Value | None) -> None:
            carries = [states.variables() for _ in range(vectors)]
            with k.range(0, length) as x:
                position = length - 1 - x if reverse else x
                for w in range(vectors):
                    column = first + w * lanes if isinstance(first, int) else first

                    def place(j):
                        shift = column if across[j] is None else across[j] * column
                        return start[j] + position * steps[j] + shift

                    values = [
                        (load_lanes(k, pointers[j], name, place(j), across[j], lanes, mask), name)
                        for j, name in enumerate(in_names)
                    ]
                    before = states.get(carries[w])
                    after = states.combine(before, states.lift(values, k.splat(position, lanes)))
                    states.set(carries[w], after)
                    for j, (v, name) in enumerate(
                        zip(states.results(before if exclusive else after), out_names), len(in_names)
                    ):
                        store_lanes(k, pointers[j], name, v, place(j), across[j], lanes, mask)

        rest = width - low

        def narrow() -> None:
            with k.range(0, k.minimum(rest, wide), lanes) as column:
                run(1, column, k.tail_mask(rest - column, lanes))

        k.when_else(rest >= wide, lambda: run(COLUMN_VECTORS, 0, None), narrow)
    k.ret()
    return module
