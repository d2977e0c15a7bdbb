"""Switches of a library that is not here, as attributes that are kept.

Entry: `Switches`, `scoped`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from flambeau.base.errors import did_you_mean


class Switches:
    """Named values, settable; other names are refused."""

    def __init__(self, name: str, **values: Any):
        self.__dict__.update(values, _name=name, _names=tuple(values))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._names:
            raise AttributeError(f"{self._name}: no switch named '{name}'. {did_you_mean(name, self._names)}".strip())
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(f'{n}={self.__dict__[n]!r}' for n in self._names)})"


def scoped(scope: dict[str, Any], *names: str) -> Callable[..., Any]:
    """A context manager `flags(name=value, …)` over attributes of a module."""

    @contextlib.contextmanager
    def flags(**values: Any) -> Iterator[None]:
        wrong = [n for n in values if n not in names]
        if wrong:
            raise TypeError(f"flags: no switch named '{wrong[0]}'. {did_you_mean(wrong[0], names)}".strip())
        before = {n: scope[n] for n in values}
        scope.update(values)
        try:
            yield
        finally:
            scope.update(before)

    return flags
