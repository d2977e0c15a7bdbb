"""The simulated asynchronous device: `flambeau.zeros(3, device="sim")`.

Ops on it return at once and run in order on a worker thread, on memory of the device's own. Errors of values (an index out of
bounds) surface at `synchronize()`, `.item()` or a copy to the host.

    x = flambeau.arange(4.0).to("sim")
    y = x[flambeau.tensor([9]).to("sim")]     # returns
    flambeau.sim.synchronize()                # AcceleratorError naming op, index, dim and size
"""

from __future__ import annotations

from flambeau.core.device import as_device
from flambeau.runtime import sim


def is_available() -> bool:
    """Always: it needs no hardware."""
    return True


def device_count() -> int:
    return sim.device_count()


def _device(device) -> sim.SimDevice:
    return sim.device(as_device("sim" if device is None else device).index or 0)


def synchronize(device=None) -> None:
    """Wait for everything given to the device. Raises: AcceleratorError for what went wrong in it."""
    _device(device).synchronize()


def empty_cache(device=None) -> int:
    """Give unused memory back; returns the bytes."""
    return _device(device).empty_cache()


def memory_stats(device=None) -> dict[str, int]:
    """Counts and bytes of the device's memory."""
    return _device(device).memory_stats()
