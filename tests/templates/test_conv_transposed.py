"""Transposed convolution against sums in double precision: kernels, strides, layouts, dtypes, instruction sets, units."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flambeau.kernel import target as targets
from flambeau.kernel.compile import compile_object
from flambeau.templates.conv_transposed import depthwise_transposed, transposed_convolution
from flambeau.templates.launch import Lowered
from tests.templates.conv_cases import ERROR, TARGETS, at_end, meaning, run, steps, stored

# y [N, O, *windows], w [O, C / groups, *kernel], then sizes, stride, low, dilation, groups
CASES = [
    ((2, 6, 5), (6, 4, 3), (11,), (2,), (1,), (1,), 1),
    ((1, 4, 30), (4, 3, 16), (126,), (4,), (6,), (1,), 2),
    ((2, 17, 7, 8), (17, 5, 3, 3), (7, 8), (1, 1), (1, 1), (1, 1), 1),
    ((2, 9, 7, 20), (9, 31, 3, 3), (13, 40), (2, 2), (1, 1), (1, 1), 1),
    ((2, 9, 7, 20), (9, 5, 1, 1), (14, 39), (2, 2), (0, 0), (1, 1), 1),
    ((2, 30, 7, 9), (30, 47, 1, 1), (7, 9), (1, 1), (0, 0), (1, 1), 1),
    ((1, 6, 6, 9), (6, 2, 2, 5), (20, 18), (3, 2), (0, 2), (1, 2), 3),
    ((1, 4, 5, 6), (4, 2, 3, 3), (13, 19), (3, 4), (1, -2), (2, 2), 1),
    ((1, 3, 3, 4, 5), (3, 2, 2, 3, 4), (6, 4, 11), (2, 1, 2), (0, 1, 1), (1, 1, 1), 1),
    ((2, 3, 9, 20), (3, 1, 3, 3), (17, 40), (2, 2), (1, 1), (1, 1), 3),
    ((2, 3, 9, 20), (3, 1, 5, 5), (17, 39), (2, 2), (2, 2), (1, 1), 3),
    ((1, 3, 7, 5), (3, 1, 2, 3), (23, 16), (3, 3), (-1, 0), (2, 1), 3),
    ((1, 3, 7, 50), (3, 1, 2, 3), (10, 50), (2, 1), (1, 1), (1, 1), 3),
    ((1, 3, 7, 5), (3, 1, 3, 3), (14, 1), (2, 2), (1, 0), (1, 1), 3),
    ((1, 2, 40), (2, 1, 4), (79,), (2,), (1,), (1,), 2),
    ((1, 2, 2, 3, 9), (2, 1, 2, 3, 4), (4, 6, 18), (2, 2, 2), (0, 1, 1), (1, 1, 1), 2),
    ((1, 2, 4, 4), (2, 2, 3, 3), (1, 9), (2, 2), (1, 0), (1, 1), 1),
]


def expected(y, w, case):
    """The sums in double precision and the sums of absolute values, which bound what rounding may change."""
    _, w_shape, sizes, stride, low, dilation, groups = case
    out, size = (np.zeros((y.shape[0], w_shape[1] * groups, *sizes)) for _ in range(2))
    per, c = w_shape[0] // groups, w_shape[1]
    for t in itertools.product(*(range(n) for n in w_shape[2:])):
        for place in itertools.product(*(range(n) for n in y.shape[2:])):
            at = [i * s + a * d - p for i, s, a, d, p in zip(place, stride, t, dilation, low)]
            if not all(0 <= a < n for a, n in zip(at, sizes)):
                continue
            for k in range(groups):
                taps = w[(slice(k * per, (k + 1) * per), slice(None), *t)]
                line = y[(slice(None), slice(k * per, (k + 1) * per), *place)]
                out[(slice(None), slice(k * c, (k + 1) * c), *at)] += line @ taps
                size[(slice(None), slice(k * c, (k + 1) * c), *at)] += abs(line) @ abs(taps)
    return out, size


def lowered_of(y, w, case, dtype, threads=1) -> Lowered:
    if case[-1] > 1 and w.shape[:2] == (case[-1], 1):
        return depthwise_transposed(y.shape, steps(y), w.shape, steps(w), *case[2:-1], dtype, threads=threads)
    return transposed_convolution(y.shape, steps(y), w.shape, steps(w), *case[2:], dtype, threads=threads)


def result(y, w, case, dtype, threads=1, rng=None) -> np.ndarray:
    shape = (y.shape[0], w.shape[1] * case[-1], *case[2])
    out = at_end(np.full(shape, 0x55, stored(np.zeros(()), dtype).dtype))
    run(lowered_of(y, w, case, dtype, threads), [y, w, out], threads, rng)
    return out


def operands(case, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(stored(rng.standard_normal(shape), dtype) for shape in case[:2])


def check(y, w, case, dtype) -> None:
    want, size = expected(meaning(y, dtype), meaning(w, dtype), case)
    got = meaning(result(y, w, case, dtype), dtype)
    exact = dtype in ("float32", "float64")
    assert (abs(got - want) <= ERROR[dtype] * (size if exact else abs(want) + size / 64)).all()


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums(case, dtype, cpu):
    y, w = operands(case, dtype)
    with targets.override(cpu):
        check(at_end(y), at_end(w), case, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operands_with_gaps(case):
    y, w = operands(case, "float32")
    for axis in (1, y.ndim - 1):
        index = tuple(slice(None, None, 2) if d == axis else slice(None) for d in range(y.ndim))
        check(np.repeat(y, 2, axis)[index], np.repeat(w, 2, axis)[index], case, "float32")
    check(np.asfortranarray(y), np.asfortranarray(w), case, "float32")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_threads_change_nothing(case):
    y, w = operands(case, "float32")
    first = result(y, w, case, "float32")
    for threads in (2, 3, 16):
        again = result(y, w, case, "float32", threads, np.random.default_rng(threads))
        assert (again.view(np.uint8) == first.view(np.uint8)).all()


@pytest.mark.parametrize("dtype", ERROR)
def test_other_machines_get_code(dtype):
    """Kernels for machines that cannot be run here, made into objects."""
    for name in ("neon", "x86-64-v2"):
        with targets.override(targets.NAMED[name]) as chosen:
            for case in (CASES[3], CASES[8]):
                for launch in lowered_of(*operands(case, dtype), case, dtype).launches:
                    text = launch.recipe.build(chosen, *launch.recipe.parameters).text()
                    assert compile_object(text, chosen).startswith(b"\x7fELF")
