"""`torch.autograd`'s functions over the tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau._tensor import Tensor, backward_of, seed_gradients
from flambeau.ir.op import REGISTRY
from flambeau.tape.backward import run_backward


def _tuple(x: Any) -> tuple:
    return (x,) if isinstance(x, Tensor) or x is None else tuple(x)


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of `tensors` to `.grad` of the leaves (or of `inputs` only)."""
    tensors = _tuple(tensors)
    grads = _tuple(grad_tensors) if grad_tensors is not None else (None,) * len(tensors)
    backward_of(tensors, grads, retain_graph, create_graph, inputs)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of `outputs` with respect to `inputs`; with `is_grads_batched` for each element of the grad_outputs' leading dim.

    Raises: RuntimeError for an input that was not used unless `allow_unused`.
    """
    if not only_inputs:
        raise ValueError(
            "grad: only_inputs must be True: .grad is never accumulated into, got False. Call backward() for that."
        )
    outputs, inputs = _tuple(outputs), _tuple(inputs)
    grads: Sequence = _tuple(grad_outputs) if grad_outputs is not None else (None,) * len(outputs)
    for i, x in enumerate(inputs):
        if not x.requires_grad:
            raise RuntimeError(
                f"grad: one of the differentiated Tensors does not require grad: input {i}. Call requires_grad_() before the computation."
            )
    if is_grads_batched:
        return _batched(outputs, inputs, grads, create_graph, allow_unused, materialize_grads)
    seeds = seed_gradients("grad", outputs, grads)
    found = run_backward(outputs, seeds, inputs, create_graph=create_graph, retain_graph=retain_graph)
    if materialize_grads:
        found = [g if g is not None else x.detach() * 0 for g, x in zip(found, inputs)]
    elif not allow_unused and any(g is None for g in found):
        raise RuntimeError(
            f"grad: one of the differentiated Tensors (input {found.index(None)}) appears to not have been used in the graph. "
            f"Set allow_unused=True if this is the desired behavior."
        )
    return tuple(found)


def _batched(
    outputs: tuple, inputs: tuple, grads: Sequence, create_graph: bool, allow_unused: bool | None, materialize: bool
) -> tuple:
    """Gradients for every element of the leading dim that `grads` have, stacked; one backward each."""
    sizes = {g.shape[0] for g in grads if g is not None}
    if len(sizes) != 1:
        raise RuntimeError(
            f"grad: with is_grads_batched=True the grad_outputs must have one leading size, got {sorted(sizes)}."
        )
    rows = [
        grad(
            outputs,
            inputs,
            [None if g is None else g[i] for g in grads],
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=allow_unused,
            materialize_grads=materialize,
        )
        for i in range(sizes.pop())
    ]
    return tuple(None if column[0] is None else REGISTRY["stack"](column, 0) for column in zip(*rows))
