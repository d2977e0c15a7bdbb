"""Anomaly mode, hooks on saved tensors, functional derivatives, gradcheck, checkpoints, in-place writes."""

from __future__ import annotations

import warnings

import pytest

import flambeau as fb
from flambeau.autograd import detect_anomaly, functional, gradcheck, graph, set_detect_anomaly
from flambeau.autograd.anomaly import is_anomaly_enabled
from flambeau.autograd.numerical_check import GradcheckError
from flambeau.utils.checkpoint import CheckpointError, checkpoint, checkpoint_sequential


def leaf(*values, dtype=fb.float64):
    return fb.tensor(list(values), dtype=dtype, requires_grad=True)


# ------------------------------------------------------------------ anomaly mode
def test_nan_gradients_name_the_forward_line():
    x = leaf(0.0, 1.0)
    with detect_anomaly():
        assert is_anomaly_enabled()
        y = (x - 2).sqrt()  # the line to find
        with pytest.raises(RuntimeError, match="returned nan values") as e:
            y.sum().backward()
    assert "the line to find" in str(e.value) and "SqrtBackward0" in str(e.value)
    assert not is_anomaly_enabled()
    with detect_anomaly(check_nan=False):
        (x - 2).sqrt().sum().backward()
    assert x.grad[0].isnan()


def test_set_detect_anomaly():
    set_detect_anomaly(True)
    assert is_anomaly_enabled()
    set_detect_anomaly(False)
    with set_detect_anomaly(True):
        assert is_anomaly_enabled()
    assert not is_anomaly_enabled()


# ------------------------------------------------------------------ saved tensors
def test_saved_tensors_go_through_hooks():
    seen = []
    x = leaf(1.0, 2.0)
    with graph.saved_tensors_hooks(
        lambda t: seen.append(t.shape) or t.tolist(), lambda kept: fb.tensor(kept, dtype=fb.float64)
    ):
        y = (x * x).exp()
    y.sum().backward()
    plain = leaf(1.0, 2.0)
    (plain * plain).exp().sum().backward()
    assert seen and x.grad.tolist() == plain.grad.tolist()
    with graph.disable_saved_tensors_hooks("not here"), pytest.raises(RuntimeError, match="not here"):
        graph.saved_tensors_hooks(lambda t: t, lambda t: t).__enter__()


def test_second_derivatives_through_hooks():
    x = leaf(0.5, 2.0)
    with graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = (x * x * x).sum()
        (g,) = fb.autograd.grad(y, x, create_graph=True)
    (h,) = fb.autograd.grad(g.sum(), x)
    assert h.tolist() == [3.0, 12.0]


def test_hooks_on_several_tensors():
    x, y = leaf(1.0), leaf(2.0)
    found = []
    handle = graph.register_multi_grad_hook((x, y), lambda grads: found.append([g.item() for g in grads]))
    (x * y).sum().backward()
    handle.remove()
    (x * y).sum().backward()
    assert found == [[2.0, 1.0]]
    assert graph.get_gradient_edge(x * y).node.name() == "MulBackward0"


# ------------------------------------------------------------------ functional
def cubes(x):
    return (x**3).sum()


def test_jacobians_and_hessians():
    x = fb.tensor([1.0, 2.0], dtype=fb.float64)
    jacobian = functional.jacobian(lambda a: fb.stack([a[0] * a[1], a[0] + a[1], a[1] ** 2]), x)
    assert jacobian.tolist() == [[2.0, 1.0], [1.0, 1.0], [0.0, 4.0]]
    assert functional.hessian(cubes, x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    (aa, ab), (ba, bb) = functional.hessian(lambda a, b: (a * b).sum() + (b**2).sum(), (x, x))
    assert (
        aa.abs().sum() == 0
        and ab.tolist() == ba.tolist() == [[1.0, 0.0], [0.0, 1.0]]
        and bb.tolist() == [[2.0, 0.0], [0.0, 2.0]]
    )
    rows = functional.jacobian(lambda a, b: (a * b, a.sum()), (x, x))
    assert rows[1][0].tolist() == [1.0, 1.0] and rows[1][1].tolist() == [0.0, 0.0]


def test_products_with_vectors():
    x, v = fb.tensor([1.0, 2.0], dtype=fb.float64), fb.tensor([1.0, -1.0], dtype=fb.float64)
    value, found = functional.vjp(lambda a: a**2, x, v)
    assert value.tolist() == [1.0, 4.0] and found.tolist() == [2.0, -4.0]
    assert functional.jvp(lambda a: a**2, x, v)[1].tolist() == [2.0, -4.0]
    assert functional.vhp(cubes, x, v)[1].tolist() == functional.hvp(cubes, x, v)[1].tolist() == [6.0, -12.0]
    with pytest.raises(RuntimeError, match="independent"):
        functional.vjp(lambda a: fb.ones(2), x, v, strict=True)
    with pytest.raises(RuntimeError, match="single"):
        functional.vjp(lambda a: a, x)
    with pytest.raises(TypeError, match="must be a Tensor"):
        functional.vjp(lambda a: 3, x, v)


# ------------------------------------------------------------------ gradcheck
class Wrong(fb.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] * 2.1


def test_gradcheck_finds_wrong_gradients():
    x = leaf(1.0, 2.0)
    assert gradcheck(lambda a: a.sin() * a, x) and gradcheck(lambda a: a.sin() * a, x, fast_mode=True)
    for fast in (False, True):
        with pytest.raises(GradcheckError, match="Jacobian mismatch"):
            gradcheck(Wrong.apply, x, fast_mode=fast)
        assert not gradcheck(Wrong.apply, x, raise_exception=False, fast_mode=fast)
    z = fb.tensor([1 + 2j, 0.5 - 1j], dtype=fb.complex128, requires_grad=True)
    assert gradcheck(lambda a: a * a.conj() + a**2, z) and gradcheck(lambda a: a.abs(), z)
    with pytest.raises(ValueError, match="at least one input"):
        gradcheck(lambda a: a, fb.ones(2))
    with pytest.raises(RuntimeError, match="stride 0"):
        gradcheck(lambda a: a, fb.ones(1, dtype=fb.float64).expand(3).requires_grad_())


# ------------------------------------------------------------------ checkpoints
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_give_the_same_gradients(reentrant):
    runs = []
    model = fb.nn.Sequential(fb.nn.Linear(4, 8), fb.nn.Dropout(0.5), fb.nn.Tanh(), fb.nn.Linear(8, 2)).double()
    x = fb.randn(3, 4, dtype=fb.float64, requires_grad=True)

    def part(a):
        runs.append(a.requires_grad)
        return model(a)

    def gradients(call):
        fb.manual_seed(5)
        model.zero_grad()
        x.grad = None
        (call(x) ** 2).sum().backward()
        return [p.grad.tolist() for p in model.parameters()] + [x.grad.tolist()]

    wanted = gradients(part)
    runs.clear()
    found = gradients(lambda a: checkpoint(part, a, use_reentrant=reentrant))
    assert len(runs) == 2
    for a, b in zip(wanted, found):
        assert fb.tensor(a).allclose(fb.tensor(b))
    found = gradients(lambda a: checkpoint_sequential(model, 2, a, use_reentrant=reentrant))
    for a, b in zip(wanted, found):
        assert fb.tensor(a).allclose(fb.tensor(b))


def test_checkpoints_keep_less():
    saved = []
    x = fb.randn(5, requires_grad=True)
    with graph.saved_tensors_hooks(lambda t: saved.append(1) or t, lambda t: t):
        y = checkpoint(lambda a: a.exp().sin().exp().cos().exp(), x, use_reentrant=False)
        inside = len(saved)
        y = y * y
    assert inside == 0
    y.sum().backward()
    assert x.grad is not None


def test_second_derivatives_through_a_checkpoint():
    x = leaf(0.5, 2.0)
    y = checkpoint(lambda a: a.sin() * a * a, x, use_reentrant=False)
    (g,) = fb.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = fb.autograd.grad(g.sum(), x)
    z = x.sin() * x * x
    (k,) = fb.autograd.grad(fb.autograd.grad(z.sum(), x, create_graph=True)[0].sum(), x)
    assert h.allclose(k)


def test_functions_that_change_are_found_out():
    calls = []

    def fickle(a):
        calls.append(1)
        return a.exp() if len(calls) == 1 else a.exp().sin().exp()

    with pytest.raises(CheckpointError, match="saved during"):
        checkpoint(fickle, leaf(1.0), use_reentrant=False, early_stop=False).sum().backward()
    with pytest.raises(ValueError, match="keyword"):
        checkpoint(lambda a: a, leaf(1.0), use_reentrant=True, other=1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        checkpoint(lambda a: a * 2, leaf(1.0))
    assert any("use_reentrant" in str(w.message) for w in found)


# ------------------------------------------------------------------ writes in place
def test_writes_keep_what_backward_reads():
    x, y = leaf(1.0, 2.0), leaf(3.0, 5.0)
    z = x * 1
    z.mul_(y)
    z.mul_(y)
    z.sum().backward()
    assert x.grad.tolist() == [9.0, 25.0] and y.grad.tolist() == [6.0, 20.0]
    b = fb.ones(2, dtype=fb.float64)
    b *= y
    y.grad = None
    b.sum().backward()
    assert y.grad.tolist() == [1.0, 1.0]


def test_batched_gradients():
    x = leaf(1.0, 2.0)
    (g,) = fb.autograd.grad(x**2, x, fb.eye(2, dtype=fb.float64), is_grads_batched=True)
    assert g.tolist() == [[2.0, 0.0], [0.0, 4.0]]
