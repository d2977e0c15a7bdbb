"""Random programs of views, writes, reductions and products: compiled they give what they give eagerly, values, writes and gradients alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flambeau as torch

UNARY: list[Callable] = [torch.sin, torch.tanh, torch.relu, torch.square, lambda x: x.clamp(-1, 1), lambda x: x * -0.0]
BINARY: list[Callable] = [torch.add, torch.mul, torch.maximum, lambda x, y: torch.where(x > y, x, y * 2)]
VIEWS: list[Callable] = [
    lambda x: x.mT if x.ndim > 1 else x,
    lambda x: x.reshape(-1),
    lambda x: x[0] if x.ndim else x,
    lambda x: x[::2] if x.ndim else x,
    lambda x: x.unsqueeze(0) if x.ndim < 3 else x,
    lambda x: x.squeeze(),
]
WRITES: list[Callable] = [
    lambda x: x.mul_(0.5),
    lambda x: x.clamp_(-1, 1),
    lambda x: x.tanh_(),
    lambda x: x.add_(x.clone(), alpha=0.5),
    lambda x: x.masked_fill_(x > 0, -1.0),
]
ROWS: list[Callable] = [
    lambda x: torch.softmax(x, -1) if x.ndim else x,
    lambda x: x.sum(-1, keepdim=True) if x.ndim else x,
    lambda x: x.mean(),
    lambda x: x.cumsum(-1) if x.ndim else x,
    lambda x: x.detach(),
]


def program(seed: int) -> Callable:
    """A function of five tensors, which may write to the last three."""
    choose = random.Random(seed)
    steps = [
        (choose.choice("uubvvwwr"), choose.random(), choose.random(), choose.random())
        for _ in range(choose.randint(4, 16))
    ]

    def run(*inputs: Any) -> list:
        values = [*inputs[2:], *(x * 1 for x in inputs[:2])]

        def pick(found: list, at: float) -> Any:
            return found[int(at * len(found))]

        for kind, a, b, c in steps:
            x, y = pick(values, a), pick(values, c)
            if kind == "w":
                pick(WRITES, b)(x)
            elif kind == "b":
                if x.ndim <= 1 or y.ndim <= 1 or x.shape == y.shape:
                    if x.shape == y.shape or 1 in (x.numel(), y.numel()):
                        values.append(pick(BINARY, b)(x, y).clamp(-9, 9))
            else:
                values.append(pick({"u": UNARY, "v": VIEWS, "r": ROWS}[kind], b)(x))
        return values[3:][-6:]

    return run


def outcome(function: Callable, seed: int) -> list:
    """Results, what was written and gradients as arrays; None where backward refuses."""
    random_numbers = np.random.default_rng(seed)
    shapes = ((3, 4), (4, 3), (1, 4), (), (2, 3, 4))
    inputs = [torch.from_numpy(random_numbers.standard_normal(s).astype(np.float32)) for s in shapes]
    for x in inputs[:2]:
        x.requires_grad_()
    outs = function(*inputs)
    found: list = [x.detach().clone().numpy() for x in (*outs, *inputs[2:])]
    found.append([x.requires_grad for x in outs])
    total = sum((x * x).sum() for x in outs if x.requires_grad)
    if isinstance(total, torch.Tensor):
        try:
            total.backward()
        except RuntimeError:
            return [*found, None]
        found += [x.grad if x.grad is None else x.grad.numpy() for x in inputs[:2]]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_a_random_program(seed: int) -> None:
    wanted = outcome(program(seed), seed)
    compiled = torch.compile(program(seed))
    for _ in range(2):
        got = outcome(compiled, seed)
        for x, y in zip(got, wanted):
            if isinstance(y, np.ndarray) and isinstance(x, np.ndarray):
                assert x.shape == y.shape
                np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)
            elif isinstance(y, list):
                assert x == y
