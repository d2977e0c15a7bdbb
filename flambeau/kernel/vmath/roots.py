"""Roots and lengths: rsqrt.

    y = rsqrt(k, x)       # x f32 or f64, scalar or vector

May not know: targets.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value


def sqrt(k: Function, x: Value) -> Value:
    """Square root, correctly rounded."""
    return k.math("sqrt", x)


def rsqrt(k: Function, x: Value) -> Value:
    """1 / sqrt(x)."""
    return 1.0 / k.math("sqrt", x)
