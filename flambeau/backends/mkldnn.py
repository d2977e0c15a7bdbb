"""oneDNN, which is not here: kernels are Flambeau's own. The switches change nothing."""

from __future__ import annotations

from flambeau.backends.switches import scoped

enabled = False
deterministic = False
allow_tf32 = False
fp32_precision = "none"
flags = scoped(globals(), "enabled", "deterministic", "allow_tf32", "fp32_precision")


def is_available() -> bool:
    """Whether oneDNN is there: no."""
    return False
