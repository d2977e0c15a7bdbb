"""Packing temporaries into one arena: nothing alive together overlaps, and little is wasted."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau
from flambeau.engine.plan import Launch
from flambeau.schedule.memory import ALIGNMENT, lower_bound, pack


def test_nothing_alive_together_overlaps() -> None:
    rng = np.random.default_rng(0)
    for count in (0, 1, 2, 17, 200):
        starts = rng.integers(0, 50, count)
        lives = [
            (int(n), int(s), int(s + d))
            for n, s, d in zip(rng.integers(1, 5000, count), starts, rng.integers(0, 10, count))
        ]
        offsets, total = pack(lives)
        assert len(offsets) == count and total >= lower_bound(lives)
        for i, (a, f, l) in enumerate(lives):
            assert offsets[i] % ALIGNMENT == 0 and offsets[i] + a <= total
            for j in range(i):
                b, g, m = lives[j]
                if not (g > l or m < f):
                    assert offsets[i] + a <= offsets[j] or offsets[j] + b <= offsets[i]


def test_a_chain_takes_two_places() -> None:
    lives = [(1000, i, i + 1) for i in range(20)]
    _, total = pack(lives)
    assert total == lower_bound(lives) == 2048


@pytest.mark.parametrize("train", [False, True])
def test_plans_of_models_stay_within_five_percent_of_the_lower_bound(train: bool) -> None:
    layers = [
        x
        for i in range(8)
        for x in (
            flambeau.nn.Linear(64 + 16 * (i % 3), 64 + 16 * ((i + 1) % 3)),
            flambeau.nn.GELU(),
            flambeau.nn.LayerNorm(64 + 16 * ((i + 1) % 3)),
        )
    ]
    model = flambeau.nn.Sequential(*layers)
    x = flambeau.randn(32, 64)

    def step():
        loss = model(x).square().sum()
        if train:
            model.zero_grad()
            loss.backward()
        return loss.detach()

    compiled = flambeau.compile(step, fullgraph=True)
    compiled()
    (entry,) = next(iter(compiled.entries.values()))
    (plan,) = entry.forward_plans.values()
    assert sum(type(s) is Launch for s in plan.steps) > 8
    _, lives = plan.lives()
    _, total = pack(lives)
    assert lower_bound(lives) <= total <= 1.05 * lower_bound(lives)
