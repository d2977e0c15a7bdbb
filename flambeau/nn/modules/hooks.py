"""Hooks of modules: tables that keep order, handles that take a hook off again, and the hooks that every module has.

May not know: modules, tensors. Entry: `HookTable`, `register`, `GLOBAL`.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from flambeau.base.errors import message
from flambeau.core.epoch import epoch

_ids = itertools.count()


class RemovableHandle:
    """Takes a hook (and its marks in other tables) off; also a context manager."""

    def __init__(self, tables: tuple[dict, ...]):
        self.id = next(_ids)
        self.tables = tables

    def remove(self) -> None:
        for table in self.tables:
            table.pop(self.id, None)
        epoch.value += 1

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def register(
    table: OrderedDict, hook: Callable, prepend: bool = False, marks: tuple[dict, ...] = ()
) -> RemovableHandle:
    """Put a hook into a table (first with `prepend`), with its id in each table of marks."""
    if not callable(hook):
        raise TypeError(message("register_hook", "a hook must be callable", type(hook).__name__))
    handle = RemovableHandle((table, *marks))
    table[handle.id] = hook
    if prepend:
        table.move_to_end(handle.id, last=False)
    for mark in marks:
        mark[handle.id] = True
    epoch.value += 1
    return handle


class GlobalHooks:
    """Hooks that run for every module."""

    def __init__(self) -> None:
        self.forward: OrderedDict[int, Callable] = OrderedDict()
        self.forward_with_kwargs: OrderedDict[int, bool] = OrderedDict()
        self.forward_always: OrderedDict[int, bool] = OrderedDict()
        self.forward_pre: OrderedDict[int, Callable] = OrderedDict()
        self.backward: OrderedDict[int, Callable] = OrderedDict()
        self.backward_pre: OrderedDict[int, Callable] = OrderedDict()
        self.parameter_registration: OrderedDict[int, Callable] = OrderedDict()
        self.module_registration: OrderedDict[int, Callable] = OrderedDict()
        self.buffer_registration: OrderedDict[int, Callable] = OrderedDict()

    def any_call(self) -> bool:
        return bool(self.forward or self.forward_pre or self.backward or self.backward_pre)


GLOBAL = GlobalHooks()


def apply_registration(table: OrderedDict, module: Any, name: str, value: Any) -> Any:
    """What registration hooks make of a value."""
    for hook in table.values():
        changed = hook(module, name, value)
        if changed is not None:
            value = changed
    return value
