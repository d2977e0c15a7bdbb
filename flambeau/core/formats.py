"""Memory formats and layouts by PyTorch's names: how the dims of a dense tensor lie in memory.

    strides_in((2, 3, 4, 5), channels_last)      (60, 1, 15, 3)

May not know: tensors. Entry: `strides_in`, `is_in`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.core.layout import contiguous_strides, is_contiguous


class memory_format:
    """An order of dims in memory. One object per format: compare with `is`."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return f"flambeau.{self.name}"

    def __reduce__(self) -> str:
        return self.name


class layout:
    """How elements are addressed; only `strided` exists."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return f"flambeau.{self.name}"

    def __reduce__(self) -> str:
        return self.name


contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")
strided = layout("strided")

_RANK = {channels_last: 4, channels_last_3d: 5}


def strides_in(shape: Sequence[int], form: memory_format) -> tuple[int, ...]:
    """Dense strides of a shape in a format. Raises: RuntimeError if the rank does not fit it."""
    if form is contiguous_format or form is preserve_format:
        return contiguous_strides(shape)
    rank = _RANK[form]
    if len(shape) != rank:
        raise RuntimeError(
            f"{form.name}: the tensor must have {rank} dims (required rank {rank} tensor to use {form.name} format), got "
            f"shape {list(shape)}."
        )
    order = [0, *range(2, rank), 1]
    dense = contiguous_strides([shape[d] for d in order])
    result = [0] * rank
    for d, step in zip(order, dense):
        result[d] = step
    return tuple(result)


def is_in(shape: Sequence[int], strides: Sequence[int], form: memory_format) -> bool:
    """Whether a layout is dense in a format (dims of size 1 may have any stride)."""
    if form is contiguous_format or form is preserve_format:
        return is_contiguous(shape, strides)
    if len(shape) != _RANK[form]:
        return False
    order = [0, *range(2, len(shape)), 1]
    return is_contiguous([shape[d] for d in order], [strides[d] for d in order])
