"""Copies that turn memory, through the ops that make them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import flambeau
from flambeau.engine import eager
from flambeau.ir.op import REGISTRY
from flambeau.kernel import target
from flambeau.schedule.fusion import schedule

SHAPES = [(64, 64), (100, 37), (5, 300), (300, 5), (2, 33, 65), (2, 3, 20, 30), (17, 4, 16, 9)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int16", "complex64", "bool"])
def test_every_order_of_dims(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x = (rng.random(shape) * 100).astype(dtype)
        t = flambeau.from_numpy(x)
        for order in itertools.permutations(range(len(shape))):
            np.testing.assert_array_equal(
                t.permute(order).contiguous().numpy(), x.transpose(order), err_msg=f"{shape} {order}"
            )
        np.testing.assert_array_equal(t[..., 1:, :].mT.contiguous().numpy(), np.swapaxes(x[..., 1:, :], -1, -2))


def test_writes_in_place() -> None:
    x = np.arange(60 * 70, dtype="float32").reshape(60, 70)
    out = flambeau.zeros(70, 100)
    out[:, 20:80].copy_(flambeau.from_numpy(x).t())
    np.testing.assert_array_equal(out[:, 20:80].numpy(), x.T)
    assert not out[:, :20].any() and not out[:, 80:].any()


def test_which_copies_it_takes() -> None:
    def recipe(x):
        plan = schedule(eager.info_for(REGISTRY["contiguous_copy"], (x,)).graph(), target.current(), 1)
        return plan.steps[0].recipe.name

    assert recipe(flambeau.zeros(64, 64).t()) == "transposed_copy"
    assert recipe(flambeau.zeros(8, 8).t()) == "loop_nest"
    assert recipe(flambeau.zeros(8, 64, 64).transpose(0, 1)) == "loop_nest"
