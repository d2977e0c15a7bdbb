"""The tape: what each op needs for its backward, and the histories of views written in place.

`record(info, args, outs)` hangs a node on the outputs of an op that was just run. The op's vjp is traced once per (specs, which inputs
need a gradient) into a graph; dead nodes are dropped, so the node saves only what that graph reads. Backward runs the graph as one fused
plan, or node by node through `bind` when its own history is wanted.

May not know: the tensor class beyond its slots. Entry: `record`, `Node`.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from flambeau.tape.grad_mode import mode
from flambeau.core.spec import NumberSpec, Spec
from flambeau.engine import eager
from flambeau.engine.plan import Plan, make_plan
from flambeau.ir import tracing
from flambeau.ir.graph import Graph, Value, map_values
from flambeau.ir.kinds import DERIVED
from flambeau.ir.op import Op, Refused

_sequence = itertools.count()
_anomaly: list = []  # set by anomaly mode


class Analysis:
    """The backward of an op at its specs, for one choice of inputs that need gradients."""

    __slots__ = ("info", "mask", "graph", "used", "results", "plans", "grad_specs")

    def __init__(self, info: eager.Info, mask: tuple[bool, ...], grad_specs: tuple[Spec, ...]):
        self.info, self.mask, self.grad_specs = info, mask, grad_specs
        self.plans: dict[Any, Plan] = {}
        self.graph, self.results = self._trace()
        needed = {v for n in self.graph.nodes for v in n.inputs} | set(self.graph.outputs)
        self.used = tuple(v in needed for v in self.graph.inputs)  # saved values, then gradients

    def _trace(self) -> tuple[Graph, tuple[int, ...]]:
        """The graph over [inputs, outputs, gradients of outputs]; `results[i]` is the output that holds input i's gradient, or -1."""
        info, op = self.info, self.info.op
        specs = flat_specs(info.args)
        n, m = len(specs), len(info.specs)

        def run(*stand_ins):
            inputs, outs, grads = stand_ins[:n], stand_ins[n:n + m], stand_ins[n + m:]
            it = iter(inputs)
            args = eager.map_specs(lambda s: next(it), op, info.args)
            single = op.outputs == 1
            found = backward_rule(op, grads[0] if single else grads, outs[0] if single else outs, args, self.mask)
            return tuple(g if wanted else None for g, wanted in zip(flat_gradients(op, info.args, found), self.mask))

        # numbers given at run time are not tensors: the rule sees stand-ins for them too, of number specs
        graph, structure = tracing.trace(run, [*specs, *info.specs, *self.grad_specs])
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
        raise NotImplementedError(f"{op.name}: no gradient: {rule.reason}. Call .detach() on its inputs if none is wanted.")
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
        out = op.rules.body(*inner)
        outs = out if isinstance(out, (tuple, list)) else (out,)
        grads = g if isinstance(g, (tuple, list)) else (g,)
        pairs = [(o, x) for o, x in zip(outs, grads) if o.node is not None or o.needs_grad]
        wanted = [x for x, w in leaves if w]
        mode.enabled = saved
        found = iter(run_backward([o for o, _ in pairs], [x for _, x in pairs], wanted, create_graph=False))
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
        function(a) if hasattr(a, "spec") else
        tuple(function(x) if hasattr(x, "spec") else x for x in a) if type(a) is tuple and p.is_tensor else a
        for p, a in zip(op.params, args)
    )


run_backward: Any = None  # set by autograd.backward, which needs nodes


class Node:
    """One taped op. `edges[i]` leads to where input i came from: (node, output index), (None, leaf tensor) or None."""

    __slots__ = ("info", "edges", "saved", "versions", "mask", "out_specs", "sequence", "hooks", "pre_hooks", "where", "analysis", "retained",
                 "metadata", "__weakref__")

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
        return _add_hook(self, "hooks", hook)

    def register_prehook(self, hook) -> Any:
        """hook(grad_outputs) before this node's backward; may return other grad_outputs."""
        return _add_hook(self, "pre_hooks", hook)

    # ------------------------------------------------------------------ running
    def backward(self, grads: list, create_graph: bool) -> list:
        """Gradients of the inputs from gradients of the outputs (None: zero)."""
        if self.saved is None:
            raise RuntimeError(f"backward: {self.name()} was gone through before and its saved tensors are freed. Trying to backward through the "
                               f"graph a second time: pass retain_graph=True to the first backward.")
        grads = [g if g is not None else zeros(s) for g, s in zip(grads, self.out_specs)]
        self._check_versions()
        specs = tuple(g.spec.plain() for g in grads)
        analysis = self.analysis
        if specs != analysis.grad_specs:
            analysis = analysis_of(self.info, self.mask, specs)
        values = [*self.saved, *grads]
        if create_graph or tracing.current() is not None or any(v is not None and hasattr(v, "spec") and v.spec.is_slow for v in values):
            outs = interpret(analysis.graph, self._with_history(values) if create_graph else values)
        else:
            kept = [v for v, used in zip(values, analysis.used) if used]
            plan = analysis.plans.get("plan")
            if plan is None:
                plan = analysis.plans["plan"] = make_plan(pruned(analysis), self.out_specs[0].device)
            outs = eager.run_plan(plan, kept)
        return [None if r < 0 else outs[r] for r in analysis.results]

    def _with_history(self, values: list) -> list:
        """Saved outputs with this node as their history again (kept without it, to avoid a cycle)."""
        first = len(self.mask)
        values = list(values)
        for at in range(len(self.out_specs)):
            x = values[first + at]
            if x is not None:
                values[first + at] = x = x.detach()
                x.node, x.needs_grad = (self, at), True
        return values

    def _check_versions(self) -> None:
        for v, version in zip(self.saved, self.versions):
            if version is not None and v.storage is not None and v.storage.version != version:
                raise RuntimeError(
                    f"backward: a tensor of shape {list(v.spec.shape)} that {self.name()} saved has been modified by an in-place operation: it is at "
                    f"version {v.storage.version}, version {version} was saved. Write to a clone, or move the in-place op after backward."
                    + (f"\nThe op was called at:\n{self.where}" if self.where else ""))

    def release(self) -> None:
        """Let go of saved tensors."""
        self.saved = None


class AccumulateGrad:
    """The end of the tape at a leaf."""

    def __init__(self, variable: Any):
        self.variable = variable

    def name(self) -> str:
        return "AccumulateGrad"

    next_functions = ()


def _add_hook(owner: Any, slot: str, hook: Any) -> RemovableHandle:
    table = getattr(owner, slot, None)
    if table is None:
        table = {}
        setattr(owner, slot, table)
    return RemovableHandle(table, hook)


class RemovableHandle:
    """What registering a hook returns; `remove()` takes it off. Also a context manager."""

    _ids = itertools.count()

    def __init__(self, table: dict, hook: Any):
        self.id = next(self._ids)
        self._table = weakref.ref(table) if not isinstance(table, dict) else table
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
    for v in graph.inputs[len(values):]:
        env[v] = v.constant
    for node in graph.nodes:
        out = node.op(*call_arguments(node, env)[0], **call_arguments(node, env)[1])
        for v, x in zip(node.outputs, out if isinstance(out, (tuple, list)) else (out,)):
            env[v] = x
    return [env[v] for v in graph.outputs]


def call_arguments(node, env: dict) -> tuple[list, dict]:
    """A node's arguments as a Python call takes them."""
    args = map_values(lambda v: env[v], node.args)
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
                o._inference = True
        return
    op = info.op
    inputs = eager.inputs_of(op, args)
    wanted = False
    mask = []
    for x in inputs:
        need = hasattr(x, "spec") and x.needs_grad and x.spec.dtype.kind in "fc"
        mask.append(need)
        wanted |= need
    if not wanted:
        return
    kinds = [s.dtype.kind in "fc" for s in info.specs]
    if not any(kinds) or isinstance(op.rules.vjp, Refused) and op.rules.vjp.reason.startswith("its result is"):
        return
    node = new_node(info, tuple(mask), inputs, outs)
    for i, (o, inexact) in enumerate(zip(outs, kinds)):
        if inexact and i not in op.rules.no_gradient:
            o.needs_grad = True
            o.node = (node, i)


def new_node(info: eager.Info, mask: tuple[bool, ...], inputs: list, outs: tuple) -> Node:
    """A node with its edges and what its backward reads."""
    analysis = info.analyses.get(mask)
    if analysis is None:
        grad_specs = tuple(Spec.of(s.shape, s.dtype, s.device) for s in info.specs)
        analysis = info.analyses[mask] = analysis_of(info, mask, grad_specs)
    node = Node()
    node.info, node.mask, node.analysis = info, mask, analysis
    node.edges = [edge_of(x) if m else None for x, m in zip(inputs, mask)]
    saved, versions = [], []
    n = len(inputs)
    for i, used in enumerate(analysis.used[: n + len(outs)]):
        x = inputs[i] if i < n else outs[i - n]
        if not used:
            saved.append(None)
            versions.append(None)
            continue
        if not hasattr(x, "spec"):
            saved.append(x)
            versions.append(None)
            continue
        if i >= n or x._view is not None or x.node is not None:
            x = saved_alias(x, node if i >= n else None, i - n)
        saved.append(x)
        versions.append(x.storage.version if x.storage is not None else None)
    node.saved, node.versions = saved, versions
    node.out_specs = info.specs
    node.sequence = next(_sequence)
    node.hooks = node.pre_hooks = node.retained = node.metadata = None
    node.where = _anomaly[-1]() if _anomaly else None
    return node


saved_alias: Any = None  # set by the tensor layer: the same memory and history, no reference to the tensor object
history_of_view: Any = None  # set by `views`
