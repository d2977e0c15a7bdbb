"""A simulated asynchronous device: the CPU's kernels behind a queue, with memory of its own.

It exists to keep the rest device-neutral: work runs later, on a worker thread; host and device addresses must be told apart;
failures appear when somebody synchronises. Its results are bitwise those of the CPU.

    device = sim.device(0)
    queue = device.default_queue                   # or device.new_queue(): a stream
    address, cls = queue.pool.allocate(nbytes)
    queue.copy(address, host_address, nbytes, TO_DEVICE)
    queue.launch(entry, address, 2.0, block.address, keep=block)
    queue.synchronize()                            # AcceleratorError: add: index must be ...
    cls.free.append(address)

Queue, Event and `keep` are as in `queue`. What is particular here:

- A queue is a thread that runs closures in order. It starts with the first work and lives as long as the process; `new_queue`
  hands out the same few in turn, as streams are on other devices.
- Each queue has its own pool, all pools of a device share its budget. A block may be given back while work that uses it is still
  queued on the *same* queue: whatever gets the block next runs later. Before memory is unmapped the queue is drained.
- Memory used on another queue: order the work with events and call `record_use(storage)` on that queue (or pass `keep`); the
  storage then lives, and its block stays taken, until that work has run.
- A blocking copy to the device takes a copy of the bytes and returns; with non_blocking=True the host memory must stay unchanged,
  and `keep` holds it. A blocking copy to the host synchronises, so it raises failures.
- A failure does not stop the queue. The first one is kept until `synchronize` (of the queue, the device, or an event) raises it as
  AcceleratorError, and is then forgotten. Exceptions of submitted functions arrive the same way, as the cause.
- A fork does not take the worker threads along: the device cannot be used in the child.

May not know: tensors. Entry: `device`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from flambeau.base.errors import AcceleratorError, message
from flambeau.runtime import allocator, errors
from flambeau.runtime.queue import TO_DEVICE, TO_HOST, Copy, Event, Queue

DEVICES = 2  # two, so that whatever forgets the index of a device is found
QUEUES_PER_DEVICE = 8

_forked = False


class _Mark:
    """One passage of a queue: set by the worker."""

    __slots__ = ("reached", "time_ns")

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.time_ns = 0

    def reach(self) -> None:
        self.time_ns = time.perf_counter_ns()
        self.reached.set()


class SimEvent(Event):
    """A point in a SimQueue."""

    __slots__ = ("_mark", "_queue", "_timed")

    def __init__(self, queue: SimQueue, mark: _Mark, timed: bool) -> None:
        self._queue = queue
        self._mark = mark
        self._timed = timed

    def query(self) -> bool:
        return self._mark.reached.is_set()

    def synchronize(self) -> None:
        self._queue._await(self._mark)
        self._queue._raise_failure()

    @property
    def time_ns(self) -> int:
        if not self._timed or not self._mark.reached.is_set():
            state = "not timed" if not self._timed else "not reached"
            step = "Record it with timed=True and synchronize."
            raise RuntimeError(message("Event", "an event must be timed and reached to be compared", state, step))
        return self._mark.time_ns


class SimQueue(Queue):
    """A stream of a simulated device."""

    def __init__(self, owner: SimDevice, index: int) -> None:
        self.device = owner
        self.name = f"{owner.name} queue {index}"
        self.pool = allocator.Pool(owner.name, owner.budget, settle=self.drain)
        self._error_block = errors.ErrorBlock()
        self._work: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._failure: tuple[str, BaseException | None] | None = None
        self._given = 0  # under the lock
        self._done = 0  # written by the worker only

    @property
    def error_block(self) -> errors.ErrorBlock:
        return self._error_block

    # ------------------------------------------------------------------------------------------------ giving work
    def submit(self, function: Callable[..., Any], *arguments: Any, keep: object = None) -> None:
        """Run function(*arguments) after everything given before. It must not wait for this queue."""
        if _forked:
            got = f"child process {os.getpid()}"
            raise AcceleratorError(
                message(self.name, "a simulated device cannot be used after a fork", got, "Start processes with spawn.")
            )
        with self._lock:
            if self._worker is None:
                self._worker = threading.Thread(target=self._work_loop, name=self.name, daemon=True)
                self._worker.start()
            self._given += 1
            self._work.put((function, arguments, keep))

    def launch(self, entry: Callable[..., None], *slots: int | float, keep: object = None) -> None:
        """Run a kernel after everything given before. `keep` should hold its parameter block."""
        self.submit(self._run_kernel, entry, slots, keep=keep)

    def copy(
        self, destination: int, source: int, nbytes: int, kind: Copy, *, non_blocking: bool = False, keep: object = None
    ) -> None:
        """Move bytes. Raises: RuntimeError if an address is not where `kind` says."""
        self._check_side(destination, kind is not TO_HOST, "destination", kind)
        self._check_side(source, kind is not TO_DEVICE, "source", kind)
        if kind is TO_DEVICE and not non_blocking:
            staged = ctypes.create_string_buffer(ctypes.string_at(source, nbytes), nbytes) if nbytes else None
            source = ctypes.addressof(staged) if staged is not None else source
            keep = (keep, staged)
        self.submit(ctypes.memmove, destination, source, nbytes, keep=keep)
        if kind is TO_HOST and not non_blocking:
            self.synchronize()

    def _check_side(self, address: int, on_device: bool, role: str, kind: Copy) -> None:
        if self.device.owns(address) != on_device:
            where = "the device" if on_device else "the host"
            rule = f"the {role} of a copy {kind.value} must be memory of {where}"
            raise RuntimeError(message("copy", rule, f"{address:#x} on {self.name}"))

    def record_use(self, storage: object) -> None:
        self.submit(_nothing, keep=storage)

    # ------------------------------------------------------------------------------------------------ order
    def record(self, *, timed: bool = False) -> Event:
        mark = _Mark()
        self.submit(mark.reach)
        return SimEvent(self, mark, timed)

    def wait(self, event: Event) -> None:
        """What is given from now on runs after the event, without blocking the caller."""
        if isinstance(event, SimEvent):
            # The mark was recorded before this wait is given, so queues cannot wait for each other in a circle.
            self.submit(event._mark.reached.wait)

    def query(self) -> bool:
        """Whether everything given so far has run."""
        return self._done >= self._given

    def drain(self) -> None:
        """Wait until everything given so far has run; raises nothing."""
        if self._worker is None or _forked or threading.current_thread() is self._worker:
            return
        mark = _Mark()
        self.submit(mark.reach)
        self._await(mark)

    def synchronize(self) -> None:
        """Wait until everything given so far has run.

        Raises: AcceleratorError for the first failure since the last one raised, naming op, index, dim and size.
        """
        self.drain()
        self._raise_failure()

    def _await(self, mark: _Mark) -> None:
        if threading.current_thread() is self._worker:
            raise RuntimeError(message(self.name, "work on a queue must not wait for that queue"))
        mark.reached.wait()

    def _raise_failure(self) -> None:
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            text, cause = failure
            raise AcceleratorError(text) from cause

    # ------------------------------------------------------------------------------------------------ the worker
    def _work_loop(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            function, arguments, keep = work
            try:
                function(*arguments)
            except BaseException as error:
                self._fail(message(self.name, f"queued work failed with {type(error).__name__}: {error}"), error)
            del work, function, arguments, keep  # what was kept must not wait for the next work
            self._done += 1

    def _run_kernel(self, entry: Callable[..., None], slots: tuple[int | float, ...]) -> None:
        entry(*slots)
        failure = self._error_block.read()
        if failure is not None:
            self._error_block.clear()
            where = f"op {failure.op}, index {failure.index}, dim {failure.dim}, size {failure.size}"
            self._fail(f"{failure.text} Reported by {self.name} after the launch ({where}).", None)

    def _fail(self, text: str, cause: BaseException | None) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = text, cause

    def _stop(self, timeout_s: float | None) -> None:
        """End the worker once it has done what it was given; after `timeout_s` leave it to the end of the process."""
        worker = self._worker
        if worker is None or _forked:
            return
        self._work.put(None)
        worker.join(timeout_s)
        if not worker.is_alive():
            self._worker = None


class SimDevice:
    """One simulated device: a budget of memory and a few queues."""

    def __init__(self, index: int, memory_bytes: int | None = None) -> None:
        self.index = index
        self.name = f"sim:{index}"
        self.budget = allocator.Budget(memory_bytes)
        self.queues = [SimQueue(self, number) for number in range(QUEUES_PER_DEVICE)]
        self.default_queue = self.queues[0]
        self._handed_out = 0
        atexit.register(self.close, timeout_s=1.0)

    def new_queue(self) -> SimQueue:
        """A queue other than the default one; the same few in turn."""
        number = self._handed_out % (QUEUES_PER_DEVICE - 1)
        self._handed_out += 1
        return self.queues[1 + number]

    def owns(self, address: int) -> bool:
        """Whether an address is memory of this device."""
        return any(queue.pool.owns(address) for queue in self.queues)

    def synchronize(self) -> None:
        """Wait for all queues, then raise the first failure of any."""
        for queue in self.queues:
            queue.drain()
        for queue in self.queues:
            queue._raise_failure()

    def empty_cache(self) -> int:
        """Unmap memory nobody uses; returns the bytes."""
        return sum(queue.pool.empty_cache() for queue in self.queues)

    def memory_stats(self) -> dict[str, int]:
        """The statistics of all queues' pools, summed (the largest cached block: the largest)."""
        total: dict[str, int] = {}
        for queue in self.queues:
            for key, value in queue.pool.memory_stats().items():
                total[key] = max(total.get(key, 0), value) if key.startswith("largest") else total.get(key, 0) + value
        return total

    def close(self, timeout_s: float | None = None) -> None:
        """End the worker threads once they have done what they were given; later work starts them again."""
        for queue in self.queues:
            queue._stop(timeout_s)


def _nothing() -> None:
    return None


@functools.cache
def device(index: int = 0) -> SimDevice:
    """The simulated device of this index, made on first use."""
    if not 0 <= index < DEVICES:
        raise RuntimeError(message("sim.device", f"the index must be 0 to {DEVICES - 1}", str(index)))
    return SimDevice(index)


def device_count() -> int:
    return DEVICES


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
