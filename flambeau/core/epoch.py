"""A count that changes whenever a module's attributes do, so that captured programs can check all module state by one integer.

    before = epoch.value
    module.training = False
    epoch.value != before

May not know: modules.
"""

from __future__ import annotations


class Epoch:
    """`value` grows with each attribute set or deleted, hook registered, parameter replaced."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


epoch = Epoch()
