"""NumPy and SciPy compute only inside External ops and references: the rest runs where they cannot be imported, or raise when called."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import scipy.linalg
import scipy.special

import flambeau
from flambeau.base import lazy
from flambeau.engine import eager, plan
from flambeau.ir.op import EXTERNAL, REGISTRY
from tests.ops.inputs import cases, flatten, replaced

ROOT = Path(__file__).resolve().parents[2]

# What a program does, in a process where an import of NumPy or SciPy is an error.
PROGRAM = """
import sys


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "scipy"):
            raise AssertionError(f"{name} is imported")


sys.meta_path.insert(0, Refuse())
import flambeau
from flambeau import nn
from flambeau.nn import functional

x = flambeau.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], requires_grad=True)
n = flambeau.tensor([[1, 2], [3, 4]])
print(x, n, flambeau.tensor([True, False]), flambeau.tensor([1 + 2j]), flambeau.zeros(0, 3), flambeau.rand(1000, 1000)[0, 0].shape)
print(repr(x.detach().to(flambeau.bfloat16)), x.tolist(), n.sum().item(), f"{x.sum().item():.2f}")
y = x.exp() + x.sin() * 2.0 - x / 3.0
(y.softmax(1) @ x.t()).logsumexp(0).sum().backward()
assert x.grad.shape == (2, 3)
with flambeau.no_grad():
    x[0, 1] = 7.0
    x[:, 2].mul_(2.0)
print(x[0], x[..., -1], x[x > 0], x[[0, 1], [2, 1]], n.t()[1:], x[None, :, ::2])
flambeau.cat([x, x]).sort(1).values.cumsum(0).var().backward()
x.max(1), x.argmin(), x.topk(2), x.median(), n.unique(), flambeau.where(x > 0, x, 0.0), flambeau.arange(5).float().std()
flambeau.einsum("ij,kj->ik", x, x), x.reshape(3, 2).permute(1, 0), x.to(flambeau.float64).round(), n // 2, n % 3, n << 1
functional.conv2d(flambeau.rand(1, 1, 5, 5), flambeau.rand(2, 1, 3, 3)), functional.max_pool2d(flambeau.rand(1, 1, 4, 4), 2)
functional.layer_norm(x, (3,)), functional.gelu(x), flambeau.special.erf(x), x.abs().lgamma(), x.index_select(0, flambeau.tensor([1, 0]))
flambeau.manual_seed(0)
flambeau.randn(4), flambeau.randperm(5), flambeau.randint(0, 9, (3,)), functional.dropout(x, 0.5)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
data, target = flambeau.randn(16, 3), flambeau.tensor([i % 2 for i in range(16)])
first = None
for _ in range(20):
    loss = functional.cross_entropy(model(data), target)
    first = loss.item() if first is None else first
    loss.backward()
    with flambeau.no_grad():
        for p in model.parameters():
            p -= 0.3 * p.grad
            p.grad = None
assert loss.item() < first
print("done", [m for m in sys.modules if m.split(".")[0] in ("numpy", "scipy")])
"""


def test_a_program_runs_where_numpy_cannot_be_imported() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done []"


class Computes(AssertionError):
    """NumPy or SciPy was called where our kernels should compute."""


MODULES = (numpy, numpy.linalg, numpy.fft, scipy.linalg, scipy.special)
# They look at memory and compute nothing.
READS = {"frombuffer", "dtype", "ndarray", "errstate", "lib"}


@contextlib.contextmanager
def numpy_refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Functions of NumPy and SciPy raise, but inside of External ops."""
    allowed = [0]

    class Guarded:
        """A function, or the `reduce` and `at` of a ufunc."""

        def __init__(self, label: str, function: Any):
            self.label, self.function = label, function

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not allowed[0]:
                raise Computes(f"{self.label} is called")
            return self.function(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            value = getattr(self.function, name)
            return Guarded(f"{self.label}.{name}", value) if callable(value) else value

    with monkeypatch.context() as m:
        for module in MODULES:
            for name, value in list(vars(module).items()):
                function = isinstance(value, (numpy.ufunc, types.FunctionType, types.BuiltinFunctionType))
                function |= type(value).__name__.startswith("_Array")
                if function and not name.startswith("_") and name not in READS:
                    m.setattr(module, name, Guarded(f"{module.__name__}.{name}", value))
        for stand_in in (lazy.np, lazy.scipy_special, lazy.scipy_linalg):  # they remember what they were asked for
            for name in [n for n in vars(stand_in) if n != "_name"]:
                m.delitem(vars(stand_in), name)
        run = plan.run_external

        def run_external(*args: Any) -> None:
            allowed[0] += 1
            try:
                run(*args)
            finally:
                allowed[0] -= 1

        m.setattr(plan, "run_external", run_external)
        yield
    for stand_in in (lazy.np, lazy.scipy_special, lazy.scipy_linalg):
        for name in [n for n in vars(stand_in) if n != "_name"]:
            del vars(stand_in)[name]


def test_the_guard_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    a = numpy.ones(3)
    with numpy_refused(monkeypatch):
        inverse = numpy.linalg.inv
        calls = (
            lambda: numpy.add(a, a),
            lambda: numpy.sum(a),
            lambda: lazy.np.exp(a),
            lambda: scipy.special.erf(a),
            lambda: inverse(a),
        )
        for call in calls:
            with pytest.raises(Computes):
                call()
    assert numpy.add(a, a).tolist() == lazy.np.add(a, a).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.derived
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_ops_compute_without_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first samples of every op, forward and backward: only External ops may ask NumPy."""
    op = REGISTRY[name]
    found = cases(op)[:2]
    eager.forget_plans()
    with numpy_refused(monkeypatch):
        for c in found:
            op(*c.args, **c.kwargs)
            leaves = [t.detach().requires_grad_(t.dtype.is_floating_point) for t in flatten((c.args, c.kwargs))]
            args, kwargs = replaced((c.args, c.kwargs), iter(leaves))
            with contextlib.suppress(NotImplementedError):  # a derivative that is refused, by the op or one inside it
                outs = [o for o in flatten(op(*args, **kwargs)) if o.requires_grad]
                wanted = [t for t in leaves if t.requires_grad]
                if outs:
                    flambeau.autograd.grad(outs, wanted, [flambeau.ones_like(o) for o in outs], allow_unused=True)


def test_external_ops_are_few_and_known() -> None:
    """NumPy and SciPy compute dense linear algebra, Fourier transforms and CTC; another External op is a decision, made here too."""
    external = [op for op in REGISTRY.values() if op.kind == EXTERNAL]
    families = {op.rules.__module__.removeprefix("flambeau.operators.") for op in external}
    assert {f for f in families if not f.startswith("linear_algebra")} <= {"fourier", "losses_sequence"}
    assert external
