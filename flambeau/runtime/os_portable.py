"""Any other system: memory through Python's mmap module, no worker threads, so that kernels run on the calling thread.

See `system` for the meaning of each name. May not know: anything above the operating system.

    address = map_pages(1 << 21)
    unmap_pages(address, 1 << 21)
"""

from __future__ import annotations

import ctypes
import mmap
import os

from flambeau.kernel.dsl import Function, Value

POOL = False
PAGE_BYTES = mmap.PAGESIZE

_maps: dict[int, tuple[mmap.mmap, ctypes.Array]] = {}  # by the address handed out; the array pins the map


def map_pages(nbytes: int, align: int = PAGE_BYTES, huge: bool = False) -> int:
    """Zeroed memory at a multiple of `align`; MemoryError if the system refuses."""
    slack = align if align > PAGE_BYTES else 0
    try:
        pages = mmap.mmap(-1, nbytes + slack)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(str(error)) from error
    pin = (ctypes.c_char * (nbytes + slack)).from_buffer(pages)
    address = -(-ctypes.addressof(pin) // align) * align
    _maps[address] = pages, pin
    return address


def unmap_pages(address: int, nbytes: int) -> None:
    pages, pin = _maps.pop(address)
    if len(pin) < nbytes:
        raise OSError(f"unmap_pages: {address:#x} has {len(pin)} bytes, got {nbytes}")
    del pin
    pages.close()


def processors() -> int:
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Physical memory where the system tells, else no limit: the system then refuses by itself."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return (1 << 63) - 1


def symbols() -> dict[str, int]:
    return {}


def thread_attributes() -> int:
    return 0


def emit_wait(k: Function, syscall: Value, word: Value, expected: Value) -> None:
    raise NotImplementedError("runtime: this system has no word to sleep on. Kernels run on one thread.")


def emit_wake(k: Function, syscall: Value, word: Value, count: Value) -> None:
    raise NotImplementedError("runtime: this system has no word to sleep on. Kernels run on one thread.")
