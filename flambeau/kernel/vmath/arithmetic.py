"""Building blocks of vector math: polynomials, exponents as bits, exact sums and products.

    p = polynomial(k, x, (1.0, 0.5, 0.25))      # 1 + x/2 + x^2/4, Horner with fma

Values are f32 or f64, scalars or vectors of any width. May not know: what the functions built on it compute.
Double-word arithmetic after Dekker (1971) and Joldes, Muller, Popescu (2017).
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.kernel.dsl import Function, Number, Value
from flambeau.kernel.types import Type, f32, f64, i32, i64

INFINITY = float("inf")
NAN = float("nan")
MANTISSA_BITS = {"float": 23, "double": 52}
EXPONENT_BIAS = {"float": 127, "double": 1023}
SMALLEST_NORMAL = {"float": 2.0**-126, "double": 2.0**-1022}
LARGEST = {"float": float.fromhex("0x1.fffffep127"), "double": float.fromhex("0x1.fffffffffffffp1023")}


def pick(x: Value, single, double):
    """`single` for f32, `double` for f64."""
    name = x.type.element.name
    if name not in ("float", "double"):
        raise TypeError(f"vmath: values must be f32 or f64, got {x}. Convert with .to(f32) first.")
    return single if name == "float" else double


def integer_type(x: Value) -> Type:
    """The signed integer type as wide as x."""
    return pick(x, i32, i64).like(x.type)


def bits(x: Value) -> Value:
    return x.bitcast(integer_type(x))


def from_bits(k: Function, n: Value) -> Value:
    """The float whose bits are n (i32 or i64)."""
    return n.bitcast((f32 if n.type.size == 4 else f64).like(n.type))


def absolute(k: Function, x: Value) -> Value:
    return k.math("fabs", x)


def copysign(k: Function, x: Value, sign: Value | Number) -> Value:
    """|x| with the sign bit of `sign`."""
    return k.math("copysign", *k.unify(x, sign))


def at_least(k: Function, x: Value, low: Number) -> Value:
    """max(x, low), NaN stays NaN: one instruction where maxps returns its second operand on NaN."""
    low = k.const(x.type, low)
    return k.select(low > x, low, x)


def at_most(k: Function, x: Value, high: Number) -> Value:
    """min(x, high), NaN stays NaN."""
    high = k.const(x.type, high)
    return k.select(high < x, high, x)


def polynomial(k: Function, x: Value, coefficients: Sequence[Number | Value]) -> Value:
    """sum coefficients[i] * x**i by Horner's rule."""
    total = k.as_value(coefficients[-1], x.type)
    for c in reversed(coefficients[:-1]):
        total = k.fma(total, x, c)
    return total


def polynomial_halves(k: Function, x: Value, square: Value, coefficients: Sequence[Number]) -> Value:
    """The same, even and odd powers apart: half the latency for one instruction more."""
    return k.fma(polynomial(k, square, coefficients[1::2]), x, polynomial(k, square, coefficients[::2]))


def round_to_integer(k: Function, x: Value, factor: float, bias: int = 0) -> tuple[Value, Value]:
    """n = x * factor rounded to an integer as a float, and an integer whose low bits are n + bias.

    Adding 1.5 * 2^mantissa leaves the integer in the low bits (Cody & Waite 1980): no conversion
    instruction, which AVX2 lacks for 64-bit integers. Holds for |n| below 2^22 (f32), 2^51 (f64)."""
    magic = 1.5 * 2.0 ** MANTISSA_BITS[x.type.element.name] + bias
    shifted = k.fma(x, factor, magic)
    return shifted - magic, bits(shifted)


def power_of_two(k: Function, biased: Value, like: Value) -> Value:
    """2**(n - bias) for an integer n in (0, 2 bias] in the low bits of `biased`."""
    return (biased << MANTISSA_BITS[like.type.element.name]).bitcast(like.type)


def split_power(k: Function, biased: Value, like: Value) -> tuple[Value, Value]:
    """(s, t) with s t = 2**n, from n + 2 bias in the low bits: two factors reach subnormals and the last binade."""
    half = biased.lshr(1)
    return power_of_two(k, half, like), power_of_two(k, biased - half, like)


# ---------------------------------------------------------------------- double words: hi + lo, |lo| <= ulp(hi) / 2
def fast_two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b exactly, where |a| >= |b| or a = 0."""
    total = a + b
    return total, b - (total - a)


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b exactly (Knuth)."""
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def two_product(k: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """a * b exactly."""
    product = a * b
    return product, k.fma(a, b, -product)


def multiply_words(k: Function, a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    """Product of two double words, relative error about 2^-104 (f64)."""
    high = a[0] * b[0]
    low = k.fma(a[0], b[1], k.fma(a[1], b[0], k.fma(a[0], b[0], -high)))
    return fast_two_sum(high, low)


def divide_words(k: Function, a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    """Quotient of two double words."""
    high = a[0] / b[0]
    remainder = k.fma(-high, b[0], a[0]) + k.fma(-high, b[1], a[1])
    return fast_two_sum(high, remainder / b[0])
