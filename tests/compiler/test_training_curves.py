"""Fifty steps of AdamW, compiled against eager: the same loss curve, for a GPT and a ResNet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flambeau as torch
from tests.compiler import curves
from tests.compiler.conftest import traces


@pytest.mark.parametrize("model", [curves.gpt, curves.resnet], ids=lambda f: f.__name__)
def test_fifty_steps_of_a_compiled_model(model: Any) -> None:
    made = []

    def wrap(step: Any) -> Any:
        made.append(torch.compile(step, fullgraph=True))
        return made[0]

    compiled, eager = model(torch, wrap), model(torch)
    np.testing.assert_allclose(compiled, eager, rtol=2e-5, atol=2e-6)
    assert compiled.shape == (curves.STEPS,)
    assert compiled[-5:].mean() < 0.6 * compiled[:5].mean()  # it learns: the curves are not both flat
    assert traces(made[0]) == 1
    (entry,) = next(iter(made[0].entries.values()))
    assert entry.runs == curves.STEPS  # none of them fell back to eager mode


@pytest.mark.parametrize("model", [curves.gpt, curves.resnet], ids=lambda f: f.__name__)
def test_fifty_steps_in_float64(model: Any) -> None:
    """Where rounding is small nothing else may be left between the two."""
    compiled = model(torch, lambda step: torch.compile(step, fullgraph=True), "float64")
    np.testing.assert_allclose(compiled, model(torch, dtype="float64"), rtol=1e-12, atol=1e-13)
