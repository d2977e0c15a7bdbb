"""Copies and conversions."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import BY_NAME as DTYPES
from flambeau.core.dtype import bool_, promote_types
from flambeau.core.formats import preserve_format, strides_in
from flambeau.core.layout import broadcast_shapes
from flambeau.core.spec import Spec
from flambeau.ir.kinds import LINEAR, Composite, Pointwise, dense_strides_like
from flambeau.ir.op import declare
from flambeau.kernel.types import bf16, f16, f32
from flambeau.operators.rules import case, sum_to, to_type_of, unary_samples


@declare
class to_dtype(Pointwise):
    """The elements converted to another dtype."""

    functions = ()
    methods = ()
    in_place = False

    def signature(input: Tensor, dtype): ...

    def types(operands, args):
        return (operands[0].dtype,), args[1]

    def simplify(out, input, dtype):
        """No conversion to the type it has; and what went to a wider type first, as if it had not."""
        if input.spec.dtype is dtype:
            return input
        before = input.node
        if before is None or before.op is not to_dtype:
            return None
        source = before.args[0]
        first, between = source.spec.dtype, input.spec.dtype
        exact = promote_types(first, between) is between and (first.kind == between.kind or first is bool_)
        if not exact or not (first is bool_ or first.kind == dtype.kind):
            return None
        return source if first is dtype else (to_dtype, (source, dtype))

    def lower(k, x, dtype):
        if dtype.name == "float16":  # in a fused kernel the value stays in a float32 register: round it here
            return x.to(f32).to(f16).to(f32) if hasattr(x, "to") else x.real.to(f16).to(f32)
        if dtype.name == "bfloat16":
            return x.to(f32).to(bf16).to(f32) if hasattr(x, "to") else x.real.to(bf16).to(f32)
        return x

    def vjp(g, out, input, dtype):
        return (to_type_of(g, input),)

    def reference(x, dtype):
        return np.asarray(x).astype(dtype.name)

    def samples(t):
        from_names = ("float64", "int32", "bool", "float16")
        for name in from_names:
            yield case(t(5), DTYPES[name])


@declare
class clone(Pointwise):
    """A copy with memory of its own."""

    in_place = False
    copies = 0

    def signature(input: Tensor, *, memory_format=None): ...

    def meta(op, s, memory_format):
        if memory_format is None or memory_format is preserve_format:
            return Pointwise.meta(op, s, memory_format)
        return Spec.get(s.shape, strides_in(s.shape, memory_format), s.dtype, s.device)

    def lower(k, x, memory_format):
        return x

    def vjp(g, out, input, memory_format):
        return (g,)

    def reference(x, *, memory_format=None):
        return np.array(x)

    samples = unary_samples


@declare
class contiguous_copy(Pointwise):
    """A row-major copy."""

    functions = ()
    methods = ()
    in_place = False
    copies = 0

    def signature(input: Tensor): ...

    def meta(op, s):
        return Spec.of(s.shape, s.dtype, s.device)

    def lower(k, x):
        return x

    def vjp(g, out, input):
        return (g,)

    jvp = LINEAR

    def reference(x):
        return np.array(x)

    samples = unary_samples


@declare
class copy(Pointwise):
    """`src` broadcast to the shape of `input` and in its dtype: `input.copy_(src)` out of place."""

    functions = ()
    copies = 1

    def signature(input: Tensor, src: Operand, non_blocking=False): ...

    def meta(op, input, src, non_blocking):
        if broadcast_shapes("copy", input.shape, src.shape) != tuple(input.shape):
            raise RuntimeError(
                f"copy_: src must broadcast to the shape of the input {list(input.shape)}, got {list(src.shape)}."
            )
        strides = dense_strides_like(input.shape, [input])
        return (
            Spec.get(input.shape, strides, input.dtype, input.device)
            if strides
            else Spec.of(input.shape, input.dtype, input.device)
        )

    def types(operands, args):
        return (operands[0].dtype, operands[1].dtype), operands[0].dtype

    def lower(k, x, y, non_blocking):
        return y

    def vjp(g, out, input, src, non_blocking):
        return None, sum_to(g, src)

    def reference(x, y, non_blocking=False):
        return np.broadcast_to(y, x.shape).astype(x.dtype)

    def samples(t):
        yield case(t(3, 4), t(4))
        yield case(t(3, 4), t(3, 4))
        yield case(t(3), t(4), raises=(RuntimeError, "broadcast"))


@declare
class fill(Composite):
    """One value (a number or a 0-dim tensor) in the shape and dtype of the input."""

    in_place = True

    def signature(input: Tensor, value: Operand): ...

    def meta(op, input, value):
        if value.ndim:
            raise RuntimeError(
                "fill_: value must be a number or 0-dim (fill_ only supports 0-dimension value tensor), got shape "
                f"{list(value.shape)}."
            )
        strides = dense_strides_like(input.shape, [input])
        return (
            Spec.get(input.shape, strides, input.dtype, input.device)
            if strides
            else Spec.of(input.shape, input.dtype, input.device)
        )

    def body(input, value):
        return copy(input, value)

    def reference(x, value):
        return np.full_like(x, value)

    def samples(t):
        yield case(t(3, 4), 1.5)
        yield case(t(3), t())
        yield case(t(3), t(3), raises=(RuntimeError, "0-dim"))
