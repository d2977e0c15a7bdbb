"""Capturing a function of tensors as one graph and replaying it: forward, backward and update of a training step together.

    step = capture(train_step)
    loss = step(x, y)          # traced at new input specs, then replayed as one plan
    f = capture(model, dynamic=True)   # traced once with symbolic sizes; other sizes only make a new plan

The tape stands above the trace, so a backward inside the function is part of the graph; in-place writes to tensors from outside (parameters,
optimiser state) become writes of the graph, gradients left in `.grad` become results that are hung there (or added) after each replay. Results
of a captured function carry no history: call backward inside it.

May not know: guards beyond the inputs' specs, which need gradients, and grad mode (a compiler's business). Raises: RuntimeError where the
function needs a value, draws random numbers (every replay would draw the same), or writes to memory that two inputs share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor, wrap_traced
from flambeau.base.pytree import tree_flatten, tree_unflatten
from flambeau.core.device import CPU
from flambeau.core.spec import Spec
from flambeau.core.symbolic import Guards, SymInt
from flambeau.engine import eager
from flambeau.engine.plan import Plan, make_plan
from flambeau.ir import tracing
from flambeau.ir.graph import Graph
from flambeau.tape.grad_mode import is_grad_enabled

MOST_SIZES = 1024  # plans kept per trace


class Recording:
    """One traced specialisation: its graph, plan, and the outside tensors it reads and writes."""

    def __init__(
        self, graph: Graph, structure: Any, leaves: list, constants: list[Tensor], gradients: list[tuple[Tensor, int]]
    ):
        self.graph, self.structure, self.leaves = graph, structure, leaves
        self.constants, self.gradients = constants, gradients
        self.cleared: set[int] = set()  # ids of the outside tensors whose `.grad` the function sets to None itself
        self.guards: Guards | None = None  # comparisons on symbolic sizes that the trace rests on
        self.plans: dict[tuple, Plan] = {}  # by the values of the symbolic sizes

    @property
    def plan(self) -> Plan:
        """The plan for the sizes last replayed."""
        return next(reversed(self.plans.values()))

    def plan_for(self, sizes: dict[str, int]) -> Plan:
        key = tuple(sizes.values())
        found = self.plans.get(key)
        if found is None:
            if len(self.plans) >= MOST_SIZES:
                self.plans.pop(next(iter(self.plans)))
            found = self.plans[key] = make_plan(self.graph.concrete(sizes) if sizes else self.graph, CPU)
        return found

    def replay(self, inputs: list[Tensor], sizes: dict[str, int]) -> Any:
        if self.graph.writes:
            self._check_sharing(inputs)
        outs = eager.run_plan(self.plan_for(sizes), [*inputs, *self.constants])
        for target, _ in self.graph.writes:
            if target.constant is not None:
                target.constant.storage.version += 1
            else:
                inputs[target.index].storage.version += 1
        for t, at in self.gradients:
            old = t.grad
            t._set_grad(outs[at] if old is None or id(t) in self.cleared else old + outs[at])
        return tree_unflatten([outs[x] if isinstance(x, int) else x[0] for x in self.leaves], self.structure)

    def _check_sharing(self, inputs: list[Tensor]) -> None:
        """Raises: RuntimeError if a write would show in another input."""
        seen: set[int] = set()
        for t in (*inputs, *self.constants):
            if id(t.storage) in seen:
                raise RuntimeError(
                    "capture: a function that writes to tensors must not be given two that share memory, and it was. Pass a clone()."
                )
            seen.add(id(t.storage))


class Captured:
    """See the module. `recordings` maps input specs to what was traced for them."""

    def __init__(self, function: Callable, dynamic: bool = False):
        self.function, self.dynamic = function, dynamic
        self.recordings: dict[tuple, list[Recording]] = {}

    def __call__(self, *args: Any) -> Any:
        flat, structure = tree_flatten(args)
        inputs = [x for x in flat if isinstance(x, Tensor)]
        if self.dynamic:
            if any(not x.spec.contiguous for x in inputs):
                raise RuntimeError(
                    "capture: inputs must be contiguous where sizes are symbolic. Call .contiguous() on them."
                )
            key = (structure, *((x.ndim, x.dtype, x.device) if isinstance(x, Tensor) else (type(x), x) for x in flat))
            sizes = {f"s{i}_{d}": n for i, x in enumerate(inputs) for d, n in enumerate(x.shape)}
        else:
            key = (
                structure,
                *(x.spec.plain() if isinstance(x, Tensor) else (type(x), x) for x in flat),
            )  # 1, 1.0 and True are equal
            sizes = {}
        key = (is_grad_enabled(), tuple(x.requires_grad for x in inputs), key)
        known = self.recordings.setdefault(key, [])
        for found in known:
            if found.guards is None or found.guards.hold(sizes):
                return found.replay(inputs, sizes)
        found = self._record(flat, structure)
        known.append(found)
        return found.replay(inputs, sizes)

    def _spec(self, t: Tensor, number: int, guards: Guards) -> Spec:
        """The spec a stand-in shows: with symbolic sizes if they are asked for (0 and 1 are always themselves)."""
        if not self.dynamic:
            return t.spec.plain()
        sizes = [SymInt.named(f"s{number}_{d}", n, guards) for d, n in enumerate(t.shape)]
        return Spec.of(sizes, t.dtype, t.device)

    def _record(self, flat: list, structure: Any) -> Recording:
        recorder = tracing.Recorder()
        recorder.symbolic, recorder.repeats = self.dynamic, True
        guards = Guards()
        graph = recorder.graph
        stand_ins = []
        with tracing.recording(recorder, keep_stack=True):
            for x in flat:
                if isinstance(x, Tensor):
                    t = wrap_traced(recorder, graph.input(self._spec(x, len(graph.inputs), guards)))
                    t.needs_grad = x.needs_grad
                    stand_ins.append(t)
                else:
                    stand_ins.append(x)
            before = [x for x in stand_ins if isinstance(x, Tensor)]
            started = list(graph.inputs)
            try:
                result = self.function(*tree_unflatten(stand_ins, structure))
                out_flat, out_structure = tree_flatten(result)
                leaves: list = []
                for x in out_flat:
                    if isinstance(x, Tensor):
                        leaves.append(len(graph.outputs))
                        graph.outputs.append(recorder.value_of(x))
                    else:
                        leaves.append((x,))
                gradients = []
                for t in list(recorder.alive):
                    g = t.__dict__.get("_grad")
                    if g is not None and g.__dict__.get("_traced") is not None:
                        gradients.append((t, len(graph.outputs)))
                        graph.outputs.append(recorder.value_of(g))
                for t, value in zip(before, started):
                    now = recorder.value_of(t)
                    if now is not value:
                        graph.writes.append((value, now))
                for t, value in recorder.mutated.values():
                    graph.writes.append((value, t.__dict__["_traced"][1]))
            finally:
                for t, _ in recorder.mutated.values():
                    self._restore(t)
                for t in recorder.alive:
                    if t.__dict__.get("_grad") is not None and t.__dict__["_grad"].ptr is None:
                        t.__dict__["_grad"] = None
                for t, old in recorder.held:
                    t.__dict__["_grad"] = old
        graph.verify()
        constants = [v.constant for v in graph.inputs if v.constant is not None]
        recording = Recording(graph, out_structure, leaves, constants, gradients)
        recording.guards = guards if self.dynamic else None
        recording.cleared = recorder.cleared
        return recording

    def _restore(self, t: Tensor) -> None:
        """An outside tensor as it was before the trace rebound it."""
        t.__dict__.pop("_traced", None)
        saved = t.__dict__.pop("_before_trace", None)
        if saved is not None:
            t.spec, t.node, t.needs_grad = saved


def capture(function: Callable, *, dynamic: bool = False) -> Captured:
    """`function` traced once per input specs and replayed as one graph; with `dynamic`, once per ranks and dtypes as long as its guards hold."""
    return Captured(function, dynamic)
