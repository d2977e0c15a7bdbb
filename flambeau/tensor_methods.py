"""Methods of Tensor written by hand: conversion between devices, dtypes, Python and NumPy.

Everything that is an op comes from its declaration instead.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.arrays import from_numpy
from flambeau.base.errors import UnsupportedError, message
from flambeau.core.device import as_device, device
from flambeau.core.dtype import ALIASES, BY_NAME, as_dtype, dtype
from flambeau.factories import tensor as from_data
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
        elif isinstance(a, type):
            wanted_dtype = a
        elif a is not None and not isinstance(a, bool):
            raise TypeError(
                message(
                    "to",
                    "takes a dtype, a device or a tensor (received an invalid combination of arguments)",
                    type(a).__name__,
                )
            )
    if kwargs.get("other") is not None:
        wanted_dtype, wanted_device = kwargs["other"].dtype, kwargs["other"].device
    if wanted_dtype is not None and type(wanted_dtype) is not dtype:
        wanted_dtype = as_dtype("to", wanted_dtype)
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


def array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
    """What NumPy reads a tensor as: an array on its memory, or a copy in another dtype. Raises: RuntimeError if it requires grad."""
    found = self.numpy()
    if dtype is not None and found.dtype != dtype:
        if copy is False:
            raise ValueError(message("array", f"copy=False needs the tensor's dtype {found.dtype}", str(dtype)))
        return found.astype(dtype)
    return found.copy() if copy else found


def array_wrap(self: Tensor, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
    """The result of a NumPy function on a tensor, as a tensor."""
    return from_data(array) if getattr(array, "ndim", 0) == 0 else from_numpy(array)


def zero_(self: Tensor) -> Tensor:
    """Fill with zeros."""
    return self.fill_(0)


def chalf(self: Tensor, memory_format: Any = None) -> Tensor:
    """Raises: UnsupportedError (half-precision complex numbers are not a dtype of Flambeau)."""
    raise UnsupportedError(
        "chalf: complex32 is not a dtype of Flambeau, which has complex64 and complex128. Use .cfloat()."
    )


def _refusal(kind: str):
    def refuse(self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
        raise AssertionError(
            f"{kind.lower()}: needs a {kind} device, and Flambeau runs on the CPU (not compiled with {kind} enabled). "
            f"Leave the tensor where it is, or test {kind.lower()}.is_available() first."
        )

    refuse.__name__ = kind.lower()
    refuse.__doc__ = f"Raises: AssertionError (there are no {kind} devices)."
    return refuse


def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """Raises: RuntimeError (memory is pinned for GPUs, and there is none)."""
    raise RuntimeError(
        "pin_memory: memory is pinned for GPUs (Cannot access accelerator device when none is available), and Flambeau runs on the CPU. "
        "Leave it out."
    )


def apply_(self: Tensor, callable: Any) -> Tensor:
    """Replace each element by `callable(element)`. Slow: one Python call for each."""
    flat = [callable(v) for v in self.detach().reshape(-1).tolist()]
    return self.copy_(from_data(flat, dtype=self.dtype).reshape(self.shape))


def map_(self: Tensor, tensor: Tensor, callable: Any) -> Tensor:
    """Replace each element by `callable(element, other element)`. Slow: one Python call for each."""
    pairs = zip(self.detach().reshape(-1).tolist(), tensor.detach().expand(self.shape).reshape(-1).tolist())
    return self.copy_(from_data([callable(a, b) for a, b in pairs], dtype=self.dtype).reshape(self.shape))


def fill_diagonal_(self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Fill the main diagonal; of more than two dims, which must be equal, the elements whose indices are the same.

    `wrap`: start again below a tall matrix's diagonal, one row left out. Raises: RuntimeError for one dim, or dims that differ.
    """
    if self.ndim < 2:
        raise RuntimeError(message("fill_diagonal_", "dimensions must be larger than 1", f"shape {list(self.shape)}"))
    if self.ndim > 2 and len(set(self.shape)) != 1:
        raise RuntimeError(
            message("fill_diagonal_", "all dimensions of input must be of equal length", f"shape {list(self.shape)}")
        )
    rows, columns = min(self.shape), self.shape[1]
    step = sum(self.stride())
    self.as_strided((rows,), (step,), self.storage_offset()).fill_(fill_value)
    if wrap and self.ndim == 2 and self.shape[0] > columns + 1:
        for first in range(columns + 1, self.shape[0], columns + 1):
            below = self.narrow(0, first, self.shape[0] - first)
            fill_diagonal_(below, fill_value)
    return self


def _converter(d: dtype):
    def convert(self: Tensor, memory_format: Any = None) -> Tensor:
        return to(self, d) if memory_format is None else to(self, d).clone(memory_format=memory_format)

    convert.__doc__ = f"The tensor in {d.name}."
    return convert


def install() -> None:
    """Hang the methods on Tensor."""
    for f in (to, cpu, numpy, zero_, pin_memory, chalf, apply_, map_, fill_diagonal_):
        setattr(Tensor, f.__name__, f)
    Tensor.__array__, Tensor.__array_wrap__ = array, array_wrap
    for kind in ("CUDA", "XPU", "MTIA", "IPU"):
        setattr(Tensor, kind.lower(), _refusal(kind))
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
