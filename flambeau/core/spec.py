"""What a tensor is apart from its memory: shape, strides, dtype, device, as one interned object.

Equal specs are the same object, so plans are found by identity: `plans[a.spec, b.spec]`. A tensor that must
not take the eager fast path (traced, batched, a subclass with overrides) carries a twin from
`spec.slow()`, which reads the same and is in no plan table.

May not know: memory, kernels. Entry: `Spec.of(shape, dtype, device)`, `Spec.get(shape, strides, dtype, device)`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable

from flambeau.core.device import CPU, device
from flambeau.core.dtype import dtype, dtype_of_number
from flambeau.core.layout import contiguous_strides, is_contiguous
from flambeau.core.symbolic import is_symbolic


class Size(tuple):
    """A shape: a tuple of ints with `numel()`."""

    __slots__ = ()

    def numel(self) -> int:
        return math.prod(self)

    def __repr__(self) -> str:
        return f"flambeau.Size([{', '.join(map(str, self))}])"

    def __add__(self, other):
        return Size(tuple.__add__(self, tuple(other)))

    def __radd__(self, other):
        return Size(tuple(other) + tuple(self))

    def __getitem__(self, key):
        found = tuple.__getitem__(self, key)
        return Size(found) if isinstance(key, slice) else found

    def __mul__(self, times):
        return Size(tuple.__mul__(self, times))

    def __reduce__(self):
        return (Size, (tuple(self),))


class Spec:
    """Interned (shape, strides in elements, dtype, device)."""

    __slots__ = (
        "shape",
        "strides",
        "dtype",
        "device",
        "numel",
        "ndim",
        "nbytes",
        "contiguous",
        "free",
        "size_class",
        "is_slow",
        "_twin",
        "__weakref__",
    )
    _table: weakref.WeakValueDictionary[tuple, Spec] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, shape: Iterable[int], dtype_: dtype, device_: device = CPU) -> Spec:
        """The contiguous spec."""
        shape = Size(shape)
        return cls.get(shape, contiguous_strides(shape), dtype_, device_)

    @classmethod
    def get(cls, shape: Iterable[int], strides: Iterable[int], dtype_: dtype, device_: device = CPU) -> Spec:
        shape, strides = Size(shape), tuple(strides)
        if is_symbolic(shape) or is_symbolic(strides):
            return cls._make(shape, strides, dtype_, device_)  # not interned: equal numbers may differ elsewhere
        key = (shape, strides, dtype_, device_)
        found = cls._table.get(key)
        if found is None:
            found = cls._table[key] = cls._make(shape, strides, dtype_, device_)
        return found

    @classmethod
    def _make(cls, shape: Size, strides: tuple[int, ...], dtype_: dtype, device_: device) -> Spec:
        spec = object.__new__(cls)
        spec.shape, spec.strides, spec.dtype, spec.device = shape, strides, dtype_, device_
        spec.ndim, spec.numel = len(shape), math.prod(shape)
        spec.contiguous = is_contiguous(shape, strides)
        if spec.contiguous:
            extent = spec.numel
        else:
            extent = 1 + sum([(n - 1) * abs(s) for n, s in zip(shape, strides)]) if spec.numel else 0
        spec.nbytes = extent * dtype_.itemsize  # from the lowest element to the highest
        spec.free = spec.size_class = None  # filled by the engine when memory is first asked for
        spec.is_slow, spec._twin = False, None
        return spec

    def slow(self) -> Spec:
        """The twin that is in no plan table."""
        if self.is_slow:
            return self
        if self._twin is None:
            self._twin = Spec._make(self.shape, self.strides, self.dtype, self.device)
            self._twin.is_slow = True
            self._twin._twin = self
        return self._twin

    def plain(self) -> Spec:
        """The interned spec behind a slow twin."""
        return self._twin if self.is_slow else self

    def with_dtype(self, dtype_: dtype) -> Spec:
        return Spec.get(self.shape, self.strides, dtype_, self.device)

    def __repr__(self) -> str:
        layout = "" if self.contiguous else f", strides {list(self.strides)}"
        where = "" if self.device is CPU else f" on {self.device}"
        return f"{self.dtype.name}{list(self.shape)}{layout}{where}"


class NumberSpec:
    """The spec of a Python number given at run time (`x * 0.5`): its Python type is all that plans depend on."""

    __slots__ = ("type",)
    shape = Size()
    strides = ()
    ndim = 0
    numel = 1
    contiguous = True
    is_slow = True  # a stand-in for a number is in no plan table

    def __init__(self, type_: type):
        self.type = type_

    @property
    def dtype(self) -> dtype:
        """What the number counts as beside tensors (floats: the default dtype of the moment)."""
        return dtype_of_number(self.type(0))

    def plain(self) -> NumberSpec:
        return self

    def __repr__(self) -> str:
        return self.type.__name__
