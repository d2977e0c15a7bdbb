"""Pieces of batching rules for ops that read and write at places: operands with a batch dim in front, and index tensors that count it.

A rule is `batch(size, dims, *args) -> (result, 0)`: dims hold 0 where an operand has the batch dim in front, None where it has none.
"""

from __future__ import annotations

from typing import Any

from flambeau.ir.op import REGISTRY


def front(x: Any, dim: Any, size: int) -> Any:
    """x with the batch dim in front, expanded if it has none."""
    return x if dim is not None else REGISTRY["expand"](x, (size, *x.spec.shape))


def behind(dim: int, ndim: int) -> int:
    """The number of a dim of an element, of `ndim` dims, behind the batch dim."""
    return dim % max(1, ndim) + 1


def aligned(x: Any, dim: Any, ndim: int) -> Any:
    """x with dims of size 1 behind its batch dim, if it has one, so that elements of up to `ndim` dims broadcast."""
    missing = ndim - (x.spec.ndim - 1)
    if dim is None or not missing:
        return x
    return REGISTRY["reshape"](x, (x.spec.shape[0], *(1,) * missing, *x.spec.shape[1:]))


def element_ndim(x: Any, dim: Any) -> int:
    return x.spec.ndim - (dim is not None)


def element_shape(x: Any, dim: Any) -> tuple[int, ...]:
    return tuple(x.spec.shape[1:] if dim is not None else x.spec.shape)


def counted_indices(indices: tuple, dims: tuple, size: int) -> tuple:
    """Index tensors of an unbatched rank, the batch dim in front of those that have one, and the batch's own numbers before all."""
    longest = max(element_ndim(i, d) for i, d in zip(indices, dims) if i is not None)

    def align(i: Any, d: Any) -> Any:
        if i is None or d is None:
            return i
        missing = longest - element_ndim(i, d)
        return REGISTRY["reshape"](i, (size, *(1,) * missing, *i.spec.shape[1:])) if missing else i

    own = REGISTRY["iota"]((size, *(1,) * longest))
    return (own, *(align(i, d) for i, d in zip(indices, dims)))


def moved(x: Any, source: int, destination: int, count: int = 1) -> Any:
    """`count` neighbouring dims moved from `source` to `destination` (numbers in the result)."""
    block = list(range(source, source + count))
    rest = [d for d in range(x.spec.ndim) if d not in block]
    order = rest[:destination] + block + rest[destination:]
    return x if order == list(range(x.spec.ndim)) else REGISTRY["permute"](x, tuple(order))
