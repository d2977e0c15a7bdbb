"""Automatic differentiation: `grad`, `backward`, grad modes, `Function`, `gradcheck`. Rarely used parts are loaded when first used."""

from __future__ import annotations

import importlib
from typing import Any

from flambeau.autograd.api import backward, grad
from flambeau.tape.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled

HOMES = {
    "Function": "function",
    "Variable": "variable",
    "detect_anomaly": "anomaly",
    "gradcheck": "numerical_check",
    "gradgradcheck": "numerical_check",
    "set_detect_anomaly": "anomaly",
}
SUBMODULES = ("anomaly", "function", "functional", "graph", "numerical_check", "variable")


def __getattr__(name: str) -> Any:
    if name in HOMES:
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
        return found
    if name == "grad_mode":
        return importlib.import_module("flambeau.tape.grad_mode")
    if name in SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
