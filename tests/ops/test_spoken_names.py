"""Errors name the op that was called, also where another does its work."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

import flambeau as torch
from flambeau.capture.step import capture
from flambeau.ir.op import speak_as

F = torch.nn.functional


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("softmax", lambda: torch.softmax(ones(2, 3), 5)),
        ("cross_entropy", lambda: F.cross_entropy(ones(2, 3), torch.tensor([0, 5]))),
        ("nll_loss", lambda: F.nll_loss(ones(2, 3), torch.tensor([0, 5]))),
        ("embedding", lambda: torch.nn.Embedding(3, 4)(torch.tensor([5]))),
        ("scatter", lambda: ones(2, 3).scatter(0, torch.tensor([[4]]), 1.0)),
        ("mse_loss", lambda: F.mse_loss(ones(2), ones(3))),
        ("cosine_similarity", lambda: F.cosine_similarity(ones(2, 3), ones(4, 3))),
        ("gather", lambda: torch.gather(ones(2, 3), 1, torch.tensor([[5]]))),
        ("max", lambda: ones(0).max()),
        ("setitem", lambda: ones(2, 3).__setitem__(0, ones(5))),
        ("zeros", lambda: torch.zeros(-1)),
        ("linalg.norm", lambda: torch.linalg.norm(ones(2, 3), dim=4)),
    ],
)
def test_the_op_that_was_called_is_named(name: str, call: Callable) -> None:
    with pytest.raises((RuntimeError, IndexError), match=rf"^{name}: "):
        call()


def test_in_a_captured_step_too() -> None:
    step = capture(lambda x, y: F.cross_entropy(x, y))
    step(ones(2, 3), torch.tensor([0, 1]))
    with pytest.raises(IndexError, match="^cross_entropy: "):
        step(ones(2, 3), torch.tensor([0, 7]))


def test_only_names_of_ops_are_replaced() -> None:
    for text, wanted in (
        ("amax: too much", "softmax: too much"),
        ("softmax: too much", "softmax: too much"),
        ("note: too much", "note: too much"),
        ("nothing", "nothing"),
    ):
        error = RuntimeError(text)
        speak_as("softmax", error)
        assert str(error) == wanted


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def test_losses_warn_of_shapes_that_differ(name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name}: Using a target size .* different to the input size"):
        getattr(F, name)(ones(3, 1), ones(3))


def test_losses_of_equal_shapes_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    F.mse_loss(ones(3), ones(3))
    torch.nn.MSELoss()(ones(3), ones(3))
    assert not recwarn.list


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("layer_norm", lambda x: F.layer_norm(x, (4,))),
        ("group_norm", lambda x: F.group_norm(x, 2)),
        ("max_pool1d", lambda x: F.max_pool1d(x, 2)),
        ("max_pool2d", lambda x: F.max_pool2d(x, 2)),
        ("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 2)),
    ],
)
def test_complex_numbers_are_refused(name: str, call: Callable) -> None:
    with pytest.raises(NotImplementedError, match=f"^{name}: the input must be real"):
        call(torch.ones(1, 4, 4, dtype=torch.complex64))


@pytest.mark.parametrize(("rank", "name"), [(1, "adaptive_avg_pool1d"), (2, "adaptive_avg_pool2d")])
def test_integers_are_refused_where_means_are_taken(rank: int, name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"^{name}: .*Convert with .float"):
        getattr(F, name)(torch.ones(1, *(6,) * rank, dtype=torch.int64), 4)


def test_results_print_unpack_and_pickle() -> None:
    x = torch.tensor([3.0, 1.0, 2.0])
    for found, name in ((x.sort(), "sort"), (x.max(0), "max"), (torch.linalg.svd(torch.eye(2)), "linalg_svd")):
        assert repr(found).startswith(f"flambeau.return_types.{name}(\n{found._fields[0]}=tensor(")
        again = pickle.loads(pickle.dumps(found))
        assert type(again) is type(found)
        assert all(torch.equal(a, b) for a, b in zip(again, found))
    values, indices = x.sort()
    assert values.tolist() == [1, 2, 3] and indices.tolist() == [1, 2, 0]
    assert x.min(dim=0).indices.item() == 1
