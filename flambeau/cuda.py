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
    CUDAGraph Event ExternalStream Stream StreamContext can_device_access_peer current_blas_handle current_device current_stream
    default_generators default_stream device device_of get_device_capability get_device_name get_device_properties get_rng_state
    get_sync_debug_mode graph init ipc_collect list_gpu_processes make_graphed_callables mem_get_info memory_snapshot memory_summary
    power_draw set_device set_per_process_memory_fraction set_rng_state set_stream stream synchronize temperature utilization
    """.split(),
)
default_generators: tuple = ()


def is_available() -> bool:
    """Whether there is a CUDA device: no."""
    return False


def is_initialized() -> bool:
    """Whether CUDA is in use: no."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether a CUDA device computes in bfloat16: there is none. The CPU does."""
    return False


def device_count() -> int:
    """Number of CUDA devices: 0."""
    return 0


def get_arch_list() -> list[str]:
    """Architectures that kernels are there for: none."""
    return []


def manual_seed(seed: int) -> None:
    """Nothing to seed."""


def manual_seed_all(seed: int) -> None:
    """Nothing to seed."""


def seed() -> None:
    """Nothing to seed."""


def seed_all() -> None:
    """Nothing to seed."""


def empty_cache() -> None:
    """Nothing to empty. See `cpu.empty_cache`."""


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
