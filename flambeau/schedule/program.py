"""Building one loop nest: accesses by stride over a group's domain, then dims ordered, merged and given block positions.

    b = NestBuilder((rows, cols), reduced={1})
    x = b.load(buffer, "float32", strides=(cols, 1))
    ...
    recipe, operands, params = b.finish(target)

May not know: graphs and fusion decisions (`fusion`), or what ops mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau.base.record import replace
from flambeau.core.dtype import BY_NAME
from flambeau.core.symbolic import through
from flambeau.ir.op import REGISTRY
from flambeau.runtime.errors import op_id
from flambeau.templates.epilogue import Epilogue
from flambeau.templates.launch import Recipe
from flambeau.templates.loop_nest import build_loop_nest
from flambeau.templates.loop_program import (
    Apply,
    Check,
    Constant,
    Given,
    Iota,
    Keep,
    Load,
    LoopNest,
    Part,
    Reduce,
    Ref,
    Scalar,
    Store,
)
from flambeau.templates.transpose import suits, transposed_copy

CHUNK_ELEMENTS = 8192  # one unit of a long vector dim
GRAIN_ELEMENTS = 32768  # below about this much work a second thread costs more than it brings
GRAIN_EXPENSIVE = 8192  # the same for transcendental functions
SPLIT_ELEMENTS = 32768  # a reduction of everything longer than this is done in pieces
PIECE_ELEMENTS = 16384  # of this size: fixed, so that the order of summation is
STREAMING_BYTES = 8 << 20  # outputs from here on bypass the cache, inputs are fetched ahead
FAR_BYTES = 256 << 20  # operands from here on lie in no cache: columns are reduced by wider pieces of rows
RUN_UNITS = 32  # rows in a run where the next one is fetched ahead: the first of a run is not
FEW_UNITS = 16  # a reduction with fewer is divided: threads would idle
MOST_PIECES = 256
COST, COST_EXPENSIVE = 2, 16  # of an op for an element, in multiply-adds of a product


def largest_divisor(n: int, most: int) -> int:
    """The largest divisor of n up to `most`."""
    return through(_largest_divisor, n, most)[0]


def _largest_divisor(n: int, most: int) -> tuple[int]:
    return (next((m for m in range(min(n, most), 1, -1) if n % m == 0), 1),)


class Access:
    """Steps in elements over the domain dims, and a constant offset."""

    __slots__ = ("strides", "offset")

    def __init__(self, strides: Sequence[int], offset: int = 0):
        self.strides, self.offset = tuple(strides), offset


class NestBuilder:
    """Collects the instructions of one group over `sizes`; `reduced` dims are combined."""

    def __init__(self, sizes: Sequence[int], reduced: Sequence[int] = ()):
        self.sizes = list(sizes)
        self.reduced = set(reduced)
        self.instructions: list[Any] = []  # templates' nodes with Access objects in place of block positions
        self.operands: list[Any] = []  # what each slot holds
        self.expensive = False
        self.element_bytes: set[int] = set()
        self.split = False
        self.serial = False  # the "reduced" dims are walked in order by writes that may meet at one place

    # ------------------------------------------------------------------ slots and instructions
    def slot(self, operand: Any) -> int:
        """The slot of an operand (a buffer or number), given on first use."""
        for i, known in enumerate(self.operands):
            if known is operand:
                return i
        self.operands.append(operand)
        return len(self.operands) - 1

    def _add(self, *instruction) -> Ref:
        self.instructions.append(instruction)
        return Ref(len(self.instructions) - 1)

    def load(self, operand: Any, dtype: str, access: Access, indices: Sequence[tuple[Ref, int]] = ()) -> Ref:
        """Element at `access`, moved by each (checked index, stride)."""
        self.element_bytes.add(BY_NAME[dtype].itemsize)
        return self._add(Load, self.slot(operand), dtype, access, tuple(indices))

    def check(self, index: Ref, size: int, dim: int, op: str, error: Any, wrap: bool, kind: int) -> Ref:
        """An index into a dim of `size`; where it is out of bounds, failure `kind` is reported to the `error` operand."""
        return self._add(Check, index, size, dim, op, self.slot(error), wrap, kind)

    def iota(self, access: Access, dtype: str = "int64") -> Ref:
        return self._add(Iota, access, dtype)

    def given(self, name: str, dtype: str) -> Ref:
        return self._add(Given, name, dtype)

    def constant(self, value: Any, dtype: str) -> Ref:
        return self._add(Constant, value, dtype)

    def scalar(self, operand: Any, kind: str) -> Ref:
        return self._add(Scalar, self.slot(operand), kind)

    def apply(self, op: str, args: tuple, compute: Sequence[str], dtype: str) -> Ref:
        self.expensive |= REGISTRY[op].rules.expensive
        self.element_bytes.add(BY_NAME[dtype].itemsize)
        return self._add(Apply, op, args, tuple(compute), dtype)

    def reduce(
        self,
        op: str,
        arg: Ref,
        attributes: tuple,
        compute: str,
        dtypes: Sequence[str],
        over: str,
        count: int,
        index: Access | None,
        stage: str = "whole",
    ) -> Ref:
        """`stage` "partial" leaves the state as it is, "final" combines such states."""
        self.element_bytes.add(BY_NAME[compute].itemsize)
        return self._add(Reduce, op, arg, attributes, compute, tuple(dtypes), over, count, index, stage)

    def part(self, reduce: Ref, index: int) -> Ref:
        return self._add(Part, reduce, index)

    def store(
        self,
        operand: Any,
        dtype: str,
        access: Access,
        value: Ref,
        indices: Sequence[tuple[Ref, int]] = (),
        combine: str = "",
    ) -> None:
        """Write a value at `access`, moved by each (checked index, stride); `combine` names the pointwise op that merges it with what is
        there.
        """
        self._add(Store, self.slot(operand), dtype, access, value, tuple(indices), combine)

    def keep(self, operand: Any, value: Ref) -> None:
        self._add(Keep, self.slot(operand), value)

    # ------------------------------------------------------------------ dims
    def _accesses(self) -> list[Access]:
        return [x for ins in self.instructions for x in ins if isinstance(x, Access)]

    def _main_access(self) -> Access | None:
        """The access that should run along memory: of a map its store, of a reduction its widest load."""
        kind = Load if self.reduced and not self.serial else Store
        found = [
            (math.prod(n for n, s in zip(self.sizes, x.strides) if s), -i, x)
            for i, ins in enumerate(self.instructions)
            if ins[0] is kind
            for x in ins
            if isinstance(x, Access)
        ]
        return max(found)[2] if found else None

    def _ordered_dims(self) -> tuple[list[list[int]], list[list[int]]]:
        """(outer, inner) dims, each a list of merged original dims from slow to fast."""
        main = self._main_access()
        live = [d for d in range(len(self.sizes)) if self.sizes[d] != 1]

        def order(dims):
            if main is None:
                return dims
            return sorted(dims, key=lambda d: (-abs(main.strides[d]) if main.strides[d] else -(1 << 62), d))

        outer = self._merged(order([d for d in live if d not in self.reduced]))
        inner = [d for d in live if d in self.reduced]
        return outer, self._merged(inner if self.serial else order(inner))

    def _merged(self, dims: Sequence[int]) -> list[list[int]]:
        """Neighbours that every access runs through as one, put together."""
        accesses = self._accesses()
        groups: list[list[int]] = []
        for d in dims:
            if groups:
                p = groups[-1][-1]
                if all(x.strides[p] == x.strides[d] * self.sizes[d] for x in accesses):
                    groups[-1].append(d)
                    continue
            groups.append([d])
        return groups

    def division(self, lanes: int) -> tuple[int, int] | None:
        """(reduced dim, number of pieces) that gives a long reduction of few rows enough units, and its sums shorter chains; None if
        it has them. The pieces are equal and depend on sizes and lanes only.
        """
        outer, inner = self._ordered_dims()
        rows, length = (math.prod(self._size(g) for g in groups) for groups in (outer, inner))
        down = self._reduction_direction(outer, inner) == "outer"
        units = rows // self._size(outer[-1]) * -(-self._size(outer[-1]) // (4 * lanes)) if down else rows
        if length < FEW_UNITS or (units >= FEW_UNITS and not (down and length > GRAIN_ELEMENTS)):
            return None
        most = min(MOST_PIECES, rows * length // GRAIN_ELEMENTS)
        found = [(largest_divisor(self.sizes[d], most), -i, d) for i, g in enumerate(inner) for d in g]
        pieces, _, dim = max(found, default=(1, 0, 0))
        return (dim, pieces) if pieces > 1 else None

    def divide(self, dim: int, pieces: int) -> None:
        """Reduce within equal pieces of a dim only: it counts pieces from now on, and a new last dim runs inside one."""
        piece = self.sizes[dim] // pieces
        for x in self._accesses():
            x.strides = (*x.strides[:dim], x.strides[dim] * piece, *x.strides[dim + 1 :], x.strides[dim])
        self.sizes[dim] = pieces
        self.sizes.append(piece)
        self.reduced = (self.reduced - {dim}) | {len(self.sizes) - 1}

    def _size(self, group: list[int]) -> int:
        return math.prod(self.sizes[d] for d in group)

    # ------------------------------------------------------------------ the nest
    def finish(self, target, threads: int) -> tuple[Recipe, list[Any], tuple[int, ...]]:
        """(recipe, operands by slot, parameter block). Dims of size 1 are dropped, dims that run together are merged."""
        outer, inner = self._ordered_dims()
        is_map = not self.reduced and not self.serial
        vector, chunked = "inner", False
        if is_map:
            inner, outer = ([outer[-1]], outer[:-1]) if outer else ([[]], [])
            chunked = not outer or self._size(inner[0]) > CHUNK_ELEMENTS
        elif self.split:
            outer, inner = outer + inner[:-1], (inner[-1:] or [[]])
            chunked = True
        elif self.serial:
            outer, inner, vector, chunked = outer or [[]], inner or [[]], "outer", True
        else:
            vector = self._reduction_direction(outer, inner)
            inner = inner or [[]]
            chunked = vector == "outer"
        if is_map and (turned := self._as_transposed_copy(target, groups := outer + inner)):
            return turned
        lanes = self._lanes(target)
        groups = outer + inner
        vector_group = len(outer) - 1 if vector == "outer" else len(groups) - 1
        unroll = self._unroll(vector, is_map, self._size(groups[vector_group]), lanes, threads)
        if (
            self.serial
            and (main := self._main_access())
            and (not groups[vector_group] or main.strides[groups[vector_group][-1]] != 1)
        ):
            lanes, unroll = 0, 1
        params, sizes = [0, 0, 0], [self._size(g) for g in groups]
        params += sizes
        program = self.positioned(groups, vector_group, params)
        inner_elements = math.prod(sizes[len(outer) :])
        units = math.prod(sizes[: len(outer)])
        work = inner_elements
        if chunked:
            length = sizes[vector_group]
            chunk = self._chunk(vector, length, lanes or 16, max(4, unroll))
            pieces = -(-length // chunk)
            params[2] = chunk
            if vector == "outer":
                units = units // max(1, length) * pieces if length else 0
                work = chunk * inner_elements
            else:
                units *= pieces
                work = min(chunk, length)
        if 0 in sizes[: len(outer)] or (is_map and 0 in sizes):
            units = 0
        grain = max(1, (GRAIN_EXPENSIVE if self.expensive else GRAIN_ELEMENTS) // max(1, work))
        if not is_map and any(isinstance(ins, Load) and ins.ahead for ins in program):
            grain = max(grain, min(RUN_UNITS, units // (4 * threads)))
        params[0], params[1] = units, grain
        nest = LoopNest(
            len(outer),
            len(inner),
            vector,
            chunked,
            lanes,
            len(self.operands),
            unroll,
            tuple(program),
            self._partial_slot(),
        )
        return Recipe("loop_nest", (nest,), build_loop_nest), self.operands, tuple(params)

    def _lanes(self, target) -> int:
        return max(4, target.vector_bytes // (8 if self.element_bytes and min(self.element_bytes) >= 8 else 4))

    def finish_rows(self, columns: int, result: Any, target) -> Epilogue | None:
        """What was collected as an epilogue over rows in their order and the last `columns` dims; None if those are not one dim in memory.

        `result` is the operand that is in cache already.
        """
        live = [d for d in range(len(self.sizes)) if self.sizes[d] != 1]
        first = len(self.sizes) - columns
        outer, inner = self._merged([d for d in live if d < first]), self._merged([d for d in live if d >= first])
        if len(inner) > 1:
            return None
        groups = outer + (inner or [[]])
        params = [0, 0, 0, *(self._size(g) for g in groups)]
        program = []
        for ins in self.positioned(groups, len(outer), params):
            if isinstance(ins, Load):
                ins = replace(ins, ahead=ins.access[len(outer)] == 1 and self.operands[ins.slot] is not result)
            elif isinstance(ins, Store):  # the lines are in cache: the result was just written there
                ins = replace(ins, streaming=False)
            program.append(ins)
        slots = len(self.operands)
        nest = LoopNest(
            len(outer),
            1,
            "inner",
            False,
            self._lanes(target),
            slots,
            self._unroll("inner", True, 0, 0, 1),
            tuple(program),
        )
        applied = [REGISTRY[ins.op].rules.expensive for ins in program if isinstance(ins, Apply)]
        return Epilogue(nest, tuple(params), sum(COST_EXPENSIVE if x else COST for x in applied))

    def _as_transposed_copy(self, target, groups: list[list[int]]) -> tuple[Recipe, list[Any], tuple[int, ...]] | None:
        """`finish` for what is nothing but a copy that turns memory."""
        if [ins[0] for ins in self.instructions] != [Load, Store]:
            return None
        (_, slot, dtype, source, indices), (_, into, stored, result, _, moves, combine) = self.instructions
        if dtype != stored or indices or moves or combine:
            return None
        sizes = [self._size(g) for g in groups]
        steps, result_steps = ([x.strides[g[-1]] if g else 0 for g in groups] for x in (source, result))
        size = BY_NAME[dtype].itemsize
        dims = suits(sizes, steps, result_steps, size)
        if dims is None:
            return None
        recipe, params = transposed_copy(
            target,
            sizes,
            steps,
            result_steps,
            size,
            *dims,
            source.offset,
            result.offset,
            (slot, into, len(self.operands)),
        )
        return recipe, self.operands, params

    def _partial_slot(self) -> int:
        for i, operand in enumerate(self.operands):
            if getattr(operand, "is_partial", False):
                return i
        return -1

    def _reduction_direction(self, outer: list, inner: list) -> str:
        """Lanes along a kept dim where memory runs along it and it is wide enough."""
        main = self._main_access()
        if main is None or not outer or any(ins[0] is Reduce and ins[6] != "inner" for ins in self.instructions):
            return "inner"
        inner_step = min((abs(main.strides[g[-1]]) for g in inner if main.strides[g[-1]]), default=0)
        outer_step = abs(main.strides[outer[-1][-1]])
        wide = self._size(outer[-1])
        if outer_step and (not inner_step or outer_step < inner_step) and wide >= 8:
            return "outer"
        return "inner"

    def _unroll(self, vector: str, is_map: bool, length: int, lanes: int, threads: int) -> int:
        if vector == "outer":
            few = len(self.instructions) <= 4 and not self.expensive and not self.serial
            if few and length >= 8 * lanes * 4 * threads and self._reads_far():
                return 8
            return 4 if length >= 4 * lanes and len(self.instructions) < 24 and not self.expensive else 1
        if is_map:
            return 1 if self.expensive or len(self.instructions) > 16 else 2
        return 4  # stages that do much take fewer

    def _reads_far(self) -> bool:
        return any(kind is Load and self._bytes_of(f[1], f[2]) >= FAR_BYTES for kind, *f in self.instructions)

    def _chunk(self, vector: str, length: int, lanes: int, wide: int) -> int:
        if vector == "outer":
            return lanes * wide if length > lanes * wide else max(1, -(-length // lanes) * lanes)
        return PIECE_ELEMENTS if self.split else CHUNK_ELEMENTS

    def positioned(self, groups: list[list[int]], vector_group: int, params: list[int]) -> list[Any]:
        """Instructions with accesses as block positions, appended to `params` as they are met."""

        def positions(x: Access, backwards: bool = False) -> tuple[int, ...]:
            found = []
            for g, dims in enumerate(groups):
                step = x.strides[dims[-1]] if dims else 0
                if step == 0:
                    found.append(0)
                elif g == vector_group and (step == 1 or (step == -1 and backwards)):
                    found.append(step)
                else:
                    params.append(step)
                    found.append(len(params) - 1)
            if x.offset:
                params.append(x.offset)
            found.append(len(params) - 1 if x.offset else 0)
            return tuple(found)

        def number(value: int) -> int:
            params.append(value)
            return len(params) - 1

        program = []
        for kind, *fields in self.instructions:
            if kind is Load:
                slot, dtype, access, indices = fields
                where = positions(access, True)
                ahead = where[vector_group] == 1 and not indices and self._bytes_of(dtype, access) >= STREAMING_BYTES
                moves = tuple((r, number(stride)) for r, stride in indices)
                program.append(Load(slot, dtype, where, moves, ahead))
            elif kind is Check:
                index, size, dim, op, error_slot, wrap, failure = fields
                program.append(Check(index, number(size), number(dim), number(op_id(op)), error_slot, wrap, failure))
            elif kind is Reduce:
                op, arg, attributes, compute, dtypes, over, count, index, stage = fields
                where = positions(index) if index is not None else ()
                program.append(Reduce(op, arg, attributes, compute, dtypes, where, over, number(count), stage))
            elif kind is Store:
                slot, dtype, access, value, indices, combine = fields
                where = positions(access)
                streams = not indices and not combine and self._streams(dtype, access, where, groups, vector_group)
                program.append(
                    Store(
                        slot, dtype, where, value, streams, tuple((r, number(stride)) for r, stride in indices), combine
                    )
                )
            elif kind is Iota:
                program.append(Iota(positions(fields[0], fields[1] == "int32"), fields[1]))
            else:
                program.append(kind(*fields))
        return program

    def _bytes_of(self, dtype: str, access: Access) -> int:
        """Bytes of memory that an access touches."""
        return math.prod(n for n, step in zip(self.sizes, access.strides) if step) * BY_NAME[dtype].itemsize

    def _streams(self, dtype: str, access: Access, where, groups, vector_group) -> bool:
        """Whether a store is large and aligned enough to go past the cache."""
        size = BY_NAME[dtype].itemsize
        if BY_NAME[dtype].kind == "c" or where[vector_group] != 1 or access.offset or size not in (4, 8):
            return False
        row = self._size(groups[vector_group])
        total = self._bytes_of(dtype, access)
        steps = [access.strides[g[-1]] for i, g in enumerate(groups) if g and i != vector_group]
        return total >= STREAMING_BYTES and (len(groups) == 1 or row % 16 == 0) and all(s % 16 == 0 for s in steps)


__all__ = ["Access", "NestBuilder"]
