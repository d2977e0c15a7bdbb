"""FLAMBEAU_VALIDATE: what is compared, what is not, and what a wrong kernel is reported as."""

from __future__ import annotations

import pytest

import flambeau
from flambeau.base.errors import InternalError
from flambeau.base.settings import settings
from flambeau.engine import validate
from flambeau.ir.op import REGISTRY, VIEW
from flambeau.nn import functional
from tests.ops.inputs import cases, flatten


@pytest.fixture
def validating():
    validate.compared.clear()
    validate.skipped.clear()
    with settings.scope(validate=True):
        yield


@pytest.fixture
def wrong_exp(monkeypatch: pytest.MonkeyPatch):
    """An exp whose reference says something else."""
    monkeypatch.setattr(REGISTRY["exp"].rules, "reference", lambda x: x + 1.0)


def test_results_are_compared(validating) -> None:
    x = flambeau.tensor([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(2):  # the second call must not take the fast path past the comparison
        (x * 2.0).softmax(1)
    assert validate.compared["mul"] == 2
    assert validate.compared["softmax"] == 2


def test_backward_is_compared_op_by_op(validating) -> None:
    x = flambeau.tensor([1.0, 2.0], requires_grad=True)
    x.sin().sum().backward()
    assert validate.compared["cos"] == 1
    assert x.grad.tolist() == pytest.approx([0.5403023, -0.41614684])


def test_in_place_forms_and_half_precision_are_compared(validating) -> None:
    x = flambeau.tensor([1.0, 2.0], dtype=flambeau.bfloat16)
    x.mul_(3.0)
    x.add_(x)
    assert x.tolist() == [6.0, 12.0]
    assert validate.compared["mul"] == validate.compared["add"] == 1


def test_a_wrong_result_names_op_inputs_place_and_graph(validating, wrong_exp) -> None:
    x = flambeau.tensor([0.0, 0.0, 2.0])
    with pytest.raises(InternalError) as caught:
        x.exp()
    text = str(caught.value)
    assert text.startswith("exp: the result must be the reference's, got np.float32(7.38905")
    assert "at [2] where the reference has np.float32(3.0) (1 of 3 elements differ)" in text
    assert "input float32[3]" in text
    assert "ops.exp(x0)" in caught.value.graph
    assert "FLAMBEAU_VALIDATE=1" in caught.value.replay


def test_a_wrong_result_in_place_and_inside_backward(validating, wrong_exp) -> None:
    x = flambeau.tensor([1.0])
    with pytest.raises(InternalError, match="exp: the result must be"):
        x.exp_()
    y = flambeau.tensor([1.0], requires_grad=True)
    with settings.scope(validate=False):
        loss = y.sinh().sum()
    with pytest.raises(InternalError, match="exp: the result must be"):
        flambeau.autograd.grad(loss * 1.0, [y], create_graph=False, retain_graph=True)[0].exp()
    assert flambeau.is_grad_enabled()


def test_what_is_not_compared_is_counted(validating, monkeypatch: pytest.MonkeyPatch) -> None:
    x = flambeau.rand(2, 3)
    x.t().contiguous()

    def refuse(x):
        raise NotImplementedError("no")

    monkeypatch.setattr(REGISTRY["exp"].rules, "reference", refuse)
    x.exp()
    assert validate.compared["random_uniform"] == 1  # its stream is part of its arguments
    assert validate.skipped["exp", "its reference raises NotImplementedError: no"] == 1
    assert "exp" not in validate.compared


def test_the_setting_works_in_a_running_process(wrong_exp) -> None:
    x = flambeau.tensor([2.0])
    x.exp()  # a plan on the fast path
    with settings.scope(validate=True), pytest.raises(InternalError):
        x.exp()
    assert x.exp().item() == pytest.approx(7.389056)


def test_a_training_step(validating) -> None:
    w = flambeau.randn(4, 3, requires_grad=True)
    b = flambeau.zeros(3, requires_grad=True)
    x, y = flambeau.randn(5, 4), flambeau.tensor([0, 1, 2, 0, 1])
    loss = functional.cross_entropy(functional.relu(x @ w + b), y)
    loss.backward()
    with flambeau.no_grad():
        w.sub_(w.grad * 0.1)
    assert {"matmul", "relu", "cross_entropy", "sub"} <= set(validate.compared)


@pytest.mark.derived
@pytest.mark.parametrize("name", sorted(n for n, op in REGISTRY.items() if op.kind != VIEW))
def test_references_take_bound_arguments(name: str, validating) -> None:
    """Every op's first sample is compared, not skipped for want of a callable reference."""
    op = REGISTRY[name]
    found = cases(op)
    if not found:
        pytest.skip("only samples of errors")
    c = found[0]
    validate.compared.clear()
    assert flatten(op(*c.args, **c.kwargs)) is not None
    reason = validate.reason_to_skip(op)
    assert reason or validate.compared[name] == 1, [why for n, why in validate.skipped if n == name]
