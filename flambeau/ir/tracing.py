"""Recording ops into a graph: `trace(function, specs)` runs a function on stand-ins and returns what it did.

The innermost trace of a thread takes every op that reaches the bottom of the interpreter stack. A tensor from outside
becomes an input with `constant` set; tensors at the same memory are one input, and all of them show what is written to any (`Memory`).
May not know: what a tensor is (the tensor layer registers `make`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.spec import Spec
from flambeau.ir import bind
from flambeau.ir.graph import Graph, Value, number_spec
from flambeau.ir.op import REGISTRY, Op

MOST_READ = 64  # elements of a tensor from outside that a trace may read


class HostNumber:
    """A source of an input: result `index` of the trace's host function number `source`, called anew for every replay."""

    __slots__ = ("source", "index")

    def __init__(self, source: int, index: int):
        self.source, self.index = source, index


class GradOf:
    """A source of an input: the `.grad` that a tensor from outside has at the time."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any):
        self.tensor = tensor


class Tangent:
    """A source of an input: the gradient of a result, known when backward runs."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number


class Place:
    """Memory that tensors lie in, all of them with one spec: those met so far, and for memory from outside its value at first and now."""

    __slots__ = ("spec", "tensors", "input", "value", "written")

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.tensors: list[Any] = []
        self.input: Value | None = None
        self.value: Value | None = None
        self.written = False


class Recorder:
    """One trace in progress."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.places: dict[Any, Place] = {}  # of memory from outside, by (storage, address, spec)
        self.place_of: dict[int, tuple[Any, Place]] = {}  # by id of a tensor, which is kept alive
        self.origins: dict[
            int, Any
        ] = {}  # by id of a tensor made in the trace on memory from outside: whose memory that is
        self.bases: dict[
            int, Any
        ] = {}  # by storage whose tensors overlap and are written to: the tensor they are all views of
        self.alive: dict[int, Any] = {}  # tensors from outside that were met, by id, which stays theirs
        self.stamped: list[Any] = []  # tensors from outside that were written to, in order
        self.symbolic = False  # whether inputs have symbolic sizes
        self.repeats = False  # whether the graph is replayed as it is: random numbers would come out the same each time
        self.regions = False  # whether functions that are marked so are pieces of their own
        self.cleared: set[int] = set()  # ids of tensors from outside whose `.grad` was set anew
        self.hosts: list[Callable[[], tuple]] = []  # what gives the numbers that each replay computes anew
        self.conditions: list[
            tuple[Callable[[], Any], Any, str]
        ] = []  # (get, value, what it is): a replay is right while get() is value
        self.memo: dict[Any, Any] = {}  # what library code makes once per trace
        self.valued = False  # whether values of tensors from outside were looked at
        self.grads_read: dict[int, tuple[Any, Any]] = {}  # tensors from outside and the `.grad` they were read with
        self.grads_before: dict[int, tuple[Any, Any]] = {}  # tensors whose `.grad` the trace changed, and what it was

    def value_of(self, tensor: Any) -> Value:
        """The graph's value for a tensor: its own if it is of this trace, else that of its memory, at first a new input."""
        owner = getattr(tensor, "_traced", None)
        if owner is not None and owner[0] is self:
            return owner[1]
        place = self.place(tensor)
        if place.value is None:
            if self.has_base(tensor) and place is not self.place(self.bases[id(tensor.storage)]):
                return self.shown(tensor)
            found = place.input = place.value = self.graph.input(tensor.spec.plain())
            source = self.origins.get(id(tensor), tensor)
            found.constant = next((GradOf(t) for t, g in self.grads_read.values() if g is source), source)
        return place.value

    def place(self, tensor: Any) -> Place:
        """Where a tensor lies. Of one from outside: a tensor met later at the same memory lies there too, and the trace rests on that."""
        known = self.place_of.get(id(tensor))
        if known is not None:
            return known[1]
        if tensor.ptr is None or tensor.storage is None:
            found = Place(None)
        else:
            spec = tensor.spec.plain()
            found = self.places.setdefault((id(tensor.storage), tensor.ptr, spec), Place(spec))
            source = self.origins.get(id(tensor), tensor)
            if self.repeats and found.input is not None:
                first = found.input.constant
                if first is not source and type(first) is not GradOf:
                    self.depend(
                        lambda: (source.ptr - first.ptr, source.needs_grad),
                        "how two tensors share memory, or requires_grad of one",
                    )
            if id(source) not in self.alive:
                self.alive[id(source)] = source
                if self.has_base(source):
                    self.depend(lambda: source.ptr, "where a tensor that overlaps another lies")
        found.tensors.append(tensor)
        self.place_of[id(tensor)] = (tensor, found)
        return found

    def tie(self, tensor: Any, alias: Any) -> None:
        """Note that a tensor was just made on the memory of another."""
        if tensor.ptr is not None:
            self.origins[id(alias)] = self.origins.get(id(tensor), tensor)
        place = self.place(tensor)
        known = self.place_of.get(id(alias))
        if known is not None:
            known[1].tensors = [t for t in known[1].tensors if t is not alias]
        place.tensors.append(alias)
        self.place_of[id(alias)] = (alias, place)

    def has_base(self, tensor: Any) -> bool:
        """Whether a tensor from outside lies in a storage of which all is seen through one base."""
        return tensor.ptr is not None and id(tensor.storage) in self.bases

    def shown(self, tensor: Any) -> Value:
        """The value of a tensor whose storage has a base: a view of what the base holds now."""
        place, base = self.place(tensor), self.bases[id(tensor.storage)]
        spec, offset = place.spec, (tensor.ptr - base.ptr) // place.spec.dtype.itemsize
        view = REGISTRY["as_strided"]
        (place.value,) = self.graph.add(view, (self.value_of(base), tuple(spec.shape), tuple(spec.strides), offset))
        place.input = place.input or place.value
        return place.value

    def write(self, tensor: Any, value: Value) -> list[tuple[Any, Value]]:
        """Note that the memory of a tensor holds `value` now. Returns the other tensors that show something else since, and what."""
        place = self.place(tensor)
        if tensor.ptr is None:
            return [(t, value) for t in place.tensors if t is not tensor]
        self.value_of(tensor)
        based = self.has_base(tensor)
        whole = self.place(self.bases[id(tensor.storage)]) if based else place
        whole.written = True
        if place is whole:
            whole.value = value
        else:
            spec, start = place.spec, whole.tensors[0].ptr
            chain = (
                ("as_strided", (tuple(spec.shape), tuple(spec.strides), (tensor.ptr - start) // spec.dtype.itemsize)),
            )
            (whole.value,) = self.graph.add(REGISTRY["view_scatter"], (whole.value, value, chain))
        seen = [p for (storage, _, _), p in self.places.items() if storage == id(tensor.storage)] if based else [place]
        others = []
        for other in seen:
            if other is not whole:
                self.shown(other.tensors[0])
            others += [(t, other.value) for t in other.tensors if t is not tensor]
        return others

    def read_grad(self, tensor: Any) -> None:
        """Note that the function looks at `.grad` of a tensor from outside: a replay takes what is there then."""
        if tensor.ptr is not None and id(tensor) not in self.grads_read and id(tensor) not in self.grads_before:
            self.grads_read[id(tensor)] = (tensor, tensor.__dict__.get("_grad"))

    def write_grad(self, tensor: Any, anew: bool) -> None:
        """Note that `.grad` is about to change; `anew` if what was there does not count."""
        self.grads_before.setdefault(id(tensor), (tensor, tensor.__dict__.get("_grad")))
        if anew:
            self.cleared.add(id(tensor))

    def depend(self, get: Callable[[], Any], text: str) -> None:
        """Note that the trace is right only while `get()` gives what it gives now."""
        self.conditions.append((get, get(), text))

    def read_values(self, tensor: Any, values: Callable[[Any], list]) -> bool:
        """Rest on the values of a tensor from outside; False if they are many, or another after a write in the trace."""
        if getattr(tensor, "_traced", None) is not None or tensor.spec.numel > MOST_READ or self._was_written(tensor):
            return False

        def get() -> tuple:
            with suspended():
                return tuple(values(tensor))

        self.depend(get, f"the values of a tensor of shape {list(tensor.spec.shape)}")
        return True

    def _was_written(self, tensor: Any) -> bool:
        """Whether something in the storage of a tensor from outside was written to."""
        return any(p.written for (storage, _, _), p in self.places.items() if storage == id(tensor.storage))

    def host(self, get: Callable[[], tuple], types: Sequence[type]) -> tuple:
        """Stand-ins for numbers of Python that `get()` gives at every replay."""
        self.hosts.append(get)
        found = []
        for i, kind in enumerate(types):
            value = self.graph.input(number_spec(kind))
            value.constant = HostNumber(len(self.hosts) - 1, i)
            found.append(_make(self, value))
        return tuple(found)

    def number(self, x: Any) -> Any:
        """The stand-in for a number that changes (`ir.numbers`)."""
        key = ("number", id(x))
        if key not in self.memo:
            (made,) = self.host(lambda: (x.now(),), (float,))
            self.memo[key] = (made, x)
        return self.memo[key][0]

    def gradient_before(self, leaf: Any, old: Any) -> Any:
        """What a gradient of this trace is added to: nothing if `old` is from before it (a replay adds to what is there then)."""
        if "_traced" in old.__dict__:
            if old.ptr is not None:
                self.cleared.add(id(leaf))  # written to in this trace: the sum is the whole
            return old
        return None

    def add(self, op: Op, args: tuple) -> tuple[Value, ...]:
        return self.graph.add(op, op.map_tensors(self.value_of, args))


class _Current(threading.local):
    def __init__(self) -> None:
        self.recorders: list[Recorder] = []


_current = _Current()
_make: Callable[[Recorder, Value], Any] | None = None


def set_make(make: Callable[[Recorder, Value], Any]) -> None:
    """How a traced tensor is made from a value."""
    global _make
    _make = make


def current() -> Recorder | None:
    """This thread's innermost trace."""
    recorders = _current.recorders
    return recorders[-1] if recorders else None


class recording:
    """Context: ops go to `recorder`; interpreters pushed outside do not apply inside unless `keep_stack`."""

    def __init__(self, recorder: Recorder, keep_stack: bool = False):
        self.recorder, self.keep_stack = recorder, keep_stack

    def __enter__(self) -> Recorder:
        _current.recorders.append(self.recorder)
        bind.MODES.append(self.recorder)
        self.saved = bind.stack.items
        if not self.keep_stack:
            bind.stack.items = []
        return self.recorder

    def __exit__(self, *exc: object) -> None:
        bind.stack.items = self.saved
        bind.MODES.remove(self.recorder)
        _current.recorders.pop()


class suspended:
    """Context: ops run at once although a trace is on (reading constants, for instance)."""

    def __enter__(self) -> None:
        self.saved = _current.recorders
        _current.recorders = []

    def __exit__(self, *exc: object) -> None:
        _current.recorders = self.saved


def trace(function: Callable, specs: Sequence[Spec]) -> tuple[Graph, Any]:
    """Run `function` on stand-ins of `specs`. Returns the graph, its outputs set to the tensor leaves of the result (None
    left out), and the result itself with tensors replaced by Values."""
    recorder = Recorder()
    with recording(recorder):
        stand_ins = [_make(recorder, recorder.graph.input(s)) for s in specs]
        result = function(*stand_ins)
        flat: list[Value] = []
        structure = _replace(result, recorder, flat)
    recorder.graph.outputs = flat
    return recorder.graph, structure


def _replace(x: Any, recorder: Recorder, flat: list[Value]) -> Any:
    if hasattr(x, "spec"):
        flat.append(recorder.value_of(x))
        return flat[-1]
    if isinstance(x, (tuple, list)):
        return tuple(_replace(y, recorder, flat) for y in x)
    return x
