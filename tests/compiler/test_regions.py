"""`nested_compile_region`: a function called many times in a graph is traced and scheduled once; results are those of the whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import flambeau as torch
from flambeau import nn
from flambeau.compiler import nested_compile_region
from flambeau.engine.chain import REGION, Chain
from tests.compiler.conftest import close, traces


class Block(nn.Module):
    def __init__(self, width: int, index: int, scale: float = 1.0, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.index, self.scale, self.sizes = index, scale, [1, 2]

    @nested_compile_region
    def forward(self, x: Any) -> Any:
        y = self.second(torch.nn.functional.gelu(self.first(self.norm(x))))
        return x + self.dropout(y) * self.scale * self.sizes[0]


class Net(nn.Module):
    def __init__(self, count: int, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(6, i, **options) for i in range(count))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def entry_of(f: Any) -> Any:
    (known,) = f.entries.values()
    return known[0]


def pieces(f: Any) -> tuple[int, int]:
    """(nodes that are pieces, different pieces) of a compiled function's forward graph."""
    ops = [n.op for n in entry_of(f).graph.nodes if n.op.kind == REGION]
    return len(ops), len(set(ops))


def trained(net: nn.Module, f: Callable, x: Any) -> list:
    net.zero_grad()
    x = x.clone().requires_grad_()
    loss = f(x)
    loss.backward()
    return [loss, x.grad, *(p.grad for p in net.parameters()), *net.buffers()]


@pytest.mark.parametrize("norm", [False, True])
def test_blocks_are_one_piece(norm: bool) -> None:
    net = Net(5, norm=norm)
    other, x = copy.deepcopy(net), torch.randn(4, 6)
    f = torch.compile(lambda x: net(x), fullgraph=True)
    for _ in range(3):
        for a, b in zip(trained(net, f, x), trained(other, other, x), strict=True):
            close(a, b, rtol=1e-4, atol=1e-5)
    assert traces(f) == 1
    assert pieces(f) == (5, 1)
    (plan,) = entry_of(f).forward_plans.values()
    assert isinstance(plan, Chain)


def test_inference_and_modules() -> None:
    net = Net(4).eval()
    x = torch.randn(3, 6)
    wanted = net(x)
    f = torch.compile(net, fullgraph=True)
    with torch.no_grad():
        close(f(x), wanted)
        close(f(x), wanted)


def test_an_argument_that_needs_no_gradient_makes_another_piece() -> None:
    net, x = Net(5), torch.randn(3, 6)
    f = torch.compile(lambda x: net(x), fullgraph=True)
    close(f(x), net(x))
    assert pieces(f) == (5, 2)


def test_what_the_trace_read_tells_pieces_apart() -> None:
    net = Net(4)
    net.blocks[2].scale = 2.0
    x = torch.randn(3, 6, requires_grad=True)
    f = torch.compile(lambda x: net(x), fullgraph=True)
    close(f(x), net(x))
    assert pieces(f) == (4, 2)
    net.blocks[3].scale = 3.0
    close(f(x), net(x))
    assert traces(f) == 2
    net.blocks[1].sizes[0] = 4
    close(f(x), net(x))
    assert traces(f) == 3


def test_a_parameter_of_any_block_is_followed() -> None:
    net = Net(3)
    x = torch.randn(3, 6)
    f = torch.compile(lambda x: net(x), fullgraph=True)
    close(f(x), net(x))
    with torch.no_grad():
        net.blocks[2].first.weight.mul_(2)
    close(f(x), net(x))
    assert traces(f) == 1
    net.blocks[1].first = nn.Linear(6, 12)
    close(f(x), net(x))
    assert traces(f) == 2
    net.blocks[2].eval()
    close(f(x), net(x))


def test_random_numbers_differ_between_calls_and_are_those_of_eager_mode() -> None:
    net = Net(3, dropout=0.5)
    f = torch.compile(lambda x: net(x), fullgraph=True)
    x = torch.randn(8, 6, requires_grad=True)
    f(x)
    assert pieces(f) == (3, 1)
    torch.manual_seed(3)
    got = [f(x), f(x)]
    torch.manual_seed(3)
    wanted = [net(x), net(x)]
    for a, b in zip(got, wanted):
        close(a, b)
    assert got[0].item() != got[1].item()


def test_a_whole_training_step() -> None:
    def train(compiled: bool) -> list:
        net = Net(4, norm=True)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = net(x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = torch.compile(step, fullgraph=True) if compiled else step
        losses = [f(x) for _ in range(5)]
        return [*losses, *net.parameters(), *net.buffers()]

    for a, b in zip(train(True), train(False), strict=True):
        close(a, b, rtol=1e-3, atol=1e-4)


def test_functions_with_several_results_and_views() -> None:
    w = torch.randn(4, 4, requires_grad=True)

    @nested_compile_region
    def part(x: Any, y: Any, k: int) -> dict:
        return {"sum": x @ w + y, "view": x.t(), "same": y, "k": k, "pair": (x * 2, None)}

    def f(x: Any, y: Any) -> Any:
        a = part(x, y, 1)
        b = part(a["view"], a["same"], 1)
        c = part(b["sum"], b["pair"][0], k=2)
        return c["sum"] * c["k"] + b["view"]

    x, y = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    g = torch.compile(f, fullgraph=True)
    for _ in range(2):
        found = []
        for h in (g, f):
            w.grad = x.grad = None
            out = h(x, y)
            out.sum().backward()
            found.append((out, x.grad, w.grad))
        for a, b in zip(*found):
            close(a, b, rtol=1e-4, atol=1e-5)


def test_writes_and_effects() -> None:
    log: list = []
    total = torch.zeros(3)

    @nested_compile_region
    def add(x: Any) -> Any:
        total.add_(x)
        x.mul_(2)
        return x + total

    @nested_compile_region
    def noted(x: Any) -> Any:
        log.append(1)
        return x * 3

    def f(x: Any) -> Any:
        return noted(noted(add(x) + add(x)))

    g = torch.compile(f)
    for _ in range(3):
        found = []
        for h in (g, f):
            total.zero_()
            log.clear()
            x = torch.arange(3.0)
            found.append((h(x), x, total.clone(), torch.tensor(len(log))))
        for a, b in zip(*found):
            close(a, b)
    assert g.eager_reason is None


def test_pieces_within_pieces() -> None:
    @nested_compile_region
    def inner(x: Any) -> Any:
        return torch.relu(x) * 2

    @nested_compile_region
    def outer(x: Any) -> Any:
        return inner(inner(x) - 1).cos()

    def f(x: Any) -> Any:
        return outer(outer(x)).sum()

    x = torch.randn(7, requires_grad=True)
    g = torch.compile(f, fullgraph=True)
    g(x).backward()
    got, x.grad = x.grad, None
    f(x).backward()
    close(got, x.grad)
    assert pieces(g) == (2, 1)


def test_weights_shared_between_blocks() -> None:
    net = Net(3)
    net.blocks[1].first.weight = net.blocks[0].first.weight
    other, x = copy.deepcopy(net), torch.randn(4, 6)
    f = torch.compile(lambda x: net(x), fullgraph=True)
    for a, b in zip(trained(net, f, x), trained(other, other, x), strict=True):
        close(a, b, rtol=1e-4, atol=1e-5)


def test_symbolic_sizes() -> None:
    net = Net(2)
    f = torch.compile(lambda x: net(x), fullgraph=True)
    for n in (3, 4, 5, 6):
        x = torch.randn(n, 6)
        close(f(x), net(x))
    assert traces(f) <= 3


def test_modules_and_classes_are_marked_in_place() -> None:
    class Plain(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.sin()

    assert nested_compile_region(Plain) is Plain
    one = nested_compile_region(nn.Linear(3, 3))
    model = nn.Sequential(Plain(), one, Plain())
    x = torch.randn(2, 3, requires_grad=True)
    f = torch.compile(lambda x: model(x), fullgraph=True)
    close(f(x), model(x))
    assert pieces(f) == (3, 2)


def test_memory_written_at_the_end_is_read_before() -> None:
    w = torch.arange(6.0)

    @nested_compile_region
    def part(x: Any) -> Any:
        return x * 2 + 1

    def f(x: Any) -> Any:
        v = w[1:4]
        y = part(v)
        w.add_(1)
        return part(y) + v + w[:3] * x

    g = torch.compile(f, fullgraph=True)
    for _ in range(2):
        found = []
        for h in (g, f):
            w.copy_(torch.arange(6.0))
            found.append((h(torch.ones(3)), w.clone()))
        for a, b in zip(*found):
            close(a, b)
