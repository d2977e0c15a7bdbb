"""Poisson and binomial numbers: inversion for small means, transformed rejection for large ones.

Each lane loops until it has accepted a number; try t of element i draws from Philox's counter i + t * 2**48, so a number depends on its
place alone, as in `operators/random.py`. All arithmetic is float64.

Source: Hörmann, "The transformed rejection method for generating Poisson random variables" (1993), algorithm PTRS; "The generation of
binomial random variates" (1993), algorithm BTRS.
May not know: generators.
"""

from __future__ import annotations

import math

from flambeau.base.lazy import np
from flambeau.core.dtype import float64, int64
from flambeau.core.layout import broadcast_shapes
from flambeau.core.spec import Spec
from flambeau.ir.kinds import NOT_DIFFERENTIABLE, Pointwise
from flambeau.ir.op import declare
from flambeau.kernel import philox, vmath
from flambeau.kernel.types import f64, i1, i64
from flambeau.operators.rules import case

TRY_SHIFT = 48  # bits of an element's index in the counter; tries are above
MOST_STEPS = 1000  # of an inversion: means are below 10 there
SMALL_MEAN = 10.0


class _Lanes:
    """Values of every lane that are set once each, in a loop of tries."""

    def __init__(self, k, index, seed, offset):
        self.k, self.index, self.seed, self.offset = k, index, seed, offset
        self.type = f64.vec(index.type.lanes)
        self.result = k.var(self.type, k.const(self.type, 0.0))

    def uniforms(self, attempt):
        """Two numbers in [0, 1) and (0, 1] for a try."""
        k = self.k
        where = self.index + k.splat(attempt << TRY_SHIFT, self.index.type.lanes)
        words = philox.philox(k, where, self.offset, self.seed)
        return philox.uniform(k, philox.wide(*words[:2]), f64), philox.uniform_above_zero(
            k, philox.wide(*words[2:]), f64
        )

    def invert(self, wanted, first, following):
        """Sequential search in the lanes `wanted`: `first` is the probability of 0, `following(n, p)` that of n from that of n - 1."""
        k = self.k
        u, _ = self.uniforms(k.const(i64, 0))
        active = k.var(i1.like(self.type), wanted & (u >= first))
        n, p, total = (k.var(self.type, v) for v in (k.const(self.type, 0.0), first, first))
        steps = k.var(i64, 0)
        with k.loop_while(lambda: k.any(active.get()) & (steps.get() < MOST_STEPS)):
            steps.set(steps.get() + 1)
            on = active.get()
            n.set(k.select(on, n.get() + 1.0, n.get()))
            p.set(k.select(on, following(n.get(), p.get()), p.get()))
            total.set(k.select(on, total.get() + p.get(), total.get()))
            active.set(on & (u >= total.get()))
        self.result.set(k.select(wanted, n.get(), self.result.get()))

    def reject(self, wanted, propose):
        """Tries in the lanes `wanted`: `propose(u, v)` -> (number, accepted)."""
        k = self.k
        active, attempt = k.var(i1.like(self.type), wanted), k.var(i64, 1)
        with k.loop_while(lambda: k.any(active.get())):
            number, accepted = propose(*self.uniforms(attempt.get()))
            on = active.get()
            self.result.set(k.select(on & accepted, number, self.result.get()))
            active.set(on & ~accepted)
            attempt.set(attempt.get() + 1)


def log_factorial(k, n):
    """log(n!) of whole n >= 0."""
    return vmath.lgamma(k, n + 1.0)


def hat(k, u, a, b, centre):
    """(proposal, |u| from the edge) of both rejections."""
    u = u - 0.5
    edge = 0.5 - k.math("fabs", u)
    return vmath.floor(k, (2.0 * a / edge + b) * u + centre), edge


@declare
class random_poisson(Pointwise):
    """Poisson numbers with rates `input`; NaN for rates below 0. Dtypes: floats, kept."""

    functions = ()
    methods = ()
    in_place = False
    random = True
    positional = True
    expensive = True
    vjp = NOT_DIFFERENTIABLE

    def signature(input: Tensor, seed: Operand, offset: Operand): ...

    def meta(op, input, seed, offset):
        if not input.dtype.is_floating_point:
            raise RuntimeError(
                f"poisson: the input must be floating point (not implemented for {input.dtype.name}). Convert it with .to(float32)."
            )
        return Spec.of(input.shape, input.dtype, input.device)

    def types(operands, args):
        return (float64, int64, int64), args[0].dtype

    def lower(k, rate, seed, offset, index):
        lanes = _Lanes(k, index, seed, offset)
        valid = rate >= 0.0
        small = valid & (rate < SMALL_MEAN)
        lanes.invert(small, vmath.exp(k, -rate), lambda n, p: p * rate / n)
        b = vmath.sqrt(k, rate) * 2.53 + 0.931
        a = b * 0.02483 - 0.059
        inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
        log_rate = vmath.log(k, rate)

        def propose(u, v):
            n, edge = hat(k, u, a, b, rate + 0.43)
            quick = (edge >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2.0))
            inside = (n >= 0.0) & ((edge >= 0.013) | (v <= edge))
            bound = n * log_rate - rate - log_factorial(k, k.maximum(n, 0.0))
            return n, quick | (inside & (vmath.log(k, v * inverse_alpha / (a / (edge * edge) + b)) <= bound))

        lanes.reject(valid & (rate >= SMALL_MEAN) & (rate < float("inf")), propose)
        return k.select(valid, lanes.result.get(), float("nan"))

    def reference(input, seed, offset):
        return _by_element(input, seed, offset, lambda draw, rate: _poisson(draw, float(rate)))

    def samples(t):
        yield case(abs(t(5)), 1, 0)
        yield case(abs(t(3, 4)) * 20, 2, 7)
        yield case(t(0), 1, 0)


@declare
class random_binomial(Pointwise):
    """Numbers of successes in `count` tries of probability `prob`; NaN where these make no sense. Dtypes: floats, that of `count`."""

    functions = ()
    methods = ()
    in_place = False
    random = True
    positional = True
    expensive = True
    vjp = NOT_DIFFERENTIABLE

    def signature(count: Tensor, prob: Tensor, seed: Operand, offset: Operand): ...

    def meta(op, count, prob, seed, offset):
        if not count.dtype.is_floating_point or not prob.dtype.is_floating_point:
            raise RuntimeError(
                f"binomial: count and prob must be floating point, got {count.dtype.name} and {prob.dtype.name}. Convert them."
            )
        return Spec.of(broadcast_shapes("binomial", count.shape, prob.shape), count.dtype, count.device)

    def types(operands, args):
        return (float64, float64, int64, int64), args[0].dtype

    def lower(k, count, prob, seed, offset, index):
        lanes = _Lanes(k, index, seed, offset)
        valid = (count >= 0.0) & (prob >= 0.0) & (prob <= 1.0)
        swapped = prob > 0.5
        q = k.select(swapped, 1.0 - prob, prob)
        odds = q / (1.0 - q)
        small = count * q < SMALL_MEAN
        none = vmath.exp(k, count * vmath.log1p(k, -q))
        lanes.invert(valid & small, none, lambda n, p: k.maximum(p * (count - n + 1.0) * odds / n, 0.0))
        spread = vmath.sqrt(k, count * q * (1.0 - q))
        b = spread * 2.53 + 1.15
        a = b * 0.0248 - 0.0873 + q * 0.01
        alpha = (2.83 + 5.1 / b) * spread
        mode = vmath.floor(k, (count + 1.0) * q)
        top = log_factorial(k, mode) + log_factorial(k, k.maximum(count - mode, 0.0))
        log_odds = vmath.log(k, odds)

        def propose(u, v):
            n, edge = hat(k, u, a, b, count * q + 0.5)
            inside = (n >= 0.0) & (n <= count)
            quick = (edge >= 0.07) & (v <= 0.92 - 4.2 / b)
            held = k.minimum(k.maximum(n, 0.0), count)
            bound = top - log_factorial(k, held) - log_factorial(k, count - held) + (held - mode) * log_odds
            return n, inside & (quick | (vmath.log(k, v * alpha / (a / (edge * edge) + b)) <= bound))

        lanes.reject(valid & ~small & (count < float("inf")), propose)
        n = lanes.result.get()
        return k.select(valid, k.select(swapped, count - n, n), float("nan"))

    def reference(count, prob, seed, offset):
        count, prob = np.broadcast_arrays(count, prob)
        return _by_element(count, seed, offset, lambda draw, n, p: _binomial(draw, float(n), float(p)), prob)

    def samples(t):
        yield case(t(5) * 0 + 9, abs(t(5)) / 4, 1, 0)
        yield case(t(6) * 0 + 80, abs(t(6)) / 4, 3, 1)


# ------------------------------------------------------------------ the same in Python, element by element
def _by_element(input, seed, offset, make, *others):
    out = np.empty(input.shape, input.dtype)
    flat = [np.ravel(x) for x in (input, *others)]
    for i in range(input.size):
        out.reshape(-1)[i] = make(_draws(i, seed, offset), *(x[i] for x in flat))
    return out


def _draws(index, seed, offset):
    def draw(attempt):
        words = [int(w) for w in _words_at(index + (attempt << TRY_SHIFT), seed, offset)]
        wide = [(words[0] << 32 | words[1]) >> 11, (words[2] << 32 | words[3]) >> 11]
        return wide[0] * 2.0**-53, (wide[1] + 1) * 2.0**-53

    return draw


def _words_at(index, seed, offset):
    low = 0xFFFFFFFF
    offset, seed = offset & (2**64 - 1), seed & (2**64 - 1)
    c = [index & low, index >> 32, offset & low, offset >> 32]
    k0, k1 = seed & low, seed >> 32
    for _ in range(philox.ROUNDS):
        p0, p1 = c[0] * philox.MULTIPLIER_0, c[2] * philox.MULTIPLIER_1
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & low, (p0 >> 32) ^ c[3] ^ k1, p0 & low]
        k0, k1 = (k0 + philox.STEP_0) & low, (k1 + philox.STEP_1) & low
    return c


def _invert(draw, first, following):
    u, _ = draw(0)
    n, p, total = 0, first, first
    while u >= total and n < MOST_STEPS:
        n += 1
        p = following(n, p)
        total += p
    return n


def _propose(draw, attempt, a, b, centre):
    u, v = draw(attempt)
    edge = 0.5 - abs(u - 0.5)
    return math.floor((2 * a / edge + b) * (u - 0.5) + centre), edge, v


def _poisson(draw, rate):
    if rate < SMALL_MEAN:
        return _invert(draw, math.exp(-rate), lambda n, p: p * rate / n)
    b = math.sqrt(rate) * 2.53 + 0.931
    a = b * 0.02483 - 0.059
    attempt = 0
    while True:
        attempt += 1
        n, edge, v = _propose(draw, attempt, a, b, rate + 0.43)
        if edge >= 0.07 and v <= 0.9277 - 3.6224 / (b - 2):
            return n
        if n >= 0 and (edge >= 0.013 or v <= edge):
            if math.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / edge**2 + b)) <= n * math.log(
                rate
            ) - rate - math.lgamma(n + 1):
                return n


def _binomial(draw, count, prob):
    q = min(prob, 1 - prob)
    odds = q / (1 - q)
    if count * q < SMALL_MEAN:
        n = _invert(draw, math.exp(count * math.log1p(-q)), lambda n, p: max(p * (count - n + 1) * odds / n, 0.0))
        return count - n if prob > 0.5 else n
    spread = math.sqrt(count * q * (1 - q))
    b = spread * 2.53 + 1.15
    a = b * 0.0248 - 0.0873 + q * 0.01
    mode = math.floor((count + 1) * q)
    attempt = 0
    while True:
        attempt += 1
        n, edge, v = _propose(draw, attempt, a, b, count * q + 0.5)
        if not 0 <= n <= count:
            continue
        bound = (
            math.lgamma(mode + 1)
            + math.lgamma(count - mode + 1)
            - math.lgamma(n + 1)
            - math.lgamma(count - n + 1)
            + (n - mode) * math.log(odds)
        )
        if edge >= 0.07 and v <= 0.92 - 4.2 / b or math.log(v * (2.83 + 5.1 / b) * spread / (a / edge**2 + b)) <= bound:
            return count - n if prob > 0.5 else n
