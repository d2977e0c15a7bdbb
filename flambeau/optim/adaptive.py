"""RMSprop, Adagrad, Adadelta, Adamax: steps scaled by running measures of the gradient's size."""

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
    rate,
    scalar,
    zeros_like,
)

__all__ = ["Adadelta", "Adagrad", "Adamax", "RMSprop"]


def directed(p: Any, g: Any, decay: Any, maximize: bool, decays: bool) -> Any:
    """The gradient to step along: sign and weight decay applied."""
    g = -g if maximize else g
    return g + p * decay if decays else g


class _Adaptive(Optimizer):
    """What updates parameters one by one, each from its own state."""

    later_options: tuple = (("foreach", None), ("maximize", False), ("differentiable", False), ("capturable", False))

    @differentiable_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = self.closure_loss(closure)
        for group, p, g, state in self.each():
            self.advance(group, p, g, state)
        return loss

    def advance(self, group: dict, p: Tensor, g: Tensor, state: dict) -> None:
        """Update one parameter."""
        raise NotImplementedError(f"{type(self).__name__}: no `advance` says how a parameter is updated.")

    def __setstate__(self, values: dict) -> None:
        super().__setstate__(values)
        for group in self.param_groups:
            for name, default in self.later_options:
                if name in self.defaults:
                    group.setdefault(name, default)
            for p in group["params"]:
                state = self.state.get(p)
                if state and not isinstance(state["step"], Tensor):
                    state["step"] = scalar(float(state["step"]))


def rmsprop(p: Any, g: Any, s: Any, *rest: Any) -> tuple:
    """p - lr g / (sqrt(s - mean²) + eps), or momentum along that; `rest`: [mean], [buffer], numbers, flags."""
    *rest, maximize, decays, centered, with_momentum = rest
    mean = rest.pop(0) if centered else None
    buffer = rest.pop(0) if with_momentum else None
    lr, decay, alpha, alpha_rest, eps, momentum = rest
    g = directed(p, g, decay, maximize, decays)
    s = s * alpha + g * g * alpha_rest
    new = [s]
    if centered:
        mean = mean + (g - mean) * alpha_rest
        size = (s - mean * mean).sqrt() + eps
        new.append(mean)
    else:
        size = s.sqrt() + eps
    if with_momentum:
        buffer = buffer * momentum + g / size
        return (p - buffer * lr, *new, buffer)
    return (p - g / size * lr, *new)


class RMSprop(_Adaptive):
    """Steps scaled by the root of a running mean of squares. Source: Hinton's lecture 6e; centred: Graves (2013)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ):
        check_lr(lr)
        at_least("eps", eps, text="epsilon value")
        at_least("momentum", momentum, text="momentum value")
        at_least("weight_decay", weight_decay, text="weight_decay value")
        at_least("alpha", alpha, text="alpha value")
        super().__init__(
            params,
            dict(
                lr=lr,
                momentum=momentum,
                alpha=alpha,
                eps=eps,
                centered=centered,
                weight_decay=weight_decay,
                capturable=capturable,
                foreach=foreach,
                maximize=maximize,
                differentiable=differentiable,
            ),
        )

    def advance(self, group: dict, p: Tensor, g: Tensor, state: dict) -> None:
        """Update one parameter."""
        centered, momentum = group["centered"], group["momentum"]
        if not state:
            names = [
                "square_avg",
                *(["momentum_buffer"] if momentum > 0 else []),
                *(["grad_avg"] if centered else []),
            ]
            state.update({"step": scalar(), **{name: zeros_like(p) for name in names}})
        counted(state["step"])
        tensors = [p, g, state["square_avg"]]
        tensors += [state["grad_avg"]] if centered else []
        tensors += [state["momentum_buffer"]] if momentum > 0 else []
        alpha, decay = group["alpha"], group["weight_decay"]
        numbers = (rate(group), decay, alpha, 1 - alpha, group["eps"], momentum)
        self.update(
            rmsprop,
            (0, *range(2, len(tensors))),
            tensors,
            numbers,
            group,
            (group["maximize"], decay != 0, centered, momentum > 0),
        )


def adagrad(p: Any, g: Any, s: Any, rate: Any, decay: Any, eps: Any, maximize: bool, decays: bool) -> tuple:
    """p - rate g / (sqrt(sum of squares) + eps)."""
    g = directed(p, g, decay, maximize, decays)
    s = s + g * g
    return p - g / (s.sqrt() + eps) * rate, s


class Adagrad(_Adaptive):
    """Steps scaled by the root of the sum of squares so far. Source: Duchi, Hazan, Singer (2011)."""

    later_options = (("foreach", None), ("maximize", False), ("differentiable", False), ("fused", None))

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ):
        check_lr(lr)
        at_least("lr_decay", lr_decay, text="lr_decay value")
        at_least("weight_decay", weight_decay, text="weight_decay value")
        at_least("initial_accumulator_value", initial_accumulator_value, text="initial_accumulator_value value")
        at_least("eps", eps, text="epsilon value")
        super().__init__(
            params,
            dict(
                lr=lr,
                lr_decay=lr_decay,
                eps=eps,
                weight_decay=weight_decay,
                initial_accumulator_value=initial_accumulator_value,
                foreach=foreach,
                maximize=maximize,
                differentiable=differentiable,
                fused=fused,
            ),
        )
        for group in self.param_groups:
            for p in group["params"]:
                start = (
                    complex(initial_accumulator_value, initial_accumulator_value)
                    if p.is_complex()
                    else initial_accumulator_value
                )
                self.state[p]["step"] = scalar()
                self.state[p]["sum"] = REGISTRY["full"](tuple(p.shape), start, dtype=p.dtype, device=p.device)

    def share_memory(self) -> None:
        """Put the state into memory that other processes can map."""
        for state in self.state.values():
            state["sum"].share_memory_()

    def advance(self, group: dict, p: Tensor, g: Tensor, state: dict) -> None:
        """Update one parameter."""
        n = counted(state["step"])
        decay = group["weight_decay"]
        lr = rate(group) / (1 + (n - 1) * group["lr_decay"])
        self.update(
            adagrad,
            (0, 2),
            (p, g, state["sum"]),
            (lr, decay, group["eps"]),
            group,
            (group["maximize"], decay != 0),
        )


def adadelta(
    p: Any, g: Any, s: Any, d: Any, lr: Any, rho: Any, rho_rest: Any, eps: Any, decay: Any, maximize: bool, decays: bool
) -> tuple:
    """A step of sqrt(d + eps) / sqrt(s + eps) g, where s and d are running means of g² and of the step's square."""
    g = directed(p, g, decay, maximize, decays)
    s = s * rho + g * g * rho_rest
    delta = (d + eps).sqrt() / (s + eps).sqrt() * g
    return p - delta * lr, s, d * rho + delta * delta * rho_rest


class Adadelta(_Adaptive):
    """Steps in units of the parameter, without a global rate. Source: Zeiler (2012)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ):
        check_lr(lr)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        at_least("eps", eps, text="epsilon value")
        at_least("weight_decay", weight_decay, text="weight_decay value")
        super().__init__(
            params,
            dict(
                lr=lr,
                rho=rho,
                eps=eps,
                weight_decay=weight_decay,
                maximize=maximize,
                capturable=capturable,
                foreach=foreach,
                differentiable=differentiable,
            ),
        )

    def advance(self, group: dict, p: Tensor, g: Tensor, state: dict) -> None:
        """Update one parameter."""
        if not state:
            state["step"], state["square_avg"], state["acc_delta"] = scalar(), zeros_like(p), zeros_like(p)
        counted(state["step"])
        rho, decay = group["rho"], group["weight_decay"]
        numbers = (rate(group), rho, 1 - rho, group["eps"], decay)
        self.update(
            adadelta,
            (0, 2, 3),
            (p, g, state["square_avg"], state["acc_delta"]),
            numbers,
            group,
            (group["maximize"], decay != 0),
        )


def adamax(
    p: Any,
    g: Any,
    m: Any,
    u: Any,
    rate: Any,
    beta1_rest: Any,
    beta2: Any,
    eps: Any,
    decay: Any,
    maximize: bool,
    decays: bool,
) -> tuple:
    """p - rate m / u with u = max(beta2 u, |g| + eps)."""
    g = directed(p, g, decay, maximize, decays)
    m = m + (g - m) * beta1_rest
    u = REGISTRY["maximum"](u * beta2, g.abs() + eps)
    return p - m / u * rate, m, u


class Adamax(_Adaptive):
    """Adam with the infinity norm. Source: Kingma and Ba (2014)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
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
                foreach=foreach,
                maximize=maximize,
                differentiable=differentiable,
                capturable=capturable,
            ),
        )

    def advance(self, group: dict, p: Tensor, g: Tensor, state: dict) -> None:
        """Update one parameter."""
        if not state:
            state["step"], state["exp_avg"], state["exp_inf"] = scalar(), zeros_like(p), zeros_like(p)
        n = counted(state["step"])
        beta1, beta2 = group["betas"]
        decay = group["weight_decay"]
        numbers = (rate(group) / (1 - beta1**n), 1 - beta1, beta2, group["eps"], decay)
        self.update(
            adamax,
            (0, 2, 3),
            (p, g, state["exp_avg"], state["exp_inf"]),
            numbers,
            group,
            (group["maximize"], decay != 0),
        )
