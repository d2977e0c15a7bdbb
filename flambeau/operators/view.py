"""Views: other shapes and strides over the same memory, and their adjoints."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.layout import canonical_dim, expand_strides, infer_shape, view_strides
from flambeau.core.spec import Spec
from flambeau.ir.kinds import LINEAR, NOT_DIFFERENTIABLE, Composite, View
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import case, sum_to


@declare
class transpose(View):
    """The input with two dims swapped."""

    methods = ("transpose", "swapaxes", "swapdims")
    functions = ("transpose", "swapaxes", "swapdims")

    def signature(input: Tensor, dim0, dim1): ...

    def view(s: Spec, dim0, dim1):
        a, b = canonical_dim("transpose", dim0, s.ndim), canonical_dim("transpose", dim1, s.ndim)
        shape, strides = list(s.shape), list(s.strides)
        if s.ndim:
            shape[a], shape[b] = shape[b], shape[a]
            strides[a], strides[b] = strides[b], strides[a]
        return shape, strides, 0

    def vjp(g, out, input, dim0, dim1):
        return (transpose(g, dim0, dim1),)

    jvp = LINEAR

    def reference(x, dim0, dim1):
        return np.swapaxes(x, dim0, dim1)

    def samples(t):
        yield case(t(2, 3), 0, 1)
        yield case(t(2, 3, 4), -1, 0)
        yield case(t(2, 3), 0, 2, raises=(IndexError, "dim must be in"))


@declare
class expand(View):
    """Dims of size 1 repeated without copying; -1 keeps a size, new leading dims may be added."""

    methods = ()
    functions = ()

    def signature(input: Tensor, size): ...

    def view(s: Spec, size):
        lead = len(size) - s.ndim
        if lead < 0:
            raise RuntimeError(f"expand: size must have at least as many dims as the input ({s.ndim}), got {list(size)}. The number of sizes "
                               f"provided must be greater or equal to the number of dimensions in the tensor.")
        shape = []
        for i, n in enumerate(size):
            old = s.shape[i - lead] if i >= lead else None
            if n == -1:
                if old is None:
                    raise RuntimeError(f"expand: -1 is not allowed in a leading, non-existing dim {i}, got {list(size)}.")
                n = old
            elif old is not None and old != n and old != 1:
                raise RuntimeError(f"expand: the expanded size ({n}) must match the existing size ({old}) at non-singleton dimension {i}, "
                                   f"got {list(size)} for input {list(s.shape)}.")
            shape.append(n)
        return shape, expand_strides(s.shape, s.strides, shape), 0

    def vjp(g, out, input, size):
        return (sum_to(g, input),)

    jvp = LINEAR

    def reference(x, size):
        lead = len(size) - x.ndim
        return np.broadcast_to(x, [x.shape[i - lead] if n == -1 else n for i, n in enumerate(size)])

    def samples(t):
        yield case(t(3, 1), (2, 3, 4))
        yield case(t(), (2, 2))
        yield case(t(3), (2, -1))
        yield case(t(3), (2, 4), raises=(RuntimeError, "must match the existing size"))


@declare
class view_as_shape(View):
    """The same memory in another shape, where strides allow it."""

    name = "view"
    functions = ()
    methods = ()

    def signature(input: Tensor, size): ...

    def view(s: Spec, size):
        shape = infer_shape("view", size, s.numel)
        strides = view_strides(s.shape, s.strides, shape)
        if strides is None:
            raise RuntimeError(f"view: size {list(size)} is not compatible with the input's size {list(s.shape)} and strides {list(s.strides)} (at "
                               f"least one dim would span two subspaces). Use .reshape(...) instead.")
        return shape, strides, 0

    def vjp(g, out, input, size):
        return (REGISTRY["reshape"](g, tuple(input.spec.shape)),)

    jvp = LINEAR

    def reference(x, size):
        return np.reshape(x, size)

    def samples(t):
        yield case(t(2, 6), (3, 4))
        yield case(t(2, 6), (-1,))
        yield case(t(2, 0, 3), (0, 5))
        yield case(t(2, 3), (4,), raises=(RuntimeError, "invalid for input of size"))


@declare
class reshape(Composite):
    """The elements in another shape: a view where strides allow it, else a copy."""

    functions = ()
    methods = ()

    def signature(input: Tensor, shape): ...

    def meta(op, s, size):
        shape = infer_shape("reshape", size, s.numel)
        strides = view_strides(s.shape, s.strides, shape)
        return Spec.of(shape, s.dtype, s.device) if strides is None else Spec.get(shape, strides, s.dtype, s.device)

    def body(input, shape):
        shape = infer_shape("reshape", shape, input.spec.numel)
        if view_strides(input.spec.shape, input.spec.strides, shape) is None:
            input = REGISTRY["contiguous_copy"](input)
        return view_as_shape(input, shape)

    def vjp(g, out, input, shape):
        return (reshape(g, tuple(input.spec.shape)),)

    def reference(x, shape):
        return np.reshape(x, shape)

    samples = view_as_shape.rules.samples


@declare
class view_scatter(Composite):
    """`base` with one of its views (a chain of view ops) replaced by `src`: what an in-place write to the view leaves."""

    functions = ()
    methods = ()

    def signature(base: Tensor, src: Tensor, views): ...

    def meta(op, base, src, views):
        return Spec.of(base.shape, base.dtype, base.device)

    def body(base, src, views):
        return REGISTRY["scatter_into_view"](base, src, views)

    def vjp(g, out, base, src, views):
        hole = REGISTRY["full"](tuple(src.spec.shape), 0, dtype=src.spec.dtype, device=src.spec.device)
        shown = g
        for name, attributes in views:
            shown = REGISTRY[name](shown, *attributes)
        return view_scatter(g, hole, views), shown

    def reference(base, src, views):
        return base

    def samples(t):
        yield case(t(3, 4), t(4, 3), (("transpose", (0, 1)),))


@declare
class as_strided(View):
    """Any strides over the input's storage; `offset` counts elements from the input's first."""

    functions = ()
    methods = ()

    def signature(input: Tensor, size, stride, offset=0): ...

    def view(s: Spec, size, stride, offset):
        if len(size) != len(stride):
            raise RuntimeError(f"as_strided: size and stride must have one length, got {list(size)} and {list(stride)}.")
        if any(n < 0 for n in stride):
            raise RuntimeError(f"as_strided: strides must not be negative, got {list(stride)}. Use flip().")
        return size, stride, offset

    vjp = NOT_DIFFERENTIABLE

    def reference(x, size, stride, offset=0):
        return np.lib.stride_tricks.as_strided(x.ravel()[offset:], size, [n * x.itemsize for n in stride])

    def samples(t):
        yield case(t(12), (3, 2), (4, 1), 1)
        yield case(t(12), (3,), (1, 2), raises=(RuntimeError, "one length"))
