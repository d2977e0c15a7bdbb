"""Gradients of convolutions by weights against sums in double precision: kernels, strides, layouts, dtypes, instruction sets, units."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flambeau.kernel import target as targets
from flambeau.kernel.compile import compile_object
from flambeau.templates.conv_depthwise import depthwise_weight
from flambeau.templates.conv_weight import weight_gradient
from flambeau.templates.launch import Lowered
from tests.templates.conv_cases import CASES, ERROR, TARGETS, at_end, counts_of, meaning, run, steps, stored

MORE = [
    ((3, 20, 9, 30), (40, 20, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1),
    ((2, 3, 40, 41), (8, 3, 7, 7), (2, 2), (3, 3), (3, 3), (1, 1), 1),
    ((2, 4, 9, 33), (8, 1, 6, 6), (1, 1), (2, 2), (3, 3), (1, 1), 4),
]


def expected(x, g, case):
    """The sums in double precision and the sums of absolute values, which bound what rounding may change."""
    _, w_shape, stride, low, _, dilation, groups = case
    out, size = np.zeros(w_shape), np.zeros(w_shape)
    per, c = w_shape[0] // groups, w_shape[1]
    for t in itertools.product(*(range(n) for n in w_shape[2:])):
        for place in itertools.product(*(range(n) for n in g.shape[2:])):
            at = [i * s + a * d - p for i, s, a, d, p in zip(place, stride, t, dilation, low)]
            if not all(0 <= a < n for a, n in zip(at, x.shape[2:])):
                continue
            for k in range(groups):
                lines = g[(slice(None), slice(k * per, (k + 1) * per), *place)]
                read = x[(slice(None), slice(k * c, (k + 1) * c), *at)]
                out[(slice(k * per, (k + 1) * per), slice(None), *t)] += lines.T @ read
                size[(slice(k * per, (k + 1) * per), slice(None), *t)] += abs(lines).T @ abs(read)
    return out, size


def lowered_of(x, g, case, dtype, threads=1) -> Lowered:
    _, w_shape, stride, low, _, dilation, groups = case
    given = (x.shape, steps(x), g.shape, steps(g), w_shape[2:], stride, low, dilation)
    if w_shape[1] == 1 and groups > 1:
        return depthwise_weight(*given, dtype, threads=threads)
    return weight_gradient(*given, groups, dtype, threads=threads)


def gradient(x, g, case, dtype, threads=1, rng=None) -> np.ndarray:
    out = at_end(np.full(case[1], 0x55, stored(np.zeros(()), dtype).dtype))
    run(lowered_of(x, g, case, dtype, threads), [x, g, out], threads, rng)
    return out


def operands(case, dtype, seed=0):
    x_shape, w_shape, stride, low, high, dilation, _ = case
    rng = np.random.default_rng(seed)
    g_shape = (x_shape[0], w_shape[0], *counts_of(x_shape, w_shape, stride, low, high, dilation))
    return stored(rng.standard_normal(x_shape), dtype), stored(rng.standard_normal(g_shape), dtype)


def check(x, g, case, dtype) -> None:
    want, size = expected(meaning(x, dtype), meaning(g, dtype), case)
    got = meaning(gradient(x, g, case, dtype), dtype)
    exact = dtype in ("float32", "float64")
    assert (abs(got - want) <= ERROR[dtype] * (size if exact else abs(want) + size / 64) + 1e-30).all()


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("case", CASES + MORE, ids=str)
def test_sums(case, dtype, cpu):
    x, g = operands(case, dtype)
    with targets.override(cpu):
        check(at_end(x), at_end(g), case, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operands_with_gaps(case):
    x, g = operands(case, "float32")
    for axis in (1, x.ndim - 1):
        index = tuple(slice(None, None, 2) if d == axis else slice(None) for d in range(x.ndim))
        check(np.repeat(x, 2, axis)[index], np.repeat(g, 2, axis)[index], case, "float32")
    check(np.asfortranarray(x), np.asfortranarray(g), case, "float32")
    channels_last = np.ascontiguousarray(np.moveaxis(g, 1, -1))
    check(x, np.moveaxis(channels_last, -1, 1), case, "float32")
    check(x, np.broadcast_to(g[(slice(None), slice(None), *(slice(1),) * (g.ndim - 2))], g.shape), case, "float32")


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("case", [*CASES[2:6], CASES[8], *MORE], ids=str)
def test_threads_change_nothing(case, dtype):
    x, g = operands(case, dtype)
    first = gradient(x, g, case, dtype)
    for threads in (2, 3, 16):
        again = gradient(x, g, case, dtype, threads, np.random.default_rng(threads))
        assert (again.view(np.uint8) == first.view(np.uint8)).all()


@pytest.mark.parametrize(("outs", "groups"), [(6, 1), (3, 3)])
def test_not_a_number_stays_where_it_is(outs, groups):
    """An element that one tap alone reads is in the sums of that tap alone."""
    case = ((2, 3, 9, 40), (outs, 3 // groups, 3, 3), (1, 1), (0, 0), (0, 0), (1, 1), groups)
    x, g = operands(case, "float32")
    x[1, 1, 0, 39] = np.nan
    touched = np.isnan(gradient(x, g, case, "float32"))
    want = np.zeros_like(touched)
    want[(1, 0, 0, 2) if groups == 3 else (slice(None), 1, 0, 2)] = True
    assert (touched == want).all()


@pytest.mark.parametrize("dtype", ERROR)
def test_other_machines_get_code(dtype):
    """Kernels for machines that cannot be run here, made into objects."""
    for name in ("neon", "x86-64-v2"):
        with targets.override(targets.NAMED[name]) as chosen:
            for case in (CASES[3], CASES[5], CASES[8]):
                for launch in lowered_of(*operands(case, dtype), case, dtype).launches:
                    text = launch.recipe.build(chosen, *launch.recipe.parameters).text()
                    assert compile_object(text, chosen).startswith(b"\x7fELF")
