"""Methods of Tensor written by hand: conversion between devices, dtypes, Python and NumPy.

Everything that is an op comes from its declaration instead.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.core.device import as_device, device
from flambeau.core.dtype import ALIASES, BY_NAME, dtype
from flambeau.interop.arrays import to_numpy
from flambeau.interop.transfer import move
from flambeau.ir.op import REGISTRY


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The tensor in another dtype, on another device, or like another tensor. Itself if nothing changes."""
    wanted_dtype, wanted_device = kwargs.get("dtype"), kwargs.get("device")
    for a in args:
        if isinstance(a, dtype):
            wanted_dtype = a
        elif isinstance(a, (str, device)):
            wanted_device = a
        elif isinstance(a, Tensor):
            wanted_dtype, wanted_device = a.dtype, a.device
    result = self if wanted_device is None else move(self, as_device(wanted_device), bool(kwargs.get("non_blocking")))
    if wanted_dtype is not None and wanted_dtype is not self.spec.dtype:
        result = REGISTRY["to_dtype"](result, wanted_dtype)
    return result.clone() if kwargs.get("copy") and result is self else result


def cpu(self: Tensor) -> Tensor:
    """The tensor on the CPU."""
    return self.to("cpu")


def numpy(self: Tensor, *, force: bool = False) -> Any:
    """A NumPy array on the tensor's memory."""
    return to_numpy(self, force=force)


def zero_(self: Tensor) -> Tensor:
    """Fill with zeros."""
    return self.fill_(0)


def _converter(d: dtype):
    def convert(self: Tensor, memory_format: Any = None) -> Tensor:
        return to(self, d) if memory_format is None else to(self, d).clone(memory_format=memory_format)

    convert.__doc__ = f"The tensor in {d.name}."
    return convert


def install() -> None:
    """Hang the methods on Tensor."""
    for f in (to, cpu, numpy, zero_):
        setattr(Tensor, f.__name__, f)
    for name, d in {**BY_NAME, **ALIASES, "byte": BY_NAME["uint8"], "char": BY_NAME["int8"]}.items():
        if name in (
            "half",
            "float",
            "double",
            "short",
            "int",
            "long",
            "cfloat",
            "cdouble",
            "bool",
            "bfloat16",
            "byte",
            "char",
        ):
            setattr(Tensor, name, _converter(d))
