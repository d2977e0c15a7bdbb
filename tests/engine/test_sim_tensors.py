"""Tensors on the simulated device: memory of its own, work that runs later, errors that appear at synchronisation, gradients."""

from __future__ import annotations

import pytest

import flambeau
from flambeau.base.errors import AcceleratorError
from flambeau.runtime import allocator, sim


@pytest.fixture(autouse=True)
def settled():
    yield
    sim.device(0).default_queue.drain()


def test_results_are_those_of_the_cpu() -> None:
    x = flambeau.rand(6, 50)
    far = x.to("sim")
    assert str(far.device) == "sim:0"
    assert flambeau.equal((far.softmax(1) @ far.t()).cpu(), x.softmax(1) @ x.t())


def test_memory_is_separate() -> None:
    x = flambeau.ones(4)
    far = x.to("sim")
    far.add_(1.0)
    assert (x.tolist(), far.tolist()) == ([1.0] * 4, [2.0] * 4)
    pool = sim.device(0).default_queue.pool
    assert pool.owns(far.data_ptr()) and not allocator.cpu.owns(far.data_ptr())
    assert allocator.cpu.owns(x.data_ptr()) and not pool.owns(x.data_ptr())


def test_devices_do_not_mix() -> None:
    x = flambeau.ones(3)
    with pytest.raises(RuntimeError, match="tensors must be on one device"):
        x + x.to("sim")
    with pytest.raises(RuntimeError, match="tensors must be on one device"):
        x.to("sim:0") + x.to("sim:1")
    assert (x.to("sim") * flambeau.tensor(2.0)).tolist() == [2.0] * 3  # a number may join


def test_gradients_are_on_the_device() -> None:
    w = flambeau.arange(4.0).to("sim").requires_grad_()
    (w * w).sum().backward()
    assert str(w.grad.device) == "sim:0"
    assert w.grad.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_gradients_cross_devices() -> None:
    w = flambeau.arange(3.0).requires_grad_()
    (g,) = flambeau.autograd.grad((w.to("sim") ** 3).cpu().sum(), w, create_graph=True)
    assert str(g.device) == "cpu" and g.tolist() == [0.0, 3.0, 12.0]
    (second,) = flambeau.autograd.grad(g.sum(), w)
    assert second.tolist() == [0.0, 6.0, 12.0]
    assert w.detach().to("sim").grad_fn is None


def test_errors_appear_at_synchronisation() -> None:
    x = flambeau.arange(4.0).to("sim")
    at = flambeau.tensor([0, 9]).to("sim")
    late = x.index_select(0, at)  # no error yet
    with pytest.raises(AcceleratorError, match="index_select: .*got 9. Reported by sim:0"):
        late.tolist()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]  # and the device goes on
