"""`xpu`, for programs that ask whether there is such a device: there is none, and whatever needs one says so.

May not know: anything that runs.
"""

from __future__ import annotations

from flambeau.namespace import absent_device

__getattr__ = absent_device(
    "XPU",
    globals(),
    """
    Event Stream current_allocated_memory current_device current_stream driver_allocated_memory get_device_capability get_device_name
    get_device_properties get_rng_state init max_memory_allocated memory_allocated memory_reserved recommended_max_memory set_device
    set_per_process_memory_fraction set_rng_state set_stream stream synchronize
    """.split(),
)


def is_available() -> bool:
    """Whether there is such a device: no."""
    return False


def device_count() -> int:
    """Number of such devices: 0."""
    return 0


def manual_seed(seed: int) -> None:
    """Nothing to seed."""


def manual_seed_all(seed: int) -> None:
    """Nothing to seed."""


def empty_cache() -> None:
    """Nothing to empty. See `cpu.empty_cache`."""
