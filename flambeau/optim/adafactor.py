"""Adafactor: second moments kept as a row and a column. Source: Shazeer and Stern (2018)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.factories import zeros
from flambeau.ir.op import REGISTRY
from flambeau.optim.optimizer import Optimizer, at_least, counted, rate, scalar
from flambeau.tape.grad_mode import no_grad

__all__ = ["Adafactor"]

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def _norm(x: Tensor) -> float:
    return (x * x).sum().sqrt().item()


class Adafactor(Optimizer):
    """Steps relative to the parameter's size, with factored second moments."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ):
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        at_least("lr", lr, text="Learning rate should be >= 0 but is")
        if beta2_decay > 0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
        if eps[0] is not None:
            at_least("eps1", eps[0], text="epsilon1 should be >= 0 but is")
        at_least("eps2", eps[1], text="epsilon2 should be >= 0 but is")
        at_least("d", d, 1.0, text="Clipping threshold d should be >= 1 but is")
        at_least("weight_decay", weight_decay, text="weight_decay should be >= 0 but is")
        super().__init__(
            params,
            dict(
                lr=lr,
                beta2_decay=beta2_decay,
                eps=eps,
                d=d,
                weight_decay=weight_decay,
                foreach=foreach,
                maximize=maximize,
            ),
        )

    @no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = self.closure_loss(closure)
        for group, p, g, state in self.each():
            if not state:
                shape = tuple(g.shape)
                state["step"] = scalar()
                if g.ndim > 1:
                    state["row_var"] = zeros((*shape[:-1], 1), dtype=g.dtype)
                    state["col_var"] = zeros((*shape[:-2], 1, shape[-1]), dtype=g.dtype)
                else:
                    state["variance"] = zeros(shape, dtype=g.dtype)
            n = counted(state["step"])
            lr, (eps1, eps2) = rate(group), group["eps"]
            eps1 = EPSILON[p.dtype.name] if eps1 is None else eps1
            g = -g if group["maximize"] else g
            rest = n ** group["beta2_decay"]
            alpha = max(eps2, _norm(p) / math.sqrt(p.numel())) * min(lr, 1 / math.sqrt(n))
            if group["weight_decay"] != 0:
                p.mul_(1 - lr * group["weight_decay"])
            variance = self._variance(g, state, rest, eps1)
            update = REGISTRY["rsqrt"](REGISTRY["clamp"](variance, eps1 * eps1)) * g
            p.add_(update, alpha=-alpha / max(1.0, _norm(update) / (math.sqrt(update.numel()) * group["d"])))
        return loss

    @staticmethod
    def _variance(g: Tensor, state: dict, rest: float, eps1: float) -> Tensor:
        """The estimate of g², with the state moved on."""
        square = g * g
        if g.ndim <= 1:
            return state["variance"].lerp_(square, rest)
        rows = state["row_var"].lerp_(square.mean(-1, keepdim=True), rest)
        columns = state["col_var"].lerp_(square.mean(-2, keepdim=True), rest)
        return rows @ columns / REGISTRY["clamp"](rows.mean(-2, keepdim=True), eps1)
