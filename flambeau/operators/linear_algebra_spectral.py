"""Orthogonal and spectral factors: QR, eigenvalues, singular values, and what is made of them.

Signs and phases are LAPACK's. Gradients are those of functions that do not depend on them. May not know: the engine. Entry: the ops.
"""

from __future__ import annotations

import math
from typing import Any

from flambeau.base.errors import LinAlgError
from flambeau.base.lazy import np, scipy_linalg
from flambeau.core.dtype import float64, int64
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.linear_algebra import (
    Factorisation,
    check_matrices,
    check_square,
    diagonal_of,
    each,
    hermitian_part,
    hermitian_samples,
    linalg_inv,
    lower,
    multiply,
    on_diagonal,
    solve_columns,
    triangular_columns,
)
from flambeau.operators.matmul import adjoint, matrix_product
from flambeau.operators.rules import case


def refuse_not_finite(name: str, a: Any) -> None:
    """Raises: LinAlgError if the input has NaN or infinite elements."""
    if not np.isfinite(a).all():
        raise LinAlgError(
            f"linalg.{name}: the algorithm failed to converge because the input matrix contained non-finite values, got NaN or infinity. "
            f"Check the input."
        )


def real_of(s: Spec, *shape: int) -> Spec:
    return Spec.of((*s.shape[:-2], *shape), s.dtype.to_real(), s.device)


def matrix_of(s: Spec, *shape: int) -> Spec:
    return Spec.of((*s.shape[:-2], *shape), s.dtype, s.device)


# ------------------------------------------------------------------ QR
@declare
class qr_factors(Factorisation):
    """(Q, R): orthonormal columns and an upper triangle; "complete" makes Q square."""

    outputs = 2

    def signature(A: Tensor, complete=False): ...

    def meta(op, a, complete):
        check_matrices("qr", a)
        m, n = a.shape[-2:]
        k = m if complete else min(m, n)
        return matrix_of(a, m, k), matrix_of(a, k, n)

    def run(ins, outs, args):
        q, r = outs
        if not ins[0].size:
            if q.size:
                q[...] = np.eye(q.shape[-2], q.shape[-1])
            return
        for a, x, y in each(ins[0], q, r):
            x[...], y[...] = np.linalg.qr(a, "complete" if args[1] else "reduced")

    def vjp(g, out, a, complete):
        return (qr_gradient(g[0], g[1], out[0], out[1], a),)

    def reference(A, complete=False):
        return tuple(np.linalg.qr(A, "complete" if complete else "reduced"))

    def samples(t):
        yield case(t(4, 3))
        yield case(t(2, 3, 4))
        yield case(t(4, 3), True, no_gradient="only defined where")


def qr_gradient(gq, gr, q, r, a):
    """Source: Walter and Lehmann, Algorithmic differentiation of linear algebra functions (2018); wide matrices by their square part."""
    ops = REGISTRY
    m, n = a.spec.shape[-2:]
    if q.spec.shape[-1] > n:
        raise NotImplementedError(
            "linalg.qr: the derivative for mode='complete' is only defined where the matrix is square or wide, got "
            f"{list(a.spec.shape)}. Use mode='reduced'."
        )
    if m >= n:
        return tall_qr_gradient(gq, gr, q, r)
    rest = ops["narrow"](a, -1, m, n - m)
    gr1, gr2 = ops["narrow"](gr, -1, 0, m), ops["narrow"](gr, -1, m, n - m)
    gq = ops["add"](gq, matrix_product(rest, adjoint(gr2)))
    first = tall_qr_gradient(gq, gr1, q, ops["narrow"](r, -1, 0, m))
    return ops["cat"]((first, matrix_product(q, gr2)), -1)


def tall_qr_gradient(gq, gr, q, r):
    ops = REGISTRY
    inner = ops["sub"](matrix_product(r, adjoint(gr)), matrix_product(adjoint(gq), q))
    strict = lower(inner, -1)
    line = diagonal_of(inner)
    if line.spec.dtype.is_complex:
        line = ops["to_dtype"](ops["real"](line), line.spec.dtype)
    inner = ops["add"](ops["add"](strict, adjoint(strict)), on_diagonal(line))
    found = ops["add"](gq, matrix_product(q, inner))
    return adjoint(triangular_columns(r, adjoint(found), True))  # found R^-H


def qr_parts(a, mode: str) -> tuple:
    ops = REGISTRY
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"linalg.qr: received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'."
        )
    q, r = qr_factors(a, mode == "complete")
    return (ops["full"]((0,), 0, dtype=a.spec.dtype, device=a.spec.device), r) if mode == "r" else (q, r)


@declare
class linalg_qr(Composite):
    """(Q, R) with A = Q R: "reduced", "complete", or "r" (Q is then empty)."""

    functions = ("linalg.qr",)
    methods = ()
    outputs = 2
    fields = ("Q", "R")

    def signature(A: Tensor, mode="reduced"): ...

    def body(a, mode):
        return qr_parts(a, mode)

    def reference(A, mode="reduced"):
        return tuple(np.linalg.qr(A, mode))

    def samples(t):
        yield case(t(4, 3))
        yield case(t(4, 3), "thin", raises=(RuntimeError, "unrecognized mode"))


@declare
class qr(Composite):
    """`linalg.qr`, reduced if `some`, else complete."""

    outputs = 2
    fields = ("Q", "R")

    def signature(input: Tensor, some=True): ...

    def body(a, some):
        return qr_factors(a, not some)

    def reference(A, some=True):
        return tuple(np.linalg.qr(A, "reduced" if some else "complete"))

    def samples(t):
        yield case(t(4, 3), False, no_gradient="only defined where")


# ------------------------------------------------------------------ symmetric eigenvalues
@declare
class eigh(Factorisation):
    """(eigenvalues, eigenvectors) of Hermitian matrices, ascending; only the triangle `UPLO` is read."""

    name = "linalg_eigh"
    functions = ("linalg.eigh",)
    outputs = 2
    fields = ("eigenvalues", "eigenvectors")

    prepared = hermitian_part

    def signature(A: Tensor, UPLO="L"): ...

    def meta(op, a, uplo):
        check_square("eigh", a)
        check_triangle("eigh", uplo)
        return real_of(a, a.shape[-1]), matrix_of(a, *a.shape[-2:])

    def run(ins, outs, args):
        if ins[0].size:
            refuse_not_finite("eigh", ins[0])
            outs[0][...], outs[1][...] = np.linalg.eigh(ins[0], args[1].upper())

    def vjp(g, out, a, uplo):
        ops = REGISTRY
        values, vectors = out
        inner = matrix_product(adjoint(vectors), g[1])
        gap = ops["sub"](ops["unsqueeze"](values, -2), ops["unsqueeze"](values, -1))
        inner = off_diagonal(inner, gap)
        inner = ops["add"](inner, on_diagonal(in_dtype(g[0], inner)))
        return (multiply(vectors, inner, adjoint(vectors)),)

    def reference(A, UPLO="L"):
        return tuple(np.linalg.eigh(A, UPLO))

    def samples(t):
        yield case(hermitian_samples(t))
        yield case(hermitian_samples(t), "U")
        yield case(t(2, 3), raises=(RuntimeError, "square"))


def check_triangle(name: str, uplo: str) -> None:
    if str(uplo).upper() not in ("L", "U"):
        raise RuntimeError(f"linalg.{name}: Expected UPLO argument to be 'L' or 'U', but got {uplo}.")


def in_dtype(x, like):
    return x if x.spec.dtype is like.spec.dtype else REGISTRY["to_dtype"](x, like.spec.dtype)


def off_diagonal(x, gap):
    """x / gap away from the diagonal, 0 on it."""
    ops, n = REGISTRY, x.spec.shape[-1]
    device = x.spec.device
    same = ops["eq"](ops["iota"]((n, 1), device=device), ops["iota"]((1, n), device=device))
    return ops["where"](same, 0, quotient(x, ops["where"](same, 1, gap)))


def quotient(x, by):
    """x / by, and 0 for 0 / 0: a gap that closes is no matter where nothing depends on the vectors, as in a sum of singular values."""
    ops = REGISTRY
    nothing = ops["logical_and"](ops["eq"](x, 0), ops["eq"](by, 0))
    return ops["where"](nothing, 0, ops["true_divide"](x, ops["where"](nothing, 1, by)))


@declare
class eigvalsh(Composite):
    """Eigenvalues of Hermitian matrices, ascending."""

    functions = ("linalg.eigvalsh",)
    methods = ()

    prepared = hermitian_part

    def signature(A: Tensor, UPLO="L"): ...

    def body(a, uplo):
        check_triangle("eigvalsh", uplo)
        return eigh(a, uplo)[0]

    def reference(A, UPLO="L"):
        return np.linalg.eigvalsh(A, UPLO)

    def samples(t):
        yield case(hermitian_samples(t))


# ------------------------------------------------------------------ general eigenvalues
@declare
class eig(Factorisation):
    """(eigenvalues, eigenvectors) of square matrices, complex, in no order."""

    name = "linalg_eig"
    functions = ("linalg.eig",)
    outputs = 2
    fields = ("eigenvalues", "eigenvectors")

    def signature(A: Tensor): ...

    def meta(op, a):
        check_square("eig", a)
        kind = a.dtype.to_complex()
        return Spec.of(a.shape[:-1], kind, a.device), Spec.of(a.shape, kind, a.device)

    def run(ins, outs, args):
        if ins[0].size:
            if not np.isfinite(ins[0]).all():
                raise RuntimeError(
                    "linalg.eig: input tensor should not contain infs or NaNs, got some. Check the input."
                )
            outs[0][...], outs[1][...] = np.linalg.eig(ins[0])

    def vjp(g, out, a):
        ops = REGISTRY
        values, vectors = out
        left = adjoint(vectors)
        inner = matrix_product(left, g[1])
        scale = ops["to_dtype"](ops["real"](diagonal_of(inner)), inner.spec.dtype)
        norm = matrix_product(left, ops["mul"](vectors, ops["unsqueeze"](scale, -2)))
        inner = ops["sub"](inner, norm)
        gap = ops["conj"](ops["sub"](ops["unsqueeze"](values, -2), ops["unsqueeze"](values, -1)))
        inner = ops["add"](off_diagonal(inner, gap), on_diagonal(g[0]))
        found = solve_columns(left, matrix_product(inner, left))[0]
        return (found if a.spec.dtype.is_complex else ops["real"](found),)

    def reference(A):
        return tuple(x.astype(np.complex128) for x in np.linalg.eig(A))

    def samples(t):
        yield case(hermitian_samples(t))


@declare
class eigvals(Composite):
    """Eigenvalues of square matrices, complex, in no order."""

    functions = ("linalg.eigvals",)
    methods = ()

    def signature(A: Tensor): ...

    def body(a):
        return eig(a)[0]

    def reference(A):
        return np.linalg.eigvals(A).astype(np.complex128)

    def samples(t):
        yield case(hermitian_samples(t))


# ------------------------------------------------------------------ singular values
@declare
class svd_factors(Factorisation):
    """(U, S, V^H) with A = U S V^H, singular values descending."""

    outputs = 3

    def signature(A: Tensor, full_matrices=True): ...

    def meta(op, a, full):
        check_matrices("svd", a)
        m, n = a.shape[-2:]
        k = min(m, n)
        return matrix_of(a, m, m if full else k), real_of(a, k), matrix_of(a, n if full else k, n)

    def run(ins, outs, args):
        if not ins[0].size:
            for x in (outs[0], outs[2]):
                if x.size:
                    x[...] = np.eye(*x.shape[-2:])
            return
        refuse_not_finite("svd", ins[0])
        outs[0][...], outs[1][...], outs[2][...] = np.linalg.svd(ins[0], args[1])
        if args[1]:
            for a, vh in each(ins[0], outs[2]):
                complete_basis(a, vh)

    def vjp(g, out, a, full):
        return (svd_gradient(g, out, a),)

    def reference(A, full_matrices=True):
        return tuple(np.linalg.svd(A, full_matrices))

    def samples(t):
        yield case(t(3, 4), False)
        yield case(t(2, 3, 3))  # square: columns that only complete a basis have no gradient


def complete_basis(a: Any, vh: Any) -> None:
    """Null-space vectors of small wide real matrices as direct bidiagonalisation gives them (as PyTorch's LAPACK does).

    Reference LAPACK makes a wide matrix square first, which gives another basis of the same space.
    """
    rows, columns = a.shape
    if np.iscomplexobj(a) or rows == columns or columns < rows * 11 // 6 or columns > MOST_COMPLETED:
        return
    work, basis = np.array(a, np.float64), np.eye(columns)
    for i in range(rows):
        v, scale = householder(work[i, i:])
        work[:, i:] -= scale * np.outer(work[:, i:] @ v, v)
        basis[:, i:] -= scale * np.outer(basis[:, i:] @ v, v)
        if rows - i - 1 > 1:
            v, scale = householder(work[i + 1 :, i])
            work[i + 1 :] -= scale * np.outer(v, v @ work[i + 1 :])
    vh[rows:] = basis.T[rows:]


MOST_COMPLETED = 128


def householder(x: Any) -> tuple:
    """(v, scale) with (1 - scale v v^T) x along the first axis."""
    v = np.array(x)
    v[0] += np.copysign(np.linalg.norm(x), x[0])
    square = v @ v
    return v, 2 / square if square else 0.0


def svd_gradient(g, out, a):
    """Source: Townsend, Differentiating the singular value decomposition (2016), with the complex case's phase term."""
    ops = REGISTRY
    m, n = a.spec.shape[-2:]
    k = min(m, n)
    u, s, vh = ops["narrow"](out[0], -1, 0, k), out[1], ops["narrow"](out[2], -2, 0, k)
    gu, gvh = ops["narrow"](g[0], -1, 0, k), ops["narrow"](g[2], -2, 0, k)
    v, gv = adjoint(vh), adjoint(gvh)
    column, row = ops["unsqueeze"](s, -1), ops["unsqueeze"](s, -2)
    gap = ops["mul"](ops["sub"](row, column), ops["add"](row, column))
    uu, vv = matrix_product(adjoint(u), gu), matrix_product(vh, gv)
    left = ops["mul"](off_diagonal(ops["sub"](uu, adjoint(uu)), gap), row)
    right = ops["mul"](off_diagonal(ops["sub"](vv, adjoint(vv)), gap), column)
    inner = ops["add"](ops["add"](left, right), on_diagonal(in_dtype(g[1], left)))
    if a.spec.dtype.is_complex:
        turn = quotient(ops["imag"](diagonal_of(uu)), s)
        zero = ops["mul"](turn, 0.0)
        inner = ops["add"](inner, on_diagonal(ops["complex"](zero, turn)))
    found = multiply(u, inner, vh)
    if m > k:
        outside = ops["sub"](gu, matrix_product(u, uu))
        found = ops["add"](found, matrix_product(quotient(outside, row), vh))
    if n > k:
        outside = ops["sub"](gv, matrix_product(v, vv))
        found = ops["add"](found, matrix_product(u, adjoint(quotient(outside, row))))
    return found


@declare
class linalg_svd(Composite):
    """(U, S, Vh) with A = U diag(S) Vh; square U and Vh if `full_matrices`. `driver` is for GPUs."""

    functions = ("linalg.svd",)
    methods = ()
    outputs = 3
    fields = ("U", "S", "Vh")

    def signature(A: Tensor, full_matrices=True, *, driver=None): ...

    def body(a, full_matrices, driver):
        if driver is not None:
            raise RuntimeError(
                f"linalg.svd: keyword argument `driver=` is only supported on CUDA inputs, got {driver!r}. Leave it out."
            )
        return svd_factors(a, full_matrices)

    def reference(A, full_matrices=True, *, driver=None):
        return tuple(np.linalg.svd(A, full_matrices))

    def samples(t):
        yield case(t(3, 4), False)


@declare
class svd(Composite):
    """(U, S, V) with A = U diag(S) V^H; reduced if `some`; zeros for U and V without `compute_uv`."""

    outputs = 3
    fields = ("U", "S", "V")

    def signature(input: Tensor, some=True, compute_uv=True): ...

    def body(a, some, compute_uv):
        ops = REGISTRY
        u, s, vh = svd_factors(a, not some if compute_uv else False)
        if compute_uv:
            return u, s, adjoint(vh)
        m, n = a.spec.shape[-2:]
        lead = tuple(a.spec.shape[:-2])
        return (
            ops["full"]((*lead, m, m), 0, dtype=a.spec.dtype, device=a.spec.device),
            s,
            ops["full"]((*lead, n, n), 0, dtype=a.spec.dtype, device=a.spec.device),
        )

    def reference(A, some=True, compute_uv=True):
        u, s, vh = np.linalg.svd(A, not some)
        return u, s, np.conj(np.swapaxes(vh, -1, -2))

    def samples(t):
        yield case(t(3, 4))


@declare
class svdvals(Composite):
    """Singular values, descending."""

    functions = ("linalg.svdvals",)
    methods = ()

    def signature(A: Tensor, *, driver=None): ...

    def body(a, driver):
        if driver is not None:
            raise RuntimeError(
                f"linalg.svdvals: keyword argument `driver=` is only supported on CUDA inputs, got {driver!r}. Leave it out."
            )
        return svd_factors(a, False)[1]

    def reference(A, *, driver=None):
        return np.linalg.svd(A, compute_uv=False)

    def samples(t):
        yield case(t(3, 4))


# ------------------------------------------------------------------ pseudo-inverse, rank, condition
def cutoff(size, shape, atol, rtol, dtype):
    """The value up to which singular values count as zero: max(atol, rtol * largest)."""
    ops = REGISTRY
    eps = 2.0**-52 if dtype.to_real() is float64 else 2.0**-23
    largest = ops["amax"](size, -1, True)
    if rtol is None:
        given = atol is not None and (hasattr(atol, "spec") or atol > 0)
        rtol = 0.0 if given and not hasattr(atol, "spec") else max(shape[-2:]) * eps
        if hasattr(atol, "spec"):
            rtol = ops["where"](ops["gt"](atol, 0), 0.0, rtol)
    limit = ops["mul"](largest, as_column(rtol))
    if atol is None:
        return limit
    return ops["maximum"](limit, as_column(atol)) if hasattr(atol, "spec") else ops["clamp_min"](limit, atol)


def as_column(x):
    """A tensor of tolerances with a dim for the values they are compared with."""
    return REGISTRY["unsqueeze"](x, -1) if hasattr(x, "spec") else x


@declare
class pinv_of(Composite):
    """The pseudo-inverse, with its own gradient rule, which does not divide by gaps between singular values."""

    functions = ()
    methods = ()

    def signature(
        A: Tensor,
        atol: OptionalTensor = None,
        rtol: OptionalTensor = None,
        atol_number=None,
        rtol_number=None,
        hermitian=False,
    ): ...

    def check(a, hermitian):
        check_matrices("pinv", a)
        if hermitian:
            check_square("pinv", a)

    def meta(op, a, *rest):
        return matrix_of(a, a.shape[-1], a.shape[-2])

    def body(a, atol, rtol, atol_number, rtol_number, hermitian):
        ops = REGISTRY
        if a.spec.numel == 0:
            return ops["full"](
                (*a.spec.shape[:-2], a.spec.shape[-1], a.spec.shape[-2]), 0, dtype=a.spec.dtype, device=a.spec.device
            )
        atol = atol_number if atol is None else atol
        rtol = rtol_number if rtol is None else rtol
        if hermitian:
            values, vectors = eigh(a)
            size, left, right = ops["abs"](values), vectors, adjoint(vectors)
        else:
            u, size, vh = svd_factors(a, False)
            values, left, right = size, adjoint(vh), adjoint(u)
        zero = ops["le"](size, cutoff(size, a.spec.shape, atol, rtol, a.spec.dtype))
        inverse = ops["where"](zero, 0.0, ops["reciprocal"](ops["where"](zero, 1.0, values)))
        return matrix_product(ops["mul"](left, in_dtype(ops["unsqueeze"](inverse, -2), left)), right)

    def vjp(g, out, a, *rest):
        ops = REGISTRY
        p, ph, gh = out, adjoint(out), adjoint(g)
        m, n = a.spec.shape[-2:]
        if m <= n:
            inner = matrix_product(gh, p)
            wide = matrix_product(inner, ph)
            found = ops["sub"](wide, adjoint(matrix_product(p, inner)))
            found = ops["sub"](found, multiply(a, p, wide))
            found = ops["add"](found, multiply(ph, p, ops["sub"](gh, matrix_product(inner, a))))
        else:
            inner = matrix_product(p, gh)
            wide = matrix_product(ph, inner)
            found = ops["sub"](wide, adjoint(matrix_product(inner, p)))
            found = ops["sub"](found, multiply(wide, p, a))
            found = ops["add"](found, multiply(ops["sub"](gh, matrix_product(a, inner)), p, ph))
        return found, None, None

    def reference(A, atol=None, rtol=None, atol_number=None, rtol_number=None, hermitian=False):
        return np.linalg.pinv(A)

    def samples(t):
        yield case(t(3, 4))
        yield case(t(2, 4, 3))


@declare
class rank_of(Composite):
    """How many singular values are above the tolerance."""

    functions = ()
    methods = ()

    def signature(
        A: Tensor,
        atol: OptionalTensor = None,
        rtol: OptionalTensor = None,
        atol_number=None,
        rtol_number=None,
        hermitian=False,
    ): ...

    def body(a, atol, rtol, atol_number, rtol_number, hermitian):
        ops = REGISTRY
        check_matrices("matrix_rank", a.spec)
        if a.spec.shape[-1] * a.spec.shape[-2] == 0:
            return ops["full"](tuple(a.spec.shape[:-2]), 0, dtype=int64, device=a.spec.device)
        size = ops["abs"](eigvalsh(a)) if hermitian else svd_factors(a, False)[1]
        limit = cutoff(
            size,
            a.spec.shape,
            atol_number if atol is None else atol,
            rtol_number if rtol is None else rtol,
            a.spec.dtype,
        )
        return ops["sum"](ops["gt"](size, limit), -1, False)

    def reference(A, atol=None, rtol=None, atol_number=None, rtol_number=None, hermitian=False):
        return np.linalg.matrix_rank(A)

    def samples(t):
        yield case(t(3, 4))


@declare
class cond(Composite):
    """The condition number: norm of the matrix times norm of its inverse, by singular values for p None, 2 and -2."""

    functions = ("linalg.cond",)
    methods = ()

    def signature(A: Tensor, p=None): ...

    def body(a, p):
        ops = REGISTRY
        check_matrices("cond", a.spec)
        if a.spec.shape[-1] * a.spec.shape[-2] == 0:
            return ops["full"](tuple(a.spec.shape[:-2]), 0, dtype=a.spec.dtype.to_real(), device=a.spec.device)
        if p in (None, 2, -2):
            values = svd_factors(a, False)[1]
            largest, smallest = (ops["select"](values, -1, 0), ops["select"](values, -1, values.spec.shape[-1] - 1))
            return ops["true_divide"](smallest, largest) if p == -2 else ops["true_divide"](largest, smallest)
        if p not in ("fro", "nuc", 1, -1, math.inf, -math.inf):
            raise RuntimeError(
                f"linalg.cond: got an invalid norm type: {p}: it must be one of None, 'fro', 'nuc', inf, -inf, 1, -1, 2, -2."
            )
        check_square("cond", a.spec)
        norm = ops["matrix_norm"]
        return ops["mul"](norm(a, p), norm(linalg_inv(a), p))

    def reference(A, p=None):
        return np.linalg.cond(A, p)

    def samples(t):
        yield case(hermitian_samples(t))
        yield case(hermitian_samples(t), "fro")
        yield case(t(3, 4), -2)


# ------------------------------------------------------------------ exponential
@declare
class matrix_exp(Factorisation):
    """The exponential of square matrices (scaling and squaring with Padé approximants)."""

    functions = ("linalg.matrix_exp", "matrix_exp")
    methods = ("matrix_exp",)

    def signature(A: Tensor): ...

    def meta(op, a):
        check_square("matrix_exp", a)
        return matrix_of(a, *a.shape[-2:])

    def run(ins, outs, args):
        if ins[0].size:
            wide = ins[0].astype(np.complex128 if np.iscomplexobj(ins[0]) else np.float64)  # squaring loses digits
            outs[0][...] = scipy_linalg.expm(wide)

    def vjp(g, out, a):
        """Source: Mathias (1996): the derivative is a block of the exponential of [[A^H, g], [0, A^H]]."""
        ops, n = REGISTRY, a.spec.shape[-1]
        turned = adjoint(a)
        zero = ops["mul"](g, 0.0)
        top, bottom = ops["cat"]((turned, g), -1), ops["cat"]((zero, turned), -1)
        wide = matrix_exp(ops["cat"]((top, bottom), -2))
        return (ops["narrow"](ops["narrow"](wide, -2, 0, n), -1, n, n),)

    def reference(A):
        return scipy_linalg.expm(A)

    def samples(t):
        yield case(t(3, 3))
        yield case(t(2, 2, 2))
        yield case(t(2, 3), raises=(RuntimeError, "square"))
