"""Modules made without initial values."""

from __future__ import annotations

from typing import Any

from flambeau.nn.init import skipped

__all__ = ["skip_init"]


def skip_init(module_cls: type, *args: Any, **kwargs: Any) -> Any:
    """A module whose parameters have memory and no values yet."""
    with skipped():
        return module_cls(*args, **kwargs)
