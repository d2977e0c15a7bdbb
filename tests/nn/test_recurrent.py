"""LSTM and GRU over whole sequences: against their cells step by step, packed against one sequence at a time, what is kept against nothing kept."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau as fb
from flambeau import nn
from flambeau.engine import eager
from flambeau.ir.op import REGISTRY
from flambeau.nn.utils.rnn import pack_padded_sequence

STEPS, ROWS, INPUTS, HIDDEN = 6, 17, 5, 21
LENGTHS = [3, 6, 1] + [4] * (ROWS - 3)


def made(kind: str, dtype: fb.dtype, **options) -> nn.Module:
    fb.manual_seed(0)
    return getattr(nn, kind)(INPUTS, HIDDEN, dtype=dtype, **options)


def noise(*shape: int, dtype: fb.dtype = fb.float64) -> fb.Tensor:
    return fb.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape)).to(dtype)


def by_cell(layer: nn.Module, x: fb.Tensor) -> fb.Tensor:
    cell = getattr(nn, type(layer).__name__ + "Cell")(INPUTS, HIDDEN, dtype=x.dtype)
    names = {name.removesuffix("_l0"): p for name, p in layer.named_parameters()}
    state, found = None, []
    for step in x:
        state = fb.func.functional_call(cell, names, (step, state))
        found.append(state[0] if isinstance(state, tuple) else state)
    return fb.stack(found)


@pytest.mark.parametrize("dtype,tolerance", [(fb.float64, 1e-12), (fb.float32, 2e-5)])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_as_step_by_step(kind: str, dtype: fb.dtype, tolerance: float) -> None:
    layer, x = made(kind, dtype), noise(STEPS, ROWS, INPUTS, dtype=dtype).requires_grad_()
    weight = noise(STEPS, ROWS, HIDDEN, dtype=dtype)
    leaves = [x, *layer.parameters()]
    found, expected = layer(x)[0], by_cell(layer, x)
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=tolerance, atol=tolerance)
    for a, b in zip(*(fb.autograd.grad((y * weight).sum(), leaves) for y in (found, expected)), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_packed_as_one_by_one(kind: str, bidirectional: bool) -> None:
    layer = made(kind, fb.float64, num_layers=2, bidirectional=bidirectional)
    x = noise(STEPS, ROWS, INPUTS)
    packed = pack_padded_sequence(x, fb.tensor(LENGTHS), enforce_sorted=False)
    output, states = layer(packed)
    padded, _ = nn.utils.rnn.pad_packed_sequence(output)
    states = states if isinstance(states, tuple) else (states,)
    for row, length in enumerate(LENGTHS):
        alone, ends = layer(x[:length, row : row + 1])
        np.testing.assert_allclose(padded[:length, row].detach().numpy(), alone[:, 0].detach().numpy(), atol=1e-12)
        for state, end in zip(states, ends if isinstance(ends, tuple) else (ends,), strict=True):
            np.testing.assert_allclose(state[:, row].detach().numpy(), end[:, 0].detach().numpy(), atol=1e-12)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_second_derivatives(kind: str) -> None:
    layer = getattr(nn, kind)(2, 3, dtype=fb.float64)
    assert fb.autograd.gradgradcheck(lambda x: layer(x)[0], (noise(3, 2, 2).requires_grad_(),))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name,gates", [("lstm", 4), ("gru", 3)])
def test_gradient_from_what_was_kept(name: str, gates: int, reverse: bool) -> None:
    x, w = noise(STEPS, ROWS, gates * HIDDEN), noise(gates * HIDDEN, HIDDEN)
    first = [noise(ROWS, HIDDEN)] * 2 if name == "lstm" else [noise(gates * HIDDEN), noise(ROWS, HIDDEN)]
    forward, backward = REGISTRY[name + "_sequence"], REGISTRY[name + "_sequence_backward"]
    given = [noise(STEPS, ROWS, HIDDEN), *[noise(ROWS, HIDDEN)] * (2 if name == "lstm" else 1)]
    outs = forward(x, w, *first, reverse, True)
    kept = outs[3:] if name == "lstm" else (outs[0], outs[2])
    expected = backward(*given, x, w, *first, None, None, reverse)
    for a, b in zip(backward(*given, x, w, *first, *kept, reverse), expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12, atol=1e-12)


def test_kernels_of_a_sequence() -> None:
    """Packing the weights and one kernel over all steps, however many there are."""
    for steps in (2, 50):
        args = (noise(steps, 3, 8), noise(8, 2), noise(3, 2), noise(3, 2), False, False)
        plan = eager.info_for(REGISTRY["lstm_sequence"], args).make_plan()
        assert len(plan.steps) == 2


def test_results_do_not_depend_on_threads() -> None:
    layer, x = made("LSTM", fb.float32), noise(40, 64, INPUTS, dtype=fb.float32)
    threads = fb.get_num_threads()
    found = []
    try:
        for number in (1, 2, 3):
            fb.set_num_threads(number)
            found.append(layer(x)[0].detach().numpy())
    finally:
        fb.set_num_threads(threads)
    assert all((found[0] == other).all() for other in found[1:])
