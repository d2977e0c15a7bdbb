"""MKL, which is not here: products are Flambeau's own, factorisations are the LAPACK of NumPy and SciPy."""

from __future__ import annotations


def is_available() -> bool:
    """Whether MKL is there: no."""
    return False
