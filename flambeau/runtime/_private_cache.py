"""Stands in for kernel.cache until that exists: compile and load, kept in memory only."""

from __future__ import annotations

from collections.abc import Callable

from flambeau.kernel import elf, target
from flambeau.kernel.compile import compile_object
from flambeau.kernel.dsl import Module

_found: dict[tuple, int] = {}


def address(name: str, parameters: tuple, build: Callable[..., Module]) -> int:
    key = name, parameters
    if key not in _found:
        here = target.current()
        _found[key] = elf.load(elf.link(compile_object(build(here, *parameters).text(), here)))["kernel"]
    return _found[key]
