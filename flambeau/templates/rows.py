"""Rows of strided operands: all dims but one as units, and elements in and out of registers at any stride.

    rows = rows_of(shape, dim, (in_strides, out_strides))    # rows.count units of rows.length elements
    bases = row_bases(k, block, unit, first, rows.entries, 2)   # where each operand's row of this unit starts

What templates that work along one dim share (scans, sorts, searches). May not know: what they compute. Entry: `rows_of`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau.base.record import record
from flambeau.core.dtype import BY_NAME
from flambeau.kernel.complexes import Complex
from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import Type, i64
from flambeau.templates.loop_program import MEMORY, REGISTER


@record
class Rows:
    """`entries` are (size, step of each operand) of the dims that number the rows, slow first; `steps` run along a row."""

    length: int
    steps: tuple[int, ...]
    entries: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def count(self) -> int:
        return math.prod(size for size, _ in self.entries)

    def params(self) -> tuple[int, ...]:
        """Entries as words of a parameter block."""
        return tuple(word for size, steps in self.entries for word in (size, *steps))


def rows_of(shape: Sequence[int], dim: int, strides: Sequence[Sequence[int]]) -> Rows:
    """The rows along `dim`; dims that run together in every operand are merged. A 0-d shape is one row of one element."""
    if not shape:
        return Rows(1, (1,) * len(strides), ())
    entries: list[tuple[int, tuple[int, ...]]] = []
    for d, size in enumerate(shape):
        if d == dim or size == 1:
            continue
        steps = tuple(s[d] for s in strides)
        if entries:
            before, wide = entries[-1]
            if all(w == s * size for w, s in zip(wide, steps)):
                entries[-1] = (before * size, steps)
                continue
        entries.append((size, steps))
    return Rows(shape[dim], tuple(s[dim] for s in strides), tuple(entries))


def row_bases(k: Function, block: Value, unit: Value, first: int, entries: int, operands: int) -> list[Value]:
    """Element offset of row `unit` in each operand, from the words that `Rows.params` put into the block at `first`."""
    zero = k.const(i64, 0)
    bases = [zero] * operands
    rest = unit
    for e in range(entries - 1, -1, -1):
        at = first + e * (1 + operands)
        if e:
            size = k.load(block, i64, at)
            here, rest = rest % size, rest // size
        else:
            here = rest
        for j in range(operands):
            term = here * k.load(block, i64, at + 1 + j)
            bases[j] = term if bases[j] is zero else bases[j] + term
    return bases


# ------------------------------------------------------------------ elements
def load_lanes(
    k: Function, pointer: Value, name: str, where: Value, step: Value | None, lanes: int, mask: Value | None = None
) -> Any:
    """`lanes` elements of dtype `name` from element `where` on, `step` apart (None: 1), in register types. 0 lanes: a scalar."""
    memory = MEMORY[name]
    if BY_NAME[name].is_complex:
        return _load_complex(k, pointer, memory, where, step, lanes, mask)
    if lanes == 0:
        v = k.load(pointer, memory, where)
    elif step is None:
        v = k.load(pointer, memory.vec(lanes), where, mask=mask)
    else:
        v = k.gather(pointer, memory, _spread(k, where, step, lanes), mask=mask)
    return v.ne(0) if name == "bool" else v.to(REGISTER[name])


def _load_complex(
    k: Function, pointer: Value, memory: Type, where: Value, step: Value | None, lanes: int, mask: Value | None
) -> Complex:
    twice = where * 2
    if lanes == 0:
        return Complex(k.load(pointer, memory, twice), k.load(pointer, memory, twice + 1))
    if step is None:
        both = k.load(pointer, memory.vec(2 * lanes), twice, mask=_double(k, mask, lanes))
        return Complex(k.shuffle(both, None, range(0, 2 * lanes, 2)), k.shuffle(both, None, range(1, 2 * lanes, 2)))
    index = _spread(k, where, step, lanes) * 2
    return Complex(k.gather(pointer, memory, index, mask=mask), k.gather(pointer, memory, index + 1, mask=mask))


def store_lanes(
    k: Function,
    pointer: Value,
    name: str,
    v: Any,
    where: Value,
    step: Value | None,
    lanes: int,
    mask: Value | None = None,
) -> None:
    """The reverse of `load_lanes`; `v` in the register type of `name`."""
    if isinstance(v, Complex):
        _store_complex(k, pointer, v, where, step, lanes, mask)
        return
    v = v.to(MEMORY[name])
    if lanes == 0:
        k.store(pointer, v, where)
    elif step is None:
        k.store(pointer, v, where, mask=mask)
    else:
        k.scatter(pointer, v, _spread(k, where, step, lanes), mask=mask)


def _store_complex(
    k: Function, pointer: Value, v: Complex, where: Value, step: Value | None, lanes: int, mask: Value | None
) -> None:
    twice = where * 2
    if lanes == 0:
        k.store(pointer, v.real, twice)
        k.store(pointer, v.imag, twice + 1)
    elif step is None:
        both = k.shuffle(v.real, v.imag, [x // 2 + (x % 2) * lanes for x in range(2 * lanes)])
        k.store(pointer, both, twice, mask=_double(k, mask, lanes))
    else:
        index = _spread(k, where, step, lanes) * 2
        k.scatter(pointer, v.real, index, mask=mask)
        k.scatter(pointer, v.imag, index + 1, mask=mask)


def _double(k: Function, mask: Value | None, lanes: int) -> Value | None:
    return None if mask is None else k.shuffle(mask, None, [x // 2 for x in range(2 * lanes)])


def _spread(k: Function, where: Value, step: Value, lanes: int) -> Value:
    return k.iota(i64.vec(lanes)) * k.splat(step, lanes) + k.splat(where, lanes)
