"""Running the tape backwards: `backward(tensors)` fills `.grad` of leaves, `grad(outputs, inputs)` returns gradients.

Nodes run in reverse order of recording, each once, when everything that uses its outputs has run.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from flambeau.engine import recording
from flambeau.ir import tracing
from flambeau.ir.bind import MODES
from flambeau.ir.op import IN_PLACE, REGISTRY
from flambeau.tape import record as tape
from flambeau.tape.grad_mode import mode


def _add(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else REGISTRY["add"](a, b)


def run_backward(
    outputs: Sequence[Any],
    grads: Sequence[Any],
    inputs: Sequence[Any] | None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    accumulate: bool = False,
    keep_mode: bool = False,
    since: int = 0,
) -> list:
    """Gradients of `inputs` (or, with `accumulate`, `.grad` of leaves) from gradients of `outputs`. `keep_mode`: the tape below stays as it is.
    Nodes recorded before `since` are not gone through: gradients end there."""
    saved_mode = mode.enabled
    if not keep_mode:
        mode.enabled = create_graph
    try:
        return _run(
            outputs,
            grads,
            inputs,
            create_graph,
            create_graph if retain_graph is None else retain_graph,
            accumulate,
            since,
        )
    finally:
        mode.enabled = saved_mode


class _Arrived:
    """Gradients that have arrived so far: by node, and by leaf."""

    __slots__ = ("nodes", "leaves", "queue")

    def __init__(self) -> None:
        self.nodes: dict[Any, list] = {}
        self.leaves: dict[int, list] = {}
        self.queue: list = []

    def add(self, edge: tuple, g: Any) -> None:
        node, at = edge
        if node is None:
            entry = self.leaves.get(id(at))
            if entry is None:
                self.leaves[id(at)] = [at, g]
            else:
                entry[1] = _add(entry[1], g)
            return
        slots = self.nodes.get(node)
        if slots is None:
            slots = self.nodes[node] = [None] * len(node.analysis.info.specs)
            heapq.heappush(self.queue, (-node.sequence, node))
        slots[at] = g if slots[at] is None else _add(slots[at], g)


def _run(outputs, grads, inputs, create_graph, retain_graph, accumulate, since) -> list:
    arrived = _Arrived()
    wanted: dict[tuple, list[int]] = {}
    results: list = [None] * len(inputs or ())
    for i, x in enumerate(inputs or ()):
        edge = tape.edge_of(x)
        if edge is not None:
            wanted.setdefault((edge[0], id(edge[1]) if edge[0] is None else edge[1]), []).append(i)
    needed = _needed_nodes(outputs, wanted) if inputs is not None and not accumulate else None
    for o, g in zip(outputs, grads):
        edge = tape.edge_of(o)
        if edge is not None:
            arrived.add(edge, g)
    inner = any(node is not None for node, _ in wanted)
    queue, nodes, add = arrived.queue, arrived.nodes, arrived.add
    by_plan = not create_graph and not MODES
    while queue:
        node = heapq.heappop(queue)[1]
        slots = nodes.pop(node)
        analysis = node.analysis
        if analysis.quick is not None and by_plan and needed is None and node.extras is None and not inner:
            found = analysis.quick(node, slots[0])
            if found is not None:
                edges = node.edges
                for at, g in zip(analysis.targets, found):
                    add(edges[at], g)
                if not retain_graph:
                    node.saved = None
                continue
        if node.extras is not None:
            slots = _before(node, slots)
        if inner:
            for at, g in enumerate(slots):
                for i in wanted.get((node, at), ()):
                    results[i] = g
        if needed is not None and node not in needed or node.sequence < since:
            continue
        found = node.backward(slots, create_graph) if node.extras is None else _watched(node, slots, create_graph)
        for edge, g in zip(node.edges, found):
            if edge is not None and g is not None:
                add(edge, g)
        if not retain_graph:
            node.saved = None
    only = {key[1] for key in wanted if key[0] is None} if inputs is not None else None
    recorder = tracing.current() if MODES else None
    replayed = recorder is not None and recorder.repeats
    if replayed and not since:
        _rest_on_hooks(recorder, [leaf for leaf, _ in arrived.leaves.values() if leaf.ptr is not None])
    for leaf, g in arrived.leaves.values():
        hooks = leaf.__dict__.get("_backward_hooks_table")
        if hooks and not (replayed and since and leaf.ptr is not None):  # those run where each call's gradient arrives
            g = _apply_hooks(hooks, g)
        for i in wanted.get((None, id(leaf)), ()):
            results[i] = g
        if accumulate and (only is None or id(leaf) in only):
            _accumulate(leaf, g, create_graph)
    return results


def _needed_nodes(outputs, wanted) -> set | None:
    """Nodes on a path from an output to a wanted input; None if that is all of them."""
    targets = {node for node, _ in wanted if node is not None}
    leaf_ids = {at for node, at in wanted if node is None}
    start = [e[0] for e in map(tape.edge_of, outputs) if e is not None and e[0] is not None]
    seen = set(start)
    stack, others = list(start), bool(targets)
    while stack:
        for e in stack.pop().edges:
            if e is not None:
                child = e[0]
                if child is None:
                    if id(e[1]) not in leaf_ids:
                        others = True
                elif child not in seen:
                    seen.add(child)
                    stack.append(child)
    if not others:
        return None
    needed = set()
    for node in sorted(seen, key=lambda n: n.sequence):  # inputs before what uses them
        for e in node.edges:
            if e is not None and (
                (id(e[1]) in leaf_ids) if e[0] is None else (e[0] in needed or (e[0], e[1]) in wanted)
            ):
                needed.add(node)
                break
    return needed


def _before(node, slots: list) -> list:
    """Hooks of the node's output tensors, and gradients they retain."""
    for at, hooks in node.extras.tensor_hooks.items():
        if slots[at] is not None:
            slots[at] = _apply_hooks(hooks, slots[at])
    for at, ref in node.extras.retained.items():
        t = ref()
        if t is not None and slots[at] is not None:
            t._set_grad(_add(t.grad, slots[at]))
    return slots


def _watched(node, slots: list, create_graph: bool) -> list:
    """The backward of a node with hooks, or in anomaly mode."""
    extras = node.extras
    for hook in list(extras.pre_hooks.values()):
        changed = hook(tuple(slots))
        if changed is not None:
            slots = list(changed)
    try:
        found = node.backward(slots, create_graph)
    except Exception as e:
        if extras.where:
            e.add_note(f"while running the backward of {node.name()}, called at:\n{extras.where}")
        raise
    if extras.where is not None and tape._anomaly and tape.nan_check[-1] and tracing.current() is None:
        _check_nan(node, found)
    for hook in list(extras.hooks.values()):
        changed = hook(tuple(found), tuple(slots))
        if changed is not None:
            found = list(changed)
    return found


def _check_nan(node, found: list) -> None:
    for i, g in enumerate(found):
        if g is not None and bool(REGISTRY["any"](REGISTRY["isnan"](g)).item()):
            raise RuntimeError(
                f"detect_anomaly: Function '{node.name()}' returned nan values in its {i}th output. The op was called at:\n{node.where}"
            )


def _apply_hooks(hooks: dict, g: Any) -> Any:
    for hook in list(hooks.values()):
        changed = hook(g)
        if changed is not None:
            g = changed
    return g


def _rest_on_hooks(recorder: tracing.Recorder, leaves: list) -> None:
    """What hooks of tensors from outside do is part of a trace that goes through them: other hooks want another."""

    def found() -> list:
        return [
            (
                tuple(t.__dict__.get("_backward_hooks_table") or ()),
                tuple(t.__dict__.get("_post_accumulate_hooks") or ()),
            )
            for t in leaves
        ]

    if leaves:
        recorder.depend(found, "the hooks of a tensor from outside")


def _accumulate(leaf: Any, g: Any, create_graph: bool) -> None:
    old = leaf.__dict__.get("_grad")
    recorder = tracing.current()
    if old is not None and recorder is not None and recorder.repeats:
        old = recorder.gradient_before(leaf, old)
    if old is None:
        if not create_graph and (g.spec.strides != leaf.spec.strides and not g.spec.contiguous or g._view is not None):
            g = REGISTRY["clone"](g)
        leaf._set_grad(g if create_graph else g.detach())
    elif MODES and not create_graph and recording.adds_in_place(leaf, old):
        IN_PLACE["add_"].in_place(old.detach(), g)
    else:
        leaf._set_grad(_add(old, g))
    for hook in list((leaf.__dict__.get("_post_accumulate_hooks") or {}).values()):
        hook(leaf)


tape.run_backward = run_backward
