"""Bits do not depend on the number of threads, on how often one runs, or on whether Python or a replay launches (docs/determinism.md)."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable

import numpy as np
import pytest

import flambeau
import flambeau.nn.functional as F
from flambeau import nn
from flambeau.accelerator import Graph


def f(*shape: int, dtype: str = "float32", seed: int = 0) -> flambeau.Tensor:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return flambeau.from_numpy(x).to(getattr(flambeau, dtype))


def i(high: int, *shape: int) -> flambeau.Tensor:
    return flambeau.from_numpy(np.random.default_rng(9).integers(0, high, shape))


def seeded(function: Callable) -> Callable:
    def run(*args: flambeau.Tensor) -> flambeau.Tensor:
        flambeau.manual_seed(5)
        return function(*args)

    return run


ROWS, MANY, PLACES, FEW_PLACES = i(50, 5000), i(50, 200_003), i(50, 5000, 31), i(50, 500, 31)

# name: (function, inputs); what is differentiable is gone through backward too
CASES: dict[str, tuple[Callable, tuple]] = {
    # pointwise
    "gelu": (F.gelu, (f(200_003),)),
    "gelu_bf16": (F.gelu, (f(200_003, dtype="bfloat16"),)),
    "broadcast": (lambda x, y: (x * y + x) / (y.abs() + 1), (f(300, 401), f(401, seed=1))),
    # reductions and rows
    "sum_all": (lambda x: x.sum(), (f(200_003),)),
    "sum_columns": (lambda x: x.sum(0), (f(700, 301),)),
    "mean_few_rows": (lambda x: x.mean(1), (f(3, 100_003),)),
    "var_f64": (lambda x: x.var(1), (f(300, 401, dtype="float64"),)),
    "prod": (lambda x: x.prod(0), (f(700, 301),)),
    "softmax": (lambda x: F.softmax(x, -1), (f(300, 401),)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (401,), w), (f(300, 401), f(401, seed=1))),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (f(16, 24, 21, 23),)),
    "cross_entropy": (lambda x: F.cross_entropy(x, i(401, 300)), (f(300, 401),)),
    "cumsum": (lambda x: x.cumsum(0), (f(200_003),)),
    "max_ties": (lambda x: (x * 3).round().amax(), (f(200_003),)),
    # views and assembly
    "cat_flip": (lambda x, y: flambeau.cat([x.flip(0), y.t()], 1), (f(300, 401), f(299, 300, seed=1))),
    "pad": (lambda x: F.pad(x, (3, 2, 1, 4), mode="reflect"), (f(4, 8, 50, 51),)),
    # indexing, with places that come many times
    "gather": (lambda x: x.gather(0, PLACES), (f(50, 31),)),
    "embedding": (lambda w: F.embedding(ROWS, w), (f(50, 101),)),
    "index_add": (lambda x, s: x.index_add(0, MANY, s), (f(50), f(200_003, seed=1))),
    "scatter_add": (lambda x, s: x.scatter_add(0, PLACES, s), (f(50, 31), f(5000, 31, seed=1))),
    "scatter_mean": (lambda x, s: x.scatter_reduce(0, PLACES, s, "mean"), (f(50, 31), f(5000, 31, seed=1))),
    "scatter_last": (lambda x, s: x.scatter(0, PLACES, s), (f(50, 31), f(5000, 31, seed=1).detach())),
    "index_put": (lambda x, s: x.index_put((ROWS,), s, accumulate=True), (f(50, 101), f(5000, 101, seed=1))),
    "bincount": (lambda w: flambeau.bincount(MANY, weights=w), (f(200_003),)),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2), (f(4, 8, 80, 81),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), (f(4, 8, 50, 51),)),
    "fold": (lambda x: F.fold(x, (40, 40), 5), (f(2, 4 * 25, 36 * 36),)),
    # templates
    "mm": (lambda a, b: a @ b, (f(300, 257), f(257, 301, seed=1))),
    "mm_long_sum": (lambda a, b: a @ b, (f(40, 6000), f(6000, 40, seed=1))),
    "mm_bf16": (lambda a, b: a @ b, (f(300, 257, dtype="bfloat16"), f(257, 301, dtype="bfloat16", seed=1))),
    "linear_one_row": (lambda x, w: F.linear(x, w), (f(1, 700), f(900, 700, seed=1))),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (f(4, 16, 40, 41), f(24, 16, 3, 3, seed=1))),
    "attention": (
        F.scaled_dot_product_attention,
        (f(2, 4, 150, 32), f(2, 4, 150, 32, seed=1), f(2, 4, 150, 32, seed=2)),
    ),
    "sort": (lambda x: x.sort(1)[0], (f(300, 401),)),
    "topk": (lambda x: x.topk(7)[0], (f(300, 401),)),
    "inv_batched": (lambda x: flambeau.linalg.inv(x + 20 * flambeau.eye(12)), (f(500, 12, 12),)),
    # a library
    "eigvalsh": (lambda x: flambeau.linalg.eigvalsh(x + x.t()), (f(200, 200),)),
    "solve": (lambda x, b: flambeau.linalg.solve(x + 30 * flambeau.eye(200), b), (f(200, 200), f(200, 20, seed=1))),
    # random
    "dropout": (seeded(F.dropout), (f(200_003),)),
    "normal": (seeded(lambda x: x + flambeau.randn(200_003)), (f(1),)),
    "multinomial": (seeded(lambda x: flambeau.multinomial(x.abs(), 500)), (f(50_003),)),
}
LIBRARY = ("eigvalsh", "solve", "inv_batched")  # parts of these are LAPACK's
NOT_RECORDED = (*LIBRARY, "bincount", "multinomial")  # these read values, or are none of our kernels


def run(function: Callable, inputs: tuple) -> list[flambeau.Tensor]:
    """The result, and the gradients of floating inputs."""
    xs = [x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    y = function(*xs)
    if not y.requires_grad:
        return [y]
    y.backward(f(*y.shape, seed=3).to(y.dtype))
    return [y.detach(), *(x.grad for x in xs if x.grad is not None)]


def bits(found: list[flambeau.Tensor]) -> list[str]:
    return [
        hashlib.blake2b(t.contiguous().view(-1).view(flambeau.uint8).numpy().tobytes(), digest_size=8).hexdigest()
        for t in found
    ]


@pytest.fixture
def threads():
    before = flambeau.get_num_threads()
    yield flambeau.set_num_threads
    flambeau.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_the_number_of_threads(name: str, threads: Callable) -> None:
    function, inputs = CASES[name]
    found = []
    for number in (1, 2, 3):
        threads(number)
        found.append(bits(run(function, inputs)))
        assert bits(run(function, inputs)) == found[-1], "two runs differ"
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", [n for n in CASES if n not in (*NOT_RECORDED, "dropout", "normal")])
def test_launches_are_divided_and_replays_are_the_same(name: str, threads: Callable) -> None:
    function, inputs = CASES[name]
    threads(2)
    wanted = bits(run(function, inputs))
    graph = Graph()
    with graph:
        found = run(function, inputs)
    graph.replay()
    assert bits(found) == wanted
    divided = 0
    for r in graph._recording.records:
        total, grain = (ctypes.c_int64 * 2).from_address(r.slots[-1])
        divided += total > grain
    assert divided, "the case is too small to say anything about threads"


def small_network() -> list[str]:
    flambeau.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 300), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(300), nn.Linear(300, 10))
    optimiser = flambeau.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        loss = F.cross_entropy(model(f(256, 64, seed=step)), i(10, 256))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return bits([p.detach() for p in model.parameters()])


def test_training_gives_the_same_bits_for_each_number_of_threads(threads: Callable) -> None:
    found = []
    for number in (1, 2, 4):
        threads(number)
        found.append(small_network())
    assert found[0] == found[1] == found[2]


# float32 and float64 without reductions that read computed values: the page says why not others
COMPILED = {
    "chain": (lambda x, y: (x * y + x).tanh().exp() * F.gelu(y), (f(5, 3001), f(3001, seed=1))),
    "linear_relu": (lambda x, w, b: F.relu(F.linear(x, w, b)) * 2, (f(50, 301), f(70, 301, seed=1), f(70, seed=2))),
    "conv_relu": (lambda x, w: F.relu(F.conv2d(x, w)), (f(2, 8, 20, 21), f(8, 8, 3, 3, seed=1))),
    "index": (lambda w: F.embedding(ROWS, w) * 3, (f(50, 101),)),
    "scatter": (lambda x, s: x.scatter_add(0, FEW_PLACES, s).exp(), (f(50, 31), f(500, 31, seed=1))),
    "sum": (lambda x: x.sum(1), (f(300, 401),)),
    "softmax": (lambda x: F.softmax(x, -1), (f(300, 401),)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (401,), w), (f(300, 401), f(401, seed=1))),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_functions_give_eager_bits_where_the_page_says_so(name: str) -> None:
    function, inputs = COMPILED[name]
    assert bits(run(flambeau.compile(function), inputs)) == bits(run(function, inputs))


def test_memory_that_is_not_set_is_filled_where_determinism_is_asked_for() -> None:
    import flambeau.utils.deterministic as deterministic

    flambeau.use_deterministic_algorithms(True)
    try:
        assert flambeau.get_deterministic_debug_mode() == 2
        for made in (
            flambeau.empty(3),
            flambeau.empty(3, dtype=flambeau.bfloat16),
            flambeau.empty_like(f(2, 3)),
            flambeau.empty_strided((2, 3), (1, 2)),
            flambeau.empty_permuted((2, 3), (1, 0)),
            f(2).new_empty(4),
            f(2).resize_(50)[2:],
        ):
            assert made.isnan().all()
        assert flambeau.empty(2, dtype=flambeau.int16).tolist() == [32767, 32767]
        assert flambeau.empty(2, dtype=flambeau.bool).tolist() == [True, True]
        assert flambeau.empty(0).shape == (0,)
        deterministic.fill_uninitialized_memory = False
        assert deterministic.fill_uninitialized_memory is False and flambeau.empty(3).shape == (3,)
        with pytest.raises(TypeError, match="must be a bool, got int"):
            deterministic.fill_uninitialized_memory = 1
    finally:
        deterministic.fill_uninitialized_memory = True
        flambeau.use_deterministic_algorithms(False)
    flambeau.set_deterministic_debug_mode("warn")
    assert flambeau.is_deterministic_algorithms_warn_only_enabled() and flambeau.are_deterministic_algorithms_enabled()
    flambeau.set_deterministic_debug_mode(0)
    with pytest.raises(RuntimeError, match="set_deterministic_debug_mode"):
        flambeau.set_deterministic_debug_mode("loud")
