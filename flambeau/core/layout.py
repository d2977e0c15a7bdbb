"""Arithmetic on shapes and strides: broadcasting, views, dim numbers.

May not know: tensors, memory. Every function names the op it works for in its errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flambeau.core.symbolic import as_size


def canonical_dim(op: str, dim: int, ndim: int) -> int:
    """dim counted from the front. Raises: IndexError outside [-ndim, ndim)."""
    limit = max(ndim, 1)
    if not isinstance(dim, int):
        if hasattr(dim, "__index__"):
            dim = dim.__index__()
        else:
            raise TypeError(f"{op}: dim must be an int, got {type(dim).__name__}.")
    if not -limit <= dim < limit:
        raise IndexError(
            f"{op}: dim must be in [{-limit}, {limit - 1}] for a {ndim}-d input, got {dim} (Dimension out of range). "
            f"Count dims from 0, or from the end with -1."
        )
    return dim % limit


def canonical_dims(
    op: str, dims: int | Iterable[int] | None, ndim: int, *, empty_is_all: bool = True
) -> tuple[int, ...]:
    """Sorted distinct dims; None (and, as PyTorch has it, an empty list) means all."""
    if dims is None:
        return tuple(range(ndim))
    if isinstance(dims, int) or hasattr(dims, "__index__"):
        dims = (dims,)
    found = tuple(canonical_dim(op, d, ndim) for d in dims)
    if not found and empty_is_all:
        return tuple(range(ndim))
    if len(set(found)) != len(found):
        raise RuntimeError(f"{op}: each dim may appear once, got dim={list(dims)}. Remove the repeated dim.")
    return tuple(sorted(d for d in found if d < ndim))


def broadcast_shapes(op: str, *shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape. Raises: RuntimeError naming the shapes and the dim that does not fit."""
    ndim = max((len(s) for s in shapes), default=0)
    result = [1] * ndim
    for shape in shapes:
        for i, size in enumerate(shape, ndim - len(shape)):
            if size != 1 and size != result[i]:
                if result[i] != 1:
                    raise RuntimeError(
                        f"{op}: shapes must broadcast, got {' and '.join(str(list(s)) for s in shapes)}: sizes "
                        f"{result[i]} and {size} at dim {i - ndim} differ and neither is 1. "
                        f"Reshape one of them, or insert a dim with unsqueeze."
                    )
                result[i] = size
    return tuple(result)


def expand_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Strides of `shape` read as the broadcast `target`: 0 where a size 1 repeats."""
    lead = len(target) - len(shape)
    return (0,) * lead + tuple(
        0 if size == 1 and wanted != 1 else stride for size, stride, wanted in zip(shape, strides, target[lead:])
    )


def view_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """Strides that show the same elements as `target`, or None where a copy is needed (PyTorch's view rule)."""
    numel = 1
    for size in shape:
        numel *= size
    if numel == 0:
        out, step = [0] * len(target), 1
        for i in range(len(target) - 1, -1, -1):
            out[i] = step
            step *= max(1, target[i])
        return tuple(out)
    result = [0] * len(target)
    if not shape:
        return tuple([1] * len(target))
    position = len(target) - 1
    chunk_stride = strides[-1]
    taken = have = 1
    for i in range(len(shape) - 1, -1, -1):
        have *= shape[i]
        last = i == 0 or (shape[i - 1] != 1 and strides[i - 1] != have * chunk_stride)
        if not last:
            continue
        while position >= 0 and (taken < have or target[position] == 1):
            result[position] = taken * chunk_stride
            taken *= target[position]
            position -= 1
        if taken != have:
            return None
        if i > 0:
            chunk_stride = strides[i - 1]
            taken = have = 1
    return tuple(result) if position == -1 else None


def infer_shape(op: str, target: Sequence[int], numel: int) -> tuple[int, ...]:
    """Replace one -1 in `target`. Raises: RuntimeError if the sizes cannot hold `numel` elements."""
    shape, unknown, product = [as_size(n) for n in target], None, 1
    for i, size in enumerate(shape):
        if size == -1:
            if unknown is not None:
                raise RuntimeError(
                    f"{op}: only one size may be -1, got {shape} (only one dimension can be inferred). Give the others."
                )
            unknown = i
        elif size < 0:
            raise RuntimeError(f"{op}: sizes must be -1 or more, got {shape} (invalid shape dimension {size}).")
        else:
            product *= size
    if unknown is not None:
        if product == 0:
            raise RuntimeError(f"{op}: -1 cannot be inferred beside a size 0, got {shape}. Give the size.")
        if numel % product:
            raise RuntimeError(
                f"{op}: shape '{shape}' is invalid for input of size {numel}: it must be divisible by {product} for -1 to be inferred. "
                f"Give sizes whose product divides {numel}."
            )
        shape[unknown] = numel // product
    elif product != numel:
        raise RuntimeError(
            f"{op}: shape '{shape}' is invalid for input of size {numel}: it holds {product} elements. "
            f"Give sizes whose product is {numel}, or -1 for the one to infer."
        )
    return tuple(shape)


def has_internal_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices may name one element (expanded or overlapping windows); exact for nested layouts."""
    reach = 0
    if 0 in shape:
        return False
    for stride, size in sorted((s, n) for n, s in zip(shape, strides) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides; a size-0 or size-1 dim counts as 1, as PyTorch counts it."""
    strides, step = [0] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        strides[i] = step
        step *= max(1, shape[i])
    return tuple(strides)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size == 0:
            return True
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True
