"""Joins, repetitions and indexed writes whose call form is not an op's: any number of tensors, several forms under one name.

Dispatch only; every rule is in the ops they call. Public functions here are exported by `flambeau`.
"""

from __future__ import annotations

import itertools
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.dtype import int64
from flambeau.factories import tensor
from flambeau.forms.numpy_names import with_numpy_names
from flambeau.forms.shape import atleast_1d, atleast_2d, atleast_3d, flatten, meshgrid, plain_sizes, strided_place
from flambeau.indexing import coordinates, nonzero, trimmed
from flambeau.ir.op import REGISTRY

__all__ = [
    "as_strided_scatter",
    "block_diag",
    "cartesian_prod",
    "column_stack",
    "combinations",
    "cross",
    "diag",
    "diagflat",
    "dstack",
    "hstack",
    "index_put",
    "index_put_",
    "nonzero_static",
    "repeat_interleave",
    "row_stack",
    "scatter",
    "take_along_dim",
    "tile",
    "vander",
    "vstack",
    "where",
]


# ------------------------------------------------------------------ stacks
def _list(name: str, tensors: Any) -> tuple:
    if isinstance(tensors, Tensor):
        raise TypeError(message(name, "tensors must be a list or tuple of tensors", "a tensor"))
    if not tensors:
        raise RuntimeError(
            message(name, f"at least one tensor must be given ({name} expects a non-empty TensorList)", "none")
        )
    return tuple(tensors)


def hstack(tensors: Any, *, out: Tensor | None = None) -> Tensor:
    """Tensors joined along dim 1 (vectors along dim 0)."""
    tensors = tuple(atleast_1d(x) for x in _list("hstack", tensors))
    return REGISTRY["cat"](tensors, 0 if tensors[0].spec.ndim == 1 else 1, out=out)


def vstack(tensors: Any, *, out: Tensor | None = None) -> Tensor:
    """Tensors joined along dim 0, vectors as rows."""
    return REGISTRY["cat"](tuple(atleast_2d(x) for x in _list("vstack", tensors)), 0, out=out)


row_stack = vstack


def dstack(tensors: Any, *, out: Tensor | None = None) -> Tensor:
    """Tensors joined along dim 2."""
    return REGISTRY["cat"](tuple(atleast_3d(x) for x in _list("dstack", tensors)), 2, out=out)


def column_stack(tensors: Any, *, out: Tensor | None = None) -> Tensor:
    """Tensors joined along dim 1, vectors as columns."""
    found = tuple(
        x if x.spec.ndim > 1 else REGISTRY["view" if x.spec.contiguous else "reshape"](x, (x.spec.numel, 1))
        for x in _list("column_stack", tensors)
    )
    return REGISTRY["cat"](found, 1, out=out)


def block_diag(*tensors: Tensor) -> Tensor:
    """Tensors of at most 2 dims as blocks on the diagonal of a matrix of zeros."""
    return REGISTRY["block_diag_of"](tensors) if tensors else REGISTRY["full"]((1, 0), 0, dtype=None)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All choices of one element from each vector, as rows."""
    if any(x.spec.ndim != 1 for x in tensors):
        raise RuntimeError(
            message("cartesian_prod", "inputs must be vectors (Expect a 1D vector)", [list(x.shape) for x in tensors])
        )
    if len(tensors) == 1:
        return tensors[0]
    return REGISTRY["stack"](
        tuple(REGISTRY["reshape"](g, (-1,) if g.spec.numel else (0,)) for g in meshgrid(*tensors)), 1
    )


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of r elements of a vector, in order, as rows."""
    if input.spec.ndim != 1:
        raise RuntimeError(
            message("combinations", "the input must be a vector (Expect a 1D vector)", f"shape {list(input.shape)}")
        )
    if r < 0:
        raise RuntimeError(message("combinations", "r must be non-negative (Expect a non-negative number)", r))
    if r == 0:
        return REGISTRY["contiguous_copy"](REGISTRY["narrow"](input, 0, 0, 0))
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(input.spec.numel), r))
    places = (
        tensor(rows, device=input.device) if rows else REGISTRY["full"]((0, r), 0, dtype=int64, device=input.device)
    )
    return REGISTRY["index"](input, (places,))


# ------------------------------------------------------------------ repetition
def repeat(self: Tensor, *repeats: Any) -> Tensor:
    """The tensor repeated along each dim."""
    return REGISTRY["repeat"](self, plain_sizes(repeats))


def tile(input: Tensor, *dims: Any) -> Tensor:
    """As `repeat`, with missing leading numbers taken as 1."""
    dims = plain_sizes(dims)
    return REGISTRY["repeat"](input, (1,) * (input.spec.ndim - len(dims)) + dims)


@with_numpy_names
def repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element (or index of `dim`) repeated in a row: `repeats` times, or as often as a vector says.

    With a vector alone, the indices it counts. Raises: RuntimeError where counts are negative or do not fit the dim.
    """
    if repeats is None:
        counts = _counts(input)
        return tensor(
            list(itertools.chain.from_iterable(itertools.repeat(i, n) for i, n in enumerate(counts))),
            dtype=int64,
            device=input.device,
        )
    if dim is None:
        input, dim = flatten(input), 0
    elif not input.spec.ndim:
        input = REGISTRY["view"](input, (1,))
    if isinstance(repeats, Tensor):
        if repeats.spec.numel != 1 or repeats.spec.ndim > 1:
            counts = _counts(repeats)
            n = input.spec.shape[dim]
            if len(counts) != n:
                raise RuntimeError(
                    message(
                        "repeat_interleave",
                        f"repeats must have the same size as input along dim {dim}, {n}",
                        len(counts),
                    )
                )
            places = repeat_interleave(repeats)
            return REGISTRY["index_select"](input, dim, places)
        repeats = int(repeats.item())
    elif not isinstance(repeats, int):
        return repeat_interleave(input, tensor(list(repeats)), dim)
    return REGISTRY["repeat_each"](input, repeats, dim)


def _counts(repeats: Tensor) -> list[int]:
    if repeats.spec.ndim != 1:
        raise RuntimeError(
            message("repeat_interleave", "repeats must be 0-dim or 1-dim tensor", f"shape {list(repeats.shape)}")
        )
    if repeats.spec.dtype.name not in ("int64", "int32"):
        raise RuntimeError(message("repeat_interleave", "repeats has to be Long or Int tensor", repeats.dtype.name))
    counts = repeats.tolist()
    if any(n < 0 for n in counts):
        raise RuntimeError(message("repeat_interleave", "repeats can not be negative", counts))
    return counts


# ------------------------------------------------------------------ diagonals, products, powers
def diag(input: Tensor, diagonal: int = 0, *, out: Tensor | None = None) -> Tensor:
    """A vector as a matrix's diagonal, or a matrix's diagonal as a vector."""
    if input.spec.ndim == 1:
        return REGISTRY["diag_embed"](input, diagonal, out=out)
    if input.spec.ndim != 2:
        raise RuntimeError(
            message(
                "diag",
                "the input must have 1 or 2 dims (diag(): Supports 1D or 2D tensors)",
                f"shape {list(input.shape)}",
            )
        )
    return REGISTRY["contiguous_copy"](REGISTRY["diagonal"](input, diagonal, 0, 1), out=out)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with the flattened input on its diagonal."""
    return REGISTRY["diag_embed"](flatten(input), offset)


def cross(input: Tensor, other: Tensor, dim: int | None = None, *, out: Tensor | None = None) -> Tensor:
    """The cross product of vectors of 3 along `dim`; without it, along the first dim of size 3."""
    if dim is None:
        dim = next((d for d, n in enumerate(input.spec.shape) if n == 3), None)
        if dim is None:
            raise RuntimeError(
                message(
                    "cross", "one dim must have size 3 (no dimension of size 3 in input)", f"shape {list(input.shape)}"
                )
            )
    return REGISTRY["cross_product"](input, other, dim=dim, out=out)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """Powers of a vector's elements as columns, the highest first unless `increasing`."""
    if x.spec.ndim != 1:
        raise RuntimeError(
            message("vander", "x must be a vector (x must be a one-dimensional tensor)", f"shape {list(x.shape)}")
        )
    count = x.spec.numel if N is None else N
    if count < 0:
        raise RuntimeError(message("vander", "N must be non-negative", count))
    if count < 2 or not x.spec.numel:
        d = int64 if x.dtype.is_integral else x.dtype
        return REGISTRY["full"]((x.spec.numel, count), 1, dtype=d, device=x.device)
    powers = REGISTRY["vandermonde"](x, N=count)
    return powers if increasing else REGISTRY["flip"](powers, (1,))


# ------------------------------------------------------------------ indices
def index_put(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """A copy with `values` written (or added) at `input[indices]`; masks are allowed among the indices."""
    return REGISTRY["index_put"](input, _indices(indices), values, accumulate)


def index_put_(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """In-place form of `index_put`."""
    return REGISTRY["index_put"].in_place(input, _indices(indices), values, accumulate)


def _indices(indices: Any) -> tuple:
    return trimmed(
        coordinates([REGISTRY["ne"](i, 0) if i is not None and i.spec.dtype.name == "uint8" else i for i in indices])
    )


def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Any = None,
    *,
    value: Any = None,
    reduce: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A copy with a tensor or a number written where `index` says along `dim`."""
    return REGISTRY["scatter"](input, dim, index, value if src is None else src, reduce=reduce, out=out)


def scatter_in_place(
    self: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """In-place form of `scatter`."""
    return REGISTRY["scatter"].in_place(self, dim, index, value if src is None else src, reduce=reduce)


def as_strided_scatter(input: Tensor, src: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """A copy of the input's storage as the input shows it, with `as_strided(size, stride, storage_offset)` of it replaced by `src`."""
    return REGISTRY["strided_scatter"](input, src, *strided_place(input, size, stride, storage_offset))


@with_numpy_names
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None, *, out: Tensor | None = None) -> Tensor:
    """`gather` with broadcasting of the dims beside `dim`; without `dim`, over the flattened input."""
    return REGISTRY["take_along_dim"](input, indices, dim, out=out)


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Coordinates of the elements that are not zero, cut or filled up to `size` rows."""
    found = nonzero(input)
    count = found.spec.shape[0]
    if count >= size:
        return REGISTRY["contiguous_copy"](REGISTRY["narrow"](found, 0, 0, size))
    return REGISTRY["constant_pad_nd"](found, (0, 0, 0, size - count), fill_value)


def where(condition: Tensor, input: Any = None, other: Any = None, *, out: Tensor | None = None) -> Any:
    """Elements of `input` where the condition holds, else of `other`; with the condition alone, coordinates of where it holds."""
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    return REGISTRY["where"](condition, input, other, out=out)


def where_method(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """The tensor's elements where the condition holds, else those of `other`."""
    return REGISTRY["where"](condition, self, other)


_METHODS = (
    repeat,
    tile,
    repeat_interleave,
    diag,
    diagflat,
    cross,
    index_put,
    index_put_,
    scatter,
    take_along_dim,
    nonzero_static,
    as_strided_scatter,
)


def install() -> None:
    """Hang the methods on Tensor."""
    for f in _METHODS:
        setattr(Tensor, f.__name__, f)
    Tensor.scatter_ = scatter_in_place
    Tensor.where = where_method
