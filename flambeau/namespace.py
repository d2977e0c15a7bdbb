"""Public functions by name: a module whose `__getattr__` asks the op registry.

__getattr__, __dir__ = names_of("nn.functional.", globals())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

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
                f"module '{where}' has no attribute '{name}'. {did_you_mean(name, filter(is_public, [*declared(), *scope]))}".strip()
            )
        function = scope[name] = op.function
        return function

    return get, lambda: sorted({*scope, *declared()})


def is_public(name: str) -> bool:
    """Whether a name is meant for users."""
    return not name.startswith("_") and name not in ("annotations", "importlib")  # what modules import for themselves


def absent_device(kind: str, scope: dict[str, Any], calls: Iterable[str]) -> Callable[[str], Any]:
    """`__getattr__` of a module for a kind of device that Flambeau does not have: calls of the functions named say so.

    Raises: AssertionError by the calls (PyTorch's type where it is built without the device), AttributeError for names nobody knows.
    """
    known = frozenset(calls)

    def get(name: str) -> Any:
        if name not in known:
            raise AttributeError(
                f"module '{scope['__name__']}' has no attribute '{name}'. Flambeau has no {kind} devices; "
                f"{kind.lower()}.is_available() is False. {did_you_mean(name, filter(is_public, [*known, *scope]))}".strip()
            )

        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            raise AssertionError(
                f"{kind.lower()}.{name}: needs a {kind} device, and Flambeau runs on the CPU (not compiled with {kind} enabled). "
                f"Test {kind.lower()}.is_available() first, and use device='cpu'."
            )

        refuse.__name__ = refuse.__qualname__ = name
        scope[name] = refuse
        return refuse

    return get
