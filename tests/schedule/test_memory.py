"""Memory that fused kernels write: where large results start, and how much room partial results have."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau as ft
from flambeau.capture.step import capture
from flambeau.kernel import target
from flambeau.schedule.fusion import schedule
from flambeau.schedule.program import STREAMING_BYTES
from flambeau.templates.loop_nest import partial_layout

LARGE = STREAMING_BYTES // 4 + 1024  # float32 elements: written past the cache


@pytest.mark.parametrize("first", [0, 1, 3])
def test_large_results_may_start_anywhere(first: int) -> None:
    whole = ft.zeros(LARGE + 16)
    part = whole[first : first + LARGE]
    ft.add(ft.ones(LARGE), ft.full((LARGE,), 2.0), out=part)
    part.mul_(2)
    assert bool((part == 6).all())
    assert whole.sum().item() == 6 * LARGE


def test_large_arrays_of_numpy_are_written_in_place() -> None:
    array = np.zeros(LARGE + 1, np.float32)[1:]
    ft.from_numpy(array).add_(1)
    assert (array == 1).all()


def test_partial_results_of_many_reductions_have_room() -> None:
    captured = capture(lambda x: tuple((x * i).argmax() for i in range(1, 13)))
    x = ft.arange(100_000).float()
    assert [r.item() for r in captured(x)] == [99_999] * 12
    (recordings,) = captured.recordings.values()
    planned = schedule(recordings[0].graph, target.current(), 2)
    (step,) = planned.steps
    units, record = step.params[0], partial_layout(step.recipe.parameters[0].program)[1]
    assert record == 12 * 16
    assert sum(s.nbytes for s in planned.scratches) >= units * record


def test_more_operands_than_a_kernel_takes() -> None:
    tensors = [ft.full((50,), float(i)) for i in range(90)]
    chain = capture(lambda *xs: sum(xs[1:], xs[0]))
    assert chain(*tensors).tolist() == [sum(range(90))] * 50
    assert chain(*tensors[:3]).tolist() == [3.0] * 50
    sums = capture(lambda *xs: tuple(x.sum() for x in xs))
    assert [r.item() for r in sums(*tensors)] == [50.0 * i for i in range(90)]

    def step(*xs):
        for x in xs:
            x.mul_(2).add_(1)

    capture(step)(*tensors)
    assert [t[0].item() for t in tensors] == [2.0 * i + 1 for i in range(90)]
