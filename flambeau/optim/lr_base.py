"""What schedules of learning rates share.

May not know: particular schedules. Entry: `LRScheduler`.
"""

from __future__ import annotations

import types
import warnings
import weakref
from typing import Any

from flambeau._tensor import Tensor
from flambeau.optim.optimizer import Optimizer

__all__ = ["LRScheduler", "current_value", "per_group", "set_option"]


def current_value(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def set_option(group: dict, name: str, value: Any) -> None:
    """Set an option, in place if it is a tensor."""
    if isinstance(group[name], Tensor):
        group[name].fill_(value.item() if isinstance(value, Tensor) else value)
    else:
        group[name] = value


def per_group(name: str, value: Any, optimizer: Optimizer) -> list:
    """One value for each group. Raises: ValueError for a list of another length."""
    count = len(optimizer.param_groups)
    if isinstance(value, (list, tuple)):
        if len(value) != count:
            raise ValueError(
                f"{name} must have the same length as optimizer.param_groups. {name} has {len(value)} values, param_groups has {count}."
            )
        return list(value)
    return [value] * count


class LRScheduler:
    """Base class: `get_lr` gives the rates for `last_epoch`."""

    _get_lr_called_within_step = False
    _is_initial = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", current_value(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with last_epoch >= 0."
                )
        self.base_lrs = [current_value(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        _track_steps(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self.__dict__.update(state_dict)

    def get_last_lr(self) -> list:
        """The rates that the last step set."""
        return self._last_lr

    def get_lr(self) -> list:
        """The rates for `last_epoch`. Subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__}.get_lr: define it in the subclass.")

    def _current(self) -> list:
        return [current_value(group["lr"]) for group in self.optimizer.param_groups]

    def _warn_outside_step(self) -> None:
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use `get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )

    def step(self, epoch: int | None = None) -> None:
        """Go on by one (or to `epoch`, where a schedule has a closed form) and set the rates."""
        if self._step_count == 1:
            if not getattr(self.optimizer.step, "counts_for_schedules", False):
                warnings.warn(
                    "Seems like `optimizer.step()` has been overridden after learning rate scheduler initialization. Please, make sure to "
                    "call `optimizer.step()` before `lr_scheduler.step()`.",
                    UserWarning,
                    stacklevel=2,
                )
            elif not getattr(self.optimizer, "_opt_called", False):
                warnings.warn(
                    "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in the opposite order: "
                    "`optimizer.step()` before `lr_scheduler.step()`.",
                    UserWarning,
                    stacklevel=2,
                )
        self._step_count += 1
        if epoch is not None:
            warnings.warn(
                "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where possible.",
                UserWarning,
                stacklevel=2,
            )
        self._move(epoch)

    def _move(self, epoch: int | None) -> None:
        self._get_lr_called_within_step = True
        try:
            if epoch is None:
                self.last_epoch += 1
                rates = self.get_lr()
            else:
                self.last_epoch = epoch
                rates = self._get_closed_form_lr() if hasattr(self, "_get_closed_form_lr") else self.get_lr()
        finally:
            self._get_lr_called_within_step = False
        for group, rate in zip(self.optimizer.param_groups, rates):
            set_option(group, "lr", rate)
        self._last_lr = self._current()


def _track_steps(optimizer: Optimizer) -> None:
    """Note on the optimiser that its step was called, for the warning about the order."""
    if getattr(optimizer.step, "counts_for_schedules", False):
        return
    plain, owner = optimizer.step.__func__, weakref.ref(optimizer)

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        owner()._opt_called = True
        return plain(owner(), *args, **kwargs)

    counted.counts_for_schedules = True
    optimizer.step = types.MethodType(counted, _Stand())


class _Stand:
    """What the counting step is bound to: not the optimiser, which would keep itself alive."""
