"""Sizes that change: one symbolic trace instead of one trace for each."""

from __future__ import annotations

from typing import Any

import pytest

import flambeau as torch
from flambeau import nn
from tests.compiler.conftest import equal, traces


def test_twenty_lengths_take_two_traces() -> None:
    def f(x: Any, w: Any) -> Any:
        return torch.softmax(x @ w, -1).sum(0), x.shape[0]

    g = torch.compile(f, fullgraph=True)
    w = torch.randn(4, 5)
    for n in range(2, 22):
        x = torch.randn(n, 4)
        equal(g(x, w), f(x, w))
    assert traces(g) == 2


def test_ten_lengths_with_gradients() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    fast = torch.compile(layer, fullgraph=True)
    for n in range(2, 12):
        x = torch.randn(2, n, 8)
        grads = []
        for m in (fast, layer):
            layer.zero_grad()
            out = m(x)
            out.square().sum().backward()
            grads.append((out.detach(), [p.grad for p in layer.parameters()]))
        torch_close(grads[0][0], grads[1][0])
        for a, b in zip(grads[0][1], grads[1][1]):
            torch_close(a, b)
    assert traces(fast.__dict__["_compiled"]) <= 2, fast.__dict__["_compiled"].recompiles


def torch_close(a: Any, b: Any) -> None:
    assert a.shape == b.shape
    assert (a - b).abs().max().item() < 1e-4 * (1 + b.abs().max().item())


def test_zero_and_one_are_sizes_like_others() -> None:
    def f(x: Any, b: Any) -> Any:
        return (x + b).sum(0), x * 2, x.reshape(-1)

    g = torch.compile(f, fullgraph=True)
    for n in (5, 7, 1, 0, 3, 1):
        x, b = torch.randn(n, 3), torch.randn(3)
        equal(g(x, b), f(x, b))
    for n, m in ((4, 4), (1, 4), (4, 1), (5, 5), (1, 1)):
        x, b = torch.randn(n, 3), torch.randn(m, 3)
        equal(g(x, b), f(x, b))


def test_two_sizes_that_are_equal() -> None:
    def f(x: Any, y: Any) -> Any:
        return x + y if x.shape == y.shape else x.sum() + y.sum()

    g = torch.compile(f, fullgraph=True)
    for n, m in ((3, 3), (4, 4), (5, 5), (3, 4), (6, 6), (5, 2)):
        x, y = torch.randn(n), torch.randn(m)
        equal(g(x, y), f(x, y))


def test_branches_on_sizes() -> None:
    def f(x: Any) -> Any:
        return x * 2 if x.shape[0] > 10 else x + 1

    g = torch.compile(f, fullgraph=True)
    for n in (3, 5, 20, 30, 4, 10, 11):
        x = torch.randn(n)
        equal(g(x), f(x))
    assert traces(g) <= 4


def test_arithmetic_on_sizes() -> None:
    def f(x: Any) -> Any:
        n, m = x.shape
        half = n // 2
        return (
            x[:half].sum() / max(n, 1),
            x.view(m, n),
            torch.arange(n),
            torch.zeros(n + 1, m),
            x * n,
            x.mean() * (n * m) ** 0.5,
            n % 3,
            x.unflatten(1, (2, m // 2)),
        )

    g = torch.compile(f, fullgraph=True)
    for n in (4, 6, 9, 2, 12):
        x = torch.randn(n, 4)
        equal(g(x), f(x))


def test_loops_over_sizes() -> None:
    def f(x: Any) -> Any:
        return [row * i for i, row in enumerate(x)], sum(x[i] for i in range(x.shape[0]))

    g = torch.compile(f, fullgraph=True)
    for n in (2, 3, 4, 3):
        x = torch.randn(n, 3)
        equal(g(x), f(x))


def test_sizes_that_python_reads_unseen() -> None:
    """`range` and a float times a size leave no trace of the size: such functions are compiled for each size."""

    def f(x: Any) -> Any:
        return x * (2.0 * x.shape[0]), [x[i] for i in range(x.shape[0])]

    g = torch.compile(f, fullgraph=True)
    for n in (2, 3, 4, 5, 3, 6):
        x = torch.randn(n)
        equal(g(x), f(x))


def test_static() -> None:
    g = torch.compile(lambda x: x * 2, fullgraph=True, dynamic=False)
    for n in (2, 3, 4, 3):
        x = torch.randn(n)
        equal(g(x), x * 2)
    assert traces(g) == 3 and not g.symbolic


def test_dynamic_at_once() -> None:
    g = torch.compile(lambda x: x * 2, fullgraph=True, dynamic=True)
    for n in (2, 3, 4, 3):
        x = torch.randn(n, n + 1)
        equal(g(x), x * 2)
    assert traces(g) == 1


def test_mark_dynamic() -> None:
    g = torch.compile(lambda x: x.sum(1), fullgraph=True)
    for n in (5, 6, 7):
        x = torch.randn(n, 3)
        torch.compiler.mark_dynamic(x, 0)
        equal(g(x), x.sum(1))
    assert traces(g) == 1
    with pytest.raises(IndexError, match="mark_dynamic"):
        torch.compiler.mark_dynamic(torch.randn(2), 3)


def test_mark_static() -> None:
    g = torch.compile(lambda x: x * 2, fullgraph=True)
    for n in (5, 6, 7):
        x = torch.randn(n, 3)
        torch.compiler.mark_static(x)
        equal(g(x), x * 2)
    assert traces(g) == 3


def test_layouts_that_change_with_sizes() -> None:
    g = torch.compile(lambda x: x * 2, fullgraph=True)
    for x in (
        torch.randn(3, 4),
        torch.randn(5, 4).t(),
        torch.randn(6, 4),
        torch.randn(7, 4)[:, ::2],
        torch.randn(8, 4),
    ):
        equal(g(x), x * 2)


def test_ranks_are_told_apart() -> None:
    g = torch.compile(lambda x: x.sum(-1), fullgraph=True)
    for shape in ((2, 3), (3, 3), (2, 3, 4), (5,), (3, 3, 4)):
        x = torch.randn(shape)
        equal(g(x), x.sum(-1))


def test_integers_that_change() -> None:
    def f(x: Any, n: int) -> Any:
        return x[:n] * n

    g = torch.compile(f)
    for n in range(1, 12):
        x = torch.arange(12.0)
        equal(g(x, n), f(x, n))


def test_convolutions_of_many_sizes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    fast = torch.compile(net, fullgraph=True)
    with torch.no_grad():
        for n, h in ((1, 8), (2, 8), (3, 9), (4, 10), (1, 12)):
            x = torch.randn(n, 3, h, h)
            torch_close(fast(x), net(x))


def test_random_numbers_of_many_sizes() -> None:
    def f(x: Any) -> Any:
        return nn.functional.dropout(x, 0.5) + torch.rand(x.shape[0], 1)

    g = torch.compile(f, fullgraph=True)
    for n in (3, 4, 5, 6):
        x = torch.randn(n, 4)
        torch.manual_seed(n)
        got = g(x)
        torch.manual_seed(n)
        equal(got, f(x))
    assert traces(g) == 2


def test_training_steps_of_many_sizes() -> None:
    import copy

    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    other = copy.deepcopy(net)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (net, other)]

    def make(m: Any, o: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            o.zero_grad()
            loss = nn.functional.cross_entropy(m(x), y)
            loss.backward()
            o.step()
            return loss.detach()

        return step

    fast, slow = torch.compile(make(net, optimizers[0]), fullgraph=True), make(other, optimizers[1])
    for n in (4, 5, 6, 7, 8, 3):
        x, y = torch.randn(n, 4), torch.randint(0, 3, (n,))
        torch_close(fast(x, y), slow(x, y))
    for p, q in zip(net.parameters(), other.parameters()):
        torch_close(p, q)
    assert traces(fast) <= 3, fast.recompiles
