"""Samples into batches: `default_collate` stacks, `default_convert` only converts.

May not know: workers, loaders.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.core.dtype import float64
from flambeau.factories import tensor
from flambeau.interop.arrays import from_numpy
from flambeau.ir.op import REGISTRY

__all__ = ["collate", "default_collate", "default_collate_fn_map", "default_convert"]

FORMAT = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"


def _is_numpy(x: Any) -> bool:
    return type(x).__module__ == "numpy" and "numpy" in sys.modules


def _array(x: Any) -> Tensor:
    if x.dtype.kind in "SUO":
        raise TypeError(FORMAT.format(x.dtype))
    return from_numpy(x if x.flags.writeable and x.flags.c_contiguous else x.copy())


def default_convert(data: Any) -> Any:
    """Numpy arrays and numbers as tensors, inside any containers; everything else as it is."""
    if isinstance(data, Tensor):
        return data
    if _is_numpy(data):
        if getattr(data, "dtype", None) is not None and data.dtype.kind in "SUO":
            return data
        return _array(data) if data.ndim else tensor(data.item())
    if isinstance(data, Mapping):
        made = {k: default_convert(v) for k, v in data.items()}
        return _like(data, made)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(d) for d in data))
    if isinstance(data, tuple):
        return [default_convert(d) for d in data]
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _like(data, [default_convert(d) for d in data])
    return data


def _like(original: Any, made: Any) -> Any:
    """`made` in the original's type where that can be built from it."""
    try:
        return type(original)(made)
    except TypeError:
        return made


def _stacked(batch: Sequence[Tensor], *, collate_fn_map: Any = None) -> Tensor:
    first = batch[0]
    for t in batch:
        if t.shape != first.shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first.shape)} at entry 0 and {list(t.shape)} at entry "
                f"{next(i for i, x in enumerate(batch) if x is t)}"
            )
    return REGISTRY["stack"](tuple(batch), 0)


def _stacked_arrays(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    return collate([_array(x) for x in batch], collate_fn_map=collate_fn_map)


default_collate_fn_map: dict[Any, Callable] = {
    Tensor: _stacked,
    float: lambda batch, *, collate_fn_map=None: tensor(list(batch), dtype=float64),
    int: lambda batch, *, collate_fn_map=None: tensor(list(batch)),
    str: lambda batch, *, collate_fn_map=None: batch,
    bytes: lambda batch, *, collate_fn_map=None: batch,
}


def collate(batch: Sequence[Any], *, collate_fn_map: dict[Any, Callable] | None = None) -> Any:
    """A batch of samples as one, by the functions of a map from types; containers are gone into."""
    first = batch[0]
    kind = type(first)
    if collate_fn_map is not None:
        function = collate_fn_map.get(kind)
        if function is None:
            function = next((f for key, f in collate_fn_map.items() if isinstance(first, key)), None)
        if function is not None:
            return function(batch, collate_fn_map=collate_fn_map)
    if _is_numpy(first) and collate_fn_map is default_collate_fn_map:
        if kind.__name__ == "ndarray" and first.ndim or first.ndim:
            return _stacked_arrays(batch, collate_fn_map=collate_fn_map)
        return tensor([x.item() for x in batch], dtype=_array(first.reshape(1)).dtype)
    if isinstance(first, Mapping):
        made = {key: collate([d[key] for d in batch], collate_fn_map=collate_fn_map) for key in first}
        if isinstance(first, MutableMapping):
            try:
                clone = first.copy()
                clone.update(made)
                return clone
            except (TypeError, AttributeError):
                return made
        return _like(first, made)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return kind(*(collate(samples, collate_fn_map=collate_fn_map) for samples in zip(*batch)))
    if isinstance(first, Sequence):
        length = len(first)
        if not all(len(x) == length for x in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [collate(samples, collate_fn_map=collate_fn_map) for samples in zip(*batch)]
        if isinstance(first, tuple):
            return columns
        return _like(first, columns) if isinstance(first, MutableSequence) else columns
    raise TypeError(FORMAT.format(kind))


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack samples along a new first dim: tensors, arrays, numbers; lists of text; dicts, tuples and lists element by element."""
    return collate(batch, collate_fn_map=default_collate_fn_map)
