"""Unpacking of quantised blocks against NumPy: equal to the bit, however the blocks are divided."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from flambeau.core.block_format import BLOCK_FORMATS
from flambeau.kernel import cache
from flambeau.kernel import target as targets
from flambeau.runtime import launch
from flambeau.templates.dequant import dequant
from tests.templates.quantised_blocks import MEANING, quantise, random_blocks

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
TARGETS = ["native", "avx2"] if targets.current().arch == "x86_64" else ["native"]


def unpack(name: str, raw: np.ndarray) -> np.ndarray:
    out = np.full((len(raw), BLOCK_FORMATS[name].weights), np.nan, np.float32)
    (step,) = dequant(name, len(raw)).launches
    block = launch.block(step.params)
    entry = launch.entry(cache.address(step.recipe.name, step.recipe.parameters, step.recipe.build))
    entry(raw.ctypes.data, out.ctypes.data, block.address)
    return out


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_equals_numpy_to_the_bit(name, cpu):
    rng = np.random.default_rng(0)
    raw = random_blocks(name, 3000, rng)
    with targets.override(cpu):
        out = unpack(name, raw)
    assert np.array_equal(
        out.view(np.uint32) << 1, MEANING[name](raw).view(np.uint32) << 1
    )  # but for the sign of a zero


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_division_into_units_does_not_matter(name):
    raw = random_blocks(name, 37, np.random.default_rng(1))
    out = np.zeros((37, BLOCK_FORMATS[name].weights), np.float32)
    (step,) = dequant(name, 37).launches
    kernel = KERNEL(cache.address(step.recipe.name, step.recipe.parameters, step.recipe.build))
    block = np.array(step.params, np.int64)
    slots = np.array([raw.ctypes.data, out.ctypes.data, block.ctypes.data], np.uint64)
    for begin, end in ((30, 37), (0, 1), (1, 30), (7, 7)):
        kernel(slots.ctypes.data, begin, end, 0)
    assert np.array_equal(out, unpack(name, raw))


def test_special_numbers_of_the_scale():
    for name, at in (("Q4_0", 0), ("Q8_0", 0), ("Q6_K", 208)):
        raw = random_blocks(name, 5, np.random.default_rng(2))
        halves = np.array([0x7C00, 0xFC00, 0x7E00, 0x0001, 0x8000], np.uint16)  # inf, -inf, nan, smallest, -0
        raw[:, at : at + 2] = halves.view(np.uint8).reshape(5, 2)
        with np.errstate(invalid="ignore"):
            assert np.array_equal(unpack(name, raw), MEANING[name](raw), equal_nan=True)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_quantised_weights_come_back(name):
    weights = np.random.default_rng(3).standard_normal((4, 512)).astype(np.float32)
    back = unpack(name, quantise(name, weights)).reshape(4, 512)
    levels = {"Q4_0": 7, "Q4_1": 15, "Q8_0": 127, "Q4_K": 15, "Q6_K": 31}[name]
    assert (
        np.abs(back - weights).max()
        < 1.02 * (np.ptp(weights) if name in ("Q4_1", "Q4_K") else np.abs(weights).max()) / levels
    )


def test_unknown_formats_are_refused():
    with pytest.raises(ValueError, match="format must be one of Q4_0.*, got Q5_1"):
        dequant("Q5_1", 1)
    with pytest.raises(ValueError, match="multiple of 32 weights, got 33"):
        BLOCK_FORMATS["Q4_0"].row_bytes(33)
