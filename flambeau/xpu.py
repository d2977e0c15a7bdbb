"""`xpu`, for programs that ask whether there is such a device: there is none, and whatever needs one says so.

May not know: anything that runs.
"""

from __future__ import annotations

from flambeau.namespace import absent_device

__getattr__ = absent_device(
    "XPU",
    globals(),
    """
    current_allocated_memory driver_allocated_memory max_memory_allocated memory_allocated memory_reserved recommended_max_memory
    """.split(),
)
