"""Records: small value classes for what is passed between stages, made quickly.

    @record
    class Launch:
        "One kernel ..."
        recipe: Recipe
        params: tuple[int, ...]
        flops: int = 0

    a = Launch(recipe, (4, 1))
    b = replace(a, flops=8)         # records do not change

What frozen dataclasses are for, without their price at import: those compile six functions a class and load `inspect`, some 1.5 ms each,
which is most of what importing a package of small classes takes. A record compiles its `__init__` when the first one is made. Fields are
the annotations of the class body (and of its bases that are records), defaults its assignments; equality, hash and repr go by
the fields in order, except those listed as `hidden`.

May not know: anything of Flambeau. Entry: `record`, `replace`, `as_tuple`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["as_tuple", "record", "replace"]

C = TypeVar("C", bound=type)
R = TypeVar("R")


@overload
def record(cls: C, /) -> C: ...


@overload
def record(*, hidden: tuple[str, ...]) -> Callable[[C], C]: ...


@dataclass_transform(frozen_default=True)
def record(cls: Any = None, /, *, hidden: tuple[str, ...] = ()) -> Any:
    """Make a class a record. `hidden`: fields that neither equality, hash nor repr look at."""
    if cls is None:
        return lambda inner: _made(inner, hidden)
    return _made(cls, hidden)


def _made(cls: type, hidden: tuple[str, ...]) -> type:
    fields: dict[str, None] = {}
    for base in reversed(cls.__mro__[1:]):
        fields.update(dict.fromkeys(getattr(base, "__record_fields__", ())))
    fields.update(dict.fromkeys(cls.__dict__.get("__annotations__", {})))
    names = tuple(fields)
    shown = tuple(n for n in names if n not in hidden)
    key = attrgetter(*shown) if len(shown) != 0 else lambda self: ()

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = _initialiser(cls, names)  # type: ignore[misc]
        cls.__init__(self, *args, **kwargs)

    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"

    def __eq__(self: Any, other: object) -> Any:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(key(self))

    def __setattr__(self: Any, name: str, value: object) -> None:
        raise AttributeError(f"{cls.__name__}: a record does not change, got {name} = {value!r}. Use replace().")

    def __delattr__(self: Any, name: str) -> None:
        raise AttributeError(f"{cls.__name__}: a record does not change, got del {name}.")

    for function in (__init__, __repr__, __eq__, __hash__, __setattr__, __delattr__):
        if function.__name__ not in cls.__dict__ or function is __init__:
            function.__qualname__ = f"{cls.__qualname__}.{function.__name__}"
            setattr(cls, function.__name__, function)
    if "__hash__" in cls.__dict__ and cls.__dict__["__hash__"] is None:  # Python's answer to an __eq__ in the body
        cls.__hash__ = __hash__  # type: ignore[assignment]
    cls.__record_fields__ = names  # type: ignore[attr-defined]
    cls.__match_args__ = names  # type: ignore[attr-defined]
    return cls


def _initialiser(cls: type, names: tuple[str, ...]) -> Any:
    """`__init__` as if written by hand; past `__setattr__`, into the instance's dictionary."""
    scope: dict[str, Any] = {}
    parameters = []
    for n in names:
        if hasattr(cls, n):
            scope[f"_default_{n}"] = getattr(cls, n)
            parameters.append(f"{n}=_default_{n}")
        else:
            parameters.append(n)
    lines = [
        f"def __init__(self, {', '.join(parameters)}):",
        "    fields = self.__dict__",
        *(f"    fields[{n!r}] = {n}" for n in names),
    ]
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    exec(compile("\n".join(lines), f"<flambeau record {cls.__qualname__}>", "exec"), scope)
    return scope["__init__"]


def as_tuple(instance: Any) -> tuple:
    """The fields' values, in order."""
    return tuple([getattr(instance, n) for n in instance.__record_fields__])


def replace(instance: R, /, **changes: Any) -> R:
    """Another record, with some fields changed. Raises: TypeError for a name that is no field."""
    names = instance.__record_fields__  # type: ignore[attr-defined]
    values = {n: changes.pop(n) if n in changes else getattr(instance, n) for n in names}
    return type(instance)(**values, **changes)
