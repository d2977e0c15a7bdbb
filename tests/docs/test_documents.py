"""What the documents claim: examples run, links lead somewhere, settings and packages exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import flambeau
from flambeau.base import settings

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PUBLIC_NAMES = ("tensor", "randn", "nn", "optim", "manual_seed")


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def examples() -> list[tuple[str, str]]:
    """(document and line, code) of every block marked as Python."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        for block in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            found.append((f"{path.name}:{text[: block.start()].count(chr(10)) + 1}", block.group(1)))
    return found


@pytest.mark.xfail(
    not all(hasattr(flambeau, name) for name in PUBLIC_NAMES),
    reason="the public names of the examples are not all there yet",
    strict=True,
)
@pytest.mark.parametrize("code", [code for _, code in examples()], ids=[place for place, _ in examples()])
def test_examples_run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_there_are_examples() -> None:
    assert len(examples()) >= 3


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_settings_named_are_declared(path: Path) -> None:
    declared = {variable.environment_name for variable, _ in settings}
    named = set(re.findall(r"FLAMBEAU_[A-Z_]*[A-Z]", path.read_text()))
    assert {name for name in named if not name.startswith("FLAMBEAU_TEST_")} <= declared


def test_packages_named_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"^\| `(flambeau/\w+/)`", text, re.MULTILINE):
        assert (ROOT / name / "__init__.py").exists(), name
    for path in sorted((ROOT / "flambeau").iterdir()):
        if (path / "__init__.py").exists():
            assert f"{path.name}/`" in text, f"README.md has no line for flambeau/{path.name}/"


def test_layers_of_the_design_are_those_checked() -> None:
    table = (ROOT / "docs" / "design.md").read_text()
    source = (ROOT / "tools" / "check_layers.py").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", table, re.MULTILINE)
    assert len(rows) > 12
    for layer, packages in rows:
        line = re.search(rf"^    {layer}: \((.*?)\),$", source, re.MULTILINE | re.DOTALL)
        assert line is not None
        for name in re.findall(r"`(\w+)(?:\.py)?`", packages):
            assert f'"{name}"' in line.group(1), f"{name} in layer {layer}"
