"""What a program asked for with `use_deterministic_algorithms`: no op needs it, results are deterministic anyway (docs/determinism.md).

Only memory that is not set may differ from run to run: while determinism is asked for, `empty` and its like fill theirs. May not know: tensors.
Entry: `wanted`.
"""

from __future__ import annotations


class Wanted:
    """`level`: 0 nothing, 1 warnings, 2 errors. `fill_uninitialized_memory` counts where the level is not 0."""

    __slots__ = ("fill_uninitialized_memory", "level")

    def __init__(self) -> None:
        self.level = 0
        self.fill_uninitialized_memory = True


wanted = Wanted()
