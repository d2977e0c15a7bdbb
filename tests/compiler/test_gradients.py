"""Gradients through compiled functions are the function's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flambeau as torch
from flambeau.compiler import CompileError
from tests.compiler.conftest import close, equal, traces


def leaf(*shape: int) -> Any:
    return torch.randn(*shape, requires_grad=True)


def compare(function: Callable, *inputs: Any, calls: int = 2) -> Any:
    """Results and gradients of all inputs, compiled and not."""
    f = torch.compile(function, fullgraph=True)
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    for _ in range(calls):
        results = []
        for call in (f, function):
            out = call(*inputs)
            outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad]
            loss = sum((o * torch.arange(o.numel()).reshape(o.shape).add(1).to(o.dtype)).sum() for o in outs)
            results.append((out, torch.autograd.grad(loss, wanted, allow_unused=True)))
        equal(results[0], results[1])
    return f


def test_one_result() -> None:
    compare(lambda x, w, b: torch.tanh(x @ w + b), leaf(3, 4), leaf(4, 5), leaf(5))


def test_several_results_some_without_gradient() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x * y).sum(), x > 0, (x.detach() + 1), y.exp(), torch.arange(3)

    compare(f, leaf(3), leaf(3))


def test_partly_required() -> None:
    compare(lambda x, y, z: x * y + z, leaf(3), torch.randn(3), leaf(3))


def test_views_as_results() -> None:
    compare(lambda x: (x[0], x.t(), x * 2, x.view(-1)), leaf(3, 4))


def test_an_input_as_result() -> None:
    def f(x: Any) -> Any:
        return x, x * 2

    g = torch.compile(f, fullgraph=True)
    x = leaf(3)
    a, b = g(x)
    assert a is x
    (a.sum() + b.sum()).backward()
    assert x.grad.tolist() == [3, 3, 3]


def test_only_one_of_the_results_is_used() -> None:
    f = torch.compile(lambda x: (x * 2, x.sin(), x.sum()), fullgraph=True)
    x = leaf(4)
    for i in range(3):
        (g,) = torch.autograd.grad(f(x)[i].sum(), x)
        equal(g, [torch.full((4,), 2.0), x.detach().cos(), torch.ones(4)][i])


def test_accumulates_into_grad() -> None:
    f = torch.compile(lambda x: (x * x).sum(), fullgraph=True)
    x = leaf(3)
    f(x).backward()
    f(x).backward()
    equal(x.grad, 4 * x.detach())
    x.grad = None
    f(x).backward()
    equal(x.grad, 2 * x.detach())


def test_part_of_a_larger_graph() -> None:
    f = torch.compile(lambda h: h.tanh() * 3, fullgraph=True)
    x = leaf(3)
    y = (f(f(x * 2)) ** 2).sum()
    y.backward()
    z = x.detach().clone().requires_grad_()
    (((z * 2).tanh() * 3).tanh() * 3).pow(2).sum().backward()
    equal(x.grad, z.grad)


def test_tensors_from_outside_get_gradients() -> None:
    w = leaf(3)
    f = torch.compile(lambda x: (x * w).sum(), fullgraph=True)
    x = torch.randn(3)
    f(x).backward()
    equal(w.grad, x)
    with torch.no_grad():
        w.add_(1)
    equal(f(x).detach(), (x * w).sum().detach())


def test_retain_graph() -> None:
    f = torch.compile(lambda x: (x.exp() * 2).sum(), fullgraph=True)
    x = leaf(3)
    y = f(x)
    y.backward(retain_graph=True)
    y.backward()
    equal(x.grad, 4 * x.detach().exp())
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_a_saved_input_that_was_written_to_raises() -> None:
    f = torch.compile(lambda x, w: x * w, fullgraph=True)
    x, w = leaf(3), torch.randn(3)
    y = f(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_saved_result_that_was_written_to_raises() -> None:
    f = torch.compile(lambda x: x.exp(), fullgraph=True)
    y = f(leaf(3))
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_of_gradients() -> None:
    w = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def f(x: Any, y: Any) -> Any:
        return (torch.tanh(x @ w) * y).sum(1).exp(), (x**3).sum()

    c = torch.compile(f, fullgraph=True)
    for n in (5, 6, 7):  # of static and of symbolic sizes
        x = torch.randn(n, 4, dtype=torch.float64, requires_grad=True)
        y = torch.randn(n, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(c, (x, y))
        found = []
        for g in (c, f):
            (first,) = torch.autograd.grad(g(x, y)[0].sum(), x, create_graph=True)
            found.append((first, *torch.autograd.grad(first.square().sum(), (w, y))))
        for a, b in zip(*found):
            close(a, b)


def test_gradients_of_gradients_draw_the_same_numbers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    block = torch.compiler.nested_compile_region(lambda x: model(x).sum() * x.sum())
    x = torch.randn(3, 4, requires_grad=True)
    for f in (lambda x: model(x).sum() * x.sum(), lambda x: block(x) + block(x * 2)):
        found = []
        for g in (torch.compile(f), f):
            torch.manual_seed(0)
            (first,) = torch.autograd.grad(g(x), x, create_graph=True)
            found.append((first, *torch.autograd.grad(first.square().sum(), model[0].weight)))
        for a, b in zip(*found):
            close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_of_gradients_need_the_arguments() -> None:
    c = torch.compile(lambda x: (x + 2).sum())  # saves nothing
    x = torch.randn(3, requires_grad=True)
    out = c(x * 1)
    with pytest.raises(RuntimeError, match="Keep the arguments"):
        torch.autograd.grad(out, x, create_graph=True)
    y = x * 1
    out = c(y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified"):
        torch.autograd.grad(out, x, create_graph=True)


def test_no_grad_and_grad_keep_apart() -> None:
    f = torch.compile(lambda x: x * 2, fullgraph=True)
    x = leaf(3)
    for _ in range(2):
        with torch.no_grad():
            assert not f(x).requires_grad
        assert f(x).requires_grad
        assert not f(x.detach()).requires_grad
        with torch.inference_mode():
            y = f(x.detach())
        assert y.is_inference() and not y.requires_grad
    assert traces(f) == 4


def test_no_grad_inside() -> None:
    def f(x: Any) -> Any:
        with torch.no_grad():
            scale = x.abs().max()
        return x / scale

    compare(f, leaf(4))
    g = torch.compile(torch.no_grad()(lambda x: x * 2), fullgraph=True)
    assert not g(leaf(3)).requires_grad
    assert torch.is_grad_enabled()


def test_enable_grad_inside_no_grad() -> None:
    def f(x: Any) -> Any:
        with torch.enable_grad():
            return x * 2

    g = torch.compile(f, fullgraph=True)
    x = leaf(3)
    with torch.no_grad():
        for _ in range(2):
            assert g(x).requires_grad
            g(x).backward(torch.ones(3))
    assert x.grad.tolist() == [4, 4, 4]


def test_detach_cuts() -> None:
    compare(lambda x, y: x.detach() * y + x, leaf(3), leaf(3))


def test_requires_grad_inside() -> None:
    def f(x: Any) -> Any:
        y = x.detach().requires_grad_()
        (y**2).sum().backward()
        return y.grad

    g = torch.compile(f, fullgraph=True)
    x = torch.randn(3)
    for _ in range(2):
        equal(g(x), 2 * x)


def test_grad_inside() -> None:
    def f(x: Any, y: Any) -> Any:
        (gx,) = torch.autograd.grad((x * y).exp().sum(), x)
        return gx * 2

    g = torch.compile(f, fullgraph=True)
    x, y = leaf(3), torch.randn(3)
    for _ in range(2):
        equal(g(x, y), f(x, y))


def test_second_derivative_inside() -> None:
    def f(x: Any) -> Any:
        (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return (g**2).sum()

    compare(f, leaf(4))


def test_backward_inside_adds_to_grad() -> None:
    def f(x: Any, w: Any) -> Any:
        loss = (x * w).sum()
        loss.backward()
        return loss.detach()

    g = torch.compile(f, fullgraph=True)
    w, x = leaf(3), torch.randn(3)
    for i in range(3):
        equal(g(x, w), (x * w).sum().detach())
        equal(w.grad, (i + 1) * x)


def test_custom_function() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 5 * x

    compare(lambda x: Double.apply(x) + 1, leaf(3))


def test_hooks_on_tensors() -> None:
    seen: list = []
    x = leaf(3)
    x.register_hook(lambda g: seen.append(g.sum().item()) or g * 10)
    f = torch.compile(lambda x: (x * 2).sum(), fullgraph=True)
    for _ in range(2):
        x.grad = None
        f(x).backward()
        assert x.grad.tolist() == [20, 20, 20]
    assert seen == [6.0, 6.0]


def test_hook_inside() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return y.sum()

    compare(f, leaf(3))


def test_checkpoint_inside() -> None:
    from flambeau.utils.checkpoint import checkpoint

    def f(x: Any, w: Any) -> Any:
        return checkpoint(lambda a: torch.tanh(a @ w), x, use_reentrant=False).sum()

    compare(f, leaf(3, 4), leaf(4, 4))


def test_gradients_of_other_layouts() -> None:
    f = torch.compile(lambda x: x * 2, fullgraph=True)
    x = leaf(3, 4)
    g = torch.randn(4, 3)
    equal(torch.autograd.grad(f(x), x, g.t()), (2 * g.t().contiguous(),))
    equal(torch.autograd.grad(f(x).sum(), x), (torch.full((3, 4), 2.0),))
    equal(torch.autograd.grad(f(x), x, torch.ones(1, 1).expand(3, 4)), (torch.full((3, 4), 2.0),))


def test_in_place_on_what_needs_gradients() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y += 1
        y[0] = 0
        y.mul_(y.detach().clone())
        return y

    compare(f, leaf(3))


def test_in_place_on_an_argument_with_history_runs_eagerly() -> None:
    def f(h: Any) -> Any:
        h.mul_(3)
        return h.sum()

    x = leaf(3)
    with pytest.raises(CompileError, match="changes the history of an argument"):
        torch.compile(f, fullgraph=True)(x * 1)
    g = torch.compile(f)
    h = x * 1
    with pytest.warns(UserWarning, match="runs eagerly"):
        (g(h) + h.sum()).backward()
    assert x.grad.tolist() == [6, 6, 6]


def test_in_place_that_gives_an_argument_a_history_runs_eagerly() -> None:
    w, kept = leaf(3), torch.zeros(3)

    def to_argument(x: Any) -> None:
        x.add_(w * 2)

    def to_outside(x: Any) -> None:
        kept.add_(w * x)

    for f in (to_argument, to_outside):
        with pytest.raises(CompileError, match="changes the history of"):
            torch.compile(f, fullgraph=True)(torch.ones(3))
    x = torch.ones(3)
    with pytest.warns(UserWarning, match="runs eagerly"):
        torch.compile(to_argument)(x)
    assert x.requires_grad
    assert not kept.requires_grad and kept.tolist() == [0, 0, 0]


def test_in_place_under_no_grad_leaves_histories() -> None:
    def f(w: Any, x: Any) -> Any:
        with torch.no_grad():
            w.mul_(2)
        return (w * x).sum()

    g = torch.compile(f, fullgraph=True)
    w, x = torch.ones(3, requires_grad=True), torch.ones(3)
    for i in range(2):
        w.grad = None
        y = g(w, x)
        assert y.item() == 3 * 2 ** (i + 1)
        y.backward()
        assert w.grad.tolist() == [1, 1, 1] and w.is_leaf


def test_an_argument_with_history_is_no_leaf_inside() -> None:
    f = torch.compile(lambda h: (h.is_leaf, h * 2), fullgraph=True)
    x = leaf(3)
    is_leaf, y = f(x * 3)
    assert not is_leaf
    y.sum().backward()
    assert x.grad.tolist() == [6, 6, 6]
    assert f(x)[0] is True


def test_backward_inside_that_reaches_out_runs_eagerly() -> None:
    def f(h: Any) -> Any:
        loss = (h * h).sum()
        loss.backward()
        return loss.detach()

    x = leaf(3)
    with pytest.raises(CompileError, match="history of an argument"):
        torch.compile(f, fullgraph=True)(x * 2)
    with pytest.warns(UserWarning, match="runs eagerly"):
        torch.compile(f)(x * 2)
    equal(x.grad, 8 * x.detach())


def test_in_place_on_a_leaf_raises_as_eager() -> None:
    f = torch.compile(lambda x: x.add_(1), fullgraph=True)
    with pytest.raises(RuntimeError, match="leaf"):
        f(leaf(3))


def test_integers_and_complex() -> None:
    compare(lambda x, i: x[i] * 2, leaf(5), torch.tensor([0, 0, 3]))
    f = torch.compile(lambda z: (z * z.conj()).real.sum(), fullgraph=True)
    z = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    (g,) = torch.autograd.grad(f(z), z)
    equal(g, 2 * z.detach())


def test_gradcheck() -> None:
    f = torch.compile(lambda x, w: torch.softmax(x @ w, -1).log(), fullgraph=True)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(f, (x, w))


def test_anomaly_mode_passes_through() -> None:
    f = torch.compile(lambda x: (x * 2).sum(), fullgraph=True)
    x = leaf(3)
    with torch.autograd.detect_anomaly():
        f(x).backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_memory_of_a_dropped_graph_is_freed() -> None:
    import gc
    import weakref

    f = torch.compile(lambda x: x.exp(), fullgraph=True)
    x = leaf(3)
    f(x).sum().backward()
    y = f(x)
    ref = weakref.ref(y)
    gc.collect()
    gc.disable()
    try:
        del y
        assert ref() is None
    finally:
        gc.enable()


def test_hooks_of_a_parameter_run_once() -> None:
    w = leaf(3)
    w.register_hook(lambda grad: grad * 10)
    f = torch.compile(lambda x: (w * x).sum(), fullgraph=True)
    for _ in range(2):
        w.grad = None
        f(torch.ones(3)).backward()
        assert w.grad.tolist() == [10, 10, 10]


def test_a_result_with_its_history_and_without() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y, y.detach()

    g = torch.compile(f, fullgraph=True)
    for _ in range(2):
        x = leaf(3)
        y, z = g(x)
        assert y.requires_grad and not z.requires_grad and y.data_ptr() == z.data_ptr()
        y.sum().backward()
        assert x.grad.tolist() == [2, 2, 2]


def test_gradients_kept_of_a_result() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y.retain_grad()
        return (y * y).sum(), y

    g, x = torch.compile(f), leaf(3)
    with pytest.warns(UserWarning, match="runs eagerly.*retain_grad"):
        total, y = g(x)
    total.backward()
    equal(y.grad, 2 * y.detach())


def test_a_view_read_under_no_grad_after_its_base_was_written() -> None:
    def f(x: Any) -> Any:
        z = x * 1
        y = z.squeeze()
        z.clamp_(-1, 1)
        with torch.no_grad():
            w = y * 2
        return (z * z).sum() + (y * y).sum(), w

    results = []
    for call in (f, torch.compile(f, fullgraph=True)):
        x = torch.tensor([-3.0, 0.5, 2.0], requires_grad=True)
        call(x)[0].backward()
        results.append(x.grad)
    equal(results[1], results[0])
