"""Where a template has several ways to the same result: the question which to take, as data, and who answers it.

    way = asked(lambda: question(p, target, threads)) or analytic(p, target)       # in a template
    with advised(tuner.answer):                                                    # around scheduling
        ...

Without an adviser nobody is asked, no question is made and the template decides by itself. Advisers belong to a thread.

May not know: how an adviser finds its answer. Entry: `Question`, `asked`, `advised`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from flambeau.base.record import record
from flambeau.templates.launch import Lowered


@record(hidden=("lower",))
class Question:
    """Which of `candidates`, records of plain values, is best? The first is what the template takes unasked.

    `shape_class` is what problems that may share an answer have in common. `operands` are (dtype, elements): inputs in
    order, then the result. With `exact` every candidate must give the bits that the first one gives.
    """

    template: str
    shape_class: tuple
    candidates: tuple[Any, ...]
    operands: tuple[tuple[str, int], ...]
    exact: bool
    threads: int
    lower: Callable[[Any], Lowered]


Adviser = Callable[[Question], Any]


class _Local(threading.local):
    adviser: Adviser | None = None


_local = _Local()


def asked(make: Callable[[], Question | None]) -> Any | None:
    """The adviser's answer to the question that `make` gives; None without either."""
    adviser = _local.adviser
    if adviser is None:
        return None
    question = make()
    return None if question is None else adviser(question)


@contextlib.contextmanager
def advised(adviser: Adviser) -> Iterator[None]:
    """Have `adviser` answer what templates ask in this thread meanwhile."""
    before, _local.adviser = _local.adviser, adviser
    try:
        yield
    finally:
        _local.adviser = before


def size_class(n: int) -> int:
    """Sizes that may share an answer, by their smallest: eight classes between powers of two, small sizes alone."""
    shift = max(0, n.bit_length() - 4)
    return n if n <= 64 else n >> shift << shift


def stride_class(stride: int, nbytes: int) -> str:
    """What matters of a stride: none, a unit, lines that share sets of the first cache, any other."""
    if stride in (0, 1):
        return str(stride)
    return "clash" if stride * nbytes % 256 == 0 else "free"
