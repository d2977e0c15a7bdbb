"""Writes in place: aliasing, overlap, histories of views, versions, `out=`."""

from __future__ import annotations

import pytest

import flambeau


def leaf(*shape: int):
    return flambeau.arange(1.0, 1.0 + flambeau.Size(shape).numel()).reshape(shape).requires_grad_()


# ------------------------------------------------------------------ overlap
def test_a_target_that_overlaps_itself_is_refused() -> None:
    x = flambeau.zeros(1).expand(3)
    with pytest.raises(RuntimeError, match="more than one element .* single memory location"):
        x.cos_()
    assert x.tolist() == [0.0] * 3


def test_masked_fill_on_an_expanded_tensor_is_refused() -> None:
    base = flambeau.tensor([[0.0], [1.0]])
    mask = flambeau.zeros(2, 4, dtype=flambeau.bool)
    mask[0, 1] = True
    with pytest.raises(RuntimeError, match="single memory location"):
        base.expand(2, 4).masked_fill_(mask, 3.0)
    assert base.tolist() == [[0.0], [1.0]]


def test_an_operand_that_overlaps_the_target_is_read_before() -> None:
    """The out-of-place answer, not a cascade."""
    x = flambeau.arange(8).view(2, 4)
    x[:, 1:].add_(x[:, :-1])
    assert x.tolist() == [[0, 1, 3, 5], [4, 9, 11, 13]]
    y = flambeau.arange(5.0)
    y[:-1].copy_(y[1:])
    assert y.tolist() == [1.0, 2.0, 3.0, 4.0, 4.0]
    y = flambeau.arange(5.0)
    y[1:].copy_(y[:-1])
    assert y.tolist() == [0.0, 0.0, 1.0, 2.0, 3.0]
    z = flambeau.arange(4.0).reshape(2, 2)
    z.add_(z.t())
    assert z.tolist() == [[0.0, 3.0], [3.0, 6.0]]


def test_the_same_operand_is_no_overlap() -> None:
    x = flambeau.arange(3.0)
    x.mul_(x)
    assert x.tolist() == [0.0, 1.0, 4.0]
    x[1:].add_(x[1:])
    assert x.tolist() == [0.0, 2.0, 8.0]


def test_disjoint_views_of_one_storage() -> None:
    x = flambeau.arange(6.0)
    x[:3].add_(x[3:])
    assert x.tolist() == [3.0, 5.0, 7.0, 3.0, 4.0, 5.0]


def test_targets_do_not_grow_nor_change_kind() -> None:
    with pytest.raises(RuntimeError, match="cannot grow its target"):
        flambeau.zeros(3).add_(flambeau.zeros(2, 3))
    with pytest.raises(RuntimeError, match="can't be cast"):
        flambeau.zeros(3, dtype=flambeau.int64).add_(1.5)


# ------------------------------------------------------------------ views and histories
def test_a_write_to_a_view_reaches_the_base() -> None:
    w = leaf(2, 3)
    x = w * 1.0
    x[0].mul_(2.0)
    (x * x).sum().backward()
    scale = flambeau.tensor([[2.0], [1.0]])
    assert flambeau.equal(w.grad, 2.0 * scale * scale * w.detach())


def test_a_write_to_the_base_reaches_views() -> None:
    w = leaf(4)
    x = w * 1.0
    view = x[1:3]
    x.mul_(3.0)
    assert view.tolist() == [6.0, 9.0]
    view.sum().backward()
    assert w.grad.tolist() == [0.0, 3.0, 3.0, 0.0]


def test_a_write_to_a_view_reaches_its_siblings() -> None:
    w = leaf(2, 2)
    x = w * 1.0
    row, column = x[0], x[:, 1]
    row.mul_(5.0)
    assert column.tolist() == [10.0, 4.0]
    column.sum().backward()
    assert w.grad.tolist() == [[0.0, 5.0], [0.0, 1.0]]


def test_a_write_to_a_view_of_a_view() -> None:
    w = leaf(2, 6)
    x = w * 1.0
    x.view(2, 2, 3)[1].t()[0].mul_(w[0, :2])  # element (1, 0 and 3) of x by w[0, 0] and w[0, 1]
    assert x.tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 9.0, 20.0, 11.0, 12.0]]
    x.sum().backward()
    assert w.grad.tolist() == [[1.0 + 7.0, 1.0 + 10.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 2.0, 1.0, 1.0]]


def test_a_value_assigned_to_a_part_takes_the_gradient() -> None:
    w, v = leaf(3), leaf(1)
    x = w * 2.0
    x[1] = v[0] * v[0]
    x.sum().backward()
    assert (w.grad.tolist(), v.grad.tolist()) == ([2.0, 0.0, 2.0], [2.0])


def test_leaves_that_require_a_gradient_are_not_written() -> None:
    w = leaf(3)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        w.add_(1.0)
    with pytest.raises(RuntimeError, match="view of a leaf Variable"):
        w[0].zero_()
    with flambeau.no_grad():
        w.add_(1.0)
    assert w.tolist() == [2.0, 3.0, 4.0]
    assert w.is_leaf


def test_views_of_leaves_that_are_views_are_not_written() -> None:
    w = flambeau.arange(6.0).reshape(2, 3).requires_grad_()  # a leaf on the memory of another tensor
    for write in (lambda: w.add_(1.0), lambda: w[0].zero_(), lambda: w.view(6).add_(1.0), lambda: w.t().mul_(2.0)):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            write()
    assert w.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "sqrt", "reciprocal", "square", "sin"])
@pytest.mark.parametrize(
    "part",
    [lambda x: x[:, 3], lambda x: x.t()[1:4], lambda x: x[:, ::2], lambda x: x.view(2, 2, 3)[1].t()],
    ids=["column", "transposed", "steps", "view of a view"],
)
def test_writes_to_strided_views_have_the_gradients_of_the_function(name: str, part) -> None:
    """Backward reads the old or the new value: in the target's layout, not in that of a fresh result."""
    start = flambeau.arange(1.0, 13.0).reshape(2, 6) * 0.1
    w, v = start.clone().requires_grad_(), start.clone().requires_grad_()
    x, weight = w * 1.0, flambeau.arange(12.0).reshape(2, 6)
    getattr(part(x), f"{name}_")()
    (x * weight).sum().backward()
    y = v * 1.0
    changed = getattr(part(y), name)()
    ((y * weight).sum() - (part(y) * part(weight)).sum() + (changed * part(weight)).sum()).backward()
    assert flambeau.allclose(w.grad, v.grad, atol=1e-6), (w.grad, v.grad)


def test_a_factor_of_a_strided_write_gets_the_old_values() -> None:
    x, k = leaf(2, 6) * 1.0, flambeau.tensor([1.0, 2.0], requires_grad=True)
    x[:, 3].mul_(k)
    x.sum().backward()
    assert k.grad.tolist() == [4.0, 10.0]


def test_a_write_that_converts_keeps_its_result_for_backward() -> None:
    """The target is float32, the op computes in float64 and its backward reads its result."""
    w = flambeau.tensor([1.0, 2.0, 3.0], requires_grad=True)
    e = flambeau.tensor([2.0, 3.0, 0.5], dtype=flambeau.float64, requires_grad=True)
    x = w * 1.0
    x.pow_(e)
    x.sum().backward()
    twin, power = w.detach().double().requires_grad_(), e.detach().requires_grad_()
    (twin**power).sum().backward()
    assert flambeau.allclose(w.grad.double(), twin.grad, rtol=1e-5)
    assert flambeau.allclose(e.grad, power.grad, rtol=1e-5)


# ------------------------------------------------------------------ versions
def test_versions_are_counted_per_storage() -> None:
    x = flambeau.zeros(2, 2)
    view = x[0]
    x.add_(1.0)
    view.mul_(2.0)
    assert x._version == view._version == 2
    assert x.clone()._version == 0


@pytest.mark.parametrize(
    "write",
    [lambda x: x.add_(1.0), lambda x: x[0].zero_(), lambda x: x.detach().zero_()],
    ids=["itself", "view", "detached"],
)
def test_what_backward_reads_must_not_have_changed(write) -> None:
    w = leaf(3)
    x = w * 1.0
    y = x * x
    write(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation: it is at version 1, version 0 was saved"):
        y.sum().backward()


def test_what_backward_does_not_read_may_change() -> None:
    w = leaf(3)
    x = w * 1.0
    y = x + 2.0
    x.zero_()
    y.sum().backward()
    assert w.grad.tolist() == [1.0, 1.0, 1.0]


def test_an_output_that_backward_reads_must_not_have_changed() -> None:
    w = leaf(3)
    y = w.exp()
    y.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ------------------------------------------------------------------ out=
def test_out_is_filled_and_returned() -> None:
    a, b = flambeau.arange(3.0), flambeau.ones(3)
    out = flambeau.zeros(3)
    assert flambeau.add(a, b, out=out) is out
    assert out.tolist() == [1.0, 2.0, 3.0]
    strided = flambeau.zeros(3, 2)[:, 0]
    flambeau.mul(a, 2.0, out=strided)
    assert strided.tolist() == [0.0, 2.0, 4.0]
    double = flambeau.zeros(3, dtype=flambeau.float64)
    flambeau.add(a, b, out=double)
    assert double.tolist() == [1.0, 2.0, 3.0]


def test_out_is_resized_when_empty() -> None:
    out = flambeau.empty(0)
    flambeau.exp(flambeau.zeros(2, 2), out=out)
    assert out.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_out_may_be_an_operand() -> None:
    x = flambeau.arange(3.0)
    flambeau.add(x, x, out=x)
    assert x.tolist() == [0.0, 2.0, 4.0]
    y = flambeau.arange(4.0)
    flambeau.mul(y[:-1], 2.0, out=y[1:])
    assert y.tolist() == [0.0, 0.0, 2.0, 4.0]


def test_out_does_not_take_part_in_autograd() -> None:
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        flambeau.exp(leaf(2), out=flambeau.zeros(2))
    with pytest.raises(RuntimeError, match="can't be cast"):
        flambeau.exp(flambeau.zeros(2), out=flambeau.zeros(2, dtype=flambeau.int64))
