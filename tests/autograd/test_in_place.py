"""In-place writes whose operands lie in the memory that is written."""

from __future__ import annotations

import pytest

import flambeau


@pytest.mark.parametrize(
    "write, wanted",
    [
        (lambda y: y.mul_(y), [4.0, 6.0]),
        (lambda y: y.mul_(y.detach()), [2.0, 3.0]),
        (lambda y: y.mul_(y.view(2)), [4.0, 6.0]),
        (lambda y: y.view(1, 2).mul_(y.view(1, 2)), [4.0, 6.0]),
        (lambda y: y.div_(y.detach()), [0.5, 1 / 3]),
        (lambda y: y[:1].mul_(y[1:]), [3.0, 3.0]),
    ],
)
def test_operands_in_the_memory_that_is_written(write, wanted) -> None:
    """PyTorch raises in backward: the value is lost. Here it is kept."""
    x = flambeau.tensor([2.0, 3.0], requires_grad=True)
    y = x * 1
    write(y)
    y.sum().backward()
    assert x.grad.tolist() == pytest.approx(wanted)


def test_a_view_made_after_a_write_counts_before_what_reads_it() -> None:
    x = flambeau.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    y = x * 1
    y.clamp_(-1, 1)
    v = y[::2]
    v.add_(v.clone(), alpha=0.5)
    ((y * y).sum() + (v * v).sum()).backward()
    assert x.grad.tolist() == [9, 0, 0, 0]
