"""Loaders: order, batches, workers of every start method, errors, clean-up."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

import flambeau as fb
from flambeau.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)

METHODS = multiprocessing.get_all_start_methods()
SHM = Path("/dev/shm")


def blocks() -> set[str]:
    return {p.name for p in SHM.iterdir() if p.name.startswith("psm_")} if SHM.exists() else set()


class Squares(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"x": fb.full((3,), float(i)), "i": i, "name": f"item {i}", "array": np.full(2, i)}


class Failing(Squares):
    def __getitem__(self, i):
        if i == 5:
            raise LookupError(f"no sample {i}")
        return fb.tensor([i])


class Dying(Squares):
    def __getitem__(self, i):
        if i == 3:
            os._exit(9)
        return i


class Slow(Squares):
    def __getitem__(self, i):
        time.sleep(30)


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, self.n, step))


class Seeds(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return float(fb.rand(1)), get_worker_info().seed, float(np.random.rand())


class Counted(Dataset):
    def __init__(self):
        self.calls = 0

    def __len__(self):
        return 4

    def __getitem__(self, i):
        self.calls += 1
        return self.calls


def refuse(worker_id):
    raise ValueError("not this worker")


def test_batches_in_order():
    for options, sizes in (({}, [4, 4, 2]), ({"drop_last": True}, [4, 4])):
        loader = DataLoader(Squares(10), batch_size=4, **options)
        found = list(loader)
        assert [len(b["i"]) for b in found] == sizes and len(loader) == len(sizes)
        assert (
            found[0]["x"].shape == (4, 3) and found[0]["array"].shape == (4, 2) and found[0]["array"].dtype is fb.int64
        )
        assert found[1]["i"].tolist() == [4, 5, 6, 7] and found[0]["name"][3] == "item 3"


def test_without_batching_and_with_custom_collation():
    assert [type(x["i"]) for x in DataLoader(Squares(2), batch_size=None)] == [int, int]
    assert list(DataLoader(Squares(4), batch_size=2, collate_fn=lambda b: len(b))) == [2, 2]
    batches = DataLoader(Squares(5), batch_sampler=BatchSampler([3, 1, 4], 2, False))
    assert [b["i"].tolist() for b in batches] == [[3, 1], [4]]


def test_shuffle_depends_on_the_generator_alone():
    def order(seed):
        return [
            int(i)
            for b in DataLoader(Squares(50), batch_size=7, shuffle=True, generator=fb.Generator().manual_seed(seed))
            for i in b["i"]
        ]

    assert sorted(order(0)) == list(range(50))
    assert order(0) == order(0) != order(1)
    fb.manual_seed(3)
    first = [b["i"].tolist() for b in DataLoader(Squares(20), shuffle=True)]
    fb.manual_seed(3)
    loader = DataLoader(Squares(20), shuffle=True)
    assert [b["i"].tolist() for b in loader] == first != [b["i"].tolist() for b in loader]


@pytest.mark.parametrize("method", METHODS)
def test_workers_give_the_same_batches(method):
    before = blocks()
    for workers in (1, 3) if method == "fork" else (2,):
        loader = DataLoader(Squares(11), batch_size=2, num_workers=workers, multiprocessing_context=method)
        for mine, theirs in zip(loader, DataLoader(Squares(11), batch_size=2), strict=True):
            assert (
                mine["x"].tolist() == theirs["x"].tolist()
                and mine["i"].tolist() == theirs["i"].tolist()
                and mine["name"] == theirs["name"]
            )
    assert blocks() <= before


def test_worker_tensors_are_ordinary():
    (batch,) = DataLoader(Squares(3), batch_size=3, num_workers=1)
    x = batch["x"]
    del batch
    gc.collect()
    x += 1
    y = (x * 2).requires_grad_()
    (y * y).sum().backward()
    assert x[2].tolist() == [3.0] * 3 and y.grad[2].tolist() == [12.0] * 3


def test_persistent_workers_keep_their_state():
    loader = DataLoader(Counted(), num_workers=1, persistent_workers=True)
    assert [int(x) for x in loader] == [1, 2, 3, 4]
    assert [int(x) for x in loader] == [5, 6, 7, 8]
    iterator = iter(loader)
    next(iterator)  # left in the middle
    assert len(list(loader)) == 4
    assert [int(x) for x in DataLoader(Counted(), num_workers=1)] == [1, 2, 3, 4]


def test_iterable_datasets():
    assert [b.tolist() for b in DataLoader(Stream(7), batch_size=3)] == [[0, 1, 2], [3, 4, 5], [6]]
    found = [b.tolist() for b in DataLoader(Stream(7), batch_size=2, num_workers=2)]
    assert sorted(sum(found, [])) == list(range(7))
    assert found[0] == [0, 2] and found[1] == [1, 3]
    assert [b.tolist() for b in DataLoader(Stream(7), batch_size=2, num_workers=3, drop_last=True)] == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]


def test_workers_have_seeds_of_their_own():
    fb.manual_seed(1)
    first = list(DataLoader(Seeds(), num_workers=2))
    fb.manual_seed(1)
    again = list(DataLoader(Seeds(), num_workers=2))
    assert [[float(v) for v in b] for b in first] == [[float(v) for v in b] for b in again]
    assert len({int(b[1]) for b in first}) == 2
    assert len({float(b[0]) for b in first}) == 8 and len({float(b[2]) for b in first}) == 8


def test_errors_carry_the_traceback_of_the_worker():
    loader = DataLoader(Failing(8), batch_size=2, num_workers=2)
    found = []
    with pytest.raises(LookupError) as e:
        for batch in loader:
            found.append(batch.tolist())
    assert found == [[[0], [1]], [[2], [3]]]
    assert (
        "in DataLoader worker process 0" in str(e.value)
        and "__getitem__" in str(e.value)
        and "no sample 5" in str(e.value)
    )
    with pytest.raises(ValueError, match="not this worker"):
        next(iter(DataLoader(Squares(4), num_workers=1, worker_init_fn=refuse)))


def test_dead_and_slow_workers():
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(DataLoader(Dying(8), num_workers=2))
    start = time.perf_counter()
    with pytest.raises(RuntimeError, match="timed out after 0.3 seconds"):
        list(DataLoader(Slow(2), num_workers=1, timeout=0.3))
    assert time.perf_counter() - start < 20


def test_nothing_is_left_behind():
    before, children = blocks(), {p.pid for p in multiprocessing.active_children()}
    iterator = iter(DataLoader(Squares(1000), batch_size=4, num_workers=2))
    next(iterator)
    del iterator
    gc.collect()
    assert blocks() <= before
    assert {p.pid for p in multiprocessing.active_children()} <= children


@pytest.mark.parametrize(
    "options",
    [dict(num_workers=-1), dict(timeout=-1), dict(prefetch_factor=2), dict(persistent_workers=True), dict(shuffle=True, sampler=[1]),
     dict(batch_sampler=[[1]], batch_size=2), dict(batch_size=None, drop_last=True), dict(multiprocessing_context="fork"), dict(timeout=1)],
    ids=str,
)  # fmt: skip
def test_options_that_exclude_each_other(options):
    with pytest.raises(ValueError):
        iter(DataLoader(Squares(3), **options))
    with pytest.raises(ValueError, match="shuffle"):
        DataLoader(Stream(3), shuffle=True)
    loader = DataLoader(Squares(3))
    with pytest.raises(ValueError, match="should not be set"):
        loader.batch_size = 3


def test_collation():
    Pair = namedtuple("Pair", ["a", "b"])
    assert default_collate([1.5, 2.5]).dtype is fb.float64 and default_collate([1, 2]).dtype is fb.int64
    assert default_collate(["a", "b"]) == ["a", "b"]
    found = default_collate([Pair(1, [2.0]), Pair(3, [4.0])])
    assert type(found) is Pair and found.a.tolist() == [1, 3] and found.b[0].tolist() == [2.0, 4.0]
    assert default_collate([np.float32(1), np.float32(2)]).dtype is fb.float32
    assert default_collate([(1, "x"), (2, "y")])[1] == ("x", "y")
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([[1], [1, 2]])
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([fb.ones(2), fb.ones(3)])
    with pytest.raises(TypeError, match="must contain"):
        default_collate([object()])
    assert default_convert({"a": np.ones(2), "b": "x"})["a"].tolist() == [1.0, 1.0]


def test_datasets_of_datasets():
    a, b = TensorDataset(fb.arange(3), fb.arange(3) * 2), TensorDataset(fb.arange(2), fb.arange(2))
    both = a + b
    assert isinstance(both, ConcatDataset) and len(both) == 5 and [int(both[i][0]) for i in (0, 3, -1)] == [0, 0, 1]
    assert [int(Subset(a, [2, 0])[i][1]) for i in (0, 1)] == [4, 0]
    assert list(ChainDataset([Stream(2), Stream(1)])) == [0, 1, 0]
    assert [int(x) for x in StackDataset(x=a, y=a)[1]["y"]] == [1, 2]
    with pytest.raises(AssertionError, match="Size mismatch"):
        TensorDataset(fb.ones(2), fb.ones(3))
    parts = random_split(range(10), [0.5, 0.3, 0.2], fb.Generator().manual_seed(0))
    assert [len(p) for p in parts] == [5, 3, 2] and sorted(i for p in parts for i in p) == list(range(10))
    assert [list(p) for p in random_split(range(10), [7, 3], fb.Generator().manual_seed(1))] == [
        list(p) for p in random_split(range(10), [7, 3], fb.Generator().manual_seed(1))
    ]
    with pytest.raises(ValueError, match="Sum of input lengths"):
        random_split(range(10), [3, 3])


def test_samplers():
    assert sorted(RandomSampler(range(9))) == list(range(9))
    assert len(list(RandomSampler(range(3), num_samples=8))) == 8
    drawn = list(RandomSampler(range(3), replacement=True, num_samples=100))
    assert set(drawn) == {0, 1, 2} and len(drawn) == 100
    assert sorted(SubsetRandomSampler([3, 5, 7])) == [3, 5, 7]
    weighted = list(WeightedRandomSampler([0.0, 1.0, 3.0], 400))
    assert weighted.count(0) == 0 and 200 < weighted.count(2) < 370
    parts = [list(DistributedSampler(range(7), 3, rank)) for rank in range(3)]
    assert [len(p) for p in parts] == [3, 3, 3] and set(sum(parts, [])) == set(range(7))
    assert list(BatchSampler(range(5), 2, True)) == [[0, 1], [2, 3]] and len(BatchSampler(range(5), 2, False)) == 3


def test_tensors_pickle():
    import copy
    import pickle

    for t in (
        fb.arange(6).reshape(2, 3).t(),
        fb.ones(2, dtype=fb.bfloat16),
        fb.zeros(0, 3),
        fb.ones(2, requires_grad=True),
        fb.nn.Parameter(fb.ones(2)),
    ):
        again = pickle.loads(pickle.dumps(t))
        assert (
            type(again) is type(t)
            and again.dtype is t.dtype
            and again.requires_grad == t.requires_grad
            and again.tolist() == t.tolist()
        )
    model = fb.nn.Sequential(fb.nn.Linear(2, 3), fb.nn.BatchNorm1d(3))
    again = pickle.loads(pickle.dumps(model))
    assert all((a == b).all() for a, b in zip(model.state_dict().values(), again.state_dict().values()))
    assert copy.deepcopy(model)[0].weight.tolist() == model[0].weight.tolist()
    with pytest.raises(RuntimeError, match="non-leaf"):
        pickle.dumps(fb.ones(2, requires_grad=True) * 2)


def _add_one(t):
    t += 1


def test_shared_memory_is_seen_by_forked_processes():
    if "fork" not in METHODS:
        pytest.skip("this system has no fork")
    t = fb.zeros(4).share_memory_()
    assert t.is_shared()
    process = multiprocessing.get_context("fork").Process(target=_add_one, args=(t,))
    process.start()
    process.join()
    assert t.tolist() == [1.0] * 4
