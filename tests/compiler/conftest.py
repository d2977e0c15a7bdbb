"""What the tests of `compile` share: a comparison of a compiled function with the function itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.base.pytree import tree_flatten
from flambeau.compiler.compiled import CompiledFunction


def traces(f: CompiledFunction) -> int:
    """How many times a compiled function was traced."""
    return sum(len(known) for table in (f.entries, f.symbolic) for known in table.values())


def close(x: torch.Tensor, y: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Values agree but for rounding."""
    x, y = x.detach(), y.detach()
    if y.dtype in (torch.float16, torch.bfloat16):
        x, y, rtol = x.float(), y.float(), 1e-2
    np.testing.assert_allclose(x.resolve_conj().numpy(), y.resolve_conj().numpy(), rtol=rtol, atol=atol)


def equal(got: Any, wanted: Any) -> None:
    """Structures, types, dtypes, shapes and values agree."""
    a, structure = tree_flatten(got)
    b, other = tree_flatten(wanted)
    assert structure == other
    for x, y in zip(a, b):
        if isinstance(y, torch.Tensor):
            assert isinstance(x, torch.Tensor)
            assert (x.shape, x.dtype, x.requires_grad) == (y.shape, y.dtype, y.requires_grad)
            close(x, y)
        else:
            assert type(x) is type(y) and (x == y or x != x)


def same(function: Callable, *args: Any, calls: int = 3, **kwargs: Any) -> CompiledFunction:
    """Compile `function` as one graph, call it some times and compare each result with the function's own. Returns the compiled function."""
    f = torch.compile(function, fullgraph=True)
    for _ in range(calls):
        equal(f(*args, **kwargs), function(*args, **kwargs))
    assert traces(f) == 1
    return f


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """A function that runs eagerly without the test's knowing is a failure."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="compile: .* runs eagerly")
        yield
    torch.compiler.set_stance("default")
