"""Indexing against NumPy: reading, writing, gradients, batches, errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import flambeau
from flambeau import Tensor
from flambeau.func import grad, vmap

KEYS = [
    0,
    -1,
    slice(1, 3),
    (0, 1),
    (slice(None), 2),
    (..., 0),
    (None, 1),
    (slice(None, None, 2), slice(1, None, 2)),
    [0, 2],
    (slice(None), [1, 0, 3]),
    ([0, 1], [1, 2]),
    True,
    False,
    ([[0], [2]], [0, 1]),
    (slice(0, 2), None, [1, 1]),
    (0, [1, 1]),
    ([0, 1], 0),
    (None, [0, 1], None, [1, 2]),
    ([0, 1], slice(None)),
    np.array([1, 0]),
    np.int64(1),
    ...,
    (),
    slice(0, 0),
    [True, False, True],
    (slice(None), [True, False, True, True]),
    slice(None, None, -1),
    (slice(None, None, -2), slice(3, 0, -1)),
    (..., slice(None, None, -3)),
    np.array([[True, False, True, False]] * 3),
    (slice(4, None, -1), 1),
    (slice(0, 9), slice(-9, 2)),
]


def base() -> tuple[Tensor, np.ndarray]:
    array = np.arange(12.0, dtype="float32").reshape(3, 4)
    return flambeau.from_numpy(array.copy()), array.copy()


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_reading(key) -> None:
    x, array = base()
    got, wanted = x[key], array[key]
    assert tuple(got.shape) == np.shape(wanted)
    np.testing.assert_array_equal(got.numpy(), wanted)


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_writing(key) -> None:
    for value in ("number", "tensor", "row"):
        x, array = base()
        shape = np.shape(array[key])
        if value == "number":
            x[key], array[key] = 7, 7
        else:
            new = np.arange(100, 100 + int(np.prod(shape)), dtype="float64").reshape(shape)
            new = new[:1] if value == "row" and new.ndim else new
            x[key], array[key] = flambeau.from_numpy(new), new
        np.testing.assert_array_equal(x.numpy(), array)


@pytest.mark.parametrize("key", [k for k in KEYS if k is not False], ids=repr)
def test_gradient_of_reading(key) -> None:
    x, array = base()
    x.requires_grad_()
    got = x[key]
    weights = np.arange(1.0, 1.0 + max(1, got.numel()), dtype="float32")[: got.numel()].reshape(tuple(got.shape))
    (got * flambeau.from_numpy(weights)).sum().backward()
    places = np.arange(12).reshape(3, 4)[key]
    wanted = np.zeros(12, "float32")
    np.add.at(wanted, places.reshape(-1), weights.reshape(-1))
    np.testing.assert_allclose(x.grad.numpy().reshape(-1), wanted)


def test_gradient_of_writing() -> None:
    w = flambeau.ones(3, requires_grad=True)
    v = flambeau.ones(1, requires_grad=True)
    z = w * 2
    z[1:2] = v * 5
    z[0:1].mul_(3)
    z.sum().backward()
    assert w.grad.tolist() == [6, 0, 2] and v.grad.tolist() == [5]


def test_index_tensors_of_other_types() -> None:
    x, array = base()
    for kind in ("int32", "int64"):
        i = flambeau.tensor([2, 0], dtype=getattr(flambeau, kind))
        np.testing.assert_array_equal(x[i].numpy(), array[[2, 0]])
    assert x[flambeau.tensor(1)].tolist() == array[1].tolist()
    assert x[flambeau.tensor([1, 0, 1], dtype=flambeau.uint8)].shape == (2, 4)


def test_values_of_other_dtypes_are_converted() -> None:
    x = flambeau.zeros(4, dtype=flambeau.int64)
    x[1] = 2.7
    x[flambeau.tensor([0])] = flambeau.tensor([3.9])
    assert x.tolist() == [3, 2, 0, 0]


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (7, IndexError),
        ((0, 0, 0), IndexError),
        ([0, 9], IndexError),
        ([True, False], IndexError),
        (1.5, IndexError),
        ("a", TypeError),
        (([0, 1], [0, 1, 2]), IndexError),
        ((..., ...), IndexError),
    ],
)
def test_bad_keys(key, kind) -> None:
    x, _ = base()
    with pytest.raises(kind):
        x[key]
    with pytest.raises(kind):
        x[key] = 0


def test_values_that_do_not_fit() -> None:
    x = flambeau.zeros(5)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x[flambeau.arange(4)] = flambeau.ones(4, 1)
    with pytest.raises(RuntimeError, match="must broadcast"):
        x[1:3] = flambeau.ones(3)


def test_writes_to_overlapping_memory() -> None:
    wide = flambeau.tensor([[0], [1]]).expand(2, 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        wide.masked_fill_(flambeau.tensor([[True, False, False, False]] * 2), 3)
    b = flambeau.arange(8).view(2, 4)
    b[:, 1:].add_(b[:, :-1])
    assert b.tolist() == [[0, 1, 3, 5], [4, 9, 11, 13]]
    x = flambeau.arange(4)
    x.index_add_(0, flambeau.tensor([3, 2, 1, 0]), x)
    assert x.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda x, i: x.gather(0, i), RuntimeError),
        (lambda x, i: x.index_select(0, i), IndexError),
        (lambda x, i: x.take(i), IndexError),
        (lambda x, i: x.scatter(0, i, 1.0), RuntimeError),
        (lambda x, i: x.index_add(0, i, flambeau.ones(1)), IndexError),
        (lambda x, i: x.index_fill(0, i, 1.0), IndexError),
        (lambda x, i: flambeau.index_put(x, (i,), flambeau.ones(1)), IndexError),
        (lambda x, i: flambeau.nn.functional.embedding(i, x.view(4, 1)), IndexError),
    ],
)
def test_indices_out_of_bounds(call, kind) -> None:
    with pytest.raises(kind, match="got 9"):
        call(flambeau.arange(4.0), flambeau.tensor([9]))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16384, 16385, 100003])
def test_nonzero_of_many(count: int) -> None:
    mask = np.random.default_rng(count).random(count) > 0.7
    np.testing.assert_array_equal(flambeau.from_numpy(mask).nonzero().numpy().reshape(-1), np.flatnonzero(mask))


def test_scatter_does_not_depend_on_threads() -> None:
    rng = np.random.default_rng(0)
    x, i = flambeau.from_numpy(rng.random((50, 300), "float32")), flambeau.from_numpy(rng.integers(0, 20, 50))
    before = flambeau.get_num_threads()
    found = []
    for threads in (1, 2, 4):
        flambeau.set_num_threads(threads)
        found.append(flambeau.zeros(20, 300).index_add(0, i, x).numpy())
    flambeau.set_num_threads(before)
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()


# ---------------------------------------------------------------------- batches
RNG = np.random.default_rng(0)
B = 3


def floats(*shape: int):
    return lambda batch: flambeau.from_numpy(RNG.random((*batch, *shape)))


def ints(high: int, *shape: int):
    return lambda batch: flambeau.from_numpy(RNG.integers(0, high, (*batch, *shape)))


def put(x, i, v):
    y = x.clone()
    y[i] = v
    return y


BATCHED = {
    "index 0": (lambda x, i: x[i], floats(4, 5), ints(4, 3)),
    "index 1": (lambda x, i: x[:, i], floats(4, 5, 6), ints(5, 3, 2)),
    "index 0 and 1": (lambda x, i, j: x[i, j], floats(4, 5, 6), ints(4, 3), ints(5, 2, 3)),
    "index 0 and 2": (lambda x, i, j: x[i, :, j], floats(4, 5, 6), ints(4, 3), ints(6, 2, 3)),
    "index 1 and 2": (lambda x, i, j: x[:, i, j], floats(4, 5, 6), ints(5, 3, 1), ints(6, 3)),
    "gather": (lambda x, i: x.gather(1, i), floats(4, 5), ints(5, 4, 3)),
    "index_select": (lambda x, i: x.index_select(1, i), floats(4, 5, 2), ints(5, 3)),
    "embedding": (lambda w, i: flambeau.nn.functional.embedding(i, w), floats(4, 5), ints(4, 3, 2)),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), floats(4, 5), ints(5, 4, 3), floats(4, 3)),
    "index_put": (
        lambda x, i, j, s: flambeau.index_put(x, (i, None, j), s, True),
        floats(4, 5, 2),
        ints(4, 3),
        ints(2, 3),
        floats(3, 1),
    ),
    "cat": (lambda a, b: flambeau.cat((a, b), -1), floats(4, 5), floats(4, 2)),
    "select_scatter": (lambda a, b: flambeau.select_scatter(a, b, 1, 2), floats(4, 5), floats(4)),
    "setitem": (put, floats(4, 5), ints(4, 1), floats(5)),
    "gradient of gather": (lambda x, i: grad(lambda a: (a.gather(1, i) ** 2).sum())(x), floats(4, 5), ints(5, 4, 3)),
    "gradient of a slice": (lambda x: grad(lambda a: (a[1:3, ::2] ** 2).sum())(x), floats(4, 5)),
}


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.filterwarnings("error")
def test_batches(name: str) -> None:
    function, *makers = BATCHED[name]
    for dims in itertools.product((0, None), repeat=len(makers)):
        if all(d is None for d in dims):
            continue
        inputs = [make((B,) if d == 0 else ()) for make, d in zip(makers, dims)]
        got = vmap(function, in_dims=dims)(*inputs)
        for b in range(B):
            wanted = function(*[x[b] if d == 0 else x for x, d in zip(inputs, dims)])
            np.testing.assert_allclose(got[b].numpy(), wanted.numpy(), err_msg=f"{name}, in_dims {dims}")
