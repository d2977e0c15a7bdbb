"""Public functions by name: a module whose `__getattr__` asks the op registry.

__getattr__, __dir__ = names_of("nn.functional.", globals())
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.base.errors import did_you_mean
from flambeau.ir.op import FUNCTIONS, IN_PLACE


def names_of(prefix: str, scope: dict[str, Any]) -> tuple[Callable, Callable]:
    """(`__getattr__`, `__dir__`) of a module that shows the declared functions whose names start with `prefix`.

    At the top, `name_` is the in-place form.
    """

    def declared() -> list[str]:
        return [n[len(prefix) :] for n in FUNCTIONS if n.startswith(prefix) and "." not in n[len(prefix) :]]

    def get(name: str) -> Any:
        op = FUNCTIONS.get(prefix + name)
        if op is None and not prefix and name in IN_PLACE and name[:-1] in FUNCTIONS:
            function = scope[name] = IN_PLACE[name].in_place
            return function
        if op is None:
            where = scope["__name__"]
            raise AttributeError(
                f"module '{where}' has no attribute '{name}'. {did_you_mean(name, [*declared(), *scope])}".strip()
            )
        function = scope[name] = op.function
        return function

    return get, lambda: sorted({*scope, *declared()})
