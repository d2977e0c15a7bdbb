"""Checkpoints of activations: a part of the forward is run again in backward instead of keeping what it saved.

    y = checkpoint(block, x, use_reentrant=False)

Without re-entrance every tensor that the part saves is replaced by a number; the first time backward asks for one, the part runs again and
gives them all. With it the part is one node, whose backward runs the part and backward through it. Both put the random numbers back first.

May not know: modules. Entry: `checkpoint`, `checkpoint_sequential`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.autograd.api import backward
from flambeau.autograd.function import Function
from flambeau.autograd.graph import saved_tensors_hooks
from flambeau.ir import tracing
from flambeau.ir.bind import MODES
from flambeau.random import default_generator, fork_rng
from flambeau.tape.grad_mode import enable_grad, is_grad_enabled

__all__ = [
    "CheckpointError",
    "CheckpointFunction",
    "checkpoint",
    "checkpoint_sequential",
    "noop_context_fn",
    "set_checkpoint_early_stop",
]


class CheckpointError(RuntimeError):
    """A part did not do the same when it was run again."""


class _StopRecomputation(Exception):
    """Everything that was asked for has been computed again."""


_early_stop: list[bool] = [True]


@contextlib.contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Whether running again stops once the last saved tensor is there (for checkpoints made inside the block)."""
    _early_stop.append(enable)
    try:
        yield
    finally:
        _early_stop.pop()


def noop_context_fn() -> tuple[Any, Any]:
    """No contexts around the two runs."""
    return contextlib.nullcontext(), contextlib.nullcontext()


class _Part:
    """A function with its arguments and the state of the random numbers, to be run again."""

    def __init__(self, function: Callable, args: tuple, kwargs: dict, preserve_rng_state: bool, context: Any = None):
        self.function, self.args, self.kwargs = function, args, kwargs
        self.generator = default_generator.clone_state() if preserve_rng_state else None
        self.context = context if context is not None else contextlib.nullcontext()

    def run_again(self, args: tuple | None = None) -> Any:
        """The function's result, with gradients on."""
        with fork_rng(enabled=self.generator is not None), enable_grad(), self.context:
            if self.generator is not None:
                default_generator._seed, default_generator._count = self.generator._seed, self.generator._count
            return self.function(*(self.args if args is None else args), **self.kwargs)


def checkpoint(
    function: Callable,
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], tuple[Any, Any]] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """function(*args, **kwargs), run again in backward instead of keeping what it saves.

    use_reentrant: False (the better one: keyword arguments, nested results, any way of calling backward) or True (as it first was: at least
    one tensor argument must require grad). Raises: CheckpointError in backward if the function saved other tensors the second time;
    ValueError for options that exclude each other.
    """
    if use_reentrant is None:
        warnings.warn(
            "checkpoint: the use_reentrant parameter should be passed explicitly: use_reentrant=False is recommended, True is assumed.",
            stacklevel=2,
        )
        use_reentrant = True
    trace = tracing.current() if MODES else None
    if trace is not None and trace.repeats:  # a compiled function keeps little and computes the rest again anyway
        return function(*args, **kwargs)
    if use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        if context_fn is not noop_context_fn or debug is not False:
            raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
        return CheckpointFunction.apply(function, preserve_rng_state, *args)
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check should be one of ['default', 'none'], but got {determinism_check}")
    before, again = context_fn()
    frame = _Frame(
        _Part(function, args, kwargs, preserve_rng_state, again),
        determinism_check == "default",
        early_stop and _early_stop[-1],
    )
    if not is_grad_enabled():
        with before:
            return function(*args, **kwargs)
    with saved_tensors_hooks(frame.pack, frame.unpack), before:
        return function(*args, **kwargs)


class _Frame:
    """What one checkpoint saved: numbers, and once the part has run again the tensors."""

    def __init__(self, part: _Part, checks: bool, early_stop: bool):
        self.part, self.checks, self.early_stop = part, checks, early_stop
        self.described: list[tuple] = []
        self.found: dict[int, Tensor] = {}

    def pack(self, x: Tensor) -> int:
        self.described.append((tuple(x.shape), x.dtype, x.device))
        return len(self.described) - 1

    def unpack(self, number: int) -> Tensor:
        if number not in self.found:
            self._compute()
        return self.found.pop(number)

    def _compute(self) -> None:
        found: list[Tensor] = []

        def pack(x: Tensor) -> Tensor:
            found.append(x.detach())
            if self.early_stop and len(found) == len(self.described):
                raise _StopRecomputation
            return found[-1]

        try:
            with saved_tensors_hooks(pack, lambda x: x):
                self.part.run_again()
        except _StopRecomputation:
            pass
        if len(found) != len(self.described):
            raise CheckpointError(
                f"checkpoint: A different number of tensors was saved during the original forward and recomputation. Number of tensors "
                f"saved during forward: {len(self.described)}. Number of tensors saved during recomputation: {len(found)}. The function "
                f"must do the same each time."
            )
        for i, (x, wanted) in enumerate(zip(found, self.described)):
            if self.checks and (tuple(x.shape), x.dtype, x.device) != wanted:
                raise CheckpointError(
                    f"checkpoint: Recomputed values for the following tensors have different metadata than during the forward pass: tensor "
                    f"{i}: saved {wanted}, recomputed {(tuple(x.shape), x.dtype, x.device)}. The function must do the same each time."
                )
            self.found[i] = x


class CheckpointFunction(Function):
    """The re-entrant form."""

    @staticmethod
    def forward(ctx: Any, run_function: Callable, preserve_rng_state: bool, *args: Any) -> Any:
        if not any(isinstance(a, Tensor) and a.requires_grad for a in args):
            warnings.warn(
                "checkpoint: None of the inputs have requires_grad=True. Gradients will be None", stacklevel=4
            )
        ctx.part = _Part(run_function, (), {}, preserve_rng_state)
        ctx.others = [None if isinstance(a, Tensor) else a for a in args]
        ctx.tensor_at = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        ctx.save_for_backward(*(args[i] for i in ctx.tensor_at))
        return run_function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple:
        args = list(ctx.others)
        for i, t in zip(ctx.tensor_at, ctx.saved_tensors):
            args[i] = t.detach().requires_grad_(t.requires_grad)
        outputs = ctx.part.run_again(tuple(args))
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [(o, g) for o, g in zip(outputs, grads) if isinstance(o, Tensor) and o.requires_grad]
        if not pairs:
            raise RuntimeError("none of output has requires_grad=True, this checkpoint() is not necessary")
        backward([o for o, _ in pairs], [g for _, g in pairs])
        return (None, None, *(a.grad if isinstance(a, Tensor) else None for a in args))


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """A Sequential (or list of functions) in `segments` checkpoints, the last of which is run plainly."""
    if use_reentrant is None:
        warnings.warn(
            "checkpoint_sequential: the use_reentrant parameter should be passed explicitly: use_reentrant=False is recommended, True is "
            "assumed.",
            stacklevel=2,
        )
        use_reentrant = True
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    parts: Sequence[Callable] = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(parts) // segments

    def segment(start: int, stop: int) -> Callable:
        def run(x: Any) -> Any:
            for f in parts[start:stop]:
                x = f(x)
            return x

        return run

    end = 0
    for start in range(0, size * (segments - 1), size):
        end = start + size
        input = checkpoint(segment(start, end), input, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    return segment(end, len(parts))(input)
