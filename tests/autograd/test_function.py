"""Functions with a backward of their own."""

from __future__ import annotations

import gc
import weakref

import pytest

import flambeau as fb
from flambeau.autograd import Function, grad, gradcheck, gradgradcheck
from flambeau.autograd.function import once_differentiable


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class Exp(Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x, factor):
        y = (x * factor).exp()
        ctx.factor = factor
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        assert ctx.needs_input_grad == (True, False)
        (y,) = ctx.saved_tensors
        return y * g * ctx.factor, None


class SumAndProduct(Function):
    @staticmethod
    def forward(x, y):
        return x + y, x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, a, b):
        x, y = ctx.saved_tensors
        return a + b * y, a + b * x


class Double(Function):
    """In place."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * 2


class Split(Function):
    """One output without gradient, and no zeros for missing gradients."""

    @staticmethod
    def forward(ctx, x):
        sign = x.sign()
        ctx.mark_non_differentiable(sign)
        ctx.set_materialize_grads(False)
        return x.abs(), sign, x * 2

    @staticmethod
    def backward(ctx, a, b, c):
        ctx_seen.append((a is None, b is None, c is None))
        return c * 2 if a is None else a


ctx_seen: list = []


def wrong(returned):
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return returned(g)

    return Wrong


def leaf(*values):
    return fb.tensor(list(values), dtype=fb.float64, requires_grad=True)


def test_forward_and_backward():
    x = leaf(1.0, 2.0)
    y = Cube.apply(x)
    assert y.grad_fn.name() == "CubeBackward" and not y.is_leaf
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 12.0]
    assert not Cube.apply(x.detach()).requires_grad
    with fb.no_grad():
        assert not Cube.apply(x).requires_grad


def test_higher_derivatives():
    assert gradcheck(Cube.apply, leaf(0.5, -1.5)) and gradgradcheck(Cube.apply, leaf(0.5, -1.5))
    assert gradcheck(lambda x: Exp.apply(x, 2.0), leaf(0.5, -1.5)) and gradgradcheck(
        lambda x: Exp.apply(x, 2.0), leaf(0.5, -1.5)
    )
    assert gradgradcheck(SumAndProduct.apply, (leaf(1.0, 2.0), leaf(3.0, -1.0)))


def test_several_outputs_and_missing_gradients():
    x = leaf(1.0, -2.0)
    a, sign, c = Split.apply(x)
    assert a.requires_grad and not sign.requires_grad and c.requires_grad
    ctx_seen.clear()
    (g,) = grad(c.sum(), x, retain_graph=True)
    assert g.tolist() == [2.0, 2.0] and ctx_seen == [(True, True, False)]
    u, v = SumAndProduct.apply(x, x * 3)
    (u.sum() + 2 * v.sum()).backward()
    assert x.grad.tolist() == [1 + 3 + 12 * 1.0, 1 + 3 + 12 * -2.0]


def test_in_place():
    x = leaf(1.0, 2.0)
    z = x * 1
    assert Double.apply(z) is z and z.grad_fn.name() == "DoubleBackward" and z._version >= 1
    (z * z).sum().backward()
    assert x.grad.tolist() == [8.0, 16.0]
    (g,) = grad((Double.apply(x * 1) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_freed_and_changed_tensors():
    x = leaf(1.0, 2.0)
    y = Cube.apply(x)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    z = x * 1
    y = Cube.apply(z)
    z += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_wrong_backwards_are_named():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    with pytest.raises(RuntimeError, match=r"incorrect number of gradients \(expected 2, got 1\)"):
        wrong(lambda g: g).apply(x, y).sum().backward()
    with pytest.raises(RuntimeError, match="invalid gradient at index 1"):
        wrong(lambda g: (g, fb.ones(3, dtype=fb.float64))).apply(x, y).sum().backward()
    with pytest.raises(RuntimeError, match="different from None"):
        wrong(lambda g: (g, g)).apply(x, 2.0).sum().backward()
    with pytest.raises(TypeError, match="apply"):
        Cube()
    with pytest.raises(NotImplementedError):
        Function.apply(x)


def test_gradients_are_fitted():
    x, y = leaf(1.0, 2.0), fb.tensor(3.0, dtype=fb.float32, requires_grad=True)
    wrong(lambda g: (g, g)).apply(x, y).sum().backward()
    assert y.grad.shape == () and y.grad.dtype is fb.float32 and y.grad.item() == 2.0


def test_nodes_do_not_keep_themselves_alive():
    x = leaf(1.0)
    y = Exp.apply(x, 2.0)
    gone = weakref.ref(y.grad_fn)
    del y
    gc.disable()
    try:
        assert gone() is None
    finally:
        gc.enable()
