"""Whether ops are taped, per thread: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`.

May not know: the tape. Each works as a context manager and as a decorator.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any


class _Mode(threading.local):
    enabled = True
    inference = False


mode = _Mode()


def is_grad_enabled() -> bool:
    """Whether this thread records ops for backward."""
    return mode.enabled


def is_inference_mode_enabled() -> bool:
    return mode.inference


class _Switch:
    """A context manager and decorator that sets the mode and puts it back."""

    enabled = True

    def __enter__(self) -> None:
        self._saved = getattr(self, "_saved", [])
        self._saved.append((mode.enabled, mode.inference))
        self._set()

    def _set(self) -> None:
        mode.enabled = self.enabled

    def __exit__(self, *exc: object) -> None:
        mode.enabled, mode.inference = self._saved.pop()

    def __call__(self, function: Callable) -> Callable:
        make = self._again

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with make():
                return function(*args, **kwargs)

        return wrapped

    def _again(self) -> _Switch:
        return type(self)()


def _decorating(cls: type) -> type:
    """Allow `@no_grad` beside `@no_grad()`."""
    plain = cls.__new__

    def new(kind, function: Callable | None = None):
        made = plain(kind)
        return made(function) if callable(function) else made

    cls.__new__ = staticmethod(new)
    return cls


@_decorating
class no_grad(_Switch):
    """Ops inside are not recorded."""

    enabled = False


@_decorating
class enable_grad(_Switch):
    """Ops inside are recorded, whatever holds outside."""


class set_grad_enabled(_Switch):
    """Record or not, at once; as a context manager puts the old mode back."""

    def __init__(self, mode: bool):
        self.enabled = bool(mode)
        _set_enabled(self)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        mode.enabled, mode.inference = self._saved.pop()

    def _again(self) -> _Switch:
        return set_grad_enabled(self.enabled)


def _set_enabled(switch: set_grad_enabled) -> None:
    switch._saved = [(mode.enabled, mode.inference)]
    mode.enabled = switch.enabled


@_decorating
class inference_mode(_Switch):
    """Ops inside are not recorded, and their results never will be."""

    def __init__(self, mode: bool | Callable = True):
        self.on = mode if isinstance(mode, bool) else True

    def _set(self) -> None:
        if self.on:
            mode.enabled, mode.inference = False, True
        else:
            mode.enabled, mode.inference = True, False

    def _again(self) -> _Switch:
        return inference_mode(self.on)
