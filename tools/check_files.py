"""Check what the house asks of files: size, names, docstrings, and a few habits that no linter knows.

    python tools/check_files.py             # prints each violation as path:line: reason; status 1 when there is one

  - a file of more than 800 lines is listed in LONG with a reason; more than 1200 is refused;
  - no file or folder is called utils, helpers, misc, common, *_v2 or new_*, PyTorch's public names excepted;
  - every module has a docstring;
  - nothing in the tree names a folder of somebody's machine;
  - code outside operators/ does not ask for an op by name: schedulers and passes look at kinds;
  - settings are read from the environment in base/settings.py only;
  - NotImplementedError is raised with the reason and the way out.

Standard library only.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE_FOLDERS = ("flambeau", "tests", "tools", "benchmarks", "examples")
TEXT_FOLDERS = (*CODE_FOLDERS, "docs", ".ci")
TEXT_SUFFIXES = {".py", ".pyi", ".md", ".toml", ".txt", ".cfg", ".yml", ".yaml", ".tsv", ".csv", ".json", ".ll", ""}
SKIPPED = {"__pycache__"}

MAX_LINES = 800
HARD_MAX_LINES = 1200
LONG: dict[str, str] = {  # path: why it is one file
    "flambeau/factories.py": "every public way to make a tensor, each a few lines of arguments over one op",
    "flambeau/forms/shape.py": "call forms of the views: many names, one page each at most",
}

REFUSED_NAME = re.compile(r"^(utils?|helpers?|misc|common|stuff|.*_v\d+|new_.*)$")
PUBLIC_NAMES = {"flambeau/utils", "flambeau/nn/utils", "flambeau/nn/modules/utils"}  # PyTorch has them

# A folder at the root of a file system where people or services keep their files. Not after a word, a dot or a slash: that is a URL.
MACHINE_PATH = re.compile(
    r"(?<![\w.~/*-])/(root|work|home|users|mnt|scratch|workspace)(?=/\w)|[a-z]:\\users\\", re.IGNORECASE
)

# Reading FLAMBEAU_* elsewhere would be a setting nobody can list, check or override.
ENVIRONMENT = re.compile(r"(environ|getenv)\b.*FLAMBEAU_(?!TEST_)")
ENVIRONMENT_ALLOWED = {"flambeau/base/settings.py"}


def files(root: Path, folders: tuple[str, ...], suffixes: set[str]) -> Iterator[Path]:
    """Files under the folders, and beside them in `root`."""
    for path in sorted(root.iterdir()):
        if path.name == ".git" or path.name.startswith(".venv"):  # the former is a file in a linked worktree
            continue
        if path.is_file() and path.suffix in suffixes:
            yield path
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in suffixes and not SKIPPED & set(path.parts):
                yield path


def length_problem(name: str, lines: int) -> str | None:
    if lines > HARD_MAX_LINES:
        return f"{name}:1: {lines} lines, more than {HARD_MAX_LINES}: split it"
    if lines > MAX_LINES and name not in LONG:
        return f"{name}:1: {lines} lines, more than {MAX_LINES}: split it, or give the reason in LONG of tools/check_files.py"
    return None


def name_problem(name: str) -> str | None:
    """A path none of whose parts may be a name that says nothing."""
    parts = Path(name).with_suffix("").parts
    for count in range(1, len(parts) + 1):
        if REFUSED_NAME.match(parts[count - 1]) and "/".join(parts[:count]) not in PUBLIC_NAMES:
            return f"{name}:1: {parts[count - 1]} does not say what is in it"
    return None


def text_problems(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        found = MACHINE_PATH.search(line)
        if found:
            yield f"{name}:{number}: {found.group()} is a folder of one machine"
        if name.startswith("flambeau/") and name not in ENVIRONMENT_ALLOWED and ENVIRONMENT.search(line):
            yield f"{name}:{number}: settings are read in base/settings.py only: use flambeau.base.settings"


def _is_op_name(node: ast.expr) -> bool:
    """`op.name`, `node.op.name`, `some_op.name`."""
    if not (isinstance(node, ast.Attribute) and node.attr == "name"):
        return False
    owner = node.value
    label = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return label == "op" or label.endswith("_op")


def _is_op(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "op") or (isinstance(node, ast.Attribute) and node.attr == "op")


def tree_problems(name: str, tree: ast.Module) -> Iterator[str]:
    """What the syntax tree of a module shows."""
    if tree.body and not ast.get_docstring(tree):
        yield f"{name}:1: a module starts with a docstring: what it is, what it may not know, where to enter, one example"
    if not name.startswith("flambeau/"):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name) and node.exc.id == "NotImplementedError":
            yield f"{name}:{node.lineno}: NotImplementedError wants its reason and the way out"
        if name.startswith("flambeau/operators/"):
            continue
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            by_name = any(_is_op_name(side) for side in sides) and any(
                isinstance(c, ast.Constant | ast.Tuple | ast.Set) for c in sides
            )
            by_identity = (
                isinstance(node.ops[0], ast.Is | ast.IsNot)
                and _is_op(node.left)
                and not isinstance(node.comparators[0], ast.Constant)
                and not _is_op(node.comparators[0])
            )
            if by_name or by_identity:
                yield f"{name}:{node.lineno}: asks for an op by name: look at its kind, or put what differs into its declaration"
        if isinstance(node, ast.Match) and _is_op_name(node.subject):
            yield f"{name}:{node.lineno}: asks for an op by name: look at its kind, or put what differs into its declaration"


def check_tree(root: Path) -> list[str]:
    """All violations under `root`."""
    problems: list[str] = []
    for path in files(root, TEXT_FOLDERS, TEXT_SUFFIXES):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        problems += text_problems(name, text)
        if path.suffix != ".py":
            continue
        problems += filter(None, [length_problem(name, len(text.splitlines())), name_problem(name)])
        try:
            tree = ast.parse(text, name)
        except SyntaxError as error:
            problems.append(f"{name}:{error.lineno}: {error.msg}")
            continue
        problems += tree_problems(name, tree)
    problems += [
        f"tools/check_files.py: LONG lists {name}, which is short or gone" for name in LONG if not _is_long(root / name)
    ]
    return problems


def _is_long(path: Path) -> bool:
    return path.is_file() and len(path.read_text(encoding="utf-8").splitlines()) > MAX_LINES


def main() -> None:
    problems = check_tree(ROOT)
    print("\n".join(problems) if problems else "files: in order")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
