"""Bags of embeddings: rows of a table that are summed, averaged or maximised per bag, without storing the rows.

    embedding_bag(weight, indices)             # indices [B, n] -> [B, D]
    embedding_bag_offsets(weight, indices, offsets)

May not know: how indexed reads fuse with reductions. Entry: the ops.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import case

MODES = ("sum", "mean", "max")


def check_mode(mode: str, weights) -> None:
    """Raises: ValueError for an unknown mode, NotImplementedError for weighted bags that are not summed."""
    if mode not in MODES:
        raise ValueError(f"embedding_bag: mode has to be one of sum, mean or max, got {mode!r}.")
    if weights is not None and mode != "sum":
        raise NotImplementedError(
            f"embedding_bag: per_sample_weights was not None, but weights are only defined for mode='sum', got mode={mode!r}."
        )


def kept_of(indices, padding_idx):
    """Which indices count; None: all."""
    return None if padding_idx is None else REGISTRY["ne"](indices, padding_idx)


def column(x):
    return REGISTRY["unsqueeze"](x, -1)


def finish_mean(total, counts):
    """Sums over counts; empty bags stay 0."""
    ops = REGISTRY
    return ops["true_divide"](total, ops["to_dtype"](ops["clamp_min"](counts, 1), total.spec.dtype))


@declare
class embedding_bag(Composite):
    """Bags of equal length: indices [B, n] into weight [rows, D] give [B, D]. Index `padding_idx` does not count."""

    functions = ()
    methods = ()

    def signature(
        weight: Tensor,
        indices: Tensor,
        mode="mean",
        per_sample_weights: OptionalTensor = None,
        padding_idx=None,
        scale_grad_by_freq=False,
    ): ...

    def meta(op, weight, indices, mode, per_sample_weights, padding_idx, scale_grad_by_freq):
        check_mode(mode, per_sample_weights)
        return Spec.of((indices.shape[0], weight.shape[1]), weight.dtype, weight.device)

    def body(weight, indices, mode, per_sample_weights, padding_idx, scale_grad_by_freq):
        ops = REGISTRY
        rows = ops["embedding_lookup"](weight, indices, -1, scale_grad_by_freq)  # [B, n, D]
        if indices.spec.shape[1] == 0:
            return ops["sum"](rows, 1, False)
        kept = kept_of(indices, padding_idx)
        if mode == "max":
            if kept is None:
                return ops["max_dim"](rows, 1, False)[0]
            found = ops["max_dim"](ops["where"](column(kept), rows, float("-inf")), 1, False)[0]
            return ops["where"](column(ops["any_over"](kept, 1, False)), found, 0.0)
        if per_sample_weights is not None:
            rows = ops["mul"](rows, column(per_sample_weights))
        if kept is not None:
            rows = ops["where"](column(kept), rows, 0.0)
        total = ops["sum"](rows, 1, False)
        if mode == "sum":
            return total
        if kept is None:
            return ops["true_divide"](total, indices.spec.shape[1])
        return finish_mean(total, column(ops["sum"](kept, 1, False)))

    def reference(weight, indices, mode="mean", per_sample_weights=None, padding_idx=None, scale_grad_by_freq=False):
        rows = weight[indices]
        if per_sample_weights is not None:
            rows = rows * per_sample_weights[..., None]
        keep = np.ones(indices.shape, bool) if padding_idx is None else indices != padding_idx
        if mode == "max":
            found = np.where(keep[..., None], rows, -np.inf).max(1)
            return np.where(np.isinf(found), 0, found)
        total = np.where(keep[..., None], rows, 0).sum(1)
        return total if mode == "sum" else total / np.maximum(keep.sum(1), 1)[:, None]

    def samples(t):
        indices = np.asarray([[0, 2, 1], [3, 3, 0]])
        for mode in MODES:
            yield case(t(4, 5), indices, mode)
            yield case(t(4, 5), indices, mode, None, 3)
        yield case(t(4, 5), indices, "sum", t(2, 3))
        yield case(t(4, 5), indices, "median", raises=(ValueError, "mode has to be"))


@declare
class embedding_bag_offsets(Composite):
    """Bags of any length: indices [n], bag i from offsets[i] to the next offset (or the end)."""

    functions = ()
    methods = ()

    def signature(
        weight: Tensor,
        indices: Tensor,
        offsets: Tensor,
        mode="mean",
        per_sample_weights: OptionalTensor = None,
        padding_idx=None,
        include_last_offset=False,
        scale_grad_by_freq=False,
    ): ...

    def meta(
        op, weight, indices, offsets, mode, per_sample_weights, padding_idx, include_last_offset, scale_grad_by_freq
    ):
        check_mode(mode, per_sample_weights)
        return Spec.of((offsets.shape[0] - bool(include_last_offset), weight.shape[1]), weight.dtype, weight.device)

    def body(weight, indices, offsets, mode, per_sample_weights, padding_idx, include_last_offset, scale_grad_by_freq):
        ops = REGISTRY
        bags, n, width = offsets.spec.shape[0] - bool(include_last_offset), indices.spec.shape[0], weight.spec.shape[1]
        device = weight.spec.device
        if include_last_offset:
            offsets = ops["narrow"](offsets, 0, 0, bags)
        hole = ops["full"]((bags, width), 0, dtype=weight.spec.dtype, device=device)
        if n == 0:
            return hole
        place = ops["iota"]((n, 1), device=device)
        bag = ops["sub"](ops["sum"](ops["le"](ops["reshape"](offsets, (1, bags)), place), 1, False), 1)  # [n]
        rows = ops["embedding_lookup"](weight, indices, -1, scale_grad_by_freq)
        kept = kept_of(indices, padding_idx)
        if mode == "max":
            wide = ops["expand"](column(bag), (n, width))
            if kept is not None:
                rows = ops["where"](column(kept), rows, float("-inf"))
            return self_or_zero(
                ops["scatter_reduce"](
                    ops["full"]((bags, width), float("-inf"), dtype=weight.spec.dtype, device=device),
                    0,
                    wide,
                    rows,
                    "amax",
                )
            )
        if per_sample_weights is not None:
            rows = ops["mul"](rows, column(per_sample_weights))
        if kept is not None:
            rows = ops["where"](column(kept), rows, 0.0)
        total = ops["index_add"](hole, 0, bag, rows)
        if mode == "sum":
            return total
        ones = (
            ops["full"]((n,), 1, dtype=indices.spec.dtype, device=device)
            if kept is None
            else ops["to_dtype"](kept, indices.spec.dtype)
        )
        counts = ops["index_add"](ops["full"]((bags,), 0, dtype=indices.spec.dtype, device=device), 0, bag, ones)
        return finish_mean(total, column(counts))

    def reference(
        weight,
        indices,
        offsets,
        mode="mean",
        per_sample_weights=None,
        padding_idx=None,
        include_last_offset=False,
        scale_grad_by_freq=False,
    ):
        ends = [*offsets[1:], *([] if include_last_offset else [len(indices)])]
        out = np.zeros((len(ends), weight.shape[1]), weight.dtype)
        for i, (a, b) in enumerate(zip(offsets, ends)):
            at = np.arange(a, b)
            at = at if padding_idx is None else at[indices[at] != padding_idx]
            if len(at):
                rows = weight[indices[at]] * (1 if per_sample_weights is None else per_sample_weights[at][:, None])
                out[i] = getattr(np, mode)(rows, axis=0)
        return out

    def samples(t):
        indices, offsets = np.asarray([0, 2, 1, 3, 3]), np.asarray([0, 2, 2])
        for mode in MODES:
            yield case(t(4, 5), indices, offsets, mode)
            yield case(t(4, 5), indices, offsets, mode, None, 3)
        yield case(t(4, 5), indices, np.asarray([0, 2, 5]), "sum", t(5), None, True)


def self_or_zero(x):
    """x with what no element reached (-inf) as 0."""
    return REGISTRY["where"](REGISTRY["eq"](x, float("-inf")), 0.0, x)
