"""Integer division, powers and divisors of the kernel language, without traps.

    q = floor_divide(k, x, y)      # x, y: integer Values of one type, scalars or vectors

Division by zero gives 0 (as NumPy has it), the smallest integer divided by -1 gives itself: processors raise a signal for both.
Up to 32 bits vectors divide as floats, which are exact there and vectorise. May not know: tensors, targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Number, Value
from flambeau.kernel.types import f32, f64


def lowest(x: Value) -> int:
    """The smallest integer of x's type."""
    return -(1 << (x.type.size * 8 - 1)) if x.type.kind == "i" else 0


def quotient(k: Function, x: Value, y: Value | Number) -> Value:
    """x / y rounded toward zero."""
    x, y = k.unify(x, y)
    bad = y.eq(0)
    if x.type.kind == "i":
        bad = bad | (x.eq(lowest(x)) & y.eq(-1))
    divisor = k.select(bad, 1, y)
    if x.type.size < 8 and x.type.lanes:
        exact = x.to(f64 if x.type.size == 4 else f32) / divisor.to(f64 if x.type.size == 4 else f32)
        whole = exact.truncated(x.type.element) if x.type.size == 4 else exact.to(x.type.element)
    else:
        whole = x / divisor
    return k.select(y.eq(0), 0, whole)


def rest(k: Function, x: Value, y: Value | Number) -> Value:
    """x - quotient * y, with the sign of x; 0 where y is 0."""
    x, y = k.unify(x, y)
    return k.select(y.eq(0), 0, x - quotient(k, x, y) * y)


def _needs_lower(x: Value, y: Value, r: Value) -> Value:
    return r.ne(0) & ((r ^ y) < 0)


def floor_divide(k: Function, x: Value, y: Value | Number) -> Value:
    """x / y rounded down."""
    x, y = k.unify(x, y)
    q = quotient(k, x, y)
    if x.type.kind == "u":
        return q
    r = x - q * y
    return k.select(y.eq(0), 0, k.select(_needs_lower(x, y, r), q - 1, q))


def remainder(k: Function, x: Value, y: Value | Number) -> Value:
    """x - floor_divide * y, with the sign of y (Python's %); 0 where y is 0."""
    x, y = k.unify(x, y)
    r = rest(k, x, y)
    return r if x.type.kind == "u" else k.select(_needs_lower(x, y, r), r + y, r)


def power(k: Function, x: Value, y: Value | Number) -> Value:
    """x**y with wrapping products; for negative y what is left of 1 / x**-y after truncation."""
    x, y = k.unify(x, y)
    base, left, result = k.var(x.type, x), k.var(y.type, k.maximum(y, 0)), k.var(x.type, 1)
    with k.loop_while(lambda: k.any(left.get().ne(0))):
        b, n = base.get(), left.get()
        result.set(k.select((n & 1).ne(0), result.get() * b, result.get()))
        base.set(b * b)
        left.set(n >> 1)
    if x.type.kind == "u":
        return result.get()
    sign = k.select(x.eq(-1), k.select((y & 1).ne(0), k.const(x.type, -1), k.const(x.type, 1)), k.const(x.type, 0))
    inverse = k.select(x.eq(1), 1, sign)
    return k.select(y < 0, inverse, result.get())


def absolute(k: Function, x: Value) -> Value:
    """|x|; the smallest integer stays as it is."""
    return x if x.type.kind == "u" else k.select(x < 0, -x, x)


def gcd(k: Function, x: Value, y: Value | Number) -> Value:
    """Greatest common divisor, by Euclid; not negative."""
    x, y = k.unify(x, y)
    a, b = k.var(x.type, absolute(k, x)), k.var(x.type, absolute(k, y))
    with k.loop_while(lambda: k.any(b.get().ne(0))):
        p, q = a.get(), b.get()
        a.set(k.select(q.eq(0), p, q))
        b.set(rest(k, p, q))
    return absolute(k, a.get())


def lcm(k: Function, x: Value, y: Value | Number) -> Value:
    """Least common multiple; not negative, 0 if either is 0."""
    x, y = k.unify(x, y)
    return absolute(k, quotient(k, x, gcd(k, x, y)) * y)


def shift_left(k: Function, x: Value, n: Value | Number) -> Value:
    """x * 2**n; 0 where n is negative or not below the number of bits."""
    x, n = k.unify(x, n)
    fits = (n >= 0) & (n < x.type.size * 8)
    return k.select(fits, x << k.select(fits, n, 0), 0)


def shift_right(k: Function, x: Value, n: Value | Number) -> Value:
    """x / 2**n rounded down; where n is negative or not below the number of bits, what is left is the sign."""
    x, n = k.unify(x, n)
    last = x.type.size * 8 - 1
    fits = (n >= 0) & (n <= last)
    if x.type.kind == "u":
        return k.select(fits, x >> k.select(fits, n, 0), 0)
    return x >> k.select(fits, n, last)
