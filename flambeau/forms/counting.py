"""Counting functions whose results' sizes depend on values, or that take bins in several forms: unique, bincount, histogram.

They read numbers back from tensors, so they cannot be traced; the work is in the ops of `operators.binning` and `operators.sorting`.
Exported by `flambeau`, and hung on Tensor by `install`.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.base.results import result_type
from flambeau.core.dtype import float32, float64, int64
from flambeau.core.layout import canonical_dim
from flambeau.ir.op import REGISTRY

__all__ = ["bincount", "histogram", "histogramdd", "unique", "unique_consecutive"]

Histogram = result_type("histogram", ("hist", "bin_edges"))
HistogramDD = result_type("histogramdd", ("hist", "bin_edges"))


# ------------------------------------------------------------------ distinct elements
def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements (or slices along `dim`), in order.

    With `return_inverse` also where each element went, with `return_counts` how often each is there.
    """
    if dim is not None and input.ndim:
        return _unique_slices(input, canonical_dim("unique", dim, input.ndim), return_inverse, return_counts)
    values, order = REGISTRY["sort"](input.reshape(-1), 0)
    fresh = _differs(values)
    return _distinct(values.reshape(-1, 1), fresh, order, tuple(input.shape), return_inverse, return_counts, 0, (-1,))


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements (or slices along `dim`) that differ from the one before; see `unique`."""
    if dim is not None and input.ndim:
        at = canonical_dim("unique_consecutive", dim, input.ndim)
        rows = _as_rows(input, at)
        return _distinct(
            rows,
            _rows_differ(rows),
            None,
            (input.shape[at],),
            return_inverse,
            return_counts,
            at,
            _slice_shape(input, at),
        )
    flat = input.reshape(-1)
    return _distinct(
        flat.reshape(-1, 1), _differs(flat), None, tuple(input.shape), return_inverse, return_counts, 0, (-1,)
    )


def _as_rows(input: Tensor, at: int) -> Tensor:
    """Slices along a dim as the rows of a matrix."""
    moved = REGISTRY["permute"](input, (at, *(d for d in builtins.range(input.ndim) if d != at)))
    n = input.shape[at]
    return moved.reshape(n, input.numel() // n if n else 0)


def _slice_shape(input: Tensor, at: int) -> tuple[int, ...]:
    """Shape of the moved input, its first dim left open."""
    return (-1, *(n for d, n in enumerate(input.shape) if d != at))


def _unique_slices(input: Tensor, at: int, return_inverse: bool, return_counts: bool) -> Any:
    """Rows are sorted by their last column first, then stably by those before it."""
    if input.numel() == 0 and input.shape[at]:
        raise RuntimeError(
            message(
                "unique",
                "there are 0 sized dimensions, and they aren't selected, so unique cannot be applied",
                f"shape {list(input.shape)}",
            )
        )
    rows = _as_rows(input, at)
    order = REGISTRY["positions"](rows.shape[0], device=input.device)
    for column in range(rows.shape[1] - 1, -1, -1):
        keys = REGISTRY["index_select"](REGISTRY["select"](rows, 1, column), 0, order)
        order = REGISTRY["index_select"](order, 0, REGISTRY["argsort"](keys, 0))
    rows = REGISTRY["index_select"](rows, 0, order)
    return _distinct(
        rows, _rows_differ(rows), order, (input.shape[at],), return_inverse, return_counts, at, _slice_shape(input, at)
    )


def _differs(flat: Tensor) -> Tensor:
    """1 where an element of a 1-d tensor differs from the one before it, 0 elsewhere and first."""
    n = flat.shape[0]
    if n < 2:
        return REGISTRY["full"]((n,), 0, dtype=int64, device=flat.device)
    changed = REGISTRY["ne"](REGISTRY["narrow"](flat, 0, 1, n - 1), REGISTRY["narrow"](flat, 0, 0, n - 1))
    first = REGISTRY["full"]((1,), 0, dtype=int64, device=flat.device)
    return REGISTRY["cat"]((first, REGISTRY["to_dtype"](changed, int64)), 0)


def _rows_differ(rows: Tensor) -> Tensor:
    """The same for the rows of a matrix."""
    n = rows.shape[0]
    if n < 2:
        return REGISTRY["full"]((n,), 0, dtype=int64, device=rows.device)
    changed = REGISTRY["any"](
        REGISTRY["ne"](REGISTRY["narrow"](rows, 0, 1, n - 1), REGISTRY["narrow"](rows, 0, 0, n - 1)), 1
    )
    first = REGISTRY["full"]((1,), 0, dtype=int64, device=rows.device)
    return REGISTRY["cat"]((first, REGISTRY["to_dtype"](changed, int64)), 0)


def _distinct(
    rows: Tensor,
    fresh: Tensor,
    order: Tensor | None,
    inverse_shape: tuple,
    return_inverse: bool,
    return_counts: bool,
    at: int,
    slice_shape: tuple,
) -> Any:
    """What is asked for, from rows in which equal ones stand together. `order`: where they came from."""
    group = REGISTRY["cumsum"](fresh, 0)
    n = rows.shape[0]
    count = int(REGISTRY["select"](group, 0, n - 1).item()) + 1 if n else 0
    here = REGISTRY["positions"](n, device=rows.device)
    first = REGISTRY["scatter_reduce"](
        REGISTRY["full"]((count,), n, dtype=int64, device=rows.device), 0, group, here, "amin"
    )
    values = REGISTRY["index_select"](rows, 0, first)
    values = values.reshape(*(count if d == -1 else d for d in slice_shape))
    if at:
        values = REGISTRY["permute"](values, (*builtins.range(1, at + 1), 0, *builtins.range(at + 1, values.ndim)))
    found = [values]
    if return_inverse:
        inverse = group if order is None else REGISTRY["scatter"](group, 0, order, group)
        found.append(inverse.reshape(*inverse_shape) if inverse_shape else inverse.reshape(()))
    if return_counts:
        found.append(REGISTRY["tally"](group, None, count))
    return tuple(found) if len(found) > 1 else found[0]


# ------------------------------------------------------------------ counts
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each non-negative integer is there, or the sum of its weights. As long as the largest one asks, at least `minlength`."""
    if input.ndim != 1 or not input.dtype.is_integral or input.dtype.name == "bool":
        raise RuntimeError(
            message(
                "bincount", "only supports 1-d non-negative integral inputs", f"{input.dtype.name}{list(input.shape)}"
            )
        )
    if minlength < 0:
        raise RuntimeError(message("bincount", "minlength should be >= 0", str(minlength)))
    if weights is not None and tuple(weights.shape) != tuple(input.shape):
        raise RuntimeError(
            message(
                "bincount",
                "weights should be 1-d and have the same length as input",
                f"{list(weights.shape)} for {list(input.shape)}",
            )
        )
    size = minlength
    if input.numel():
        smallest, largest = REGISTRY["aminmax"](input)
        if smallest.item() < 0:
            raise RuntimeError(
                message("bincount", "only supports 1-d non-negative integral inputs", f"an element {smallest.item()}")
            )
        size = max(size, largest.item() + 1)
    if weights is not None and weights.dtype is not float32:
        weights = REGISTRY["to_dtype"](weights, float64)
    return REGISTRY["tally"](REGISTRY["to_dtype"](input, int64), weights, size)


def histogram(
    input: Tensor,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
    out: Any = None,
) -> Histogram:
    """(counts or sums of weights per bin, edges). `bins`: edges, or how many equal bins over `range` (the data's if not given)."""
    flat = input.reshape(-1)
    edges = _edges("histogram", flat, bins, range)
    if weight is not None:
        _check_weight("histogram", weight, tuple(input.shape), input)
    counts = _counted(
        [REGISTRY["bin_numbers"](flat, edges)], [edges], None if weight is None else weight.reshape(-1), flat
    )
    return Histogram(_density(counts, [edges]) if density else counts, edges)


def _check_weight(name: str, weight: Tensor, shape: tuple, input: Tensor) -> None:
    if tuple(weight.shape) != shape:
        raise RuntimeError(
            message(
                name,
                "if weight tensor is provided it should have the same shape as the input tensor excluding its innermost dimension",
                f"{list(weight.shape)} for {list(shape)}",
            )
        )
    if weight.dtype is not input.dtype:
        raise RuntimeError(
            message(
                name,
                "if weight tensor is provided, input tensor and weight tensor should have the same dtype",
                f"{weight.dtype.name} and {input.dtype.name}",
            )
        )


def _edges(name: str, flat: Tensor, bins: Any, ends: Sequence[float] | None) -> Tensor:
    if isinstance(bins, Tensor):
        if bins.dtype is not flat.dtype:
            raise RuntimeError(
                message(
                    name,
                    "input tensor and bins tensors should have the same dtype",
                    f"{flat.dtype.name} and {bins.dtype.name}",
                )
            )
        if bins.ndim != 1 or not bins.numel():
            raise RuntimeError(
                message(
                    name, "bins tensor should have one dimension and more than 0 elements", f"shape {list(bins.shape)}"
                )
            )
        return bins
    if bins <= 0:
        raise RuntimeError(message(name, "bins must be > 0", str(bins)))
    low, high = (None, None) if ends is None else ends
    if low is not None and low > high:
        raise RuntimeError(message(name, "min should not exceed max", f"range={tuple(ends)}"))
    return REGISTRY["bin_edges"](flat, int(bins), low, high)


def _counted(numbers: list[Tensor], edges: list[Tensor], weight: Tensor | None, like: Tensor) -> Tensor:
    """Counts over the product of several dims' bins."""
    sizes = [e.shape[0] - 1 for e in edges]
    place, outside = numbers[0], REGISTRY["lt"](numbers[0], 0)
    for number, size in zip(numbers[1:], sizes[1:]):
        outside = REGISTRY["logical_or"](outside, REGISTRY["lt"](number, 0))
        place = REGISTRY["add"](REGISTRY["mul"](place, size), number)
    total = 1
    for size in sizes:
        total *= size
    counts = REGISTRY["tally"](REGISTRY["where"](outside, -1, place), weight, total)
    return REGISTRY["to_dtype"](counts, like.dtype).reshape(*sizes)


def _density(counts: Tensor, edges: list[Tensor]) -> Tensor:
    found = REGISTRY["true_divide"](counts, REGISTRY["sum"](counts))
    for d, e in enumerate(edges):
        width = REGISTRY["diff"](e)
        found = REGISTRY["true_divide"](found, width.reshape(*(-1 if i == d else 1 for i in range(len(edges)))))
    return found


def histogramdd(
    input: Tensor,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> HistogramDD:
    """Counts over several variables at once: those of the last dim. `bins`: a number, numbers, or edges per variable."""
    if input.ndim < 2:
        raise RuntimeError(
            message("histogramdd", "input tensor should have at least 2 dimensions", f"shape {list(input.shape)}")
        )
    n = input.shape[-1]
    every = [bins] * n if isinstance(bins, int) else list(bins)
    if len(every) != n:
        raise RuntimeError(
            message(
                "histogramdd",
                "the size of bins must be equal to the innermost dimension of the input",
                f"{len(every)} and {n}",
            )
        )
    ends = [None] * n if range is None else [tuple(range[2 * i : 2 * i + 2]) for i in builtins.range(n)]
    data = input.reshape(-1, n)
    columns = [REGISTRY["select"](data, 1, i).reshape(-1) for i in builtins.range(n)]
    edges = [_edges("histogramdd", c, b, r) for c, b, r in zip(columns, every, ends)]
    if weight is not None:
        _check_weight("histogramdd", weight, tuple(input.shape[:-1]), input)
    numbers = [REGISTRY["bin_numbers"](c, e) for c, e in zip(columns, edges)]
    counts = _counted(numbers, edges, None if weight is None else weight.reshape(-1), input)
    return HistogramDD(_density(counts, edges) if density else counts, tuple(edges))


def install() -> None:
    """Hang the methods on Tensor."""
    for f in (bincount, histogram, unique, unique_consecutive):
        setattr(Tensor, f.__name__, f)
