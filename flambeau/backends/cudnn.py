"""cuDNN, which is not here: `is_available()` is False, and the switches change nothing. Results are deterministic always."""

from __future__ import annotations

from typing import Any

from flambeau.backends.switches import Switches, scoped

enabled = True
benchmark = False
benchmark_limit = 10
deterministic = False
allow_tf32 = True
fp32_precision = "none"
conv = Switches("cudnn.conv", fp32_precision="none")
rnn = Switches("cudnn.rnn", fp32_precision="none")
flags = scoped(globals(), "enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32", "fp32_precision")


def is_available() -> bool:
    """Whether cuDNN is there: no."""
    return False


def version() -> int | None:
    """cuDNN's version: None."""
    return None


def is_acceptable(tensor: Any) -> bool:
    """Whether cuDNN computes with a tensor: no."""
    return False
