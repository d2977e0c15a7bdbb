"""Reading at places that index tensors name: index, gather, index_select, embedding, take.

Indices are checked in the kernel; one out of bounds is an IndexError (gather and take_along_dim: RuntimeError, as in PyTorch). Gradients
add up where several elements were read from one place.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.layout import broadcast_shapes, canonical_dim
from flambeau.core.spec import Spec
from flambeau.ir.indexmap import IndexMap
from flambeau.ir.kinds import Composite, Indexing, Moved, Read, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.batched import behind, counted_indices, element_ndim, element_shape, front, moved
from flambeau.operators.rules import case
from flambeau.runtime.errors import ELEMENT, INDEX, POSITION


def zeros_of(x):
    """Zeros in the shape and dtype of x."""
    return REGISTRY["full"](tuple(x.spec.shape), 0, dtype=x.spec.dtype, device=x.spec.device)


def check_index_type(op: str, spec: Spec, names=("int64", "int32")) -> None:
    """Raises: RuntimeError (IndexError for op index) unless an index has an integer dtype."""
    if spec.dtype.name not in names:
        kind = IndexError if op == "index" else RuntimeError
        raise kind(
            f"{op}: indices must be {' or '.join(names)}, got {spec.dtype.name} (expected dtype int64 for index; tensors used as "
            "indices must be long, int, byte or bool tensors). Convert with .long()."
        )


def whole(shape, first: int = 0) -> IndexMap:
    """Each dim read at domain dim `first` on."""
    return IndexMap(tuple(() if n == 1 else ((d + first, 1),) for d, n in enumerate(shape)), (0,) * len(shape))


def broadcast_map(shape, ndim: int, first: int) -> IndexMap:
    """An operand of `shape` broadcast over `ndim` domain dims from `first` on."""
    return whole(shape, first + ndim - len(shape))


def element_spec(x, dim) -> Spec:
    """The spec of one element of a batch."""
    return Spec.of(element_shape(x, dim), x.spec.dtype, x.spec.device)


# ------------------------------------------------------------------ index
class IndexPlan:
    """Where indexed dims go: PyTorch's (and NumPy's) adjacency rule.

    `dims`: indexed dims; `shape`: the indices' common shape; `at`: where it stands in the result; `rest`: the other dims, in order;
    `result`: the result's shape; `rest_at`: the place in the result of each of `rest`.
    """

    def __init__(self, input: Spec, indices):
        if len(indices) > input.ndim:
            raise IndexError(f"index: too many indices for tensor of dimension {input.ndim} (got {len(indices)}).")
        given = [(d, s) for d, s in enumerate(indices) if s is not None]
        if not given:
            raise IndexError("index: at least one index must be given, got none.")
        for _, s in given:
            check_index_type("index", s, ("int64", "int32", "uint8", "int8", "int16"))
        self.dims = tuple(d for d, _ in given)
        try:
            self.shape = broadcast_shapes("index", *(s.shape for _, s in given))
        except RuntimeError:
            raise IndexError(
                "index: shape mismatch: indexing tensors could not be broadcast together with shapes "
                + ", ".join(str(list(s.shape)) for _, s in given)
                + "."
            ) from None
        self.adjacent = self.dims == tuple(range(self.dims[0], self.dims[0] + len(self.dims)))
        self.at = self.dims[0] if self.adjacent else 0
        self.rest = tuple(d for d in range(input.ndim) if d not in self.dims)
        rest = [input.shape[d] for d in self.rest]
        n = len(self.shape)
        self.result = (*rest[: self.at], *self.shape, *rest[self.at :])
        self.rest_at = tuple(i if i < self.at else i + n for i in range(len(rest)))
        if any(input.shape[d] == 0 for d in self.dims) and all(self.result):
            raise IndexError(
                f"index: cannot index into a dim of size 0, got shape {list(input.shape)} (index is out of bounds for "
                "dimension with size 0)."
            )

    def moves(self, indices, error: int = INDEX.number, first: int = 1) -> tuple[Moved, ...]:
        """The indices as moves; operand numbers count from `first`."""
        shapes = [s.shape for s in indices if s is not None]
        return tuple(
            Moved(first + i, broadcast_map(s, len(self.shape), self.at), d, True, error)
            for i, (s, d) in enumerate(zip(shapes, self.dims))
        )


@declare
class index(Indexing):
    """`input[indices]` with integer tensors (None: the whole dim) that broadcast together.

    The indexed dims are replaced by the indices' common shape, in place if they are neighbours, else in front.
    """

    functions = ()
    methods = ()

    def signature(input: Tensor, indices: Tensors): ...

    def meta(op, input, indices):
        where = common_device("index", [input, *(s for s in indices if s is not None and s.ndim)])
        return Spec.of(IndexPlan(input, indices).result, input.dtype, where)

    def access(op, input, indices):
        plan = IndexPlan(input, indices)
        rows: list = [()] * input.ndim
        for d, place in zip(plan.rest, plan.rest_at):
            if input.shape[d] != 1:
                rows[d] = ((place, 1),)
        return Read(IndexMap(tuple(rows), (0,) * input.ndim), plan.moves(indices))

    def vjp(g, out, input, indices):
        return REGISTRY["index_put"](zeros_of(input), indices, g, True), (None,) * len(indices)

    def batch(size, dims, input, indices):
        plan = IndexPlan(
            element_spec(input, dims[0]),
            tuple(None if i is None else element_spec(i, d) for i, d in zip(indices, dims[1])),
        )
        n = len(plan.shape)
        if all(d is None for d in dims[1]):
            found = index(
                input, (None, *indices)
            )  # neighbours stay in their place behind the batch dim; others go in front of it
            return found, 0 if plan.adjacent else n
        if dims[0] is None:
            aligned = counted_indices(indices, dims[1], size)[1:]
            found = index(input, aligned)
            return found, plan.at
        found = index(input, counted_indices(indices, dims[1], size))  # [batch, indices, rest]
        return moved(found, 1, plan.at + 1, n), 0

    def reference(x, indices):
        return x[tuple(slice(None) if i is None else i for i in indices)]

    def samples(t):
        yield case(t(4, 5), (t(3, dtype="int64", high=4),))
        yield case(t(4, 5), (None, t(3, dtype="int64", high=5)))
        yield case(t(4, 5, 6), (t(3, 1, dtype="int64", high=4), None, t(2, dtype="int64", high=6)))
        yield case(t(4, 5), (t(3),), raises=(IndexError, "indices must be"))


# ------------------------------------------------------------------ along one dim
@declare
class gather(Indexing):
    """Elements of a dim picked for each place: `out[i][j][k] = input[i][index[i][j][k]][k]` for dim 1."""

    def signature(input: Tensor, dim, index: Tensor, *, sparse_grad=False): ...

    def meta(op, input, dim, index, sparse_grad):
        check_gather("gather", input, dim, index)
        return Spec.of(index.shape, input.dtype, common_device("gather", [input, index]))

    def access(op, input, dim, index, sparse_grad):
        d = canonical_dim("gather", dim, input.ndim)
        shape = index.shape if index.ndim or not input.ndim else (1,)
        rows = tuple(() if j == d or shape[j] == 1 else ((j, 1),) for j in range(input.ndim))
        if not input.ndim:
            return Read(IndexMap((), ()), ())
        return Read(IndexMap(rows, (0,) * input.ndim), (Moved(1, whole(index.shape), d, False, ELEMENT.number),))

    def vjp(g, out, input, dim, index, sparse_grad):
        return REGISTRY["scatter_add"](zeros_of(input), dim, index, g), None

    def batch(size, dims, input, dim, index, sparse_grad):
        n = element_ndim(input, dims[0])
        input, index = front(input, dims[0], size), front(index, dims[2], size)
        if not n:
            input, index = REGISTRY["unsqueeze"](input, 1), REGISTRY["reshape"](index, (size, 1))
            return REGISTRY["reshape"](gather(input, 1, index), (size,)), 0
        if index.spec.ndim == 1:
            return REGISTRY["reshape"](gather(input, 1, REGISTRY["unsqueeze"](index, 1)), (size,)), 0
        return gather(input, behind(dim, n), index), 0

    def reference(x, dim, index, *, sparse_grad=False):
        d = dim % x.ndim
        cut = tuple(slice(None) if j == d else slice(0, n) for j, n in enumerate(index.shape))
        return np.take_along_axis(x[cut], index, d)

    def samples(t):
        yield case(t(4, 5), 1, t(4, 3, dtype="int64", high=5))
        yield case(t(4, 5), 0, t(2, 5, dtype="int64", high=4))
        yield case(t(4, 5), 0, t(2, 6, dtype="int64", high=4), raises=(RuntimeError, "must not exceed"))


def check_gather(op: str, input: Spec, dim: int, index: Spec) -> None:
    """Raises: RuntimeError unless an index has the input's rank and no larger sizes beside `dim`."""
    d = canonical_dim(op, dim, input.ndim)
    if not index.numel:
        return
    check_index_type(op, index)
    if max(1, input.ndim) != max(1, index.ndim):
        raise RuntimeError(
            f"{op}: index must have as many dims as the input, got {index.ndim} and {input.ndim} (Index tensor must have "
            "the same number of dimensions as input tensor)."
        )
    if any(j != d and n > m for j, (n, m) in enumerate(zip(index.shape, input.shape))):
        raise RuntimeError(
            f"{op}: sizes of index must not exceed the input's except in dim {d}, got {list(index.shape)} and "
            f"{list(input.shape)} (Size does not match at dimension)."
        )


@declare
class index_select(Indexing):
    """The slices of a dim that a 1-d (or 0-d) index names."""

    def signature(input: Tensor, dim, index: Tensor): ...

    def meta(op, input, dim, index):
        d = canonical_dim("index_select", dim, input.ndim)
        check_index_type("index_select", index)
        if index.ndim > 1:
            raise IndexError(
                f"index_select: index must have one dim, got shape {list(index.shape)} (Index is supposed to be a vector)."
            )
        if not input.ndim:
            if index.numel != 1:
                raise RuntimeError(f"index_select: index of a scalar must have 1 value, got {index.numel}.")
            return Spec.of((), input.dtype, input.device)
        return Spec.of(
            [*input.shape[:d], index.numel, *input.shape[d + 1 :]],
            input.dtype,
            common_device("index_select", [input, index]),
        )

    def access(op, input, dim, index):
        if not input.ndim:
            return Read(IndexMap((), ()), ())
        d = canonical_dim("index_select", dim, input.ndim)
        rows = tuple(() if j == d or n == 1 else ((j, 1),) for j, n in enumerate(input.shape))
        return Read(IndexMap(rows, (0,) * input.ndim), (Moved(1, whole(index.shape, d), d, False, POSITION.number),))

    def vjp(g, out, input, dim, index):
        if not input.spec.ndim:
            return g, None
        return REGISTRY["index_add"](zeros_of(input), dim, index, g), None

    def batch(size, dims, input, dim, index):
        n = element_ndim(input, dims[0])
        if not n:
            return front(input, dims[0], size), 0
        at = behind(dim, n)
        if dims[2] is None:
            return index_select(input, at, index), 0
        if index.spec.ndim == 1:
            index = REGISTRY["unsqueeze"](index, 1)
        indices = (None,) * (at - 1) + (index,)
        if dims[0] is None:
            return REGISTRY["index"](input, indices), at - 1
        found = REGISTRY["index"](moved(input, at, 1), counted_indices((index,), (0,), size))  # [batch, index, rest]
        return moved(found, 1, at), 0

    def reference(x, dim, index):
        return np.take(x, index.reshape(-1), dim)

    def samples(t):
        yield case(t(4, 5), 1, t(3, dtype="int64", high=5))
        yield case(t(4, 5), -2, t(7, dtype="int64", high=4))
        yield case(t(4, 5), 0, t(2, 2, dtype="int64", high=4), raises=(IndexError, "one dim"))


@declare
class embedding_lookup(Indexing):
    """Rows of `weight`, one per index. Gradients of row `padding_idx` are zero; `by_frequency` divides them by how often a row was read."""

    functions = ()
    spoken = "embedding"
    methods = ()

    def signature(weight: Tensor, indices: Tensor, padding_idx=-1, by_frequency=False): ...

    def meta(op, weight, indices, padding_idx, by_frequency):
        check_index_type("embedding", indices)
        if weight.ndim != 2:
            raise RuntimeError(
                f"embedding: weight must have 2 dims, got shape {list(weight.shape)} ('weight' must be 2-D)."
            )
        return Spec.of([*indices.shape, weight.shape[1]], weight.dtype, common_device("embedding", [weight, indices]))

    def access(op, weight, indices, padding_idx, by_frequency):
        row = () if weight.shape[1] == 1 else ((indices.ndim, 1),)
        return Read(IndexMap(((), row), (0, 0)), (Moved(1, whole(indices.shape), 0, False, POSITION.number),))

    def vjp(g, out, weight, indices, padding_idx, by_frequency):
        ops = REGISTRY
        if by_frequency:
            zeros = ops["full"]((weight.spec.shape[0],), 0, dtype=g.spec.dtype, device=g.spec.device)
            ones = ops["full"]((indices.spec.numel,), 1, dtype=g.spec.dtype, device=g.spec.device)
            count = ops["index"](ops["index_add"](zeros, 0, ops["reshape"](indices, (-1,)), ones), (indices,))
            g = ops["true_divide"](g, ops["unsqueeze"](count, -1))
        if padding_idx >= 0:
            padding = ops["unsqueeze"](ops["eq"](indices, padding_idx), -1)
            g = ops["masked_fill"](g, padding, 0)
        flat = ops["reshape"](g, (indices.spec.numel, weight.spec.shape[1]))
        return ops["index_add"](zeros_of(weight), 0, ops["reshape"](indices, (-1,)), flat), None

    def batch(size, dims, weight, indices, padding_idx, by_frequency):
        if dims[0] is None:
            return embedding_lookup(weight, indices, padding_idx, by_frequency), 0
        rows = weight.spec.shape[1]
        flat = REGISTRY["reshape"](weight, (size * rows, weight.spec.shape[2]))
        first = REGISTRY["iota"]((size, *(1,) * element_ndim(indices, dims[1])), 0, rows)
        return REGISTRY["index"](flat, (REGISTRY["add"](indices, first),)), 0

    def reference(weight, indices, padding_idx=-1, by_frequency=False):
        return weight[indices]

    def samples(t):
        yield case(t(6, 3), t(2, 4, dtype="int64", high=6))
        yield case(t(6, 3), t(5, dtype="int32", high=6), 2)
        yield case(t(6), t(5, dtype="int64", high=6), raises=(RuntimeError, "2 dims"))


@declare
class take(Composite):
    """Elements of the flattened input, in the shape of `index`."""

    def signature(input: Tensor, index: Tensor): ...

    def meta(op, input, index):
        check_index_type("take", index, ("int64",))
        return Spec.of(index.shape, input.dtype, input.device)

    def body(input, index):
        return REGISTRY["index"](REGISTRY["reshape"](input, (-1,)), (index,))

    def reference(x, index):
        return x.reshape(-1)[index]

    def samples(t):
        yield case(t(4, 5), t(3, 2, dtype="int64", high=20))
        yield case(t(4, 5), t(3), raises=(RuntimeError, "indices must be"))


@declare
class take_along_dim(Composite):
    """`gather` with broadcasting of the dims beside `dim`; without `dim`, over the flattened input."""

    def signature(input: Tensor, indices: Tensor, dim=None): ...

    def body(input, indices, dim):
        ops = REGISTRY
        check_index_type("take_along_dim", indices.spec, ("int64",))
        if dim is None:
            return ops["gather"](ops["reshape"](input, (-1,)), 0, ops["reshape"](indices, (-1,)))
        d = canonical_dim("take_along_dim", dim, input.spec.ndim)
        if input.spec.ndim != indices.spec.ndim:
            raise RuntimeError(
                f"take_along_dim: input and indices should have the same number of dimensions, got {input.spec.ndim} and "
                f"{indices.spec.ndim}."
            )
        if not input.spec.ndim:
            return ops["gather"](input, 0, indices)
        common = broadcast_shapes(
            "take_along_dim", *([1 if j == d else n for j, n in enumerate(x.spec.shape)] for x in (input, indices))
        )

        def wide(x):
            return ops["expand"](x, tuple(x.spec.shape[j] if j == d else n for j, n in enumerate(common)))

        places = wide(indices)
        places = ops["where"](
            ops["lt"](places, 0), ops["add"](places, input.spec.shape[d]), places
        )  # here negative ones count from the end
        return ops["gather"](wide(input), d, places)

    def meta(op, input, indices, dim):
        check_index_type("take_along_dim", indices, ("int64",))
        if dim is None:
            return Spec.of((indices.numel,), input.dtype, input.device)
        d = canonical_dim("take_along_dim", dim, input.ndim)
        if input.ndim != indices.ndim:
            raise RuntimeError(
                f"take_along_dim: input and indices should have the same number of dimensions, got {input.ndim} and "
                f"{indices.ndim}."
            )
        if not input.ndim:
            return Spec.of((), input.dtype, input.device)
        common = broadcast_shapes(
            "take_along_dim", *([1 if j == d else n for j, n in enumerate(x.shape)] for x in (input, indices))
        )
        return Spec.of([indices.shape[j] if j == d else n for j, n in enumerate(common)], input.dtype, input.device)

    def reference(x, indices, dim=None):
        return np.take_along_axis(x, indices, dim)

    def samples(t):
        yield case(t(4, 5), t(4, 1, dtype="int64", high=5), 1)
        yield case(t(4, 5), t(3, 1, dtype="int64", high=4), 0)
