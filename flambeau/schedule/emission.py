"""From a group to its kernel: values pulled from memory through views and pointwise nodes into one loop nest, results stored.

    GroupEmitter(scheduler, group).emit()         # appends its steps to scheduler.result

A group of long reductions of few rows becomes two kernels (`_emit_divided`); each piece of an Assemble node is one (`PieceEmitter`).
May not know: how groups come about (`fusion`). It asks the scheduler for buffers, leaves and maps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flambeau.base.errors import InternalError
from flambeau.core.dtype import bfloat16, float16, float32
from flambeau.core.layout import contiguous_strides
from flambeau.core.spec import NumberSpec, Spec
from flambeau.ir.graph import Node, Value, specs_of
from flambeau.ir.indexmap import IndexMap, compose, identity, through_view
from flambeau.ir.kinds import Moved, Piece, pointwise_types
from flambeau.ir.op import EXTERNAL, INDEXING, POINTWISE, REDUCTION, TEMPLATE, VIEW
from flambeau.schedule.groups import MOST_OPERANDS, Group
from flambeau.schedule.program import Access, NestBuilder
from flambeau.schedule.steps import ERROR, Buffer, Scratch, Step
from flambeau.templates.loop_nest import partial_layout
from flambeau.templates.loop_program import Ref

if TYPE_CHECKING:
    from flambeau.schedule.fusion import Scheduler

LONG_ELEMENTS = 131072  # a reduction of fewer is never divided


class GroupEmitter:
    """Turns a group into one kernel step."""

    def __init__(self, scheduler: Scheduler, group: Group):
        self.s, self.group = scheduler, group
        self.b = NestBuilder(group.domain, group.reduced)
        self.b.split = group.split
        self.memo: dict[tuple[Value, IndexMap], Ref] = {}
        self.inside = set(group.roots)
        self.partial: Scratch | None = None
        self.rows: list[tuple[Scratch, int]] = []  # (scratch of two kept rows, its bytes per thread)

    def emit(self) -> None:
        group, s = self.group, self.s
        if self._stands_alone() and self._emit_divided():
            return
        later = self._used_later()
        if len(s.order) == 1 and len(group.operands.union(s.graph.inputs)) <= MOST_OPERANDS:
            # one kernel: operands in the order of the graph's inputs and outputs, for the fast path
            for v in s.graph.inputs:
                self.b.slot(s.buffers[v])
            for root in group.roots:
                if root in later and s.buffer_of(root).role != "input":
                    self.b.slot(s.buffer_of(root))
        if any(r.node.op.kind == REDUCTION and (group.split or self._over(r.node) == "units") for r in group.roots):
            self.partial = s.result.add_scratch(0)
            self.partial.is_partial = True
            self.b.slot(self.partial)
        for root in group.roots:
            m = self._root_map(root)
            ref = self.value(root, m)
            if root in later:
                self._store(root, ref, m)
            elif root.node.op.kind == POINTWISE and self._is_full(root) and group.reduced:
                self._keep(root, ref)
        recipe, operands, params = self.b.finish(s.target, s.threads)
        if self.partial is not None:
            self.partial.nbytes = max(64, params[0] * partial_layout(recipe.parameters[0].program)[1])
        for scratch, row_bytes in self.rows:
            scratch.nbytes = max(64, row_bytes * s.threads)
        if params[0] > 0 or any(r.node.op.kind == REDUCTION for r in group.roots):
            s.result.steps.append(Step.kernel(recipe, tuple(operands), params, group.roots[0].node.op.name))

    # ------------------------------------------------------------------ long reductions of few rows
    def _stands_alone(self) -> bool:
        """Whether the group is reductions only, none of which reads another, over some of the dims."""
        group = self.group
        if not group.reduced or group.split or group.over_units or len(group.reduced) == len(group.domain):
            return False
        if math.prod(group.domain) < LONG_ELEMENTS:
            return False
        return all(
            r.node.op.kind == REDUCTION
            and not r.node.op.rules.with_index
            and not any(self.s.through_views(v) in self.inside for v, _ in self.s.leaves(r))
            for r in group.roots
        )

    def _emit_divided(self) -> bool:
        """Two kernels where one would have too few units: states of equal pieces of a reduced dim, then their combination."""
        group, s = self.group, self.s
        nodes = list({id(r.node): r.node for r in group.roots}.values())
        states = {node: self._reduce_node(node, "partial") for node in nodes}
        found = self.b.division(max(4, s.target.vector_bytes // 4))
        if found is None:
            self.b = NestBuilder(group.domain, group.reduced)
            self.memo = {}
            return False
        dim, pieces = found
        self.b.divide(dim, pieces)
        kept = [d for d in range(len(group.domain)) if d not in group.reduced]
        sizes = (pieces, *(group.domain[d] for d in kept))
        strides = contiguous_strides(sizes)
        steps = [0] * (len(group.domain) + 1)
        for d, step in zip((dim, *kept), strides):
            steps[d] = step
        last = NestBuilder(sizes, {0})
        for node, ref in states.items():
            compute = self._compute_dtype(node)
            partial = s.result.add_temp(Spec.of(sizes, compute, node.outputs[0].spec.device))
            self.b.store(partial, compute.name, Access(steps), self.b.part(ref, 0))
            state = last.load(partial, compute.name, Access(strides))
            whole = last.reduce(
                node.op.name,
                state,
                tuple(node.args[3:]),
                compute.name,
                [o.spec.dtype.name for o in node.outputs],
                "inner",
                self._reduced_count(node),
                None,
                "final",
            )
            for root in node.outputs:
                if root in group.roots:
                    buffer = s.buffer_of(root)
                    access = self._access(buffer.spec.strides, s.row_map(group, tuple(root.spec.shape)))
                    where = Access((0, *(access.strides[d] for d in kept)), access.offset)
                    last.store(buffer, root.spec.dtype.name, where, last.part(whole, root.index))
        for b in (self.b, last):
            recipe, operands, params = b.finish(s.target, s.threads)
            s.result.steps.append(Step.kernel(recipe, tuple(operands), params, group.roots[0].node.op.name))
        return True

    def _compute_dtype(self, node: Node):
        """The dtype a reduction's state is kept in."""
        compute = node.op.rules.accumulate(node.inputs[0].spec.dtype, tuple(node.args[3:]))
        return float32 if compute in (float16, bfloat16) else compute

    def _reduced_count(self, node: Node) -> int:
        return math.prod(node.inputs[0].spec.shape[d] for d in self.s.reduced_dims(node))

    def _used_later(self) -> set[Value]:
        """Roots that somebody outside this kernel reads."""
        s = self.s
        at = s.position[self.group.roots[0]]
        found = set()
        for root in self.group.roots:
            for other, position, _, _ in s.readers.get(root, ()):
                if position != at or other not in self.inside or other.node.op.kind in (TEMPLATE, EXTERNAL):
                    found.add(root)
                    break
            if root in s.wanted:
                found.add(root)
        return found

    def _is_full(self, root: Value) -> bool:
        return tuple(root.spec.shape) == self.group.domain

    def _root_map(self, root: Value) -> IndexMap:
        group = self.group
        if root.node.op.kind == REDUCTION:
            return identity(0)
        if tuple(root.spec.shape) == group.domain:
            return identity(len(group.domain), group.domain)
        if root.spec.numel == 1 and (group.split or group.over_units):
            return IndexMap(((),) * root.spec.ndim, (0,) * root.spec.ndim)
        return self.s.row_map(group, tuple(root.spec.shape))

    # ------------------------------------------------------------------ values
    def value(self, v: Value, m: IndexMap) -> Ref:
        """The instruction that gives v read at m."""
        if v in self.inside and v.node.op.kind == REDUCTION:
            key = (v, None)
        else:
            key = (v, m)
        if key not in self.memo:
            self.memo[key] = self._value(v, m)
        return self.memo[key]

    def _value(self, v: Value, m: IndexMap) -> Ref:
        if isinstance(v.spec, NumberSpec):
            return self.b.scalar(self.s.buffers[v], "f" if v.spec.type is float else "i")
        node = v.node
        if node is None or (v in self.s.roots and v not in self.inside):
            return self._load(v, m)
        kind = node.op.kind
        if kind == VIEW:
            inner = through_view(node, node.inputs[0].spec.shape)
            if inner is None or self.s.through_views(v).node is None:
                return self._load(v, m)
            return self.value(node.inputs[0], compose(inner, m))
        if kind == REDUCTION:
            return self._reduce(v)
        if kind == INDEXING:
            return self._indexed(v, m)
        return self._apply(v, m)

    def _load(self, v: Value, m: IndexMap) -> Ref:
        buffer, spec, offset = self.s.resolve(v)
        return self.b.load(buffer, spec.dtype.name, self._access(spec.strides, m, offset))

    def _access(self, strides: Sequence[int], m: IndexMap, offset: int = 0) -> Access:
        steps = [0] * len(self.group.domain)
        for stride, row, constant in zip(strides, m.rows, m.offsets):
            offset += stride * constant
            for dim, step in row:
                steps[dim] += stride * step
        return Access(steps, offset)

    def _apply(self, v: Value, m: IndexMap) -> Ref:
        node = v.node
        if node.op.rules.kind != POINTWISE:
            raise InternalError(f"schedule: {node.op.name} cannot be evaluated inside a loop nest")
        specs = specs_of(node.op, node.args)
        copied = node.args[node.op.rules.copies] if node.op.rules.copies is not None else None
        if isinstance(copied, Value) and copied.spec.dtype is v.spec.dtype and not isinstance(copied.spec, NumberSpec):
            return self.value(copied, next(am for a, am in self.s.operand_maps(v, m) if a is copied))
        compute, result = pointwise_types(node.op, specs)
        maps = {id(a): am for a, am in self.s.operand_maps(v, m)}
        args: list[Any] = []
        types: list[str] = []
        wanted = iter(compute)
        for i, (p, a) in enumerate(zip(node.op.params, node.args)):
            takes_part = (p.is_tensor or p.role == "Scalar") and hasattr(specs[i], "dtype")
            if not takes_part:
                args.append(None if p.name in node.op.rules.unread else a)
                continue
            d = next(wanted)
            name = float32.name if d in (float16, bfloat16) else d.name
            if isinstance(a, Value):
                args.append(self.value(a, maps[id(a)]))
            else:
                args.append(self.b.constant(a, name))
            types.append(name)
        if node.op.rules.positional:
            args.append(self.b.iota(self._access(contiguous_strides(v.spec.shape), m)))
            types.append("int64")
        return self.b.apply(node.op.name, tuple(args), types, result.name)

    def _over(self, node: Node) -> str:
        if self.group.split:
            return "all"
        same = tuple(node.inputs[0].spec.shape) == self.group.domain and self.s.reduced_dims(node) == self.group.reduced
        return "inner" if same else "units"

    def _reduce(self, v: Value) -> Ref:
        key = (v.node.outputs[0], "state")
        if key not in self.memo:
            self.memo[key] = self._reduce_node(v.node)
        return self.b.part(self.memo[key], v.index)

    def _reduce_node(self, node: Node, stage: str = "whole") -> Ref:
        source, over, domain = node.inputs[0], self._over(node), self.group.domain
        m = identity(len(domain), domain) if over != "units" else self.s.row_map(self.group, tuple(source.spec.shape))
        arg = self.value(source, m)
        index = None
        if node.op.rules.with_index:
            steps, step = [0] * len(domain), 1
            for d in reversed(self.s.reduced_dims(node)):
                steps[d], step = step, step * domain[d]
            index = Access(steps)
        compute = self._compute_dtype(node).name
        outs = [compute] if stage == "partial" else [o.spec.dtype.name for o in node.outputs]
        return self.b.reduce(
            node.op.name, arg, tuple(node.args[3:]), compute, outs, over, self._reduced_count(node), index, stage
        )

    def _indexed(self, v: Value, m: IndexMap) -> Ref:
        """A value read where index tensors say."""
        node = v.node
        read = self.s.read_of(node)
        buffer, spec, offset = self.s.resolve(node.inputs[0])
        steps = self._access(spec.strides, compose(read.map, m), offset)
        return self.b.load(buffer, spec.dtype.name, steps, self._moves(node, read.indices, spec, m))

    def _moves(self, node: Node, indices: Sequence[Moved], spec: Spec, m: IndexMap) -> list[tuple[Ref, int]]:
        """(checked index, stride) for each index into memory laid out as `spec`."""
        found = []
        for moved in indices:
            index = self.value(node.inputs[moved.operand], compose(moved.map, m))
            key = (index, spec.shape[moved.dim], moved.dim, moved.wrap)
            if key not in self.memo:
                self.memo[key] = self.b.check(
                    index, spec.shape[moved.dim], moved.dim, node.called, ERROR, moved.wrap, moved.error
                )
            found.append((self.memo[key], spec.strides[moved.dim]))
        return found

    # ------------------------------------------------------------------ results
    def _store(self, root: Value, ref: Ref, m: IndexMap) -> None:
        spec = root.spec
        if root.node.op.kind == REDUCTION:
            m = self._reduction_store_map(root)
        buffer = self.s.buffer_of(root)
        self.b.store(buffer, spec.dtype.name, self._access(buffer.spec.strides, m), ref)

    def _reduction_store_map(self, root: Value) -> IndexMap:
        """Where a reduction's result goes, as a map from the domain's dims."""
        node = root.node
        if self._over(node) != "inner" or len(self.group.reduced) == len(self.group.domain):
            return IndexMap(((),) * root.spec.ndim, (0,) * root.spec.ndim)
        return self.s.row_map(self.group, tuple(root.spec.shape))

    def _keep(self, root: Value, ref: Ref) -> None:
        if len(self.group.reduced) != 1:
            return
        scratch = self.s.result.add_scratch(0)
        self.rows.append((scratch, self.group.domain[self.group.reduced[0]] * 16))
        self.b.keep(scratch, ref)


class PieceEmitter(GroupEmitter):
    """Turns one write of an Assemble node into a kernel step."""

    def __init__(self, scheduler: Scheduler, node: Node, piece: Piece):
        super().__init__(scheduler, Group(piece.shape, piece.serial))
        self.node, self.piece = node, piece
        self.b.split, self.b.serial = False, bool(piece.serial)

    def emit(self, buffer: Buffer) -> None:
        node, piece, s = self.node, self.piece, self.s
        v = node.inputs[piece.value]
        m = identity(len(piece.shape), piece.shape)
        lead = len(piece.shape) - v.spec.ndim
        at = piece.map or IndexMap(
            tuple(() if n == 1 else ((d + lead, 1),) for d, n in enumerate(v.spec.shape)), (0,) * v.spec.ndim
        )
        moves = self._moves(node, piece.indices, buffer.spec, m)
        value = self.value(v, at)
        self.b.store(
            buffer,
            (piece.dtype or buffer.spec.dtype).name,
            Access(piece.strides, piece.offset),
            value,
            moves,
            piece.combine,
        )
        recipe, operands, params = self.b.finish(s.target, s.threads)
        if params[0] > 0:
            s.result.steps.append(Step.kernel(recipe, tuple(operands), params, node.op.name))
