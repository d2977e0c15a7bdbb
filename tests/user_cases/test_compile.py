"""Reports of users about compiling, import and size (U130 to U142), and about other frameworks' kernels (U187 to U191)."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau import nn
from flambeau.compiler.compiled import CompiledFunction


def traces(f: CompiledFunction) -> int:
    return sum(len(known) for table in (f.entries, f.symbolic) for known in table.values())


def kernels(f: CompiledFunction) -> int:
    return sum(
        p.kernels for t in (f.entries, f.symbolic) for v in t.values() for e in v for p in e.forward_plans.values()
    )


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_u130_many_instances_and_lengths() -> None:
    """#114511, #171598, Automodel#1650: a limit of recompilations is reached by many modules or varied shapes."""
    layers = [nn.Linear(8, 8) for _ in range(64)]
    compiled = [torch.compile(m, fullgraph=True) for m in layers]
    x = torch.randn(3, 8)
    addresses = set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for m, fast in zip(layers, compiled):
            np.testing.assert_allclose(fast(x).detach().numpy(), m(x).detach().numpy(), rtol=1e-5, atol=1e-6)
            (known,) = fast.__dict__["_compiled"].entries.values()
            (plan,) = known[0].forward_plans.values()
            addresses.add(tuple(getattr(step, "address", None) for step in plan.steps))
        assert len(addresses) == 1, "equal modules have one set of kernels"
        f = torch.compile(lambda x: torch.softmax(x * 2, -1).sum(0), fullgraph=True)
        for n in range(2, 22):
            f(torch.randn(n, 8))
        assert traces(f) <= 2


def test_u130_one_function_over_many_modules() -> None:
    f = torch.compile(lambda m, x: m(x).relu(), fullgraph=True)
    x = torch.randn(3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for m in [nn.Linear(8, 8) for _ in range(20)]:
            np.testing.assert_allclose(f(m, x).detach().numpy(), m(x).relu().detach().numpy(), rtol=1e-5, atol=1e-6)


def test_u131_a_list_that_grows() -> None:
    """torchdynamo#330: a guard on the length of a list compiles again at each step."""
    log: list = []
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        log.append(loss.detach())
        return loss.detach()

    f = torch.compile(step, fullgraph=True)
    for _ in range(10):
        f(torch.randn(3, 4))
    assert len(log) == 10 and traces(f) <= 2


def test_u136_import_brings_nothing_large() -> None:
    """#97106, #143475, #71313, #137260: import takes seconds and pulls pandas in."""
    loaded = run("import sys, flambeau; print(*sys.modules)").split()
    for name in ("pandas", "scipy", "llvmlite", "torch", "sympy", "matplotlib", "multiprocessing"):
        assert name not in loaded, name


def test_u137_size() -> None:
    """#17621, #12609, #26340: an installation of 754 MB."""
    package = Path(torch.__file__).parent
    nbytes = sum(p.stat().st_size for p in package.rglob("*.py"))
    assert nbytes < 10 * 2**20


def test_u139_products_of_int64() -> None:
    """#175966: arange times 1e9 overflows 32 bits when compiled."""

    def f(n: Any) -> Any:
        return torch.arange(11) * n

    n = torch.tensor([1_000_000_000])
    assert torch.compile(f, fullgraph=True)(n)[-1].item() == 10_000_000_000
    assert torch.compile(lambda: torch.arange(11) * 1_000_000_000, fullgraph=True)()[-1].item() == 10_000_000_000


def test_u140_scatter_then_gather() -> None:
    """#191571: a scatter_add of size 1 and a gather in one kernel read before the write."""

    def f(x: Any, index: Any, source: Any) -> Any:
        return x.scatter_add(0, index, source).gather(0, index) * 2

    fast = torch.compile(f, fullgraph=True)
    for n in (1, 2, 7):
        x, index, source = torch.zeros(n), torch.zeros(n, dtype=torch.int64), torch.arange(1.0, n + 1)
        total = n * (n + 1)
        assert fast(x, index, source).tolist() == [float(total)] * n == f(x, index, source).tolist()


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64])
def test_u142_scatter_with_a_scalar(n: int) -> None:
    """#178871: a scatter-add fused with a scalar adds lanes that are out of range."""

    def f(index: Any, value: Any) -> Any:
        return torch.zeros(4).index_add(0, index, value * torch.ones(n)), torch.zeros(4).scatter_add(
            0, index, value.expand(n)
        ).sum()

    fast = torch.compile(f, fullgraph=True)
    index = torch.arange(n) % 4
    added, total = fast(index, torch.tensor(2.0))
    assert added.tolist() == [2.0 * len(range(i, n, 4)) for i in range(4)]
    assert total.item() == 2.0 * n


def test_u187_more_than_32_bits_of_bytes() -> None:
    """tinygrad#3961, #6987: an index of 32 bits in a kernel overflows; here by strides, without the memory."""
    x = torch.arange(8, dtype=torch.int8)
    wide = x[:1].expand(2**31 + 1)
    f = torch.compile(lambda v: v[-3:] + 1, fullgraph=True)
    assert f(wide).tolist() == [1, 1, 1]
    assert wide.numel() == 2**31 + 1


def test_u188_where_keeps_nan_out_of_gradients() -> None:
    """tinygrad#12409: the branch not taken makes the gradient NaN; singular values are asked for."""

    def f(x: Any) -> Any:
        safe = torch.where(x > 0, x, 1.0)
        return torch.where(x > 0, safe.sqrt().log(), 0.0).sum()

    fast = torch.compile(f, fullgraph=True)
    x = torch.tensor([-1.0, 0.0, 4.0], requires_grad=True)
    (g,) = torch.autograd.grad(fast(x), x)
    assert g.tolist() == [0.0, 0.0, 0.125]
    a = torch.randn(4, 3)
    values = torch.compile(lambda a: torch.linalg.svdvals(a), fullgraph=True)(a)
    np.testing.assert_allclose(values.numpy(), np.linalg.svd(a.numpy(), compute_uv=False), rtol=1e-4)


def test_u190_gradient_of_max_pool() -> None:
    """mlx#1234, #2864, #3165: compiling gives NaN or wrong equality, and crashes beyond about 100 ops."""
    f = torch.compile(lambda x: nn.functional.max_pool2d(x, 2).sum(), fullgraph=True)
    x = torch.arange(16.0).reshape(1, 1, 4, 4).requires_grad_()
    for _ in range(2):
        (g,) = torch.autograd.grad(f(x), x)
        wanted = np.zeros((4, 4))
        wanted[1::2, 1::2] = 1
        assert (g.numpy()[0, 0] == wanted).all()


def test_u190_equality_and_long_chains() -> None:
    same = torch.compile(lambda a, b: a == b, fullgraph=True)
    assert same(torch.tensor([1.0, float("nan"), -0.0]), torch.tensor([1.0, float("nan"), 0.0])).tolist() == [
        True,
        False,
        True,
    ]

    def chain(x: Any) -> Any:
        for i in range(200):
            x = x * 1.001 + 0.001 * (i % 5)
        return x

    f = torch.compile(chain, fullgraph=True)
    x = torch.tensor(1.0)
    for _ in range(2):
        np.testing.assert_allclose(f(x).item(), chain(x).item(), rtol=1e-5)
    assert kernels(f) <= 2


def test_u191_long_loops_use_bounded_memory() -> None:
    """mlx#2266, #451, #1499, #2132: long lazy loops explode in memory, and errors come late."""
    x = torch.ones(1000)
    storage = torch.ones(1000)
    for _ in range(10_000):
        x = x + storage
    assert x[0].item() == 10_001
    with pytest.raises(RuntimeError, match="shape|size|broadcast"):
        _ = x + torch.ones(3)


def test_compiled_functions_that_are_dropped_leave_nothing() -> None:
    made = []
    for _ in range(20):
        f = torch.compile(lambda x: x + 1, fullgraph=True)
        f(torch.ones(3))
        (known,) = f.entries.values()
        made.append(weakref.ref(known[0]))
        del f, known
    gc.collect()
    assert not any(ref() for ref in made)
