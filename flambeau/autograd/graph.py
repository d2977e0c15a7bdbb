"""The tape from outside: hooks on what it saves, hooks on several tensors, edges.

with saved_tensors_hooks(pack, unpack):     # every tensor saved for backward goes through pack, and back through unpack
    y = model(x)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from flambeau._tensor import Tensor
from flambeau.tape import record as tape
from flambeau.tape.record import Node, RemovableHandle

__all__ = [
    "GradientEdge",
    "Node",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]

_disabled: list[str] = []


def _nowhere() -> None:
    """Ops are taped the long way, but nothing is noted about where they were called."""


class saved_tensors_hooks:
    """Inside the block `pack_hook(tensor)` decides what is kept of each saved tensor; `unpack_hook(kept)` gives it back in backward."""

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]):
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    def __enter__(self) -> None:
        if _disabled:
            raise RuntimeError(_disabled[-1])
        tape.saved_hooks.append((self.pack_hook, self.unpack_hook))
        tape._anomaly.append(tape._anomaly[-1] if tape._anomaly else _nowhere)

    def __exit__(self, *exc: Any) -> None:
        tape.saved_hooks.pop()
        tape._anomaly.pop()


class save_on_cpu(saved_tensors_hooks):
    """Saved tensors are kept on the CPU: copies of those that live elsewhere."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda"):
        super().__init__(lambda t: (t.device, t.cpu()), lambda kept: kept[1].to(kept[0]))


@contextlib.contextmanager
def disable_saved_tensors_hooks(error_message: str, is_error: bool = True) -> Iterator[None]:
    """Entering `saved_tensors_hooks` inside the block raises RuntimeError with this text."""
    if tape.saved_hooks and is_error:
        raise RuntimeError(error_message)
    _disabled.append(error_message)
    try:
        yield
    finally:
        _disabled.pop()


class GradientEdge(NamedTuple):
    """Where a gradient goes: output `output_nr` of a node."""

    node: Any
    output_nr: int


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """The edge of a tensor. Raises: RuntimeError without requires_grad."""
    if not tensor.requires_grad:
        raise RuntimeError(
            "get_gradient_edge: It is not possible to get the gradient edge for a Tensor that does not require gradients. Call "
            "requires_grad_()."
        )
    node, at = tape.edge_of(tensor)
    return GradientEdge(tape.AccumulateGrad(at), 0) if node is None else GradientEdge(node, at)


def increment_version(tensor: Tensor | Sequence[Tensor]) -> None:
    """Count a write that the tape did not see."""
    for t in [tensor] if isinstance(tensor, Tensor) else tensor:
        t.storage.version += 1


class _Handles:
    def __init__(self, handles: list[RemovableHandle]):
        self.handles = handles

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def __enter__(self) -> _Handles:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.remove()


def register_multi_grad_hook(tensors: Sequence[Tensor], fn: Callable, *, mode: str = "all") -> _Handles:
    """mode "all": fn(gradients) once every tensor's gradient is known; "any": fn(gradient) for the first one of a backward.

    Only tensors on the path of the backward count: those without a gradient are None.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"register_multi_grad_hook: Expects mode to be one of ('all', 'any') but got {mode}")
    found: dict[int, Tensor | None] = {}
    wanted = len(tensors)

    def hook_of(i: int) -> Callable:
        def hook(g: Tensor) -> None:
            if mode == "any":
                if not found:
                    fn(g)
                found[i] = g
            else:
                found[i] = g
                if len(found) == wanted:
                    gradients = [found[j] for j in range(wanted)]
                    found.clear()
                    fn(gradients)
            if mode == "any" and len(found) == wanted:
                found.clear()

        return hook

    return _Handles([t.register_hook(hook_of(i)) for i, t in enumerate(tensors)])
