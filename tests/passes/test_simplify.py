"""Rules of the algebraic clean-up: each removes nodes, and compiled equals eager bit for bit, also for NaN, infinities and -0.0."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import flambeau
from flambeau import Tensor
from flambeau.base.pytree import tree_flatten
from flambeau.capture.recording import record
from flambeau.ir.graph import Graph
from flambeau.ir.op import POINTWISE
from flambeau.passes.pipeline import optimise

inf, nan = float("inf"), float("nan")
SPECIAL = [[0.0, -0.0, 1.5, -2.5], [inf, -inf, nan, 1e-42], [3.4e38, -1e-30, 7.0, -1.0]]


def floats() -> Tensor:
    return flambeau.tensor(SPECIAL)


def doubles() -> Tensor:
    return floats().double()


def halves() -> Tensor:
    return floats().to(flambeau.bfloat16)


def whole() -> Tensor:
    return flambeau.tensor([[0, -1, 127, 5], [2**31 - 1, -(2**31), 9, 3], [1, 2, 3, 4]], dtype=flambeau.int32)


def truth() -> Tensor:
    return flambeau.tensor([[True, False, True], [False, False, True]])


def bits(x: Tensor) -> list:
    """The elements as what can be compared: every finite bit and signs of zeros, all NaN alike."""
    if not x.dtype.is_floating_point:
        return x.tolist()
    return [[repr(v) for v in row] if isinstance(row, list) else repr(row) for row in x.double().tolist()]


def graph_of(function: Callable, *inputs: Tensor) -> Graph:
    recording = record(function, list(inputs), tree_flatten(inputs)[1])
    return optimise(recording.graph)[0]


def nodes(function: Callable, *inputs: Tensor) -> int:
    """How many nodes are left of what a function does to its inputs, but for a copy of the result."""
    return sum(1 for n in graph_of(function, *inputs).nodes if n.op.kind != POINTWISE or n.op.rules.copies is None)


GONE = {  # what is left is the input, as an output of its own
    "times one": (lambda x: x * 1, floats),
    "one times": (lambda x: 1.0 * x, floats),
    "times one, narrow": (lambda x: x * 1, halves),
    "times ones": (lambda x: x * flambeau.ones(3, 4), floats),
    "times a broadcast one": (lambda x: flambeau.ones(1, 1).expand(3, 4) * x, floats),
    "plus -0.0": (lambda x: x + (-0.0), floats),
    "minus 0.0": (lambda x: x - 0.0, doubles),
    "minus 0": (lambda x: x - 0, floats),
    "by one": (lambda x: x / 1, floats),
    "whole plus 0": (lambda x: 0 + x, whole),
    "whole times 1": (lambda x: x * 1, whole),
    "whole minus 0": (lambda x: x - 0, whole),
    "or 0": (lambda x: x | 0, whole),
    "xor 0": (lambda x: x ^ 0, whole),
    "times true": (lambda x: x * True, truth),
    "negated twice": (lambda x: x.neg().neg(), floats),
    "flipped twice": (lambda x: ~~x, whole),
    "not twice": (lambda x: ~~x, truth),
    "to its own dtype": (lambda x: x.to(x.dtype), floats),
    "wider and back": (lambda x: x.float().to(flambeau.bfloat16), halves),
    "much wider and back": (lambda x: x.double().to(flambeau.bfloat16), halves),
    "whole, wider and back": (lambda x: x.long().int(), whole),
    "truth, as numbers and back": (lambda x: x.float().bool(), truth),
    "contiguous twice": (lambda x: x.clone().contiguous(), floats),
    "transposed twice": (lambda x: x.t().t(), floats),
    "permuted there and back": (lambda x: x.permute(1, 0).permute(1, 0), floats),
    "reshaped there and back": (lambda x: x.reshape(12).reshape(2, 6).reshape(3, 4), floats),
    "reversed twice": (lambda x: x.unsqueeze(0).squeeze(0), floats),
    "all of a slice": (lambda x: x[0:3, :], floats),
    "expanded to its shape": (lambda x: x.expand(3, 4), floats),
    "where true": (lambda x: flambeau.where(flambeau.ones(3, 4, dtype=flambeau.bool), x, x.sin()), floats),
    "where false": (lambda x: flambeau.where(flambeau.zeros(3, 4, dtype=flambeau.bool), x.sin(), x), floats),
    "one joined": (lambda x: flambeau.cat([x], 1), floats),
    "greatest of one": (lambda x: x.unsqueeze(1).amax(1, keepdim=True).squeeze(1), floats),
    "least of one": (lambda x: x.unsqueeze(0).amin(0), floats),
    "product of one": (lambda x: x.unsqueeze(0).prod(0), floats),
    "whole sum of one": (lambda x: x.unsqueeze(2).sum(2), lambda: whole().long()),
}
# fmt: off
LEFT = {  # (how many nodes stay, ...)
    "narrow and back": (2, lambda x: x.to(flambeau.bfloat16).float(), floats),
    "through a narrower one": (1, lambda x: x.double().to(flambeau.bfloat16), floats),
    "times zero": (1, lambda x: x * 0, floats),
    "plus 0.0": (1, lambda x: x + 0.0, floats),
    "minus -0.0": (1, lambda x: x - (-0.0), floats),
    "plus 0 of floats": (1, lambda x: x + 0, floats),
    "plus 0 times a factor": (1, lambda x: flambeau.add(x, -0.0, alpha=-1), floats),
    "one by": (1, lambda x: 1 / x, floats),
    "0 minus": (1, lambda x: 0 - x, floats),
    "promoted by one": (1, lambda x: x * 1.0, whole),
    "whole by one": (1, lambda x: x / 1, whole),
    "sum of one": (2, lambda x: x.unsqueeze(0).sum(0), floats),
    "rounded down twice": (1, lambda x: x.floor().floor(), floats),
    "magnitude twice": (1, lambda x: x.abs().abs(), floats),
    "times an unknown one": (2, lambda x: x * x.amax(), floats),
    "a part": (1, lambda x: x[0:2], floats),
    "transposed": (1, lambda x: x.t(), floats),
    "merged and split again": (1, lambda x: x.reshape(12).reshape(3, 2, 2), floats),
}
# fmt: on


@pytest.mark.parametrize("name", GONE)
def test_gone(name: str) -> None:
    function, make = GONE[name]
    x = make()
    assert nodes(function, x) == 0
    got, wanted = flambeau.compile(function, fullgraph=True)(x), function(x)
    assert bits(got) == bits(wanted)
    assert got.dtype is wanted.dtype and got.stride() == wanted.stride()


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str) -> None:
    left, function, make = LEFT[name]
    x = make()
    assert nodes(function, x) == left
    got, wanted = flambeau.compile(function, fullgraph=True)(x), function(x)
    assert bits(got) == bits(wanted)
    assert got.dtype is wanted.dtype and got.stride() == wanted.stride()


def test_complex_products_with_one_stay() -> None:
    """(inf + 1j) * (1 + 0j) has a NaN."""
    x = flambeau.tensor([complex(inf, 1.0), complex(0.0, -0.0)])
    assert nodes(lambda x: x * 1, x) == 1


def test_a_dim_merged_and_split_needs_no_memory() -> None:
    """[a, b c] as [a b c] as [a, b, c]: the first is no linear view of what is computed, all of it is."""
    function = flambeau.compile(lambda x: (x * 2).reshape(-1).reshape(3, 2, 2).transpose(0, 1) + 1, fullgraph=True)
    x = floats()
    assert bits(function(x).reshape(2, 6)) == bits(
        ((x * 2).reshape(-1).reshape(3, 2, 2).transpose(0, 1) + 1).reshape(2, 6)
    )
    (entry,) = function.entries[next(iter(function.entries))]
    assert [plan.kernels for plan in entry.forward_plans.values()] == [1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1, x + 1),
        lambda x: (x * 1, x.t().t().clone()),
        lambda x: ((x * 1)[:, :2], x.clone()),
        lambda x: (x.clone(), x),
    ],
)
def test_results_that_became_equal_have_memory_of_their_own(function: Callable) -> None:
    x = floats()
    wanted = function(x)
    for written in (0, 1):
        got = flambeau.compile(function, fullgraph=True)(x)
        own = got[written] is not x
        for a, b in zip(got, wanted):
            assert bits(a) == bits(b) and a.stride() == b.stride()
        if own:
            got[written].fill_(9.0)
            assert bits(got[1 - written]) == bits(wanted[1 - written])
            assert bits(x) == bits(floats())


def test_views_of_one_result_still_share_its_memory() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        return y, y.t()

    y, turned = flambeau.compile(function, fullgraph=True)(floats())
    y.fill_(3.0)
    assert turned.tolist() == [[3.0] * 3] * 4


def test_a_value_is_read_before_its_memory_is_written() -> None:
    x = floats()

    def function() -> Tensor:
        before = x * 1
        x.add_(1)
        return before

    assert bits(flambeau.compile(function, fullgraph=True)()) == bits(floats())
    assert bits(x) == bits(floats() + 1)
