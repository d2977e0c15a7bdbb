"""LU factors, what is solved with them, and determinants.

    lu_factor_ex(a)      # packed factors and LAPACK's pivots (counted from 1)
    lu_permutation(...)  # the same pivots as an index: a[index] = L U

May not know: the engine. Entry: the ops.
"""

from __future__ import annotations

import math
from typing import Any

from flambeau.base.lazy import np, scipy_linalg
from flambeau.core.dtype import int32, int64
from flambeau.core.layout import broadcast_shapes
from flambeau.core.spec import Spec
from flambeau.ir.kinds import NOT_DIFFERENTIABLE, Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.linear_algebra import (
    Factorisation,
    check_matrices,
    check_square,
    check_system,
    diagonal_of,
    each,
    factored,
    identity_like,
    linalg_inv,
    lower,
    multiply,
    raise_singular,
    regular_samples,
    solve_columns,
    triangular_columns,
    upper,
)
from flambeau.operators.matmul import adjoint, matrix_product
from flambeau.operators.rules import case


# ------------------------------------------------------------------ permutations
@declare
class lu_permutation(Factorisation):
    """(index, inverse) of the row swaps that pivots (from 1) stand for: a[index] is the permuted matrix."""

    outputs = 2
    vjp = NOT_DIFFERENTIABLE

    def signature(pivots: Tensor, rows): ...

    def meta(op, pivots, rows):
        s = Spec.of((*pivots.shape[:-1], rows), int64, pivots.device)
        return s, s

    def run(ins, outs, args):
        for place in np.ndindex(*ins[0].shape[:-1]):
            order = permutation(ins[0][place], args[1])
            outs[0][place] = order
            outs[1][place][order] = np.arange(args[1])

    def reference(pivots, rows):
        found = np.stack([permutation(p, rows) for p in pivots.reshape(-1, pivots.shape[-1])]).reshape(
            *pivots.shape[:-1], rows
        )
        return found, np.argsort(found, -1)

    def samples(t):
        yield case(np.asarray([3, 2, 3], np.int32), 4)


def permutation(pivots: Any, rows: int) -> Any:
    order = np.arange(rows)
    for i, p in enumerate(pivots):
        order[[i, p - 1]] = order[[p - 1, i]]
    return order


def rows_at(x, index):
    """Rows of x [*, m, n] in the order of index [*, m]."""
    ops, n = REGISTRY, x.spec.shape[-1]
    shape = (*broadcast_shapes("lu", x.spec.shape[:-2], index.spec.shape[:-1]), index.spec.shape[-1], n)
    wide = ops["expand"](ops["unsqueeze"](index, -1), shape)
    return ops["gather"](ops["expand"](x, (*shape[:-2], *x.spec.shape[-2:])), -2, wide)


# ------------------------------------------------------------------ factors
@declare
class lu_factor_ex(Factorisation):
    """(LU, pivots, info): factors packed in one matrix, pivots from 1; info is the first zero pivot's number."""

    functions = ("linalg.lu_factor_ex",)
    outputs = 3
    fields = ("LU", "pivots", "info")

    def signature(A: Tensor, *, pivot=True, check_errors=False): ...

    def meta(op, a, pivot, check_errors):
        check_matrices("lu_factor", a)
        if not pivot:
            raise RuntimeError("linalg.lu_factor: LU without pivoting is not implemented on the CPU, got pivot=False.")
        k = min(a.shape[-2:])
        return a_like(a), Spec.of((*a.shape[:-2], k), int32, a.device), Spec.of(a.shape[:-2], int32, a.device)

    def run(ins, outs, args):
        for (a, out), place in zip(each(ins[0], outs[0]), np.ndindex(*outs[2].shape)):
            out[...], pivots, outs[2][place] = factored(a)
            outs[1][place] = np.asarray(pivots) + 1
        if args[2]:
            raise_singular(
                "lu_factor", outs[2], "U[{0},{0}] is zero and using it on lu_solve would result in a division by zero"
            )

    def vjp(g, out, a, pivot, check_errors):
        return (lu_gradient(lower(g[0], -1), upper(g[0]), out[0], out[1]),)

    def reference(A, *, pivot=True, check_errors=False):
        found = [factored(m) for m in A.reshape(-1, *A.shape[-2:])]
        lu = np.stack([f[0] for f in found]).reshape(A.shape)
        return (
            lu,
            np.stack([f[1] + 1 for f in found]).reshape(*A.shape[:-2], -1).astype(np.int32),
            np.zeros(A.shape[:-2], np.int32),
        )

    def samples(t):
        yield case(t(3, 3))
        yield case(t(2, 4, 3))


def a_like(a: Spec) -> Spec:
    return Spec.of(a.shape, a.dtype, a.device)


def lu_gradient(gl, gu, packed, pivots):
    """The gradient of the factors of a (square, tall or wide) matrix, from those of L (below the diagonal) and U."""
    ops = REGISTRY
    m, n = packed.spec.shape[-2:]
    k = min(m, n)
    left = ops["narrow"](packed, -1, 0, k)
    l1, u1 = unit_lower(ops["narrow"](left, -2, 0, k)), upper(ops["narrow"](ops["narrow"](packed, -2, 0, k), -1, 0, k))
    gl1 = ops["narrow"](ops["narrow"](gl, -1, 0, k), -2, 0, k)
    gu1 = ops["narrow"](ops["narrow"](gu, -2, 0, k), -1, 0, k)
    below = beside = None
    if m > n:  # L2 = A2 U^-1
        l2, gl2 = ops["narrow"](packed, -2, n, m - n), ops["narrow"](gl, -2, n, m - n)
        below = adjoint(triangular_columns(u1, adjoint(gl2), True))  # gl2 U^-H
        gu1 = ops["sub"](gu1, matrix_product(adjoint(l2), below))
    if n > m:  # U2 = L^-1 A2
        u2, gu2 = ops["narrow"](packed, -1, m, n - m), ops["narrow"](gu, -1, m, n - m)
        beside = triangular_columns(adjoint(l1), gu2, True, True)
        gl1 = ops["sub"](gl1, matrix_product(beside, adjoint(u2)))
    inner = ops["add"](lower(matrix_product(adjoint(l1), gl1), -1), upper(matrix_product(gu1, adjoint(u1))))
    inner = triangular_columns(adjoint(l1), inner, True, True)
    found = adjoint(triangular_columns(u1, adjoint(inner), True))
    if below is not None:
        found = ops["cat"]((found, below), -2)
    if beside is not None:
        found = ops["cat"]((found, beside), -1)
    return rows_at(found, lu_permutation(pivots, m)[1])


def unit_lower(x):
    """The strictly lower triangle with ones on the diagonal."""
    ops = REGISTRY
    n = x.spec.shape[-1]
    return ops["add"](
        lower(x, -1),
        identity_like(x, n)
        if x.spec.shape[-2] == n
        else ops["identity_matrix"](x.spec.shape[-2], n, dtype=x.spec.dtype, device=x.spec.device),
    )


@declare
class lu_factor(Composite):
    """(LU, pivots) of a matrix, packed as LAPACK does. Raises: RuntimeError if a pivot is zero."""

    functions = ("linalg.lu_factor",)
    methods = ()
    outputs = 2
    fields = ("LU", "pivots")

    def signature(A: Tensor, *, pivot=True): ...

    def body(a, pivot):
        found = lu_factor_ex(a, pivot=pivot)
        return found[0], found[1]

    def reference(A, *, pivot=True):
        return lu_factor_ex.rules.reference(A)[:2]

    def samples(t):
        yield case(t(3, 3))


@declare
class lu_unpack(Composite):
    """(P, L, U) from packed factors and pivots; what is not asked for comes back empty."""

    functions = ("lu_unpack",)
    methods = ()
    outputs = 3
    fields = ("P", "L", "U")

    def signature(LU_data: Tensor, LU_pivots: Tensor, unpack_data=True, unpack_pivots=True): ...

    def body(packed, pivots, unpack_data, unpack_pivots):
        ops = REGISTRY
        if pivots.spec.dtype is not int32 and unpack_pivots:
            raise RuntimeError(
                f"lu_unpack: LU_pivots must be a torch.int32 tensor, as lu_factor gives it, got {pivots.spec.dtype.name}."
            )
        m, n = packed.spec.shape[-2:]
        k = min(m, n)
        nothing = ops["full"]((0,), 0, dtype=packed.spec.dtype, device=packed.spec.device)
        l = unit_lower(ops["narrow"](packed, -1, 0, k)) if unpack_data else nothing
        u = upper(ops["narrow"](packed, -2, 0, k)) if unpack_data else nothing
        return permutation_matrix(pivots, m, packed) if unpack_pivots else nothing, l, u

    def reference(packed, pivots, unpack_data=True, unpack_pivots=True):
        m, n = packed.shape[-2:]
        k = min(m, n)
        order = lu_permutation.rules.reference(pivots, m)[0]
        p = np.swapaxes(np.eye(m)[order], -1, -2)
        return p, np.tril(packed[..., :k], -1) + np.eye(m, k), np.triu(packed[..., :k, :])

    def samples(t):
        yield case(t(3, 3), np.asarray([3, 2, 3], np.int32))
        yield case(t(4, 3), np.asarray([3, 2, 4], np.int32))


def permutation_matrix(pivots, rows: int, like):
    """P with A = P L U."""
    ops = REGISTRY
    index = lu_permutation(pivots, rows)[0]
    same = ops["eq"](ops["iota"]((rows, 1), device=like.spec.device), ops["unsqueeze"](index, -2))
    return ops["to_dtype"](same, like.spec.dtype)


@declare
class linalg_lu(Composite):
    """(P, L, U) with A = P L U."""

    functions = ("linalg.lu",)
    methods = ()
    outputs = 3
    fields = ("P", "L", "U")

    def signature(A: Tensor, *, pivot=True): ...

    def body(a, pivot):
        packed, pivots, _ = lu_factor_ex(a, pivot=pivot)
        return lu_unpack(packed, pivots)

    def reference(A, *, pivot=True):
        return scipy_linalg.lu(A)

    def samples(t):
        yield case(t(3, 3))
        yield case(t(2, 3, 4))


@declare
class linalg_lu_solve(Composite):
    """x with A x = B (or x A = B; A^H for `adjoint`) from the packed factors of A."""

    functions = ("linalg.lu_solve",)
    methods = ()

    def signature(LU: Tensor, pivots: Tensor, B: Tensor, *, left=True, adjoint=False): ...

    def body(packed, pivots, b, left, adjoint):
        check_system("lu_solve", packed.spec, b.spec, left)
        if not left:  # x A = B is A^H x^H = B^H
            return turned(solve_factored(packed, pivots, turned(b), not adjoint))
        return solve_factored(packed, pivots, b, adjoint)

    def reference(packed, pivots, b, *, left=True, adjoint=False):
        p, l, u = lu_unpack.rules.reference(packed, pivots)
        a = p @ l @ u
        a = np.conj(np.swapaxes(a, -1, -2)) if adjoint else a
        return (
            np.linalg.solve(a, b)
            if left
            else np.swapaxes(np.linalg.solve(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)), -1, -2)
        )

    def samples(t):
        for left in (True, False):
            for conjugate in (True, False):
                yield case(
                    regular_samples(t, 3, 3), np.asarray([3, 2, 3], np.int32), t(3, 3), left=left, adjoint=conjugate
                )


def turned(x):
    return adjoint(x)


def solve_factored(packed, pivots, b, conjugate: bool):
    """a x = b, or a^H x = b, from the factors of a."""
    index, inverse = lu_permutation(pivots, packed.spec.shape[-1])
    if conjugate:
        x = triangular_columns(adjoint(packed), b, False)
        return rows_at(triangular_columns(adjoint(packed), x, True, True), inverse)
    return triangular_columns(packed, triangular_columns(packed, rows_at(b, index), False, True), True)


@declare
class lu_solve(Composite):
    """x with A x = b from the packed factors of A: `linalg.lu_solve` with its older order of arguments."""

    functions = ("lu_solve",)

    def signature(b: Tensor, LU_data: Tensor, LU_pivots: Tensor): ...

    def body(b, packed, pivots):
        return linalg_lu_solve(packed, pivots, b)

    def reference(b, packed, pivots):
        return linalg_lu_solve.rules.reference(packed, pivots, b)

    def samples(t):
        yield case(t(3, 2), regular_samples(t, 3, 3), np.asarray([3, 2, 3], np.int32))


# ------------------------------------------------------------------ determinants
def signed_product(packed, pivots):
    """(sign of the permutation, diagonal of U)."""
    ops = REGISTRY
    n = packed.spec.shape[-1]
    place = ops["add"](ops["iota"]((n,), device=packed.spec.device), 1)
    swaps = ops["sum"](ops["ne"](pivots, place), -1, False)
    sign = ops["rsub"](ops["mul"](ops["remainder"](swaps, 2), 2), 1)
    return ops["to_dtype"](sign, packed.spec.dtype), diagonal_of(packed)


@declare
class cofactor(Factorisation):
    """The conjugate of the derivative of det: det(A) A^-1 transposed where A is regular, and its limit elsewhere."""

    def signature(A: Tensor): ...

    def meta(op, a):
        return a_like(a)

    def run(ins, outs, args):
        a = ins[0]
        if not a.size:
            return
        u, s, vh = np.linalg.svd(a)
        n = a.shape[-1]
        rest = np.stack([np.prod(np.delete(s, i, -1), -1) for i in range(n)], -1)
        scale = np.conj(np.linalg.det(u) * np.linalg.det(vh))[..., None, None]
        outs[0][...] = scale * ((u * rest[..., None, :]) @ vh)

    def vjp(g, out, a):
        ops = REGISTRY
        x = adjoint(linalg_inv(a))
        det = determinant(a)
        det = ops["conj"](det) if det.spec.dtype.is_complex else det
        det = ops["unsqueeze"](ops["unsqueeze"](det, -1), -1)
        traced = ops["sum"](ops["mul"](g, ops["conj"](x) if x.spec.dtype.is_complex else x), (-2, -1), True)
        return (ops["sub"](ops["mul"](traced, out), ops["mul"](det, multiply(x, adjoint(g), x))),)

    def reference(A):
        return np.conj(np.linalg.det(A)) * np.conj(np.swapaxes(np.linalg.inv(A), -1, -2))

    def samples(t):
        yield case(regular_samples(t, 3, 3))


@declare
class determinant(Composite):
    """The determinant of square matrices, as the product of the pivots."""

    name = "linalg_det"
    functions = ("linalg.det", "det")
    methods = ("det",)

    def signature(A: Tensor): ...

    def meta(op, a):
        check_square("det", a)
        return Spec.of(a.shape[:-2], a.dtype, a.device)

    def body(a):
        packed, pivots, _ = lu_factor_ex(a)
        sign, line = signed_product(packed, pivots)
        return REGISTRY["mul"](sign, REGISTRY["prod"](line, -1, False))

    def vjp(g, out, a):
        wide = REGISTRY["unsqueeze"](REGISTRY["unsqueeze"](g, -1), -1)
        return (REGISTRY["mul"](wide, cofactor(a)),)

    def reference(A):
        return np.linalg.det(A)

    def samples(t):
        yield case(t(3, 3))
        yield case(t(2, 1, 1))
        yield case(t(0, 0))
        yield case(t(2, 3), raises=(RuntimeError, "square"))


@declare
class slogdet(Composite):
    """(sign, log |det|) of square matrices; a singular one gives 0 and -inf."""

    name = "linalg_slogdet"
    functions = ("linalg.slogdet", "slogdet")
    methods = ("slogdet",)
    outputs = 2
    fields = ("sign", "logabsdet")

    def signature(A: Tensor): ...

    def meta(op, a):
        check_square("slogdet", a)
        return Spec.of(a.shape[:-2], a.dtype, a.device), Spec.of(a.shape[:-2], a.dtype.to_real(), a.device)

    def body(a):
        ops = REGISTRY
        packed, pivots, _ = lu_factor_ex(a)
        sign, line = signed_product(packed, pivots)
        return ops["mul"](sign, ops["prod"](ops["sgn"](line), -1, False)), ops["sum"](
            ops["log"](ops["abs"](line)), -1, False
        )

    def vjp(g, out, a):
        ops = REGISTRY
        scale = g[1]
        if a.spec.dtype.is_complex:
            turn = ops["imag"](ops["mul"](ops["conj"](g[0]), out[0]))
            scale = ops["complex"](scale, ops["neg"](turn))
        wide = ops["unsqueeze"](ops["unsqueeze"](scale, -1), -1)
        return (solve_columns(adjoint(a), ops["mul"](identity_like(a, a.spec.shape[-1]), wide), False)[0],)

    def reference(A):
        return tuple(np.linalg.slogdet(A))

    def samples(t):
        yield case(t(3, 3))
        yield case(t(2, 2, 2))


@declare
class logdet(Composite):
    """log det of square matrices: NaN where the determinant is negative, -inf where it is 0."""

    def signature(A: Tensor): ...

    def body(a):
        ops = REGISTRY
        sign, size = slogdet(a)
        if a.spec.dtype.is_complex:
            return ops["add"](ops["log"](sign), size)
        return ops["where"](ops["eq"](sign, -1.0), math.nan, size)

    def reference(A):
        sign, size = np.linalg.slogdet(A)
        return np.where(sign < 0, np.nan, size)

    def samples(t):
        yield case(regular_samples(t, 3, 3))


@declare
class tensorinv(Composite):
    """The inverse for `tensordot` over the first `ind` dims: A reshaped to a square matrix, inverted, reshaped."""

    functions = ("linalg.tensorinv",)
    methods = ()

    def signature(A: Tensor, ind=2): ...

    def body(a, ind):
        if ind <= 0:
            raise RuntimeError(f"linalg.tensorinv: Expected a strictly positive integer for 'ind', got {ind}.")
        shape = tuple(a.spec.shape)
        rows, columns = math.prod(shape[:ind]), math.prod(shape[ind:])
        if rows != columns:
            raise RuntimeError(
                f"linalg.tensorinv: Expected self to satisfy the requirement prod(self.shape[ind:]) == prod(self.shape[:ind]), but got {columns} "
                f"!= {rows} for {list(shape)}."
            )
        found = linalg_inv(REGISTRY["reshape"](a, (rows, columns)))
        return REGISTRY["reshape"](found, shape[ind:] + shape[:ind])

    def reference(A, ind=2):
        return np.linalg.tensorinv(A, ind)

    def samples(t):
        yield case(t(4, 6, 8, 3))
        yield case(t(4, 6, 8, 2), raises=(RuntimeError, "requirement"))


@declare
class tensorsolve(Composite):
    """x with tensordot(A, x, x.ndim) = B."""

    functions = ("linalg.tensorsolve",)
    methods = ()

    def signature(A: Tensor, B: Tensor, dims=None): ...

    def body(a, b, dims):
        ops = REGISTRY
        if dims is not None:
            n = a.spec.ndim
            moved = tuple(d % n for d in dims)
            a = ops["permute"](a, (*(d for d in range(n) if d not in moved), *moved))
        shape = tuple(a.spec.shape[b.spec.ndim :])
        size = math.prod(shape)
        if a.spec.numel != size * size or b.spec.numel != size:
            raise RuntimeError(
                f"linalg.tensorsolve: Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == prod(self.shape[:other.ndim]), but "
                f"got {list(a.spec.shape)} and other {list(b.spec.shape)}."
            )
        flat = ops["reshape"](b, (size, 1))
        found = solve_columns(ops["reshape"](a, (size, size)), flat)[0]
        return ops["reshape"](found, shape)

    def reference(A, B, dims=None):
        return np.linalg.tensorsolve(A, B, dims)

    def samples(t):
        yield case(t(2, 3, 6), t(2, 3))
