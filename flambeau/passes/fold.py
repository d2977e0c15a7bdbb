"""What depends on nothing is computed once, when the graph is compiled, and becomes a constant of it.

    bound = fold_constants(graph, evaluate)      # in place: values that were computed are inputs now, in the order of `bound`

`evaluate` runs a graph without inputs and gives its results. Factories alone stay as they are (a kernel fills in what they give as it goes), and
so do random numbers and results that take more memory than they are worth.

May not know: how a graph is run, what a tensor is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.device import CPU
from flambeau.ir.graph import Graph, Node, Value, map_values
from flambeau.ir.op import POINTWISE, VIEW

SMALL = 1 << 16  # bytes that may be kept of what elementwise work gives: they stay in the second cache
LARGE = 1 << 22  # of what takes longer than reading it: transcendental functions, reductions, sorting


def fold_constants(graph: Graph, evaluate: Callable[[Graph], list[Any]]) -> list[Any]:
    """See the module."""
    levels = _constant(graph)
    if not levels:
        return []
    late = {v for n in graph.nodes if n.outputs[0] not in levels for v in n.inputs}
    late.update(graph.results())
    wanted = [v for n in graph.nodes for v in n.outputs if v in late and v in levels and _pays(v, levels[v])]
    if not wanted:
        return []
    bound = evaluate(_part(graph, wanted))
    instead: dict[Value, Value] = {}
    for v, tensor in zip(wanted, bound):
        instead[v] = graph.input(v.spec)
        instead[v].constant = tensor
    for node in graph.nodes:
        node.args = map_values(lambda v: instead.get(v, v), node.args)
    graph.outputs = [instead.get(v, v) for v in graph.outputs]
    graph.writes = [(t, instead.get(v, v)) for t, v in graph.writes]
    graph.remove_dead()
    return bound


def _constant(graph: Graph) -> dict[Value, int]:
    """Values that depend on nothing: 0 for what a factory gives and views of that, 1 for work on them, 2 for dear work."""
    found: dict[Value, int] = {}
    for node in graph.nodes:
        rules = node.op.rules
        inputs = node.inputs
        if rules.random or any(v not in found for v in inputs) or any(v.spec.device is not CPU for v in node.outputs):
            continue
        level = max((found[v] for v in inputs), default=0)
        if node.op.kind == POINTWISE:
            level = max(level, 2 if rules.expensive and inputs else 1 if inputs else 0)
        elif node.op.kind != VIEW:
            level = 2
        for v in node.outputs:
            found[v] = level
    return found


def _pays(v: Value, level: int) -> bool:
    return level > 0 and v.spec.contiguous and 0 < v.spec.nbytes <= (LARGE if level == 2 else SMALL)


def _part(graph: Graph, wanted: list[Value]) -> Graph:
    """The graph of what is wanted alone."""
    needed = {v.node for v in wanted}
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if node in needed:
            nodes.append(node)
            needed.update(v.node for v in node.inputs)
    part = Graph()
    env: dict[Value, Value] = {}
    for node in reversed(nodes):
        args = map_values(lambda v: env[v], node.args)
        env.update(zip(node.outputs, part.add(node.op, args, node.source, tuple(v.spec for v in node.outputs))))
    part.outputs = [env[v] for v in wanted]
    return part
