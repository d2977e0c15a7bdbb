"""Devices by name: `cpu`, and `sim`, the simulated asynchronous device. `meta` holds shapes only.

May not know: how a device runs anything. Entry: `device("cpu")`, `as_device(x)`.
"""

from __future__ import annotations


class device:
    """`device("cpu")`, `device("sim:1")`, `device("sim", 1)`. Interned: equal devices are one object."""

    __slots__ = ("type", "index", "__weakref__")
    _known: dict[tuple[str, int | None], device] = {}
    TYPES = ("cpu", "sim", "meta")

    def __new__(cls, type: str | device, index: int | None = None) -> device:
        if isinstance(type, device):
            return type
        if not isinstance(type, str):
            raise TypeError(
                f"device: type must be a name (received an invalid combination of arguments), got {type!r}. Write 'cpu'."
            )
        name, _, number = str(type).partition(":")
        if number:
            if not number.isdecimal():
                raise RuntimeError(f"device: index must be a number, got {type!r}. Write 'cpu' or 'sim:0'.")
            index = int(number)
        if name not in cls.TYPES:
            raise RuntimeError(
                f"device: type must be one of {', '.join(cls.TYPES)}, got {type!r}. Flambeau runs on the CPU: write 'cpu'."
            )
        if name == "cpu":
            index = None
        elif name == "sim" and index is None:
            index = 0
        key = (name, index)
        found = cls._known.get(key)
        if found is None:
            found = object.__new__(cls)
            found.type, found.index = key
            cls._known[key] = found
        return found

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        inner = f"type='{self.type}'" + ("" if self.index is None else f", index={self.index}")
        return f"device({inner})"

    def __reduce__(self):
        return (device, (self.type, self.index))


CPU = device("cpu")
META = device("meta")


def as_device(value: str | device | None) -> device:
    """A device from a name, a device or None (the CPU)."""
    return CPU if value is None else device(value)
