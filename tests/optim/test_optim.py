"""Optimisers: groups, state, errors, hooks, kernels."""

from __future__ import annotations

import copy
import warnings

import pytest

import flambeau as fb
from flambeau.engine import update
from flambeau.optim import SGD, Adam, AdamW
from flambeau.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, SequentialLR, StepLR

ALL = [
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "LBFGS",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
]


def parameter(*values):
    return fb.nn.Parameter(fb.tensor(list(values)))


@pytest.mark.parametrize("name", ALL)
def test_every_optimiser_descends(name):
    fb.manual_seed(0)
    w, target = fb.nn.Parameter(fb.randn(4, 3)), fb.ones(4, 3)
    optimizer = getattr(fb.optim, name)([w], lr={"Adadelta": 50.0, "LBFGS": 0.3, "Adafactor": 0.1}.get(name, 0.05))

    def closure():
        optimizer.zero_grad()
        loss = ((w - target) ** 2).sum()
        loss.backward()
        return loss

    first = closure().item()
    for _ in range(30):
        loss = optimizer.step(closure)
    assert loss.item() < 0.8 * first


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD"]
)
def test_a_step_is_one_kernel_a_parameter(name):
    w = fb.nn.Parameter(fb.randn(5, 7))
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    optimizer = getattr(fb.optim, name)([w], **options)
    for _ in range(2):
        w.grad = fb.randn(5, 7)
        optimizer.step()
    update._plans.clear()
    w.grad = fb.randn(5, 7)
    optimizer.step()
    ((entry, _, _, plan),) = update._plans.values()
    assert plan.kernels == 1 and entry is not None


def test_groups():
    a, b, c = parameter(1.0), parameter(2.0), parameter(3.0)
    optimizer = SGD([{"params": [a], "lr": 0.5}, {"params": b}], lr=0.1)
    optimizer.add_param_group({"params": c, "momentum": 0.9})
    for p in (a, b, c):
        p.grad = fb.ones(1)
    optimizer.step()
    assert [round(p.item(), 4) for p in (a, b, c)] == [0.5, 1.9, 2.9]
    assert "momentum_buffer" in optimizer.state[c] and a not in optimizer.state
    for call, kind, text in (
        (lambda: SGD([], lr=1), ValueError, "empty parameter list"),
        (lambda: SGD(a, lr=1), TypeError, "iterable"),
        (lambda: SGD([1], lr=1), TypeError, "can only optimize Tensors"),
        (lambda: SGD([a * 2], lr=1), ValueError, "non-leaf"),
        (lambda: optimizer.add_param_group({"params": [a]}), ValueError, "more than one parameter group"),
        (lambda: SGD([{"params": {a}}], lr=1), TypeError, "ordered"),
        (lambda: SGD([a], lr=-1), ValueError, "Invalid learning rate"),
        (lambda: SGD([a], lr=1, nesterov=True), ValueError, "Nesterov"),
        (lambda: Adam([a], betas=(1.0, 0.9)), ValueError, "Invalid beta parameter at index 0"),
        (lambda: Adam([a], eps=-1), ValueError, "epsilon"),
        (lambda: fb.optim.Optimizer([a], {}).step(), NotImplementedError, "step"),
        (lambda: fb.optim.LBFGS([{"params": [a]}, {"params": [b]}]), ValueError, "per-parameter"),
        (lambda: fb.optim.Muon([a]), ValueError, "2D"),
    ):
        with pytest.raises(kind, match=text):
            call()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        SGD([a, a], lr=1)
    assert "duplicate" in str(found[0].message)
    named = SGD([("a", a), ("b", b)], lr=0.1)
    assert named.param_groups[0]["param_names"] == ["a", "b"]


def test_gradients_are_cleared():
    w = parameter(1.0, 2.0)
    optimizer = SGD([w], lr=0.1)
    (w**2).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert w.grad.tolist() == [0.0, 0.0]
    optimizer.zero_grad()
    assert w.grad is None
    optimizer.step()
    assert w.tolist() == [1.0, 2.0]


def test_state_goes_on_after_loading():
    def run(optimizer, w, steps):
        for i in range(steps):
            w.grad = fb.full((2,), float(i + 1))
            optimizer.step()

    w = parameter(1.0, 2.0)
    optimizer = AdamW([w], lr=0.1)
    run(optimizer, w, 3)
    v = fb.nn.Parameter(w.detach().clone())
    other = AdamW([v], lr=0.7)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.param_groups[0]["lr"] == 0.1 and other.state[v]["step"].item() == 3
    run(optimizer, w, 2)
    run(other, v, 2)
    assert v.tolist() == w.tolist()
    half = AdamW([fb.nn.Parameter(w.detach().half())])
    half.load_state_dict(optimizer.state_dict())
    (state,) = half.state.values()
    assert state["exp_avg"].dtype is fb.float16 and state["step"].dtype is fb.float32
    with pytest.raises(ValueError, match="different number of parameter groups"):
        SGD([{"params": [w]}, {"params": [v]}], lr=1).load_state_dict(SGD([w], lr=1).state_dict())
    with pytest.raises(ValueError, match="doesn't match the size"):
        SGD([w, v], lr=1).load_state_dict(SGD([w], lr=1).state_dict())


def test_hooks():
    w, log = parameter(1.0), []
    optimizer = SGD([w], lr=0.1)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: log.append("before"))
    handle = optimizer.register_step_post_hook(lambda o, args, kwargs: log.append("after"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda o, state: log.append(sorted(state)))
    optimizer.step()
    handle.remove()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert log == ["before", "after", "before", ["more", "param_groups", "state"]]


def test_writes_are_counted_and_need_no_history():
    w = parameter(1.0, 2.0)
    y = w * w
    optimizer = SGD([w], lr=0.1)
    y.sum().backward(retain_graph=True)
    before = w._version
    optimizer.step()
    assert w._version == before + 1 and w.is_leaf and w.requires_grad
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_parameters_of_other_layouts():
    w = fb.nn.Parameter(fb.arange(6).float().reshape(2, 3).t())
    w.grad = fb.ones(3, 2)
    Adam([w], lr=1.0).step()
    assert [[round(v, 3) for v in row] for row in w.tolist()] == [[-1.0, 2.0], [0.0, 3.0], [1.0, 4.0]]


def test_learning_rates_may_be_tensors():
    w = parameter(1.0)
    optimizer = Adam([w], lr=fb.tensor(0.5))
    w.grad = fb.ones(1)
    optimizer.step()
    assert abs(w.item() - 0.5) < 1e-4


def test_schedules_warn_about_the_order():
    optimizer = SGD([parameter(1.0)], lr=1.0)
    scheduler = StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()
    with pytest.warns(UserWarning, match="get_last_lr"):
        scheduler.get_lr()


def test_schedules_round_through_state_dicts():
    def make():
        optimizer = SGD([parameter(1.0)], lr=1.0)
        return optimizer, LambdaLR(optimizer, lambda e: 1 / (1 + e))

    optimizer, scheduler = make()
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    fresh, again = make()
    fresh.load_state_dict(optimizer.state_dict())
    again.load_state_dict(scheduler.state_dict())
    fresh.step()
    again.step()
    assert fresh.param_groups[0]["lr"] == 0.2
    with pytest.raises(TypeError, match="is not an Optimizer"):
        StepLR(3, 1)
    with pytest.raises(KeyError, match="initial_lr"):
        StepLR(SGD([parameter(1.0)], lr=1.0), 1, last_epoch=3)
    with pytest.raises(ValueError, match="milestone"):
        SequentialLR(optimizer, [scheduler], [1])
    with pytest.raises(ValueError, match="Factor"):
        ReduceLROnPlateau(optimizer, factor=1.0)


def test_averaged_models():
    from flambeau.optim.swa_utils import AveragedModel, get_ema_avg_fn, update_bn

    model = fb.nn.Linear(1, 1)
    average = AveragedModel(model)
    ema = AveragedModel(model, avg_fn=get_ema_avg_fn(0.5))
    for value in (0.0, 2.0, 4.0):
        with fb.no_grad():
            model.weight.fill_(value)
        average.update_parameters(model)
        ema.update_parameters(model)
    assert average.module.weight.item() == 2.0 and ema.module.weight.item() == 2.5 and int(average.n_averaged) == 3
    bn = fb.nn.BatchNorm1d(1)
    update_bn([fb.full((4, 1), 2.0) + fb.arange(4).float()[:, None], fb.arange(4).float()[:, None]], bn)
    assert abs(bn.running_mean.item() - 2.5) < 1e-5 and bn.momentum == 0.1


def test_a_differentiable_step():
    w = fb.ones(2, requires_grad=True)
    rate = fb.tensor(0.5, requires_grad=True)
    p = w * 1
    p.retain_grad()
    optimizer = SGD([p], lr=0.1, differentiable=True)
    p.grad = (rate * fb.ones(2)).detach() if False else fb.ones(2)
    optimizer.step()
    p.sum().backward()
    assert w.grad.tolist() == [1.0, 1.0]
