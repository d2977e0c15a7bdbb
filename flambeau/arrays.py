"""Tensors from NumPy arrays and back, without copying where the memory allows.

    t = from_numpy(array)     shares memory
    a = to_numpy(t)           shares memory

May not know: ops' rules. bfloat16 has no NumPy type: convert to float32 first.
"""

from __future__ import annotations

import ctypes
from typing import Any

from flambeau._tensor import ForeignStorage, Tensor, new_tensor
from flambeau.base.errors import message
from flambeau.base.lazy import np
from flambeau.core.device import CPU
from flambeau.core.dtype import BY_NAME
from flambeau.core.spec import Spec
from flambeau.engine import recording
from flambeau.engine.host import note_read, traced_value_error
from flambeau.ir.bind import MODES
from flambeau.ir.op import REGISTRY


def from_numpy(array: Any) -> Tensor:
    """A tensor on the array's memory. Raises: TypeError for other objects and for dtypes without a counterpart."""
    if not isinstance(array, np.ndarray):
        raise TypeError(
            message(
                "from_numpy", "expected np.ndarray", type(array).__name__, "Use flambeau.tensor(...) for other data."
            )
        )
    name = array.dtype.name
    if name not in BY_NAME or not array.dtype.isnative:
        raise TypeError(
            message(
                "from_numpy",
                f"the dtype must be one of {', '.join(n for n in BY_NAME if n != 'bfloat16')} in native byte order",
                str(array.dtype),
                "Convert it with array.astype(...).",
            )
        )
    dtype = BY_NAME[name]
    strides = []
    for size, step in zip(array.shape, array.strides):
        if size <= 1:
            strides.append(None)  # never stepped: any value will do
        elif step % dtype.itemsize or step < 0:
            what = "negative strides" if step < 0 else "strides that are not multiples of the element size"
            raise ValueError(
                message(
                    "from_numpy",
                    f"arrays with {what} are not supported",
                    f"strides {array.strides}",
                    "Call .copy() on the array first.",
                )
            )
        else:
            strides.append(step // dtype.itemsize)
    following = 1
    for i in range(len(strides) - 1, -1, -1):
        if strides[i] is None:
            strides[i] = following
        following = strides[i] * max(1, array.shape[i])
    spec = Spec.get(array.shape, strides, dtype)
    address = array.__array_interface__["data"][0]
    return new_tensor(spec, address, ForeignStorage(address, array, spec.nbytes))


def to_numpy(t: Tensor, *, force: bool = False) -> Any:
    """An array on the tensor's memory. Raises: RuntimeError for tensors that need a gradient, TypeError for bfloat16 and other devices."""
    if t.needs_grad and not force:
        raise RuntimeError(
            "numpy: Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    if force:
        t = t.detach().cpu()
    if t.spec.device is not CPU:
        raise TypeError(message("numpy", "the tensor must be on the CPU", str(t.device), "Call .cpu() first."))
    if t.ptr is None:
        traced_value_error(t)
    if recording.USED:
        recording.check_read("numpy", t)
    if MODES:
        note_read(t)
    if t.spec.dtype.name == "bfloat16":
        raise TypeError("numpy: there is no bfloat16 in NumPy. Call .float() first.")
    spec = t.spec
    name = spec.dtype.name
    if spec.numel == 0:
        return np.empty(tuple(spec.shape), name)
    below = sum((n - 1) * -s for n, s in zip(spec.shape, spec.strides) if s < 0)  # elements before the first one
    raw = (ctypes.c_char * spec.nbytes).from_address(t.ptr - below * spec.dtype.itemsize)
    raw._owner = t.storage  # the array keeps the ctypes object, that keeps the memory
    flat = np.frombuffer(raw, name, spec.nbytes // spec.dtype.itemsize)
    if spec.contiguous:
        return flat.reshape(tuple(spec.shape))
    return np.lib.stride_tricks.as_strided(
        flat[below:], tuple(spec.shape), tuple(s * spec.dtype.itemsize for s in spec.strides)
    )


def copied(array: Any) -> Tensor:
    """A tensor with memory of its own and the array's values."""
    t = from_numpy(np.ascontiguousarray(array).reshape(np.shape(array)))
    return REGISTRY["clone"](t)
