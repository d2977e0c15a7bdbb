"""Groups: the roots that share a kernel.

    group = Group((4096, 1000), reduced=(1,))     # rows that are reduced, and what is computed from them

May not know: which roots may join (`fusion`), how they become a kernel (`emission`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flambeau.ir.graph import Value
from flambeau.schedule.program import SPLIT_ELEMENTS

MOST_OPERANDS = (
    60  # buffers and numbers of a kernel: it has 63 slots, one for its block; partial results and errors take two more
)
MOST_NODES = 256  # pointwise nodes of a kernel: registers run out long before, and LLVM takes longer than in proportion


class Group:
    """Roots that share a kernel. `domain` sizes, `reduced` dims (empty: a map)."""

    def __init__(self, domain: Sequence[int], reduced: Sequence[int] | None):
        self.domain = tuple(domain)
        self.reduced = tuple(reduced) if reduced else ()
        self.roots: list[Value] = []
        self.operands: set[Value] = set()  # what it reads and what it gives
        self.nodes = 0  # about how many are evaluated in it
        self.split = (
            bool(self.reduced) and len(self.reduced) == len(self.domain) and math.prod(self.domain) > SPLIT_ELEMENTS
        )
        self.over_units = False  # holds a reduction of its row values

    @property
    def row_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape of a row value, with and without the reduced dims."""
        keep = tuple(1 if d in self.reduced else n for d, n in enumerate(self.domain))
        drop = tuple(n for d, n in enumerate(self.domain) if d not in self.reduced)
        return keep, drop
