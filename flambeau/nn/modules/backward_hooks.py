"""Backward hooks of modules: two nodes that change nothing, one around the inputs and one around the outputs of a call.

When the gradients of the outputs pass the outer node the pre-hooks run; when those of the inputs pass the inner one the hooks run.
May not know: the Module class. Entry: `BackwardHook`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor, new_tensor
from flambeau.tape.custom import CustomNode, attach


class BackwardHook:
    """The hooks of one call of a module."""

    def __init__(self, module: Any, hooks: list[Callable], pre_hooks: list[Callable]):
        self.module, self.hooks, self.pre_hooks = module, hooks, pre_hooks
        self.grad_outputs: tuple | None = None
        self.watches_inputs = False
        self.input_count = 0

    def on_inputs(self, args: tuple) -> tuple:
        """The arguments, tensors among them behind a node."""
        self.input_count = len(args)
        at = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        found = list(args)
        outs = [_same(args[i]) for i in at]

        def run(grads: list) -> list:
            given = _packed(at, grads, self.input_count)
            for hook in self.hooks:
                changed = hook(self.module, given, self.grad_outputs)
                if changed is not None:
                    given = changed if isinstance(changed, tuple) else (changed,)
                    if len(given) != self.input_count:
                        raise RuntimeError(
                            f"Backward hook returned an invalid number of grad_input, got {len(given)}, but expected {self.input_count}"
                        )
            self.grad_outputs = None
            return [given[i] for i in at]

        if self.hooks and attach(CustomNode(), [args[i] for i in at], outs, run, "BackwardHookFunctionBackward"):
            self.watches_inputs = True
            for i, t in zip(at, outs):
                if args[i].requires_grad:
                    found[i] = t
        return tuple(found)

    def on_outputs(self, result: Any) -> Any:
        """The result, tensors in it behind a node."""
        single = isinstance(result, Tensor)
        values = [result] if single else list(result) if isinstance(result, (tuple, list)) else []
        at = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
        outs = [_same(values[i]) for i in at]

        def run(grads: list) -> list:
            given = _packed(at, grads, len(values))
            for hook in self.pre_hooks:
                changed = hook(self.module, given)
                if changed is not None:
                    given = changed if isinstance(changed, tuple) else (changed,)
                    if len(given) != len(values):
                        raise RuntimeError(
                            f"Backward pre hook returned an invalid number of grad_output, got {len(given)}, but expected {len(values)}"
                        )
            self.grad_outputs = given
            if not self.watches_inputs:
                for hook in self.hooks:
                    if hook(self.module, (None,) * self.input_count, given) is not None:
                        raise RuntimeError(
                            "Backward hook for Modules where no input requires gradient should always return None or None for all "
                            "gradients."
                        )
            return [given[i] for i in at]

        if not attach(CustomNode(), [values[i] for i in at], outs, run, "BackwardHookFunctionBackward"):
            return result
        for i, t in zip(at, outs):
            if values[i].requires_grad:
                values[i] = t
        if single:
            return values[0]
        return type(result)(*values) if hasattr(result, "_fields") else type(result)(values)


def _same(t: Tensor) -> Tensor:
    made = new_tensor(t.spec, t.ptr, t.storage)
    for name in ("_traced", "_wrapped"):
        if name in t.__dict__:
            made.__dict__[name] = t.__dict__[name]
    return made


def _packed(at: list[int], grads: list, count: int) -> tuple:
    full: list = [None] * count
    for i, g in zip(at, grads):
        full[i] = g
    return tuple(full)
