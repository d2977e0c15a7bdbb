"""Views and in-place writes: rewriting a base's history, and giving sibling views theirs when asked.

A view keeps (parent, op, args). Writing to a view makes the base's history "the base with that view replaced"; other views of the base
notice by the storage's history number and derive their own from the base again, by replaying their view ops.
"""

from __future__ import annotations

from typing import Any

from flambeau.engine import eager, in_place
from flambeau.engine.plan import allocate
from flambeau.ir.op import IN_PLACE, REGISTRY, Op
from flambeau.tape import record as tape
from flambeau.tape.grad_mode import mode


def chain_of(t: Any) -> tuple[Any, tuple]:
    """(base, view ops from the base to t) of a view; the ops as (name, attributes) pairs."""
    steps = []
    while t._view is not None:
        parent, op, args = t._view
        if op is None:
            steps.append(None)
        else:
            steps.append((op.name, tuple(eager.freeze(a) for a in args[1:])))
        t = parent
    return t, tuple(reversed(steps))


def replay(base: Any, chain: tuple) -> Any:
    """The view ops applied to another tensor."""
    for name, attributes in chain:
        base = REGISTRY[name](base, *attributes)
    return base


def history_of_view(t: Any) -> tuple | None:
    """The node of a view, derived from its base again if the base was written to since."""
    base, chain = chain_of(t)
    rewritten = base.__dict__.get("_rewrites", 0)
    if t.__dict__.get("_rewrites", 0) == rewritten or None in chain:
        return t.node
    with_grad = mode.enabled
    mode.enabled = True
    try:
        again = replay(base, chain)
    finally:
        mode.enabled = with_grad
    t.node, t.needs_grad = again.node, again.needs_grad
    if "_traced" in t.__dict__ and "_traced" in again.__dict__:
        t.__dict__["_traced"] = again.__dict__["_traced"]
    t.__dict__["_rewrites"] = rewritten
    return t.node


def before_write(op: Op, target: Any) -> None:
    """Raises: RuntimeError if the target is a leaf (or a view of one) that needs a gradient."""
    if not mode.enabled:
        return
    if target._view is not None:
        if target.needs_grad and is_view_of_leaf(target):
            raise RuntimeError(
                f"{op.name}_: a view of a leaf Variable that requires grad is being used in an in-place operation. Write under no_grad()."
            )
        history_of_view(target)
    elif target.needs_grad and target.node is None:
        raise RuntimeError(
            f"{op.name}_: a leaf Variable that requires grad is being used in an in-place operation. Write under no_grad(), or to a clone."
        )


def is_view_of_leaf(t: Any) -> bool:
    """Whether a view, or what it is a view of at any step, is a leaf that needs a gradient."""
    while True:
        if t.needs_grad and t.node is None:
            return True
        if t._view is None:
            return False
        t = t._view[0]


def keep_old(info: eager.Info, args: tuple, target: Any) -> tuple:
    """The arguments as the tape sees them: operands whose memory is about to be overwritten and whose value the op's backward reads are
    copies, with the history of what they are copies of."""
    if not mode.enabled:
        return args
    inputs = eager.inputs_of(info.op, args)
    if not any(hasattr(x, "spec") and x.needs_grad for x in inputs):
        return args
    copies: dict[int, Any] = {}
    for i, x in enumerate(inputs):
        if (
            hasattr(x, "spec")
            and id(x) not in copies
            and in_place.overlap(x, target)
            and tape.reads_input(info, inputs, i)
        ):
            if x.needs_grad and tape.edge_of(x)[0] is None:
                copies[id(x)] = REGISTRY["clone"](x)
                continue
            old = copies[id(x)] = in_place.hooks.clone(x)
            if x.needs_grad:
                old.node, old.needs_grad = tape.edge_of(x), True
    return info.op.map_tensors(lambda x: copies.get(id(x), x), args) if copies else args


def after_write(info: eager.Info, args: tuple, target: Any, kept: bool) -> None:
    """Count the version; give the target (and its base) the history of the op."""
    target.storage.version += 1
    if not mode.enabled:
        return
    inputs = eager.inputs_of(info.op, args)
    if any(hasattr(x, "spec") and x.needs_grad for x in inputs):
        if kept:  # copies may lie in memory in another way
            info = eager.info_for(info.op, args)
        if target._view is not None:
            history_of_view(target)  # from its base as that is now
        fresh = written_result(info, inputs, target)
        tape.record(info, args, (fresh,))
        _rebase(target, fresh)


def written_result(info: eager.Info, inputs: list, target: Any) -> Any:
    """The target as what the op returned: the same memory, or a copy where the op's backward reads its result and would find it
    in another layout or dtype."""
    spec = info.specs[0]
    if target.spec.plain() is spec or not tape.reads_output(info, inputs):
        fresh = eager.hooks.wrap_view(target, spec, 0, None, None)
        fresh._view = None
        return fresh
    fresh = eager.hooks.wrap(spec, allocate(spec))
    with_grad = mode.enabled
    mode.enabled = False
    try:
        return IN_PLACE["copy_"].in_place(fresh, target)
    finally:
        mode.enabled = with_grad


def _rebase(target: Any, fresh: Any) -> None:
    """`target` takes the history of `fresh`, a tensor of the same values."""
    if fresh.spec.dtype is not target.spec.dtype:
        fresh = REGISTRY["to_dtype"](fresh, target.spec.dtype)
    if target._view is None:
        target.node, target.needs_grad = fresh.node, fresh.needs_grad
        target.__dict__["_rewrites"] = target.__dict__.get("_rewrites", 0) + 1
        return
    base, chain = chain_of(target)
    if None in chain:
        raise RuntimeError(
            "in-place write: this view has no known view op, so its base's gradient cannot be followed. Write to the base, or to a clone."
        )
    written = REGISTRY["view_scatter"]
    info = eager.info_for(written, (base, fresh, chain))
    shown = eager.hooks.wrap_view(base, base.spec.plain(), 0, None, None)
    shown._view = None
    tape.record(info, (base, fresh, chain), (shown,))
    base.node, base.needs_grad = shown.node, shown.needs_grad
    base.__dict__["_rewrites"] = base.__dict__.get("_rewrites", 0) + 1
    target.node, target.needs_grad = fresh.node, fresh.needs_grad
    target.__dict__["_rewrites"] = base.__dict__["_rewrites"]


def assign_traced(target: Any, result: Any) -> None:
    """Inside a trace (or under an interpreter), the target becomes `result`: values are rebound, nothing is written yet."""
    target._become(result)


tape.history_of_view = history_of_view
in_place.hooks.before = before_write
in_place.hooks.keep = keep_old
in_place.hooks.after = after_write
in_place.hooks.assign_traced = assign_traced
