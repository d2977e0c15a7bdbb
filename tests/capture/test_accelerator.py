"""`flambeau.accelerator`: honest where there is none, the simulated device where asked for, and graphed callables."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import flambeau
from flambeau import accelerator, nn
from flambeau.base.settings import settings


def f32(*shape: int, seed: int = 0) -> flambeau.Tensor:
    return flambeau.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


# ------------------------------------------------------------------ which one
def test_a_cpu_is_no_accelerator() -> None:
    assert accelerator.is_available() is False
    assert accelerator.current_accelerator() is None and accelerator.current_accelerator(check_available=True) is None
    assert accelerator.device_count() == 0
    with accelerator.device_index(None):
        pass
    for name in (
        "current_device_index", "current_stream", "synchronize", "empty_cache", "empty_host_cache", "memory_stats", "memory_allocated",
        "max_memory_allocated", "memory_reserved", "max_memory_reserved", "get_memory_info", "reset_peak_memory_stats",
        "reset_accumulated_memory_stats", "get_device_capability",
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="Cannot access accelerator device when none is available"):
            getattr(accelerator, name)()
    with pytest.raises(RuntimeError, match="none is available"):
        accelerator.set_device_index(0)


def test_the_simulated_device_takes_the_part() -> None:
    with settings.scope(accelerator="sim"):
        where = accelerator.current_accelerator()
        assert where.type == "sim" and accelerator.is_available() and accelerator.device_count() == 2
        x = flambeau.ones(1 << 16).to(where)
        assert accelerator.memory_allocated() >= x.nbytes
        assert accelerator.max_memory_reserved() >= accelerator.memory_reserved() >= accelerator.memory_allocated()
        free, whole = accelerator.get_memory_info()
        assert 0 < free < whole
        y = x[flambeau.tensor([1 << 20]).to(where)]
        with pytest.raises(RuntimeError, match="index"):
            accelerator.synchronize()
        del y
        assert accelerator.current_device_index() == 0
        with accelerator.device_index(1):
            assert accelerator.current_device_index() == 1
        accelerator.set_device_index(-1)
        assert accelerator.current_device_index() == 0
        assert flambeau.float32 in accelerator.get_device_capability("sim")["supported_dtypes"]
        with pytest.raises(ValueError, match="type, sim"):
            accelerator.synchronize("cpu")
        with pytest.raises(RuntimeError, match="less than 2"):
            accelerator.set_device_index(2)
        with pytest.raises(RuntimeError, match="has no streams"):
            accelerator.current_stream()
    with settings.scope(accelerator="gpu"), pytest.raises(RuntimeError, match="must be empty or sim"):
        accelerator.is_available()


# ------------------------------------------------------------------ graphed callables
def net() -> nn.Module:
    flambeau.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def test_a_graphed_module_trains_like_itself() -> None:
    plain = net()
    graphed = accelerator.make_graphed_callables(copy.deepcopy(plain), (f32(5, 8).requires_grad_(),))
    assert isinstance(graphed, nn.Module)
    models = (graphed, plain)
    optimisers = [flambeau.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models]
    for seed in range(4):
        losses, grads = [], []
        for m, o in zip(models, optimisers):
            x = f32(5, 8, seed=seed).requires_grad_()
            o.zero_grad()
            loss = (m(x) ** 2).sum()
            loss.backward()
            o.step()
            losses.append(loss.item())
            grads.append(x.grad)
        assert losses[0] == losses[1] and flambeau.equal(*grads)
    for p, q in zip(*(m.parameters() for m in models)):
        assert flambeau.equal(p, q)


def test_gradients_add_up_over_calls() -> None:
    plain, x = net(), f32(5, 8)
    graphed = accelerator.make_graphed_callables(copy.deepcopy(plain), (x.clone(),))
    for m in (graphed, plain):
        for seed in range(2):
            m(f32(5, 8, seed=seed)).sum().backward()
    for p, q in zip(graphed.parameters(), plain.parameters()):
        assert flambeau.equal(p.grad, q.grad)


def test_callables_in_a_chain() -> None:
    first, second = net(), nn.Linear(4, 3)

    def between(x: flambeau.Tensor) -> flambeau.Tensor:
        return x.tanh() * 2

    wanted = copy.deepcopy(first), between, copy.deepcopy(second)
    made = accelerator.make_graphed_callables(
        (first, between, second), ((f32(5, 8),), (f32(5, 4).requires_grad_(),), (f32(5, 4).requires_grad_(),))
    )
    for seed in range(2):
        results = []
        for chain in (made, wanted):
            y = f32(5, 8, seed=seed)
            for f in chain:
                y = f(y)
            y.square().sum().backward()
            results.append(y.detach().clone())
        assert flambeau.equal(*results)
    for p, q in zip(first.parameters(), wanted[0].parameters()):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_a_structure_of_results_and_no_gradients() -> None:
    def f(x: flambeau.Tensor, pair: tuple) -> dict:
        return {"sum": x + pair[0], "top": pair[1].argmax()}

    g = accelerator.make_graphed_callables(f, (f32(3), (f32(3), f32(3))))
    found = g(flambeau.ones(3), (flambeau.ones(3), flambeau.tensor([0.0, 5.0, 1.0])))
    assert found["sum"].tolist() == [2, 2, 2] and found["top"].item() == 1 and not found["sum"].requires_grad


def test_the_training_flag_of_the_capture_counts() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    x = flambeau.ones(6, 4)
    accelerator.make_graphed_callables(model, (x.clone(),))
    flambeau.manual_seed(1)
    first, second = model(x).detach().clone(), model(x).detach().clone()
    assert not flambeau.equal(first, second) and (first == 0).any()
    model.eval()
    assert flambeau.equal(model(x), model(x)) and not (model(x) == 0).any()
    model.train()
    assert (model(x) == 0).any()


def test_what_graphed_callables_refuse() -> None:
    x = f32(5, 8).requires_grad_()
    model = accelerator.make_graphed_callables(net(), (x,))
    with pytest.raises(RuntimeError, match=r"input 0 must be as at the capture, \[5, 8\] float32 .* got \[4, 8\]"):
        model(f32(4, 8))
    with pytest.raises(RuntimeError, match="input 0 must be as at the capture"):
        model(f32(5, 8).double())
    with pytest.raises(RuntimeError, match="must have the arguments of the sample"):
        model(f32(5, 8), f32(5, 8))
    with pytest.raises(RuntimeError, match="twice"):
        (g,) = flambeau.autograd.grad(model(x).square().sum(), x, create_graph=True)
        g.sum().backward()
    y = model(f32(5, 8).requires_grad_())
    model(f32(5, 8).requires_grad_())
    with pytest.raises(RuntimeError, match="backward must follow its own call"):
        y.sum().backward()
    y = model(f32(5, 8).requires_grad_())
    kept = (y * y).sum()
    model(f32(5, 8).requires_grad_())
    with pytest.raises(RuntimeError, match="modified by an inplace operation|version"):
        kept.backward()
    with pytest.raises(TypeError, match="sample_args must be tensors, got int"):
        accelerator.make_graphed_callables(lambda a, b: a * b, (f32(3), 2))
    hooked = net()
    hooked[0].register_forward_hook(lambda *a: None)
    with pytest.raises(AssertionError, match="must not have hooks"):
        accelerator.make_graphed_callables(hooked, (f32(5, 8),))
    buffered = net()
    buffered.register_buffer("b", flambeau.ones(2).requires_grad_())
    with pytest.raises(AssertionError, match="buffers must not require gradients"):
        accelerator.make_graphed_callables(buffered, (f32(5, 8),))
    unused = f32(3).requires_grad_()
    with pytest.raises(RuntimeError, match="unused|not used"):
        accelerator.make_graphed_callables(lambda a, b: a * 2, (f32(3).requires_grad_(), unused))
    g = accelerator.make_graphed_callables(
        lambda a, b: a * 2, (f32(3).requires_grad_(), unused), allow_unused_input=True
    )
    a, b = f32(3).requires_grad_(), f32(3).requires_grad_()
    g(a, b).sum().backward()
    assert a.grad.tolist() == [2, 2, 2] and b.grad is None
