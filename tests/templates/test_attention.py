"""Attention's kernels against double precision: forward, backward, few queries; dtypes, instruction sets, shapes, divisions into units."""

from __future__ import annotations

import numpy as np
import pytest

from flambeau.kernel import target as targets
from flambeau.templates.attention_backward import lower_backward
from flambeau.templates.attention_decode import lower_decode, suits
from flambeau.templates.attention_forward import lower_forward
from flambeau.templates.attention_problem import Problem
from tests.templates.conv_cases import TARGETS, at_end, meaning, run, steps, stored

ERROR = {"float32": 3e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1e-2}

# batch, heads of keys, group, queries, keys, size, size of values, causal, shift
CASES = [
    (1, 2, 1, 100, 100, 64, 64, False, 0),
    (2, 2, 2, 57, 130, 20, 12, True, 10),
    (1, 1, 1, 150, 129, 80, 33, True, -40),
    (1, 1, 3, 35, 300, 7, 70, False, 0),
]
FEW = [(2, 2, 4, 1, 300, 64, 64, False, 0), (1, 3, 1, 5, 1100, 20, 12, True, 900), (1, 1, 2, 4, 3, 8, 8, True, -2)]


def operands(case, dtype):
    batch, heads, group, rows, columns, size, value_size, causal, shift = case
    rng = np.random.default_rng(7)
    shapes = (
        (batch, heads * group, rows, size),
        (batch, heads, columns, size),
        (batch, heads, columns, value_size),
        (batch, heads * group, rows, value_size),
    )
    q, k, v, g = (at_end(stored(rng.standard_normal(s), dtype)) for s in shapes)
    kept = np.float64 if dtype == "float64" else np.float32
    out, lse, most = (
        at_end(np.full(s, 0x55, t)) for s, t in ((shapes[3], q.dtype), (shapes[3][:3], kept), (shapes[3][:3], kept))
    )
    g_lse = at_end(rng.standard_normal(shapes[3][:3]).astype(kept))
    problem = Problem(
        batch,
        heads,
        group,
        rows,
        columns,
        size,
        value_size,
        dtype,
        *map(steps, (q, k, v, out)),
        size**-0.5,
        causal,
        shift,
        None,
    )
    return problem, (q, k, v, g, g_lse), (out, lse, most)


def expected(problem: Problem, given, dtype):
    """(out, lse, gradients by q, k, v), every score written out."""
    q, k, v, g = (meaning(x, dtype) for x in given[:4])
    wide_k, wide_v = (np.repeat(x, problem.group, 1) for x in (k, v))
    x = q @ wide_k.swapaxes(-1, -2) * problem.scale
    if problem.causal:
        seen = np.arange(problem.columns) <= np.arange(problem.rows)[:, None] + problem.shift
        x = np.where(seen, x, -np.inf)
    most = x.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(x - np.where(np.isinf(most), 0, most))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        lse = (most + np.log(total))[..., 0]
    out = p @ wide_v
    d = p * (g @ wide_v.swapaxes(-1, -2) - ((g * out).sum(-1) - given[4])[..., None]) * problem.scale

    def over_group(y):
        return y.reshape(problem.batch, problem.heads, problem.group, *y.shape[2:]).sum(2)

    return out, lse, (d @ wide_k, over_group(d.swapaxes(-1, -2) @ q), over_group(p.swapaxes(-1, -2) @ g))


def close(found: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    assert np.abs(meaning(found, dtype) - wanted).max(initial=0) <= ERROR[dtype] * max(1, np.abs(wanted).max(initial=0))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", list(ERROR))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_backward(case, dtype, name):
    with targets.override(name):
        problem, given, results = operands(case, dtype)
        out, lse, gradients = expected(problem, given, dtype)
        run(lower_forward(problem, targets.current(), 2), [*given[:3], *results], 2, np.random.default_rng(1))
        close(results[0], out, dtype)
        finite = np.isfinite(lse)
        assert (np.isfinite(results[1]) == finite).all()
        kept = "float64" if dtype == "float64" else "float32"
        close(results[1][finite], lse[finite], kept)
        q, k, v, g, g_lse = given
        found = [at_end(np.full(x.shape, 0x55, x.dtype)) for x in (q, k, v)]
        lowered = lower_backward(
            problem,
            targets.current(),
            2,
            steps(g),
            *map(steps, found),
            statistics=(steps(results[1]), steps(g_lse)),
        )
        run(lowered, [g, g_lse, q, k, v, *results[:2], *found], 2, np.random.default_rng(2))
        for x, wanted in zip(found, gradients):
            close(x, wanted, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_divisions_change_no_bit(dtype):
    case = CASES[1]
    found = []
    for seed in range(2):
        problem, given, results = operands(case, dtype)
        run(lower_forward(problem, targets.current(), 4), [*given[:3], *results], 4, np.random.default_rng(seed))
        found.append([x.tobytes() for x in results])
    assert found[0] == found[1]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", list(ERROR))
@pytest.mark.parametrize("case", FEW, ids=str)
def test_few_queries(case, dtype, name):
    with targets.override(name):
        problem, given, results = operands(case, dtype)
        assert suits(problem)
        out, lse, _ = expected(problem, given, dtype)
        lowered = lower_decode(problem, targets.current(), 2, None, 0)
        run(lowered, [*given[:3], *results], 2, np.random.default_rng(3))
        close(results[0], out, dtype)
        finite = np.isfinite(lse)
        assert (np.isfinite(results[1]) == finite).all()
        close(results[1][finite], lse[finite], "float64" if dtype == "float64" else "float32")
