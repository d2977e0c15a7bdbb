"""Losses against class labels: negative log likelihood, cross entropy, margins.

Labels read the scores of their rows in place, so cross entropy of [N, C] is one kernel: maximum, sum of exponentials, the label's
score, and the mean over rows. May not know: how kernels are fused. Entry: the ops.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.layout import canonical_dim
from flambeau.core.spec import Spec
from flambeau.ir.indexmap import IndexMap
from flambeau.ir.kinds import Indexing, Moved, Read
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.batched import front
from flambeau.operators.indexed import whole
from flambeau.operators.losses import Loss, chosen, logsigmoid, np_reduced, reduced, zero_below
from flambeau.operators.reduction import coordinate
from flambeau.operators.rules import case
from flambeau.runtime.errors import POSITION


@declare
class pick_class(Indexing):
    """The score of each row's class: input [N, C, *L] read at target [N, *L]. Raises: IndexError for a label outside [0, C)."""

    functions = ()
    methods = ()

    def signature(input: Tensor, target: Tensor): ...

    def meta(op, input, target):
        return Spec.of(target.shape, input.dtype, input.device)

    def access(op, input, target):
        rows = tuple(() if d == 1 or n == 1 else ((d if d == 0 else d - 1, 1),) for d, n in enumerate(input.shape))
        return Read(IndexMap(rows, (0,) * input.ndim), (Moved(1, whole(target.shape), 1, False, POSITION.number),))

    def batch(size, dims, input, target):
        input, target = front(input, dims[0], size), front(target, dims[1], size)
        rows = size * input.spec.shape[1]
        found = pick_class(
            REGISTRY["reshape"](input, (rows, *input.spec.shape[2:])),
            REGISTRY["reshape"](target, (rows, *target.spec.shape[2:])),
        )
        return REGISTRY["reshape"](found, tuple(target.spec.shape)), 0

    def vjp(g, out, input, target):
        shape = tuple(target.spec.shape)
        wide = (shape[0], 1, *shape[1:])
        here = REGISTRY["eq"](coordinate(input, 1), REGISTRY["reshape"](target, wide))
        return REGISTRY["where"](here, REGISTRY["reshape"](g, wide), 0), None

    def reference(x, target):
        return np.take_along_axis(x, np.expand_dims(target, 1), 1).squeeze(1)

    def samples(t):
        yield case(t(4, 5), np.asarray([0, 4, 2, 1]))


def check_labels(name: str, x: Spec, target: Spec, weight: Spec | None) -> None:
    """Raises: ValueError or RuntimeError unless the target is [N, *L] (or 0-d) for an input [N, C, *L] (or [C])."""
    if x.ndim == 0:
        raise RuntimeError(
            f"{name}: input must have a class dim (0D or 1D target tensor expected, multi-target not supported), got a 0-d input."
        )
    wanted = tuple(x.shape[:1] + x.shape[2:]) if x.ndim > 1 else ()
    if x.ndim > 1 and target.ndim and x.shape[0] != target.shape[0]:
        raise ValueError(
            f"{name}: Expected input batch_size ({x.shape[0]}) to match target batch_size ({target.shape[0]}), got input {list(x.shape)}, target "
            f"{list(target.shape)}."
        )
    if tuple(target.shape) != wanted:
        raise RuntimeError(
            f"{name}: target must be {list(wanted)} for input {list(x.shape)} (size mismatch; 0D or 1D target tensor expected, multi-target not "
            f"supported), got {list(target.shape)}. Squeeze it, or put the class dim second in the input."
        )
    if target.dtype.name not in ("int64", "uint8", "int32"):
        raise RuntimeError(
            f"{name}: expected scalar type Long for labels, got {target.dtype.name}. Convert with .long()."
        )
    classes = x.shape[1] if x.ndim > 1 else x.shape[0]
    if weight is not None and tuple(weight.shape) != (classes,):
        raise RuntimeError(
            f"{name}: weight tensor should be defined either for all {classes} classes or no classes but got weight tensor of shape: "
            f"{list(weight.shape)}."
        )


def batched(x, target):
    """An unbatched input [C] and label as a batch of one."""
    if x.spec.ndim > 1:
        return x, target
    return REGISTRY["reshape"](x, (1, x.spec.shape[0])), REGISTRY["reshape"](target, (1,))


def label_terms(scores, target, weight, ignore_index: int) -> tuple:
    """(terms of a loss at the labels, weights of the rows, which rows are ignored); `scores(labels)` gives the terms."""
    ops = REGISTRY
    ignored = ops["eq"](target, ignore_index)
    labels = ops["where"](ignored, 0, target)
    terms = scores(labels)
    if weight is None:
        weights = ops["to_dtype"](ops["logical_not"](ignored), terms.spec.dtype)
    else:
        weights = ops["where"](ignored, 0, ops["index"](weight, (labels,)))
    return terms, weights, ignored


def finish_labels(terms, weights, ignored, reduction: str, weight_given: bool):
    """Ignored rows give zero; the mean is over the weights."""
    ops = REGISTRY
    if weight_given:
        terms = ops["mul"](terms, weights)
    terms = ops["where"](ignored, 0, terms)
    if reduction == "mean":
        return ops["true_divide"](ops["sum"](terms), ops["sum"](weights))
    return reduced(terms, reduction)


@declare
class nll_loss(Loss):
    """Minus the input's value at the label: [N, C, *L] of log probabilities with labels [N, *L].

    Rows whose label is `ignore_index` do not count; the mean is over the labels' weights. Raises: IndexError for a label outside [0, C).
    """

    functions = ("nn.functional.nll_loss", "nn.functional.nll_loss2d")

    def signature(
        input: Tensor,
        target: Tensor,
        weight: OptionalTensor = None,
        size_average=None,
        ignore_index=-100,
        reduce=None,
        reduction="mean",
    ): ...

    def body(x, target, weight, size_average, ignore_index, reduce, reduction):
        reduction = chosen("nll_loss", size_average, reduce, reduction)
        check_labels("nll_loss", x.spec, target.spec, None if weight is None else weight.spec)
        single = x.spec.ndim == 1
        x, target = batched(x, target)
        if x.spec.numel == 0 and target.spec.numel:
            raise RuntimeError(f"nll_loss: there must be at least one class, got input {list(x.spec.shape)}.")
        terms, weights, ignored = label_terms(
            lambda labels: REGISTRY["neg"](pick_class(x, labels)), target, weight, ignore_index
        )
        found = finish_labels(terms, weights, ignored, reduction, weight is not None)
        return REGISTRY["reshape"](found, ()) if single else found

    def reference(x, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
        return np_labels(-x, target, weight, ignore_index, reduction)

    def samples(t):
        labels = np.asarray([0, 4, 2, 1])
        yield case(t(4, 5), labels)
        yield case(t(4, 5), labels, t(5), ignore_index=2)
        yield case(t(4, 5, 2), np.asarray([[0, 1]] * 4), reduction="none")
        yield case(t(4, 5), np.asarray([0, 5, 2, 1]), raises=(IndexError, "out of"))
        yield case(t(4, 5), np.asarray([0, 1]), raises=(ValueError, "batch_size"))


def np_labels(scores, target, weight, ignore_index, reduction, smooth=None):
    if scores.ndim == 1:
        scores, target = scores[None], np.reshape(target, (1,))
    ignored = target == ignore_index
    labels = np.where(ignored, 0, target)
    terms = np.take_along_axis(scores, np.expand_dims(labels, 1), 1).squeeze(1)
    weights = np.where(ignored, 0, 1.0 if weight is None else weight[labels])
    terms = terms * weights
    return terms if reduction == "none" else terms.sum() / (weights.sum() if reduction == "mean" else 1)


# ------------------------------------------------------------------ cross entropy
def log_sum_exp(x, dim: int):
    """log sum exp over a dim that is kept; no gradient goes through the maximum, where the parts cancel."""
    ops = REGISTRY
    most = ops["amax"](x.detach(), dim, True)
    total = ops["sum"](ops["exp"](ops["sub"](x, most)), dim, True)
    return ops["add"](ops["log"](total), most)


def without_dim(x, dim: int):
    shape = tuple(x.spec.shape)
    return REGISTRY["reshape"](x, shape[:dim] + shape[dim + 1 :])


def class_weights(weight, ndim: int):
    """[C] shaped to broadcast over [N, C, *L]."""
    return REGISTRY["reshape"](weight, (1, weight.spec.shape[0], *(1,) * (ndim - 2)))


@declare
class cross_entropy(Loss):
    """Negative log likelihood of log_softmax: input [N, C, *L] (or [C]) with labels [N, *L], or with probabilities of the input's shape.

    `weight` [C] weighs the classes, rows labelled `ignore_index` do not count, `label_smoothing` spreads that share evenly.
    Raises: IndexError for a label outside [0, C).
    """

    functions = ("nn.functional.cross_entropy",)

    def signature(
        input: Tensor,
        target: Tensor,
        weight: OptionalTensor = None,
        size_average=None,
        ignore_index=-100,
        reduce=None,
        reduction="mean",
        label_smoothing=0.0,
    ): ...

    def body(x, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing):
        reduction = chosen("cross_entropy", size_average, reduce, reduction)
        if not 0.0 <= label_smoothing <= 1.0:
            raise RuntimeError(f"cross_entropy: label_smoothing must be between 0.0 and 1.0, got {label_smoothing}.")
        if x.spec.ndim and target.spec.shape == x.spec.shape and target.spec.dtype.is_floating_point:
            return against_probabilities(x, target, weight, reduction, label_smoothing)
        check_labels("cross_entropy", x.spec, target.spec, None if weight is None else weight.spec)
        single = x.spec.ndim == 1
        x, target = batched(x, target)
        found = against_labels(x, target, weight, ignore_index, reduction, label_smoothing)
        return REGISTRY["reshape"](found, ()) if single else found

    def reference(
        x, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0
    ):
        dim = 1 if x.ndim > 1 else 0
        m = x.max(dim, keepdims=True)
        log = m + np.log(np.exp(x - m).sum(dim, keepdims=True)) - x
        classes = x.shape[dim]
        w = 1 if weight is None else weight.reshape([-1 if d == dim else 1 for d in range(x.ndim)])
        if target.shape == x.shape:
            soft = target * (1 - label_smoothing) + label_smoothing / classes
            terms = (log * w * soft).sum(dim)
            return terms if reduction == "none" else terms.sum() / (x.size / classes if reduction == "mean" else 1)
        hard = np_labels(log, target, weight, ignore_index, "none")
        even = np.where(target == ignore_index, 0, (log * w).sum(dim) / classes)
        terms = hard * (1 - label_smoothing) + even * label_smoothing
        weights = np.where(
            target == ignore_index, 0, 1.0 if weight is None else weight[np.where(target == ignore_index, 0, target)]
        )
        return terms if reduction == "none" else terms.sum() / (weights.sum() if reduction == "mean" else 1)

    def samples(t):
        labels = np.asarray([0, 4, 2, 1])
        yield case(t(4, 5), labels)
        yield case(t(4, 5), labels, t(5), ignore_index=2, label_smoothing=0.1)
        yield case(t(4, 5, 2), np.asarray([[0, 1]] * 4), reduction="none")
        yield case(t(4, 5), t(4, 5), t(5), reduction="sum", label_smoothing=0.2)
        yield case(t(5), np.asarray(3))
        yield case(t(4, 5), np.asarray([0, 5, 2, 1]), raises=(IndexError, "out of"))


def against_labels(x, target, weight, ignore_index: int, reduction: str, smoothing: float):
    ops = REGISTRY
    log_total = without_dim(log_sum_exp(x, 1), 1)
    terms, weights, ignored = label_terms(
        lambda labels: ops["sub"](log_total, pick_class(x, labels)), target, weight, ignore_index
    )
    if not smoothing:
        return finish_labels(terms, weights, ignored, reduction, weight is not None)
    classes = x.spec.shape[1]
    lines = ops["sub"](ops["reshape"](log_total, (x.spec.shape[0], 1, *x.spec.shape[2:])), x)
    if weight is not None:
        terms = ops["mul"](terms, weights)
        lines = ops["mul"](lines, class_weights(weight, x.spec.ndim))
    even = ops["sum"](lines, 1, False)
    terms = ops["add"](ops["mul"](terms, 1 - smoothing), ops["mul"](even, smoothing / classes))
    return finish_labels(terms, weights, ignored, reduction, False)


def against_probabilities(x, target, weight, reduction: str, smoothing: float):
    ops = REGISTRY
    dim = 1 if x.spec.ndim > 1 else 0
    classes = x.spec.shape[dim]
    if smoothing:
        target = ops["add"](ops["mul"](target, 1 - smoothing), smoothing / classes)
    terms = ops["mul"](ops["sub"](log_sum_exp(x, dim), x), target)
    if weight is not None:
        terms = ops["mul"](terms, class_weights(weight, x.spec.ndim) if dim else weight)
    terms = ops["sum"](terms, dim, False)
    if reduction == "mean":
        return ops["true_divide"](ops["sum"](terms), x.spec.numel // max(classes, 1))
    return reduced(terms, reduction)


# ------------------------------------------------------------------ margins
def check_rows(name: str, x: Spec) -> None:
    if x.ndim > 2 or 0 in x.shape[-1:]:
        raise RuntimeError(
            f"{name}: Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(x.shape)}."
        )


@declare
class multi_margin_loss(Loss):
    """Mean over the other classes of max(0, margin - x[label] + x[class]) ** p, weighed by the label's weight."""

    functions = ("nn.functional.multi_margin_loss",)

    def signature(
        input: Tensor,
        target: Tensor,
        p=1,
        margin=1.0,
        weight: OptionalTensor = None,
        size_average=None,
        reduce=None,
        reduction="mean",
    ): ...

    def body(x, target, p, margin, weight, size_average, reduce, reduction):
        ops, reduction = REGISTRY, chosen("multi_margin_loss", size_average, reduce, reduction)
        check_rows("multi_margin_loss", x.spec)
        if p not in (1, 2):
            raise ValueError(f"multi_margin_loss: only p == 1 and p == 2 supported, got p={p}.")
        classes = x.spec.shape[-1] if x.spec.ndim else 1
        if weight is not None and weight.spec.ndim != 1:
            raise ValueError(f"multi_margin_loss: weight must be one-dimensional, got {list(weight.spec.shape)}.")
        if weight is not None and tuple(weight.spec.shape) != (classes,):
            raise RuntimeError(
                f"multi_margin_loss: inconsistent weight size: expected [{classes}] but got {list(weight.spec.shape)}."
            )
        single = x.spec.ndim < 2
        rows, labels = (ops["reshape"](x, (1, classes)), ops["reshape"](target, (1,))) if single else (x, target)
        if labels.spec.ndim != 1 or labels.spec.shape[0] != rows.spec.shape[0]:
            raise RuntimeError(
                f"multi_margin_loss: inconsistent target size, expected [{rows.spec.shape[0]}] but got {list(target.spec.shape)}."
            )
        column = ops["gather"](rows, 1, ops["reshape"](labels, (rows.spec.shape[0], 1)))
        terms = zero_below(ops["add"](ops["rsub"](column, margin), rows))
        if p == 2:
            terms = ops["square"](terms)
        if weight is not None:
            terms = ops["mul"](terms, ops["reshape"](ops["index"](weight, (labels,)), (rows.spec.shape[0], 1)))
        own = ops["eq"](coordinate(rows, 1), ops["reshape"](labels, (rows.spec.shape[0], 1)))
        terms = ops["true_divide"](ops["sum"](ops["where"](own, 0, terms), 1, False), classes)
        found = reduced(terms, reduction)
        return ops["reshape"](found, tuple(target.spec.shape)) if single and reduction == "none" else found

    def reference(x, target, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
        rows, labels = np.atleast_2d(x), np.reshape(target, -1)
        terms = np.maximum(margin - rows[np.arange(len(rows)), labels][:, None] + rows, 0) ** p
        terms = terms * (1 if weight is None else weight[labels][:, None])
        terms[np.arange(len(rows)), labels] = 0
        return np_reduced(terms.sum(1) / rows.shape[1], reduction)

    def samples(t):
        yield case(t(4, 5), np.asarray([0, 4, 2, 1]))
        yield case(t(4, 5), np.asarray([0, 4, 2, 1]), 2, 0.5, t(5), reduction="none")


@declare
class multilabel_margin_loss(Loss):
    """Sum over labels j and other classes i of max(0, 1 - (x[j] - x[i])), over the count of classes; labels end at the first -1."""

    functions = ("nn.functional.multilabel_margin_loss",)

    def signature(input: Tensor, target: Tensor, size_average=None, reduce=None, reduction="mean"): ...

    def body(x, target, size_average, reduce, reduction):
        ops, reduction = REGISTRY, chosen("multilabel_margin_loss", size_average, reduce, reduction)
        check_rows("multilabel_margin_loss", x.spec)
        if target.spec.shape != x.spec.shape:
            raise RuntimeError(
                f"multilabel_margin_loss: inconsistent target size: {list(target.spec.shape)} for input of size: {list(x.spec.shape)}."
            )
        single = x.spec.ndim < 2
        classes = x.spec.shape[-1] if x.spec.ndim else 1
        rows = ops["reshape"](x, (1, classes)) if single else x
        labels = ops["reshape"](target, (1, classes)) if single else target
        n = rows.spec.shape[0]
        ends = ops["cumsum"](ops["to_dtype"](ops["lt"](labels, 0), labels.spec.dtype), 1)
        valid = ops["reshape"](ops["eq"](ends, 0), (n, classes, 1))
        safe = ops["where"](ops["eq"](ends, 0), labels, 0)
        wide = ops["reshape"](safe, (n, classes, 1))
        line = ops["reshape"](coordinate(rows, 1), (n, 1, classes))
        is_label = ops["any_over"](ops["logical_and"](ops["eq"](wide, line), valid), 1, True)  # [N, 1, C]
        own = ops["reshape"](ops["gather"](rows, 1, safe), (n, classes, 1))
        terms = zero_below(ops["add"](ops["rsub"](own, 1), ops["reshape"](rows, (n, 1, classes))))
        counts = ops["logical_and"](valid, ops["logical_not"](is_label))
        terms = ops["true_divide"](ops["sum"](ops["where"](counts, terms, 0), (1, 2), False), classes)
        found = reduced(terms, reduction)
        return ops["reshape"](found, ()) if single else found

    def reference(x, target, size_average=None, reduce=None, reduction="mean"):
        rows, labels = np.atleast_2d(x), np.atleast_2d(target)
        terms = np.zeros(len(rows))
        for n, (row, line) in enumerate(zip(rows, labels)):
            own = line[: int(np.argmax(line < 0)) if (line < 0).any() else len(line)]
            rest = [i for i in range(len(row)) if i not in own]
            terms[n] = sum(max(0.0, 1 - (row[j] - row[i])) for j in own for i in rest) / len(row)
        return np_reduced(terms if x.ndim > 1 else terms[0], reduction)

    def samples(t):
        yield case(t(2, 4), np.asarray([[3, 0, -1, 1], [1, -1, 0, 2]]))
        yield case(t(4), np.asarray([3, 0, -1, 1]), reduction="sum")


@declare
class multilabel_soft_margin_loss(Loss):
    """Mean over the last dim of the logistic cross entropy against targets 0 and 1."""

    functions = ("nn.functional.multilabel_soft_margin_loss",)

    def signature(
        input: Tensor, target: Tensor, weight: OptionalTensor = None, size_average=None, reduce=None, reduction="mean"
    ): ...

    def body(x, t, weight, size_average, reduce, reduction):
        ops = REGISTRY
        terms = ops["neg"](
            ops["add"](ops["mul"](t, logsigmoid(x)), ops["mul"](ops["rsub"](t, 1), logsigmoid(ops["neg"](x))))
        )
        if weight is not None:
            terms = ops["mul"](terms, weight)
        dim = canonical_dim("multilabel_soft_margin_loss", -1, x.spec.ndim)
        terms = ops["true_divide"](ops["sum"](terms, dim, False), x.spec.shape[-1])
        return reduced(terms, chosen("multilabel_soft_margin_loss", size_average, reduce, reduction))

    def reference(x, t, weight=None, size_average=None, reduce=None, reduction="mean"):
        def log(v):
            return np.minimum(v, 0) - np.log1p(np.exp(-np.abs(v)))

        terms = -(t * log(x) + (1 - t) * log(-x)) * (1 if weight is None else weight)
        return np_reduced(terms.mean(-1), reduction)

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 4), t(3, 4), t(4), reduction="none")
