"""Python of every kind inside compiled functions, and functions of every kind compiled."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import itertools
import operator
import subprocess
import sys
from typing import Any

import pytest

import flambeau as torch
from flambeau.compiler import CompileError
from tests.compiler.conftest import equal, same, traces


def ones() -> Any:
    return torch.ones(3)


# ------------------------------------------------------------------ what is compiled
def test_builtin_functions_and_ops() -> None:
    x, y = torch.randn(3), torch.randn(3)
    for f, args in (
        (torch.add, (x, y)),
        (torch.nn.functional.relu, (x,)),
        (torch.Tensor.sin, (x,)),
        (operator.mul, (x, y)),
        (torch.linalg.norm, (x,)),
        (sum, ([x, y],)),
        (x.add, (y,)),
    ):
        g = torch.compile(f, fullgraph=True)
        for _ in range(2):
            equal(g(*args), f(*args))


def test_partial_and_callable_objects() -> None:
    class Scale:
        def __init__(self, n: float):
            self.n = n

        def __call__(self, x: Any) -> Any:
            return x * self.n

    s = Scale(3.0)
    f = torch.compile(functools.partial(lambda a, x, b: a * x + b, 2.0, b=torch.ones(3)), fullgraph=True)
    g = torch.compile(s, fullgraph=True)
    for _ in range(2):
        equal(f(ones()), ones() * 3)
        equal(g(ones()), ones() * 3)
    s.n = 5.0
    equal(g(ones()), ones() * 5)


def test_methods_static_methods_and_class_methods() -> None:
    class A:
        n = 2.0

        @torch.compile(fullgraph=True)
        def plain(self, x: Any) -> Any:
            return x * self.n

        @staticmethod
        @torch.compile(fullgraph=True)
        def static(x: Any) -> Any:
            return x + 1

        @classmethod
        def of_class(cls, x: Any) -> Any:
            return x * cls.n

    a = A()
    equal(a.plain(ones()), ones() * 2)
    equal(A.static(ones()), ones() * 2)
    f = torch.compile(A.of_class, fullgraph=True)
    equal(f(ones()), ones() * 2)
    A.n = 4.0
    equal(f(ones()), ones() * 4)
    equal(a.plain(ones()), ones() * 4)


def test_functions_from_text() -> None:
    scope: dict = {"torch": torch, "n": 2.0}
    exec("def f(x):\n    y = x * n\n    return y + 1\n", scope)
    f = torch.compile(scope["f"], fullgraph=True)
    equal(f(ones()), ones() * 3)
    scope["n"] = 3.0
    equal(f(ones()), ones() * 4)


def test_a_program_on_stdin() -> None:
    text = (
        "import flambeau as torch\nn = 2.0\n@torch.compile(fullgraph=True)\ndef f(x):\n    return x * n\n"
        "print(f(torch.ones(2)).tolist())\nn = 3.0\nprint(f(torch.ones(2)).tolist())\n"
    )
    done = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[2.0, 2.0]", "[3.0, 3.0]"]


def test_wrapped_functions() -> None:
    def twice(f: Any) -> Any:
        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return f(*args, **kwargs) * 2

        return wrapper

    same(twice(lambda x: x + 1), ones())


def test_cached_functions() -> None:
    @functools.lru_cache
    def table(n: int) -> list:
        return [float(i) for i in range(n)]

    same(lambda x: x * sum(table(4)), ones())


# ------------------------------------------------------------------ what is inside
def test_comprehensions_and_generators() -> None:
    scales = (1.0, 2.0, 3.0)

    def numbers(x: Any) -> Any:
        for s in scales:
            yield x * s

    def f(x: Any) -> Any:
        return (
            [x * s for s in scales],
            sum(x + i for i in range(3)),
            {k: x * k for k in (1, 2)},
            list(numbers(x)),
            [(lambda: x * s)() for s in scales],
            list(map(x.sub, scales)),
        )

    same(f, ones())


def test_a_generator_as_result_runs_eagerly() -> None:
    """Its ops would run when the trace is over."""

    def f(x: Any) -> Any:
        return (x * i for i in range(3))

    with pytest.raises(CompileError, match="generator"):
        torch.compile(f, fullgraph=True)(ones())
    g = torch.compile(f)
    with pytest.warns(UserWarning, match="runs eagerly.*generator"):
        for _ in range(2):
            equal(list(g(ones())), list(f(ones())))


def test_recursion() -> None:
    def power(x: Any, n: int) -> Any:
        return x if n == 0 else power(x * 2, n - 1)

    same(power, ones(), 5)
    fast = torch.compile(lambda x, n: x if n == 0 else fast(x * 2, n - 1), fullgraph=True)
    equal(fast(ones(), 4), ones() * 16)


def test_nested_compile() -> None:
    inner = torch.compile(lambda x: x * 2, fullgraph=True)
    outer = torch.compile(lambda x: inner(x) + inner(x + 1), fullgraph=True)
    for _ in range(2):
        equal(outer(ones()), ones() * 6)
    assert traces(inner) == 0 and traces(outer) == 1
    equal(inner(ones()), ones() * 2)


def test_compile_inside_of_a_compiled_function() -> None:
    def f(x: Any) -> Any:
        return torch.compile(lambda y: y + 1)(x) * 2

    same(f, ones())


def test_context_managers_and_exceptions() -> None:
    @contextlib.contextmanager
    def scaled(n: float) -> Any:
        yield n

    def f(x: Any) -> Any:
        with scaled(2.0) as n, torch.no_grad(), contextlib.suppress(KeyError):
            x = x * n
            raise KeyError
        return x + 1

    same(f, ones())


def test_classes_made_inside() -> None:
    def f(x: Any) -> Any:
        @dataclasses.dataclass
        class P:
            x: Any
            y: Any = 2

            def total(self) -> Any:
                return self.x * self.y

        return P(x).total() + P(x, 3).total()

    same(f, ones())


def test_enums_match_and_walrus() -> None:
    class Kind(enum.Enum):
        A = 1
        B = 2

    def f(x: Any, kind: Kind) -> Any:
        match kind:
            case Kind.A:
                return x + 1
            case Kind.B if n := 3:
                return x * n

    g = torch.compile(f, fullgraph=True)
    for kind in (Kind.A, Kind.B, Kind.A):
        equal(g(ones(), kind), f(ones(), kind))


def test_star_arguments_and_unpacking() -> None:
    def f(*xs: Any, **more: Any) -> Any:
        first, *rest = xs
        return torch.stack([first, *rest]).sum(0), {**more, "z": first}

    same(f, ones(), ones(), a=ones(), b=2)


def test_itertools_and_zip() -> None:
    def f(xs: Any) -> Any:
        return [a + b for a, b in itertools.pairwise(xs)], [x * i for i, x in zip(itertools.count(), xs)]

    same(f, [ones(), ones() * 2, ones() * 3])


def test_strings_and_asserts() -> None:
    def f(x: Any, mode: str) -> Any:
        assert x.ndim == 1, f"expected one dim, got {x.shape}"
        return x.sum() if mode.startswith("s") else x.mean()

    g = torch.compile(f, fullgraph=True)
    for mode in ("sum", "mean", "sum"):
        equal(g(ones(), mode), f(ones(), mode))
    with pytest.raises(AssertionError, match="expected one dim"):
        g(torch.ones(2, 2), "sum")


def test_many_ops() -> None:
    """mlx#3165: chains of hundreds of ops, called twice."""

    def f(x: Any) -> Any:
        for i in range(200):
            x = x * 1.01 + (i % 3) * 0.01
        return x

    same(f, torch.randn(5))
    same(f, torch.tensor(1.0))


# ------------------------------------------------------------------ transforms
def test_under_transforms() -> None:
    f = torch.compile(lambda x: (x**2).sum(), fullgraph=True)
    x = torch.randn(4, 3)
    equal(torch.func.grad(f)(x), 2 * x)
    equal(torch.func.vmap(f)(x), (x**2).sum(1))
    equal(torch.func.vmap(torch.func.grad(f))(x), 2 * x)
    _, tangent = torch.func.jvp(f, (x,), (torch.ones(4, 3),))
    equal(tangent, (2 * x).sum())
    equal(f(x), (x**2).sum())


def test_transforms_inside() -> None:
    def loss(w: Any, x: Any) -> Any:
        return torch.tanh(x @ w).sum()

    def f(w: Any, x: Any) -> Any:
        return (
            torch.func.grad(loss)(w, x),
            torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x),
            torch.func.jvp(lambda v: loss(v, x), (w,), (w,))[1],
            torch.func.vjp(lambda v: loss(v, x), w)[1](torch.tensor(1.0))[0],
            torch.func.hessian(lambda v: loss(v, x))(w),
        )

    same(f, torch.randn(3), torch.randn(4, 3))


def test_compiled_transforms() -> None:
    def loss(w: Any, x: Any) -> Any:
        return ((x @ w) ** 2).mean()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    same(per_sample, torch.randn(3), torch.randn(5, 3))


def test_functional_call() -> None:
    net = torch.nn.Linear(3, 2)
    params = {k: v.detach() * 2 for k, v in net.named_parameters()}

    def f(params: Any, x: Any) -> Any:
        return torch.func.functional_call(net, params, (x,))

    g = torch.compile(f, fullgraph=True)
    x = torch.randn(4, 3)
    for _ in range(2):
        equal(g(params, x), f(params, x))
    equal(net(x).detach() - net.bias.detach(), (f(params, x) - params["bias"]) / 2)


def test_tensor_subclasses_and_modes_see_each_call() -> None:
    class Seen(torch.Tensor):
        names: list = []

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.names.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    f = torch.compile(lambda x: x * 2 + 1)
    x = torch.ones(2).as_subclass(Seen)
    y = f(x)
    assert isinstance(y, Seen) and len(Seen.names) >= 2
