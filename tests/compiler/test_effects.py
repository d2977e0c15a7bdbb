"""Side effects of compiled functions happen at each call, as they would eagerly; what cannot be repeated runs eagerly or raises."""

from __future__ import annotations

import collections
import io
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from random import randint
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.compiler import CompileError
from tests.compiler.conftest import equal, traces

COUNT = 0
LOG: list = []


def ones() -> Any:
    return torch.ones(3)


def test_print_is_repeated(capsys: pytest.CaptureFixture) -> None:
    def f(x: Any) -> Any:
        print("called", x.shape[0], sep=": ")
        return x + 1

    g = torch.compile(f, fullgraph=True)
    for _ in range(3):
        g(ones())
    assert capsys.readouterr().out == "called: 3\n" * 3
    assert traces(g) == 1


def test_print_of_a_tensor(capsys: pytest.CaptureFixture) -> None:
    def f(x: Any) -> Any:
        y = x + 1
        print(y)
        return y * 2

    g = torch.compile(f)
    g(ones())
    g(ones() * 2)
    assert capsys.readouterr().out.split("\n")[:2] == [str(ones() + 1), str(ones() + 2)]


def test_append_to_a_list_from_outside() -> None:
    kept: list = []

    def f(x: Any) -> Any:
        y = x * 2
        kept.append(y)
        kept.append("text")
        return y + 1

    g = torch.compile(f, fullgraph=True)
    for i in range(3):
        g(ones() * i)
    assert len(kept) == 6
    for i in range(3):
        equal(kept[2 * i], ones() * 2 * i)
    assert traces(g) == 1


def test_append_to_an_attribute() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.seen: list = []
            self.last: Any = None

        def run(self, x: Any) -> Any:
            y = x.exp()
            self.seen.append(y.sum())
            self.last = y
            return y

    r = Recorder()
    f = torch.compile(r.run, fullgraph=True)
    for i in range(3):
        y = f(ones() * i)
        assert r.last is y
    assert len(r.seen) == 3
    equal(r.seen[2], (ones() * 2).exp().sum())


def test_dict_items() -> None:
    table: dict = {}

    def f(x: Any) -> Any:
        table["out"] = x + 1
        table["n"] = 3
        return x

    g = torch.compile(f, fullgraph=True)
    for i in range(3):
        g(ones() * i)
        equal(table["out"], ones() * i + 1)
        table.clear() if i == 1 else None


def test_a_dict_argument_is_filled() -> None:
    def f(x: Any, cache: dict) -> Any:
        cache["y"] = x * 2
        return x + 1

    g = torch.compile(f)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(3):
            cache: dict = {}
            equal(g(ones() * i, cache), ones() * i + 1)
            equal(cache["y"], ones() * i * 2)
    with pytest.raises(CompileError, match="argument"):
        torch.compile(f, fullgraph=True)(ones(), {})


def test_sets_and_deques() -> None:
    names: set = set()
    last = collections.deque(maxlen=2)
    queue: Any = collections.deque()

    def f(x: Any) -> Any:
        names.add("a")
        queue.append(x.sum())
        return x + 1

    g = torch.compile(f, fullgraph=True)
    for _ in range(3):
        g(ones())
    assert names == {"a"} and len(queue) == 3
    h = torch.compile(lambda x: last.append(x.sum()))
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            h(ones())
    assert len(last) == 2


def test_globals_that_are_set() -> None:
    def f(x: Any) -> Any:
        global LAST
        LAST = x * 2
        return x

    g = torch.compile(f, fullgraph=True)
    for i in range(3):
        g(ones() * i)
        equal(LAST, ones() * 2 * i)


def test_counters_run_eagerly() -> None:
    def f(x: Any) -> Any:
        global COUNT
        COUNT += 1
        return x * COUNT

    line = f.__code__.co_firstlineno + 2
    with pytest.raises(CompileError, match=rf"test_effects.py:{line}.*COUNT"):
        torch.compile(f, fullgraph=True)(ones())
    assert COUNT == 0
    g = torch.compile(f)
    with pytest.warns(UserWarning, match=rf"runs eagerly.*test_effects.py:{line}"):
        first = g(ones())
    equal([first, g(ones()), g(ones())], [ones(), ones() * 2, ones() * 3])


def test_counters_in_attributes() -> None:
    class Counter:
        n = 0

        def run(self, x: Any) -> Any:
            self.n += 1
            return x * self.n

    c = Counter()
    g = torch.compile(c.run)
    with pytest.warns(UserWarning, match="runs eagerly.*sets self.n"):
        results = [g(ones()) for _ in range(3)]
    equal(results, [ones(), ones() * 2, ones() * 3])
    assert c.n == 3


def test_counters_in_closures() -> None:
    n = 0

    def f(x: Any) -> Any:
        nonlocal n
        n += 1
        return x * n

    g = torch.compile(f)
    with pytest.warns(UserWarning, match="runs eagerly.*sets n"):
        results = [g(ones()) for _ in range(3)]
    equal(results, [ones(), ones() * 2, ones() * 3])
    assert n == 3


def test_counters_in_containers() -> None:
    counts = {"n": 0}

    def f(x: Any) -> Any:
        counts["n"] += 1
        return x * counts["n"]

    g = torch.compile(f)
    with pytest.warns(UserWarning, match="runs eagerly"):
        results = [g(ones()) for _ in range(3)]
    equal(results, [ones(), ones() * 2, ones() * 3])


def test_writes_that_are_not_read_are_repeated() -> None:
    class State:
        n = 0

    s = State()

    def f(x: Any) -> Any:
        s.n = 5
        return x + 1

    g = torch.compile(f, fullgraph=True)
    for _ in range(2):
        s.n = 0
        g(ones())
        assert s.n == 5


def test_objects_made_inside_are_the_functions_own() -> None:
    class Point:
        def __init__(self, x: Any):
            self.x, self.parts = x, []

        def add(self, y: Any) -> Point:
            self.parts.append(y)
            self.x = self.x + y
            return self

    def f(x: Any) -> Any:
        p, table, items = Point(x), {}, []
        for i in range(3):
            p.add(x * i)
            table[i] = p.x
            items.append(table[i])
            items[0] = x
        return sum(items) + p.x, len(p.parts)

    g = torch.compile(f, fullgraph=True)
    for _ in range(2):
        equal(g(ones()), f(ones()))
    assert traces(g) == 1


def test_a_new_object_is_returned_each_time() -> None:
    class Box:
        def __init__(self, value: Any):
            self.value = value

    def f(x: Any) -> Any:
        return Box(x * 2)

    g = torch.compile(f)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(3):
            equal(g(ones() * i).value, ones() * 2 * i)


def test_deleting_is_not_lost() -> None:
    class State:
        pass

    s = State()

    def f(x: Any) -> Any:
        if hasattr(s, "n"):
            del s.n
        return x + 1

    g = torch.compile(f)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            s.n = 1
            g(ones())
            assert not hasattr(s, "n")


def test_sorting_and_popping() -> None:
    stack = [3, 1, 2]

    def f(x: Any) -> Any:
        return x * stack.pop()

    g = torch.compile(f)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [g(ones())[0].item() for _ in range(3)] == [2, 1, 3]
    assert stack == []


def test_clocks_and_random_numbers_of_python() -> None:
    import random
    import time

    for f in (lambda x: x * random.random(), lambda x: x + time.time()):
        with pytest.raises(CompileError, match="test_effects.py"):
            torch.compile(f, fullgraph=True)(ones().double())
        g = torch.compile(f)
        with pytest.warns(UserWarning, match="runs eagerly"):
            a = g(ones().double())
        time.sleep(0.001)
        assert not torch.equal(a, g(ones().double()))


def test_numpy_random_numbers() -> None:
    import numpy as np

    def f(x: Any) -> Any:
        return x * float(np.random.rand())

    g = torch.compile(f)
    with pytest.warns(UserWarning, match="runs eagerly"):
        a = g(ones())
    assert not torch.equal(a, g(ones()))


def test_files(tmp_path: Any) -> None:
    path = tmp_path / "log"

    def f(x: Any) -> Any:
        with open(path, "a") as file:
            file.write("x")
        return x + 1

    g = torch.compile(f)
    with pytest.warns(UserWarning, match="runs eagerly"):
        for _ in range(3):
            g(ones())
    assert path.read_text().count("x") >= 3


def test_iterators_from_outside() -> None:
    it = iter(range(10))

    def f(x: Any) -> Any:
        return x * next(it)

    g = torch.compile(f)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = [g(ones())[0].item() for _ in range(3)]
    assert got[0] < got[1] < got[2]


def test_generators_from_outside() -> None:
    def numbers() -> Any:
        n = 1.0
        while True:
            yield n
            n += 1

    source = numbers()

    def f(x: Any) -> Any:
        return x * next(source)

    g = torch.compile(f)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = [g(ones())[0].item() for _ in range(3)]
    assert got[0] < got[1] < got[2]


def test_a_failed_trace_leaves_state_as_it_was() -> None:
    kept: list = []

    class State:
        n = 0

    s = State()

    def f(x: Any) -> Any:
        kept.append(x)
        s.n = 1
        x.add_(1)
        raise KeyError("own")

    g = torch.compile(f)
    x = ones()
    with pytest.raises(KeyError, match="own"):
        g(x)
    assert len(kept) == 1 and s.n == 1 and x.tolist() == [2, 2, 2]


def test_warnings_are_shown() -> None:
    import warnings

    def f(x: Any) -> Any:
        warnings.warn("take care", stacklevel=1)
        return x + 1

    g = torch.compile(f)
    with pytest.warns(UserWarning, match="take care"):
        g(ones())


def _eagerly(function: Callable, *args: Any, calls: int = 3) -> list:
    """Results of calls of a compiled function that runs eagerly, which it says once."""
    g = torch.compile(function)
    with pytest.warns(UserWarning, match="runs eagerly"):
        first = g(*args)
    return [first, *(g(*args) for _ in range(calls - 1))]


@pytest.mark.parametrize("source", ["module", "function", "instance", "numpy", "numpy generator"])
def test_random_numbers_from_elsewhere_are_drawn_as_eagerly(source: str) -> None:
    def run(wrapped: bool) -> list:
        random.seed(3)
        np.random.seed(3)
        instance, generator = random.Random(1), np.random.default_rng(1)
        sources: dict[str, Callable[[], float]] = {
            "module": lambda: random.random(),
            "function": lambda: randint(0, 1000),
            "instance": lambda: instance.random(),
            "numpy": lambda: float(np.random.rand()),
            "numpy generator": lambda: float(generator.random()),
        }
        draw = sources[source]

        def f(x: Any) -> Any:
            return x + draw()

        return _eagerly(f, ones()) if wrapped else [f(ones()) for _ in range(3)]

    equal(run(True), run(False))


def test_what_lies_outside_happens_once_a_call(tmp_path: Path) -> None:
    path, stream, numbers = tmp_path / "log", io.StringIO(), itertools.count()

    def to_file(x: Any) -> Any:
        with open(path, "a") as file:
            file.write("a")
        return x

    def to_stream(x: Any) -> Any:
        stream.write("a")
        return x

    def counted(x: Any) -> Any:
        return x * next(numbers)

    _eagerly(to_file, ones())
    _eagerly(to_stream, ones())
    assert path.read_text() == stream.getvalue() == "aaa"
    assert [x[0].item() for x in _eagerly(counted, ones())] == [0, 1, 2]


def test_the_clock_by_its_own_name() -> None:
    def f(x: Any) -> Any:
        return x, perf_counter()

    first, second, third = (t for _, t in _eagerly(f, ones()))
    assert first < second < third


def test_a_container_that_is_changed_and_then_read() -> None:
    kept: list = []

    def f(x: Any) -> Any:
        kept.append(x)
        return x * len(kept)

    assert [x[0].item() for x in _eagerly(f, ones())] == [1, 2, 3]
    assert len(kept) == 3


def test_a_default_that_is_changed() -> None:
    def f(x: Any, kept: list = []) -> Any:  # noqa: B006
        kept.append(1)
        return x * len(kept)

    assert [x[0].item() for x in _eagerly(f, ones())] == [1, 2, 3]


def test_modes_that_a_function_leaves_behind() -> None:
    def f(x: Any) -> Any:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        return x + torch.ones(3)

    g = torch.compile(f, fullgraph=True)
    for _ in range(2):
        try:
            assert g(ones()).dtype is torch.float64
            assert not torch.is_grad_enabled() and torch.get_default_dtype() is torch.float64
        finally:
            torch.set_grad_enabled(True)
            torch.set_default_dtype(torch.float32)
    assert traces(g) == 1
