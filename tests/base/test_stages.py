"""Stages: printed from a level on, written with a number."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from flambeau.base import stages
from flambeau.base.settings import settings


def test_a_stage_is_printed_from_its_level_on(capsys: pytest.CaptureFixture[str]) -> None:
    with settings.scope(debug=3, dump=""):
        assert stages.shown(3)
        assert not stages.shown(4)
        stages.show(3, "title", "text\n", "name.txt")
        stages.show(4, "unseen", "text", "name.txt")
    assert capsys.readouterr().err == "flambeau: title\ntext\n"


def test_a_folder_gets_every_stage_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "not" / "yet"
    with settings.scope(debug=0, dump=str(folder)):
        assert stages.shown(7)
        stages.show(5, "first", "a = 1", "b.py")
        stages.show(4, "second", "x\n", "a.txt")
    assert capsys.readouterr().err == ""
    first, second = sorted(folder.iterdir())
    (before, _, name), (after, _, other) = first.name.partition("-"), second.name.partition("-")
    assert (name, first.read_text()) == ("b.py", "a = 1\n")
    assert (other, second.read_text()) == ("a.txt", "x\n")
    assert int(after) == int(before) + 1


def test_files_past_the_thousandth_sort_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_numbers", itertools.count(999))
    with settings.scope(debug=0, dump=str(tmp_path)):
        for name in "abc":
            stages.show(1, "title", "text", name)
    assert [path.name.partition("-")[2] for path in sorted(tmp_path.iterdir())] == ["a", "b", "c"]
