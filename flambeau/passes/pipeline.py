"""The passes that a captured graph goes through before it is split and scheduled, in their order.

    graph, bound = optimise(traced, evaluate, show)

`bound` are constants that were computed: inputs of the graph behind those it had. The traced graph stays as it is. Results are as many pieces of
memory as before: what a pass leaves equal is copied again where somebody might write to one of two results.

May not know: how a graph is run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.ir.graph import Graph, Node, Value
from flambeau.ir.op import REGISTRY, VIEW
from flambeau.passes.decompose import decompose
from flambeau.passes.fold import fold_constants
from flambeau.passes.merge import merge_equal
from flambeau.passes.simplify import is_plain, simplify


def optimise(
    traced: Graph,
    evaluate: Callable[[Graph], list[Any]] | None = None,
    show: Callable[[Graph, str], None] | None = None,
) -> tuple[Graph, list[Any]]:
    """See the module. Of symbolic sizes equal nodes are merged and nothing else is done. Without `evaluate` nothing is folded."""
    show = show or _unseen
    graph = decompose(traced)
    graph = traced.copied() if graph is traced else graph
    show(graph, "decomposed")
    memory = _memory_of(graph)
    bound: list[Any] = []
    if is_plain(graph):
        show(simplify(graph), "simplified")
        if evaluate is not None:
            bound = fold_constants(graph, evaluate)
            show(graph, "folded")
    merge_equal(graph)
    _separate(graph, memory)
    graph.remove_dead()
    show(graph, "merged")
    return graph, bound


def _unseen(graph: Graph, stage: str) -> None:
    pass


def _base(v: Value) -> Value:
    while v.node is not None and v.node.op.kind == VIEW:
        v = v.node.inputs[0]
    return v


def _memory_of(graph: Graph) -> list[Value]:
    """Whose memory each output is."""
    return [_base(v) for v in graph.outputs]


def _separate(graph: Graph, before: list[Value]) -> None:
    """Copy the memory of outputs that share it with an input or an earlier output, and did not before."""
    owner: dict[Value, Value] = {}  # memory now -> memory before, of the first output that has it
    copies: dict[tuple[Value, Value], Value] = {}
    for i, (v, old) in enumerate(zip(graph.outputs, before)):
        now = _base(v)
        first = now if now.node is None else owner.setdefault(now, old)
        if first is old:
            continue
        copy = copies.get((now, old))
        if copy is None:
            (copy,) = graph.add(REGISTRY["clone"], (now, None))
            copies[now, old] = copy
        views: list[Node] = []
        while v is not now:
            views.append(v.node)
            v = v.node.inputs[0]
        for node in reversed(views):
            (copy,) = graph.add(node.op, (copy, *node.args[1:]), node.source)
        graph.outputs[i] = copy
