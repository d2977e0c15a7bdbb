"""Composites replaced by their bodies until only primitives are left."""

from __future__ import annotations

from typing import Any

from flambeau.ir.graph import Graph, Node, Value, map_values
from flambeau.ir.kinds import traced_body
from flambeau.ir.op import COMPOSITE, REGISTRY, speak_as


def decompose(graph: Graph) -> Graph:
    """A graph of primitives that computes the same; the input graph is left as it is."""
    if all(n.op.kind != COMPOSITE for n in graph.nodes):
        return graph.remove_dead()
    result = Graph()
    env: dict[Value, Value] = {}
    for v in graph.inputs:
        env[v] = result.input(v.spec)
        env[v].constant = v.constant
    for node in graph.remove_dead().nodes:
        _inline(node, env, result)
    result.outputs = [env[v] for v in graph.outputs]
    result.writes = [(env[t], env[v]) for t, v in graph.writes]
    return result.remove_dead()


def _inline(node: Node, env: dict[Value, Any], result: Graph, source: str = "") -> None:
    args = map_values(lambda v: env[v], node.args)
    source = source or node.source
    if node.op.kind != COMPOSITE:
        for old, new in zip(
            node.outputs, result.add(node.op, args, source, tuple(v.spec.plain() for v in node.outputs))
        ):
            env[old] = new
        return
    body, outs = body_graph(node.op, args)
    inner: dict[Value, Value] = dict(zip(body.inputs, _values(args)))
    for n in body.nodes:
        _inline(n, inner, result, source or node.op.spoken or "")
    flat = outs if isinstance(outs, tuple) else (outs,)
    for old, new in zip(node.outputs, flat):
        env[old] = _in_declared_layout(inner[new], old, result)


def _in_declared_layout(value: Value, declared: Value, result: Graph) -> Value:
    """The body's result laid out as the composite's meta says (a pointwise copy, which fuses)."""
    wanted, found = declared.spec.plain(), value.spec.plain()
    if found.strides == wanted.strides or not wanted.contiguous or found.contiguous:
        return value
    return result.add(REGISTRY["contiguous_copy"], (value,))[0]


def _values(args: tuple) -> list[Value]:
    found: list[Value] = []
    map_values(found.append, args)
    return found


def body_graph(op, args: tuple) -> tuple[Graph, Any]:
    """The body of a composite, traced one level deep, for arguments that hold Values."""
    try:
        return traced_body(op, map_values(lambda v: v.spec.plain(), args))
    except Exception as error:
        if op.spoken is not None:
            speak_as(op.spoken, error, op.names())
        raise
