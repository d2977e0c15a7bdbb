"""Loop nests: the one kernel family behind pointwise ops, reductions, indexing and everything fused from them.

A `LoopNest` is a hashable program over a domain of loops. Outer dims are spread over units (and so over threads); inner dims run
inside a unit. Lanes run along the last inner dim (`vector="inner"`: maps, and rows reduced along memory), or along the last outer
dim (`vector="outer"`: columns reduced across memory). Sizes and strides come from the parameter block, so one kernel
serves every size of a layout class.

Levels of a value: `full` depends on the inner dims, `row` does not, `final` is what is left after reducing over all units. Values
computed per row are hoisted out of the inner loops. Reductions divide a unit into stages: stage s may use what stages
before it reduced.

Order of summation: lanes and accumulators are fixed by the nest and the target, units are combined in order by whoever finishes last,
so results do not depend on the number of threads.

May not know: graphs, fusion decisions. It asks the registry for an op's `lower` and `combine`, for any op alike.
Entry: `build_loop_nest(target, nest)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flambeau.core.dtype import BY_NAME
from flambeau.ir.op import REGISTRY
from flambeau.kernel import types as t
from flambeau.kernel.complexes import Complex, complex_const
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.types import Type, i64, ptr
from flambeau.templates.loop_memory import STREAMING_ALIGN, LoopMemory, convert, fit
from flambeau.templates.loop_program import (
    CHUNK,
    COUNTER_SLOT,
    FIRST_SIZE,
    REGISTER,
    TOTAL,
    Apply,
    Check,
    Constant,
    Given,
    Iota,
    Keep,
    Load,
    LoopNest,
    Part,
    Reduce,
    Ref,
    Scalar,
    Store,
)


def build_loop_nest(target, nest: LoopNest) -> Module:
    """The kernel of a nest, for a target."""
    module = Module(max(256, target.vector_bytes * 8), **numerics(target))
    k = module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])
    NestEmitter(nest, k, k.args[0], *k.args[1:]).build()
    return module


def numerics(target) -> dict[str, bool]:
    """The native instructions that loop nests use: they are part of what an op gives, wherever it is fused."""
    wide = target.has("avx512f", "avx512vl")
    return {"native_bf16": False, "native_scalef": wide, "native_tables": wide}


def state_types(n: Reduce) -> list[Type]:
    """Register types of what a reduction carries along."""
    kind = REGISTER[n.compute]
    if BY_NAME[n.compute].is_complex:
        return [kind, kind]
    return [kind, i64] if REGISTRY[n.op].rules.with_index else [kind]


def partial_layout(program: tuple) -> tuple[dict[int, int], int]:
    """Byte offset of each final reduction's state within a unit's record, and the record's size."""
    places, size = {}, 0
    for i, n in enumerate(program):
        if isinstance(n, Reduce) and n.over != "inner":
            places[i] = size
            size += 8 * len(state_types(n))
    return places, size


class _StageLoop:
    """A stage's loop over a row: what it computes, into which accumulators, from which row values and places."""

    def __init__(
        self, stage: int, work: list[int], ways: int, state: dict, splats: dict, bases: dict, kept_row: Value | None
    ):
        self.stage, self.work, self.ways, self.state = stage, work, ways, state
        self.splats, self.bases, self.kept_row = splats, bases, kept_row


class NestEmitter(LoopMemory):
    """The units [begin, end) of a nest, printed into a function."""

    def __init__(self, nest: LoopNest, k: Function, slots: Value, begin: Value, end: Value, tid: Value):
        self.nest, self.k = nest, k
        self.slots, self.begin, self.end, self.tid = slots, begin, end, tid
        self.program = nest.program
        self.level: list[str] = []
        self.stage: list[int] = []
        self.uniform: list[bool] = []
        self._classify()

    # ------------------------------------------------------------------ levels and stages
    def _refs(self, node: Any) -> list[int]:
        match node:
            case Load():
                return [r.index for r, _ in node.indices]
            case Check():
                return [node.index.index]
            case Apply():
                return [a.index for a in node.args if isinstance(a, Ref)]
            case Reduce():
                return [node.arg.index]
            case Part():
                return [node.reduce.index]
            case Store():
                return [node.value.index, *(r.index for r, _ in node.indices)]
            case Keep():
                return [node.value.index]
        return []

    def _classify(self) -> None:
        order = {"row": 0, "full": 1}
        inner = range(self.nest.outer, self.nest.dims)
        for node in self.program:
            refs = self._refs(node)
            stage = max((self.stage[r] for r in refs), default=0)
            levels = [self.level[r] for r in refs]
            level = "final" if "final" in levels else max(levels, key=order.get, default="row")
            if isinstance(node, (Load, Iota, Store)) and any(node.access[d] for d in inner):
                level = "full"
            if isinstance(node, Given):
                level = "full"
            if isinstance(node, Store) and node.combine:
                level = "full"  # once an element, even where all of them meet at one place
            if isinstance(node, Reduce):
                level, stage = ("row" if node.over == "inner" else "final"), stage + (node.over != "units")
            self.level.append(level)
            self.stage.append(stage)
            self.uniform.append(self._is_uniform(node, refs))
        self.stages = max(self.stage, default=0)
        self.kept: dict[int, Keep] = {n.value.index: n for n in self.program if isinstance(n, Keep)}
        self.computed = [self._computed_in(stage) for stage in range(self.stages + 1)]
        loads = [i for i, n in enumerate(self.program) if isinstance(n, Load) and n.ahead]
        stages = {i: [s for s, found in enumerate(self.computed) if i in found] for i in loads}
        self.reading_stages = {i: (found[0], found[-1]) for i, found in stages.items() if found}
        self.overlaps = self._can_overlap()

    def _needed(self, starts: Iterable[int], follow: Callable[[int], bool]) -> list[int]:
        """The instructions of `starts` and behind them for which `follow` holds, in program order: programs are long, recursion is not."""
        found: set[int] = set()
        left = list(starts)
        while left:
            i = left.pop()
            if i not in found and follow(i):
                found.add(i)
                left += self._refs(self.program[i])
        return sorted(found)

    def _runs_in(self, stage: int) -> Callable[[int], bool]:
        """Whether a stage's loop over the row computes an instruction."""
        return lambda i: self.level[i] == "full" and not (i in self.kept and self.stage[i] < stage)

    def _computed_in(self, stage: int) -> set[int]:
        """The instructions that a stage's loop over the row runs."""
        work = self._work_of_stage(stage)
        return set(self._needed((r for i in work for r in self._refs(self.program[i])), self._runs_in(stage)))

    def _row_inputs(self, work: list[int], follow: Callable[[int], bool]) -> list[int]:
        """Row-level instructions that the sinks of a loop and what runs in it read, in program order."""
        sinks = [r for i in work for r in self._refs(self.program[i])]
        inside = self._needed(sinks, follow)
        read = {*sinks, *(r for i in inside for r in self._refs(self.program[i]))}
        return sorted(r for r in read if self.level[r] == "row")

    def _ways(self, stage: int) -> int:
        """Vectors in a turn of a stage's loop, each with accumulators of its own."""
        together = [self.stages - 1, self.stages] if self.overlaps and stage >= self.stages - 1 else [stage]
        found = set().union(*(self.computed[s] for s in together))
        applied = [self.program[i] for i in found if isinstance(self.program[i], Apply)]
        if len(applied) > 12 or any(REGISTRY[n.op].rules.expensive for n in applied):
            return 1
        return self.nest.unroll

    def _is_uniform(self, node: Any, refs: list[int]) -> bool:
        """Whether a value is the same along the vector dim."""
        match node:
            case Load() | Iota():
                return not node.access[self.nest.vector_dim] and all(self.uniform[r] for r in refs)
            case Constant() | Scalar() | Apply() | Check():
                return all(self.uniform[r] for r in refs)
        return False

    # ------------------------------------------------------------------ frame
    def build(self, block: Value | None = None) -> None:
        """Print it; the parameter `block` is behind the slots unless it is given."""
        k, nest = self.k, self.nest
        self.block = k.load(self.slots, ptr, nest.slots) if block is None else block
        self.pointers = {s: k.load(self.slots, ptr, s) for s in self._pointer_slots()}
        self.aligned = {
            n.slot: (self.pointers[n.slot].to(i64) % STREAMING_ALIGN).eq(0)
            for n in self.program
            if isinstance(n, Store) and n.streaming
        }
        self.scalars = self._scalar_values(self.slots)
        self.params: dict[int, Value] = {}
        self.sizes = [self.param(FIRST_SIZE + d) for d in range(nest.dims)]
        for position in self._stride_positions():
            self.param(position)
        if nest.chunked:
            self.chunk = self.param(CHUNK)
            extent = self.sizes[nest.vector_dim]
            self.chunks = (extent + (self.chunk - 1)) // self.chunk
        self.kept_row = self.kept_row_of(k.const(i64, 0)) if self.kept else None
        if self.overlaps:
            self._overlapped_units()
        else:
            with k.range(self.begin, self.end) as unit:
                self._unit(unit)
        if any(isinstance(n, Reduce) and n.over != "inner" for n in self.program):
            self._finish_last()
        k.ret()

    def _scalar_values(self, slots: Value) -> dict[int, Value]:
        return {
            i: self.k.load(slots, t.f64 if n.kind == "f" else i64, n.slot)
            for i, n in enumerate(self.program)
            if isinstance(n, Scalar)
        }

    def _pointer_slots(self) -> list[int]:
        found = {n.slot for n in self.program if isinstance(n, (Load, Store, Keep))}
        found |= {n.error_slot for n in self.program if isinstance(n, Check)}
        if self.nest.partial_slot >= 0:
            found.add(self.nest.partial_slot)
        return sorted(found)

    def _stride_positions(self) -> list[int]:
        found: set[int] = set()
        for n in self.program:
            if isinstance(n, (Load, Store, Iota)):
                found |= {p for p in n.access if p > 1}
            if isinstance(n, (Load, Store)):
                found |= {stride for _, stride in n.indices}
            if isinstance(n, Check):
                found |= {n.size, n.dim, n.op}
            if isinstance(n, Reduce):
                found |= {p for p in n.index if p > 1} | ({n.count} if n.count > 0 else set())
        return sorted(found)

    def param(self, position: int) -> Value:
        if position not in self.params:
            self.params[position] = self.k.load(self.block, i64, position)
        return self.params[position]

    def _unit(self, unit: Value) -> None:
        """One unit: its place, then its stages."""
        low, high = self._place_unit(unit)
        if self.nest.vector == "outer":
            self._columns(low, high)
        else:
            self._rows(low, high)

    def _place_unit(self, unit: Value) -> tuple[Value | int, Value]:
        """Decode a unit's coordinates and bases; where it starts and ends along the vector dim."""
        k, nest = self.k, self.nest
        rest = unit
        low: Value | int = 0
        high: Value = self.sizes[nest.vector_dim]
        if nest.chunked:
            rest, piece = unit // self.chunks, unit % self.chunks
            low = piece * self.chunk
            high = k.minimum(low + self.chunk, high)
        plain = nest.outer - (1 if nest.vector == "outer" else 0)
        coordinates: list[Value | None] = [None] * nest.dims
        for d in range(plain - 1, -1, -1):
            if d == 0:
                coordinates[d] = rest
            else:
                coordinates[d], rest = rest % self.sizes[d], rest // self.sizes[d]
        self.coordinates = coordinates
        self.unit = unit
        self.bases = self._bases(coordinates, range(plain))
        return low, high

    def _bases(self, coordinates, dims) -> dict[int, Value | None]:
        """Where each access of the program starts in this unit."""
        found = {}
        for i, n in enumerate(self.program):
            access = n.index if isinstance(n, Reduce) else getattr(n, "access", None)
            if access:
                found[i] = self._affine(access, coordinates, dims)
        return found

    def _affine(self, access, coordinates, dims) -> Value | None:
        """Offset + sum of coordinate * step over `dims`; None stands for 0."""
        total = self.param(access[-1]) if access[-1] else None
        for d in dims:
            if access[d] and coordinates[d] is not None:
                term = coordinates[d] if access[d] == 1 else coordinates[d] * self.param(access[d])
                total = term if total is None else total + term
        return total

    # ------------------------------------------------------------------ rows: lanes along the last inner dim
    def _rows(self, low, high) -> None:
        self._start_row(low, high)
        for stage in range(self.stages + 1):
            if work := self._work_of_stage(stage):
                self._row_stage([self._stage_loop(stage, work)])
        self._end_row()

    def _start_row(self, low, high) -> None:
        self.row_values: dict[int, Any] = {}
        self.low, self.high = low, high

    def _end_row(self) -> None:
        """Results that are one number a row."""
        for i, n in enumerate(self.program):
            if isinstance(n, Store) and self.level[i] == "row":
                self._store(n, i, self.row_value(n.value.index))
            elif isinstance(n, Reduce) and n.over == "units":
                self._leave_partial(i, self._lift(n, i, self.row_value(n.arg.index)))

    def _work_of_stage(self, stage: int) -> list[int]:
        """Sinks whose full values are computed in this stage's loop."""
        found = []
        for i, n in enumerate(self.program):
            if isinstance(n, Reduce) and n.over != "units" and self.stage[n.arg.index] == stage:
                found.append(i)
            elif isinstance(n, Keep) and self.nest.vector == "outer":
                continue  # columns compute again rather than keep
            elif isinstance(n, (Store, Keep)) and self.level[i] == "full" and self.stage[n.value.index] == stage:
                found.append(i)
        return found

    def _stage_loop(self, stage: int, work: list[int]) -> _StageLoop:
        """A stage's loop over the row of the present unit; what it reads besides full values is computed here."""
        self._hoist(work)
        ways, lanes = self._ways(stage), self.nest.lanes
        reduces = [i for i in work if isinstance(self.program[i], Reduce)]
        state = {i: [self._state_variables(self.program[i], lanes) for _ in range(ways)] for i in reduces}
        return _StageLoop(stage, work, ways, state, self.splats, dict(self.bases), self.kept_row)

    def _row_stage(self, loops: list[_StageLoop]) -> None:
        """Run stages in one loop over the row: more than one where the last of another unit comes along."""
        k, nest = self.k, self.nest
        lanes, ways = nest.lanes, loops[0].ways

        def body(offsets, position, mask, way):
            for loop in loops:
                self.current_stage, self.splats, self.kept_row = loop.stage, loop.splats, loop.kept_row
                self._stage_body(loop, offsets if loop is loops[0] else loop.bases, position, mask, way)

        def vectors(offsets):
            step = lanes * ways
            low = k.as_value(self.low, i64)
            whole = (self.high - low) // step * step + low
            with k.range(low, whole, step) as x:
                for way in range(ways):
                    body(offsets, x + way * lanes if way else x, None, way)
            with k.range(whole, self.high, lanes) as x:
                mask = k.tail_mask(self.high - x, lanes)
                body(offsets, x, mask, 0)

        self._nest_inner(nest.outer, nest.dims - 1, loops[0].bases, vectors)
        self.kept_row = loops[0].kept_row
        for i, ways_state in loops[0].state.items():
            self._reduced(i, ways_state, lanes)

    def _stage_body(self, loop: _StageLoop, offsets, position, mask, way: int) -> None:
        lanes = self.nest.lanes
        values: dict[int, Any] = {}
        for i in loop.work:
            n = self.program[i]
            source = n.arg if isinstance(n, Reduce) else n.value
            v = self._full(source.index, values, offsets, position, mask, lanes)
            if isinstance(n, Reduce):
                self._accumulate(n, i, loop.state[i][way], self._splat(v, lanes), offsets, position, mask, lanes)
            elif isinstance(n, Keep):
                self._keep(n, v, position, mask, lanes)
            else:
                self._store_full(
                    n,
                    i,
                    v,
                    offsets,
                    position,
                    mask,
                    lanes,
                    lambda r: self._full(r, values, offsets, position, mask, lanes),
                )

    # ------------------------------------------------------------------ rows that overlap
    def _can_overlap(self) -> bool:
        """Whether the last stage of a row may run in one loop with the stage before of the next row.

        Large rows alternate between computing from caches and storing, which waits for memory; together neither waits."""
        nest = self.nest
        if nest.vector != "inner" or nest.chunked or nest.dims - nest.outer != 1 or not self.stages:
            return False
        if not any(isinstance(n, Load) and n.ahead for n in self.program):
            return False
        for n in self.program:
            if isinstance(n, Check) or (isinstance(n, Reduce) and n.over != "inner"):
                return False
            if isinstance(n, (Load, Store)) and (n.indices or BY_NAME[n.dtype].is_complex):
                return False
            if isinstance(n, Store) and n.combine:
                return False
        last, before = self._work_of_stage(self.stages), self._work_of_stage(self.stages - 1)
        return bool(last and before) and all(isinstance(self.program[i], Store) for i in last)

    def _overlapped_units(self) -> None:
        k = self.k
        row = self.sizes[self.nest.vector_dim]
        half = k.var(i64, k.const(i64, 0))  # which of two kept rows the present unit has
        with k.when(self.begin < self.end):
            carried = self._overlapped_unit(self.begin, half, None)
            with k.range(self.begin + 1, self.end) as unit:
                half.set(row - half.get())
                self._overlapped_unit(unit, half, carried)
            self._row_stage([self._carried_loop(carried, self.kept_row_of(half.get()))])

    def _overlapped_unit(self, unit: Value, half, carried: tuple[dict, dict] | None) -> tuple[dict, dict]:
        """A unit up to its last stage, with the last stage of the one before; then what its own last stage needs is `carried`."""
        last = self.stages
        self._start_row(*self._place_unit(unit))
        self.kept_row = self.kept_row_of(half.get())
        for stage in range(last):
            if work := self._work_of_stage(stage):
                loops = [self._stage_loop(stage, work)]
                if stage == last - 1 and carried is not None:
                    other = self.kept_row_of(self.sizes[self.nest.vector_dim] - half.get())
                    loops.append(self._carried_loop(carried, other))
                self._row_stage(loops)
        self._end_row()
        work = self._work_of_stage(last)
        self._hoist(work)
        needed = sorted(self.computed[last].union(work))
        rows = {i: self.row_value(i) for i in self.splats if not isinstance(self.program[i], (Constant, Scalar))}
        bases = {i: self.bases[i] for i in needed if self.bases.get(i) is not None}
        if carried is None:
            return tuple({i: self.k.var(v.type, v) for i, v in found.items()} for found in (rows, bases))
        for variables, found in zip(carried, (rows, bases)):
            for i, v in found.items():
                variables[i].set(v)
        return carried

    def _carried_loop(self, carried: tuple[dict, dict], kept_row: Value) -> _StageLoop:
        """The last stage of the unit before."""
        rows, bases = carried
        work = self._work_of_stage(self.stages)
        here = self.row_values
        self.row_values = {i: v.get() for i, v in rows.items()}
        self._hoist(work)
        self.row_values = here
        return _StageLoop(
            self.stages,
            work,
            self._ways(self.stages),
            {},
            self.splats,
            {i: v.get() for i, v in bases.items()},
            kept_row,
        )

    def _nest_inner(self, first: int, stop: int, offsets: dict, innermost) -> None:
        """Loops over inner dims first … stop-1, adding their steps to the offsets."""
        if first == stop:
            innermost(offsets)
            return
        with self.k.range(0, self.sizes[first]) as x:
            inside = dict(offsets)
            for i, n in enumerate(self.program):
                access = n.index if isinstance(n, Reduce) else getattr(n, "access", None)
                if access and access[first]:
                    term = x if access[first] == 1 else x * self.param(access[first])
                    inside[i] = term if inside.get(i) is None else inside[i] + term
            self._nest_inner(first + 1, stop, inside, innermost)

    # ------------------------------------------------------------------ columns: lanes along the last outer dim
    def _columns(self, low, high) -> None:
        k, nest = self.k, self.nest
        wide, lanes = nest.unroll, nest.lanes
        low = k.as_value(low, i64)
        if wide > 1:
            step = lanes * wide
            whole = (high - low) // step * step + low
            with k.range(low, whole, step) as x:
                self._column_block([x + w * lanes if w else x for w in range(wide)], None)
            low = whole
        with k.range(low, high, max(1, lanes)) as x:
            self._column_block([x], k.tail_mask(high - x, lanes) if lanes else None)

    def _column_block(self, positions: list[Value], mask) -> None:
        nest = self.nest
        lanes = nest.lanes
        self.column_values: list[dict[int, Any]] = [{} for _ in positions]
        self.row_values = {}
        for stage in range(self.stages + 1):
            work = self._work_of_stage(stage)
            if not work:
                continue
            reduces = [i for i in work if isinstance(self.program[i], Reduce)]
            state = {i: [self._state_variables(self.program[i], lanes) for _ in positions] for i in reduces}
            for i in work:  # values of the column that the loop needs, before it
                for w, position in enumerate(positions):
                    self._column_inputs(i, w, position, mask)

            def innermost(offsets, work=work, state=state):
                for w, position in enumerate(positions):
                    values: dict[int, Any] = {}
                    for i in work:
                        n = self.program[i]
                        source = n.arg if isinstance(n, Reduce) else n.value
                        v = self._in_column(source.index, values, offsets, w, position, mask)
                        if isinstance(n, Reduce):
                            self._accumulate(n, i, state[i][w], self._splat(v, lanes), offsets, position, None, lanes)
                        else:
                            self._store_full(
                                n,
                                i,
                                v,
                                offsets,
                                position,
                                mask,
                                lanes,
                                lambda r: self._in_column(r, values, offsets, w, position, mask),
                            )

            self._nest_inner(nest.outer, nest.dims, dict(self.bases), innermost)
            for i in reduces:
                for w in range(len(positions)):
                    n = self.program[i]
                    self.column_values[w][i] = self._finish(n, tuple(v.get() for v in state[i][w]))
        for i, n in enumerate(self.program):
            if isinstance(n, Store) and self.level[i] == "row":
                for w, position in enumerate(positions):

                    def value(r, w=w, position=position):
                        return self._in_column(r, {}, dict(self.bases), w, position, mask)

                    self._store_full(n, i, value(n.value.index), dict(self.bases), position, mask, lanes, value)

    def _column_inputs(self, sink: int, w: int, position, mask) -> None:
        """Emit row-level values that a loop will use, ahead of the loop."""
        for i in self._row_inputs([sink], lambda j: self.level[j] != "row"):
            self._in_column(i, {}, dict(self.bases), w, position, mask)

    def _in_column(self, i: int, values: dict, offsets: dict, w: int, position, mask) -> Any:
        """Value i for the column vector at `position`; row-level ones are kept for the whole block."""
        columns = self.column_values[w]

        def store(j: int) -> dict:
            return columns if self.level[j] == "row" else values

        def value(j: int) -> Any:
            n = self.program[j]
            return columns[n.reduce.index][n.index] if isinstance(n, Part) else store(j)[j]

        for j in self._needed([i], lambda j: j not in store(j) and not isinstance(self.program[j], Part)):
            # one scalar instead of equal lanes
            at = (None, None, 0) if self.uniform[j] else (position, mask, self.nest.lanes)
            store(j)[j] = self._emit(j, value, self.bases if self.level[j] == "row" else offsets, *at)
        return value(i)

    # ------------------------------------------------------------------ values
    def row_value(self, i: int) -> Any:
        """A value that does not depend on the inner dims: a scalar, computed once a unit."""

        def value(j: int) -> Any:
            n = self.program[j]
            if isinstance(n, Part) and j not in self.row_values:
                self.row_values[j] = self.row_values[n.reduce.index][n.index]
            return self.row_values[j]

        for j in self._needed([i], lambda j: j not in self.row_values and not isinstance(self.program[j], Part)):
            self.row_values[j] = self._emit(j, value, self.bases, None, None, 0)
        return value(i)

    def _hoist(self, work: list[int]) -> None:
        """Row values that the coming loop reads are computed and splat before it."""
        self.current_stage = self.stage[self._source(work[0])]
        found = self._row_inputs(work, self._runs_in(self.current_stage))
        self.splats: dict[int, Any] = {i: self._splat(self.row_value(i), self.nest.lanes) for i in found}

    def _source(self, sink: int) -> int:
        n = self.program[sink]
        return n.arg.index if isinstance(n, Reduce) else n.value.index

    def _splat(self, v: Any, lanes: int) -> Any:
        if isinstance(v, Complex):
            return Complex(self.k.splat(v.real, lanes), self.k.splat(v.imag, lanes))
        return self.k.splat(v, lanes)

    def _full(self, i: int, values: dict, offsets: dict, position, mask, lanes) -> Any:
        if self.level[i] == "row":
            return self.splats[i]

        def value(j: int) -> Any:
            if self.level[j] == "row":
                return self.splats[j]
            if j not in values:  # computed in an earlier stage
                values[j] = self._kept_value(self.kept[j], j, position, mask, lanes)
            return values[j]

        runs = self._runs_in(self.current_stage)
        for j in self._needed([i], lambda j: j not in values and runs(j)):
            values[j] = self._emit(j, value, offsets, position, mask, lanes)
        return value(i)

    def dtype_of(self, i: int) -> str:
        n = self.program[i]
        match n:
            case Load() | Constant() | Apply() | Given() | Iota():
                return n.dtype
            case Check():
                return "int64"
            case Scalar():
                return "float64" if n.kind == "f" else "int64"
            case Part():
                return self.program[n.reduce.index].dtypes[n.index]
        raise AssertionError(n)

    def convert(self, v: Any, source: str, target: str) -> Any:
        """A register value in another dtype's register type."""
        return convert(self.k, v, BY_NAME[source], BY_NAME[target])

    def _emit(self, i: int, value, offsets: dict, position, mask, lanes: int) -> Any:
        """Emit instruction i; `value(r)` gives its operands."""
        k, n = self.k, self.program[i]
        match n:
            case Load():
                return self._load(n, i, value, offsets, position, mask, lanes)
            case Iota():
                index = self._index if n.dtype == "int64" else self._narrow_index
                return index(n.access, offsets.get(i), position, lanes)
            case Constant():
                if BY_NAME[n.dtype].is_complex:
                    return complex_const(k, REGISTER[n.dtype].vec(lanes), n.value)
                return k.const(REGISTER[n.dtype].vec(lanes), n.value)
            case Scalar():
                return k.splat(self.scalars[i], lanes)
            case Apply():
                return self._apply(n, value, lanes)
            case Check():
                return self._checked(n, self.convert(value(n.index.index), self.dtype_of(n.index.index), "int64"), mask)
        raise AssertionError(f"loop nest: cannot emit {n}")

    def _apply(self, n: Apply, value, lanes: int) -> Any:
        args, types = [], iter(n.compute)
        for a in n.args:
            if isinstance(a, Ref):
                wanted = next(types)
                v = self.convert(value(a.index), self.dtype_of(a.index), wanted)
                args.append(self._splat(v, lanes))
            else:
                args.append(a)
        result = REGISTRY[n.op].rules.lower(self.k, *args)
        return fit(self.k, result, BY_NAME[n.dtype])

    # ------------------------------------------------------------------ reductions
    def _identity(self, n: Reduce, lanes: int) -> list[Value]:
        rules, k = REGISTRY[n.op].rules, self.k
        types = state_types(n)
        start = rules.identity(BY_NAME[n.compute])
        if BY_NAME[n.compute].is_complex:
            start = complex(start)
            return [k.const(types[0].vec(lanes), start.real), k.const(types[1].vec(lanes), start.imag)]
        values = [k.const(types[0].vec(lanes), start)]
        if rules.with_index:
            values.append(k.const(i64.vec(lanes), (1 << 63) - 1))
        return values

    def _state_variables(self, n: Reduce, lanes: int) -> list:
        k = self.k
        return [k.var(v.type, v) for v in self._identity(n, lanes)]

    def _lift(self, n: Reduce, i: int, v: Any, offsets=None, position=None, lanes: int = 0) -> list:
        """An element as reduction state."""
        k, rules = self.k, REGISTRY[n.op].rules
        v = self.convert(v, self.dtype_of(n.arg.index), n.compute)
        if rules.map is not None and n.stage != "final":
            v = rules.map(k, v)
        parts = [v.real, v.imag] if isinstance(v, Complex) else [v]
        if rules.with_index:
            base = (self.bases if offsets is None else offsets).get(i)
            parts.append(self._index(n.index, base, position, lanes))
        return parts

    def _accumulate(self, n: Reduce, i: int, state: list, v: Any, offsets, position, mask, lanes: int) -> None:
        k = self.k
        parts = self._lift(n, i, v, offsets, position, lanes)
        if mask is not None:
            parts = [k.select(mask, p, start) for p, start in zip(parts, self._identity(n, lanes))]
        merged = self._combine(n, [s.get() for s in state], parts)
        for s, m in zip(state, merged):
            s.set(m)

    def _combine(self, n: Reduce, a: list, b: list) -> list:
        k, rules = self.k, REGISTRY[n.op].rules
        if BY_NAME[n.compute].is_complex:
            c = rules.combine(k, Complex(*a), Complex(*b))
            return [c.real, c.imag]
        if rules.with_index:
            return list(rules.combine(k, tuple(a), tuple(b)))
        return [rules.combine(k, a[0], b[0])]

    def _across_lanes(self, n: Reduce, parts: list) -> list:
        """Combine the lanes of vector state, pairwise in a fixed tree."""
        k = self.k
        lanes = parts[0].type.lanes
        while lanes > 1:
            half = lanes // 2
            low = [k.shuffle(p, None, range(half)) for p in parts]
            high = [k.shuffle(p, None, range(half, lanes)) for p in parts]
            parts, lanes = self._combine(n, low, high), half
        return [k.extract(p, 0) for p in parts] if parts[0].type.lanes else parts

    def _reduced(self, i: int, ways: list, lanes: int) -> None:
        """The row's result of Reduce i from its accumulators; final ones leave a partial for the unit."""
        n = self.program[i]
        parts = [s.get() for s in ways[0]]
        for way in ways[1:]:
            parts = self._combine(n, parts, [s.get() for s in way])
        parts = self._across_lanes(n, parts)
        if n.over == "all":
            self._leave_partial(i, parts)
        else:
            self.row_values[i] = self._finish(n, tuple(parts))

    def _finish(self, n: Reduce, state: tuple) -> tuple:
        rules, k = REGISTRY[n.op].rules, self.k
        count = self.param(n.count) if n.count > 0 else None
        if BY_NAME[n.compute].is_complex:
            state = (Complex(*state),)
        if rules.finish is not None and n.stage != "partial":
            outs = rules.finish(k, state, count, *n.attributes)
        else:
            outs = state
        outs = outs if isinstance(outs, tuple) else (outs,)
        return tuple(fit(k, o, BY_NAME[name]) for o, name in zip(outs, n.dtypes))

    # ------------------------------------------------------------------ over all units
    def _leave_partial(self, i: int, parts: list) -> None:
        k = self.k
        places, size = partial_layout(self.program)
        record = k.offset(self.pointers[self.nest.partial_slot], self.unit * size)
        for j, p in enumerate(parts):
            k.store(record, p, (places[i] + 8 * j) // p.type.size)

    def _finish_last(self) -> None:
        """Whoever completes the last unit combines the partials in unit order and stores the results."""
        k = self.k
        counter = k.offset(self.slots, 8 * COUNTER_SLOT)
        mine = self.end - self.begin
        before = k.emit(i64, f"atomicrmw add ptr {counter.ref}, i64 {mine.ref} acq_rel")
        total = self.param(TOTAL)
        with k.when((before + mine).eq(total)):
            places, size = partial_layout(self.program)
            finals = [i for i, n in enumerate(self.program) if isinstance(n, Reduce) and n.over != "inner"]
            state = {i: self._state_variables(self.program[i], 0) for i in finals}
            with k.range(0, total) as unit:
                record = k.offset(self.pointers[self.nest.partial_slot], unit * size)
                for i in finals:
                    n = self.program[i]
                    parts = [k.load(record, ty, (places[i] + 8 * j) // ty.size) for j, ty in enumerate(state_types(n))]
                    merged = self._combine(n, [s.get() for s in state[i]], parts)
                    for s, m in zip(state[i], merged):
                        s.set(m)
            self.row_values = {i: self._finish(self.program[i], tuple(s.get() for s in state[i])) for i in finals}
            self.bases = self._bases((), ())
            for i, n in enumerate(self.program):
                if isinstance(n, Store) and self.level[i] == "final":
                    self._store(n, i, self.row_value(n.value.index))
