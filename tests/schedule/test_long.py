"""Long graphs: no recursion by their length, and kernels of a bounded one."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau
from flambeau.capture.step import capture


def chain(x, count: int):
    for i in range(count):
        x = x * 0.75 + 0.25 if i % 2 else x - 0.125
    return x


@pytest.mark.parametrize(
    "around",
    [
        lambda x, count: chain(x, count),
        lambda x, count: x + chain(x.sum(1, keepdim=True), count),  # numbers of a row
        lambda x, count: x + chain(x.sum(0, keepdim=True), count),  # numbers of a column
        lambda x, count: chain(x, count).sum(0),
        lambda x, count: chain(x, count).sum(),
    ],
    ids=["elements", "rows", "columns", "column sums", "sum"],
)
@pytest.mark.parametrize("count", [230, 1200])
def test_chains_of_elementwise_ops(around, count) -> None:
    a = np.random.default_rng(6).standard_normal((9, 37)).astype(np.float32)
    exact = around(flambeau.tensor(a.astype(np.float64)), count).numpy()  # op by op
    step = capture(lambda x: around(x, count))
    got = step(flambeau.tensor(a)).numpy()
    np.testing.assert_allclose(got, exact, rtol=2e-5, atol=1e-5)
    ((replay,),) = step.recordings.values()
    operations = 3 * count // 2
    assert operations // 256 < replay.plan.kernels <= operations // 200 + 3
