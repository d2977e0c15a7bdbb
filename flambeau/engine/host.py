"""Elements of tensors as numbers of Python.

    host_values(x)      # all of them, in row-major order
    host_number(x)      # the one of a tensor with one element

What is read here is a value: inside a trace it becomes a guard or an error, while a graph is captured an error. May not know: the tensor class.
"""

from __future__ import annotations

import ctypes
from typing import Any

from flambeau.base.errors import TraceError
from flambeau.core.device import CPU
from flambeau.core.dtype import float32
from flambeau.engine import recording
from flambeau.ir import bind, tracing
from flambeau.ir.op import REGISTRY

_struct_codes = {
    "bool": "?",
    "uint8": "B",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float32": "f",
    "float64": "d",
    "float16": "e",
    "complex64": "f",
    "complex128": "d",
}

_cells = {
    "bool": ctypes.c_bool.from_address,
    "uint8": ctypes.c_uint8.from_address,
    "int8": ctypes.c_int8.from_address,
    "int16": ctypes.c_int16.from_address,
    "int32": ctypes.c_int32.from_address,
    "int64": ctypes.c_int64.from_address,
    "float32": ctypes.c_float.from_address,
    "float64": ctypes.c_double.from_address,
}


def host_number(t: Any) -> Any:
    """The value of a tensor with one element."""
    cell = _cells.get(t.spec.dtype.name)
    if cell is None or t.spec.device is not CPU or t.ptr is None or bind.MODES or recording.USED:
        return host_values(t)[0]
    return cell(t.ptr).value


def host_values(t: Any) -> list:
    """The elements in row-major order. Raises: TraceError where they are not known."""
    if t.ptr is None:
        traced_value_error(t)
    if recording.USED:
        recording.check_read("item", t)
    if bind.MODES:
        note_read(t)
    if t.spec.numel == 0:
        return []
    if t.spec.dtype.name == "bfloat16":
        return host_values(REGISTRY["to_dtype"](t.detach(), float32))
    if t.spec.device is not CPU:
        t = t.cpu()
    if not t.spec.contiguous:
        t = REGISTRY["contiguous_copy"](t.detach())
    name = t.spec.dtype.name
    raw = memoryview(bytes_at(t.ptr, t.spec.numel * t.spec.dtype.itemsize))
    if name == "float16":
        import struct

        return list(struct.unpack(f"{t.spec.numel}e", raw))
    values = raw.cast(_struct_codes[name]).tolist()
    if t.spec.dtype.is_complex:
        return [complex(a, b) for a, b in zip(values[0::2], values[1::2])]
    return values


def has_values(t: Any) -> bool:
    """Whether a tensor's values may be looked at: it stands for nothing in a trace or a transform, and no launches are captured."""
    return t.ptr is not None and not (bind.MODES and (tracing.current() is not None or recording.active() is not None))


def note_read(t: Any) -> None:
    """In a trace that is replayed: it is right only while a tensor from outside has these values. Raises: TraceError for one written to in it."""
    recorder = tracing.current()
    if recorder is not None:
        recorder.valued = True
        if recorder.repeats and not recorder.read_values(t, host_values):
            traced_value_error(t)


def traced_value_error(t: Any) -> None:
    raise TraceError(
        "item: the value of a tensor is not known while a function is traced, vmapped or compiled. Use where(), cond() or while_loop() instead of "
        "branching on it, or compute it outside."
    )


def bytes_at(address: int, count: int) -> bytes:
    """A copy of memory. Raises: RuntimeError while a graph is captured."""
    if recording.USED:
        recording.refuse_values("print")
    return ctypes.string_at(address, count)


__all__ = ["bytes_at", "has_values", "host_number", "host_values", "note_read", "traced_value_error"]
