"""Sorts, selections and scans by dtype and length: the kernels differ with both, and the derived tests use float64 and short rows only."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau
from flambeau import Tensor

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
LENGTHS = (1, 7, 128, 129, 1000)  # by ranks up to 128, by digits from there on


def numbers(dtype: str, *shape: int) -> np.ndarray:
    """Values with ties, and for floats the awkward ones."""
    rng = np.random.default_rng(len(dtype) + sum(shape))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.startswith("float"):
        info = np.iinfo(dtype)
        found = rng.integers(max(info.min, -50), min(info.max, 50), shape).astype(dtype)
        found.reshape(-1)[::11] = info.min
        found.reshape(-1)[1::13] = info.max
        return found
    found = np.round(rng.standard_normal(shape), 1).astype(dtype)
    flat = found.reshape(-1)
    flat[::17], flat[3::19], flat[5::23], flat[6::29] = np.nan, np.inf, -np.inf, -0.0
    return found


def stable_order(x: np.ndarray, dim: int, descending: bool) -> np.ndarray:
    """Positions in order: equal elements as they stand, NaN largest."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    turned = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(turned, dim)


def of(x: np.ndarray) -> Tensor:
    return flambeau.from_numpy(x.copy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("descending", (False, True))
def test_sort(dtype: str, length: int, descending: bool) -> None:
    x = numbers(dtype, 3, length)
    values, indices = flambeau.sort(of(x), -1, descending)
    order = stable_order(x, 1, descending)
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("length", (5, 300))
def test_sort_keeps_bits(length: int) -> None:
    """-0 stays -0 and where it was among zeros."""
    x = np.where(np.arange(length) % 2, 0.0, -0.0).astype("float32")
    values = flambeau.sort(of(x)).values.numpy()
    np.testing.assert_array_equal(np.signbit(values), np.signbit(x))


def test_sort_bfloat16() -> None:
    x = numbers("float32", 2, 400)
    narrow = of(x).to(flambeau.bfloat16)
    order = stable_order(narrow.float().numpy(), 1, False)
    np.testing.assert_array_equal(flambeau.argsort(narrow).numpy(), order)


@pytest.mark.parametrize("dim", (0, 1, 2))
@pytest.mark.parametrize("length", (20, 200))
def test_sort_strides(dim: int, length: int) -> None:
    shape = [3, 4, 5]
    shape[dim] = length
    x = numbers("float32", *shape[::-1]).transpose(2, 1, 0)
    t = of(np.ascontiguousarray(x.transpose(2, 1, 0))).permute(2, 1, 0)
    np.testing.assert_array_equal(flambeau.argsort(t, dim).numpy(), stable_order(x, dim, False))


@pytest.mark.parametrize("dtype", ("int16", "int64", "float32", "float64"))
@pytest.mark.parametrize("k", (0, 1, 5, 200, 600))
@pytest.mark.parametrize("largest", (False, True))
def test_topk(dtype: str, k: int, largest: bool) -> None:
    """Few of many are selected, most are sorted, and of equal ones the first are taken."""
    x = numbers(dtype, 2, 1000)
    values, indices = flambeau.topk(of(x), k, 1, largest)
    order = stable_order(x, 1, largest)[:, :k]
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("dtype", ("uint8", "int64", "float16", "float32", "float64"))
@pytest.mark.parametrize("length", (9, 700))
def test_kthvalue(dtype: str, length: int) -> None:
    x = numbers(dtype, 3, length)
    for k in (1, length // 2, length):
        values, indices = flambeau.kthvalue(of(x), k)
        order = stable_order(x, 1, False)[:, k - 1]
        np.testing.assert_array_equal(indices.numpy(), order)
        np.testing.assert_array_equal(values.numpy(), x[np.arange(3), order])


@pytest.mark.parametrize("length", (9, 10, 701))
def test_medians(length: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, length)).astype("float32")
    x[1, length // 2] = x[1, -1] = np.nan
    x[2] = np.nan
    ordered = np.sort(x, 1)
    values, indices = flambeau.median(of(x), 1)
    assert indices[1].item() == length // 2  # the first NaN
    np.testing.assert_array_equal(
        values.numpy(), [ordered[0, (length - 1) // 2], np.nan, np.nan, ordered[3, (length - 1) // 2]]
    )
    values = flambeau.nanmedian(of(x), 1).values
    numbers_in = (~np.isnan(x)).sum(1)
    wanted = [ordered[i, max(0, (n - 1) // 2)] for i, n in enumerate(numbers_in)]
    np.testing.assert_array_equal(values.numpy(), wanted)


# ------------------------------------------------------------------ scans
@pytest.mark.parametrize("dtype", ("bool", "uint8", "int32", "int64"))
@pytest.mark.parametrize("shape, dim", (((3, 37), 1), ((37, 40), 0), ((2, 5, 3), 1)))
def test_cumsum_of_integers(dtype: str, shape: tuple, dim: int) -> None:
    x = numbers(dtype, *shape)
    found = flambeau.cumsum(of(x), dim)
    assert found.dtype is flambeau.int64
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found.numpy(), np.cumsum(x, dim, dtype="int64"))


def test_cumsum_is_accurate() -> None:
    """A long float32 row is added in float64, as a thousandth step too many would show."""
    x = np.full(1_000_000, 0.1, "float32")
    found = flambeau.cumsum(of(x), 0).numpy()
    np.testing.assert_allclose(found, np.cumsum(x, dtype="float64"), rtol=1e-7)


def test_cumsum_of_halves_is_rounded_once() -> None:
    x = np.full(2048, 1.0, "float16") + np.float16(0.5)
    found = flambeau.cumsum(of(x), 0).numpy()
    np.testing.assert_array_equal(found, np.cumsum(x, dtype="float32").astype("float16"))


@pytest.mark.parametrize("shape, dim", (((3, 37), 1), ((37, 40), 0)))
def test_cummax_keeps_nan_and_takes_the_latest(shape: tuple, dim: int) -> None:
    x = np.round(np.random.default_rng(1).standard_normal(shape), 1).astype("float32")
    x.reshape(-1)[50] = np.nan
    values, indices = flambeau.cummax(of(x), dim)
    wanted = np.maximum.accumulate(x, dim)
    np.testing.assert_array_equal(values.numpy(), wanted)
    np.testing.assert_array_equal(np.take_along_axis(x, indices.numpy(), dim), wanted)
    lines, places = (
        np.moveaxis(x, dim, -1).reshape(-1, x.shape[dim]),
        np.moveaxis(indices.numpy(), dim, -1).reshape(-1, x.shape[dim]),
    )
    for line, place in zip(lines, places):
        for i, at in enumerate(place):
            later = line[at + 1 : i + 1]
            assert not (later == line[at]).any() and not (np.isnan(line[at]) and np.isnan(later).any())


def test_cumprod_gradient_at_zeros() -> None:
    """Exact for any number of zeros."""
    x = flambeau.tensor([2.0, 0.0, 3.0, 0.0, 5.0], dtype=flambeau.float64, requires_grad=True)
    flambeau.cumprod(x, 0).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0 + 6.0, 0.0, 0.0, 0.0]


def test_logcumsumexp_gradient_of_large_numbers() -> None:
    """Relative to the largest: nothing overflows, and close numbers keep their digits."""
    x = flambeau.tensor([10000.0, 9999.0, -5.0, 10001.0], requires_grad=True)
    flambeau.logcumsumexp(x, 0).sum().backward()
    y = np.array([10000.0, 9999.0, -5.0, 10001.0])
    out = np.logaddexp.accumulate(y)
    wanted = [sum(np.exp(y[i] - out[j]) for j in range(i, 4)) for i in range(4)]
    np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-3, atol=1e-6)
