"""Caching allocator: blocks of memory by size class, handed out and taken back through plain lists.

The hot path is two list operations, with no call into this module:

    cls = allocator.size_class(nbytes)        # once per tensor spec; interned
    try:
        address = cls.free.pop()
    except IndexError:
        address = cls.fresh()                 # a new block, or OutOfMemoryError
    ...
    cls.free.append(address)                  # give back

Sizes are rounded up to classes: multiples of 64 bytes up to 512, then four steps per power of two (at most 25 % waste), sixteen
steps from 64 MiB on (6 %). Blocks up to 128 KiB are carved from 1 MiB slabs, larger ones are mapped by themselves, and those of
2 MiB or more are aligned to 2 MiB and ask for huge pages. Every block is aligned to 64 bytes. Zero bytes are served from the
smallest class, so that every tensor has a valid address of its own.

What is cached is found by counting the lists when somebody asks, so accounting costs the hot path nothing. The price: the peak of
allocated bytes is only sampled, whenever memory is mapped or statistics are read.

A `Pool` has classes of its own, so addresses of different devices never mix; `Budget` is the memory they share. Blocks of a pool
are only unmapped by `empty_cache`, or when a request would not fit otherwise.

May not know: tensors, dtypes, devices beyond a name for messages. Entry: `size_class` (the CPU's pool), `Pool`.
"""

from __future__ import annotations

import bisect
import os
import threading
import weakref
from collections.abc import Callable

from flambeau.base.errors import OutOfMemoryError, message
from flambeau.runtime.system import os as system

ALIGNMENT = 64
SLAB_BYTES = 1 << 20
SMALL_BYTES = 128 << 10  # the largest blocks carved from slabs
HUGE_BYTES = 2 << 20
FINE_BYTES = 64 << 20  # from here on sixteen steps per power of two: a quarter too much would be real memory
CARVE_BLOCKS = 32  # taken from a slab at a time, since carving a whole slab of small blocks takes 1 ms


def class_bytes(nbytes: int) -> int:
    """The size of the class that serves a request of `nbytes`."""
    if nbytes <= ALIGNMENT:
        if nbytes < 0:
            raise ValueError(message("allocate", "the size must not be negative", f"{nbytes} bytes"))
        return ALIGNMENT
    steps_log2 = 4 if nbytes > FINE_BYTES else 2
    shift = max(6, (nbytes - 1).bit_length() - 1 - steps_log2)
    return -(-nbytes >> shift) << shift


def format_bytes(nbytes: int) -> str:
    """1536 -> "1.50 KiB"."""
    if nbytes < 1024:
        return f"{nbytes} bytes"
    power = min((nbytes.bit_length() - 1) // 10, 4)
    return f"{nbytes / 1024**power:.2f} {'KMGT'[power - 1]}iB"


class Budget:
    """Memory that pools share. `limit_bytes` None: what the system has."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = system.memory_bytes() if limit_bytes is None else limit_bytes
        self.reserved_bytes = 0
        self.lock = threading.RLock()  # one for all pools: making room empties the others


class SizeClass:
    """Blocks of one size. `free` holds the addresses of those nobody uses; take and give back with pop and append."""

    __slots__ = ("__weakref__", "_carved", "_end", "_next", "blocks", "free", "nbytes", "pool")

    def __init__(self, pool: Pool, nbytes: int) -> None:
        self.pool = pool
        self.nbytes = nbytes
        self.free: list[int] = []
        self.blocks = 0  # that exist, used or free
        self._carved: dict[int, int] = {}  # slab -> blocks carved from it
        self._next = self._end = 0  # what is left of the newest slab

    def fresh(self) -> int:
        """A block, when `free` is empty.

        Raises: OutOfMemoryError if it does not fit the budget even after everything cached has been released.
        """
        return self.pool._fresh(self)

    @property
    def is_small(self) -> bool:
        return self.nbytes <= SMALL_BYTES

    def __repr__(self) -> str:
        return f"SizeClass({self.nbytes}, {self.pool.name}, {self.blocks} blocks, {len(self.free)} free)"


class Pool:
    """Size classes of one device or queue.

    `settle` is called before blocks are unmapped: it must wait for all work that may still use a block that is free.
    """

    def __init__(self, name: str, budget: Budget | None = None, settle: Callable[[], None] | None = None) -> None:
        self.name = name
        self.budget = Budget() if budget is None else budget
        self._settle = settle
        self._classes: dict[int, SizeClass] = {}
        self._requests: dict[int, SizeClass] = {}  # by requested size, a shortcut
        self._segments: dict[int, int] = {}  # what is mapped: address -> bytes
        self._sorted: list[int] = []  # the keys of `_segments`, made when asked for
        self._maps = self._unmaps = self._retries = self._failures = 0
        self._peak_allocated = self._peak_reserved = 0
        self._reserved = 0
        _pools.add(self)

    # ------------------------------------------------------------------------------------------------ classes
    def size_class(self, nbytes: int) -> SizeClass:
        """The class that serves `nbytes`; the same object for all sizes that share it."""
        found = self._requests.get(nbytes)
        if found is not None:
            return found
        rounded = class_bytes(nbytes)
        with self.budget.lock:
            found = self._classes.get(rounded)
            if found is None:
                found = self._classes[rounded] = SizeClass(self, rounded)
            if len(self._requests) > 1 << 16:
                self._requests.clear()
            self._requests[nbytes] = found
        return found

    def allocate(self, nbytes: int) -> tuple[int, SizeClass]:
        """An address and its class, for callers off the hot path."""
        cls = self.size_class(nbytes)
        try:
            return cls.free.pop(), cls
        except IndexError:
            return cls.fresh(), cls

    # ------------------------------------------------------------------------------------------------ blocks
    def _fresh(self, cls: SizeClass) -> int:
        with self.budget.lock:
            try:
                return cls.free.pop()  # given back by another thread meanwhile
            except IndexError:
                pass
            if not cls.is_small:
                address = self._map(cls.nbytes, cls)
                cls.blocks += 1
                return address
            if cls._next + cls.nbytes > cls._end:
                slab = self._map(SLAB_BYTES, cls)
                cls._carved[slab] = 0
                cls._next, cls._end = slab, slab + SLAB_BYTES
            count = min(CARVE_BLOCKS, (cls._end - cls._next) // cls.nbytes)
            start = cls._next
            cls._next = start + count * cls.nbytes
            cls._carved[start & -SLAB_BYTES] += count
            cls.blocks += count
            # Lowest address last, so that it is popped first.
            cls.free.extend(range(cls._next - cls.nbytes, start, -cls.nbytes))
            return start

    def _map(self, nbytes: int, cls: SizeClass) -> int:
        budget = self.budget
        if budget.reserved_bytes + nbytes > budget.limit_bytes:
            self._make_room()
        address = None
        if budget.reserved_bytes + nbytes <= budget.limit_bytes:
            try:
                address = self._map_pages(nbytes)
            except MemoryError:
                self._make_room()
                try:
                    address = self._map_pages(nbytes)
                except MemoryError:
                    address = None
        if address is None:
            self._failures += 1
            raise OutOfMemoryError(self._complaint(cls))
        self._segments[address] = nbytes
        self._sorted = []
        self._maps += 1
        self._reserved += nbytes
        budget.reserved_bytes += nbytes
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        self._peak_allocated = max(self._peak_allocated, self.allocated_bytes + (0 if cls.is_small else nbytes))
        return address

    @staticmethod
    def _map_pages(nbytes: int) -> int:
        if nbytes >= HUGE_BYTES:
            return system.map_pages(nbytes, align=HUGE_BYTES, huge=True)
        return system.map_pages(nbytes, align=SLAB_BYTES if nbytes == SLAB_BYTES else system.PAGE_BYTES)

    def _unmap(self, address: int) -> int:
        nbytes = self._segments.pop(address)
        self._sorted = []
        system.unmap_pages(address, nbytes)
        self._unmaps += 1
        self._reserved -= nbytes
        self.budget.reserved_bytes -= nbytes
        return nbytes

    def _make_room(self) -> None:
        """Release everything cached in all pools of this budget."""
        self._retries += 1
        for pool in list(_pools):
            if pool.budget is self.budget:
                pool.empty_cache()

    def _complaint(self, cls: SizeClass) -> str:
        limit = self.budget.limit_bytes
        got = (
            f"{format_bytes(cls.nbytes)} ({cls.nbytes}) requested, limit {format_bytes(limit)}, "
            f"reserved {format_bytes(self.budget.reserved_bytes)}, of which {format_bytes(self.allocated_bytes)} in use"
        )
        if cls.nbytes > limit:
            step = "The request alone is larger than the memory of the device: use smaller sizes or a smaller dtype."
        else:
            step = "Everything cached has been released already: delete tensors that are no longer needed, or use smaller batches."
        return message("allocate", f"the block must fit the memory of {self.name}", got, step)

    def empty_cache(self) -> int:
        """Give memory nobody uses back to the system; returns the bytes.

        Slabs go once all their blocks are free. Waits for queued work first where there is a queue.
        """
        if self._settle is not None:
            self._settle()
        with self.budget.lock:
            return sum(self._empty_class(cls) for cls in list(self._classes.values()))

    def _empty_class(self, cls: SizeClass) -> int:
        taken = []
        while True:  # one by one: other threads pop and append meanwhile, and only single operations are atomic
            try:
                taken.append(cls.free.pop())
            except IndexError:
                break
        if not cls.is_small:
            cls.blocks -= len(taken)
            return sum(self._unmap(address) for address in taken)
        counts: dict[int, int] = {}
        for address in taken:
            slab = address & -SLAB_BYTES
            counts[slab] = counts.get(slab, 0) + 1
        empty = {slab for slab, count in counts.items() if count == cls._carved[slab]}
        cls.free.extend(address for address in reversed(taken) if address & -SLAB_BYTES not in empty)
        released = 0
        for slab in empty:
            cls.blocks -= cls._carved.pop(slab)
            if cls._end == slab + SLAB_BYTES:
                cls._next = cls._end = 0
            released += self._unmap(slab)
        return released

    # ------------------------------------------------------------------------------------------------ accounting
    @property
    def cached_bytes(self) -> int:
        """Bytes of blocks that exist and are free."""
        return sum(len(cls.free) * cls.nbytes for cls in list(self._classes.values()))

    @property
    def allocated_bytes(self) -> int:
        """Bytes of blocks in use, rounded to their classes."""
        return sum((cls.blocks - len(cls.free)) * cls.nbytes for cls in list(self._classes.values()))

    @property
    def reserved_bytes(self) -> int:
        """Bytes mapped."""
        return self._reserved

    def memory_stats(self) -> dict[str, int]:
        """Statistics under PyTorch's names where they mean the same: `<what>.<all|small_pool|large_pool>.<current|peak>`.

        `allocated_bytes.all.peak` is a lower bound, sampled when memory was mapped.
        """
        with self.budget.lock:
            classes = list(self._classes.values())
            stats: dict[str, int] = {}
            for part, chosen in (
                ("all", classes),
                ("small_pool", [cls for cls in classes if cls.is_small]),
                ("large_pool", [cls for cls in classes if not cls.is_small]),
            ):
                used = {cls: cls.blocks - len(cls.free) for cls in chosen}
                stats[f"allocated_bytes.{part}.current"] = sum(count * cls.nbytes for cls, count in used.items())
                stats[f"allocation.{part}.current"] = sum(used.values())
                stats[f"cached_bytes.{part}.current"] = sum(len(cls.free) * cls.nbytes for cls in chosen)
                stats[f"cached_blocks.{part}.current"] = sum(len(cls.free) for cls in chosen)
            self._peak_allocated = max(self._peak_allocated, stats["allocated_bytes.all.current"])
            stats["allocated_bytes.all.peak"] = self._peak_allocated
            stats["reserved_bytes.all.current"] = self._reserved
            stats["reserved_bytes.all.peak"] = self._peak_reserved
            stats["segment.all.current"] = len(self._segments)
            stats["largest_cached_block_bytes"] = max((cls.nbytes for cls in classes if cls.free), default=0)
            stats["num_alloc_retries"] = self._retries
            stats["num_ooms"] = self._failures
            stats["num_device_alloc"] = self._maps
            stats["num_device_free"] = self._unmaps
            return stats

    def reset_peak_memory_stats(self) -> None:
        """Start the peaks again from what is there now."""
        with self.budget.lock:
            self._peak_allocated = self.allocated_bytes
            self._peak_reserved = self._reserved

    def owns(self, address: int) -> bool:
        """Whether the address lies in memory of this pool."""
        with self.budget.lock:
            if not self._sorted:
                self._sorted = sorted(self._segments)
            index = bisect.bisect_right(self._sorted, address) - 1
            return index >= 0 and address < self._sorted[index] + self._segments[self._sorted[index]]


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.budget.lock = threading.RLock()  # another thread may have held the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

cpu = Pool("cpu")
size_class = cpu.size_class
empty_cache = cpu.empty_cache
memory_stats = cpu.memory_stats
reset_peak_memory_stats = cpu.reset_peak_memory_stats
