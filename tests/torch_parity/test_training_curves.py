"""Fifty steps of AdamW from the same parameters on the same batches: PyTorch's loss curve, eager and compiled, for a GPT and a ResNet."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flambeau as fb
from tests.compiler import curves


@pytest.fixture(autouse=True)
def _one_thread():
    """PyTorch's threads wait for each other longer than such small models compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def compiled(step):
    return fb.compile(step, fullgraph=True)


@pytest.mark.parametrize("model", [curves.gpt, curves.resnet], ids=lambda f: f.__name__)
def test_fifty_steps_agree(model):
    theirs = model(torch)
    assert theirs[-5:].mean() < 0.6 * theirs[:5].mean()
    np.testing.assert_allclose(model(fb), theirs, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(model(fb, compiled), theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("model", [curves.gpt, curves.resnet], ids=lambda f: f.__name__)
def test_fifty_steps_agree_in_float64(model):
    theirs = model(torch, dtype="float64")
    np.testing.assert_allclose(model(fb, compiled, "float64"), theirs, rtol=1e-12, atol=1e-13)
