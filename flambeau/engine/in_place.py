"""In-place forms: an op whose result is written into its first operand's memory.

The graph is the op plus a conversion to the operand's dtype, with a write to the input; the scheduler stores straight into the operand
where nobody else reads it. Operands that overlap the target otherwise are copied first; a target that overlaps itself is an error.
May not know: the tape (a hook), the tensor class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.base.settings import settings
from flambeau.core.dtype import can_cast
from flambeau.core.layout import has_internal_overlap
from flambeau.engine import eager, recording, sizes, validate, watching
from flambeau.engine.plan import Plan, make_plan
from flambeau.ir import bind
from flambeau.ir.bind import MODES
from flambeau.ir.graph import Graph
from flambeau.ir.op import POINTWISE, REGISTRY, Op

MOST_PLANS = 4096


class InPlaceHooks:
    """What the tape registers."""

    before: Callable[[Op, Any], None]  # may this tensor be written?
    keep: Callable[..., tuple]  # the arguments as the tape sees them: what the op's backward reads and loses is copied
    after: Callable[..., None]  # history of the written tensor
    assign_traced: Callable[..., None]
    clone: Callable[[Any], Any]


hooks = InPlaceHooks()


def run(op: Op, args: tuple, told: bool = False) -> Any:
    """`args[0]` becomes op(*args). Returns args[0]. `told`: the watcher of this thread, if any, knows."""
    from_number = REGISTRY["to_dtype"]
    target = args[0]
    below = False
    if MODES:
        below = recording.is_below()
        watcher = None if below or told else watching.current()
        if watcher is not None:
            return watching.tell(watcher, watching.Event("write", op.name + "_", op, args), lambda: run(op, args, True))
    if below or getattr(target, "_traced", None) is not None or target.spec.is_slow:
        hooks.before(op, target)
        result = bind.bind(op, args)
        check(op, target.spec, result.spec)
        if result.spec.dtype is not target.spec.dtype:
            result = from_number(result, target.spec.dtype)
        hooks.assign_traced(target, result)
        return target
    info = eager.info_for(op, args)
    spec = target.spec
    check(op, spec, info.specs[0])
    hooks.before(op, target)
    kept = hooks.keep(info, args, target)
    if info.specs[0].numel:
        given = eager.inputs_of(op, args)
        inputs = [separate(x, target, op.kind == POINTWISE) if i else x for i, x in enumerate(given)]
        running = info
        if any(a is not b for a, b in zip(inputs, given)):  # copies may lie in memory in another way
            copies = {id(a): b for a, b in zip(given[1:], inputs[1:])}
            running = eager.info_for(op, (target, *op.map_tensors(lambda x: copies.get(id(x), x), args)[1:]))
        plan = op.in_place_plans.get(running)
        if plan is None:
            if len(op.in_place_plans) > MOST_PLANS:
                op.in_place_plans.clear()
            plan = op.in_place_plans[running] = plan_for(running)
        watched = validate.watch(op, args) if settings.validate and recording.current() is None else None
        eager.run_plan(plan, inputs)
        if watched is not None:
            watched.check((target,), info.graph())
    hooks.after(info, kept, target, kept is not args)
    return target


class Write:
    """An op whose result is written into its first operand, at one set of specs; has no results of its own. As `eager.Info` to `sizes`."""

    __slots__ = ("op", "args", "specs", "plan")
    form = "write"

    def __init__(self, op: Op, args: tuple):
        self.op, self.args = op, args
        self.specs: tuple = ()
        self.plan: Plan | None = None

    def graph(self) -> Graph:
        graph, spec = eager.Info(self.op, self.args).graph(), self.args[0]
        result = graph.outputs[0]
        if result.spec.dtype is not spec.dtype:
            (result,) = graph.add(REGISTRY["to_dtype"], (result, spec.dtype))
        graph.outputs, graph.writes = [], [(graph.inputs[0], result)]
        return graph


def plan_for(info: eager.Info) -> Plan:
    """The plan that writes the result into the first operand, from a model of its sizes if there is one."""
    known = sizes.derived(info.op, info.args, Write.form)
    if known is not None:
        return known[1]
    write = Write(info.op, info.args)
    write.plan = make_plan(write.graph(), info.args[0].device)
    sizes.learn(write)
    return write.plan


def separate(x: Any, target: Any, aligned: bool) -> Any:
    """An operand that shares memory with the target, copied; not one at the very same places if the op reads it element for element."""
    if not hasattr(x, "spec") or (aligned and x.ptr == target.ptr and x.spec is target.spec) or not overlap(x, target):
        return x
    return hooks.clone(x)


def overlap(x: Any, target: Any) -> bool:
    """Whether a tensor lies in memory that the target occupies."""
    if x is target:
        return True
    if x.storage is not target.storage:
        return False
    return x.ptr + x.spec.nbytes > target.ptr and x.ptr < target.ptr + target.spec.nbytes


def check(op: Op, target, result) -> None:
    """Raises: RuntimeError if the result does not fit into the target."""
    if tuple(result.shape) != tuple(target.shape):
        raise RuntimeError(
            f"{op.name}_: the result must have the target's shape {list(target.shape)}, got {list(result.shape)}. "
            f"An in-place op cannot grow its target: use {op.name} instead."
        )
    if not can_cast(result.dtype, target.dtype):
        raise RuntimeError(
            f"{op.name}_: result type {result.dtype.name} can't be cast to the target's type {target.dtype.name}. "
            f"Use {op.name}, or convert the target with .to()."
        )
    if has_internal_overlap(target.shape, target.strides):
        raise RuntimeError(
            f"{op.name}_: more than one element of the target (shape {list(target.shape)}, strides {list(target.strides)}) refers "
            f"to a single memory location. Call .clone() first."
        )


__all__ = ["hooks", "run"]
