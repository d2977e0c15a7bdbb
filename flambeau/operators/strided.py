"""Views whose elements may be shown more than once: any strides over memory, frames along a dim, and their gradients."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.layout import canonical_dim, has_internal_overlap
from flambeau.core.spec import Spec
from flambeau.ir.indexmap import IndexMap
from flambeau.ir.kinds import LINEAR, Assemble, Composite, Piece, View
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.batched import behind, element_ndim, front
from flambeau.operators.rules import case


@declare
class as_strided(View):
    """Any strides over the input's storage; `offset` counts elements from the input's first."""

    functions = ()
    methods = ()
    reads_layout = True

    def signature(input: Tensor, size, stride, offset=0): ...

    def view(s: Spec, size, stride, offset):
        if len(size) != len(stride):
            raise RuntimeError(
                "as_strided: size and stride must have one length (mismatch in length of strides and shape), got "
                f"{list(size)} and {list(stride)}."
            )
        if any(n < 0 for n in stride):
            raise RuntimeError(
                "as_strided: strides must not be negative (Negative strides are not supported at the moment), got "
                f"{list(stride)}. Use flip()."
            )
        if any(n < 0 for n in size):
            raise RuntimeError(f"as_strided: sizes must not be negative, got {list(size)}.")
        return size, stride, offset

    def vjp(g, out, input, size, stride, offset):
        return (strided_gradient(g, input.spec, size, stride, offset),)

    jvp = LINEAR

    def reference(x, size, stride, offset=0):
        return np.lib.stride_tricks.as_strided(x.ravel()[offset:], size, [n * x.itemsize for n in stride])

    def samples(t):
        yield case(t(12), (3, 2), (4, 1), 1)
        yield case(t(12), (3, 4), (2, 1))
        yield case(t(12), (3,), (1, 2), raises=(RuntimeError, "one length"))


def extent(size, stride) -> int:
    """Elements from the first to the last of a strided layout."""
    return 1 + sum((n - 1) * s for n, s in zip(size, stride)) if all(size) else 0


def strided_gradient(g, spec: Spec, size, stride, offset: int):
    """g added up in the storage, then read as the input lies there; an input that shows an element several times shares its gradient."""
    ops = REGISTRY
    low = min(0, offset)
    total = max(extent(spec.shape, spec.strides), offset + extent(size, stride)) - low
    flat = ops["full"]((total,), 0, dtype=g.spec.dtype, device=g.spec.device)
    view = (("as_strided", (tuple(size), tuple(stride), offset - low)),)
    if has_internal_overlap(size, stride):
        flat = overlap_add(flat, g, view)
    else:
        flat = ops["view_scatter"](flat, g, view)
    own = (tuple(spec.shape), tuple(spec.strides), -low)
    if has_internal_overlap(spec.shape, spec.strides):
        ones = ops["full"](tuple(spec.shape), 1, dtype=g.spec.dtype, device=g.spec.device)
        zeros = ops["full"]((total,), 0, dtype=g.spec.dtype, device=g.spec.device)
        count = as_strided(overlap_add(zeros, ones, (("as_strided", own),)), *own)
        return ops["true_divide"](as_strided(flat, *own), count)
    return as_strided(flat, *own)


def overlap_add(flat, g, views):
    """g added into a view of `flat` whose elements may coincide, in row-major order."""
    places = REGISTRY["iota"](tuple(flat.spec.shape), device=flat.spec.device)
    for name, attributes in views:
        places = REGISTRY[name](places, *attributes)
    return REGISTRY["index_add"](flat, 0, REGISTRY["reshape"](places, (-1,)), REGISTRY["reshape"](g, (-1,)))


@declare
class frames(View):
    """Windows of `size` elements, `dilation` apart, one every `step` along a dim, as a new last dim."""

    functions = ()
    methods = ()

    def signature(input: Tensor, dimension, size, step=1, dilation=1): ...

    def view(s: Spec, dimension, size, step, dilation):
        d = canonical_dim("unfold", dimension, s.ndim)
        n, stride = (s.shape[d], s.strides[d]) if s.ndim else (1, 1)
        reach = dilation * (size - 1) + 1 if size > 0 else 0
        if size < 0:
            raise RuntimeError(f"unfold: size must be non-negative, got {size} (size is {size} but must be >= 0).")
        if reach > n:
            raise RuntimeError(
                f"unfold: windows of size {reach} do not fit into dim {d} of size {n} (maximum size for tensor at dimension "
                f"{d} is {n} but size is {reach})."
            )
        if step <= 0:
            raise RuntimeError(f"unfold: step must be positive, got {step} (step is {step} but must be > 0).")
        if not s.ndim:
            return (size,), (1,), 0
        count = (n - reach) // step + 1
        return (
            [*s.shape[:d], count, *s.shape[d + 1 :], size],
            [*s.strides[:d], stride * step, *s.strides[d + 1 :], stride * dilation],
            0,
        )

    def vjp(g, out, input, dimension, size, step, dilation):
        zeros = REGISTRY["full"](tuple(input.spec.shape), 0, dtype=g.spec.dtype, device=g.spec.device)
        if not input.spec.ndim:
            return (REGISTRY["sum"](g, None, False),)
        return (add_frames(zeros, g, dimension, size, step, dilation),)

    jvp = LINEAR

    def reference(x, dimension, size, step=1, dilation=1):
        d = dimension % x.ndim
        found = np.lib.stride_tricks.sliding_window_view(x, dilation * (size - 1) + 1, d)
        return found[(slice(None),) * d + (slice(None, None, step),)][..., ::dilation]

    def samples(t):
        yield case(t(7), 0, 3, 2)
        yield case(t(2, 6), -1, 2, 2)
        yield case(t(5, 3), 0, 2, 1, 3)
        yield case(t(5), 0, 6, raises=(RuntimeError, "do not fit"))


@declare
class unfold(View):
    """Windows of `size` along a dim, one every `step`, as a new last dim."""

    functions = ()

    def signature(input: Tensor, dimension, size, step): ...

    def view(s: Spec, dimension, size, step):
        return frames.rules.view(s, dimension, size, step, 1)

    def vjp(g, out, input, dimension, size, step):
        return frames.rules.vjp(g, out, input, dimension, size, step, 1)

    jvp = LINEAR

    def reference(x, dimension, size, step):
        return frames.rules.reference(x, dimension, size, step)

    def samples(t):
        yield case(t(7), 0, 3, 2)
        yield case(t(5, 3), 0, 2, 1)
        yield case(t(5), 0, 2, 0, raises=(RuntimeError, "step must be positive"))


@declare
class add_frames(Assemble):
    """Frames added into `base` where `frames` would show them: its adjoint.

    Every q-th window is apart from the next, so q launches add them all without two elements meeting.
    """

    functions = ()
    methods = ()
    base = 0

    def signature(base: Tensor, parts: Tensor, dimension, size, step=1, dilation=1): ...

    def meta(op, base, parts, dimension, size, step, dilation):
        shape, _, _ = frames.rules.view(base, dimension, size, step, dilation)
        if tuple(shape) != tuple(parts.shape):
            raise RuntimeError(f"{op.name}: parts must have shape {list(shape)}, got {list(parts.shape)}.")
        return Spec.of(base.shape, base.dtype, base.device)

    def pieces(op, out, base, parts, dimension, size, step, dilation):
        d = dimension % base.ndim
        stride, q = out.strides[d], (max(0, size - 1) * dilation) // step + 1
        found = []
        for first in range(min(q, parts.shape[d])):
            count = -(-(parts.shape[d] - first) // q)
            shape = (*parts.shape[:d], count, *parts.shape[d + 1 :])
            strides = (*out.strides[:d], stride * step * q, *out.strides[d + 1 :], stride * dilation)
            rows = tuple(() if n == 1 else ((j, q if j == d else 1),) for j, n in enumerate(shape))
            offsets = tuple(first if j == d else 0 for j in range(len(shape)))
            found.append(Piece(1, shape, strides, first * step * stride, IndexMap(rows, offsets), combine="add"))
        return found

    def vjp(g, out, base, parts, dimension, size, step, dilation):
        return g, frames(g, dimension, size, step, dilation)

    def batch(n, dims, base, parts, dimension, size, step, dilation):
        at = behind(dimension, element_ndim(base, dims[0]))
        return add_frames(front(base, dims[0], n), front(parts, dims[1], n), at, size, step, dilation), 0

    def reference(base, parts, dimension, size, step=1, dilation=1):
        found = base.copy()
        view = np.moveaxis(found, dimension, -1)
        for i in range(parts.shape[dimension]):
            view[..., i * step : i * step + dilation * (size - 1) + 1 : dilation] += np.take(parts, i, dimension)
        return found

    def samples(t):
        yield case(t(7), t(3, 3), 0, 3, 2)
        yield case(t(5, 3), t(2, 3, 2), 0, 2, 1, 3)
        yield case(t(7), t(3, 2), 0, 3, 2, raises=(RuntimeError, "must have shape"))


@declare
class strided_scatter(Composite):
    """The input's storage as the input shows it, with an `as_strided` view of it replaced by `src`."""

    functions = ()
    methods = ()
    reads_layout = True

    def signature(input: Tensor, src: Tensor, size, stride, offset=0): ...

    def meta(op, input, src, size, stride, offset):
        if tuple(src.shape) != tuple(size):
            raise RuntimeError(
                f"as_strided_scatter: src must have the view's shape {list(size)} (expected src to have a size equal to the "
                f"slice of self), got {list(src.shape)}."
            )
        return Spec.of(input.shape, input.dtype, input.device)

    def body(input, src, size, stride, offset):
        ops, spec = REGISTRY, input.spec
        low = min(0, offset)
        total = max(extent(spec.shape, spec.strides), offset + extent(size, stride)) - low
        own = (tuple(spec.shape), tuple(spec.strides), -low)
        flat = as_strided(input, (total,), (1,), low)
        changed = ops["view_scatter"](flat, src, (("as_strided", (tuple(size), tuple(stride), offset - low)),))
        return ops["contiguous_copy"](as_strided(changed, *own))

    def reference(x, src, size, stride, offset=0):
        found = x.copy()
        np.lib.stride_tricks.as_strided(found.reshape(-1)[offset:], size, [n * x.itemsize for n in stride])[...] = src
        return found

    def samples(t):
        yield case(t(12), t(3, 2), (3, 2), (4, 1), 1)
        yield case(t(12), t(3), (3, 2), (4, 1), raises=(RuntimeError, "the view's shape"))
