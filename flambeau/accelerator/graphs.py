"""Callables whose forward and backward are replayed: `make_graphed_callables`.

    net = make_graphed_callables(net, (sample,))      # forward and backward are recorded on the sample's memory
    loss_of(net(x)).backward()                        # each call replays them

A call copies its inputs to where the samples lie, replays the forward, and gives results on the graph's memory: the next call writes them anew,
so clone what is to be kept. Backward copies the gradients in, replays, and hands on the gradients of inputs and parameters.

May not know: how launches are recorded (`capture.replay`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.autograd.api import grad as gradients_of
from flambeau.autograd.function import Function, once_differentiable
from flambeau.base.pytree import tree_flatten, tree_unflatten
from flambeau.capture.replay import Graph, graph_pool_handle
from flambeau.factories import zeros_like
from flambeau.ir.op import IN_PLACE, REGISTRY
from flambeau.nn.modules.module import Module
from flambeau.runtime.private_pool import Handle
from flambeau.tape.grad_mode import no_grad


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Handle | None = None,
) -> Any:
    """A callable (or a tuple of them) whose forward and backward replay graphs.

    callables: functions of tensors or modules; a module is changed and returned. Where a module's `training` is not what it was at the capture,
    its own forward runs. They must be called in the order given, backwards in the reverse order.

    sample_args: a tuple of tensors for each, with the shapes, dtypes and `requires_grad` that calls will have. They become the static inputs.

    num_warmup_iters: eager runs before the capture. allow_unused_input: inputs and parameters may get no gradient.

    Raises: AssertionError for modules with hooks or with buffers that need gradients; TypeError for samples that are no tensors;
    RuntimeError at calls with other shapes, dtypes or devices than the samples', and for second derivatives.
    """
    single = not isinstance(callables, tuple)
    functions = (callables,) if single else callables
    samples = (sample_args,) if single else sample_args
    if not single and len(functions) != len(samples):
        raise ValueError(
            f"make_graphed_callables: each callable must have its sample_args, got {len(functions)} and {len(samples)}."
        )
    pool = graph_pool_handle() if pool is None else pool
    made = [_Graphed(f, tuple(s), allow_unused_input) for f, s in zip(functions, samples)]
    for one in made:
        one.warm_up(num_warmup_iters)
    for one in made:
        one.capture_forward(pool)
    for one in reversed(made):
        one.capture_backward(pool)
    results = tuple(one.callable() for one in made)
    return results[0] if single else results


class _Graphed:
    """One callable: its static tensors and two graphs."""

    def __init__(self, function: Callable, sample: tuple, allow_unused: bool) -> None:
        self.function, self.allow_unused = function, allow_unused
        flat, self.structure = tree_flatten(sample)
        for x in flat:
            if not isinstance(x, Tensor):
                raise TypeError(
                    f"make_graphed_callables: sample_args must be tensors, got {type(x).__name__}. Bind other arguments with functools.partial."
                )
        self.inputs: list[Tensor] = flat
        self.training = None
        self.parameters: list[Tensor] = []
        if isinstance(function, Module):
            _check_module(function)
            self.training = function.training
            self.parameters = [p for p in function.parameters() if p.requires_grad]
        self.forward, self.backward = Graph(), Graph()
        self.calls = 0  # of forward and backward

    def run(self) -> Any:
        return self.function(*tree_unflatten(self.inputs, self.structure))

    @property
    def wanted(self) -> list[Tensor]:
        """What gradients are computed of."""
        return [x for x in (*self.inputs, *self.parameters) if x.requires_grad]

    def warm_up(self, times: int) -> None:
        for _ in range(times):
            outs = [x for x in tree_flatten(self.run())[0] if isinstance(x, Tensor)]
            ends = [x for x in outs if x.requires_grad]
            if ends and self.wanted:
                self._gradients(ends, [zeros_like(x.detach()) for x in ends])

    def _gradients(self, ends: Sequence[Tensor], seeds: Sequence[Tensor]) -> tuple:
        return gradients_of(ends, self.wanted, seeds, allow_unused=self.allow_unused)

    def capture_forward(self, pool: Handle) -> None:
        self.forward.capture_begin(pool)
        try:
            result = self.run()
        except BaseException:
            self.forward._abandon()
            raise
        self.forward.capture_end()
        self.outputs, self.out_structure = tree_flatten(result)
        if not all(isinstance(x, Tensor) for x in self.outputs):
            raise TypeError(
                "make_graphed_callables: results must be tensors. Return them alone, and numbers by another way."
            )

    def capture_backward(self, pool: Handle) -> None:
        ends = [x for x in self.outputs if x.requires_grad]
        self.seeds = [zeros_like(x.detach()) if x.requires_grad else None for x in self.outputs]
        self.found: list[Tensor | None] = []
        if ends and self.wanted:
            self.backward.capture_begin(pool)
            try:
                found = iter(self._gradients(ends, [s for s in self.seeds if s is not None]))
            except BaseException:
                self.backward._abandon()
                raise
            self.backward.capture_end()
            self.found = [next(found) if x.requires_grad else None for x in (*self.inputs, *self.parameters)]
            self.found = [None if g is None else g.detach() for g in self.found]
        self.outputs = [x.detach() for x in self.outputs]
        self.differentiable = [s is not None for s in self.seeds]

    def callable(self) -> Callable:
        """What stands for the function: the module itself, or a function."""
        apply = _function_of(self)

        def graphed(*args: Any, **kwargs: Any) -> Any:
            flat, structure = tree_flatten(args)
            if kwargs or structure != self.structure:
                raise RuntimeError(
                    "make_graphed_callables: a call must have the arguments of the sample, by position. Capture again for others."
                )
            outs = apply(*flat, *self.parameters)
            return tree_unflatten(list(outs) if isinstance(outs, tuple) else [outs], self.out_structure)

        if not isinstance(self.function, Module):
            return graphed
        module, own = self.function, self.function.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return graphed(*args, **kwargs) if module.training == self.training else own(*args, **kwargs)

        module.forward = forward
        return module

    def fill(self, given: Sequence[Tensor]) -> None:
        """Copy inputs to where the samples lie. Raises: RuntimeError for another shape, dtype or device."""
        for number, (static, x) in enumerate(zip(self.inputs, given)):
            if x.shape != static.shape or x.dtype is not static.dtype or x.device is not static.device:
                raise RuntimeError(
                    f"make_graphed_callables: input {number} must be as at the capture, {list(static.shape)} {static.dtype.name} on "
                    f"{static.device}, got {list(x.shape)} {x.dtype.name} on {x.device}. A graph has fixed shapes: capture again for others."
                )
            if x.ptr != static.ptr:
                with no_grad():
                    IN_PLACE["copy_"].in_place(static.detach(), x)


def _check_module(module: Module) -> None:
    hooked = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
    for m in module.modules():
        if any(getattr(m, name) for name in hooked):
            raise AssertionError(
                "make_graphed_callables: modules must not have hooks registered at the time they are passed. Register them afterwards."
            )
    if any(b.requires_grad for b in module.buffers()):
        raise AssertionError(
            "make_graphed_callables: buffers must not require gradients; parameters may (set requires_grad=False on the buffers)."
        )


def _function_of(graphed: _Graphed) -> Callable:
    class Graphed(Function):
        """Forward and backward by replay."""

        @staticmethod
        def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
            graphed.fill(given[: len(graphed.inputs)])
            for x in graphed.outputs:  # whoever saved results of the last call for backward is told that they are gone
                x.storage.version += 1
            graphed.forward.replay()
            graphed.calls += 1
            ctx.call = graphed.calls
            outs = tuple(x.detach() for x in graphed.outputs)
            ctx.mark_non_differentiable(*(x for x, has in zip(outs, graphed.differentiable) if not has))
            return outs

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            if ctx.call != graphed.calls:
                raise RuntimeError(
                    "make_graphed_callables: backward must follow its own call, and the callable was called again since, or went backward "
                    "already: what its forward kept is overwritten. Go backward before the next call, once."
                )
            graphed.calls += 1
            for static, g in zip(graphed.seeds, grads):
                if static is not None and g is not None and g.ptr != static.ptr:
                    with no_grad():
                        IN_PLACE["copy_"].in_place(static, g)
            graphed.backward.replay()
            return tuple(
                None if g is None else REGISTRY["clone"](g) for g in graphed.found
            )  # the next replay writes over `found`

    return Graphed.apply


__all__ = ["make_graphed_callables"]
