"""A joint graph of results and gradients becomes two: forward, which also gives what backward needs, and backward.

    parts = split_joint(graph, results=1, tangents=[dy])
    parts.forward     # outputs: the results, then what is saved
    parts.backward    # inputs: what `reads` says; outputs: the gradients

What depends on a tangent is backward's. Of what crosses, values that are cheap to make again from others that cross anyway (pointwise ops,
views) are made again in backward instead of being kept: the memory between the two passes is what counts. May not know: how either is run.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

from flambeau.core.symbolic import plain
from flambeau.ir.graph import Graph, Node, Value, map_values
from flambeau.ir.op import POINTWISE, REGISTRY, VIEW


class Parts(NamedTuple):
    """`reads`: for each input of the backward graph a value of the joint graph (an input of it, a tangent) or the number of a saved output."""

    forward: Graph
    backward: Graph
    forward_reads: list[Value]
    reads: list[Any]


def split_joint(graph: Graph, results: int, tangents: list[Value]) -> Parts:
    """See the module. `graph` holds primitives only; its outputs are `results` results, then gradients."""
    late = _dependents(graph, tangents)
    gradients = graph.outputs[results:]
    backward_nodes = _needed(graph, gradients, late)
    crossing: dict[Value, None] = {}
    for node in backward_nodes:
        crossing.update((v, None) for v in node.inputs if v.node is not None and v.node not in late)
    crossing.update((v, None) for v in gradients if v.node is not None and v.node not in late)
    kept_anyway = set(graph.outputs[:results])
    position = {node: i for i, node in enumerate(graph.nodes)}
    kept, again = _choose(list(crossing), kept_anyway, position)
    written = {t for t, _ in graph.writes}

    forward = Graph()
    early = _needed(graph, [*graph.outputs[:results], *(v for _, v in graph.writes), *kept], late, inside=False)
    forward_env, forward_reads = _inputs(forward, graph, early, [*graph.outputs[:results], *kept], written, tangents)
    _copy(early, forward_env, forward)
    forward.outputs = [forward_env[v] for v in graph.outputs[:results]]
    forward.writes = [(forward_env[t], forward_env[v]) for t, v in graph.writes]

    nodes = [n for n in graph.nodes if n in again or n in backward_nodes]
    backward = Graph()
    env: dict[Value, Value] = {}
    reads: list[Any] = []
    used = {v for n in nodes for v in n.inputs} | set(gradients)
    for v in graph.inputs:
        if v in used:
            env[v] = backward.input(v.spec)
            if v in written:  # the value before the write
                (copy,) = forward.add(REGISTRY["clone"], REGISTRY["clone"].arguments(forward_env[v]))
                reads.append(len(forward.outputs) - results)
                forward.outputs.append(copy)
            else:
                env[v].constant = v.constant
                reads.append(v)
    for v in kept:
        if v in used:
            env[v] = backward.input(v.spec)
            reads.append(len(forward.outputs) - results)
            forward.outputs.append(forward_env[v])
    _copy(nodes, env, backward)
    backward.outputs = [env[v] for v in gradients]
    return Parts(forward, backward, forward_reads, reads)


def _dependents(graph: Graph, sources: list[Value]) -> set[Node]:
    """Nodes that depend on any of the values."""
    values, found = set(sources), set()
    for node in graph.nodes:
        if any(v in values for v in node.inputs):
            found.add(node)
            values.update(node.outputs)
    return found


def _needed(graph: Graph, outputs: list[Value], late: set[Node], inside: bool = True) -> list[Node]:
    """Nodes needed for the outputs, in order: those among `late`, or those outside."""
    wanted = {v.node for v in outputs if v.node is not None}
    found = []
    for node in reversed(graph.nodes):
        if node in wanted and (node in late) is inside:
            found.append(node)
            wanted.update(v.node for v in node.inputs if v.node is not None)
    return found[::-1]


def _nbytes(v: Value) -> int:
    """A value's memory; of symbolic sizes, as they are now: what is kept may be another choice for others, and is never wrong."""
    return plain(v.spec.numel) * v.spec.dtype.itemsize


def _choose(crossing: list[Value], free: set[Value], position: dict[Node, int]) -> tuple[list[Value], set[Node]]:
    """What is kept, and nodes run again in backward, latest first: a value is made again if what that needs takes no more memory than it does."""
    kept = set(crossing)
    again: set[Node] = set()
    queue = [(-position[v.node], i, v) for i, v in enumerate(crossing)]
    heapq.heapify(queue)
    count = len(queue)
    while queue:
        _, _, v = heapq.heappop(queue)
        if v not in kept or not _cheap(v.node) or (v in free and v.node.op.kind != VIEW):
            continue
        sources = [x for x in v.node.inputs if x.node is not None]
        new = [x for x in sources if x not in kept and x.node not in again]
        if v.node.op.kind == VIEW or sum(_nbytes(x) for x in new if x not in free) <= _nbytes(v):
            kept.discard(v)
            again.add(v.node)
            for x in new:
                kept.add(x)
                heapq.heappush(queue, (-position[x.node], count, x))
                count += 1
    found = [v for v in kept if v.node not in again]
    return sorted(found, key=lambda v: (position[v.node], v.index)), again


def _cheap(node: Node) -> bool:
    return node.op.kind == VIEW or (node.op.kind == POINTWISE and len(node.outputs) == 1)


def _inputs(
    part: Graph, graph: Graph, nodes: list[Node], outputs: list[Value], written: set[Value], tangents: list[Value]
) -> tuple[dict[Value, Value], list[Value]]:
    """Inputs of the forward graph: what its nodes and outputs read, and what it writes."""
    used = {v for n in nodes for v in n.inputs} | set(outputs) | written | {v for _, v in graph.writes}
    env: dict[Value, Value] = {}
    reads: list[Value] = []
    for v in graph.inputs:
        if v in used and v not in tangents:
            env[v] = part.input(v.spec)
            env[v].constant = v.constant
            reads.append(v)
    return env, reads


def _copy(nodes: list[Node], env: dict[Value, Value], part: Graph) -> None:
    for node in nodes:
        made = part.add(
            node.op, map_values(lambda v: env[v], node.args), node.source, tuple(v.spec for v in node.outputs)
        )
        env.update(zip(node.outputs, made))
