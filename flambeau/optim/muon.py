"""Muon: momentum made orthogonal by Newton-Schulz iterations.

Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024); Moonlight's rate: Liu et al. (2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.core.dtype import bfloat16
from flambeau.ir.op import REGISTRY
from flambeau.optim.optimizer import Optimizer, at_least, rate, zeros_like
from flambeau.tape.grad_mode import no_grad

__all__ = ["Muon"]


def orthogonalized(update: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Nearly the orthogonal factor of a matrix, in bfloat16. Shapes: [m, n] -> [m, n]."""
    if steps >= 100:
        raise ValueError("Number of steps must be less than 100 for computational efficiency")
    if len(coefficients) != 3:
        raise ValueError("Coefficients must be a tuple of exactly 3 values")
    a, b, c = coefficients
    x = update.to(bfloat16)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / REGISTRY["clamp"]((x.float() * x.float()).sum().sqrt(), eps).to(bfloat16)
    for _ in range(steps):
        gram = x @ x.T
        polynomial = REGISTRY["addmm"](gram, gram, gram, beta=b, alpha=c)
        x = REGISTRY["addmm"](x, polynomial, x, beta=a)
    return x.T if tall else x


def _rate(lr: float, shape: tuple, adjust: str | None) -> float:
    rows, columns = shape[:2]
    if adjust is None or adjust == "original":
        return lr * math.sqrt(max(1, rows / columns))
    return lr * 0.2 * math.sqrt(max(rows, columns))


class Muon(Optimizer):
    """For weight matrices (2 dims only); optimise the other parameters with AdamW."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ):
        at_least("lr", lr, text="learning rate")
        at_least("momentum", momentum, text="momentum value")
        at_least("weight_decay", weight_decay, text="weight_decay value")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        super().__init__(
            params,
            dict(
                lr=lr,
                weight_decay=weight_decay,
                momentum=momentum,
                nesterov=nesterov,
                ns_coefficients=ns_coefficients,
                eps=eps,
                ns_steps=ns_steps,
                adjust_lr_fn=adjust_lr_fn,
            ),
        )
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(
                        f"Muon only supports 2D parameters whereas we found a parameter with size: {p.size()}"
                    )

    @no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = self.closure_loss(closure)
        for group, p, g, state in self.each():
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = state["momentum_buffer"] = zeros_like(g)
            lr, momentum = rate(group), group["momentum"]
            buffer.lerp_(g, 1 - momentum)
            update = REGISTRY["lerp"](g, buffer, momentum) if group["nesterov"] else buffer
            update = orthogonalized(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
            p.mul_(1 - lr * group["weight_decay"])
            p.add_(update, alpha=-_rate(lr, tuple(p.shape), group["adjust_lr_fn"]))
        return loss
