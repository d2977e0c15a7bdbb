"""The tape: second derivatives, hooks, graphs that are kept or freed, anomaly mode."""

from __future__ import annotations

import pytest

import flambeau


def leaf(*values: float):
    return flambeau.tensor(values, requires_grad=True)


def test_second_and_third_derivatives() -> None:
    x = leaf(2.0)
    y = x**4
    for wanted in (32.0, 48.0, 48.0):
        (y,) = flambeau.autograd.grad(y.sum(), [x], create_graph=True)
        assert y.item() == pytest.approx(wanted)


def test_a_derivative_through_softmax_twice() -> None:
    x = leaf(0.1, 0.2, 0.7).detach().double().requires_grad_()

    def gradient(x):
        return flambeau.autograd.grad(x.softmax(0)[0], [x], create_graph=True)[0]

    (second,) = flambeau.autograd.grad(gradient(x)[1], [x])
    step = flambeau.tensor([0.0, 0.0, 1e-5], dtype=flambeau.float64)
    difference = (gradient(x + step)[1] - gradient(x - step)[1]) / 2e-5
    assert second[2].item() == pytest.approx(difference.item(), rel=1e-6)


def test_gradients_accumulate() -> None:
    x = leaf(1.0, 2.0)
    for _ in range(2):
        (x * x).sum().backward()
    assert x.grad.tolist() == [4.0, 8.0]
    kept = x.grad
    (x * 1.0).sum().backward()
    assert kept.tolist() in ([4.0, 8.0], [5.0, 9.0])
    assert x.grad.tolist() == [5.0, 9.0]


def test_a_graph_is_freed_unless_kept() -> None:
    x = leaf(3.0)
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 12.0
    with pytest.raises(RuntimeError, match="backward through the graph a second time: pass retain_graph=True"):
        y.backward()


def test_backward_needs_a_number_or_a_gradient() -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        (x * 2.0).backward()
    with pytest.raises(RuntimeError, match="must have the output's shape"):
        (x * 2.0).backward(flambeau.ones(3))
    with pytest.raises(RuntimeError, match="does not require grad"):
        flambeau.ones(1).backward()
    (x * 2.0).backward(flambeau.tensor([1.0, 10.0]))
    assert x.grad.tolist() == [2.0, 20.0]


def test_unused_inputs() -> None:
    x, unused = leaf(1.0), leaf(1.0)
    y = x * 2.0
    with pytest.raises(RuntimeError, match="allow_unused"):
        flambeau.autograd.grad(y, [x, unused], retain_graph=True)
    found = flambeau.autograd.grad(y, [x, unused], allow_unused=True)
    assert found[0].item() == 2.0 and found[1] is None


# ------------------------------------------------------------------ hooks
def test_hooks_see_and_replace_gradients() -> None:
    x = leaf(1.0, 2.0)
    y = x * 3.0
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    handle = y.register_hook(lambda g: g * 10.0)
    y.sum().backward(retain_graph=True)
    assert seen == [[1.0, 1.0]]
    assert x.grad.tolist() == [30.0, 30.0]
    handle.remove()
    x.grad = None
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_hooks_of_leaves_and_after_accumulation() -> None:
    x = leaf(1.0)
    x.register_hook(lambda g: g + 1.0)
    order = []
    x.register_post_accumulate_grad_hook(lambda t: order.append(t.grad.item()))
    (x * 2.0).sum().backward()
    assert order == [3.0]


def test_retained_gradients() -> None:
    x = leaf(1.0)
    y = x * 2.0
    y.retain_grad()
    (y * y).sum().backward()
    assert y.grad.item() == 4.0 and y.retains_grad


def test_hooks_of_nodes() -> None:
    x = leaf(1.0)
    y = x * 2.0
    seen = []
    y.grad_fn.register_prehook(lambda gs: seen.append(("before", gs[0].item())))
    y.grad_fn.register_hook(lambda ins, outs: seen.append(("after", ins[0].item(), outs[0].item())))
    (y * 5.0).sum().backward()
    assert seen == [("before", 5.0), ("after", 10.0, 5.0)]


# ------------------------------------------------------------------ anomaly mode
def test_anomaly_mode_names_the_op() -> None:
    x = leaf(2.0)
    with pytest.raises(RuntimeError, match="(?i)nan"), flambeau.autograd.detect_anomaly():
        x.acos().sum().backward()
    assert flambeau.is_grad_enabled()
    y = leaf(2.0)
    y.acos().sum().backward()  # off again: no error
    assert y.grad.isnan().all().item()


def test_a_zero_gradient_stays_zero_where_the_slope_is_infinite() -> None:
    """So that the branch `where` did not take cannot poison the one it took."""
    x = leaf(0.0, 4.0)
    flambeau.where(x > 0, x.sqrt(), x).sum().backward()
    assert x.grad.tolist() == [1.0, 0.25]
