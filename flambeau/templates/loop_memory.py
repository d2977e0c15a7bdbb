"""Memory of a loop nest: addresses, loads, checked indices, stores that merge, rows kept for later stages.

A part of `loop_nest`'s emitter, which knows levels, stages and loops; here an instruction's place becomes machine loads and stores: along
memory (forwards or backwards), gathered, or one by one. May not know: in which loop it is used.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.dtype import BY_NAME, dtype
from flambeau.ir.op import REGISTRY
from flambeau.kernel.complexes import Complex, complex_const
from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import Type, i32, i64
from flambeau.runtime.errors import emit_report, kind_numbered
from flambeau.templates.loop_program import MEMORY, REGISTER, Check, Keep, Load, LoopNest, Store

STREAMING_ALIGN = 64  # bytes: stores past the cache fault elsewhere, and memory given by the caller (a view, an array) may start anywhere

AHEAD_BYTES = (
    4096  # read as far before it is wanted as memory takes to come; processors do not cross pages by themselves
)
COLUMN_VECTORS_AHEAD = 32  # where columns are reduced: 8 rows below of 4 vectors each, or 4 of 8


class LoopMemory:
    """What the emitter of a loop nest does to memory."""

    k: Function
    nest: LoopNest
    tid: Value
    pointers: dict[int, Value]
    aligned: dict[
        int, Value
    ]  # of a slot that is stored past the cache: whether its memory starts where such stores may
    sizes: list[Value]
    bases: dict[int, Any]
    level: list[str]
    reading_stages: dict[
        int, tuple[int, int]
    ]  # of a load that is fetched ahead: first and last loop over the row that runs it
    current_stage: int
    stages: int
    overlaps: bool  # whether the last stage of a row runs beside the one before of the next
    kept_row: Value

    def _index(self, access, base, position, lanes: int) -> Value:
        """Linear index as an int64 value of `lanes` lanes."""
        k, d = self.k, self.nest.vector_dim
        start = base if base is not None else k.const(i64, 0)
        step = access[d]
        if not step or position is None:
            return k.splat(start, lanes)
        if lanes == 0:
            return start - position if step == -1 else start + (position if step == 1 else position * self.param(step))
        lane = k.iota(i64.vec(lanes)) + k.splat(position, lanes)
        if step == -1:
            return k.splat(start, lanes) - lane
        if step != 1:
            lane = lane * k.splat(self.param(step), lanes)
        return lane + k.splat(start, lanes)

    def _narrow_index(self, access, base, position, lanes: int) -> Value:
        """The same as an int32 value: half as many registers."""
        k = self.k
        step = access[self.nest.vector_dim] if position is not None else 0
        along = step if step in (0, 1, -1) else self.param(step)
        start = base if base is not None else k.const(i64, 0)
        if step:
            start = start + position * along
        start = k.splat(start.to(i32), lanes)
        if not step or lanes == 0:
            return start
        if step in (1, -1):
            return start + k.consts(i32.vec(lanes), [step * lane for lane in range(lanes)])
        return start + k.iota(i32.vec(lanes)) * k.splat(along.to(i32), lanes)

    # ------------------------------------------------------------------ memory
    def _load(self, n: Load, i: int, value, offsets, position, mask, lanes: int) -> Any:
        k = self.k
        base = offsets.get(i)
        step = n.access[self.nest.vector_dim] if position is not None else 0
        base, gathered = self._moved(n.indices, value, base)
        memory = MEMORY[n.dtype]
        p = self.pointers[n.slot]
        is_complex = BY_NAME[n.dtype].is_complex
        if gathered is None and step == 0:
            v = self._memory_scalar(p, memory, base, is_complex)
            return self._splat(self._to_register(v, n.dtype), lanes)
        if gathered is None and step == 1 and lanes:
            where = position if base is None else base + position
            if n.ahead and mask is None:
                self._fetch_ahead(n, i, where)
            v = self._memory_vector(p, memory, where, mask, lanes, is_complex)
            return self._to_register(v, n.dtype)
        if gathered is None and step == -1 and lanes:
            where = (base if base is not None else k.const(i64, 0)) - position - (lanes - 1)
            v = self._memory_vector(
                p, memory, where, None if mask is None else self._backwards(mask), lanes, is_complex
            )
            v = Complex(self._backwards(v.real), self._backwards(v.imag)) if is_complex else self._backwards(v)
            return self._to_register(v, n.dtype)
        if lanes == 0:
            where = self._index(n.access, base, position, 0)
            if gathered is not None:
                where = where + gathered
            return self._to_register(self._memory_scalar(p, memory, where, is_complex), n.dtype)
        where = self._index(n.access, base, position, lanes)
        if gathered is not None:
            where = where + gathered
        return self._to_register(self._memory_gather(p, memory, where, mask, is_complex), n.dtype)

    def _fetch_ahead(self, n: Load, i: int, where: Value) -> None:
        """Fetch what is wanted soon: further along memory; the next row, in the last loop over a row that is read by several; rows
        below, where columns are reduced."""
        k, nest = self.k, self.nest
        element = BY_NAME[n.dtype].itemsize
        if nest.vector == "outer":
            step = n.access[-2]
            if step:
                rows = COLUMN_VECTORS_AHEAD // max(4, nest.unroll)
                further = self.param(step) * rows if step > 1 else k.const(i64, rows)
                k.prefetch(self.pointers[n.slot], (where + further) * element)
            return
        first, last = self.reading_stages[i]
        if first == last:
            k.prefetch(self.pointers[n.slot], where * element + AHEAD_BYTES)
        elif (
            self.current_stage == (min(last, self.stages - 1) if self.overlaps else last)
            and nest.outer
            and n.access[nest.outer - 1] > 1
        ):
            k.prefetch(self.pointers[n.slot], (where + self.param(n.access[nest.outer - 1])) * element, locality=2)

    def _memory_gather(self, p: Value, memory: Type, where: Value, mask, is_complex: bool) -> Any:
        k = self.k
        if not is_complex:
            return k.gather(p, memory, where, mask=mask)
        twice = where * 2
        return Complex(k.gather(p, memory, twice, mask=mask), k.gather(p, memory, twice + 1, mask=mask))

    def _moved(self, indices, value, base) -> tuple[Value | None, Value | None]:
        """(scalar start, offsets by lane or None) of a place that checked indices move."""
        k, gathered = self.k, None
        for r, stride in indices:
            rows = self.nest.vector == "inner" and self.level[r.index] == "row"
            index = self.row_value(r.index) if rows else value(r.index)
            term = index * k.splat(self.param(stride), index.type.lanes)
            if index.type.lanes:
                gathered = term if gathered is None else gathered + term
            else:
                base = term if base is None else base + term
        return base, gathered

    def _checked(self, n: Check, index: Value, mask) -> Value:
        """The index, with negatives wrapped; one that is out of bounds is reported and read as 0."""
        k, size = self.k, self.param(n.size)
        lanes = index.type.lanes
        wide = k.splat(size, lanes)
        wrapped = k.select(index < 0, index + wide, index) if n.wrap else index
        bad = (wrapped < 0) | (wrapped >= wide)
        if mask is not None and lanes:
            bad = bad & mask
        any_bad = k.any(bad)
        with k.when(any_bad):
            error = self.pointers[n.error_slot]
            if lanes:
                report = k.reduce(k.select(bad, index, k.const(index.type, -(1 << 63))), lambda a, b: k.maximum(a, b))
            else:
                report = index
            emit_report(
                k, error, kind_numbered(n.error), op=self.param(n.op), index=report, dim=self.param(n.dim), size=size
            )
        return k.select(bad, k.const(index.type, 0), wrapped)

    def _memory_scalar(self, p: Value, memory: Type, where, is_complex: bool) -> Any:
        k = self.k
        where = where if where is not None else k.const(i64, 0)
        if is_complex:
            twice = where * 2
            return Complex(k.load(p, memory, twice), k.load(p, memory, twice + 1))
        return k.load(p, memory, where)

    def _memory_vector(self, p: Value, memory: Type, where: Value, mask, lanes: int, is_complex: bool) -> Any:
        k = self.k
        if not is_complex:
            return k.load(p, memory.vec(lanes), where, mask=mask)
        both = k.load(p, memory.vec(2 * lanes), where * 2, mask=self._double(mask, lanes))
        return Complex(k.shuffle(both, None, range(0, 2 * lanes, 2)), k.shuffle(both, None, range(1, 2 * lanes, 2)))

    def _backwards(self, v: Value) -> Value:
        return self.k.shuffle(v, None, range(v.type.lanes - 1, -1, -1))

    def _double(self, mask, lanes: int):
        return None if mask is None else self.k.shuffle(mask, None, [x // 2 for x in range(2 * lanes)])

    def _to_register(self, v: Any, name: str) -> Any:
        if isinstance(v, Complex):
            return v
        if name == "bool":
            return v.ne(0)
        return v.to(REGISTER[name])

    def _to_memory(self, v: Any, name: str) -> Any:
        if isinstance(v, Complex):
            return v
        return v.to(MEMORY[name])

    def _store_full(self, n: Store, i: int, v: Any, offsets, position, mask, lanes: int, value) -> None:
        k = self.k
        v = self._splat(self.convert(v, self.dtype_of(n.value.index), n.dtype), lanes)
        p, step = self.pointers[n.slot], n.access[self.nest.vector_dim]
        base, gathered = self._moved(n.indices, value, offsets.get(i))
        memory, is_complex = MEMORY[n.dtype], isinstance(v, Complex)
        dense = step == 1 and gathered is None and lanes > 0
        if dense:
            where = position if base is None else base + position
        else:
            where = self._index(n.access, base, position, lanes)
            where = where if gathered is None else where + gathered
        if n.combine:
            if dense:
                old = self._memory_vector(p, memory, where, mask, lanes, is_complex)
            elif lanes == 0:
                old = self._memory_scalar(p, memory, where, is_complex)
            else:
                old = self._memory_gather(p, memory, where, mask, is_complex)
            op = REGISTRY[n.combine]
            v = fit(
                k,
                op.rules.lower(k, self._to_register(old, n.dtype), v, *(a.default for a in op.params[2:])),
                BY_NAME[n.dtype],
            )
        v = self._to_memory(v, n.dtype)
        if dense:
            if is_complex:
                both = k.shuffle(v.real, v.imag, [x // 2 + (x % 2) * lanes for x in range(2 * lanes)])
                k.store(p, both, where * 2, mask=self._double(mask, lanes))
            elif n.streaming and mask is None:
                k.when_else(
                    self.aligned[n.slot],
                    lambda: k.store(p, v, where, align=STREAMING_ALIGN, nontemporal=True),
                    lambda: k.store(p, v, where),
                )
            else:
                k.store(p, v, where, mask=mask)
            return
        if is_complex:
            twice = where * 2
            k.scatter(p, v.real, twice, mask=mask)
            k.scatter(p, v.imag, twice + 1, mask=mask)
        else:
            k.scatter(p, v, where, mask=mask)

    def _store(self, n: Store, i: int, v: Any) -> None:
        """Store a scalar at the unit's place."""
        k = self.k
        v = self._to_memory(self.convert(v, self.dtype_of(n.value.index), n.dtype), n.dtype)
        where = self.bases.get(i)
        where = where if where is not None else k.const(i64, 0)
        p = self.pointers[n.slot]
        if isinstance(v, Complex):
            k.store(p, v.real, where * 2)
            k.store(p, v.imag, where * 2 + 1)
        else:
            k.store(p, v, where)

    def _keep(self, n: Keep, v: Any, position, mask, lanes: int) -> None:
        p, where = self._kept_place(n, position)
        self.k.store(p, self._to_memory(v, self._kept_dtype(n)), where, mask=mask)

    def _kept_value(self, n: Keep, i: int, position, mask, lanes: int) -> Any:
        name = self._kept_dtype(n)
        p, where = self._kept_place(n, position)
        return self._to_register(self.k.load(p, MEMORY[name].vec(lanes), where, mask=mask), name)

    def _kept_dtype(self, n: Keep) -> str:
        name = self.dtype_of(n.value.index)
        return "float32" if name in ("float16", "bfloat16") else name

    def _kept_place(self, n: Keep, position) -> tuple[Value, Value]:
        return self.pointers[n.slot], self.kept_row + position

    def kept_row_of(self, half: Value) -> Value:
        """Where this thread keeps a row: each has room for two, of this unit and of the one before."""
        return self.tid * (self.sizes[self.nest.vector_dim] * 2) + half


def convert(k: Function, v: Any, source: dtype, target: dtype) -> Any:
    """A register value of dtype `source` as one of dtype `target`."""
    if source is target:
        return v
    if target.is_complex:
        kind = REGISTER[target.name]
        if isinstance(v, Complex):
            return Complex(v.real.to(kind), v.imag.to(kind))
        real = v.to(kind)
        return Complex(real, k.const(real.type, 0.0))
    if isinstance(v, Complex):
        if target.name == "bool":
            return v.real.ne(0) | v.imag.ne(0)
        v = v.real
    return v.to(REGISTER[target.name])


def fit(k: Function, v: Any, wanted: dtype) -> Any:
    """What a lowering returned (a Python number counts), in the register type of the dtype it stands for."""
    if isinstance(v, (bool, int, float, complex)):
        return complex_const(k, REGISTER[wanted.name], v) if wanted.is_complex else k.const(REGISTER[wanted.name], v)
    if isinstance(v, Complex):
        if wanted.is_complex:
            kind = REGISTER[wanted.name]
            return Complex(v.real.to(kind), v.imag.to(kind))
        v = v.real
    if wanted.is_complex:
        real = v.to(REGISTER[wanted.name])
        return Complex(real, k.const(real.type, 0.0))
    kind = REGISTER[wanted.name]
    return v if v.type.element is kind else v.to(kind)
