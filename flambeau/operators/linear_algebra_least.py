"""Least squares, Householder reflectors and indefinite factors.

May not know: the engine. Entry: the ops; `lstsq_*` give what `linalg.lstsq` returns.
"""

from __future__ import annotations

from typing import Any

from flambeau.base.errors import LinAlgError
from flambeau.base.lazy import np
from flambeau.core.dtype import int32, int64
from flambeau.core.layout import broadcast_shapes
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, Refused, declare
from flambeau.operators.linear_algebra import (
    Factorisation,
    check_matrices,
    check_square,
    check_system,
    each,
    hermitian_samples,
    lapack,
    raise_singular,
)
from flambeau.operators.linear_algebra_spectral import matrix_of, pinv_of, real_of
from flambeau.operators.matmul import adjoint, matrix_product
from flambeau.operators.rules import case, sum_to

# ------------------------------------------------------------------ least squares
DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@declare
class least_squares(Factorisation):
    """(solution, rank, singular values) of min |A x - B|; gels assumes full rank, gelsy and gels give no singular values."""

    outputs = 3

    def signature(A: Tensor, B: Tensor, rcond=None, driver="gelsy"): ...

    def meta(op, a, b, rcond, driver):
        batch = broadcast_shapes("linalg.lstsq", a.shape[:-2], b.shape[:-2])
        m, n = a.shape[-2:]
        return (
            Spec.of((*batch, n, b.shape[-1]), a.dtype, a.device),
            Spec.of(a.shape[:-2], int64, a.device),
            real_of(a, min(m, n)),
        )

    def run(ins, outs, args):
        a, b = ins
        x, ranks, values = outs
        rcond = max(a.shape[-2:]) * np.finfo(a.dtype).eps if args[2] is None else args[2]
        batch = x.shape[:-2]
        wide_a, wide_b = np.broadcast_to(a, (*batch, *a.shape[-2:])), np.broadcast_to(b, (*batch, *b.shape[-2:]))
        wide_rank, wide_values = np.zeros(batch, np.int64), np.zeros((*batch, values.shape[-1]), values.dtype)
        for place in np.ndindex(*batch):
            if a.shape[-1] * a.shape[-2] == 0:
                x[place] = 0
                continue
            found, wide_rank[place], line = least(wide_a[place], wide_b[place], rcond, args[3])
            x[place] = found[: a.shape[-1]]
            if line is not None:
                wide_values[place] = line
        first = tuple(0 if n != m else slice(None) for n, m in zip(batch[len(batch) - a.ndim + 2 :], a.shape[:-2]))
        lead = (0,) * (len(batch) - a.ndim + 2)
        if wide_rank.size:
            ranks[...] = wide_rank[lead + first].reshape(ranks.shape)
            values[...] = wide_values[lead + first].reshape(values.shape)

    def vjp(g, out, a, b, rcond, driver):
        p = pinv_of(a)
        gx = g[0]
        gb = matrix_product(adjoint(p), gx)
        ga = pinv_of.rules.vjp(matrix_product(gx, adjoint(b)), p, a)[0]
        return sum_to(ga, a), sum_to(gb, b)

    def reference(A, B, rcond=None, driver="gelsy"):
        return np.linalg.pinv(A) @ B, np.linalg.matrix_rank(A), np.zeros((*A.shape[:-2], min(A.shape[-2:])))

    def samples(t):
        yield case(t(4, 3), t(4, 2))
        yield case(t(3, 4), t(3, 2), None, "gels")


def least(a: Any, b: Any, rcond: float, driver: str) -> tuple:
    """(solution, rank, singular values or None) of one system by a LAPACK driver."""
    m, n = a.shape
    rows = max(m, n)
    padded = np.zeros((rows, b.shape[1]), np.result_type(a, b))
    padded[:m] = b
    routine = lapack(driver, a, padded)
    if driver == "gels":
        _, x, info = routine(a, padded)
        if info > 0:
            raise LinAlgError(
                f"linalg.lstsq: The least squares solution could not be computed because the input matrix does not have full rank, got info {info}. "
                f"Use driver='gelsd'."
            )
        return x, min(m, n), None
    if driver == "gelsy":
        pivots = np.zeros((n, 1), np.int32)
        size = lapack("gelsy_lwork", a, padded)(m, n, padded.shape[1], rcond)[0]
        _, x, _, rank, info = routine(a, padded, pivots, rcond, int(np.real(size)), False, False)
        return x, rank, None
    sizes = lapack(f"{driver}_lwork", a, padded)(m, n, padded.shape[1], rcond)
    if driver == "gelss":
        _, x, line, rank, _, info = routine(a, padded, rcond, int(np.real(sizes[0])))
    elif np.iscomplexobj(a):
        x, line, rank, info = routine(a, padded, int(np.real(sizes[0])), int(sizes[1]), int(sizes[2]), rcond)
    else:
        x, line, rank, info = routine(a, padded, int(np.real(sizes[0])), int(sizes[1]), rcond)
    if info > 0:
        raise LinAlgError(
            f"linalg.lstsq: the singular values did not converge, got info {info}. Check the input for NaN values."
        )
    return x, rank, line


@declare
class lstsq_solution(Composite):
    """(solution, residuals, rank, singular values) of least squares; residuals are sums of squares per column."""

    functions = ()
    methods = ()
    outputs = 4

    def signature(A: Tensor, B: Tensor, rcond=None, driver="gelsy"): ...

    def body(a, b, rcond, driver):
        ops = REGISTRY
        vector = check_least(a.spec, b.spec, driver)
        wide = ops["unsqueeze"](b, -1) if vector else b
        x, rank, values = least_squares(a, wide, rcond, driver)
        m, n = a.spec.shape[-2:]
        nothing = ops["full"]((0,), 0, dtype=a.spec.dtype.to_real(), device=a.spec.device)
        if m > n and driver != "gelsy":
            size = ops["abs"](ops["sub"](matrix_product(a, x), wide))
            rest = ops["sum"](ops["mul"](size, size), -2, False)
        else:
            rest = nothing
        none = ops["full"]((0,), 0, dtype=int64, device=a.spec.device)
        return (
            ops["squeeze"](x, -1) if vector else x,
            ops["squeeze"](rest, -1) if vector and rest is not nothing else rest,
            none if driver == "gels" else rank,
            values if driver in ("gelsd", "gelss") else nothing,
        )

    def reference(A, B, rcond=None, driver="gelsy"):
        x = np.linalg.pinv(A) @ B
        return x, np.sum((A @ x - B) ** 2, -2), np.zeros(0), np.zeros(0)

    def samples(t):
        yield case(t(4, 3), t(4, 2), None, "gels")

    def vjp(g, out, a, b, rcond, driver):
        ops = REGISTRY
        vector = check_least(a.spec, b.spec, driver)
        first, wide = (ops["unsqueeze"](g[0], -1), ops["unsqueeze"](b, -1)) if vector else (g[0], b)
        ga, gb = least_squares.rules.vjp((first,), None, a, wide, rcond, driver)
        if out[1].spec.numel:  # of the residuals: what the solution contributes vanishes
            x = ops["unsqueeze"](out[0], -1) if vector else out[0]
            line = ops["unsqueeze"](g[1], -1) if vector else g[1]
            rest = ops["mul"](ops["sub"](matrix_product(a, x), wide), ops["mul"](ops["unsqueeze"](line, -2), 2.0))
            ga = ops["add"](ga, sum_to(matrix_product(rest, adjoint(x)), a))
            gb = ops["sub"](gb, sum_to(rest, wide))
        return ga, ops["squeeze"](gb, -1) if vector else gb


def check_least(a: Spec, b: Spec, driver: str) -> bool:
    """Whether B holds vectors. Raises: RuntimeError where shapes or the driver do not fit."""
    check_matrices("lstsq", a)
    if driver not in DRIVERS:
        raise RuntimeError(
            f"linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got {driver!r}."
        )
    if b.ndim < 1:
        raise RuntimeError(f"linalg.lstsq: other must have at least 1 dimension, got {list(b.shape)}.")
    if b.dtype is not a.dtype:
        raise RuntimeError(
            f"linalg.lstsq: Expected input and other to have the same dtype, but got {a.dtype.name} and {b.dtype.name}."
        )
    vector = a.ndim - 1 == b.ndim and tuple(a.shape[:-1]) == tuple(b.shape)
    if not vector and (b.ndim < 2 or a.shape[-2] != b.shape[-2]):
        raise RuntimeError(
            f"linalg.lstsq: input.size(-2) should match other.size(-2), got {list(a.shape)} and {list(b.shape)}."
        )
    return vector


# ------------------------------------------------------------------ Householder reflectors
def check_reflectors(name: str, a: Spec, tau: Spec) -> None:
    check_matrices(name, a)
    if a.shape[-2] < a.shape[-1]:
        raise RuntimeError(
            f"linalg.{name}: input.shape[-2] must be greater than or equal to input.shape[-1], got {list(a.shape)}."
        )
    if tau.ndim != a.ndim - 1 or tuple(tau.shape[:-1]) != tuple(a.shape[:-2]) or tau.shape[-1] > a.shape[-1]:
        raise RuntimeError(
            f"linalg.{name}: input.shape[-1] must be greater than or equal to tau.shape[-1], and the batch dims equal, got {list(a.shape)} and "
            f"tau {list(tau.shape)}."
        )
    if tau.dtype is not a.dtype:
        raise RuntimeError(
            f"linalg.{name}: tau dtype {tau.dtype.name} does not match input dtype {a.dtype.name}. Convert one."
        )


def reflector(a, i: int):
    """Vector i of packed reflectors: zeros, a one, then the column below the diagonal. [*, m, 1]."""
    ops = REGISTRY
    m = a.spec.shape[-2]
    place = ops["iota"]((m, 1), device=a.spec.device)
    column = ops["narrow"](a, -1, i, 1)
    return ops["where"](ops["gt"](place, i), column, ops["to_dtype"](ops["eq"](place, i), a.spec.dtype))


def reflected(a, tau, x, i: int, conjugate: bool = False):
    """(1 - tau v v^H) x."""
    ops = REGISTRY
    v = reflector(a, i)
    scale = ops["unsqueeze"](ops["narrow"](tau, -1, i, 1), -1)
    if conjugate and scale.spec.dtype.is_complex:
        scale = ops["conj"](scale)
    return ops["sub"](x, ops["mul"](scale, matrix_product(v, matrix_product(adjoint(v), x))))


@declare
class householder_product(Factorisation):
    """The first columns of the product of Householder reflectors that `geqrf` gives."""

    core_ndims = (2, 1)
    functions = ("linalg.householder_product", "orgqr")
    methods = ("orgqr",)

    def signature(input: Tensor, tau: Tensor): ...

    def meta(op, a, tau):
        check_reflectors("householder_product", a, tau)
        return matrix_of(a, *a.shape[-2:])

    def run(ins, outs, args):
        a, tau = ins
        if not outs[0].size:
            return
        routine = lapack("ungqr" if np.iscomplexobj(a) else "orgqr", a)
        for place in np.ndindex(*a.shape[:-2]):
            if tau.shape[-1] == 0:
                outs[0][place] = np.eye(*a.shape[-2:])
                continue
            outs[0][place] = routine(a[place], tau[place])[0]

    def vjp(g, out, a, tau):
        ops = REGISTRY
        m, n = a.spec.shape[-2:]
        eye = ops["identity_matrix"](m, n, dtype=a.spec.dtype, device=a.spec.device)
        x = ops["expand"](eye, tuple(a.spec.shape))
        before = []
        for i in range(tau.spec.shape[-1] - 1, -1, -1):
            before.append((i, x))
            x = reflected(a, tau, x, i)
        columns, scales = {}, {}
        for i, inside in reversed(before):
            g, columns[i], scales[i] = reflection_gradients(g, a, tau, inside, i)
        if not n:
            return ops["mul"](a, 0.0), ops["mul"](tau, 0.0)
        rest = [ops["mul"](ops["narrow"](a, -1, 0, 1), 0.0)] * (n - len(columns))
        ga = ops["cat"](tuple([columns[i] for i in range(len(columns))] + rest), -1)
        gtau = ops["cat"](tuple(scales[i] for i in range(len(scales))), -1) if scales else ops["mul"](tau, 0.0)
        return ga, gtau

    def reference(a, tau):
        m, n = a.shape
        q = np.eye(m, n)
        for i in range(len(tau) - 1, -1, -1):
            v = np.concatenate([np.zeros(i), [1.0], a[i + 1 :, i]])
            q = q - tau[i] * np.outer(v, v @ q)
        return q

    def samples(t):
        yield case(t(4, 3), t(3))
        yield case(t(4, 3), t(2))


def reflection_gradients(g, a, tau, x, i: int) -> tuple:
    """Gradients of (1 - tau v v^H) x by x, by column i of the packed vectors, and by tau[i]."""
    ops = REGISTRY
    v = reflector(a, i)
    scale = ops["unsqueeze"](ops["narrow"](tau, -1, i, 1), -1)
    conjugated = ops["conj"](scale) if scale.spec.dtype.is_complex else scale
    row, back = matrix_product(adjoint(v), x), matrix_product(adjoint(v), g)  # v^H x, v^H g: [*, 1, n]
    gx = ops["sub"](g, ops["mul"](conjugated, matrix_product(v, back)))
    inner = matrix_product(row, adjoint(back))  # (v^H x)(v^H g)^H
    gs = ops["neg"](ops["conj"](inner) if inner.spec.dtype.is_complex else inner)
    left = ops["mul"](conjugated, matrix_product(g, adjoint(row)))
    right = ops["mul"](scale, matrix_product(x, adjoint(back)))
    gv = ops["neg"](ops["add"](left, right))
    place = ops["iota"]((a.spec.shape[-2], 1), device=a.spec.device)
    return gx, ops["where"](ops["gt"](place, i), gv, 0), ops["squeeze"](gs, -1)


@declare
class ormqr(Composite):
    """other multiplied by the square product of Householder reflectors (transposed or not), from the left or the right."""

    def signature(input: Tensor, tau: Tensor, other: Tensor, left=True, transpose=False): ...

    def body(a, tau, other, left, transpose):
        ops = REGISTRY
        check_matrices("ormqr", a.spec, other.spec)
        rows = other.spec.shape[-2 if left else -1]
        if rows != a.spec.shape[-2]:
            raise RuntimeError(
                f"ormqr: other.shape[{-2 if left else -1}] must be equal to input.shape[-2], got {list(other.spec.shape)} and {list(a.spec.shape)}."
            )
        if tau.spec.shape[-1] > a.spec.shape[-1]:
            raise RuntimeError(
                f"ormqr: other.shape must be greater than or equal to tau.shape[-1], got tau {list(tau.spec.shape)}."
            )
        x = other if left else adjoint(other)
        forwards = transpose if left else not transpose  # Q^H applies the first reflector first
        count = tau.spec.shape[-1]
        for i in range(count) if forwards else range(count - 1, -1, -1):
            x = reflected(a, tau, x, i, conjugate=forwards)
        if x is other:
            return ops["clone"](x)
        return x if left else adjoint(x)

    def reference(a, tau, other, left=True, transpose=False):
        m = a.shape[-2]
        q = householder_product.rules.reference(np.pad(a, ((0, 0), (0, m - a.shape[-1]))), tau)
        q = q.T if transpose else q
        return q @ other if left else other @ q

    def samples(t):
        for left in (True, False):
            for transpose in (True, False):
                yield case(t(4, 3), t(3), t(4, 4), left, transpose)


@declare
class geqrf(Factorisation):
    """(a, tau): Householder QR packed as LAPACK does."""

    functions = ("geqrf",)
    methods = ("geqrf",)
    outputs = 2
    fields = ("a", "tau")

    def signature(input: Tensor): ...

    def meta(op, a):
        check_matrices("geqrf", a)
        return matrix_of(a, *a.shape[-2:]), Spec.of((*a.shape[:-2], min(a.shape[-2:])), a.dtype, a.device)

    def run(ins, outs, args):
        if not ins[0].size:
            return
        routine = lapack("geqrf", ins[0])
        for place in np.ndindex(*ins[0].shape[:-2]):
            outs[0][place], outs[1][place], *_ = routine(ins[0][place])

    vjp = Refused("PyTorch has no derivative of the packed form either. Use linalg.qr")

    def reference(a):
        found = lapack("geqrf", a)(a)
        return found[0], found[1]

    def samples(t):
        yield case(t(4, 3))


# ------------------------------------------------------------------ indefinite factors
@declare
class ldl_factor_ex(Factorisation):
    """(LD, pivots, info): Bunch-Kaufman factors of symmetric (or Hermitian) matrices, packed as LAPACK does; the lower triangle is read."""

    functions = ("linalg.ldl_factor_ex",)
    outputs = 3
    fields = ("LD", "pivots", "info")

    def signature(A: Tensor, *, hermitian=False, check_errors=False): ...

    def meta(op, a, hermitian, check_errors):
        check_square("ldl_factor", a)
        return (
            matrix_of(a, *a.shape[-2:]),
            Spec.of(a.shape[:-1], int32, a.device),
            Spec.of(a.shape[:-2], int32, a.device),
        )

    def run(ins, outs, args):
        a = ins[0]
        if not a.size:
            outs[2][...] = 0
            return
        routine = lapack("hetrf" if args[1] and np.iscomplexobj(a) else "sytrf", a)
        for (m, out), place in zip(each(a, outs[0]), np.ndindex(*outs[2].shape)):
            out[...], outs[1][place], outs[2][place] = routine(m, lower=1)
            out[...] = np.tril(out)
        if args[2]:
            raise_singular("ldl_factor", outs[2], "The diagonal element {} of D is exactly zero")

    vjp = Refused("PyTorch has no derivative of the packed form either. Use linalg.solve")

    def reference(A, *, hermitian=False, check_errors=False):
        found = [lapack("sytrf", m)(m, lower=1) for m in A.reshape(-1, *A.shape[-2:])]
        return (
            np.tril(np.stack([f[0] for f in found])).reshape(A.shape),
            np.stack([f[1] for f in found]).reshape(A.shape[:-1]),
            np.zeros(A.shape[:-2], np.int32),
        )

    def samples(t):
        yield case(hermitian_samples(t))


@declare
class ldl_factor(Composite):
    """(LD, pivots) of symmetric or Hermitian matrices."""

    functions = ("linalg.ldl_factor",)
    methods = ()
    outputs = 2
    fields = ("LD", "pivots")

    def signature(A: Tensor, *, hermitian=False): ...

    def body(a, hermitian):
        return ldl_factor_ex(a, hermitian=hermitian)[:2]

    def reference(A, *, hermitian=False):
        return ldl_factor_ex.rules.reference(A)[:2]

    def samples(t):
        yield case(hermitian_samples(t))


@declare
class ldl_solve(Factorisation):
    """x with A x = B from the factors of `ldl_factor`."""

    functions = ("linalg.ldl_solve",)
    core_ndims = (2, 1, 2)

    def signature(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian=False): ...

    def meta(op, factors, pivots, b, hermitian):
        check_system("ldl_solve", factors, b)
        batch = broadcast_shapes("linalg.ldl_solve", factors.shape[:-2], b.shape[:-2])
        return Spec.of((*batch, *b.shape[-2:]), b.dtype, b.device)

    def run(ins, outs, args):
        factors, pivots, b = ins
        batch = outs[0].shape[:-2]
        if not outs[0].size:
            return
        routine = lapack("hetrs" if args[3] and np.iscomplexobj(b) else "sytrs", factors, b)
        n = factors.shape[-1]
        wide, lines = np.broadcast_to(factors, (*batch, n, n)), np.broadcast_to(pivots, (*batch, n))
        rows = np.broadcast_to(b, outs[0].shape)
        for place in np.ndindex(*batch):
            outs[0][place], _ = routine(wide[place], lines[place], rows[place], lower=1)

    vjp = Refused("PyTorch has no derivative of it either. Use linalg.solve")

    def reference(LD, pivots, B, *, hermitian=False):
        return lapack("sytrs", LD, B)(LD, pivots, B, lower=1)[0]

    def samples(t):
        factors, pivots, _ = ldl_factor_ex.rules.reference(np.eye(3) * 2 + 0.5)
        yield case(factors, pivots, t(3, 2))
