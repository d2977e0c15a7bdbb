"""The accelerator of this process, and graphs of recorded launches.

    where = accelerator.current_accelerator() if accelerator.is_available() else "cpu"

Flambeau runs on the CPU, and a CPU is no accelerator: `is_available()` is False, `current_accelerator()` None, `device_count()` 0, and what
needs a device raises RuntimeError, as in PyTorch without one. With the setting FLAMBEAU_ACCELERATOR=sim the simulated asynchronous device takes
the part of one, to try programs on: it computes on the CPU, slower, and its results are the CPU's.

`Graph` and what belongs to it work on either; they are in `capture.replay` and `accelerator.graphs`. May not know: ops.
"""

from __future__ import annotations

from typing import Any, NoReturn

from flambeau.accelerator.graphs import make_graphed_callables
from flambeau.base.errors import message
from flambeau.base.settings import settings
from flambeau.capture.replay import Graph, graph, graph_pool_handle, is_current_stream_capturing
from flambeau.core.device import device as Device
from flambeau.core.dtype import BY_NAME
from flambeau.runtime import sim

__all__ = [
    "Graph",
    "current_accelerator",
    "current_device_idx",
    "current_device_index",
    "current_stream",
    "device_count",
    "device_index",
    "empty_cache",
    "empty_host_cache",
    "get_device_capability",
    "get_memory_info",
    "graph",
    "graph_pool_handle",
    "is_available",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_device_idx",
    "set_device_index",
    "set_stream",
    "synchronize",
]


class _Current:
    index = 0  # of the device that functions without an argument mean


# ------------------------------------------------------------------ which one
def current_accelerator(check_available: bool = False) -> Device | None:
    """The type of accelerator there is, as a device; None without one."""
    if settings.accelerator not in ("", "sim"):
        raise RuntimeError(
            message("accelerator", "the setting FLAMBEAU_ACCELERATOR must be empty or sim", repr(settings.accelerator))
        )
    return Device("sim") if settings.accelerator else None


def is_available() -> bool:
    """Whether there is an accelerator to run on."""
    return current_accelerator() is not None


def device_count() -> int:
    """How many accelerators there are: 0 on a CPU alone."""
    return sim.device_count() if is_available() else 0


def _none() -> NoReturn:
    raise RuntimeError(
        "accelerator: Cannot access accelerator device when none is available. Flambeau computes on the CPU; set FLAMBEAU_ACCELERATOR=sim "
        "for a simulated device."
    )


def _index_of(device: Any) -> int:
    """The index of a device: given, or the current one. Raises: RuntimeError for none, ValueError for a device of another type."""
    if not is_available():
        _none()
    if device is None:
        return _Current.index
    if isinstance(device, int) and not isinstance(device, bool):
        index = device
    else:
        found = Device(device)
        if found.type != "sim":
            raise ValueError(
                message("accelerator", "the device must be of the current accelerator's type, sim", str(found))
            )
        index = found.index or 0
    if index >= sim.device_count():
        raise RuntimeError(message("accelerator", f"the index must be less than {sim.device_count()}", str(index)))
    return index


def current_device_index() -> int:
    """Index of the device that functions without an argument mean. Raises: RuntimeError without an accelerator."""
    return _index_of(None)


def set_device_index(device: Any, /) -> None:
    """Choose that device; a negative index changes nothing."""
    index = _index_of(device)
    if index >= 0:
        _Current.index = index


current_device_idx = current_device_index
set_device_idx = set_device_index


class device_index:
    """`with device_index(1):` has another current device inside; None changes nothing."""

    def __init__(self, device: int | None, /) -> None:
        self.index = device

    def __enter__(self) -> None:
        if self.index is not None:
            self.before = current_device_index()
            set_device_index(self.index)

    def __exit__(self, *exc: object) -> None:
        if self.index is not None:
            _Current.index = self.before


def get_device_capability(device: Any = None, /) -> dict[str, Any]:
    """`supported_dtypes`: the dtypes that tensors there may have."""
    _index_of(device)
    return {"supported_dtypes": set(BY_NAME.values())}


# ------------------------------------------------------------------ order of work
def synchronize(device: Any = None, /) -> None:
    """Wait for everything given to a device. Raises: AcceleratorError for what went wrong in it; RuntimeError without an accelerator."""
    sim.device(_index_of(device)).synchronize()


def current_stream(device: Any = None, /) -> NoReturn:
    """Raises: RuntimeError. Ops of a device run on one queue, in order; there is no other to choose."""
    _index_of(device)
    raise RuntimeError(
        "current_stream: a device runs its ops on one queue, in order, and has no streams. Use synchronize() to wait for it."
    )


def set_stream(stream: Any) -> NoReturn:
    """Raises: RuntimeError, as `current_stream`."""
    current_stream()


# ------------------------------------------------------------------ memory
def empty_cache() -> None:
    """Give memory that nobody uses back to the system."""
    _index_of(None)
    for index in range(sim.device_count()):
        sim.device(index).empty_cache()


def empty_host_cache() -> None:
    """There is no pinned memory to give back. Raises: RuntimeError without an accelerator."""
    _index_of(None)


def memory_stats(device_index: Any = None, /) -> dict[str, int]:
    """Counts and bytes of a device's memory, by name."""
    return dict(sorted(sim.device(_index_of(device_index)).memory_stats().items()))


def memory_allocated(device_index: Any = None, /) -> int:
    """Bytes in use by tensors."""
    return memory_stats(device_index)["allocated_bytes.all.current"]


def max_memory_allocated(device_index: Any = None, /) -> int:
    """The most bytes that were in use, sampled when memory was mapped."""
    return memory_stats(device_index)["allocated_bytes.all.peak"]


def memory_reserved(device_index: Any = None, /) -> int:
    """Bytes taken from the system."""
    return memory_stats(device_index)["reserved_bytes.all.current"]


def max_memory_reserved(device_index: Any = None, /) -> int:
    """The most bytes that were taken from the system."""
    return memory_stats(device_index)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device_index: Any = None, /) -> None:
    """Start the peaks again from what is in use now."""
    for queue in sim.device(_index_of(device_index)).queues:
        queue.pool.reset_peak_memory_stats()


def reset_accumulated_memory_stats(device_index: Any = None, /) -> None:
    """Nothing is accumulated but peaks and counts of the whole run. Raises: RuntimeError without an accelerator."""
    _index_of(device_index)


def get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
    """(bytes free, bytes in all) of a device."""
    budget = sim.device(_index_of(device_index)).budget
    return budget.limit_bytes - budget.reserved_bytes, budget.limit_bytes
