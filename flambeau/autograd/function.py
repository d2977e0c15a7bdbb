"""Functions with a backward of their own.

    class Cube(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x ** 3

        @staticmethod
        def backward(ctx, g):
            x, = ctx.saved_tensors
            return 3 * x ** 2 * g

    y = Cube.apply(x)

The context is the tape's node itself: `y.grad_fn` and `ctx` are one object. May not know: modules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from flambeau._tensor import Tensor, new_tensor
from flambeau.ir.op import REGISTRY
from flambeau.tape import custom, views
from flambeau.tape.custom import CustomNode, Saved
from flambeau.tape.grad_mode import enable_grad, no_grad

__all__ = ["BackwardCFunction", "Function", "FunctionCtx", "once_differentiable"]


class FunctionCtx:
    """What `forward` may say to `backward`. Other attributes may be set freely."""

    __slots__ = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep inputs and outputs (or None) for `saved_tensors`; writing to them meanwhile becomes an error."""
        self.to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `jvp`."""
        self.saved_for_forward = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """These inputs were written in place, and are returned."""
        self.dirty_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """These outputs carry no gradient."""
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether `backward` gets zeros (or None) for outputs without a gradient."""
        self.materialize_grads = value


class _Node(FunctionCtx, CustomNode):
    """A context before it is known which function it belongs to."""

    __slots__ = ()
    _function: type

    def __init__(self) -> None:
        self.edges, self.saved, self.extras, self.differentiable = (), None, None, frozenset()
        self.to_save: tuple | None = ()  # None once the node keeps them
        self.dirty_tensors: tuple = ()
        self.non_differentiable: tuple = ()
        self.materialize_grads = True
        self.needs_input_grad: tuple = ()
        self.layout: tuple = ()  # specs of the arguments, specs of the tensor outputs, where those stand, how many outputs there are

    @property
    def saved_tensors(self) -> tuple:
        """What `save_for_backward` was given."""
        return self.to_save if self.to_save is not None else self.saved_tensors_of()

    saved_variables = saved_tensors

    def apply(self, *grads: Any) -> Any:
        return self._function.backward(self, *grads)

    def backward(self, grads: list, create_graph: bool) -> list:
        return _run_backward(self._function, self, grads, *self.layout)


BackwardCFunction = _Node


class _Meta(type):
    """Gives every Function a node class of its own, so that `grad_fn` prints as `<CubeBackward>`."""

    def __init__(cls, name: str, bases: tuple, namespace: dict):
        cls._backward_cls = type(name + "Backward", (_Node,), {"__slots__": (), "_function": cls})
        super().__init__(name, bases, namespace)


class Function(metaclass=_Meta):
    """Base class: define `forward` and `backward` (static), and call `apply`.

    Two styles: `forward(ctx, *args)`, or `forward(*args)` with `setup_context(ctx, inputs, output)`.
    """

    generate_vmap_rule = False

    def __init__(self, *args: Any, **kwargs: Any):
        raise TypeError(
            f"{type(self).__name__}: Functions are not made, their apply() is called: {type(self).__name__}.apply(...)."
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """What apply computes."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> Any:
        """Keep what backward needs, where `forward` takes no context."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Gradients of the inputs, one for each argument of apply (None where there is none)."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with backward mode AD."
        )

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Tangents of the outputs from tangents of the inputs."""
        raise NotImplementedError(
            "You must implement the jvp function for custom autograd.Function to use it with forward mode AD."
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward, and tape it."""
        ctx = cls._backward_cls()
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        with no_grad():
            if cls.setup_context is not Function.setup_context:
                output = cls.forward(*args, **kwargs)
                cls.setup_context(ctx, args, output)
            else:
                output = cls.forward(ctx, *args, **kwargs)
        return _taped(cls, ctx, args, output)


def _taped(cls: type, ctx: Any, args: tuple, output: Any) -> Any:
    single = not isinstance(output, (tuple, list))
    values = [output] if single else list(output)
    tensor_at = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
    dirty = {id(t) for t in ctx.dirty_tensors}
    inputs = {id(a) for a in args if isinstance(a, Tensor)}
    outs = []
    for i in tensor_at:
        t = values[i]
        if id(t) in dirty:
            fresh = _alias(t)
        elif id(t) in inputs or t._view is not None or t.node is not None:
            fresh = values[i] = _alias(t)
        else:
            fresh = t
        outs.append(fresh)
    originals = [(output if single else output[i]) for i in tensor_at]
    no_gradient = frozenset(j for j, t in enumerate(originals) if any(t is x for x in ctx.non_differentiable))
    specs = [a.spec.plain() if isinstance(a, Tensor) else None for a in args]

    ctx.layout = (specs, [o.spec.plain() for o in outs], tensor_at, len(values))
    taped = custom.attach(ctx, args, outs, None, cls.__name__ + "Backward", no_gradient)
    if taped:
        positions = {id(t): j for j, t in enumerate(originals)}
        ctx.saved = tuple(
            Saved(t, positions.get(id(t)) if id(t) not in inputs or id(t) in dirty else None) if t is not None else None
            for t in ctx.to_save
        )
        ctx.to_save = None
    for t, fresh in zip(originals, outs):
        if id(t) in dirty:
            if t.storage is not None:
                t.storage.version += 1
            if fresh.node is not None:
                views._rebase(t, fresh)
    if taped:
        _note_versions(ctx)
    return values[0] if single else tuple(values)


def _note_versions(ctx: Any) -> None:
    for s in ctx.saved or ():
        if s is not None and s.output is not None and s.unpack is None and s.value.storage is not None:
            s.version = s.value.storage.version


def _alias(t: Tensor) -> Tensor:
    """The same memory as a tensor without history, and no view as far as the tape is concerned."""
    fresh = new_tensor(t.spec, t.ptr, t.storage)
    for name in ("_traced", "_wrapped"):
        if name in t.__dict__:
            fresh.__dict__[name] = t.__dict__[name]
    return fresh


def _run_backward(cls: type, ctx: Any, grads: list, specs: list, out_specs: list, tensor_at: list, count: int) -> list:
    given: list = [None] * count
    for at, g, spec in zip(tensor_at, grads, out_specs):
        if g is None and ctx.materialize_grads:
            g = REGISTRY["full"](tuple(spec.shape), 0, dtype=spec.dtype, device=spec.device)
        given[at] = g
    found = cls.backward(ctx, *given) if cls.backward is not Function.backward else _vjp_of(cls)(ctx, *given)
    found = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(found) > len(specs) and all(g is None for g in found[len(specs) :]):
        found = found[: len(specs)]
    if len(found) != len(specs):
        raise RuntimeError(
            f"function {cls.__name__}Backward returned an incorrect number of gradients (expected {len(specs)}, got {len(found)})"
        )
    for i, (g, spec) in enumerate(zip(found, specs)):
        if g is not None and not isinstance(g, Tensor):
            raise TypeError(
                f"{cls.__name__}.backward: expected a Tensor or None as gradient {i}, got {type(g).__name__}."
            )
        if g is not None and spec is None:
            raise RuntimeError(
                f"function {cls.__name__}Backward returned a gradient different from None at position {i + 1}, but the corresponding "
                f"forward "
                f"input was not a Variable"
            )
    return custom.fitted(cls.__name__ + "Backward", found, specs)


def _vjp_of(cls: type) -> Callable:
    return cls.vjp if hasattr(cls, "vjp") else Function.backward


def once_differentiable(fn: Callable) -> Callable:
    """A backward that cannot be differentiated itself: trying to raises RuntimeError."""

    @functools.wraps(fn)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        needs = any(isinstance(g, Tensor) and g.requires_grad for g in grads)
        with no_grad():
            outputs = fn(ctx, *grads)
        if not needs:
            return outputs
        found = outputs if isinstance(outputs, tuple) else (outputs,)
        with enable_grad():
            wrong = tuple(_not_twice(g) for g in found)
        return wrong if isinstance(outputs, tuple) else wrong[0]

    return wrapper


def _not_twice(g: Any) -> Any:
    if not isinstance(g, Tensor) or not g.dtype.is_inexact:
        return g
    leaf, fresh = _alias(g), _alias(g)
    leaf.needs_grad = True

    def refuse(grads: Sequence[Any]) -> list:
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")

    custom.attach(CustomNode(), (leaf,), (fresh,), refuse, "DelayedError")
    return fresh
