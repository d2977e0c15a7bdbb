"""Averages of models over training. Source: Izmailov et al. (2018)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.core.dtype import int64
from flambeau.factories import zeros
from flambeau.nn.modules.batchnorm import _BatchNorm
from flambeau.nn.modules.module import Module
from flambeau.optim.lr_base import LRScheduler
from flambeau.optim.optimizer import Optimizer
from flambeau.tape.grad_mode import no_grad

__all__ = ["SWALR", "AveragedModel", "get_ema_avg_fn", "get_swa_avg_fn", "update_bn"]


def get_ema_avg_fn(decay: float = 0.999) -> Callable:
    """The function of an exponential moving average."""
    if decay < 0.0 or decay > 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")

    @no_grad()
    def average(ema: Tensor, current: Tensor, num_averaged: Any) -> Tensor:
        return decay * ema + (1 - decay) * current

    return average


def get_swa_avg_fn() -> Callable:
    """The function of an equal average."""

    @no_grad()
    def average(averaged: Tensor, current: Tensor, num_averaged: Any) -> Tensor:
        return averaged + (current - averaged) / (int(num_averaged) + 1)

    return average


class AveragedModel(Module):
    """A copy of a model whose parameters are the average of those it was updated with."""

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Callable | None = None,
        multi_avg_fn: Callable | None = None,
        use_buffers: bool = False,
    ):
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", zeros((), dtype=int64, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def _tensors(self, model: Module) -> list[Tensor]:
        return [*model.parameters(), *(model.buffers() if self.use_buffers else ())]

    @no_grad()
    def update_parameters(self, model: Module) -> None:
        """Take a model's parameters into the average."""
        pairs = list(zip(self._tensors(self.module), self._tensors(model)))
        first = int(self.n_averaged) == 0
        if not first and self.multi_avg_fn is not None:
            self.multi_avg_fn([a for a, _ in pairs], [b.detach() for _, b in pairs], self.n_averaged)
        for mine, theirs in pairs if first or self.multi_avg_fn is None else ():
            theirs = theirs.detach()
            mine.copy_(theirs if first else (self.avg_fn or get_swa_avg_fn())(mine.detach(), theirs, self.n_averaged))
        if not self.use_buffers:
            for mine, theirs in zip(self.module.buffers(), model.buffers()):
                mine.copy_(theirs.detach())
        self.n_averaged.add_(1)


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the statistics of every BatchNorm layer anew from one pass over the data."""
    layers = {m: m.momentum for m in model.modules() if isinstance(m, _BatchNorm)}
    if not layers:
        return
    was_training = model.training
    model.train()
    for m in layers:
        m.reset_running_stats()
        m.momentum = None
    for batch in loader:
        batch = batch[0] if isinstance(batch, (list, tuple)) else batch
        model(batch.to(device) if device is not None else batch)
    for m, momentum in layers.items():
        m.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """Goes to the rate swa_lr in anneal_epochs, and stays there."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float,
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ):
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        rates = swa_lr if isinstance(swa_lr, (list, tuple)) else [swa_lr] * len(optimizer.param_groups)
        for rate, group in zip(rates, optimizer.param_groups):
            group["swa_lr"] = rate
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _share(self, t: float) -> float:
        return (1 - math.cos(math.pi * t)) / 2 if self._anneal_strategy == "cos" else t

    def get_lr(self) -> list:
        self._warn_outside_step()
        step = self._step_count - 1
        n = max(1, self.anneal_epochs) if self.anneal_epochs == 0 else self.anneal_epochs
        before = self._share(max(0, min(1, (step - 1) / n)))
        now = self._share(max(0, min(1, step / n)))
        found = []
        for group in self.optimizer.param_groups:
            start = group["swa_lr"] if before == 1 else (group["lr"] - before * group["swa_lr"]) / (1 - before)
            found.append(group["swa_lr"] * now + start * (1 - now))
        return found
