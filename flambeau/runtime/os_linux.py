"""Linux: futex, mmap with huge pages, pthreads through the process's own C library.

See `system` for the meaning of each name. May not know: anything above the operating system.

    address = map_pages(1 << 21, align=1 << 21, huge=True)
    unmap_pages(address, 1 << 21)
"""

from __future__ import annotations

import ctypes
import functools
import os

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import i32, i64

POOL = True
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_PROT_READ_WRITE = 3
_MAP_PRIVATE_ANONYMOUS = 0x22
_MADV_HUGEPAGE = 14
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, 202)
_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129
# musl gives threads 128 KiB unless told, kernels may keep tiles on the stack.
_WORKER_STACK_BYTES = 4 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FAILED = ctypes.c_void_p(-1).value


def map_pages(nbytes: int, align: int = PAGE_BYTES, huge: bool = False) -> int:
    """Zeroed memory at a multiple of `align`; MemoryError if the system refuses."""
    slack = align if align > PAGE_BYTES else 0
    nbytes = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
    address = _mmap(None, nbytes + slack, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
    if address is None or address == _MAP_FAILED:
        raise MemoryError(os.strerror(ctypes.get_errno()))
    # Map more than needed and cut both ends, since mmap aligns to pages only.
    aligned = -(-address // align) * align
    if aligned > address:
        unmap_pages(address, aligned - address)
    if aligned < address + slack:
        unmap_pages(aligned + nbytes, address + slack - aligned)
    if huge:
        _madvise(
            aligned, nbytes, _MADV_HUGEPAGE
        )  # a hint: kernels without huge pages refuse it, memory works either way
    return aligned


def unmap_pages(address: int, nbytes: int) -> None:
    nbytes = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
    if _munmap(address, nbytes) != 0:
        raise OSError(ctypes.get_errno(), f"munmap({address:#x}, {nbytes})")


def processors() -> int:
    return len(os.sched_getaffinity(0))


@functools.cache
def memory_bytes() -> int:
    """Physical memory and swap, or the limit of the control group where that is lower."""
    total = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES + _swap_bytes()
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def _swap_bytes() -> int:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("SwapTotal:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def symbols() -> dict[str, int]:
    """Addresses of the C functions native code calls. `syscall` is variadic in C; integers travel alike."""
    names = ("pthread_create", "pthread_join", "pthread_sigmask", "syscall")
    return {name: ctypes.cast(getattr(_libc, name), ctypes.c_void_p).value or 0 for name in names}


@functools.cache
def _attributes() -> ctypes.Array:
    attributes = (ctypes.c_char * 128)()  # pthread_attr_t is 56 bytes with glibc and musl, 64 on aarch64
    if _libc.pthread_attr_init(attributes) != 0:
        raise OSError("pthread_attr_init failed")
    if _libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_WORKER_STACK_BYTES)) != 0:
        raise OSError("pthread_attr_setstacksize failed")
    return attributes


def thread_attributes() -> int:
    return ctypes.addressof(_attributes())


def emit_wait(k: Function, syscall: Value, word: Value, expected: Value) -> None:
    """Sleep while the i32 at `word` is `expected`. May return early: callers look again."""
    zero = k.const(i64, 0)
    k.call(
        syscall,
        k.const(i64, _SYS_FUTEX),
        word,
        k.const(i64, _FUTEX_WAIT_PRIVATE),
        expected.to(i64),
        zero,
        zero,
        zero,
        result=i64,
    )


def emit_wake(k: Function, syscall: Value, word: Value, count: Value) -> None:
    """Wake up to `count` threads that sleep on `word`."""
    zero = k.const(i64, 0)
    k.call(
        syscall,
        k.const(i64, _SYS_FUTEX),
        word,
        k.const(i64, _FUTEX_WAKE_PRIVATE),
        count.to(i32).to(i64),
        zero,
        zero,
        zero,
        result=i64,
    )
