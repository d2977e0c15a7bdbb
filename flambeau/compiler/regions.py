"""Functions that a program calls many times in one graph, traced and scheduled once: `nested_compile_region`.

    Block.forward = nested_compile_region(Block.forward)      # 64 blocks compile in little more than the time of one

A call in a trace becomes one node, whose op (`engine.chain.Region`) holds the graph of the function; its gradient is another. A later call with
equal arguments takes the same ops. Modules are equal if they agree in all that the trace looked at: parameters and buffers then are arguments
of the node, found at the same place in the other module, and what was guarded in the one is guarded in the other.

What cannot be a piece of its own (side effects, gradients hung on tensors, numbers that change other than random ones) is traced as if it were
not marked, and so is all of a trace with symbolic sizes. May not know: how chains run. Entry: `nested_compile_region`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor, wrap_traced
from flambeau.base.errors import TraceError
from flambeau.base.pytree import tree_flatten, tree_unflatten
from flambeau.capture.recording import INPUT, OUT, Recording, record
from flambeau.compiler import observe, values
from flambeau.compiler.entry import Entry
from flambeau.compiler.guards import ATTRIBUTE, CONTENT, ITEM, TABLES, Guard, Guards, ModuleState
from flambeau.compiler.values import leaf_key
from flambeau.core.dtype import get_default_dtype
from flambeau.engine.chain import Region
from flambeau.ir import bind, tracing
from flambeau.ir.graph import Graph, Value
from flambeau.ir.op import REGISTRY, VIEW
from flambeau.tape import record as tape
from flambeau.tape.custom import CustomNode, attach
from flambeau.tape.grad_mode import mode

INLINE = object()  # in place of known pieces: calls with this key are traced as if they were not marked


def nested_compile_region(fn: Any = None) -> Any:
    """Mark a function that a program calls many times (a block of a model): in a compiled function it is traced and scheduled once and used
    for all calls with equal arguments, which keeps the time to compile short. Nothing is fused across its borders.

    fn: a function or method, a module or a class of modules (then their `forward` is marked). Eagerly it is called as it is.
    """
    if fn is None:
        return nested_compile_region
    if isinstance(fn, type) or values.is_module_like(fn):
        fn.forward = nested_compile_region(fn.forward)
        return fn
    function, *bound = (fn.__func__, fn.__self__) if hasattr(fn, "__func__") else (fn,)

    @functools.wraps(function)
    def region(*args: Any, **kwargs: Any) -> Any:
        recorder = tracing.current() if bind.MODES else None
        if recorder is None or not recorder.regions or bind.stack.items or tape.saved_hooks:
            return function(*bound, *args, **kwargs)
        return _call(recorder, function, (*bound, *args), kwargs)

    return region


def _call(recorder: tracing.Recorder, function: Callable, args: tuple, kwargs: dict) -> Any:
    """The function's result: from a piece that is known, or from a new one."""
    flat, structure = tree_flatten((args, kwargs))
    tensors = list({id(x): x for x in flat if isinstance(x, Tensor)}.values())
    if any("_wrapped" in x.__dict__ for x in tensors):
        return function(*args, **kwargs)
    number = {id(x): i for i, x in enumerate(tensors)}
    key: list = [function, structure, mode.enabled, get_default_dtype()]
    for x in flat:
        if isinstance(x, Tensor):
            key.append((number[id(x)], recorder.value_of(x).spec.plain(), x.requires_grad))
        else:
            key.append(type(x) if values.is_module_like(x) else leaf_key(x))
    modules = [x for x in flat if values.is_module_like(x)]
    known = recorder.memo.setdefault(("region", *key), [])
    if known is INLINE:
        return function(*args, **kwargs)
    observer = observe.active()
    for piece in known:
        same = Correspondence(piece.modules, modules)
        if same.holds(piece.guards, piece.seen):
            same.note(observer)
            return piece.place(recorder, tensors, same)
    piece, reusable = _traced(recorder, function, flat, structure, modules, observer)
    if piece is None or not reusable:
        recorder.memo["region", *key] = INLINE
        if piece is None:
            return function(*args, **kwargs)
    else:
        known.append(piece)
    return piece.place(recorder, tensors, Correspondence(modules, modules))


def _traced(
    recorder: tracing.Recorder,
    function: Callable,
    flat: list,
    structure: Any,
    modules: list,
    observer: observe.Observer,
) -> tuple[Piece | None, bool]:
    """A piece, None where there can be none, and whether it may be used again."""
    before, enabled = observer.effects_seen(), mode.enabled
    stamps = [(t, t.__dict__["_traced"]) for t in recorder.stamped]
    try:
        recording = record(lambda a, k: function(*a, **k), flat, structure, joint=not mode.inference, regions=True)
    except TraceError:
        return None, False  # traced as part of the whole it says the same, with its place
    finally:
        mode.enabled = enabled
        for t, traced in stamps:
            t.__dict__["_traced"] = traced
    if recording.conditions or recording.outside_grads or recording.hangs_gradients() or recording.bases:
        return None, False
    plain = all(kind in (OUT, INPUT) or values.is_plain(x) for kind, x in recording.leaves)
    piece = Piece(getattr(function, "__qualname__", "region"), recording, modules, observer)
    return piece, plain and before == observer.effects_seen()


class Piece:
    """A traced function as ops for its forward and backward."""

    def __init__(self, name: str, recording: Recording, modules: list, observer: observe.Observer):
        self.recording, self.modules = recording, modules
        self.entry = Entry(recording, Guards([], []), [])
        within = Correspondence(modules, modules)
        self.guards = [g for g in observer.guards() if g.kind in (ATTRIBUTE, ITEM, CONTENT)] if modules else []
        self.seen = [ModuleState.of(m) for m in observer.modules.values() if within.find(m) is not None]
        graph = self.entry.graph
        reads = self.entry.reads or list(range(len(graph.inputs)))
        self.targets = [
            reads[t.index] for t, _ in graph.writes
        ]  # what is written to, as a place among the values of a call
        self.kept = len(graph.outputs) - recording.results
        self.reads = reads
        stem = "".join(c if c.isalnum() else "_" for c in name.rpartition(".<locals>.")[2])
        self.forward = Region(stem, _with_writes_as_outputs(graph))
        self.backward = Region(stem + "_backward", _owning(self.entry.backward_graph)) if self.entry.joint else None

    def place(self, recorder: tracing.Recorder, tensors: list[Tensor], same: Correspondence) -> Any:
        """Add a call to a trace. Returns the function's result."""
        recording = self.recording
        given = [*tensors, *self._sources(recorder, same), *self.entry.bound]
        outs = _apply(recorder, self.forward, [given[i] for i in self.reads])
        results, saved = outs[: recording.results], outs[recording.results : recording.results + self.kept]
        if self.entry.joint:
            self._attach(given, tensors, results, saved, same)
        with_grad, mode.enabled = mode.enabled, False
        for at, written in zip(self.targets, outs[recording.results + self.kept :]):
            given[at]._become(written)
        mode.enabled = with_grad
        found = [results[x] if kind is OUT else tensors[x] if kind is INPUT else x for kind, x in recording.leaves]
        return tree_unflatten(found, recording.structure)

    def _sources(self, recorder: tracing.Recorder, same: Correspondence) -> list:
        """Tensors from outside and numbers that are drawn anew, for this call."""
        kinds: dict[int, list[type]] = {}
        inputs = self.recording.graph.inputs[self.recording.count :]
        for v in inputs:
            if type(v.constant) is tracing.HostNumber:
                kinds.setdefault(v.constant.source, []).append(v.spec.type)
        drawn = {at: recorder.host(self.recording.hosts[at], types) for at, types in kinds.items()}
        found: list = []
        for x in self.recording.sources:
            if type(x) is tracing.HostNumber:
                found.append(drawn[x.source][x.index])
            elif type(x) is not tracing.Tangent:
                found.append(same.other(x))
        return found

    def _attach(self, given: list, tensors: list, results: tuple, saved: tuple, same: Correspondence) -> None:
        recording = self.recording
        sources = [tensors[x] if kind is INPUT else same.other(x) for kind, x in recording.wanted + recording.unreached]
        node = RegionNode()
        enabled, mode.enabled = mode.enabled, True
        if attach(node, sources, [results[i] for i in recording.differentiable], None, "RegionBackward"):
            node.piece = self
            node.saved = [
                tape.saved_alias(given[at], history=False)
                if kind == "given"
                else saved[at]
                if kind == "saved"
                else None
                for kind, at in self.entry.backward_reads
            ]
        mode.enabled = enabled

    def gradients(self, kept: list, grads: list) -> list:
        """Gradients of what is wanted, as nodes of the present trace."""
        recorder, entry = tracing.current(), self.entry
        if not self.recording.wanted:
            return [None] * len(self.recording.unreached)
        tangents = []
        for g, spec in zip(grads, entry.tangent_specs):
            if g is None:
                g = tape.zeros(spec)
            elif recorder.value_of(g).spec.plain() is not spec:
                g = g.to(spec.dtype).contiguous()
            tangents.append(g)
        operands = [tangents[at] if kind == "tangent" else x for (kind, at), x in zip(entry.backward_reads, kept)]
        return list(_apply(recorder, self.backward, operands))


class RegionNode(CustomNode):
    """The history of a piece's results, inside a trace."""

    __slots__ = ("piece",)

    def backward(self, grads: list, create_graph: bool) -> list:
        """See `Piece.gradients`."""
        if self.saved is None:
            self.complain_of_freed()
        if create_graph:
            raise TraceError(
                f"nested_compile_region: the gradient of {self.piece.forward.name} is a piece of its own and cannot be differentiated again. "
                "Do not mark it where create_graph=True is used."
            )
        return self.piece.gradients(self.saved, grads)


def _apply(recorder: tracing.Recorder, op: Region, operands: list) -> tuple:
    """The op's results in a trace."""
    made = recorder.graph.add(op, tuple(recorder.value_of(x) for x in operands), specs=op.specs)
    return tuple(wrap_traced(recorder, v) for v in made)


def _with_writes_as_outputs(graph: Graph) -> Graph:
    """The graph without writes: what it would write comes behind its results."""
    graph.outputs = [*graph.outputs, *(v for _, v in graph.writes)]
    graph.writes = []
    return _owning(graph)


def _owning(graph: Graph) -> Graph:
    """Results that would lie in an input's memory are copies, for others may write there."""
    clone = REGISTRY["clone"]

    def lies_in_input(v: Value) -> bool:
        return v.node is None or (v.node.op.kind == VIEW and lies_in_input(v.node.inputs[0]))

    graph.outputs = [graph.add(clone, clone.arguments(v))[0] if lies_in_input(v) else v for v in graph.outputs]
    return graph


def _kept_state(t: Tensor) -> tuple:
    """Spec and requires_grad of a tensor as they were before the trace wrote to it."""
    spec, _, needs_grad = t.__dict__.get("_before_trace", (t.spec, None, t.needs_grad))
    return spec.plain(), needs_grad


class Correspondence:
    """Which objects of one list of modules stand for which of another: those at the same places in their tables."""

    def __init__(self, first: list, second: list):
        self._other: dict[int, Any] = {}
        self._keep: list = []
        self._guards: list[Guard] = []
        self._modules: list = []
        self.equal = all(self._pair_modules(a, b) for a, b in zip(first, second))

    def find(self, x: Any) -> Any:
        """What stands for x; None if nothing does."""
        return self._other.get(id(x))

    def other(self, x: Any) -> Any:
        """What stands for x: x itself where it is no part of the modules."""
        return self._other.get(id(x), x)

    def _pair(self, a: Any, b: Any) -> bool:
        """Whether b stands for a."""
        known = self._other.get(id(a))
        if known is not None:
            return known is b
        if values.is_module_like(a):
            return type(a) is type(b) and self._pair_modules(a, b)
        if isinstance(a, Tensor):
            if type(a) is not type(b) or _kept_state(a) != _kept_state(b) or a.node is not None:
                return a is b
        elif not (type(a) is type(b) and isinstance(a, (list, dict, tuple)) and len(a) == len(b)):
            return a is b or values.same(a, b)
        self._other[id(a)] = b
        self._keep.append(a)
        return True

    def _pair_modules(self, a: Any, b: Any) -> bool:
        if type(a) is not type(b):
            return False
        if id(a) in self._other:
            return self._other[id(a)] is b
        self._other[id(a)] = b
        self._keep.append(a)
        for name in TABLES:
            mine, others = a.__dict__.get(name) or {}, b.__dict__.get(name) or {}
            if list(mine) != list(others) or not all(map(self._pair, mine.values(), others.values())):
                return False
        return True

    def holds(self, guards: list[Guard], seen: list[ModuleState]) -> bool:
        """Whether all that was looked at is equal in the others."""
        if not self.equal:
            return False
        for state in seen:
            b = self.find(state.module)
            if b is None or not all(values.same(b.__dict__.get(k, values.ABSENT), v) for k, v in state.plain.items()):
                return False
            self._modules.append(b)
        for g in guards:
            holder = self.find(g.holder)
            if holder is None or holder is g.holder:
                continue
            if g.kind is CONTENT:
                now = values.snapshot(holder)
                pairs = zip(g.value.values(), now.values()) if isinstance(now, dict) else zip(g.value, now)
                if len(now) != len(g.value) or (isinstance(now, dict) and list(now) != list(g.value)):
                    return False
                if not all(self._pair(x, y) for x, y in pairs):
                    return False
            else:
                now = g._replace(holder=holder).now()
                if not self._pair(g.value, now):
                    return False
            self._guards.append(g._replace(holder=holder, value=now))
        return True

    def note(self, observer: observe.Observer) -> None:
        """The trace rests on the others too."""
        observer.rest_on(self._guards, self._modules)
