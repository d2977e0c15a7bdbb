"""Copies and conversions."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import dtype as DType
from flambeau.core.spec import Spec
from flambeau.ir.kinds import LINEAR, Pointwise
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel.types import bf16, f16, f32
from flambeau.operators.rules import case, to_type_of, unary_samples


@declare
class to_dtype(Pointwise):
    """The elements converted to another dtype."""

    functions = ()
    methods = ()
    in_place = False

    def signature(input: Tensor, dtype): ...

    def types(operands, args):
        return (operands[0].dtype,), args[1]

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


from flambeau.core.dtype import BY_NAME as DTYPES  # noqa: E402


@declare
class clone(Pointwise):
    """A copy with memory of its own."""

    in_place = False

    def signature(input: Tensor, *, memory_format=None): ...

    def meta(op, s, memory_format):
        if str(memory_format).endswith("contiguous_format"):
            return Spec.of(s.shape, s.dtype, s.device)
        return Pointwise.meta(op, s, memory_format)

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

    def signature(input: Tensor): ...

    def meta(op, s):
        return Spec.of(s.shape, s.dtype, s.device)

    def lower(k, x):
        return x

    def vjp(g, out, input):
        return (g,)

    jvp = LINEAR

    def reference(x):
        return np.ascontiguousarray(x)

    samples = unary_samples


__all__ = ["DType", "REGISTRY", "clone", "contiguous_copy", "to_dtype"]
