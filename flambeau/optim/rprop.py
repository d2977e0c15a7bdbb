"""Rprop and ASGD: steps by the sign of the gradient, and averaged gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.ir.op import REGISTRY
from flambeau.optim.adaptive import _Adaptive, directed
from flambeau.optim.optimizer import (
    at_least,
    check_lr,
    counted,
    filled_like,
    in_trace,
    rate,
    read_scalar,
    scalar,
    write_scalar,
    zeros_like,
)

__all__ = ["ASGD", "Rprop"]


def rprop(
    p: Any, g: Any, previous: Any, size: Any, shrink: Any, grow: Any, smallest: Any, largest: Any, maximize: bool
) -> tuple:
    """Sizes grow while the sign stays and shrink when it turns; the step is the size with the gradient's sign."""
    where = REGISTRY["where"]
    g = -g if maximize else g
    agreement = g * previous
    factor = where(agreement > 0, grow, where(agreement < 0, shrink, 1.0))
    size = REGISTRY["clamp"](size * factor, smallest, largest)
    g = where(agreement < 0, 0.0, g)
    return p - g.sign() * size, g, size


class Rprop(_Adaptive):
    """Resilient backpropagation. Source: Riedmiller and Braun (1993)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        etas: tuple = (0.5, 1.2),
        step_sizes: tuple = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ):
        check_lr(lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        super().__init__(
            params,
            dict(
                lr=lr,
                etas=etas,
                step_sizes=step_sizes,
                foreach=foreach,
                maximize=maximize,
                differentiable=differentiable,
                capturable=capturable,
            ),
        )

    def advance(self, group: dict, p: Tensor, g: Tensor, state: dict) -> None:
        """Update one parameter."""
        if not state:
            lr = float(group["lr"])
            start = complex(lr, lr) if p.is_complex() else lr
            state.update(step=scalar(), prev=zeros_like(p), step_size=filled_like(p, start))
        counted(state["step"])
        numbers = (*group["etas"], *(float(s) for s in group["step_sizes"]))
        self.update(rprop, (0, 2, 3), (p, g, state["prev"], state["step_size"]), numbers, group, (group["maximize"],))


def asgd(p: Any, g: Any, ax: Any, decay: Any, kept: Any, eta: Any, mu: Any, maximize: bool, decays: bool) -> tuple:
    """p kept - eta g, and the average moved by mu."""
    g = directed(p, g, decay, maximize, decays)
    p = p * kept - g * eta
    return p, ax + (p - ax) * mu


class ASGD(_Adaptive):
    """Gradient descent whose average is kept in the state. Source: Polyak and Juditsky (1992)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ):
        check_lr(lr)
        at_least("weight_decay", weight_decay, text="weight_decay value")
        super().__init__(
            params,
            dict(
                lr=lr,
                lambd=lambd,
                alpha=alpha,
                t0=t0,
                weight_decay=weight_decay,
                foreach=foreach,
                maximize=maximize,
                differentiable=differentiable,
                capturable=capturable,
            ),
        )

    def advance(self, group: dict, p: Tensor, g: Tensor, state: dict) -> None:
        """Update one parameter."""
        lr = rate(group)
        if not state:
            state["step"], state["eta"], state["mu"], state["ax"] = (
                scalar(),
                scalar(float(group["lr"])),
                scalar(1.0),
                zeros_like(p),
            )
        n = counted(state["step"])
        eta, mu, lambd, decay = (
            read_scalar(state["eta"]),
            read_scalar(state["mu"]),
            group["lambd"],
            group["weight_decay"],
        )
        self.update(
            asgd,
            (0, 2),
            (p, g, state["ax"]),
            (decay, 1 - lambd * eta, eta, mu),
            group,
            (group["maximize"], decay != 0),
        )
        write_scalar(state["eta"], lr / (1 + lambd * lr * n) ** group["alpha"])
        late = n - group["t0"]
        write_scalar(state["mu"], 1 / (REGISTRY["clamp"](late, 1.0) if in_trace() else max(1.0, late)))
