"""Functions of linear algebra whose call form is not an op's: tolerances as numbers or tensors, several results, old names.

Dispatch only; every rule is in the ops. `__all__` is exported by `flambeau`, the others by `flambeau.linalg`.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.results import result_type
from flambeau.ir.op import REGISTRY

__all__ = ["lu", "pinverse"]

lstsq_result = result_type("linalg_lstsq", ("solution", "residuals", "rank", "singular_values"))
lu_result = result_type("lu", ("LU", "pivots", "infos"))


def _tolerances(name: str, A: Tensor, atol: Any, rtol: Any) -> tuple:
    """(atol tensor, rtol tensor, atol number, rtol number)."""
    for what, x in (("atol", atol), ("rtol", rtol)):
        if isinstance(x, Tensor) and x.is_complex():
            raise RuntimeError(f"linalg.{name}: {what} tensor of complex type is not supported, got {x.dtype}.")
    tensors = [x if isinstance(x, Tensor) else None for x in (atol, rtol)]
    real = A.dtype.to_real()
    tensors = [x.to(real) if x is not None and x.dtype is not real else x for x in tensors]
    return (*tensors, *(None if isinstance(x, Tensor) else x for x in (atol, rtol)))


def pinv(
    A: Tensor,
    *args: Any,
    atol: Any = None,
    rtol: Any = None,
    hermitian: bool = False,
    rcond: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """The pseudo-inverse: singular values up to max(atol, rtol * largest) count as zero. `rcond` is rtol's former name.

    Raises: RuntimeError for a tolerance of complex dtype.
    """
    if args:
        rcond = args[0]
        hermitian = args[1] if len(args) > 1 else hermitian
    if rcond is not None:
        atol, rtol = 0.0, rcond
    REGISTRY["pinv_of"].rules.check(A.spec, hermitian)
    found = REGISTRY["pinv_of"](A, *_tolerances("pinv", A, atol, rtol), hermitian)
    return found if out is None else out.copy_(found)


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """`linalg.pinv` with a relative tolerance."""
    return pinv(input, rcond=rcond)


def matrix_rank(
    A: Tensor,
    *args: Any,
    atol: Any = None,
    rtol: Any = None,
    hermitian: bool = False,
    tol: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """How many singular values are larger than max(atol, rtol * largest); `tol` is an absolute tolerance."""
    if args:
        tol = args[0]
        hermitian = args[1] if len(args) > 1 else hermitian
    if tol is not None:
        atol, rtol = tol, 0.0
    found = REGISTRY["rank_of"](A, *_tolerances("matrix_rank", A, atol, rtol), hermitian)
    return found if out is None else out.copy_(found)


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> lstsq_result:
    """(solution, residuals, rank, singular_values) of min |A x - B|; parts that the driver does not give are empty.

    Drivers: gelsy (default), gels, gelsd, gelss. Raises: RuntimeError where shapes do not fit, LinAlgError for rank deficiency with gels.
    """
    return lstsq_result(*REGISTRY["lstsq_solution"](A, B, rcond, "gelsy" if driver is None else driver))


def lu(A: Tensor, pivot: bool = True, get_infos: bool = False, out: Any = None) -> Any:
    """(LU, pivots) packed as LAPACK does, with infos if asked."""
    found = REGISTRY["lu_factor_ex"](A, pivot=pivot, check_errors=not get_infos)
    return lu_result(*found) if get_infos else tuple(found[:2])


def install() -> None:
    """Hang the methods on Tensor."""
    Tensor.lu, Tensor.pinverse = lu, pinverse
