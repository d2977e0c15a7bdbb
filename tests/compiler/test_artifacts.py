"""Kernels carried from one cache folder to another."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import flambeau

PROGRAM = """
import sys
import flambeau
from flambeau.kernel import cache
if len(sys.argv) > 2:
    info = flambeau.compiler.load_cache_artifacts(open(sys.argv[2], "rb").read())
    assert info.kernels and not info.left_out, info
f = flambeau.compile(lambda x: (x.sin() * 2).softmax(-1) @ x)
assert f(flambeau.ones(5, 5)).shape == (5, 5)
print(cache.statistics().compiled)
if len(sys.argv) == 2:
    data, info = flambeau.compiler.save_cache_artifacts()
    open(sys.argv[1], "wb").write(data)
"""


def run(folder, *arguments: str) -> int:
    environment = dict(os.environ, FLAMBEAU_CACHE_DIR=str(folder))
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_another_folder_compiles_nothing(tmp_path) -> None:
    file = str(tmp_path / "kernels.zip")
    assert run(tmp_path / "one", file) > 0
    assert run(tmp_path / "two", "-", file) == 0


def test_other_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="must be what save_cache_artifacts gave"):
        flambeau.compiler.load_cache_artifacts(b"nothing of the kind")


def test_a_damaged_archive_is_refused(tmp_path) -> None:
    file = tmp_path / "kernels.zip"
    run(tmp_path / "one", str(file))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    with pytest.raises(ValueError, match="must be what save_cache_artifacts gave"):
        flambeau.compiler.load_cache_artifacts(bytes(raw))
