"""Calling an op: `bind(op, args)` hands it to the interpreter on top of this thread's stack.

That is the inversion that keeps the code base acyclic: no op imports what runs it. Interpreters (vmap, jvp, autocast, modes)
are pushed with `pushed(interpreter)`; each processes an op with itself taken off, so that what it binds
in turn goes to the next one down. The bottom is set by the engine.

`MODES` is true while any thread has an interpreter or a capture on: the eager fast path then steps aside.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from flambeau.ir.op import Op

MODES: list = []


class Interpreter(Protocol):
    def process(self, op: Op, args: tuple) -> Any: ...


class _Stack(threading.local):
    def __init__(self) -> None:
        self.items: list[Interpreter] = []


stack = _Stack()
_bottom: Callable[[Op, tuple], Any] | None = None
_override: Callable[[Op, tuple], Any] | None = None
NO_OVERRIDE = object()


def set_bottom(process: Callable[[Op, tuple], Any]) -> None:
    """The engine's tape-and-execute."""
    global _bottom
    _bottom = process


def set_override(check: Callable[[Op, tuple], Any]) -> None:
    """How subclasses with `__torch_function__` are asked first; returns NO_OVERRIDE if nobody wants the call."""
    global _override
    _override = check


def bind(op: Op, args: tuple) -> Any:
    """Run `op` on bound arguments (signature order)."""
    if _override is not None:
        result = _override(op, args)
        if result is not NO_OVERRIDE:
            return result
    return bind_below(op, args)


def bind_below(op: Op, args: tuple) -> Any:
    """As `bind`, after overrides have had their say."""
    items = stack.items
    if not items:
        return _bottom(op, args)
    top = items.pop()
    try:
        return top.process(op, args)
    finally:
        items.append(top)


@contextlib.contextmanager
def pushed(interpreter: Interpreter) -> Iterator[Interpreter]:
    """The interpreter on top of the stack for the body."""
    MODES.append(interpreter)
    stack.items.append(interpreter)
    try:
        yield interpreter
    finally:
        stack.items.remove(interpreter)
        MODES.remove(interpreter)
