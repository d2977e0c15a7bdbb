"""Recording ops into a graph: `trace(function, specs)` runs a function on stand-ins and returns what it did.

The innermost trace of a thread takes every op that reaches the bottom of the interpreter stack. A tensor from outside
becomes an input with `constant` set. May not know: what a tensor is (the tensor layer registers `make`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.spec import Spec
from flambeau.ir import bind
from flambeau.ir.graph import Graph, Value, number_spec
from flambeau.ir.op import Op

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


class Recorder:
    """One trace in progress."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.known: dict[int, Value] = {}
        self.alive: list[Any] = []  # tensors from outside, so that their ids stay theirs
        self.mutated: dict[int, Any] = {}  # tensors from outside that were written to
        self.symbolic = False  # whether inputs have symbolic sizes
        self.repeats = False  # whether the graph is replayed as it is: random numbers would come out the same each time
        self.cleared: set[int] = set()  # ids of tensors from outside whose `.grad` was set anew
        self.hosts: list[Callable[[], tuple]] = []  # what gives the numbers that each replay computes anew
        self.conditions: list[
            tuple[Callable[[], Any], Any, str]
        ] = []  # (get, value, what it is): a replay is right while get() is value
        self.memo: dict[Any, Any] = {}  # what library code makes once per trace
        self.grads_read: dict[int, tuple[Any, Any]] = {}  # tensors from outside and the `.grad` they were read with
        self.grads_before: dict[int, tuple[Any, Any]] = {}  # tensors whose `.grad` the trace changed, and what it was

    def value_of(self, tensor: Any) -> Value:
        """The graph's value for a tensor: its own if it is of this trace, else a new input."""
        owner = getattr(tensor, "_traced", None)
        if owner is not None and owner[0] is self:
            return owner[1]
        found = self.known.get(id(tensor))
        if found is None:
            found = self.known[id(tensor)] = self.graph.input(tensor.spec.plain())
            found.constant = next((GradOf(t) for t, g in self.grads_read.values() if g is tensor), tensor)
            self.alive.append(tensor)
        return found

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
        if "_traced" in tensor.__dict__ or tensor.spec.numel > MOST_READ:
            return False

        def get() -> tuple:
            with suspended():
                return tuple(values(tensor))

        self.depend(get, f"the values of a tensor of shape {list(tensor.spec.shape)}")
        return True

    def host(self, get: Callable[[], tuple], types: Sequence[type]) -> tuple:
        """Stand-ins for numbers of Python that `get()` gives at every replay."""
        self.hosts.append(get)
        found = []
        for i, kind in enumerate(types):
            value = self.graph.input(number_spec(kind))
            value.constant = HostNumber(len(self.hosts) - 1, i)
            found.append(_make(self, value))
        return tuple(found)

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
