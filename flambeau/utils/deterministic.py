"""`fill_uninitialized_memory`: whether `empty` and its like fill their memory while `use_deterministic_algorithms(True)` holds.

Floating and complex tensors are filled with NaN, others with the largest value of their dtype. True unless set. May not know: ops.

    flambeau.utils.deterministic.fill_uninitialized_memory = False
"""

from __future__ import annotations

import sys
import types

from flambeau.core.determinism import wanted


class _Switch(types.ModuleType):
    """The module, its attribute kept where factories look."""

    @property
    def fill_uninitialized_memory(self) -> bool:
        return wanted.fill_uninitialized_memory

    @fill_uninitialized_memory.setter
    def fill_uninitialized_memory(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise TypeError(f"fill_uninitialized_memory: must be a bool, got {type(mode).__name__}. Set True or False.")
        wanted.fill_uninitialized_memory = mode


sys.modules[__name__].__class__ = _Switch
