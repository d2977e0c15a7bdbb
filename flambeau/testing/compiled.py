"""Flambeau with every function compiled: a module to be given to tests and conformance suites in place of `flambeau`.

    python opinfo.py --fw flambeau.testing.compiled

Each call traces its function anew, so samples of every kind of input are covered. Functions whose results depend on values (`nonzero`) run
eagerly; `eager_calls` counts them by name. Everything that is no function is Flambeau's own.
"""

from __future__ import annotations

import collections
import importlib
import types
import warnings
from typing import Any

from flambeau.compiler.compiled import CompiledFunction

flambeau: Any = importlib.import_module("flambeau")  # the whole package, which stands above this one
eager_calls: collections.Counter = collections.Counter()
compiled_calls: collections.Counter = collections.Counter()
FACTORIES = (
    "from_numpy",
    "tensor",
    "as_tensor",
    "asarray",
    "manual_seed",
    "set_num_threads",
    "no_grad",
    "enable_grad",
    "set_grad_enabled",
)


def compiled_call(function: Any, name: str) -> Any:
    """`function`, traced and compiled at each call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        f = CompiledFunction(function)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = f(*args, **kwargs)
        (compiled_calls if f.eager_reason is None and (f.entries or f.symbolic) else eager_calls)[name] += 1
        return result

    call.__name__ = name.rpartition(".")[2]
    return call


class _Methods(type):
    """Stands for `flambeau.Tensor`: its instances are tensors, its methods are compiled."""

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, flambeau.Tensor)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, flambeau.Tensor)

    def __getattr__(cls, name: str) -> Any:
        found = getattr(flambeau.Tensor, name)
        return compiled_call(found, f"Tensor.{name}") if callable(found) and name[:1] != "_" else found


class Tensor(metaclass=_Methods):
    """See `_Methods`."""


class Namespace:
    """A module's names, its functions compiled."""

    def __init__(self, module: types.ModuleType, prefix: str = ""):
        self._module, self._prefix = module, prefix

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        full = f"{self._prefix}{name}"
        if isinstance(found, types.ModuleType):
            return Namespace(found, full + ".")
        if callable(found) and not isinstance(found, type) and name not in FACTORIES and name[:1] != "_":
            return compiled_call(found, full)
        return found


_names = Namespace(flambeau)


def __getattr__(name: str) -> Any:
    if name == "autograd":
        return flambeau.autograd
    return getattr(_names, name)
