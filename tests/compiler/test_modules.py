"""Compiled modules: what changes on a module is noticed, and what belongs to it stays its own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import flambeau as torch
from flambeau import nn
from tests.compiler.conftest import equal, traces


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0, norm: bool = False):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.scale = 1.0

    def forward(self, x: Any, bias: Any = None) -> Any:
        y = self.second(self.drop(self.norm(self.first(x)).relu())) * self.scale
        return y if bias is None else y + bias


def inner(module: Any) -> Any:
    return module.__dict__["_compiled"]


def fresh(**options: Any) -> tuple:
    torch.manual_seed(1)
    net = Net(**options)
    return net, copy.deepcopy(net)


def test_forward_and_gradients() -> None:
    net, other = fresh()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 4)
    for _ in range(3):
        equal(fast(x), other(x))
        equal(fast(x, bias=torch.ones(2)), other(x, bias=torch.ones(2)))
        fast(x).sum().backward()
        other(x).sum().backward()
    for (name, p), q in zip(net.named_parameters(), other.parameters()):
        assert p.grad is not None, name
        equal(p.grad, q.grad)
    assert traces(inner(fast)) == 2


def test_parameters_are_shared() -> None:
    net, _ = fresh()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 4)
    fast(x)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(2)
    equal(fast(x), net(x))
    assert list(fast.parameters()) == list(net.parameters())
    assert traces(inner(fast)) == 1


def test_train_and_eval() -> None:
    net, _ = fresh(dropout=0.9)
    fast = torch.compile(net, fullgraph=True)
    x = torch.ones(64, 4)
    fast(x)
    fast.eval()
    assert not net.training
    equal(fast(x), fast(x))
    equal(fast(x), net(x))
    fast.train()
    assert net.training
    assert not torch.equal(fast(x), fast(x))
    assert traces(inner(fast)) == 2


def test_a_parameter_is_replaced() -> None:
    net, _ = fresh()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 4)
    fast(x)
    net.second.weight = nn.Parameter(torch.randn(2, 8))
    equal(fast(x), net(x))
    net.second = nn.Linear(8, 2)
    equal(fast(x), net(x))
    net.second.weight.data = torch.zeros(2, 8)
    equal(fast(x), net(x))
    fast.second = nn.Linear(8, 3)
    assert fast(x).shape == (3, 3)


def test_requires_grad_of_a_parameter() -> None:
    net, _ = fresh()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 4)
    fast(x).sum().backward()
    net.first.requires_grad_(False)
    net.first.weight.grad = None
    fast(x).sum().backward()
    assert net.first.weight.grad is None
    net.first.requires_grad_(True)
    fast(x).sum().backward()
    assert net.first.weight.grad is not None
    net.requires_grad_(False)
    assert not fast(x).requires_grad


def test_load_state_dict() -> None:
    net, other = fresh()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 4)
    fast(x)
    state = {k: torch.randn(v.shape) for k, v in net.state_dict().items()}
    net.load_state_dict(state)
    other.load_state_dict(state)
    equal(fast(x), other(x))
    fast.load_state_dict({f"_orig_mod.{k}": v * 2 for k, v in state.items()})
    other.load_state_dict({k: v * 2 for k, v in state.items()})
    equal(fast(x), other(x))
    net.load_state_dict(state, assign=True)
    other.load_state_dict(state)
    equal(fast(x).detach(), other(x).detach())


def test_buffers_are_updated() -> None:
    net, other = fresh(norm=True)
    fast = torch.compile(net, fullgraph=True)
    for _ in range(4):
        x = torch.randn(8, 4)
        equal(fast(x), other(x))
        fast(x).sum().backward()
        other(x).sum().backward()
        for a, b in zip(net.buffers(), other.buffers()):
            equal(a, b)
    assert net.norm.num_batches_tracked.item() == 8
    equal(fast.eval()(x), other.eval()(x))
    for p, q in zip(net.parameters(), other.parameters()):
        equal(p.grad, q.grad)


def test_own_counter_in_a_buffer() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x * self.count

    net = Counter()
    fast = torch.compile(net, fullgraph=True)
    assert [fast(torch.ones(1)).item() for _ in range(4)] == [1, 2, 3, 4]
    assert net.count.item() == 4
    assert traces(inner(fast)) == 1


def test_a_buffer_that_is_assigned() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
            return x - self.mean

    net, other = Average(), Average()
    fast = torch.compile(net)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            x = torch.randn(5, 3)
            equal(fast(x), other(x))
            equal(net.mean, other.mean)


def test_hooks() -> None:
    net, other = fresh()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 4)
    equal(fast(x), other(x))
    handles = [m.first.register_forward_hook(lambda m, args, out: out * 2) for m in (net, other)]
    equal(fast(x), other(x))
    more = [m.second.register_forward_pre_hook(lambda m, args: (args[0] + 1,)) for m in (net, other)]
    equal(fast(x), other(x))
    for h in (*handles, *more):
        h.remove()
    equal(fast(x), other(x))


def test_hooks_of_the_module_itself() -> None:
    net, other = fresh()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 4)
    for m in (net, other):
        m.register_forward_hook(lambda m, args, out: out + 1)
    equal(fast(x), other(x))
    fast.register_forward_hook(lambda m, args, out: out * 3)
    equal(fast(x), other(x) * 3)


def test_backward_hooks_of_modules() -> None:
    net, other = fresh()
    seen: list = []
    for m in (net, other):
        m.first.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].shape))
    fast = torch.compile(net)
    x = torch.randn(3, 4)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for m in (fast, other):
            m(x).sum().backward()
    assert len(seen) >= 1
    for p, q in zip(net.parameters(), other.parameters()):
        equal(p.grad, q.grad)


def test_plain_attributes() -> None:
    net, other = fresh()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 4)
    for scale in (1.0, 3.0, 1.0):
        net.scale = other.scale = scale
        equal(fast(x), other(x))
    fast.scale = 5.0
    assert net.scale == 5.0
    net.drop.p = 0.0
    equal(fast(x), net(x))


def test_names() -> None:
    net, _ = fresh()
    fast = torch.compile(net)
    assert isinstance(fast, nn.Module)
    assert fast._orig_mod is net
    assert list(fast.state_dict()) == [f"_orig_mod.{k}" for k in net.state_dict()]
    assert [n for n, _ in fast.named_parameters()] == [f"_orig_mod.{n}" for n, _ in net.named_parameters()]
    assert fast.first is net.first
    assert sum(p.numel() for p in fast.parameters()) == sum(p.numel() for p in net.parameters())


def test_compile_in_place() -> None:
    net, other = fresh()
    net.compile(fullgraph=True)
    x = torch.randn(3, 4)
    for _ in range(2):
        equal(net(x), other(x))
    assert list(net.state_dict()) == list(other.state_dict())
    net.register_forward_hook(lambda m, args, out: out * 2)
    equal(net(x), other(x) * 2)
    again = pickle.loads(pickle.dumps(other))
    equal(again(x), other(x))


def test_submodules_compiled_in_place() -> None:
    net, other = fresh()
    net.first.compile()
    net.second = torch.compile(net.second)
    x = torch.randn(3, 4)
    equal(net(x), other(x))
    fast = torch.compile(net, fullgraph=True)
    equal(fast(x), other(x))


def test_decorator_on_a_method() -> None:
    class Scaled(nn.Module):
        def __init__(self, n: float):
            super().__init__()
            self.n, self.line = n, nn.Linear(3, 3)

        @torch.compile
        def forward(self, x: Any) -> Any:
            return self.line(x) * self.n

        @torch.compile(fullgraph=True)
        def other(self, x: Any) -> Any:
            return self.line(x) - self.n

    a, b = Scaled(2.0), Scaled(3.0)
    x = torch.randn(2, 3)
    for _ in range(2):
        for m in (a, b):
            equal(m(x), m.line(x) * m.n)
            equal(m.other(x), m.line(x) - m.n)
    a.n = 7.0
    equal(a(x), a.line(x) * 7.0)


def test_a_bound_method() -> None:
    net, _ = fresh()
    f = torch.compile(net.forward, fullgraph=True)
    x = torch.randn(3, 4)
    for scale in (1.0, 2.0):
        net.scale = scale
        equal(f(x), net(x))


def test_a_module_as_an_argument() -> None:
    def f(m: Any, x: Any) -> Any:
        return m(x) + 1

    g = torch.compile(f, fullgraph=True)
    net, other = fresh()
    x = torch.randn(3, 4)
    for m in (net, other, net):
        equal(g(m, x), f(m, x))
    net.scale = 4.0
    equal(g(net, x), f(net, x))


def test_deepcopy() -> None:
    net, _ = fresh()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 4)
    before = fast(x)
    other = copy.deepcopy(fast)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    equal(fast(x), before)
    assert other(x).abs().sum().item() == 0
    assert fast(x).abs().sum().item() > 0


def test_copy_of_a_module_compiled_in_place() -> None:
    net, _ = fresh()
    net.compile()
    x = torch.randn(3, 4)
    net(x)
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.second.weight.zero_()
        other.second.bias.zero_()
    assert other(x).abs().sum().item() == 0
    assert net(x).abs().sum().item() > 0


def test_dtype_of_the_module_changes() -> None:
    net, _ = fresh()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(3, 4)
    fast(x)
    fast.double()
    assert fast(x.double()).dtype is torch.float64
    equal(fast(x.double()), net(x.double()))


def test_lists_and_dicts_of_modules() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
            self.heads = nn.ModuleDict({"a": nn.Linear(3, 1), "b": nn.Linear(3, 2)})
            self.extra = nn.ParameterList([nn.Parameter(torch.ones(3))])

        def forward(self, x: Any, head: str) -> Any:
            for i, layer in enumerate(self.layers):
                x = layer(x).relu() + self.extra[0] * i
            return self.heads[head](x)

    net = Stack()
    fast = torch.compile(net, fullgraph=True)
    x = torch.randn(2, 3)
    for head in ("a", "b", "a"):
        equal(fast(x, head), net(x, head))
    net.layers.append(nn.Linear(3, 3))
    equal(fast(x, "a"), net(x, "a"))
    net.layers[0] = nn.Linear(3, 3)
    equal(fast(x, "a"), net(x, "a"))


def test_library_modules() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    image = torch.randn(2, 3, 8, 8)
    for net, given in (
        (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), x),
        (nn.LSTM(8, 6, batch_first=True), x),
        (nn.GRU(8, 6, 2), x),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), image),
        (nn.MultiheadAttention(8, 2, batch_first=True), None),
        (nn.Embedding(10, 4), torch.tensor([[1, 2], [3, 4]])),
    ):
        other = copy.deepcopy(net)
        fast = torch.compile(net, fullgraph=True)
        args = (x, x, x) if given is None else (given,)
        for _ in range(2):
            got, wanted = fast(*args), other(*args)
            equal(got, wanted)
            for out in (got, wanted):
                (out[0] if isinstance(out, tuple) else out).square().sum().backward()
        for p, q in zip(net.parameters(), other.parameters()):
            torch_close(p.grad, q.grad)


def torch_close(a: Any, b: Any) -> None:
    assert (a is None) == (b is None)
    if a is not None:
        assert (a - b).abs().max().item() < 1e-4 * (1 + b.abs().max().item())


def test_pickle_is_refused_clearly() -> None:
    net, _ = fresh()
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(torch.compile(net))


def test_errors_in_forward_are_the_users() -> None:
    net, _ = fresh()
    fast = torch.compile(net, fullgraph=True)
    with pytest.raises(RuntimeError, match="linear|shape|size"):
        fast(torch.randn(3, 5))
    x = torch.randn(3, 4)
    equal(fast(x), net(x))
