"""Calling kernels: native entry points, parameter blocks, the number of threads.

    run = launch.entry(address)            # once per kernel; an ordinary builtin function
    block = launch.block([total, grain, n, stride])
    run(x_pointer, y_pointer, 0.5, block.address)

Slots are ints (pointers, i64 operands) and floats (stored as f64); the last one is the parameter block's address, whose first
two words are `total` and `grain`. If total <= grain the kernel runs at once: kernel(slots, 0, total, 0). Otherwise the GIL is
released and threads claim chunks of `grain` units. If there is one thread, or another Python thread has the pool, the caller does
all of it alone. Results do not depend on which.

Of the 64 slots the last, `COUNTER_SLOT`, is not given by the caller: it is 0 at the start of every launch, for kernels that count
finished units (atomically: their threads share it).

Threads are made by the first launch that divides, end with the process, and are not inherited by a fork: a child starts with
one thread, until it calls `set_num_threads`.

May not know: tensors, what kernels compute. Entry: `entry`, `block`, `set_num_threads`.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable

from flambeau.base.errors import message
from flambeau.base.settings import settings
from flambeau.runtime.native import COUNTER_SLOT, MAX_SLOTS, MAX_THREADS, native
from flambeau.runtime.system import os as system

__all__ = [
    "COUNTER_SLOT",
    "MAX_SLOTS",
    "Block",
    "block",
    "default_num_threads",
    "entry",
    "get_num_threads",
    "kernel_of",
    "parallel_run",
    "set_num_threads",
    "wait_until_idle",
]

Entry = Callable[..., None]


class Block:
    """A parameter block: int64 words that native code reads. Keep it alive while a kernel may use it."""

    __slots__ = ("address", "words")

    def __init__(self, words: Iterable[int]) -> None:
        self.words = array("q", words)
        if len(self.words) < 2:
            raise ValueError(message("launch.block", "a block starts with total and grain", f"{len(self.words)} words"))
        self.address: int = self.words.buffer_info()[0]  # never resized, so it stays

    @property
    def total(self) -> int:
        return self.words[0]

    @property
    def grain(self) -> int:
        return self.words[1]

    def __repr__(self) -> str:
        return f"Block({self.words.tolist()})"


def block(words: Iterable[int]) -> Block:
    """The block [total, grain, ...]: the kernel's units, how many of them make a chunk, and whatever it wants besides."""
    return Block(words)


# ---------------------------------------------------------------------------------------------------- threads
def default_num_threads() -> int:
    """FLAMBEAU_NUM_THREADS, else OMP_NUM_THREADS, else the number of CPUs this process may use."""
    if settings.num_threads:
        return min(settings.num_threads, MAX_THREADS)
    outermost = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if outermost.isdigit() and int(outermost) > 0:
        return min(int(outermost), MAX_THREADS)
    return min(system.processors(), MAX_THREADS)


class _Threads:
    """The wanted number of threads; the native state follows it once there is one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wanted = default_num_threads() if system.POOL else 1
        self.started = False

    def apply(self) -> None:
        """Make the native state agree. The pool is ended if it has other threads than wanted, and made anew when next needed."""
        state = native().state
        if self.started and state.get("threads") == self.wanted:
            return
        while not native().stop():
            time.sleep(50e-6)  # another Python thread is in a region
        state.set("threads", self.wanted)
        self.started = True

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        self.wanted = 1
        if self.started:
            native().state.forget_threads()


_threads = _Threads()


def set_num_threads(number: int) -> None:
    """How many threads share a kernel, the calling one included.

    Raises: TypeError, ValueError for anything but 1 … MAX_THREADS. Waits for a kernel that another Python thread is running.
    Determinism: results are the same for every number.
    """
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(message("set_num_threads", "the number must be an int", repr(number)))
    if not 1 <= number <= MAX_THREADS:
        raise ValueError(message("set_num_threads", f"the number must be 1 to {MAX_THREADS}", repr(number)))
    if number > 1 and not system.POOL:
        raise ValueError(
            message("set_num_threads", "this system has no native threads, so the number must be 1", repr(number))
        )
    with _threads.lock:
        _threads.wanted = number
        if _threads.started:
            _threads.apply()


def get_num_threads() -> int:
    """How many threads share a kernel."""
    return _threads.wanted


def wait_until_idle() -> None:
    """End the worker threads, after whatever they run now. The next launch that divides makes new ones."""
    if _threads.started:
        with _threads.lock:
            while not native().stop():
                time.sleep(50e-6)


def _at_exit() -> None:
    # A region still running in a daemon thread ends with the process.
    if _threads.started:
        native().stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.after_fork)
atexit.register(_at_exit)


# ---------------------------------------------------------------------------------------------------- entries
_entries: dict[int, Entry] = {}


def entry(address: int) -> Entry:
    """The function `entry(*slots)` that runs the kernel at this address; the same one each time.

    Raises (when called): TypeError for no slots, more than MAX_SLOTS, or a slot that is no int or float; OverflowError for an
    int beyond 64 bits.
    """
    found = _entries.get(address)
    if found is None:
        if not _threads.started:
            with _threads.lock:
                _threads.apply()
        found = _entries[address] = native().make_entry(address)
    return found


def kernel_of(run: Entry) -> int:
    """The address of the kernel that an entry runs; an entry wrapped to be watched says what it wraps in `__wrapped__`."""
    words = getattr(run, "__wrapped__", run).__self__
    return int.from_bytes(words[8:16], sys.byteorder)


def parallel_run(address: int, *slots: int | float) -> None:
    """Run the kernel at this address once: `entry(address)(*slots)`."""
    entry(address)(*slots)
