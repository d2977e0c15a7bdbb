"""Epilogues of templates: which pointwise values a template's launch computes as it gives its result, and how they are emitted.

    raw = x @ w          a template's step
    h = gelu(raw + r)    the same step: computed over each piece of raw as it is done; raw itself need not be kept

A root may join a template's step if it is pointwise, reads the template's result element by element in the result's own order (views that keep
that order count), and all else it reads is in memory before the step. Everything here goes by kinds and by `Template.columns`; that a nest
cannot be expressed over the result's columns is found only when it is emitted, and the roots then become a kernel behind the template's.

May not know: how a template calls an epilogue (`templates.epilogue`). Entry: `columns_of`, `why_not_finish`, `carried_roots`, `EpilogueEmitter`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flambeau.core.layout import contiguous_strides
from flambeau.core.spec import NumberSpec
from flambeau.ir.graph import Node, Value, specs_of
from flambeau.ir.indexmap import IndexMap
from flambeau.ir.kinds import apply_view
from flambeau.ir.op import POINTWISE, TEMPLATE, VIEW
from flambeau.schedule.emission import GroupEmitter
from flambeau.schedule.groups import MOST_OPERANDS, Group
from flambeau.schedule.steps import Buffer
from flambeau.templates.epilogue import Epilogue
from flambeau.templates.loop_program import Ref

if TYPE_CHECKING:
    from flambeau.schedule.fusion import Scheduler

MOST_FINISHING = 64  # nodes of an epilogue: it is compiled into each kernel that has it
OWN_SLOTS = 4  # scratch of a template, an absent bias, the block


def columns_of(node: Node) -> int:
    """How many of the last dims of a template's result are columns for an epilogue; 0 where it takes none."""
    if node.op.kind != TEMPLATE or len(node.outputs) != 1 or node.op.rules.columns is None:
        return 0
    return node.op.rules.columns(node.op, *specs_of(node.op, node.args))


# ------------------------------------------------------------------ which roots
def why_not_finish(
    s: Scheduler, group: Group, at: int, node: Node, root: Value, leaves: Sequence[tuple[Value, IndexMap]]
) -> str | None:
    """None if a template's step `at` can compute root too, along with what `group` holds; else what is in the way."""
    raw = node.outputs[0]
    domain = tuple(root.spec.shape)
    columns = columns_of(node)
    if not columns:
        return "its template finishes nothing"
    if root in s.written:
        return "it is written to memory that others may read until later"
    if domain != group.domain:
        return "its domain is another"
    inside = [(v, m) for v, m in leaves if s.position.get(s.through_views(v)) == at]
    if not inside:
        return "it does not read its result"
    for v, m in inside:
        if v is raw:
            if not is_in_step(m, raw.spec.shape, domain, columns):
                return "it reads its result in another order"
        elif v not in s.position or not s.is_aligned(v, m, group):
            return "it reads elements at other places than its own"
    return None


def is_in_step(m: IndexMap, shape: Sequence[int], domain: Sequence[int], columns: int) -> bool:
    """Whether a result of `shape`, read at m over `domain`, is read in its own order, row for row."""
    if tuple(domain[-columns:]) != tuple(shape[-columns:]) or math.prod(domain) != math.prod(shape):
        return False
    if any(m.offsets):
        return False
    steps = [0] * len(domain)
    for stride, row in zip(contiguous_strides(shape), m.rows):
        for d, step in row:
            steps[d] += stride * step
    return all(n == 1 or step == wanted for n, step, wanted in zip(domain, steps, contiguous_strides(domain)))


def carried_roots(s: Scheduler, needed: Collection[Value], roots: Collection[Value]) -> list[Value]:
    """Pointwise values worth storing as they are computed in a template's step, since several kernels would else read what they are made of.

    Only where the template's own result is then read by nobody else: it stores no more than before.
    """
    latest: dict[
        Value, int
    ] = {}  # number of the last node, among those with steps of their own, that a value is made from
    carrier: dict[Value, Node] = {}  # the template that can compute it
    for number, node in enumerate(s.graph.nodes):
        out = node.outputs[0]
        if node.op.kind == VIEW:
            source = node.inputs[0]
            latest[out] = latest.get(source, -1)
            if source in carrier and keeps_order(node, columns_of(carrier[source])):
                carrier[out] = carrier[source]
        elif node.op.kind == POINTWISE:
            last = max((latest.get(x, -1) for x in node.inputs), default=-1)
            newest = [x for x in node.inputs if latest.get(x, -1) == last]
            found = {carrier.get(x) for x in newest if x.spec.shape == out.spec.shape} if last >= 0 else set()
            if len(found) == 1 and None not in found and all(x in carrier for x in newest):
                carrier[out] = found.pop()
                latest[out] = last
            else:
                latest[out] = number if out in roots else last
        else:
            latest.update(dict.fromkeys(node.outputs, number))
            if columns_of(node):
                carrier[out] = node

    def is_inside(reader: Node, template: Node) -> bool:
        return reader.op.kind == POINTWISE and carrier.get(reader.outputs[0]) is template

    found = []
    for v, template in carrier.items():
        raw = template.outputs[0]
        if v.node.op.kind != POINTWISE or v in roots or raw in needed:
            continue
        readers = s.readers_through_views(v)
        if len(readers) < 2 or all(is_inside(r, template) for r in readers):
            continue
        if all(is_inside(r, template) for r in s.readers_through_views(raw)):
            found.append(v)
    return found


def keeps_order(node: Node, columns: int) -> bool:
    """Whether a view shows all elements of a dense tensor in their order, with the same last dims."""
    source, view = node.inputs[0].spec, node.outputs[0].spec
    if source.dtype is not view.dtype or view.shape[-columns:] != source.shape[-columns:] or view.numel != source.numel:
        return False
    try:
        shown, offset = apply_view(node.op.rules, type(source).of(source.shape, source.dtype), node.args[1:])
    except RuntimeError:  # no such view of a dense tensor
        return False
    return shown.contiguous and not offset


# ------------------------------------------------------------------ emission
class Finish(NamedTuple):
    """An epilogue, what its slots hold, and where the template's own result goes."""

    epilogue: Epilogue
    operands: list
    result: Buffer


class EpilogueEmitter(GroupEmitter):
    """Turns a group into the epilogue of a template's step."""

    def __init__(self, scheduler: Scheduler, group: Group, node: Node):
        super().__init__(scheduler, group)
        self.node, self.raw = node, node.outputs[0]
        self.result: Buffer | None = None

    def finish(self) -> Finish | None:
        """The epilogue; None if its operands do not run along the result's columns."""
        used = self._used_later()
        stored = [r for r in self.group.roots if r in used]
        self.result = self._place_of_result(stored)
        for root in stored:
            m = self._root_map(root)
            self._store(root, self.value(root, m), m)
        epilogue = self.b.finish_rows(columns_of(self.node), self.result, self.s.target)
        return None if epilogue is None else Finish(epilogue, self.b.operands, self.result)

    def _place_of_result(self, stored: Sequence[Value]) -> Buffer:
        """The memory of the last root, which is stored where the result was read, if nobody else reads the result; else its own."""
        s, raw, last = self.s, self.raw, stored[-1]
        read = raw in s.wanted or any(reader not in self.inside for reader, *_ in s.readers.get(raw, ()))
        spec = last.spec
        fits = spec.contiguous and spec.dtype.itemsize == raw.spec.dtype.itemsize and raw.spec.contiguous
        if read or not fits or s.buffer_of(last).role != "temp" or raw in s.buffers:
            return s.buffer_of(raw)
        return s.buffer_of(last)

    def _load(self, v: Value, m: IndexMap) -> Ref:
        if v is not self.raw:
            return super()._load(v, m)
        return self.b.load(self.result, v.spec.dtype.name, self._access(v.spec.strides, m))


def operands_of(node: Node, through) -> set[Value]:
    """What a template's step reads and gives, before anything is fused to it."""
    return {through(v) for v in node.inputs if not isinstance(v.spec, NumberSpec)}.union(node.outputs)


def has_room(operands: Collection[Value]) -> bool:
    """Whether a template's kernel has slots for so many operands."""
    return len(operands) + OWN_SLOTS <= MOST_OPERANDS


__all__ = [
    "MOST_FINISHING",
    "EpilogueEmitter",
    "carried_roots",
    "columns_of",
    "has_room",
    "operands_of",
    "why_not_finish",
]
