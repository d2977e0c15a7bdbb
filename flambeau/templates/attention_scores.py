"""What is done to scores inside attention: a program of pointwise instructions for a vector of keys of one query.

    program = ScoreProgram(k, target_lanes, scores, block, slots)
    program.start_row(batch, head, query)          # what does not depend on the key is computed here
    x = program.value({"score": x}, key, mask)     # x: scores of `lanes` keys from `key` on

The instructions are a loop nest's over (batch, head, query, key), with the score itself `Given`.
May not know: how scores come about. Entry: `ScoreProgram`.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import ptr
from flambeau.templates.attention_problem import Scores
from flambeau.templates.loop_nest import NestEmitter
from flambeau.templates.loop_program import Given, Keep, LoopNest, Ref

DIMS = 4  # batch, head, query, key


class ScoreProgram(NestEmitter):
    """A program emitted in the middle of another kernel's function."""

    def __init__(self, k: Function, scores: Scores, lanes: int, slots: Value, block: Value, more: tuple[int, ...] = ()):
        """`more`: other instructions that will be asked for."""
        sinks = tuple(Keep(-1, Ref(i)) for i in (scores.result, *more))  # they only mark what is asked for
        self.nest = LoopNest(DIMS - 1, 1, "inner", False, lanes, 0, 1, (*scores.program, *sinks))
        self.k, self.module, self.program = k, k.module, self.nest.program
        self.block = block
        self.level, self.stage, self.uniform = [], [], []
        self._classify()
        self.given = [i for i, n in enumerate(self.program) if isinstance(n, Given)]
        self.sinks = range(len(scores.program), len(self.program))
        self.result = scores.result
        self.pointers = {s: k.load(slots, ptr, s) for s in self._pointer_slots() if s >= 0}
        self.scalars = self._scalar_values(slots)
        self.params = {}
        for position in self._stride_positions():
            self.param(position)

    def start_row(self, batch: Value, head: Value, query: Value) -> None:
        self.coordinates = [batch, head, query, None]
        self.bases = self._bases(self.coordinates, range(DIMS - 1))
        self.row_values = {}
        self._hoist(list(self.sinks))

    def start_vector(self, given: dict[str, Value]) -> None:
        """The `given` values, by name, of the keys that are asked for next."""
        self.values = {i: given[self.program[i].name] for i in self.given if self.program[i].name in given}

    def at(self, i: int, key: Value, mask: Value | None) -> Value:
        """What instruction i gives for `lanes` keys from `key` on, those that `mask` keeps."""
        found = self._full(i, self.values, self.bases, key, mask, self.nest.lanes)
        return self._splat(found, self.nest.lanes)

    def value(self, given: dict[str, Value], key: Value, mask: Value | None) -> Value:
        """The result for those keys."""
        self.start_vector(given)
        return self.at(self.result, key, mask)
