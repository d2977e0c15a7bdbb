"""Writes in compiled functions show in every tensor at the same memory: detached ones, `.data`, views made before and inside."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import flambeau as torch
from tests.compiler.conftest import close, traces


def detached(x: Any) -> Any:
    x.detach().add_(1)
    return x * 2


def seen_through_detached(x: Any) -> Any:
    d = x.detach()
    x.add_(1)
    return d * 2


def detached_view(x: Any) -> Any:
    x[1:].detach().mul_(3)
    return x + 1


def view_before_data(x: Any) -> Any:
    v = x[1:]
    x.data.mul_(3)
    return v + 1


def made_inside(x: Any) -> Any:
    y = x * 1
    y.detach().mul_(2)
    return y + y.clone()


def view_of_detached(x: Any) -> Any:
    d = x.detach()
    d[1:].mul_(2)
    x[:2].add_(1)
    return x + d


@pytest.mark.parametrize(
    "f", [detached, seen_through_detached, detached_view, view_before_data, made_inside, view_of_detached]
)
def test_aliases_of_arguments(f: Callable) -> None:
    c = torch.compile(f, fullgraph=True)
    for start in (0.0, 5.0):
        a, b = torch.arange(start, start + 5), torch.arange(start, start + 5)
        close(c(a), f(b))
        close(a, b)


class State:
    """Tensors that share memory, made before any trace."""

    def __init__(self) -> None:
        self.whole = torch.zeros(8)
        self.same = self.whole.detach()
        self.low, self.high, self.odd = self.whole[:4], self.whole[4:], self.whole[1::2]
        self.unknown = torch.from_numpy(self.whole.numpy())[2:6]

    def fill(self) -> None:
        self.whole.copy_(torch.arange(8.0))


def write_whole_read_same(s: State, x: Any) -> Any:
    s.whole.add_(1)
    return s.same[:4] * x


def write_data_read_whole(s: State, x: Any) -> Any:
    before = s.whole[:4] * x
    s.whole.data.mul_(2)
    return before + s.whole[4:]


def views_before_and_after(s: State, x: Any) -> Any:
    before = (s.low * x).sum() + (s.high * x).sum()
    s.whole.mul_(0.5)
    return before + s.low.sum()


def write_parts_read_whole(s: State, x: Any) -> Any:
    s.low.add_(x)
    s.whole[2:6].mul_(2)
    s.odd.sub_(1)
    return s.high + s.whole.sum()


def write_through_view_in_function(s: State, x: Any) -> Any:
    v = s.low[1:3]
    y = v + 1
    s.whole.add_(1)
    v.mul_(2)
    return y + v + s.odd[:2]


def disjoint_parts(s: State, x: Any) -> Any:
    s.low.add_(x)
    return s.high * 2


CASES = [
    write_whole_read_same,
    write_data_read_whole,
    views_before_and_after,
    write_parts_read_whole,
    write_through_view_in_function,
    disjoint_parts,
]


@pytest.mark.parametrize("f", CASES)
def test_aliases_made_before(f: Callable) -> None:
    s, x = State(), torch.ones(4)
    c = torch.compile(lambda x: f(s, x), fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            s.fill()
            wanted = f(s, x)
            after = s.whole.clone()
            s.fill()
            close(c(x), wanted)
            close(s.whole, after)
    assert traces(c) == 1


def test_an_optimizer_written_with_data() -> None:
    def run(compiled: bool) -> tuple[list, list]:
        torch.manual_seed(0)
        model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)

        def step(x: Any) -> Any:
            loss = (model(x) ** 2).mean()
            loss.backward()
            for p in model.parameters():
                p.data.add_(p.grad.data, alpha=-0.1)
                p.grad.data.zero_()
            return loss.detach()

        f = torch.compile(step, fullgraph=True) if compiled else step
        losses = [f(x) for _ in range(4)]
        assert not compiled or traces(f) <= 2  # before there are gradients, and after
        return losses, list(model.parameters())

    for got, wanted in zip(sum(run(True), []), sum(run(False), [])):
        close(got, wanted)


def test_flat_parameters() -> None:
    flat = torch.arange(6.0)
    parts = [torch.nn.Parameter(flat[:3].detach()), torch.nn.Parameter(flat[3:].detach())]

    def step(x: Any) -> Any:
        loss = sum(((p * x) ** 2).sum() for p in parts)
        found = torch.autograd.grad(loss, parts)
        with torch.no_grad():
            flat.sub_(0.1 * torch.cat(found))
        return loss.detach() + parts[0].detach().sum()

    c, x = torch.compile(step, fullgraph=True), torch.ones(3)
    for _ in range(2):
        flat.copy_(torch.arange(6.0))
        wanted, after = step(x), flat.clone()
        flat.copy_(torch.arange(6.0))
        close(c(x), wanted)
        close(flat, after)


def test_gradients_are_of_what_was_read() -> None:
    w = torch.nn.Parameter(torch.arange(3.0))

    def f(x: Any) -> Any:
        y = w.data * w * x
        w.data.add_(1)
        return y

    c = torch.compile(f, fullgraph=True)
    for _ in range(2):
        with torch.no_grad():
            w.copy_(torch.arange(3.0))
        w.grad, x = None, torch.ones(3, requires_grad=True)
        c(x).sum().backward()
        assert w.grad.tolist() == [0, 1, 2]
        assert x.grad.tolist() == [0, 1, 4]


def test_memory_that_is_replaced_is_followed() -> None:
    w = torch.zeros(3)

    def f(x: Any) -> Any:
        w.data.add_(x)
        return x * 1

    c = torch.compile(f, fullgraph=True)
    c(torch.ones(3))
    w.data = torch.zeros(3)
    c(torch.ones(3))
    assert w.tolist() == [1, 1, 1]


def test_sharing_that_ends_is_seen() -> None:
    w = torch.zeros(3)
    alias = w.detach()

    def f(x: Any) -> Any:
        w.add_(x)
        return alias * 1

    c = torch.compile(f, fullgraph=True)
    assert c(torch.ones(3)).tolist() == [1, 1, 1]
    assert c(torch.ones(3)).tolist() == [2, 2, 2]
    w.data = torch.zeros(3)
    assert c(torch.ones(3)).tolist() == [2, 2, 2]
    assert w.tolist() == [1, 1, 1]


def test_a_function_marks_its_input_as_written() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    def f(x: Any) -> Any:
        y = x * 1
        return (Double.apply(y) + y).sum()

    for g in (f, torch.compile(f, fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        g(x).backward()
        assert x.grad.tolist() == [4, 4, 4]
