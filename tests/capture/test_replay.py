"""Graphs of recorded launches: replays equal eager mode, and what cannot be replayed is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import flambeau
import flambeau.nn.functional as F
from flambeau import nn
from flambeau.accelerator import Graph, graph, graph_pool_handle, is_current_stream_capturing
from flambeau.capture.step import capture
from flambeau.ir.bind import MODES
from flambeau.runtime import allocator


def f32(*shape: int, seed: int = 0) -> flambeau.Tensor:
    return flambeau.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.fixture(autouse=True)
def _nothing_is_left_on():
    yield
    assert not MODES and not is_current_stream_capturing()


def graphed(function: Callable) -> tuple[Graph, object]:
    g = Graph()
    with g:
        result = function()
    return g, result


# ------------------------------------------------------------------ equal to eager
def test_replay_follows_its_input_bit_for_bit() -> None:
    x, w = flambeau.zeros(16, 33), f32(33, 5)

    def chain() -> flambeau.Tensor:
        y = x
        for i in range(30):
            y = (y * 1.01 + i).tanh()
        y = F.softmax(y @ w, -1)
        top = y.max(1)
        return y.sum(0) + top.values.mean() + top.indices.sum()

    g, y = graphed(chain)
    for seed in range(3):
        x.copy_(f32(16, 33, seed=seed))
        g.replay()
        assert flambeau.equal(y, chain())


def test_nothing_is_computed_during_capture() -> None:
    x = flambeau.ones(4)
    g, _ = graphed(lambda: x.add_(1))
    assert x.tolist() == [1, 1, 1, 1]
    g.replay()
    g.replay()
    assert x.tolist() == [3, 3, 3, 3]


def test_views_and_writes_through_them() -> None:
    x = f32(6, 8)
    start = x.clone()

    def work() -> flambeau.Tensor:
        y = x.clone()
        y[1:3, ::2].mul_(3)
        y.t()[2] = 7
        y.view(-1)[::5].add_(y[0, 0])
        return y.flip(0)[:, 1:]

    g, y = graphed(work)
    for factor in (1.0, -2.0):
        x.copy_(start * factor)
        g.replay()
        assert flambeau.equal(y, work())


def test_constants_start_from_their_values_at_each_replay() -> None:
    x = flambeau.ones(2)

    def work() -> flambeau.Tensor:
        c = flambeau.tensor([1.0, 2.0])
        c.add_(x)
        return c

    g, c = graphed(work)
    for _ in range(3):
        g.replay()
        assert c.tolist() == [2, 3]


def test_kernels_that_divide_give_the_same_for_each_number_of_threads() -> None:
    before = flambeau.get_num_threads()
    x = f32(700, 900)
    wanted = None
    try:
        for threads in (2, 1):
            flambeau.set_num_threads(threads)
            g, y = graphed(lambda: (x @ x.t()).exp().clamp(max=5.0).sum(0))
            g.replay()
            wanted = y.clone() if wanted is None else wanted
            assert flambeau.equal(y, wanted)
    finally:
        flambeau.set_num_threads(before)


def test_a_traced_function_is_recorded_as_its_plan() -> None:
    x = flambeau.ones(8)
    step = capture(lambda x: (x * 2).exp().sum())
    step(x)
    g, y = graphed(lambda: step(x))
    x.copy_(f32(8))
    g.replay()
    assert y.item() == step(x).item()


# ------------------------------------------------------------------ random numbers
def test_random_numbers_go_on_from_the_generator_at_each_replay() -> None:
    x = flambeau.ones(64)
    own = flambeau.Generator()

    def draw() -> list[flambeau.Tensor]:
        return [
            flambeau.randn(5),
            F.dropout(x, 0.5),
            flambeau.empty(4).uniform_(2, 3),
            flambeau.randint(0, 100, (7,), generator=own),
            flambeau.randperm(9),
            flambeau.bernoulli(x * 0.5),
        ]

    g, found = graphed(draw)
    flambeau.manual_seed(3)
    own.manual_seed(5)
    replayed = []
    for _ in range(3):
        g.replay()
        replayed.append([t.tolist() for t in found])
    after = flambeau.get_rng_state().tolist()
    flambeau.manual_seed(3)
    own.manual_seed(5)
    assert replayed == [[t.tolist() for t in draw()] for _ in range(3)]
    assert after == flambeau.get_rng_state().tolist()
    assert replayed[0] != replayed[1]


def test_random_numbers_of_traced_functions_go_on_too() -> None:
    x = flambeau.ones(50)
    traced = capture(lambda x: F.dropout(x, 0.5) + flambeau.rand(50))

    def draw() -> list[flambeau.Tensor]:
        return [flambeau.randn(3), traced(x), flambeau.rand(2)]

    draw()
    g, found = graphed(draw)
    flambeau.manual_seed(1)
    replayed = []
    for _ in range(3):
        g.replay()
        replayed.append([t.tolist() for t in found])
    flambeau.manual_seed(1)
    assert replayed == [[t.tolist() for t in draw()] for _ in range(3)]


def test_random_numbers_are_not_recorded_on_the_simulated_device() -> None:
    with pytest.raises(RuntimeError, match="random ops and numbers that change are recorded on the CPU only"):
        graphed(lambda: flambeau.rand(3, device="sim"))


def test_dropout_goes_backward_with_its_own_mask() -> None:
    x = flambeau.ones(100).requires_grad_()

    def step() -> tuple:
        x.grad = None
        y = F.dropout(x, 0.5)
        y.sum().backward()
        return y, x.grad

    g, (y, grad) = graphed(step)
    for _ in range(3):
        g.replay()
        assert flambeau.equal(y.detach(), grad)
        assert 0 < int((grad == 0).sum()) < 100


# ------------------------------------------------------------------ training
OPTIMISERS = {
    "sgd": lambda p: flambeau.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: flambeau.optim.AdamW(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_training_step_equals_eager(name: str) -> None:
    data = [(f32(5, 8, seed=i), f32(5, 4, seed=100 + i)) for i in range(6)]
    runs = []
    for replay in (False, True):
        flambeau.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimiser = OPTIMISERS[name](model.parameters())
        x, y = flambeau.zeros(5, 8), flambeau.zeros(5, 4)

        def step() -> flambeau.Tensor:
            optimiser.zero_grad(set_to_none=True)
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimiser.step()
            return loss

        x.copy_(data[0][0])
        y.copy_(data[0][1])
        step()
        if replay:
            g, loss = graphed(step)
        losses = []
        for a, b in data[1:]:
            x.copy_(a)
            y.copy_(b)
            if replay:
                g.replay()
            else:
                loss = step()
            losses.append(loss.item())
        runs.append((losses, [p.detach().numpy().copy() for p in model.parameters()]))
    np.testing.assert_allclose(runs[1][0], runs[0][0], rtol=2e-6)
    for got, wanted in zip(runs[1][1], runs[0][1]):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_buffers_clipping_and_zeroed_gradients_follow_eager_bit_for_bit() -> None:
    runs = []
    for replay in (False, True):
        flambeau.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 2))
        optimiser = flambeau.optim.SGD(model.parameters(), lr=0.1)
        x = f32(8, 6)

        def step() -> flambeau.Tensor:
            optimiser.zero_grad(set_to_none=False)
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimiser.step()
            return loss

        step()
        if replay:
            g, loss = graphed(step)
        losses = []
        for seed in range(1, 5):
            x.copy_(f32(8, 6, seed=seed))
            if replay:
                g.replay()
            else:
                loss = step()
            losses.append(loss.item())
        runs.append((losses, [b.tolist() for b in model.buffers()]))
    assert runs[0] == runs[1]


def test_gradients_from_outside_are_added_to_in_place() -> None:
    w = flambeau.ones(3).requires_grad_()
    (w * 2).sum().backward()
    g, _ = graphed(lambda: (w * 3).sum().backward())
    grad = w.grad
    for n in range(3):
        assert grad.tolist() == [2 + 3 * n] * 3
        g.replay()
    assert w.grad is grad


def test_two_leaves_with_one_gradient_are_refused() -> None:
    a, b = flambeau.ones(3).requires_grad_(), flambeau.ones(3).requires_grad_()
    a.grad = b.grad = flambeau.ones(3)
    with pytest.raises(RuntimeError, match="backward: two tensors have gradients in the same memory"):
        graphed(lambda: (a + b).sum().backward())


def test_optimiser_state_must_exist() -> None:
    w = flambeau.ones(3).requires_grad_()
    optimiser = flambeau.optim.Adam([w])
    w.sum().backward()
    with pytest.raises(
        RuntimeError, match=r"Adam.step: the state .* must exist before a graph is captured.*Take a step"
    ):
        graphed(optimiser.step)


# ------------------------------------------------------------------ refused
READS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "print": lambda x: str(x),
    "nonzero": lambda x: x.nonzero(),
    "outside": lambda x: float(flambeau.ones(())),
}


@pytest.mark.parametrize("name", READS)
def test_values_cannot_be_read_inside(name: str) -> None:
    x = flambeau.ones(3)
    with pytest.raises(RuntimeError, match="while a graph is captured nothing is computed"):
        graphed(lambda: READS[name](x * 2))
    assert (x + 1).tolist() == [2, 2, 2]


OTHERS = {
    "manual_seed": lambda x: flambeau.manual_seed(0),
    "resize_": lambda x: flambeau.ones(2).resize_(300),
    "to": lambda x: x.to("sim"),
    "linalg_eigh": lambda x: flambeau.linalg.eigh(x),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_kernel_is_refused_by_name(name: str) -> None:
    x = flambeau.eye(200)
    with pytest.raises(RuntimeError, match=f"{name}.*: (is no kernel|runs in a library)"):
        graphed(lambda: OTHERS[name](x))


def test_a_refusal_that_is_caught_fails_the_capture() -> None:
    x = flambeau.ones(3)
    g = Graph()
    with pytest.raises(RuntimeError, match="capture_end: the capture failed .*item: reads values"), g:
        try:
            x.sum().item()
        except RuntimeError:
            pass
    with pytest.raises(RuntimeError, match="replay|instantiate"):
        g.replay()


def test_an_exception_leaves_the_process_usable() -> None:
    x = flambeau.ones(3)
    g = Graph()
    with pytest.raises(ZeroDivisionError), g:
        y = x + 1
        raise ZeroDivisionError
    assert (x + 1).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="before the graph's first replay"):
        y.tolist()
    with g:
        z = x + 2
    g.replay()
    assert z.tolist() == [3, 3, 3]


def test_an_op_that_fails_to_bind_does_not_break_the_capture() -> None:
    x = flambeau.ones(3)
    g = Graph()
    with g:
        with pytest.raises(RuntimeError):
            x + flambeau.ones(4)
        y = x * 5
    g.replay()
    assert y.tolist() == [5, 5, 5]


def test_uses_out_of_order() -> None:
    x = flambeau.ones(3)
    g = Graph()
    for name, call in (("instantiate", g.replay), ("capture_end", g.capture_end), ("pool", g.pool)):
        with pytest.raises(RuntimeError, match=name):
            call()
    with pytest.raises(RuntimeError, match="captures do not nest"), g, Graph():
        pass
    with g:
        x + 1
    with pytest.raises(RuntimeError, match="has a capture already"):
        g.capture_begin()
    with pytest.raises(RuntimeError, match="replay: a graph must not be replayed while"), Graph():
        g.replay()
    with pytest.raises(RuntimeError, match="reset: this graph's capture is under way"):
        h = Graph()
        with h:
            h.reset()
    with pytest.raises(RuntimeError, match="inside a function that is traced"):
        capture(lambda x: (Graph().capture_begin(), x)[1])(x)
    with pytest.raises(ValueError, match="capture_error_mode must be one of"):
        Graph(capture_error_mode="strict").capture_begin()
    with pytest.raises(TypeError, match="pool must be a handle"):
        Graph(pool=3).capture_begin()


def test_a_capture_ends_on_its_own_thread() -> None:
    g = Graph()
    g.capture_begin()
    found: list = []

    def end() -> None:
        try:
            g.capture_end()
        except RuntimeError as error:
            found.append(str(error))

    other = threading.Thread(target=end)
    other.start()
    other.join()
    assert "on this thread" in found[0]
    g.capture_end()


def test_ops_of_other_threads_are_not_recorded() -> None:
    x = flambeau.ones(3)
    results: list = []
    g = Graph()
    with g:
        y = x + 1
        other = threading.Thread(target=lambda: results.append((x * 5).sum().item()))
        other.start()
        other.join()
    assert results == [15] and "1 launches" in repr(g)
    g.replay()
    assert y.tolist() == [2, 2, 2]


# ------------------------------------------------------------------ errors of replays
def test_an_index_out_of_bounds_names_the_op_and_stops_the_replay() -> None:
    table, index, counted = f32(10, 4), flambeau.tensor([1, 2]), flambeau.zeros(())

    def work() -> flambeau.Tensor:
        rows = F.embedding(index, table)
        counted.add_(1)
        return rows

    g, rows = graphed(work)
    g.replay()
    assert flambeau.equal(rows, table[1:3])
    index.fill_(10)
    with pytest.raises(IndexError, match="embedding.*got 10"):
        g.replay()
    assert counted.item() == 1
    index.fill_(3)
    g.replay()
    assert flambeau.equal(rows, table[[3, 3]]) and counted.item() == 2


@pytest.mark.parametrize("change", ("data", "resize_"))
def test_an_input_with_other_memory_is_an_error(change: str) -> None:
    x = flambeau.ones(3)
    g, _ = graphed(lambda: x + 1)
    if change == "data":
        x.data = flambeau.ones(4)
    else:
        x.resize_(300)
    with pytest.raises(RuntimeError, match="replay: a tensor that the graph uses has other memory than at the capture"):
        g.replay()


def test_more_threads_than_captured_are_refused() -> None:
    before = flambeau.get_num_threads()
    x = flambeau.ones(3)
    try:
        flambeau.set_num_threads(1)
        g, _ = graphed(lambda: x + 1)
        flambeau.set_num_threads(2)
        with pytest.raises(RuntimeError, match="more threads than at the capture"):
            g.replay()
    finally:
        flambeau.set_num_threads(before)


# ------------------------------------------------------------------ memory
def in_use() -> int:
    return allocator.cpu.allocated_bytes


def test_memory_returns_when_the_graph_is_reset() -> None:
    x = flambeau.ones(1 << 16)
    start = in_use()
    g, y = graphed(lambda: (x + 1).exp() * 2)
    assert in_use() > start
    del y
    held = in_use()
    assert held > start  # the graph keeps what it writes
    g.replay()
    g.reset()
    assert in_use() == start
    g, y = graphed(lambda: x * 3)
    del y, g
    assert in_use() == start


def test_a_tensor_outlives_its_graph() -> None:
    x = flambeau.ones(1 << 12)
    g, y = graphed(lambda: x + 1)
    g.replay()
    g.reset()
    others = [flambeau.zeros(1 << 12) for _ in range(4)]
    assert y[0].item() == 2 and all(o.data_ptr() != y.data_ptr() for o in others)
    before = in_use()
    del y
    assert in_use() == before - 4 * (1 << 12)


def test_blocks_freed_during_capture_serve_later_ops_of_it() -> None:
    x = flambeau.ones(1 << 12)

    def chain() -> flambeau.Tensor:
        y = x
        for _ in range(20):
            y = y + 1
        return y

    g, y = graphed(chain)
    assert g._recording.pool.nbytes <= 3 * 4 * (1 << 12)
    g.replay()
    assert y[5].item() == 21


def test_nobody_else_gets_memory_of_a_graph() -> None:
    x = flambeau.ones(100)
    g, y = graphed(lambda: (x + 1) * (x + 2))
    g.replay()
    others = [flambeau.full((100,), float(i)) for i in range(50)]
    g.replay()
    assert all(o.tolist() == [float(i)] * 100 for i, o in enumerate(others)) and y.tolist() == [6.0] * 100


def test_inputs_are_kept_alive() -> None:
    def make() -> tuple:
        x = flambeau.full((50,), 3.0)
        return graphed(lambda: x + 1)

    g, y = make()
    others = [flambeau.zeros(50) for _ in range(8)]
    g.replay()
    assert y.tolist() == [4.0] * 50 and len(others) == 8


def test_graphs_share_a_pool() -> None:
    start = in_use()
    x = flambeau.ones(1 << 12)
    size = in_use() - start
    handle = graph_pool_handle()
    first, second = Graph(pool=handle), Graph()
    with first:
        y = x + 1
        del y
    with graph(second, pool=first.pool()):
        z = x + 5
    assert second.pool() == first.pool() == handle
    assert in_use() - start == 2 * size  # z lies where y lay
    first.replay()
    second.replay()
    assert z[0].item() == 6
    first.reset()
    second.replay()
    assert z[0].item() == 6
    del z
    second.reset()
    assert in_use() - start == size


# ------------------------------------------------------------------ the rest
def test_keep_graph_builds_the_program_later() -> None:
    x = flambeau.ones(3)
    g = Graph(keep_graph=True)
    with g:
        y = x + 1
    assert g._program is None
    g.instantiate()
    g.replay()
    assert y.tolist() == [2, 2, 2]


def test_debug_dump(tmp_path) -> None:
    x = flambeau.ones(3)
    g, _ = graphed(lambda: (x + 1).sum())
    with pytest.raises(RuntimeError, match="enable_debug_mode"):
        g.debug_dump(str(tmp_path / "graph.dot"))
    g.enable_debug_mode()
    g.debug_dump(str(tmp_path / "graph.dot"))
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph") and "n0 -> n1" in text


def test_graphs_on_the_simulated_device() -> None:
    table, index = flambeau.eye(4).to("sim"), flambeau.tensor([1, 2]).to("sim")
    g, y = graphed(lambda: table[index] + 1)
    g.replay()
    flambeau.sim.synchronize()
    assert y.cpu().tolist() == [[1, 2, 1, 1], [1, 1, 2, 1]]
    index.fill_(9)
    g.replay()
    with pytest.raises(RuntimeError, match="index"):
        flambeau.sim.synchronize()
    x = flambeau.ones(3)
    with pytest.raises(RuntimeError, match="all ops of a graph must be on one device"):
        graphed(lambda: (table + 1, x + 1))


def test_an_empty_graph_replays() -> None:
    g, _ = graphed(lambda: None)
    g.replay()


def test_replays_of_several_threads_take_turns() -> None:
    x = flambeau.zeros(4)
    g, _ = graphed(lambda: x.add_(1))
    threads = [threading.Thread(target=lambda: [g.replay() for _ in range(200)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert x.tolist() == [800.0] * 4
