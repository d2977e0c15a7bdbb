"""Memory that belongs to recorded graphs: blocks that come from the allocator and do not go back before the graphs are gone.

    pool = PrivatePool()
    address = pool.take(size_class)             # a block of the pool, else one of the allocator
    storage.free = pool.returning(size_class)   # where a storage gives it back: to the pool, for later work of the same graphs
    pool.release()                              # free blocks go back now, those in use when no storage has one any more

A replay writes where the recording wrote, so nobody outside may be given those blocks. Graphs that share a pool may use each other's
free blocks, and must then be replayed in the order of their recording.

Pools are known by handles, pairs of ints: `handle()` makes one, `join` finds or makes its pool and `leave` releases it after the last user.
May not know: tensors, graphs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable

from flambeau.runtime.allocator import SizeClass

Handle = tuple[int, int]


class Returning(list):
    """Stands where storages keep a free list: the pool's free blocks of a class.

    It goes when the pool is released and no storage gives to it any more, and its blocks then go to the allocator. (A list, and not something
    with an `append` of its own, because native code appends.)
    """

    __slots__ = ("pool", "size_class")

    def __init__(self, pool: PrivatePool, size_class: SizeClass) -> None:
        self.pool, self.size_class = pool, size_class

    def __del__(self) -> None:
        self.size_class.free.extend(self)


class PrivatePool:
    """See the module."""

    def __init__(self) -> None:
        self.written = False  # a graph that has memory here was replayed
        self.nbytes = 0  # taken from the allocator
        self._lists: dict[SizeClass, Returning] = {}

    def returning(self, size_class: SizeClass) -> Returning:
        """The list that takes back blocks of a class; always the same one."""
        found = self._lists.get(size_class)
        if found is None:
            found = self._lists[size_class] = Returning(self, size_class)
        return found

    def take(self, size_class: SizeClass) -> int:
        """A block. Raises: OutOfMemoryError."""
        try:
            return self.returning(size_class).pop()
        except IndexError:
            pass
        try:
            address = size_class.free.pop()
        except IndexError:
            address = size_class.fresh()
        self.nbytes += size_class.nbytes
        return address

    def owns(self, storage: object) -> bool:
        """Whether a storage gives its block back to this pool."""
        free = getattr(storage, "free", None)
        return type(free) is Returning and free.pool is self

    @property
    def free_bytes(self) -> int:
        return sum(len(found) * cls.nbytes for cls, found in list(self._lists.items()))

    def release(self) -> None:
        """Give everything that is free to the allocator; a class of blocks of which some are in use follows when the last is freed."""
        for found in list(self._lists.values()):
            while found:
                found.size_class.free.append(found.pop())
        self._lists.clear()


# ---------------------------------------------------------------------------------------------------- handles
_numbers = itertools.count(1)
_pools: dict[Handle, tuple[PrivatePool, set[Hashable]]] = {}
_lock = threading.Lock()


def handle() -> Handle:
    """A name for a pool that does not exist yet."""
    return 0, next(_numbers)


def join(name: Handle, user: Hashable) -> PrivatePool:
    """The pool of a handle, kept until every user has left."""
    with _lock:
        found = _pools.get(name)
        if found is None:
            found = _pools[name] = PrivatePool(), set()
        found[1].add(user)
        return found[0]


def leave(name: Handle, user: Hashable) -> None:
    """The last one releases the pool."""
    with _lock:
        pool, users = _pools[name]
        users.discard(user)
        if users:
            return
        del _pools[name]
    pool.release()


__all__ = ["Handle", "PrivatePool", "Returning", "handle", "join", "leave"]
