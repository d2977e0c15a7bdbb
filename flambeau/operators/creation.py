"""Tensors from nothing: filled, counted, identity."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.device import as_device
from flambeau.core.dtype import dtype_of_number
from flambeau.core.spec import NumberSpec, Spec
from flambeau.ir.kinds import NOT_DIFFERENTIABLE, Pointwise
from flambeau.ir.op import declare
from flambeau.operators.rules import case


@declare
class full(Pointwise):
    """A tensor of `size` filled with one value. Dtype: the value's unless told."""

    functions = ()
    in_place = False

    def signature(size, fill_value: Scalar, *, dtype=None, device=None): ...

    def meta(op, size, fill_value, dtype, device):
        if dtype is None:
            dtype = fill_value.dtype if isinstance(fill_value, NumberSpec) else dtype_of_number(fill_value)
        return Spec.of(size, dtype, as_device(device))

    def types(operands, args):
        dtype = args[2]
        if dtype is None:
            dtype = operands[0].dtype if operands else dtype_of_number(args[1])
        return (dtype,) * len(operands), dtype

    def lower(k, size, fill_value, dtype, device):
        return fill_value

    vjp = NOT_DIFFERENTIABLE

    def reference(size, fill_value, *, dtype=None, device=None):
        return np.full(size, fill_value, dtype.name if dtype else None)

    def samples(t):
        yield case((3, 4), 1.5)
        yield case((), 2)
        yield case((0, 2), True)
