"""Graph of primitives -> schedule: which values share a kernel, which get memory, what is launched in what order.

Values are pulled: a root (an output, a reduction, an operand of a template …) evaluates what it needs through pointwise nodes and views
until it reaches something in memory. Roots over one domain share a kernel when what they read is ready: a row that is reduced, used and
reduced again (softmax, layer_norm) is one kernel with stages; reductions of everything are split at fixed sizes and finished by the last
unit.

Looks at kinds, never at names. May not know: memory addresses, how plans run. Entry: `schedule(graph, target, threads)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau.base import stages
from flambeau.base.errors import InternalError
from flambeau.core.dtype import bfloat16, float16, float32
from flambeau.core.layout import canonical_dims, contiguous_strides
from flambeau.core.spec import NumberSpec, Spec
from flambeau.ir.graph import Graph, Node, Value, specs_of
from flambeau.ir.indexmap import IndexMap, compose, identity, through_view
from flambeau.ir.kinds import Moved, Piece, apply_view, pointwise_types
from flambeau.ir.op import ASSEMBLE, EXTERNAL, INDEXING, POINTWISE, REDUCTION, TEMPLATE, VIEW
from flambeau.schedule.program import SPLIT_ELEMENTS, Access, NestBuilder
from flambeau.schedule.steps import ERROR, Buffer, Schedule, Scratch, Step
from flambeau.templates.loop_nest import partial_layout
from flambeau.templates.loop_program import Ref

ANYWHERE = IndexMap(((),), (-1,))  # how an operand is read whose places other values name
LONG_ELEMENTS = 131072  # a reduction of fewer is never divided
MOST_OPERANDS = (
    60  # buffers and numbers of a kernel: it has 63 slots, one for its block; partial results and errors take two more
)
MOST_NODES = 256  # pointwise nodes of a kernel: registers run out long before, and LLVM takes longer than in proportion
LONGEST_CHAIN = 40  # pointwise nodes evaluated again by another root before one is given memory


def schedule(graph: Graph, target, threads: int) -> Schedule:
    """Plan a graph whose nodes are all primitives."""
    return _Scheduler(graph, target, threads).run()


class _Group:
    """Roots that share a kernel. `domain` sizes, `reduced` dims (empty: a map)."""

    def __init__(self, domain: Sequence[int], reduced: Sequence[int] | None):
        self.domain = tuple(domain)
        self.reduced = tuple(reduced) if reduced else ()
        self.roots: list[Value] = []
        self.operands: set[Value] = set()  # what it reads and what it gives
        self.nodes = 0  # about how many are evaluated in it
        self.split = (
            bool(self.reduced) and len(self.reduced) == len(self.domain) and math.prod(self.domain) > SPLIT_ELEMENTS
        )
        self.over_units = False  # holds a reduction of its row values

    @property
    def row_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape of a row value, with and without the reduced dims."""
        keep = tuple(1 if d in self.reduced else n for d, n in enumerate(self.domain))
        drop = tuple(n for d, n in enumerate(self.domain) if d not in self.reduced)
        return keep, drop


class _Scheduler:
    def __init__(self, graph: Graph, target, threads: int):
        self.graph, self.target, self.threads = graph, target, threads
        self.buffers: dict[Value, Buffer] = {}
        self.result = Schedule()
        self.names = graph.names() if stages.shown(3) else None  # for the record of decisions
        self.group_of: dict[Value, _Group | int] = {}
        self.order: list[Any] = []  # groups and single nodes, in order of execution
        self.position: dict[Value, int] = {}  # index in `order` of what gives a root
        self.leaf_cache: dict[Value, list[tuple[Value, IndexMap]]] = {}
        self.evaluated: dict[Value, int] = {}  # by root: how many nodes it takes from its leaves on

    # ------------------------------------------------------------------ which values get memory
    def run(self) -> Schedule:
        self.consumers: dict[Value, list[Node]] = {}
        for node in self.graph.nodes:
            for v in node.inputs:
                self.consumers.setdefault(v, []).append(node)
        self.roots = self._find_roots()
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
        return self.result

    def _find_roots(self) -> set[Value]:
        """Values that are computed by a kernel of their own or stored by one."""
        roots: set[Value] = set()
        depth: dict[Value, int] = {}
        sources: dict[Value, set[Value]] = {}
        needed = {self._through_views(v) for v in self.graph.results()}
        for node in self.graph.nodes:
            kind = node.op.kind
            if kind in (TEMPLATE, EXTERNAL, INDEXING, ASSEMBLE, REDUCTION):
                roots.update(node.outputs)
            if kind in (TEMPLATE, EXTERNAL):
                for v in node.inputs:
                    needed.add(self._through_views(v))
            if kind == INDEXING:
                needed.add(self._through_views(node.inputs[0]))
            if kind == VIEW:
                source = self._through_views(node.inputs[0])
                if source.node is not None and through_view(node, node.inputs[0].spec.shape) is None:
                    needed.add(source)
        for node in self.graph.nodes:
            if node.op.kind == POINTWISE:
                out = node.outputs[0]
                d = 1 + max((depth.get(self._through_views(v), 0) for v in node.inputs), default=0)
                several = len(self.consumers.get(out, ())) > 1
                if out in needed or (several and node.op.rules.expensive) or d > LONGEST_CHAIN:
                    roots.add(out)
                    d = 0
                depth[out] = d
                self._limit_sources(node, roots, sources)
        return roots

    def _limit_sources(self, node: Node, roots: set[Value], sources: dict[Value, set[Value]]) -> None:
        """Note what a pointwise node is computed from; where that is more than a kernel can read, operands are given memory."""
        operands = list(dict.fromkeys(self._through_views(v) for v in node.inputs))
        while True:
            each = [{v} if v in roots else sources.get(v, {v}) for v in operands]
            together = set().union(*each)
            if len(together) < MOST_OPERANDS:
                break
            roots.add(max(zip(operands, each), key=lambda x: len(x[1]))[0])
        sources[node.outputs[0]] = together

    def _through_views(self, v: Value) -> Value:
        while v.node is not None and v.node.op.kind == VIEW:
            v = v.node.inputs[0]
        return v

    def _find_readers(self) -> None:
        """Who reads what, once everything has its place: (root, its position, value read, map) by what is behind the views of the value."""
        self.wanted = {self._through_views(v) for v in self.graph.results()}
        self.readers: dict[Value, list[tuple[Value, int, Value, IndexMap | None]]] = {}
        for root, position in self.position.items():
            node = root.node
            reads = [(x, None) for x in node.inputs] if node.op.kind in (TEMPLATE, EXTERNAL) else self._leaves(root)
            for x, m in reads:
                self.readers.setdefault(self._through_views(x), []).append((root, position, x, m))

    # ------------------------------------------------------------------ grouping
    def _leaves(self, root: Value) -> list[tuple[Value, IndexMap]]:
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
                    source = self._through_views(v)
                    if inner is None or source.node is None:
                        found.append((v, m))  # an alias of something in memory
                    else:
                        visit(v.node.inputs[0], compose(inner, m))
                else:
                    for a, am in self._operand_maps(v, m):
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
                for a, am in self._operand_maps(root, identity(root.spec.ndim, root.spec.shape)):
                    visit(a, am)
            self.leaf_cache[root] = found
            self.evaluated[root] = 1 + len(seen)
        return found

    def read_of(self, node: Node):
        """How an Indexing node reads its source."""
        return node.op.rules.access(node.op, *specs_of(node.op, node.args))

    def _operand_maps(self, v: Value, m: IndexMap) -> list[tuple[Value, IndexMap]]:
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
        leaves = self._leaves(root)
        earliest = max(
            (self.position[self._through_views(v)] for v, _ in leaves if self._through_views(v) in self.position),
            default=-1,
        )
        if node.op.kind == REDUCTION:
            source = node.inputs[0].spec
            domain, reduced = tuple(source.shape), self._reduced_dims(node)
        else:
            domain, reduced = tuple(root.spec.shape), ()
        if root in self.position:
            return
        operands = {self._through_views(v) for v, _ in leaves}.union(node.outputs)
        refusals: list[str] = []
        for at in range(max(earliest, 0), len(self.order)):
            group = self.order[at]
            if not isinstance(group, _Group):
                continue
            if len(group.operands | operands) > MOST_OPERANDS:
                why_not = "together they have more operands than a kernel takes"
            elif group.nodes + self.evaluated[root] > MOST_NODES:
                why_not = "together they would be too long a kernel"
            else:
                why_not = self._why_not(group, at, root, domain, reduced, leaves)
            if why_not is None:
                self._decided(root, f"joins step {at}")
                group.operands |= operands
                group.nodes += self.evaluated[root]
                for v in node.outputs:
                    if v in self.roots or node.op.kind == REDUCTION:
                        group.roots.append(v)
                        self.position[v] = at
                return
            refusals.append(f"; not step {at}: {why_not}")
        group = _Group(domain, reduced)
        group.operands, group.nodes = operands, self.evaluated[root]
        self.order.append(group)
        over = f", reducing dims {list(reduced)}" if reduced else ""
        self._decided(root, f"opens step {len(self.order) - 1} over {list(domain)}{over}{''.join(refusals)}")
        for v in node.outputs:
            group.roots.append(v)
            self.position[v] = len(self.order) - 1

    def _reduced_dims(self, node: Node) -> tuple[int, ...]:
        source = node.inputs[0].spec
        return canonical_dims(node.op.name, node.args[1], source.ndim)

    def _decided(self, root: Value, what: str) -> None:
        """Record a decision for whoever looks (FLAMBEAU_DEBUG=3)."""
        if self.names is not None:
            self.result.decisions.append(f"{self.names[root]} {what}")

    def _why_not(self, group: _Group, at: int, root: Value, domain, reduced, leaves) -> str | None:
        """None if the group can compute root too, and takes it; else what is in the way."""
        inside = [(v, m) for v, m in leaves if self.position.get(self._through_views(v)) == at]
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
                if all(self._is_aligned(v, m, group) for v, m in inside)
                else "it reads elements at other places than its own"
            )
        if group.reduced and (inside or node.op.kind == INDEXING) and domain in group.row_shapes:
            lift = self._row_map(group, domain)
            return (
                None
                if all(self._is_aligned(v, compose(m, lift), group) for v, m in inside)
                else "it reads other rows than its own"
            )
        return "its domain is another"

    def _why_not_reduce(self, group: _Group, root: Value, domain, reduced, inside) -> str | None:
        """The same of a reduction."""
        if not reduced:
            return "it reduces no dim"
        if domain != group.domain or (reduced != group.reduced and (group.reduced or inside)):
            return (
                None
                if self._joins_over_units(group, root, domain, reduced, inside)
                else "its domain or its reduced dims are others"
            )
        if group.reduced != reduced:
            if any(r.node.op.kind != POINTWISE for r in group.roots):
                return "that one reads where indices say and cannot reduce"
            merged = _Group(domain, reduced)
            group.reduced, group.split = merged.reduced, merged.split
        if group.split or group.over_units:
            if not inside or (not group.over_units and all(self._is_full(v, m, group) for v, m in inside)):
                return None
            return "it reads what is known only when all units of that one have run"
        return None if all(self._is_aligned(v, m, group) for v, m in inside) else "it reads other rows than its own"

    def _joins_over_units(self, group: _Group, root: Value, domain, reduced, inside) -> bool:
        """A reduction of everything over a group's row values (the mean of per-row losses)."""
        if (
            not (inside or group.over_units)
            or len(reduced) != len(domain)
            or group.split
            or not group.reduced
            or domain not in group.row_shapes
        ):
            return False
        if any(r.node.op.kind in (POINTWISE, INDEXING) and tuple(r.spec.shape) == group.domain for r in group.roots):
            return False
        lift = self._row_map(group, domain)
        if not all(self._is_aligned(v, compose(m, lift), group) for v, m in inside):
            return False
        group.over_units = True
        return True

    def _is_full(self, v: Value, m: IndexMap, group: _Group) -> bool:
        return (
            v.node.op.kind == POINTWISE
            and tuple(v.spec.shape) == group.domain
            and m == identity(len(group.domain), v.spec.shape)
        )

    def _is_final(self, v: Value, group: _Group) -> bool:
        return v.spec.numel == 1 and (
            v.node.op.kind == POINTWISE or len(self._reduced_dims(v.node)) == v.node.inputs[0].spec.ndim
        )

    def _is_aligned(self, v: Value, m: IndexMap, group: _Group) -> bool:
        """Whether root v of the group, read at m over its domain, is what the same row (or element) computed."""
        if tuple(v.spec.shape) == group.domain and v.node.op.kind in (POINTWISE, INDEXING):
            return m == identity(len(group.domain), group.domain)
        for shape in group.row_shapes:
            if tuple(v.spec.shape) == shape:
                return m == self._row_map(group, shape)
        return False

    def _row_map(self, group: _Group, shape: Sequence[int]) -> IndexMap:
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
        for item in self.order:
            if isinstance(item, _Group):
                _GroupEmitter(self, item).emit()
            elif item.op.kind == ASSEMBLE:
                self._emit_pieces(item)
            else:
                self._emit_single(item)

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
            _PieceEmitter(self, node, Piece(base, tuple(out.spec.shape), buffer.spec.strides)).emit(buffer)
        for piece in node.op.rules.pieces(node.op, buffer.spec, *specs_of(node.op, node.args)):
            if math.prod(piece.shape):
                _PieceEmitter(self, node, piece).emit(buffer)

    def _emit_single(self, node: Node) -> None:
        operands, specs = [], []
        for v in node.inputs:
            buffer, spec, offset = self.resolve(v)
            operands.append(buffer.at(offset * spec.dtype.itemsize))
            specs.append(spec)
        outs = [self.buffer_of(v) for v in node.outputs]
        if node.op.kind == EXTERNAL:
            self.result.steps.append(
                Step.external(node.op, tuple(operands), tuple(specs), tuple(outs), node_template_args(node))
            )
            return
        it = iter(specs)
        args = tuple(_replace(a, it) for a in node.args)
        lowered = node.op.rules.lower(node.op, self.target, self.threads, *args)
        scratch = [self.result.add_scratch(n) for n in lowered.scratch_bytes]
        everything = [*operands, *outs, *scratch]
        for launch in lowered.launches:
            if launch.params[0] > 0:
                slots = tuple(ERROR if b == -1 else everything[b] for b in launch.buffers)
                self.result.steps.append(Step.kernel(launch.recipe, slots, launch.params, node.op.name, launch.flops))

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
        return not any(
            position > at or (position == at and (x is not target or m != whole))
            for _, position, x, m in self.readers.get(target, ())
        )


def _replace(a: Any, specs) -> Any:
    if isinstance(a, Value):
        return next(specs)
    if type(a) is tuple:
        return tuple(_replace(x, specs) for x in a)
    return a


def node_template_args(node: Node) -> tuple:
    """Attributes of a node with its tensors left out."""
    return tuple(None if isinstance(a, Value) else a for a in node.args)


class _GroupEmitter:
    """Turns a group into one kernel step."""

    def __init__(self, scheduler: _Scheduler, group: _Group):
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
            and not any(self.s._through_views(v) in self.inside for v, _ in self.s._leaves(r))
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
                    access = self._access(buffer.spec.strides, s._row_map(group, tuple(root.spec.shape)))
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
        return math.prod(node.inputs[0].spec.shape[d] for d in self.s._reduced_dims(node))

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
        return self.s._row_map(group, tuple(root.spec.shape))

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
            if inner is None or self.s._through_views(v).node is None:
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
            return self.value(copied, next(am for a, am in self.s._operand_maps(v, m) if a is copied))
        compute, result = pointwise_types(node.op, specs)
        maps = {id(a): am for a, am in self.s._operand_maps(v, m)}
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
        same = (
            tuple(node.inputs[0].spec.shape) == self.group.domain and self.s._reduced_dims(node) == self.group.reduced
        )
        return "inner" if same else "units"

    def _reduce(self, v: Value) -> Ref:
        key = (v.node.outputs[0], "state")
        if key not in self.memo:
            self.memo[key] = self._reduce_node(v.node)
        return self.b.part(self.memo[key], v.index)

    def _reduce_node(self, node: Node, stage: str = "whole") -> Ref:
        source, over, domain = node.inputs[0], self._over(node), self.group.domain
        m = identity(len(domain), domain) if over != "units" else self.s._row_map(self.group, tuple(source.spec.shape))
        arg = self.value(source, m)
        index = None
        if node.op.rules.with_index:
            steps, step = [0] * len(domain), 1
            for d in reversed(self.s._reduced_dims(node)):
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
        return self.s._row_map(self.group, tuple(root.spec.shape))

    def _keep(self, root: Value, ref: Ref) -> None:
        if len(self.group.reduced) != 1:
            return
        scratch = self.s.result.add_scratch(0)
        self.rows.append((scratch, self.group.domain[self.group.reduced[0]] * 16))
        self.b.keep(scratch, ref)


class _PieceEmitter(_GroupEmitter):
    """Turns one write of an Assemble node into a kernel step."""

    def __init__(self, scheduler: _Scheduler, node: Node, piece: Piece):
        super().__init__(scheduler, _Group(piece.shape, piece.serial))
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
