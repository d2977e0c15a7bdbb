"""Tensors put together from others: written into views, joined, stacked, padded.

Each piece is one launch that computes its values on the way into the result's memory. Gradients are views of the result's gradient.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import promote_types
from flambeau.core.layout import canonical_dim
from flambeau.core.spec import Spec
from flambeau.ir.kinds import LINEAR, Assemble, Composite, Piece, apply_view, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.batched import behind, element_ndim, element_shape, front
from flambeau.operators.rules import case, sum_to, to_type_of


def region(spec: Spec, views) -> tuple[Spec, int]:
    """(layout, offset in its elements) of a chain of views, given as (op name, attributes), of memory laid out as `spec`."""
    offset = 0
    for name, attributes in views:
        size = spec.dtype.itemsize
        spec, extra = apply_view(REGISTRY[name].rules, spec, attributes)
        offset = offset * size // spec.dtype.itemsize + extra
    return spec, offset


def shown(x, views):
    """A chain of views, given as (op name, attributes), of a tensor."""
    for name, attributes in views:
        x = REGISTRY[name](x, *attributes)
    return x


# ------------------------------------------------------------------ writing into views
@declare
class view_scatter(Assemble):
    """`base` with one of its views (a chain of view ops) replaced by `src`: what an in-place write to the view leaves."""

    functions = ()
    methods = ()
    base = 0

    def signature(base: Tensor, src: Tensor, views): ...

    def meta(op, base, src, views):
        wanted, _ = region(base, views)
        if tuple(wanted.shape) != tuple(src.shape):
            raise RuntimeError(
                f"{op.name}: src must have the view's shape {list(wanted.shape)} (expected src to have a size equal to the "
                f"slice of self), got {list(src.shape)}."
            )
        return Spec.of(base.shape, base.dtype, base.device)

    def pieces(op, out, base, src, views):
        spec, offset = region(out, views)
        return [Piece(1, tuple(spec.shape), spec.strides, offset, dtype=spec.dtype)]

    def vjp(g, out, base, src, views):
        hole = REGISTRY["full"](tuple(src.spec.shape), 0, dtype=src.spec.dtype, device=src.spec.device)
        return view_scatter(g, hole, views), to_type_of(shown(g, views), src)

    def batch(size, dims, base, src, views):
        behind_batch = tuple(("batched_view", (name, attributes)) for name, attributes in views)
        return view_scatter(front(base, dims[0], size), front(src, dims[1], size), behind_batch), 0

    def reference(base, src, views):
        found = base.copy()
        view = found
        for name, attributes in views:
            view = REGISTRY[name].rules.reference(view, *attributes)
        view[...] = src
        return found

    def samples(t):
        yield case(t(3, 4), t(4, 3), (("transpose", (0, 1)),))
        yield case(t(3, 4), t(2), (("select", (0, 1)), ("slice", (0, 1, 4, 2))))
        yield case(t(3, 4), t(3), (("select", (0, 1)),), raises=(RuntimeError, "the view's shape"))


class ScatterIntoView(Composite):
    def meta(op, input, src, *attributes):
        return view_scatter.rules.meta(op, input, src, ((op.rules.view_name, attributes),))


@declare
class select_scatter(ScatterIntoView):
    """A copy of the input with `input.select(dim, index)` replaced by `src`."""

    view_name = "select"

    def signature(input: Tensor, src: Tensor, dim, index): ...

    def body(input, src, dim, index):
        return view_scatter(input, src, (("select", (dim, index)),))

    def reference(x, src, dim, index):
        return view_scatter.rules.reference(x, src, (("select", (dim, index)),))

    def samples(t):
        yield case(t(3, 4), t(4), 0, 1)
        yield case(t(3, 4), t(3), 1, -1)
        yield case(t(3, 4), t(3), 0, 1, raises=(RuntimeError, "the view's shape"))


@declare
class slice_scatter(ScatterIntoView):
    """A copy of the input with `input[start:end:step]` of a dim replaced by `src`."""

    view_name = "slice"

    def signature(input: Tensor, src: Tensor, dim=0, start=None, end=None, step=1): ...

    def body(input, src, dim, start, end, step):
        return view_scatter(input, src, (("slice", (dim, start, end, step)),))

    def reference(x, src, dim=0, start=None, end=None, step=1):
        return view_scatter.rules.reference(x, src, (("slice", (dim, start, end, step)),))

    def samples(t):
        yield case(t(8, 8), t(2, 8), 0, 6)
        yield case(t(8, 8), t(8, 2), 1, 2, 6, 2)


@declare
class diagonal_scatter(ScatterIntoView):
    """A copy of the input with its diagonal (see `diagonal`) replaced by `src`."""

    view_name = "diagonal"

    def signature(input: Tensor, src: Tensor, offset=0, dim1=0, dim2=1): ...

    def body(input, src, offset, dim1, dim2):
        return view_scatter(input, src, (("diagonal", (offset, dim1, dim2)),))

    def reference(x, src, offset=0, dim1=0, dim2=1):
        found = x.copy()
        rows = np.arange(src.shape[-1])
        np.moveaxis(found, (dim1, dim2), (-2, -1))[..., rows - min(0, offset), rows + max(0, offset)] = src
        return found

    def samples(t):
        yield case(t(3, 3), t(2), 1)
        yield case(t(2, 3, 4), t(3, 2), 0, 0, 2)


# ------------------------------------------------------------------ joins
def join_type(op, tensors):
    """The type that all pieces promote to."""
    if not tensors:
        kind = ValueError if op.name == "cat" else RuntimeError  # as PyTorch
        raise kind(f"{op.name}: expects a non-empty list of tensors (expected a non-empty list of Tensors), got none.")
    found = tensors[0].dtype
    for s in tensors[1:]:
        found = promote_types(found, s.dtype)
    return found


def is_legacy_empty(s: Spec) -> bool:
    """A tensor of shape [0] joins anything, as it always has."""
    return tuple(s.shape) == (0,)


@declare
class cat(Assemble):
    """Tensors joined along an existing dim; other sizes must agree (tensors of shape [0] are left out).

    Dtypes: promoted. Raises: RuntimeError where sizes differ, ValueError where there is nothing to join.
    """

    functions = ("cat", "concat", "concatenate")
    methods = ()

    def signature(tensors: Tensors, dim=0): ...

    def meta(op, tensors, dim):
        d = join_type(op, tensors)
        full = [s for s in tensors if not is_legacy_empty(s)]
        if not full:
            canonical_dim("cat", dim, 1)
            return Spec.of((0,), d, common_device(op.name, tensors))
        first = full[0]
        if not all(s.ndim for s in tensors):
            raise RuntimeError(
                "cat: tensors must have at least one dim (zero-dimensional tensor cannot be concatenated). Use stack()."
            )
        at = canonical_dim("cat", dim, first.ndim)
        shape = list(first.shape)
        shape[at] = 0
        for i, s in enumerate(full):
            if s.ndim != first.ndim or any(a != b for j, (a, b) in enumerate(zip(s.shape, first.shape)) if j != at):
                raise RuntimeError(
                    f"cat: sizes must match except in dim {at}, got {list(first.shape)} and {list(s.shape)} for tensor {i} "
                    f"in the list (Sizes of tensors must match except in dimension {at})."
                )
            shape[at] += s.shape[at]
        return Spec.of(shape, d, common_device(op.name, tensors))

    def simplify(out, tensors, dim):
        return tensors[0] if len(tensors) == 1 else None

    def pieces(op, out, tensors, dim):
        found, start = [], 0
        for i, s in enumerate(tensors):
            if not is_legacy_empty(s):
                at = dim % s.ndim
                found.append(Piece(i, tuple(s.shape), out.strides, start * out.strides[at]))
                start += s.shape[at]
        return found

    def vjp(g, out, tensors, dim):
        found, start = [], 0
        for x in tensors:
            if is_legacy_empty(x.spec):
                found.append(REGISTRY["full"]((0,), 0, dtype=x.spec.dtype, device=x.spec.device))
                continue
            length = x.spec.shape[dim]
            found.append(to_type_of(REGISTRY["narrow"](g, dim, start, length), x))
            start += length
        return (tuple(found),)

    jvp = LINEAR

    def batch(size, dims, tensors, dim):
        full = [(x, d) for x, d in zip(tensors, dims[0]) if element_shape(x, d) != (0,)] or list(zip(tensors, dims[0]))
        return cat(tuple(front(x, d, size) for x, d in full), behind(dim, element_ndim(*full[0]))), 0

    def reference(tensors, dim=0):
        return np.concatenate([x for x in tensors if x.shape != (0,)], dim)

    def samples(t):
        yield case((t(2, 3), t(4, 3)), 0)
        yield case((t(2, 3), t(2, 0), t(2, 5)), -1)
        yield case((t(2, 3), t(0)), 1)
        yield case((t(2, 3), t(3, 4)), 0, raises=(RuntimeError, "sizes must match"))
        yield case((), 0, raises=(ValueError, "non-empty"))


@declare
class stack(Assemble):
    """Tensors of one shape joined along a new dim. Dtypes: promoted."""

    methods = ()

    def signature(tensors: Tensors, dim=0): ...

    def meta(op, tensors, dim):
        d = join_type(op, tensors)
        first = tensors[0]
        at = canonical_dim("stack", dim, first.ndim + 1)
        for i, s in enumerate(tensors):
            if tuple(s.shape) != tuple(first.shape):
                raise RuntimeError(
                    "stack: tensors must have one shape (stack expects each tensor to be equal size), got "
                    f"{list(first.shape)} at entry 0 and {list(s.shape)} at entry {i}."
                )
        return Spec.of([*first.shape[:at], len(tensors), *first.shape[at:]], d, common_device(op.name, tensors))

    def pieces(op, out, tensors, dim):
        at = dim % out.ndim
        strides = out.strides[:at] + out.strides[at + 1 :]
        return [Piece(i, tuple(s.shape), strides, i * out.strides[at]) for i, s in enumerate(tensors)]

    def vjp(g, out, tensors, dim):
        return (tuple(to_type_of(REGISTRY["select"](g, dim, i), x) for i, x in enumerate(tensors)),)

    jvp = LINEAR

    def batch(size, dims, tensors, dim):
        return stack(
            tuple(front(x, d, size) for x, d in zip(tensors, dims[0])),
            behind(dim, element_ndim(tensors[0], dims[0][0]) + 1),
        ), 0

    def reference(tensors, dim=0):
        return np.stack(tensors, dim)

    def samples(t):
        yield case((t(2, 3), t(2, 3)), 0)
        yield case((t(2, 3), t(2, 3), t(2, 3)), -1)
        yield case((t(), t()), 0)
        yield case((t(2), t(3)), 0, raises=(RuntimeError, "one shape"))


@declare
class split_with_sizes(Composite):
    """Views of consecutive parts of a dim. Backward joins the parts' gradients in one pass."""

    functions = ()
    methods = ()
    outputs = 0  # as many as there are sizes

    def signature(input: Tensor, split_sizes, dim=0): ...

    def meta(op, s, split_sizes, dim):
        found, start = [], 0
        d = canonical_dim("split", dim, s.ndim)
        if any(n < 0 for n in split_sizes) or sum(split_sizes) != s.shape[d]:
            raise RuntimeError(
                f"split: sizes must be non-negative and add up to {s.shape[d]}, the size of dim {d} (split_with_sizes "
                f"expects split_sizes to sum exactly to {s.shape[d]}), got {list(split_sizes)}."
            )
        for n in split_sizes:
            found.append(Spec.get([*s.shape[:d], n, *s.shape[d + 1 :]], s.strides, s.dtype, s.device))
            start += n
        return tuple(found)

    def body(input, split_sizes, dim):
        found, start = [], 0
        for n in split_sizes:
            found.append(REGISTRY["narrow"](input, dim, start, n))
            start += n
        return tuple(found)

    def vjp(g, out, input, split_sizes, dim):
        return (
            (cat(tuple(g), dim),)
            if g[0].spec.ndim and tuple(input.spec.shape) != (0,)
            else (REGISTRY["reshape"](g[0], tuple(input.spec.shape)),)
        )

    def reference(x, split_sizes, dim=0):
        return np.split(x, np.cumsum(split_sizes)[:-1], dim)

    def samples(t):
        yield case(t(5, 3), (2, 3), 0)
        yield case(t(2, 6), (1, 2, 3), -1)
        yield case(t(5), (2, 2), 0, raises=(RuntimeError, "add up"))


@declare
class unbind_dim(Composite):
    """Views of every index of a dim. Backward stacks their gradients in one pass."""

    functions = ()
    methods = ()
    outputs = 0

    def signature(input: Tensor, dim=0): ...

    def meta(op, s, dim):
        d = canonical_dim("unbind", dim, s.ndim)
        part = Spec.get([*s.shape[:d], *s.shape[d + 1 :]], [*s.strides[:d], *s.strides[d + 1 :]], s.dtype, s.device)
        return (part,) * s.shape[d]

    def body(input, dim):
        return tuple(REGISTRY["select"](input, dim, i) for i in range(input.spec.shape[dim]))

    def vjp(g, out, input, dim):
        return (stack(tuple(g), dim),)

    def reference(x, dim=0):
        return [np.take(x, i, dim) for i in range(x.shape[dim])]

    def samples(t):
        yield case(t(3, 4), 0)
        yield case(t(3, 4), -1)


# ------------------------------------------------------------------ copies in another order
@declare
class flip(Composite):
    """A copy with the order of some dims reversed."""

    methods = ()
    functions = ()

    def signature(input: Tensor, dims): ...

    def meta(op, s, dims):
        found = [canonical_dim("flip", d, s.ndim) for d in dims]
        if len(set(found)) != len(found):
            raise RuntimeError(
                f"flip: each dim may appear once, got {list(dims)} (dim appears multiple times in the list of dims)."
            )
        return Spec.of(s.shape, s.dtype, s.device)

    def body(input, dims):
        n = max(1, input.spec.ndim)
        live = tuple(sorted(d % n for d in dims if input.spec.ndim))
        return REGISTRY["contiguous_copy"](REGISTRY["reverse"](input, live))

    def vjp(g, out, input, dims):
        return (flip(g, dims),)

    jvp = LINEAR

    def reference(x, dims):
        return np.flip(x, dims)

    def samples(t):
        yield case(t(3, 4), (0,))
        yield case(t(3, 4), (0, -1))
        yield case(t(3, 4), (0, 0), raises=(RuntimeError, "may appear once"))


@declare
class roll(Composite):
    """Elements moved along dims by `shifts`, what falls off coming back at the other end; without dims, along the flattened tensor."""

    methods = ()
    functions = ()

    def signature(input: Tensor, shifts, dims=()): ...

    def meta(op, s, shifts, dims):
        if not shifts:
            raise RuntimeError("roll: shifts must not be empty (`shifts` required).")
        if len(shifts) != len(dims) and (dims or len(shifts) != 1):
            raise RuntimeError(
                f"roll: shifts and dims must align, got {len(shifts)} shifts and {len(dims)} dims (shifts and dimensions "
                "must align)."
            )
        for d in dims:
            if not s.ndim:
                raise IndexError(
                    f"roll: a 0-dim tensor has no dim to roll, got dims={list(dims)} (Dimension specified as {d} but tensor "
                    "has no dimensions)."
                )
            canonical_dim("roll", d, s.ndim)
        return Spec.of(s.shape, s.dtype, s.device)

    def body(input, shifts, dims):
        ops, shape = REGISTRY, tuple(input.spec.shape)
        if not dims:
            flat = ops["reshape"](input, (-1,))
            return ops["reshape"](rolled(flat, shifts[0], 0), shape)
        for shift, d in zip(shifts, dims):
            input = rolled(input, shift, d)
        return input

    def vjp(g, out, input, shifts, dims):
        return (roll(g, tuple(-n for n in shifts), dims),)

    jvp = LINEAR

    def reference(x, shifts, dims=()):
        return np.roll(x, shifts, dims) if dims else np.roll(x, shifts[0])

    def samples(t):
        yield case(t(3, 4), (1,), (0,))
        yield case(t(3, 4), (2, -1), (0, 1))
        yield case(t(3, 4), (5,))
        yield case(t(3, 4), (1, 2), (0,), raises=(RuntimeError, "must align"))


def rolled(x, shift: int, dim: int):
    """x rolled along one dim: two pieces."""
    n = x.spec.shape[dim]
    by = shift % n if n else 0
    if by == 0:
        return REGISTRY["contiguous_copy"](x)
    return cat((REGISTRY["narrow"](x, dim, n - by, by), REGISTRY["narrow"](x, dim, 0, n - by)), dim)


# ------------------------------------------------------------------ padding
def padded_shape(op: str, shape, pad) -> list[int]:
    """The shape after padding by pairs from the last dim. Raises: RuntimeError."""
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise RuntimeError(
            f"{op}: pad must be pairs for at most {len(shape)} dims, got {list(pad)} (Length of pad must be even and no "
            "more than twice the number of dimensions of the input)."
        )
    result = list(shape)
    for i in range(len(pad) // 2):
        d = len(shape) - 1 - i
        result[d] += pad[2 * i] + pad[2 * i + 1]
        if result[d] < 0:
            raise RuntimeError(
                f"{op}: the input size {shape[d]} of dim {d} plus padding {pad[2 * i]} and {pad[2 * i + 1]} must not be "
                "negative (resulted in a negative output size)."
            )
    return result


@declare
class constant_pad_nd(Composite):
    """The input with `pad` = (left, right) pairs, last dim first, filled with `value` around it; negative padding crops."""

    functions = ("constant_pad_nd",)
    methods = ()

    def signature(input: Tensor, pad, value: Scalar = 0): ...

    def meta(op, s, pad, value):
        return Spec.of(padded_shape("pad", s.shape, pad), s.dtype, s.device)

    def body(input, pad, value):
        ops, views = REGISTRY, []
        shape = padded_shape("pad", input.spec.shape, pad)
        for i in range(len(pad) // 2):
            d, left, right = input.spec.ndim - 1 - i, pad[2 * i], pad[2 * i + 1]
            if left < 0 or right < 0:
                first = max(0, -left)
                input = ops["narrow"](
                    input, d, min(first, input.spec.shape[d]), max(0, input.spec.shape[d] - first - max(0, -right))
                )
            if left > 0 or right > 0:
                views.append(("narrow", (d, max(0, left), input.spec.shape[d])))
        if not views:
            return ops["contiguous_copy"](input)
        around = ops["full"](tuple(shape), value, dtype=input.spec.dtype, device=input.spec.device)
        return view_scatter(around, input, tuple(views))

    def vjp(g, out, input, pad, value):
        return (constant_pad_nd(g, tuple(-n for n in pad)),)

    def reference(x, pad, value=0):
        widths = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -2, -2)]
        return np.pad(x, widths, constant_values=value)

    def samples(t):
        yield case(t(3, 4), (1, 2))
        yield case(t(3, 4), (1, 0, 2, 3), 1.5)
        yield case(t(3), (1, 2, 3), raises=(RuntimeError, "pairs"))


class EdgePad(Composite):
    """Padding with what the input holds, dim by dim."""

    functions = ()
    methods = ()

    def signature(input: Tensor, pad): ...

    def meta(op, s, pad):
        return Spec.of(padded_shape("pad", s.shape, pad), s.dtype, s.device)

    def samples(t):
        yield case(t(2, 3, 4), (1, 2))
        yield case(t(2, 3, 4), (2, 1, 1, 2))


def pad_each_dim(input, pad, check, before, after, crop_first=False):
    """`before(x, dim, count)` and `after(x, dim, count)` joined to x along each padded dim; negative counts crop (`crop_first`: before
    they look).
    """
    ops = REGISTRY
    for i in range(len(pad) // 2):
        d, left, right = input.spec.ndim - 1 - i, pad[2 * i], pad[2 * i + 1]
        check(input.spec.shape[d], left, right)
        n, first = input.spec.shape[d], max(0, -left)
        inner = ops["narrow"](input, d, first, max(0, n - first - max(0, -right))) if left < 0 or right < 0 else input
        source = inner if crop_first else input
        parts = (
            ([before(source, d, left)] if left > 0 else []) + [inner] + ([after(source, d, right)] if right > 0 else [])
        )
        input = cat(tuple(parts), d) if len(parts) > 1 else ops["contiguous_copy"](inner)
    return input


@declare
class pad_reflect(EdgePad):
    """Padding that mirrors the input without repeating its edge."""

    def body(input, pad):
        ops = REGISTRY

        def check(n, left, right):
            if left >= n or right >= n:
                raise RuntimeError(
                    f"pad: with mode reflect padding must be less than the input's size {n}, got {left} and {right} "
                    "(Padding size should be less than the corresponding input dimension)."
                )

        def before(x, d, count):
            return ops["reverse"](ops["narrow"](x, d, 1, count), (d,))

        def after(x, d, count):
            return ops["reverse"](ops["narrow"](x, d, x.spec.shape[d] - 1 - count, count), (d,))

        return pad_each_dim(input, pad, check, before, after)

    def reference(x, pad):
        return np.pad(
            x,
            [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -2, -2)],
            "reflect",
        )


@declare
class pad_replicate(EdgePad):
    """Padding that repeats the input's edge."""

    def body(input, pad):
        ops = REGISTRY

        def check(n, left, right):
            if not n and (left > 0 or right > 0):
                raise RuntimeError(
                    f"pad: with mode replicate a padded dim must not have size 0, got padding {left} and {right}."
                )

        def edge(x, d, at, count):
            shape = list(x.spec.shape)
            shape[d] = count
            return ops["expand"](ops["narrow"](x, d, at, 1), tuple(shape))

        return pad_each_dim(
            input,
            pad,
            check,
            lambda x, d, count: edge(x, d, 0, count),
            lambda x, d, count: edge(x, d, x.spec.shape[d] - 1, count),
        )

    def reference(x, pad):
        return np.pad(
            x, [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -2, -2)], "edge"
        )


@declare
class pad_circular(EdgePad):
    """Padding that goes on at the input's other end."""

    def body(input, pad):
        ops = REGISTRY

        def check(n, left, right):
            if left > n or right > n:
                raise RuntimeError(
                    f"pad: with mode circular padding must not exceed the input's size {n}, got {left} and {right} (Padding "
                    "value causes wrapping around more than once)."
                )

        return pad_each_dim(
            input,
            pad,
            check,
            lambda x, d, count: ops["narrow"](x, d, x.spec.shape[d] - count, count),
            lambda x, d, count: ops["narrow"](x, d, 0, count),
            crop_first=True,
        )

    def reference(x, pad):
        return np.pad(
            x, [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -2, -2)], "wrap"
        )


__all__ = ["region", "shown", "sum_to"]
