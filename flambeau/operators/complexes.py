"""Complex numbers: conjugates, parts as views of the memory, magnitudes and angles.

A complex tensor's memory is its parts side by side, so `real`, `imag` and `view_as_real` read it again as real numbers.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import float32, float64
from flambeau.core.spec import Spec
from flambeau.ir.kinds import FLOAT, LINEAR, Pointwise, View
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel import complex_math
from flambeau.kernel.complexes import Complex
from flambeau.operators.rules import (
    Composed,
    Elementwise,
    case,
    common_type,
    conjugate,
    pair_samples,
    pair_vjp,
    unary_samples,
    zeros_like,
)


@declare
class conj_physical(Pointwise):
    """The complex conjugate, as a copy; real elements stay."""

    involution = True

    def signature(input: Tensor): ...

    def lower(k, x):
        return x.conj() if isinstance(x, Complex) else x

    def vjp(g, out, input):
        return (conjugate(g),)

    jvp = LINEAR

    def reference(x):
        return np.conj(x)

    samples = unary_samples


@declare
class conj(Composed):
    """The complex conjugate; a real tensor stays the memory it is."""

    functions = ("conj",)
    methods = ("conj",)
    in_place = False

    def signature(input: Tensor): ...

    def body(input):
        return conj_physical(input) if input.spec.dtype.is_complex else input

    def reference(x):
        return np.conj(x)

    samples = unary_samples


# ---------------------------------------------------------------------- the same memory as parts
def part_view(s: Spec, at: int):
    """Every second number from `at`."""
    if not s.dtype.is_complex:
        return s.shape, s.strides, 0
    return s.shape, [2 * n for n in s.strides], at


@declare
class real(View):
    """The real parts, as a view."""

    methods = ()

    def signature(input: Tensor): ...

    def retype(s: Spec):
        return s.dtype.to_real()

    def view(s: Spec):
        return part_view(s, 0)

    def vjp(g, out, input):
        return (REGISTRY["to_dtype"](g, input.spec.dtype) if input.spec.dtype.is_complex else g,)

    def reference(x):
        return np.real(x)

    samples = unary_samples


@declare
class imag(View):
    """The imaginary parts, as a view. Raises: RuntimeError for real tensors."""

    methods = ()

    def signature(input: Tensor): ...

    def retype(s: Spec):
        return s.dtype.to_real()

    def view(s: Spec):
        if not s.dtype.is_complex:
            raise RuntimeError(
                f"imag: dtype must be complex (imag is not implemented for tensors with non-complex dtypes), got "
                f"{s.dtype.name}. Use zeros_like(x)."
            )
        return part_view(s, 1)

    def vjp(g, out, input):
        return (REGISTRY["mul"](g, 1j),)

    def reference(x):
        return np.imag(x)

    def samples(t):
        yield case(t(3, 4, dtype="complex128"))
        yield case(t(3), raises=(RuntimeError, "must be complex"))


@declare
class view_as_real(View):
    """The parts along a new last dim of size 2, as a view. Raises: RuntimeError for real tensors."""

    methods = ()

    def signature(input: Tensor): ...

    def retype(s: Spec):
        return s.dtype.to_real()

    def view(s: Spec):
        if not s.dtype.is_complex:
            raise RuntimeError(
                f"view_as_real: dtype must be complex (view_as_real is only supported for complex tensors), got "
                f"{s.dtype.name}. Use x.to(complex64) first."
            )
        return (*s.shape, 2), (*[2 * n for n in s.strides], 1), 0

    def vjp(g, out, input):
        return (view_as_complex(REGISTRY["contiguous_copy"](g)),)

    def reference(x):
        return np.stack((np.real(x), np.imag(x)), -1)

    def samples(t):
        yield case(t(3, 4, dtype="complex128"))
        yield case(t(3), raises=(RuntimeError, "must be complex"))


@declare
class view_as_complex(View):
    """Pairs along the last dim as complex numbers, as a view.

    Raises: RuntimeError unless the last dim has size 2 and stride 1 and the other strides are even.
    """

    methods = ()
    reads_layout = True

    def signature(input: Tensor): ...

    def retype(s: Spec):
        return s.dtype.to_complex()

    def view(s: Spec):
        if s.dtype not in (float32, float64):
            raise RuntimeError(
                f"view_as_complex: dtype must be float32 or float64 (view_as_complex is only supported for floating point "
                f"tensors), got {s.dtype.name}. Convert with .to(float32)."
            )
        if not s.ndim or s.shape[-1] != 2:
            raise RuntimeError(
                f"view_as_complex: tensor must have a last dimension of size 2, got shape {list(s.shape)}. "
                f"Stack the parts along dim -1."
            )
        if s.strides[-1] != 1:
            raise RuntimeError(
                f"view_as_complex: tensor must have a last dimension with stride 1, got {list(s.strides)}. "
                f"Call .contiguous() first."
            )
        if any(n % 2 for n, size in zip(s.strides[:-1], s.shape) if size != 1):
            raise RuntimeError(
                f"view_as_complex: tensor must have a stride divisible by 2 for all but last dimension, got "
                f"{list(s.strides)}. Call .contiguous() first."
            )
        return s.shape[:-1], [n // 2 for n in s.strides[:-1]], 0

    def vjp(g, out, input):
        return (view_as_real(g),)

    def reference(x):
        return x[..., 0] + 1j * x[..., 1]

    def samples(t):
        yield case(t(3, 2))
        yield case(t(0, 2))
        yield case(t(3, 3), raises=(RuntimeError, "size 2"))


# ---------------------------------------------------------------------- from parts
def parts_types(operands, args):
    """Two real operands of one type give its complex type."""
    d = common_type(operands)
    return (d, d), d.to_complex()


def checked_parts(op, a, b):
    """Raises: RuntimeError unless both operands are float32 or float64, the same."""
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"{op.name}: expected object of scalar type {a.dtype.name} but got scalar type {b.dtype.name} "
            f"for second argument. Convert one with .to(dtype)."
        )
    if a.dtype not in (float32, float64):
        raise RuntimeError(
            f"{op.name}: expected both inputs to be Float or Double tensors but got {a.dtype.name} and {b.dtype.name}. "
            f"Convert with .to(float32)."
        )
    return Pointwise.meta(op, a, b)


@declare
class complex_(Pointwise):
    """Complex numbers from their real and imaginary parts."""

    name = "complex"
    methods = ()
    in_place = False
    types = parts_types
    meta = checked_parts

    def signature(real: Tensor, imag: Tensor): ...

    def lower(k, x, y):
        return Complex(x, y)

    def vjp(g, out, real, imag):
        return pair_vjp(g, real, imag, lambda: g, lambda: REGISTRY["mul"](g, -1j))

    def reference(x, y):
        return x + 1j * np.asarray(y)

    samples = pair_samples


@declare
class polar(Pointwise):
    """Complex numbers from their magnitudes and angles in radians."""

    methods = ()
    in_place = False
    expensive = True
    types = parts_types
    meta = checked_parts

    def signature(abs: Tensor, angle: Tensor): ...

    def lower(k, size, phase):
        return complex_math.from_polar(k, size, phase)

    def vjp(g, out, abs, angle):
        ops = REGISTRY
        direction, turned = complex_(ops["cos"](angle), ops["sin"](angle)), ops["mul"](out, 1j)
        return pair_vjp(
            g, abs, angle, lambda: ops["mul"](g, conjugate(direction)), lambda: ops["mul"](g, conjugate(turned))
        )

    def reference(size, phase):
        return size * np.exp(1j * phase)

    samples = pair_samples


# ---------------------------------------------------------------------- magnitudes and angles
def to_real_types(operands, args):
    """The result is real."""
    return (operands[0].dtype,), operands[0].dtype.to_real()


@declare
class abs_(Elementwise):
    """Magnitude. Dtypes: complex gives real; the smallest integer of a type stays negative. Raises: RuntimeError for bool."""

    name = "abs"
    functions = ("abs", "absolute")
    methods = ("abs", "absolute", "__abs__")
    idempotent = True
    kinds = "uifc"
    types = to_real_types

    def signature(input: Tensor): ...

    def lower(k, x):
        if isinstance(x, Complex):
            return complex_math.absolute(k, x)
        if x.type.kind == "f":
            return k.math("fabs", x)
        return x if x.type.kind == "u" else k.select(x < 0, -x, x)

    def vjp(g, out, input):
        return (REGISTRY["mul"](g, sgn(input)),)

    def reference(x):
        return np.abs(x)

    samples = unary_samples


@declare
class angle(Elementwise):
    """Angle in the complex plane, in radians: 0 or pi for real numbers, NaN for NaN."""

    kinds = "buifc"
    expensive = True
    in_place = False

    def signature(input: Tensor): ...

    def types(operands, args):
        compute = FLOAT(operands[0].dtype)[0]
        return (compute,), compute.to_real()

    def lower(k, x):
        if isinstance(x, Complex):
            return complex_math.angle(k, x)
        return k.select(x.is_nan(), x, k.select(x < 0.0, complex_math.HALF_PI * 2, k.const(x.type, 0.0)))

    def vjp(g, out, input):
        ops = REGISTRY
        if not input.spec.dtype.is_complex:
            return (zeros_like(input),)
        size = ops["abs"](input)
        turned = ops["mul"](sgn(input), 1j)  # the direction in which the angle grows
        return (ops["where"](ops["eq"](size, 0), 0, ops["true_divide"](ops["mul"](g, turned), size)),)

    def reference(x):
        return np.angle(x)

    samples = unary_samples


@declare
class sgn(Elementwise):
    """-1, 0 or 1 by sign; for complex numbers z / |z|, 0 at 0."""

    def signature(input: Tensor): ...

    def lower(k, x):
        if isinstance(x, Complex):
            size = complex_math.absolute(k, x)
            zero = size.eq(0.0)
            size = k.select(zero, 1.0, size)
            return Complex(k.select(zero, 0.0, x.real / size), k.select(zero, 0.0, x.imag / size))
        return sign_of(k, x)

    def vjp(g, out, input):
        if not input.spec.dtype.is_complex:
            return (zeros_like(input),)
        ops = REGISTRY
        # d sgn: the part of g across the direction of z, over |z|
        along = ops["real"](ops["mul"](g, conjugate(out)))
        across = ops["sub"](g, ops["mul"](out, along))
        size = ops["abs"](input)
        return (ops["where"](ops["eq"](size, 0), 0, ops["true_divide"](across, size)),)

    def reference(x):
        return np.where(x == 0, 0, x / np.where(x == 0, 1, np.abs(x)))

    samples = unary_samples


def sign_of(k, x):
    """-1, 0 or 1; NaN gives 0."""
    if x.type.kind in "bu":
        return x if x.type.kind == "b" else k.minimum(x, 1)
    minus, zero, one = (k.const(x.type, v) for v in (-1, 0, 1))
    return k.select(x > 0, one, k.select(x < 0, minus, zero))


@declare
class sign(Elementwise):
    """-1, 0 or 1 by sign; bool stays. Raises: RuntimeError for complex."""

    functions = ("sign",)
    kinds = "buif"
    instead = "Use sgn() for complex tensors."

    def signature(input: Tensor): ...

    def lower(k, x):
        return sign_of(k, x)

    def vjp(g, out, input):
        return (zeros_like(input),)

    def reference(x):
        return np.sign(x)

    samples = unary_samples
