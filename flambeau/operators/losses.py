"""Losses of predictions against targets of the same shape: each a pointwise term and its mean, fused into one kernel.

    mse_loss(input, target)                          # the mean of squared differences
    binary_cross_entropy_with_logits(x, t, reduction="none")

May not know: how kernels are fused. Entry: the ops; `reduced` for what `reduction` means. Class labels: `losses_class`.
"""

from __future__ import annotations

import math

from flambeau.base.lazy import np
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import case, sum_to

REDUCTIONS = ("none", "mean", "sum")


def chosen(name: str, size_average, reduce, reduction: str, allowed=REDUCTIONS) -> str:
    """The reduction that the (deprecated) flags and the name ask for. Raises: ValueError for an unknown name."""
    if size_average is not None or reduce is not None:
        size_average = True if size_average is None else size_average
        reduce = True if reduce is None else reduce
        return ("mean" if size_average else "sum") if reduce else "none"
    if reduction not in allowed:
        raise ValueError(
            f"{name}: reduction must be one of {', '.join(allowed)}, got {reduction!r} ({reduction} is not a valid value for reduction)."
        )
    return reduction


def reduced(x, reduction: str):
    """All terms, their mean or their sum."""
    return x if reduction == "none" else REGISTRY[reduction](x)


def weighted(x, weight, reduction: str):
    """Terms times weights; the mean is over the sum of the weights."""
    if weight is None:
        return reduced(x, reduction)
    x = REGISTRY["mul"](x, weight)
    if reduction == "mean":
        return REGISTRY["true_divide"](REGISTRY["sum"](x), REGISTRY["sum"](weight))
    return reduced(x, reduction)


def check_weight(name: str, x, weight) -> None:
    if weight is not None and weight.spec.shape != x.spec.shape:
        raise ValueError(
            f"{name}: Weights and input must have the same size, got {list(weight.spec.shape)} and {list(x.spec.shape)}."
        )


def zero_below(x):
    """max(x, 0)."""
    return REGISTRY["clamp_min"](x, 0)


def difference(x, y):
    return REGISTRY["sub"](x, y)


class Loss(Composite):
    """Shared by the losses: functions of `nn.functional`, no methods."""

    methods = ()


def np_reduced(x, reduction: str):
    return x if reduction == "none" else getattr(np, reduction)(x)


# ------------------------------------------------------------------ regression
class Regression(Loss):
    def signature(
        input: Tensor, target: Tensor, size_average=None, reduce=None, reduction="mean", weight: OptionalTensor = None
    ): ...

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 4), t(3, 4), reduction="none")
        yield case(t(3, 4), t(4), reduction="sum")
        yield case(t(3), t(3), reduction="median", raises=(ValueError, "not a valid value for reduction"))


@declare
class mse_loss(Regression):
    """Squared differences: their mean, sum, or all of them."""

    functions = ("nn.functional.mse_loss",)

    def body(x, t, size_average, reduce, reduction, weight):
        check_weight("mse_loss", x, weight)
        return weighted(
            REGISTRY["square"](difference(x, t)), weight, chosen("mse_loss", size_average, reduce, reduction)
        )

    def reference(x, t, size_average=None, reduce=None, reduction="mean", weight=None):
        return np_reduced((x - t) ** 2, reduction)


@declare
class l1_loss(Regression):
    """Absolute differences: their mean, sum, or all of them."""

    functions = ("nn.functional.l1_loss",)

    def body(x, t, size_average, reduce, reduction, weight):
        check_weight("l1_loss", x, weight)
        return weighted(REGISTRY["abs"](difference(x, t)), weight, chosen("l1_loss", size_average, reduce, reduction))

    def reference(x, t, size_average=None, reduce=None, reduction="mean", weight=None):
        return np_reduced(np.abs(x - t), reduction)


@declare
class smooth_l1_loss(Loss):
    """|d| - beta / 2 where |d| >= beta, d^2 / (2 beta) below."""

    functions = ("nn.functional.smooth_l1_loss",)

    def signature(input: Tensor, target: Tensor, size_average=None, reduce=None, reduction="mean", beta=1.0): ...

    def body(x, t, size_average, reduce, reduction, beta):
        ops, reduction = REGISTRY, chosen("smooth_l1_loss", size_average, reduce, reduction)
        if beta < 0:
            raise RuntimeError(f"smooth_l1_loss: does not support negative values for beta, got {beta}.")
        d = ops["abs"](difference(x, t))
        if beta == 0:
            return reduced(d, reduction)
        near = ops["mul"](ops["square"](d), 0.5 / beta)
        return reduced(ops["where"](ops["lt"](d, beta), near, ops["sub"](d, 0.5 * beta)), reduction)

    def reference(x, t, size_average=None, reduce=None, reduction="mean", beta=1.0):
        d = np.abs(x - t)
        return np_reduced(np.where(d < beta, d * d / 2 / beta, d - beta / 2) if beta else d, reduction)

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 4), t(3, 4), reduction="none", beta=0.3)
        yield case(t(3, 4), t(3, 4), beta=0.0)
        yield case(t(3), t(3), beta=-1.0, raises=(RuntimeError, "negative values for beta"))


@declare
class huber_loss(Loss):
    """d^2 / 2 where |d| <= delta, delta (|d| - delta / 2) beyond."""

    functions = ("nn.functional.huber_loss",)

    def signature(input: Tensor, target: Tensor, reduction="mean", delta=1.0, weight: OptionalTensor = None): ...

    def body(x, t, reduction, delta, weight):
        ops, reduction = REGISTRY, chosen("huber_loss", None, None, reduction)
        check_weight("huber_loss", x, weight)
        if delta <= 0:
            raise RuntimeError(f"huber_loss: does not support non-positive values for delta, got {delta}.")
        d = ops["abs"](difference(x, t))
        near, far = ops["mul"](ops["square"](d), 0.5), ops["mul"](ops["sub"](d, 0.5 * delta), delta)
        return weighted(ops["where"](ops["le"](d, delta), near, far), weight, reduction)

    def reference(x, t, reduction="mean", delta=1.0, weight=None):
        d = np.abs(x - t)
        return np_reduced(np.where(d <= delta, d * d / 2, delta * (d - delta / 2)), reduction)

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 4), t(3, 4), reduction="sum", delta=0.3)
        yield case(t(3), t(3), delta=0.0, raises=(RuntimeError, "non-positive values for delta"))


# ------------------------------------------------------------------ binary
def logsigmoid(x):
    """log of the logistic function, without overflow."""
    ops = REGISTRY
    return ops["sub"](ops["clamp_max"](x, 0), ops["log1p"](ops["exp"](ops["neg"](ops["abs"](x)))))


def logistic(x):
    ops = REGISTRY
    return ops["reciprocal"](ops["add"](ops["exp"](ops["neg"](x)), 1))


def same_shape(name: str, x, t) -> None:
    if x.spec.shape != t.spec.shape:
        raise ValueError(
            f"{name}: Using a target size ({list(t.spec.shape)}) that is different to the input size ({list(x.spec.shape)}): they must be the same. "
            f"Reshape one."
        )


@declare
class binary_cross_entropy_terms(Composite):
    """-(t log x + (1 - t) log(1 - x)) with logarithms cut off at -100."""

    functions = ()
    methods = ()

    def signature(input: Tensor, target: Tensor): ...

    def body(x, t):
        ops = REGISTRY
        yes, no = ops["clamp_min"](ops["log"](x), -100), ops["clamp_min"](ops["log1p"](ops["neg"](x)), -100)
        return ops["sub"](ops["mul"](ops["sub"](t, 1), no), ops["mul"](t, yes))

    def vjp(g, out, x, t):
        ops = REGISTRY
        flat = ops["clamp_min"](ops["mul"](ops["rsub"](x, 1), x), 1e-12)
        left = ops["true_divide"](ops["mul"](g, ops["sub"](x, t)), flat)
        return left, ops["mul"](g, ops["sub"](ops["log"](ops["rsub"](x, 1)), ops["log"](x)))

    def reference(x, t):
        return -(t * np.maximum(np.log(x), -100) + (1 - t) * np.maximum(np.log1p(-x), -100))

    def samples(t):
        yield case(logistic_samples(t(3, 4)), t(3, 4))


def logistic_samples(x):
    """Sample values brought into (0, 1)."""
    return logistic(x) if hasattr(x, "spec") else 1 / (1 + np.exp(-x))


@declare
class binary_cross_entropy(Loss):
    """Cross entropy of probabilities against targets in [0, 1].

    Raises: ValueError for another target shape. The logarithm is cut off at -100.
    """

    functions = ("nn.functional.binary_cross_entropy",)

    def signature(
        input: Tensor, target: Tensor, weight: OptionalTensor = None, size_average=None, reduce=None, reduction="mean"
    ): ...

    def body(x, t, weight, size_average, reduce, reduction):
        same_shape("binary_cross_entropy", x, t)
        terms = binary_cross_entropy_terms(x, t)
        if weight is not None:
            terms = REGISTRY["mul"](terms, weight)
        return reduced(terms, chosen("binary_cross_entropy", size_average, reduce, reduction))

    def reference(x, t, weight=None, size_average=None, reduce=None, reduction="mean"):
        return np_reduced(
            binary_cross_entropy_terms.rules.reference(x, t) * (1 if weight is None else weight), reduction
        )

    def samples(t):
        yield case(logistic_samples(t(3, 4)), t(3, 4))
        yield case(logistic_samples(t(3, 4)), t(3, 4), t(4), reduction="none")
        yield case(logistic_samples(t(3)), t(4), raises=(ValueError, "target size"))


@declare
class binary_logits_terms(Composite):
    """Cross entropy of logistic(x) against t, term by term: (1 - t) x - (1 + (p - 1) t) log logistic(x)."""

    functions = ()
    methods = ()

    def signature(input: Tensor, target: Tensor, pos_weight: OptionalTensor = None): ...

    def body(x, t, p):
        ops = REGISTRY
        return ops["sub"](ops["mul"](ops["rsub"](t, 1), x), ops["mul"](log_weight(t, p), logsigmoid(x)))

    def vjp(g, out, x, t, p):
        ops = REGISTRY
        slope = ops["rsub"](logistic(x), 1)
        left = ops["mul"](g, ops["sub"](ops["rsub"](t, 1), ops["mul"](log_weight(t, p), slope)))
        if p is None:
            return sum_to(left, x), sum_to(ops["neg"](ops["mul"](g, x)), t), None
        log = logsigmoid(x)
        middle = ops["neg"](ops["mul"](g, ops["add"](x, ops["mul"](ops["sub"](p, 1), log))))
        return sum_to(left, x), sum_to(middle, t), sum_to(ops["neg"](ops["mul"](g, ops["mul"](t, log))), p)

    def reference(x, t, p=None):
        log = np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))
        return (1 - t) * x - (1 if p is None else (p - 1) * t + 1) * log

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 4), t(3, 4), t(4))


def log_weight(t, p):
    """What the logarithm is multiplied by."""
    if p is None:
        return 1
    return REGISTRY["add"](REGISTRY["mul"](REGISTRY["sub"](p, 1), t), 1)


@declare
class binary_cross_entropy_with_logits(Loss):
    """Cross entropy of the logistic function of the input against targets; `pos_weight` weighs the positive class.

    Raises: ValueError for another target shape.
    """

    functions = ("nn.functional.binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits")

    def signature(
        input: Tensor,
        target: Tensor,
        weight: OptionalTensor = None,
        size_average=None,
        reduce=None,
        reduction="mean",
        pos_weight: OptionalTensor = None,
    ): ...

    def body(x, t, weight, size_average, reduce, reduction, pos_weight):
        same_shape("binary_cross_entropy_with_logits", x, t)
        terms = binary_logits_terms(x, t, pos_weight)
        if weight is not None:
            terms = REGISTRY["mul"](terms, weight)
        return reduced(terms, chosen("binary_cross_entropy_with_logits", size_average, reduce, reduction))

    def reference(x, t, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None):
        return np_reduced(
            binary_logits_terms.rules.reference(x, t, pos_weight) * (1 if weight is None else weight), reduction
        )

    def samples(t):
        yield case(t(3, 4), t(3, 4))
        yield case(t(3, 4), t(3, 4), t(4), reduction="none", pos_weight=t(4))
        yield case(t(3), t(4), raises=(ValueError, "must be the same"))


@declare
class soft_margin_loss(Loss):
    """log(1 + exp(-t x)) for targets 1 and -1."""

    functions = ("nn.functional.soft_margin_loss",)

    def signature(input: Tensor, target: Tensor, size_average=None, reduce=None, reduction="mean"): ...

    def body(x, t, size_average, reduce, reduction):
        terms = REGISTRY["neg"](logsigmoid(REGISTRY["mul"](t, x)))
        return reduced(terms, chosen("soft_margin_loss", size_average, reduce, reduction))

    def reference(x, t, size_average=None, reduce=None, reduction="mean"):
        return np_reduced(np.log1p(np.exp(-t * x)), reduction)

    def samples(t):
        yield case(t(3, 4), t(3, 4))


@declare
class hinge_embedding_loss(Loss):
    """x where the target is 1, max(0, margin - x) where it is -1."""

    functions = ("nn.functional.hinge_embedding_loss", "hinge_embedding_loss")

    def signature(input: Tensor, target: Tensor, margin=1.0, size_average=None, reduce=None, reduction="mean"): ...

    def body(x, t, margin, size_average, reduce, reduction):
        ops = REGISTRY
        near = ops["where"](ops["ne"](t, 1), zero_below(ops["rsub"](x, margin)), 0.0)
        far = ops["where"](ops["ne"](t, -1), x, 0.0)
        return reduced(ops["add"](near, far), chosen("hinge_embedding_loss", size_average, reduce, reduction))

    def reference(x, t, margin=1.0, size_average=None, reduce=None, reduction="mean"):
        return np_reduced(np.where(t != 1, np.maximum(margin - x, 0), 0) + np.where(t != -1, x, 0), reduction)

    def samples(t):
        yield case(t(3, 4), t(3, 4))


@declare
class margin_ranking_loss(Loss):
    """max(0, margin - target (input1 - input2))."""

    functions = ("nn.functional.margin_ranking_loss", "margin_ranking_loss")

    def signature(
        input1: Tensor, input2: Tensor, target: Tensor, margin=0, size_average=None, reduce=None, reduction="mean"
    ): ...

    def body(x, y, t, margin, size_average, reduce, reduction):
        ops = REGISTRY
        if not x.spec.ndim == y.spec.ndim == t.spec.ndim:
            raise RuntimeError(
                f"margin_ranking_loss: All input tensors should have same dimension but got sizes: input1: {list(x.spec.shape)}, input2: "
                f"{list(y.spec.shape)}, target: {list(t.spec.shape)}."
            )
        terms = zero_below(ops["rsub"](ops["mul"](t, ops["sub"](x, y)), margin))
        return reduced(terms, chosen("margin_ranking_loss", size_average, reduce, reduction))

    def reference(x, y, t, margin=0, size_average=None, reduce=None, reduction="mean"):
        return np_reduced(np.maximum(margin - t * (x - y), 0), reduction)

    def samples(t):
        yield case(t(5), t(5), t(5), 0.5)
        yield case(t(5), t(5, 1), t(5), raises=(RuntimeError, "same dimension"))


# ------------------------------------------------------------------ likelihoods
@declare
class kl_div(Loss):
    """target (log target - input): Kullback-Leibler divergence, the input given as logarithms. "batchmean" divides by the first size."""

    functions = ("nn.functional.kl_div", "kl_div")

    def signature(
        input: Tensor, target: Tensor, size_average=None, reduce=None, reduction="mean", log_target=False
    ): ...

    def body(x, t, size_average, reduce, reduction, log_target):
        ops, reduction = REGISTRY, chosen("kl_div", size_average, reduce, reduction, (*REDUCTIONS, "batchmean"))
        if log_target:
            terms = ops["mul"](ops["exp"](t), ops["sub"](t, x))
        else:
            terms = ops["sub"](ops["xlogy"](t, t), ops["mul"](t, x))
        if reduction == "batchmean":
            return ops["true_divide"](ops["sum"](terms), x.spec.shape[0] if x.spec.ndim else 1)
        return reduced(terms, reduction)

    def reference(x, t, size_average=None, reduce=None, reduction="mean", log_target=False):
        terms = np.exp(t) * (t - x) if log_target else np.where(t > 0, t * np.log(np.where(t > 0, t, 1)), 0) - t * x
        return terms.sum() / len(x) if reduction == "batchmean" else np_reduced(terms, reduction)

    def samples(t):
        yield case(t(3, 4), logistic_samples(t(3, 4)))
        yield case(t(3, 4), t(3, 4), reduction="batchmean", log_target=True)


@declare
class poisson_nll_loss(Loss):
    """Negative log likelihood of Poisson counts: exp(x) - t x, or x - t log(x + eps) without `log_input`; `full` adds Stirling's term."""

    functions = ("nn.functional.poisson_nll_loss", "poisson_nll_loss")

    def signature(
        input: Tensor,
        target: Tensor,
        log_input=True,
        full=False,
        size_average=None,
        eps=1e-8,
        reduce=None,
        reduction="mean",
    ): ...

    def body(x, t, log_input, full, size_average, eps, reduce, reduction):
        ops = REGISTRY
        if log_input:
            terms = ops["sub"](ops["exp"](x), ops["mul"](t, x))
        else:
            terms = ops["sub"](x, ops["mul"](t, ops["log"](ops["add"](x, eps))))
        if full:
            few = ops["le"](t, 1)
            n = ops["where"](few, 1.0, t)  # the branch not taken must not have NaN gradients
            stirling = ops["add"](
                ops["sub"](ops["mul"](n, ops["log"](n)), n), ops["mul"](ops["log"](ops["mul"](n, 2 * math.pi)), 0.5)
            )
            terms = ops["add"](terms, ops["where"](few, 0.0, stirling))
        return reduced(terms, chosen("poisson_nll_loss", size_average, reduce, reduction))

    def reference(x, t, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction="mean"):
        terms = np.exp(x) - t * x if log_input else x - t * np.log(x + eps)
        if full:
            safe = np.where(t > 1, t, 2)
            terms = terms + np.where(t > 1, safe * np.log(safe) - safe + 0.5 * np.log(2 * np.pi * safe), 0)
        return np_reduced(terms, reduction)

    def samples(t):
        yield case(t(3, 4), t(3, 4), full=True)
        yield case(logistic_samples(t(3, 4)), t(3, 4), log_input=False)


@declare
class floored(Composite):
    """max(x, least), whose gradient is that of x everywhere."""

    functions = ()
    methods = ()

    def signature(input: Tensor, least): ...

    def body(x, least):
        return REGISTRY["clamp_min"](x, least)

    def vjp(g, out, x, least):
        return (g,)

    def reference(x, least):
        return np.maximum(x, least)

    def samples(t):
        yield case(t(5), -10.0)


@declare
class gaussian_nll_loss(Loss):
    """Negative log likelihood of normal variables with the given variances, (log var + (x - t)^2 / var) / 2.

    `var` may lack the last dim or have it of size 1. Raises: ValueError for another shape.
    """

    functions = ("nn.functional.gaussian_nll_loss",)

    def signature(input: Tensor, target: Tensor, var: Tensor, full=False, eps=1e-6, reduction="mean"): ...

    def body(x, t, var, full, eps, reduction):
        ops, reduction = REGISTRY, chosen("gaussian_nll_loss", None, None, reduction)
        shape, given = tuple(x.spec.shape), tuple(var.spec.shape)
        if given != shape:
            if given == shape[:-1]:
                var = ops["reshape"](var, (*given, 1))
            elif not (len(given) <= len(shape) and all(m in (1, n) for m, n in zip(given[::-1], shape[::-1]))):
                raise ValueError(
                    f"gaussian_nll_loss: var is of incorrect size: it must broadcast to the input {list(shape)}, got {list(given)}."
                )
        var = floored(var, eps)
        terms = ops["mul"](ops["add"](ops["log"](var), ops["true_divide"](ops["square"](ops["sub"](x, t)), var)), 0.5)
        if full:
            terms = ops["add"](terms, 0.5 * math.log(2 * math.pi))
        return reduced(terms, reduction)

    def reference(x, t, var, full=False, eps=1e-6, reduction="mean"):
        var = np.maximum(var[..., None] if var.ndim < x.ndim else var, eps)
        return np_reduced(
            0.5 * (np.log(var) + (x - t) ** 2 / var) + (0.5 * np.log(2 * np.pi) if full else 0), reduction
        )

    def samples(t):
        yield case(t(3, 4), t(3, 4), logistic_samples(t(3, 4)))
        yield case(t(3, 4), t(3, 4), logistic_samples(t(3)), True)
        yield case(t(3, 4), t(3, 4), logistic_samples(t(2)), raises=(ValueError, "incorrect size"))
