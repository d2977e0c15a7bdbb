"""FLAMBEAU_VALIDATE=1: every op run eagerly is compared with its declaration's reference, on NumPy copies of its inputs.

    with settings.scope(validate=True):
        y = x.softmax(1)          # InternalError if the kernel and scipy disagree

Compared: each result of each op that runs eagerly, in-place forms included, and the ops of a backward, which then runs op by op and not
as one fused plan. The tolerance follows from the coarsest dtype among result, reference and inputs (`RELATIVE` below): of each element
for pointwise ops, of the largest element for all others.

Not compared: ops that say their values are random (those that take seed and offset are not among them); ops without a
reference; what a reference declines to compute (it raises; `skipped` counts these by op); views, which compute
nothing; elements where both are NaN; fused plans (captured and compiled functions, optimiser steps),
whose ops have been compared one by one if they ran eagerly before; work on failed devices.

It costs the copies, the reference and the eager fast path: for finding defects, not for running programs. May not know: tensors (it reads
memory), the tape. Entry: `Watch`.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from flambeau.base.errors import InternalError
from flambeau.base.lazy import np
from flambeau.core.device import CPU
from flambeau.engine.plan import array_at
from flambeau.ir.op import POINTWISE, VIEW, Op, Refused
from flambeau.runtime import sim

# How far a result may be off, relative to the sizes around it: some hundred units in the last place, for sums and products of many terms.
RELATIVE = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}

compared: Counter[str] = Counter()  # by op, how many calls were compared
skipped: Counter[tuple[str, str]] = Counter()  # by op and reason, how many were not


class _State(threading.local):
    busy = False  # a reference may call ops


_state = _State()


class Watch:
    """The inputs of one call, copied before it runs."""

    def __init__(self, op: Op, args: tuple):
        self.op, self.args = op, args
        self.why_not = reason_to_skip(op)
        self.arrays = None if self.why_not else call_arguments(op, args)

    def check(self, outs: tuple, graph: Any) -> None:
        """Compare the results. Raises: InternalError naming the op, the first difference and the graph."""
        if self.why_not:
            skipped[self.op.name, self.why_not] += 1
            return
        positional, keywords = self.arrays
        _state.busy = True
        try:
            with np.errstate(all="ignore"):
                wanted = self.op.rules.reference(*positional, **keywords)
        except Exception as e:
            skipped[self.op.name, f"its reference raises {type(e).__name__}: {e}"] += 1
            return
        finally:
            _state.busy = False
        several = len(outs) > 1
        references = list(wanted) if several else [wanted]
        if len(references) != len(outs):
            self.fail(f"{len(outs)} results where the reference has {len(references)}", outs, graph)
        for number, (out, reference) in enumerate(zip(outs, references)):
            difference = first_difference(
                read(out), np.asarray(reference), self.tolerance(out), self.op.kind == POINTWISE
            )
            if difference:
                self.fail(f"result {number} {difference}" if several else difference, outs, graph)
        compared[self.op.name] += 1

    def tolerance(self, out: Any) -> float:
        """How far `out` may be off; 0 for what is exact."""
        kinds = [RELATIVE.get(x.spec.dtype.name, 0.0) for x in (out, *self.op.tensors(self.args))]
        return max(kinds) if kinds[0] else 0.0

    def fail(self, difference: str, outs: tuple, graph: Any) -> None:
        inputs = ", ".join(f"{p.name} {describe(a)}" for p, a in zip(self.op.params, self.args))
        results = ", ".join(str(o.spec) for o in outs)
        raise InternalError(
            f"{self.op.name}: the result must be the reference's, got {difference}. Inputs: {inputs}. Results: {results}.",
            str(graph),
            "run the call alone with FLAMBEAU_VALIDATE=1 FLAMBEAU_DUMP=dir; dir then has its kernels.",
        )


def watch(op: Op, args: tuple) -> Watch | None:
    """A Watch over a call that is about to run, or None inside of a comparison."""
    return None if _state.busy else Watch(op, args)


def reason_to_skip(op: Op) -> str:
    """Why an op is not compared; empty if it is."""
    rules = op.rules
    if op.kind == VIEW:
        return "a view computes nothing"
    if rules.reference is None or isinstance(rules.reference, Refused):
        return "it has no reference"
    return ""


def describe(a: Any) -> str:
    if hasattr(a, "spec"):
        return str(a.spec)
    if isinstance(a, (tuple, list)):
        return f"[{', '.join(describe(x) for x in a)}]"
    return repr(a)


# ------------------------------------------------------------------ memory to NumPy
def read(t: Any) -> Any:
    """A copy of a tensor's values; bfloat16 as float32, as NumPy has none."""
    spec = t.spec.plain()
    if spec.device is not CPU:
        sim.device(spec.device.index).default_queue.drain()
    array = array_at(t.ptr, spec)
    if spec.dtype.name == "bfloat16":
        return (array.astype("uint32") << 16).view("float32")
    return array.copy()


def call_arguments(op: Op, args: tuple) -> tuple[list, dict]:
    """(positional, keyword) arguments of the reference: arrays for tensors, what is left at its default left out."""
    positional: list = []
    keywords: dict = {}
    values = [(p, convert(a)) for p, a in zip(op.params, args)]
    given = [not is_default(p, a) for p, a in zip(op.params, args)]
    last = max((i for i, (p, _) in enumerate(values) if given[i] and not p.keyword_only), default=-1)
    for i, (p, a) in enumerate(values):
        if p.keyword_only:
            if given[i]:
                keywords[p.name] = a
        elif i <= last:
            positional.append(a)
    return positional, keywords


def is_default(p: Any, a: Any) -> bool:
    if p.required or hasattr(a, "spec"):
        return False
    return a is p.default or (type(a) is type(p.default) and a == p.default)


def convert(a: Any) -> Any:
    if hasattr(a, "spec"):
        return read(a)
    if isinstance(a, (tuple, list)):
        return tuple(convert(x) for x in a)
    return a


# ------------------------------------------------------------------ comparing
def first_difference(got: Any, wanted: Any, tolerance: float, each: bool) -> str:
    """Where two arrays differ by more than allowed, in words; empty if nowhere. `each`: relative to each element, not to the largest."""
    if got.shape != wanted.shape:
        return f"shape {list(got.shape)} where the reference has {list(wanted.shape)}"
    if got.size == 0:
        return ""
    with np.errstate(all="ignore"):
        if tolerance == 0:
            wrong = got != wanted.astype(got.dtype)
        else:
            if got.dtype.name == "float16":
                wanted = wanted.astype("float16")  # it overflows where the result does
            tolerance = max(tolerance, RELATIVE.get(wanted.dtype.name, 0.0))
            kind = "complex128" if "c" in (got.dtype.kind, wanted.dtype.kind) else "float64"
            a, b = got.astype(kind), wanted.astype(kind)
            finite = np.abs(b)[np.isfinite(b)]
            largest = float(finite.max()) if finite.size else 0.0
            around = min(largest, 1.0) if each else largest
            near = np.abs(a - b) <= tolerance * (np.abs(b) + max(around, 1e-3))
            wrong = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{got[at]!r} at {list(at)} where the reference has {wanted[at]!r} ({int(wrong.sum())} of {got.size} elements differ)"


__all__ = ["Watch", "compared", "skipped", "watch"]
