"""Tensors print as PyTorch's do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flambeau as fb

RNG = np.random.default_rng(0)
ARRAYS = {
    "scalar": np.float32(1.5),
    "whole": np.float32(3),
    "int": np.int64(7),
    "bool": np.array(True),
    "vector": RNG.standard_normal(7).astype("f"),
    "long": RNG.standard_normal(45).astype("f"),
    "matrix": RNG.standard_normal((3, 4)).astype("f"),
    "cube": RNG.standard_normal((2, 3, 4)).astype("f"),
    "four": RNG.standard_normal((2, 2, 2, 2)).astype("f"),
    "wholes": np.arange(5, dtype="f"),
    "big": np.array([1e9, 1.0], "f"),
    "small": np.array([1e-5, 1.0], "f"),
    "range": np.array([1.0, 5000.5], "f"),
    "tiny": np.array([1e-7, 2e-7], "f"),
    "specials": np.array([np.nan, np.inf, -np.inf, 1.0], "f"),
    "specials2": np.array([np.nan, 1.5, -np.inf], "f"),
    "nans": np.array([np.nan, np.inf]),
    "zeros": np.zeros((2, 2), "f"),
    "negative": -np.arange(4.0),
    "ints": RNG.integers(-100, 1000, (3, 5)),
    "int32": np.arange(4, dtype="int32"),
    "uint8": np.arange(3, dtype="uint8"),
    "bools": RNG.integers(0, 2, (2, 3)) > 0,
    "double": RNG.standard_normal(3),
    "half": np.arange(3).astype("float16") / 3,
    "complex": (RNG.standard_normal(4) + 1j * RNG.standard_normal(4)).astype("complex64"),
    "complex128": np.array([1 + 2j, -3.5j]),
    "complexwhole": np.array([[1 - 1j, 2 + 3j]], "complex64"),
    "empty": np.zeros(0, "f"),
    "empty2": np.zeros((0, 3), "f"),
    "emptyint": np.zeros((2, 0), "int64"),
    "large": RNG.standard_normal(2000).astype("f"),
    "largemat": RNG.standard_normal((50, 40)).astype("f"),
    "largeint": np.arange(3000).reshape(3, 1000),
    "largecube": RNG.standard_normal((20, 9, 8)).astype("f"),
    "tall": RNG.standard_normal((1500, 1)).astype("f"),
    "strange": np.arange(2400).reshape(2, 2, 600),
    "largecomplex": (RNG.standard_normal(1200) + 1j).astype("complex64"),
    "largebool": np.ones((40, 40)) > 0,
    "wide": RNG.standard_normal((2, 30)).astype("f"),
}


def text(x, m):
    return str(m.from_numpy(np.array(x))).replace("torch.", "flambeau.")


@pytest.mark.parametrize("name", ARRAYS)
def test_text(name):
    assert text(ARRAYS[name], fb) == text(ARRAYS[name], torch)


@pytest.mark.parametrize(
    "options",
    [
        dict(precision=2),
        dict(sci_mode=True),
        dict(sci_mode=False),
        dict(threshold=5),
        dict(edgeitems=1, threshold=3),
        dict(linewidth=40),
        dict(profile="short"),
        dict(profile="full"),
        dict(precision=10, linewidth=60),
    ],
    ids=str,
)
def test_options(options):
    try:
        for m in (torch, fb):
            m.set_printoptions(profile="default")
            m.set_printoptions(**options)
        for name in ARRAYS:
            if "dtype" in text(ARRAYS[name], torch) and options.get("linewidth"):
                continue  # flambeau is a longer word than torch: lines break elsewhere
            if ARRAYS[name].size < 2500 or "full" not in str(options):
                assert text(ARRAYS[name], fb) == text(ARRAYS[name], torch), name
    finally:
        for m in (torch, fb):
            m.set_printoptions(profile="default")


def test_views_bfloat16_and_history():
    found = []
    for m in (torch, fb):
        x = m.from_numpy(np.arange(2600.0).astype("f").reshape(50, 52))
        y = m.from_numpy(np.arange(6.0).astype("f")).requires_grad_()
        p = m.nn.Parameter(m.ones(2, 2))
        found.append(
            [
                x.t(),
                x[::2, 3:],
                x[:, :1].expand(50, 30),
                x[:3, :3].bfloat16(),
                x.bfloat16(),
                y,
                y * 2,
                (y * 2).sum(),
                y.exp(),
                p,
                m.ones(3, dtype=m.float64, requires_grad=True),
                (y + 1).reshape(2, 3),
                m.zeros(2, 3).t() @ m.zeros(2, 1),
            ]
        )
    for a, b in zip(*found):
        assert str(b) == str(a).replace("torch.", "flambeau.")
        assert repr(b) == repr(a).replace("torch.", "flambeau.")
    assert f"{found[1][7]:.2f}" == f"{found[0][7]:.2f}"


def test_size_and_dtype():
    assert str(fb.ones(2, 3).shape) == str(torch.ones(2, 3).shape).replace("torch", "flambeau")
    assert str(fb.ones(1).dtype) == "flambeau.float32"
