"""Loading of data, checkpoints of activations. Sub-packages are loaded when first used."""

from __future__ import annotations

import importlib
from typing import Any

SUBMODULES = ("_debug_mode", "checkpoint", "data", "deterministic")


def __getattr__(name: str) -> Any:
    if name in SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
