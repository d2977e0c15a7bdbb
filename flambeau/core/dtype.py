"""Element types and PyTorch's rules for combining them.

May not know: tensors, kernels. Entry: the constants (`float32` …), `promote_types`, `result_type`.

    promote_types(int64, float16)                    float16
    result_type([(float32, 1, False), (float64, 0, True)])   float32: a Python number does not widen
"""

from __future__ import annotations

from collections.abc import Iterable


class dtype:
    """An element type. One object per type: compare with `is`."""

    __slots__ = ("name", "itemsize", "kind", "order", "complex_part")

    def __init__(self, name: str, itemsize: int, kind: str, order: int):
        self.name, self.itemsize, self.kind, self.order = name, itemsize, kind, order
        self.complex_part: dtype | None = None

    @property
    def is_floating_point(self) -> bool:
        return self.kind == "f"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def is_signed(self) -> bool:
        return self.kind in "ifc"

    @property
    def is_integral(self) -> bool:
        """An integer or bool type."""
        return self.kind in "biu"

    @property
    def is_inexact(self) -> bool:
        return self.kind in "fc"

    def to_real(self) -> dtype:
        """The type of a complex number's parts; others are their own."""
        return self.complex_part or self

    def to_complex(self) -> dtype:
        return self if self.kind == "c" else complex128 if self is float64 else complex64

    def __repr__(self) -> str:
        return f"flambeau.{self.name}"

    def __reduce__(self) -> str:
        return self.name


bool_ = dtype("bool", 1, "b", 0)
uint8 = dtype("uint8", 1, "u", 1)
int8 = dtype("int8", 1, "i", 2)
int16 = dtype("int16", 2, "i", 3)
int32 = dtype("int32", 4, "i", 4)
int64 = dtype("int64", 8, "i", 5)
float16 = dtype("float16", 2, "f", 6)
bfloat16 = dtype("bfloat16", 2, "f", 7)
float32 = dtype("float32", 4, "f", 8)
float64 = dtype("float64", 8, "f", 9)
complex64 = dtype("complex64", 8, "c", 10)
complex128 = dtype("complex128", 16, "c", 11)
complex64.complex_part = float32
complex128.complex_part = float64

ALL: tuple[dtype, ...] = (
    bool_,
    uint8,
    int8,
    int16,
    int32,
    int64,
    float16,
    bfloat16,
    float32,
    float64,
    complex64,
    complex128,
)
BY_NAME: dict[str, dtype] = {d.name: d for d in ALL}
ALIASES: dict[str, dtype] = {
    "half": float16,
    "float": float32,
    "double": float64,
    "short": int16,
    "int": int32,
    "long": int64,
    "cfloat": complex64,
    "cdouble": complex128,
}

_default = float32


def get_default_dtype() -> dtype:
    """The floating type that Python floats and factories take."""
    return _default


def set_default_dtype(d: dtype) -> None:
    """Raises: TypeError unless `d` is a floating type."""
    global _default
    if not isinstance(d, dtype) or not d.is_floating_point:
        raise TypeError(
            f"set_default_dtype: d must be a floating dtype, got {d!r}. Use float32 or float64, for instance."
        )
    _default = d


_OF_PYTHON = {float: float64, int: int64, bool: bool_, complex: complex128}


def as_dtype(name: str, value: object) -> dtype:
    """A dtype as users give it: Python's number types stand for the widest of their kind. Raises: TypeError for anything else."""
    if isinstance(value, dtype):
        return value
    found = _OF_PYTHON.get(value) if isinstance(value, type) else None
    if found is None:
        step = (
            f" Write flambeau.{value}."
            if isinstance(value, str) and value in BY_NAME
            else " Write flambeau.float32, for instance."
        )
        raise TypeError(f"{name}: dtype must be a dtype (argument 'dtype' must be torch.dtype), got {value!r}.{step}")
    return found


def promote_types(a: dtype, b: dtype) -> dtype:
    """The smallest type that both convert to, by PyTorch's lattice."""
    if a is b:
        return a
    if a.order > b.order:
        a, b = b, a
    if b.kind == "c":
        return complex128 if b is complex128 or a is float64 else complex64
    if a is float16 and b is bfloat16:
        return float32
    if a is uint8 and b is int8:
        return int16
    return b


def dtype_of_number(value: object) -> dtype:
    """The type a Python number stands for beside tensors."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        return int64
    if isinstance(value, float):
        return _default
    if isinstance(value, complex):
        return _default.to_complex()
    raise TypeError(f"expected a number, got {type(value).__name__}")


def _combine(higher: dtype | None, lower: dtype | None) -> dtype | None:
    """Result of a higher-priority class of operands beside a lower one: only a higher category widens."""
    if higher is None:
        return lower
    if lower is None or higher.kind == "c":
        return higher
    if higher.kind == "f":
        return higher.to_complex() if lower.kind == "c" else higher
    if higher is bool_ or lower.is_inexact:
        return promote_types(higher, lower)
    return higher


def result_type(operands: Iterable[tuple[dtype, int, bool]]) -> dtype:
    """Type of an operation on operands given as (dtype, number of dims, is a Python number).

    Tensors with dims outrank 0-dim tensors, which outrank numbers.
    """
    dims = zero = number = None
    for d, ndim, wrapped in operands:
        if wrapped:
            number = d if number is None else promote_types(number, d)
        elif ndim:
            dims = d if dims is None else promote_types(dims, d)
        else:
            zero = d if zero is None else promote_types(zero, d)
    result = _combine(dims, _combine(zero, number))
    return result if result is not None else _default


def can_cast(source: dtype, target: dtype) -> bool:
    """Whether `source` may be stored into `target` (in-place results): not to a lower category."""
    category = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    return category[source.kind] <= category[target.kind]
