"""Direct convolution against sums in double precision: kernels, strides, layouts, dtypes, instruction sets, divisions into units."""

from __future__ import annotations

import ctypes
import itertools
import mmap

import numpy as np
import pytest

from flambeau.kernel import cache
from flambeau.kernel import target as targets
from flambeau.kernel.compile import compile_object
from flambeau.templates.conv import convolution
from flambeau.templates.conv_depthwise import depthwise
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
    ((1, 2, 4, 9, 8), (2, 1, 3, 4, 3), (1, 3, 1), (1, 1, 1), (1, 1, 1), (1, 1, 2), 2),
]


def counts_of(x_shape, w_shape, stride, low, high, dilation):
    sizes = zip(x_shape[2:], w_shape[2:], stride, low, high, dilation)
    return tuple((n + p + q - d * (k - 1) - 1) // s + 1 for n, k, s, p, q, d in sizes)


def expected(x, w, bias, counts, stride, low, dilation, groups):
    """The sums in double precision and the sums of absolute values, which bound what rounding may change."""
    out, size = (np.zeros((x.shape[0], w.shape[0], *counts)) for _ in range(2))
    per, c = w.shape[0] // groups, w.shape[1]
    for t in itertools.product(*(range(n) for n in w.shape[2:])):
        for place in itertools.product(*(range(n) for n in counts)):
            at = [i * s + a * d - p for i, s, a, d, p in zip(place, stride, t, dilation, low)]
            if not all(0 <= a < n for a, n in zip(at, x.shape[2:])):
                continue
            for g in range(groups):
                taps = w[(slice(g * per, (g + 1) * per), slice(None), *t)]
                line = x[(slice(None), slice(g * c, (g + 1) * c), *at)]
                out[(slice(None), slice(g * per, (g + 1) * per), *place)] += line @ taps.T
                size[(slice(None), slice(g * per, (g + 1) * per), *place)] += abs(line) @ abs(taps.T)
    if bias is not None:
        out += bias.reshape(-1, *(1,) * len(counts))
        size += abs(bias).reshape(-1, *(1,) * len(counts))
    return out, size


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


def lowered_of(x, w, bias, counts, stride, low, dilation, groups, dtype, threads=1) -> Lowered:
    given = (x.shape, steps(x), w.shape, steps(w), counts, stride, low, dilation)
    bias_step = None if bias is None else steps(bias)[0]
    if w.shape[1] == 1 and groups > 1:
        return depthwise(*given, dtype, bias_step, threads=threads)
    return convolution(*given, groups, dtype, bias_step, threads=threads)


def convolved(x, w, bias, case, dtype, threads=1, rng=None) -> np.ndarray:
    x_shape, w_shape, stride, low, high, dilation, groups = case
    counts = counts_of(x_shape, w_shape, stride, low, high, dilation)
    out = at_end(np.full((x.shape[0], w.shape[0], *counts), 0x55, stored(np.zeros(()), dtype).dtype))
    lowered = lowered_of(x, w, bias, counts, stride, low, dilation, groups, dtype, threads)
    run(lowered, [x, w, *([] if bias is None else [bias]), out], threads, rng)
    return out


def operands(case, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x, w = (stored(rng.standard_normal(shape), dtype) for shape in case[:2])
    return x, w, stored(rng.standard_normal(case[1][0]), dtype)


def check(x, w, bias, case, dtype) -> None:
    x_shape, w_shape, stride, low, high, dilation, groups = case
    counts = counts_of(x_shape, w_shape, stride, low, high, dilation)
    wide = [None if a is None else meaning(a, dtype) for a in (x, w, bias)]
    want, size = expected(*wide, counts, stride, low, dilation, groups)
    got = meaning(convolved(x, w, bias, case, dtype), dtype)
    assert (
        abs(got - want) <= ERROR[dtype] * (size if dtype in ("float32", "float64") else abs(want) + size / 64)
    ).all()


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums(case, dtype, cpu):
    x, w, bias = operands(case, dtype)
    with targets.override(cpu):
        check(at_end(x), at_end(w), at_end(bias), case, dtype)
        check(at_end(x), at_end(w), None, case, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operands_with_gaps(case):
    x, w, bias = operands(case, "float32")
    for axis in (1, x.ndim - 1):
        twice = np.repeat(x, 2, axis)
        apart = twice[tuple(slice(None, None, 2) if d == axis else slice(None) for d in range(x.ndim))]
        check(apart, w, bias, case, "float32")
    check(np.asfortranarray(x), np.asfortranarray(w), np.repeat(bias, 3)[::3], case, "float32")
    check(
        np.broadcast_to(x[:1], x.shape),
        np.broadcast_to(w[:1], w.shape),
        np.broadcast_to(bias[:1], bias.shape),
        case,
        "float32",
    )


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize(
    "case", [*CASES[2:6], CASES[8], ((2, 40, 20, 33), (64, 40, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1)], ids=str
)
def test_threads_change_nothing(case, dtype):
    x, w, bias = operands(case, dtype)
    first = convolved(x, w, bias, case, dtype)
    for threads in (2, 3, 16):
        again = convolved(x, w, bias, case, dtype, threads, np.random.default_rng(threads))
        assert (again.view(np.uint8) == first.view(np.uint8)).all()


def test_not_a_number_stays_where_it_is():
    """Padding and what lies between rows is multiplied too: nothing of it may reach a place that does not read it."""
    case = CASES[2]
    x, w, bias = operands(case, "float32")
    x[1, 2, 3, 7] = np.nan
    out = convolved(x, w, bias, case, "float32")
    touched = np.isnan(out)
    want = np.zeros_like(touched)
    want[1, :, 2:5, 6:8] = True
    assert (touched == want).all()


@pytest.mark.parametrize("dtype", ERROR)
def test_other_machines_get_code(dtype):
    """Kernels for machines that cannot be run here, made into objects."""
    for name in ("neon", "x86-64-v2"):
        with targets.override(targets.NAMED[name]) as chosen:
            for case in (CASES[3], CASES[5], CASES[8]):
                x_shape, w_shape, stride, low, high, dilation, groups = case
                x, w, _ = operands(case, dtype)
                counts = counts_of(x_shape, w_shape, stride, low, high, dilation)
                for launch in lowered_of(x, w, None, counts, stride, low, dilation, groups, dtype).launches:
                    text = launch.recipe.build(chosen, *launch.recipe.parameters).text()
                    assert compile_object(text, chosen).startswith(b"\x7fELF")
