"""The error channel: how kernels, which cannot raise, report what went wrong.

A kernel that may fail takes the address of an error block as an ordinary slot: eight int64 words

    {kind, op, index, dim, size, first, second, third}

that are all 0 while nothing is wrong. The first failure claims the block by compare-and-swap on `kind`, then writes the rest;
later ones leave it alone. Whoever launched reads the block once the kernel has ended.

    block = errors.ErrorBlock()
    run(x, indices, block.address, parameters.address)
    block.check()                       # raises IndexError: gather: index must be ...

and in a kernel's source, `errors.emit_report(k, block, errors.INDEX, op=op, index=i, dim=dim, size=size)`.
Ops are named by `op_id`. Ids belong to the process while kernels are kept on disk, so a kernel takes its op's id as a value
(a slot or a word of the parameter block), never as a constant.

Where several threads fail, it is not determined whose failure is reported.

May not know: which ops there are. Entry: `ErrorBlock`, `emit_report`.
"""

from __future__ import annotations

import threading
from array import array

from flambeau.base.errors import message
from flambeau.base.record import record
from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import i1, i64

WORDS = 8


@record
class Kind:
    """A way to fail: its number, what must hold (a format over the block's words), the exception the CPU raises for it."""

    number: int
    rule: str
    got: str
    exception: type[Exception]
    step: str = ""


_kinds: dict[int, Kind] = {}


def declare(number: int, rule: str, got: str, exception: type[Exception], step: str = "") -> Kind:
    """Register a kind. Numbers are part of compiled kernels: they never change their meaning."""
    if number in _kinds or number < 1:
        raise ValueError(message("errors.declare", "the number must be positive and free", str(number)))
    kind = _kinds[number] = Kind(number, rule, got, exception, step)
    return kind


INDEX = declare(
    1, "index must be at least {least} and less than {size} in dim {dim} (out of bounds)", "{index}", IndexError
)
ELEMENT = declare(
    4, "index must be at least 0 and less than {size} in dim {dim} (out of bounds)", "{index}", RuntimeError
)
POSITION = declare(
    5, "index must be at least 0 and less than {size} in dim {dim} (out of range)", "{index}", IndexError
)
ZERO_DIVISION = declare(2, "an integer divisor must not be 0", "0 at element {index}", RuntimeError)
ASSERTION = declare(3, "the asserted condition must hold", "false at element {index}", RuntimeError)


def kind_numbered(number: int) -> Kind:
    """The declared kind of that number."""
    return _kinds[number]


# ---------------------------------------------------------------------------------------------------- names of ops
_names: list[str] = ["kernel"]
_ids: dict[str, int] = {"kernel": 0}


def op_id(name: str) -> int:
    """The number that stands for an op's name in error blocks of this process; 0 is no op in particular."""
    found = _ids.get(name)
    if found is None:
        found = _ids[name] = len(_names)
        _names.append(name)
    return found


# ---------------------------------------------------------------------------------------------------- blocks
@record
class Failure:
    """What an error block said."""

    kind: int
    op: str
    index: int
    dim: int
    size: int
    details: tuple[int, int, int]

    @property
    def text(self) -> str:
        kind = _kinds.get(self.kind)
        if kind is None:
            return message(
                self.op, f"failed with code {self.kind}", {"index": self.index, "dim": self.dim, "size": self.size}
            )
        first, second, third = self.details
        words = {"index": self.index, "dim": self.dim, "size": self.size, "least": -self.size}
        words |= {"first": first, "second": second, "third": third}
        return message(self.op, kind.rule.format_map(words), kind.got.format_map(words), kind.step.format_map(words))

    def exception(self) -> Exception:
        """The exception a synchronous device raises."""
        kind = _kinds.get(self.kind)
        return (kind.exception if kind else RuntimeError)(self.text)


class ErrorBlock:
    """Eight words that kernels write; `address` is the slot. Keep it alive while a kernel may use it."""

    __slots__ = ("address", "words")

    def __init__(self) -> None:
        self.words = array("q", bytes(8 * WORDS))
        self.address: int = self.words.buffer_info()[0]

    def read(self) -> Failure | None:
        """What was reported, or None. Only meaningful when no kernel that has the block is running."""
        if not self.words[0]:
            return None
        kind, op, index, dim, size, *details = self.words
        name = _names[op] if 0 <= op < len(_names) else f"op {op}"
        return Failure(kind, name, index, dim, size, (details[0], details[1], details[2]))

    def clear(self) -> None:
        """Make it take the next failure."""
        for index in range(WORDS):
            self.words[index] = 0

    def check(self) -> None:
        """Raise what was reported, if anything, and clear the block."""
        if self.words[0]:
            failure = self.read()
            self.clear()
            assert failure is not None
            raise failure.exception()


_local = threading.local()


def thread_block() -> ErrorBlock:
    """The calling thread's own block, for launches that are checked at once."""
    try:
        return _local.block
    except AttributeError:
        _local.block = ErrorBlock()
        return _local.block


# ---------------------------------------------------------------------------------------------------- in kernels
def emit_report(
    k: Function,
    block: Value,
    kind: Kind,
    *,
    op: Value | int = 0,
    index: Value | int = 0,
    dim: Value | int = 0,
    size: Value | int = 0,
    details: tuple[Value | int, ...] = (),
) -> None:
    """Emit code that reports a failure to the block at `block` (a pointer). All values are scalar i64. Execution goes on after it."""
    pair = k.fresh("pair")
    k.line(f"{pair} = cmpxchg ptr {block.ref}, i64 0, i64 {kind.number} monotonic monotonic")
    with k.when(k.emit(i1, f"extractvalue {{ i64, i1 }} {pair}, 1")):
        for word, value in enumerate((op, index, dim, size, *details), start=1):
            k.store(block, k.as_value(value, i64), word)
