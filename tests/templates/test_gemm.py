"""gemm against NumPy in double precision: sizes, layouts, batches, dtypes, instruction sets, divisions into units."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from flambeau.base.record import replace
from flambeau.core import dtype as dtypes
from flambeau.kernel import cache
from flambeau.kernel import target as targets
from flambeau.kernel.compile import compile_object
from flambeau.runtime import launch as runtime
from flambeau.templates import gemm_vector_tiles
from flambeau.templates.gemm import gemm
from flambeau.templates.launch import Lowered

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
NATIVE = targets.current()
TARGETS = ["native", "avx2"] if NATIVE.arch == "x86_64" else ["native"]
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
COMPLEX = ("complex64", "complex128")
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
EPSILON |= {"complex64": EPSILON["float32"], "complex128": EPSILON["float64"]}


def storage(dtype: str) -> type:
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values in the memory format of a dtype; bfloat16 as its bits, rounded to nearest even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored


def wide(values: np.ndarray) -> np.ndarray:
    kind = values.dtype.kind
    return values.astype({"f": np.float64, "c": np.complex128}.get(kind, np.int64))


def operand(rng: np.random.Generator, shape: tuple[int, ...], layout: str, dtype: str) -> np.ndarray:
    """A random array whose last two strides are of a class; the values are exact in the dtype."""
    *batch, rows, columns = shape
    sizes = {
        "row": (rows, columns),
        "column": (columns, rows),
        "slice": (rows, columns + 5),
        "column slice": (columns, rows + 3),
        "strided": (rows, 2 * columns + 1),
        "row broadcast": (1, columns),
        "column broadcast": (rows, 1),
    }[layout]
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        values = rng.integers(info.min, info.max, (*batch, *sizes), dtype=dtype, endpoint=True)
    else:
        values = rng.standard_normal((*batch, *sizes))
        if dtype in COMPLEX:
            values = values + 1j * rng.standard_normal((*batch, *sizes))
        values = encode(values, dtype)
    if layout in ("column", "column slice"):
        values = np.swapaxes(values, -1, -2)[..., :rows, :]
    elif layout == "slice":
        values = values[..., 3 : 3 + columns]
    elif layout == "strided":
        values = values[..., : 2 * columns : 2]
    return np.broadcast_to(values, shape)


def run(lowered: Lowered, arrays: list[np.ndarray], threads: int = 1, rng: np.random.Generator | None = None) -> None:
    """Launches over the arrays; `threads` and `rng` divide the units among thread numbers in a random order."""
    scratch = [np.full(size + 4096, 0xFF, np.uint8) for size in lowered.scratch_bytes]
    addresses = [a.ctypes.data for a in arrays] + [-(-s.ctypes.data // 64) * 64 for s in scratch]
    for launch in lowered.launches:
        kernel = KERNEL(cache.address(launch.recipe.name, launch.recipe.parameters, launch.recipe.build))
        block = np.array(launch.params, np.int64)
        slots = np.array([*(addresses[i] for i in launch.buffers), block.ctypes.data], np.uint64)
        total, grain = launch.params[:2]
        if threads == 1 or total <= grain:
            kernel(slots.ctypes.data, 0, total, 0)
            continue
        starts = list(range(0, total, grain))
        if rng is not None:
            rng.shuffle(starts)
        for number, start in enumerate(starts):
            kernel(slots.ctypes.data, start, min(start + grain, total), number % threads)


def elements(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


def product(a, b, dtype: str, *, bias=None, accumulate=False, out=None, threads: int = 1, rng=None) -> np.ndarray:
    """out = a @ b through the template, as stored; a fresh contiguous out unless one is given."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m, k, n = *a.shape[-2:], b.shape[-1]
    a, b = np.broadcast_to(a, (*batch, m, k)), np.broadcast_to(b, (*batch, k, n))
    if out is None:
        out = np.full((*batch, m, n), 0x55, storage(dtype))
    lowered = gemm(
        m, n, k, elements(a)[-2:], elements(b)[-2:], getattr(dtypes, dtype), batch=batch, a_batch_strides=elements(a)[:-2],
        b_batch_strides=elements(b)[:-2], out_strides=elements(out), accumulate=accumulate,
        bias_stride=None if bias is None else elements(bias)[0], threads=threads,
    )  # fmt: skip
    run(lowered, [a, b, *([] if bias is None else [bias]), out], threads, rng)
    return out


def expected(a, b, dtype: str, *, bias=None, old=None) -> tuple[np.ndarray, np.ndarray]:
    """The product in double precision (integers: wrapped) and the error allowed for each element."""
    x, y = wide(decode(a, dtype)), wide(decode(b, dtype))
    with np.errstate(invalid="ignore"):
        value = x @ y
        size = abs(x) @ abs(y)
    for term in (bias, old):
        if term is not None:
            value = value + wide(decode(term, dtype))
            size = size + abs(wide(decode(term, dtype)))
    if dtype in INTEGERS:
        return value.astype(dtype), np.zeros(())
    inner = {"float16": "float32", "bfloat16": "float32"}.get(dtype, dtype)
    factor = 4 if dtype in COMPLEX else 1
    return value, factor * (abs(value) * EPSILON[dtype] / 2 + size * EPSILON[inner] * (4 + x.shape[-1] ** 0.5)) + 1e-30


def check(a, b, dtype: str, *, bias=None, old=None, **options) -> None:
    want, allowed = expected(a, b, dtype, bias=bias, old=old)
    got = wide(decode(product(a, b, dtype, bias=bias, **options), dtype))
    error = abs(got - want)
    bad = ~(error <= allowed)
    assert not bad.any(), (f"{dtype} {a.shape} {a.strides} @ {b.shape} {b.strides}: {bad.sum()} of {bad.size} wrong, first at "
                           f"{np.argwhere(bad)[0]}, got {got[bad][0]} not {want[bad][0]}")  # fmt: skip


@pytest.fixture
def rng(request) -> np.random.Generator:
    return np.random.default_rng(sum(map(ord, request.node.name)))


@pytest.fixture(params=TARGETS)
def target(request):
    with targets.override(request.param) as chosen:
        yield chosen


LAYOUTS = ("row", "column", "slice", "column slice", "strided", "row broadcast", "column broadcast")


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_sizes(dtype, target, rng):
    for _ in range(10):
        m, n, k = rng.integers(1, 71, 3)
        check(operand(rng, (m, k), "row", dtype), operand(rng, (k, n), "row", dtype), dtype)


@pytest.mark.skipif(not NATIVE.has("amx-bf16"), reason="the other tests have no tiles either")
def test_bfloat16_without_tiles(rng):
    with targets.override("avx512"):
        for m, n, k in ((13, 70, 50), (33, 20, 500), (2, 300, 1000)):
            for layout in ("row", "column"):
                check(operand(rng, (m, k), "row", "bfloat16"), operand(rng, (k, n), layout, "bfloat16"), "bfloat16")


@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_layouts(layout_a, target, rng):
    for layout_b in LAYOUTS:
        m, n, k = rng.integers(1, 71, 3)
        check(operand(rng, (m, k), layout_a, "float32"), operand(rng, (k, n), layout_b, "float32"), "float32")


@pytest.mark.parametrize("dtype", ("float64", "float16", "bfloat16", "int8", "int64"))
def test_layouts_of_other_types(dtype, rng):
    for layout_a, layout_b in itertools.product(("row", "column", "strided"), repeat=2):
        m, n, k = rng.integers(1, 71, 3)
        check(operand(rng, (m, k), layout_a, dtype), operand(rng, (k, n), layout_b, dtype), dtype)


def test_int8_to_int32(target, rng):
    for m, n, k in ((5, 7, 3), (70, 90, 130), (8, 1000, 300), (33, 40, 9000)):
        for layouts in itertools.product(("row", "column", "strided"), repeat=2):
            a, b = operand(rng, (m, k), layouts[0], "int8"), operand(rng, (k, n), layouts[1], "int8")
            out = np.full((m, n), 7, np.int32)
            lowered = gemm(m, n, k, elements(a), elements(b), dtypes.int8, out_dtype=dtypes.int32, threads=2)
            run(lowered, [a, b, out], 2, rng)
            assert (out == wide(a) @ wide(b)).all()


@pytest.mark.skipif(NATIVE.arch != "x86_64", reason="instructions of x86")
@pytest.mark.parametrize(
    "cpu", ("native,-amx-tile", "native,-amx-tile,-avx512f", "native,-amx-tile,-avx512vnni,-avxvnni")
)
def test_dot_products_without_tiles(cpu, rng):
    """VNNI in vectors of 64 and 32 bytes, and neither."""
    with targets.override(cpu):
        test_int8_to_int32(targets.current(), rng)
        for m, n, k in ((1, 1, 1), (17, 33, 5), (45, 70, 200), (33, 20, 5000)):
            a, b = operand(rng, (m, k), "row", "int8"), operand(rng, (k, n), "column", "int8")
            check(a, b, "int8", threads=2, rng=rng)
            check(a, b, "int8", out=np.ascontiguousarray(operand(rng, (n, m), "row", "int8")).T)
        extreme = np.full((40, 90), -128, np.int8)
        check(extreme, np.ascontiguousarray(extreme.T), "int8")


@pytest.mark.skipif(not NATIVE.has("avx512bf16"), reason="needs AVX512-BF16")
def test_bfloat16_products_in_pairs(rng):
    with targets.override(replace(NATIVE.without("amx-tile"), cpu="znver4")) as chosen:
        assert gemm_vector_tiles.serves("bfloat16", chosen)
        for m, n, k in ((1, 1, 1), (17, 33, 5), (45, 70, 200), (33, 20, 5000)):
            for layout in ("row", "column"):
                check(
                    operand(rng, (m, k), layout, "bfloat16"),
                    operand(rng, (k, n), layout, "bfloat16"),
                    "bfloat16",
                    threads=2,
                    rng=rng,
                )


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex(dtype, rng):
    for layout_a, layout_b in itertools.product(("row", "column", "strided", "slice"), repeat=2):
        m, n, k = rng.integers(1, 40, 3)
        a, b = operand(rng, (3, m, k), layout_a, dtype), operand(rng, (1, k, n), layout_b, dtype)
        bias, spread = operand(rng, (1, n), "row", dtype)[0], operand(rng, (1, n), "strided", dtype)[0]
        old = np.ascontiguousarray(operand(rng, (3, m, n), "row", dtype))
        check(a, b, dtype, bias=bias, threads=2, rng=rng)
        check(a, b, dtype, bias=spread, accumulate=True, old=old.copy(), out=old)
        turned = np.ascontiguousarray(operand(rng, (n, m, 3), "row", dtype)).T
        check(a, b, dtype, bias=bias, out=turned)
        holder = np.ascontiguousarray(operand(rng, (3, m, 3 * n), "row", dtype))
        check(a, b, dtype, bias=spread, accumulate=True, old=holder[..., ::3].copy(), out=holder[..., ::3])
    assert (product(np.zeros((3, 0), dtype), np.zeros((0, 4), dtype), dtype) == 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(300, 200, 1000), (129, 1030, 415), (600, 33, 70), (14, 600, 900)], ids=str)
def test_larger(dtype, shape, rng):
    m, n, k = shape
    check(operand(rng, (m, k), "row", dtype), operand(rng, (k, n), "row", dtype), dtype, threads=3, rng=rng)
    check(operand(rng, (m, k), "column", dtype), operand(rng, (k, n), "column", dtype), dtype, threads=2, rng=rng)


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
def test_few_rows_past_a_long_matrix(dtype, target, rng):
    for m in (1, 2, 5, 17, 40):
        n, k = 701, 1000 + m
        for layout in ("row", "column"):
            check(operand(rng, (m, k), "row", dtype), operand(rng, (k, n), layout, dtype), dtype, threads=2, rng=rng)
        check(operand(rng, (n, k), "row", dtype), operand(rng, (k, m), "row", dtype), dtype, threads=2, rng=rng)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_few_rows_that_do_not_fit_a_cache(dtype, target, rng):
    with targets.override("avx512" if target is NATIVE and dtype == "bfloat16" else target):  # its tiles go another way
        for m, n, k in ((1, 60, 13001), (4, 130, 4100), (10, 600, 700)):
            for layout in ("row", "strided"):
                a, b = operand(rng, (2, m, k), layout, dtype), operand(rng, (k, n), "column", dtype)
                bias = operand(rng, (1, n), "row", dtype)[0]
                old = np.ascontiguousarray(operand(rng, (2, m, n), "row", dtype))
                check(a, b, dtype, bias=bias, accumulate=True, old=old.copy(), out=old, threads=2, rng=rng)


def test_few_columns(target, rng):
    for m, n, k in itertools.product((1, 7, 37), (1, 8, 17), (1, 40)):
        check(operand(rng, (m, k), "row", "float32"), operand(rng, (k, n), "row", "float32"), "float32")
        check(operand(rng, (m, k), "column", "float32"), operand(rng, (k, n), "slice", "float32"), "float32")


@pytest.mark.parametrize("dtype", ("float32", "float64", "bfloat16", "int16", "complex64"))
def test_deep(dtype, rng):
    for m, n, k in ((1, 1, 70001), (5, 9, 12345), (40, 30, 8192)):
        a, b = operand(rng, (m, k), "row", dtype), operand(rng, (k, n), "row", dtype)
        old = np.ascontiguousarray(operand(rng, (m, n), "row", dtype))
        check(
            a,
            b,
            dtype,
            threads=3,
            rng=rng,
            bias=operand(rng, (1, n), "row", dtype)[0],
            accumulate=True,
            old=old.copy(),
            out=old,
        )
    check(operand(rng, (2, 3, 9000), "column", dtype), operand(rng, (9000, 4), "column", dtype), dtype)


def test_empty(target, rng):
    for dtype in ("float32", "bfloat16", "int32"):
        for m, n, k in ((0, 3, 4), (3, 0, 4), (0, 0, 0)):
            assert product(np.zeros((m, k), storage(dtype)), np.zeros((k, n), storage(dtype)), dtype).shape == (m, n)
        for m, n in ((1, 1), (5, 7), (40, 70), (1, 100)):
            a, b = np.zeros((m, 0), storage(dtype)), np.zeros((0, n), storage(dtype))
            assert not product(a, b, dtype).any()
            bias = operand(rng, (1, n), "row", dtype)[0]
            assert (product(a, b, dtype, bias=bias) == bias).all()


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16", "int16"))
def test_bias_and_accumulate(dtype, target, rng):
    for m, n, k in ((5, 7, 9), (33, 65, 40), (1, 200, 64), (20, 40, 900)):
        a, b = operand(rng, (m, k), "row", dtype), operand(rng, (k, n), "column", dtype)
        bias, spread = operand(rng, (1, n), "row", dtype)[0], operand(rng, (1, n), "strided", dtype)[0]
        check(a, b, dtype, bias=bias)
        check(a, b, dtype, bias=spread)
        old = np.ascontiguousarray(operand(rng, (m, n), "row", dtype))
        check(a, b, dtype, accumulate=True, old=old.copy(), out=old)
        old = np.ascontiguousarray(operand(rng, (m, n), "row", dtype))
        check(a, b, dtype, bias=bias, accumulate=True, old=old.copy(), out=old)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "int64"))
def test_batches(dtype, target, rng):
    for shape_a, shape_b in (
        ((3, 5, 7), (3, 7, 4)),
        ((2, 3, 17, 9), (1, 3, 9, 20)),
        ((2, 1, 33, 40), (1, 4, 40, 35)),
        ((6, 20, 30), (30, 40)),
        ((20, 30), (4, 30, 7)),
        ((5, 1, 12), (5, 12, 1)),
        ((5, 1, 12), (12, 6)),
        ((2, 2, 2, 3, 4), (2, 1, 2, 4, 5)),
    ):
        check(operand(rng, shape_a, "row", dtype), operand(rng, shape_b, "row", dtype), dtype, threads=2, rng=rng)
        check(operand(rng, shape_a, "column", dtype), operand(rng, shape_b, "slice", dtype), dtype)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "int8"))
def test_strided_results(dtype, target, rng):
    for m, n, k in ((5, 7, 9), (33, 65, 40), (1, 40, 70), (40, 1, 70), (70, 64, 400)):
        a, b = operand(rng, (m, k), "row", dtype), operand(rng, (k, n), "row", dtype)
        transposed = np.full((n, m), 0x55, storage(dtype)).T
        check(a, b, dtype, out=transposed)
        holder = np.full((m, 3 * n), 0x55, storage(dtype))
        check(a, b, dtype, out=holder[:, 1::3])
        assert (holder[:, 0::3] == 0x55).all() and (holder[:, 2::3] == 0x55).all()
        slack = np.full((m, n + 9), 0x55, storage(dtype))
        check(a, b, dtype, out=slack[:, 4 : 4 + n])
        assert (slack[:, :4] == 0x55).all() and (slack[:, 4 + n :] == 0x55).all()


def test_nothing_outside_operands_is_used(target, rng):
    """NaN around the operands must not reach the result, nor a NaN in one row the others."""
    for m, n, k in ((5, 7, 9), (33, 65, 40), (1, 100, 64), (20, 33, 400), (4, 257, 31), (100, 3, 50)):
        for layout_a, layout_b in itertools.product(("row", "column"), repeat=2):
            frames = []
            for rows, columns, layout in ((m, k, layout_a), (k, n, layout_b)):
                frame = np.full((rows + 40, columns + 40), np.nan, np.float32, order="C" if layout == "row" else "F")
                frame[20:-20, 20:-20] = rng.standard_normal((rows, columns))
                frames.append(frame[20:-20, 20:-20])
            check(*frames, "float32")


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_inf_propagate(dtype, target, rng):
    for m, n, k in ((5, 7, 9), (40, 70, 50), (1, 64, 64), (2, 300, 130)):
        a, b = (rng.standard_normal(s) for s in ((m, k), (k, n)))
        a[m // 2, k // 3], b[k // 2, n // 3] = np.inf, np.nan
        a, b = encode(a, dtype), encode(b, dtype)
        got = decode(product(a, b, dtype), dtype)
        with np.errstate(invalid="ignore"):
            want = decode(a, dtype).astype(np.float64) @ decode(b, dtype).astype(np.float64)
        assert (np.isnan(got) == np.isnan(want)).all()
        assert (np.isposinf(got) == np.isposinf(want)).all() and (np.isneginf(got) == np.isneginf(want)).all()


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize(
    "shape",
    [(64, 64, 64), (300, 500, 800), (1, 2000, 700), (8, 1000, 500), (6, 500, 3001), (2000, 5, 300), (3, 4, 40000)],
    ids=str,
)
def test_threads_change_nothing(dtype, shape, rng):
    m, n, k = shape
    a, b = operand(rng, (m, k), "row", dtype), operand(rng, (k, n), "column", dtype)
    first = product(a, b, dtype)
    for threads in (2, 3, 16, 64):
        assert (product(a, b, dtype, threads=threads, rng=rng).view(np.uint8) == first.view(np.uint8)).all()


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "int64"))
def test_other_machines_get_code(dtype):
    """Kernels for machines that cannot be run here, made into objects."""
    for name in ("neon", "x86-64-v2"):
        with targets.override(targets.NAMED[name]) as chosen:
            for m, n, k in ((64, 64, 64), (1, 2000, 500), (300, 300, 300)):
                lowered = gemm(m, n, k, (k, 1), (1, k), getattr(dtypes, dtype), threads=1)
                for launch in lowered.launches:
                    text = launch.recipe.build(chosen, *launch.recipe.parameters).text()
                    assert compile_object(text, chosen).startswith(b"\x7fELF")


def test_thread_pool_gives_the_same(rng):
    threads = runtime.get_num_threads()
    a, b = operand(rng, (300, 400), "row", "float32"), operand(rng, (400, 500), "row", "float32")
    want, got = product(a, b, "float32"), np.zeros((300, 500), np.float32)
    lowered = gemm(300, 500, 400, (400, 1), (500, 1), dtypes.float32, threads=2)
    scratch = [np.zeros(size + 64, np.uint8) for size in lowered.scratch_bytes]
    addresses = [a.ctypes.data, b.ctypes.data, got.ctypes.data] + [-(-s.ctypes.data // 64) * 64 for s in scratch]
    runtime.set_num_threads(2)
    try:
        for launch in lowered.launches:
            block = runtime.block(launch.params)
            entry = runtime.entry(cache.address(launch.recipe.name, launch.recipe.parameters, launch.recipe.build))
            entry(*(addresses[i] for i in launch.buffers), block.address)
    finally:
        runtime.set_num_threads(threads)
    assert (got == want).all()


def test_new_sizes_compile_nothing():
    def recipes(m, n, k):
        return {launch.recipe for launch in gemm(m, n, k, (k, 1), (n, 1), dtypes.float32, threads=2).launches}

    seen = set()
    for m, n, k in itertools.product((20, 33, 100, 517, 1024), repeat=3):
        seen |= recipes(m, n, k)
    assert len(seen) <= 8
