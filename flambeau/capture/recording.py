"""One trace of a function of tensors: a graph, what it reads from outside, and what has to be put back in place after it has run.

    recording = record(step, leaves, structure)      # the function runs once, on stand-ins
    recording.sources                                # where each input of the graph comes from at a replay
    recording.finish(outs, inputs, sizes)            # the function's result, from what the graph gave

Whatever the function does to tensors is in the graph; gradients it leaves in `.grad` are results that are hung there. With `joint=True` the
graph also holds the gradients of its results, over tangents that are inputs: `joint` splits it.

May not know: guards beyond specs, plans. Raises: RuntimeError where the function needs a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flambeau._tensor import Tensor, new_tensor, wrap_traced
from flambeau.base.errors import TraceError
from flambeau.base.pytree import tree_flatten, tree_unflatten
from flambeau.core.spec import Spec
from flambeau.core.symbolic import Guards, SymInt, concrete
from flambeau.engine import in_place
from flambeau.engine import recording as launches
from flambeau.ir import tracing
from flambeau.ir.bind import MODES
from flambeau.ir.graph import Graph, Value, map_values
from flambeau.ir.numbers import plain
from flambeau.tape import backward
from flambeau.tape import record as tape
from flambeau.tape.custom import CustomNode, attach
from flambeau.tape.grad_mode import mode
from flambeau.tape.views import chain_of

OUT, INPUT, VALUE = "out", "input", "value"


class Recording:
    """See the module. `leaves` say what each leaf of the result is: (OUT, number), (INPUT, number) or (VALUE, object)."""

    def __init__(self, recorder: tracing.Recorder, count: int):
        self.graph: Graph = recorder.graph
        self.count = count  # inputs that are the function's own
        self.sources: list[Any] = [v.constant for v in self.graph.inputs[count:]]
        self.hosts: list[Callable[[], tuple]] = recorder.hosts
        self.conditions = recorder.conditions
        self.structure: Any = None
        self.leaves: list[tuple[str, Any]] = []
        self.gradients: list[
            tuple[Any, int]
        ] = []  # (tensor from outside or number of an input, output) to be hung in `.grad`
        self.without_gradient: list[Any] = []  # whose `.grad` becomes None
        self.given_gradients: list[tuple[Any, Tensor]] = []  # whose `.grad` becomes a tensor from outside
        self.cleared: set[int] = (
            recorder.cleared
        )  # ids of outside tensors whose `.grad` the function sets to None itself
        self.cleared_inputs: set[int] = set()
        self.guards: Guards | None = None  # comparisons on symbolic sizes that the trace rests on
        self.outside_grads: list[tuple[Tensor, Spec | None]] = []  # tensors whose `.grad` was read, and what it was
        self.tangents: list[Value] = []  # inputs that stand for gradients of `differentiable` outputs
        self.differentiable: list[int] = []
        self.wanted: list[
            tuple[str, Any]
        ] = []  # (INPUT, number) or (VALUE, tensor) whose gradients are results, behind `results`
        self.unreached: list[
            tuple[str, Any]
        ] = []  # the same for those that need gradients and get none, if all get none
        self.bases: dict[int, Tensor] = {}  # if not empty, the trace is wrong: another is to see memory through these
        self.results = 0  # outputs that are not gradients of the joint graph

    @property
    def constants(self) -> list[Tensor]:
        """Tensors from outside."""
        return [x for x in self.sources if isinstance(x, Tensor)]

    def values(self, inputs: list) -> list:
        """Tensors and numbers for the graph's inputs, tangents left out."""
        recorder = launches.active() if MODES else None  # of a graph capture: its replays call `hosts` again
        drawn = [get() if recorder is None else recorder.host(get) for get in self.hosts]
        found = list(inputs)
        for x in self.sources:
            kind = type(x)
            if kind is tracing.HostNumber:
                found.append(drawn[x.source][x.index])
            elif kind is tracing.GradOf:
                found.append(x.tensor.grad)
            elif kind is not tracing.Tangent:
                found.append(x)
        return found

    def finish(self, outs: tuple, inputs: list, sizes: Mapping[str, int]) -> Any:
        """Versions counted, gradients hung, and the result."""
        self.count_writes(inputs)
        for t, at in self.gradients:
            cleared = t in self.cleared_inputs if isinstance(t, int) else id(t) in self.cleared
            t = inputs[t] if isinstance(t, int) else t
            old = t.grad
            t._set_grad(outs[at] if old is None or cleared else old + outs[at])
        for t in self.without_gradient:
            (inputs[t] if isinstance(t, int) else t)._set_grad(None)
        for t, g in self.given_gradients:
            (inputs[t] if isinstance(t, int) else t)._set_grad(g)
        found: list = []
        for kind, x in self.leaves:
            found.append(outs[x] if kind is OUT else inputs[x] if kind is INPUT else concrete(x, sizes) if sizes else x)
        return tree_unflatten(found, self.structure)

    def equals(self, other: Recording, sizes: Mapping[str, int]) -> bool:
        """Whether this symbolic recording is, for some sizes, what was recorded at those sizes."""
        if (self.structure, self.differentiable) != (other.structure, other.differentiable):
            return False
        if [(k, id(x) if k is VALUE else x) for k, x in self.wanted] != [
            (k, id(x) if k is VALUE else x) for k, x in other.wanted
        ]:
            return False
        mine, theirs = self.graph.concrete(sizes), other.graph
        if len(self.leaves) != len(other.leaves) or not _same_graph(mine, theirs):
            return False
        for (kind, a), (other_kind, b) in zip(self.leaves, other.leaves):
            a = concrete(a, sizes)
            if kind is not other_kind or not (a is b or (isinstance(a, (int, float, str, tuple)) and a == b)):
                return False
        return True

    def hangs_gradients(self) -> bool:
        """Whether the function changes `.grad` of tensors that were there before."""
        return bool(self.gradients or self.without_gradient or self.given_gradients)

    def count_writes(self, inputs: list) -> None:
        for target, _ in self.graph.writes:
            t = inputs[target.index] if target.constant is None else target.constant
            if type(t) is tracing.GradOf:
                t = t.tensor.grad
            t.storage.version += 1

    def shares_memory(self, inputs: list) -> bool:
        """Whether a write would show in another input."""
        if not self.graph.writes:
            return False
        given = [*inputs, *self.constants]
        if len({id(t.storage) for t in given}) == len(given):
            return False
        written = [inputs[t.index] if t.constant is None else t.constant for t, _ in self.graph.writes]
        at: dict[int, list[Tensor]] = {}
        for t in given:
            at.setdefault(id(t.storage), []).append(t)
        return any(
            t is not w and in_place.overlap(t, w) for w in written if isinstance(w, Tensor) for t in at[id(w.storage)]
        )


def record(
    function: Callable,
    flat: list,
    structure: Any,
    *,
    symbolic: Callable[[int, int], bool] | None = None,
    joint: bool = False,
    observer: Any = None,
    bases: Mapping[int, Tensor] | None = None,
    regions: bool = False,
) -> Recording:
    """Run `function(*args)` once on stand-ins; `flat` and `structure` are its arguments as a pytree.

    `bases` are what an earlier trace found: where tensors from outside overlap and are written to, what they are all seen through.
    `regions`: functions marked as pieces of their own are single nodes.
    `symbolic(i, dim)` says which sizes of input i are symbolic. `observer` is entered around the call and may give, by `payload()`, values whose
    tensors become results too: the function's result is then (result, payload). With `joint`, gradients are traced where the result has a history.
    """
    recorder = tracing.Recorder()
    recorder.symbolic, recorder.repeats = symbolic is not None, True
    recorder.bases, recorder.regions = dict(bases or {}), regions
    guards = Guards()
    graph = recorder.graph
    stand_ins: list = []
    met: dict[int, Tensor] = {}  # an argument given twice is one input
    with tracing.recording(recorder, keep_stack=True):
        for x in flat:
            if isinstance(x, Tensor) and id(x) in met:
                stand_ins.append(met[id(x)])
            elif isinstance(x, Tensor):
                at = len(graph.inputs)
                t = wrap_traced(recorder, graph.input(_spec(x, at, symbolic, guards)))
                t.needs_grad = x.requires_grad
                if joint and tape.edge_of(x) is not None and tape.edge_of(x)[0] is not None:
                    _Before(t)
                met[id(x)] = t
                stand_ins.append(t)
            else:
                stand_ins.append(x)
        own = list(met.values())
        begun, started = list(graph.inputs), tape.next_sequence()
        nodes = [(t.needs_grad, t.node) for t in own]
        try:
            if observer is None:
                result = function(*tree_unflatten(stand_ins, structure))
            else:
                with observer:
                    result = function(*tree_unflatten(stand_ins, structure))
                result = (result, observer.payload())
            recording = _read(recorder, result, own, begun)
            if joint:
                _check_history(own, nodes, recorder)
                _add_gradients(recorder, recording, result, own, nodes, started)
        finally:
            _restore(recorder)
    recording.sources = [v.constant for v in graph.inputs[recording.count :]]
    recording.guards = guards if symbolic is not None else None
    recording.bases = {} if bases else _bases_of(recorder)
    recording.outside_grads = [(t, None if g is None else g.spec) for t, g in recorder.grads_read.values()]
    graph.verify()
    return recording


def _spec(t: Tensor, number: int, symbolic: Callable[[int, int], bool] | None, guards: Guards) -> Spec:
    """The spec a stand-in shows."""
    if symbolic is None or not any(symbolic(number, d) for d in range(t.ndim)):
        return t.spec.plain()
    sizes = [SymInt.named(f"s{number}_{d}", n, guards) if symbolic(number, d) else n for d, n in enumerate(t.shape)]
    return Spec.of(sizes, t.dtype, t.device)


def _read(recorder: tracing.Recorder, result: Any, own: list[Tensor], begun: list[Value]) -> Recording:
    """What the trace gave: outputs, gradients, writes."""
    graph = recorder.graph
    recording = Recording(recorder, len(own))
    numbers = {id(t): i for i, t in enumerate(own)}
    flat, recording.structure = tree_flatten(result)
    for x in flat:
        if not isinstance(x, Tensor):
            recording.leaves.append((VALUE, plain(x)))
        elif id(x) in numbers:
            recording.leaves.append((INPUT, numbers[id(x)]))
        elif "_traced" not in x.__dict__ or x.ptr is not None:
            recording.leaves.append((VALUE, x))  # from outside, written to or not
        else:
            recording.leaves.append((OUT, len(graph.outputs)))
            graph.outputs.append(recorder.value_of(x))
    for t, _ in recorder.grads_before.values():
        g, at = t.__dict__.get("_grad"), numbers.get(id(t))
        place = t if at is None else at
        if at is not None and id(t) in recorder.cleared:
            recording.cleared_inputs.add(at)
        if g is None:
            recording.without_gradient.append(place)
        elif g.ptr is None:
            recording.gradients.append((place, len(graph.outputs)))
            graph.outputs.append(recorder.value_of(g))
        else:
            recording.given_gradients.append((place, g))  # a tensor from outside was hung there
    for t, value in zip(own, begun):
        if (t.spec.shape, t.spec.strides) != (value.spec.shape, value.spec.strides):
            raise TraceError(
                f"compile: an in-place op gives an argument of shape {list(value.spec.shape)} another shape, which a traced function cannot. "
                f"Use the form that returns a tensor."
            )
        now = recorder.value_of(t)
        if now is not value:
            graph.writes.append((value, now))
    graph.writes += [(p.input, p.value) for p in recorder.places.values() if p.written]
    recording.results = len(graph.outputs)
    return recording


def _add_gradients(
    recorder: tracing.Recorder, recording: Recording, result: Any, own: list[Tensor], nodes: list, started: int
) -> None:
    """Extend the graph by the gradients of the results with respect to inputs and tensors from outside."""
    graph = recorder.graph
    flat, _ = tree_flatten(result)
    outs: list[Tensor] = []
    for x, (kind, at) in zip(flat, recording.leaves):
        if kind is OUT and at not in recording.differentiable and has_history(x):
            recording.differentiable.append(at)
            outs.append(x)
            if x.retains_grad:
                raise TraceError(
                    "compile: retain_grad() of a result inside of a compiled function: what it is used for inside reaches no `.grad`. Return it "
                    "first, and use it outside."
                )
    if not outs:
        return
    wanted = [((INPUT, i), t) for i, (t, (needs, node)) in enumerate(zip(own, nodes)) if needs and t.node is node]
    wanted += [((VALUE, t), t) for t in recorder.alive.values() if t.needs_grad]
    tangents = []
    for x in outs:
        value = graph.input(Spec.of(x.spec.shape, x.spec.dtype, x.spec.device))
        value.constant = tracing.Tangent(len(recording.tangents))
        recording.tangents.append(value)
        tangents.append(wrap_traced(recorder, value))
    grads = backward.run_backward(outs, tangents, [t for _, t in wanted], retain_graph=True, since=started)
    for (place, _), g in zip(wanted, grads):
        if g is not None:
            recording.wanted.append(place)
            graph.outputs.append(recorder.value_of(g))
    if not recording.wanted:
        recording.unreached = [place for place, _ in wanted]


def _check_history(own: list[Tensor], nodes: list, recorder: tracing.Recorder) -> None:
    """Raises: TraceError where an in-place op gave a tensor that was there before another history: a replay could not."""
    for t, (needs, node) in zip(own, nodes):
        if t.node is not node or t.needs_grad != needs:
            raise TraceError(_OTHER_HISTORY.format("an argument", list(t.shape)))
    for t in recorder.stamped:
        _, node, needs = t.__dict__["_before_trace"]
        if t.node is not node or t.needs_grad != needs:
            raise TraceError(_OTHER_HISTORY.format("a tensor from outside", list(t.shape)))


_OTHER_HISTORY = "compile: an in-place op changes the history of {} of shape {}, which a compiled function cannot. Write under no_grad(), or to a clone."


class _Before(CustomNode):
    """Stands for the history that an argument brings with it."""

    def __init__(self, x: Tensor):
        enabled, mode.enabled = mode.enabled, True
        attach(self, (x,), (x,), None, "BeforeCompiled")
        mode.enabled, self.saved = enabled, ()

    def backward(self, grads: list, create_graph: bool) -> list:
        raise TraceError(
            "compile: a backward inside of a compiled function reaches the history of an argument. Call backward outside, or compile what made "
            "the argument too."
        )


def _same_graph(a: Graph, b: Graph) -> bool:
    """Whether two graphs of plain sizes have equal nodes in equal order."""
    if len(a.inputs) != len(b.inputs) or len(a.nodes) != len(b.nodes):
        return False
    number: dict[Value, Value] = {}
    for v, w in zip(a.inputs, b.inputs):
        if type(v.constant) is not type(w.constant) or (
            isinstance(v.constant, Tensor) and v.constant is not w.constant
        ):
            return False
        number[v] = w
    for m, n in zip(a.nodes, b.nodes):
        args = map_values(lambda v: number[v], m.args)
        if m.op is not n.op or not _equal_arguments(args, n.args):
            return False
        number.update(zip(m.outputs, n.outputs))
    return [number[v] for v in a.outputs] == b.outputs and [(number[t], number[v]) for t, v in a.writes] == b.writes


def _equal_arguments(a: Any, b: Any) -> bool:
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(_equal_arguments, a, b))
    return a is b or (not isinstance(a, Value) and (a == b or (a != a and b != b)))


def has_history(x: Tensor) -> bool:
    """Whether a tensor has a history that a backward inside the function has not used up."""
    edge = tape.edge_of(x)
    return edge is not None and edge[0] is not None and edge[0].saved is not None


def _bases_of(recorder: tracing.Recorder) -> dict[int, Tensor]:
    """For storages where a write shows in part of another tensor from outside: one flat tensor that covers all that were met."""
    by_storage: dict[int, list[tracing.Place]] = {}
    for (storage, _, _), place in recorder.places.items():
        by_storage.setdefault(storage, []).append(place)
    found: dict[int, Tensor] = {}
    for storage, places in by_storage.items():
        if len(places) == 1 or not any(p.written for p in places):
            continue
        first = [p.tensors[0] for p in places]
        if not any(
            p.written and p is not q and in_place.overlap(t, u)
            for p, t in zip(places, first)
            for q, u in zip(places, first)
        ):
            continue
        covered = [t for x in first for t in (x, chain_of(x)[0]) if id(t.storage) == storage]
        dtype, start = first[0].spec.dtype, min(t.ptr for t in covered)
        if all(t.spec.dtype is dtype and (t.ptr - start) % dtype.itemsize == 0 for t in covered):
            count = max(t.ptr - start + _extent(t) for t in covered) // dtype.itemsize
            found[storage] = new_tensor(Spec.of((count,), dtype, first[0].device), start, first[0].storage)
    return found


def _extent(t: Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    return (1 + sum((n - 1) * s for n, s in zip(t.shape, t.spec.strides))) * t.spec.dtype.itemsize if t.numel() else 0


def _restore(recorder: tracing.Recorder) -> None:
    """Tensors from outside as they were before the trace."""
    for t in recorder.stamped:
        t.__dict__.pop("_traced", None)
        saved = t.__dict__.pop("_before_trace", None)
        if saved is not None:
            t.spec, t.node, t.needs_grad = saved
    for t, old in recorder.grads_before.values():
        t.__dict__["_grad"] = old
