"""One compiled specialisation: a recording, what it rests on, and its plans.

    entry = Entry(recording, guards, effects)
    if entry.fits(sizes): result = entry.run(inputs, sizes)

Where the results need gradients the recording is joint: the forward plan also gives what backward needs, and one node of the tape runs the
backward plan. May not know: how calls find their entry. Raises: RuntimeError in a second backward, or where saved memory was written to.
"""

from __future__ import annotations

import weakref
from typing import Any

from flambeau._tensor import Tensor
from flambeau.capture.recording import INPUT, OUT, Recording
from flambeau.compiler.guards import Guards
from flambeau.compiler.observe import Effect
from flambeau.core.epoch import epoch
from flambeau.core.spec import Spec
from flambeau.core.symbolic import show
from flambeau.engine import eager, instruments
from flambeau.engine.chain import Chain, Region, plan_of, plan_run
from flambeau.engine.plan import Plan, make_plan
from flambeau.ir import bind, tracing
from flambeau.ir.graph import Graph
from flambeau.passes.pipeline import optimise
from flambeau.passes.split import split_joint
from flambeau.tape import record as tape
from flambeau.tape.custom import CustomNode, attach
from flambeau.tape.grad_mode import mode

MOST_SIZES = 1024  # plans kept per entry
NO_SIZES: dict[str, int] = {}


class Entry:
    """See the module."""

    def __init__(self, recording: Recording, guards: Guards, effects: list[Effect], tuned: bool = False):
        self.recording, self.guards, self.effects, self.tuned = recording, guards, effects, tuned
        self.constants = recording.constants
        self.specs = [t.spec for t in self.constants]
        self.needs = [t.needs_grad for t in self.constants]
        self.runs = 0
        self.sizes: dict[str, int] = NO_SIZES  # of a symbolic trace: those it was made with
        self.confirmed = False  # whether a trace at other sizes gave the same graph
        self.forward_plans: dict[tuple, Plan | Chain] = {}
        self.backward_plans: dict[tuple, Plan | Chain] = {}
        _every.add(self)
        graph, self.bound = optimise(recording.graph, _evaluate, instruments.show_graph)  # inputs behind all others
        taken = {v.index for v in recording.tangents}
        slot_of: dict[int, int] = {}  # index of an input of the joint graph -> place among values given at a call
        for i in range(len(graph.inputs)):
            if i not in taken:
                slot_of[i] = len(slot_of)
        self.joint = bool(recording.differentiable)
        self.without_history = [i for i in range(recording.results) if i not in recording.differentiable]
        if self.joint:
            tangents = [graph.inputs[v.index] for v in recording.tangents]
            parts = split_joint(graph, recording.results, tangents)
            self.graph, self.backward_graph = parts.forward, parts.backward
            self.reads = [slot_of[v.index] for v in parts.forward_reads]
            number = {v: i for i, v in enumerate(tangents)}
            self.backward_reads = [
                ("saved", r)
                if isinstance(r, int)
                else ("tangent", number[r])
                if r in number
                else ("given", slot_of[r.index])
                for r in parts.reads
            ]
            self.tangent_specs = [v.spec for v in tangents]
        else:
            self.graph, self.reads = graph, None
        self.plain = self._is_plain()

    def _is_plain(self) -> bool:
        """Whether a call is nothing but the plan: one new tensor from inputs and tensors from outside."""
        r = self.recording
        return (
            not (
                self.joint
                or self.effects
                or self.graph.writes
                or r.hosts
                or r.gradients
                or r.without_gradient
                or r.given_gradients
            )
            and len(r.sources) == len(self.constants)
            and r.leaves == [(OUT, 0)]
            and r.structure.is_leaf
            and len(self.graph.outputs) == 1
        )

    # ------------------------------------------------------------------ whether it serves
    def fits(self, sizes: dict[str, int]) -> bool:
        """Whether the trace is right for these sizes and the present state."""
        guards = self.recording.guards
        if guards is not None and not guards.hold(sizes):
            return False
        return self.guards.hold() and self._constants_hold()

    def _constants_hold(self) -> bool:
        if self.constants and (
            [t.spec for t in self.constants] != self.specs or [t.needs_grad for t in self.constants] != self.needs
        ):
            return False
        for t, spec in self.recording.outside_grads:
            g = t.__dict__.get("_grad")
            if (g.spec if g is not None else None) is not spec:
                return False
        return True

    def why_not(self, sizes: dict[str, int]) -> str:
        """What does not hold, in words."""
        guards = self.recording.guards
        if guards is not None and not guards.hold(sizes):
            expression, answer = guards.broken(sizes)
            return f"{show(expression)} was {answer}, and is not for sizes {', '.join(f'{k}={n}' for k, n in sizes.items())[:200]}"
        found = self.guards.failed()
        if found is not None:
            return found
        for t, spec, needs in zip(self.constants, self.specs, self.needs):
            if t.spec is not spec:
                return f"a tensor from outside was {spec}, is {t.spec}"
            if t.needs_grad != needs:
                return f"requires_grad of a tensor from outside ({spec}) changed"
        return "whether tensors from outside have a .grad, or its layout, changed"

    # ------------------------------------------------------------------ running
    def _plan(self, table: dict[tuple, Plan | Chain], graph: Graph, sizes: dict[str, int]) -> Plan | Chain:
        key = tuple(sizes.values())
        found = table.get(key)
        if found is None:
            if len(table) >= MOST_SIZES:
                table.pop(next(iter(table)))
            if sizes:
                graph, _ = optimise(graph.concrete(sizes))
            found = table[key] = plan_of(graph, graph.device(), self.tuned)
        return found

    def run(self, inputs: list[Tensor], sizes: dict[str, int]) -> Any:
        """The function's result. The caller has checked `fits`."""
        if self.plain and not sizes and not mode.inference:
            plan = self.forward_plans.get(())
            if plan is not None:
                self.runs += 1
                return plan_run(plan, [*inputs, *self.constants, *self.bound])[0]
        recording = self.recording
        given = recording.values(inputs) + self.bound
        plan = self._plan(self.forward_plans, self.graph, sizes)
        if not self.joint:
            outs = plan_run(plan, given)
        else:
            outs = plan_run(plan, [given[i] for i in self.reads])
            outs = self._attach(given, inputs, outs, sizes)
        self.runs += 1
        if mode.inference:
            for x in outs:
                x.__dict__["_inference"] = True
        if not self.effects:
            return recording.finish(outs, inputs, sizes)
        before = epoch.value
        result, payload = recording.finish(outs, inputs, sizes)
        for effect, value in zip(self.effects, payload):
            effect.apply(value)
        if self.guards.epoch == before:
            self.guards.epoch = epoch.value  # its own writes are no reason to look again
        return result

    def _attach(self, given: list, inputs: list[Tensor], outs: tuple, sizes: dict[str, int]) -> list:
        """Give the results their history. Returns them without what was saved."""
        recording = self.recording
        results, saved = list(outs[: recording.results]), list(outs[recording.results :])
        for at in self.without_history:
            if any(results[at] is results[i] for i in recording.differentiable):
                results[at] = results[at].detach()  # the same memory, returned with its history and without
        for at, x in enumerate(saved):
            if any(x is r for r in results):
                saved[at] = x.detach()  # the node must not hold its own results
        sources = [inputs[x] if kind is INPUT else x for kind, x in recording.wanted + recording.unreached]
        for i in recording.differentiable:
            if results[i]._view is not None:
                results[i]._view = None  # memory of an input: its history is this node's
        node = CompiledNode()
        kept = [
            given[at] if kind == "given" else saved[at] if kind == "saved" else None for kind, at in self.backward_reads
        ]
        shown = [results[i] for i in recording.differentiable]
        enabled, mode.enabled = mode.enabled, True  # the function itself may have turned it on
        attached = attach(node, sources, shown, None, "CompiledFunctionBackward")
        mode.enabled = enabled
        if attached:
            node.entry, node.sizes = self, sizes
            node.inputs = [weakref.ref(x) for x in inputs]  # for derivatives of the gradient
            node.versions_given = [x.storage.version for x in inputs]
            node.others = given[len(inputs) :]
            node.saved = kept
            node.counts = [x.storage.version if isinstance(x, Tensor) else None for x in kept]
        return results

    def gradients_taped(self, given: list, grads: list, sizes: dict[str, int]) -> list:
        """The same as ops that can be differentiated in turn, or transformed: the function and its backward again, op by op, from what
        the call was given."""
        recording = self.recording
        if not recording.wanted:
            return [None] * len(recording.unreached)
        graph = (recording.graph.concrete(sizes) if sizes else recording.graph).copied()
        graph.outputs, graph.writes = graph.outputs[recording.results :], []
        graph.remove_dead()
        rest, operands = iter(given), []
        for v in graph.inputs:
            if type(v.constant) is not tracing.Tangent:
                operands.append(next(rest))
                continue
            g = grads[v.constant.number]
            operands.append(tape.zeros(v.spec) if g is None else g.to(v.spec.dtype))
        return _interpret(graph, operands)

    def gradients(self, kept: list, grads: list, sizes: dict[str, int]) -> list:
        """Gradients of what is wanted, from gradients of the differentiable results."""
        if not self.recording.wanted:
            return [None] * len(self.recording.unreached)
        tangents = []
        for g, spec in zip(grads, self.tangent_specs):
            if sizes:
                spec = Spec.of(tuple(_concrete(n, sizes) for n in spec.shape), spec.dtype, spec.device)
            if g is None:
                g = tape.zeros(spec)
            elif g.spec is not spec:
                g = g.detach().to(spec.dtype).contiguous()
            tangents.append(g)
        plan = self._plan(self.backward_plans, self.backward_graph, sizes)
        operands = [tangents[at] if kind == "tangent" else x for (kind, at), x in zip(self.backward_reads, kept)]
        return list(plan_run(plan, operands))


def _evaluate(graph: Graph) -> list[Tensor]:
    """What a graph without inputs gives, computed now, whoever records launches or watches."""
    outs = eager.maker_of(make_plan(graph))()
    return list(outs) if type(outs) is tuple else [outs]


def _interpret(graph: Graph, operands: list) -> list:
    """A graph's results op by op, through whatever interpreters are in force."""
    env = dict(zip(graph.inputs, operands))
    for node in graph.nodes:
        if type(node.op) is Region:
            outs = _interpret(node.op.body, [env[v] for v in node.args])
        else:
            positional, keywords = tape.call_arguments(node, env)
            outs = node.op(*positional, **keywords)
        env.update(zip(node.outputs, outs if isinstance(outs, (tuple, list)) else (outs,)))
    return [env[v] for v in graph.outputs]


_every: weakref.WeakSet[Entry] = weakref.WeakSet()


class _Tables:
    """The plans of all entries that are alive, as one table among those that the engine forgets."""

    def clear(self) -> None:
        for entry in list(_every):
            entry.forward_plans.clear()
            entry.backward_plans.clear()


eager.other_plans.append(_Tables())


def _concrete(n: int, sizes: dict[str, int]) -> int:
    return n.evaluate(sizes) if hasattr(n, "evaluate") else n


class CompiledNode(CustomNode):
    """The history of a compiled function's results."""

    __slots__ = ("entry", "sizes", "counts", "inputs", "versions_given", "others")

    def backward(self, grads: list, create_graph: bool) -> list:
        """See `Entry.gradients`, or `gradients_taped` where the gradients need a history or are transformed."""
        kept = self.saved
        if kept is None:
            self.complain_of_freed()
        for x, count in zip(kept, self.counts):
            if count is not None and x.storage.version != count:
                self.complain_of_version(x, count)
        if create_graph or any(g is not None and g.spec.is_slow for g in grads) or bind.stack.items:
            return self.entry.gradients_taped([*self._given(), *self.others], grads, self.sizes)
        return self.entry.gradients(kept, grads, self.sizes)

    def _given(self) -> list[Tensor]:
        """The arguments of the call. Raises: RuntimeError if one is gone or was written to."""
        given = []
        for ref, count in zip(self.inputs, self.versions_given):
            x = ref()
            if x is None:
                raise RuntimeError(
                    "compile: the gradient of a compiled function is differentiated by running the function again, and an argument of its call "
                    "is gone. Keep the arguments until backward with create_graph=True, or call the function itself there."
                )
            if x.storage is not None and x.storage.version != count:
                self.complain_of_version(x, count)
            given.append(x)
        return given
