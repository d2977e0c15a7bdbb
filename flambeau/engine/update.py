"""Several tensors updated in place by one function, compiled once for their specs: the step of an optimiser is one kernel.

    def momentum(p, g, b, lr, mu):
        b = mu * b + g
        return p - lr * b, b

    update.run(momentum, (0, 2), (p, g, b), (0.1, 0.9))    # p and b are written

Numbers are given at run time and cost no new plan; `flags` are static. Under an interpreter or a trace the function runs on the tensors
as they are, and the results are copied in. May not know: the tensor class, optimisers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.device import CPU
from flambeau.engine import eager, recording, sizes, watching
from flambeau.engine.plan import Launch, Plan, make_plan
from flambeau.ir import bind, tracing
from flambeau.ir.graph import Graph, number_spec
from flambeau.ir.op import IN_PLACE, REGISTRY

MOST_PLANS = 4096
_plans: dict[tuple, tuple] = {}  # (entry, positions, block, plan); entry is None where the plan is more than one kernel
eager.other_plans.append(_plans)


def run(
    function: Callable[..., tuple],
    written: tuple[int, ...],
    tensors: Sequence[Any],
    numbers: Sequence[Any] = (),
    flags: tuple = (),
) -> None:
    """tensors[i] for i in `written` become function(*tensors, *numbers, *flags). No autograd."""
    values = (*tensors, *numbers)
    if (bind.MODES and recording.is_below()) or any(hasattr(x, "spec") and x.spec.is_slow for x in values):
        run_slowly(function, written, values, flags)
        return
    key = (function, flags, *[x.spec if hasattr(x, "spec") else type(x) for x in values])
    found = _plans.get(key)
    if found is None:
        if len(_plans) > MOST_PLANS:
            _plans.clear()
        found = _plans[key] = _shortened(plan_for(function, written, values, flags))
    entry, positions, block, plan = found
    memory = [x.ptr if hasattr(x, "spec") else x for x in values]
    if bind.MODES:
        _run_told(function, written, memory, values, flags, plan)
    elif entry is not None:
        entry(*[memory[i] for i in positions], block)
    else:
        plan.run(memory, values)
    for i in written:
        tensors[i].storage.version += 1


def _run_told(
    function: Callable, written: tuple[int, ...], memory: list, values: tuple, flags: tuple, plan: Plan
) -> None:
    """Run or record the plan, through the watcher if there is one."""
    recorder, watcher = recording.current(), watching.current()

    def go() -> None:
        if recorder is None:
            plan.run(memory, values)
        else:
            recorder.run(plan, memory, values)

    if watcher is None:
        go()
        return
    event = watching.Event("update", function.__name__, None, values, graph_of(function, written, values, flags))
    watching.tell(watcher, event, go)


def _shortened(plan: Plan) -> tuple:
    """What one native call needs, where the plan is one kernel over its inputs."""
    if len(plan.steps) == 1 and type(plan.steps[0]) is Launch and not plan.may_fail and plan.device is CPU:
        step = plan.steps[0]
        if max(step.positions) < plan.inputs:
            return step.entry, step.positions, step.block, plan
    return None, (), 0, plan


class Update:
    """A function whose results are written into its operands, at one set of specs; `args` are specs, positions written, flags. As `eager.Info`
    to `sizes`."""

    __slots__ = ("op", "args", "specs", "plan")
    form = "update"

    def __init__(self, function: Callable[..., tuple], args: tuple):
        self.op, self.args = function, args
        self.specs: tuple = ()
        self.plan: Plan | None = None

    def graph(self) -> Graph:
        specs, written, flags = self.args
        graph, _ = tracing.trace(lambda *stand_ins: self.op(*stand_ins, *flags), specs)
        results = []
        for i, v in zip(written, graph.outputs):
            if v.spec.dtype is not specs[i].dtype:
                (v,) = graph.add(REGISTRY["to_dtype"], (v, specs[i].dtype))
            results.append((graph.inputs[i], v))
        graph.outputs, graph.writes = [], results
        return graph


def update_of(function: Callable[..., tuple], written: tuple[int, ...], values: Sequence[Any], flags: tuple) -> Update:
    specs = tuple([x.spec.plain() if hasattr(x, "spec") else number_spec(type(x)) for x in values])
    return Update(function, (specs, written, flags))


def plan_for(function: Callable, written: tuple[int, ...], values: Sequence[Any], flags: tuple) -> Plan:
    """The plan that writes the function's results into its inputs, from a model of its sizes if there is one."""
    update = update_of(function, written, values, flags)
    known = sizes.derived(function, update.args, Update.form)
    if known is not None:
        return known[1]
    graph = update.graph()
    update.plan = make_plan(graph, graph.inputs[0].spec.device)
    sizes.learn(update)
    return update.plan


def graph_of(function: Callable[..., tuple], written: tuple[int, ...], values: Sequence[Any], flags: tuple) -> Graph:
    """The function's graph, its results written into its inputs."""
    return update_of(function, written, values, flags).graph()


def compute(
    function: Callable[..., tuple], tensors: Sequence[Any], numbers: Sequence[Any] = (), flags: tuple = ()
) -> tuple:
    """function(*tensors, *numbers, *flags), planned as one graph: a tuple of new tensors. No autograd."""
    values = (*tensors, *numbers)
    if (bind.MODES and recording.is_below()) or any(hasattr(x, "spec") and x.spec.is_slow for x in values):
        return function(*values, *flags)
    key = (function, flags, "compute", *[x.spec if hasattr(x, "spec") else type(x) for x in values])
    found = _plans.get(key)
    if found is None:
        if len(_plans) > MOST_PLANS:
            _plans.clear()
        specs = [x.spec.plain() if hasattr(x, "spec") else number_spec(type(x)) for x in values]
        graph, _ = tracing.trace(lambda *stand_ins: function(*stand_ins, *flags), specs)
        found = _plans[key] = (None, (), 0, make_plan(graph, specs[0].device))
    return eager.run_plan(found[3], list(values))


def run_slowly(function: Callable, written: tuple[int, ...], values: Sequence[Any], flags: tuple) -> None:
    """Op by op, through whatever interpreters are in force."""
    results = function(*values, *flags)
    copy = IN_PLACE["copy_"].in_place
    for i, value in zip(written, results):
        copy(values[i], value)


__all__ = ["compute", "run", "run_slowly"]
