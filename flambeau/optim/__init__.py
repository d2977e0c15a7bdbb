"""Optimisers and schedules of learning rates. Names are loaded when first asked for."""

from __future__ import annotations

import importlib
from typing import Any

HOMES = {
    "ASGD": "rprop",
    "Adadelta": "adaptive",
    "Adafactor": "adafactor",
    "Adagrad": "adaptive",
    "Adam": "adam",
    "AdamW": "adam",
    "Adamax": "adaptive",
    "LBFGS": "lbfgs",
    "Muon": "muon",
    "NAdam": "adam_variants",
    "Optimizer": "optimizer",
    "RAdam": "adam_variants",
    "RMSprop": "adaptive",
    "Rprop": "rprop",
    "SGD": "sgd",
}
SUBMODULES = ("adam", "adamw", "lr_scheduler", "optimizer", "sgd", "swa_utils")


def __getattr__(name: str) -> Any:
    if name in HOMES:
        found = globals()[name] = getattr(importlib.import_module(f"flambeau.optim.{HOMES[name]}"), name)
        return found
    if name in SUBMODULES:
        return importlib.import_module(f"flambeau.optim.{name}")
    raise AttributeError(f"module 'flambeau.optim' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES, *SUBMODULES})


__all__ = sorted(HOMES)
