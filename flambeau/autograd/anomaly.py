"""Anomaly mode: errors of a backward say where the forward op was called, and NaN gradients are errors.

    with detect_anomaly():
        loss(model(x)).backward()

Every op then keeps its traceback: slow, for debugging. May not know: how nodes run.
"""

from __future__ import annotations

import traceback
from typing import Any

from flambeau.tape import record as tape

__all__ = ["detect_anomaly", "is_anomaly_check_nan_enabled", "is_anomaly_enabled", "set_detect_anomaly"]


def _where() -> str:
    """The calling lines, without those of the framework."""
    frames = [
        f
        for f in traceback.extract_stack()
        if "/flambeau/" not in f.filename.replace("\\", "/") and not f.filename.startswith("<flambeau")
    ]
    return "".join(traceback.format_list(frames))


class _Anomaly:
    """Switches the mode on for a `with` block."""

    def __init__(self, mode: bool, check_nan: bool):
        self.mode, self.check_nan = mode, check_nan
        self.saved: list[tuple[list, bool]] = []

    def __enter__(self) -> None:
        self.saved.append((list(tape._anomaly), tape.nan_check[-1]))
        tape._anomaly[:] = [_where] if self.mode else []
        tape.nan_check[-1] = self.check_nan

    def __exit__(self, *exc: Any) -> None:
        tape._anomaly[:], tape.nan_check[-1] = self.saved.pop()


class detect_anomaly(_Anomaly):
    """Anomaly mode inside the block."""

    def __init__(self, check_nan: bool = True):
        super().__init__(True, check_nan)


class set_detect_anomaly(_Anomaly):
    """Anomaly mode on or off, at once; as a context manager puts the old mode back."""

    def __init__(self, mode: bool, check_nan: bool = True):
        super().__init__(mode, check_nan)
        _Anomaly.__enter__(self)

    def __enter__(self) -> None:
        return None


def is_anomaly_enabled() -> bool:
    """Whether anomaly mode is on."""
    return _where in tape._anomaly


def is_anomaly_check_nan_enabled() -> bool:
    """Whether anomaly mode looks for NaN."""
    return tape.nan_check[-1]
