"""A place in one arena for each temporary of a plan: those that are never alive together may share bytes.

    offsets, total = pack([(nbytes, first step, last step), ...])
    lower_bound(lives)          # bytes alive at the busiest step: no packing takes less

Largest first, each at the lowest offset that nothing alive with it occupies; in practice within a few percent of the lower bound. May not know:
kernels, specs. Source: the greedy-by-size strategy for shared buffers of neural networks (Pisarchyk and Lee, 2020).
"""

from __future__ import annotations

from collections.abc import Sequence

ALIGNMENT = 64

Life = tuple[int, int, int]  # bytes, first step, last step


def pack(lives: Sequence[Life]) -> tuple[list[int], int]:
    """Offsets, and the bytes of the arena."""
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    total = 0
    for i in sorted(range(len(lives)), key=lambda i: (-lives[i][0], lives[i][1])):
        nbytes, first, last = lives[i]
        nbytes = -(-nbytes // ALIGNMENT) * ALIGNMENT
        best, best_gap, end = -1, -1, 0
        for low, high, f, l in placed:
            if f > last or l < first:
                continue
            gap = low - end
            if gap >= nbytes and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, high)
        at = end if best < 0 else best
        offsets[i] = at
        total = max(total, at + nbytes)
        _insert(placed, (at, at + nbytes, first, last))
    return offsets, total


def _insert(placed: list[tuple[int, int, int, int]], entry: tuple[int, int, int, int]) -> None:
    at = len(placed)
    while at and placed[at - 1] > entry:
        at -= 1
    placed.insert(at, entry)


def lower_bound(lives: Sequence[Life]) -> int:
    """The most bytes that are alive at one step."""
    change: dict[int, int] = {}
    for nbytes, first, last in lives:
        nbytes = -(-nbytes // ALIGNMENT) * ALIGNMENT
        change[first] = change.get(first, 0) + nbytes
        change[last + 1] = change.get(last + 1, 0) - nbytes
    most = now = 0
    for step in sorted(change):
        now += change[step]
        most = max(most, now)
    return most
