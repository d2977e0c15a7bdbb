"""The tape: what each op needs for its backward, and the histories of views written in place.

`record(info, args, outs)` hangs a node on the outputs of an op that was just run. The op's vjp is traced once per (specs, which inputs
need a gradient) into a graph; dead nodes are dropped, so the node saves only what that graph reads. Backward runs the graph as one fused
plan, or node by node through `bind` when its own history is wanted.

May not know: the tensor class beyond its slots. Entry: `record`, `Node`.
"""

from __future__ import annotations

import itertools
import types
from typing import Any, NoReturn

from flambeau.base.settings import settings
from flambeau.core.dtype import float64
from flambeau.core.spec import NumberSpec, Spec
from flambeau.engine import eager, watching
from flambeau.engine.plan import Plan, make_plan
from flambeau.ir import tracing
from flambeau.ir.bind import MODES, stack
from flambeau.ir.graph import Graph, Value, map_values
from flambeau.ir.kinds import DERIVED
from flambeau.ir.op import REGISTRY, Op, Refused
from flambeau.runtime import objects
from flambeau.tape.grad_mode import mode

_sequence = itertools.count()
_anomaly: list = []  # not empty: ops are taped the long way; the last one's text, if any, says where an op was called (anomaly mode)
nan_check: list = [True]  # whether anomaly mode looks for NaN in gradients
saved_hooks: list = []  # (pack, unpack) pairs for what nodes save; whoever adds one adds to `_anomaly` too


def next_sequence() -> int:
    """The place of a new node in the order of recording."""
    return next(_sequence)


class Analysis:
    """The backward of an op at its specs, for one choice of inputs that need gradients."""

    __slots__ = (
        "info",
        "mask",
        "graph",
        "used",
        "results",
        "plan",
        "quick",
        "targets",
        "grad_specs",
        "saved_inputs",
        "saved_outputs",
        "grads_used",
        "differentiable",
    )

    def __init__(self, info: eager.Info, mask: tuple[bool, ...], grad_specs: tuple[Spec, ...]):
        self.info, self.mask, self.grad_specs = info, mask, grad_specs
        self.plan: Plan | None = None
        self.quick: Any = (
            None  # quick(node, g): the gradients by one native call, or None where something is out of the ordinary
        )
        self.graph, self.results = self._trace()
        needed = {v for n in self.graph.nodes for v in n.inputs} | set(self.graph.outputs)
        self.used = tuple(v in needed for v in self.graph.inputs)  # inputs, outputs, gradients
        n, m = len(mask), len(info.specs)
        self.saved_inputs = tuple(i for i in range(n) if self.used[i])
        self.saved_outputs = tuple(i for i in range(m) if self.used[n + i])
        self.grads_used = self.used[n + m : n + 2 * m]
        self.targets = tuple(
            i for i, r in enumerate(self.results) if r >= 0
        )  # input that output i of the graph is the gradient of
        self.differentiable = tuple(
            i for i, s in enumerate(info.specs) if s.dtype.kind in "fc" and i not in info.op.rules.no_gradient
        )

    def make_plan(self) -> Plan:
        """The graph over what it reads, as a plan."""
        self.plan = make_plan(pruned(self), self.info.specs[0].device)
        if self.plan.results() is not None and len(self.info.specs) == 1 and not settings.validate:
            self.quick = make_quick(self, eager.maker_of(self.plan), len(self.plan.outputs))
        return self.plan

    def _trace(self) -> tuple[Graph, tuple[int, ...]]:
        """The graph over [inputs, outputs, gradients of outputs]; `results[i]` is the output that holds input i's gradient, or -1."""
        info, op = self.info, self.info.op
        specs = flat_specs(info.args)
        n, m = len(specs), len(info.specs)

        def run(*stand_ins):
            inputs, outs, grads = stand_ins[:n], stand_ins[n : n + m], stand_ins[n + m :]
            it = iter(inputs)
            args = eager.map_specs(lambda s: next(it), op, info.args)
            single = op.outputs == 1
            found = backward_rule(op, grads[0] if single else grads, outs[0] if single else outs, args, self.mask)
            return tuple(g if wanted else None for g, wanted in zip(flat_gradients(op, info.args, found), self.mask))

        # numbers given at run time are not tensors: the rule sees stand-ins for them too, of number specs
        hooks = saved_hooks[:]  # they are for what the user's ops save, not for what a rule tapes to find a gradient
        saved_hooks.clear()
        try:
            graph, structure = tracing.trace(run, [*specs, *info.specs, *self.grad_specs])
        finally:
            saved_hooks[:] = hooks
        order, results = [], []
        for g in structure:
            if g is None:
                results.append(-1)
            else:
                results.append(len(order))
                order.append(g)
        graph.outputs = order
        return graph.remove_dead(), tuple(results)


def flat_specs(args: tuple) -> list:
    """Specs of bound arguments in the order of the graph's inputs."""
    found = []
    for a in args:
        if isinstance(a, (Spec, NumberSpec)):
            found.append(a)
        elif type(a) is tuple:
            found.extend(x for x in a if isinstance(x, (Spec, NumberSpec)))
    return found


def flat_gradients(op: Op, args: tuple, found: Any) -> list:
    """A rule's gradients, one per entry of `flat_specs`. Rules return one per tensor parameter (a tuple for lists)."""
    if not isinstance(found, (tuple, list)):
        found = (found,)
    flat, it = [], iter(found)
    for p, a in zip(op.params, args):
        if p.is_tensor:
            g = next(it, None)
            if isinstance(a, tuple):
                g = g if g is not None else (None,) * len(a)
                flat.extend(x for x, s in zip(g, a) if isinstance(s, (Spec, NumberSpec)))
            elif isinstance(a, (Spec, NumberSpec)):
                flat.append(g)
        elif isinstance(a, (Spec, NumberSpec)):
            flat.append(None)  # a run-time number
    return flat


def backward_rule(op: Op, g: Any, out: Any, args: tuple, mask: tuple[bool, ...]) -> Any:
    """Gradients by the declared rule, or by taping the body of a composite."""
    rule = op.rules.vjp
    if isinstance(rule, Refused):
        raise NotImplementedError(
            f"{op.name}: no gradient: {rule.reason}. Call .detach() on its inputs if none is wanted."
        )
    if rule != DERIVED:
        return rule(g, out, *args)
    return derived_backward(op, g, args, mask)


def derived_backward(op: Op, g: Any, args: tuple, mask: tuple[bool, ...]) -> tuple:
    """The body run again with a tape, then backward over it; inside a trace, so only what is needed remains."""
    saved = mode.enabled
    mode.enabled = True
    try:
        leaves, flags = [], iter(mask)

        def leaf(x):
            wanted = next(flags)
            x = x if isinstance(x.spec, NumberSpec) else x.detach()
            if wanted:
                x.needs_grad = True
            leaves.append((x, wanted))
            return x

        inner = _map_leaves(leaf, op, args)
        out = (op.rules.differentiated or op.rules.body)(*inner)
        outs = out if isinstance(out, (tuple, list)) else (out,)
        grads = g if isinstance(g, (tuple, list)) else (g,)
        pairs = [(o, x) for o, x in zip(outs, grads) if o.node is not None or o.needs_grad]
        wanted = [x for x, w in leaves if w]
        followed = saved and any(
            hasattr(x, "spec") and x.needs_grad for x in grads
        )  # somebody differentiates through the cotangents
        mode.enabled = saved
        found = iter(run_backward([o for o, _ in pairs], [x for _, x in pairs], wanted, create_graph=followed))
        flat = iter([next(found) if w else None for _, w in leaves])
    finally:
        mode.enabled = saved
    result = []
    for p, a in zip(op.params, args):
        if isinstance(a, tuple) and p.is_tensor:
            result.append(tuple(next(flat) if hasattr(x, "spec") else None for x in a))
        elif hasattr(a, "spec"):
            g = next(flat)
            if p.is_tensor:
                result.append(g)
        elif p.is_tensor:
            result.append(None)
    return tuple(result)


def _map_leaves(function, op: Op, args: tuple) -> tuple:
    return tuple(
        function(a)
        if hasattr(a, "spec")
        else tuple(function(x) if hasattr(x, "spec") else x for x in a)
        if type(a) is tuple and p.is_tensor
        else a
        for p, a in zip(op.params, args)
    )


run_backward: Any = None  # set by autograd.backward, which needs nodes


class Extras:
    """What few nodes have: hooks, tensors whose gradient is retained, where the op was called (anomaly mode)."""

    __slots__ = ("hooks", "pre_hooks", "tensor_hooks", "retained", "where")

    def __init__(self) -> None:
        self.hooks: dict = {}  # after the node's backward
        self.pre_hooks: dict = {}  # before it
        self.tensor_hooks: dict[int, dict] = {}  # of the tensor that is output i
        self.retained: dict[int, Any] = {}  # output i -> weak reference to the tensor that keeps .grad
        self.where: str | None = None


class Node:
    """One taped op. `edges[i]` leads to where input i came from: (node, output index), (None, leaf tensor) or None.

    `saved` holds, in order, the inputs and outputs that the backward graph reads: tensors, numbers, and for outputs (spec, address,
    storage) so that a node does not keep itself alive.
    """

    __slots__ = ("analysis", "edges", "saved", "versions", "sequence", "extras", "__weakref__")

    def more(self) -> Extras:
        """The extras, made if there are none."""
        if self.extras is None:
            self.extras = Extras()
        return self.extras

    @property
    def where(self) -> str | None:
        return self.extras.where if self.extras is not None else None

    @property
    def info(self) -> eager.Info:
        return self.analysis.info

    @property
    def out_specs(self) -> tuple[Spec, ...]:
        return self.analysis.info.specs

    def name(self) -> str:
        """As PyTorch spells it: MulBackward0."""
        words = self.info.op.name.strip("_").split("_")
        return "".join(w[:1].upper() + w[1:] for w in words) + "Backward0"

    def __repr__(self) -> str:
        return f"<{self.name()}>"

    @property
    def next_functions(self) -> tuple:
        """(node, output index) per input that has a history."""
        return tuple((None, 0) if e is None else (AccumulateGrad(e[1]), 0) if e[0] is None else e for e in self.edges)

    def register_hook(self, hook) -> Any:
        """hook(grad_inputs, grad_outputs) after this node's backward; may return other grad_inputs."""
        return RemovableHandle(self.more().hooks, hook)

    def register_prehook(self, hook) -> Any:
        """hook(grad_outputs) before this node's backward; may return other grad_outputs."""
        return RemovableHandle(self.more().pre_hooks, hook)

    # ------------------------------------------------------------------ running
    def backward(self, grads: list, create_graph: bool) -> Any:
        """Gradients of the inputs, in the order of `edges`, from gradients of the outputs (None: zero)."""
        saved = self.saved
        if saved is None:
            self.complain_of_freed()
        analysis = self.analysis
        if any([g is None for g in grads]):
            grads = [g if g is not None else zeros(s) for g, s in zip(grads, self.out_specs)]
        for v, version in zip(saved, self.versions):
            if version is not None and (v[2] if type(v) is tuple else v.storage).version != version:
                self.complain_of_version(v, version)
        specs = tuple([g.spec for g in grads])
        if specs != analysis.grad_specs:
            specs = tuple([s.plain() for s in specs])
            if specs != analysis.grad_specs:
                analysis = analysis_of(analysis.info, analysis.mask, specs)
        if create_graph or MODES or settings.validate or any([g.spec.is_slow for g in grads]):
            if (
                create_graph
                or settings.validate
                or tracing.current() is not None
                or stack.items
                or any([g.spec.is_slow for g in grads])
                or self._is_slow()
            ):
                outs = interpret(analysis.graph, self._values(analysis, grads, create_graph))
                return [None if r < 0 else outs[r] for r in analysis.results]
        plan = analysis.plan
        if plan is None:
            plan = analysis.make_plan()
        sources = [_as_tensor(v) for v in (*saved, *(g for g, used in zip(grads, analysis.grads_used) if used))]
        watcher = watching.current() if MODES else None
        if watcher is None:
            outs = eager.run_plan(plan, sources)
        else:
            event = watching.Event("backward", self.name(), None, tuple(sources), analysis.graph, self.where)
            outs = watching.tell(watcher, event, lambda: eager.run_plan(plan, sources))
        return [None if r < 0 else outs[r] for r in analysis.results]

    def _is_slow(self) -> bool:
        return any(hasattr(v, "spec") and v.spec.is_slow for v in self.saved)

    def _values(self, analysis: Analysis, grads: list, create_graph: bool) -> list:
        """Values for all inputs of the backward graph; what it does not read is None."""
        values: list = []
        it = iter(self.saved)
        first = len(analysis.mask)
        for i, used in enumerate(analysis.used[: first + len(self.out_specs)]):
            v = next(it) if used else None
            if type(v) is Packed and i < first:
                v = with_edge(_as_tensor(v), self.edges[i])
            if v is not None and i >= first:
                v = _as_tensor(v).detach()
                if create_graph:
                    v.node, v.needs_grad = (self, i - first), True
            values.append(v)
        return [*values, *grads]

    def saved_tensors(self) -> tuple:
        """What this node keeps, as tensors."""
        return tuple(_as_tensor(v) for v in self.saved or ())

    def complain_of_freed(self) -> NoReturn:
        raise RuntimeError(
            f"backward: {self.name()} was gone through before and its saved tensors are freed. Trying to backward through the graph a "
            f"second time: pass retain_graph=True to the first backward."
        )

    def complain_of_version(self, v: Any, version: int) -> NoReturn:
        spec, storage = (v[0], v[2]) if type(v) is tuple else (v.spec, v.storage)
        raise RuntimeError(
            f"backward: a tensor of shape {list(spec.shape)} that {self.name()} saved has been modified by an inplace operation: it is at version "
            f"{storage.version}, version {version} was saved. Write to a clone, or move the in-place op after backward."
            + (f"\nThe op was called at:\n{self.where}" if self.where else "")
        )

    def release(self) -> None:
        """Let go of saved tensors."""
        self.saved = None


class Packed:
    """A saved tensor that went through the `pack` hook."""

    __slots__ = ("value", "unpack")

    def __init__(self, x: Any):
        pack, self.unpack = saved_hooks[-1]
        self.value = pack(x)


def with_edge(x: Any, edge: tuple | None) -> Any:
    """A tensor that was unpacked, with the history it had when it was saved."""
    if edge is None:
        return x
    if edge[0] is None:
        return edge[1]
    x = x.detach()
    x.node, x.needs_grad = edge, True
    return x


def _as_tensor(v: Any) -> Any:
    return from_memory(*v) if type(v) is tuple else v.unpack(v.value) if type(v) is Packed else v


class AccumulateGrad:
    """The end of the tape at a leaf."""

    def __init__(self, variable: Any):
        self.variable = variable

    def name(self) -> str:
        return "AccumulateGrad"

    next_functions = ()


class RemovableHandle:
    """What registering a hook returns; `remove()` takes it off. Also a context manager."""

    _ids = itertools.count()

    def __init__(self, table: dict, hook: Any):
        self.id = next(self._ids)
        self._table = table
        table[self.id] = hook

    def remove(self) -> None:
        self._table.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def pruned(analysis: Analysis) -> Graph:
    """The graph over the inputs it reads only."""
    graph = Graph()
    env: dict[Value, Value] = {}
    for v, used in zip(analysis.graph.inputs, analysis.used):
        if used:
            env[v] = graph.input(v.spec)
            env[v].constant = v.constant
    for node in analysis.graph.nodes:
        for old, new in zip(node.outputs, graph.add(node.op, map_values(lambda v: env[v], node.args))):
            env[old] = new
    graph.outputs = [env[v] for v in analysis.graph.outputs]
    return graph


def interpret(graph: Graph, values: list) -> list:
    """Run a graph op by op through the current interpreters."""
    env: dict[Value, Any] = dict(zip(graph.inputs, values))
    for v in graph.inputs[len(values) :]:
        env[v] = v.constant
    for node in graph.nodes:
        positional, keywords = call_arguments(node, env)
        out = node.op(*positional, **keywords)
        for v, x in zip(node.outputs, out if isinstance(out, (tuple, list)) else (out,)):
            env[v] = x
    return [env[v] for v in graph.outputs]


def call_arguments(node, env: dict) -> tuple[list, dict]:
    """A node's arguments as a Python call takes them."""
    args = tuple(
        REGISTRY["full"]((), a, dtype=float64)
        if p.role == "Tensor" and isinstance(a, (int, float))
        else a  # a number given at run time
        for p, a in zip(node.op.params, map_values(lambda v: env[v], node.args))
    )
    positional = [a for p, a in zip(node.op.params, args) if not p.keyword_only]
    return positional, {p.name: a for p, a in zip(node.op.params, args) if p.keyword_only}


zeros: Any = None  # set by the tensor layer


def analysis_of(info: eager.Info, mask: tuple[bool, ...], grad_specs: tuple[Spec, ...]) -> Analysis:
    key = (mask, grad_specs)
    found = info.analyses.get(key)
    if found is None:
        found = info.analyses[key] = Analysis(info, mask, grad_specs)
    return found


# ------------------------------------------------------------------ recording
def edge_of(t: Any) -> tuple | None:
    """Where a tensor's gradient goes."""
    node = t.node
    if t._view is not None:
        node = history_of_view(t)
    if node is not None:
        return node
    return (None, t) if t.needs_grad else None


def record(info: eager.Info, args: tuple, outs: tuple) -> None:
    """Tape an op that gave `outs`, if grad mode is on and an input needs it."""
    if not mode.enabled:
        if mode.inference:
            for o in outs:
                o.__dict__["_inference"] = True
        return
    positions = info.positions
    if positions is None:  # lists of tensors: the general way
        inputs = eager.inputs_of(info.op, args)
    else:
        inputs = [args[i] for i in positions]
    bits, bit = 0, 1
    for x in inputs:
        if hasattr(x, "spec") and x.needs_grad:
            bits |= bit
        bit += bit
    if not bits:
        return
    analysis = info.by_bits.get(bits, False)
    if analysis is False:
        analysis = _first_analysis(info, bits, inputs)
    if analysis is None:
        return
    if type(analysis) is not Analysis:  # a taper: the eager case
        if any([hasattr(x, "ptr") and x.ptr is None for x in inputs]) or any([o.ptr is None for o in outs]) or _anomaly:
            _tape_any(objects.analysis_of(analysis), inputs, outs)
        else:
            analysis(*inputs, *outs)
        return
    _tape_any(analysis, inputs, outs)


def reads_output(info: eager.Info, inputs: list) -> bool:
    """Whether the backward of an op reads one of its results, for the inputs that need a gradient here."""
    analysis = _analysis_for(info, inputs)
    return analysis is not None and bool(analysis.saved_outputs)


def reads_input(info: eager.Info, inputs: list, at: int) -> bool:
    """Whether the backward of an op reads the value of input `at`, for the inputs that need a gradient here."""
    analysis = _analysis_for(info, inputs)
    return analysis is not None and at in analysis.saved_inputs


def _analysis_for(info: eager.Info, inputs: list) -> Analysis | None:
    """The analysis for the inputs that need a gradient here; None if nothing is differentiable."""
    bits = sum(1 << i for i, x in enumerate(inputs) if hasattr(x, "spec") and x.needs_grad)
    analysis = info.by_bits.get(bits, False)
    if analysis is False:
        analysis = _first_analysis(info, bits, inputs)
    return analysis if analysis is None or type(analysis) is Analysis else objects.analysis_of(analysis)


def _tape_any(analysis: Analysis, inputs: list, outs: tuple) -> None:
    """A node for any inputs and outputs, traced ones included."""
    node = Node()
    node.analysis, node.extras = analysis, None
    node.edges = tuple([edge_of(x) if wanted else None for x, wanted in zip(inputs, analysis.mask)])
    node.sequence = next(_sequence)  # behind the edges: to find that of a view may make a node
    saved, versions = [], []
    traced = MODES and (trace := tracing.current()) is not None and trace.repeats
    for i in analysis.saved_inputs:
        x = inputs[i]
        if not hasattr(x, "spec"):
            versions.append(None)
        elif x.ptr is None or traced:
            x = saved_alias(x)
            versions.append(None)
        else:
            versions.append(x.storage.version)
        saved.append(x)
    for i in analysis.saved_outputs:
        x = outs[i]
        if x.ptr is None:
            saved.append(saved_alias(x, history=False))
            versions.append(None)
        else:
            saved.append((x.spec, x.ptr, x.storage))
            versions.append(x.storage.version)
    node.saved, node.versions = tuple(saved), tuple(versions)
    if saved_hooks:
        node.saved = tuple(
            v if not hasattr(v, "spec") and type(v) is not tuple else Packed(_as_tensor(v)) for v in saved
        )
        node.versions = (None,) * len(saved)
    if _anomaly:
        node.more().where = _anomaly[-1]()
    for i in analysis.differentiable:
        o = outs[i]
        o.needs_grad = True
        o.node = (node, i)


def make_taper(analysis: Analysis, outputs: int) -> Any:
    """`taper(*inputs, *outs)`: the node of an eager op, with everything that is known beforehand written out."""
    # Not by the inputs: a trace may be the first to come here, and has stand-ins for numbers.
    numbers = tuple(isinstance(s, NumberSpec) for s in flat_specs(analysis.info.args))
    saved = [(i, numbers[i]) for i in analysis.saved_inputs]
    return objects.taper(analysis, analysis.mask, outputs, saved, analysis.saved_outputs, analysis.differentiable)


def make_quick(analysis: Analysis, make: Any, results: int) -> Any:
    """`quick(node, g)`: gradients of a one-output op by one native call; None where the versions, the gradient's layout … are not as planned."""
    kinds = []
    shapes = flat_specs(analysis.info.args)
    for i in analysis.saved_inputs:
        kinds.append("number" if isinstance(shapes[i], NumberSpec) else "input")
    kinds += ["output"] * len(analysis.saved_outputs)
    key = (tuple(kinds), analysis.grads_used, results == 1)
    code = _quick_codes.get(key)
    if code is None:
        code = _quick_codes[key] = _quick_code(*key)
    return types.FunctionType(code, {}, "quick", (analysis.grad_specs[0], make))


_quick_codes: dict[tuple, types.CodeType] = {}


def _quick_code(kinds, grads_used, single) -> types.CodeType:
    operands = [("saved[%d][1]" if kind == "output" else "saved[%d]") % i for i, kind in enumerate(kinds)]
    versions = [
        {"number": "None", "input": "saved[%d].storage.version", "output": "saved[%d][2].version"}[kind].replace(
            "%d", str(i)
        )
        for i, kind in enumerate(kinds)
    ]
    if grads_used[0]:
        operands.append("g")
    lines = ["def quick(node, g, wanted, make):", "    saved = node.saved"]
    test = "saved is None or g.spec is not wanted"
    if versions:
        test += f" or ({', '.join(versions)}{',' if len(versions) == 1 else ''}) != node.versions"
    lines += [f"    if {test}:", "        return None"]
    call = f"make({', '.join(operands)})"
    lines.append(f"    return ({call},)" if single else f"    return {call}")
    scope: dict[str, Any] = {}
    exec(compile("\n".join(lines), "<flambeau tape>", "exec"), scope)
    return scope["quick"].__code__


def _first_analysis(info: eager.Info, bits: int, inputs: list) -> Any:
    """The taper for a choice of inputs, kept; None if nothing is differentiable."""
    op = info.op
    mask = tuple(bool(bits >> i & 1) and x.spec.dtype.kind in "fc" for i, x in enumerate(inputs))
    kinds = tuple(i for i, s in enumerate(info.specs) if s.dtype.kind in "fc" and i not in op.rules.no_gradient)
    refused = isinstance(op.rules.vjp, Refused)
    analysis = None
    if any(mask) and kinds and not (refused and op.rules.vjp.silent):
        analysis = analysis_of(info, mask, tuple(Spec.of(s.shape, s.dtype, s.device) for s in info.specs))
    if analysis is not None:
        analysis = make_taper(analysis, len(info.specs))
    info.by_bits[bits] = analysis
    return analysis


objects.register(Node=Node, edge_of=edge_of, sequence=_sequence)


saved_alias: Any = None  # set by the tensor layer: a traced tensor at its present value
from_memory: Any = None  # set by the tensor layer: a tensor from (spec, address, storage)


history_of_view: Any = None  # set by `views`
