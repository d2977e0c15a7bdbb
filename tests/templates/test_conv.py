"""Direct convolution against sums in double precision: kernels, strides, layouts, dtypes, instruction sets, divisions into units."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flambeau.base.record import replace
from flambeau.kernel import target as targets
from flambeau.kernel.compile import compile_object
from flambeau.templates import conv_amx
from flambeau.templates.conv import convolution
from flambeau.templates.conv_depthwise import depthwise
from flambeau.templates.launch import Lowered
from tests.templates.conv_cases import CASES, ERROR, TARGETS, at_end, counts_of, meaning, run, steps, stored


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


@pytest.mark.skipif(not targets.host().has("avx512bf16"), reason="needs AVX512-BF16")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_in_pairs_without_tiles(case):
    x, w, bias = operands(case, "bfloat16")
    with targets.override(replace(targets.host().without("amx-tile"), cpu="znver4")) as chosen:
        assert conv_amx.serves("bfloat16", chosen)
        check(at_end(x), at_end(w), at_end(bias), case, "bfloat16")
        check(x[:, :, ::-1], w[::-1], bias[::-1], case, "bfloat16")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_with_gaps(case):
    x, w, bias = operands(case, "bfloat16")
    apart = np.repeat(x, 2, 1)[:, ::2]
    check(apart, np.asfortranarray(w), np.repeat(bias, 3)[::3], case, "bfloat16")
    check(x[:, :, ::-1], w[::-1, ::-1], bias[::-1], case, "bfloat16")
    check(np.broadcast_to(x[:1], x.shape), np.broadcast_to(w[:1, :1], w.shape), bias, case, "bfloat16")


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
