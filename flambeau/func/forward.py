"""Forward-mode derivatives: tensors with a tangent, and the jvp of any op.

An op's jvp is derived from its vjp: that is linear in the cotangent, and the transpose of the linear map is the jvp. The transposed graph
is traced once per specs. A declaration may say otherwise: `jvp = LINEAR`, or a function `jvp(tangents, out, *args)`, where `tangents` has
one entry per tensor parameter (None where there is none), that returns the tangent of each output.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.core.spec import NumberSpec, Spec
from flambeau.engine import eager
from flambeau.func.levels import Level
from flambeau.ir import bind, tracing
from flambeau.ir.kinds import LINEAR
from flambeau.ir.op import REGISTRY, Op
from flambeau.tape import record as tape
from flambeau.tape.backward import run_backward
from flambeau.tape.grad_mode import mode

_graphs: dict[tuple, Any] = {}


class ForwardLevel(Level):
    """A jvp in progress; `extra` of its tensors is the tangent."""

    def process(self, op: Op, args: tuple) -> Any:
        pairs = [self.unwrap(t) for t in op.tensors(args)]
        primal_args = op.map_tensors(lambda x: self.unwrap(x)[0], args)
        out = bind.bind_below(op, primal_args)
        if all(d is None for _, d in pairs):
            return out
        outs = out if isinstance(out, tuple) else (out,)
        if not any(o.spec.dtype.is_inexact for o in outs):
            return out
        tangents = self._tangents(op, primal_args, outs, [d for _, d in pairs])
        wrapped = tuple(o if d is None else self.wrap(o, d) for o, d in zip(outs, tangents))
        return wrapped if isinstance(out, tuple) else wrapped[0]

    def _tangents(self, op: Op, args: tuple, outs: tuple, tangents: list) -> list:
        rule = op.rules.jvp
        if rule == LINEAR and len(tangents) == 1:
            return [bind.bind(op, op.map_tensors(lambda x: x if isinstance(x.spec, NumberSpec) else tangents[0], args))]
        if callable(rule):
            found = rule(tuple(tangents), outs[0] if op.outputs == 1 else outs, *args)
            return list(found) if isinstance(found, tuple) else [found]
        info = eager.info_for(op, args)
        mask = tuple(d is not None for d in tangents)
        inputs = eager.inputs_of(op, args)
        # numbers given at run time count among the inputs; tensors() left them out
        full_mask, it = [], iter(mask)
        for x in inputs:
            full_mask.append(next(it) if hasattr(x, "spec") else False)
        key = (info, tuple(full_mask))
        graph = _graphs.get(key)
        if graph is None:
            graph = _graphs[key] = transposed(info, tuple(full_mask))
        given = [d for d in tangents if d is not None]
        found = tape.interpret(graph[0], [*inputs, *outs, *given])
        return [None if at < 0 else found[at] for at in graph[1]]


def transposed(info: eager.Info, mask: tuple[bool, ...]) -> tuple:
    """(graph over inputs, outputs and tangents of the masked inputs, position of each output's tangent or -1)."""
    op = info.op
    op.refuse("vjp")
    specs = tape.flat_specs(info.args)
    n, m = len(specs), len(info.specs)
    places: list[int] = []

    def run(*stand_ins: Any) -> tuple:
        inputs, outs, tangents = stand_ins[:n], stand_ins[n : n + m], stand_ins[n + m :]
        it = iter(inputs)
        args = eager.map_specs(lambda s: next(it), op, info.args)
        saved = mode.enabled
        mode.enabled = True
        try:
            cotangents = []
            for s in info.specs:
                u = REGISTRY["full"](tuple(s.shape), 0, dtype=s.dtype, device=s.device)
                if s.dtype.is_inexact:
                    u.needs_grad = True
                cotangents.append(u)
            single = op.outputs == 1
            found = tape.backward_rule(
                op, cotangents[0] if single else tuple(cotangents), outs[0] if single else tuple(outs), args, mask
            )
            grads = [g for g, wanted in zip(tape.flat_gradients(op, info.args, found), mask) if wanted]
            pairs = [(g, t) for g, t in zip(grads, tangents) if g is not None and (g.node is not None or g.needs_grad)]
            results = run_backward(
                [g for g, _ in pairs], [t for _, t in pairs], [u for u in cotangents if u.needs_grad], create_graph=True
            )
        finally:
            mode.enabled = saved
        it = iter(results)
        tangent_of = [next(it) if u.needs_grad else None for u in cotangents]
        kept = []
        for t in tangent_of:
            places.append(-1 if t is None else len(kept))
            if t is not None:
                kept.append(t)
        return tuple(kept)

    tangent_specs = [
        Spec.of(s.shape, s.dtype, s.device)
        for s, wanted in zip(specs, mask)
        if wanted and not isinstance(s, NumberSpec)
    ]
    graph, _ = tracing.trace(run, [*specs, *info.specs, *tangent_specs])
    return graph.remove_dead(), tuple(places)


class GradLevel(Level):
    """A reverse-mode derivative in progress: this level's tensors carry their own tape; saved values are those below."""

    def process(self, op: Op, args: tuple) -> Any:
        mine = [t for t in op.tensors(args) if self.is_mine(t)]
        out = bind.bind_below(op, op.map_tensors(lambda x: self.unwrap(x)[0], args))
        if not mine:
            return out
        outs = out if isinstance(out, tuple) else (out,)
        wrapped = tuple(self.wrap(o, None) for o in outs)
        if any(t.needs_grad for t in mine):
            self._record(op, args, wrapped)
        return wrapped if isinstance(out, tuple) else wrapped[0]

    def _record(self, op: Op, args: tuple, outs: tuple) -> None:
        def shown(x: Tensor) -> Tensor:  # tensors of lower levels are constants here
            return x if self.is_mine(x) else x.detach()

        saved = mode.enabled
        mode.enabled = True
        try:
            tape.record(eager.info_for(op, args), op.map_tensors(shown, args), outs)
        finally:
            mode.enabled = saved
        node = next((o.node[0] for o in outs if o.node is not None), None)
        if node is not None:
            node.saved = tuple(self.unwrap(v)[0] if isinstance(v, Tensor) else v for v in node.saved)
            node.versions = (None,) * len(node.saved)
