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
from flambeau.ir.graph import Graph, Value
from flambeau.ir.op import Op


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
        self.held: list[
            tuple[Any, Any]
        ] = []  # (tensor from outside, the `.grad` it had), to be put back after the trace

    def value_of(self, tensor: Any) -> Value:
        """The graph's value for a tensor: its own if it is of this trace, else a new input."""
        owner = getattr(tensor, "_traced", None)
        if owner is not None and owner[0] is self:
            return owner[1]
        found = self.known.get(id(tensor))
        if found is None:
            found = self.known[id(tensor)] = self.graph.input(tensor.spec.plain())
            found.constant = tensor
            self.alive.append(tensor)
        return found

    def gradient_before(self, leaf: Any, old: Any) -> Any:
        """What a gradient of this trace is added to: nothing if `old` is from before it (a replay adds to what is there then)."""
        if "_traced" in old.__dict__:
            if old.ptr is not None:
                self.cleared.add(id(leaf))  # written to in this trace: the sum is the whole
            return old
        self.held.append((leaf, old))
        return None

    def add(self, op: Op, args: tuple) -> tuple[Value, ...]:
        if self.repeats and op.rules.random:
            raise RuntimeError(
                f"capture: {op.name} draws random numbers, and every replay would draw the same. Draw them outside and pass them in."
            )
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
