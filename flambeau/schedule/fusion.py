"""Graph of primitives -> schedule: which values share a kernel, which get memory, what is launched in what order.

Values are pulled: a root (an output, a reduction, an operand of a template …) evaluates what it needs through pointwise nodes and views
until it reaches something in memory. Roots over one domain share a kernel when what they read is ready: a row that is reduced, used and
reduced again (softmax, layer_norm) is one kernel with stages; reductions of everything are split at fixed sizes and finished by the last
unit.

Here values get memory and groups; `emission` turns groups into kernels. Looks at kinds, never at names.
May not know: memory addresses, how plans run. Entry: `schedule(graph, target, threads)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau.base import stages
from flambeau.core.layout import canonical_dims
from flambeau.core.spec import NumberSpec, Spec
from flambeau.ir.graph import Graph, Node, Value, specs_of
from flambeau.ir.indexmap import IndexMap, compose, identity, through_view
from flambeau.ir.kinds import Piece, apply_view
from flambeau.ir.op import ASSEMBLE, EXTERNAL, INDEXING, POINTWISE, REDUCTION, TEMPLATE, VIEW
from flambeau.schedule.emission import GroupEmitter, PieceEmitter
from flambeau.schedule.epilogues import (
    MOST_FINISHING,
    EpilogueEmitter,
    carried_roots,
    has_room,
    operands_of,
    why_not_finish,
)
from flambeau.schedule.groups import MOST_NODES, MOST_OPERANDS, Group
from flambeau.schedule.horizontal import Kinds, merge_launches
from flambeau.schedule.program import FEW_UNITS, Access, NestBuilder
from flambeau.schedule.steps import ERROR, Buffer, Finished, Schedule, Step

ANYWHERE = IndexMap(((),), (-1,))  # how an operand is read whose places other values name
LONGEST_CHAIN = 40  # pointwise nodes evaluated again by another root before one is given memory


def schedule(graph: Graph, target, threads: int) -> Schedule:
    """Plan a graph whose nodes are all primitives."""
    return Scheduler(graph, target, threads).run()


class Scheduler:
    """One graph's way to a schedule; emitters read its buffers, leaves and maps."""

    def __init__(self, graph: Graph, target, threads: int):
        self.graph, self.target, self.threads = graph, target, threads
        self.buffers: dict[Value, Buffer] = {}
        self.result = Schedule()
        self.names = graph.names() if stages.shown(3) else None  # for the record of decisions
        self.group_of: dict[Value, Group | int] = {}
        self.order: list[Any] = []  # groups and single nodes, in order of execution
        self.epilogues: dict[int, Group] = {}  # what the step of a template at a position computes besides
        self.position: dict[Value, int] = {}  # index in `order` of what gives a root
        self.leaf_cache: dict[Value, list[tuple[Value, IndexMap]]] = {}
        self.evaluated: dict[Value, int] = {}  # by root: how many nodes it takes from its leaves on

    # ------------------------------------------------------------------ which values get memory
    def run(self) -> Schedule:
        self.consumers: dict[Value, list[Node]] = {}
        for node in self.graph.nodes:
            for v in node.inputs:
                self.consumers.setdefault(v, []).append(node)
        self.written = {v for _, v in self.graph.writes}
        self.roots = self._find_roots()
        self.kinds = Kinds(self.roots)
        for v in self.graph.inputs:
            self.buffers[v] = self.result.add_input(v.spec)
        for node in self.graph.nodes:
            for v in node.outputs:
                if v in self.roots:
                    self._place(v)
        self._find_readers()
        for target, v in self.graph.writes:
            if self._writes_directly(target, v):
                self.buffers[v] = self.buffers[target]
        self._emit_all()
        self._finish_outputs()
        merge_launches(self.result)
        return self.result

    def _find_roots(self) -> set[Value]:
        """Values that are computed by a kernel of their own or stored by one."""
        roots: set[Value] = set()
        depth: dict[Value, int] = {}
        sources: dict[Value, set[Value]] = {}
        needed = {self.through_views(v) for v in self.graph.results()}
        for node in self.graph.nodes:
            kind = node.op.kind
            if kind in (TEMPLATE, EXTERNAL, INDEXING, ASSEMBLE, REDUCTION):
                roots.update(node.outputs)
            if kind in (TEMPLATE, EXTERNAL):
                for v in node.inputs:
                    needed.add(self.through_views(v))
            if kind == INDEXING:
                needed.add(self.through_views(node.inputs[0]))
            if kind == VIEW:
                source = self.through_views(node.inputs[0])
                if source.node is not None and through_view(node, node.inputs[0].spec.shape) is None:
                    needed.add(source)
        for node in self.graph.nodes:
            if node.op.kind == POINTWISE:
                out = node.outputs[0]
                d = 1 + max((depth.get(self.through_views(v), 0) for v in node.inputs), default=0)
                several = len(self.consumers.get(out, ())) > 1
                if out in needed or (several and node.op.rules.expensive) or d > LONGEST_CHAIN:
                    roots.add(out)
                    d = 0
                depth[out] = d
                self._limit_sources(node, roots, sources)
                if several and out not in roots and self._reads_much(out, sources[out]):
                    roots.add(out)
                    depth[out] = 0
        roots.update(carried_roots(self, needed, roots))
        return roots

    def _reads_much(self, v: Value, sources: set[Value]) -> bool:
        """Whether evaluating v again reads more than writing it once and reading it again, three operands of its size: the sum that a residual
        network carries along would be added up from all its blocks by each of them. A root that only its own kernel reads gets no memory.
        """
        return sum(x.spec.numel >= v.spec.numel for x in sources if type(x.spec) is Spec) > 2

    def readers_through_views(self, v: Value) -> list[Node]:
        """Nodes that are no views and read v or a view of it."""
        found: list[Node] = []
        for node in self.consumers.get(v, ()):
            found += self.readers_through_views(node.outputs[0]) if node.op.kind == VIEW else [node]
        return found

    def _limit_sources(self, node: Node, roots: set[Value], sources: dict[Value, set[Value]]) -> None:
        """Note what a pointwise node is computed from; where that is more than a kernel can read, operands are given memory."""
        operands = list(dict.fromkeys(self.through_views(v) for v in node.inputs))
        while True:
            each = [{v} if v in roots else sources.get(v, {v}) for v in operands]
            together = set().union(*each)
            if len(together) < MOST_OPERANDS:
                break
            roots.add(max(zip(operands, each), key=lambda x: len(x[1]))[0])
        sources[node.outputs[0]] = together

    def through_views(self, v: Value) -> Value:
        while v.node is not None and v.node.op.kind == VIEW:
            v = v.node.inputs[0]
        return v

    def _find_readers(self) -> None:
        """Who reads what, once everything has its place: (root, its position, value read, map) by what is behind the views of the value."""
        self.wanted = {self.through_views(v) for v in self.graph.results()}
        self.readers: dict[Value, list[tuple[Value, int, Value, IndexMap | None]]] = {}
        for root, position in self.position.items():
            node = root.node
            reads = [(x, None) for x in node.inputs] if node.op.kind in (TEMPLATE, EXTERNAL) else self.leaves(root)
            for x, m in reads:
                self.readers.setdefault(self.through_views(x), []).append((root, position, x, m))

    # ------------------------------------------------------------------ grouping
    def leaves(self, root: Value) -> list[tuple[Value, IndexMap]]:
        """What a root reads: inputs and other roots, with the index map they are read at."""
        found = self.leaf_cache.get(root)
        if found is None:
            found = []
            node = root.node
            seen: set = set()

            def visit(v: Value, m: IndexMap) -> None:
                if (v, m) in seen:
                    return
                seen.add((v, m))
                if v.node is None or (v in self.roots and v is not root):
                    found.append((v, m))
                elif v.node.op.kind == VIEW:
                    inner = through_view(v.node, v.node.inputs[0].spec.shape)
                    source = self.through_views(v)
                    if inner is None or source.node is None:
                        found.append((v, m))  # an alias of something in memory
                    else:
                        visit(v.node.inputs[0], compose(inner, m))
                else:
                    for a, am in self.operand_maps(v, m):
                        visit(a, am)

            if node.op.kind == REDUCTION:
                source = node.inputs[0]
                visit(source, identity(source.spec.ndim, source.spec.shape))
            elif node.op.kind == INDEXING:
                found.append((node.inputs[0], ANYWHERE))
                for moved in self.read_of(node).indices:
                    visit(node.inputs[moved.operand], moved.map)
            elif node.op.kind == ASSEMBLE:
                base = node.op.rules.base
                if base is not None:
                    visit(node.inputs[base], identity(root.spec.ndim, root.spec.shape))
                seen.clear()
                at = len(found)
                for i, v in enumerate(node.inputs):
                    if i != base:
                        visit(v, identity(v.spec.ndim, v.spec.shape))
                found[at:] = [(v, ANYWHERE) for v, _ in found[at:]]
            else:
                for a, am in self.operand_maps(root, identity(root.spec.ndim, root.spec.shape)):
                    visit(a, am)
            self.leaf_cache[root] = found
            self.evaluated[root] = 1 + len(seen)
        return found

    def read_of(self, node: Node):
        """How an Indexing node reads its source."""
        return node.op.rules.access(node.op, *specs_of(node.op, node.args))

    def operand_maps(self, v: Value, m: IndexMap) -> list[tuple[Value, IndexMap]]:
        """Operands of a pointwise node and the maps they are read at when v is read at m."""
        shape = v.spec.shape
        found = []
        for a in v.node.inputs:
            s = a.spec
            if isinstance(s, NumberSpec):
                found.append((a, IndexMap((), ())))
                continue
            lead = len(shape) - s.ndim
            rows = tuple(() if s.shape[j] == 1 else m.rows[j + lead] for j in range(s.ndim))
            offsets = tuple(0 if s.shape[j] == 1 else m.offsets[j + lead] for j in range(s.ndim))
            found.append((a, IndexMap(rows, offsets)))
        return found

    def _place(self, root: Value) -> None:
        """Put a root into the first group that can hold it, or open one."""
        node = root.node
        if node.op.kind in (TEMPLATE, EXTERNAL, ASSEMBLE):
            at = next((self.position[v] for v in node.outputs if v in self.position), None)
            if at is None:
                at = len(self.order)
                self.order.append(node)
                self._decided(root, f"is step {at}, of its own: its kind is {node.op.kind}")
            self.position[root] = at
            return
        leaves = self.leaves(root)
        earliest = max(
            (self.position[self.through_views(v)] for v, _ in leaves if self.through_views(v) in self.position),
            default=-1,
        )
        if node.op.kind == REDUCTION:
            source = node.inputs[0].spec
            domain, reduced = tuple(source.shape), self.reduced_dims(node)
        else:
            domain, reduced = tuple(root.spec.shape), ()
        if root in self.position:
            return
        operands = {self.through_views(v) for v, _ in leaves}.union(node.outputs)
        refusals: list[str] = []
        for at in range(max(earliest, 0), len(self.order)):
            item = self.order[at]
            template = item if isinstance(item, Node) and item.op.kind == TEMPLATE else None
            if template is not None:
                if at != earliest or node.op.kind != POINTWISE:
                    continue  # it reads something newer than that one's result
                group = self.epilogues.get(at)
                if group is None:
                    group = Group(domain, ())
                    group.operands = operands_of(template, self.through_views)
            elif isinstance(item, Group):
                group = item
            else:
                continue
            together = group.operands | operands
            if len(together) > MOST_OPERANDS or (template is not None and not has_room(together)):
                why_not = "together they have more operands than a kernel takes"
            elif group.nodes + self.evaluated[root] > (MOST_NODES if template is None else MOST_FINISHING):
                why_not = "together they would be too long a kernel"
            elif template is not None:
                why_not = why_not_finish(self, group, at, template, root, leaves)
            elif self._is_apart(group, root, operands):
                why_not = "it is one of many of its kind, which can be one launch"
            else:
                why_not = self._why_not(group, at, root, domain, reduced, leaves)
            if why_not is None:
                self._decided(root, f"joins step {at}" if template is None else f"is finished by step {at}")
                if template is not None:
                    self.epilogues[at] = group
                group.operands |= operands
                group.nodes += self.evaluated[root]
                for v in node.outputs:
                    if v in self.roots or node.op.kind == REDUCTION:
                        group.roots.append(v)
                        self.position[v] = at
                return
            refusals.append(f"; not step {at}: {why_not}")
        group = Group(domain, reduced)
        group.operands, group.nodes = operands, self.evaluated[root]
        self.order.append(group)
        over = f", reducing dims {list(reduced)}" if reduced else ""
        self._decided(root, f"opens step {len(self.order) - 1} over {list(domain)}{over}{''.join(refusals)}")
        for v in node.outputs:
            group.roots.append(v)
            self.position[v] = len(self.order) - 1

    def _is_apart(self, group: Group, root: Value, operands: set[Value]) -> bool:
        """Whether root is one of many of its kind and has nothing to do with a group: their launches can be one (`horizontal`). What single
        numbers share may be what all of them read (a learning rate).
        """
        if not self.kinds.is_common(root) or group.split or group.over_units:
            return False
        least = min(root.spec.ndim, 1)
        if not any(
            v in group.operands and not isinstance(v.spec, NumberSpec) and v.spec.ndim >= least for v in operands
        ):
            return True
        kind = self.kinds.of[root]
        return not least and any(self.kinds.of.get(v) == kind for v in group.roots)

    def reduced_dims(self, node: Node) -> tuple[int, ...]:
        source = node.inputs[0].spec
        return canonical_dims(node.op.name, node.args[1], source.ndim)

    def _decided(self, root: Value, what: str) -> None:
        """Record a decision for whoever looks (FLAMBEAU_DEBUG=3)."""
        if self.names is not None:
            self.result.decisions.append(f"{self.names[root]} {what}")

    def _why_not(self, group: Group, at: int, root: Value, domain, reduced, leaves) -> str | None:
        """None if the group can compute root too, and takes it; else what is in the way."""
        inside = [(v, m) for v, m in leaves if self.position.get(self.through_views(v)) == at]
        if any(v not in self.position for v, _ in inside):
            return "it reads a view of what that one stores"
        node = root.node
        if node.op.kind == REDUCTION:
            return self._why_not_reduce(group, root, domain, reduced, inside)
        if group.over_units or group.split:
            if (
                bool(inside)
                and root.spec.numel == 1
                and all(self._is_final(v, group) for v, _ in inside)
                and all(v.spec.numel == 1 for v, _ in leaves)
            ):
                return None
            return "only single numbers can follow a reduction over all units"
        if domain == group.domain:
            return (
                None
                if all(self.is_aligned(v, m, group) for v, m in inside)
                else "it reads elements at other places than its own"
            )
        if group.reduced and (inside or node.op.kind == INDEXING) and domain in group.row_shapes:
            lift = self.row_map(group, domain)
            return (
                None
                if all(self.is_aligned(v, compose(m, lift), group) for v, m in inside)
                else "it reads other rows than its own"
            )
        return "its domain is another"

    def _why_not_reduce(self, group: Group, root: Value, domain, reduced, inside) -> str | None:
        """The same of a reduction."""
        if not reduced:
            return "it reduces no dim"
        apart = reduced != group.reduced and (
            group.reduced or (inside and not self._reduces_rows(group, domain, reduced, inside))
        )
        if domain != group.domain or apart:
            return (
                None
                if self._joins_over_units(group, root, domain, reduced, inside)
                else "its domain or its reduced dims are others"
            )
        if group.reduced != reduced:
            if any(r.node.op.kind != POINTWISE for r in group.roots):
                return "that one reads where indices say and cannot reduce"
            merged = Group(domain, reduced)
            group.reduced, group.split = merged.reduced, merged.split
        if group.split or group.over_units:
            if not inside or (not group.over_units and all(self._is_full(v, m, group) for v, m in inside)):
                return None
            return "it reads what is known only when all units of that one have run"
        return None if all(self.is_aligned(v, m, group) for v, m in inside) else "it reads other rows than its own"

    def _reduces_rows(self, group: Group, domain, reduced, inside) -> bool:
        """Whether a reduction takes all, or whole rows and enough of them for all threads, of what a group that reduces nothing computes."""
        kept = len(domain) - len(reduced)
        return (
            kept == min(reduced)
            and (kept == 0 or math.prod(domain[:kept]) >= FEW_UNITS)
            and all(self._is_full(v, m, group) for v, m in inside)
        )

    def _joins_over_units(self, group: Group, root: Value, domain, reduced, inside) -> bool:
        """A reduction of everything over a group's row values (the mean of per-row losses)."""
        if (
            not (inside or group.over_units)
            or len(reduced) != len(domain)
            or group.split
            or not group.reduced
            or domain not in group.row_shapes
            or math.prod(domain) == 1  # one row: its values and those over all rows would look alike to what follows
        ):
            return False
        if any(r.node.op.kind in (POINTWISE, INDEXING) and tuple(r.spec.shape) == group.domain for r in group.roots):
            return False
        lift = self.row_map(group, domain)
        if not all(self.is_aligned(v, compose(m, lift), group) for v, m in inside):
            return False
        group.over_units = True
        return True

    def _is_full(self, v: Value, m: IndexMap, group: Group) -> bool:
        return (
            v.node.op.kind == POINTWISE
            and tuple(v.spec.shape) == group.domain
            and m == identity(len(group.domain), v.spec.shape)
        )

    def _is_final(self, v: Value, group: Group) -> bool:
        return v.spec.numel == 1 and (
            v.node.op.kind == POINTWISE or len(self.reduced_dims(v.node)) == v.node.inputs[0].spec.ndim
        )

    def is_aligned(self, v: Value, m: IndexMap, group: Group) -> bool:
        """Whether root v of the group, read at m over its domain, is what the same row (or element) computed."""
        if tuple(v.spec.shape) == group.domain and v.node.op.kind in (POINTWISE, INDEXING):
            return m == identity(len(group.domain), group.domain)
        for shape in group.row_shapes:
            if tuple(v.spec.shape) == shape:
                return m == self.row_map(group, shape)
        return False

    def row_map(self, group: Group, shape: Sequence[int]) -> IndexMap:
        """Where a row value of `shape` is read for an element of the domain."""
        kept = [d for d in range(len(group.domain)) if d not in group.reduced]
        if len(shape) == len(group.domain) and group.reduced:
            dims = range(len(shape))
            rows = tuple(() if d in group.reduced or group.domain[d] == 1 else ((d, 1),) for d in dims)
        else:
            rows = tuple(() if group.domain[d] == 1 else ((d, 1),) for d in kept)
        return IndexMap(rows, (0,) * len(rows))

    # ------------------------------------------------------------------ emission
    def _emit_all(self) -> None:
        for at, item in enumerate(self.order):
            if isinstance(item, Group):
                GroupEmitter(self, item).emit()
            elif item.op.kind == ASSEMBLE:
                self._emit_pieces(item)
            else:
                self._emit_single(item, self.epilogues.get(at))

    def buffer_of(self, v: Value) -> Buffer:
        """The buffer of a root, made on first use."""
        if v not in self.buffers:
            self.buffers[v] = self.result.add_temp(v.spec)
        return self.buffers[v]

    def resolve(self, v: Value) -> tuple[Buffer, Spec, int]:
        """(buffer, layout, offset in elements) of a value in memory or a view of one."""
        chain = []
        while v.node is not None and v.node.op.kind == VIEW:
            chain.append(v.node)
            v = v.node.inputs[0]
        buffer = self.buffer_of(v)
        spec, offset = buffer.spec, 0
        for node in reversed(chain):
            before = spec.dtype.itemsize
            spec, extra = apply_view(node.op.rules, spec, node.args[1:])
            if before != spec.dtype.itemsize:
                offset, rest = divmod(offset * before, spec.dtype.itemsize)
                if rest:
                    raise RuntimeError(
                        f"{node.op.name}: the first element must lie at a multiple of {spec.dtype.itemsize} bytes to be "
                        f"read as {spec.dtype.name}, got {rest} bytes past one. Call .clone() first."
                    )
            offset += extra
        return buffer, spec, offset

    def _emit_pieces(self, node: Node) -> None:
        """The launches of an Assemble node: its base, then its pieces."""
        out = node.outputs[0]
        buffer, base = self.buffer_of(out), node.op.rules.base
        if base is not None and self.buffers.get(node.inputs[base]) is not buffer:
            PieceEmitter(self, node, Piece(base, tuple(out.spec.shape), buffer.spec.strides)).emit(buffer)
        for piece in node.op.rules.pieces(node.op, buffer.spec, *specs_of(node.op, node.args)):
            if math.prod(piece.shape):
                PieceEmitter(self, node, piece).emit(buffer)

    def _emit_single(self, node: Node, group: Group | None) -> None:
        """The launches of a template or a library, with what `group` holds as the epilogue of the last one, or as a kernel behind it."""
        operands, specs = [], []
        for v in node.inputs:
            buffer, spec, offset = self.resolve(v)
            operands.append(buffer.at(offset * spec.dtype.itemsize))
            specs.append(spec)
        if node.op.kind == EXTERNAL:
            outs = tuple(self.buffer_of(v) for v in node.outputs)
            self.result.steps.append(
                Step.external(node.op, tuple(operands), tuple(specs), outs, node_template_args(node))
            )
            return
        it = iter(specs)
        args = (node.op, self.target, self.threads, *(_replace(a, it) for a in node.args))
        finish = None if group is None else EpilogueEmitter(self, group, node).finish()
        lowered = None if finish is None else node.op.rules.lower(*args, epilogue=finish.epilogue)
        finishing = None
        if lowered is None:
            finish = None
            outs = [self.buffer_of(v) for v in node.outputs]
            lowered = node.op.rules.lower(*args)
        else:
            outs = [finish.result]
            operands += finish.operands
            finishing = Finished(finish.epilogue.nest, finish.epilogue.params, tuple(finish.operands), finish.result)
        scratch = [self.result.add_scratch(n) for n in lowered.scratch_bytes]
        everything = [*operands, *outs, *scratch]
        for launch in lowered.launches:
            if launch.params[0] > 0:
                slots = tuple(ERROR if b == -1 else everything[b] for b in launch.buffers)
                last = finishing if launch.calls else None
                step = Step.kernel(launch.recipe, slots, launch.params, node.op.name, launch.flops, last, launch.calls)
                self.result.steps.append(step)
        if group is not None and finish is None:
            GroupEmitter(self, group).emit()

    def _finish_outputs(self) -> None:
        for v in self.graph.outputs:
            self.result.outputs.append(self.resolve(v))
        late = [(t, v) for t, v in self.graph.writes if self.buffers.get(v) is not self.buffers[t]]
        if len(late) > 1:  # a target may be read by another's copy: take all values out first
            late = [(t, self._copy(v, self.result.add_temp(t.spec))) for t, v in late]
        for target, v in late:
            self._copy(v, self.buffers[target])

    def _copy(self, v: Value | Buffer, into: Buffer) -> Buffer:
        """A step that copies a value (or another copy of one) into a buffer."""
        buffer, spec, offset = (v, v.spec, 0) if isinstance(v, Buffer) else self.resolve(v)
        b = NestBuilder(spec.shape)
        b.store(
            into,
            spec.dtype.name,
            Access(into.spec.strides),
            b.load(buffer, spec.dtype.name, Access(spec.strides, offset)),
        )
        recipe, operands, params = b.finish(self.target, self.threads)
        if params[0] > 0:
            self.result.steps.append(Step.kernel(recipe, tuple(operands), params, "copy"))
        return into

    def _writes_directly(self, target: Value, v: Value) -> bool:
        """Whether v may be computed straight into the memory of `target`: nobody reads the old value later, or elsewhere than at its
        place.
        """
        if (
            v not in self.position
            or v in self.buffers
            or v.spec.shape != target.spec.shape
            or v.spec.dtype is not target.spec.dtype
        ):
            return False
        at, node = self.position[v], v.node
        if v in self.graph.outputs or node.op.kind not in (POINTWISE, ASSEMBLE):
            return False
        if node.op.kind == ASSEMBLE and (node.op.rules.base is None or node.inputs[node.op.rules.base] is not target):
            return False
        if target in self.wanted:
            return False
        whole = identity(target.spec.ndim, target.spec.shape)
        readers = self.readers.get(target, ())
        if any(position > at or (position == at and (x is not target or m != whole)) for _, position, x, m in readers):
            return False
        known: dict[Value, int] = {}
        written = self._stage(v, at, known)
        return all(self._stage(root, at, known) <= written for root, position, _, _ in readers if position == at)

    def _stage(self, root: Value, at: int, known: dict[Value, int]) -> int:
        """In which walk over a row the kernel of a step computes a root from what it reads: one more than the reductions in front of it."""
        if root not in known:
            inside = {self.through_views(v) for v, _ in self.leaves(root)} - {root}
            known[root] = max(
                (
                    self._stage(v, at, known) + (v.node.op.kind == REDUCTION)
                    for v in inside
                    if self.position.get(v) == at
                ),
                default=0,
            )
        return known[root]


def _replace(a: Any, specs) -> Any:
    if isinstance(a, Value):
        return next(specs)
    if type(a) is tuple:
        return tuple(_replace(x, specs) for x in a)
    return a


def node_template_args(node: Node) -> tuple:
    """Attributes of a node with its tensors left out."""
    return tuple(None if isinstance(a, Value) else a for a in node.args)
