"""What tests of convolution kernels share: cases, memory formats, memory with nothing behind it, launching."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from flambeau.kernel import cache
from flambeau.kernel import target as targets
from flambeau.templates.launch import Lowered

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
TARGETS = ["native", "avx2"] if targets.current().arch == "x86_64" else ["native"]
ERROR = {"float32": 2e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}

# x [N, C, *L], w [O, C / groups, *kernel], then stride, low, high, dilation, groups
CASES = [
    ((2, 3, 9), (5, 3, 3), (1,), (1,), (1,), (1,), 1),
    ((1, 4, 70), (6, 2, 4), (2,), (0,), (3,), (3,), 2),
    ((2, 5, 7, 8), (17, 5, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1),
    ((2, 3, 13, 40), (31, 3, 3, 2), (2, 2), (1, 0), (1, 1), (1, 1), 1),
    ((1, 6, 12, 11), (4, 3, 2, 5), (3, 1), (2, 2), (0, 2), (1, 2), 2),
    ((3, 9, 6, 37), (15, 9, 1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1),
    ((1, 2, 9, 9), (3, 2, 3, 5), (1, 3), (-1, 2), (-2, 0), (2, 1), 1),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 4), (1, 2, 1), (1, 0, 2), (0, 1, 1), (1, 1, 1), 1),
    ((2, 3, 9, 40), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 3),
    ((2, 3, 9, 40), (3, 1, 3, 3), (2, 2), (0, 0), (1, 1), (1, 1), 3),
    ((2, 64, 5, 19), (70, 32, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 2),
    ((1, 32, 6, 7), (33, 32, 2, 2), (1, 2), (1, 0), (0, 0), (2, 1), 1),
    ((1, 2, 4, 9, 8), (2, 1, 3, 4, 3), (1, 3, 1), (1, 1, 1), (1, 1, 1), (1, 1, 2), 2),
]


def counts_of(x_shape, w_shape, stride, low, high, dilation):
    sizes = zip(x_shape[2:], w_shape[2:], stride, low, high, dilation)
    return tuple((n + p + q - d * (k - 1) - 1) // s + 1 for n, k, s, p, q, d in sizes)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values in the memory format of a dtype; bfloat16 as its bits."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def meaning(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def steps(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


class AtEnd:
    """Memory whose last byte is the last of a page that the next, which may not be read, follows."""

    def __init__(self, size: int):
        pages = -(-max(size, 1) // mmap.PAGESIZE)
        self.map = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        start = np.frombuffer(self.map, np.uint8).ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(start + pages * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
        self.bytes = np.frombuffer(self.map, np.uint8)[pages * mmap.PAGESIZE - size : pages * mmap.PAGESIZE]


def at_end(array: np.ndarray) -> np.ndarray:
    """A contiguous copy behind which memory may not be touched."""
    copy = AtEnd(array.nbytes).bytes.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run(lowered: Lowered, arrays: list[np.ndarray], threads: int = 1, rng=None) -> None:
    """Launches over the arrays; `rng` divides the units among thread numbers in a random order."""
    scratch = [np.full(size + 128, 0xFF, np.uint8) for size in lowered.scratch_bytes]  # NaN, or close to it
    addresses = [a.ctypes.data for a in arrays] + [-(-s.ctypes.data // 64) * 64 for s in scratch]
    for launch in lowered.launches:
        kernel = KERNEL(cache.address(launch.recipe.name, launch.recipe.parameters, launch.recipe.build))
        block = np.array(launch.params, np.int64)
        slots = np.array([*(addresses[i] for i in launch.buffers), block.ctypes.data], np.uint64)
        starts = list(range(0, launch.params[0], launch.params[1]))
        if rng is not None:
            rng.shuffle(starts)
        for number, start in enumerate(starts):
            kernel(slots.ctypes.data, start, min(start + launch.params[1], launch.params[0]), number % threads)
