"""Large rows: stages of neighbouring rows overlap, memory is fetched ahead; results are those of small ones, whatever the threads."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau
from flambeau.engine.eager import forget_plans
from flambeau.nn import functional as F

# over 8 MiB, from where on rows overlap; lengths beside multiples of lanes, of one vector, of one row to a thread
SHAPES = [(2100, 1027), (66000, 33), (3, 700001), (140, 16384), (5, 16, 26215 + 16)]


@pytest.fixture
def threads():
    before = flambeau.get_num_threads()
    yield flambeau.set_num_threads
    flambeau.set_num_threads(before)


def values(shape: tuple[int, ...]) -> np.ndarray:
    a = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    rows = a.reshape(-1, shape[-1])
    rows[0, 5] = np.inf
    rows[1, 7] = np.nan
    rows[2, :] = -np.inf
    return a


def softmax(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


def standard(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_of_large_rows(shape, threads) -> None:
    a = values(shape)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(flambeau.softmax(flambeau.tensor(a), -1).numpy())
    np.testing.assert_allclose(results[0], softmax(a.astype(np.float64)), rtol=1e-5, atol=1e-12)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm_of_large_rows(shape, threads) -> None:
    a = values(shape)
    w, b = np.random.default_rng(4).standard_normal((2, shape[-1])).astype(np.float32)
    results = []
    for count in (1, 2):
        threads(count)
        made = F.layer_norm(flambeau.tensor(a), shape[-1:], flambeau.tensor(w), flambeau.tensor(b))
        results.append(made.numpy())
    np.testing.assert_allclose(results[0], standard(a.astype(np.float64)) * w + b, rtol=1e-4, atol=2e-5)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types(dtype) -> None:
    a = values((1500, 3001))
    x = flambeau.tensor(a).to(getattr(flambeau, dtype))
    exact = softmax(x.double().numpy())
    got = flambeau.softmax(x, -1).double().numpy()
    np.testing.assert_allclose(got, exact, rtol=1e-12 if dtype == "float64" else 1e-2, atol=1e-30)


def test_rows_that_are_not_dense() -> None:
    """Rows cut out of wider ones, in another order, with a hole between: two outer dims that do not merge."""
    a = values((60, 40, 1100))
    x = flambeau.tensor(a).transpose(0, 1)[:, ::2, 3:1003]
    exact = a.transpose(1, 0, 2)[:, ::2, 3:1003].astype(np.float64)
    assert x.numel() * 4 > 4 << 20
    np.testing.assert_allclose(flambeau.softmax(x, -1).numpy(), softmax(exact), rtol=1e-5, atol=1e-12)
    wide = flambeau.tensor(np.tile(a, (1, 2, 2))).transpose(0, 1)[:, :, :2100]
    exact = np.tile(a, (1, 2, 2)).transpose(1, 0, 2)[:, :, :2100].astype(np.float64)
    np.testing.assert_allclose(flambeau.softmax(wide, -1).numpy(), softmax(exact), rtol=1e-5, atol=1e-12)


def test_results_by_row_and_by_element() -> None:
    """Numbers a row (mean, scale) are stored for each row, not only for the last of a run."""
    a = np.random.default_rng(5).standard_normal((4100, 555)).astype(np.float32)
    w = np.ones(555, np.float32)
    out, mean, scale = flambeau.native_layer_norm(flambeau.tensor(a), (555,), flambeau.tensor(w), None, 1e-5)
    exact = a.astype(np.float64)
    np.testing.assert_allclose(out.numpy(), standard(exact), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean.numpy()[:, 0], exact.mean(1), atol=1e-6)
    np.testing.assert_allclose(scale.numpy()[:, 0], 1 / np.sqrt(exact.var(1) + 1e-5), rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 4096), (7, 1024), (33, 1000), (64, 4099), (5, 3, 2048)])
def test_columns_of_what_lies_in_no_cache(threads: int, shape: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wider pieces of rows are reduced at a time; each column is summed in the same order, so bits are the same."""
    x = flambeau.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    before = flambeau.get_num_threads()
    flambeau.set_num_threads(threads)
    try:
        narrow = [f(x) for f in (lambda x: x.sum(0), lambda x: x.amax(0), lambda x: (x * 2).sum(0))]
        monkeypatch.setattr("flambeau.schedule.program.FAR_BYTES", 1)
        forget_plans()
        wide = [f(x) for f in (lambda x: x.sum(0), lambda x: x.amax(0), lambda x: (x * 2).sum(0))]
        assert all(flambeau.equal(a, b) for a, b in zip(narrow, wide))
        np.testing.assert_allclose(wide[0].numpy(), x.numpy().astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)
    finally:
        monkeypatch.undo()
        flambeau.set_num_threads(before)


@pytest.mark.parametrize("write", [lambda x: x.mul_(2), lambda x: x.masked_fill_(x > 0, -1.0)])
def test_a_write_waits_for_later_walks_over_a_row(write) -> None:
    def f(x):
        y = F.softmax(x, -1)
        write(x)
        return y

    for shape in ((2, 3, 4), (40, 300)):
        a = flambeau.from_numpy(np.random.default_rng(3).standard_normal(shape).astype(np.float32))
        b = a.clone()
        np.testing.assert_allclose(flambeau.compile(f)(b).numpy(), f(a).numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 4)])
def test_what_follows_reads_a_row_and_all_rows(shape: tuple[int, ...]) -> None:
    def f(x):
        rows = x.logsumexp(-1)
        scaled = rows * 2
        return rows.mean() + scaled.reshape(-1)[0], scaled

    x = flambeau.from_numpy(np.random.default_rng(4).standard_normal(shape).astype(np.float32))
    for got, wanted in zip(flambeau.compile(f)(x), f(x)):
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-6)
