"""Places of elements: where a mask is true, and coordinates of flat places."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import bool_, int64
from flambeau.core.spec import Spec
from flambeau.ir.kinds import NOT_DIFFERENTIABLE, Pointwise, Template
from flambeau.ir.op import Refused, declare
from flambeau.kernel.types import f64, i64
from flambeau.operators.rules import case
from flambeau.templates.compact import compact


@declare
class true_places(Template):
    """The flat places where a contiguous mask is true, in order; `count` says how many there are (the caller has counted them)."""

    functions = ()
    methods = ()
    reads_layout = True

    def signature(mask: Tensor, count): ...

    def meta(op, mask, count):
        if mask.dtype is not bool_ or not mask.contiguous:
            raise RuntimeError(f"true_places: mask must be bool and contiguous, got {mask}.")
        return Spec.of((count,), int64, mask.device)

    def lower(op, target, threads, mask, count):
        return compact(mask.numel)

    vjp = NOT_DIFFERENTIABLE
    batch = Refused(
        "how many places there are differs from element to element. Use where(mask, x, other), or masks as they are"
    )

    def reference(mask, count):
        return np.flatnonzero(mask)

    def samples(t):
        yield case(t(7, low=1.0, high=2.0) > 0, 7)
        yield case(t(3, 5, low=1.0, high=2.0) < 0, 0)
        yield case(t(5), 2, raises=(RuntimeError, "must be bool"))


@declare
class coordinate(Pointwise):
    """One coordinate of flat places: `places // step % size`."""

    functions = ()
    methods = ()
    in_place = False

    def signature(places: Tensor, step: Scalar, size: Scalar): ...

    def types(operands, args):
        return (int64,) * len(operands), int64

    def lower(k, places, step, size):
        def over(a, b):  # floats divide places (below 2**53) exactly, and in vectors
            return (a.to(f64) / (b.to(f64) if hasattr(b, "to") else float(b))).truncated(i64)

        at = over(places, step)
        return at - over(at, size) * size

    vjp = NOT_DIFFERENTIABLE

    def reference(places, step, size):
        return places // step % size

    def samples(t):
        yield case(t(5, dtype="int64", high=20), 4, 5)
