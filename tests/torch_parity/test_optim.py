"""Optimisers and schedules step as PyTorch's do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flambeau as fb

CASES = [
    ("SGD", dict(lr=0.1)),
    ("SGD", dict(lr=0.1, momentum=0.9)),
    ("SGD", dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.3, maximize=True)),
    ("Adam", dict(lr=0.01)),
    ("Adam", dict(lr=0.01, amsgrad=True, weight_decay=0.1)),
    ("Adam", dict(lr=0.01, betas=(0.5, 0.9), eps=1e-3, maximize=True)),
    ("AdamW", dict(lr=0.01)),
    ("AdamW", dict(lr=0.01, weight_decay=0.3, amsgrad=True)),
    ("RMSprop", dict()),
    ("RMSprop", dict(centered=True, momentum=0.9, weight_decay=0.1)),
    ("RMSprop", dict(momentum=0.5)),
    ("Adagrad", dict(lr=0.1)),
    ("Adagrad", dict(lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.2)),
    ("Adadelta", dict()),
    ("Adadelta", dict(lr=0.5, rho=0.8, weight_decay=0.1)),
    ("Adamax", dict()),
    ("Adamax", dict(lr=0.01, weight_decay=0.1)),
    ("NAdam", dict()),
    ("NAdam", dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)),
    ("RAdam", dict(lr=0.05)),
    ("RAdam", dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)),
    ("Rprop", dict()),
    ("Rprop", dict(lr=0.05, etas=(0.4, 1.3), step_sizes=(1e-4, 1.0))),
    ("ASGD", dict(lr=0.1)),
    ("ASGD", dict(lr=0.1, t0=2, weight_decay=0.1)),
    ("LBFGS", dict(lr=0.5, max_iter=4)),
    ("LBFGS", dict(line_search_fn="strong_wolfe", max_iter=6, history_size=3)),
    ("Adafactor", dict()),
    ("Adafactor", dict(lr=0.1, weight_decay=0.1)),
    ("Muon", dict(lr=0.1)),
]


def weights(dtype="float32"):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dtype) for s in ((5, 3), (4, 3), (2, 7))]


def loss_of(params):
    a, b, c = params
    return ((a @ b.T - 1) ** 2).sum() + (c**4).mean() + (a * 0.1).sum()


def train(framework, params, make, steps):
    optimizer = make(params)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return optimizer


@pytest.mark.parametrize(
    "name, options",
    CASES,
    ids=lambda v: v if isinstance(v, str) else ",".join(f"{k}={x}" for k, x in v.items()) or "plain",
)
def test_steps_agree(name, options):
    dtype = "float64" if name == "LBFGS" else "float32"
    theirs = [torch.nn.Parameter(torch.from_numpy(w.copy())) for w in weights(dtype)]
    mine = [fb.nn.Parameter(fb.from_numpy(w.copy())) for w in weights(dtype)]
    a = train(torch, theirs, lambda p: getattr(torch.optim, name)(p, **options), 8)
    b = train(fb, mine, lambda p: getattr(fb.optim, name)(p, **options), 8)
    rtol, atol = (0.1, 0.05) if name == "Muon" else (2e-4, 2e-6)  # Muon works in bfloat16
    for x, y in zip(theirs, mine):
        np.testing.assert_allclose(y.detach().numpy(), x.detach().numpy(), rtol=rtol, atol=atol)
    left, right = a.state_dict(), b.state_dict()
    assert left["param_groups"][0] == right["param_groups"][0]
    assert left["state"].keys() == right["state"].keys()
    for i in left["state"]:
        assert left["state"][i].keys() == right["state"][i].keys()
        for key, value in left["state"][i].items():
            if isinstance(value, torch.Tensor):
                assert tuple(value.shape) == tuple(right["state"][i][key].shape)
                assert str(value.dtype).split(".")[1] == right["state"][i][key].dtype.name


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "NAdam"])
def test_float64_and_complex(name):
    for dtype in ("float64", "complex64"):
        w = (np.arange(6) + (1j if dtype == "complex64" else 0)).reshape(2, 3).astype(dtype) / 3
        x, y = torch.nn.Parameter(torch.from_numpy(w.copy())), fb.nn.Parameter(fb.from_numpy(w.copy()))
        a, b = getattr(torch.optim, name)([x], lr=0.1), getattr(fb.optim, name)([y], lr=0.1)
        for _ in range(4):
            x.grad, y.grad = torch.from_numpy(w * 2 + 1), fb.from_numpy(w * 2 + 1)
            a.step()
            b.step()
        np.testing.assert_allclose(y.detach().numpy(), x.detach().numpy(), rtol=1e-5 if dtype == "complex64" else 1e-12)


SCHEDULES = [
    ("LambdaLR", lambda m: dict(lr_lambda=lambda e: 0.9**e)),
    ("MultiplicativeLR", lambda m: dict(lr_lambda=lambda e: 0.9)),
    ("StepLR", lambda m: dict(step_size=3, gamma=0.5)),
    ("MultiStepLR", lambda m: dict(milestones=[2, 5, 5, 9], gamma=0.5)),
    ("ConstantLR", lambda m: dict(factor=0.25, total_iters=4)),
    ("LinearLR", lambda m: dict(start_factor=0.2, end_factor=0.9, total_iters=6)),
    ("ExponentialLR", lambda m: dict(gamma=0.8)),
    ("CosineAnnealingLR", lambda m: dict(T_max=5, eta_min=0.01)),
    ("CosineAnnealingWarmRestarts", lambda m: dict(T_0=3, T_mult=2, eta_min=0.01)),
    ("PolynomialLR", lambda m: dict(total_iters=7, power=2.0)),
    ("CyclicLR", lambda m: dict(base_lr=0.01, max_lr=0.2, step_size_up=3, step_size_down=4)),
    ("CyclicLR", lambda m: dict(base_lr=0.01, max_lr=0.2, step_size_up=3, mode="triangular2")),
    ("CyclicLR", lambda m: dict(base_lr=0.01, max_lr=0.2, step_size_up=3, mode="exp_range", gamma=0.9)),
    ("OneCycleLR", lambda m: dict(max_lr=0.3, total_steps=15)),
    ("OneCycleLR", lambda m: dict(max_lr=0.3, epochs=3, steps_per_epoch=5, three_phase=True, anneal_strategy="linear")),
]


def rates(m, name, options, steps=14):
    p = m.nn.Parameter(m.ones(2))
    optimizer = m.optim.SGD(
        [{"params": [p]}, {"params": [m.nn.Parameter(m.ones(1))], "lr": 0.05}], lr=0.1, momentum=0.9
    )
    scheduler = getattr(m.optim.lr_scheduler, name)(optimizer, **options(m))
    found = []
    for _ in range(steps):
        found.append([(g["lr"], g["momentum"]) for g in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return found, scheduler


@pytest.mark.parametrize("name, options", SCHEDULES)
def test_schedules_agree(name, options):
    theirs, a = rates(torch, name, options)
    mine, b = rates(fb, name, options)
    np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    assert a.state_dict().keys() == b.state_dict().keys()
    assert a.get_last_lr() == pytest.approx(b.get_last_lr())


def composed(m, kind):
    p = m.nn.Parameter(m.ones(2))
    optimizer = m.optim.SGD([p], lr=1.0)
    L = m.optim.lr_scheduler
    if kind == "sequential":
        scheduler = L.SequentialLR(
            optimizer,
            [L.LinearLR(optimizer, 0.1, total_iters=3), L.ExponentialLR(optimizer, 0.9), L.StepLR(optimizer, 2)],
            [3, 7],
        )
    else:
        scheduler = L.ChainedScheduler([L.ConstantLR(optimizer, 0.1, 3), L.ExponentialLR(optimizer, 0.9)])
    found = []
    for _ in range(12):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sequential", "chained"])
def test_composed_schedules_agree(kind):
    np.testing.assert_allclose(composed(fb, kind), composed(torch, kind), rtol=1e-12)


@pytest.mark.parametrize("mode, threshold_mode", [("min", "rel"), ("max", "rel"), ("min", "abs"), ("max", "abs")])
def test_plateau_agrees(mode, threshold_mode):
    found = []
    for m in (torch, fb):
        optimizer = m.optim.SGD([m.nn.Parameter(m.ones(2))], lr=1.0)
        scheduler = m.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode, 0.5, 2, 0.05, threshold_mode, cooldown=1, min_lr=0.1
        )
        measures = [1.0, 0.9, 0.95, 0.92, 0.91, 0.9, 0.9, 0.9, 0.9, 0.9, 0.2, 0.2, 0.2, 0.2, 0.2, 1.5, 1.5, 1.5]
        found.append([])
        for x in measures:
            scheduler.step(x)
            found[-1].append((optimizer.param_groups[0]["lr"], scheduler.num_bad_epochs, scheduler.last_epoch))
    np.testing.assert_allclose(found[1], found[0])


def test_state_dicts_cross():
    """A state that PyTorch wrote goes on here as it does there."""
    theirs = [torch.nn.Parameter(torch.from_numpy(w.copy())) for w in weights()]
    a = train(torch, theirs, lambda p: torch.optim.AdamW(p, lr=0.01), 3)
    mine = [fb.nn.Parameter(fb.from_numpy(p.detach().numpy().copy())) for p in theirs]
    b = fb.optim.AdamW(mine, lr=0.5)
    state = a.state_dict()
    state["state"] = {
        i: {k: fb.from_numpy(np.array(v.numpy())) for k, v in s.items()} for i, s in state["state"].items()
    }
    b.load_state_dict(state)
    for params, optimizer in ((theirs, a), (mine, b)):
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(params).backward()
            optimizer.step()
    for x, y in zip(theirs, mine):
        np.testing.assert_allclose(y.detach().numpy(), x.detach().numpy(), rtol=2e-5, atol=1e-6)
