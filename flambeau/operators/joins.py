"""Repetition, diagonals, blocks and cross products: composites of views, copies and joins."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.dtype import int64
from flambeau.core.layout import broadcast_shapes, canonical_dim
from flambeau.core.spec import Spec
from flambeau.ir.kinds import LINEAR, Assemble, Composite, Piece, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.assemble import join_type, view_scatter
from flambeau.operators.batched import front
from flambeau.operators.rules import case, common_type, conjugate, sum_to, to_type_of


# ------------------------------------------------------------------ repetition
@declare
class repeat(Composite):
    """The input repeated along each dim, with leading dims added as needed."""

    functions = ()
    methods = ()

    def signature(input: Tensor, repeats): ...

    def meta(op, s, repeats):
        if len(repeats) < s.ndim:
            raise RuntimeError(
                f"repeat: repeats must have at least one number per dim ({s.ndim}), got {list(repeats)} (Number of "
                "dimensions of repeat dims can not be smaller than number of dimensions of tensor)."
            )
        if any(n < 0 for n in repeats):
            raise RuntimeError(
                f"repeat: repeats must not be negative, got {list(repeats)} (Trying to create tensor with negative "
                "dimension)."
            )
        lead = len(repeats) - s.ndim
        return Spec.of([n * (s.shape[i - lead] if i >= lead else 1) for i, n in enumerate(repeats)], s.dtype, s.device)

    def body(input, repeats):
        ops, lead = REGISTRY, len(repeats) - input.spec.ndim
        shape = (1,) * lead + tuple(input.spec.shape)
        split = ops["reshape"](input, tuple(n for size in shape for n in (1, size)))
        wide = ops["expand"](split, tuple(n for count, size in zip(repeats, shape) for n in (count, size)))
        return ops["reshape"](ops["contiguous_copy"](wide), tuple(count * size for count, size in zip(repeats, shape)))

    jvp = LINEAR

    def reference(x, repeats):
        return np.tile(x, repeats)

    def samples(t):
        yield case(t(2, 3), (2, 1))
        yield case(t(3), (2, 2))
        yield case(t(2, 3), (0, 2))
        yield case(t(2, 3), (2,), raises=(RuntimeError, "at least one number per dim"))


@declare
class repeat_each(Composite):
    """Every index of a dim repeated `count` times in a row."""

    functions = ()
    methods = ()

    def signature(input: Tensor, count, dim): ...

    def meta(op, s, count, dim):
        d = canonical_dim("repeat_interleave", dim, s.ndim)
        if count < 0:
            raise RuntimeError(
                f"repeat_interleave: repeats must not be negative, got {count} (Repeats must be non-negative)."
            )
        return Spec.of([n * count if j == d else n for j, n in enumerate(s.shape)], s.dtype, s.device)

    def body(input, count, dim):
        ops, shape = REGISTRY, tuple(input.spec.shape)
        d = dim % len(shape)
        wide = ops["expand"](ops["unsqueeze"](input, d + 1), (*shape[: d + 1], count, *shape[d + 1 :]))
        return ops["reshape"](ops["contiguous_copy"](wide), (*shape[:d], shape[d] * count, *shape[d + 1 :]))

    jvp = LINEAR

    def reference(x, count, dim):
        return np.repeat(x, count, dim)

    def samples(t):
        yield case(t(2, 3), 2, 0)
        yield case(t(2, 3), 3, -1)


# ------------------------------------------------------------------ diagonals
@declare
class diag_embed(Composite):
    """Matrices of zeros with the last dim of the input on their diagonal."""

    def signature(input: Tensor, offset=0, dim1=-2, dim2=-1): ...

    def meta(op, s, offset, dim1, dim2):
        n = s.ndim + 1
        a, b = canonical_dim("diag_embed", dim1, n), canonical_dim("diag_embed", dim2, n)
        if a == b or not s.ndim:
            raise RuntimeError(
                f"diag_embed: dim1 and dim2 must differ, got {dim1} and {dim2} (diagonal dimensions cannot be identical)."
            )
        side = s.shape[-1] + abs(offset)
        rest = iter(s.shape[:-1])
        return Spec.of([side if d in (a, b) else next(rest) for d in range(n)], s.dtype, s.device)

    def body(input, offset, dim1, dim2):
        shape = diag_embed.rules.meta(diag_embed, input.spec, offset, dim1, dim2).shape
        zeros = REGISTRY["full"](tuple(shape), 0, dtype=input.spec.dtype, device=input.spec.device)
        n = len(shape)
        return view_scatter(zeros, input, (("diagonal", (offset, dim1 % n, dim2 % n)),))

    def vjp(g, out, input, offset, dim1, dim2):
        return (REGISTRY["diagonal"](g, offset, dim1, dim2),)

    jvp = LINEAR

    def reference(x, offset=0, dim1=-2, dim2=-1):
        side = x.shape[-1] + abs(offset)
        found = np.zeros((*x.shape[:-1], side, side), x.dtype)
        at = np.arange(x.shape[-1])
        found[..., at + max(0, -offset), at + max(0, offset)] = x
        return np.moveaxis(found, (-2, -1), (dim1, dim2))

    def samples(t):
        yield case(t(3))
        yield case(t(2, 3), 1, 0, 2)
        yield case(t(3), 0, 1, 1, raises=(RuntimeError, "must differ"))


@declare
class trace(Composite):
    """The sum of a matrix's diagonal."""

    def signature(input: Tensor): ...

    def meta(op, s):
        if s.ndim != 2:
            raise RuntimeError(f"trace: the input must be a matrix (expected a matrix), got shape {list(s.shape)}.")
        return Spec.of((), REGISTRY["sum"].rules.meta(REGISTRY["sum"], s, None, False, None).dtype, s.device)

    def body(input):
        return REGISTRY["sum"](REGISTRY["diagonal"](input, 0, 0, 1), None, False)

    jvp = LINEAR

    def reference(x):
        return np.trace(x)

    def samples(t):
        yield case(t(3, 4))
        yield case(t(3), raises=(RuntimeError, "must be a matrix"))


@declare
class block_diag_join(Assemble):
    """Matrices along the diagonal of `base`."""

    functions = ()
    methods = ()
    base = 0

    def batch(size, dims, base, tensors):
        return block_diag_join(
            front(base, dims[0], size), tuple(front(x, d, size) for x, d in zip(tensors, dims[1]))
        ), 0

    def signature(base: Tensor, tensors: Tensors): ...

    def meta(op, base, tensors):
        return Spec.of(base.shape, base.dtype, common_device("block_diag", [base, *tensors]))

    def pieces(op, out, base, tensors):
        found, row, col = [], 0, 0
        for i, s in enumerate(tensors):
            found.append(Piece(1 + i, tuple(s.shape), out.strides, row * out.strides[-2] + col * out.strides[-1]))
            row, col = row + s.shape[-2], col + s.shape[-1]
        return found

    def vjp(g, out, base, tensors):
        ops, found, row, col = REGISTRY, [], 0, 0
        for x in tensors:
            rows, cols = x.spec.shape[-2:]
            found.append(to_type_of(ops["narrow"](ops["narrow"](g, -2, row, rows), -1, col, cols), x))
            row, col = row + rows, col + cols
        rest = g
        if tensors:
            zeros = tuple(
                ops["full"](tuple(x.spec.shape), 0, dtype=g.spec.dtype, device=g.spec.device) for x in tensors
            )
            rest = block_diag_join(g, zeros)
        return rest, tuple(found)

    def reference(base, tensors):
        found, row, col = base.copy(), 0, 0
        for x in tensors:
            found[row : row + x.shape[0], col : col + x.shape[1]] = x
            row, col = row + x.shape[0], col + x.shape[1]
        return found

    def samples(t):
        yield case(t(5, 5), (t(2, 3), t(3, 2)))


@declare
class block_diag_of(Composite):
    """Tensors of at most 2 dims as blocks on the diagonal of a matrix of zeros."""

    functions = ()
    methods = ()

    def signature(tensors: Tensors): ...

    def meta(op, tensors):
        for s in tensors:
            if s.ndim > 2:
                raise RuntimeError(
                    f"block_diag: input tensors must have 2 or fewer dimensions, got shape {list(s.shape)}."
                )
        sides = [(1, 1) if not s.ndim else (1, s.shape[0]) if s.ndim == 1 else tuple(s.shape) for s in tensors]
        return Spec.of(
            (sum(a for a, _ in sides), sum(b for _, b in sides)),
            join_type(op, tensors),
            common_device("block_diag", tensors),
        )

    def body(tensors):
        spec = block_diag_of.rules.meta(block_diag_of, tuple(x.spec for x in tensors))
        blocks = tuple(x if x.spec.ndim == 2 else REGISTRY["reshape"](x, (1, x.spec.numel)) for x in tensors)
        zeros = REGISTRY["full"](tuple(spec.shape), 0, dtype=spec.dtype, device=spec.device)
        return block_diag_join(zeros, blocks)

    def reference(tensors):
        blocks = [np.atleast_2d(x) for x in tensors]
        base = np.zeros((sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)))
        return block_diag_join.rules.reference(base, blocks)

    def samples(t):
        yield case((t(2, 3), t(4), t()))
        yield case((t(2, 3, 4),), raises=(RuntimeError, "2 or fewer"))


# ------------------------------------------------------------------ products and powers
@declare
class cross_product(Composite):
    """The cross product of vectors of 3 along a dim, with broadcasting of the others."""

    functions = ("linalg.cross",)
    methods = ()

    def signature(input: Tensor, other: Tensor, *, dim=-1): ...

    def meta(op, a, b, dim):
        if a.ndim != b.ndim:
            raise RuntimeError(
                f"linalg.cross: inputs must have the same number of dimensions, got {a.ndim} and {b.ndim}."
            )
        d = canonical_dim("linalg.cross", dim, a.ndim)
        if not a.ndim or a.shape[d] != 3 or b.shape[d] != 3:
            raise RuntimeError(
                f"linalg.cross: inputs must have length 3 in dim {dim} (inputs dimension {dim} must have length 3), got "
                f"{list(a.shape)} and {list(b.shape)}."
            )
        return Spec.of(
            broadcast_shapes("linalg.cross", a.shape, b.shape),
            common_type((a, b)),
            common_device("linalg.cross", (a, b)),
        )

    def body(input, other, dim):
        ops = REGISTRY
        shape = broadcast_shapes("linalg.cross", input.spec.shape, other.spec.shape)
        d = dim % len(shape)
        a, b = ([ops["select"](ops["expand"](x, tuple(shape)), d, i) for i in range(3)] for x in (input, other))

        def part(i, j):
            return ops["sub"](ops["mul"](a[i], b[j]), ops["mul"](a[j], b[i]))

        return ops["stack"]((part(1, 2), part(2, 0), part(0, 1)), d)

    def vjp(g, out, input, other, dim):
        a, b = conjugate(input), conjugate(other)
        shape = tuple(g.spec.shape)
        a, b = (x if tuple(x.spec.shape) == shape else REGISTRY["expand"](x, shape) for x in (a, b))
        return sum_to(cross_product(b, g, dim=dim), input), sum_to(cross_product(g, a, dim=dim), other)

    def reference(x, y, *, dim=-1):
        return np.cross(x, y, axis=dim)

    def samples(t):
        yield case(t(4, 3), t(4, 3))
        yield case(t(3, 4), t(3, 1), dim=0)
        yield case(t(4, 2), t(4, 2), raises=(RuntimeError, "length 3"))


@declare
class vandermonde(Composite):
    """Powers 0 … n-1 of the elements along a new last dim (n: the size of the last dim unless told)."""

    functions = ("linalg.vander",)
    methods = ()

    def signature(x: Tensor, *, N=None): ...

    def meta(op, x, N):
        shape = x.shape or (1,)
        n = shape[-1] if N is None else N
        if n < 2:
            raise RuntimeError(f"linalg.vander: N must be greater than 1, got {n} (N must be greater than 1).")
        return Spec.of([*shape, n], int64 if x.dtype.is_integral else x.dtype, x.device)

    def body(x, N):
        ops = REGISTRY
        if not x.spec.ndim:
            x = ops["reshape"](x, (1,))
        n = x.spec.shape[-1] if N is None else N
        d = vandermonde.rules.meta(vandermonde, x.spec, N).dtype
        if x.spec.dtype is not d:
            x = ops["to_dtype"](x, d)
        ones = ops["full"]((*x.spec.shape, 1), 1, dtype=d, device=x.spec.device)
        wide = ops["expand"](ops["unsqueeze"](x, -1), (*x.spec.shape, n - 1))
        return ops["cat"]((ones, ops["cumprod"](wide, -1)), -1)

    def reference(x, *, N=None):
        return x[..., None] ** np.arange(x.shape[-1] if N is None else N)

    def samples(t):
        yield case(t(4))
        yield case(t(2, 3), N=5)
        yield case(t(1), raises=(RuntimeError, "greater than 1"))
