"""Epilogues: pointwise work behind a matrix product is done in its kernel, and gives the bits that a kernel of its own would give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flambeau
from flambeau.base.settings import settings
from flambeau.capture.step import capture
from flambeau.nn import functional as F
from flambeau.schedule import epilogues


def results(function: Callable, args: tuple) -> list[np.ndarray]:
    """Results of a captured call, its schedules verified."""
    with settings.scope(check=True), flambeau.no_grad():
        found = capture(lambda *a: function(*a))(*args)
    return [x.double().numpy() for x in (found if isinstance(found, tuple) else (found,))]


def kernels(function: Callable, *args: Any) -> int:
    """Kernels of a captured call."""
    with flambeau.no_grad():
        captured = capture(lambda *a: function(*a))
        captured(*args)
    return sum(r.plan.kernels for recordings in captured.recordings.values() for r in recordings)


@pytest.fixture
def same_apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable]:
    """check(function, *args): with and without epilogues the results are equal bit for bit."""

    def check(function: Callable, *args: Any) -> None:
        fused = results(function, args)
        with monkeypatch.context() as m:
            m.setattr(epilogues, "columns_of", lambda node: 0)
            apart = results(function, args)
        for x, y in zip(fused, apart, strict=True):
            np.testing.assert_array_equal(x, y)

    yield check


def numbers(*shape: int, dtype: str = "float32") -> Any:
    return flambeau.randn(*shape).to(getattr(flambeau, dtype))


# rows, depth, columns: packed and plain operands, few rows of long weights, one row, deep sums, nothing to sum
SIZES = [(130, 300, 515), (37, 65, 17), (5, 70, 33), (1, 512, 300), (4, 1024, 1000), (3, 0, 5), (7, 9000, 11), (40, 300, 1100), (600, 40, 40)]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("m, k, n", SIZES)
def test_bits_are_those_of_separate_kernels(m: int, k: int, n: int, dtype: str, same_apart: Callable) -> None:
    x, w, b, r = (numbers(*s, dtype=dtype) for s in ((m, k), (n, k), (n,), (m, n)))
    same_apart(lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, w, b, r)
    same_apart(lambda x, w, r: ((raw := x @ w) * r, raw), x, w.t().contiguous(), r)
    same_apart(lambda x, w, r: (x @ w.t()).float() + r.t(), x, w, numbers(n, m))


@pytest.mark.parametrize("shape", [(3, 37, 65, 17), (1, 5, 6, 7), (2, 1, 300, 260), (6, 300, 40, 5)])
def test_batches_and_views_that_keep_the_order(shape: tuple[int, ...], same_apart: Callable) -> None:
    size, m, k, n = shape
    a, b, r, q, w = numbers(size, m, k), numbers(size, k, n), numbers(size, m, n), numbers(m, n), numbers(n, k)
    same_apart(lambda a, b, r, q: F.silu(a @ b) * r + q, a, b, r, q)
    same_apart(lambda a, w, r: F.silu(F.linear(a, w)) * r, a, w, r)
    same_apart(lambda a, w, r: F.relu(F.linear(a, w)).view(size * m, n) * r.view(size * m, n), a, w, r)
    same_apart(lambda a, b, r: (a @ b).transpose(0, 1) * r.transpose(0, 1), a, b, r)


def test_integers_are_scaled_as_they_are_summed(same_apart: Callable) -> None:
    a, b = (flambeau.randint(-100, 100, s).to(flambeau.int8) for s in ((70, 200), (200, 90)))
    scale = numbers(90)
    function = lambda a, b, s: flambeau._int_mm(a, b).float() * s
    same_apart(function, a, b, scale)
    assert kernels(function, a, b, scale) == kernels(lambda a, b: flambeau._int_mm(a, b), a, b)


def test_what_surrounds_a_product_is_no_kernel_of_its_own() -> None:
    x, w, b, r = numbers(512, 64), numbers(96, 64), numbers(96), numbers(512, 96)
    alone = kernels(lambda x, w, b: F.linear(x, w, b), x, w, b)
    assert kernels(lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, w, b, r) == alone
    assert kernels(lambda x, w, r: F.dropout(x @ w, 0.5) * r, x, w.t(), r) == alone
    assert kernels(lambda x, w, b, r: F.silu(F.linear(x, w)) * F.linear(x, w, b), x, w, b, r) == 2 * alone


def test_a_sum_that_several_kernels_read_is_stored_by_the_product() -> None:
    x, w, r = numbers(64, 48), numbers(48, 48), numbers(64, 48)

    def block(x: Any, w: Any, r: Any) -> Any:
        h = F.linear(x, w) + r
        return h, F.layer_norm(h, (48,))

    assert kernels(block, x, w, r) == 2


def test_what_is_read_in_another_order_is_a_kernel_of_its_own() -> None:
    x, w, r = numbers(64, 64), numbers(64, 64), numbers(64, 64)
    assert kernels(lambda x, w, r: (x @ w).t() * r, x, w, r) == 2
    assert kernels(lambda x, w, r: (x @ w)[:32] * r[:32], x, w, r) == 2
    assert kernels(lambda x, w, r: (raw := x @ w) * raw.sum(0), x, w, r) == 2


def test_written_targets_keep_their_old_values_while_they_are_read() -> None:
    x, w = numbers(40, 24), numbers(24, 24)
    total = numbers(40, 24)
    expected = total.double() + (x @ w).double() * 0.5

    def add(x: Any, w: Any, total: Any) -> None:
        total.add_((x @ w) * 0.5)

    with flambeau.no_grad():
        capture(add)(x, w, total)
    np.testing.assert_allclose(total.double().numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_gradients_through_a_fused_block() -> None:
    def step(x: Any, w: Any, v: Any) -> Any:
        return (x + F.linear(F.gelu(F.linear(x, w)), v)).square().mean()

    found = []
    for compiled in (False, True):
        flambeau.manual_seed(0)
        args = [numbers(33, 24).requires_grad_(), numbers(56, 24).requires_grad_(), numbers(24, 56).requires_grad_()]
        (flambeau.compile(step, fullgraph=True) if compiled else step)(*args).backward()
        found.append([a.grad.numpy() for a in args])
    for eager, fused in zip(*found, strict=True):
        np.testing.assert_allclose(eager, fused, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_threads(dtype: str) -> None:
    x, w, r = numbers(200, 100, dtype=dtype), numbers(700, 100, dtype=dtype), numbers(200, 700, dtype=dtype)
    before, found = flambeau.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            flambeau.set_num_threads(threads)
            found += results(lambda x, w, r: F.gelu(F.linear(x, w)) * r, (x, w, r))
    finally:
        flambeau.set_num_threads(before)
    assert all(np.array_equal(found[0], y) for y in found[1:])


def test_new_sizes_compile_nothing() -> None:
    compiled = flambeau.compile(lambda x, w, r: F.gelu(F.linear(x, w)) + r, dynamic=True)
    from_kernels = []
    for m in (130, 200, 333, 150):
        x, w, r = numbers(m, 64), numbers(96, 64), numbers(m, 96)
        found = compiled(x, w, r)
        from_kernels.append(np.abs(found.numpy() - (F.gelu(F.linear(x, w)) + r).numpy()).max())
    assert max(from_kernels) == 0


# input, weight, and how: dense, steps, groups, a kernel over all channels, one and three dims, depthwise with a multiplier
CONVOLUTIONS = [
    ((2, 5, 13, 17), (19, 5, 3, 3), {"padding": 1}),
    ((3, 8, 14, 9), (6, 4, 3, 2), {"stride": 2, "groups": 2}),
    ((2, 70, 12, 12), (90, 70, 1, 1), {}),
    ((2, 6, 30, 31), (40, 6, 5, 5), {"padding": 2, "dilation": 2}),
    ((2, 4, 90), (33, 4, 3), {}),
    ((1, 3, 6, 7, 8), (5, 3, 2, 3, 3), {"padding": 1}),
    ((2, 9, 21, 40), (18, 1, 3, 3), {"padding": 1, "groups": 9}),
    ((2, 9, 21, 20), (9, 1, 3, 3), {"stride": 2, "groups": 9}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("x_shape, w_shape, how", CONVOLUTIONS)
def test_convolutions_finish_what_follows(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], how: dict, dtype: str, same_apart: Callable
) -> None:
    convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(x_shape)]
    x, w, b = numbers(*x_shape, dtype=dtype), numbers(*w_shape, dtype=dtype), numbers(w_shape[0], dtype=dtype)
    scale = numbers(1, w_shape[0], *(1,) * (len(x_shape) - 2), dtype=dtype)
    rest = numbers(*convolve(x, w, **how).shape, dtype=dtype)
    same_apart(lambda x, w, s, r: F.relu(convolve(x, w, **how) * s + r), x, w, scale, rest)
    same_apart(lambda x, w, b, r: ((raw := convolve(x, w, b, **how)).float() * F.silu(raw), raw), x, w, b, rest)


def test_normalised_convolution_is_as_many_kernels_as_the_convolution() -> None:
    conv, norm = flambeau.nn.Conv2d(8, 16, 3, padding=1), flambeau.nn.BatchNorm2d(16).eval()
    x, r = numbers(2, 8, 12, 12), numbers(2, 16, 12, 12)
    alone = kernels(lambda x: conv(x), x)
    assert kernels(lambda x, r: F.relu(norm(conv(x)) + r), x, r) == alone


def test_a_template_may_leave_an_epilogue_apart(same_apart: Callable) -> None:
    x, w, b = numbers(48, 512, dtype="bfloat16"), numbers(200, 512, dtype="bfloat16"), numbers(200, dtype="bfloat16")
    same_apart(lambda x, w, b: F.gelu(F.linear(x, w, b)) * 2, x, w, b)
    same_apart(lambda x, w, b: F.relu(F.linear(x, w, b)) * 2, x, w, b)
