"""The gradient of a score's program: programs for the gradient by the score, and by everything the score's function captured.

    gradient, reads = differentiated(program)

A program is one number for one position, so its gradient is too: the rules of its ops, backwards. Reads of captured tensors end there: what
arrives at one is added up over positions by whoever runs the program. May not know: attention. Entry: `differentiated`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from flambeau.base.errors import message
from flambeau.core.spec import Spec
from flambeau.ir import tracing
from flambeau.ir.graph import Graph, Node, Value, map_values
from flambeau.ir.kinds import NOT_DIFFERENTIABLE
from flambeau.ir.op import INDEXING, REGISTRY, Refused
from flambeau.ir.positional import Program, called, converted
from flambeau.operators.attention_rules import Read
from flambeau.passes.decompose import decompose
from flambeau.tape.grad_mode import no_grad


@functools.lru_cache(maxsize=512)
def differentiated(program: Program) -> tuple[Program, tuple[Read, ...]]:
    """(the gradient by the score, those by captured tensors). Raises: NotImplementedError where an op has no gradient."""
    inputs = program.graph.inputs
    score, others = inputs[0].spec, [v.spec for v in inputs[1:]]
    reads: list[tuple[int, tuple, Any]] = []
    with no_grad():
        graph, structure = tracing.trace(lambda *given: _backwards(program, given, reads), [score, score, *others])
    outputs = list(graph.outputs)
    count = program.count + 1
    gradient = _only(graph, outputs[0], count)
    found, at = [], 1
    for captured, indices, _ in reads:
        places = tuple(_only(graph, v, count, without=1) for v in outputs[at : at + len(indices)])
        found.append(Read(captured, places, _only(graph, outputs[at + len(indices)], count)))
        at += len(indices) + 1
    return gradient, tuple(found)


def _only(graph: Graph, output: Value, count: int, without: int | None = None) -> Program:
    """One output of a graph as a program, without the input of that number, which it does not read."""
    one = Graph()
    one.inputs, one.nodes, one.outputs = list(graph.inputs), list(graph.nodes), [output]
    if without is not None:
        del one.inputs[without]
        count -= 1
    return Program(decompose(one), count)


def _backwards(program: Program, given: Sequence[Any], reads: list) -> tuple:
    """The gradient by the score, then for each read its indices and its gradient. `given`: score, gradient, positions, captured tensors."""
    score, g, *rest = given
    graph = program.graph
    env: dict[Value, Any] = dict(zip(graph.inputs, (score, *rest)))
    arguments: dict[Node, tuple] = {}
    for node in graph.nodes:
        args = arguments[node] = converted(node, map_values(lambda v: env[v], node.args))
        env[node.outputs[0]] = called(node, args)
    result = graph.outputs[0]
    known: dict[Value, Any] = {}
    if result.spec.dtype.is_floating_point:
        known[result] = _as(g, result.spec)
    number = {v: i for i, v in enumerate(graph.inputs[program.count :])}
    outs: list = []

    def note(captured: Value, indices: tuple, gradient: Any) -> None:
        reads.append((number[captured], indices, gradient))
        outs.extend((*(env[i] for i in indices), _as(gradient, score.spec)))

    for node in reversed(graph.nodes):
        gradient = known.pop(node.outputs[0], None)
        if gradient is None:
            continue
        if node.op.kind == INDEXING:
            if node.inputs[0].spec.dtype.is_floating_point:
                note(node.inputs[0], tuple(node.inputs[1:]), gradient)
            continue
        for v, x in zip(node.inputs, _gradients(node, gradient, env[node.outputs[0]], arguments[node])):
            if x is not None and v.spec.dtype.is_floating_point:
                x = _as(x, v.spec)
                known[v] = REGISTRY["add"](known[v], x) if v in known else x
    first = known.pop(graph.inputs[0], None)
    if first is None:
        first = REGISTRY["full"]((), 0, dtype=score.spec.dtype, device=score.spec.device)
    for v, gradient in known.items():
        if v in number:
            note(v, (), gradient)
    return (_as(first, score.spec), *outs)


def _as(x: Any, spec: Spec) -> Any:
    return x if x.spec.dtype is spec.dtype else REGISTRY["to_dtype"](x, spec.dtype)


def _gradients(node: Node, g: Any, out: Any, args: tuple) -> list:
    """By the op's rule, one for each of the node's inputs."""
    rule = node.op.rules.vjp
    if rule is NOT_DIFFERENTIABLE:
        return []
    if isinstance(rule, Refused):
        raise NotImplementedError(message("score_mod", f"{node.op.called} must have a gradient", rule.reason))
    found = rule(g, out, *args)
    found = found if isinstance(found, (tuple, list)) else (found,)
    tensors = [a for p, a in zip(node.op.params, node.args) if p.is_tensor]
    return [x for a, x in zip(tensors, found) if isinstance(a, Value)]
