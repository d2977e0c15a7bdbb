"""Float arguments: static at first, numbers given at run time once they change; what Python looks at of them is guarded."""

from __future__ import annotations

import math
from typing import Any

import pytest

import flambeau as torch
from tests.compiler.conftest import close, traces

VALUES = (0.5, 0.25, 0.125, -0.75, 3.0, 1e-3)


def schedule(x: Any, lr: float) -> Any:
    return x * (1 - lr) + (2 * lr) ** 2 - x / (lr + 1.5) + lr


def in_place(x: Any, lr: float) -> Any:
    y = x * 1
    y.add_(x, alpha=-lr)
    y.mul_(lr)
    return torch.where(y > lr, y, lr)


def keywords(x: Any, *, lr: float, eps: float = 1e-8) -> Any:
    return {"a": torch.clamp(x, min=lr), "b": (x + eps) * abs(-lr)}


def calls(f: Any, x: Any, lr: float) -> Any:
    return f(x, lr=lr)


@pytest.mark.parametrize("f", [schedule, in_place, keywords])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_numbers_are_inputs_after_the_first_change(f: Any, dtype: Any) -> None:
    c, x = torch.compile(f, fullgraph=True), torch.linspace(-2, 2, 7).to(dtype)
    for lr in VALUES:
        got, wanted = calls(c, x, lr), calls(f, x, lr)
        if isinstance(wanted, dict):
            got, wanted = torch.cat(list(got.values())), torch.cat(list(wanted.values()))
        assert got.dtype is wanted.dtype
        close(got, wanted, rtol=1e-4, atol=1e-5 if dtype is torch.float32 else 1e-2)
    assert traces(c) == 2
    assert "argument" in c.recompiles[0]


def test_gradients() -> None:
    def f(x: Any, p: float) -> Any:
        return (x * p).sin().sum() + x.square().sum() * p

    c = torch.compile(f, fullgraph=True)
    for p in VALUES:
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        c(x, p).backward()
        got, x.grad = x.grad, None
        f(x, p).backward()
        close(got, x.grad)
    assert traces(c) == 2


def test_comparisons_are_guards() -> None:
    def f(x: Any, p: float) -> Any:
        return x * p if p > 0.3 else x + p

    c, x = torch.compile(f, fullgraph=True), torch.ones(3)
    for p in (0.5, 0.6, 0.7, 0.1, 0.2, 0.9, 0.05):
        close(c(x, p), f(x, p))
    assert traces(c) == 3


def test_values_that_are_read_are_guards() -> None:
    def f(x: Any, p: float) -> Any:
        return x * math.sqrt(p) + torch.full((3,), p), f"{p:.1f}"

    c, x = torch.compile(f, fullgraph=True), torch.ones(3)
    for p in (0.5, 0.6, 0.7, 0.5, 0.6, 0.7):
        got, wanted = c(x, p), f(x, p)
        close(got[0], wanted[0])
        assert got[1] == wanted[1]
    assert traces(c) == 4  # the first of 0.5 knew no change


def test_attributes_of_ops_and_results() -> None:
    def f(x: Any, p: float, q: float) -> Any:
        return torch.nn.functional.dropout(x, 0.0 * p, training=False) * q, p

    c, x = torch.compile(f), torch.ones(3)
    for p, q in ((0.5, 1.0), (0.6, 2.0), (0.6, 3.0), (0.5, 4.0)):
        got, wanted = c(x, p, q), f(x, p, q)
        close(got[0], wanted[0])
        assert type(got[1]) is float
        assert got[1] == wanted[1]
    assert c.eager_reason is None


FACTOR = 1.0


def test_floats_read_from_outside() -> None:
    global FACTOR

    class Holder:
        scale = 1.0

        def __init__(self) -> None:
            self.rate, self.parts = 0.5, {"a": 1.5, "b": [2.5]}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = 1.0

        def forward(self, x: Any) -> Any:
            return x / self.temperature

    h, model, free = Holder(), Model(), 1.0

    def f(x: Any) -> Any:
        return model(x) * h.rate + h.parts["a"] - h.parts["b"][0] * FACTOR + free

    c, x = torch.compile(f, fullgraph=True), torch.linspace(-1, 1, 5)
    for i in range(1, 7):
        close(c(x), f(x))
        h.rate = 0.5 / i
    count = traces(c)
    assert count == 2
    for i in range(1, 5):
        model.temperature, h.parts["a"], h.parts["b"][0], free, FACTOR = 1.0 + i, 0.1 * i, 0.2 * i, 0.3 * i, 0.4 * i
        close(c(x), f(x))
    assert traces(c) <= count + 5
    count = traces(c)
    for i in range(5, 9):
        model.temperature, h.parts["a"], h.parts["b"][0], free, FACTOR = 1.0 + i, 0.1 * i, 0.2 * i, 0.3 * i, 0.4 * i
        close(c(x), f(x))
    assert traces(c) == count
    assert (type(h.rate), type(model.temperature), type(free), type(FACTOR)) == (float,) * 4


def test_dynamic() -> None:
    x = torch.ones(3)
    at_once = torch.compile(schedule, dynamic=True)
    never = torch.compile(schedule, dynamic=False)
    for lr in VALUES[:3]:
        close(at_once(x, lr), schedule(x, lr))
        close(never(x, lr), schedule(x, lr))
    assert traces(at_once) == 1
    assert traces(never) == 3


def test_code_that_looks_at_types() -> None:
    def f(x: Any, p: float) -> Any:
        if type(p) is not float:
            raise TypeError("a float is needed")
        return x * p

    c, x = torch.compile(f), torch.ones(3)
    for p in VALUES[:4]:
        close(c(x, p), f(x, p))
    assert c.eager_reason is None
