"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.optim.optimizer import (
    Optimizer,
    at_least,
    check_lr,
    differentiable_step,
    number,
    rate,
    rest_on,
    zeros_like,
)

__all__ = ["SGD"]


def _directed(p: Any, g: Any, weight_decay: Any, maximize: bool, decays: bool) -> Any:
    g = -g if maximize else g
    return g + p * weight_decay if decays else g


def sgd(p: Any, g: Any, lr: Any, weight_decay: Any, maximize: bool, decays: bool) -> tuple:
    """p - lr g."""
    return (p - _directed(p, g, weight_decay, maximize, decays) * lr,)


def first_momentum(
    p: Any, g: Any, b: Any, lr: Any, weight_decay: Any, momentum: Any, maximize: bool, decays: bool, nesterov: bool
) -> tuple:
    """The first step: the momentum is the gradient."""
    g = _directed(p, g, weight_decay, maximize, decays)
    return p - (g + g * momentum if nesterov else g) * lr, g


def later_momentum(
    p: Any,
    g: Any,
    b: Any,
    lr: Any,
    weight_decay: Any,
    momentum: Any,
    undamped: Any,
    maximize: bool,
    decays: bool,
    nesterov: bool,
) -> tuple:
    """b = momentum b + (1 - dampening) g, and a step along b (or g + momentum b)."""
    g = _directed(p, g, weight_decay, maximize, decays)
    b = b * momentum + g * undamped
    return p - (g + b * momentum if nesterov else b) * lr, b


class SGD(Optimizer):
    """p ← p - lr (momentum b + g). Source: Sutskever et al. (2013) for the momentum's form."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ):
        check_lr(lr)
        at_least("momentum", momentum, text="momentum value")
        at_least("weight_decay", weight_decay, text="weight_decay value")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(
            params,
            dict(
                lr=lr,
                momentum=momentum,
                dampening=dampening,
                weight_decay=weight_decay,
                nesterov=nesterov,
                maximize=maximize,
                foreach=foreach,
                differentiable=differentiable,
                fused=fused,
            ),
        )

    def __setstate__(self, values: dict) -> None:
        super().__setstate__(values)
        for group in self.param_groups:
            for name, default in (
                ("nesterov", False),
                ("maximize", False),
                ("foreach", None),
                ("differentiable", False),
                ("fused", None),
            ):
                group.setdefault(name, default)

    @differentiable_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = self.closure_loss(closure)
        for group, p, g in self.gradients():
            lr, decay = rate(group), number(group["weight_decay"])
            flags = (group["maximize"], not (isinstance(decay, (int, float)) and decay == 0))
            momentum = self.option(group, "momentum")
            still = group["momentum"] == 0
            rest_on(lambda group=group: group["momentum"] == 0, "whether SGD has momentum")
            if still:
                self.update(sgd, (0,), (p, g), (lr, decay), group, flags)
                continue
            flags += (group["nesterov"],)
            state = self.state[p]
            b = state.get("momentum_buffer")
            if b is None:
                rest_on(lambda state=state: "momentum_buffer" in state, "whether SGD has momentum yet")
                b = state["momentum_buffer"] = zeros_like(g)
                self.update(first_momentum, (0, 2), (p, g, b), (lr, decay, momentum), group, flags)
            else:
                self.update(
                    later_momentum, (0, 2), (p, g, b), (lr, decay, momentum, 1 - group["dampening"]), group, flags
                )
        return loss
