"""A module whose calls are compiled; the module itself is `_orig_mod`, and its parameters are shared.

    fast = flambeau.compile(model)
    fast(x); fast.state_dict()      # keys start with "_orig_mod.", as PyTorch's do

May not know: how compiling works. Entry: `flambeau.compile`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from flambeau.nn.modules.module import Module

__all__ = ["OptimizedModule"]


class OptimizedModule(Module):
    """What `flambeau.compile(module)` returns: attributes are the module's, calls are compiled."""

    def __init__(self, module: Module, make: Callable):
        super().__init__()
        self._modules["_orig_mod"] = module
        self.__dict__["_compiled"], self.__dict__["_make"] = make(module.__call__), make
        self.__dict__["training"] = module.training

    @property
    def training(self) -> bool:
        return self._modules["_orig_mod"].training

    @training.setter
    def training(self, value: bool) -> None:
        self._modules["_orig_mod"].training = value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_compiled"](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self.__dict__["_modules"]["_orig_mod"]
        return getattr(self.__dict__["_modules"]["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "training" or name in ("_orig_mod",):
            super().__setattr__(name, value)
        else:
            setattr(self.__dict__["_modules"]["_orig_mod"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_modules"]["_orig_mod"], name)

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __getitem__(self, index: Any) -> Any:
        return self._orig_mod[index]

    def __dir__(self) -> list[str]:
        return dir(self._orig_mod)

    def __deepcopy__(self, memo: dict) -> OptimizedModule:
        return OptimizedModule(copy.deepcopy(self._orig_mod, memo), self.__dict__["_make"])

    def __reduce__(self) -> tuple:
        raise TypeError(
            "pickle: a compiled module has no file form. Save its state_dict(), or the module itself (._orig_mod)."
        )
