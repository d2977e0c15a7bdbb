"""The CPU as a device: memory statistics, synchronisation (which has nothing to wait for)."""

from __future__ import annotations

from flambeau.runtime.allocator import empty_cache, memory_stats, reset_peak_memory_stats  # noqa: F401


def is_available() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> str:
    return "cpu"


def synchronize(device=None) -> None:
    """Ops on the CPU have run when their call returns."""
