"""A file is written whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from flambeau.checkpoint.atomic import atomic_file


def test_writes_and_replaces(tmp_path):
    path = tmp_path / "model.pt"
    for content in (b"first", b"second"):
        with atomic_file(path) as stream:
            stream.write(content)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    with pytest.raises(ZeroDivisionError), atomic_file(tmp_path / "other.pt"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["model.pt"]


def test_readers_of_the_old_file_keep_it(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    with open(path, "rb") as reader:
        with atomic_file(path) as stream:
            stream.write(b"new")
        assert reader.read() == b"old"


def test_permissions_links_and_devices(tmp_path):
    path, link = tmp_path / "model.pt", tmp_path / "link.pt"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    with atomic_file(link) as stream:
        stream.write(b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with atomic_file(os.devnull) as stream:
        stream.write(b"gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_file(tmp_path / "none" / "model.pt"):
        pass
