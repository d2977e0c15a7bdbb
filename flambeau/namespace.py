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


def is_available() -> bool:
    """Whether there is such a device: no."""
    return False


def device_count() -> int:
    """Number of such devices: 0."""
    return 0


def manual_seed(seed: int) -> None:
    """Nothing to seed."""


def manual_seed_all(seed: int) -> None:
    """Nothing to seed."""


def empty_cache() -> None:
    """Nothing to empty. See `cpu.empty_cache`."""


# What programs call without asking first whether there is such a device: it works, and does nothing.
HARMLESS = (is_available, device_count, manual_seed, manual_seed_all, empty_cache)

# What the modules of devices have in common, and needs one.
CALLS_OF_DEVICES = (
    "Event Stream current_device current_stream get_device_capability get_device_name get_device_properties get_rng_state init set_device "
    "set_per_process_memory_fraction set_rng_state set_stream stream synchronize"
).split()


def absent_device(kind: str, scope: dict[str, Any], calls: Iterable[str]) -> Callable[[str], Any]:
    """`__getattr__` of a module for a kind of device that Flambeau does not have: `calls` and `CALLS_OF_DEVICES` say so, `HARMLESS` is put there.

    Raises: AssertionError by the calls (PyTorch's type where it is built without the device), AttributeError for names nobody knows.
    """
    known = frozenset((*calls, *CALLS_OF_DEVICES))
    scope.update((f.__name__, f) for f in HARMLESS)

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
