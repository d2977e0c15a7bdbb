"""Running one op now: find or make its plan, run it, hand the result to the tape.

`process` is the bottom of the interpreter stack: record into the innermost trace if there is one, else execute. Eager is "a graph of
one op, its plan cached by (op, specs, attributes)"; the generated call forms (`callform`) look the plan up themselves and come here on a miss.

May not know: the tensor class or the tape, which register themselves with `install`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.base.settings import settings
from flambeau.core.spec import NumberSpec, Size, Spec
from flambeau.core.symbolic import SymInt
from flambeau.engine import instruments, recording, sizes, validate, watching
from flambeau.engine.plan import Launch, Plan, make_plan
from flambeau.ir import numbers, tracing
from flambeau.ir.bind import MODES
from flambeau.ir.graph import Graph, infer, number_spec
from flambeau.ir.op import REGISTRY, TENSOR_ROLES, VIEW, Op
from flambeau.runtime import launch

MOST_PLANS = 8192  # per op, then the older half is dropped
VALUE_ROLES = frozenset((*TENSOR_ROLES, "Scalar"))


class Hooks:
    """What higher layers register."""

    wrap: Callable[[Spec, int], Any]  # a tensor that owns a fresh block
    wrap_view: Callable[..., Any]  # a tensor on another's memory
    wrap_traced: Callable[..., Any]
    record: Callable[..., None]  # the tape
    address: Callable[[Any], int]


hooks = Hooks()


class Info:
    """What is known about an op at one set of specs and attributes: its plan, and what the tape adds."""

    __slots__ = ("op", "args", "plan", "specs", "view", "analyses", "by_bits", "positions", "single", "__weakref__")
    form = ""

    def __init__(self, op: Op, args: tuple, specs: tuple[Spec, ...] | None = None):
        """`args` holds specs where tensors go, and number specs for run-time numbers. `specs` of the results, if they are known."""
        self.op, self.args = op, args
        self.view: tuple | None = None
        self.plan: Plan | None = None
        self.specs: tuple[Spec, ...] = specs or infer(op, args)
        self.analyses: dict = {}
        self.by_bits: dict = {}  # which inputs need a gradient -> analysis
        self.positions = (
            None
            if any(p.role == "Tensors" for p in op.params)
            else tuple(i for i, a in enumerate(args) if isinstance(a, (Spec, NumberSpec)))
        )
        self.single = op.outputs == 1
        if op.kind == VIEW:
            self.view = op.rules.view(args[0], *args[1:])

    def graph(self) -> Graph:
        """The graph of this one op; run-time numbers are inputs too."""
        graph = Graph()
        args = map_specs(graph.input, self.op, self.args)
        graph.outputs = list(graph.add(self.op, args, specs=self.specs))
        return graph

    def make_plan(self) -> Plan:
        self.plan = make_plan(self.graph(), self.specs[0].device if self.specs else None)
        sizes.learn(self)
        return self.plan


def map_specs(function: Callable, op: Op, args: tuple) -> tuple:
    """Bound arguments with `function` applied to every spec in them."""

    def visit(a):
        if isinstance(a, (Spec, NumberSpec)):
            return function(a)
        if type(a) is tuple:
            return tuple(visit(x) for x in a)
        return a

    return tuple(visit(a) for a in args)


def freeze(a: Any) -> Any:
    """Attributes as hashable values: lists become tuples."""
    if isinstance(a, (list, tuple)) and not hasattr(a, "spec"):
        return tuple(freeze(x) for x in a)
    return a


def normalise(op: Op, args: tuple) -> tuple:
    """Arguments with specs for tensors, number specs for run-time numbers, hashable attributes."""
    values = []
    for p, a in zip(op.params, args):
        role = p.role
        if role in VALUE_ROLES:
            if hasattr(a, "spec"):
                values.append(a.spec.plain())
            elif isinstance(a, (list, tuple)):
                values.append(tuple([x.spec.plain() if hasattr(x, "spec") else x for x in a]))
            elif role == "Scalar" and a == p.default and type(a) is type(p.default):
                values.append(a)  # a default is part of the code
            elif type(a) in (float, int) and role in ("Operand", "Scalar"):
                values.append(number_spec(type(a)))
            else:
                values.append(a)
        else:
            values.append(freeze(a))
    return tuple(values)


def key_of(args: tuple) -> tuple:
    """`1`, `1.0` and `True` are equal as keys: attributes count with their types."""
    return tuple([(type(a), a) if isinstance(a, (bool, int, float, complex)) else a for a in args])


_infos: dict[Op, dict[tuple, Info]] = {}
other_plans: list[dict] = []  # tables of plans that others keep, to be forgotten with the rest


def info_for(op: Op, args: tuple) -> Info:
    """The Info of bound arguments, made on a miss. Raises what the op's meta raises."""
    normal = normalise(op, args)
    if MODES and _has_symbolic(normal):
        return Info(op, normal)  # of one trace: a look-up would compare its sizes with others, which is a guard
    table = _infos.setdefault(op, {})
    key = key_of(normal)
    try:
        found = table.get(key)
    except TypeError:
        return Info(op, normal)
    if found is None:
        if len(table) > MOST_PLANS:
            for old in list(table)[: MOST_PLANS // 2]:
                table.pop(old, None)
            op.plans.clear()
        known = sizes.derived(op, normal)
        if known is None:
            found = table[key] = Info(op, normal)
        else:
            found = table[key] = Info(op, normal, known[0])
            found.plan = known[1]
    return found


def _has_symbolic(x: Any) -> bool:
    if type(x) is tuple or type(x) is Size:
        return any([_has_symbolic(y) for y in x])
    return type(x) is SymInt or (type(x) is Spec and any([type(n) is SymInt for n in (*x.shape, *x.strides)]))


def forget_plans() -> None:
    """Drop every plan: something all of them depend on (threads, target, default dtype) has changed."""
    _infos.clear()
    sizes.forget()
    for table in other_plans:
        table.clear()
    for op in REGISTRY.values():
        op.plans.clear()
        op.in_place_plans.clear()


settings.watch(forget_plans, *instruments.SHAPING)


def process(op: Op, args: tuple) -> Any:
    """The bottom of the stack."""
    watcher = watching.current() if MODES else None
    if watcher is not None:
        event = watching.Event("op" if tracing.current() is None else "traced", op.name, op, args)
        return watching.tell(watcher, event, lambda: run_op(op, args))
    return run_op(op, args)


def run_op(op: Op, args: tuple) -> Any:
    """Record into the innermost trace, or execute."""
    recorder = tracing.current()
    if recorder is not None:
        return trace_op(recorder, op, args)
    info = info_for(op, args)
    return execute(info, args)


def inputs_of(op: Op, args: tuple) -> list:
    """Tensors and run-time numbers of bound arguments, in the order of the graph's inputs."""
    found = []
    for p, a in zip(op.params, args):
        if p.is_tensor or p.role == "Scalar":
            if hasattr(a, "spec"):
                found.append(a)
            elif isinstance(a, (list, tuple)):
                found.extend(x for x in a if hasattr(x, "spec"))
            elif (
                type(a) in (float, int)
                and p.role in ("Operand", "Scalar")
                and not (p.role == "Scalar" and a == p.default and type(a) is type(p.default))
            ):
                found.append(a)
    return found


def execute(info: Info, args: tuple) -> Any:
    """Run an op on tensors now, and tape it."""
    op = info.op
    if info.view is not None:
        shape, strides, offset = info.view
        out = hooks.wrap_view(args[0], info.specs[0], offset * info.specs[0].dtype.itemsize, op, args)
        hooks.record(info, args, (out,))
        return out
    inputs = inputs_of(op, args)
    watched = validate.watch(op, args) if settings.validate and recording.current() is None else None
    outs = run_plan(info.plan or info.make_plan(), inputs)
    if watched is not None:
        watched.check(outs, info.graph())
    hooks.record(info, args, outs)
    return outs[0] if info.single else outs


def run_plan(plan: Plan, inputs: list) -> tuple:
    """Tensors that a plan gives for tensors and numbers."""
    if MODES:
        watcher = watching.current()
        if watcher is not None and not watching.is_inside():
            kernels = tuple(step.name for step in plan.steps if type(step) is Launch)
            event = watching.Event("graph", "graph", None, tuple(inputs), kernels=kernels)
            return watching.tell(watcher, event, lambda: run_plan(plan, inputs))
        if recording.current() is not None:
            return run_recorded(plan, inputs)
    outs = (plan.make or maker_of(plan))(*inputs)
    return outs if type(outs) is tuple else (outs,)


def maker_of(plan: Plan) -> Callable:
    """`make(*operands)`: the plan's one result as a tensor, or its results as a tuple. Native where that can be. None counts as absent."""
    if plan.make is None:
        plan.make = plan.native_maker() or general_maker(plan)
    return plan.make


def general_maker(plan: Plan) -> Callable:
    """The maker of any plan, in Python."""
    one = len(plan.outputs) == 1

    def make(*operands: Any) -> Any:
        address = hooks.address
        operands = tuple([x for x in operands if x is not None])
        memory = plan.run([address(x) if hasattr(x, "spec") else x for x in operands], operands)
        outs: list = []
        made: dict[int, Any] = {}
        for position, spec, offset, is_input in plan.outputs:
            if is_input:
                outs.append(hooks.wrap_view(operands[position], spec, offset, None, None))
                continue
            base = made.get(position)
            if base is None:
                base = made[position] = hooks.wrap(plan.temps[position - plan.inputs], memory[position])
            outs.append(base if spec is base.spec and not offset else hooks.wrap_view(base, spec, offset, None, None))
        return outs[0] if one else tuple(outs)

    return make


def run_recorded(plan: Plan, inputs: list) -> tuple:
    """As `run_plan` while this thread records launches: nothing is computed, and results have memory of the recording."""
    recorder, address = recording.current(), hooks.address
    memory = recorder.run(plan, [address(x) if hasattr(x, "spec") else x for x in inputs], inputs)
    outs: list = []
    made: dict[int, Any] = {}
    for position, spec, offset, is_input in plan.outputs:
        if is_input:
            outs.append(hooks.wrap_view(inputs[position], spec, offset, None, None))
            continue
        base = made.get(position)
        if base is None:
            fresh = plan.temps[position - plan.inputs]
            base = made[position] = recorder.adopt(hooks.wrap(fresh, memory[position]), fresh)
        outs.append(base if spec is base.spec and not offset else hooks.wrap_view(base, spec, offset, None, None))
    return tuple(outs)


def trace_op(recorder: tracing.Recorder, op: Op, args: tuple) -> Any:
    """Record an op into a trace; the tape sees it too."""
    args = numbers.placed(recorder, op, args)
    values = recorder.add(op, freeze_attributes(op, args))
    outs = tuple(hooks.wrap_traced(recorder, v) for v in values)
    if op.kind == VIEW:
        outs[0]._view = (args[0], op, args)
    if any(t.needs_grad for t in op.tensors(args)):
        hooks.record(Info(op, normalise(op, args)) if recorder.symbolic else info_for(op, args), args, outs)
    return outs[0] if op.outputs == 1 else outs


def freeze_attributes(op: Op, args: tuple) -> tuple:
    return tuple(
        a if p.is_tensor and not isinstance(a, list) else tuple(a) if p.is_tensor else freeze(a)
        for p, a in zip(op.params, args)
    )


def set_num_threads(number: int) -> None:
    """Threads that kernels are divided over. Plans are made anew."""
    launch.set_num_threads(number)
    forget_plans()


__all__ = [
    "Info",
    "execute",
    "forget_plans",
    "hooks",
    "info_for",
    "maker_of",
    "process",
    "run_plan",
    "set_num_threads",
]
