"""Check that packages import only from layers below their own.

    python tools/check_layers.py            # prints each violation as path:line: reason; status 1 when there is one

What is checked, for every import in flambeau/, wherever it stands in the file:
  - the layer of what is imported is lower than the importing one's, or both are the same package; two packages of one layer import each
    other only where SAME_LAYER says so with a reason;
  - imports of flambeau inside functions are refused but in LAZY: layers, not late imports, break a circle;
  - modules of one package do not import each other in a circle;
  - packages from outside are imported at module level only where ALWAYS_THERE or OUTSIDE says so.
Imports under `if TYPE_CHECKING:` may go sideways, not upwards.

Standard library only. The tables are the documentation of the layers; docs/design.md explains them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "flambeau"

LAYERS: dict[int, tuple[str, ...]] = {
    0: ("base", "version"),
    1: ("core", "checkpoint"),
    2: ("ir", "kernel", "runtime"),
    3: ("templates", "namespace"),
    4: ("operators", "schedule"),
    5: ("passes", "engine"),
    6: ("_tensor", "tape", "autograd"),
    7: ("func", "capture", "arrays", "factories", "indexing", "printing"),
    8: ("compiler", "export"),
    9: (
        "nn", "optim", "distributions", "linalg", "fft", "masked", "special", "random", "serialization", "interop", "utils", "amp",
        "testing", "profiler", "library", "backends", "ops", "forms", "tensor_methods", "sim", "cpu", "cuda",
        "mps", "xpu", "accelerator", "signal", "multiprocessing",
    ),
    10: ("quantization", "distributed"),
    11: ("models", "hub", "tools"),
    12: ("cli",),
}  # fmt: skip

# `flambeau/__init__.py` gathers the public names: it stands above the library and below what is written as a user would write it.
ROOT_LAYER = 10.5

# (importing, imported): reason. Must not contain a circle.
SAME_LAYER: dict[tuple[str, str], str] = {
    ("runtime", "kernel"): "the runtime's own machine code (thread pool, launch) is written in the kernel DSL",
    ("operators", "schedule"): "attention's rules become instructions of its kernel as a group's nodes do",
    ("engine", "passes"): "a plan is made of a graph that passes have decomposed",
    ("_tensor", "tape"): "a tensor carries its place on the tape",
    ("autograd", "_tensor"): "autograd's functions take and give tensors",
    ("autograd", "tape"): "autograd is the public face of the tape",
    ("factories", "arrays"): "arrays become tensors on their own memory",
    ("indexing", "factories"): "lists and arrays index as tensors",
    ("optim", "nn"): "optimisers take parameters",
    ("nn", "random"): "initialisation draws random numbers",
    ("nn", "forms"): "activations with `inplace=` are forms over elementwise functions",
    ("nn", "linalg"): "orthogonal initial values and parametrisations factorise",
    ("special", "forms"): "special.polygamma has a form of its own",
    ("linalg", "forms"): "norms and factorisations have forms of their own",
    ("forms", "random"): "rrelu draws its slopes",
    ("serialization", "nn"): "files hold parameters, which are loaded as such",
    ("interop", "serialization"): "safetensors files become tensors as checkpoints do",
    ("tensor_methods", "interop"): "tensors move between devices",
    ("utils", "nn"): "torch.utils has functions about modules and their parameters",
    ("utils", "random"): "samplers draw, checkpoints put random numbers back",
    ("utils", "interop"): "loaders convert arrays and share tensors between processes",
    ("accelerator", "nn"): "modules become graphed callables",
    ("tools", "models"): "the demo and the terminal's tools run models",
}

# Modules and packages that may import flambeau inside functions.
LAZY: dict[str, str] = {
    "__init__": "public names load their package at first use, to keep the import quick",
    "operators": "families of ops load at first use",
    "cli": "a command loads only what it runs",
    "interop": "multiprocessing is loaded when a tensor first moves into shared memory",
}

# From outside: what may be imported at the top of any module, and what only certain packages may.
ALWAYS_THERE = frozenset({"numpy"})
OUTSIDE: dict[str, tuple[str, ...]] = {}


@dataclass(frozen=True)
class Import:
    """One imported module as it stands in a file."""

    line: int
    module: str  # absolute dotted name, as far as it is a module
    in_function: bool
    for_types: bool


def layer_of(unit: str) -> float | None:
    """The layer of a package or root module; the empty name is `flambeau/__init__.py` itself."""
    if unit in ("", "__init__"):
        return ROOT_LAYER
    return next((layer for layer, units in LAYERS.items() if unit in units), None)


def module_name(path: Path, root: Path) -> str:
    """Dotted name of a file; a package is called like its folder."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def unit_of(module: str) -> str:
    """The package or root module that a dotted name belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path: Path, root: Path) -> Iterator[Import]:
    """Every import in a file, relative ones made absolute and `from package import module` resolved to the module."""
    name = module_name(path, root)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def is_module(dotted: str) -> bool:
        file = root.joinpath(*dotted.split("."))
        return file.is_dir() or file.with_suffix(".py").is_file()

    def visit(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, in_function, for_types)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                head = package.split(".")
                head = head[: len(head) - node.level + 1]
                base = ".".join([*head, base] if base else head)
            for alias in node.names:
                dotted = f"{base}.{alias.name}"
                inner = base.split(".")[0] == PACKAGE and is_module(dotted)
                yield Import(node.lineno, dotted if inner else base, in_function, for_types)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, in_function, True)
            for child in node.orelse:
                yield from visit(child, in_function, for_types)
        else:
            inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inside, for_types)

    # Several names from one module are one import.
    yield from dict.fromkeys(visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), False, False))


def check_import(importer: str, found: Import) -> str | None:
    """What is wrong with one import of a file of the unit `importer`, or None."""
    top = found.module.split(".")[0]
    if top != PACKAGE:
        if found.in_function or found.for_types or top in sys.stdlib_module_names or top in ALWAYS_THERE:
            return None
        if importer in OUTSIDE.get(top, ()):
            return None
        return f"{top} is optional or slow to load: import it in the function that needs it"
    target = unit_of(found.module)
    own, other = layer_of(importer), layer_of(target)
    if own is None or other is None:
        return f"{importer if own is None else target} has no layer: add it to LAYERS of tools/check_layers.py"
    if found.in_function and not found.for_types and importer not in LAZY:
        return f"{found.module} is imported inside a function: layers, not late imports, break a circle"
    if importer == target or other < own:
        return None
    if other > own:
        return f"{importer} (layer {own:g}) must not import {found.module} (layer {other:g})"
    if found.for_types or (importer, target) in SAME_LAYER:
        return None
    return (
        f"{importer} and {target} are both in layer {own:g}: neither imports the other (or add a reason to SAME_LAYER)"
    )


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of more than one name that reach each other, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def connect(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(edges.get(name, ())):
            if other not in order:
                connect(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group: list[str] = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(edges):
        if name not in order:
            connect(name)
    return found


def check_tree(root: Path) -> list[str]:
    """All violations in the package under `root`."""
    problems: list[str] = []
    modules: dict[str, set[str]] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        name = module_name(path, root)
        importer = unit_of(name)
        at_import: set[str] = set()
        try:
            found_imports = list(imports(path, root))
        except SyntaxError as error:
            problems.append(f"{path.relative_to(root)}:{error.lineno}: {error.msg}")
            continue
        for found in found_imports:
            problem = check_import(importer, found)
            if problem:
                problems.append(f"{path.relative_to(root)}:{found.line}: {problem}")
            # Importing a sub-module runs its package first, so only imports of siblings can close a circle here.
            if (
                not found.in_function
                and not found.for_types
                and found.module != name
                and not name.startswith(found.module + ".")
            ):
                at_import.add(found.module)
        modules[name] = at_import
    known = {name: {other for other in others if other in modules} for name, others in modules.items()}
    problems += [f"{group[0]}: imports in a circle: {', '.join(group)}" for group in circles(known)]
    sideways: dict[str, set[str]] = {}
    for importer, target in SAME_LAYER:
        sideways.setdefault(importer, set()).add(target)
    problems += [f"SAME_LAYER: has a circle: {', '.join(group)}" for group in circles(sideways)]
    return problems


def main() -> None:
    problems = check_tree(ROOT)
    print("\n".join(problems) if problems else "layers: every import goes downwards")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
