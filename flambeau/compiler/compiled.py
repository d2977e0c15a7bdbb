"""`compile(f)`: a callable that traces f once for each kind of inputs and calls the plan while its guards hold.

    step = CompiledFunction(train_step)
    step(x, y)        # traced, compiled; later calls look the entry up by the inputs' specs and check its guards

Sizes are static at first; a size that changes becomes symbolic in the second trace (`dynamic=None`), which serves other sizes once a third
trace, of one of them, has given the same graph. What depends on values of tensors, or has
side effects that cannot be replayed, raises with `fullgraph=True` and runs eagerly, with one warning, otherwise.

May not know: modules of `nn` but for their tables. Entry: `CompiledFunction`.
"""

from __future__ import annotations

import functools
import logging
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import TraceError
from flambeau.base.pytree import tree_flatten, tree_leaves
from flambeau.capture.recording import record
from flambeau.compiler import objects, stances, values
from flambeau.compiler.entry import NO_SIZES, Entry
from flambeau.compiler.guards import CONDITION, Guard, Guards
from flambeau.compiler.observe import USER, Effect, Observer, Stopped, kind_of
from flambeau.core.dtype import get_default_dtype, set_default_dtype
from flambeau.core.symbolic import SymInt
from flambeau.ir import bind, tracing
from flambeau.ir.numbers import SymFloat
from flambeau.tape.grad_mode import mode

log = logging.getLogger("flambeau.compiler")
RECOMPILE_LIMIT = 64
every: weakref.WeakSet = weakref.WeakSet()
_lock = threading.RLock()  # one trace at a time


class CompileError(RuntimeError):
    """A function cannot be compiled as one graph; the text names the line and the way out."""


class CompiledFunction:
    """See the module."""

    def __init__(
        self,
        function: Callable,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        mode_name: str = "default",
        options: dict | None = None,
    ):
        functools.update_wrapper(self, function, updated=())
        self.function, self.fullgraph, self.dynamic = function, fullgraph, dynamic
        self.mode, self.options = mode_name, options or {}
        self.title = getattr(function, "__qualname__", type(function).__name__)  # in warnings, errors and the log
        self.reset()
        every.add(self)

    def reset(self) -> None:
        """Forget every entry."""
        self.entries: dict[tuple, list[Entry]] = {}
        self.symbolic: dict[tuple, list[Entry]] = {}
        self.not_moving: set = set()  # structures of which a trace with numbers given at run time was refused
        self.not_symbolic: set[tuple] = set()  # keys without sizes for which a symbolic trace was wrong
        self.sizes_seen: dict[tuple, list[tuple]] = {}  # by key without sizes: the shapes met
        self.eager_reason: str | None = None  # why calls run eagerly
        self.warned = False  # that a call ran eagerly for shared memory
        self.recompiles: list[str] = []
        self.moving: set[tuple] = set()  # (structure, place in the key) of float arguments that have changed
        self.moving_reads: dict[tuple, Guard] = {}  # floats read from outside that have changed, by what holds them
        self.given = threading.local()  # `numbers`: those of the present call

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    # ------------------------------------------------------------------ a call
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if bind.MODES or stances.current.name != "default":
            if tracing.current() is not None or bind.stack.items:
                return self.function(*args, **kwargs)  # part of another trace or transform
            if stances.current.name == "force_eager":
                return self.function(*args, **kwargs)
        if self.eager_reason is not None:
            return self.function(*args, **kwargs)
        if kwargs:
            flat, structure = _flattened((args, kwargs))
        else:
            flat, structure = (args, len(args)) if all(type(x) is Tensor for x in args) else _flattened(args)
        key: list = [structure, mode.enabled, mode.inference, get_default_dtype()]
        inputs: list[Tensor] = []
        numbers: list[float] = []
        for x in flat:
            if isinstance(x, Tensor):
                key.append(x.spec)
                key.append(x.needs_grad if x.node is None else 2)  # 2: it has a history
                inputs.append(x)
                if x.spec.is_slow:
                    return self.function(*args, **kwargs)  # a subclass that sees each call
            elif type(x) is float and self.moving and (structure, len(key)) in self.moving:
                key.append(float)
                numbers.append(x)
            else:
                key.append(values.leaf_key(x))
        if numbers:
            self.given.numbers = numbers
        if len(inputs) > 1 and len(set(map(id, inputs))) != len(inputs):
            inputs = _merged(key, inputs)
        entries = self.entries.get(tuple(key))
        if entries is not None:
            for entry in entries:
                if entry.fits(NO_SIZES):
                    return self._run(entry, inputs, NO_SIZES, args, kwargs)
        return self._miss(tuple(key), inputs, args, kwargs)

    def _run(self, entry: Entry, inputs: list[Tensor], sizes: dict, args: tuple, kwargs: dict) -> Any:
        if entry.graph.writes and entry.recording.shares_memory(inputs):
            if not self.warned:  # a write would show in another input: the order of ops counts
                self.warned = True
                warnings.warn(
                    f"compile: {self.title} runs eagerly where a tensor it writes to shares memory with another that it uses. Pass a clone, or "
                    f"use the tensor itself in place of its .detach() or .data.",
                    stacklevel=3,
                )
            return self.function(*args, **kwargs)
        return entry.run(inputs, sizes)

    # ------------------------------------------------------------------ a miss
    def _miss(self, key: tuple, inputs: list[Tensor], args: tuple, kwargs: dict) -> Any:
        with _lock:
            loose = tuple((x.ndim, x.dtype, x.device) if hasattr(x, "size_class") else x for x in key)
            sizes = {f"s{i}_{d}": n for i, t in enumerate(inputs) for d, n in enumerate(t.shape)}
            for entry in self.symbolic.get(loose, ()):
                if _serves(entry, inputs) and entry.fits(sizes):
                    if entry.confirmed or sizes == entry.sizes:
                        return self._run(entry, inputs, sizes, args, kwargs)
                    return self._confirm(entry, key, loose, inputs, sizes, args, kwargs)
            for entry in self.entries.get(key, ()):  # another thread may have been quicker
                if entry.fits(NO_SIZES):
                    return self._run(entry, inputs, NO_SIZES, args, kwargs)
            if self._loosened(key):
                return self(*args, **kwargs)
            reason = self._reason(key, loose, inputs, sizes)
            self._note_moving(key)
            stance = stances.current.name
            if reason is not None:
                if stance == "eager_on_recompile":
                    return self.function(*args, **kwargs)
                if stance == "fail_on_recompile":
                    raise RuntimeError(
                        f"compile: {self.title} would be compiled again, and the stance is fail_on_recompile: {reason}."
                    )
                self.recompiles.append(reason)
                log.info("%s is compiled again: %s", self.title, reason)
                if len(self.recompiles) >= RECOMPILE_LIMIT:
                    return self._give_up(
                        f"it was compiled {RECOMPILE_LIMIT} times, the last time because {reason}", args, kwargs
                    )
            elif stance == "eager_then_compile" and loose not in self.sizes_seen:
                self.sizes_seen[loose] = [tuple(t.shape for t in inputs)]
                return self.function(*args, **kwargs)
            varying = self._varying(loose, inputs)
            try:
                entry = self._trace(key, args, kwargs, varying)
            except Unsupported as e:
                if float in key or self.moving_reads:  # code that looks closely at its numbers
                    self.not_moving.add(key[0])
                    self.moving_reads.clear()
                    self.moving = {at for at in self.moving if at[0] != key[0]}
                    return self(*args, **kwargs)
                return self._give_up(str(e), args, kwargs)
            if varying:
                entry.sizes = sizes
                self.symbolic.setdefault(loose, []).insert(0, entry)
                return self._run(entry, inputs, sizes, args, kwargs)
            self.entries.setdefault(key, []).insert(0, entry)
            return self._run(entry, inputs, NO_SIZES, args, kwargs)

    def _give_up(self, reason: str, args: tuple, kwargs: dict) -> Any:
        """Run eagerly from now on, or raise if the user wants one graph."""
        if self.fullgraph:
            raise CompileError(f"compile: {self.title} must be one graph (fullgraph=True), and it cannot be: {reason}")
        result = self.function(*args, **kwargs)  # raises the function's own error, if that is what it was
        self.eager_reason = reason
        warnings.warn(f"compile: {self.title} runs eagerly: {reason}", stacklevel=4)
        return result

    def _confirm(
        self, entry: Entry, key: tuple, loose: tuple, inputs: list[Tensor], sizes: dict, args: tuple, kwargs: dict
    ) -> Any:
        """Run a symbolic entry for other sizes than its own for the first time: only if a trace at these sizes gives the same graph.

        What Python's C code reads of a symbolic size (`range`, a float times a size) leaves no trace.
        """
        try:
            other = self._trace(key, args, kwargs, frozenset(), regions=False)
        except Unsupported as e:
            return self._give_up(str(e), args, kwargs)
        if entry.recording.equals(other.recording, sizes):
            entry.confirmed = True
            return self._run(entry, inputs, sizes, args, kwargs)
        log.info("%s: sizes become plain numbers in it, so each is compiled", self.title)
        self.not_symbolic.add(loose)
        del self.symbolic[loose]
        self.entries.setdefault(key, []).insert(0, other)
        return self._run(other, inputs, NO_SIZES, args, kwargs)

    def _note_moving(self, key: tuple) -> None:
        """A float read from outside that is not what it was is a number given at run time from now on."""
        for entry in self.entries.get(key, ()) if self.dynamic is not False and key[0] not in self.not_moving else ():
            for g in entry.guards.moved_floats():
                self.moving_reads[g.kind, id(g.holder), g.name] = g

    def _reason(self, key: tuple, loose: tuple, inputs: list[Tensor], sizes: dict) -> str | None:
        """Why an entry is missing although there are others; None at the first call."""
        for entry in self.entries.get(key, ()):
            return entry.why_not(NO_SIZES)
        for entry in self.symbolic.get(loose, ()):
            return entry.why_not(sizes) if _serves(entry, inputs) else "a size that was fixed, or a layout, is another"
        for other in (*self.entries, *self.symbolic):
            if len(other) == len(key):
                for i, (a, b) in enumerate(zip(other, key)):
                    if a != b and not (
                        isinstance(a, tuple) and hasattr(b, "size_class") and a == (b.ndim, b.dtype, b.device)
                    ):
                        return _difference(i, a, b)
        return f"the arguments have another structure: {key[0]}" if self.entries or self.symbolic else None

    def _loosened(self, key: tuple) -> bool:
        """Whether float arguments are numbers given at run time from now on: those in which a call differs from an earlier one."""
        if self.dynamic is False or key[0] in self.not_moving:
            return False
        floats = {i for i, x in enumerate(key) if type(x) is tuple and x[:1] == (float,)}
        found = floats if self.dynamic is True else set()
        for other in (*self.entries, *self.symbolic) if floats else ():
            if len(other) == len(key):
                differ = {
                    i
                    for i, (a, b) in enumerate(zip(other, key))
                    if a != b and not (type(a) is tuple and hasattr(b, "size_class"))
                }
                if differ <= floats and all(type(other[i]) is tuple for i in differ):
                    found |= differ
        self.moving.update((key[0], i) for i in found)
        return bool(found)

    # ------------------------------------------------------------------ sizes
    def _varying(self, loose: tuple, inputs: list[Tensor]) -> frozenset[tuple[int, int]]:
        """(input, dim) of the sizes that the next trace keeps symbolic."""
        shapes = tuple(tuple(t.shape) for t in inputs)
        seen = self.sizes_seen.setdefault(loose, [])
        found: set[tuple[int, int]] = set()
        for i, t in enumerate(inputs):
            marks = t.__dict__.get("_dynamic_dims", {})
            found.update((i, d) for d in marks.get("dynamic", ()))
            if self.dynamic is True:
                found.update((i, d) for d, n in enumerate(t.shape) if n > 1)
            elif self.dynamic is None:
                found.update((i, d) for old in seen for d, (a, b) in enumerate(zip(old[i], shapes[i])) if a != b)
            found -= {(i, d) for d in marks.get("static", ())}
        seen.append(shapes)
        if self.dynamic is False and not any("_dynamic_dims" in t.__dict__ for t in inputs):
            return frozenset()
        if any(not t.spec.contiguous for t in inputs) or loose in self.not_symbolic:
            return frozenset()
        return frozenset(found)

    # ------------------------------------------------------------------ tracing
    def _trace(self, key: tuple, args: tuple, kwargs: dict, varying: frozenset, regions: bool = True) -> Entry:
        entry = self._traced(key, args, kwargs, varying, {}, regions)
        if entry.recording.bases:  # what it writes to overlaps other tensors that it reads
            entry = self._traced(key, args, kwargs, varying, entry.recording.bases, regions)
        return entry

    def _traced(
        self, key: tuple, args: tuple, kwargs: dict, varying: frozenset, bases: dict[int, Tensor], regions: bool
    ) -> Entry:
        flat, structure = _flattened((args, kwargs))
        if float in key:
            flat = self._with_moving(key, flat)
        function = self.function
        observer = Observer(function, [x for x in flat if not isinstance(x, Tensor)])

        def call(*packed: Any) -> Any:
            given, named = packed
            before = _flattened(packed)
            result = function(*given, **named)
            after = _flattened(packed)
            for get, put, old, text in settled:
                if get() != old:
                    observer.effects.append(Effect(get(), put, text))
            if before[1] != after[1] or any(a is not b for a, b in zip(before[0], after[0])):
                observer.problems.append("it changes a container or an object that it is given as an argument")
            for x in tree_leaves(result):
                if hasattr(type(x), "__next__") and not observer.is_outside(x):
                    observer.problems.append(
                        f"it returns a {type(x).__name__}, which would go on when the trace is over"
                    )
            return objects.opened(result, lambda x: not observer.is_outside(x) and objects.made(x))

        settled = [(get, put, get(), text) for get, put, text in _SETTLED]
        shown = [(g, g.now()) for g in self.moving_reads.values() if type(g.now()) is float]
        for g, value in shown:  # what it reads are numbers given at run time
            g.set(SymFloat(functools.partial(_value_of, g, value, shown), g.text))
        try:
            recording = record(
                call,
                flat,
                structure,
                symbolic=(lambda i, d: (i, d) in varying) if varying else None,
                joint=not mode.inference,
                observer=observer,
                bases=bases,
                regions=regions and not varying,
            )
        except Exception as e:
            if self.fullgraph and not isinstance(e, TraceError):
                raise  # the function's own error, as it would be raised eagerly
            raise Unsupported(f"{_place_of(e)}{e}") from e
        except Stopped as e:
            raise Unsupported(f"{e}. {_WAY_OUT}") from None
        finally:
            for _, put, old, _ in settled:
                put(old)
            for g, value in shown:
                g.set(value)
            moving = [g for g, _ in shown]
            shown.clear()
        if observer.problems:
            raise Unsupported(f"{'; '.join(observer.problems)}. {_WAY_OUT}")
        recording.structure, recording.leaves = _without_payload(recording, observer)
        conditions = [Guard(CONDITION, get, None, value, text) for get, value, text in recording.conditions]
        conditions += [Guard(CONDITION, functools.partial(_is_float, g), None, True, g.text) for g in moving]
        if varying:
            pinned = _pinned(recording, varying)
            if pinned:
                log.info("%s: sizes that the trace fixes: %s", self.title, ", ".join(pinned))
        return Entry(
            recording,
            Guards(observer.guards() + conditions, list(observer.modules.values())),
            observer.effects,
            tuned=self.mode.startswith("max-autotune"),
        )

    def _with_moving(self, key: tuple, flat: list) -> list:
        """Leaves of the arguments with stand-ins for numbers given at run time."""
        at, found, count, given = 4, [], 0, self.given
        for x in flat:
            if isinstance(x, Tensor):
                at += 2
            else:
                if key[at] is float:
                    x = SymFloat(functools.partial(_nth, given, count), "a float argument")
                    count += 1
                at += 1
            found.append(x)
        return found

    def __repr__(self) -> str:
        return f"<compiled {self.function!r}>"


def _value_of(guard: Guard, traced: float, shown: list) -> float:
    """A float from outside: while it is traced that of the trace."""
    return traced if shown else guard.now()


def _is_float(guard: Guard) -> bool:
    return type(guard.now()) is float


def _nth(given: threading.local, at: int) -> float:
    return given.numbers[at]


class Unsupported(Exception):
    """Why a function cannot be one graph."""


_WAY_OUT = "Move it out of the compiled function, or compile what is around it."


def _put_mode(now: tuple[bool, bool]) -> None:
    mode.enabled, mode.inference = now


# What a function may set for its thread or process: (get, put, in words). Put back after a trace, and set by each replay.
_SETTLED: tuple[tuple[Callable[[], Any], Callable[[Any], None], str], ...] = (
    (lambda: (mode.enabled, mode.inference), _put_mode, "sets grad mode"),
    (get_default_dtype, set_default_dtype, "sets the default dtype"),
)


def _serves(entry: Entry, inputs: list[Tensor]) -> bool:
    """Whether inputs have the sizes that a symbolic entry fixes."""
    if any(not t.spec.contiguous for t in inputs):
        return False
    return all(
        type(a) is SymInt or a == b
        for v, t in zip(entry.recording.graph.inputs, inputs)
        for a, b in zip(v.spec.shape, t.spec.shape)
    )


def _without_payload(recording: Any, observer: Observer) -> tuple:
    """The result's structure; with effects it stays (result, payload)."""
    if observer.effects:
        return recording.structure, recording.leaves
    return recording.structure.children[0], recording.leaves


def _pinned(recording: Any, varying: frozenset) -> list[str]:
    names = {f"s{i}_{d}" for i, d in varying}
    return [
        str(e[1])
        for e, answer in recording.guards.found.items()
        if e[0] == "==" and answer is True and e[1] in names and isinstance(e[2], int)
    ]


def _place_of(error: BaseException) -> str:
    """The line of the user's that an error comes from."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if kind_of(frame) == USER:
            return f"{frame.f_code.co_filename}:{line}: in {frame.f_code.co_name}: "
    return ""


def _flattened(tree: Any) -> tuple:
    """Leaves and structure of arguments; dataclasses that hold tensors are inner nodes."""
    flat, structure = tree_flatten(tree)
    if any(hasattr(type(x), "__dataclass_fields__") for x in flat):
        return tree_flatten(objects.opened(tree, objects.given))
    return flat, structure


def _merged(key: list, inputs: list[Tensor]) -> list[Tensor]:
    """Inputs without repetitions; the key says which arguments are one tensor."""
    number = {id(x): i for i, x in reversed(list(enumerate(inputs)))}
    key.append(tuple(number[id(x)] for x in inputs))
    return list({id(x): x for x in inputs}.values())


def _difference(at: int, a: Any, b: Any) -> str:
    names = ("the arguments' structure", "grad mode", "inference mode", "the default dtype")
    if at < 4:
        return f"{names[at]} was {a}, is {b}"
    if isinstance(a, int) and isinstance(b, int):
        changed = bool(a) != bool(b)
        return (
            f"requires_grad of an argument was {bool(a)}, is {bool(b)}"
            if changed
            else "an argument is a leaf or was one"
        )
    a, b = (x[1] if isinstance(x, tuple) and len(x) == 2 else x for x in (a, b))
    return f"an argument was {a}, is {b}"
