"""`cuda`, for programs that ask whether there is a GPU: there is none, whatever needs one says so.

Seeding, emptying caches and reading counters work, and do nothing, as in PyTorch without a GPU. May not know: anything that runs.
"""

from __future__ import annotations

from typing import Any

from flambeau.namespace import absent_device

__getattr__ = absent_device(
    "CUDA",
    globals(),
    """
    CUDAGraph ExternalStream StreamContext can_device_access_peer current_blas_handle default_generators default_stream
    device device_of get_sync_debug_mode graph ipc_collect list_gpu_processes make_graphed_callables mem_get_info
    memory_snapshot memory_summary power_draw temperature utilization
    """.split(),
)
default_generators: tuple = ()


def is_initialized() -> bool:
    """Whether CUDA is in use: no."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether a CUDA device computes in bfloat16: there is none. The CPU does."""
    return False


def get_arch_list() -> list[str]:
    """Architectures that kernels are there for: none."""
    return []


def seed() -> None:
    """Nothing to seed."""


def seed_all() -> None:
    """Nothing to seed."""


def get_rng_state_all() -> list:
    """States of the generators of all CUDA devices: none."""
    return []


def set_rng_state_all(new_states: Any) -> None:
    """Nothing to set. Raises: AssertionError for states of devices that are not there."""
    if list(new_states):
        __getattr__("set_rng_state")()


def _no_bytes(device: Any = None) -> int:
    """Bytes on a CUDA device: 0. See `cpu.memory_stats`."""
    return 0


memory_allocated = max_memory_allocated = memory_reserved = max_memory_reserved = memory_cached = _no_bytes


def memory_stats(device: Any = None) -> dict[str, int]:
    """Counters of a CUDA device: none. See `cpu.memory_stats`."""
    return {}
