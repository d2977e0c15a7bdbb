"""`nn.attention`: which implementation `scaled_dot_product_attention` may take. There is one, so any choice gives the same results.

    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, k, v)

May not know: how attention is computed. Entry: `sdpa_kernel`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator

from flambeau.base.errors import message

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(enum.IntEnum):
    """PyTorch's implementations, by its numbers."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextlib.contextmanager
def sdpa_kernel(backends: list[SDPBackend] | SDPBackend, set_priority: bool = False) -> Iterator[None]:
    """Allow these implementations for the body. Flambeau's own is taken whichever are named. Raises: TypeError for anything else."""
    chosen = [backends] if isinstance(backends, SDPBackend) else list(backends)
    for b in chosen:
        if not isinstance(b, SDPBackend):
            raise TypeError(
                message("sdpa_kernel", "backends must be of SDPBackend", type(b).__name__, "Write SDPBackend.MATH.")
            )
    if not chosen:
        raise ValueError(message("sdpa_kernel", "at least one backend must be allowed", "none"))
    yield
