"""Connectionist temporal classification: the likelihood of label sequences under frame-wise scores, by dynamic programming.

Source: Graves et al., Connectionist Temporal Classification (ICML 2006). Runs on the host over NumPy arrays, all samples of the batch
at a time. May not know: how the engine calls it. Entry: `ctc_terms` (loss per sample), `ctc_loss`.
"""

from __future__ import annotations

from typing import Any

from flambeau.base.lazy import np
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite, External
from flambeau.ir.op import REGISTRY, Refused, declare
from flambeau.operators.batched import front
from flambeau.operators.losses import chosen, reduced
from flambeau.operators.rules import case


# ------------------------------------------------------------------ the recurrences
class _Batch:
    """Labels with blanks between them, [N, 2 S + 1], and what the recurrences need to know about them."""

    def __init__(self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int):
        self.scores = np.asarray(log_probs, np.float64)  # [T, N, C]
        frames, samples, _ = self.scores.shape
        self.frames, self.lengths = np.asarray(input_lengths, np.int64), np.asarray(target_lengths, np.int64)
        longest = int(self.lengths.max(initial=0))
        self.labels = np.full((samples, 2 * longest + 1), blank, np.int64)
        starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]) if targets.ndim == 1 else None
        for n, count in enumerate(self.lengths):
            line = targets[starts[n] : starts[n] + count] if targets.ndim == 1 else targets[n, :count]
            self.labels[n, 1 : 2 * count + 1 : 2] = line
        skips = np.zeros(self.labels.shape, bool)
        skips[:, 2:] = (self.labels[:, 2:] != blank) & (self.labels[:, 2:] != self.labels[:, :-2])
        self.skips, self.samples = skips, np.arange(samples)
        self.emitted = self.scores[:, self.samples[:, None], self.labels]  # [T, N, 2 S + 1]

    def forward(self) -> Any:
        """Log probability of the frames up to t ending in each place, [T, N, 2 S + 1]."""
        alpha = np.full(self.emitted.shape, -np.inf)
        if len(alpha):
            alpha[0, :, :2] = self.emitted[0, :, :2]
            alpha[0, self.lengths == 0, 1:] = -np.inf
        for t in range(1, len(alpha)):
            alpha[t] = self._step(alpha[t - 1], self.skips) + self.emitted[t]
        return alpha

    @staticmethod
    def _step(before: Any, skips: Any) -> Any:
        one, two = np.full(before.shape, -np.inf), np.full(before.shape, -np.inf)
        one[:, 1:], two[:, 2:] = before[:, :-1], before[:, :-2]
        return np.logaddexp(np.logaddexp(before, one), np.where(skips, two, -np.inf))

    def loss(self, alpha: Any) -> Any:
        """Minus the log likelihood of each sample."""
        last = 2 * self.lengths
        end = alpha[self.frames - 1, self.samples] if len(alpha) else np.zeros((len(self.samples), 1))
        whole = end[self.samples, last]
        shorter = np.where(self.lengths > 0, end[self.samples, np.maximum(last - 1, 0)], -np.inf)
        none = np.where(self.lengths > 0, np.inf, 0.0)
        return np.where(self.frames > 0, -np.logaddexp(whole, shorter), none)

    def backward(self) -> Any:
        """Log probability of the frames from t on starting in each place, frame t included."""
        beta = np.full(self.emitted.shape, -np.inf)
        last = 2 * self.lengths
        skips = np.zeros(self.skips.shape, bool)
        skips[:, :-2] = self.skips[:, 2:]
        for t in range(len(beta) - 1, -1, -1):
            if t + 1 < len(beta):
                beta[t] = self._step(beta[t + 1][:, ::-1], skips[:, ::-1])[:, ::-1] + self.emitted[t]
            ending = self.samples[self.frames - 1 == t]
            beta[t, ending] = -np.inf
            beta[t, ending, last[ending]] = self.emitted[t, ending, last[ending]]
            labelled = ending[self.lengths[ending] > 0]
            beta[t, labelled, last[labelled] - 1] = self.emitted[t, labelled, last[labelled] - 1]
        return beta


def ctc_values(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    """Loss per sample."""
    batch = _Batch(log_probs, targets, input_lengths, target_lengths, blank)
    found = batch.loss(batch.forward())
    return np.where(np.isinf(found), 0.0, found) if zero_infinity else found


def ctc_gradient_values(g, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
    """The gradient by the scores, for scores that are log probabilities of one distribution per frame."""
    batch = _Batch(log_probs, targets, input_lengths, target_lengths, blank)
    alpha = batch.forward()
    loss = batch.loss(alpha)
    both = alpha + batch.backward()
    by_class = np.full(batch.scores.shape, -np.inf)
    frames = np.arange(len(alpha))[:, None, None]
    np.logaddexp.at(by_class, (frames, batch.samples[None, :, None], batch.labels[None]), both)
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.exp(batch.scores) - np.exp(by_class + loss[:, None] - batch.scores)
    found = found * np.asarray(g, np.float64)[:, None]
    if zero_infinity:
        found[:, np.isinf(loss)] = 0
    found[np.arange(len(alpha))[:, None] >= batch.frames[None]] = 0
    return found


# ------------------------------------------------------------------ ops
def check_ctc(log_probs: Spec, targets: Spec, input_lengths: Spec, target_lengths: Spec, blank: int) -> None:
    _, samples, classes = log_probs.shape
    for what, s in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if tuple(s.shape) != (samples,):
            raise RuntimeError(
                f"ctc_loss: {what} must be of size batch_size, got {list(s.shape)} for {samples} samples."
            )
    if not 0 <= blank < classes:
        raise RuntimeError(f"ctc_loss: blank must be in label range [0, {classes}), got {blank}.")
    if targets.dtype.kind not in "iu":
        raise RuntimeError(f"ctc_loss: targets must be integral, got {targets.dtype.name}.")
    if targets.ndim not in (1, 2):
        raise RuntimeError(f"ctc_loss: targets must be [N, S] or [sum of lengths], got {list(targets.shape)}.")


@declare
class ctc_gradient(External):
    """The gradient of `ctc_terms` by its scores."""

    functions = ()
    methods = ()

    def signature(
        g: Tensor,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        blank=0,
        zero_infinity=False,
    ): ...

    def meta(op, g, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
        return Spec.of(log_probs.shape, log_probs.dtype, log_probs.device)

    def run(ins, outs, args):
        outs[0][...] = ctc_gradient_values(*ins, *args[5:])

    def batch(size, dims, g, *args):
        log_probs, *rest = merged_samples(size, dims[1:5], *args[:4])
        found = ctc_gradient(
            REGISTRY["reshape"](front(g, dims[0], size), (log_probs.spec.shape[1],)), log_probs, *rest, *args[4:]
        )
        frames, samples, classes = found.spec.shape
        return REGISTRY["reshape"](found, (frames, size, samples // size, classes)), 1

    vjp = Refused("the second derivative of ctc_loss is not derived; PyTorch has none either")

    def reference(g, log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
        return ctc_gradient_values(g, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)

    def samples(t):
        yield case(t(2), *ctc_sample(t))


def normalised(log_probs, *rest) -> tuple:
    """Scores as the gradient takes them: log probabilities of one distribution per frame. For others it is as far off as PyTorch's."""
    return REGISTRY["log_softmax"](log_probs, -1), *rest


def merged_samples(size, dims, log_probs, targets, input_lengths, target_lengths) -> tuple:
    """A batch of batches as one: [B, T, N, C] becomes [T, B N, C], labels and lengths [B, N, ...] become [B N, ...]."""
    ops = REGISTRY
    scores = ops["permute"](front(log_probs, dims[0], size), (1, 0, 2, 3))
    frames, _, samples, classes = scores.spec.shape
    lines = [front(x, d, size) for x, d in zip((targets, input_lengths, target_lengths), dims[1:])]
    flat = [ops["reshape"](x, (size * x.spec.shape[1], *x.spec.shape[2:])) for x in lines]
    return ops["reshape"](scores, (frames, size * samples, classes)), *flat


def ctc_sample(t) -> tuple:
    return t(5, 2, 4), np.asarray([[1, 2], [3, 3]]), np.asarray([5, 4]), np.asarray([2, 2])


@declare
class ctc_terms(External):
    """CTC losses per sample of scores [T, N, C] and labels [N, S] (or all of them in one row)."""

    functions = ()
    methods = ()
    prepared = normalised

    def signature(
        log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank=0, zero_infinity=False
    ): ...

    def meta(op, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
        check_ctc(log_probs, targets, input_lengths, target_lengths, blank)
        return Spec.of(log_probs.shape[1:2], log_probs.dtype, log_probs.device)

    def run(ins, outs, args):
        outs[0][...] = ctc_values(*ins, *args[4:])

    def jvp(tangents, out, log_probs, *rest):
        ones = REGISTRY["full"](tuple(out.spec.shape), 1, dtype=out.spec.dtype, device=out.spec.device)
        return REGISTRY["sum"](REGISTRY["mul"](ctc_gradient(ones, log_probs, *rest), tangents[0]), (0, 2))

    def batch(size, dims, *args):
        found = ctc_terms(*merged_samples(size, dims[:4], *args[:4]), *args[4:])
        return REGISTRY["reshape"](found, (size, found.spec.shape[0] // size)), 0

    def vjp(g, out, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
        return (
            ctc_gradient(g, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity),
            None,
            None,
            None,
        )

    def reference(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
        return ctc_values(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)

    def samples(t):
        yield case(*ctc_sample(t))


@declare
class ctc_loss(Composite):
    """CTC loss of log probabilities [T, N, C] (or [T, C]): the mean is over samples, each divided by its number of labels."""

    functions = ()
    methods = ()
    prepared = normalised

    def signature(
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        blank=0,
        reduction="mean",
        zero_infinity=False,
    ): ...

    def body(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity):
        ops, reduction = REGISTRY, chosen("ctc_loss", None, None, reduction)
        single = log_probs.spec.ndim == 2
        if single:
            frames, classes = log_probs.spec.shape
            log_probs = ops["reshape"](log_probs, (frames, 1, classes))
            input_lengths, target_lengths = ops["reshape"](input_lengths, (1,)), ops["reshape"](target_lengths, (1,))
        terms = ctc_terms(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
        if reduction == "mean":
            counts = ops["to_dtype"](ops["clamp_min"](target_lengths, 1), terms.spec.dtype)
            return ops["mean"](ops["true_divide"](terms, counts))
        return ops["reshape"](terms, ()) if single and reduction == "none" else reduced(terms, reduction)

    def reference(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
        found = ctc_values(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
        return (
            (found / np.maximum(target_lengths, 1)).mean()
            if reduction == "mean"
            else found.sum()
            if reduction == "sum"
            else found
        )

    def samples(t):
        yield case(*ctc_sample(t))
        yield case(*ctc_sample(t), reduction="sum")
