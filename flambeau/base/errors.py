"""Error classes, and the one form in which every error is worded.

What it is: the exceptions that Flambeau raises besides Python's own, and the functions that write their texts:

    op: what must hold, got values. Next step.

May not know: tensors, dtypes or ops; values are shown through `show`, which reads shapes and plain Python values.

Enter at: `message` for the text, `did_you_mean` for the next step when a name is wrong, the classes for what to raise.

    raise ShapeError(message("matmul", "last dim of a (4) must equal second-to-last dim of b (6)",
                             {"a": (2, 3, 4), "b": (6, 4)}, "Did you mean a @ b.mT?"))
    # matmul: last dim of a (4) must equal second-to-last dim of b (6), got a [2, 3, 4], b [6, 4]. Did you mean a @ b.mT?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = [
    "AcceleratorError",
    "InternalError",
    "LinAlgError",
    "OutOfMemoryError",
    "ShapeError",
    "TraceError",
    "UnsupportedError",
    "closest",
    "did_you_mean",
    "message",
    "show",
]


class OutOfMemoryError(RuntimeError, MemoryError):
    """An allocation that the device or the limit set for it could not serve."""


class AcceleratorError(RuntimeError):
    """A device reported a failure, possibly of work launched earlier than the call that raises."""


class LinAlgError(RuntimeError):
    """A factorisation or solve that the values of its input do not allow (singular, not positive-definite, not converged)."""


class ShapeError(RuntimeError):
    """Sizes or numbers of dimensions that do not fit each other."""


class TraceError(RuntimeError):
    """What is asked for is not known, or cannot be done, while a function is traced."""


class UnsupportedError(NotImplementedError):
    """Something that is well defined but that Flambeau declines to do; the text gives the reason."""


class InternalError(RuntimeError):
    """A defect of Flambeau itself. `graph` is the program concerned as runnable Python, and `replay` says how to run it again."""

    def __init__(self, text: str, graph: str = "", replay: str = "") -> None:
        parts = [text, "This is a defect of Flambeau, not of the calling program."]
        if replay:
            parts.append(f"To see it again: {replay}")
        if graph:
            parts.append(graph)
        super().__init__("\n".join(parts))
        self.graph = graph
        self.replay = replay


def show(value: object) -> str:
    """A value as error texts write it: shapes in brackets, text in quotes, long containers cut short."""
    if isinstance(value, bool | int | float | complex) or value is None:
        return repr(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= 80 else repr(value[:77]) + "..."
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple | list):
        shown = ", ".join(show(item) for item in value[:8])
        return f"[{shown}, ...]" if len(value) > 8 else f"[{shown}]"
    return str(value)


def message(op: str, rule: str, got: Mapping[str, object] | object = None, step: str = "") -> str:
    """The text `op: rule, got values. Next step.`

    `rule` says what must hold (or what is wrong), `got` names the offending values, is their text or the one value, `step` is a full sentence.
    """
    text = f"{op}: {rule.rstrip('.')}"
    if isinstance(got, str):
        text += f", got {got}"
    elif got is not None and not isinstance(got, Mapping):
        text += f", got {show(got)}"
    elif got:
        text += ", got " + ", ".join(f"{name} {show(value)}" for name, value in got.items())
    text += "."
    return f"{text} {step}" if step else text


def closest(name: str, candidates: Iterable[str], count: int = 1) -> list[str]:
    """The candidates most like `name`, best first; letter case does not matter. Empty when none is near."""
    import difflib  # only wanted once something has gone wrong

    by_lower = {candidate.lower(): candidate for candidate in sorted(candidates)}
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.6)]


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`Did you mean x?` for the candidate most like `name`, or the empty string when none is near."""
    matches = closest(name, candidates)
    return f"Did you mean {matches[0]}?" if matches else ""
