"""Everything that a function reads from outside, so that what was made of it once can be used again while that is as it was.

    reads = list_reads(function)          # (value, spec) of tensors, numbers, functions; None if that cannot be told
    same(reads, list_reads(function))     # whether anything was replaced since

Reads are found in the code object (`compiler.bytecode`): variables of enclosing functions, globals, and paths of attributes and items from them
(`self.bias`, `config["width"]`). Functions that are called are read too. A value of an unknown kind that is read as a whole cannot be told.

May not know: what is made of functions. Enter at: `list_reads`, `same`, `kinds_of`.
"""

from __future__ import annotations

import builtins
import functools
import types
from typing import Any

from flambeau._tensor import Tensor
from flambeau.compiler.bytecode import READ, STEP, facts_of
from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.ir.op import Op

Path = tuple[tuple[str, str], tuple[tuple[str, Any], ...]]  # of a root, where it is and its name, and steps from it

_FIXED = (
    *(int, float, complex, bool, str, bytes, type(None), dtype, device, Op),
    *(types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType),
)


def list_reads(function: Any) -> list | None:
    """Everything that may change what the function does: (what, more) pairs. None if that cannot be told, or is part of a trace."""
    found: list = []
    told = isinstance(function, types.FunctionType | functools.partial) and _read(function, found, set())
    return found if told else None


def _read(x: Any, found: list, seen: set[int]) -> bool:
    """Note a value and what it reads in turn; False if that cannot be told."""
    if isinstance(x, Tensor):
        if x.spec.is_slow:  # of a trace or a transform, or of a subclass that sees calls itself
            return False
        found.append((x, x.spec))
        return True
    if isinstance(x, _FIXED) or (isinstance(x, type) and _is_ours(x.__module__)):
        found.append((x, None))
        return True
    if id(x) in seen:
        return True
    seen.add(id(x))
    if type(x) is tuple:
        found.append((len(x), None))
        return all(_read(y, found, seen) for y in x)
    if isinstance(x, functools.partial):
        return _read((x.func, x.args, *x.keywords.items()), found, seen)
    if not isinstance(x, types.FunctionType):
        return False
    if _is_ours(x.__module__) and "<locals>" not in x.__qualname__:
        found.append((x, None))  # our own functions keep nothing
        return True
    paths = _paths_of(x.__code__)
    if paths is None:
        return False
    found.append((x.__code__, None))
    for (root, steps), passing in paths:
        value = _at(_root(x, root), steps)
        if value is _MISSING:
            return False
        if passing and not isinstance(value, (Tensor, types.FunctionType, *_FIXED)):
            continue  # an object on the way to what is read
        if not _read(value, found, seen):
            return False
    return all(_read(y, found, seen) for y in (x.__defaults__, *(x.__kwdefaults__ or {}).values()))


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] in ("flambeau", "builtins")


@functools.lru_cache(1024)
def _paths_of(code: types.CodeType) -> tuple[tuple[Path, bool], ...] | None:
    """What a code object reads from outside, and whether each is only a step to something else.

    None if it writes there, or makes functions, whose reads would have to be followed too.
    """
    if any(isinstance(c, types.CodeType) for c in code.co_consts):
        return None
    found: dict[Path, bool] = {}
    for accesses in facts_of(code).lines.values():
        for a in accesses:
            if a.root[0] not in ("cell", "global"):
                continue
            if a.kind not in (READ, STEP):
                return None
            found[a.root, a.path] = found.get((a.root, a.path), True) and a.kind == STEP
    followed = {(root, path[:n]) for root, path in found for n in range(len(path))}
    return tuple((p, step and p in followed) for p, step in found.items())


_MISSING = object()


def _root(function: types.FunctionType, root: tuple[str, str]) -> Any:
    where, name = root
    if where == "cell":
        free = function.__code__.co_freevars
        return contents(function.__closure__[free.index(name)]) if name in free else _MISSING
    return function.__globals__.get(name, getattr(builtins, name, _MISSING))


def contents(cell: Any) -> Any:
    """What a cell holds; None for a name that is not bound yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _at(x: Any, steps: tuple) -> Any:
    """What a path leads to, or the first tensor on it; _MISSING if that cannot be told."""
    for kind, name in steps:
        if isinstance(x, Tensor) or x is _MISSING:
            break
        if kind == "attr" and not isinstance(_on_type(x, name), property):
            x = getattr(x, name, _MISSING)
        elif kind == "item" and type(x) in (tuple, list, dict):
            try:
                x = x[name]
            except (LookupError, TypeError):
                return _MISSING
        else:
            return _MISSING
    return x


def _on_type(x: Any, name: str) -> Any:
    """What the class of x has under a name, properties as such."""
    return next((c.__dict__[name] for c in type(x).__mro__ if name in c.__dict__), None)


def kinds_of(reads: list) -> tuple:
    """What is read, tensors by their specs and by which of them are one."""
    first: dict[int, int] = {}
    return tuple(
        [
            (more, first.setdefault(id(x), i))
            if isinstance(x, Tensor)
            else (type(x), repr(x) if type(x) is float else x)
            for i, (x, more) in enumerate(reads)
        ]
    )


def same(old: list, new: list) -> bool:
    if len(old) != len(new):
        return False
    for (x, more), (y, other) in zip(old, new):
        if x is y:
            if more is not other:
                return False
        elif type(x) is not type(y) or isinstance(x, Tensor) or x != y:
            return False
    return True


__all__ = ["contents", "kinds_of", "list_reads", "same"]
