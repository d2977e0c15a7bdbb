"""NumPy's words for PyTorch's parameters, in forms written by hand: `max(x, axis=0, keepdims=True)`.

Functions made from declarations take them by themselves. May not know: what the functions do. Entry: `with_numpy_names`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_WORDS = {"axis": "dim", "keepdims": "keepdim"}


def with_numpy_names(function: Callable) -> Callable:
    """The function, which also takes `axis` for `dim` and `keepdims` for `keepdim`."""

    @functools.wraps(function)
    def form(*args: Any, **keywords: Any) -> Any:
        if keywords:
            for theirs, ours in _WORDS.items():
                if theirs in keywords:
                    if ours in keywords:
                        raise TypeError(f"{function.__name__}: give '{ours}' or '{theirs}', not both.")
                    keywords[ours] = keywords.pop(theirs)
        return function(*args, **keywords)

    return form
