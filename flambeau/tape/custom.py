"""Nodes that a Python function stands behind: user-defined `Function`s, hooks of modules.

    node = attach(CustomNode, inputs, outs)    # outs get the node as their history
    node.run = lambda grads: [...]             # gradients of the inputs, one each or None

May not know: the tensor class beyond its slots. Entry: `CustomNode`, `attach`, `Saved`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.spec import Spec
from flambeau.ir.op import REGISTRY
from flambeau.tape import record as tape
from flambeau.tape.grad_mode import mode


class _Specs:
    """Stands where a taped op has its Info: specs of the outputs."""

    __slots__ = ("specs",)

    def __init__(self, specs: tuple[Spec, ...]):
        self.specs = specs


class _Analysis:
    """Stands where a taped op has its Analysis."""

    __slots__ = ("info",)
    quick = None

    def __init__(self, specs: tuple[Spec, ...]):
        self.info = _Specs(specs)


class Saved:
    """A tensor kept for backward: an output is kept without its history (the node is that), so that no node keeps itself alive."""

    __slots__ = ("edge", "output", "unpack", "value", "version")

    def __init__(self, x: Any, output: int | None):
        self.output, self.unpack, self.edge = output, None, None
        self.version = x.storage.version if x.storage is not None else None
        self.value = x if output is None else tape.saved_alias(x, history=False)
        if tape.saved_hooks:
            pack, self.unpack = tape.saved_hooks[-1]
            self.edge = tape.edge_of(x)
            self.value = pack(self.value)

    def get(self, node: CustomNode) -> Any:
        """The tensor, with its history. Raises: RuntimeError if it was written to since."""
        x = (
            self.value
            if self.unpack is None
            else tape.with_edge(self.unpack(self.value), self.edge if self.output is None else None)
        )
        if self.unpack is None and self.version is not None and x.storage.version != self.version:
            node.complain_of_version(x, self.version)
        if self.output is None or not node.has_history(self.output):
            return x
        x = tape.saved_alias(x, history=False)
        x.node, x.needs_grad = (node, self.output), True
        return x


class CustomNode(tape.Node):
    """A node whose backward is the Python function `run(grads)`; `title` is its name."""

    __slots__ = ("run", "title", "differentiable", "__dict__")

    def name(self) -> str:
        return self.title

    def has_history(self, at: int) -> bool:
        return at in self.differentiable

    def saved_tensors_of(self) -> tuple:
        """What `saved` holds, as tensors. Raises: RuntimeError after it was freed."""
        if self.saved is None:
            self.complain_of_freed()
        return tuple(s.get(self) if s is not None else None for s in self.saved)

    def backward(self, grads: list, create_graph: bool) -> list:
        return self.run(grads)


def attach(
    node: CustomNode,
    inputs: Sequence[Any],
    outs: Sequence[Any],
    run: Callable[[list], list],
    title: str,
    no_gradient: frozenset[int] = frozenset(),
) -> bool:
    """Make `node` the history of `outs` if grad mode is on and an input needs it. `inputs` are tensors or anything else (no edge).

    `run` must not hold the node (it would keep itself alive); a subclass may define `backward` instead.
    """
    edges = tuple(tape.edge_of(x) if hasattr(x, "spec") and x.spec.dtype.is_inexact else None for x in inputs)
    node.differentiable = frozenset()
    if not mode.enabled or all(e is None for e in edges):
        return False
    node.analysis = _Analysis(tuple(o.spec.plain() for o in outs))
    node.edges, node.run, node.title, node.extras, node.versions = edges, run, title, None, ()
    node.sequence = tape.next_sequence()
    if tape._anomaly:
        node.more().where = tape._anomaly[-1]()
    node.differentiable = frozenset(i for i, o in enumerate(outs) if o.spec.dtype.is_inexact and i not in no_gradient)
    for i in node.differentiable:
        outs[i].needs_grad = True
        outs[i].node = (node, i)
    return True


def fitted(name: str, grads: Sequence[Any], inputs: Sequence[Any]) -> list:
    """Gradients in the shapes and dtypes of their inputs' specs. Raises: RuntimeError for one that does not fit."""
    found = []
    for i, (g, spec) in enumerate(zip(grads, inputs)):
        if g is None or spec is None:
            found.append(None)
            continue
        if g.spec.shape != spec.shape:
            if not _expands(spec.shape, g.spec.shape):
                raise RuntimeError(
                    f"Function {name} returned an invalid gradient at index {i} - got {list(g.spec.shape)} but expected shape compatible "
                    f"with {list(spec.shape)}"
                )
            g = _summed(g, spec.shape)
        if g.spec.dtype is not spec.dtype:
            if g.spec.dtype.is_complex and not spec.dtype.is_complex:
                g = REGISTRY["real"](g)
            g = REGISTRY["to_dtype"](g, spec.dtype) if g.spec.dtype is not spec.dtype else g
        found.append(g)
    return found


def _expands(shape: Sequence[int], target: Sequence[int]) -> bool:
    return len(shape) <= len(target) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(target)))


def _summed(g: Any, shape: Sequence[int]) -> Any:
    lead = len(g.spec.shape) - len(shape)
    dims = (*range(lead), *(i + lead for i, n in enumerate(shape) if n == 1 and g.spec.shape[i + lead] != 1))
    return REGISTRY["reshape"](REGISTRY["sum"](g, dims, True), tuple(shape))
