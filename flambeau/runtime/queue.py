"""Queues: where work is launched. The CPU's is synchronous; devices such as `sim` run theirs in the background.

Everything that runs is given to a queue, whatever the device:

    queue.launch(entry, *slots, keep=objects)      run a kernel
    queue.copy(destination, source, nbytes, kind)  move bytes; kind: TO_DEVICE, TO_HOST, ON_DEVICE
    queue.submit(function, *arguments, keep=)      run any Python function that launches nothing itself
    queue.synchronize()                            wait for all of it, raise the first failure
    queue.query()                                  is all of it done?
    queue.pool                                     memory for this queue's tensors (see allocator)
    queue.error_block                              what kernels take as their error slot

    event = queue.record(timed=True)               a point in the queue
    other.wait(event)                              what is given to `other` from now on runs after that point
    event.query(), event.synchronize(), start.elapsed_ns(end)

`keep` holds whatever must stay alive until the work has run: parameter blocks, host memory, storages of other queues. Tensors of
the same queue need not be kept: work runs in order, so whatever takes their memory next runs later.

May not know: tensors, what kernels do. Entry: `cpu_queue`, `Queue`.
"""

from __future__ import annotations

import ctypes
import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from flambeau.base.errors import message
from flambeau.runtime import allocator, errors


class Copy(enum.Enum):
    """Where the two ends of a copy are."""

    TO_DEVICE = "host to device"
    TO_HOST = "device to host"
    ON_DEVICE = "device to device"


TO_DEVICE, TO_HOST, ON_DEVICE = Copy


class Event(ABC):
    """A point in a queue, made by `Queue.record`."""

    @abstractmethod
    def query(self) -> bool:
        """Whether everything before it has run."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for it."""

    @property
    @abstractmethod
    def time_ns(self) -> int:
        """When it was reached, by time.perf_counter_ns. Raises: RuntimeError if it was not, or was not recorded with timed=True."""

    def elapsed_ns(self, end: Event) -> int:
        """Nanoseconds from this event to `end`; both timed and reached."""
        return end.time_ns - self.time_ns


class Queue(ABC):
    """Work in order. See the top of this file."""

    name: str
    pool: allocator.Pool

    @property
    @abstractmethod
    def error_block(self) -> errors.ErrorBlock:
        """The block whose address kernels of this queue take."""

    @abstractmethod
    def submit(self, function: Callable[..., Any], *arguments: Any, keep: object = None) -> None: ...

    @abstractmethod
    def launch(self, entry: Callable[..., None], *slots: int | float, keep: object = None) -> None: ...

    @abstractmethod
    def copy(
        self, destination: int, source: int, nbytes: int, kind: Copy, *, non_blocking: bool = False, keep: object = None
    ) -> None: ...

    @abstractmethod
    def record(self, *, timed: bool = False) -> Event: ...

    @abstractmethod
    def wait(self, event: Event) -> None: ...

    @abstractmethod
    def record_use(self, storage: object) -> None:
        """Keep an object alive until the work given so far has run: for memory of another queue."""

    @abstractmethod
    def query(self) -> bool: ...

    @abstractmethod
    def synchronize(self) -> None: ...


class ReachedEvent(Event):
    """An event of a queue that does everything at once."""

    __slots__ = ("_time_ns",)

    def __init__(self, time_ns: int | None) -> None:
        self._time_ns = time_ns

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    @property
    def time_ns(self) -> int:
        if self._time_ns is None:
            raise RuntimeError(
                message("Event", "the event must be timed to be compared", step="Record it with timed=True.")
            )
        return self._time_ns


class CpuQueue(Queue):
    """The CPU's queue: everything has run when the call returns. Failures of kernels are raised by `launch`."""

    name = "cpu"
    pool = allocator.cpu

    @property
    def error_block(self) -> errors.ErrorBlock:
        return errors.thread_block()

    def submit(self, function: Callable[..., Any], *arguments: Any, keep: object = None) -> None:
        function(*arguments)

    def launch(self, entry: Callable[..., None], *slots: int | float, keep: object = None) -> None:
        entry(*slots)
        errors.thread_block().check()

    def copy(
        self, destination: int, source: int, nbytes: int, kind: Copy, *, non_blocking: bool = False, keep: object = None
    ) -> None:
        ctypes.memmove(destination, source, nbytes)

    def record(self, *, timed: bool = False) -> Event:
        return ReachedEvent(time.perf_counter_ns() if timed else None)

    def wait(self, event: Event) -> None:
        event.synchronize()

    def record_use(self, storage: object) -> None:
        return None

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        errors.thread_block().check()


cpu_queue = CpuQueue()
