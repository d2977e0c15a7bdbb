"""What `testing.assert_close` accepts, and what it says about the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flambeau as torch

close = torch.testing.assert_close


@pytest.mark.parametrize(
    ("actual", "expected", "options"),
    [
        (torch.ones(2), torch.ones(2) + 1e-6, {}),
        (torch.ones(2), torch.ones(2) + 1e-3, {"rtol": 1e-2, "atol": 0.0}),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), {"check_dtype": False}),
        ([torch.ones(2), 1.0], [torch.ones(2), 1.0], {}),
        ({"a": (torch.ones(2), None)}, {"a": (torch.ones(2), None)}, {}),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), {"equal_nan": True}),
        (torch.tensor(float("inf")), torch.tensor(float("inf")), {}),
        (torch.empty(0), torch.empty(0), {}),
        (torch.tensor([1, 2]), np.array([1, 2]), {}),
    ],
)
def test_accepted(actual: Any, expected: Any, options: dict) -> None:
    close(actual, expected, **options)


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        (torch.ones(2), torch.ones(3), "attribute 'shape'"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "attribute 'dtype'"),
        (
            torch.tensor([[1.0, 2.0]]),
            torch.tensor([[1.0, 4.0]]),
            r"1 / 2 \(50.0%\)\n.*absolute difference: 2.0 at index \(0, 1\)",
        ),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "Mismatched elements: 1 / 2"),
        (1.0, 1.1, "Scalars are not close!\n\nExpected 1.1 but got 1.0"),
        ([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.zeros(2)], r"occurred for item \[1\]"),
        ({"a": 1}, {"b": 1}, r"Missing keys: \['b'\]"),
        ((1, 2), (1,), "length of the sequences mismatch: 2 != 1"),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), "not close"),
    ],
)
def test_refused(actual: Any, expected: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        close(actual, expected)


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="both be given"):
        close(1.0, 1.0, rtol=0.1)
    with pytest.raises(TypeError, match="got str"):
        close("a", "a")
    with pytest.raises(TypeError, match="of one kind"):
        close(torch.ones(1), 1.0)
    with pytest.raises(AssertionError, match="^mine$"):
        close(1.0, 2.0, msg="mine")
