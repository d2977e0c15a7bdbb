"""Nodes that compute what is there already go: products with one, copies of what lies right, views that lead back, conversions there and back.

    simplify(graph)      # the same graph with fewer nodes, in place

A rule holds bit for bit, for NaN, infinities and -0.0 too: x * 1 is x, x + 0.0 is not. What holds for many ops follows from what they
declare (`neutral`, `involution`, `idempotent`, `copies`, `of_one`), what is one op's own from its rule `simplify`, and for views from where
their elements lie. A value is only replaced by one of the same layout.

May not know: ops by name. Sizes must be plain numbers.
"""

from __future__ import annotations

import math
from typing import Any

from flambeau.core.layout import canonical_dims
from flambeau.core.spec import Spec
from flambeau.ir.graph import Graph, Node, Value, infer, map_values
from flambeau.ir.kinds import apply_view, uniform
from flambeau.ir.op import POINTWISE, REDUCTION, REGISTRY, VIEW

MOST_VIEWS = 16  # looked through for one that a view leads back to
MOST_STEPS = 8  # rules applied to one node


def simplify(graph: Graph) -> Graph:
    """See the module."""
    instead: dict[Value, Value] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        if instead:
            node.args = map_values(lambda v: instead.get(v, v), node.args)
        found = _simplest(node) if len(node.outputs) == 1 else node
        if isinstance(found, Node):
            kept.append(found)
            found = found.outputs[0]
        if len(node.outputs) == 1 and found is not node.outputs[0]:
            instead[node.outputs[0]] = found
    if instead:
        graph.nodes = kept
        graph.outputs = [instead.get(v, v) for v in graph.outputs]
        graph.writes = [(t, instead.get(v, v)) for t, v in graph.writes]
    return graph


def _simplest(node: Node) -> Node | Value:
    """The node, another, or a value that is there, once no rule applies."""
    wanted = node.outputs[0].spec
    for _ in range(MOST_STEPS):
        found = _simpler(node)
        if found is None:
            break
        if isinstance(found, tuple):
            found = Node(found[0], found[1], infer(*found), node.source)
            if found.outputs[0].spec is not wanted:
                break
            node = found
        elif isinstance(found, Value) and found.spec is wanted:
            return found
        else:
            break
    return node


def _simpler(node: Node) -> Any:
    """What one rule makes of a node: a value, (op, args), or None."""
    out, rules = node.outputs[0], node.op.rules
    found = None
    if rules.kind == POINTWISE:
        found = _pointwise(node, out)
    elif rules.kind == VIEW:
        found = _origin(out)
    elif rules.kind == REDUCTION:
        found = _reduction(node, out)
    if found is None and rules.simplify is not None:
        found = rules.simplify(out, *node.args)
    return found


# ------------------------------------------------------------------ elementwise
def _pointwise(node: Node, out: Value) -> Value | None:
    rules = node.op.rules
    if rules.copies is not None:
        source = node.args[rules.copies]
        if isinstance(source, Value) and source.spec is out.spec:
            return source
    if rules.involution or rules.idempotent:
        (source,) = node.inputs
        before = source.node
        if before is not None and before.op is node.op and before.attributes() == node.attributes():
            if rules.involution and before.inputs[0].spec is out.spec:
                return before.inputs[0]
            if rules.idempotent and source.spec is out.spec:
                return source
    if rules.neutral is not None and not out.spec.dtype.is_complex:
        return _other_operand(node, out)
    return None


def _other_operand(node: Node, out: Value) -> Value | None:
    """The operand that is the result since the other one changes nothing."""
    op = node.op
    numbers = op.rules.neutral(out.spec.dtype)
    operands = {p.name: a for p, a in zip(op.params, node.args) if p.is_tensor}
    if any(a != p.default for p, a in zip(op.params, node.args) if not p.is_tensor):
        return None
    for name, number in numbers.items():
        given = operands[name]
        (other,) = (a for n, a in operands.items() if n != name)
        if not isinstance(other, Value) or other.spec is not out.spec:
            continue
        found = uniform(given) if isinstance(given, Value) else given
        if found is not None and found == number and _sign(found) == _sign(number):
            return other
    return None


def _sign(number: bool | int | float) -> float:
    return math.copysign(1.0, number)


# ------------------------------------------------------------------ the others
def _origin(out: Value) -> Value | None:
    """What a chain of views of it shows as it is: the same elements in the same layout."""
    v, offset, retyped = out, 0, False
    for _ in range(MOST_VIEWS):
        if v.node is None or v.node.op.kind != VIEW:
            return None
        source = v.node.inputs[0]
        offset += apply_view(v.node.op.rules, source.spec, v.node.args[1:])[1]
        retyped = retyped or source.spec.dtype is not v.spec.dtype
        if retyped and offset:
            return None
        if source.spec is out.spec and not offset:
            return source
        v = source
    return None


def _reduction(node: Node, out: Value) -> Any:
    """Of single elements: they are the result."""
    source, rules = node.inputs[0], node.op.rules
    if rules.of_one is None or source.spec.dtype is not out.spec.dtype or not rules.of_one(source.spec.dtype):
        return None
    dims = canonical_dims(node.op.name, node.args[1], source.spec.ndim)
    if any(source.spec.shape[d] != 1 for d in dims) or not source.spec.numel:
        return None
    return source if source.spec is out.spec else (REGISTRY["view"], (source, tuple(out.spec.shape)))


def is_plain(graph: Graph) -> bool:
    """Whether all sizes of a graph's inputs are plain numbers."""
    return all(
        type(n) is int for v in graph.inputs if isinstance(v.spec, Spec) for n in (*v.spec.shape, *v.spec.strides)
    )
