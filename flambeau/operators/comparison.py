"""Comparisons: bool results, no gradients."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.ir.kinds import COMPARE, NOT_DIFFERENTIABLE, Pointwise
from flambeau.ir.op import declare
from flambeau.operators.rules import binary_samples


class Comparison(Pointwise):
    promotion = COMPARE
    vjp = NOT_DIFFERENTIABLE
    samples = binary_samples

    def signature(input: Tensor, other: Operand): ...


@declare
class eq(Comparison):
    """Where the operands are equal."""

    methods = ("eq", "__eq__")

    def lower(k, x, y):
        return x.eq(y)

    def reference(x, y):
        return np.equal(x, y)
