"""Constants of a graph are computed once; what is drawn, changes or is large is not."""

from __future__ import annotations

import flambeau
from flambeau import Tensor, nn
from flambeau.compiler.compiled import CompiledFunction


def entry_of(function: CompiledFunction):
    ((entry,),) = function.entries.values()
    return entry


def test_tables_are_computed_once() -> None:
    def rotated(x: Tensor) -> Tensor:
        angles = flambeau.outer(flambeau.arange(16).float(), 10000.0 ** (-flambeau.arange(0, 8, 2) / 8))
        return x * angles.cos() + x.flip(1) * angles.sin()

    x = flambeau.randn(16, 4)
    function = flambeau.compile(rotated, fullgraph=True)
    assert flambeau.equal(function(x), rotated(x)) and flambeau.equal(function(x), rotated(x))
    entry = entry_of(function)
    assert [tuple(t.shape) for t in entry.bound] == [(16, 4), (16, 4)]
    assert all(n.inputs for n in entry.graph.nodes), "nothing is made anew"


def test_gradients_through_constants() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * flambeau.arange(6).float().sin()).tanh()

    x, y = flambeau.randn(3, 6, requires_grad=True), flambeau.randn(3, 6)
    twin = x.detach().clone().requires_grad_()
    compiled = flambeau.compile(function, fullgraph=True)
    for _ in range(2):
        compiled(x).backward(y)
        function(twin).backward(y)
    assert len(entry_of(compiled).bound) == 1
    assert flambeau.allclose(x.grad, twin.grad)


def test_a_constant_result_is_new_each_time() -> None:
    function = flambeau.compile(lambda x: (x + 1, flambeau.eye(3).cumsum(0)), fullgraph=True)
    _, first = function(flambeau.ones(1))
    first.zero_()
    assert function(flambeau.ones(1))[1].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_random_numbers_are_drawn() -> None:
    function = flambeau.compile(lambda x: x + flambeau.rand(5).sin(), fullgraph=True)
    first, second = function(flambeau.zeros(5)), function(flambeau.zeros(5))
    assert not flambeau.equal(first, second)
    assert not entry_of(function).bound


def test_parameters_and_outside_tensors_are_read() -> None:
    layer, table = nn.Linear(3, 3), flambeau.ones(3)
    function = flambeau.compile(lambda x: layer(x) + table.exp(), fullgraph=True)
    x = flambeau.randn(2, 3)
    with flambeau.no_grad():
        function(x)
        table.zero_()
        layer.weight.mul_(2)
        assert flambeau.allclose(function(x), layer(x) + 1)
    assert all(not e.bound for entries in function.entries.values() for e in entries)


def test_factories_and_large_results_stay_computed() -> None:
    def function(x: Tensor) -> Tensor:
        return (
            x
            + flambeau.arange(4).float()
            + flambeau.arange(1 << 20)[-4:]
            + (flambeau.arange(1 << 21).double() * 2)[-4:]
        )

    compiled = flambeau.compile(function, fullgraph=True)
    x = flambeau.randn(4)
    assert flambeau.equal(compiled(x), function(x))
    assert sum(t.numel() for t in entry_of(compiled).bound) <= 16


def test_symbolic_sizes_are_not_folded() -> None:
    def function(x: Tensor) -> Tensor:
        return x * flambeau.arange(x.shape[0]).float().cos()

    compiled = flambeau.compile(function, dynamic=True, fullgraph=True)
    for n in (3, 5, 8, 13):
        x = flambeau.randn(n)
        assert flambeau.allclose(compiled(x), function(x))
