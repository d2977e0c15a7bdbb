"""The suite's own plugin: sampling, instruction sets, the bound on kernels, parity without torch. Each runs a small suite of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import op_of, sampled

ROOT = Path(__file__).resolve().parents[2]

DERIVED = """
import pytest
OPS = ["add", "linalg.qr", "sum"]
@pytest.mark.derived
@pytest.mark.parametrize("case", [f"{op}-float32-{n}" for op in OPS for n in range(40)])
def test_value(case):
    pass
def test_plain():
    pass
"""


def run_suite(folder: Path, text: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file beside a copy of the real conftest.py."""
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_it.py").write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLAMBEAU_TEST_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments, str(folder)]
    return subprocess.run(
        command, cwd=folder, env={**kept, "PYTHONPATH": str(ROOT), **environ}, capture_output=True, text=True
    )


def test_op_of_an_id() -> None:
    assert op_of("test_value[linalg.qr-float32-3]") == "linalg.qr"
    assert op_of("test_value[add]") == "add"


def test_sample_keeps_every_op_and_about_the_fraction() -> None:
    derived = [(f"t.py::test[{op}-{n}]", op) for op in ("a", "b", "c") for n in range(1000)] + [
        ("t.py::test[rare]", "rare")
    ]
    kept = sampled(derived, 0.1, "0")
    assert 220 < len(kept) < 380
    assert "t.py::test[rare]" in kept
    assert len(sampled(derived, 1e-9, "0")) == 4
    assert kept == sampled(list(reversed(derived)), 0.1, "0")
    assert kept != sampled(derived, 0.1, "1")


def test_fraction_samples_derived_tests_only(tmp_path: Path) -> None:
    everything = run_suite(tmp_path, DERIVED)
    assert "121 passed" in everything.stdout
    some = run_suite(tmp_path, DERIVED, FLAMBEAU_TEST_FRACTION="0.1")
    assert some.returncode == 0, some.stdout
    assert "of 120 for 3 ops (fraction 0.1, seed 0)" in some.stdout
    assert "deselected" in some.stdout
    plain = run_suite(tmp_path, DERIVED, "-k", "test_plain", FLAMBEAU_TEST_FRACTION="0.000001")
    assert "1 passed" in plain.stdout


@pytest.mark.parametrize("fraction", ["0", "1.5", "some"])
def test_bad_fraction_is_refused(tmp_path: Path, fraction: str) -> None:
    done = run_suite(tmp_path, DERIVED, FLAMBEAU_TEST_FRACTION=fraction)
    assert done.returncode != 0
    assert "FLAMBEAU_TEST_FRACTION must be a number in (0, 1]" in done.stdout + done.stderr


def test_missing_instruction_sets_are_skipped_and_counted(tmp_path: Path) -> None:
    text = """
import pytest
@pytest.mark.isa("imaginary", "amx-none")
def test_wide():
    raise AssertionError("must not run")
@pytest.mark.isa()
def test_any():
    pass
"""
    done = run_suite(tmp_path, text)
    assert "1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "instruction sets: 1 tests skipped: 1 for want of imaginary, amx-none" in done.stdout


KERNELS = """
import sys, types
def test_kernels():
    cache = types.ModuleType("flambeau.kernel.cache")
    cache.statistics = lambda: {"compiled": 7, "from_disk": 2}
    sys.modules["flambeau.kernel.cache"] = cache
"""


@pytest.mark.parametrize(("bound", "status"), [("7", 0), ("6", 1)])
def test_bound_on_compiled_kernels(tmp_path: Path, bound: str, status: int) -> None:
    done = run_suite(tmp_path, KERNELS, FLAMBEAU_TEST_MAX_KERNELS=bound)
    assert done.returncode == status
    assert "kernels: compiled 7, from_disk 2" in done.stdout
    assert ("FAILED: 7 kernels compiled" in done.stdout) == (status == 1)


def test_parity_is_counted_where_torch_is_missing(tmp_path: Path) -> None:
    (tmp_path / "torch_parity").mkdir()
    (tmp_path / "torch_parity" / "test_there.py").write_text("import torch\ndef test_there(): pass\n")
    # An import hook that hides torch, whatever is installed.
    hide = (
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
    )
    done = run_suite(
        tmp_path,
        "def test_here(): pass\n",
        "-p",
        "hide_torch",
        PYTHONPATH=f"{ROOT}{os.pathsep}{_module(tmp_path, hide)}",
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "parity: 1 files left out, torch is not installed" in done.stdout


def _module(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "hide_torch.py").write_text(text)
    return folder
