"""L-BFGS with an optional line search.

Source: Nocedal and Wright, Numerical Optimization (2006): algorithms 7.4 (two loops), 3.5 and 3.6 (strong Wolfe conditions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.ir.op import REGISTRY
from flambeau.optim.optimizer import Optimizer, check_lr, zeros_like
from flambeau.tape.grad_mode import enable_grad, no_grad

__all__ = ["LBFGS"]


def cubic_minimum(
    x1: float, f1: float, g1: float, x2: float, f2: float, g2: float, bounds: tuple[float, float] | None = None
) -> float:
    """Where the cubic through two points with slopes is smallest, inside the bounds (the points unless given)."""
    low, high = bounds if bounds is not None else (min(x1, x2), max(x1, x2))
    d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2)
    square = d1**2 - g1 * g2
    if square < 0:
        return (low + high) / 2.0
    d2 = math.sqrt(square)
    if x1 <= x2:
        found = x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2))
    else:
        found = x1 - (x1 - x2) * ((g1 + d2 - d1) / (g1 - g2 + 2 * d2))
    return min(max(found, low), high)


class _Point:
    """A place along the search direction: step, value, gradient, slope."""

    __slots__ = ("f", "g", "slope", "t")

    def __init__(self, t: float, f: float, g: Tensor, slope: float):
        self.t, self.f, self.g, self.slope = t, f, g, slope


def strong_wolfe(
    evaluate: Callable[[float], _Point],
    start: _Point,
    t: float,
    reach: float,
    c1: float = 1e-4,
    c2: float = 0.9,
    tolerance_change: float = 1e-9,
    most: int = 25,
) -> tuple[_Point, int]:
    """(a point that satisfies the strong Wolfe conditions, number of evaluations). `reach`: largest element of the direction."""
    new, previous = evaluate(t), start
    count, tries = 1, 0
    bracket: list[_Point] | None = None
    done = False
    while tries < most:
        if new.f > start.f + c1 * new.t * start.slope or (tries > 1 and new.f >= previous.f):
            bracket = [previous, new]
            break
        if abs(new.slope) <= -c2 * start.slope:
            bracket, done = [new], True
            break
        if new.slope >= 0:
            bracket = [previous, new]
            break
        limits = (new.t + 0.01 * (new.t - previous.t), new.t * 10)
        t = cubic_minimum(previous.t, previous.f, previous.slope, new.t, new.f, new.slope, limits)
        previous, new = new, evaluate(t)
        count, tries = count + 1, tries + 1
    if bracket is None:
        bracket = [start, new]
    low, high = (0, 1) if bracket[0].f <= bracket[-1].f else (1, 0)
    stuck = False
    while not done and tries < most:
        a, b = bracket
        if abs(b.t - a.t) * reach < tolerance_change:
            break
        t = cubic_minimum(a.t, a.f, a.slope, b.t, b.f, b.slope)
        first, last = min(a.t, b.t), max(a.t, b.t)
        margin = 0.1 * (last - first)
        if min(last - t, t - first) < margin:
            if stuck or t >= last or t <= first:
                t = last - margin if abs(t - last) < abs(t - first) else first + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        new = evaluate(t)
        count, tries = count + 1, tries + 1
        if new.f > start.f + c1 * t * start.slope or new.f >= bracket[low].f:
            bracket[high] = new
            low, high = (0, 1) if bracket[0].f <= bracket[1].f else (1, 0)
            continue
        if abs(new.slope) <= -c2 * start.slope:
            done = True
        elif new.slope * (bracket[high].t - bracket[low].t) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = new
    return bracket[low if len(bracket) > 1 else 0], count


class LBFGS(Optimizer):
    """A quasi-Newton method of limited memory; `step` needs a closure and calls it several times. One parameter group."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ):
        check_lr(lr)
        max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
        super().__init__(
            params,
            dict(
                lr=lr,
                max_iter=max_iter,
                max_eval=max_eval,
                tolerance_grad=tolerance_grad,
                tolerance_change=tolerance_change,
                history_size=history_size,
                line_search_fn=line_search_fn,
            ),
        )
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        self._params = self.param_groups[0]["params"]

    def _gradient(self) -> Tensor:
        """All gradients in one dim."""
        parts = []
        for p in self._params:
            g = p.grad if p.grad is not None else zeros_like(p)
            parts.append((REGISTRY["view_as_real"](g) if g.is_complex() else g).reshape(-1))
        return REGISTRY["cat"](tuple(parts), 0)

    def _move(self, t: float, direction: Tensor) -> None:
        at = 0
        for p in self._params:
            whole = REGISTRY["view_as_real"](p.detach()) if p.is_complex() else p
            n = whole.numel()
            whole.add_(direction[at : at + n].view(whole.shape), alpha=t)
            at += n

    @no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:
        """Up to `max_iter` iterations. Returns the loss at the start."""
        closure = enable_grad()(closure)
        group = self.param_groups[0]
        lr, tolerance_change = group["lr"], group["tolerance_change"]
        lr = lr.item() if isinstance(lr, Tensor) else lr
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first_loss = closure()
        loss, evaluations = float(first_loss), 1
        state["func_evals"] += 1
        g = self._gradient()
        if float(g.abs().max()) <= group["tolerance_grad"]:
            return first_loss
        d, t, history = state.get("d"), state.get("t"), self._history(state)
        h, before, loss_before = state.get("H_diag"), state.get("prev_flat_grad"), state.get("prev_loss")
        iterations = 0
        while iterations < group["max_iter"]:
            iterations += 1
            state["n_iter"] += 1
            if state["n_iter"] == 1:
                d, history, h = -g, ([], [], []), 1
            else:
                state.setdefault("al", [None] * group["history_size"])  # PyTorch keeps its scratch list in the state
                d, h = self._direction(g, before, d, t, h, history, group["history_size"])
            before, loss_before = g.clone(), loss
            t = min(1.0, 1.0 / float(g.abs().sum())) * lr if state["n_iter"] == 1 else lr
            slope = float(g.dot(d))
            if slope > -tolerance_change:
                break
            count = 0
            if group["line_search_fn"] is not None:
                loss, g, t, count = self._search(closure, t, d, loss, g, slope)
                small = float(g.abs().max()) <= group["tolerance_grad"]
            else:
                self._move(t, d)
                small = False
                if iterations != group["max_iter"]:
                    loss = float(closure())
                    g = self._gradient()
                    small = float(g.abs().max()) <= group["tolerance_grad"]
                    count = 1
            evaluations += count
            state["func_evals"] += count
            if iterations == group["max_iter"] or evaluations >= group["max_eval"] or small:
                break
            if float((d * t).abs().max()) <= tolerance_change or abs(loss - loss_before) < tolerance_change:
                break
        state.update(
            d=d,
            t=t,
            old_dirs=history[0],
            old_stps=history[1],
            ro=history[2],
            H_diag=h,
            prev_flat_grad=before,
            prev_loss=loss_before,
        )
        return first_loss

    @staticmethod
    def _history(state: dict) -> tuple[list, list, list]:
        return state.get("old_dirs"), state.get("old_stps"), state.get("ro")

    @staticmethod
    def _direction(
        g: Tensor, before: Tensor, d: Tensor, t: float, h: Any, history: tuple[list, list, list], most: int
    ) -> tuple[Tensor, Any]:
        """(the next direction, the scale of the start Hessian), with the last step taken into the history."""
        changes, steps, inverses = history
        y, s = g - before, d * t
        ys = y.dot(s)
        if float(ys) > 1e-10:
            if len(changes) == most:
                for part in history:
                    part.pop(0)
            changes.append(y)
            steps.append(s)
            inverses.append(1.0 / ys)
            h = ys / y.dot(y)
        weights = [None] * len(changes)
        q = -g
        for i in reversed(range(len(changes))):
            weights[i] = steps[i].dot(q) * inverses[i]
            q = q - changes[i] * weights[i]
        r = q * h
        for i in range(len(changes)):
            r = r + steps[i] * (weights[i] - changes[i].dot(r) * inverses[i])
        return r, h

    def _search(
        self, closure: Callable, t: float, d: Tensor, loss: float, g: Tensor, slope: float
    ) -> tuple[float, Tensor, float, int]:
        """(loss, gradient, step, evaluations) after a line search; the parameters are moved there."""
        start = [p.detach().clone() for p in self._params]

        def evaluate(step: float) -> _Point:
            self._move(step, d)
            value = float(closure())
            gradient = self._gradient()
            for p, old in zip(self._params, start):
                p.copy_(old)
            return _Point(step, value, gradient, float(gradient.dot(d)))

        found, count = strong_wolfe(evaluate, _Point(0, loss, g, slope), t, float(d.abs().max()))
        self._move(found.t, d)
        return found.f, found.g, found.t, count
