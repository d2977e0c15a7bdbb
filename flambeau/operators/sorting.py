"""Orders: sorting, the k largest, the k-th smallest, medians, modes.

Sorts are stable, NaN counts as largest, and equal elements keep their order in every direction. The kernels are in `templates.sort`.
May not know: layouts. Entry: the ops by name.
"""

from __future__ import annotations

from flambeau.base.errors import message
from flambeau.base.lazy import np
from flambeau.core.dtype import int64
from flambeau.core.layout import canonical_dim
from flambeau.core.spec import Spec
from flambeau.ir.kinds import ALONG_DIM, NOT_DIFFERENTIABLE, Composite, Template
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.reduction import coordinate, refuse_complex, refuse_empty, to_selected
from flambeau.operators.rules import case
from flambeau.templates import sort as kernels


class Ordering(Template):
    """Gives (values, indices) along a dim."""

    outputs = 2
    fields = ("values", "indices")
    batch = ALONG_DIM


def pair_of(shape, input: Spec) -> tuple[Spec, Spec]:
    values = Spec.of(shape, input.dtype, input.device)
    return values, values.with_dtype(int64)


def scattered(g, indices, input, dim):
    """Zeros of the input's shape with g at `indices` along `dim`."""
    if not input.spec.ndim:
        return g
    empty = REGISTRY["full"](tuple(input.spec.shape), 0, dtype=g.spec.dtype, device=input.spec.device)
    return REGISTRY["scatter_add"](empty, dim, indices, g)


def numpy_order(x, dim, descending):
    """Stable order with NaN largest."""
    if not x.ndim:
        return np.zeros((), np.int64)
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    flipped = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(flipped, dim)


def numpy_take(x, order, dim):
    return np.take_along_axis(x, order, dim) if x.ndim else x


# ------------------------------------------------------------------ sorts
@declare
class sort(Ordering):
    """Elements in ascending (or descending) order along `dim`, and where they were. Always stable."""

    def signature(input: Tensor, dim=-1, descending=False, stable=False): ...

    def meta(op, input, dim, descending, stable):
        refuse_complex(op.name, input.dtype)
        canonical_dim(op.name, dim, input.ndim)
        return pair_of(input.shape, input)

    def lower(op, target, threads, input, dim, descending, stable):
        dim = canonical_dim(op.name, dim, input.ndim)
        n = input.shape[dim] if input.ndim else 1
        return kernels.sort(input, dim, low=0, high=n, descending=bool(descending), target=target, threads=threads)

    def vjp(g, out, input, dim, descending, stable):
        return (scattered(g[0], out[1], input, dim),)

    def reference(x, dim=-1, descending=False, stable=False):
        order = numpy_order(x, dim, descending)
        return numpy_take(x, order, dim), order

    def samples(t):
        yield case(t(5))
        yield case(t(3, 37), 1, True)
        yield case(t(37, 3), 0)
        yield case(t(2, 300), 1)
        yield case(t(300, 2), 0, True)
        yield case(t())
        yield case(t(2, 0), 1)
        yield case(t(2, 3), 2, raises=(IndexError, "dim must be in"))


@declare
class argsort(Composite):
    """Where the elements in ascending (or descending) order along `dim` are. Always stable."""

    vjp = NOT_DIFFERENTIABLE

    def signature(input: Tensor, dim=-1, descending=False, stable=False): ...

    def body(input, dim, descending, stable):
        return sort(input, dim, descending)[1]

    def reference(x, dim=-1, descending=False, stable=False):
        return numpy_order(x, dim, descending)

    samples = sort.rules.samples


@declare
class msort(Composite):
    """Elements in ascending order along the first dim."""

    def signature(input: Tensor): ...

    def body(input):
        return sort(input, 0)[0]

    def reference(x):
        return np.sort(x, axis=0) if x.ndim else x

    def samples(t):
        yield case(t(5))
        yield case(t(4, 3))


@declare
class topk(Ordering):
    """The k largest (or smallest) elements along `dim`, in order, and where they are; of equal ones the first."""

    def signature(input: Tensor, k, dim=-1, largest=True, sorted=True): ...

    def meta(op, input, k, dim, largest, sorted):
        refuse_complex(op.name, input.dtype)
        at = canonical_dim(op.name, dim, input.ndim)
        n = input.shape[at] if input.ndim else 1
        if not 0 <= k <= n:
            raise RuntimeError(
                message(
                    op.name,
                    f"k must be between 0 and the size of the dim, {n} (selected index k out of range)",
                    f"k={k}",
                )
            )
        return pair_of(tuple(k if d == at else size for d, size in enumerate(input.shape)), input)

    def lower(op, target, threads, input, k, dim, largest, sorted):
        return kernels.sort(
            input,
            canonical_dim(op.name, dim, input.ndim),
            low=0,
            high=k,
            descending=bool(largest),
            target=target,
            threads=threads,
        )

    def vjp(g, out, input, k, dim, largest, sorted):
        return (scattered(g[0], out[1], input, dim),)

    def reference(x, k, dim=-1, largest=True, sorted=True):
        order = numpy_order(x, dim, largest)
        order = np.take(order, range(k), dim) if x.ndim else order
        return numpy_take(x, order, dim), order

    def samples(t):
        yield case(t(5), 2)
        yield case(t(3, 37), 5, 1)
        yield case(t(600, 3), 4, 0, False)
        yield case(t(2, 600), 300)
        yield case(t(2, 600), 1)
        yield case(t(3), 0)
        yield case(t(3), 4, raises=(RuntimeError, "out of range"))


@declare
class kthvalue(Ordering):
    """The k-th smallest element along `dim` (k counts from 1), and where it is."""

    def signature(input: Tensor, k, dim=-1, keepdim=False): ...

    def meta(op, input, k, dim, keepdim):
        refuse_complex(op.name, input.dtype)
        at = canonical_dim(op.name, dim, input.ndim)
        n = input.shape[at] if input.ndim else 1
        refuse_empty(op.name, input.shape, at)
        if not 1 <= k <= n:
            raise RuntimeError(
                message(
                    op.name,
                    f"k must be between 1 and the size of the dim, {n} (selected number k out of range)",
                    f"k={k}",
                )
            )
        return pair_of(tuple(1 if d == at else size for d, size in enumerate(input.shape) if keepdim or d != at), input)

    def lower(op, target, threads, input, k, dim, keepdim):
        return kernels.sort(
            input,
            canonical_dim(op.name, dim, input.ndim),
            low=k - 1,
            high=k,
            descending=False,
            target=target,
            threads=threads,
        )

    def vjp(g, out, input, k, dim, keepdim):
        return (to_selected(g[0], out[1], input, dim, keepdim),)

    def reference(x, k, dim=-1, keepdim=False):
        return numpy_ranked(x, k - 1, dim, keepdim)

    def samples(t):
        yield case(t(5), 2)
        yield case(t(3, 37), 5, 1, True)
        yield case(t(300, 3), 200, 0)
        yield case(t(), 1)
        yield case(t(3), 4, raises=(RuntimeError, "out of range"))
        yield case(t(0, 3), 1, 0, raises=(IndexError, "non-zero size"))


def numpy_ranked(x, rank, dim, keepdim):
    if not x.ndim:
        return x, np.zeros((), np.int64)
    order = np.take(numpy_order(x, dim, False), [rank], dim)
    values = np.take_along_axis(x, order, dim)
    return (values, order) if keepdim else (np.squeeze(values, dim), np.squeeze(order, dim))


# ------------------------------------------------------------------ medians
class Median(Ordering):
    """The lower of the middle elements along `dim`, and where it is."""

    functions = ()
    methods = ()
    ignore_nan = False

    def signature(input: Tensor, dim=-1, keepdim=False): ...

    def meta(op, input, dim, keepdim):
        name = op.name.removesuffix("_dim")
        refuse_complex(name, input.dtype)
        at = canonical_dim(name, dim, input.ndim)
        refuse_empty(name, input.shape, at)
        return pair_of(tuple(1 if d == at else size for d, size in enumerate(input.shape) if keepdim or d != at), input)

    def lower(op, target, threads, input, dim, keepdim):
        return kernels.median(
            input,
            canonical_dim(op.name, dim, input.ndim),
            ignore_nan=op.rules.ignore_nan,
            target=target,
            threads=threads,
        )

    def vjp(g, out, input, dim, keepdim):
        return (to_selected(g[0], out[1], input, dim, keepdim),)

    def reference(x, dim=-1, keepdim=False):
        return numpy_ranked(x, (x.shape[dim] - 1) // 2 if x.ndim else 0, dim, keepdim)

    def samples(t):
        yield case(t(5))
        yield case(t(3, 36), 1, True)
        yield case(t(300, 3), 0)
        yield case(t())
        yield case(t(0, 3), 0, raises=(IndexError, "non-zero size"))


@declare
class median_dim(Median):
    """The lower of the middle elements along `dim`, and where it is; the first NaN if there is one."""

    spoken = "median"


@declare
class nanmedian_dim(Median):
    """The lower of the middle elements along `dim` that are not NaN, and where it is."""

    spoken = "nanmedian"
    ignore_nan = True


def flat_median(op):
    """The body of a median over everything."""

    def body(input):
        if not input.spec.numel:
            return REGISTRY["full"](
                (),
                float("nan") if input.spec.dtype.is_floating_point else -(1 << 63),
                dtype=input.spec.dtype,
                device=input.spec.device,
            )
        return op(REGISTRY["reshape"](input, (-1,)), 0)[0]

    return staticmethod(body)


@declare
class median_all(Composite):
    """The lower of the middle elements; NaN if there is one, or if there is no element."""

    functions = ()
    methods = ()
    body = flat_median(median_dim)

    def signature(input: Tensor): ...

    def reference(x):
        return numpy_ranked(x.reshape(-1), (x.size - 1) // 2, 0, False)[0]

    def samples(t):
        yield case(t(5))
        yield case(t(3, 4))
        yield case(t())


@declare
class nanmedian_all(Composite):
    """The lower of the middle elements that are not NaN."""

    functions = ()
    methods = ()
    body = flat_median(nanmedian_dim)
    reference = median_all.rules.reference
    samples = median_all.rules.samples

    def signature(input: Tensor): ...


# ------------------------------------------------------------------ mode
@declare
class mode(Composite):
    """The most frequent element along `dim` (the smallest of equally frequent ones), and where it stands last."""

    outputs = 2
    fields = ("values", "indices")

    def signature(input: Tensor, dim=-1, keepdim=False): ...

    def meta(op, input, dim, keepdim):
        return Median.meta(op, input, dim, keepdim)

    def body(input, dim, keepdim):
        ops = REGISTRY
        if not input.spec.ndim:
            return ops["clone"](input), ops["full"]((), 0, dtype=int64, device=input.spec.device)
        at = canonical_dim("mode", dim, input.spec.ndim)
        values, indices = sort(input, at)
        n = input.spec.shape[at]
        here = coordinate(values, at)
        fresh = ops["cat"](
            (
                ops["narrow"](ops["eq"](here, here), at, 0, 1),
                ops["ne"](ops["narrow"](values, at, 1, n - 1), ops["narrow"](values, at, 0, n - 1)),
            ),
            at,
        )
        start = ops["cummax"](ops["where"](fresh, here, ops["full"]((), 0, dtype=int64, device=input.spec.device)), at)[
            0
        ]
        best = ops["argmax"](ops["sub"](here, start), at, True)
        found = ops["gather"](values, at, best), ops["gather"](indices, at, best)
        return found if keepdim else tuple(ops["squeeze"](x, at) for x in found)

    def vjp(g, out, input, dim, keepdim):
        return (to_selected(g[0], out[1], input, dim, keepdim),)

    def reference(x, dim=-1, keepdim=False):
        if not x.ndim:
            return x, np.zeros((), np.int64)
        rows = np.moveaxis(x, dim, -1)
        flat = rows.reshape(-1, rows.shape[-1])
        found = []
        for row in flat:
            values, counts = np.unique(row, return_counts=True)
            value = values[np.argmax(counts)]
            found.append((value, np.flatnonzero(row == value)[-1]))
        shape = rows.shape[:-1]
        values, indices = (np.array([f[i] for f in found]).reshape(shape) for i in (0, 1))
        return (np.expand_dims(values, dim), np.expand_dims(indices, dim)) if keepdim else (values, indices)

    def samples(t):
        yield case(t(5))
        yield case(t(3, 7), 0)
        yield case(t(3, 7), 1, True)
        yield case(t(0, 3), 0, raises=(IndexError, "non-zero size"))
