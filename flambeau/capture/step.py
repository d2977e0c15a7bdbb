"""Capturing a function of tensors as one graph and replaying it: forward, backward and update of a training step together.

    step = capture(train_step)
    loss = step(x, y)          # traced at new input specs, then replayed as one plan

The tape stands above the trace, so a backward inside the function is part of the graph; in-place writes to tensors from outside (parameters,
optimiser state) become writes of the graph, gradients left in `.grad` become results that are hung there after each replay.

May not know: guards beyond the inputs' specs (a compiler's business). Raises: RuntimeError where the function needs a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor, wrap_traced
from flambeau.base.pytree import tree_flatten, tree_unflatten
from flambeau.core.device import CPU
from flambeau.engine import eager
from flambeau.engine.plan import Plan, make_plan
from flambeau.ir import tracing
from flambeau.ir.graph import Graph


class Recording:
    """One traced specialisation: its graph, plan, and the outside tensors it reads and writes."""

    def __init__(self, graph: Graph, structure: Any, leaves: list, constants: list[Tensor], gradients: list[tuple[Tensor, int]]):
        self.graph, self.structure, self.leaves = graph, structure, leaves
        self.constants, self.gradients = constants, gradients
        self.plan: Plan = make_plan(graph, CPU)

    def replay(self, inputs: list[Tensor]) -> Any:
        outs = eager.run_plan(self.plan, [*inputs, *self.constants])
        for target, _ in self.graph.writes:
            if target.constant is not None:
                target.constant.storage.version += 1
            else:
                inputs[target.index].storage.version += 1
        for t, at in self.gradients:
            t._set_grad(outs[at])
        return tree_unflatten([outs[x] if isinstance(x, int) else x[0] for x in self.leaves], self.structure)


class Captured:
    """See the module. `recordings` maps input specs to what was traced for them."""

    def __init__(self, function: Callable):
        self.function = function
        self.recordings: dict[tuple, Recording] = {}

    def __call__(self, *args: Any) -> Any:
        flat, structure = tree_flatten(args)
        key = (structure, *(x.spec.plain() if isinstance(x, Tensor) else x for x in flat))
        inputs = [x for x in flat if isinstance(x, Tensor)]
        found = self.recordings.get(key)
        if found is None:
            found = self.recordings[key] = self._record(flat, structure)
        return found.replay(inputs)

    def _record(self, flat: list, structure: Any) -> Recording:
        recorder = tracing.Recorder()
        graph = recorder.graph
        stand_ins = []
        with tracing.recording(recorder, keep_stack=True):
            for x in flat:
                if isinstance(x, Tensor):
                    t = wrap_traced(recorder, graph.input(x.spec.plain()))
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
        graph.verify()
        constants = [v.constant for v in graph.inputs if v.constant is not None]
        return Recording(graph, out_structure, leaves, constants, gradients)

    def _restore(self, t: Tensor) -> None:
        """An outside tensor as it was before the trace rebound it."""
        t.__dict__.pop("_traced", None)
        saved = t.__dict__.pop("_before_trace", None)
        if saved is not None:
            t.spec, t.node, t.needs_grad = saved


def capture(function: Callable) -> Captured:
    """`function` traced once per input specs and replayed as one graph."""
    return Captured(function)
