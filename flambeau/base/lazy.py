"""Modules that are loaded when first used: importing Flambeau must not pay for NumPy, nor for what only a first kernel needs.

from flambeau.base.lazy import np
"""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module until an attribute is asked for."""

    def __init__(self, name: str):
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self.__dict__["_name"]), attribute)
        self.__dict__[attribute] = value
        return value


hashlib: Any = LazyModule("hashlib")  # brings in OpenSSL
json: Any = LazyModule("json")
np: Any = LazyModule("numpy")
scipy_special: Any = LazyModule("scipy.special")
scipy_linalg: Any = LazyModule("scipy.linalg")
