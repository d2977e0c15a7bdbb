"""Named tuples that ops with several results give: they unpack, print and pickle as PyTorch's `return_types` do.

    Sorted = result_type("sort", ("values", "indices"))
    Sorted(1, 2).values                     # 1

May not know: tensors or ops. Entry: `result_type`.
"""

from __future__ import annotations

import functools
from collections import namedtuple

__all__ = ["result_type"]


@functools.cache
def result_type(name: str, fields: tuple[str, ...]) -> type:
    """The class of results called `name`; one class for the same name and fields."""
    plain = namedtuple(name, fields)  # its fields, its constructor

    def __repr__(self: tuple) -> str:
        inner = ",\n".join(f"{field}={value!r}" for field, value in zip(fields, self))
        return f"flambeau.return_types.{name}(\n{inner})"

    def __reduce__(self: tuple) -> tuple:
        return _rebuilt, (name, fields, tuple(self))

    methods = {"__slots__": (), "__repr__": __repr__, "__reduce__": __reduce__, "__module__": "flambeau.return_types"}
    return type(name, (plain,), methods)


def _rebuilt(name: str, fields: tuple[str, ...], values: tuple) -> tuple:
    return result_type(name, fields)(*values)
