"""Neural network modules, parameters and functions. Names are loaded when first asked for."""

from __future__ import annotations

import importlib
from typing import Any

from flambeau.base.errors import did_you_mean
from flambeau.nn import functional
from flambeau.nn.modules import HOMES

PARAMETERS = ("Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter")
SUBMODULES = ("attention", "init", "modules", "parameter", "utils")


def __getattr__(name: str) -> Any:
    if name in HOMES:
        found = getattr(importlib.import_module(f"flambeau.nn.modules.{HOMES[name]}"), name)
    elif name in PARAMETERS:
        found = getattr(importlib.import_module("flambeau.nn.parameter"), name)
    elif name in SUBMODULES:
        return importlib.import_module(f"flambeau.nn.{name}")
    else:
        near = did_you_mean(name, (*HOMES, *PARAMETERS, *SUBMODULES, "functional"))
        raise AttributeError(f"module 'flambeau.nn' has no attribute '{name}'. {near}".strip())
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES, *PARAMETERS, *SUBMODULES})


__all__ = ["functional", *sorted(HOMES), *PARAMETERS]
