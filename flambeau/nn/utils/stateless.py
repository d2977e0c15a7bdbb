"""Modules as functions of their parameters, under the older name."""

from __future__ import annotations

from typing import Any

from flambeau.func.functional_call import functional_call as call

__all__ = ["functional_call"]


def functional_call(
    module: Any,
    parameters_and_buffers: dict,
    args: Any = None,
    kwargs: dict | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """See `func.functional_call`."""
    return call(module, parameters_and_buffers, args, kwargs, tie_weights=tie_weights, strict=strict)
