"""Reductions that have several call forms under one name: `max(x)`, `max(x, dim)`, `max(x, y)`; `var(x, dim, unbiased)`; quantiles.

Dispatch only; every rule is in the ops they call. Exported by `flambeau`, and hung on Tensor by `install`.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.factories import sizes_of
from flambeau.forms.numpy_names import with_numpy_names
from flambeau.ir.op import REGISTRY, speak_as

__all__ = ["cov", "max", "median", "min", "nanmedian", "nanquantile", "quantile", "std", "std_mean", "var", "var_mean"]


def _given(**options: Any) -> dict[str, Any]:
    """The keyword arguments that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _extreme(name: str, whole: str, pair: str, input: Tensor, dim: Any, keepdim: bool, other: Any, out: Any) -> Any:
    if isinstance(dim, Tensor):
        dim, other = None, dim
    if other is not None:
        return REGISTRY[pair](input, other, **_given(out=out))
    if dim is not None:
        return REGISTRY[name](input, dim, keepdim, **_given(out=out))
    try:
        return REGISTRY[whole](input, (), **_given(out=out))
    except RuntimeError as error:
        speak_as(name.removesuffix("_dim"), error)
        raise


@with_numpy_names
def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None, out: Any = None) -> Any:
    """Largest element; (values, indices) along `dim`; or elementwise maximum with another tensor."""
    return _extreme("max_dim", "amax", "maximum", input, dim, keepdim, other, out)


@with_numpy_names
def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None, out: Any = None) -> Any:
    """Smallest element; (values, indices) along `dim`; or elementwise minimum with another tensor."""
    return _extreme("min_dim", "amin", "minimum", input, dim, keepdim, other, out)


@with_numpy_names
def median(input: Tensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """Lower of the middle elements; (values, indices) along `dim`."""
    return (
        REGISTRY["median_all"](input) if dim is None else REGISTRY["median_dim"](input, dim, keepdim, **_given(out=out))
    )


@with_numpy_names
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """Lower of the middle elements that are not NaN; (values, indices) along `dim`."""
    return (
        REGISTRY["nanmedian_all"](input)
        if dim is None
        else REGISTRY["nanmedian_dim"](input, dim, keepdim, **_given(out=out))
    )


def _moment(name: str, input: Tensor, dim: Any, unbiased: Any, keepdim: bool, correction: Any, out: Any) -> Any:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    return REGISTRY[name](input, dim, 1 if correction is None else correction, keepdim, **_given(out=out))


@with_numpy_names
def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: Any = None,
) -> Tensor:
    """Variance over `dim`: squared distances from the mean, divided by n - correction (1 unless told; `unbiased=False` is 0)."""
    return _moment("variance", input, dim, unbiased, keepdim, correction, out)


@with_numpy_names
def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: Any = None,
) -> Tensor:
    """Standard deviation over `dim`; see `var`."""
    return _moment("standard_deviation", input, dim, unbiased, keepdim, correction, out)


@with_numpy_names
def var_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """(variance, mean) over `dim`; see `var`."""
    return _moment("variance_mean", input, dim, unbiased, keepdim, correction, None)


@with_numpy_names
def std_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """(standard deviation, mean) over `dim`; see `var`."""
    return _moment("standard_deviation_mean", input, dim, unbiased, keepdim, correction, None)


def _quantile(name: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, out: Any) -> Tensor:
    if not isinstance(q, Tensor):
        if not 0 <= q <= 1:
            raise RuntimeError(f"{name}: q must be in the range [0, 1], got {q}.")
        q = REGISTRY["full"]((), float(q), dtype=input.dtype, device=input.device)
    return REGISTRY[f"{name}_at"](input, q, dim, keepdim, interpolation, **_given(out=out))


@with_numpy_names
def quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: Any = None,
) -> Tensor:
    """The values below which shares `q` of the elements along `dim` lie; NaN where there is one."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation, out)


@with_numpy_names
def nanquantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: Any = None,
) -> Tensor:
    """The values below which shares `q` of the elements along `dim` lie, NaN left out."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, out)


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Covariance matrix of variables in rows and observations in columns, weighted by counts `fweights` and by `aweights`.

    Raises: RuntimeError where shapes or dtypes do not fit, or a weight is negative (as far as values are known).
    """
    found = REGISTRY["cov"](input, correction=correction, fweights=fweights, aweights=aweights)
    for name, weights in (("fweights", fweights), ("aweights", aweights)):
        if (
            weights is not None
            and weights.ptr is not None
            and weights.numel()
            and REGISTRY["amin"](weights.detach(), ()).item() < 0
        ):
            raise RuntimeError(f"cov: {name} cannot be negative, got {REGISTRY['amin'](weights.detach(), ()).item()}.")
    return found


def sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """The sum over what broadcasting to this shape would have repeated. Raises: RuntimeError unless `size` broadcasts to the shape."""
    wanted, shape = sizes_of(size), tuple(self.shape)
    lead = len(shape) - len(wanted)
    if lead < 0 or any(w not in (1, n) for w, n in zip(wanted, shape[lead:])):
        raise RuntimeError(
            message(
                "sum_to_size",
                f"size must broadcast to the shape {list(shape)} (size is not expandable to it)",
                list(wanted),
            )
        )
    dims = tuple(d for d, n in enumerate(shape) if d < lead or wanted[d - lead] != n)
    if not dims:
        return self
    return REGISTRY["sum"](self, dims, True).reshape(wanted)


def install() -> None:
    """Hang the methods on Tensor."""
    Tensor.sum_to_size = sum_to_size
    for f in (cov, max, min, median, nanmedian, nanquantile, quantile, std, var):
        setattr(Tensor, f.__name__, f)
