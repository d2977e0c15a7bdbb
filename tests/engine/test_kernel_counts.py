"""How many kernels things are, and what graphs print: "this graph is N kernels"."""

from __future__ import annotations

from typing import Any

import pytest

import flambeau
from flambeau import Tensor
from flambeau.base.errors import InternalError
from flambeau.capture.step import capture
from flambeau.core.spec import Spec
from flambeau.engine import eager
from flambeau.ir.graph import Graph, Value
from flambeau.ir.op import REGISTRY
from flambeau.nn import functional
from flambeau.passes.decompose import decompose


class Ops:
    """`ops.name` of printed graphs."""

    def __getattr__(self, name: str) -> Any:
        return REGISTRY[name]


def kernels(name: str, *args: Any) -> int:
    """Kernels of one op in eager."""
    op = REGISTRY[name]
    info = eager.info_for(op, op.arguments(*args))
    return (info.plan or info.make_plan()).kernels


def captured_kernels(captured: Any) -> list[int]:
    return [r.plan.kernels for recordings in captured.recordings.values() for r in recordings]


@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_is_one_kernel(dim: int) -> None:
    x = flambeau.rand(64, 100)
    assert kernels("softmax", x, dim) == kernels("log_softmax", x, dim) == 1


def test_normalisations_and_losses_are_one_kernel() -> None:
    x, w, b = flambeau.rand(64, 100), flambeau.rand(100), flambeau.rand(100)
    assert kernels("layer_norm", x, (100,), w, b) == 1
    assert kernels("rms_norm", x, (100,), w) == 1
    assert kernels("cross_entropy", x, flambeau.tensor([3] * 64)) == 1


def test_pointwise_chains_are_one_kernel() -> None:
    captured = capture(lambda x, w, b: functional.gelu(x * w + b))
    x, w, b = flambeau.rand(8, 16), flambeau.rand(16), flambeau.rand(16)
    assert flambeau.allclose(captured(x, w, b), functional.gelu(x * w + b))
    assert captured_kernels(captured) == [1]


def test_a_step_of_elementwise_work_is_one_kernel() -> None:
    """Forward, backward and update, fused."""
    w = flambeau.randn(1000, requires_grad=True)
    twin = w.detach().clone().requires_grad_()
    target = flambeau.rand(1000)

    def step(w: Tensor, target: Tensor) -> Tensor:
        loss = ((w - target) * (w - target)).sum()
        loss.backward()
        with flambeau.no_grad():
            w.sub_(w.grad * 0.1)
        w.grad = None
        return loss

    captured = capture(lambda t: step(w, t))
    for _ in range(3):
        assert captured(target).item() == pytest.approx(step(twin, target).item(), rel=1e-5)
    assert captured_kernels(captured) == [1]
    assert flambeau.allclose(w, twin)


def test_a_step_of_a_perceptron_stays_within_its_kernels() -> None:
    """Measured, not what is possible: five products, and what is between them. Fewer is fine; more is a fusion lost."""
    flambeau.manual_seed(0)
    first, second = (flambeau.randn(100, 32) * 0.1).requires_grad_(), (flambeau.randn(32, 10) * 0.1).requires_grad_()
    x, y = flambeau.rand(64, 100), flambeau.tensor([1] * 64)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = functional.cross_entropy((x @ first).relu() @ second, y)
        loss.backward()
        with flambeau.no_grad():
            for w in (first, second):
                w.sub_(w.grad, alpha=0.1)
        first.grad = second.grad = None
        return loss

    captured = capture(step)
    assert captured(x, y).item() > captured(x, y).item()
    assert captured_kernels(captured)[0] <= 12


def test_a_sum_that_blocks_carry_along_is_written_between_them() -> None:
    """Added up from all blocks by each, the last kernels would read all that the blocks gave."""
    x, weights = flambeau.randn(64, 32), [flambeau.randn(32, 32) for _ in range(12)]

    def network(x: Tensor) -> Tensor:
        for w in weights:
            x = x + functional.layer_norm(x, (32,)) @ w
        return x

    captured = capture(network)
    assert flambeau.equal(captured(x), network(x))
    (recordings,) = captured.recordings.values()
    steps = recordings[0].plan.steps
    assert len(steps) == 2 * len(weights), "the sum is stored by the product"
    assert max(len(set(step.positions)) for step in steps) <= 6


# ------------------------------------------------------------------ graphs
def example() -> Graph:
    graph = Graph()
    x, w = (graph.input(Spec.of(shape, flambeau.float32)) for shape in ((3, 4), (4,)))
    (scaled,) = graph.add(REGISTRY["mul"], (x, w))
    values, indices = graph.add(REGISTRY["max_dim"], (scaled, 1, False))
    (joined,) = graph.add(REGISTRY["cat"], ((scaled, x), 0))
    (cast,) = graph.add(REGISTRY["to_dtype"], (joined, flambeau.float64))
    (clamped,) = graph.add(REGISTRY["clamp"], (cast, float("-inf"), 0.5))
    graph.outputs = [values, indices, clamped]
    return graph


def run_printed(graph: Graph, *inputs: Any) -> Any:
    scope: dict = {"ops": Ops(), "flambeau": flambeau}
    exec(str(graph), scope)
    return scope["graph"](*inputs)


@pytest.mark.parametrize("form", [lambda g: g, decompose], ids=["as traced", "decomposed"])
def test_a_graph_prints_as_a_program(form) -> None:
    x, w = flambeau.rand(3, 4), flambeau.rand(4)
    values, indices, clamped = run_printed(form(example()), x, w)
    wanted = (x * w).max(1)
    assert values.tolist() == wanted.values.tolist()
    assert indices.tolist() == wanted.indices.tolist()
    assert flambeau.equal(clamped, flambeau.cat((x * w, x)).double().clamp(float("-inf"), 0.5))


def test_a_graph_with_writes_prints_them() -> None:
    graph = Graph()
    x = graph.input(Spec.of((3,), flambeau.float32))
    (y,) = graph.add(REGISTRY["exp"], (x,))
    graph.writes, graph.outputs = [(x, y)], [y]
    t = flambeau.zeros(3)
    run_printed(graph, t)
    assert t.tolist() == [1.0, 1.0, 1.0]


def test_verify_accepts_what_passes_give() -> None:
    graph = example()
    graph.verify()
    decompose(graph).verify()
    example().remove_dead().verify()


def test_verify_refuses_values_that_are_not_defined() -> None:
    graph = example()
    graph.nodes.reverse()
    with pytest.raises(InternalError, match="uses a value that is not defined before it"):
        graph.verify()
    graph = example()
    graph.outputs.append(Value(None, 0, Spec.of((), flambeau.float32)))
    with pytest.raises(InternalError, match="an output is not defined"):
        graph.verify()
