"""Functions of positions: what a user's function of single indices (and a score) does, as data.

    program = Program(graph, count=4)                 # inputs: b, h, q, kv, then what was captured
    program.apply((b, h, q, kv), captured)            # index tensors that broadcast together -> values for all their combinations

A program is `scalar` if everything in it is one number for one position: then it applies to indices of any shape, and has no sizes. Others were
traced for all positions of given sizes at once. Programs compare and hash by what they do, not by what they captured: they are attributes of ops,
and parts of keys of plans.

May not know: where the function came from (`nn.attention.mods` traces), attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.ir.graph import Graph, Node, Value, map_values, specs_of
from flambeau.ir.kinds import pointwise_types
from flambeau.ir.op import INDEXING, POINTWISE, REGISTRY


class Program:
    """See the module. `count`: inputs that vary with the position, the score (if any) and the indices; the others are captured."""

    __slots__ = ("_hash", "_key", "count", "graph", "scalar")

    def __init__(self, graph: Graph, count: int, scalar: bool = True):
        self.graph, self.count, self.scalar = graph.remove_dead(), count, scalar
        self._key = (count, scalar, _structure(graph, count, scalar))
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is Program and self._hash == other._hash and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<program of {len(self.graph.nodes)} ops, {self._hash & 0xFFFFFFFF:08x}>"

    @property
    def result(self) -> Value:
        return self.graph.outputs[0]

    def apply(self, given: Sequence[Any], captured: Sequence[Any], once: Callable[[Any], Any] | None = None) -> Any:
        """The result for every position. `given` broadcast together; the result may lack dims of size 1 in front.

        A program that is not scalar wants [B, H, L, S] of a score and the indices as [B, 1, 1, 1], [1, H, 1, 1] and so on.
        once: what to do with a value of one query or key index that is used together with others (give it memory, say).
        """
        kept = self._along_one() if once is not None and self.scalar else ()
        if not self.scalar:
            given = [x if x.spec.ndim == v.spec.ndim else flat(x) for x, v in zip(given, self.graph.inputs)]
        env = dict(zip(self.graph.inputs, (*given, *captured)))
        for node in self.graph.nodes:
            args = map_values(lambda v: env[v], node.args)
            out = called(node, converted(node, args) if self.scalar else args)
            for v, x in zip(node.outputs, out if isinstance(out, (tuple, list)) else (out,)):
                env[v] = once(x) if v in kept else x
        return env[self.result]

    def _along_one(self) -> set[Value]:
        """Pointwise values that vary with the query's index only, or the key's, and meet others in some node."""
        varying: dict[Value, frozenset[int]] = {
            v: frozenset((i,)) if i < self.count else frozenset() for i, v in enumerate(self.graph.inputs)
        }
        one = tuple(frozenset((i,)) for i in (self.count - 2, self.count - 1))
        found: set[Value] = set()
        for node in self.graph.nodes:
            own = frozenset().union(*(varying[v] for v in node.inputs))
            varying.update((v, own) for v in node.outputs)
            if own not in one:
                found |= {
                    v for v in node.inputs if v.node is not None and varying[v] in one and v.node.op.kind == POINTWISE
                }
        return found

    def reference(self, given: Sequence[Any], captured: Sequence[Any]) -> Any:
        """The same in NumPy, by the references of the ops."""
        env = dict(zip(self.graph.inputs, (*given, *captured)))
        for node in self.graph.nodes:
            args = map_values(lambda v: env[v], node.args)
            positional, keywords = _split(node, args)
            env[node.outputs[0]] = node.op.rules.reference(*positional, **keywords)
        return env[self.result]


def flat(x: Any) -> Any:
    return REGISTRY["reshape"](x, (-1,))


def called(node: Node, args: tuple) -> Any:
    """What a node gives for arguments in signature order."""
    positional, keywords = _split(node, args)
    return node.op(*positional, **keywords)


def _split(node: Node, args: tuple) -> tuple[list, dict]:
    params = node.op.params
    positional = [a for p, a in zip(params, args) if not p.keyword_only]
    return positional, {p.name: a for p, a in zip(params, args) if p.keyword_only}


def is_scalar(graph: Graph) -> bool:
    """Whether every value is one number for one position."""
    return all(
        all(not v.spec.ndim for v in node.outputs)
        and (
            (node.op.kind == POINTWISE and not node.op.rules.positional)
            or (
                node.op.kind == INDEXING
                and node.inputs[0].node is None
                and all(not v.spec.ndim for v in node.inputs[1:])
            )
        )
        for node in graph.nodes
    )


def converted(node: Node, args: tuple) -> tuple:
    """Arguments of a pointwise op in the types it computes in: one number yields to a tensor in promotion, the tensors here need not."""
    if node.op.kind != POINTWISE:
        return args
    found = list(args)
    specs = specs_of(node.op, node.args)
    types = iter(pointwise_types(node.op, specs)[0])
    for i, p in enumerate(node.op.params):
        if not ((p.is_tensor or p.role == "Scalar") and hasattr(specs[i], "dtype")):
            continue
        wanted, x = next(types), found[i]
        if hasattr(x, "spec") and x.spec.dtype is not wanted:
            found[i] = REGISTRY["to_dtype"](x, wanted)
    return tuple(found)


def _structure(graph: Graph, count: int, scalar: bool) -> tuple:
    """What a graph does, without the identity of its values and, if it is scalar, without the sizes of what it captured."""
    number = {v: i for i, v in enumerate(graph.inputs)}
    inputs = tuple((v.spec.dtype, v.spec.ndim) if scalar else (v.spec.dtype, tuple(v.spec.shape)) for v in graph.inputs)
    nodes = []
    for node in graph.nodes:
        nodes.append((node.op.name, map_structure(node.args, number)))
        for v in node.outputs:
            number[v] = len(number)
    return inputs, tuple(nodes), number[graph.outputs[0]]


def map_structure(a: Any, number: dict[Value, int]) -> Any:
    if isinstance(a, Value):
        return ("value", number[a])
    if isinstance(a, (tuple, list)):
        return tuple(map_structure(x, number) for x in a)
    return (type(a), repr(a) if isinstance(a, (float, complex)) else a)


__all__ = ["Program", "is_scalar"]
