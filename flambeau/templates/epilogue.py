"""Epilogues: pointwise work that a template does on each piece of its result while that piece is still in cache.

An epilogue is an ordinary loop nest without reductions (`loop_nest`) over the template's result. Its outer dims are the result's rows, numbered
in order through the whole batch; its one inner dim is the columns, along which lanes run. The template computes and stores a piece as it always
does, in its own order and rounded to its own dtype, then calls the nest's function over that piece: the nest loads what was stored, and
whatever else it reads, and stores what comes of it, which may be the very same memory. So a fused result equals the unfused one bit for bit, and
a template knows nothing of what the nest computes.

    lower(op, target, threads, *specs, epilogue=e)            # the scheduler asks a template that says it takes one (`Template.columns`)
    e.finished(launch, first_operand)                         # in `lower`, of the launch that gives the result
    finishing = Finishing(code)                               # in the kernel's `build`, whose last parameter is then the code
    slot = finishing.slots(k, slots, ("a", "b", "out"))
    finishing.over(k, own_words_end)
    finishing.piece(k, begin_row, end_row, low_column, high_column)

The operands of an epilogue are numbered behind the inputs of the template, before its outputs. In a kernel its slots follow the kernel's own,
its words the kernel's own. The nest is a function of its own, compiled by itself and called by address (`Launch.calls`), so that the
template's kernel is compiled once for all epilogues. May not know: which values it stands for (`schedule.epilogues`), what the template computes.
Entry: `Epilogue`, `Finishing`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.base.record import record, replace
from flambeau.core.dtype import BY_NAME
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64, ptr
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_nest import NestEmitter, numerics
from flambeau.templates.loop_program import Load, LoopNest

ROWS_AHEAD = 4  # of a piece, of operands that are fetched: one row takes less time than memory does
SLOTS = 8  # epilogues have a multiple of so many, so that kernels serve epilogues of other numbers of operands


@record
class EpilogueCode:
    """What a template's kernel knows of its epilogue: how many slots it has, and whether the kernel computes the transposed result."""

    slots: int
    turned: bool


@record
class Epilogue:
    """A nest over rows and columns of a result, with its parameter block; `cost` of an element in multiply-adds, roughly."""

    nest: LoopNest
    params: tuple[int, ...]
    cost: int
    turned: bool = False

    @property
    def operands(self) -> int:
        return self.nest.slots

    @property
    def code(self) -> EpilogueCode:
        return EpilogueCode(-(-self.operands // SLOTS) * SLOTS, self.turned)

    def finished(self, launch: Launch, first: int) -> Launch:
        """A launch that gives the result and finishes it; `first` is the number of the epilogue's first operand."""
        code = self.code
        numbers = [first + min(i, self.operands - 1) for i in range(code.slots)]
        recipe = replace(launch.recipe, parameters=(*launch.recipe.parameters, code))
        function = Recipe("epilogue", (self.nest,), build_epilogue)
        return replace(
            launch,
            recipe=recipe,
            buffers=(*launch.buffers, *numbers),
            params=(*launch.params, 0, *self.params),
            calls=((len(launch.params), function),),
        )

    def behind(self, lowered: Lowered, inputs: int) -> Lowered:
        """What a template of so many inputs answers, with its last launch finishing the result."""
        if not lowered.launches:
            return lowered
        moved = [
            replace(launch, buffers=tuple(i if i < inputs else i + self.operands for i in launch.buffers))
            for launch in lowered.launches
        ]
        return Lowered((*moved[:-1], self.finished(moved[-1], inputs)), lowered.scratch_bytes)


# ------------------------------------------------------------------ the function
class _PieceEmitter(NestEmitter):
    """Rows [begin, end) of a nest, of each the columns [low, high)."""

    def __init__(self, nest: LoopNest, k: Function, slots: Value, begin: Value, end: Value, low: Value, high: Value):
        super().__init__(nest, k, slots, begin, end, k.const(i64, 0))
        self.first_column, self.last_column = low, high

    def _place_unit(self, unit: Value) -> tuple[Value | int, Value]:
        super()._place_unit(unit)
        return self.first_column, self.last_column

    def _fetch_ahead(self, n: Load, i: int, where: Value) -> None:
        """Fetch the line some rows below: rows of a piece are short and lie in pages of their own, which no prefetcher follows."""
        step = n.access[self.nest.outer - 1] if self.nest.outer else 0
        if step:
            below = self.param(step) * ROWS_AHEAD if step > 1 else self.k.const(i64, ROWS_AHEAD)
            self.k.prefetch(self.pointers[n.slot], (where + below) * BY_NAME[n.dtype].itemsize)


def build_epilogue(target: Target, nest: LoopNest) -> Module:
    """kernel(slots, block, begin, end, low, high): a nest over columns [low, high) of rows [begin, end)."""
    module = Module(max(256, target.vector_bytes * 8), **numerics(target))
    place = [(name, i64) for name in ("begin", "end", "low", "high")]
    k = module.function("kernel", [("slots", ptr), ("block", ptr), *place])
    slots, block, *bounds = k.args
    _PieceEmitter(nest, k, slots, *bounds).build(block)
    return module


# ------------------------------------------------------------------ in a template's kernel
class Finishing:
    """An epilogue inside a kernel: where its function, its slots and its parameter block are. Without `code` there is nothing to finish."""

    def __init__(self, code: EpilogueCode | None):
        self.code = code

    def __bool__(self) -> bool:
        return self.code is not None

    def slots(self, k: Function, slots: Value, names: Sequence[str]) -> dict[str, Value]:
        """The kernel's own slots by name, and its `block`, which is behind those of the epilogue."""
        found = {name: k.load(slots, ptr, i) for i, name in enumerate(names)}
        found["block"] = k.load(slots, ptr, len(names) + (self.code.slots if self.code else 0))
        self.own_slots = k.offset(slots, 8 * len(names))
        return found

    def over(self, k: Function, words: Value) -> None:
        """Where the words of the epilogue begin: the address of its function, then its parameter block."""
        if self:
            self.function, self.params = k.load(words, ptr), k.offset(words, 8)

    def piece(self, k: Function, begin: Value, end: Value, low: Value | int, high: Value) -> None:
        """Finish columns [low, high) of rows [begin, end), which have been stored."""
        k.call(self.function, self.own_slots, self.params, begin, end, low, high)

    def block(
        self,
        k: Function,
        size: tuple[Value, Value],
        place: Value,
        i: Value | int,
        rows: Value | int,
        j: Value | int,
        columns: Value,
    ) -> None:
        """Finish a block of matrix number `place` of a batch, of `size` as the kernel sees it, which is transposed if the code is turned."""
        if self.code.turned:
            first = place * size[1] + j
            self.piece(k, first, first + columns, i, k.as_value(i, i64) + rows)
        else:
            first = place * size[0] + i
            self.piece(k, first, first + rows, j, k.as_value(j, i64) + columns)


__all__ = ["Epilogue", "EpilogueCode", "Finishing"]
