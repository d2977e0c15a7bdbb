"""Writing at places that index tensors name: scatter, index_put and their relatives.

Along the indexed dims elements are written in order, so results do not depend on threads; other dims are independent. Indices are checked
in the kernel. In-place forms write straight into their target.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import int64
from flambeau.core.layout import broadcast_shapes, canonical_dim
from flambeau.core.spec import NumberSpec, Spec
from flambeau.ir.kinds import Assemble, Composite, Moved, Piece
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.batched import behind, counted_indices, element_ndim, front, moved
from flambeau.operators.indexed import IndexPlan, check_gather, check_index_type, element_spec, whole, zeros_of
from flambeau.operators.rules import case, sum_to
from flambeau.runtime.errors import ELEMENT, INDEX, POSITION


# ------------------------------------------------------------------ the two writes
@declare
class scatter_write(Assemble):
    """`input` with `src` written where `index` says along `dim`; `combine` (a pointwise op, or "") merges it with what is there.

    `places` is the kind of failure an index out of bounds is: INDEX counts from the end too.
    """

    functions = ()
    spoken = "scatter"
    methods = ()
    base = 0

    def signature(input: Tensor, dim, index: Tensor, src: Tensor, combine="", places=ELEMENT.number): ...

    def meta(op, input, dim, index, src, combine, places):
        return Spec.of(input.shape, input.dtype, input.device)

    def pieces(op, out, input, dim, index, src, combine, places):
        d = canonical_dim("scatter", dim, input.ndim)
        strides = tuple(0 if j == d else n for j, n in enumerate(out.strides))
        at = whole(index.shape)
        return [
            Piece(
                2, tuple(index.shape), strides, 0, at, (Moved(1, at, d, places == INDEX.number, places),), (d,), combine
            )
        ]

    def vjp(g, out, input, dim, index, src, combine, places):
        ops = REGISTRY
        picked = ops["gather"](g, dim, index)
        if tuple(src.spec.shape) != tuple(index.spec.shape):
            views = tuple(("narrow", (j, 0, n)) for j, n in enumerate(index.spec.shape))
            picked = ops["view_scatter"](zeros_of(src), picked, views)
        if combine == "add":
            return g, None, picked
        if combine:
            left, right = reduced_gradient(
                g,
                out,
                input,
                dim,
                index,
                src,
                {"mul": "prod", "maximum": "amax", "minimum": "amin"}[combine],
                True,
                places,
            )
            return left, None, right
        zeros = ops["full"](tuple(index.spec.shape), 0, dtype=g.spec.dtype, device=g.spec.device)
        return scatter_write(g, dim, index, zeros), None, picked

    def batch(size, dims, input, dim, index, src, combine, places):
        at = behind(dim, element_ndim(input, dims[0]))
        return scatter_write(
            front(input, dims[0], size), at, front(index, dims[2], size), front(src, dims[3], size), combine, places
        ), 0

    def reference(input, dim, index, src, combine="", places=ELEMENT.number):
        found = input.copy()
        for place in np.ndindex(index.shape):
            to = (*place[:dim], int(index[place]), *place[dim + 1 :])
            found[to] = found[to] + src[place] if combine == "add" else src[place]
        return found

    def samples(t):
        yield case(t(4, 5), 1, t(4, 1, dtype="int64", high=5), t(4, 1))
        yield case(t(4, 5), 0, t(6, 5, dtype="int64", high=4), t(6, 5), "add")


@declare
class index_put(Assemble):
    """`input` with `values` (broadcast) written at `input[indices]`; with `accumulate`, added where they meet.

    Without it the last of several values for one place stays. Raises: RuntimeError if values do not broadcast to the indexed shape.
    """

    in_place = True
    base = 0

    def signature(input: Tensor, indices: Tensors, values: Tensor, accumulate=False): ...

    def meta(op, input, indices, values, accumulate):
        plan = IndexPlan(input, indices)
        if values.dtype is not input.dtype:
            raise RuntimeError(
                "index_put: values must have the input's dtype (Index put requires the source and destination dtypes "
                f"match), got {input.dtype.name} for the destination and {values.dtype.name} for the source. Convert with "
                ".to(dtype)."
            )
        fits = len(values.shape) <= len(plan.result) and all(
            n in (1, m) for n, m in zip(reversed(values.shape), reversed(plan.result))
        )
        if not fits:
            raise RuntimeError(
                "index_put: values must broadcast to the indexed shape (shape mismatch: value tensor of shape "
                f"{list(values.shape)} cannot be broadcast to indexing result of shape {list(plan.result)})."
            )
        return Spec.of(input.shape, input.dtype, input.device)

    def pieces(op, out, input, indices, values, accumulate):
        plan = IndexPlan(input, indices)
        strides = [0] * len(plan.result)
        for d, place in zip(plan.rest, plan.rest_at):
            strides[place] = out.strides[d]
        serial = tuple(range(plan.at, plan.at + len(plan.shape)))
        return [
            Piece(
                1 + len(plan.dims),
                plan.result,
                tuple(strides),
                0,
                None,
                plan.moves(indices, INDEX.number),
                serial,
                "add" if accumulate else "",
            )
        ]

    def vjp(g, out, input, indices, values, accumulate):
        ops = REGISTRY
        if accumulate:
            rest = g
        else:
            zero = ops["full"]((), 0, dtype=g.spec.dtype, device=g.spec.device)
            rest = index_put(g, indices, zero, False)
        return rest, (None,) * len(indices), sum_to(ops["index"](g, indices), values)

    def batch(size, dims, input, indices, values, accumulate):
        plan = IndexPlan(
            element_spec(input, dims[0]),
            tuple(None if i is None else element_spec(i, d) for i, d in zip(indices, dims[1])),
        )
        wide = front(values, dims[2], size)
        missing = len(plan.result) + 1 - wide.spec.ndim
        if missing:
            wide = REGISTRY["reshape"](wide, (size, *(1,) * missing, *wide.spec.shape[1:]))
        wide = moved(
            REGISTRY["expand"](wide, (size, *plan.result)), plan.at + 1, 1, len(plan.shape)
        )  # [batch, indices, rest]
        return index_put(front(input, dims[0], size), counted_indices(indices, dims[1], size), wide, accumulate), 0

    def reference(input, indices, values, accumulate=False):
        found = input.copy()
        places = tuple(slice(None) if i is None else i for i in indices)
        if accumulate:
            np.add.at(found, places, values)
        else:
            found[places] = values
        return found

    def samples(t):
        yield case(t(4, 5), (t(3, dtype="int64", high=4),), t(3, 5), True)
        yield case(t(4, 5), (None, t(2, dtype="int64", high=5)), t(4, 1), True)
        yield case(t(4, 5), (t(4, dtype="int64", high=4),), t(4, 1, 1), raises=(RuntimeError, "must broadcast"))


# ------------------------------------------------------------------ scatter
def is_number(x) -> bool:
    return not hasattr(x, "spec") or isinstance(x.spec, NumberSpec)


def number_as(value, shape, like):
    """A number as a tensor of a shape, in the dtype of `like`."""
    return REGISTRY["full"](tuple(shape), value, dtype=like.spec.dtype, device=like.spec.device)


def check_scatter(op: str, input: Spec, dim: int, index: Spec, src) -> None:
    """Raises: RuntimeError unless index and src fit the input."""
    check_gather(op, input, dim, index)
    if not isinstance(src, Spec):
        return
    if src.dtype is not input.dtype:
        raise RuntimeError(
            f"{op}: src must have the input's dtype, got {input.dtype.name} and {src.dtype.name} (Expected self.dtype to be "
            "equal to src.dtype). Convert with .to(dtype)."
        )
    if index.numel and (max(1, src.ndim) != max(1, index.ndim) or any(n > m for n, m in zip(index.shape, src.shape))):
        raise RuntimeError(
            f"{op}: sizes of index must not exceed those of src, got {list(index.shape)} and {list(src.shape)} (Expected "
            "index to be no larger than src in every dimension)."
        )


def written(input, dim, index, src, combine="", places=ELEMENT.number):
    """scatter_write after 0-d tensors are given a dim."""
    ops = REGISTRY
    if is_number(src):
        src = number_as(src, index.spec.shape, input)
    if not index.spec.numel:
        return ops["clone"](input)
    shape = tuple(input.spec.shape)
    if not shape:
        input = ops["reshape"](input, (1,))
    if not index.spec.ndim:
        index = ops["reshape"](index, (1,))
    if not src.spec.ndim:
        src = ops["reshape"](src, (1,))
    d = canonical_dim("scatter", dim, len(shape))
    found = scatter_write(input, d, index, src, combine, places)
    return found if shape else ops["reshape"](found, ())


class Scatter(Composite):
    """Shared by the scatter ops: the result is like the input."""

    in_place = True


@declare
class scatter(Scatter):
    """A copy of the input with `out[i][index[i][j][k]][k] = src[i][j][k]` (for dim 1); `src` may be a number.

    `reduce`: None, "add" or "multiply". Where places repeat, the last stays. Raises: RuntimeError for an index out of bounds.
    """

    functions = ()
    methods = ()

    def signature(input: Tensor, dim, index: Tensor, src: Operand, *, reduce=None): ...

    def meta(op, input, dim, index, src, reduce):
        check_scatter("scatter", input, dim, index, src)
        if reduce not in (None, "add", "multiply"):
            raise RuntimeError(
                f"scatter: reduce must be 'add' or 'multiply', got {reduce!r} (reduce argument must be either add or "
                "multiply.)."
            )
        return Spec.of(input.shape, input.dtype, input.device)

    def body(input, dim, index, src, reduce):
        return written(input, dim, index, src, {None: "", "add": "add", "multiply": "mul"}[reduce])

    def reference(input, dim, index, src, *, reduce=None):
        found = input.copy()
        np.put_along_axis(found, index, src if np.ndim(src) == 0 else src[tuple(slice(0, n) for n in index.shape)], dim)
        return found

    def samples(t):
        yield case(t(4, 5), 1, t(4, 1, dtype="int64", high=5), t(4, 1))
        yield case(t(4, 5), 0, t(1, 5, dtype="int64", high=4), 1.5)
        yield case(t(4, 5), 0, t(1, 5, dtype="int64", high=4), t(1, 4), raises=(RuntimeError, "must not exceed"))


@declare
class scatter_add(Scatter):
    """A copy of the input with `src` added where `index` says along `dim`. Determinism: one order for every number of threads."""

    def signature(input: Tensor, dim, index: Tensor, src: Tensor): ...

    def meta(op, input, dim, index, src):
        check_scatter("scatter_add", input, dim, index, src)
        return Spec.of(input.shape, input.dtype, input.device)

    def body(input, dim, index, src):
        return written(input, dim, index, src, "add")

    def reference(input, dim, index, src):
        return scatter_write.rules.reference(input, dim % max(1, input.ndim), index, src, "add")

    def samples(t):
        yield case(t(4, 5), 1, t(4, 7, dtype="int64", high=5), t(4, 7))
        yield case(t(4, 5), 0, t(3, 5, dtype="int64", high=4), t(3, 5))


REDUCTIONS = {
    "sum": ("add", 0),
    "mean": ("add", 0),
    "prod": ("mul", 1),
    "amax": ("maximum", None),
    "amin": ("minimum", None),
}


def identity_of(reduce: str, d):
    """What a reduction starts from in a dtype."""
    value = REDUCTIONS[reduce][1]
    if value is not None:
        return value
    low = reduce == "amax"
    if d.kind == "f":
        return float("-inf") if low else float("inf")
    if d.kind == "b":
        return not low
    bits = 8 * d.itemsize
    least, most = (0, (1 << bits) - 1) if d.kind == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return least if low else most


@declare
class scatter_reduce(Scatter):
    """`src` combined by `reduce` (sum, prod, mean, amax, amin) where `index` says along `dim`, with the input's own values if
    `include_self`.
    """

    def signature(input: Tensor, dim, index: Tensor, src: Tensor, reduce, *, include_self=True): ...

    def meta(op, input, dim, index, src, reduce, include_self):
        check_scatter("scatter_reduce", input, dim, index, src)
        if reduce not in REDUCTIONS:
            raise RuntimeError(
                f"scatter_reduce: reduce must be sum, prod, mean, amax or amin, got {reduce!r} (reduce argument must be "
                "either sum, prod, mean, amax or amin)."
            )
        return Spec.of(input.shape, input.dtype, input.device)

    def body(input, dim, index, src, reduce, include_self):
        return reduced(input, dim, index, src, reduce, include_self)

    def vjp(g, out, input, dim, index, src, reduce, include_self):
        left, right = reduced_gradient(g, out, input, dim, index, src, reduce, include_self)
        return left, None, right

    def reference(input, dim, index, src, reduce, *, include_self=True):
        found, seen = input.copy(), np.ones(input.shape, int) * include_self
        combine = {"sum": np.add, "mean": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[reduce]
        for place in np.ndindex(index.shape):
            to = (*place[:dim], int(index[place]), *place[dim + 1 :])
            found[to] = combine(found[to], src[place]) if seen[to] else src[place]
            seen[to] += 1
        return found / np.maximum(seen, 1) if reduce == "mean" else found

    def samples(t):
        for reduce in REDUCTIONS:
            for include_self in (True, False):
                yield case(t(4, 5), 1, t(4, 7, dtype="int64", high=5), t(4, 7), reduce, include_self=include_self)


def reduced(input, dim, index, src, reduce: str, include_self: bool, places: int = ELEMENT.number):
    ops = REGISTRY
    d = input.spec.dtype
    start = input
    if not include_self:
        start = written(input, dim, index, identity_of(reduce, d), "", places)
    found = written(start, dim, index, src, REDUCTIONS[reduce][0], places)
    if reduce != "mean":
        return found
    count = counted(input, dim, index, include_self, places)
    if d.is_integral:
        return ops["div"](found, count, rounding_mode="floor")
    return ops["true_divide"](found, count)


def counted(input, dim, index, include_self: bool, places: int = ELEMENT.number):
    """How many values each place of the result got, at least 1."""
    ops = REGISTRY
    shape = tuple(input.spec.shape)
    ones = number_as(1, shape, input) if include_self else number_as(0, shape, input)
    count = written(ones, dim, index, number_as(1, index.spec.shape, input), "add", places)
    return count if include_self else ops["maximum"](count, number_as(1, (), input))


def reduced_gradient(g, out, input, dim, index, src, reduce: str, include_self: bool, places: int = ELEMENT.number):
    """Gradients of `reduced` for input and src, as PyTorch shares them out."""
    ops = REGISTRY
    if not index.spec.numel:
        return g, zeros_of(src)

    def spread(x):  # per place -> per element of src
        index_ = index if index.spec.ndim else ops["reshape"](index, (1,))
        x = ops["gather"](x if x.spec.ndim else ops["reshape"](x, (1,)), dim, index_)
        return ops["reshape"](x, tuple(index.spec.shape))

    views = tuple(("narrow", (j, 0, n)) for j, n in enumerate(index.spec.shape))
    larger = tuple(src.spec.shape) != tuple(index.spec.shape)
    part = src
    if larger:
        for name, attributes in views:
            part = ops[name](part, *attributes)

    def collect(x):
        return written(zeros_of(input), dim, index, x, "add", places)

    if reduce == "sum":
        left, right = g, spread(g)
    elif reduce == "mean":
        left = ops["true_divide"](g, counted(input, dim, index, include_self, places))
        right = spread(left)
    elif reduce == "prod":
        filled = ops["masked_fill"](input, ops["eq"](input, 0), 1)
        others = reduced(filled, dim, index, part, "prod", include_self, places)
        left = ops["true_divide"](ops["mul"](g, others), filled)
        zero = ops["eq"](part, 0)
        single = ops["logical_and"](zero, ops["eq"](spread(collect(ops["to_dtype"](zero, g.spec.dtype))), 1))
        without = reduced(input, dim, index, ops["masked_fill"](part, single, 1), "prod", include_self, places)
        right = ops["where"](
            single,
            spread(ops["mul"](g, without)),
            ops["true_divide"](spread(ops["mul"](g, out)), ops["masked_fill"](part, zero, 1)),
        )
    else:
        own = ops["to_dtype"](ops["eq"](input, out), g.spec.dtype)
        theirs = ops["to_dtype"](ops["eq"](part, spread(out)), g.spec.dtype)
        start = own if include_self else written(own, dim, index, 0, "", places)
        shared = ops["true_divide"](
            g, ops["maximum"](written(start, dim, index, theirs, "add", places), number_as(1, (), input))
        )
        left, right = ops["mul"](own, shared), ops["mul"](theirs, spread(shared))
    if not include_self:
        left = written(left, dim, index, 0, "", places)
    if larger:
        right = ops["view_scatter"](zeros_of(src), right, views)
    return left, right


# ------------------------------------------------------------------ along one dim
def check_index_write(op: str, input: Spec, dim: int, index: Spec, source: Spec) -> None:
    """Raises: RuntimeError or IndexError unless index is a vector and source fits."""
    d = canonical_dim(op, dim, input.ndim)
    check_index_type(op, index, ("int64", "int32") if op != "index_copy" else ("int64",))
    if index.ndim > 1:
        kind = IndexError if op != "index_reduce" else RuntimeError
        raise kind(
            f"{op}: index must have one dim, got shape {list(index.shape)} (Index should have dimension 1 or 0)."
        )
    if source is None:
        return
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"{op}: source must have the input's dtype, got {input.dtype.name} and {source.dtype.name} (self and source "
            "expected to have the same dtype). Convert with .to(dtype)."
        )
    wanted = [index.numel if j == d else n for j, n in enumerate(input.shape)] if input.ndim else [index.numel]
    have = list(source.shape) if source.ndim or input.ndim > 1 else [1]
    if wanted != have:
        kind = IndexError if op == "index_copy" else RuntimeError
        raise kind(
            f"{op}: source must have shape {wanted}, got {list(source.shape)} (Number of indices ({index.numel}) should be equal to "
            "source.size(dim), and source and destination slice shapes should match)."
        )


def along(input, dim, index, source):
    """(input of at least one dim, dim, index expanded to source, source)."""
    ops = REGISTRY
    if not input.spec.ndim:
        input = ops["reshape"](input, (1,))
    d = canonical_dim("index_add", dim, input.spec.ndim)
    shape = [index.spec.numel if j == d else n for j, n in enumerate(input.spec.shape)]
    index = ops["expand"](
        ops["reshape"](index, tuple(index.spec.numel if j == d else 1 for j in range(len(shape)))), tuple(shape)
    )
    if is_number(source):
        source = number_as(source, shape, input)
    elif tuple(source.spec.shape) != tuple(shape):
        source = (
            ops["reshape"](source, tuple(shape))
            if source.spec.numel == index.spec.numel
            else ops["expand"](source, tuple(shape))
        )
    return input, d, index, source


@declare
class index_add(Scatter):
    """A copy of the input with `alpha * source` added to the slices of a dim that a 1-d index names."""

    def signature(input: Tensor, dim, index: Tensor, source: Tensor, *, alpha: Scalar = 1): ...

    def meta(op, input, dim, index, source, alpha):
        check_index_write("index_add", input, dim, index, source)
        return Spec.of(input.shape, input.dtype, input.device)

    def body(input, dim, index, source, alpha):
        shape = tuple(input.spec.shape)
        if is_number(alpha) and not hasattr(alpha, "spec") and alpha == 1:
            pass
        else:
            source = REGISTRY["to_dtype"](REGISTRY["mul"](source, alpha), input.spec.dtype)
        input, d, index, source = along(input, dim, index, source)
        found = written(input, d, index, source, "add", POSITION.number)
        return found if shape else REGISTRY["reshape"](found, ())

    def vjp(g, out, input, dim, index, source, alpha):
        ops = REGISTRY
        picked = ops["index_select"](g if g.spec.ndim else ops["reshape"](g, (1,)), dim, index)
        picked = ops["reshape"](picked, tuple(source.spec.shape))
        if hasattr(alpha, "spec") or alpha != 1:
            picked = ops["mul"](picked, alpha)
        return g, None, picked

    def reference(input, dim, index, source, *, alpha=1):
        found = input.copy()
        np.add.at(found, (slice(None),) * (dim % input.ndim) + (index,), alpha * source)
        return found

    def samples(t):
        yield case(t(4, 5), 0, t(6, dtype="int64", high=4), t(6, 5))
        yield case(t(4, 5), 1, t(3, dtype="int64", high=5), t(4, 3), alpha=2)
        yield case(t(4, 5), 1, t(3, dtype="int64", high=5), t(4, 2), raises=(RuntimeError, "must have shape"))


@declare
class index_copy(Scatter):
    """A copy of the input with the slices of a dim that a 1-d index names replaced by those of `source`."""

    def signature(input: Tensor, dim, index: Tensor, source: Tensor): ...

    def meta(op, input, dim, index, source):
        check_index_write("index_copy", input, dim, index, source)
        return Spec.of(input.shape, input.dtype, input.device)

    def body(input, dim, index, source):
        shape = tuple(input.spec.shape)
        input, d, index, source = along(input, dim, index, source)
        found = written(input, d, index, source, "", POSITION.number)
        return found if shape else REGISTRY["reshape"](found, ())

    def reference(input, dim, index, source):
        found = input.copy()
        found[(slice(None),) * (dim % input.ndim) + (index,)] = source
        return found

    def samples(t):
        yield case(t(4, 5), 0, t(1, dtype="int64", high=4), t(1, 5))


@declare
class index_fill(Scatter):
    """A copy of the input with the slices of a dim that a 1-d index names filled with one value."""

    def signature(input: Tensor, dim, index: Tensor, value: Operand): ...

    def meta(op, input, dim, index, value):
        check_index_write("index_fill", input, dim, index, None)
        if isinstance(value, Spec) and value.ndim:
            raise RuntimeError(
                f"index_fill: value must be a number or 0-dim, got shape {list(value.shape)} (index_fill_ only supports a "
                "0-dimensional value tensor)."
            )
        return Spec.of(input.shape, input.dtype, input.device)

    def body(input, dim, index, value):
        ops, shape = REGISTRY, tuple(input.spec.shape)
        if not is_number(value):
            value = ops["to_dtype"](value, input.spec.dtype)
        input, d, index, value = along(input, dim, index, value)
        found = written(input, d, index, value, "", INDEX.number)
        return found if shape else ops["reshape"](found, ())

    def vjp(g, out, input, dim, index, value):
        rest = index_fill(g, dim, index, 0)
        if is_number(value):
            return rest, None, None
        return (
            rest,
            None,
            REGISTRY["reshape"](REGISTRY["sum"](REGISTRY["sub"](g, rest), None, False), tuple(value.spec.shape)),
        )

    def reference(input, dim, index, value):
        found = input.copy()
        found[(slice(None),) * (dim % input.ndim) + (index,)] = value
        return found

    def samples(t):
        yield case(t(4, 5), 0, t(2, dtype="int64", high=4), 1.5)
        yield case(t(4, 5), 1, t(2, dtype="int64", high=5), t())


@declare
class index_reduce(Scatter):
    """`source` combined by `reduce` (prod, mean, amax, amin) into the slices of a dim that a 1-d index names."""

    def signature(input: Tensor, dim, index: Tensor, source: Tensor, reduce, *, include_self=True): ...

    def meta(op, input, dim, index, source, reduce, include_self):
        check_index_write("index_reduce", input, dim, index, source)
        if reduce not in ("prod", "mean", "amax", "amin"):
            raise RuntimeError(
                f"index_reduce: reduce must be prod, mean, amax or amin, got {reduce!r} (reduce argument must be either "
                "prod, mean, amax or amin)."
            )
        return Spec.of(input.shape, input.dtype, input.device)

    def body(input, dim, index, source, reduce, include_self):
        shape = tuple(input.spec.shape)
        input, d, index, source = along(input, dim, index, source)
        found = reduced(input, d, index, source, reduce, include_self, POSITION.number)
        return found if shape else REGISTRY["reshape"](found, ())

    def vjp(g, out, input, dim, index, source, reduce, include_self):
        ops = REGISTRY
        wide, d, at, src = along(input, dim, index, source)
        g, out = (ops["reshape"](x, tuple(wide.spec.shape)) for x in (g, out))
        left, right = reduced_gradient(g, out, wide, d, at, src, reduce, include_self, POSITION.number)
        return ops["reshape"](left, tuple(input.spec.shape)), None, ops["reshape"](right, tuple(source.spec.shape))

    def reference(input, dim, index, source, reduce, *, include_self=True):
        d = dim % input.ndim
        at = np.broadcast_to(index.reshape([-1 if j == d else 1 for j in range(input.ndim)]), source.shape)
        return scatter_reduce.rules.reference(input, d, at, source, reduce, include_self=include_self)

    def samples(t):
        for reduce in ("prod", "mean", "amax", "amin"):
            yield case(t(4, 5), 0, t(6, dtype="int64", high=4), t(6, 5), reduce)
            yield case(t(4, 5), 1, t(3, dtype="int64", high=5), t(4, 3), reduce, include_self=False)


# ------------------------------------------------------------------ flat places and masks
@declare
class put(Scatter):
    """A copy of the input with `source` written at places of the flattened input."""

    def signature(input: Tensor, index: Tensor, source: Tensor, accumulate=False): ...

    def meta(op, input, index, source, accumulate):
        check_index_type("put", index, ("int64",))
        if source.dtype is not input.dtype:
            raise RuntimeError(
                f"put: source must have the input's dtype, got {input.dtype.name} and {source.dtype.name} (Expected source "
                "and self to have the same dtype)."
            )
        if source.numel != index.numel:
            raise RuntimeError(
                f"put: source must have as many elements as index, got {source.numel} and {index.numel} (Expected source "
                "and index to have the same number of elements)."
            )
        return Spec.of(input.shape, input.dtype, input.device)

    def body(input, index, source, accumulate):
        ops = REGISTRY
        if not index.spec.numel:
            return ops["clone"](input)
        flat = index_put(
            ops["reshape"](input, (-1,)), (ops["reshape"](index, (-1,)),), ops["reshape"](source, (-1,)), accumulate
        )
        return ops["reshape"](flat, tuple(input.spec.shape))

    def reference(input, index, source, accumulate=False):
        found = input.reshape(-1).copy()
        if accumulate:
            np.add.at(found, index.reshape(-1), source.reshape(-1))
        else:
            found[index.reshape(-1)] = source.reshape(-1)
        return found.reshape(input.shape)

    def samples(t):
        yield case(t(4, 5), t(3, dtype="int64", high=20), t(3), True)


@declare
class masked_scatter(Scatter):
    """Where `mask`, the next element of `source` in order; elsewhere the input."""

    def signature(input: Tensor, mask: Tensor, source: Tensor): ...

    def meta(op, input, mask, source):
        if mask.dtype.name != "bool":
            raise RuntimeError(
                f"masked_scatter: mask must be bool, got {mask.dtype.name} (masked_scatter_ only supports boolean masks)."
            )
        if source.dtype is not input.dtype:
            raise RuntimeError(
                f"masked_scatter: source must have the input's dtype, got {input.dtype.name} and {source.dtype.name} "
                "(expected self and source to have same dtypes)."
            )
        return Spec.of(broadcast_shapes("masked_scatter", input.shape, mask.shape), input.dtype, input.device)

    def body(input, mask, source):
        ops = REGISTRY
        shape = broadcast_shapes("masked_scatter", input.spec.shape, mask.spec.shape)
        input, mask = ops["expand"](input, tuple(shape)), ops["expand"](mask, tuple(shape))
        if not input.spec.numel:
            return ops["clone"](input)
        flat = ops["reshape"](mask, (-1,))
        order = ops["sub"](ops["cumsum"](ops["to_dtype"](flat, int64), 0), 1)
        order = ops["where"](flat, order, 0)
        if not source.spec.numel:
            source = number_as(0, (1,), input)
        picked = ops["gather"](ops["reshape"](source, (-1,)), 0, order)
        return ops["where"](mask, ops["reshape"](picked, tuple(shape)), input)

    def reference(input, mask, source):
        shape = np.broadcast_shapes(input.shape, mask.shape)
        found, mask = np.broadcast_to(input, shape).copy(), np.broadcast_to(mask, shape)
        found[mask] = source.reshape(-1)[: int(mask.sum())]
        return found

    def samples(t):
        yield case(t(4, 5), t(4, 5, dtype="bool"), t(20))
