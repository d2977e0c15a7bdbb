"""The checks of layers and files: each finds what it is for, and the tree has none of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


layers = load("check_layers")
files = load("check_files")


@pytest.fixture(autouse=True)
def no_long_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The project's own long files are not in the small trees of these tests."""
    monkeypatch.setattr(files, "LONG", {})


def write(root: Path, **texts: str) -> Path:
    """A small package: keys are paths with `__` for the folder separator."""
    (root / "flambeau").mkdir()
    (root / "flambeau" / "__init__.py").write_text('"""Root."""\n')
    for name, text in texts.items():
        path = root / "flambeau" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        package = path.parent / "__init__.py"
        if not package.exists():
            package.write_text('"""A package."""\n')
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"core__a": "from flambeau.base import errors\n"}, None),
        ({"base__a": "from flambeau.core import dtype\n"}, "base (layer 0) must not import flambeau.core (layer 1)"),
        ({"base__a": "import flambeau.nn as nn\n"}, "base (layer 0) must not import flambeau.nn"),
        ({"core__a": "from ..ir import graph\n"}, "core (layer 1) must not import flambeau.ir"),
        ({"ir__a": "from flambeau.kernel import dsl\n"}, "ir and kernel are both in layer 2"),
        ({"runtime__a": "from flambeau.kernel import dsl\n"}, None),
        ({"kernel__a": "from flambeau.runtime import launch\n"}, "kernel and runtime are both in layer 2"),
        ({"ir__a": "def f():\n    from flambeau.base import errors\n"}, "flambeau.base is imported inside a function"),
        ({"cli__a": "def f():\n    from flambeau import tools\n"}, None),
        ({"nn__a": "import flambeau\n"}, "nn (layer 9) must not import flambeau (layer 10.5)"),
        ({"models__a": "import flambeau as torch\n"}, None),
        ({"strange__a": "from flambeau.base import errors\n"}, "strange has no layer"),
        ({"kernel__a": "import llvmlite.binding\n"}, "llvmlite is optional or slow to load"),
        ({"kernel__a": "def f():\n    import llvmlite.binding\n"}, None),
        ({"kernel__a": "import numpy as np\nimport ctypes\n"}, None),
        ({"ir__a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flambeau.kernel import dsl\n"}, None),
        (
            {"ir__a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flambeau.nn import x\n"},
            "ir (layer 2) must not import",
        ),
        (
            {"ir__a": "from flambeau.ir import b\n", "ir__b": "from flambeau.ir.a import x\n"},
            "in a circle: flambeau.ir.a, flambeau.ir.b",
        ),
        ({"ir__a": "from . import b\n", "ir__b": "x = 1\n"}, None),
    ],
)
def test_layers(tmp_path: Path, texts: dict[str, str], expected: str | None) -> None:
    problems = layers.check_tree(write(tmp_path, **texts))
    if expected is None:
        assert problems == []
    else:
        assert len(problems) == 1, problems
        assert expected in problems[0]


def test_layers_gives_the_line(tmp_path: Path) -> None:
    problems = layers.check_tree(write(tmp_path, base__a="import os\n\nfrom flambeau.core import dtype, layout\n"))
    assert [problem.partition(": ")[0] for problem in problems] == ["flambeau/base/a.py:3"]


DOC = '"""Doc."""\n'


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("core__good", DOC + "x = 1\n", None),
        ("core__bare", "x = 1\n", "a module starts with a docstring"),
        ("core__long", DOC + "x = 1\n" * 800, "801 lines, more than 800"),
        ("core__huge", DOC + "x = 1\n" * 1200, "1201 lines, more than 1200: split it"),
        ("core__helpers", DOC, "helpers does not say what is in it"),
        ("core__misc", DOC, "misc does not say what is in it"),
        ("core__gemm_v2", DOC, "gemm_v2 does not say"),
        ("utils__good", DOC, None),
        ("core__a", DOC + "path = '/ro" + "ot/data'\n", "is a folder of one machine"),
        ("core__a", DOC + "path = '/Ho" + "me/someone'\n", "is a folder of one machine"),
        ("core__a", DOC + "path = 'https://example.org/ho" + "me/x'\n", None),
        ("core__a", DOC + "path = 'a/wo" + "rk/b'\n", None),
        ("schedule__a", DOC + "def f(op):\n    return op.name == 'sum'\n", "asks for an op by name"),
        ("schedule__a", DOC + "def f(node):\n    return node.op.name in ('sum', 'mean')\n", "asks for an op by name"),
        ("schedule__a", DOC + "def f(node):\n    return node.op is add\n", "asks for an op by name"),
        (
            "schedule__a",
            DOC + "def f(op):\n    match op.name:\n        case 'sum':\n            pass\n",
            "asks for an op by name",
        ),
        ("schedule__a", DOC + "def f(op):\n    return op is None or op.kind is Kind.VIEW\n", None),
        ("schedule__a", DOC + "def f(node, other):\n    return node.op is other.op\n", None),
        ("operators__a", DOC + "def f(op):\n    return op.name == 'sum'\n", None),
        (
            "core__a",
            DOC + "import os\nx = os.environ.get('FLAMBEAU_" + "X')\n",
            "settings are read in base/settings.py only",
        ),
        ("core__a", DOC + "def f():\n    raise NotImplementedError\n", "wants its reason"),
        ("core__a", DOC + "def f():\n    raise NotImplementedError('f: no. Use g.')\n", None),
    ],
)
def test_files(tmp_path: Path, name: str, text: str, expected: str | None) -> None:
    problems = files.check_tree(write(tmp_path, **{name: text}))
    if expected is None:
        assert problems == []
    else:
        assert len(problems) == 1, problems
        assert expected in problems[0]


def test_reasons_for_long_files_do_not_outlive_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(files.LONG, "flambeau/core/gone.py", "because")
    assert files.check_tree(write(tmp_path)) == [
        "tools/check_files.py: LONG lists flambeau/core/gone.py, which is short or gone"
    ]


def test_every_package_has_a_layer_and_every_reason_a_package() -> None:
    units = {
        path.stem for path in (ROOT / "flambeau").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert {unit for unit in units if layers.layer_of(unit) is None} == set()
    for importer, target in layers.SAME_LAYER:
        assert layers.layer_of(importer) == layers.layer_of(target)
