"""Watching a function while it is traced: what state it reads, and which of its side effects a trace would lose.

    observer = Observer(function)
    with observer:
        result = function(*stand_ins)
    observer.payload()      # values that its side effects need; `effects` apply them at each replay
    observer.guards()       # what the trace rests on
    observer.problems       # what can neither be guarded nor replayed, with its line

Lines of the user's code are followed as they run (`sys.settrace`), and `bytecode` says what each reads and writes. Writes to attributes, names
and containers that were there before are undone after the trace and done again by each replay; prints are kept for the replays.
May not know: graphs, plans. Entry: `Observer`.
"""

from __future__ import annotations

import builtins
import gc
import io
import logging
import os
import random
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy

import flambeau.base
from flambeau._tensor import Tensor
from flambeau.compiler import bytecode, objects, values
from flambeau.compiler.guards import ATTRIBUTE, CELL, CONTENT, GLOBAL, ITEM, Guard
from flambeau.ir.numbers import SymFloat

_OURS = os.path.dirname(os.path.dirname(flambeau.base.__file__)) + os.sep
_MODELS = os.path.join(_OURS, "models") + os.sep  # written as a user would: what it stores and reads counts
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_LIBRARIES = frozenset(("flambeau", "numpy", "scipy", "llvmlite"))
_CHANGEABLE = (list, dict, set, deque, bytearray)
USER, OTHER, FORWARD = 1, 0, 2
_kinds: dict[types.CodeType, int] = {}

# What gives another value, or does something outside the program, each time it is called.
_IMPURE = {
    "time": "the clock",
    "random": "Python's random numbers",
    "datetime": "the clock",
    "secrets": "random numbers",
    "uuid": "random numbers",
    "logging": "a log",
    "subprocess": "other programs",
    "socket": "a network",
    "numpy.random": "NumPy's random numbers",
}
_IMPURE_BUILTINS = {
    "open": "files",
    "input": "the terminal",
    "exec": "code that cannot be followed",
    "eval": "code that cannot be followed",
}
_LOGGING = frozenset("debug info warning warn error exception critical fatal log".split())
MOST_ITEMS = 256  # of a container of which an item with a computed key is looked at
_print_lock = threading.Lock()
_print = builtins.print


def kind_of(frame: types.FrameType) -> int:
    """Whether running code is the user's, a module's `forward` of ours, or library code that is not followed."""
    code = frame.f_code
    found = _kinds.get(code)
    if found is None:
        name = code.co_filename
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name.startswith(_MODELS):
            found = USER
        elif name.startswith(_OURS):
            found = FORWARD if code.co_name == "forward" else OTHER
        elif root in _LIBRARIES or (name == "<string>" and root in sys.stdlib_module_names and root != "__main__"):
            found = OTHER  # made from text, as the methods of dataclasses are
        elif name.startswith(("<frozen", "<flambeau")) or root.startswith("namedtuple_"):
            found = OTHER
        elif name.startswith(_STANDARD) and "-packages" not in name:
            found = OTHER
        else:
            found = USER
        _kinds[code] = found
    return found


class _Current(threading.local):
    observer: Observer | None = None


_current = _Current()


def active() -> Observer | None:
    """This thread's observer."""
    return _current.observer


def _source_of(value: Any) -> str | None:
    """What a value is got from that gives another each time or lies outside the program: a function of such a module, a generator, a file."""
    owner = getattr(value, "__self__", None)
    if isinstance(value, (types.BuiltinFunctionType, types.FunctionType, types.MethodType)):
        if owner is None or isinstance(owner, types.ModuleType):
            return _IMPURE.get(value.__module__ or "")
        value = owner
    if isinstance(value, random.Random):
        return _IMPURE["random"]
    if isinstance(value, io.IOBase):
        return _IMPURE_BUILTINS["open"]
    return _IMPURE["numpy.random"] if type(value).__module__.startswith("numpy.random") else None


def _random_states() -> tuple:
    name, keys, *rest = numpy.random.get_state()
    return random.getstate(), (name, keys.tobytes(), *rest)


class Stopped(BaseException):
    """Ends a trace in front of a line that must not run twice; no handler of the user's for errors is meant to see it."""


class Effect:
    """A side effect that each replay repeats: `apply(value)`."""

    def __init__(self, value: Any, apply: Callable[[Any], None], text: str):
        self.value, self.apply, self.text = value, apply, text


class Observer:
    """See the module. `covered` are objects whose state is part of the inputs' key (modules that are arguments)."""

    def __init__(self, function: Callable, arguments: Iterable[Any] = (), covered: frozenset[int] = frozenset()):
        self.covered = covered
        self.problems: list[str] = []
        self.effects: list[Effect] = []
        self.modules: dict[int, Any] = {}
        self._objects: dict[int, Any] = {}  # one reference to every holder
        self._guards: dict[tuple, tuple] = {}  # (kind, id of holder, name): (value, text)
        self._written: dict[tuple, tuple] = {}  # (kind, id of holder, name): (old value, text)
        self._changed: dict[int, tuple] = {}  # id of container: (content before, text)
        self._read_changed: set[int] = set()  # ids of containers whose content was read after the function changed it
        self._printed: list[tuple[tuple, dict]] = []
        self._outside: dict[int, Any] = {}  # objects that were there before the trace
        self._made: dict[int, Any] = {}  # objects that the function makes
        self._closures: dict[types.CodeType, dict[str, Any]] = {}
        self._tables: dict[type, Any] = {}  # one view of a class's attributes, so that its id stays
        for x in (function, getattr(function, "__self__", None), *arguments):
            self._meet(x)
            self._outside[id(x)] = x

    # ------------------------------------------------------------------ around the call
    def __enter__(self) -> Observer:
        self._before = sys.gettrace()
        self._outer, _current.observer = active(), self
        self._thread = threading.get_ident()
        self._states = random.getstate(), numpy.random.get_state(), _random_states()
        with _print_lock:
            builtins.print = self._record_print
        sys.settrace(self._call)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        sys.settrace(self._before)
        _current.observer = self._outer
        with _print_lock:
            builtins.print = _print
        if _random_states() != self._states[2]:  # in library code, which is not followed
            random.setstate(self._states[0])
            numpy.random.set_state(self._states[1])
            self.problems.append("what it calls draws random numbers of Python's or NumPy's")
        if error is not None:
            self._undo()

    def _record_print(self, *args: Any, **kwargs: Any) -> None:
        if threading.get_ident() == self._thread:
            self._printed.append((args, kwargs))
        else:
            _print(*args, **kwargs)

    # ------------------------------------------------------------------ following lines
    def _call(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        kind = _kinds.get(code)
        if kind is None:
            kind = kind_of(frame)
        if kind == OTHER:
            return None
        if kind == FORWARD:
            self._meet(frame.f_locals.get("self"))
            return None
        bytecode.facts_of(code)
        if code.co_name == "__init__" and code.co_argcount:
            made = frame.f_locals.get(code.co_varnames[0])
            self._made[id(made)] = made
        return self._line

    def _line(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            accesses = bytecode.facts_of(frame.f_code).lines.get(frame.f_lineno)
            if accesses:
                local = frame.f_locals
                for access in accesses:
                    try:
                        self._look(frame, local, access)
                    except Exception as e:  # of a strange object: what it holds is not known
                        self._problem(
                            frame,
                            f"{'.'.join([access.root[1], *(str(k) for _, k in access.path)])} cannot be followed ({e})",
                        )
        return self._line

    def _look(self, frame: types.FrameType, local: dict, access: bytecode.Access) -> None:
        where, name = access.root
        text = name
        if where == "fast":
            value = local.get(name, values.ABSENT)
        elif where == "cell":
            value = local.get(name, values.ABSENT)
            cell = self._cell(frame.f_code, name, value)
            if cell is not None:
                if access.kind == bytecode.SET_CELL:
                    self._write(CELL, cell, name, value, self._text(frame, f"sets {name}"))
                else:
                    self._guard(CELL, cell, name, value, text)
        else:
            value = frame.f_globals.get(name, values.ABSENT)
            if access.kind == bytecode.SET_GLOBAL:
                self._write(GLOBAL, frame.f_globals, name, value, self._text(frame, f"sets the global {name}"))
                return
            if value is values.ABSENT:
                if name in _IMPURE_BUILTINS and not access.path:
                    self._problem(frame, f"{name}() uses {_IMPURE_BUILTINS[name]}")
                return
            self._guard(GLOBAL, frame.f_globals, name, value, text)
            self._check_source(frame, value, text, True)
        if where != "global":
            self._check_source(frame, value, text, where == "cell")
        self._walk(frame, value, text, access.path, access, bool(access.path) or where != "fast")

    def _walk(
        self, frame: types.FrameType, value: Any, text: str, path: tuple, access: bytecode.Access, found: bool
    ) -> None:
        """Follow a path from a value; `found`: it was not simply a local."""
        for at, (step, key) in enumerate(path):
            if value is values.ABSENT or isinstance(value, Tensor):
                return
            holder = value
            if isinstance(holder, types.ModuleType):
                if holder.__name__ in _IMPURE:
                    self._problem(frame, f"{text}.{key} uses {_IMPURE[holder.__name__]}")
                if holder.__name__ == "sys" and key in ("stdout", "stderr"):
                    self._problem(frame, f"{text}.{key} writes to the terminal")
                if holder.__name__ == "os" and key in ("environ", "getenv"):
                    self._guard(CONTENT, os.environ._data, None, dict(os.environ._data), "the environment")
            self._check_source(frame, holder, text, self.is_outside(holder))
            if step == "attr":
                text = f"{text}.{key}"
                if key == "__dict__":
                    if isinstance(holder, types.ModuleType) or values.is_module_like(holder):
                        self._meet(holder)  # whose tables are compared
                        return
                    value = getattr(holder, "__dict__", values.ABSENT)
                    if type(value) is dict and self.is_outside(holder):
                        self._outside.setdefault(id(value), value)
                    continue
                value = values.attribute(holder, key)
                if value is values.ABSENT:
                    if values.is_immutable_library(holder):
                        value = getattr(holder, key, value)  # a part that is imported when it is asked for
                    self._guard_absent(holder, key, text)
                if not values.is_immutable_library(holder):
                    self._guard(ATTRIBUTE, holder, key, value, text)
                if isinstance(holder, logging.Logger) and key in _LOGGING:
                    if key == "log" or holder.isEnabledFor(getattr(logging, key.upper(), logging.ERROR)):
                        self._problem(frame, f"{text} uses {_IMPURE['logging']}")
                if isinstance(holder, type) and holder.__module__ == "datetime":
                    self._problem(frame, f"{text} uses {_IMPURE['datetime']}")
            elif not isinstance(holder, (list, dict, tuple)):
                return
            elif step == "any":
                if type(holder) is not tuple:
                    self._guard(CONTENT, holder, None, values.snapshot(holder), f"what {text} contains")
                elif self.is_outside(holder):
                    for x in holder:
                        self._outside.setdefault(id(x), x)
                text = f"{text}[...]"
                for x in list(holder.values() if isinstance(holder, dict) else holder)[:MOST_ITEMS]:
                    self._walk(frame, x, text, path[at + 1 :], access, True)
                return
            else:
                text = f"{text}[{key!r}]"
                try:
                    value = holder[key]
                except (LookupError, TypeError):
                    return
                if type(holder) is not tuple:
                    self._guard(ITEM, holder, key, value, text)
        if value is values.ABSENT:
            return
        self._meet(value)
        if access.kind == bytecode.READ:
            if isinstance(value, _CHANGEABLE) and (found or self.is_outside(value)):
                self._guard(CONTENT, value, None, values.snapshot(value), f"what {text} contains")
            elif hasattr(type(value), "__next__") and id(value) in self._outside:
                self._problem(frame, f"it advances the iterator {text}, which was there before")
        elif access.kind == bytecode.SET_ATTRIBUTE:
            if isinstance(value, Tensor):
                if value.ptr is not None and access.name in ("data", "requires_grad"):
                    self._problem(frame, f"it sets {text}.{access.name} of a tensor from outside")
                return
            if not self.is_outside(value):
                return
            old = values.attribute(value, access.name)
            self._write(ATTRIBUTE, value, access.name, old, self._text(frame, f"sets {text}.{access.name}"))
        elif access.kind == bytecode.CHANGE and isinstance(value, _CHANGEABLE) and self.is_outside(value):
            if id(value) not in self._changed:
                self._objects[id(value)] = value
                self._changed[id(value)] = (values.snapshot(value), self._text(frame, f"changes {text}"))

    def _check_source(self, frame: types.FrameType, value: Any, text: str, outside: bool) -> None:
        """Stop in front of what is impure; instances count only where they were there before."""
        if (outside or isinstance(value, types.FunctionType)) and not isinstance(value, Tensor):
            source = _source_of(value)
            if source is not None:
                self._problem(frame, f"{text} uses {source}")

    def _text(self, frame: types.FrameType, what: str) -> str:
        return f"{frame.f_code.co_filename}:{frame.f_lineno}: {frame.f_code.co_name} {what}"

    def _problem(self, frame: types.FrameType, what: str) -> NoReturn:
        """The line that is about to run cannot be traced; so that it runs once, it runs eagerly only."""
        raise Stopped(f"{frame.f_code.co_filename}:{frame.f_lineno}: {what}")

    # ------------------------------------------------------------------ notes
    def _meet(self, value: Any) -> None:
        """A value that counts by more than its identity: modules, and functions with cells."""
        if values.is_module_like(value):
            if id(value) not in self.covered:
                self.modules[id(value)] = value
            return
        function = getattr(value, "__func__", value)
        if type(function) is not types.FunctionType:
            return
        for x in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._outside.setdefault(id(x), x)
        if function.__closure__:
            self._closures.setdefault(function.__code__, dict(zip(function.__code__.co_freevars, function.__closure__)))

    def _cell(self, code: types.CodeType, name: str, value: Any) -> Any:
        """The cell behind a free name of running code; None for a cell of the frame's own."""
        if name not in code.co_freevars:
            return None
        known = self._closures.get(code)
        if known is None or _content(known[name]) is not value:
            for f in gc.get_referrers(code):
                if type(f) is types.FunctionType and f.__code__ is code and f.__closure__:
                    cells = dict(zip(code.co_freevars, f.__closure__))
                    if _content(cells[name]) is value:
                        known = self._closures[code] = cells
                        break
        return known[name] if known is not None else None

    def is_outside(self, x: Any) -> bool:
        """Whether an object was there before the call, as far as that was seen."""
        return id(x) not in self._made and (id(x) in self._outside or values.is_module_like(x))

    def _guard(self, kind: str, holder: Any, name: Any, value: Any, text: str) -> None:
        """Note a read: what is found in something from outside, and was not put there by the function, is from outside too."""
        if kind in (GLOBAL, CELL) or self.is_outside(holder):
            if kind is CONTENT:
                for x in value.values() if isinstance(value, dict) else value:
                    self._outside.setdefault(id(x), x)
            elif (kind, id(holder), name) not in self._written and id(value) not in self._made:
                self._outside.setdefault(id(value), value)
        if id(holder) in self.covered or value is values.ABSENT or type(value) is SymFloat:
            return
        if isinstance(value, Tensor) and value.ptr is None or isinstance(value, types.ModuleType):
            return
        key = (kind, id(holder), name)
        if key not in self._guards and key not in self._written:
            if kind is CONTENT and id(holder) in self._changed:
                self._read_changed.add(id(holder))
                return
            self._objects[id(holder)] = holder
            self._guards[key] = (value, text)

    def _guard_absent(self, holder: Any, name: str, text: str) -> None:
        """An attribute that is no value of the object's own: a method of a class of the user's, which may be replaced, or none at all."""
        if values.lacks(holder, name):
            key = (ATTRIBUTE, id(holder), name)
            if self.is_outside(holder) and key not in self._written:
                self._objects[id(holder)] = holder
                self._guards.setdefault(key, (values.ABSENT, text))
            return
        for c in type(holder).__mro__:
            if name in c.__dict__:
                found = c.__dict__[name]
                if type(found) is types.FunctionType and c.__module__.partition(".")[0] not in _LIBRARIES:
                    table = self._tables.setdefault(c, c.__dict__)
                    self._guard(GLOBAL, table, name, found, text)
                    self._meet(found)
                    key = (ATTRIBUTE, id(holder), name)  # nor does the object have one of its own
                    if self.is_outside(holder) and id(holder) not in self.covered and key not in self._written:
                        self._objects[id(holder)] = holder
                        self._guards.setdefault(key, (values.ABSENT, text))
                return

    def _write(self, kind: str, holder: Any, name: str, old: Any, text: str) -> None:
        key = (kind, id(holder), name)
        if key not in self._written:
            self._objects[id(holder)] = holder
            self._written[key] = (old, text)

    # ------------------------------------------------------------------ after the call
    def payload(self) -> list:
        """Values that effects need, in order; puts back what the trace changed."""
        self._closures.clear()
        self._outside.clear()
        self._made.clear()
        self._forget_temporary()
        for (kind, at, name), (old, text) in list(self._written.items()):
            self._follow_write(kind, self._objects[at], name, old, text)
        for at, (before, text) in self._changed.items():
            self._follow_change(self._objects[at], before, text)
        for args, kwargs in self._printed:
            self.effects.append(Effect((args, kwargs), _print_again, "prints"))
        self._undo()
        return [objects.opened(e.value, objects.made) for e in self.effects]

    def _forget_temporary(self) -> None:
        """Drop what concerns objects that only this observer still holds: the function made them itself."""
        again = True
        while again:
            again = False
            shown: dict[int, int] = {}
            for value, _ in self._guards.values():
                shown[id(value)] = shown.get(id(value), 0) + 1
            for value, _ in self._written.values():
                shown[id(value)] = shown.get(id(value), 0) + 1
            for at in list(self._objects):
                if sys.getrefcount(self._objects[at]) <= 2 + shown.get(at, 0):
                    again = True
                    del self._objects[at]
                    self._changed.pop(at, None)
                    for table in (self._guards, self._written):
                        for key in [k for k in table if k[1] == at]:
                            del table[key]

    def _follow_write(self, kind: str, holder: Any, name: str, old: Any, text: str) -> None:
        new = _read(kind, holder, name)
        if new is old or values.same(new, old):
            return
        if new is values.ABSENT:
            self.problems.append(f"{text}, which deletes it")
            return
        seen = self._guards.get((kind, id(holder), name))
        if seen is not None:
            self.problems.append(f"{text}, which it also reads")
            return
        self.effects.append(Effect(new, lambda value: _assign(kind, holder, name, value), text))

    def _follow_change(self, holder: Any, before: Any, text: str) -> None:
        if values.same_content(holder, before):
            return
        if (CONTENT, id(holder), None) in self._guards or id(holder) in self._read_changed:
            self.problems.append(f"{text}, whose contents it also reads")
        elif isinstance(holder, list) and values.same_content(list(holder[: len(before)]), before):
            self.effects.append(Effect(list(holder[len(before) :]), holder.extend, text))
        elif (
            isinstance(holder, deque)
            and holder.maxlen is None
            and values.same_content(list(holder)[: len(before)], before)
        ):
            self.effects.append(Effect(list(holder)[len(before) :], holder.extend, text))
        elif isinstance(holder, dict) and all(k in holder for k in before):
            new = {
                k: v for k, v in holder.items() if k not in before or not (v is before[k] or values.same(v, before[k]))
            }
            if any((ITEM, id(holder), k) in self._guards for k in new):
                self.problems.append(f"{text}, which it also reads")
            else:
                self.effects.append(Effect(new, holder.update, text))
        elif isinstance(holder, set) and before <= holder:
            self.effects.append(Effect(list(holder - before), holder.update, text))
        else:
            self.problems.append(f"{text} in a way that cannot be repeated")

    def _undo(self) -> None:
        """Attributes, names and containers as they were before the trace."""
        for (kind, at, name), (old, _) in self._written.items():
            if at in self._objects:
                _assign(kind, self._objects[at], name, old)
        for at, (before, _) in self._changed.items():
            if at in self._objects:
                _refill(self._objects[at], before)

    def effects_seen(self) -> tuple[int, ...]:
        """How many side effects were met so far."""
        return len(self._written), len(self._changed), len(self._printed), len(self.problems)

    def rest_on(self, guards: Iterable[Guard], modules: Iterable[Any]) -> None:
        """Take over what was found otherwise: reads of objects from outside, and modules whose state counts."""
        for g in guards:
            self._objects[id(g.holder)] = g.holder
            self._outside.setdefault(id(g.holder), g.holder)
            self._guards.setdefault((g.kind, id(g.holder), g.name), (g.value, g.text))
        for m in modules:
            self._meet(m)

    def guards(self) -> list[Guard]:
        return [
            Guard(kind, self._objects[at], name, _with_floats(value) if kind is CONTENT else value, text)
            for (kind, at, name), (value, text) in self._guards.items()
            if at in self._objects
        ]


def _with_floats(content: Any) -> Any:
    """What a container holds, with floats for what stood in for them."""
    if isinstance(content, dict):
        return {k: v.now() if type(v) is SymFloat else v for k, v in content.items()}
    return type(content)([v.now() if type(v) is SymFloat else v for v in content])


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return values.ABSENT


def _read(kind: str, holder: Any, name: str) -> Any:
    if kind is GLOBAL:
        return holder.get(name, values.ABSENT)
    return _content(holder) if kind is CELL else values.attribute(holder, name)


def _assign(kind: str, holder: Any, name: str, value: Any) -> None:
    if kind is GLOBAL:
        if value is values.ABSENT:
            holder.pop(name, None)
        else:
            holder[name] = value
    elif kind is CELL:
        if value is values.ABSENT:
            del holder.cell_contents
        else:
            holder.cell_contents = value
    elif value is not values.ABSENT:
        setattr(holder, name, value)
    elif values.attribute(holder, name) is not values.ABSENT:
        delattr(holder, name)


def _refill(holder: Any, before: Any) -> None:
    holder.clear()
    if isinstance(holder, (dict, set)):
        holder.update(before)
    else:
        holder.extend(before)


def _print_again(value: tuple[tuple, dict]) -> None:
    args, kwargs = value
    _print(*args, **kwargs)
