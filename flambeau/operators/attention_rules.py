"""What is done to scores inside attention, as data: programs of positions, with their gradients.

    rules = Rules(score=program)                       # `ir.positional.Program` of (score, b, h, q, kv) and captured tensors
    rules.programs(domain, specs, slot, position)      # as instructions of a kernel
    rules.apply(scores, captured)                      # the same on tensors with every score

May not know: where programs come from, kernels. Entry: `Rules`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.base.record import record
from flambeau.core.layout import contiguous_strides
from flambeau.core.spec import Spec
from flambeau.ir.op import REGISTRY
from flambeau.ir.positional import Program
from flambeau.schedule.inner import POSITIONS, InnerProgram
from flambeau.templates.attention_problem import Programs, ReadGradient, Scores


@record
class Read:
    """A place where the score's program reads captured tensor number `captured`, at what `indices` give for (score, *positions).

    `gradient`: from (score, gradient by the new score, *positions), the gradient by what is read.
    """

    captured: int
    indices: tuple[Program, ...]
    gradient: Program


@record
class Rules:
    """`score`: a new score from (score, *positions); `mask`: which positions count; `count`: captured tensors of `score`, first of all.

    `gradient`: from (score, gradient by the new score, *positions), the gradient by the score; `reads`: those by captured tensors.
    """

    score: Program | None = None
    mask: Program | None = None
    gradient: Program | None = None
    reads: tuple[Read, ...] = ()
    count: int = 0

    def __bool__(self) -> bool:
        return self.score is not None or self.mask is not None

    def programs(
        self, domain: Sequence[int], captured: Sequence[Spec], slot: int, position: int, backward: bool = False
    ):
        """(instructions for a kernel, the gradient's), for operands from `slot` and block words from `position` on."""
        inner = InnerProgram(domain, slot)
        score, mask, gradient = self._added(inner, captured, backward)
        program, operands, words = inner.finish(position)
        made = [None if i is None else Scores(program, i) for i in (score, mask, gradient)]
        return Programs(made[0], made[1], operands, words), made[2]

    def read_programs(self, domain: Sequence[int], captured: Sequence[Spec], slot: int, position: int, number: int):
        """(instructions for a kernel, those of read `number`, whose places are in a table for every batch and head)."""
        inner = InnerProgram(domain, slot)
        read, numbered = self.reads[number], list(enumerate(captured))[: self.count]
        score, mask, _ = self._added(inner, captured, False)
        by_read = inner.add(read.gradient, ("score", "gradient", *POSITIONS), numbered).index
        target = captured[read.captured].shape
        sizes, _ = self.table(domain, captured, number)
        strides, indices = iter(contiguous_strides(sizes)), zip(read.indices, self.own_dims(domain, captured, number))
        kept = [(index, size, next(strides)) for (index, own), size in zip(indices, target) if own is None]
        place, moved, along = inner.place(kept, ("score", *POSITIONS), numbered)
        program, operands, words = inner.finish(position)
        made = [None if i is None else Scores(program, i) for i in (score, mask, by_read)]
        first = position + len(words)
        steps = tuple((ref.index, first + i) for i, (ref, _) in enumerate(moved))
        words = (*words, *(stride for _, stride in moved))
        return Programs(made[0], made[1], operands, words), ReadGradient(made[2], place.index, steps, along)

    def own_dims(self, domain: Sequence[int], captured: Sequence[Spec], number: int) -> tuple[int | None, ...]:
        """For each dim of what is read, the dim of the domain, batch or head, that it is read along one to one."""
        read, found = self.reads[number], []
        for index, size in zip(read.indices, captured[read.captured].shape):
            inputs = index.graph.inputs[1:3]
            one = next((d for d, v in enumerate(inputs) if index.result is v and domain[d] == size), None)
            found.append(None if one in found else one)
        return tuple(found)

    def table(self, domain: Sequence[int], captured: Sequence[Spec], number: int) -> tuple[tuple[int, ...], tuple]:
        """(sizes of the dims that a batch and head has to itself, what `own_dims` says)."""
        own = self.own_dims(domain, captured, number)
        shape = captured[self.reads[number].captured].shape
        return tuple(n for n, d in zip(shape, own) if d is None), own

    def _added(self, inner: InnerProgram, captured: Sequence[Spec], backward: bool) -> list[int | None]:
        numbered = list(enumerate(captured))
        parts = (
            (self.score, ("score", *POSITIONS), numbered[: self.count]),
            (self.mask, POSITIONS, numbered[self.count :]),
            (self.gradient if backward else None, ("score", "gradient", *POSITIONS), numbered[: self.count]),
        )
        return [None if p is None else inner.add(p, names, operands).index for p, names, operands in parts]

    # ------------------------------------------------------------------ on tensors
    def apply(self, scores, captured: Sequence):
        """The scores after the rules."""
        given = (scores, *places(scores.spec.shape, scores.spec.device))
        return (
            scores
            if self.score is None
            else to_shape(self.score.apply(given, captured[: self.count]), scores.spec.shape)
        )

    def back(self, scores, gradient, captured: Sequence):
        """The gradient by scores before `score`."""
        if self.gradient is None:
            return gradient
        given = (scores, gradient, *places(scores.spec.shape, scores.spec.device))
        return to_shape(self.gradient.apply(given, captured[: self.count]), scores.spec.shape)


def places(sizes, device) -> list:
    """The indices of every dim of `sizes`, each along its own."""
    n = len(sizes)
    return [
        REGISTRY["iota"](tuple(size if e == d else 1 for e in range(n)), device=device) for d, size in enumerate(sizes)
    ]


def to_shape(x, shape):
    return x if tuple(x.spec.shape) == tuple(shape) else REGISTRY["expand"](x, tuple(shape))
