"""The operating system, chosen once: `system.os` is `os_linux` or `os_portable`.

Both offer the same names:

    POOL                           whether native worker threads can wait and be woken
    PAGE_BYTES
    map_pages(nbytes, align=, huge=)
                                   zeroed memory; `huge` asks for huge pages
    unmap_pages(address, nbytes)   all of what one map_pages returned
    memory_bytes()                 what this process can hold at most: memory and swap, or its container's limit
    processors()                   CPUs this process may run on
    symbols()                      addresses of the C functions that `native` calls
    thread_attributes()            address of the attributes for worker threads
    emit_wait, emit_wake           sleeping on a 32-bit word, as kernel code (only where POOL)

May not know: kernels other than by emitting a wait, tensors. Entry: `os`.
"""

from __future__ import annotations

import sys

if sys.platform == "linux":
    from flambeau.runtime import os_linux as os
else:
    from flambeau.runtime import os_portable as os

__all__ = ["os"]
