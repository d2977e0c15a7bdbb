"""Plans: a schedule bound to kernels, run over addresses.

    plan = make_plan(graph)            # decompose, schedule, compile what is missing
    outs = plan.run([a.ptr, b.ptr])    # -> [(address, block list) ...] per output

Where every output is new memory and every step a kernel, `plan.native_maker()` is a builtin function from operands to tensors: the eager
fast path needs nothing else. May not know: tensors, autograd.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import Any

from flambeau.base.lazy import np
from flambeau.base.settings import settings
from flambeau.core.device import CPU, META, device
from flambeau.core.spec import Spec
from flambeau.engine import instruments
from flambeau.engine.verify import verify_schedule
from flambeau.ir.graph import Graph
from flambeau.kernel import cache, target
from flambeau.passes.decompose import decompose
from flambeau.runtime import errors, launch, objects, sim
from flambeau.runtime.allocator import size_class as cpu_size_class
from flambeau.schedule.fusion import schedule
from flambeau.schedule.memory import pack
from flambeau.schedule.steps import ERROR, Schedule, Shifted, Table
from flambeau.schedule.tuning import Tuner
from flambeau.templates.choice import advised
from flambeau.templates.launch import Recipe


def size_class(nbytes: int, where: device):
    """The class of blocks that serves `nbytes` on a device."""
    if where is CPU:
        return cpu_size_class(nbytes)
    if where is META:
        raise NotImplementedError(
            f"empty: tensors of the meta device are not implemented, got one of {nbytes} bytes. Make it on the CPU, "
            "or build the module there (`nn.utils.skip_init` fills nothing)."
        )
    return sim.device(where.index).default_queue.pool.size_class(nbytes)


def prepare(spec: Spec) -> list[int]:
    """Give a spec its free list (once) and return it."""
    if spec.free is None:
        spec.size_class = size_class(spec.nbytes, spec.device)
        spec.free = spec.size_class.free
    return spec.free


def allocate(spec: Spec) -> int:
    """The address of a block for `spec`; give it back with `spec.free.append`."""
    free = spec.free if spec.free is not None else prepare(spec)
    try:
        return free.pop()
    except IndexError:
        return spec.size_class.fresh()


class Launch:
    """A kernel with its operands by position in the plan's memory list."""

    __slots__ = ("entry", "positions", "block", "name", "may_fail", "words", "address", "calls")

    def __init__(
        self,
        entry,
        positions: tuple[int, ...],
        params: Sequence[int],
        name: str,
        may_fail: bool,
        address: int | None,
        calls: tuple[tuple[int, int], ...] = (),
    ):
        """`address`: the kernel's, where the entry does nothing but run it; `calls`: (position in the block, address of a kernel)."""
        self.entry, self.positions, self.name, self.may_fail, self.address = entry, positions, name, may_fail, address
        self.calls = calls
        if calls:
            params = list(params)
            for position, called in calls:
                params[position] = called
        block = launch.block(params)
        self.words, self.block = block, block.address

    def resized(self, params: Sequence[int]) -> Launch:
        """The same with the parameter block of other sizes."""
        return Launch(self.entry, self.positions, params, self.name, self.may_fail, self.address, self.calls)


_addresses: dict[tuple[str, Recipe], int] = {}


settings.watch(_addresses.clear, "debug", "dump", "override")


def address_of(recipe: Recipe) -> int:
    """A kernel's address; recipes met before are found by hash, not by their printed form."""
    key = (target.current().key, recipe)
    found = _addresses.get(key)
    if found is None:
        found = _addresses[key] = cache.address(recipe.name, recipe.parameters, recipe.build)
    return found


class Call:
    """A library call on NumPy views of the plan's memory."""

    __slots__ = ("op", "ins", "outs", "in_specs", "out_specs", "args")

    def __init__(self, op, ins, outs, in_specs, out_specs, args):
        self.op, self.ins, self.outs, self.in_specs, self.out_specs, self.args = (
            op,
            ins,
            outs,
            in_specs,
            out_specs,
            args,
        )


class Plan:
    """See the module. `outputs` are (memory position, spec, offset in bytes, is an input's memory)."""

    def __init__(self, result: Schedule, where: device):
        self.device = where
        self.inputs = len(result.inputs)
        self.kernels = sum(1 for s in result.steps if s.recipe is not None)
        position: dict[Any, int] = {}
        for b in result.inputs:
            position[b] = b.index
        self.temps: list[Spec] = []
        for b in result.temps:
            position[b] = self.inputs + b.index
            self.temps.append(b.spec)
        for spec in self.temps:
            prepare(spec)
        self.scratch: list[int] = []  # bytes
        for s in result.scratches:
            position[s] = self.inputs + len(self.temps) + s.index
            self.scratch.append(s.nbytes)
        self.error_position = self.inputs + len(self.temps) + len(self.scratch)
        position[ERROR] = self.error_position
        self.shifts: list[tuple[int, int]] = []  # (position, bytes) behind everything else
        self.may_fail = False

        def place(operand: Any) -> int:
            if isinstance(operand, Shifted):
                self.shifts.append((position[operand.buffer], operand.offset_bytes))
                return self.error_position + len(self.shifts)
            return position[operand]

        if self.kernels >= cache.LEAST_TO_FORK:
            recipes = [s.recipe for s in result.steps if s.recipe is not None]
            recipes += [recipe for s in result.steps for _, recipe in s.calls]
            cache.compile_ahead((r.name, r.parameters, r.build) for r in dict.fromkeys(recipes))
        self.steps: list[Launch | Call] = []
        for s in result.steps:
            if s.recipe is None:
                self.steps.append(
                    Call(
                        s.op,
                        tuple(place(o) for o in s.operands),
                        tuple(place(o) for o in s.outputs),
                        s.specs,
                        tuple(o.spec for o in s.outputs),
                        s.args,
                    )
                )
                continue
            fails = ERROR in s.operands
            self.may_fail |= fails
            address: int | None = address_of(s.recipe)
            entry = launch.entry(address)
            if settings.debug >= 2:
                entry, address = instruments.timed(entry, s), None
            positions = tuple(place(o) for o in s.operands)
            calls = tuple((position, address_of(recipe)) for position, recipe in s.calls)
            self.steps.append(Launch(entry, positions, s.params, s.name, fails, address, calls))
        self.tables: list[
            tuple[int, tuple[int, ...], Callable]
        ] = [  # (position, of what, which takes that from memory)
            (position[t], of := tuple(place(o) for o in t.operands), itemgetter(*of))
            for t in result.scratches
            if isinstance(t, Table)
        ]
        self.outputs = [
            (position[b], spec, offset * spec.dtype.itemsize, b.role == "input") for b, spec, offset in result.outputs
        ]
        self.blocks, self.offsets = self._arena()
        self.make: Callable | None = None  # from operands to tensors: filled by who runs the plan
        self.layout: tuple | None = None  # of a native maker: the same for other sizes

    def lives(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Positions of temporaries and scratch that are no results, and for each (bytes, first step, last step)."""
        kept = {p for p, *_ in self.outputs}
        aliases: dict[int, int] = {self.error_position + 1 + i: p for i, (p, _) in enumerate(self.shifts)}
        behind = {position: of for position, of, _ in self.tables}
        first: dict[int, int] = dict.fromkeys(behind, 0)  # tables are written before the first step
        last: dict[int, int] = {}
        for at, step in enumerate(self.steps):
            used = step.positions if isinstance(step, Launch) else (*step.ins, *step.outs)
            for p in (*used, *(q for t in used if t in behind for q in behind[t])):
                p = aliases.get(p, p)
                first.setdefault(p, at)
                last[p] = at
        sizes = [spec.nbytes for spec in self.temps] + self.scratch
        shared = [p for p in range(self.inputs, self.error_position) if p not in kept]
        return shared, [(max(64, sizes[p - self.inputs]), first.get(p, 0), last.get(p, 0)) for p in shared]

    def _arena(self) -> tuple[list, list[int | None]]:
        """The block that temporaries and scratch share, as a list (empty if there are none), and per position behind the inputs the offset
        in it (None: a result, which has memory of its own)."""
        shared, lives = self.lives()
        offsets, total = pack(lives)
        where: list[int | None] = [None] * (self.error_position - self.inputs)
        for p, offset in zip(shared, offsets):
            where[p - self.inputs] = offset
        return ([size_class(total, self.device)] if shared else []), where

    def results(self) -> list[Spec] | None:
        """Specs of the outputs, if each of them is new memory of its own."""
        if self.device is not CPU or not self.outputs:
            return None
        places = [position for position, *_ in self.outputs]
        for position, spec, offset, is_input in self.outputs:
            if is_input or offset or places.count(position) != 1:
                return None
            made = self.temps[position - self.inputs]
            if not (spec is made or (spec.contiguous and made.contiguous and spec.numel == made.numel)):
                return None  # not shown in another shape, but a part
        return [spec for _, spec, _, _ in self.outputs]

    def native_maker(self) -> Callable | None:
        """`make(*operands)`, a tensor or several, as one native call; None if a step is not a kernel or an output no memory of its own."""
        results = self.results()
        if results is None or any([type(s) is not Launch or s.address is None for s in self.steps]):
            return None
        for spec in results:
            prepare(spec)
        if self.layout is None:
            self.layout = self._native_layout()
        inputs, shifts, positions, tables = self.layout
        make = objects.maker(
            inputs,
            results,
            self.blocks,
            shifts,
            [(s.address, s.words, p) for s, p in zip(self.steps, positions)],
            tables,
        )
        return make if make is None or not self.may_fail else checking(make)

    def _native_layout(self) -> tuple[int, list[tuple[int, int]], list[list[int]], list[tuple[int, list[int]]]]:
        """(number of inputs, (position, bytes) of shifted addresses, operands of each step, tables as (position, of what)), positions as a
        native maker counts them."""
        number = {position: i for i, (position, *_) in enumerate(self.outputs)}
        inputs = self.inputs + self.may_fail  # the error block is one more operand
        place = {i: i for i in range(self.inputs)}
        place[self.error_position] = self.inputs
        arena = inputs + len(number)
        first_shift = arena + len(self.blocks)
        shifts: list[tuple[int, int]] = []
        known: dict[int, int] = {0: arena}
        for i, offset in enumerate(self.offsets):
            position = self.inputs + i
            if offset is None:
                place[position] = inputs + number[position]
                continue
            if offset not in known:
                known[offset] = first_shift + len(shifts)
                shifts.append((arena, offset))
            place[position] = known[offset]
        for i, (position, nbytes) in enumerate(self.shifts):
            offset = (
                self.offsets[position - self.inputs]
                if position >= self.inputs and position < self.error_position
                else None
            )
            place[self.error_position + 1 + i] = first_shift + len(shifts)
            shifts.append((place[position], nbytes) if offset is None else (arena, offset + nbytes))
        tables = [(place[t], [place[p] for p in of]) for t, of, _ in self.tables]
        return inputs, shifts, [[place[p] for p in s.positions] for s in self.steps], tables

    def resized(
        self,
        temps: list[Spec],
        scratch_bytes: Sequence[int],
        shifts: Sequence[int],
        outputs: Sequence[tuple[Spec, int]],
        words: Sequence[tuple[int, ...]],
    ) -> Plan:
        """The same kernels over other sizes: specs of temporaries, sizes of scratch, offsets of parts of buffers, (spec, offset in bytes) of
        outputs, and the parameter block of each step."""
        plan = object.__new__(Plan)
        plan.__dict__.update(self.__dict__)
        for spec in temps:
            prepare(spec)
        plan.temps = temps
        if scratch_bytes:
            plan.scratch = list(scratch_bytes)
        if shifts:
            plan.shifts = [(position, n) for (position, _), n in zip(self.shifts, shifts)]
        plan.steps = [s.resized(w) for s, w in zip(self.steps, words)]
        plan.outputs = [(p, spec, n, is_input) for (p, _, _, is_input), (spec, n) in zip(self.outputs, outputs)]
        if scratch_bytes or shifts or len(temps) != len(outputs):
            plan.blocks, plan.offsets = plan._arena()
            plan.layout = None
        plan.make = None
        return plan

    def run(self, inputs: Sequence[int | float], keep: Any = None) -> list[int]:
        """Run over the inputs' addresses (and numbers); returns the memory list. The caller owns the outputs' blocks."""
        memory = list(inputs)
        taken = take_all(self.blocks)
        try:
            for i, offset in enumerate(self.offsets):
                memory.append(allocate(self.temps[i]) if offset is None else taken[0] + offset)
            if self.device is CPU:
                self._run_now(memory)
            else:
                self._run_queued(memory, keep)
        except BaseException:  # memory may have run out half-way
            for i, offset in enumerate(self.offsets[: len(memory) - self.inputs]):
                if offset is None:
                    self.temps[i].free.append(memory[self.inputs + i])
            raise
        finally:
            for c, p in zip(self.blocks, taken):
                c.free.append(p)
        return memory

    def tables_of(self, memory: list[int]) -> list[array]:
        """The tables of a run: their addresses take their place in the memory list, which is otherwise complete. Keep them while it runs."""
        made = [array("q", take(memory)) for _, _, take in self.tables]
        for (position, *_), table in zip(self.tables, made):
            memory[position] = table.buffer_info()[0]
        return made

    def _run_now(self, memory: list[int]) -> None:
        error = errors.thread_block() if self.may_fail else None
        memory.append(error.address if error is not None else 0)
        for position, extra in self.shifts:
            memory.append(memory[position] + extra)
        tables = self.tables_of(memory)
        for step in self.steps:
            if type(step) is Launch:
                step.entry(*[memory[i] for i in step.positions], step.block)
            else:
                run_external(step, memory)
        del tables
        if error is not None and error.words[0]:
            error.check()

    def _run_queued(self, memory: list[int], keep: Any) -> None:
        """Enqueue every step; blocks freed now are reused only by work behind it in the same queue."""
        queue = sim.device(self.device.index).default_queue
        memory.append(queue.error_block.address)
        for position, extra in self.shifts:
            memory.append(memory[position] + extra)
        kept = (keep, self, self.tables_of(memory))
        for step in self.steps:
            if type(step) is Launch:
                queue.launch(step.entry, *[memory[i] for i in step.positions], step.block, keep=kept)
            else:
                queue.submit(run_external, step, list(memory), keep=kept)


def take_all(classes: Sequence) -> list[int]:
    """A block of each size class; none is kept if one is not to be had."""
    taken: list[int] = []
    try:
        for c in classes:
            try:
                taken.append(c.free.pop())
            except IndexError:
                taken.append(c.fresh())
    except BaseException:
        for c, p in zip(classes, taken):
            c.free.append(p)
        raise
    return taken


def checking(make: Callable) -> Callable:
    """The maker of a plan whose kernels may report errors, with the block they report to."""

    def run(*operands):
        error = errors.thread_block()
        outs = make(*operands, error.address)
        if error.words[0]:
            error.check()
        return outs

    return run


def array_at(address: int, spec: Spec):
    """A NumPy view of memory, in the spec's layout (bfloat16 as uint16)."""
    import ctypes  # here: the hot path never needs it

    name = "uint16" if spec.dtype.name == "bfloat16" else spec.dtype.name
    size = spec.dtype.itemsize
    if spec.numel == 0:
        return np.empty(tuple(spec.shape), name)
    raw = (ctypes.c_char * spec.nbytes).from_address(address)
    flat = np.frombuffer(raw, name, spec.nbytes // size)
    return np.lib.stride_tricks.as_strided(flat, tuple(spec.shape), tuple(s * size for s in spec.strides))


def run_external(step: Call, memory: list[int]) -> None:
    ins = [array_at(memory[i], s) for i, s in zip(step.ins, step.in_specs)]
    outs = [array_at(memory[i], s) for i, s in zip(step.outs, step.out_specs)]
    step.op.rules.run(ins, outs, step.args)


def make_plan(graph: Graph, where: device = CPU, tuned: bool = False) -> Plan:
    """Decompose, schedule and bind a graph; if `tuned`, with the ways of its templates that measure best."""
    instruments.show_graph(graph, "traced")
    graph = decompose(graph)
    instruments.show_graph(graph, "decomposed")
    with advised(Tuner(settings.tune_seconds).answer) if tuned else nullcontext():
        result = schedule(graph, target.current(), launch.get_num_threads())
    instruments.show_schedule(result)
    if settings.check:
        verify_schedule(result)
    return Plan(result, where)


__all__ = ["Plan", "allocate", "array_at", "make_plan", "prepare"]
