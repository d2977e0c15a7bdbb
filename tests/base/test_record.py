"""Records: values with fields, equal by them, that do not change."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest

from flambeau.base.record import as_tuple, record, replace


@record
class Point:
    """A place."""

    x: int
    y: int = 2

    @functools.cached_property
    def far(self) -> int:
        return self.x * 100


@record
class Named(Point):
    name: str = "?"


@record(hidden=("build",))
class Recipe:
    name: str
    build: object


@record
class Other:
    x: int
    y: int = 2


@record
class Checked:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("negative")


@record
class Nothing:
    pass


def test_fields_and_defaults() -> None:
    assert as_tuple(Point(1)) == (1, 2)
    assert as_tuple(Point(y=5, x=4)) == (4, 5)
    assert as_tuple(Named(1, name="a")) == (1, 2, "a")
    assert Nothing() == Nothing()
    for wrong in (lambda: Point(), lambda: Point(1, 2, 3), lambda: Point(1, z=3)):
        with pytest.raises(TypeError):
            wrong()


def test_equality_and_hash_go_by_class_and_fields() -> None:
    assert Point(1) == Point(1, 2)
    assert hash(Point(1)) == hash(Point(1, 2))
    assert Point(1) != Point(2)
    assert Point(1) != Other(1)
    assert Named(1) != Point(1)
    assert {Point(1): "a"}[Point(1, 2)] == "a"


def test_hidden_fields_do_not_count() -> None:
    assert Recipe("a", 1) == Recipe("a", 2)
    assert hash(Recipe("a", [])) == hash(Recipe("a", {}))
    assert repr(Recipe("a", 1)) == "Recipe(name='a')"


def test_what_is_cached_does_not_count() -> None:
    a, b = Point(1), Point(1)
    assert a.far == 100
    assert a == b
    assert hash(a) == hash(b)


def test_repr_is_that_of_a_call() -> None:
    assert repr(Point(1, 3)) == "Point(x=1, y=3)"
    assert eval(repr(Named(1))) == Named(1)


def test_records_do_not_change() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match=r"Point: a record does not change, got x = 5. Use replace\(\)."):
        point.x = 5
    with pytest.raises(AttributeError):
        del point.x
    assert replace(point, y=7) == Point(1, 7)
    assert point == Point(1)
    with pytest.raises(TypeError):
        replace(point, z=1)


def test_checks_after_init() -> None:
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)
    with pytest.raises(ValueError, match="negative"):
        replace(Checked(1), size=-1)


def test_matching_copying_and_pickling() -> None:
    match Named(1, name="b"):
        case Point(x, y):
            assert (x, y) == (1, 2)
        case _:
            raise AssertionError("no match")
    assert copy.copy(Point(1, 9)) == pickle.loads(pickle.dumps(Point(1, 9))) == Point(1, 9)
