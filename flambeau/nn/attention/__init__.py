"""`nn.attention`: which implementation of attention may run, and the packages of attention by functions, of ragged batches, of biases.

    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, k, v)

There is one implementation, so any choice gives the same results. Providers of others register them here, as with PyTorch, and the registry keeps
which one is active. May not know: how attention is computed. Enter at: `flex_attention`, `varlen`, `bias`, `sdpa_kernel`.
"""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from flambeau.base.errors import message
from flambeau.nn.attention import bias, flex_attention, varlen

__all__ = [
    "WARN_FOR_UNFUSED_KERNELS",
    "SDPBackend",
    "activate_flash_attention_impl",
    "current_flash_attention_impl",
    "list_flash_attention_impls",
    "register_flash_attention_impl",
    "restore_flash_attention_impl",
    "sdpa_kernel",
]

WARN_FOR_UNFUSED_KERNELS = False  # PyTorch's switch; there is nothing to warn of


class SDPBackend(enum.IntEnum):
    """PyTorch's implementations, by its numbers."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextlib.contextmanager
def sdpa_kernel(backends: list[SDPBackend] | SDPBackend, set_priority: bool = False) -> Iterator[dict]:
    """Allow these implementations for the body. Flambeau's own is taken whichever are named. Raises: TypeError for anything else."""
    chosen = [backends] if isinstance(backends, SDPBackend) else list(backends)
    for b in chosen:
        if not isinstance(b, SDPBackend):
            raise TypeError(
                message("sdpa_kernel", "backends must be of SDPBackend", type(b).__name__, "Write SDPBackend.MATH.")
            )
    if not chosen:
        raise ValueError(message("sdpa_kernel", "at least one backend must be allowed", "none"))
    yield {}


# ------------------------------------------------------------------ implementations of others
class FlashAttentionHandle(Protocol):
    """What a provider's function may return: `remove()` undoes it."""

    def remove(self) -> None: ...


RegisterFn = Callable[..., FlashAttentionHandle | None]


def _absent(impl: str) -> RegisterFn:
    """The provider that stands for one of PyTorch's own, which are code for GPUs."""

    def refuse() -> None:
        raise ModuleNotFoundError(
            message(
                "activate_flash_attention_impl",
                f"{impl} needs a GPU and a package with its kernels, which nobody has registered here",
                step="Leave it out: attention on this device is fused without it.",
            )
        )

    return refuse


class _Registry:
    """The providers by name, and which is active with its handle."""

    def __init__(self) -> None:
        self.providers: dict[str, RegisterFn] = {name: _absent(name) for name in ("FA3", "FA4")}
        self.active: tuple[str, Any] | None = None


_registry = _Registry()


def register_flash_attention_impl(impl: str, *, register_fn: RegisterFn) -> None:
    """Let `activate_flash_attention_impl(impl)` call `register_fn()`, which puts a provider's kernels in place and may return a handle."""
    _registry.providers[impl] = register_fn


def activate_flash_attention_impl(impl: str) -> None:
    """Call a provider's function, after undoing the one that was active.

    Raises: ValueError for a name nobody registered; ModuleNotFoundError for FA3 and FA4, which are kernels for GPUs, unless somebody
    registered them.
    """
    provider = _registry.providers.get(impl)
    if provider is None:
        raise ValueError(
            message(
                "activate_flash_attention_impl",
                f"Unknown flash attention impl, it must be one of {list_flash_attention_impls()}",
                repr(impl),
                "Register it with register_flash_attention_impl().",
            )
        )
    _restore()
    handle = provider()
    _registry.active = None if handle is None else (impl, handle)


def list_flash_attention_impls() -> list[str]:
    """Names that are registered, in order; FA3 and FA4, PyTorch's own, always are."""
    return sorted(_registry.providers)


def current_flash_attention_impl() -> str | None:
    """The name of the active one; None for Flambeau's own."""
    return None if _registry.active is None else _registry.active[0]


def restore_flash_attention_impl(_raise_warn: bool = True) -> None:
    """Go back to Flambeau's own. Warns if it was in place."""
    if _registry.active is None and _raise_warn:
        warnings.warn(
            "restore_flash_attention_impl: no other implementation was active, so there is nothing to restore.",
            stacklevel=2,
        )
    _restore()


def _restore() -> None:
    if _registry.active is not None:
        _registry.active[1].remove()
        _registry.active = None
