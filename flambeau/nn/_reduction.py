"""The older arguments `size_average` and `reduce` as a `reduction`."""

from __future__ import annotations

import warnings


def legacy_get_string(size_average: bool | None, reduce: bool | None, emit_warning: bool = True) -> str:
    """ "mean", "sum" or "none" from the two older arguments."""
    size_average = True if size_average is None else size_average
    reduce = True if reduce is None else reduce
    found = "none" if not reduce else "mean" if size_average else "sum"
    if emit_warning:
        warnings.warn(
            f"size_average and reduce args will be deprecated, please use reduction='{found}' instead.", stacklevel=3
        )
    return found


def reduction_of(reduction: str, size_average: bool | None, reduce: bool | None) -> str:
    """The reduction that the arguments of a loss ask for."""
    return reduction if size_average is None and reduce is None else legacy_get_string(size_average, reduce)
