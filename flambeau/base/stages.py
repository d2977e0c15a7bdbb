"""What compilation shows of itself: text on the error stream, and numbered files.

    if stages.shown(5):                                # FLAMBEAU_DEBUG of 5 or more, or FLAMBEAU_DUMP
        stages.show(5, "graph, traced", str(graph), "graph-traced.py")

One count numbers every stage of a process, so that a folder sorts into the order in which things happened:
000001-graph-traced.py, 000002-graph-decomposed.py, 000003-schedule.txt, 000004-nest-softmax.txt, 000005-loop_nest-1f0c22ab.ll …

May not know: graphs, kernels; it is handed text. Entry: `shown`, `show`, `line`.
"""

from __future__ import annotations

import itertools
import os
import sys

from flambeau.base.settings import settings

__all__ = ["line", "next_number", "show", "shown", "write"]

_numbers = itertools.count(1)


def next_number() -> str:
    """The number of the next stage, of as many digits as keep files in order."""
    return f"{next(_numbers):06d}"


def shown(level: int) -> bool:
    """Whether anybody wants a stage of this debug level, printed or in a file."""
    return settings.debug >= level or bool(settings.dump)


def line(text: str) -> None:
    """Print for whoever looks at the compilation."""
    print("flambeau: " + text, file=sys.stderr, flush=True)


def write(file: str, text: str) -> None:
    """A file in the folder that `settings.dump` names, which is made if there is none."""
    os.makedirs(settings.dump, exist_ok=True)
    with open(os.path.join(settings.dump, file), "w", encoding="utf-8") as stream:
        stream.write(text)


def show(level: int, title: str, text: str, file: str) -> None:
    """A stage: printed where the debug level asks for it, written (as NNNNNN-file) where a folder is given."""
    if settings.debug >= level:
        line(f"{title}\n{text.rstrip()}")
    if settings.dump:
        write(f"{next_number()}-{file}", text if text.endswith("\n") else text + "\n")
