"""Transposed convolution with steps: every phase of the result is a convolution of its own, written where its places lie.

Place s * v + r of the padded result, 0 <= r < s, meets only the taps t with t * d = r modulo s, and those read neighbours: for every
phase r it is a convolution without steps over some of the taps, in reverse. All phases read the same planes of the input.

May not know: tensors, which of the two is the gradient. Entry: `transposed_convolution`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from flambeau.templates.conv import Sums, sums_over_planes
from flambeau.templates.conv_planes import planes_of
from flambeau.templates.launch import Lowered
from flambeau.templates.windows import three

MOST_PHASES = 16


class Phase:
    """Every `stride`-th place of a result along one dim, from `start` on: `count` places, each of which reads `taps`.

    Tap t is read `back[t]` windows before the place's own, which is `first` for the first place.
    """

    def __init__(self, start: int, size: int, kernel: int, stride: int, low: int, dilation: int):
        self.start, self.count = start, max(0, -(-(size - start) // stride))
        rest = (start + low) % stride
        self.first = (start + low - rest) // stride
        self.taps = [t for t in range(kernel) if (t * dilation - rest) % stride == 0]
        self.back = [(t * dilation - rest) // stride for t in self.taps]

    @property
    def reach(self) -> tuple[int, int]:
        """First and last window that is read."""
        if not self.taps:
            return self.first, self.first + self.count - 1
        return self.first - max(self.back), self.first + self.count - 1 - min(self.back)


def transposed_convolution(
    y_shape: Sequence[int],
    y_strides: Sequence[int],
    w_shape: Sequence[int],
    w_strides: Sequence[int],
    sizes: Sequence[int],
    stride: Sequence[int],
    low: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: str,
    *,
    threads: int,
) -> Lowered:
    """Launches for out [N, C, *sizes] from operands 0 y [N, O, *windows], 1 w [O, C / groups, *kernel]. Determinism: bitwise."""
    images, outs = y_shape[:2]
    _, rows, *kernel = w_shape
    if images * rows * math.prod(sizes) == 0:
        return Lowered(())
    rank = len(sizes)
    dims = [
        [Phase(start, *numbers) for start in range(numbers[2])] for numbers in zip(sizes, kernel, stride, low, dilation)
    ]
    dims = [[phase for phase in dim if phase.count] for dim in dims]
    first = [min(phase.reach[0] for phase in dim) for dim in dims]
    most = [max(phase.count for phase in dim) for dim in dims]
    last = [max(phase.reach[1] for phase in dim) for dim in dims]
    whole = [b - a + 1 for a, b in zip(first, last)]
    # Planes from the first window that any phase reads to the last; the kernel stands for whatever offset a tap may have.
    wide = [n - c + 1 for n, c in zip(whole, most)]
    one = (1,) * rank
    planes = planes_of(y_shape, y_strides, wide, most, one, [-a for a in first], one, dtype, 3)
    filled = Lowered(()) if planes.launch is None else Lowered((planes.launch,), (planes.scratch_bytes,))
    pitches = (planes.plane_pitch, planes.pitch, 1)[3 - rank :]
    steps = three([s * math.prod(sizes[d + 1 :]) for d, s in enumerate(stride)], 0)
    packed = 3 + len(filled.scratch_bytes)
    launches, scratch = list(filled.launches), [0, 0]
    for phases in itertools.product(*dims):
        places = list(itertools.product(*(range(len(phase.taps)) for phase in phases)))
        taps = tuple(
            sum(p * (phase.first - phase.back[i] - a) for p, phase, i, a in zip(pitches, phases, place, first))
            for place in places
        )
        w_taps = tuple(sum(s * phase.taps[i] for s, phase, i in zip(w_strides[2:], phases, place)) for place in places)
        out_at = sum(phase.start * math.prod(sizes[d + 1 :]) for d, phase in enumerate(phases))
        counts = three([phase.count for phase in phases], 1)
        w_steps = (outs // groups * w_strides[0], w_strides[1], w_strides[0])
        sums = Sums(
            images, groups, rows, outs // groups, planes, counts, taps, w_steps, w_taps, math.prod(sizes), out_at, steps, None, dtype
        )  # fmt: skip
        summed = sums_over_planes(sums, 2, packed, threads)
        launches += summed.launches
        scratch = [max(a, b) for a, b in zip(scratch, summed.scratch_bytes)]
    return Lowered(tuple(launches), (*filled.scratch_bytes, *scratch))
