"""Training across processes, which Flambeau does not do: programs that ask are told so.

May not know: anything that runs.
"""

from __future__ import annotations

from typing import Any

__all__ = ["is_available", "is_initialized", "is_torchelastic_launched"]


def is_available() -> bool:
    """Whether there are process groups: no."""
    return False


def is_initialized() -> bool:
    """Whether a process group is in use: no."""
    return False


def is_torchelastic_launched() -> bool:
    """Whether a launcher started this process: no."""
    return False


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module '{__name__}' has no attribute '{name}'. Flambeau runs in one process; distributed.is_available() is False. "
        f"Test it first, and train without a process group."
    )
