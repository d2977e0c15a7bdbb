"""A matrix product as data: sizes, strides and what is added, and the rewritings that leave its meaning alone.

    p = normalised(Problem(m, n, k, (k, 1), (n, 1), (n, 1), (), "float32", "float32", None, False))
    swapped(p)                      # out.T = b.T @ a.T

May not know: kernels, targets, threads. Entry: `Problem`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flambeau.templates.launch import Launch, Lowered, Recipe


@dataclass(frozen=True)
class Problem:
    """out[b, m, n] = a[b, m, k] @ b[b, k, n] (+ bias) (+ out). All strides in elements."""

    m: int
    n: int
    k: int
    a: tuple[int, int]  # strides along m, k
    b: tuple[int, int]  # along k, n
    out: tuple[int, int]  # along m, n
    batch: tuple[tuple[int, int, int, int], ...]  # (size, stride of a, of b, of out), the fastest first
    dtype: str
    out_dtype: str
    bias: tuple[int, int] | None  # strides along m, n
    accumulate: bool
    base: tuple[int, int, int] = (0, 0, 0)  # where in a, b and out the first matrix starts

    @property
    def matrices(self) -> int:
        return math.prod(entry[0] for entry in self.batch)

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return self.matrices * self.m * self.n * self.k

    @property
    def flags(self) -> int:
        """What is added to the product: 1 the old result, 2 the bias."""
        return int(self.accumulate) | 2 * (self.bias is not None)

    @property
    def inputs(self) -> int:
        """Operands before the result."""
        return 2 if self.bias is None else 3


def swapped(p: Problem) -> Problem:
    """The transposed product: operands 0 and 1 change places."""
    return replace(
        p,
        m=p.n,
        n=p.m,
        a=p.b[::-1],
        b=p.a[::-1],
        out=p.out[::-1],
        batch=tuple((size, b, a, out) for size, a, b, out in p.batch),
        bias=None if p.bias is None else p.bias[::-1],
        base=(p.base[1], p.base[0], p.base[2]),
    )


def with_swapped_operands(lowered: Lowered) -> Lowered:
    """Launches for a `swapped` problem, over the operands of the original one."""
    place = {0: 1, 1: 0}
    return Lowered(
        tuple(Launch(step.recipe, tuple(place.get(i, i) for i in step.buffers), step.params) for step in lowered.launches),
        lowered.scratch_bytes,
    )


def normalised(p: Problem) -> Problem:
    """The same product in fewer forms: no batch of one, neighbours in the batch merged, a batch that only goes on with
    the rows made rows, and plain values for strides that are never used."""
    p = replace(p, batch=_merged(tuple(entry for entry in p.batch if entry[0] != 1)))
    while p.batch and (p.bias is None or p.bias[0] == 0):
        size, a, b, out = p.batch[0]
        if b != 0:
            break
        if p.m == 1:
            p = replace(p, m=size, a=(a, p.a[1]), out=(out, p.out[1]), batch=p.batch[1:])
        elif a == p.m * p.a[0] and out == p.m * p.out[0]:
            p = replace(p, m=p.m * size, batch=p.batch[1:])
        else:
            break
    a, b, out = p.a, p.b, p.out
    if p.k == 1:
        a, b = (a[0], 1), (1 if b[1] != 1 else p.n, b[1])
    if p.m == 1:
        a, out = (p.k if a[1] == 1 else 1, a[1]), (p.n if out[1] == 1 else 1, out[1])
    if p.n == 1:
        b, out = (b[0], p.k if b[0] == 1 else 1), (out[0], 1)
    return replace(p, a=a, b=b, out=out)


def _merged(batch: tuple[tuple[int, int, int, int], ...]) -> tuple[tuple[int, int, int, int], ...]:
    merged: list[tuple[int, int, int, int]] = []
    for size, *strides in batch:
        if merged and all(s == merged[-1][0] * t for s, t in zip(strides, merged[-1][1:], strict=True)):
            merged[-1] = (merged[-1][0] * size, *merged[-1][1:])
        else:
            merged.append((size, *strides))
    return tuple(merged)


def blocks_of(size: int, most: int, unit: int) -> int:
    """`size` cut into equal blocks of at most `most`, rounded up to `unit`; 0 stays 0."""
    if size == 0:
        return 0
    return round_up(-(-size // -(-size // most)), unit)


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def packed_batch(p: Problem, matrix: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """How b is packed, `matrix` elements each: (matrices, batch words for packing, words for reading).

    A matrix that the whole batch shares is packed once.
    """
    own = [entry for entry in p.batch if entry[2] != 0]
    strides, step = {}, matrix
    for entry in own:
        strides[entry] = step
        step *= entry[0]
    packing = batch_words(p.base, [(size, a, b, 0) for size, a, b, _ in own])
    reading = batch_words((p.base[0], 0, p.base[2]), [(size, a, strides.get(e, 0), out) for e in p.batch for size, a, _, out in (e,)])
    return math.prod(entry[0] for entry in own), packing, reading


def plain_batch(p: Problem) -> tuple[int, ...]:
    """The batch words of a parameter block, as they are."""
    return batch_words(p.base, p.batch)


def batch_words(base: tuple[int, int, int], entries: Iterable[tuple[int, int, int, int]]) -> tuple[int, ...]:
    """The end of every parameter block: the number of entries, where a, b and out start, then the entries."""
    entries = tuple(entries)
    return (len(entries), *base, *(v for entry in entries for v in entry))


def launch(name: str, parameters: tuple, build, buffers: tuple[int, ...], units: int, grain: int, fields: tuple[int, ...]) -> Launch:
    """A launch whose units go to one thread if `grain` is 0."""
    return Launch(Recipe(name, parameters, build), buffers, (units, grain or units, *fields))
