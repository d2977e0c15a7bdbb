"""NAdam and RAdam: Adam with Nesterov momentum, and with a rectified second moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.ir.op import REGISTRY
from flambeau.optim.adaptive import _Adaptive
from flambeau.optim.optimizer import (
    at_least,
    check_betas,
    check_lr,
    counted,
    in_trace,
    multiply_scalar,
    rate,
    scalar,
    zeros_like,
)

__all__ = ["NAdam", "RAdam"]


def _decayed(p: Any, g: Any, shrink: Any, decay: Any, maximize: bool, decays: bool, decoupled: bool) -> tuple:
    g = -g if maximize else g
    if decays:
        if decoupled:
            p = p * shrink
        else:
            g = g + p * decay
    return p, g


def nadam(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    shrink: Any,
    decay: Any,
    beta1_rest: Any,
    beta2: Any,
    beta2_rest: Any,
    bias2: Any,
    eps: Any,
    rate_g: Any,
    rate_m: Any,
    maximize: bool,
    decays: bool,
    decoupled: bool,
) -> tuple:
    """p - rate_g g / d - rate_m m / d with d = sqrt(v / bias2) + eps."""
    p, g = _decayed(p, g, shrink, decay, maximize, decays, decoupled)
    m = m + (g - m) * beta1_rest
    v = v * beta2 + g * g * beta2_rest
    d = (v / bias2).sqrt() + eps
    return p - g / d * rate_g - m / d * rate_m, m, v


class NAdam(_Adaptive):
    """Adam with Nesterov momentum. Source: Dozat (2016)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ):
        check_lr(lr)
        at_least("eps", eps, text="epsilon value")
        check_betas(betas)
        at_least("weight_decay", weight_decay, text="weight_decay value")
        at_least("momentum_decay", momentum_decay, text="momentum_decay value")
        super().__init__(
            params,
            dict(
                lr=lr,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                momentum_decay=momentum_decay,
                decoupled_weight_decay=decoupled_weight_decay,
                maximize=maximize,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
            ),
        )

    def advance(self, group: dict, p: Tensor, g: Tensor, state: dict) -> None:
        """Update one parameter."""
        if not state:
            state.update(step=scalar(), mu_product=scalar(1.0), exp_avg=zeros_like(p), exp_avg_sq=zeros_like(p))
        n = counted(state["step"])
        lr, decay = rate(group), group["weight_decay"]
        (beta1, beta2), fade = group["betas"], group["momentum_decay"]
        mu, following = (beta1 * (1.0 - 0.5 * 0.96 ** (k * fade)) for k in (n, n + 1))
        product = multiply_scalar(state["mu_product"], mu)
        numbers = (
            1 - lr * decay,
            decay,
            1 - beta1,
            beta2,
            1 - beta2,
            1 - beta2**n,
            group["eps"],
            lr * (1 - mu) / (1 - product),
            lr * following / (1 - product * following),
        )
        flags = (group["maximize"], decay != 0, group["decoupled_weight_decay"])
        self.update(nadam, (0, 2, 3), (p, g, state["exp_avg"], state["exp_avg_sq"]), numbers, group, flags)


def radam(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    shrink: Any,
    decay: Any,
    beta1_rest: Any,
    beta2: Any,
    beta2_rest: Any,
    bias1: Any,
    eps: Any,
    lr: Any,
    scale: Any,
    maximize: bool,
    decays: bool,
    decoupled: bool,
    rectified: bool | None,
) -> tuple:
    """p - lr m / bias1 times scale / (sqrt(v) + eps) where rectified (None: where scale > 0)."""
    p, g = _decayed(p, g, shrink, decay, maximize, decays, decoupled)
    m = m + (g - m) * beta1_rest
    v = v * beta2 + g * g * beta2_rest
    mean = m / bias1
    if rectified is None:
        factor = REGISTRY["where"](scale > 0, scale / (v.sqrt() + eps), 1.0)
    elif rectified:
        factor = scale / (v.sqrt() + eps)
    else:
        return p - mean * lr, m, v
    return p - mean * lr * factor, m, v


class RAdam(_Adaptive):
    """Adam that waits until its second moment is known well enough. Source: Liu et al. (2019)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ):
        check_lr(lr)
        at_least("eps", eps, text="epsilon value")
        check_betas(betas)
        at_least("weight_decay", weight_decay, text="weight_decay value")
        super().__init__(
            params,
            dict(
                lr=lr,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                maximize=maximize,
                foreach=foreach,
                capturable=capturable,
                decoupled_weight_decay=decoupled_weight_decay,
                differentiable=differentiable,
            ),
        )

    def advance(self, group: dict, p: Tensor, g: Tensor, state: dict) -> None:
        """Update one parameter."""
        if not state:
            state["step"], state["exp_avg"], state["exp_avg_sq"] = scalar(), zeros_like(p), zeros_like(p)
        n = counted(state["step"])
        lr, decay = rate(group), group["weight_decay"]
        beta1, beta2 = group["betas"]
        bias2 = 1 - beta2**n
        limit = 2 / (1 - beta2) - 1
        length = limit - 2 * n * beta2**n / bias2
        if in_trace():
            ready = (length > 5).to(length.dtype)
            safe = length * ready + 6 * (1 - ready)
            rectified: bool | None = None
        else:
            rectified, ready, safe = length > 5.0, 1.0, length
        scale = 0.0
        if rectified is not False:
            scale = ready * (bias2 * (safe - 4) * (safe - 2) * limit / ((limit - 4) * (limit - 2) * safe)) ** 0.5
        numbers = (1 - lr * decay, decay, 1 - beta1, beta2, 1 - beta2, 1 - beta1**n, group["eps"], lr, scale)
        flags = (group["maximize"], decay != 0, group["decoupled_weight_decay"], rectified)
        self.update(radam, (0, 2, 3), (p, g, state["exp_avg"], state["exp_avg_sq"]), numbers, group, flags)
