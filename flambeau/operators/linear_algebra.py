"""Dense linear algebra through LAPACK: systems, inverses, Cholesky factors. Gradients are formulas over other ops.

Each External op runs LAPACK (by NumPy's batched forms, or SciPy's) on the host; singular or indefinite input raises LinAlgError, or
is reported in `info` by the `_ex` forms. May not know: the engine. Entry: the ops; other families import the checks from here.

    solve(a, b)          # a^-1 b
    cholesky_factor(a)   # lower L with a = L L^H
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.base.errors import LinAlgError
from flambeau.base.lazy import np, scipy_linalg
from flambeau.core.dtype import int32
from flambeau.core.layout import broadcast_shapes
from flambeau.core.spec import Spec
from flambeau.ir.kinds import LEADING, Composite, External
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.matmul import adjoint, matrix_product
from flambeau.operators.rules import case, sum_to


# ------------------------------------------------------------------ checks
def check_matrices(name: str, *specs: Spec) -> None:
    """Raises: RuntimeError unless all are batches of matrices of one float32, float64 or complex dtype."""
    for s in specs:
        if s.ndim < 2:
            raise RuntimeError(
                f"linalg.{name}: The input tensor A must have at least 2 dimensions (they make up matrices), got {list(s.shape)}."
            )
        check_dtype(name, s)
        if s.dtype is not specs[0].dtype:
            raise RuntimeError(
                f"linalg.{name}: Expected all operands to have the same dtype, got {' and '.join(x.dtype.name for x in specs)}. Convert one."
            )


def check_dtype(name: str, s: Spec) -> None:
    if not s.dtype.is_inexact:
        raise RuntimeError(
            f"linalg.{name}: Expected a floating point or complex tensor as input. Got {s.dtype.name}. Convert it with .float()."
        )
    if s.dtype.itemsize < 4:
        raise RuntimeError(
            f"linalg.{name}: Low precision dtypes not supported. Got {s.dtype.name}. Convert it with .float()."
        )


def check_square(name: str, s: Spec) -> None:
    check_matrices(name, s)
    if s.shape[-1] != s.shape[-2]:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, but they are {s.shape[-2]} by {s.shape[-1]} matrices, got {list(s.shape)}."
        )


def each(*arrays: Any):
    """The matrices of arrays that share their batch dims, in turn."""
    for place in np.ndindex(*arrays[0].shape[:-2]):
        yield tuple(x[place] for x in arrays)


def raise_singular(name: str, info: Any, words: str) -> None:
    """Raises: LinAlgError naming the first matrix whose info is not 0."""
    if np.any(info):
        place = [int(i) for i in np.argwhere(np.asarray(info))[0]]
        where = f"(Batch element {', '.join(map(str, place))}): " if place else ""
        code = int(np.asarray(info)[tuple(place)])
        raise LinAlgError(
            f"linalg.{name}: {where}{words.format(code)}, got info {code}. Check the input for singular or NaN values."
        )


def multiply(*matrices):
    """Product of several matrices, left to right."""
    found = matrices[0]
    for m in matrices[1:]:
        found = matrix_product(found, m)
    return found


def diagonal_of(x):
    return REGISTRY["diagonal"](x, 0, -2, -1)


def on_diagonal(line):
    """A diagonal matrix for every row of the last dim."""
    ops, n = REGISTRY, line.spec.shape[-1]
    device = line.spec.device
    same = ops["eq"](ops["iota"]((n, 1), device=device), ops["iota"]((1, n), device=device))
    return ops["where"](same, ops["unsqueeze"](line, -1), 0)


def identity_like(x, n: int):
    """The n by n identity in the dtype of x."""
    return REGISTRY["identity_matrix"](n, n, dtype=x.spec.dtype, device=x.spec.device)


def lower(x, diagonal: int = 0):
    return REGISTRY["tril"](x, diagonal)


def upper(x, diagonal: int = 0):
    return REGISTRY["triu"](x, diagonal)


def hermitian_samples(t: Callable, n: int = 3):
    """A positive definite sample."""
    x = t(n, n)
    return (
        x @ x.T + n * np.eye(n)
        if isinstance(x, np.ndarray)
        else matrix_product(x, adjoint(x)) + identity_like(x, n) * float(n)
    )


def hermitian_part(a, *rest):
    """Only a triangle of the matrix is read: derivatives are meant for Hermitian changes of it."""
    return REGISTRY["mul"](REGISTRY["add"](a, adjoint(a)), 0.5), *rest


def lower_factor(*tensors):
    """The last operand as the triangular factor it stands for."""
    return *tensors[:-1], lower(tensors[-1])


def regular_samples(t: Callable, *shape: int):
    """A sample matrix that is far from singular."""
    x = t(*shape)
    eye = np.eye(shape[-2], shape[-1])
    return (
        x + 3 * eye
        if isinstance(x, np.ndarray)
        else x + REGISTRY["identity_matrix"](shape[-2], shape[-1], dtype=x.spec.dtype) * 3.0
    )


class Factorisation(External):
    functions = ()
    methods = ()
    batch = LEADING


# ------------------------------------------------------------------ inverse
@declare
class inv_ex(Factorisation):
    """(inverse, info): info is the number of the first zero pivot of a singular matrix, whose inverse is then undefined."""

    functions = ("linalg.inv_ex",)
    outputs = 2
    fields = ("inverse", "info")

    def signature(A: Tensor, *, check_errors=False): ...

    def meta(op, a, check_errors):
        check_square("inv", a)
        return Spec.of(a.shape, a.dtype, a.device), Spec.of(a.shape[:-2], int32, a.device)

    def run(ins, outs, args):
        info = outs[1]
        for (a, out), place in zip(each(ins[0], outs[0]), np.ndindex(*info.shape)):
            lu, pivots, code = factored(a)
            info[place] = code
            if code == 0 and a.size:
                out[...], _ = lapack("getri", a)(lu, pivots)
            else:
                out[...] = lu
        if args[1]:
            raise_singular(
                "inv",
                info,
                "The diagonal element {} is zero, the inversion could not be completed because the input matrix is singular",
            )

    def vjp(g, out, a, check_errors):
        x = adjoint(out[0])
        return (REGISTRY["neg"](multiply(x, g[0], x)),)

    def reference(A, *, check_errors=False):
        return np.linalg.inv(A), np.zeros(A.shape[:-2], np.int32)

    def samples(t):
        yield case(regular_samples(t, 3, 3))
        yield case(t(0, 0))
        yield case(t(2, 3), raises=(RuntimeError, "square"))


def factored(a: Any) -> tuple:
    """(packed LU, pivots from 0, info) of one matrix."""
    if not a.size:
        return np.array(a), np.arange(min(a.shape)), 0
    return lapack("getrf", a)(a)


def lapack(name: str, *arrays: Any):
    """The LAPACK routine of `name` for the arrays' dtype."""
    return scipy_linalg.get_lapack_funcs((name,), arrays)[0]


@declare
class linalg_inv(Composite):
    """The inverse of square matrices. Raises: LinAlgError for a singular one."""

    functions = ("linalg.inv", "inverse")
    methods = ("inverse",)

    def signature(A: Tensor): ...

    def meta(op, a):
        check_square("inv", a)
        return Spec.of(a.shape, a.dtype, a.device)

    def body(a):
        return inv_ex(a, check_errors=True)[0]

    def reference(A):
        return np.linalg.inv(A)

    def samples(t):
        yield case(regular_samples(t, 3, 3))
        yield case(t(3, 3) * 0, raises=(LinAlgError, "singular"))


# ------------------------------------------------------------------ systems
def is_vector(a: Spec, b: Spec) -> bool:
    """Whether b holds one right-hand side per matrix, without a column dim."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and tuple(a.shape[:-1]) == tuple(b.shape))


def check_system(name: str, a: Spec, b: Spec, left: bool = True) -> tuple:
    """(batch shape, whether b is a vector). Raises: RuntimeError where shapes do not fit."""
    check_square(name, a)
    if b.dtype is not a.dtype:
        raise RuntimeError(
            f"linalg.{name}: Expected A and B to have the same dtype, but found A of type {a.dtype.name} and B of type {b.dtype.name} instead."
        )
    if b.ndim == 0:
        raise RuntimeError(f"linalg.{name}: B must have at least 1 dimension, got a 0-d tensor.")
    vector = name != "solve_triangular" and is_vector(a, b)
    if vector:
        if not left:
            raise RuntimeError(
                f"linalg.{name}: Vector broadcasting of the left hand side is not supported for left=False, got B {list(b.shape)}."
            )
        rows, batch = b.shape[-1], b.shape[:-1]
    else:
        if b.ndim < 2:
            raise RuntimeError(f"linalg.{name}: B must have at least 2 dimensions, got {list(b.shape)}.")
        rows, batch = b.shape[-2 if left else -1], b.shape[:-2]
    if rows != a.shape[-1]:
        raise RuntimeError(
            f"linalg.{name}: Incompatible shapes of A and B for the equation {'AX = B' if left else 'XA = B'}, got A {list(a.shape)} and B "
            f"{list(b.shape)}."
        )
    return broadcast_shapes(f"linalg.{name}", a.shape[:-2], batch), vector


@declare
class solve_columns(Factorisation):
    """(x, info) of a x = b for matrices b [*, n, k] whose batch dims equal those of a [*, n, n]."""

    outputs = 2

    def signature(a: Tensor, b: Tensor, check_errors=True): ...

    def meta(op, a, b, check_errors):
        batch = broadcast_shapes("linalg.solve", a.shape[:-2], b.shape[:-2])
        return Spec.of((*batch, *b.shape[-2:]), a.dtype, a.device), Spec.of(a.shape[:-2], int32, a.device)

    def run(ins, outs, args):
        a, b = ins
        info, batch = outs[1], outs[0].shape[:-2]
        factors = {}
        for place in np.ndindex(*a.shape[:-2]):
            lu, pivots, code = factored(a[place])
            info[place] = code
            factors[place] = lu, pivots
        if args[2]:
            raise_singular("solve", info, "The solver failed because the input matrix is singular")
        wide_b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
        index = np.broadcast_to(np.arange(len(factors)).reshape(a.shape[:-2]), batch)
        line = list(factors.values())
        for place in np.ndindex(*batch):
            lu, pivots = line[index[place]]
            if outs[0][place].size:
                outs[0][place], _ = lapack("getrs", lu, b)(lu, pivots, wide_b[place])

    def vjp(g, out, a, b, check_errors):
        gb = solve_columns(adjoint(a), g[0])[0]
        ga = REGISTRY["neg"](matrix_product(gb, adjoint(out[0])))
        return sum_to(ga, a), sum_to(gb, b)

    def reference(a, b, check_errors=True):
        return np.linalg.solve(a, b), np.zeros(a.shape[:-2], np.int32)

    def samples(t):
        yield case(regular_samples(t, 3, 3), t(3, 2))


def solved(name: str, a, b, left: bool, check_errors: bool) -> tuple:
    """(x, info) of a x = b, or of x a = b."""
    ops = REGISTRY
    _, vector = check_system(name, a.spec, b.spec, left)
    if vector:
        found, info = solve_columns(a, ops["unsqueeze"](b, -1), check_errors)
        return ops["squeeze"](found, -1), info
    if left:
        return solve_columns(a, b, check_errors)
    found, info = solve_columns(ops["transpose"](a, -1, -2), ops["transpose"](b, -1, -2), check_errors)
    return ops["transpose"](found, -1, -2), info


@declare
class solve_ex(Composite):
    """(result, info) of a system: info is not 0 where the matrix is singular."""

    functions = ("linalg.solve_ex",)
    methods = ()
    outputs = 2
    fields = ("result", "info")

    def signature(A: Tensor, B: Tensor, *, left=True, check_errors=False): ...

    def body(a, b, left, check_errors):
        return solved("solve", a, b, left, check_errors)

    def reference(A, B, *, left=True, check_errors=False):
        return solve.rules.reference(A, B, left=left), np.zeros(A.shape[:-2], np.int32)

    def samples(t):
        yield case(regular_samples(t, 3, 3), t(3, 2))


@declare
class solve(Composite):
    """x with A x = B (or x A = B unless `left`), for matrices [*, n, n] and [*, n, k] or vectors [*, n].

    Raises: LinAlgError for a singular matrix, RuntimeError where shapes do not fit.
    """

    name = "linalg_solve"
    functions = ("linalg.solve",)
    methods = ()

    def signature(A: Tensor, B: Tensor, *, left=True): ...

    def body(a, b, left):
        return solved("solve", a, b, left, True)[0]

    def reference(A, B, *, left=True):
        if not left:
            return np.swapaxes(np.linalg.solve(np.swapaxes(A, -1, -2), np.swapaxes(B, -1, -2)), -1, -2)
        return np.linalg.solve(A, B[..., None])[..., 0] if B.ndim == 1 else np.linalg.solve(A, B)

    def samples(t):
        yield case(regular_samples(t, 3, 3), t(3, 2))
        yield case(regular_samples(t, 2, 3, 3), t(3, 2))
        yield case(regular_samples(t, 3, 3), t(3))
        yield case(regular_samples(t, 3, 3), t(2, 3), left=False)
        yield case(t(3, 3) * 0, t(3, 2), raises=(LinAlgError, "singular"))
        yield case(t(3, 3), t(4, 2), raises=(RuntimeError, "Incompatible shapes"))


# ------------------------------------------------------------------ triangular systems
@declare
class triangular_columns(Factorisation):
    """x of a x = b for triangular a; the other triangle is not read."""

    def signature(a: Tensor, b: Tensor, upper=True, unitriangular=False): ...

    def meta(op, a, b, upper, unitriangular):
        batch = broadcast_shapes("linalg.solve_triangular", a.shape[:-2], b.shape[:-2])
        return Spec.of((*batch, *b.shape[-2:]), a.dtype, a.device)

    def run(ins, outs, args):
        a, b = ins
        out, batch = outs[0], outs[0].shape[:-2]
        wide_a, wide_b = np.broadcast_to(a, (*batch, *a.shape[-2:])), np.broadcast_to(b, (*batch, *b.shape[-2:]))
        if not out.size:
            return
        routine = lapack("trtrs", a, b)
        for place in np.ndindex(*batch):
            m = wide_a[place]
            with np.errstate(all="ignore"):
                found, code = routine(m, wide_b[place], lower=not args[2], unitdiag=args[3])
            if code > 0:  # a zero on the diagonal: divide by it, as BLAS does
                found = substituted(m, wide_b[place], args[2])
            out[place] = found

    def vjp(g, out, a, b, upper_, unitriangular):
        gb = triangular_columns(adjoint(a), g, not upper_, unitriangular)
        ga = REGISTRY["neg"](matrix_product(gb, adjoint(out)))
        ga = upper(ga, int(unitriangular)) if upper_ else lower(ga, -int(unitriangular))
        return sum_to(ga, a), sum_to(gb, b)

    def reference(a, b, upper=True, unitriangular=False):
        a = np.triu(a, int(unitriangular)) if upper else np.tril(a, -int(unitriangular))
        return np.linalg.solve(a + np.eye(a.shape[-1]) * unitriangular, b)

    def samples(t):
        yield case(regular_samples(t, 3, 3), t(3, 2))
        yield case(regular_samples(t, 3, 3), t(3, 2), False, True)


def substituted(a: Any, b: Any, upper: bool) -> Any:
    """Substitution without a test for zeros on the diagonal."""
    x = np.array(b)
    order = range(len(a) - 1, -1, -1) if upper else range(len(a))
    with np.errstate(all="ignore"):
        for i in order:
            rest = slice(i + 1, None) if upper else slice(0, i)
            x[i] = (x[i] - a[i, rest] @ x[rest]) / a[i, i]
    return x


@declare
class solve_triangular(Composite):
    """x with A x = B (or x A = B unless `left`) for triangular A; the other triangle is not read."""

    functions = ("linalg.solve_triangular",)
    methods = ()

    def signature(A: Tensor, B: Tensor, *, upper, left=True, unitriangular=False): ...

    def body(a, b, upper, left, unitriangular):
        ops = REGISTRY
        check_system("solve_triangular", a.spec, b.spec, left)
        if left:
            return triangular_columns(a, b, upper, unitriangular)
        found = triangular_columns(ops["transpose"](a, -1, -2), ops["transpose"](b, -1, -2), not upper, unitriangular)
        return ops["transpose"](found, -1, -2)

    def reference(A, B, *, upper, left=True, unitriangular=False):
        if left:
            return triangular_columns.rules.reference(A, B, upper, unitriangular)
        return np.swapaxes(
            triangular_columns.rules.reference(
                np.swapaxes(A, -1, -2), np.swapaxes(B, -1, -2), not upper, unitriangular
            ),
            -1,
            -2,
        )

    def samples(t):
        yield case(regular_samples(t, 3, 3), t(3, 2), upper=True)
        yield case(regular_samples(t, 3, 3), t(2, 3), upper=False, left=False)


@declare
class triangular_solve(Composite):
    """(solution, the coefficients): x with A x = b for triangular A, or A^T x = b with `transpose`."""

    functions = ("triangular_solve",)
    outputs = 2
    fields = ("solution", "cloned_coefficient")

    def signature(b: Tensor, A: Tensor, upper=True, transpose=False, unitriangular=False): ...

    def body(b, a, upper, transpose, unitriangular):
        ops = REGISTRY
        check_system("triangular_solve", a.spec, b.spec)
        turned = ops["transpose"](a, -1, -2) if transpose else a
        return triangular_columns(turned, b, upper != transpose, unitriangular), ops["clone"](
            ops["expand"](a, coefficient_shape(a.spec, b.spec))
        )

    def reference(b, A, upper=True, transpose=False, unitriangular=False):
        turned = np.swapaxes(A, -1, -2) if transpose else A
        return triangular_columns.rules.reference(turned, b, upper != transpose, unitriangular), A

    def samples(t):
        yield case(t(3, 2), regular_samples(t, 3, 3))
        yield case(t(3, 2), regular_samples(t, 3, 3), True, True)


def coefficient_shape(a: Spec, b: Spec) -> tuple[int, ...]:
    return (*broadcast_shapes("triangular_solve", a.shape[:-2], b.shape[:-2]), *a.shape[-2:])


# ------------------------------------------------------------------ Cholesky
@declare
class cholesky_ex(Factorisation):
    """(L, info) with A = L L^H (or U^H U); info is the order of the first minor that is not positive definite."""

    functions = ("linalg.cholesky_ex",)
    outputs = 2
    fields = ("L", "info")

    prepared = hermitian_part

    def signature(A: Tensor, *, upper=False, check_errors=False): ...

    def meta(op, a, upper, check_errors):
        check_square("cholesky", a)
        return Spec.of(a.shape, a.dtype, a.device), Spec.of(a.shape[:-2], int32, a.device)

    def run(ins, outs, args):
        info = outs[1]
        if not ins[0].size:
            info[...] = 0
            return
        routine = lapack("potrf", ins[0])
        for (a, out), place in zip(each(ins[0], outs[0]), np.ndindex(*info.shape)):
            found, code = routine(a, lower=not args[1], clean=True)
            if code == 0 and not np.isfinite(np.diagonal(found)).all():
                code = 1 + int(np.argmin(np.isfinite(np.diagonal(found))))
            out[...], info[place] = found, code
        if args[2]:
            raise_singular(
                "cholesky",
                info,
                "The factorization could not be completed because the input is not positive-definite (the leading minor of "
                "order {} is not positive-definite)",
            )

    def vjp(g, out, a, upper_, check_errors):
        l, gl = (adjoint(out[0]), adjoint(g[0])) if upper_ else (out[0], g[0])
        inner = matrix_product(adjoint(l), gl)
        inner = REGISTRY["mul"](REGISTRY["add"](lower(inner), adjoint(lower(inner, -1))), 0.5)
        left = triangular_columns(adjoint(l), inner, True)  # L^-H inner
        return (adjoint(triangular_columns(adjoint(l), adjoint(left), True)),)  # ... L^-1

    def reference(A, *, upper=False, check_errors=False):
        found = np.linalg.cholesky(A)
        return np.conj(np.swapaxes(found, -1, -2)) if upper else found, np.zeros(A.shape[:-2], np.int32)

    def samples(t):
        yield case(hermitian_samples(t))
        yield case(hermitian_samples(t), upper=True)


@declare
class cholesky_factor(Composite):
    """The lower triangular L with A = L L^H, or the upper U with A = U^H U.

    Raises: LinAlgError unless A is positive definite.
    """

    functions = ("linalg.cholesky",)
    methods = ()

    prepared = hermitian_part

    def signature(A: Tensor, *, upper=False): ...

    def meta(op, a, upper):
        check_square("cholesky", a)
        return Spec.of(a.shape, a.dtype, a.device)

    def body(a, upper):
        return cholesky_ex(a, upper=upper, check_errors=True)[0]

    def reference(A, *, upper=False):
        return cholesky_ex.rules.reference(A, upper=upper)[0]

    def samples(t):
        yield case(hermitian_samples(t))
        yield case(t(3, 3) * 0, raises=(LinAlgError, "positive-definite"))


@declare
class cholesky(Composite):
    """`linalg.cholesky` with `upper` by position."""

    prepared = hermitian_part

    def signature(input: Tensor, upper=False): ...

    def body(a, upper):
        return cholesky_ex(a, upper=upper, check_errors=True)[0]

    def reference(A, upper=False):
        return cholesky_ex.rules.reference(A, upper=upper)[0]

    def samples(t):
        yield case(hermitian_samples(t), True)


@declare
class cholesky_solve(Composite):
    """x with A x = B, given the Cholesky factor L of A (or U if `upper`)."""

    prepared = lower_factor

    def signature(B: Tensor, L: Tensor, upper=False): ...

    def body(b, l, upper):
        check_matrices("cholesky_solve", b.spec, l.spec)
        check_system("cholesky_solve", l.spec, b.spec)
        if upper:
            return triangular_columns(l, triangular_columns(adjoint(l), b, False), True)
        return triangular_columns(adjoint(l), triangular_columns(l, b, False), True)

    def vjp(g, out, b, l, upper):
        gb = cholesky_solve(g, l, upper)
        both = matrix_product(gb, adjoint(out))
        both = REGISTRY["add"](both, adjoint(both))
        gl = REGISTRY["neg"](matrix_product(l, both) if upper else matrix_product(both, l))
        return sum_to(gb, b), sum_to(gl, l)

    def reference(B, L, upper=False):
        l = np.conj(np.swapaxes(np.triu(L), -1, -2)) if upper else np.tril(L)
        return np.linalg.solve(l @ np.conj(np.swapaxes(l, -1, -2)), B)

    def samples(t):
        yield case(t(3, 2), regular_samples(t, 3, 3))


@declare
class cholesky_inverse(Composite):
    """The inverse of A, given its Cholesky factor L (or U if `upper`)."""

    prepared = lower_factor

    def signature(L: Tensor, upper=False): ...

    def body(l, upper):
        check_square("cholesky_inverse", l.spec)
        eye = REGISTRY["expand"](identity_like(l, l.spec.shape[-1]), tuple(l.spec.shape))
        root = triangular_columns(l, eye, upper)
        return matrix_product(root, adjoint(root)) if upper else matrix_product(adjoint(root), root)

    def vjp(g, out, l, upper):
        both = multiply(out, REGISTRY["add"](g, adjoint(g)), out)
        return (REGISTRY["neg"](matrix_product(l, both) if upper else matrix_product(both, l)),)

    def reference(L, upper=False):
        l = np.conj(np.swapaxes(np.triu(L), -1, -2)) if upper else np.tril(L)
        return np.linalg.inv(l @ np.conj(np.swapaxes(l, -1, -2)))

    def samples(t):
        yield case(regular_samples(t, 3, 3))
