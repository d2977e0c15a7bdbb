"""Objects that hold tensors, taken apart for a trace and put together for each call: dataclasses given, objects of any class returned.

    opened(Batch(x, y))         # a pytree node whose children are x and y; put together again it is a Batch

May not know: traces. Raises: TraceError for an object that holds a traced tensor where it cannot be reached. Entry: `opened`, with `given` or `made`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import TraceError
from flambeau.base.pytree import register_pytree_node, tree_leaves, tree_map
from flambeau.compiler import values

DEEPEST = 8  # objects within objects


class Opened:
    """Stands for an object of class `kind` with these attributes."""

    __slots__ = ("kind", "state")

    def __init__(self, kind: type, state: dict[str, Any]):
        self.kind, self.state = kind, state


def _flatten(x: Opened) -> tuple[list, tuple]:
    return list(x.state.values()), (x.kind, tuple(x.state))


def _unflatten(children: Any, context: tuple) -> Any:
    kind, names = context
    made = kind.__new__(kind)
    for name, value in zip(names, children):
        object.__setattr__(made, name, value)
    return made


register_pytree_node(Opened, _flatten, _unflatten)


def state_of(x: Any) -> dict[str, Any] | None:
    """An object's own attributes; None for what has none that are its own to give: modules, classes, functions, plain values."""
    kind = type(x)
    if isinstance(x, (Tensor, type)) or values.is_plain(x) or values.is_module_like(x) or kind.__module__ in _CLOSED:
        return None
    found = dict(x.__dict__) if isinstance(getattr(x, "__dict__", None), dict) else {}
    for c in kind.__mro__:
        for name in (c.__dict__.get("__slots__") or ()) if "__slots__" in c.__dict__ else ():
            if hasattr(x, name):
                found[name] = getattr(x, name)
    return found


_CLOSED = frozenset(("builtins", "types", "functools", "collections"))


def holds_tensors(x: Any, depth: int = 0) -> bool:
    """Whether an object has a tensor among its attributes, those of its attributes' included."""
    state = state_of(x)
    if not state or depth > DEEPEST:
        return False
    return any(isinstance(y, Tensor) or holds_tensors(y, depth + 1) for y in tree_leaves(list(state.values())))


def given(x: Any) -> bool:
    """Whether an argument is one to be opened."""
    return hasattr(type(x), "__dataclass_fields__") and holds_tensors(x)


def made(x: Any, depth: int = 0) -> bool:
    """Whether a result is one to be opened: it holds a tensor of the trace."""
    state = state_of(x)
    if not state or depth > DEEPEST:
        return False
    return any(
        (isinstance(y, Tensor) and y.ptr is None) or made(y, depth + 1) for y in tree_leaves(list(state.values()))
    )


def opened(tree: Any, wanted: Callable[[Any], bool], depth: int = 0) -> Any:
    """A tree whose leaves that are `wanted` are opened. Raises: TraceError for objects nested too deeply."""
    if depth > DEEPEST:
        raise TraceError("compile: objects that hold tensors are nested too deeply, or hold each other. Pass tensors.")

    def one(x: Any) -> Any:
        if isinstance(x, Tensor) or not wanted(x):
            return x
        return Opened(type(x), {k: opened(v, wanted, depth + 1) for k, v in state_of(x).items()})

    return tree_map(one, tree)
