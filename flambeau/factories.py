"""Tensors from Python data, and from nothing: filled, counted, spaced, identity.

    tensor([[1, 2], [3, 4.5]])          float32, shape [2, 2]
    arange(0, 10, 2)                    int64

Dtypes follow the values as in PyTorch: floats give the default dtype, ints int64. May not know: how values are computed (the ops do).
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau._tensor import empty as tensor_of
from flambeau.arrays import from_numpy
from flambeau.base.errors import message
from flambeau.base.lazy import np
from flambeau.core.determinism import wanted
from flambeau.core.device import CPU, as_device
from flambeau.core.dtype import (
    BY_NAME,
    as_dtype,
    dtype,
    dtype_of_number,
    float32,
    float64,
    get_default_dtype,
    int64,
    promote_types,
)
from flambeau.core.dtype import dtype as DType
from flambeau.core.formats import memory_format, preserve_format, strides_in
from flambeau.core.layout import contiguous_strides, has_internal_overlap
from flambeau.core.limits import iinfo
from flambeau.core.spec import Size, Spec
from flambeau.core.symbolic import as_size
from flambeau.engine import recording
from flambeau.ir.bind import MODES
from flambeau.ir.kinds import dense_strides_like
from flambeau.ir.op import IN_PLACE, REGISTRY

__all__ = [
    "arange",
    "as_tensor",
    "asarray",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "eye",
    "frombuffer",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "range",
    "scalar_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
    "zeros_like",
]
_python_range = range
_NUMBERS = {bool, int, float}


def sizes_of(sizes: tuple, name: str = "size") -> tuple[int, ...]:
    """Sizes given one by one or as one sequence. Raises: TypeError, RuntimeError that begin with `name`."""
    if len(sizes) == 1 and type(sizes[0]) in (tuple, Size):
        sizes = sizes[0]
    for n in sizes:
        if type(n) is not int or n < 0:
            break
    else:
        return sizes
    if len(sizes) == 1 and not isinstance(sizes[0], int) and hasattr(sizes[0], "__iter__"):
        sizes = tuple(sizes[0])
    for n in sizes:
        if not hasattr(n, "__index__"):
            raise TypeError(
                message(name, "sizes must be ints (argument 'size' must be tuple of ints)", type(n).__name__)
            )
    found = tuple(as_size(n) for n in sizes)
    if any(n < 0 for n in found):
        raise RuntimeError(
            message(name, "sizes must not be negative (Trying to create tensor with negative dimension)", list(found))
        )
    return found


def finished(t: Tensor, requires_grad: bool, out: Tensor | None = None) -> Tensor:
    """`out` filled, or the tensor marked."""
    if out is not None:
        if has_internal_overlap(out.spec.shape, out.spec.strides):
            raise RuntimeError(
                message(
                    "out",
                    "unsupported operation: more than one element of out refers to a single memory location",
                    f"{out.spec}",
                )
            )
        if out.shape != t.shape:
            out.resize_(t.shape)
        return out.copy_(t)
    return t.requires_grad_() if requires_grad else t


def _wanted(given: Any, default: DType | None = None) -> DType:
    """The dtype that is asked for (Python's number types are some, too), or the default: the default dtype unless told."""
    if given is None:
        return get_default_dtype() if default is None else default
    return given if type(given) is DType else as_dtype("dtype", given)


# ------------------------------------------------------------------ filled
def _filled(size: tuple[int, ...], value: Any, d: dtype, device: Any) -> Tensor:
    return _FULL(size, value, dtype=d, device=CPU if device is None else as_device(device))


_FULL = REGISTRY["full"]


def unset(spec: Spec) -> Tensor:
    """A tensor whose values are not set; filled where the program asked for determinism, since memory may hold anything."""
    t = tensor_of(spec)
    if wanted.level and wanted.fill_uninitialized_memory and spec.numel and spec.device.type != "meta":
        limit = math.nan if spec.dtype.is_inexact else True if spec.dtype.kind == "b" else iinfo(spec.dtype).max
        IN_PLACE["fill_"].in_place(t, limit)
    return t


def empty(
    *sizes: Any,
    size: Any = None,
    out: Tensor | None = None,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """A tensor whose values are not set."""
    if not sizes and size is None and memory_format is None:
        size = ()
    shape = sizes_of(sizes if size is None else (size,), "empty")
    d, where = _wanted(dtype), as_device(device)
    spec = (
        Spec.of(shape, d, where)
        if memory_format is None
        else Spec.get(shape, strides_in(shape, memory_format), d, where)
    )
    return finished(unset(spec), requires_grad, out)


def zeros(
    *sizes: Any,
    size: Any = None,
    out: Tensor | None = None,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of zeros."""
    return finished(
        _filled(sizes_of(sizes if size is None else (size,), "zeros"), 0, _wanted(dtype), device), requires_grad, out
    )


def ones(
    *sizes: Any,
    size: Any = None,
    out: Tensor | None = None,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of ones."""
    return finished(
        _filled(sizes_of(sizes if size is None else (size,), "ones"), 1, _wanted(dtype), device), requires_grad, out
    )


def full(
    size: Any,
    fill_value: Any,
    *,
    out: Tensor | None = None,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of `size` filled with one value; its dtype is the value's unless told."""
    if isinstance(fill_value, Tensor):
        dtype = _wanted(dtype, fill_value.dtype)
        fill_value = fill_value.item()
    elif hasattr(fill_value, "item"):
        fill_value = fill_value.item()
    d = _wanted(dtype, out.dtype if out is not None else dtype_of_number(fill_value))
    if d.kind in "iu" and isinstance(fill_value, int) and not _fits(fill_value, d):
        raise RuntimeError(
            message(
                "full",
                f"fill_value must fit {d.name} (value cannot be converted to type {d.name} without overflow)",
                fill_value,
            )
        )
    return finished(_filled(sizes_of((size,), "full"), fill_value, d, device), requires_grad, out)


def scalar_tensor(
    s: Any, *, dtype: dtype | None = None, layout: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A 0-dim tensor of one value, in the default dtype unless told."""
    return full((), s, dtype=_wanted(dtype), device=device, requires_grad=requires_grad)


def spec_like(input: Tensor, dtype: dtype | None, device: Any, form: memory_format | None) -> Spec:
    """A spec of the input's shape: in its memory order (preserve_format), or in another."""
    d, where = _wanted(dtype, input.dtype), input.device if device is None else as_device(device)
    if form is None or form is preserve_format:
        strides = dense_strides_like(input.shape, [input.spec.plain()]) or contiguous_strides(input.shape)
    else:
        strides = strides_in(input.shape, form)
    return Spec.get(input.shape, strides, d, where)


def _filled_like(input: Tensor, value: Any, dtype: dtype | None, device: Any, form: Any, requires_grad: bool) -> Tensor:
    spec = spec_like(input, dtype, device, form)
    if spec.contiguous:
        return finished(_filled(tuple(spec.shape), value, spec.dtype, spec.device), requires_grad)
    order = sorted(_python_range(spec.ndim), key=lambda i: (-spec.strides[i], i))
    dense = _filled(tuple(spec.shape[i] for i in order), value, spec.dtype, spec.device)
    return finished(
        REGISTRY["permute"](dense, tuple(order.index(i) for i in _python_range(spec.ndim))).detach(), requires_grad
    )


def empty_like(
    input: Tensor,
    *,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """A tensor of the input's shape whose values are not set."""
    return finished(unset(spec_like(input, dtype, device, memory_format)), requires_grad)


def zeros_like(
    input: Tensor,
    *,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Zeros in the input's shape and dtype."""
    return _filled_like(input, 0, dtype, device, memory_format, requires_grad)


def ones_like(
    input: Tensor,
    *,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Ones in the input's shape and dtype."""
    return _filled_like(input, 1, dtype, device, memory_format, requires_grad)


def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """One value in the input's shape and dtype."""
    if hasattr(fill_value, "item"):
        fill_value = fill_value.item()
    return _filled_like(input, fill_value, dtype, device, memory_format, requires_grad)


def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A tensor with given strides whose values are not set."""
    shape, strides = sizes_of((size,), "empty_strided"), tuple(int(n) for n in stride)
    if len(shape) != len(strides) or any(n < 0 for n in strides):
        raise RuntimeError(
            message(
                "empty_strided",
                "stride must give one non-negative step per dim (dimensionality of sizes and strides must match)",
                f"{list(shape)} and {list(strides)}",
            )
        )
    return finished(unset(Spec.get(shape, strides, _wanted(dtype), as_device(device))), requires_grad)


def empty_permuted(
    size: Any,
    physical_layout: Any,
    *,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A dense tensor whose dims lie in memory in the order of `physical_layout`, whose values are not set."""
    shape, order = sizes_of((size,), "empty_permuted"), tuple(int(n) for n in physical_layout)
    if sorted(order) != list(_python_range(len(shape))):
        raise RuntimeError(
            message(
                "empty_permuted",
                f"physical_layout must name each of {len(shape)} dims once (Number of dimensions in "
                "size does not match, dimension out of range, or duplicate dim not "
                "allowed)",
                list(order),
            )
        )
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = step
        step *= max(1, shape[d])
    return finished(unset(Spec.get(shape, strides, _wanted(dtype), as_device(device))), requires_grad)


# ------------------------------------------------------------------ counted and spaced
def _number(op: str, x: Any) -> Any:
    if hasattr(x, "item"):
        x = x.item()
    if not isinstance(x, (int, float)):
        raise TypeError(message(op, "bounds must be real numbers", type(x).__name__))
    return x


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    out: Tensor | None = None,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers from `start` (0 if one is given) below `end` by `step`. Dtypes: int64 for ints, else the default dtype.

    Raises: RuntimeError for step 0, or bounds that step leads away from or that are not finite.
    """
    if end is None:
        start, end = 0, start
    start, end, step = (_number("arange", x) for x in (start, end, step))
    whole = all(isinstance(x, int) for x in (start, end, step))
    if step == 0:
        raise RuntimeError(message("arange", "step must be nonzero", step))
    if not all(isinstance(x, int) or math.isfinite(x) for x in (start, end, step)):
        raise RuntimeError(message("arange", "bounds must be finite (unsupported range)", f"{start} -> {end}"))
    if (end - start) * step < 0:
        raise RuntimeError(
            message(
                "arange",
                "bounds must be consistent with step (upper bound and lower bound inconsistent with step sign)",
                f"{start} -> {end}, step {step}",
            )
        )
    d = _wanted(dtype, out.dtype if out is not None else int64 if whole else get_default_dtype())
    if whole:
        count = -(-(end - start) // step)
    elif d.is_integral:
        if d is int64:
            end, start = int(end), int(start)
        count = math.ceil((end - start) / step) if d is not int64 else None
        start, step = int(start), int(step)
        if step == 0:
            raise ValueError(message("arange", "step must be nonzero in an integer dtype", step))
        count = max(0, -(-(end - start) // step)) if count is None else count
    else:
        count = math.ceil((end - start) / step)
    if d.is_integral:
        t = REGISTRY["iota"]((count,), start, step, dtype=d, device=as_device(device))
    else:
        t = REGISTRY["iota"]((count,), float(start), float(step), dtype=d, device=as_device(device))
    return finished(t, requires_grad, out)


def range(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    out: Tensor | None = None,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers from `start` up to and including `end` by `step`."""
    if end is None:
        start, end = 0, start
    start, end, step = (_number("range", x) for x in (start, end, step))
    if step == 0 or (end - start) * step < 0:
        raise RuntimeError(
            message("range", "bounds must be consistent with a nonzero step", f"{start} -> {end}, step {step}")
        )
    d = _wanted(dtype)
    kind = int if d.is_integral else float
    t = REGISTRY["iota"](
        (math.floor((end - start) / step) + 1,), kind(start), kind(step), dtype=d, device=as_device(device)
    )
    return finished(t, requires_grad, out)


def _bound(op: str, x: Any) -> Any:
    if isinstance(x, Tensor):
        if x.ndim:
            raise RuntimeError(
                message(
                    op,
                    "bounds must be numbers or 0-dim tensors (only supports 0-dimensional start and end tensors)",
                    f"shape {list(x.shape)}",
                )
            )
        return x.item()
    return x.item() if hasattr(x, "item") else x


def _check_steps(op: str, steps: Any) -> None:
    if not hasattr(steps, "__index__"):
        raise TypeError(
            message(op, "steps must be an int (received an invalid combination of arguments)", type(steps).__name__)
        )


def _space_type(start: Any, end: Any, given: dtype | None) -> dtype:
    if given is not None:
        return _wanted(given)
    return (
        get_default_dtype().to_complex()
        if isinstance(start, complex) or isinstance(end, complex)
        else get_default_dtype()
    )


def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    out: Tensor | None = None,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` numbers from `start` to `end`, both included, evenly spaced."""
    start, end = _bound("linspace", start), _bound("linspace", end)
    _check_steps("linspace", steps)
    if steps < 0:
        raise RuntimeError(
            message("linspace", "steps must be non-negative (number of steps must be non-negative)", steps)
        )
    d = _space_type(start, end, dtype)
    return finished(_spaced(start, end, int(steps), d, device), requires_grad, out)


def _spaced(start: Any, end: Any, steps: int, d: dtype, device: Any) -> Tensor:
    if d.is_complex:
        part = d.to_real()
        start, end = complex(start), complex(end)
        return REGISTRY["complex"](
            _spaced(start.real, end.real, steps, part, device), _spaced(start.imag, end.imag, steps, part, device)
        )
    if isinstance(start, complex) or isinstance(end, complex):
        raise RuntimeError(message("linspace", "complex bounds need a complex dtype", d.name))
    if d.is_integral:
        start, end = int(start), int(end)
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    if steps == 1:
        end = start
    return REGISTRY["spaced"](steps, float(start), float(end), float(step), dtype=d, device=as_device(device))


def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    out: Tensor | None = None,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`base` to the power of `steps` numbers from `start` to `end`, evenly spaced."""
    start, end = _bound("logspace", start), _bound("logspace", end)
    _check_steps("logspace", steps)
    if steps < 0:
        raise RuntimeError(
            message("logspace", "steps must be non-negative (number of steps must be non-negative)", steps)
        )
    d = _space_type(start, end, dtype)
    if d.is_complex:
        powers = _spaced(start, end, int(steps), d, device)
    else:
        if d.is_integral:
            start, end = int(start), int(end)
        step = (end - start) / (steps - 1) if steps > 1 else 0.0
        powers = REGISTRY["spaced"](
            int(steps),
            float(start),
            float(end if steps != 1 else start),
            float(step),
            dtype=float64,
            device=as_device(device),
        )
    t = REGISTRY["power"](_filled((), base, float64 if not d.is_complex else d, device), powers)
    return finished(t if t.dtype is d else REGISTRY["to_dtype"](t, d), requires_grad, out)


def eye(
    n: int,
    m: int | None = None,
    *,
    out: Tensor | None = None,
    dtype: dtype | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Ones on the diagonal of an n by m (or n) matrix of zeros."""
    m = n if m is None else m
    if n < 0 or m < 0:
        raise RuntimeError(
            message("eye", "n and m must not be negative (n must be greater or equal to 0)", f"{n}, {m}")
        )
    return finished(
        REGISTRY["identity_matrix"](int(n), int(m), dtype=_wanted(dtype), device=as_device(device)),
        requires_grad,
        out,
    )


def _triangle_indices(row: int, col: int, offset: int, upper: bool, d: dtype | None, device: Any) -> Tensor:
    if row < 0 or col < 0:
        raise RuntimeError(message("tril_indices", "row and col must be non-negative", f"{row}, {col}"))
    below = sum(
        min(max(0, r + offset + (0 if upper else 1)), col) for r in _python_range(row)
    )  # columns left of the boundary
    count = row * col - below if upper else below
    inside = REGISTRY["triangle_mask"](row, col, offset, upper, device=as_device(device))
    places = REGISTRY["true_places"](inside, count)
    found = REGISTRY["stack"](
        (REGISTRY["coordinate"](places, max(1, col), max(1, row)), REGISTRY["coordinate"](places, 1, max(1, col))), 0
    )
    return found if d is None or d is int64 else REGISTRY["to_dtype"](found, d)


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: dtype | None = None, device: Any = None, layout: Any = None
) -> Tensor:
    """Coordinates [2, count] of the lower triangle of a row by col matrix."""
    return _triangle_indices(row, col, offset, False, dtype, device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: dtype | None = None, device: Any = None, layout: Any = None
) -> Tensor:
    """Coordinates [2, count] of the upper triangle of a row by col matrix."""
    return _triangle_indices(row, col, offset, True, dtype, device)


# ------------------------------------------------------------------ from Python data
_CODES = {
    "bool": "B",
    "uint8": "B",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float32": "f",
    "float64": "d",
    "complex64": "f",
    "complex128": "d",
}


def tensor(
    data: Any, *, dtype: dtype | None = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """A new tensor with a copy of `data`: a number, nested sequences, an array or a tensor.

    Dtypes: inferred from the values (floats: the default dtype) unless told. Raises: ValueError for ragged data, TypeError for what is no
    number.
    """
    kind = type(data)
    dtype = dtype if dtype is None else _wanted(dtype)
    if kind is float or kind is int and -(1 << 31) < data < 1 << 31 and (dtype is None or dtype.kind not in "iu"):
        t = (
            _filled((), data, _wanted(dtype, None if kind is float else int64), None)
            if dtype is None or dtype.kind in "fc"
            else _copied(data, dtype)
        )
    else:
        t = _copied(data, dtype)
    if device is not None and as_device(device) is not t.device:
        t = t.to(device)
    return finished(t, requires_grad)


def _copied(data: Any, d: dtype | None) -> Tensor:
    if isinstance(data, Tensor):
        t = data.detach()
        return REGISTRY["clone"](t) if d is None or d is t.dtype else REGISTRY["to_dtype"](t, d)
    if _is_array(data):
        t = _from_array(data)
        return REGISTRY["clone"](t) if d is None or d is t.dtype else REGISTRY["to_dtype"](t, d)
    if not isinstance(data, (int, float, complex, list, tuple)):
        data = _as_sequence(data)
    shape: list[int] = []
    flat: list[Any] = []
    _flatten(data, 0, shape, flat)
    found = d or (_infer(flat) if flat else get_default_dtype())
    if not set(map(type, flat)) <= _NUMBERS:
        flat = [x.item() if hasattr(x, "item") else x for x in flat]
    if d is None and found is int64 and not all(-(1 << 63) <= x < 1 << 63 for x in flat):
        raise ValueError(
            message(
                "tensor",
                "ints must fit int64 (Overflow when unpacking long long)",
                "one that does not",
                "Give dtype=float64.",
            )
        )
    return _packed(tuple(shape), flat, found)


def _is_array(x: Any) -> bool:
    return hasattr(x, "__array_interface__") and not isinstance(x, Tensor)


def _from_array(x: Any) -> Tensor:
    """A tensor on (or from) an array's or array scalar's memory."""
    x = np.asarray(x)
    if x.dtype.name not in BY_NAME:
        raise TypeError(
            message(
                "tensor",
                f"can't convert np.ndarray of type {x.dtype}: the dtype must be one of {', '.join(BY_NAME)}",
                x.dtype,
            )
        )
    return from_numpy(np.array(x, order="C") if any(s < 0 for s in x.strides) or not x.flags.writeable else x)


def _as_sequence(data: Any) -> Any:
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, (str, bytes, dict)):
        return list(data)
    if hasattr(data, "__float__"):
        return float(data)
    kind = TypeError if isinstance(data, str) else RuntimeError
    raise kind(
        message(
            "tensor",
            "data must be numbers, nested sequences of them, an array or a tensor (Could not infer dtype)",
            type(data).__name__,
        )
    )


def _flatten(data: Any, depth: int, shape: list[int], flat: list[Any]) -> None:
    """Append the numbers of nested sequences to `flat`, and find their shape. Raises: ValueError where sizes differ."""
    if isinstance(data, (list, tuple)) or (not isinstance(data, (int, float, complex)) and _is_nested(data)):
        n = len(data)
        if len(shape) == depth:
            if flat:
                raise TypeError(
                    message(
                        "tensor",
                        f"nested data must have one depth: a number is expected at depth {depth}",
                        type(data).__name__,
                    )
                )
            shape.append(n)
        elif shape[depth] != n:
            raise ValueError(
                message(
                    "tensor",
                    f"nested sequences must have one length at dim {depth} (expected sequence of length "
                    f"{shape[depth]} at dim {depth})",
                    f"{n}",
                    "Pad the shorter ones.",
                )
            )
        if depth + 1 == len(shape) and n and set(map(type, data)) <= _NUMBERS:
            flat.extend(data)
            return
        for x in data:
            _flatten(x, depth + 1, shape, flat)
        return
    if depth != len(shape):
        raise TypeError(
            message(
                "tensor",
                f"nested data must have one depth: a sequence of length {shape[depth]} is expected at dim "
                f"{depth} (not a sequence)",
                type(data).__name__,
            )
        )
    if not isinstance(data, (int, float, complex, Tensor)):
        if hasattr(data, "item") and hasattr(data, "dtype"):
            pass  # a number of NumPy's, whose type counts
        elif hasattr(data, "item"):
            data = data.item()
        elif hasattr(data, "__index__"):
            data = data.__index__()
        elif hasattr(data, "__float__"):
            data = float(data)
        else:
            kind = RuntimeError if data is None else TypeError if isinstance(data, str) else ValueError
            raise kind(
                message(
                    "tensor",
                    f"elements must be numbers (Could not infer dtype of {type(data).__name__}; too many dimensions)",
                    type(data).__name__,
                )
            )
    flat.append(data)


def _is_nested(x: Any) -> bool:
    """Whether an element is a sequence itself: an array or tensor with dims, or any other sequence."""
    if isinstance(x, Tensor) or hasattr(x, "__array_interface__"):
        return x.ndim > 0
    return isinstance(x, Sequence) and not isinstance(x, (str, bytes))


def _infer(flat: list[Any]) -> dtype:
    """The dtype of numbers: Python's are in the default types, tensors and NumPy's scalars in their own."""
    kinds = set(map(type, flat))
    types = {dtype_of_number(kind(0)) for kind in kinds if kind in (bool, int, float, complex)}
    if not kinds <= {bool, int, float, complex}:
        types |= {_type_of(x) for x in flat if type(x) not in (bool, int, float, complex)}
    return functools.reduce(promote_types, types)


def _type_of(x: Any) -> DType:
    d = getattr(x, "dtype", None)
    if isinstance(d, DType):
        return d
    return BY_NAME.get(getattr(d, "name", "")) or dtype_of_number(x.item() if hasattr(x, "item") else x)


def _packed(shape: tuple[int, ...], flat: list[Any], d: dtype) -> Tensor:
    """A tensor with the given numbers as its elements. Raises: RuntimeError for a number that does not fit."""
    if d.name == "bfloat16":
        return REGISTRY["to_dtype"](_packed(shape, flat, float32), d)
    t = tensor_of(Spec.of(shape, d))
    if not flat:
        return t
    try:
        raw = _bytes(flat, d)
    except OverflowError:
        raise RuntimeError(
            message(
                "tensor",
                f"values must fit {d.name} (value cannot be converted to type {d.name} without overflow)",
                next((x for x in flat if not _fits(x, d)), "one that does not"),
            )
        ) from None
    except ValueError:
        raise RuntimeError(
            message(
                "tensor",
                f"values must fit {d.name} (value cannot be converted to type {d.name} without overflow)",
                "NaN",
            )
        ) from None
    except TypeError:
        raise TypeError(
            message(
                "tensor",
                f"values must convert to {d.name} without losing a part (must be real number, not complex)",
                "complex numbers",
            )
        ) from None
    ctypes.memmove(t.ptr, raw, t.spec.numel * d.itemsize)
    if (
        MODES and recording.active() is not None
    ):  # every replay starts from these values, whatever was written to the tensor since
        return REGISTRY["clone"](t)
    return t


def _fits(x: Any, d: dtype) -> bool:
    try:
        _bytes([x], d)
    except OverflowError:
        return False
    return True


def _bytes(flat: list[Any], d: dtype) -> bytes:
    if d.name == "bool":
        return bytes(map(bool, flat))
    if d.is_complex:
        parts: list[float] = []
        for x in flat:
            x = complex(x)
            parts += (x.real, x.imag)
        return array(_CODES[d.name], parts).tobytes()
    if d.kind in "iu":
        flat = [_wrapped(int(x), d) for x in flat]
    elif d.name == "float16":
        return struct.pack(f"{len(flat)}e", *(_half(float(x)) for x in flat))
    return array(_CODES[d.name], flat).tobytes()


def _wrapped(x: int, d: dtype) -> int:
    """Negative numbers wrap in unsigned types, as PyTorch lets them."""
    return x + 256 if d.kind == "u" and -256 < x < 0 else x


def _half(x: float) -> float:
    try:
        struct.pack("e", x)
    except OverflowError:
        return math.copysign(math.inf, x)
    return x


def as_tensor(data: Any, dtype: dtype | None = None, device: Any = None) -> Tensor:
    """`data` as a tensor: itself or its memory where nothing has to change, else a copy."""
    dtype = dtype if dtype is None else _wanted(dtype)
    if isinstance(data, Tensor):
        t = data
    elif _is_array(data):
        t = _from_array(data)
    else:
        t = _copied(data, dtype)
    if dtype is not None and t.dtype is not dtype:
        t = REGISTRY["to_dtype"](t, dtype)
    if device is not None and as_device(device) is not t.device:
        t = t.to(device)
    return t


def asarray(
    obj: Any, *, dtype: dtype | None = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """`obj` as a tensor. `copy`: True always copies, False never does (ValueError where it would have to)."""
    t = as_tensor(obj, dtype, device)
    shares = (
        isinstance(obj, Tensor)
        and t.storage is obj.storage
        or (_is_array(obj) and not isinstance(obj, Tensor) and hasattr(t.storage, "owner"))
    )
    if copy is False and not shares:
        raise ValueError(
            message("asarray", "copy=False needs memory that can be shared as it is (can't alias)", type(obj).__name__)
        )
    if copy and shares:
        t = REGISTRY["clone"](t)
    if not requires_grad and isinstance(obj, Tensor) and t.needs_grad:
        t = t.detach()
    return finished(t, requires_grad)


def frombuffer(buffer: Any, *, dtype: dtype, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A 1-d tensor on the memory of a writable (or read-only) buffer: `count` elements (all, if negative) from byte `offset`.

    Raises: ValueError where the buffer has no such elements.
    """
    raw = np.frombuffer(buffer, dtype="uint8")
    if not 0 <= offset < max(1, raw.size):
        raise ValueError(
            message("frombuffer", f"offset must be within the buffer's {raw.size} bytes (greater or equal 0)", offset)
        )
    have = (raw.size - offset) // dtype.itemsize
    if count < 0:
        if (raw.size - offset) % dtype.itemsize:
            raise ValueError(
                message(
                    "frombuffer",
                    f"buffer length after offset must be a multiple of {dtype.itemsize} bytes",
                    raw.size - offset,
                )
            )
        count = have
    if count == 0 or count > have:
        raise ValueError(
            message("frombuffer", f"the buffer must hold the elements asked for: it has {have} after offset", count)
        )
    bytes_ = raw[offset : offset + count * dtype.itemsize]
    t = from_numpy(bytes_ if bytes_.flags.writeable else bytes_.copy())
    return finished(t if t.dtype is dtype else t.view(dtype), requires_grad)
