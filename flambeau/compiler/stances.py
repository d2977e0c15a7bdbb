"""What compiled functions do at a call: `set_stance` as a function, a context manager or a decorator.

    with set_stance("force_eager"):
        model(x)            # the function itself

May not know: compiled functions. Entry: `set_stance`, `current`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")


class _Current:
    name = "default"


current = _Current()


class set_stance:
    """Set the stance: "default", "force_eager", "eager_on_recompile", "fail_on_recompile" or "eager_then_compile".

    As a context manager or decorator it is put back afterwards. Raises: ValueError for another name.
    """

    def __init__(self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: Any = None):
        if stance not in STANCES:
            raise ValueError(f"set_stance: the stance must be one of {', '.join(STANCES)}, got {stance!r}.")
        if skip_guard_eval_unsafe:
            raise ValueError("set_stance: guards are always checked, got skip_guard_eval_unsafe=True. Leave it out.")
        if force_backend not in (None, "inductor", "eager"):
            raise ValueError(f"set_stance: there is one backend, got force_backend={force_backend!r}. Leave it out.")
        self.stance = "force_eager" if force_backend == "eager" else stance
        self.before = current.name
        current.name = self.stance

    def __enter__(self) -> None:
        current.name = self.stance

    def __exit__(self, *exc: object) -> None:
        current.name = self.before

    def __call__(self, function: Callable) -> Callable:
        current.name = self.before  # a decorator acts when the function is called
        stance = self.stance

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with set_stance(stance):
                return function(*args, **kwargs)

        return wrapped
