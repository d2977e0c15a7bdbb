"""vmap, jvp and grad nest in any order and agree with formulas."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau
from flambeau.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def t(array) -> flambeau.Tensor:
    return flambeau.from_numpy(np.asarray(array, dtype=np.float64))


def test_vmap_of_grad(rng) -> None:
    x, w = rng.standard_normal((4, 3)), rng.standard_normal(3)
    weight = t(w)
    got = vmap(grad(lambda v: (v * weight).tanh().sum()))(t(x))
    np.testing.assert_allclose(got.numpy(), (1 - np.tanh(x * w) ** 2) * w, rtol=1e-12)


def test_grad_of_grad(rng) -> None:
    w = rng.standard_normal(3)
    got = grad(lambda a: grad(lambda b: (b * b * b).sum())(a).sum())(t(w))
    np.testing.assert_allclose(got.numpy(), 6 * w, rtol=1e-12)


def test_jvp_through_softmax(rng) -> None:
    x, d = rng.standard_normal((4, 3)), rng.standard_normal((4, 3))
    value, tangent = jvp(lambda a: flambeau.softmax(a, -1), (t(x),), (t(d),))
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(value.numpy(), p, rtol=1e-12)
    np.testing.assert_allclose(tangent.numpy(), p * (d - (p * d).sum(1, keepdims=True)), rtol=1e-9, atol=1e-12)


def test_vjp(rng) -> None:
    x, g = rng.standard_normal(5), rng.standard_normal(5)
    value, pull = vjp(lambda a: a * a, t(x))
    np.testing.assert_allclose(value.numpy(), x * x)
    np.testing.assert_allclose(pull(t(g))[0].numpy(), 2 * x * g)


@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_jacobians(rng, jacobian) -> None:
    x = rng.standard_normal(4)
    got = jacobian(lambda a: a * a * a)(t(x))
    np.testing.assert_allclose(got.numpy(), np.diag(3 * x**2), rtol=1e-12, atol=1e-12)


def test_hessian(rng) -> None:
    x = rng.standard_normal(4)
    got = hessian(lambda a: (a * a * a).sum())(t(x))
    np.testing.assert_allclose(got.numpy(), np.diag(6 * x), rtol=1e-12, atol=1e-12)


def test_in_and_out_dims(rng) -> None:
    x, w = rng.standard_normal((3, 4)), rng.standard_normal(3)
    weight = t(w)
    got = vmap(lambda v: v * weight, in_dims=1, out_dims=1)(t(x))
    np.testing.assert_allclose(got.numpy(), x * w[:, None])


def test_nested_vmap(rng) -> None:
    x, y = rng.standard_normal(3), rng.standard_normal(4)
    other = t(y)
    got = vmap(lambda a: vmap(lambda b: a * b)(other))(t(x))
    np.testing.assert_allclose(got.numpy(), np.outer(x, y))


def test_vmap_sees_grad_mode_outside(rng) -> None:
    """Gradients flow from a vmapped function to what it closes over."""
    x = rng.standard_normal((4, 3))
    w = t(rng.standard_normal(3)).requires_grad_()
    vmap(lambda v: (v * w).sum())(t(x)).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), x.sum(0))


@pytest.mark.parametrize(
    ("call", "pattern"),
    [
        (lambda: vmap(lambda a: a, in_dims=None)(t([1.0])), "at least one argument"),
        (lambda: vmap(lambda a, b: a + b)(t([1.0]), t([1.0, 2.0])), "same size in the mapped dimension"),
        (lambda: vmap(lambda a: a, in_dims=3)(t([1.0])), "in_dim must be in"),
    ],
)
def test_vmap_errors(call, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        call()


def test_grad_needs_one_number() -> None:
    with pytest.raises(RuntimeError, match="scalar"):
        grad(lambda a: a * 2)(t([1.0, 2.0]))
