"""Python floats that change from call to call, while a trace is on: `SymFloat` computes with them and says what of them the trace rests on.

    lr = SymFloat(lambda: given[0])
    x * (1 - lr)           # an input of the graph, set to 1 - given[0] at each replay
    if lr > 0.5: ...       # the trace is right while the comparison gives what it gave
    math.sqrt(lr)          # the value itself is read: the trace is right for it alone

It is no float, so that code in C asks for `__float__` and nothing is read unseen; `isinstance(x, float)` holds.
May not know: where the numbers come from.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from flambeau.ir import tracing
from flambeau.ir.op import Op


class SymFloat:
    """See the module. `now()` gives the number of the present call."""

    __slots__ = ("now", "text")

    def __init__(self, now: Callable[[], float], text: str = "a number"):
        self.now, self.text = now, text

    @property
    def __class__(self) -> type:
        return float

    def plain(self) -> float:
        """The value, which the trace rests on from now on."""
        _depend(self.now, self.text)
        return self.now()

    __float__ = plain

    def __int__(self) -> int:
        return self._condition(int)

    __trunc__ = __int__

    def __bool__(self) -> bool:
        return self._condition(bool)

    def __repr__(self) -> str:
        return repr(self.plain())

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.plain(), spec)

    def __hash__(self) -> int:
        return hash(self.plain())

    def __round__(self, digits: int | None = None) -> Any:
        return self._condition(lambda x: round(x, digits))

    def __floor__(self) -> int:
        return self._condition(lambda x: x.__floor__())

    def __ceil__(self) -> int:
        return self._condition(lambda x: x.__ceil__())

    def __reduce__(self) -> tuple:
        return float, (self.plain(),)

    def __getattr__(self, name: str) -> Any:
        if name in ("is_integer", "hex", "as_integer_ratio", "real", "imag", "conjugate"):
            return getattr(self.plain(), name)
        raise AttributeError(f"'float' object has no attribute '{name}'")

    def _condition(self, function: Callable[[float], Any]) -> Any:
        now = self.now
        _depend(lambda: function(now()), f"what follows from {self.text}")
        return function(now())


def _depend(get: Callable[[], Any], text: str) -> None:
    recorder = tracing.current()
    if recorder is not None:
        recorder.depend(get, text)


def _number(x: Any) -> Callable[[], Any] | None:
    """How the value of an operand is found at each call; None for what is no real number."""
    if type(x) is SymFloat:
        return x.now
    return (lambda: x) if type(x) in (bool, int, float) else None


def _binary(function: Callable, swap: bool) -> Callable:
    def run(self: SymFloat, other: Any) -> Any:
        mine, others = self.now, _number(other)
        if others is None:
            return function(other, self.plain()) if swap and type(other) is complex else NotImplemented
        get = (lambda: function(others(), mine())) if swap else (lambda: function(mine(), others()))
        if not isinstance(get(), float):  # a power of a negative number
            return function(other, self.plain()) if swap else function(self.plain(), other)
        return SymFloat(get, self.text)

    return run


def _comparison(function: Callable) -> Callable:
    def run(self: SymFloat, other: Any) -> Any:
        others = _number(other)
        if others is None:
            return NotImplemented
        mine = self.now
        _depend(lambda: function(mine(), others()), f"what {self.text} is compared with")
        return function(mine(), others())

    return run


def _unary(function: Callable) -> Callable:
    def run(self: SymFloat) -> SymFloat:
        mine = self.now
        return SymFloat(lambda: function(mine()), self.text)

    return run


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(SymFloat, f"__{_name}__", _binary(getattr(operator, _name), False))
    setattr(SymFloat, f"__r{_name}__", _binary(getattr(operator, _name), True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(SymFloat, f"__{_name}__", _comparison(getattr(operator, _name)))
for _name in ("neg", "pos", "abs"):
    setattr(SymFloat, f"__{_name}__", _unary(getattr(operator, _name)))


def placed(recorder: tracing.Recorder, op: Op, args: tuple) -> tuple:
    """Arguments of a traced op: numbers that change are inputs of the graph where the op takes one when it runs, and plain elsewhere."""
    if not any(type(a) is SymFloat or type(a) in (tuple, list) for a in args):
        return args
    return tuple(
        recorder.number(a) if type(a) is SymFloat and i in op.scalar_positions else plain(a) for i, a in enumerate(args)
    )


def plain(x: Any) -> Any:
    """A value without numbers that change."""
    if type(x) is SymFloat:
        return x.plain()
    if type(x) in (tuple, list) and any(type(y) in (SymFloat, tuple, list) for y in x):
        return type(x)(plain(y) for y in x)
    return x


__all__ = ["SymFloat", "placed", "plain"]
