"""What depends on values of tensors: one warning and the right result, or an error that names the line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import flambeau as torch
from flambeau.compiler import CompileError
from tests.compiler.conftest import equal

CASES: dict[str, Callable] = {
    "if": lambda x: x * 2 if x.sum() > 0 else x - 1,
    "item": lambda x: x * x.sum().item(),
    "int": lambda x: x[: int(x.abs().max()) % 3 + 1],
    "tolist": lambda x: x + len(x.tolist()),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "unique": lambda x: x.unique(),
    "numpy": lambda x: torch.from_numpy(x.numpy() * 2),
    "assert": lambda x: x + 1 if bool((x < 100).all()) else None,
    "while": lambda x: [x := x - 1 for _ in range(5) if (x > 0).any()],
    "format": lambda x: (f"{x.sum():.1f}", x),
    "equal": lambda x: x * 2 if torch.equal(x, x) else x,
    "float": lambda x: x * float(x[0]),
    "index": lambda x: [10, 20, 30][torch.tensor(1)] * x if x[0] == 1 else x,
}


@pytest.mark.parametrize("name", list(CASES))
def test_values(name: str) -> None:
    f = CASES[name]
    line = f.__code__.co_firstlineno
    with pytest.raises(CompileError, match=rf"test_control_flow\.py:{line}\b"):
        torch.compile(f, fullgraph=True)(torch.tensor([1.0, -2.0, 3.0]))
    g = torch.compile(f)
    with pytest.warns(UserWarning, match="runs eagerly") as caught:
        for x in (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([-5.0, 2.0, 1.0]), torch.tensor([1.0, 1.0, 1.0])):
            equal(g(x), f(x))
    assert sum("runs eagerly" in str(w.message) for w in caught) == 1


def test_the_line_is_that_of_the_users_function() -> None:
    def inner(x: Any) -> Any:
        y = x + 1
        if y.sum() > 0:
            return y
        return x

    def outer(x: Any) -> Any:
        return torch.nn.functional.relu(inner(x))

    line = inner.__code__.co_firstlineno + 2
    with pytest.raises(CompileError, match=rf"test_control_flow\.py:{line}: in inner"):
        torch.compile(outer, fullgraph=True)(torch.ones(2))


def test_the_error_tells_a_way_out() -> None:
    with pytest.raises(CompileError, match="fullgraph=True.*where|cond"):
        torch.compile(lambda x: x if x.sum() > 0 else -x, fullgraph=True)(torch.ones(2))


def test_state_is_that_of_one_call() -> None:
    kept: list = []

    def f(x: Any, y: Any) -> Any:
        y.add_(1)
        kept.append(1)
        return x * 2 if x.sum() > 0 else x

    g = torch.compile(f)
    y = torch.zeros(2)
    with pytest.warns(UserWarning, match="runs eagerly"):
        g(torch.ones(2), y)
    assert y.tolist() == [1, 1] and kept == [1]


def test_random_numbers_are_drawn_once() -> None:
    def f(x: Any) -> Any:
        y = torch.rand(3)
        return y * 2 if x.sum() > 0 else y

    torch.manual_seed(1)
    wanted = f(torch.ones(2))
    g = torch.compile(f)
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match="runs eagerly"):
        equal(g(torch.ones(2)), wanted)


def test_cond_and_where_are_one_graph() -> None:
    f = torch.compile(lambda x: torch.where(x.sum() > 0, x * 2, x - 1), fullgraph=True)
    for x in (torch.ones(2), -torch.ones(2)):
        equal(f(x), x * 2 if x.sum() > 0 else x - 1)


def test_values_of_constants_are_known() -> None:
    f = torch.compile(
        lambda x: x * 2 if x.shape[0] > 1 and x.dtype is torch.float32 and x.ndim == 1 else x, fullgraph=True
    )
    equal(f(torch.ones(2)), torch.ones(2) * 2)
    equal(f(torch.ones(1)), torch.ones(1))


def test_values_of_outside_tensors() -> None:
    switch = torch.tensor(True)

    def f(x: Any) -> Any:
        return x * 2 if switch else x - 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        g = torch.compile(f)
        equal(g(torch.ones(2)), torch.ones(2) * 2)
        switch.fill_(False)
        equal(g(torch.ones(2)), torch.zeros(2))


def test_warning_names_the_function_once() -> None:
    def particular(x: Any) -> Any:
        return x.item()

    g = torch.compile(particular)
    with pytest.warns(UserWarning, match="particular runs eagerly"):
        g(torch.ones(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert g(torch.ones(1)) == 1
