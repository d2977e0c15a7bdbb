"""Pytrees: every container comes back, structures compare and hash, mismatches are named by path."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest

from flambeau.base.pytree import (
    LEAF,
    register_pytree_node,
    tree_broadcast,
    tree_flatten,
    tree_leaf_names,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_structure,
    tree_unflatten,
)

Point = namedtuple("Point", ["x", "y"])


class Pair:
    """A registered class; its tag is part of the structure."""

    def __init__(self, left: Any, right: Any, tag: Any) -> None:
        self.left = left
        self.right = right
        self.tag = tag

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and (self.left, self.right, self.tag) == (other.left, other.right, other.tag)

    __hash__ = None  # type: ignore[assignment]


register_pytree_node(
    Pair,
    lambda pair: ((pair.left, pair.right), pair.tag),
    lambda children, tag: Pair(*children, tag),
    names=lambda tag, count: [".left", ".right"],
)

TREES = [
    1,
    None,
    (),
    [],
    {},
    (1,),
    (1, [2, {"a": 3, "b": (4, None)}]),
    {"z": 1, "a": 2, 3: [4]},
    Point(1, [2, 3]),
    OrderedDict([("b", 1), ("a", (2,))]),
    defaultdict(list, {"k": 1}),
    deque([1, (2, 3)], maxlen=5),
    Pair(1, {"k": [2]}, "tag"),
    Pair(1, 2, ["does", "not", "hash"]),
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_round_trip(tree: Any) -> None:
    leaves, structure = tree_flatten(tree)
    again = tree_unflatten(leaves, structure)
    assert again == tree
    assert type(again) is type(tree)
    assert structure.num_leaves == len(leaves) == len(tree_leaf_names(tree))
    assert tree_structure(again) == structure
    assert hash(tree_structure(again)) == hash(structure)


def test_round_trip_keeps_what_is_beside_the_children() -> None:
    ring = tree_map(lambda x: x + 1, deque([1, 2], maxlen=2))
    assert ring == deque([2, 3])
    assert ring.maxlen == 2
    table = tree_map(lambda x: x + 1, defaultdict(list, {"k": 1}))
    assert table["missing"] == []


def test_structures_differ_where_trees_do() -> None:
    different = [
        tree_structure(tree)
        for tree in (
            1,
            (),
            (1,),
            [1],
            (1, 2),
            ((1,), 2),
            {"a": 1},
            {"b": 1},
            {"a": 1, "b": 2},
            Point(1, 2),
            Pair(1, 2, 0),
            Pair(1, 2, 1),
        )
    ]
    for i, a in enumerate(different):
        for j, b in enumerate(different):
            assert (a == b) == (i == j)
    assert len(set(different)) == len(different)
    assert tree_structure(7) is LEAF
    assert tree_structure((1, 2)) != (1, 2)


def test_subclasses_and_none_are_leaves() -> None:
    class Special(dict):
        pass

    special = Special(a=1)
    assert tree_leaves([special, None]) == [special, None]


def test_is_leaf_stops_the_walk() -> None:
    assert tree_leaves([(1, 2), [3]], is_leaf=lambda x: isinstance(x, tuple)) == [(1, 2), 3]


def test_structure_prints_like_the_tree() -> None:
    assert repr(tree_structure({"a": 1, "b": (2, [3]), "c": (4,)})) == "{'a': *, 'b': (*, [*]), 'c': (*,)}"
    assert repr(tree_structure(Point(1, (2, 3)))) == "Point(.x: *, .y: (*, *))"


def test_map_over_several_trees() -> None:
    assert tree_map(lambda x, y: x + y, (1, [2]), (10, [20])) == (11, [22])
    assert tree_map(lambda x, y: (x, y), [1, 2], [{"a": 3}, (4,)]) == [(1, {"a": 3}), (2, (4,))]
    assert tree_map(lambda x, y: x - y, {"a": 1, "b": 2}, {"b": 20, "a": 10}) == {"a": -9, "b": -18}


@pytest.mark.parametrize(
    ("first", "second", "pattern"),
    [
        ((1, [2]), (1, (2,)), r"tree 2 must have a list at \[1\], got tuple"),
        ((1, 2), [1, 2], "tree 2 must have a tuple at its root, got list"),
        (
            {"a": {"b": 1}},
            {"a": {"c": 1}},
            r"tree 2 must have at \['a'\] a dict of 1 children, \['b'\], got 1 children, \['c'\]",
        ),
        ([1, 2], [1], "list of 2 children"),
    ],
)
def test_map_names_the_place_that_differs(first: Any, second: Any, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        tree_map(lambda x, y: x, first, second)


def test_map_only() -> None:
    assert tree_map_only(int, lambda x: x + 1, (1, "a", [2.0, 3])) == (2, "a", [2.0, 4])


def test_broadcast() -> None:
    assert tree_broadcast((0, None), (1, {"a": 2, "b": 3})) == [0, None, None]
    assert tree_broadcast(7, [1, (2, 3)]) == [7, 7, 7]
    with pytest.raises(ValueError, match="the tree must have a tuple"):
        tree_broadcast((0,), [1])


def test_leaf_names_are_source_text() -> None:
    tree = {"a": [1, Point(2, 3)], "b": Pair(4, (5,), 0), "c": OrderedDict(k=6)}
    names = tree_leaf_names(tree, "tree")
    assert names == [
        "tree['a'][0]",
        "tree['a'][1].x",
        "tree['a'][1].y",
        "tree['b'].left",
        "tree['b'].right[0]",
        "tree['c']['k']",
    ]
    assert [eval(name, {"tree": tree}) for name in names] == tree_leaves(tree)


def test_unflatten_refuses_wrong_arguments() -> None:
    structure = tree_structure([1, 2])
    with pytest.raises(ValueError, match="the structure has 2 leaves, got 1 leaves"):
        tree_unflatten([1], structure)
    with pytest.raises(TypeError, match="The leaves come first"):
        tree_unflatten(structure, [1, 2])  # type: ignore[arg-type]


def test_register_refuses_twice() -> None:
    with pytest.raises(ValueError, match="Pair is a pytree node already"):
        register_pytree_node(Pair, lambda pair: ((), None), lambda children, context: None)
    with pytest.raises(TypeError, match="must be a class"):
        register_pytree_node(3, lambda tree: ((), None), lambda children, context: None)  # type: ignore[arg-type]
