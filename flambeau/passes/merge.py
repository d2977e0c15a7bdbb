"""Equal nodes become one (common subexpressions), in place of computing the same twice.

    merge_equal(graph)      # the same graph, its later duplicates gone

Two nodes are equal if op, attributes (types count) and inputs are. Random ops draw by seed and offset, so equal ones give equal numbers.
May not know: kinds of ops.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.spec import NumberSpec, Spec
from flambeau.core.symbolic import SymInt
from flambeau.ir.graph import Graph, Value, map_values


def merge_equal(graph: Graph) -> Graph:
    """Drop nodes that compute what an earlier one does, in place; returns the graph."""
    known: dict[tuple, Any] = {}
    instead: dict[Value, Value] = {}
    kept = []
    for node in graph.nodes:
        if instead:
            node.args = map_values(lambda v: instead.get(v, v), node.args)
        key = (node.op, _key(node.args), *(_layout(v) for v in node.outputs))
        try:
            found = known.setdefault(key, node)
        except TypeError:  # an attribute that does not hash
            found = node
        if found is node:
            kept.append(node)
        else:
            instead.update(zip(node.outputs, found.outputs))
    if instead:
        graph.nodes = kept
        graph.outputs = [instead.get(v, v) for v in graph.outputs]
        graph.writes = [(t, instead.get(v, v)) for t, v in graph.writes]
    return graph


def _key(x: Any) -> Any:
    if type(x) is tuple:
        return tuple(_key(y) for y in x)
    if isinstance(x, (Value, str)):
        return x
    if type(x) is SymInt:
        return (SymInt, x.expression)
    if isinstance(x, float):
        return (float, x.hex())  # 0.0 and -0.0 differ, NaN is itself
    return (type(x), x)


def _layout(v: Value) -> Any:
    spec = v.spec
    return (
        spec.type
        if isinstance(spec, NumberSpec)
        else (_key(tuple(spec.shape)), _key(spec.strides))
        if isinstance(spec, Spec)
        else spec
    )
