"""What element types can hold: `finfo` for floating types, `iinfo` for integers.

    finfo(float32).eps          1.1920928955078125e-07
    iinfo(uint8).max            255

May not know: tensors. Entry: the two classes.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.dtype import dtype as DType
from flambeau.core.dtype import get_default_dtype

__all__ = ["finfo", "iinfo"]

# bits of the fraction, bits of the exponent, decimal digits that always survive
_FORMATS = {"float16": (10, 5, 3), "bfloat16": (7, 8, 2), "float32": (23, 8, 6), "float64": (52, 11, 15)}


class finfo:
    """Limits of a floating type (of a complex type's parts); of the default dtype if none is given."""

    __slots__ = ("bits", "dtype", "eps", "max", "min", "resolution", "smallest_normal", "tiny")

    def __init__(self, type: DType | None = None):
        d = _checked("finfo", get_default_dtype() if type is None else type).to_real()
        if d.name not in _FORMATS:
            raise TypeError(
                f"finfo: type must be a floating point type (requires a floating point input type), got {d!r}. Use iinfo for integers."
            )
        fraction, exponent, digits = _FORMATS[d.name]
        bias = (1 << exponent - 1) - 1
        self.dtype, self.bits, self.eps = d.name, d.itemsize * 8, 2.0**-fraction
        self.max = (2.0 - self.eps) * 2.0**bias
        self.min = -self.max
        self.smallest_normal = self.tiny = 2.0 ** (1 - bias)
        self.resolution = 10.0**-digits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, finfo) and other.dtype == self.dtype

    def __hash__(self) -> int:
        return hash((finfo, self.dtype))

    def __repr__(self) -> str:
        words = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        return f"finfo({', '.join(f'{w}={getattr(self, w):g}' for w in words)}, dtype={self.dtype})"


class iinfo:
    """Limits of an integer type."""

    __slots__ = ("bits", "dtype", "max", "min")

    def __init__(self, type: DType):
        d = _checked("iinfo", type)
        if d.kind not in "iu":
            raise TypeError(
                f"iinfo: type must be an integer type (requires an integer input type), got {d!r}. Use finfo for floating types."
            )
        self.dtype, self.bits = d.name, d.itemsize * 8
        signed = d.kind == "i"
        self.max = (1 << self.bits - signed) - 1
        self.min = -(1 << self.bits - 1) if signed else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, iinfo) and other.dtype == self.dtype

    def __hash__(self) -> int:
        return hash((iinfo, self.dtype))

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"


def _checked(name: str, d: Any) -> DType:
    if not isinstance(d, DType):
        raise TypeError(f"{name}: type must be a dtype, got {type(d).__name__}. Pass tensor.dtype, for instance.")
    return d
