"""Errors and pytrees stand to each other as PyTorch's do."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
import torch
from torch.utils import _pytree as torch_pytree

from flambeau.base import errors, pytree

Point = namedtuple("Point", ["x", "y"])

TREES = [
    1,
    None,
    (),
    (1, [2, {"a": 3, "b": (4, None)}]),
    {"z": 1, "a": 2},
    Point(1, [2, 3]),
    OrderedDict([("b", 1), ("a", (2,))]),
    defaultdict(list, {"k": 1}),
    deque([1, (2, 3)], maxlen=5),
    {1, 2},
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_leaves_are_the_same_in_the_same_order(tree: Any) -> None:
    ours, structure = pytree.tree_flatten(tree)
    theirs, _ = torch_pytree.tree_flatten(tree)
    assert ours == theirs
    assert pytree.tree_unflatten(ours, structure) == tree


def test_map_agrees() -> None:
    a = {"x": (1, 2), "y": [3]}
    b = {"x": (10, 20), "y": [30]}
    assert pytree.tree_map(lambda x, y: x + y, a, b) == torch_pytree.tree_map(lambda x, y: x + y, a, b)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (errors.OutOfMemoryError, torch.OutOfMemoryError),
        (errors.AcceleratorError, torch.AcceleratorError),
        (errors.LinAlgError, torch.linalg.LinAlgError),
    ],
)
def test_what_catches_theirs_catches_ours(ours: type[Exception], theirs: type[Exception]) -> None:
    assert ours.__name__ in (theirs.__name__, theirs.__name__.removeprefix("_"))
    builtin = [base for base in theirs.__mro__ if base.__module__ == "builtins"]
    assert all(issubclass(ours, base) for base in builtin)
