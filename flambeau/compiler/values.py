"""Which Python values compare by what they are: plain values, containers of them, modules in the sense of `nn`; all else counts by identity.

May not know: guards, tensors. Entry: `is_plain`, `snapshot`, `same`, `leaf_key`.
"""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.core.formats import layout, memory_format

_ATOMS = (type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis))
_VALUES = (dtype, device, memory_format, layout, enum.Enum)


def is_plain(x: Any) -> bool:
    """Whether a value is one that only equality tells apart (and that nobody can change)."""
    kind = type(x)
    if kind in _ATOMS or isinstance(x, _VALUES):
        return True
    return (kind is tuple or kind is frozenset or isinstance(x, tuple)) and all(is_plain(y) for y in x)


def same(a: Any, b: Any) -> bool:
    """Equality of plain values: types count, and NaN equals itself; other values are the same if they are one object."""
    if a is b:
        return True
    if type(a) is not type(b) or not (is_plain(a) and is_plain(b)):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, float):
        return a == b and (a != 0 or str(a) == str(b)) or (a != a and b != b)
    return a == b


def snapshot(x: Any) -> Any:
    """What a container holds, one level deep."""
    if isinstance(x, dict):
        return dict(x)
    if isinstance(x, (set, frozenset)):
        return frozenset(x)
    return list(x)


def same_content(x: Any, before: Any) -> bool:
    """Whether a container holds what it held."""
    if len(x) != len(before):
        return False
    if isinstance(x, dict):
        return all(
            (a is b or same(a, b)) and (u is v or same(u, v)) for (a, u), (b, v) in zip(x.items(), before.items())
        )
    if isinstance(x, (set, frozenset)):
        return x == before
    return all(u is v or same(u, v) for u, v in zip(x, before))


def is_module_like(x: Any) -> bool:
    """Whether an object is a module in the sense of `nn`: parameters, buffers and sub-modules in tables, changes counted by `core.epoch`."""
    d = getattr(x, "__dict__", None)
    return type(d) is dict and "_parameters" in d and "_modules" in d


def is_immutable_library(x: Any) -> bool:
    """Whether an object is a module of Python's or ours, whose attributes are taken as fixed."""
    if not isinstance(x, types.ModuleType):
        return False
    root = x.__name__.partition(".")[0]
    return root in _FIXED or root in sys.stdlib_module_names


_FIXED = frozenset(("flambeau", "numpy", "builtins"))
ABSENT = object()


def attribute(x: Any, name: str) -> Any:
    """An attribute read without running code of the user's: `ABSENT` where a property or a `__getattr__` would be asked."""
    kind = type(x)
    if isinstance(x, types.ModuleType):
        return x.__dict__.get(name, ABSENT)
    for c in kind.__mro__ if kind is not type else ():
        found = c.__dict__.get(name, ABSENT)
        if found is not ABSENT:
            if isinstance(found, types.MemberDescriptorType):
                try:
                    return found.__get__(x, kind)
                except AttributeError:
                    return ABSENT
            if isinstance(found, property) or hasattr(type(found), "__set__"):
                return ABSENT
            break
    d = getattr(x, "__dict__", None)
    if isinstance(d, dict) or isinstance(d, types.MappingProxyType):
        if name in d:
            return d[name]
        if "_parameters" in d:
            for table in ("_parameters", "_buffers", "_modules"):
                if name in d.get(table, ()):
                    return d[table][name]
    if isinstance(x, type):
        for c in x.__mro__:
            if name in c.__dict__:
                return c.__dict__[name]
        return ABSENT
    for c in kind.__mro__:
        if name in c.__dict__:
            found = c.__dict__[name]
            return ABSENT if hasattr(type(found), "__get__") else found  # methods: the class is what counts
    return ABSENT


def lacks(x: Any, name: str) -> bool:
    """Whether an object has no attribute of this name, and gets one only by an assignment to itself."""
    kind = type(x)
    if isinstance(x, (type, types.ModuleType)) or not isinstance(getattr(x, "__dict__", None), dict):
        return False
    if attribute(x, name) is not ABSENT or any(name in c.__dict__ for c in kind.__mro__):
        return False
    made_up = [c for c in kind.__mro__ if "__getattr__" in c.__dict__]
    return not made_up or (is_module_like(x) and all(c.__module__.startswith("flambeau.") for c in made_up))


def leaf_key(x: Any) -> Any:
    """An argument that is no tensor as part of a key."""
    if type(x) is slice:  # does not hash before Python 3.12
        return (slice, leaf_key(x.start), leaf_key(x.stop), leaf_key(x.step))
    if is_plain(x):
        return (type(x), repr(x) if isinstance(x, (float, complex)) else x)
    return _Identity(x)


class _Identity:
    """An object as a key: itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return type(other) is _Identity and other.value is self.value

    def __repr__(self) -> str:
        return f"a {type(self.value).__name__}"
