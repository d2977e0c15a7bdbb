"""How a value is read over a domain: each of its dims as a sum of domain dims times steps, plus a constant.

    identity(2)                     (i, j) -> (i, j)
    compose(inner, outer)           inner read where outer says

A view of a value that has no memory yet becomes such a map if it is linear in every source dim (expand, permute, slices,
diagonals, splitting a dim); merging dims in general is not. May not know: buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flambeau.core.layout import contiguous_strides
from flambeau.core.spec import Spec
from flambeau.ir.graph import Node


class IndexMap(NamedTuple):
    """rows[j]: the (domain dim, step) pairs that add up to dim j, besides offsets[j]."""

    rows: tuple[tuple[tuple[int, int], ...], ...]
    offsets: tuple[int, ...]


def identity(ndim: int, shape: Sequence[int] | None = None) -> IndexMap:
    """Each dim from the domain dim of the same number (dims of size 1 from none)."""
    rows = tuple(() if shape is not None and shape[d] == 1 else ((d, 1),) for d in range(ndim))
    return IndexMap(rows, (0,) * ndim)


def compose(inner: IndexMap, outer: IndexMap) -> IndexMap:
    """`inner` maps value dims to view dims, `outer` maps view dims to the domain; the result maps value dims to the domain."""
    rows, offsets = [], []
    for row, constant in zip(inner.rows, inner.offsets):
        steps: dict[int, int] = {}
        for view_dim, step in row:
            constant += step * outer.offsets[view_dim]
            for d, s in outer.rows[view_dim]:
                steps[d] = steps.get(d, 0) + step * s
        rows.append(tuple(sorted((d, s) for d, s in steps.items() if s)))
        offsets.append(constant)
    return IndexMap(tuple(rows), tuple(offsets))


def through_view(node: Node, source_shape: Sequence[int]) -> IndexMap | None:
    """Source dims of a view node as a map from the view's dims, or None if they are not linear in them."""
    source = node.inputs[0].spec
    retype = node.op.rules.retype
    if retype is not None and retype(source, *node.args[1:]) is not source.dtype:
        return None
    dense = Spec.get(source_shape, contiguous_strides(source_shape), source.dtype, source.device)
    try:
        shape, strides, offset = node.op.rules.view(dense, *node.args[1:])
    except RuntimeError:  # no such view of a dense tensor
        return None
    return linear_map(source_shape, shape, strides, offset)


def linear_map(
    source_shape: Sequence[int], shape: Sequence[int], strides: Sequence[int], offset: int
) -> IndexMap | None:
    """A strided view of a dense `source_shape` as an index map."""
    if 0 in source_shape or 0 in shape:
        return None
    steps = contiguous_strides(source_shape)
    live = [j for j, n in enumerate(source_shape) if n > 1]
    rows: list[list[tuple[int, int]]] = [[] for _ in source_shape]
    low, high = [0] * len(source_shape), [0] * len(source_shape)
    offsets = [0] * len(source_shape)
    rest = offset
    for j in live:
        offsets[j], rest = divmod(rest, steps[j])
        low[j] = high[j] = offsets[j]
    for d, (size, stride) in enumerate(zip(shape, strides)):
        if size == 1 or stride == 0:
            continue
        sign, rest = (1 if stride > 0 else -1), abs(stride)
        for j in live:
            step, rest = divmod(rest, steps[j])
            if step:
                rows[j].append((d, sign * step))
                reach = sign * step * (size - 1)
                low[j], high[j] = low[j] + min(0, reach), high[j] + max(0, reach)
    if any(low[j] < 0 or high[j] >= source_shape[j] for j in live):
        return None
    return IndexMap(tuple(tuple(sorted(r)) for r in rows), tuple(offsets))
