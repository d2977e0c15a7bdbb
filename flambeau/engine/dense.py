"""Plans of elementwise ops over dense operands of one shape, shared by all sizes.

The kernel of such an op takes the number of elements from its parameter block, so a new shape needs no scheduling: the
plan of the first shape is copied with another block. May not know: how plans are made (`plan`).
"""

from __future__ import annotations

from flambeau.core.device import CPU
from flambeau.core.spec import NumberSpec, Spec
from flambeau.engine.plan import Plan
from flambeau.ir.op import POINTWISE, Op
from flambeau.schedule.program import STREAMING_BYTES, dense_map_params

LARGEST = STREAMING_BYTES // 16  # elements: beyond, kernels may stream past the cache
MOST_PROTOTYPES = 8192


_prototypes: dict[tuple, tuple[Plan, bool]] = {}  # key -> (plan, whether its work counts as expensive)


def dense_key(op: Op, args: tuple, specs: tuple[Spec, ...]) -> tuple | None:
    """What the kernel depends on, if all operands and the result are dense and of one shape; None otherwise."""
    if op.kind != POINTWISE or op.rules.positional:
        return None
    result = specs[0]
    if not 1 < result.numel <= LARGEST or result.device is not CPU or not result.contiguous:
        return None
    parts: list = [op, result.dtype]
    for a in args:
        kind = type(a)
        if kind is Spec:
            if a.shape != result.shape or not a.contiguous:
                return None
            parts.append(a.dtype)
        elif kind is NumberSpec:
            parts.append(a.type)
        elif kind is tuple:
            return None
        else:
            parts.append((kind, a))
    return tuple(parts)


def remember(key: tuple, plan: Plan, result: Spec) -> None:
    """Keep a plan as the prototype of its key, if it is what this module takes it for."""
    if (
        plan.results() is None
        or len(plan.outputs) != 1
        or len(plan.steps) != 1
        or plan.blocks
        or plan.shifts
        or plan.may_fail
    ):
        return
    words = tuple(plan.steps[0].words.words)
    for expensive in (False, True):
        if words == dense_map_params(result.numel, expensive):
            if len(_prototypes) > MOST_PROTOTYPES:
                _prototypes.clear()
            _prototypes[key] = plan, expensive
            return


def derived(key: tuple, result: Spec) -> Plan | None:
    """A plan from a prototype; None if there is none yet."""
    found = _prototypes.get(key)
    if found is None:
        return None
    plan, expensive = found
    return plan.resized(result, dense_map_params(result.numel, expensive))


def forget() -> None:
    _prototypes.clear()
