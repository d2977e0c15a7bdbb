"""New sizes get plans from models: right ones, without scheduling again."""

import numpy as np
import pytest

import flambeau
from flambeau.core.symbolic import Guards, SymInt, evaluate, through
from flambeau.engine import eager, in_place, sizes, update
from flambeau.nn import functional as F


@pytest.fixture
def scheduled(monkeypatch):
    """How often a plan was made the long way."""
    counted = []
    make = eager.make_plan
    eager.forget_plans()
    monkeypatch.setattr(eager, "make_plan", lambda *a: counted.append(a) or make(*a))
    return counted


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def t(x: np.ndarray) -> flambeau.Tensor:
    return flambeau.from_numpy(x)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


ROW, WEIGHT = random(24), random(40, 24)

# name -> (operands for n, function, the same in NumPy)
CASES = {
    "add": (lambda n: [random(n), random(n)], lambda x, y: x + y, lambda x, y: x + y),
    "row": (lambda n: [random(n, 24), ROW], lambda x, y: x * y, lambda x, y: x * y),
    "column": (lambda n: [random(n, 7), random(n, 1)], lambda x, y: x * y, lambda x, y: x * y),
    "outer": (lambda n: [random(n, 1), random(1, n + 3)], lambda x, y: x - y, lambda x, y: x - y),
    "number": (lambda n: [random(n, 3)], lambda x: x * 2.5, lambda x: x * np.float32(2.5)),
    "sum": (lambda n: [random(3, n)], lambda x: x.sum(-1), lambda x: x.sum(-1)),
    "sum of rows": (lambda n: [random(n, 24)], lambda x: x.sum(0), lambda x: x.sum(0)),
    "sum of all": (lambda n: [random(n, 50)], lambda x: x.sum(), lambda x: x.sum()),
    "amax": (lambda n: [random(5, n, 4)], lambda x: x.amax(1), lambda x: x.max(1)),
    "max": (lambda n: [random(5, n)], lambda x: x.max(1)[1], lambda x: x.argmax(1)),
    "softmax": (lambda n: [random(n, 9)], lambda x: x.softmax(-1), softmax),
    "softmax of longer rows": (lambda n: [random(4, n)], lambda x: x.softmax(-1), softmax),
    "layer_norm": (
        lambda n: [random(n, 24)],
        lambda x: F.layer_norm(x, (24,), eps=0.0),
        lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True),
    ),
    "mm": (lambda n: [random(n, 24), random(24, n)], lambda x, y: x @ y, lambda x, y: x @ y),
    "linear": (lambda n: [random(n, 24)], lambda x: F.linear(x, t(WEIGHT)), lambda x: x @ WEIGHT.T),
    "bmm": (lambda n: [random(3, n, 8), random(3, 8, n)], lambda x, y: x @ y, lambda x, y: x @ y),
    "cat": (
        lambda n: [random(n, 5), random(2, 5)],
        lambda x, y: flambeau.cat([x, y]),
        lambda x, y: np.concatenate([x, y]),
    ),
    "turned": (lambda n: [random(24, n), random(n, 24)], lambda x, y: x.t() + y, lambda x, y: x.T + y),
    "sliced": (lambda n: [random(n, 24)], lambda x: x[:, 1::2].exp(), lambda x: np.exp(x[:, 1::2])),
    "expanded": (
        lambda n: [random(n)],
        lambda x: x.expand(4, -1).exp(),
        lambda x: np.exp(np.broadcast_to(x, (4, len(x)))),
    ),
    "rows by index": (
        lambda n: [np.arange(n) % 40],
        lambda i: F.embedding(i, t(WEIGHT)),
        lambda i: WEIGHT[i],
    ),
    "running sum": (lambda n: [random(n, 6)], lambda x: x.cumsum(0), lambda x: x.cumsum(0)),
    "sorted": (lambda n: [random(3, n)], lambda x: x.sort(-1)[0], lambda x: np.sort(x, -1)),
}
LENGTHS = (3, 5, 4, 17, 18, 63, 64, 65, 66, 200, 1, 2, 700, 701, 1024, 1300, 0, 2100, 129, 130)


@pytest.mark.parametrize("name", CASES)
def test_results_at_many_sizes(name: str, scheduled) -> None:
    operands, function, reference = CASES[name]
    for n in LENGTHS:
        if n == 0 and name in ("amax", "max", "softmax of longer rows"):
            continue
        given = operands(n)
        found = function(*[t(x) for x in given]).numpy()
        expected = reference(*given)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    "name", ["add", "row", "sum", "sum of rows", "amax", "softmax", "layer_norm", "cat", "linear", "mm"]
)
def test_most_sizes_are_not_scheduled(name: str, scheduled) -> None:
    operands, function, _ = CASES[name]
    given = [[t(x) for x in operands(n)] for n in range(20, 120)]
    for x in given:
        function(*x)
    assert len(scheduled) <= 16


WRITES = {
    "add_": (lambda x, y: x.add_(y), lambda x, y: x + y),
    "by a number": (lambda x, y: x.mul_(2.5), lambda x, y: x * np.float32(2.5)),
    "copy_": (lambda x, y: x.copy_(y), lambda x, y: y),
    "of another dtype": (lambda x, y: x.add_(y.double()), lambda x, y: x + y),
    "softmax into its operand": (lambda x, y: x.copy_(x.softmax(-1)), lambda x, y: softmax(x)),
    "turned": (lambda x, y: x.t().mul_(y.t()), lambda x, y: x * y),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_at_many_sizes(name: str, monkeypatch) -> None:
    function, reference = WRITES[name]
    eager.forget_plans()
    counted, make = [], in_place.make_plan
    monkeypatch.setattr(in_place, "make_plan", lambda *a: counted.append(a) or make(*a))
    lengths = [*LENGTHS, *range(20, 60)]
    for n in lengths:
        x, y = random(n, 5), random(n, 5) + 1
        expected = reference(x, y)
        target = t(x.copy())
        function(target, t(y))
        np.testing.assert_allclose(target.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert len(counted) <= 16


def test_updates_at_many_sizes(monkeypatch) -> None:
    eager.forget_plans()
    counted, make = [], update.make_plan
    monkeypatch.setattr(update, "make_plan", lambda *a: counted.append(a) or make(*a))

    def momentum(p, g, b, rate, factor):
        b = b * factor + g
        return p - b * rate, b

    for n in [*(n for n in LENGTHS if n), *range(20, 60)]:
        p, g, b = random(n, 5), random(n, 5) + 1, random(n, 5) + 2
        tensors = [t(x.copy()) for x in (p, g, b)]
        update.run(momentum, (0, 2), tensors, (0.5, 0.25))
        after = b * 0.25 + g
        np.testing.assert_allclose(tensors[2].numpy(), after, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(tensors[0].numpy(), p - after * 0.5, rtol=1e-6, atol=1e-5)
    assert len(counted) <= 16


def test_one_new_size_is_enough_for_all_others(scheduled) -> None:
    for n in (5, 6, 7, 8):
        t(random(n, 3)).sum(-1)
    t(random(8, 4)).sum(-1)
    t(random(9, 5)).sum(-1)
    assert len(scheduled) == 2


def test_models_that_lost_track_are_refused(scheduled, monkeypatch) -> None:
    """A schedule may read a size where Python leaves no trace of it."""
    schedule = sizes.schedule

    def lossy(graph, *rest):
        found = schedule(graph, *rest)
        found.temps[0].spec = flambeau.core.spec.Spec.of(
            [len(range(n)) for n in found.temps[0].spec.shape], flambeau.float32
        )
        return found

    monkeypatch.setattr(sizes, "schedule", lossy)
    for n in range(40, 60):
        assert t(random(n, 3)).exp().shape == (n, 3)
    assert len(scheduled) == 20


def test_equal_sizes_stay_equal_in_comparisons() -> None:
    for values in sizes.made_up((24, 7, 24)):
        assert values[0] == values[2] >= 2


def test_gradients_and_views_of_derived_plans() -> None:
    for n in range(3, 12):
        x = t(random(n, 4)).requires_grad_()
        y = (x * x).sum(-1)
        y.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * random(n, 4), rtol=1e-6)


def test_errors_are_those_of_the_op(scheduled) -> None:
    for n in range(3, 9):
        flambeau.ones(n, 4) + flambeau.ones(n, 4)
    with pytest.raises(RuntimeError, match="size"):
        flambeau.ones(9, 4) + flambeau.ones(8, 4)
    with pytest.raises(IndexError):
        F.embedding(flambeau.tensor([50]), t(WEIGHT))


def test_plans_are_forgotten_with_the_rest(scheduled) -> None:
    for n in (3, 4, 5):
        t(random(n)).exp()
    before = len(scheduled)
    eager.forget_plans()
    t(random(6)).exp()
    assert len(scheduled) == before + 1


def test_what_a_symbolic_size_cannot_follow_is_a_guard() -> None:
    guards = Guards()
    n = SymInt.named("n", 12, guards)
    assert (n >> 1, n.bit_length(), n & 3, n**2) == (6, 4, 0, 144)
    assert guards.hold({"n": 12})
    assert not guards.hold({"n": 13})


def test_functions_of_sizes() -> None:
    guards = Guards()
    n = SymInt.named("n", 12, guards)
    half, rest = through(lambda a, b: (a // b, a % b), n + 1, 5)
    assert evaluate((half * 10 + rest).expression, {"n": 20}) == 41
    assert not guards.found  # nobody compared anything
    assert (half, rest) == (2, 3)
    assert through(divmod, 7, 2) == (3, 1)
