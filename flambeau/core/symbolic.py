"""Symbolic sizes: ints that remember where they came from.

A `SymInt` is an int (the size at hand while a function is traced) with an expression over named sizes. Arithmetic keeps the expression;
a comparison answers for the size at hand and is recorded as a guard, to be checked before the trace is reused for other sizes. What turns it
into a plain number (`int()`, shifts) is a guard too: the trace is then good for that size only. Python's own C code (`range`, indexing, tuples
repeated, a float times a size) sees an int and leaves no guard.

    n = SymInt.named("s0", 5, guards)
    (n * 2 + 1).evaluate({"s0": 7})      15

May not know: shapes, graphs. Entry: `SymInt.named`, `evaluate`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

_APPLY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "neg": operator.neg,
    "abs": abs,
    "**": operator.pow,
    "max": max,
    "min": min,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


_NEUTRAL = {"+": 0, "-": 0, "*": 1, "//": 1}


class Guards:
    """Comparisons made on symbolic sizes while tracing: (expression, answer)."""

    def __init__(self) -> None:
        self.found: dict[tuple, Any] = {}
        self._check: Callable[[Mapping[str, int]], bool] | None = None  # all of them as one function
        self._checked = -1  # how many it looks at

    def note(self, expression: tuple, answer: Any) -> None:
        self.found.setdefault(expression, answer)

    def hold(self, sizes: Mapping[str, int]) -> bool:
        """Whether every comparison would be answered the same for other sizes."""
        if self._checked != len(self.found):
            self._checked, self._check = len(self.found), self._compiled()
        return self._check(sizes)

    def _compiled(self) -> Callable[[Mapping[str, int]], bool]:
        scope: dict[str, Any] = {}

        def text(x: Any) -> str:
            if isinstance(x, tuple):
                return f"({python_of(x, text)})"
            if isinstance(x, str):
                return f"sizes[{x!r}]"
            if isinstance(x, int):
                return repr(int.__add__(x, 0))
            name = f"c{len(scope)}"
            scope[name] = x
            return name

        parts = [f"{text(e)} == {answer!r}" for e, answer in self.found.items()]
        exec(f"def check(sizes):\n    return {' and '.join(parts) or 'True'}", scope)
        return scope["check"]

    def broken(self, sizes: Mapping[str, int]) -> tuple:
        """(expression, answer) of the first comparison that would be answered otherwise."""
        return next((e, answer) for e, answer in self.found.items() if evaluate(e, sizes) != answer)

    def __repr__(self) -> str:
        return "; ".join(f"{show(e)} is {answer}" for e, answer in self.found.items())


class SymInt(int):
    """See the module."""

    @classmethod
    def named(cls, name: str, value: int, guards: Guards) -> SymInt:
        """The size called `name`, `value` at the moment."""
        return cls._made(value, name, guards)

    @classmethod
    def _made(cls, value: int, expression: Any, guards: Guards) -> SymInt:
        found = int.__new__(cls, value)
        found.expression, found.guards = expression, guards
        return found

    def _binary(self, name: str, other: Any, swap: bool = False) -> Any:
        if isinstance(other, float):
            return _APPLY[name](other, int(self)) if swap else _APPLY[name](int(self), other)
        if not isinstance(other, int):
            return NotImplemented
        a, b = (other, self) if swap else (self, other)
        if type(other) is int and other == _NEUTRAL.get(name) and not (swap and name in ("-", "//")):
            return self
        value = _APPLY[name](plain(a), plain(b))
        return SymInt._made(value, (name, expression_of(a), expression_of(b)), self.guards)

    def _compare(self, name: str, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        answer = _APPLY[name](plain(self), other if isinstance(other, float) else plain(other))
        if not (isinstance(other, SymInt) and other.expression == self.expression):
            self.guards.note((name, self.expression, expression_of(other)), answer)
        return answer

    def __add__(self, other):
        return self._binary("+", other)

    def __radd__(self, other):
        return self._binary("+", other, swap=True)

    def __sub__(self, other):
        return self._binary("-", other)

    def __rsub__(self, other):
        return self._binary("-", other, swap=True)

    def __mul__(self, other):
        return self._binary("*", other)

    def __rmul__(self, other):
        return self._binary("*", other, swap=True)

    def __floordiv__(self, other):
        return self._binary("//", other)

    def __rfloordiv__(self, other):
        return self._binary("//", other, swap=True)

    def __mod__(self, other):
        return self._binary("%", other)

    def __rmod__(self, other):
        return self._binary("%", other, swap=True)

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self

    def __neg__(self):
        return SymInt._made(-plain(self), ("neg", self.expression), self.guards)

    def __abs__(self):
        return SymInt._made(abs(plain(self)), ("abs", self.expression), self.guards)

    def __eq__(self, other):
        return self._compare("==", other)

    def __ne__(self, other):
        return self._compare("!=", other)

    def __lt__(self, other):
        return self._compare("<", other)

    def __le__(self, other):
        return self._compare("<=", other)

    def __gt__(self, other):
        return self._compare(">", other)

    def __ge__(self, other):
        return self._compare(">=", other)

    def __bool__(self) -> bool:
        return self._compare("!=", 0)

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __int__(self) -> int:
        value = plain(self)
        self.guards.note(("==", self.expression, value), True)
        return value

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __truediv__(self, other):
        return int(self) / other

    def __rtruediv__(self, other):
        return other / int(self)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """The value for other sizes."""
        return evaluate(self.expression, sizes)

    def __repr__(self) -> str:
        return show(self.expression)


def _as_plain(name: str) -> Callable[..., Any]:
    method = getattr(int, name)

    def run(self: SymInt, *args: Any) -> Any:
        return method(int(self), *args)

    return run


# What keeps no expression is a guard, as int() is.
for _name in (
    "bit_length", "bit_count", "to_bytes", "__lshift__", "__rlshift__", "__rshift__", "__rrshift__", "__and__", "__rand__", "__or__",
    "__ror__", "__xor__", "__rxor__", "__pow__", "__rpow__", "__invert__", "__round__", "__floor__", "__ceil__", "__trunc__",
):  # fmt: skip
    setattr(SymInt, _name, _as_plain(_name))


def plain(x: int) -> int:
    """The size at hand, without a guard."""
    return int.__add__(x, 0)


def as_size(x: Any) -> int:
    """A size given by a user: symbolic ones stay what they are, others become ints."""
    return x if isinstance(x, int) else x.__index__()


def expression_of(x: Any) -> Any:
    return x.expression if isinstance(x, SymInt) else x


def evaluate(expression: Any, sizes: Mapping[str, int]) -> Any:
    """An expression's value: a number, a size's name, or (operator, operands …)."""
    if isinstance(expression, str):
        return sizes[expression]
    if isinstance(expression, tuple):
        name, *operands = expression
        if name == "call":
            function, place, *operands = operands
            return function(*(evaluate(x, sizes) for x in operands))[place]
        return _APPLY[name](*(evaluate(x, sizes) for x in operands))
    return expression


def python_of(expression: tuple, inner: Callable[[Any], str]) -> str:
    """Python source of the outermost operation of an expression; `inner` gives that of its operands."""
    name, *operands = expression
    if name == "call":
        function, place, *operands = operands
        return f"{inner(function)}({', '.join(map(inner, operands))})[{place}]"
    if name in ("abs", "max", "min"):
        return f"{name}({', '.join(map(inner, operands))})"
    if len(operands) == 1:
        return f"-{inner(operands[0])}"
    return f"{inner(operands[0])} {name} {inner(operands[1])}"


def through(function: Callable[..., tuple], *arguments: Any) -> tuple:
    """`function(*arguments)`, numbers computed from sizes by any code: for other sizes it is called again. No guard looks inside."""
    guards = next((a.guards for a in arguments if isinstance(a, SymInt)), None)
    found = function(*[plain(a) if isinstance(a, SymInt) else a for a in arguments])
    if guards is None:
        return found
    given = [expression_of(a) for a in arguments]
    return tuple(SymInt._made(x, ("call", function, i, *given), guards) for i, x in enumerate(found))


def show(expression: Any) -> str:
    if isinstance(expression, tuple):
        name, *operands = expression
        if len(operands) == 1:
            return f"{name}({show(operands[0])})"
        return f"({show(operands[0])} {name} {show(operands[1])})"
    return str(expression)


def is_symbolic(values: Any) -> bool:
    """Whether a shape (or any tuple of ints) holds a symbolic size."""
    return any(type(n) is SymInt for n in values)


def concrete(x: Any, sizes: Mapping[str, int]) -> Any:
    """A structure of tuples with symbolic sizes replaced by their values."""
    if type(x) is SymInt:
        return x.evaluate(sizes)
    if isinstance(x, tuple):
        found = [concrete(y, sizes) for y in x]
        return (
            type(x)(found)
            if type(x) is not tuple and not hasattr(x, "_fields")
            else type(x)(*found)
            if hasattr(x, "_fields")
            else tuple(found)
        )
    return x
