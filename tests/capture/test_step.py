"""A training step captured as one graph, and traces with symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau
from flambeau import no_grad
from flambeau.capture.step import capture
from flambeau.kernel import cache


def f32(array) -> flambeau.Tensor:
    return flambeau.from_numpy(np.asarray(array, dtype=np.float32).copy())


def training_step(w: flambeau.Tensor):
    def step(x, y):
        error = x * w - y
        loss = (error * error).sum()
        w.grad = None
        loss.backward()
        with no_grad():
            w.sub_(w.grad * 0.01)
        return loss

    return step


def test_step_is_one_kernel_and_updates_in_place() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(1003), rng.standard_normal(1003)
    eager_w, w = f32(np.ones(1003)).requires_grad_(), f32(np.ones(1003)).requires_grad_()
    eager, captured = training_step(eager_w), capture(training_step(w))
    for _ in range(3):
        wanted, got = eager(f32(x), f32(y)), captured(f32(x), f32(y))
        np.testing.assert_allclose(got.item(), wanted.item(), rtol=1e-5)
        np.testing.assert_allclose(w.detach().numpy(), eager_w.detach().numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(w.grad.numpy(), eager_w.grad.numpy(), rtol=1e-4, atol=1e-5)
    (recordings,) = captured.recordings.values()
    assert recordings[0].plan.kernels == 1
    assert w.is_leaf and w._version == 3


def test_symbolic_sizes_trace_once() -> None:
    rng = np.random.default_rng(1)
    w = f32(rng.standard_normal(6)).requires_grad_()
    traces = []

    def step(x):
        traces.append(tuple(x.shape))
        y = (x * w).tanh().reshape(x.shape[0] * 2, x.shape[1] // 2).sum(0)
        loss = (y * y).sum()
        w.grad = None
        loss.backward()
        return loss

    captured = capture(step, dynamic=True)
    captured(f32(rng.standard_normal((5, 6))))
    compiled = cache.statistics().compiled
    for rows in (7, 3, 100, 33):
        x = f32(rng.standard_normal((rows, 6)))
        got = captured(x)
        gradient = w.grad.numpy().copy()
        assert len(traces) == 1, "traced again for another size"
        step(x)
        traces.pop()
        np.testing.assert_allclose(gradient, w.grad.numpy(), rtol=1e-4, atol=1e-5)
        assert np.isfinite(got.item())
    assert cache.statistics().compiled - compiled <= 8  # the eager checks' own; sizes compile nothing


def test_guard_retraces() -> None:
    """A branch on a size holds for the sizes it was taken for."""
    seen = []

    def f(x):
        seen.append(1)
        return x * 2 if x.shape[0] > 4 else x + 1

    captured = capture(f, dynamic=True)
    for n, wanted in ((6, 2.0), (9, 2.0), (3, 2.0), (2, 2.0)):
        got = captured(f32(np.ones(n))).numpy()
        np.testing.assert_allclose(got, np.full(n, wanted))
    assert len(seen) == 2


def test_inputs_written_in_place() -> None:
    def f(x):
        x.mul_(2.0)
        return x.sum()

    x = f32([1.0, 2.0, 3.0])
    captured = capture(f)
    assert captured(x).item() == 12.0
    assert x.tolist() == [2.0, 4.0, 6.0]
    assert captured(x).item() == 24.0


def test_view_written_in_place() -> None:
    def f(x):
        y = x * 1.0
        y.transpose(0, 1).add_(1.0)
        return y * y

    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(capture(f)(f32(x)).numpy(), (x + 1) ** 2)


def test_value_in_a_trace_is_an_error() -> None:
    try:
        capture(lambda x: x if x.sum() > 0 else -x)(f32([1.0]))
    except RuntimeError as e:
        assert "while a function is traced" in str(e)
    else:
        raise AssertionError("a branch on a value was traced")


def test_equal_numbers_of_several_types_are_several_traces() -> None:
    times = capture(lambda x, n: x * n)
    x = flambeau.arange(3)
    assert [times(x, n).dtype for n in (1, 1.0, True)] == [flambeau.int64, flambeau.float32, flambeau.int64]


def test_gradients_accumulate_unless_cleared() -> None:
    w = f32([1.0, 2.0]).requires_grad_()
    add = capture(lambda a: (w * a).sum().backward())
    for times in (1, 2, 3):
        add(f32([1.0, 1.0]))
        assert w.grad.tolist() == [times, times]
    add(f32([2.0, 2.0]))
    assert w.grad.tolist() == [5.0, 5.0]

    def fresh(a):
        w.grad = None
        (w * a).sum().backward()

    again = capture(fresh)
    for _ in range(2):
        again(f32([1.0, 1.0]))
        assert w.grad.tolist() == [1.0, 1.0]


def test_every_replay_draws_anew_what_eager_draws() -> None:
    def f(x):
        return x * flambeau.rand(5) + flambeau.nn.functional.dropout(x, 0.5) + flambeau.randn(5)

    captured, x = capture(f), flambeau.ones(5)
    flambeau.manual_seed(3)
    wanted = [f(x) for _ in range(3)]
    flambeau.manual_seed(3)
    assert all(flambeau.equal(captured(x), w) for w in wanted)
    assert not flambeau.equal(wanted[0], wanted[1])


def test_gradients_read_before_the_step_are_taken_anew() -> None:
    w = f32([1.0, 2.0]).requires_grad_()

    def scale():
        if w.grad is not None:
            with no_grad():
                w.sub_(w.grad)

    captured = capture(scale)
    for g in ([0.5, 1.0], [0.25, 0.5]):
        w.grad = f32(g)
        captured()
        assert w.grad.tolist() == g
    assert w.tolist() == [0.25, 0.5]


def test_a_failed_trace_leaves_gradients_as_they_were() -> None:
    w = f32([1.0]).requires_grad_()
    w.grad = f32([7.0])

    def fails():
        w.grad = None
        (w * 2).sum().backward()
        w.sum().item()

    with pytest.raises(RuntimeError, match="value of a tensor is not known"):
        capture(fails)()
    assert w.grad.tolist() == [7.0] and w.is_leaf


def test_shared_memory_is_refused_where_it_is_written_to() -> None:
    def f(a, b):
        a.add_(1.0)
        return b * 2

    captured = capture(f)
    assert captured(f32([0.0]), f32([3.0])).tolist() == [6.0]
    z = f32([0.0])
    with pytest.raises(RuntimeError, match="share memory"):
        captured(z, z.view(1))
    assert z.tolist() == [0.0]
    assert captured(z, z).tolist() == [2.0]  # one input: the order of ops is kept


def test_grad_mode_and_need_are_part_of_the_key() -> None:
    captured = capture(lambda x: x * 2)
    x = f32([1.0])
    captured(x)
    captured(x.clone().requires_grad_())
    with no_grad():
        captured(x)
    assert len(captured.recordings) == 3
