"""Error classes derive from what callers catch, and texts have the one form."""

from __future__ import annotations

import pytest

from flambeau.base import errors
from flambeau.base.errors import closest, did_you_mean, message, show


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        (errors.OutOfMemoryError, (RuntimeError, MemoryError)),
        (errors.AcceleratorError, (RuntimeError,)),
        (errors.LinAlgError, (RuntimeError,)),
        (errors.ShapeError, (RuntimeError,)),
        (errors.UnsupportedError, (NotImplementedError,)),
        (errors.InternalError, (RuntimeError,)),
    ],
)
def test_classes_are_caught_as_what_they_derive_from(kind: type[Exception], bases: tuple[type[Exception], ...]) -> None:
    for base in bases:
        with pytest.raises(base, match="text"):
            raise kind("text")


def test_message_has_the_form_of_the_house() -> None:
    text = message(
        "matmul",
        "last dim of a (4) must equal second-to-last dim of b (6)",
        {"a": (2, 3, 4), "b": (6, 4)},
        "Did you mean a @ b.mT?",
    )
    assert text == (
        "matmul: last dim of a (4) must equal second-to-last dim of b (6), got a [2, 3, 4], b [6, 4]. Did you mean a @ b.mT?"
    )
    assert message("op", "it must be so.") == "op: it must be so."
    assert message("op", "it must be so", "that") == "op: it must be so, got that."


def test_internal_error_says_how_to_replay() -> None:
    error = errors.InternalError(
        "sum: lowering gave no kernel", graph="def graph(x): ...", replay="python -m x stage.py"
    )
    assert error.graph == "def graph(x): ..."
    assert str(error).splitlines()[0] == "sum: lowering gave no kernel"
    assert "To see it again: python -m x stage.py" in str(error)
    assert str(error).endswith("def graph(x): ...")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((), "[]"),
        ((2, 3), "[2, 3]"),
        ([(1,), ()], "[[1], []]"),
        (tuple(range(9)), "[0, 1, 2, 3, 4, 5, 6, 7, ...]"),
        ("name", "'name'"),
        ("x" * 100, repr("x" * 77) + "..."),
        (int, "int"),
        (None, "None"),
        (1.5, "1.5"),
        (True, "True"),
    ],
)
def test_show(value: object, text: str) -> None:
    assert show(value) == text


def test_closest_ignores_case_and_ranks() -> None:
    names = ["reshape", "resize", "Linear", "LayerNorm"]
    assert closest("resahpe", names) == ["reshape"]
    assert closest("linear", names) == ["Linear"]
    assert closest("xyz", names) == []
    assert did_you_mean("reshap", names) == "Did you mean reshape?"
    assert did_you_mean("xyz", names) == ""
