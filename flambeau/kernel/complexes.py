"""Complex values of the kernel language: a pair of real Values with complex arithmetic.

May not know: tensors. Entry: `Complex(real, imag)`.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import Type


class Complex:
    """real + imag*i, lane by lane; a real operand leaves the other part alone (inf * 0 is NaN, and -0.0 has a meaning)."""

    __slots__ = ("real", "imag")

    def __init__(self, real: Value, imag: Value):
        self.real, self.imag = real, imag

    @property
    def type(self) -> Type:
        """The type of the parts."""
        return self.real.type

    @property
    def k(self) -> Function:
        return self.real.k

    def _other(self, other) -> Complex:
        if isinstance(other, Complex):
            return other
        k = self.real.k
        if isinstance(other, complex):
            return Complex(k.const(self.type, other.real), k.const(self.type, other.imag))
        real = other if isinstance(other, Value) else k.const(self.type, other)
        return Complex(real, k.const(real.type, 0.0))

    @staticmethod
    def _is_real(other) -> bool:
        return not isinstance(other, (Complex, complex))

    def __add__(self, other):
        if self._is_real(other):
            return Complex(self.real + other, self.imag)
        o = self._other(other)
        return Complex(self.real + o.real, self.imag + o.imag)

    __radd__ = __add__

    def __sub__(self, other):
        if self._is_real(other):
            return Complex(self.real - other, self.imag)
        o = self._other(other)
        return Complex(self.real - o.real, self.imag - o.imag)

    def __rsub__(self, other):
        return -self + other if self._is_real(other) else self._other(other) - self

    def __mul__(self, other):
        if self._is_real(other):
            return Complex(self.real * other, self.imag * other)
        o = self._other(other)
        return Complex(self.real * o.real - self.imag * o.imag, self.real * o.imag + self.imag * o.real)

    __rmul__ = __mul__

    def __truediv__(self, other):
        """Smith's division (CACM 5(8), 1962): no overflow in the squares."""
        if self._is_real(other):
            return Complex(self.real / other, self.imag / other)
        o, k = self._other(other), self.real.k
        flat = k.math("fabs", o.real) >= k.math("fabs", o.imag)
        big, small = k.select(flat, o.real, o.imag), k.select(flat, o.imag, o.real)
        zero = k.const(small.type, 0.0)
        both_zero = big.eq(0.0) & small.eq(0.0)
        ratio = k.select(both_zero, zero, small / big)
        scale = big + small * ratio
        x = k.select(flat, self.real + self.imag * ratio, self.real * ratio + self.imag)
        y = k.select(flat, self.imag - self.real * ratio, self.imag * ratio - self.real)
        return Complex(x / scale, y / scale)

    def __rtruediv__(self, other):
        return self._other(other) / self

    def __neg__(self):
        return Complex(-self.real, -self.imag)

    def conj(self) -> Complex:
        return Complex(self.real, -self.imag)

    def eq(self, other):
        o = self._other(other)
        return self.real.eq(o.real) & self.imag.eq(o.imag)

    def ne(self, other):
        o = self._other(other)
        return self.real.ne(o.real) | self.imag.ne(o.imag)

    def is_nan(self):
        return self.real.is_nan() | self.imag.is_nan()


def choose(k: Function, mask: Value, a, b):
    """a where mask else b, for real and complex values (a number takes the other's type)."""
    if isinstance(a, Complex) or isinstance(b, Complex):
        a = a if isinstance(a, Complex) else b._other(a)
        b = a._other(b)
        return Complex(k.select(mask, a.real, b.real), k.select(mask, a.imag, b.imag))
    if not isinstance(a, Value) and isinstance(b, Value):
        a = k.const(b.type, a)
    return k.select(mask, a, b)


def complex_const(k: Function, type_: Type, value: complex) -> Complex:
    value = complex(value)
    return Complex(k.const(type_, value.real), k.const(type_, value.imag))
