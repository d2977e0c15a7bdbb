"""Reductions by dtype, size and number of kernels: what the derived tests, short and in float64, do not reach."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import flambeau
from flambeau import Tensor
from flambeau.engine import eager
from flambeau.engine.plan import make_plan
from flambeau.ir.op import REGISTRY
from flambeau.tape import record


def of(x: np.ndarray) -> Tensor:
    return flambeau.from_numpy(x.copy())


def kernels(name: str, *args: object) -> int:
    """How many kernels an op's plan has."""
    op = REGISTRY[name]
    info = eager.info_for(op, op.arguments(*args))
    return (info.plan or info.make_plan()).kernels


# ------------------------------------------------------------------ one kernel each
@pytest.mark.parametrize(
    "name, args",
    (
        ("variance", (1,)),
        ("variance", (0,)),
        ("standard_deviation", (1,)),
        ("variance_mean", (1,)),
        ("softmax", (1,)),
        ("logsumexp", (1,)),
        ("layer_norm", ((300,),)),
        ("rms_norm", ((300,),)),
        ("batch_statistics_norm", (None, None, None, None, 0.1, 1e-5)),
        ("aminmax", ()),
        ("max_dim", (1,)),
        ("mean", (1,)),
        ("vector_norm", (2, 1)),
        ("normalize", ()),
        ("masked_mean", (1,)),
    ),
)
def test_one_kernel(name: str, args: tuple) -> None:
    op = REGISTRY[name]
    bound = op.arguments(flambeau.zeros(50, 300), *args)
    assert kernels(name, *bound) == 1


@pytest.mark.parametrize("name, most", (("layer_norm", 2), ("rms_norm", 2), ("batch_norm", 1)))
def test_backward_kernels(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(
        record, "make_plan", lambda *args, **kwargs: made.append(make_plan(*args, **kwargs)) or made[-1]
    )
    x, w, b = (flambeau.randn(*shape, requires_grad=True) for shape in ((61, 307), (307,), (307,)))
    functional = flambeau.nn.functional
    calls = {
        "layer_norm": lambda: functional.layer_norm(x, (307,), w, b),
        "rms_norm": lambda: functional.rms_norm(x, (307,), w),
        "batch_norm": lambda: functional.batch_norm(x, None, None, w, b, True),
    }
    out = calls[name]()
    flambeau.autograd.grad([out], [x, w] if name == "rms_norm" else [x, w, b], [flambeau.randn(61, 307)])
    assert [plan.kernels for plan in made] == [most]


# ------------------------------------------------------------------ long and narrow
TALL = (
    ((1 << 16, 5), 0),
    ((1 << 17, 16), 0),
    ((3, 1 << 17), 1),
    ((64, 3, 64, 64), (0, 2, 3)),
    ((131101, 2), 0),  # a prime number of rows
)


@pytest.mark.parametrize("shape, dims", TALL)
@pytest.mark.parametrize("threads", (1, 2))
def test_long_sums(shape: tuple, dims: int | tuple, threads: int) -> None:
    x = np.random.default_rng(0).random(shape, "float32")
    before = flambeau.get_num_threads()
    flambeau.set_num_threads(threads)
    try:
        sums, means, largest = flambeau.sum(of(x), dims), flambeau.mean(of(x), dims, True), flambeau.amax(of(x), dims)
    finally:
        flambeau.set_num_threads(before)
    np.testing.assert_allclose(sums.numpy(), x.sum(dims, dtype="float64"), rtol=2e-6)
    np.testing.assert_allclose(means.numpy(), x.mean(dims, dtype="float64", keepdims=True), rtol=2e-6)
    np.testing.assert_array_equal(largest.numpy(), x.max(dims))


def test_long_sums_do_not_depend_on_threads() -> None:
    x = of(np.random.default_rng(0).random((1 << 17, 6), "float32"))
    before, found = flambeau.get_num_threads(), []
    for threads in (1, 2):
        flambeau.set_num_threads(threads)
        found.append(flambeau.sum(x, 0).numpy().copy())
    flambeau.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])


def test_long_complex_and_integer_sums() -> None:
    x = np.random.default_rng(0).random((1 << 16, 4)).astype("complex64") * (1 + 2j)
    np.testing.assert_allclose(flambeau.sum(of(x), 0).numpy(), x.sum(0, dtype="complex128"), rtol=2e-6)
    y = np.random.default_rng(0).integers(0, 100, (1 << 16, 4)).astype("int32")
    np.testing.assert_array_equal(flambeau.sum(of(y), 0).numpy(), y.sum(0))


# ------------------------------------------------------------------ values
@pytest.mark.parametrize(
    "reduce",
    (flambeau.amax, flambeau.amin, lambda x, d: flambeau.max(x, d).values, lambda x, d: flambeau.min(x, d).values),
)
def test_nan_goes_through(reduce: Callable) -> None:
    x = np.random.default_rng(0).random((4, 100), "float32")
    x[1, 70] = np.nan
    assert np.isnan(reduce(of(x), 1).numpy()).tolist() == [False, True, False, False]
    assert np.isnan(reduce(of(x), 0).numpy()).sum() == 1


def test_first_of_equals() -> None:
    x = np.tile(np.array([1, 3, 2, 3, 0, 0], "int32"), (3, 20))
    assert flambeau.argmax(of(x), 1).tolist() == [1, 1, 1]
    assert flambeau.argmin(of(x), 1).tolist() == [4, 4, 4]
    assert flambeau.argmax(of(x)).item() == 1
    x = np.array([1.0, np.nan, 2.0, np.nan], "float32")
    assert flambeau.argmax(of(x)).item() == flambeau.argmin(of(x)).item() == 1


def test_halves_are_summed_wide() -> None:
    x = flambeau.full((4096,), 0.1, dtype=flambeau.bfloat16)
    one = x[0].float().item()
    assert abs(flambeau.sum(x).item() - 4096 * one) <= 4096 * one / 256
    assert abs(flambeau.var(of(np.full(4096, 100.0, "float16") + np.arange(4096) % 2)).item() - 0.25) < 0.01


def test_variance_of_offset_data() -> None:
    """The mean is taken off first: a large offset costs no digits."""
    x = np.random.default_rng(0).standard_normal((10, 1000)) + 1e4
    found = flambeau.var(of(x.astype("float32")), 1).numpy()
    np.testing.assert_allclose(found, x.astype("float32").astype("float64").var(1, ddof=1), rtol=1e-4)


def test_product_gradient_at_zeros() -> None:
    x = flambeau.tensor([[2.0, 0.0, 4.0], [0.0, 5.0, 0.0], [1.0, 2.0, 3.0]], dtype=flambeau.float64, requires_grad=True)
    (first,) = flambeau.autograd.grad([flambeau.prod(x, 1).sum()], [x], create_graph=True)
    assert first.tolist() == [[0.0, 8.0, 0.0], [0.0, 0.0, 0.0], [6.0, 3.0, 2.0]]
    (second,) = flambeau.autograd.grad([first.sum()], [x])
    assert second.tolist() == [[4.0, 6.0, 2.0], [5.0, 0.0, 5.0], [5.0, 4.0, 3.0]]


def test_unique_of_slices() -> None:
    x = np.random.default_rng(0).integers(0, 2, (30, 3)).astype("int64")
    values, inverse, counts = flambeau.unique(of(x), return_inverse=True, return_counts=True, dim=0)
    wanted, wanted_inverse, wanted_counts = np.unique(x, axis=0, return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(values.numpy(), wanted)
    np.testing.assert_array_equal(inverse.numpy(), wanted_inverse.reshape(-1))
    np.testing.assert_array_equal(counts.numpy(), wanted_counts)


def test_running_statistics_move() -> None:
    mean, var = flambeau.zeros(3), flambeau.ones(3)
    x = np.random.default_rng(0).standard_normal((8, 3, 5)).astype("float32")
    flambeau.nn.functional.batch_norm(of(x), mean, var, training=True, momentum=0.5)
    np.testing.assert_allclose(mean.numpy(), x.mean((0, 2)) / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var.numpy(), 0.5 + x.var((0, 2), ddof=1) / 2, rtol=1e-5)
