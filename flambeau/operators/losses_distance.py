"""Distances and similarities along a dim, and the losses made of them.

    pairwise_distance(x, y, p=2.0)           # norms of x - y + eps over the last dim
    triplet_margin_loss(anchor, positive, negative)

May not know: how kernels are fused. Entry: the ops.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.layout import canonical_dim
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.losses import Loss, chosen, np_reduced, reduced, zero_below
from flambeau.operators.powers import power_number
from flambeau.operators.rules import case


def norm_along(x, p: float, dim: int, keepdim: bool = False):
    """The p-norm over one dim."""
    ops = REGISTRY
    size = ops["abs"](x)
    if p == 0:
        return ops["sum"](ops["to_dtype"](ops["ne"](size, 0), size.spec.dtype), dim, keepdim)
    if p == 1:
        return ops["sum"](size, dim, keepdim)
    if p == float("inf"):
        return ops["amax"](size, dim, keepdim)
    if p == float("-inf"):
        return ops["amin"](size, dim, keepdim)
    if p == 2:
        return root_of_squares(x, dim, keepdim)
    return power_number(ops["sum"](power_number(size, p), dim, keepdim), 1.0 / p)


@declare
class root_of_squares(Composite):
    """Square root of the sum of squares over one dim; its gradient is 0 where the root is."""

    functions = ()
    methods = ()

    def signature(input: Tensor, dim, keepdim=False): ...

    def body(x, dim, keepdim):
        ops = REGISTRY
        return ops["sqrt"](ops["sum"](ops["square"](ops["abs"](x) if x.spec.dtype.is_complex else x), dim, keepdim))

    def vjp(g, out, x, dim, keepdim):
        ops = REGISTRY
        ratio = ops["where"](ops["eq"](out, 0), 0, ops["true_divide"](g, out))
        return (ops["mul"](x, ratio if keepdim else ops["unsqueeze"](ratio, canonical_dim("norm", dim, x.spec.ndim))),)

    def reference(x, dim, keepdim=False):
        return np.sqrt(np.sum(np.abs(x) ** 2, dim, keepdims=keepdim))

    def samples(t):
        yield case(t(3, 4), 1)
        yield case(t(3, 4), 0, True)


@declare
class pairwise_distance(Composite):
    """p-norms of x1 - x2 + eps over the last dim."""

    functions = ("pairwise_distance", "nn.functional.pairwise_distance")
    methods = ()

    def signature(x1: Tensor, x2: Tensor, p=2.0, eps=1e-6, keepdim=False): ...

    def body(x1, x2, p, eps, keepdim):
        return norm_along(REGISTRY["add"](REGISTRY["sub"](x1, x2), eps), p, -1, keepdim)

    def reference(x1, x2, p=2.0, eps=1e-6, keepdim=False):
        return np.linalg.norm(x1 - x2 + eps, p, -1, keepdim)

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 4), t(4), 1.0, keepdim=True)
        yield case(t(3, 4), t(3, 4), 3.0)


@declare
class cosine_similarity(Composite):
    """x1 . x2 / (max(|x1|, eps) max(|x2|, eps)) along a dim, with broadcasting."""

    functions = ("cosine_similarity", "nn.functional.cosine_similarity")
    methods = ()

    def signature(x1: Tensor, x2: Tensor, dim=1, eps=1e-8): ...

    def body(x1, x2, dim, eps):
        ops = REGISTRY
        if not (x1.spec.dtype.is_floating_point and x2.spec.dtype.is_floating_point):
            raise RuntimeError(
                f"cosine_similarity: expected common dtype to be floating point, got {x1.spec.dtype.name} and {x2.spec.dtype.name}. Convert with "
                f".float()."
            )
        wide = ops["mul"](x1, x2)
        lead = wide.spec.ndim
        d = canonical_dim("cosine_similarity", dim, lead)

        def unit(x):
            x = ops["expand"](x, tuple(wide.spec.shape))
            return ops["true_divide"](x, ops["clamp_min"](root_of_squares(x, d, True), eps))

        return ops["sum"](ops["mul"](unit(x1), unit(x2)), d, False)

    def reference(x1, x2, dim=1, eps=1e-8):
        x1, x2 = np.broadcast_arrays(x1, x2)
        return (
            np.sum(x1 * x2, dim)
            / np.maximum(np.linalg.norm(x1, axis=dim), eps)
            / np.maximum(np.linalg.norm(x2, axis=dim), eps)
        )

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 4, 2), t(4, 1), -1)


@declare
class cosine_embedding_loss(Loss):
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1; inputs [N, D] (or [D]), target [N] (or 0-d)."""

    functions = ("nn.functional.cosine_embedding_loss", "cosine_embedding_loss")

    def signature(
        input1: Tensor, input2: Tensor, target: Tensor, margin=0.0, size_average=None, reduce=None, reduction="mean"
    ): ...

    def body(x, y, target, margin, size_average, reduce, reduction):
        ops, reduction = REGISTRY, chosen("cosine_embedding_loss", size_average, reduce, reduction)
        if target.spec.ndim not in (0, 1):
            raise RuntimeError(
                f"cosine_embedding_loss: 0D or 1D target tensor expected, multi-target not supported, got {list(target.spec.shape)}."
            )
        if target.spec.ndim == 1 and not x.spec.ndim == y.spec.ndim == 2:
            raise RuntimeError(
                f"cosine_embedding_loss: 1D target tensor expects 2D input tensors, but found inputs with sizes {list(x.spec.shape)} and "
                f"{list(y.spec.shape)}."
            )
        if target.spec.ndim == 0 and not x.spec.ndim == y.spec.ndim == 1:
            raise RuntimeError(
                f"cosine_embedding_loss: 0D target tensor expects 1D input tensors, but found inputs with sizes {list(x.spec.shape)} and "
                f"{list(y.spec.shape)}."
            )
        dim, eps = target.spec.ndim, 1e-12
        dot = ops["sum"](ops["mul"](x, y), dim, False)
        squares = [ops["add"](ops["sum"](ops["square"](v), dim, False), eps) for v in (x, y)]
        cosine = ops["true_divide"](dot, ops["sqrt"](ops["mul"](*squares)))
        near = ops["where"](ops["eq"](target, 1), ops["rsub"](cosine, 1), 0.0)
        far = ops["where"](ops["eq"](target, -1), zero_below(ops["sub"](cosine, margin)), 0.0)
        return reduced(ops["add"](near, far), reduction)

    def reference(x, y, target, margin=0.0, size_average=None, reduce=None, reduction="mean"):
        cosine = np.sum(x * y, -1) / np.sqrt((np.sum(x * x, -1) + 1e-12) * (np.sum(y * y, -1) + 1e-12))
        terms = np.where(target == 1, 1 - cosine, 0) + np.where(target == -1, np.maximum(cosine - margin, 0), 0)
        return np_reduced(terms, reduction)

    def samples(t):
        yield case(t(4, 3), t(4, 3), np.asarray([1, -1, 1, -1]), 0.1)
        yield case(t(4, 3), t(4, 3), np.asarray([[1]]), raises=(RuntimeError, "multi-target"))


@declare
class triplet_margin_loss(Loss):
    """max(0, margin + |anchor - positive| - |anchor - negative|) in the p-norm; `swap` takes the nearer of anchor and positive."""

    functions = ("nn.functional.triplet_margin_loss", "triplet_margin_loss")

    def signature(
        anchor: Tensor,
        positive: Tensor,
        negative: Tensor,
        margin=1.0,
        p=2,
        eps=1e-6,
        swap=False,
        size_average=None,
        reduce=None,
        reduction="mean",
    ): ...

    def body(anchor, positive, negative, margin, p, eps, swap, size_average, reduce, reduction):
        ops, reduction = REGISTRY, chosen("triplet_margin_loss", size_average, reduce, reduction)
        if not anchor.spec.ndim == positive.spec.ndim == negative.spec.ndim:
            raise RuntimeError(
                f"triplet_margin_loss: The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: "
                f"anchor {anchor.spec.ndim}D, positive {positive.spec.ndim}D, and negative {negative.spec.ndim}D inputs."
            )
        if margin <= 0:
            raise ValueError(f"triplet_margin_loss: margin must be greater than 0, got {margin}.")
        near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
        if swap:
            far = ops["minimum"](far, pairwise_distance(positive, negative, p, eps))
        return reduced(zero_below(ops["add"](ops["sub"](near, far), margin)), reduction)

    def reference(
        anchor,
        positive,
        negative,
        margin=1.0,
        p=2,
        eps=1e-6,
        swap=False,
        size_average=None,
        reduce=None,
        reduction="mean",
    ):
        near, far = (np.linalg.norm(anchor - x + eps, p, -1) for x in (positive, negative))
        if swap:
            far = np.minimum(far, np.linalg.norm(positive - negative + eps, p, -1))
        return np_reduced(np.maximum(near - far + margin, 0), reduction)

    def samples(t):
        yield case(t(4, 3), t(4, 3), t(4, 3))
        yield case(t(4, 3), t(4, 3), t(4, 3), 0.5, 1, swap=True, reduction="none")
        yield case(t(4, 3), t(4, 3), t(3), raises=(RuntimeError, "same number of dimensions"))
