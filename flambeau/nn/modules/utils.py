"""Numbers repeated into tuples, under the names programs import them by."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any


def _ntuple(n: int, name: str = "parse") -> Any:
    def parse(x: Any) -> tuple:
        return tuple(x) if isinstance(x, Iterable) and not isinstance(x, str) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single = _ntuple(1, "_single")
_pair = _ntuple(2, "_pair")
_triple = _ntuple(3, "_triple")
_quadruple = _ntuple(4, "_quadruple")


def _reverse_repeat_tuple(t: tuple, n: int) -> tuple:
    """Each entry n times, last one first."""
    return tuple(x for x in reversed(t) for _ in range(n))
