"""Tensors from nothing: filled, counted, identity."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.device import as_device
from flambeau.core.dtype import dtype_of_number, float64, int64
from flambeau.core.spec import NumberSpec, Spec
from flambeau.ir.kinds import NOT_DIFFERENTIABLE, Pointwise
from flambeau.ir.op import declare
from flambeau.kernel.types import f64
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


@declare
class iota(Pointwise):
    """`start`, `start + step` … in row-major order over `size`, computed in int64 or float64."""

    functions = ()
    in_place = False
    positional = True

    def signature(size, start: Scalar = 0, step: Scalar = 1, *, dtype=None, device=None): ...

    def meta(op, size, start, step, dtype, device):
        return Spec.of(size, dtype or int64, as_device(device))

    def types(operands, args):
        dtype = args[3] or int64
        return (int64 if dtype.is_integral else float64,) * len(operands), dtype

    def lower(k, size, start, step, dtype, device, index):
        if dtype is not None and not dtype.is_integral:
            index = index.to(f64)
        if not isinstance(step, int) or step != 1:
            index = index * step
        return index + start

    vjp = NOT_DIFFERENTIABLE

    def reference(size, start=0, step=1, *, dtype=None, device=None):
        return (np.arange(int(np.prod(size))) * step + start).reshape(size).astype(dtype.name if dtype else "int64")

    def samples(t):
        yield case((5,))
        yield case((3, 4), 2, -1)
        yield case((7,), 0.5, 0.25, dtype=float64)


@declare
class spaced(Pointwise):
    """`steps` numbers from `start` to `end`, evenly spaced by `step`, counted from the nearer end."""

    functions = ()
    in_place = False
    positional = True

    def signature(steps, start: Scalar, end: Scalar, step: Scalar, *, dtype=None, device=None): ...

    def meta(op, steps, start, end, step, dtype, device):
        return Spec.of((steps,), dtype, as_device(device))

    def types(operands, args):
        return (float64,) * len(operands), args[4]

    def lower(k, steps, start, end, step, dtype, device, index):
        low = index.to(f64) * step + start
        high = k.const(low.type, 0.0) + end - (k.const(index.type, steps - 1) - index).to(f64) * step
        return k.select(index < steps // 2, low, high)

    vjp = NOT_DIFFERENTIABLE

    def reference(steps, start, end, step, *, dtype=None, device=None):
        return np.linspace(start, end, steps, dtype=dtype.name)

    def samples(t):
        yield case(5, 0.0, 1.0, 0.25, dtype=float64)


__all__ = ["full", "iota", "spaced"]
