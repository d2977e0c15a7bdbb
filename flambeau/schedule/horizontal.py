"""Horizontal fusion: launches of one loop nest that do not wait for each other become one launch with a segment for each.

    merge_launches(result)         # the steps of a Schedule, in place

The step of an optimiser is the same program for every parameter, and parameters differ in size only: dense tensors have one dim once dims that
run together are merged. So one kernel serves all of them (`templates.segments`), and threads divide all of the work together. A launch moves
to the first one of its kind, and only if nothing from there on reads or writes what it touches; results are what they were, bit for bit.

Roots of a kind must then not share a kernel before (`Kinds`): that kernel's code would grow with their number.
May not know: graphs beyond the kinds of roots, memory addresses. Entry: `merge_launches`, `Kinds`.
"""

from __future__ import annotations

from typing import Any

from flambeau.base.record import replace
from flambeau.core.spec import NumberSpec
from flambeau.ir.graph import Value
from flambeau.ir.op import POINTWISE
from flambeau.schedule.steps import ERROR, Buffer, Schedule, Scratch, Shifted, Step
from flambeau.templates.loop_program import Keep, Load, LoopNest, Store
from flambeau.templates.segments import segment_params, segmented

LEAST_SEGMENTS = 3  # of a launch: the table costs as much as a launch or two
LEAST_OF_A_KIND = 16  # roots: fewer share a kernel as any others do, which needs no table
MOST_TEMPORARY_BYTES = 1 << 18  # of what a launch that moves forward gives to later ones: it is alive for longer


class Kinds:
    """How many roots of a graph are computed alike from memory, each from operands of its own."""

    def __init__(self, roots: set[Value]):
        self.roots = roots
        self.numbers: dict[Any, int] = {}  # by the form of a value
        self.of: dict[Value, int] = {}
        self.counts: dict[int, int] = {}
        for v in roots:
            if v.node is not None and v.node.op.kind == POINTWISE:
                kind = self.kind(v)
                self.counts[kind] = self.counts.get(kind, 0) + 1

    def kind(self, v: Value) -> int:
        """A number that values have in common which are the same expression over leaves of the same types."""
        left = [v]
        while left:
            x = left[-1]
            if x in self.of:
                left.pop()
                continue
            inner = (
                [a for a in x.node.inputs if not self._is_leaf(a) and a not in self.of] if x.node is not None else []
            )
            if inner:
                left += inner
                continue
            left.pop()
            form = (x.node.op.name, x.spec.dtype, *map(self._operand, x.node.args)) if x.node is not None else x.spec
            self.of[x] = self.numbers.setdefault(form, len(self.numbers))
        return self.of[v]

    def _is_leaf(self, a: Value) -> bool:
        return a.node is None or a in self.roots

    def _operand(self, a: Any) -> Any:
        if not isinstance(a, Value):
            return tuple(map(self._operand, a)) if type(a) is tuple else (type(a), repr(a))
        if not self._is_leaf(a):
            return self.of[a]
        return ("number", a.spec.type) if isinstance(a.spec, NumberSpec) else ("leaf", a.spec.dtype, a.spec.ndim == 0)

    def is_common(self, v: Value) -> bool:
        return v in self.of and self.counts.get(self.of[v], 0) >= LEAST_OF_A_KIND


def merge_launches(result: Schedule) -> None:
    """Replace launches that can be one; their order is otherwise kept."""
    merged = _Merge(result)
    for step in result.steps:
        merged.add(step)
    result.steps = merged.finished()


class _Merge:
    """Steps taken so far: each place holds one, or several that will be one launch."""

    def __init__(self, result: Schedule):
        self.result = result
        self.kept = {b for b, *_ in result.outputs}
        self.places: list[list[Step]] = []
        self.last_use: dict[Any, int] = {}  # by buffer: the last place that touches it
        self.last_write: dict[Any, int] = {}
        self.open: dict[Any, int] = {}  # by key: the latest place that takes such launches

    def add(self, step: Step) -> None:
        reads, writes = touched(step)
        waits = max(
            (self.last_write.get(b, -1) for b in reads),
            default=-1,
        )
        waits = max([waits, *(self.last_use.get(b, -1) for b in writes)])
        key = self._key(step, writes)
        at = self.open.get(key, -1) if key is not None else -1
        if at > waits:
            self.places[at].append(step)
        else:
            at = len(self.places)
            self.places.append([step])
            if key is not None:
                self.open[key] = at
        for b in (*reads, *writes):
            self.last_use[b] = max(at, self.last_use.get(b, -1))
        for b in writes:
            self.last_write[b] = max(at, self.last_write.get(b, -1))

    def _key(self, step: Step, writes: list) -> Any:
        """What launches of one kind have in common; None for what stays alone."""
        nest = nest_of(step)
        if nest is None or nest.partial_slot >= 0:
            return None
        late = sum(b.spec.nbytes for b in writes if isinstance(b, Buffer) and b.role == "temp" and b not in self.kept)
        if late > MOST_TEMPORARY_BYTES:
            return None
        return (even(nest), len(step.params), tuple((i, id(o)) for i, o in enumerate(step.operands) if is_common(o)))

    def finished(self) -> list[Step]:
        steps: list[Step] = []
        for place in self.places:
            if len(place) < LEAST_SEGMENTS:
                steps += place
            else:
                steps.append(self._launch(place))
        return steps

    def _launch(self, place: list[Step]) -> Step:
        first = place[0]
        common = tuple(i for i, o in enumerate(first.operands) if is_common(o))
        table = self.result.add_table(tuple(o for s in place for i, o in enumerate(s.operands) if i not in common))
        operands = (table, *(first.operands[i] for i in common))
        largest = max(place, key=lambda s: s.params[0])
        mostly = 2 * largest.params[0] > sum(s.params[0] for s in place)
        recipe = segmented(nest_of(largest) if mostly else even(nest_of(first)), common)
        params = segment_params([s.params for s in place])
        return Step(recipe, operands, params, first.name, segments=tuple(place))


def nest_of(step: Step) -> LoopNest | None:
    if step.recipe is not None and step.recipe.name == "loop_nest":
        return step.recipe.parameters[0]
    return None


def even(nest: LoopNest) -> LoopNest:
    """The nest as it is for memory of any size: dense tensors differ in whether they are fetched ahead and written past the cache."""
    if nest.dims > 1 or not any(getattr(n, "ahead", False) or getattr(n, "streaming", False) for n in nest.program):
        return nest
    return replace(
        nest,
        program=tuple(
            replace(n, ahead=False)
            if isinstance(n, Load)
            else replace(n, streaming=False)
            if isinstance(n, Store)
            else n
            for n in nest.program
        ),
    )


def is_common(operand: Any) -> bool:
    """Whether an operand is no memory: segments of a launch have it together."""
    return operand is ERROR or (isinstance(operand, Buffer) and isinstance(operand.spec, NumberSpec))


def touched(step: Step) -> tuple[list, list]:
    """Buffers that a step reads, and those it may write."""
    nest = nest_of(step)
    if nest is None:
        everything = [base(o) for o in (*step.operands, *step.outputs) if o is not ERROR]
        return everything, everything
    reads = {n.slot for n in nest.program if isinstance(n, Load) or (isinstance(n, Store) and n.combine)}
    writes = {n.slot for n in nest.program if isinstance(n, (Store, Keep))} | ({nest.partial_slot} - {-1})
    return [base(step.operands[i]) for i in reads], [base(step.operands[i]) for i in writes]


def base(operand: Any) -> Buffer | Scratch:
    return operand.buffer if isinstance(operand, Shifted) else operand


__all__ = ["Kinds", "merge_launches"]
