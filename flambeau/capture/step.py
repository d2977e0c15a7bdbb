"""Capturing a function of tensors as one graph and replaying it: forward, backward and update of a training step together.

    step = capture(train_step)
    loss = step(x, y)          # traced at new input specs, then replayed as one plan
    f = capture(model, dynamic=True)   # traced once with symbolic sizes; other sizes only make a new plan

The tape stands above the trace, so a backward inside the function is part of the graph; in-place writes to tensors from outside (parameters,
optimiser state) become writes of the graph, gradients left in `.grad` become results that are hung there (or added) after each replay. Results
of a captured function carry no history: call backward inside it. Random numbers are drawn anew in every replay.

May not know: guards beyond the inputs' specs, which need gradients, and grad mode (`compiler`'s business). Raises: RuntimeError where the
function needs a value, or writes to memory that two inputs share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.pytree import tree_flatten
from flambeau.capture.recording import Recording, record
from flambeau.engine import eager
from flambeau.engine.plan import Plan, make_plan
from flambeau.passes.pipeline import optimise
from flambeau.tape.grad_mode import is_grad_enabled

MOST_SIZES = 1024  # plans kept per trace


class Replay:
    """A recording with its plans, by the values of the symbolic sizes."""

    def __init__(self, recording: Recording):
        self.recording = recording
        self.graph, self.guards = recording.graph, recording.guards
        self.plans: dict[tuple, Plan] = {}

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
            graph, _ = optimise(self.graph.concrete(sizes) if sizes else self.graph)
            found = self.plans[key] = make_plan(graph, self.graph.device())
        return found

    def run(self, inputs: list[Tensor], sizes: dict[str, int]) -> Any:
        recording = self.recording
        if recording.shares_memory(inputs):
            raise RuntimeError(
                "capture: a function that writes to tensors must not be given two that share memory, and it was. Pass a clone()."
            )
        outs = eager.run_plan(self.plan_for(sizes), recording.values(inputs))
        return recording.finish(outs, inputs, sizes)


class Captured:
    """See the module. `recordings` maps input specs to what was traced for them."""

    def __init__(self, function: Callable, dynamic: bool = False):
        self.function, self.dynamic = function, dynamic
        self.recordings: dict[tuple, list[Replay]] = {}

    def __call__(self, *args: Any) -> Any:
        flat, structure = tree_flatten(args)
        given = [x for x in flat if isinstance(x, Tensor)]
        inputs = list({id(x): x for x in given}.values())  # what is given twice is one input
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
        number = {id(x): i for i, x in enumerate(inputs)}
        key = (is_grad_enabled(), tuple((number[id(x)], x.requires_grad) for x in given), key)
        known = self.recordings.setdefault(key, [])
        for found in known:
            if found.guards is None or found.guards.hold(sizes):
                return found.run(inputs, sizes)
        symbolic = (lambda i, d: True) if self.dynamic else None
        recording = record(self.function, flat, structure, symbolic=symbolic)
        if recording.bases:
            recording = record(self.function, flat, structure, symbolic=symbolic, bases=recording.bases)
        found = Replay(recording)
        known.append(found)
        return found.run(inputs, sizes)


def capture(function: Callable, *, dynamic: bool = False) -> Captured:
    """`function` traced once per input specs and replayed as one graph; with `dynamic`, once per ranks and dtypes as long as its guards hold."""
    return Captured(function, dynamic)
