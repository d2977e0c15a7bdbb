"""Launches of one kind become one: fewer kernels, the same bits."""

from __future__ import annotations

import pytest

import flambeau
from flambeau.base.settings import settings
from flambeau.engine.plan import make_plan
from flambeau.engine.update import graph_of
from flambeau.ir import tracing
from flambeau.schedule import horizontal
from flambeau.schedule.horizontal import LEAST_SEGMENTS

MANY = 12


def plans_of(compiled) -> list:
    return [p for entries in compiled.entries.values() for e in entries for p in e.forward_plans.values()]


def parameters(shapes, dtype=None, seed: int = 0) -> list:
    flambeau.manual_seed(seed)
    made = [flambeau.randn(*s).to(dtype or flambeau.float32).requires_grad_() for s in shapes]
    for p in made:
        p.grad = flambeau.randn(*p.shape).to(p.dtype)
    return made


SHAPES = [(7,), (3, 5), (65, 129), (0, 4), (20001,), (2, 3, 4), (64,), (5, 1)]


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name, options", [("AdamW", {}), ("SGD", {"lr": 0.1, "momentum": 0.9}), ("RMSprop", {})])
def test_a_compiled_step_has_few_kernels_and_the_bits_of_separate_launches(name, options, single, monkeypatch) -> None:
    results = []
    for least in (LEAST_SEGMENTS, 1 << 30):
        monkeypatch.setattr(horizontal, "LEAST_SEGMENTS", least)
        params = parameters((SHAPES + [(1,), ()] * single) * 2)
        optimizer = getattr(flambeau.optim, name)(params, **options)
        optimizer.step()
        step = flambeau.compile(optimizer.step, fullgraph=True)
        for _ in range(3):
            step()
        results.append((params, plans_of(step)[-1].kernels))
    (merged, few), (separate, many) = results
    assert few < many and (few <= 2 or single)
    for a, b in zip(merged, separate):
        assert (
            (a.detach().view(flambeau.int32) == b.detach().view(flambeau.int32)).all()
            if a.ndim
            else a.item() == b.item()
        )


def test_the_kernel_does_not_depend_on_the_number_of_tensors() -> None:
    addresses = []
    for count in (MANY, 5 * MANY):
        params = parameters([(3 + i, 5) for i in range(count)])
        optimizer = flambeau.optim.SGD(params, lr=0.1)
        step = flambeau.compile(optimizer.step, fullgraph=True)
        step()
        (plan,) = plans_of(step)
        assert plan.kernels == 1
        addresses.append(plan.steps[0].address)
    assert addresses[0] == addresses[1]


def test_dtypes_and_layouts_have_launches_of_their_own() -> None:
    shapes = [(4 + i, 6) for i in range(4)]
    params = parameters(shapes) + parameters(shapes, flambeau.float64, seed=1)
    for i in range(4):
        whole = flambeau.randn(9, 20 + i)
        p = whole[:, 3:8].detach().requires_grad_()
        p.grad = flambeau.randn(9, 5)
        params.append(p)
    before = [p.detach().clone() for p in params]
    optimizer = flambeau.optim.SGD(params, lr=0.5)
    step = flambeau.compile(optimizer.step, fullgraph=True)
    step()
    assert plans_of(step)[-1].kernels <= 3
    for p, old in zip(params, before):
        assert flambeau.allclose(p.detach(), old - 0.5 * p.grad)


def test_one_large_tensor_does_not_part_from_small_ones() -> None:
    plan, tensors = plan_of_outputs([(1 << 21,), *[(100 + i,) for i in range(5)], (1 << 21, 1)])
    assert plan.kernels == 1
    for x, t in zip(plan.native_maker()(*tensors), tensors):
        assert (x == t * 2 + 1).all()


def grown(*tensors):
    return tuple(t * 2 + 1 for t in tensors)


def plan_of_outputs(shapes):
    tensors = [flambeau.randn(*s) for s in shapes]
    graph, _ = tracing.trace(grown, [t.spec.plain() for t in tensors])
    return make_plan(graph), tensors


def test_results_are_merged_and_made_by_one_native_call() -> None:
    shapes = [(3,), (17, 2), (1000,), (40000,), (5, 5, 5)] * 3
    plan, tensors = plan_of_outputs(shapes)
    assert plan.kernels == 1
    make = plan.native_maker()
    for got in (make(*tensors), make(*tensors)):
        for x, t in zip(got, tensors):
            assert (x == t * 2 + 1).all()


def test_results_do_not_depend_on_threads() -> None:
    plan, tensors = plan_of_outputs([(200003,), *[(11 + i,) for i in range(200)]])
    make, threads = plan.native_maker(), flambeau.get_num_threads()
    try:
        results = []
        for number in (1, 2):
            flambeau.set_num_threads(number)
            results.append(make(*tensors))
    finally:
        flambeau.set_num_threads(threads)
    for a, b, t in zip(*results, tensors):
        assert (a == b).all() and (a == t * 2 + 1).all()


def follow(a, b, c, d, e):
    return b + a, c + b, d + c, e + d


def test_what_waits_for_another_launch_is_not_merged_with_it() -> None:
    """Each target is read by the next update before it is written: the graph's order must show."""
    tensors = [flambeau.randn(5 + 0 * i) for i in range(5)]
    old = [t.clone() for t in tensors]
    graph = graph_of(follow, (1, 2, 3, 4), tensors, ())
    make_plan(graph).run([t.ptr for t in tensors])
    for i in range(1, 5):
        assert (tensors[i] == old[i] + old[i - 1]).all()


def test_checks_look_into_segments() -> None:
    with settings.scope(check=1):
        plan, tensors = plan_of_outputs([(3,), (17, 2), (1000,), (40000,), (5, 5, 5)])
        assert plan.kernels == 1
        for x, t in zip(plan.native_maker()(*tensors), tensors):
            assert (x == t * 2 + 1).all()


def test_a_captured_graph_replays_merged_launches() -> None:
    params = parameters([(5 + i,) for i in range(MANY)])
    before = [p.detach().clone() for p in params]
    optimizer = flambeau.optim.SGD(params, lr=0.5)
    step = flambeau.compile(optimizer.step, fullgraph=True)
    step()
    graph = flambeau.accelerator.Graph()
    graph.capture_begin()
    step()
    graph.capture_end()
    graph.replay()
    for p, old in zip(params, before):
        assert flambeau.allclose(p.detach(), old - 2 * 0.5 * p.grad, atol=1e-5)
