"""Watchers: who is told of everything that runs on a thread, as it runs (`utils._debug_mode`).

    with watching.on(watcher):
        ...                          # watcher.watch(Event(...), run) is called for each, and calls run()

What runs is what would run anyway, by the same plans: ops one by one, the backward of a node and the update of an optimizer as one plan each
(their graphs say of which ops), graphs of traced functions likewise. `bind.MODES` holds the watcher, so that the fast paths of eager mode, which
tell nobody, step aside.

May not know: who watches, tensors. Entry: `on`, `current`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from flambeau.base.record import record
from flambeau.ir import bind
from flambeau.ir.graph import Graph
from flambeau.ir.op import Op


@record
class Event:
    """Something that runs.

    kind: "op", "write" (the in-place form of an op), "backward" (of a node, named after its op), "update" (of an optimizer), "graph" (a traced
    function), or "traced" (an op that goes into a graph and does not run). `args` are bound arguments where there is an op.
    """

    kind: str
    name: str
    op: Op | None
    args: tuple
    graph: Graph | None = None
    where: str | None = None  # of the forward op of a backward, where that is kept (anomaly mode)
    kernels: tuple[str, ...] = ()  # of a graph


class Watcher(Protocol):
    def watch(self, event: Event, run: Callable[[], Any]) -> Any:
        """Call `run` and return what it returns."""


class _Current(threading.local):
    def __init__(self) -> None:
        self.watchers: list[Watcher] = []
        self.depth = 0  # of events


_current = _Current()


def current() -> Watcher | None:
    """This thread's innermost watcher. Ask `bind.MODES` first: it is empty where nobody watches."""
    watchers = _current.watchers
    return watchers[-1] if watchers else None


def tell(watcher: Watcher, event: Event, run: Callable[[], Any]) -> Any:
    """Let a watcher run something."""
    _current.depth += 1
    try:
        return watcher.watch(event, run)
    finally:
        _current.depth -= 1


def is_inside() -> bool:
    """Whether what runs now is part of something that a watcher was told of."""
    return _current.depth > 0


@contextlib.contextmanager
def on(watcher: Watcher) -> Iterator[None]:
    """Tell a watcher of what runs in the body."""
    start(watcher)
    try:
        yield
    finally:
        stop(watcher)


def start(watcher: Watcher) -> None:
    _current.watchers.append(watcher)
    bind.MODES.append(watcher)


def stop(watcher: Watcher) -> None:
    _current.watchers.remove(watcher)
    bind.MODES.remove(watcher)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Nobody is told of what runs in the body (a watcher's own ops)."""
    saved, _current.watchers = _current.watchers, []
    try:
        yield
    finally:
        _current.watchers = saved


__all__ = ["Event", "Watcher", "current", "is_inside", "on", "start", "stop", "tell", "unseen"]
