"""Apple's GPUs, which Flambeau does not run on."""

from __future__ import annotations


def is_available() -> bool:
    """Whether there is such a device: no."""
    return False


def is_built() -> bool:
    """Whether there are kernels for it: no."""
    return False


def is_macos_or_newer(major: int, minor: int) -> bool:
    """Whether the system is that macOS: not asked of a system without the device."""
    return False
