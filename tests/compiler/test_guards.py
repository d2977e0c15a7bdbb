"""What a compiled function reads is watched: changes are noticed, and what does not matter compiles nothing again."""

from __future__ import annotations

import types
from typing import Any

import pytest

import flambeau as torch
from tests.compiler.conftest import equal, traces

SCALE = 2.0
FACTORS = [1.0, 2.0]
TABLE = {"a": 1.0, "b": 2.0}
WEIGHT = torch.ones(3)


def helper(x: Any) -> Any:
    return x * SCALE


class Config:
    scale = 1.0

    def __init__(self) -> None:
        self.rate, self.names, self.inner = 2.0, ["a"], None


CONFIG = Config()


def ones() -> Any:
    return torch.ones(3)


def test_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    f = torch.compile(lambda x: x * SCALE, fullgraph=True)
    g = torch.compile(lambda x: helper(x) + 1, fullgraph=True)
    for value in (2.0, 3.0, 2, True):
        monkeypatch.setitem(globals(), "SCALE", value)
        for _ in range(2):
            equal(f(ones()), ones() * value)
            equal(g(ones()), ones() * value + 1)


def test_a_helper_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    f = torch.compile(lambda x: helper(x), fullgraph=True)
    equal(f(ones()), ones() * 2)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 1)
    equal(f(ones()), ones() - 1)


def test_a_global_tensor_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    f = torch.compile(lambda x: x + WEIGHT, fullgraph=True)
    equal(f(ones()), ones() * 2)
    monkeypatch.setitem(globals(), "WEIGHT", torch.full((3,), 5.0))
    equal(f(ones()), ones() * 6)
    WEIGHT.fill_(1.0)
    equal(f(ones()), ones() * 2)


def test_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    f = torch.compile(lambda x: x * FACTORS[0], fullgraph=True)
    g = torch.compile(lambda x: sum([x * n for n in FACTORS]), fullgraph=True)
    h = torch.compile(lambda x: x * len(FACTORS), fullgraph=True)
    for change in (
        lambda: None,
        lambda: FACTORS.append(7.0),
        lambda: FACTORS.__setitem__(0, 4.0),
        lambda: FACTORS.pop(),
        lambda: FACTORS.__setitem__(0, 1.0),
    ):
        change()
        for _ in range(2):
            equal(f(ones()), ones() * FACTORS[0])
            equal(g(ones()), ones() * sum(FACTORS))
            equal(h(ones()), ones() * len(FACTORS))


def test_dicts() -> None:
    f = torch.compile(lambda x: x * TABLE["a"], fullgraph=True)
    g = torch.compile(lambda x: sum(x * v for v in TABLE.values()), fullgraph=True)
    h = torch.compile(lambda x: x + 1 if "c" in TABLE else x - 1, fullgraph=True)
    k = torch.compile(lambda x: x * TABLE.get("c", 9.0), fullgraph=True)
    for change in (
        lambda: None,
        lambda: TABLE.update(a=5.0),
        lambda: TABLE.update(c=1.5),
        lambda: TABLE.pop("c"),
        lambda: TABLE.update(a=1.0),
    ):
        change()
        for _ in range(2):
            equal(f(ones()), ones() * TABLE["a"])
            equal(g(ones()), ones() * sum(TABLE.values()))
            equal(h(ones()), ones() + (1 if "c" in TABLE else -1))
            equal(k(ones()), ones() * TABLE.get("c", 9.0))


def test_computed_items() -> None:
    key, which = "a", 1
    f = torch.compile(lambda x: x * TABLE[key] * FACTORS[which], fullgraph=True)
    equal(f(ones()), ones() * TABLE["a"] * FACTORS[1])
    TABLE["a"] = 11.0
    equal(f(ones()), ones() * 11.0 * FACTORS[1])
    which = 0
    equal(f(ones()), ones() * 11.0 * FACTORS[0])
    TABLE["a"] = 1.0


def test_nested_containers() -> None:
    nested = {"layers": [{"scale": 2.0}, {"scale": 3.0}]}

    def f(x: Any) -> Any:
        for layer in nested["layers"]:
            x = x * layer["scale"]
        return x

    g = torch.compile(f, fullgraph=True)
    equal(g(ones()), f(ones()))
    nested["layers"][1]["scale"] = 5.0
    equal(g(ones()), f(ones()))
    nested["layers"].append({"scale": 7.0})
    equal(g(ones()), f(ones()))


def test_closures() -> None:
    n = 2.0

    def f(x: Any) -> Any:
        return x * n

    g = torch.compile(f, fullgraph=True)
    equal(g(ones()), ones() * 2)
    n = 3.0
    equal(g(ones()), ones() * 3)
    n = 2.0
    equal(g(ones()), ones() * 2)
    assert traces(g) == 2


def test_closures_of_inner_functions() -> None:
    n = 2.0

    def inner(x: Any) -> Any:
        return x * n

    def outer(x: Any) -> Any:
        return [inner(y) for y in (x, x + 1)]

    g = torch.compile(outer, fullgraph=True)
    equal(g(ones()), outer(ones()))
    n = 3.0
    equal(g(ones()), outer(ones()))


def test_two_closures_of_one_function() -> None:
    def make(n: float) -> Any:
        return lambda x: x * n

    by = [make(2.0), make(3.0)]
    compiled = [torch.compile(f, fullgraph=True) for f in by]
    for _ in range(2):
        assert [f(ones())[0].item() for f in compiled] == [2, 3]
    g = torch.compile(lambda x: by[0](x) + by[1](x), fullgraph=True)
    assert g(ones())[0].item() == 5


def test_attributes() -> None:
    config = Config()

    def f(x: Any) -> Any:
        return x * config.rate + config.scale + len(config.names)

    g = torch.compile(f, fullgraph=True)
    equal(g(ones()), f(ones()))
    config.rate = 5.0
    equal(g(ones()), f(ones()))
    config.names.append("b")
    equal(g(ones()), f(ones()))
    Config.scale = 4.0
    try:
        equal(g(ones()), f(ones()))
        config.scale = 8.0
        equal(g(ones()), f(ones()))
    finally:
        Config.scale = 1.0


def test_attributes_by_getattr() -> None:
    config = Config()

    def f(x: Any) -> Any:
        return x * getattr(config, "rate") * vars(config)["rate"]  # noqa: B009

    g = torch.compile(f, fullgraph=True)
    equal(g(ones()), f(ones()))
    config.rate = 7.0
    equal(g(ones()), f(ones()))


def test_properties_and_slots() -> None:
    class Slotted:
        __slots__ = ("n",)

        def __init__(self) -> None:
            self.n = 2.0

        @property
        def double(self) -> float:
            return self.n * 2

    s = Slotted()
    g = torch.compile(lambda x: x * s.double + s.n, fullgraph=True)
    equal(g(ones()), ones() * 6)
    s.n = 3.0
    equal(g(ones()), ones() * 9)


def test_attributes_of_an_argument() -> None:
    def f(config: Any, x: Any) -> Any:
        return x * config.rate

    g = torch.compile(f, fullgraph=True)
    a, b = Config(), Config()
    b.rate = 3.0
    for _ in range(2):
        equal(g(a, ones()), f(a, ones()))
        equal(g(b, ones()), f(b, ones()))
    a.rate = 9.0
    equal(g(a, ones()), f(a, ones()))


def test_attributes_of_an_objects_attribute() -> None:
    config = Config()
    config.inner = Config()
    f = torch.compile(lambda x: x * config.inner.rate, fullgraph=True)
    equal(f(ones()), ones() * 2)
    config.inner.rate = 3.0
    equal(f(ones()), ones() * 3)
    config.inner = Config()
    equal(f(ones()), ones() * 2)


def test_modules_of_python() -> None:
    module = types.ModuleType("settings_of_a_test")
    module.rate = 2.0
    f = torch.compile(lambda x: x * module.rate, fullgraph=True)
    equal(f(ones()), ones() * 2)
    module.rate = 3.0
    equal(f(ones()), ones() * 3)


def test_an_attribute_that_is_not_there_yet() -> None:
    config = Config()
    f = torch.compile(lambda x: x * 2 if hasattr(config, "late") else x * getattr(config, "later", 3.0), fullgraph=True)
    equal(f(ones()), ones() * 3)
    config.later = 4.0
    equal(f(ones()), ones() * 4)
    config.late = None
    equal(f(ones()), ones() * 2)
    del config.late, config.later
    equal(f(ones()), ones() * 3)


def test_items_found_by_a_computed_key() -> None:
    class Block:
        def __init__(self, n: float):
            self.n, self.table = n, {"k": n}

        def run(self, x: Any) -> Any:
            return x * self.n

    blocks = [Block(1.0), Block(2.0)]

    def f(x: Any) -> Any:
        for i in range(2):
            x = blocks[i].run(x) + blocks[i].n + blocks[i].table["k"]
        return x + sum([FACTORS[i] * blocks[i].n for i in range(2)])

    g = torch.compile(f, fullgraph=True)
    for change in (
        lambda: None,
        lambda: setattr(blocks[1], "n", 5.0),
        lambda: blocks[0].table.update(k=7.0),
        lambda: blocks.reverse(),
        lambda: setattr(Block, "run", lambda self, x: x - self.n),
    ):
        change()
        for _ in range(2):
            equal(g(ones()), f(ones()))


def test_a_method_is_replaced() -> None:
    class Rule:
        def apply(self, x: Any) -> Any:
            return x * 2

    rule = Rule()
    f = torch.compile(lambda x: rule.apply(x), fullgraph=True)
    equal(f(ones()), ones() * 2)
    Rule.apply = lambda self, x: x * 3
    equal(f(ones()), ones() * 3)


def test_global_settings_of_the_framework() -> None:
    f = torch.compile(lambda x: x * 2 if torch.is_grad_enabled() else x * 3, fullgraph=True)
    for _ in range(2):
        equal(f(ones()), ones() * 2)
        with torch.no_grad():
            equal(f(ones()), ones() * 3)


def test_what_does_not_matter_compiles_nothing_again() -> None:
    config = Config()
    unrelated = {"n": 1}
    f = torch.compile(lambda x: x * config.rate + (unrelated is None), fullgraph=True)
    for i in range(5):
        config.names.append(str(i))
        config.other = i
        unrelated["n"] = i
        globals()["ANOTHER"] = i
        torch.nn.Linear(2, 2)
        equal(f(ones()), ones() * 2)
    assert traces(f) == 1


def test_values_of_tensors_compile_nothing_again() -> None:
    f = torch.compile(lambda x: x * WEIGHT, fullgraph=True)
    for i in range(5):
        WEIGHT.fill_(i)
        equal(f(ones()), ones() * i)
    assert traces(f) == 1


def test_a_list_that_grows_every_step() -> None:
    """pytorch/torchdynamo#330."""
    losses: list = []

    def step(x: Any) -> Any:
        return (x * 2).sum()

    f = torch.compile(step, fullgraph=True)
    for _ in range(10):
        losses.append(f(ones()))
    assert traces(f) == 1


def test_values_come_back() -> None:
    config = Config()
    f = torch.compile(lambda x: x * config.rate, fullgraph=True)
    for i in range(12):
        config.rate = i % 3
        equal(f(ones()), ones() * (i % 3))
    assert traces(f) == 3


def test_reasons_are_told() -> None:
    config = Config()
    f = torch.compile(lambda x: x * config.rate, fullgraph=True)
    f(ones())
    config.rate = 5.0
    f(ones())
    assert len(f.recompiles) == 1 and "rate" in f.recompiles[0] and "5.0" in f.recompiles[0]
    f(ones().double())
    assert "float64" in f.recompiles[1]


def test_endless_recompilation_ends() -> None:
    config = Config()
    f = torch.compile(lambda x: x * config.rate)
    with pytest.warns(UserWarning, match="runs eagerly: it was compiled .* times.*rate"):
        for i in range(80):
            config.rate = i
            equal(f(ones()), ones() * i)


def test_truth_of_containers() -> None:
    pending: list = []

    def f(x: Any) -> Any:
        return x + 1 if pending else x - 1

    g = torch.compile(f, fullgraph=True)
    equal(g(ones()), ones() - 1)
    pending.append(1)
    equal(g(ones()), ones() + 1)
    pending.clear()
    equal(g(ones()), ones() - 1)


def test_isinstance_and_classes() -> None:
    class A:
        pass

    class B(A):
        pass

    thing: Any = A()
    f = torch.compile(lambda x: x * 2 if isinstance(thing, B) else x * 3, fullgraph=True)
    equal(f(ones()), ones() * 3)
    thing = B()
    equal(f(ones()), ones() * 2)


def test_container_in_an_attribute_by_method() -> None:
    class Holder:
        def __init__(self) -> None:
            self.items = {"a": 1.0}

        def total(self) -> float:
            return sum(self.items.values())

        def run(self, x: Any) -> Any:
            return x * self.total()

    h = Holder()
    f = torch.compile(h.run, fullgraph=True)
    equal(f(ones()), ones())
    h.items["b"] = 4.0
    equal(f(ones()), ones() * 5)
    h.items = {"c": 2.0}
    equal(f(ones()), ones() * 2)


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    def f(x: Any) -> Any:
        return x * float(os.environ.get("FLAMBEAU_TEST_FACTOR", "1"))

    g = torch.compile(f)
    equal(g(ones()), ones())
    monkeypatch.setenv("FLAMBEAU_TEST_FACTOR", "3")
    equal(g(ones()), ones() * 3)


class _Steps(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        self.steps = getattr(self, "steps", 0) + 1
        return x * self.steps


def test_an_attribute_that_a_module_gets_in_its_first_call() -> None:
    module = _Steps()
    g = torch.compile(module)
    with pytest.warns(UserWarning, match="runs eagerly.*steps"):
        found = [g(torch.ones(1)).item() for _ in range(3)]
    assert found == [1, 2, 3] and module.steps == 3


def test_a_method_replaced_on_the_object() -> None:
    class Scaled:
        def apply(self, x: Any) -> Any:
            return x * 2

    scaled = Scaled()
    g = torch.compile(lambda x: scaled.apply(x), fullgraph=True)
    equal(g(torch.ones(3)), torch.full((3,), 2.0))
    scaled.apply = lambda x: x * 7  # type: ignore[method-assign]
    equal(g(torch.ones(3)), torch.full((3,), 7.0))


def test_attributes_by_computed_names() -> None:
    options = types.SimpleNamespace(a=1.0, b=2.0)
    g = torch.compile(lambda x: sum(x * getattr(options, name) for name in ("a", "b")), fullgraph=True)
    equal(g(torch.ones(3)), torch.full((3,), 3.0))
    options.a = 5.0
    equal(g(torch.ones(3)), torch.full((3,), 7.0))


def test_zeros_of_either_sign_are_two_numbers() -> None:
    for zero in (0.0, -0.0, 0.0):
        equal(1 / torch.compile(lambda x: x * zero)(torch.ones(5)), 1 / (torch.ones(5) * zero))


def test_hooks_of_a_parameter_that_come_and_go() -> None:
    w = torch.ones(3, requires_grad=True)

    def step(x: Any) -> None:
        (w * x).sum().backward()

    g = torch.compile(step, fullgraph=True)
    found = []
    for hooked in (False, True, False):
        handle = w.register_hook(lambda grad: grad * 10) if hooked else None
        w.grad = None
        g(torch.ones(3))
        found.append(w.grad[0].item())
        if handle is not None:
            handle.remove()
    assert found == [1, 10, 1]
