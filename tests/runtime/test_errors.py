"""The error channel, from kernel to exception."""

from __future__ import annotations

from array import array

import pytest

from flambeau.runtime import errors, launch
from flambeau.runtime.errors import ErrorBlock
from flambeau.runtime.queue import cpu_queue
from tests.runtime import kernels


class Take:
    """A launch of `build_take`."""

    def __init__(self, indices: list[int], size: int, grain: int = 1) -> None:
        self.x = array("d", range(size))
        self.indices = array("q", indices)
        self.y = array("d", [-1.0]) * len(indices)
        self.block = launch.block([len(indices), grain])
        self.run_kernel = kernels.entry(kernels.build_take)

    def slots(self, error_address: int) -> tuple[int, ...]:
        x, indices, y = (kernels.address_of(a) for a in (self.x, self.indices, self.y))
        return x, indices, y, len(self.x), errors.op_id("take"), error_address, self.block.address


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_reported_when_nothing_is_wrong(threads):
    launch.set_num_threads(threads)
    take = Take([0, 3, -1, -4], 4)
    block = ErrorBlock()
    take.run_kernel(*take.slots(block.address))
    assert block.read() is None
    block.check()
    assert take.y.tolist() == [0.0, 3.0, 3.0, 0.0]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_one_failure_is_reported_whole(threads):
    launch.set_num_threads(threads)
    take = Take([0, 4, -5, 100] * 50, 4)
    block = ErrorBlock()
    for _ in range(50):
        take.run_kernel(*take.slots(block.address))
        failure = block.read()
        assert failure is not None
        assert failure.index in (4, -5, 100)
        assert (failure.kind, failure.op, failure.dim, failure.size) == (errors.INDEX.number, "take", 0, 4)
        with pytest.raises(
            IndexError,
            match=rf"^take: index must be at least -4 and less than 4 in dim 0 \(out of bounds\), got {failure.index}\.$",
        ):
            block.check()
        assert block.read() is None
    assert take.y[::4].tolist() == [0.0] * 50  # the rest was done


def test_the_first_failure_is_kept():
    take = Take([7, 8, 9], 4, grain=3)
    block = ErrorBlock()
    take.run_kernel(*take.slots(block.address))
    assert block.read().index == 7
    block.clear()
    assert block.words.tolist() == [0] * errors.WORDS


def test_cpu_queue_raises_at_the_launch():
    take = Take([1, 9], 4)
    with pytest.raises(IndexError, match="take: index must be"):
        cpu_queue.launch(take.run_kernel, *take.slots(cpu_queue.error_block.address))
    cpu_queue.synchronize()


def test_kinds_are_declared_once():
    with pytest.raises(ValueError, match="positive and free"):
        errors.declare(1, "again", "", RuntimeError)
    with pytest.raises(ValueError, match="positive and free"):
        errors.declare(0, "nothing is wrong", "", RuntimeError)


def test_unknown_codes_still_say_what_is_known():
    block = ErrorBlock()
    block.words[:5] = array("q", [999, 10**6, 1, 2, 3])
    with pytest.raises(RuntimeError, match="op 1000000: failed with code 999, got index 1, dim 2, size 3"):
        block.check()


def test_op_names_have_one_number():
    assert errors.op_id("gather_test") == errors.op_id("gather_test") != errors.op_id("scatter_test")
