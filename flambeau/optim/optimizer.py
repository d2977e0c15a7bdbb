"""The base of optimisers: parameter groups, state, state dicts, hooks.

    class Plain(Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, dict(lr=lr))

        @no_grad()
        def step(self, closure=None):
            loss = self.closure_loss(closure)
            for group, p, g, state in self.each():
                self.update(descend, (0,), (p, g), (group["lr"],), group)
            return loss

`update` runs a function that gives new values of tensors as one kernel that writes them in place (`engine.update`). Numbers are Python
floats in eager mode and 0-dim tensors in a trace (`number`, `counted`), so that a captured step counts on.

May not know: particular algorithms. Entry: `Optimizer`.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import itertools
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau._tensor import empty as empty_of
from flambeau.base.errors import message
from flambeau.core.device import CPU
from flambeau.core.dtype import float32, float64, get_default_dtype
from flambeau.engine import recording
from flambeau.engine import update as engine_update
from flambeau.factories import zeros
from flambeau.ir import bind, tracing
from flambeau.ir.op import IN_PLACE, REGISTRY
from flambeau.tape.grad_mode import enable_grad, no_grad, set_grad_enabled

__all__ = ["Optimizer", "register_optimizer_step_post_hook", "register_optimizer_step_pre_hook"]

_ids = itertools.count()
_global_pre_hooks: OrderedDict[int, Callable] = OrderedDict()
_global_post_hooks: OrderedDict[int, Callable] = OrderedDict()


class _Required:
    """The default of an option that every group must give."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()


class HookHandle:
    """Takes a hook off again."""

    def __init__(self, table: OrderedDict, hook: Callable, prepend: bool = False):
        self.id, self.table = next(_ids), table
        table[self.id] = hook
        if prepend:
            table.move_to_end(self.id, last=False)

    def remove(self) -> None:
        self.table.pop(self.id, None)


def register_optimizer_step_pre_hook(hook: Callable) -> HookHandle:
    """hook(optimizer, args, kwargs) before the step of any optimiser."""
    return HookHandle(_global_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Callable) -> HookHandle:
    """hook(optimizer, args, kwargs) after the step of any optimiser."""
    return HookHandle(_global_post_hooks, hook)


def _check_recorded(optimizer: Optimizer) -> None:
    """Raises: RuntimeError if a graph capture has made state: every replay would start from it anew."""
    recorder = recording.active()
    if recorder is None:
        return
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and recorder.pool.owns(value.storage):
                recorder.refuse(
                    f"{type(optimizer).__name__}.step",
                    f"the state ('{name}') must exist before a graph is captured, or each replay would start from its first value",
                    "Take a step before the capture.",
                )


def _with_hooks(step: Callable) -> Callable:
    @functools.wraps(step)
    def wrapper(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not (
            self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks or _global_pre_hooks or _global_post_hooks
        ):
            result = step(self, *args, **kwargs)
            if bind.MODES:
                _check_recorded(self)
                self._rest_on_options()
            return result
        for hook in (*_global_pre_hooks.values(), *self._optimizer_step_pre_hooks.values()):
            changed = hook(self, args, kwargs)
            if changed is not None:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise RuntimeError(
                        message(
                            "step", "a pre-hook must return None or a tuple of (new_args, new_kwargs)", str(changed)
                        )
                    )
                args, kwargs = changed
        result = step(self, *args, **kwargs)
        if bind.MODES:
            _check_recorded(self)
        for hook in (*self._optimizer_step_post_hooks.values(), *_global_post_hooks.values()):
            hook(self, args, kwargs)
        if bind.MODES:
            self._rest_on_options()
        return result

    wrapper.hooked = True
    return wrapper


class Optimizer:
    """Base class. `params`: tensors, (name, tensor) pairs, or dicts with "params" and options that differ from `defaults`."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]):
        self._make_tables()
        self.defaults = defaults
        if isinstance(params, Tensor):
            raise TypeError(
                f"params argument given to the optimizer should be an iterable of Tensors or dicts, but got {type(params).__name__}"
            )
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(dict(group))

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        step = cls.__dict__.get("step")
        if step is not None and not getattr(step, "hooked", False):
            cls.step = _with_hooks(step)

    def _make_tables(self) -> None:
        for name in (
            "_optimizer_step_pre_hooks",
            "_optimizer_step_post_hooks",
            "_optimizer_state_dict_pre_hooks",
            "_optimizer_state_dict_post_hooks",
            "_optimizer_load_state_dict_pre_hooks",
            "_optimizer_load_state_dict_post_hooks",
        ):
            self.__dict__.setdefault(name, OrderedDict())

    def __getstate__(self) -> dict:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, values: dict) -> None:
        self.__dict__.update(values)
        self._make_tables()

    def __repr__(self) -> str:
        lines = [type(self).__name__ + " ("]
        for i, group in enumerate(self.param_groups):
            lines += ["", f"Parameter Group {i}"] if i else [f"Parameter Group {i}"]
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join(lines) + "\n)"

    # ------------------------------------------------------------------ groups
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a dict with "params" and options; missing options take the defaults.

        Raises: TypeError, ValueError for what is no leaf tensor, is there already, or lacks a required option.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in sets will change "
                "between runs. Please use a list instead."
            )
        params = [params] if isinstance(params, Tensor) else list(params)
        tensors, names = [], []
        for entry in params:
            if isinstance(entry, tuple) and len(entry) == 2:
                names.append(entry[0])
                entry = entry[1]
            tensors.append(entry)
        if names and len(names) != len(tensors):
            raise ValueError("all optimizer params should be with/without names. Some param names are missing")
        for t in tensors:
            if not isinstance(t, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(t).__name__}")
            if not self.defaults.get("differentiable", None) and not (t.is_leaf or t.retains_grad):
                raise ValueError("can't optimize a non-leaf Tensor")
        param_group["params"] = tensors
        if names:
            param_group["param_names"] = names
        if self.param_groups and bool(names) != ("param_names" in self.param_groups[0]):
            given, there = ("with names", "without names") if names else ("without names", "with names")
            raise ValueError(
                f"all optimizer param groups should be with/without names. cannot add param group {given} to the optimizer {there}"
            )
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
            param_group.setdefault(name, default)
        if len({id(t) for t in tensors}) != len(tensors):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; in future, this will cause an error",
                stacklevel=3,
            )
        known = {id(t) for group in self.param_groups for t in group["params"]}
        if any(id(t) in known for t in tensors):
            raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of every parameter (or fill them with zeros)."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    g = p.grad.detach()
                    g.zero_()
                    p._set_grad(g)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters. `closure` computes the loss again and returns it."""
        raise NotImplementedError(f"{type(self).__name__}.step: define it in the subclass.")

    def _rest_on_options(self) -> None:
        """A trace is right for the parameters, options and state of now; learning rates may change."""
        rest_on(lambda: _options(self.param_groups, self._options_that_move()), f"the options of {type(self).__name__}")
        rest_on(lambda state=self.state: self.state is state, f"the state of {type(self).__name__}")
        rest_on(lambda: sum(map(len, self.state.values())), f"how much state {type(self).__name__} has")

    def _options_that_move(self) -> frozenset:
        return frozenset(at for at, value in self.__dict__.get("_options_traced", {}).items() if value is _MOVES)

    # ------------------------------------------------------------------ what algorithms use
    def option(self, group: dict, key: str) -> Any:
        """An option that schedules change too (a momentum, betas): as it is. In a trace that is replayed, once it is not what it was in the
        trace before, 0-dim tensors that each replay sets to what the group has then."""
        value = group[key]
        trace = tracing.current() if bind.MODES else None
        if trace is None or not trace.repeats:
            return value
        at = (id(group), key)
        made = trace.memo.get(at)
        if made is not None:
            return made
        several = isinstance(value, (tuple, list))
        if all(isinstance(v, (int, float)) for v in (value if several else (value,))):
            known = self.__dict__.setdefault("_options_traced", {})
            if known.setdefault(at, value) != value:
                known[at] = _MOVES
            if known[at] is _MOVES:
                count = len(value) if several else 1
                given = trace.host(
                    lambda: tuple(float(v) for v in (group[key] if several else (group[key],))), (float,) * count
                )
                value = tuple(REGISTRY["full"]((), v, dtype=float64) for v in given)
                value = value if several else value[0]
        trace.memo[at] = value
        return value

    def closure_loss(self, closure: Callable[[], Any] | None) -> Any:
        """The closure's loss, computed with gradients; None without a closure."""
        if closure is None:
            return None
        with enable_grad():
            return closure()

    def gradients(self) -> Iterator[tuple[dict, Tensor, Tensor]]:
        """(group, parameter, gradient) of every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad
                if g is not None:
                    yield group, p, g

    def each(self) -> Iterator[tuple[dict, Tensor, Tensor, dict]]:
        """(group, parameter, gradient, state) of every parameter that has a gradient."""
        for group, p, g in self.gradients():
            yield group, p, g, self.state[p]

    def update(
        self,
        function: Callable[..., tuple],
        written: tuple[int, ...],
        tensors: Sequence[Tensor],
        numbers: Sequence[Any],
        group: dict,
        flags: tuple = (),
    ) -> None:
        """tensors[i] for i in `written` become function(*tensors, *numbers, *flags); complex tensors are seen as pairs of real ones."""
        if group.get("differentiable"):
            results = function(*tensors, *numbers, *flags)
            for i, value in zip(written, results):
                IN_PLACE["copy_"].in_place(tensors[i], value)
            return
        if tensors[0].spec.dtype.is_complex:
            tensors = [REGISTRY["view_as_real"](t.detach()) if t.spec.dtype.is_complex else t for t in tensors]
        engine_update.run(function, written, tensors, numbers, flags)

    # ------------------------------------------------------------------ hooks
    def register_step_pre_hook(self, hook: Callable) -> HookHandle:
        """hook(optimizer, args, kwargs) before a step; may return other arguments."""
        return HookHandle(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable) -> HookHandle:
        """hook(optimizer, args, kwargs) after a step."""
        return HookHandle(self._optimizer_step_post_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Callable, prepend: bool = False) -> HookHandle:
        """hook(optimizer) before a state dict is made."""
        return HookHandle(self._optimizer_state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable, prepend: bool = False) -> HookHandle:
        """hook(optimizer, state_dict) after a state dict is made; may return another."""
        return HookHandle(self._optimizer_state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable, prepend: bool = False) -> HookHandle:
        """hook(optimizer, state_dict) before loading; may return another state dict."""
        return HookHandle(self._optimizer_load_state_dict_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable, prepend: bool = False) -> HookHandle:
        """hook(optimizer) after loading."""
        return HookHandle(self._optimizer_load_state_dict_post_hooks, hook, prepend)

    # ------------------------------------------------------------------ state dicts
    def state_dict(self) -> dict[str, Any]:
        """State by parameter number, and the groups with numbers in place of parameters."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                numbers.setdefault(id(p), len(numbers))
            groups.append(
                {
                    **{k: v for k, v in group.items() if k != "params"},
                    "params": [numbers[id(p)] for p in group["params"]],
                }
            )
        state = {numbers[id(k)] if isinstance(k, Tensor) else k: v for k, v in self.state.items()}
        result = {"state": state, "param_groups": groups}
        for hook in self._optimizer_state_dict_post_hooks.values():
            changed = hook(self, result)
            if changed is not None:
                result = changed
        return result

    @no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take state and options from a state dict; floating state takes each parameter's dtype and device.

        Raises: ValueError if the numbers of groups or of parameters differ.
        """
        state_dict = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state_dict)
            if changed is not None:
                state_dict = changed
        groups, saved = self.param_groups, copy.deepcopy(state_dict["param_groups"])
        if len(groups) != len(saved):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in saved]:
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
            )
        by_number = dict(
            zip(
                itertools.chain.from_iterable(g["params"] for g in saved),
                itertools.chain.from_iterable(g["params"] for g in groups),
            )
        )
        state: defaultdict[Any, Any] = defaultdict(dict)
        for key, value in state_dict["state"].items():
            p = by_number.get(key)
            if p is None:
                state[key] = value
            else:
                state[p] = _fitted(p, value)
        merged = []
        for old, new in zip(groups, saved):
            new["params"] = old["params"]
            if "param_names" in old and "param_names" not in new:
                new["param_names"] = old["param_names"]
            merged.append(new)
        self.__setstate__({"state": state, "param_groups": merged})
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)


def _fitted(p: Tensor, value: Any, key: Any = None) -> Any:
    """State as the parameter wants it: copied; its dtype where it floats, but counts stay as they are."""
    if isinstance(value, Tensor):
        if key == "step":
            return value.detach().clone() if value.dtype.is_floating_point else value.to(float32)
        return (
            value.detach().to(p.dtype).clone()
            if p.dtype.is_floating_point and value.dtype.is_floating_point
            else value.detach().clone()
        )
    if isinstance(value, dict):
        return {k: _fitted(p, v, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_fitted(p, v) for v in value)
    return value


_MOVES = object()


def _options(groups: list[dict], moving: frozenset) -> tuple:
    """Parameters and options of groups as one value; learning rates that are numbers and what moves (id of group, key) left out."""
    return tuple(
        tuple(
            (key, tuple(map(id, value)) if key == "params" else id(value) if isinstance(value, Tensor) else value)
            for key, value in group.items()
            if (key not in ("lr", "initial_lr") or isinstance(value, Tensor)) and (id(group), key) not in moving
        )
        for group in groups
    )


# ------------------------------------------------------------------ numbers
def in_trace() -> bool:
    """Whether numbers must stay tensors: a trace, an interpreter or a graph capture is on."""
    return bool(bind.MODES) and recording.is_symbolic()


def number(value: Any) -> Any:
    """An option as a Python number; as it is inside a trace."""
    return value.item() if isinstance(value, Tensor) and not in_trace() else value


def rest_on(get: Callable[[], Any], text: str) -> None:
    """A trace that is replayed is right while get() gives what it gives now; nothing in eager mode."""
    trace = tracing.current() if bind.MODES else None
    if trace is not None and trace.repeats:
        trace.depend(get, text)


def rate(group: dict) -> Any:
    """The learning rate of a group as a number; in a trace that is replayed a 0-dim tensor that each replay sets to what the group has then."""
    lr = group["lr"]
    trace = tracing.current() if bind.MODES else None
    if trace is None or not trace.repeats or isinstance(lr, Tensor):
        return number(lr)
    made = trace.memo.get(("lr", id(group)))
    if made is None:
        (given,) = trace.host(lambda: (float(group["lr"]),), (float,))
        made = trace.memo["lr", id(group)] = REGISTRY["full"]((), given, dtype=float64)
    return made


def scalar(value: float = 0.0) -> Tensor:
    """A 0-dim tensor for the state (`step` …); made at once, also in a trace."""
    with tracing.suspended():
        made = zeros((), dtype=float64 if get_default_dtype() is float64 else float32)
        return made.fill_(value) if value else made


_cells = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int64": ctypes.c_int64}


def counted(step: Tensor) -> Any:
    """Add one to a 0-dim count in place. Returns the new count: a float, or inside a trace a 0-dim tensor as precise as one."""
    if in_trace() or step.spec.device is not CPU:
        step.add_(1)
        return step.to(float64) if in_trace() else step.item()  # 1 - beta**n in float32 loses half its digits
    cell = _cells[step.spec.dtype.name].from_address(step.ptr)
    cell.value = found = cell.value + 1
    step.storage.version += 1
    return found


def read_scalar(t: Any) -> Any:
    """The value of a 0-dim tensor; the tensor itself inside a trace."""
    if not isinstance(t, Tensor) or in_trace():
        return t
    return _cells[t.spec.dtype.name].from_address(t.ptr).value if t.spec.device is CPU else t.item()


def multiply_scalar(t: Tensor, by: Any) -> Any:
    """Multiply a 0-dim tensor in its dtype. Returns the product as `read_scalar` does."""
    if isinstance(by, Tensor) or in_trace() or t.spec.device is not CPU:
        t.mul_(by)
        return read_scalar(t)
    cell = _cells[t.spec.dtype.name].from_address(t.ptr)
    cell.value = cell.value * type(cell)(by).value
    t.storage.version += 1
    return cell.value


def write_scalar(t: Tensor, value: Any) -> None:
    """Set a 0-dim tensor."""
    if isinstance(value, Tensor) or in_trace() or t.spec.device is not CPU:
        t.copy_(value) if isinstance(value, Tensor) else t.fill_(value)
        return
    _cells[t.spec.dtype.name].from_address(t.ptr).value = value
    t.storage.version += 1


def zeros_like(p: Tensor) -> Tensor:
    """A zero tensor in the layout of a parameter, without history; made at once, also in a trace."""
    return filled_like(p, 0)


def filled_like(p: Tensor, value: Any) -> Tensor:
    """A tensor of one value in the layout of a parameter, without history; made at once, also in a trace."""
    with tracing.suspended(), no_grad():
        return empty_of(p.spec.plain()).fill_(value)


def at_least(name: str, value: Any, least: float = 0.0, text: str | None = None) -> None:
    """Raises: ValueError for an option below `least`."""
    if not isinstance(value, Tensor) and not value >= least:
        raise ValueError(f"Invalid {text or name}: {value}")


def check_lr(lr: Any) -> None:
    """Raises: ValueError for a learning rate below 0, or a tensor of more than one element."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    at_least("lr", lr, text="learning rate")


def check_betas(betas: Sequence[Any]) -> None:
    """Raises: ValueError for a beta outside [0, 1)."""
    for i, beta in enumerate(betas):
        if not isinstance(beta, Tensor) and not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")


def differentiable_step(step: Callable) -> Callable:
    """A step that runs without gradients, or with them where every group is `differentiable`."""

    @functools.wraps(step)
    def wrapper(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with set_grad_enabled(bool(self.defaults.get("differentiable", False))):
            return step(self, *args, **kwargs)

    return wrapper
