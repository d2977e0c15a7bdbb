"""Tensors from nothing: filled, counted, identity."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.device import as_device
from flambeau.core.dtype import bool_, dtype_of_number, float64, int64
from flambeau.core.spec import NumberSpec, Spec
from flambeau.ir.kinds import LINEAR, NOT_DIFFERENTIABLE, Composite, Pointwise
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel.types import f64
from flambeau.operators.rules import case


@declare
class full(Pointwise):
    """A tensor of `size` filled with one value. Dtype: the value's unless told."""

    functions = ()
    in_place = False
    fills = 1
    unread = ("size",)

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
    unread = ("size",)

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


def triangle(rows: int, cols: int, offset: int, upper: bool, device):
    """Where a matrix's elements lie in its upper or lower triangle, moved by `offset`."""
    ops = REGISTRY
    distance = ops["sub"](ops["iota"]((cols,), device=device), ops["iota"]((rows, 1), device=device))
    return ops["ge"](distance, offset) if upper else ops["le"](distance, offset)


@declare
class triangle_mask(Composite):
    """A bool matrix, true in the upper or lower triangle."""

    functions = ()

    def signature(rows, cols, offset, upper, *, device=None): ...

    def meta(op, rows, cols, offset, upper, device):
        return Spec.of((rows, cols), bool_, as_device(device))

    def body(rows, cols, offset, upper, device):
        return triangle(rows, cols, offset, upper, device)

    vjp = NOT_DIFFERENTIABLE

    def reference(rows, cols, offset, upper, *, device=None):
        return np.triu(np.ones((rows, cols), bool), offset) if upper else np.tril(np.ones((rows, cols), bool), offset)

    def samples(t):
        yield case(3, 4, 1, True)
        yield case(3, 4, -1, False)


@declare
class identity_matrix(Composite):
    """Ones on the diagonal of an n by m matrix."""

    functions = ()

    def signature(n, m, *, dtype, device=None): ...

    def meta(op, n, m, dtype, device):
        return Spec.of((n, m), dtype, as_device(device))

    def body(n, m, dtype, device):
        ops = REGISTRY
        same = ops["eq"](ops["iota"]((m,), device=device), ops["iota"]((n, 1), device=device))
        return ops["to_dtype"](same, dtype) if dtype is not bool_ else same

    vjp = NOT_DIFFERENTIABLE

    def reference(n, m, *, dtype, device=None):
        return np.eye(n, m, dtype=dtype.name)

    def samples(t):
        yield case(3, 4, dtype=float64)


class Triangle(Composite):
    """The input inside one triangle of its last two dims, zeros elsewhere."""

    in_place = True
    upper = False

    def signature(input: Tensor, diagonal=0): ...

    def meta(op, s, diagonal):
        if s.ndim < 2:
            raise RuntimeError(
                f"{op.name}: input must have at least 2 dims (input tensor must have at least 2 dimensions), got shape "
                f"{list(s.shape)}."
            )
        return Spec.of(s.shape, s.dtype, s.device)

    def samples(t):
        yield case(t(3, 4))
        yield case(t(2, 3, 3), 1)
        yield case(t(4, 3), -1)
        yield case(t(3), raises=(RuntimeError, "at least 2 dims"))


def inside_triangle(input, diagonal, upper: bool):
    rows, cols = input.spec.shape[-2:]
    return REGISTRY["where"](
        triangle(rows, cols, diagonal, upper, input.spec.device), input, False if input.spec.dtype is bool_ else 0
    )


@declare
class triu(Triangle):
    """The upper triangle of matrices, from diagonal number `diagonal` up; zeros below."""

    def body(input, diagonal):
        return inside_triangle(input, diagonal, True)

    def vjp(g, out, input, diagonal):
        return (triu(g, diagonal),)

    jvp = LINEAR

    def reference(x, diagonal=0):
        return np.triu(x, diagonal)


@declare
class tril(Triangle):
    """The lower triangle of matrices, up to diagonal number `diagonal`; zeros above."""

    def body(input, diagonal):
        return inside_triangle(input, diagonal, False)

    def vjp(g, out, input, diagonal):
        return (tril(g, diagonal),)

    jvp = LINEAR

    def reference(x, diagonal=0):
        return np.tril(x, diagonal)
