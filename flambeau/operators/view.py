"""Views: other shapes and strides over the same memory, and their adjoints."""

from __future__ import annotations

import math

from flambeau.base.lazy import np
from flambeau.core.dtype import int16, int32, int64
from flambeau.core.layout import canonical_dim, canonical_dims, expand_strides, infer_shape, view_strides
from flambeau.core.spec import Spec
from flambeau.ir.kinds import LINEAR, Composite, View
from flambeau.ir.op import REGISTRY, Refused, declare
from flambeau.operators.rules import case, sum_to


def fill_view(g, input, name, *attributes):
    """The gradient of a view whose elements are distinct: zeros in the input's shape with g where the view was."""
    zeros = REGISTRY["full"](tuple(input.spec.shape), 0, dtype=input.spec.dtype, device=input.spec.device)
    return REGISTRY["view_scatter"](zeros, g, ((name, attributes),))


def slice_bounds(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Where a slice with a positive step begins and ends in n elements. Symbolic sizes stay so, which `slice.indices` would not let them."""
    bounds = []
    for place, default in ((start, 0), (end, n)):
        if place is None:
            bounds.append(default)
        elif place < 0:
            bounds.append(n + place if n + place > 0 else 0)
        else:
            bounds.append(place if place <= n else n)
    return bounds[0], bounds[1]


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
            raise RuntimeError(
                f"expand: size must have at least as many dims as the input ({s.ndim}), got {list(size)}. The number of "
                "sizes provided must be greater or equal to the number of dimensions in the tensor."
            )
        shape = []
        for i, n in enumerate(size):
            old = s.shape[i - lead] if i >= lead else None
            if n == -1:
                if old is None:
                    raise RuntimeError(
                        f"expand: -1 is not allowed in a leading, non-existing dim {i}, got {list(size)}."
                    )
                n = old
            elif old is not None and old != n and old != 1:
                raise RuntimeError(
                    f"expand: the expanded size ({n}) must match the existing size ({old}) at non-singleton dimension {i}, "
                    f"got {list(size)} for input {list(s.shape)}."
                )
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
    reads_layout = True
    keeps_order = True

    def signature(input: Tensor, size): ...

    def view(s: Spec, size):
        shape = infer_shape("view", size, s.numel)
        strides = view_strides(s.shape, s.strides, shape)
        if strides is None:
            raise RuntimeError(
                f"view: size {list(size)} is not compatible with the input's size {list(s.shape)} and strides "
                f"{list(s.strides)} (at least one dim would span two subspaces). Use .reshape(...) instead."
            )
        return shape, strides, 0

    def simplify(out, input, size):
        """A shape given after another is given at once; a dim merged and split again then stays apart."""
        before = input.node
        if before is None or not before.op.rules.keeps_order:
            return None
        source = before.args[0]
        if view_strides(source.spec.shape, source.spec.strides, out.spec.shape) is None:
            return None
        return view_as_shape, (source, tuple(out.spec.shape))

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
class permute(View):
    """The dims in another order: dim i of the result is dim `dims[i]` of the input."""

    methods = ()

    def signature(input: Tensor, dims): ...

    def view(s: Spec, dims):
        if len(dims) != s.ndim:
            raise RuntimeError(
                f"permute: dims must name every dim once, got {list(dims)} for a {s.ndim}-d input (number of dimensions in "
                "the tensor input does not match the length of the desired ordering of dimensions)."
            )
        order = [canonical_dim("permute", d, s.ndim) for d in dims]
        if len(set(order)) != len(order):
            raise RuntimeError(
                f"permute: dims must name every dim once, got {list(dims)} (duplicate dims are not allowed)."
            )
        return [s.shape[d] for d in order], [s.strides[d] for d in order], 0

    def vjp(g, out, input, dims):
        back = [0] * len(dims)
        for i, d in enumerate(dims):
            back[d % len(dims)] = i
        return (permute(g, tuple(back)),)

    jvp = LINEAR

    def reference(x, dims):
        return np.transpose(x, dims)

    def samples(t):
        yield case(t(2, 3, 4), (2, 0, 1))
        yield case(t(2, 3), (-1, 0))
        yield case(t(), ())
        yield case(t(2, 3), (0, 0), raises=(RuntimeError, "duplicate"))
        yield case(t(2, 3), (0,), raises=(RuntimeError, "every dim once"))


@declare
class squeeze(View):
    """Dims of size 1 dropped: all of them, or those named by `dim` (an int or several) that have size 1."""

    keeps_order = True

    def signature(input: Tensor, dim=None): ...

    def view(s: Spec, dim):
        drop = canonical_dims("squeeze", dim, s.ndim, empty_is_all=False)
        keep = [d for d in range(s.ndim) if d not in drop or s.shape[d] != 1]
        return [s.shape[d] for d in keep], [s.strides[d] for d in keep], 0

    def vjp(g, out, input, dim):
        return (REGISTRY["reshape"](g, tuple(input.spec.shape)),)

    jvp = LINEAR

    def reference(x, dim=None):
        dims = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
        return np.squeeze(x, tuple(d for d in dims if x.ndim and x.shape[d] == 1))

    def samples(t):
        yield case(t(2, 1, 3, 1))
        yield case(t(2, 1, 3), 1)
        yield case(t(2, 1, 3), -1)
        yield case(t(2, 1, 1), (1, 2))
        yield case(t(2, 1), 3, raises=(IndexError, "dim must be in"))


@declare
class unsqueeze(View):
    """A dim of size 1 inserted at `dim`."""

    keeps_order = True

    def signature(input: Tensor, dim): ...

    def view(s: Spec, dim):
        d = canonical_dim("unsqueeze", dim, s.ndim + 1)
        step = s.strides[d] * s.shape[d] if d < s.ndim else 1
        return [*s.shape[:d], 1, *s.shape[d:]], [*s.strides[:d], step, *s.strides[d:]], 0

    def vjp(g, out, input, dim):
        return (squeeze(g, dim),)

    jvp = LINEAR

    def reference(x, dim):
        return np.expand_dims(x, dim)

    def samples(t):
        yield case(t(2, 3), 0)
        yield case(t(2, 3), -1)
        yield case(t(), 0)
        yield case(t(2, 3), 3, raises=(IndexError, "dim must be in"))


@declare
class select(View):
    """One index of a dim; the dim goes."""

    def signature(input: Tensor, dim, index): ...

    def view(s: Spec, dim, index):
        if not s.ndim:
            raise IndexError("select: cannot be applied to a 0-dim tensor. Use .item() for its value.")
        d = canonical_dim("select", dim, s.ndim)
        n = s.shape[d]
        if not -n <= index < n:
            raise IndexError(
                f"select: index must be in [{-n}, {n - 1}], got {index} (index {index} is out of bounds for dimension {d} "
                f"with size {n})."
            )
        return [*s.shape[:d], *s.shape[d + 1 :]], [*s.strides[:d], *s.strides[d + 1 :]], index % n * s.strides[d]

    def vjp(g, out, input, dim, index):
        return (fill_view(g, input, "select", dim, index),)

    jvp = LINEAR

    def reference(x, dim, index):
        return x[(slice(None),) * (dim % x.ndim) + (index,)]

    def samples(t):
        yield case(t(3, 4), 0, 1)
        yield case(t(3, 4), 1, -1)
        yield case(t(3, 4), 1, 4, raises=(IndexError, "index must be in"))


@declare
class slice_(View):
    """Every `step`-th index of a dim in [start, end), as Python slices count; step must be positive."""

    name = "slice"
    functions = ()
    methods = ()

    def signature(input: Tensor, dim=0, start=None, end=None, step=1): ...

    def view(s: Spec, dim, start, end, step):
        if not s.ndim:
            raise RuntimeError("slice: cannot be applied to a 0-dim tensor. Unsqueeze it first.")
        if step <= 0:
            raise ValueError(
                f"slice: step must be greater than zero, got {step}. Use flip(), or x[...] with a negative step."
            )
        d = canonical_dim("slice", dim, s.ndim)
        first, last = slice_bounds(s.shape[d], start, end)
        length = max(0, -(-(last - first) // step))
        shape, strides = list(s.shape), list(s.strides)
        shape[d], strides[d] = length, s.strides[d] * step
        return shape, strides, first * s.strides[d] if length else 0

    def vjp(g, out, input, dim, start, end, step):
        return (fill_view(g, input, "slice", dim, start, end, step),)

    jvp = LINEAR

    def reference(x, dim=0, start=None, end=None, step=1):
        return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]

    def samples(t):
        yield case(t(5, 4), 0, 1, 4, 2)
        yield case(t(5, 4), -1, -3, None)
        yield case(t(5), 0, 4, 2)
        yield case(t(5), 0, 0, 5, -1, raises=(ValueError, "greater than zero"))


@declare
class narrow(View):
    """`length` indices of a dim from `start` on."""

    def signature(input: Tensor, dim, start, length): ...

    def view(s: Spec, dim, start, length):
        if not s.ndim:
            raise RuntimeError("narrow: narrow() cannot be applied to a 0-dim tensor. Unsqueeze it first.")
        d = canonical_dim("narrow", dim, s.ndim)
        n, first = s.shape[d], int(start)
        if length < 0:
            raise RuntimeError(
                f"narrow: length must be non-negative, got {length} (narrow(): length must be non-negative)."
            )
        if not -n <= first <= n:
            raise IndexError(f"narrow: start must be in [{-n}, {n}], got {first} (Dimension out of range).")
        first = first + n if first < 0 else first
        if first + length > n:
            raise RuntimeError(f"narrow: start ({first}) + length ({length}) exceeds dimension size ({n}). Take less.")
        shape = [*s.shape[:d], length, *s.shape[d + 1 :]]
        return shape, s.strides, first * s.strides[d] if length else 0

    def vjp(g, out, input, dim, start, length):
        return (fill_view(g, input, "narrow", dim, start, length),)

    jvp = LINEAR

    def reference(x, dim, start, length):
        return np.take(x, range(start % max(1, x.shape[dim]), start % max(1, x.shape[dim]) + length), axis=dim)

    def samples(t):
        yield case(t(5, 4), 0, 1, 3)
        yield case(t(5, 4), 1, -2, 2)
        yield case(t(5, 4), 1, 2, 3, raises=(RuntimeError, "exceeds dimension size"))


@declare
class diagonal(View):
    """The diagonal of two dims, as a new last dim; `offset` moves up (positive) or down."""

    def signature(input: Tensor, offset=0, dim1=0, dim2=1): ...

    def view(s: Spec, offset, dim1, dim2):
        a, b = canonical_dim("diagonal", dim1, s.ndim), canonical_dim("diagonal", dim2, s.ndim)
        if a == b or s.ndim < 2:
            raise RuntimeError(
                f"diagonal: dim1 and dim2 must differ, got {dim1} and {dim2} (diagonal dimensions cannot be identical)."
            )
        length = max(0, min(s.shape[a] + min(0, offset), s.shape[b] - max(0, offset)))
        keep = [d for d in range(s.ndim) if d not in (a, b)]
        start = (offset * s.strides[b] if offset >= 0 else -offset * s.strides[a]) if length else 0
        return (
            [*(s.shape[d] for d in keep), length],
            [*(s.strides[d] for d in keep), s.strides[a] + s.strides[b]],
            start,
        )

    def vjp(g, out, input, offset, dim1, dim2):
        return (fill_view(g, input, "diagonal", offset, dim1, dim2),)

    jvp = LINEAR

    def reference(x, offset=0, dim1=0, dim2=1):
        return np.diagonal(x, offset, dim1, dim2)

    def samples(t):
        yield case(t(3, 4))
        yield case(t(3, 4), 1)
        yield case(t(3, 4), -5)
        yield case(t(2, 3, 4), -1, 0, 2)
        yield case(t(3, 4), 0, 1, 1, raises=(RuntimeError, "must differ"))


@declare
class reverse(View):
    """The dims read backwards. Only inside other ops: a tensor never has negative strides."""

    functions = ()
    methods = ()

    def signature(input: Tensor, dims): ...

    def view(s: Spec, dims):
        strides = [-n if d in dims else n for d, n in enumerate(s.strides)]
        return s.shape, strides, sum(s.strides[d] * max(0, s.shape[d] - 1) for d in dims)

    def vjp(g, out, input, dims):
        return (reverse(g, dims),)

    jvp = LINEAR

    def reference(x, dims):
        return np.flip(x, dims)

    def samples(t):
        yield case(t(3, 4), (0, 1))


@declare
class view_as_dtype(View):
    """The same bytes read as another dtype; where the sizes differ, the last dim grows or shrinks."""

    functions = ()
    methods = ()
    reads_layout = True

    def signature(input: Tensor, dtype): ...

    def view(s: Spec, dtype):
        old, new = s.dtype.itemsize, dtype.itemsize
        if old == new:
            return s.shape, s.strides, 0
        if not s.ndim:
            raise RuntimeError(
                f"view: a 0-dim tensor cannot be read as a dtype of another size, got {s.dtype.name} as {dtype.name} "
                f"(self.dim() cannot be 0 to view {s.dtype.name} as {dtype.name} (different element sizes))."
            )
        if s.strides[-1] != 1:
            raise RuntimeError(
                f"view: the last dim must have stride 1 to be read as another size, got strides {list(s.strides)} "
                f"(self.stride(-1) must be 1 to view {s.dtype.name} as {dtype.name} (different element sizes)). Call "
                ".contiguous() first."
            )
        if old > new:
            by = old // new
            return [*s.shape[:-1], s.shape[-1] * by], [*(n * by for n in s.strides[:-1]), 1], 0
        by = new // old
        if s.shape[-1] % by or any(n % by for n in s.strides[:-1]):
            raise RuntimeError(
                f"view: the last dim and the other strides must be divisible by {by} to be read as {dtype.name}, got shape "
                f"{list(s.shape)}, strides {list(s.strides)} (self.size(-1) must be divisible by {by}). Call .contiguous() "
                "first."
            )
        return [*s.shape[:-1], s.shape[-1] // by], [*(n // by for n in s.strides[:-1]), 1], 0

    def retype(s: Spec, dtype):
        return dtype

    vjp = Refused("its result is another reading of the bytes")

    def reference(x, dtype):
        return x.view(dtype.name)

    def samples(t):
        yield case(t(3, 4), int32)
        yield case(t(3, 4), int16)
        yield case(t(3, dtype="int32"), int64, raises=(RuntimeError, "divisible"))


@declare
class subview(View):
    """Several steps of basic indexing at once: one item per dim, an int (the dim goes), (start, end, step) with step > 0, or None for a
    new dim.
    """

    functions = ()
    methods = ()

    def signature(input: Tensor, items): ...

    def view(s: Spec, items):
        shape, strides, offset, d = [], [], 0, 0
        for item in items:
            if item is None:
                shape.append(1)
                strides.append(s.strides[d] * s.shape[d] if d < s.ndim else 1)
                continue
            n, step = s.shape[d], s.strides[d]
            if isinstance(item, tuple):
                by = 1 if item[2] is None else item[2]
                first, last = slice_bounds(n, item[0], item[1])
                length = max(0, -(-(last - first) // by))
                offset += first * step if length else 0
                shape.append(length)
                strides.append(step * by)
            else:
                if not -n <= item < n:
                    raise IndexError(
                        f"index: index must be in [{-n}, {n - 1}], got {item} (index {item} is out of bounds for dimension "
                        f"{d} with size {n})."
                    )
                offset += item % n * step
            d += 1
        return [*shape, *s.shape[d:]], [*strides, *s.strides[d:]], offset if math.prod(shape) and s.numel else 0

    def vjp(g, out, input, items):
        return (fill_view(g, input, "subview", items),)

    jvp = LINEAR

    def reference(x, items):
        return x[tuple(slice(*i) if isinstance(i, tuple) else i for i in items)]

    def samples(t):
        yield case(t(4, 5, 6), (1, (0, 4, 2)))
        yield case(t(4, 5), (None, (1, 3, 1), -1))
        yield case(t(4, 5), (4,), raises=(IndexError, "out of bounds"))
