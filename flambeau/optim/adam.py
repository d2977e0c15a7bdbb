"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.ir.op import REGISTRY
from flambeau.optim.optimizer import (
    Optimizer,
    at_least,
    check_betas,
    check_lr,
    counted,
    differentiable_step,
    number,
    rate,
    scalar,
    zeros_like,
)

__all__ = ["Adam", "AdamW"]


def _moments(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    shrink: Any,
    decay: Any,
    beta1_rest: Any,
    beta2: Any,
    beta2_rest: Any,
    maximize: bool,
    decays: bool,
    decoupled: bool,
) -> tuple:
    g = -g if maximize else g
    if decays:
        if decoupled:
            p = p * shrink
        else:
            g = g + p * decay
    return p, m + (g - m) * beta1_rest, v * beta2 + g * g * beta2_rest


def adam(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    shrink: Any,
    decay: Any,
    beta1_rest: Any,
    beta2: Any,
    beta2_rest: Any,
    step_size: Any,
    root: Any,
    eps: Any,
    maximize: bool,
    decays: bool,
    decoupled: bool,
) -> tuple:
    """p - step_size m / (sqrt(v) / root + eps), with the moments m and v moved on."""
    p, m, v = _moments(p, g, m, v, shrink, decay, beta1_rest, beta2, beta2_rest, maximize, decays, decoupled)
    return p - m / (v.sqrt() / root + eps) * step_size, m, v


def amsgrad(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    largest: Any,
    shrink: Any,
    decay: Any,
    beta1_rest: Any,
    beta2: Any,
    beta2_rest: Any,
    step_size: Any,
    root: Any,
    eps: Any,
    maximize: bool,
    decays: bool,
    decoupled: bool,
) -> tuple:
    """The same with the largest v so far."""
    p, m, v = _moments(p, g, m, v, shrink, decay, beta1_rest, beta2, beta2_rest, maximize, decays, decoupled)
    largest = REGISTRY["maximum"](largest, v)
    return p - m / (largest.sqrt() / root + eps) * step_size, m, v, largest


class Adam(Optimizer):
    """Steps scaled by running means of the gradient and of its square. Source: Kingma and Ba (2014); amsgrad: Reddi et al. (2018)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
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
                amsgrad=amsgrad,
                maximize=maximize,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
                fused=fused,
                decoupled_weight_decay=decoupled_weight_decay,
            ),
        )

    def __setstate__(self, values: dict) -> None:
        super().__setstate__(values)
        for group in self.param_groups:
            for name, default in (
                ("amsgrad", False),
                ("maximize", False),
                ("foreach", None),
                ("capturable", False),
                ("differentiable", False),
                ("fused", None),
                ("decoupled_weight_decay", isinstance(self, AdamW)),
            ):
                group.setdefault(name, default)
            for p in group["params"]:
                state = self.state.get(p)
                if state and not isinstance(state["step"], Tensor):
                    state["step"] = scalar(float(state["step"]))

    @differentiable_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = self.closure_loss(closure)
        for group, p, g, state in self.each():
            if not state:
                made = dict(step=scalar(), exp_avg=zeros_like(p), exp_avg_sq=zeros_like(p))
                state.update(made, max_exp_avg_sq=zeros_like(p)) if group["amsgrad"] else state.update(made)
            n = counted(state["step"])
            lr, decay = rate(group), group["weight_decay"]
            beta1, beta2 = (number(b) for b in self.option(group, "betas"))
            numbers = (
                1 - lr * decay,
                decay,
                1 - beta1,
                beta2,
                1 - beta2,
                lr / (1 - beta1**n),
                (1 - beta2**n) ** 0.5,
                group["eps"],
            )
            flags = (group["maximize"], decay != 0, group["decoupled_weight_decay"])
            m, v = state["exp_avg"], state["exp_avg_sq"]
            if group["amsgrad"]:
                self.update(amsgrad, (0, 2, 3, 4), (p, g, m, v, state["max_exp_avg_sq"]), numbers, group, flags)
            else:
                self.update(adam, (0, 2, 3), (p, g, m, v), numbers, group, flags)
        return loss


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter and stays out of the moments. Source: Loshchilov and Hutter (2017)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ):
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )
