"""OpenMP, which is not here: threads are Flambeau's own (`set_num_threads`)."""

from __future__ import annotations


def is_available() -> bool:
    """Whether OpenMP is there: no."""
    return False
