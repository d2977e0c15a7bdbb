"""Tools of nn.utils do what PyTorch's do."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import flambeau as fb


def same(a, b, tol=1e-5):
    np.testing.assert_allclose(b.detach().numpy(), a.detach().numpy(), rtol=tol, atol=tol)


def pair(kind, *args):
    torch.manual_seed(0)
    a, b = getattr(torch.nn, kind)(*args), getattr(fb.nn, kind)(*args)
    b.load_state_dict({k: fb.from_numpy(v.numpy().copy()) for k, v in a.state_dict().items()})
    return a, b


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf"), 3.0])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clipping(norm_type, max_norm):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("f") for s in ((3, 4), (5,), ())]
    found = []
    for m in (torch, fb):
        params = [m.nn.Parameter(m.zeros(a.shape)) for a in arrays]
        for p, a in zip(params, arrays):
            p.grad = m.from_numpy(np.array(a))
        total = m.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
        first = [p.grad.clone() for p in params]
        m.nn.utils.clip_grad_value_(params, 0.05)
        found.append([total, *first, *(p.grad for p in params)])
    for a, b in zip(*found):
        same(a, b)
    with pytest.raises(RuntimeError, match="non-finite"):
        p = fb.nn.Parameter(fb.zeros(2))
        p.grad = fb.tensor([float("nan"), 1.0])
        fb.nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)


def test_vectors_of_parameters():
    a, b = pair("Linear", 3, 2)
    same(torch.nn.utils.parameters_to_vector(a.parameters()), fb.nn.utils.parameters_to_vector(b.parameters()))
    fb.nn.utils.vector_to_parameters(fb.arange(8).float(), b.parameters())
    assert b.bias.tolist() == [6.0, 7.0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("new", [False, True])
def test_weight_norm(new, dim):
    a, b = pair("Conv1d", 3, 4, 2)
    wrap = (lambda m: m.nn.utils.parametrizations.weight_norm) if new else (lambda m: m.nn.utils.weight_norm)
    a, b = wrap(torch)(a, dim=dim), wrap(fb)(b, dim=dim)
    assert list(a.state_dict()) == list(b.state_dict())
    for k, v in a.state_dict().items():
        same(v, b.state_dict()[k])
    x = np.random.default_rng(0).standard_normal((2, 3, 6)).astype("f")
    ya, yb = a(torch.from_numpy(x)), b(fb.from_numpy(x.copy()))
    same(ya, yb)
    ya.square().sum().backward()
    (yb * yb).sum().backward()
    for p, q in zip(a.parameters(), b.parameters()):
        same(p.grad, q.grad, 1e-4)
    if new:
        fb.nn.utils.parametrize.remove_parametrizations(b, "weight")
    else:
        fb.nn.utils.remove_weight_norm(b)
    assert sorted(b.state_dict()) == ["bias", "weight"] and type(b) is fb.nn.Conv1d
    same(ya, b(fb.from_numpy(x.copy())))


def test_spectral_norm():
    a, b = pair("Linear", 5, 4)
    with np.errstate(all="ignore"):
        a, b = (
            torch.nn.utils.parametrizations.spectral_norm(a, n_power_iterations=50),
            fb.nn.utils.parametrizations.spectral_norm(b, n_power_iterations=50),
        )
    assert list(a.state_dict()) == list(b.state_dict())
    x = np.random.default_rng(0).standard_normal((2, 5)).astype("f")
    same(a(torch.from_numpy(x)), b(fb.from_numpy(x.copy())), 1e-4)
    c = fb.nn.utils.spectral_norm(fb.nn.Linear(5, 4), n_power_iterations=50)
    c(fb.from_numpy(x.copy()))
    assert np.linalg.svd(c.weight.detach().numpy())[1][0] == pytest.approx(1, abs=1e-4)
    assert set(c.state_dict()) == {"bias", "weight_orig", "weight_u", "weight_v"}


class Symmetric:
    def __new__(cls, m):
        class Made(m.nn.Module):
            def forward(self, x):
                return x.triu() + x.triu(1).mT

            def right_inverse(self, x):
                return x.triu()

        return Made()


def test_parametrize():
    a, b = pair("Linear", 3, 3)
    for m, layer in ((torch, a), (fb, b)):
        p = m.nn.utils.parametrize
        p.register_parametrization(layer, "weight", Symmetric(m))
        assert p.is_parametrized(layer) and p.is_parametrized(layer, "weight") and not p.is_parametrized(layer, "bias")
        assert type(layer).__name__ == "ParametrizedLinear" and p.type_before_parametrizations(layer) is m.nn.Linear
        with p.cached():
            assert layer.weight is layer.weight
    assert repr(a).replace("Made", "") == repr(b).replace("Made", "")
    same(a.weight, b.weight)
    assert list(a.state_dict()) == list(b.state_dict())
    again = copy.deepcopy(b)
    again.weight = fb.ones(3, 3)
    assert again.weight.tolist() == [[1.0] * 3] * 3 and b.weight.tolist() != again.weight.tolist()
    orthogonal = fb.nn.utils.parametrizations.orthogonal(fb.nn.Linear(4, 6).double())
    w = orthogonal.weight
    assert (w.mT @ w).allclose(fb.eye(4, dtype=fb.float64), atol=1e-10)


def test_functional_call():
    a, b = pair("Linear", 3, 2)
    x = np.ones((1, 3), "f")
    given = {"weight": np.full((2, 3), 2.0, "f")}
    same(
        torch.func.functional_call(a, {k: torch.from_numpy(v) for k, v in given.items()}, (torch.from_numpy(x),)),
        fb.func.functional_call(b, {k: fb.from_numpy(v) for k, v in given.items()}, (fb.from_numpy(x),)),
    )
    assert b.weight.tolist() == a.weight.tolist()
    with pytest.raises(RuntimeError):
        fb.func.functional_call(b, {"nothing": fb.ones(1)}, (fb.from_numpy(x),))
    params, buffers = fb.func.stack_module_state([fb.nn.Linear(2, 2), fb.nn.Linear(2, 2)])
    assert params["weight"].shape == (2, 2, 2) and buffers == {}


def test_fusion():
    for kinds in (
        ("Conv2d", (3, 4, 3), "BatchNorm2d", (4,), (2, 3, 5, 5), "fuse_conv_bn_eval"),
        ("Linear", (3, 4), "BatchNorm1d", (4,), (2, 3), "fuse_linear_bn_eval"),
    ):
        layer, bn = getattr(fb.nn, kinds[0])(*kinds[1]).eval(), getattr(fb.nn, kinds[2])(*kinds[3]).eval()
        bn.running_mean.normal_()
        bn.running_var.uniform_(0.5, 2)
        bn.weight.data.normal_()
        x = fb.randn(*kinds[4])
        fused = getattr(fb.nn.utils, kinds[5])(layer, bn)
        assert fused(x).allclose(bn(layer(x)), rtol=1e-4, atol=1e-5)
