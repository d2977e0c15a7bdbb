"""Options, stances, `explain`, `reset`, `disable`, threads and exceptions."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from typing import Any

import pytest

import flambeau as torch
from flambeau.compiler import CompileError
from tests.compiler.conftest import equal, traces

C = torch.compiler


def ones(n: int = 3) -> Any:
    return torch.ones(n)


# ------------------------------------------------------------------ options
def test_forms_of_the_decorator() -> None:
    @torch.compile
    def f(x: Any) -> Any:
        """Words."""
        return x + 1

    @torch.compile(fullgraph=True, dynamic=False, mode="max-autotune")
    def g(x: Any) -> Any:
        return x + 1

    assert f.__name__ == "f" and f.__doc__ == "Words."
    equal((f(ones()), g(ones())), (ones() + 1, ones() + 1))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", None])
def test_modes(mode: Any) -> None:
    equal(torch.compile(lambda x: x * 2, mode=mode)(ones()), ones() * 2)


def test_wrong_options() -> None:
    for options, text in (
        ({"mode": "fast"}, "mode"),
        ({"backend": "nvfuser"}, "backend"),
        ({"mode": "default", "options": {}}, "either mode or options"),
    ):
        with pytest.raises(RuntimeError, match=text):
            torch.compile(lambda x: x, **options)
    with pytest.raises(TypeError, match="function or module"):
        torch.compile(3)


def test_other_backends_and_disable() -> None:
    def f(x: Any) -> Any:
        return x

    assert torch.compile(f, backend="eager") is f
    assert torch.compile(f, disable=True) is f
    assert "inductor" in C.list_backends()


def test_compiling_twice_is_compiling_once() -> None:
    f = torch.compile(lambda x: x + 1)
    equal(torch.compile(f)(ones()), ones() + 1)


# ------------------------------------------------------------------ stances
def test_force_eager() -> None:
    f = torch.compile(lambda x: x + 1, fullgraph=True)
    with C.set_stance("force_eager"):
        equal(f(ones()), ones() + 1)
    assert traces(f) == 0
    f(ones())
    assert traces(f) == 1


def test_fail_and_eager_on_recompile() -> None:
    f = torch.compile(lambda x: x + 1, fullgraph=True)
    f(ones())
    with C.set_stance("fail_on_recompile"):
        equal(f(ones()), ones() + 1)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            f(ones().double())
    with C.set_stance("eager_on_recompile"):
        equal(f(ones().double()), ones().double() + 1)
    assert traces(f) == 1


def test_eager_then_compile() -> None:
    f = torch.compile(lambda x: x + 1, fullgraph=True)
    with C.set_stance("eager_then_compile"):
        f(ones(3))
        assert traces(f) == 0
        f(ones(4))
        f(ones(5))
    assert traces(f) == 1


def test_stances_nest_and_decorate() -> None:
    f = torch.compile(lambda x: x + 1, fullgraph=True)

    @C.set_stance("force_eager")
    def g(x: Any) -> Any:
        return f(x)

    g(ones())
    assert traces(f) == 0
    with C.set_stance("default"), C.set_stance("force_eager"):
        f(ones())
    f(ones())
    assert traces(f) == 1
    with pytest.raises(ValueError, match="stance"):
        C.set_stance("sometimes")


# ------------------------------------------------------------------ looking at it
def test_explain() -> None:
    n = 2.0

    def f(x: Any) -> Any:
        return (x * n).sum()

    found = C.explain(f)(ones())
    assert (found.graph_count, found.graph_break_count) == (1, 0)
    assert found.op_count >= 2 and found.kernels == 1
    assert "Graph Count: 1" in str(found) and "n is 2.0" in str(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = C.explain(lambda x: x if x.sum() > 0 else -x)(ones())
    assert found.graph_break_count == 1 and "test_api.py" in found.break_reasons[0]
    assert found.graph_count == 0


def test_explain_a_module() -> None:
    net = torch.nn.Linear(3, 2)
    found = C.explain(net)(ones().reshape(1, 3))
    assert found.graph_count == 1
    assert C.explain(torch.compile(net))(ones().reshape(1, 3)).graph_count == 1


def test_reset() -> None:
    f = torch.compile(lambda x: x + 1, fullgraph=True)
    f(ones())
    C.reset()
    assert traces(f) == 0
    equal(f(ones()), ones() + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        g = torch.compile(lambda x: x.item())
        g(ones(1))
    assert g.eager_reason is not None
    C.reset()
    assert g.eager_reason is None


def test_is_compiling() -> None:
    f = torch.compile(lambda x: x + (1 if C.is_compiling() else 2), fullgraph=True)
    equal(f(ones()), ones() * 2)
    assert not C.is_compiling() and not C.is_exporting()


# ------------------------------------------------------------------ parts left out
def test_disable() -> None:
    calls: list = []

    @C.disable
    def part(x: Any) -> Any:
        calls.append(1)
        return x * 2

    f = torch.compile(lambda x: part(x) + 1)
    with pytest.warns(UserWarning, match="part is marked as not to be compiled"):
        for _ in range(3):
            equal(f(ones()), ones() * 3)
    assert len(calls) == 3
    with pytest.raises(CompileError, match="not to be compiled"):
        torch.compile(lambda x: part(x), fullgraph=True)(ones())
    assert C.disable(reason="it logs")(part)(ones()).tolist() == [2, 2, 2]


def test_disable_a_compiled_function() -> None:
    f = torch.compile(lambda x: x + 1)
    g = C.disable(f)
    equal(g(ones()), ones() + 1)
    assert traces(f) == 0


def test_marks_that_change_nothing() -> None:
    @C.allow_in_graph
    @C.nested_compile_region
    def part(x: Any) -> Any:
        return x * 2

    equal(torch.compile(lambda x: part(x), fullgraph=True)(ones()), ones() * 2)
    C.cudagraph_mark_step_begin()


def test_assume_constant_result() -> None:
    calls: list = []

    @C.assume_constant_result
    def count() -> int:
        return 7

    f = torch.compile(lambda x: x * count(), fullgraph=True)
    for _ in range(2):
        equal(f(ones()), ones() * 7)
    assert not calls


# ------------------------------------------------------------------ threads
def test_threads_of_many_sizes() -> None:
    f = torch.compile(lambda x, w: torch.tanh(x @ w).sum(0), fullgraph=True)
    w = torch.randn(4, 4)
    failures: list = []

    def run(seed: int) -> None:
        try:
            for i in range(20):
                x = torch.ones(seed + 2 + i % 5, 4) * seed
                equal(f(x, w), f.function(x, w))
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


def test_threads_with_gradients_and_modes() -> None:
    f = torch.compile(lambda x: (x * x).sum(), fullgraph=True)
    failures: list = []

    def run(grad: bool) -> None:
        try:
            for i in range(30):
                x = torch.full((3 + i % 3,), float(i), requires_grad=True)
                with torch.set_grad_enabled(grad):
                    y = f(x)
                assert y.requires_grad is grad
                if grad:
                    y.backward()
                    equal(x.grad, 2 * x.detach())
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(i % 2 == 0,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


def test_eager_work_in_another_thread_while_tracing() -> None:
    inside, go = threading.Event(), threading.Event()
    seen: list = []

    def other() -> None:
        inside.wait(5)
        seen.append((torch.ones(2) + 1).tolist())
        print("from the other thread", end="")
        go.set()

    t = threading.Thread(target=other)
    t.start()

    def f(x: Any) -> Any:
        inside.set()
        go.wait(5)
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equal(torch.compile(f)(ones()), ones() + 1)
    t.join()
    assert seen == [[2.0, 2.0]]


# ------------------------------------------------------------------ exceptions
class Own(Exception):
    pass


@pytest.mark.parametrize("fullgraph", [True, False])
def test_exceptions_pass_through(fullgraph: bool) -> None:
    raising = True

    def f(x: Any) -> Any:
        y = x + 1
        if raising:
            raise Own("mine")
        return y

    g = torch.compile(f, fullgraph=fullgraph)
    for _ in range(2):
        with pytest.raises(Own, match="mine") as caught:
            g(ones())
        assert any(e.name == "f" for e in caught.traceback)
    raising = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equal(g(ones()), ones() + 1)
    assert traces(g) == 1
    assert sys.gettrace() is None or "pydev" in str(sys.gettrace()) or "coverage" in str(sys.gettrace())


def test_exceptions_that_are_caught_inside() -> None:
    def f(x: Any) -> Any:
        try:
            return x @ torch.ones(7, 7)
        except RuntimeError:
            return x - 1
        finally:
            x = x + 1

    equal(torch.compile(f, fullgraph=True)(ones()), ones() - 1)


def test_errors_of_ops_are_eager_modes() -> None:
    f = torch.compile(lambda x, y: x @ y, fullgraph=True)
    x, y = torch.ones(2, 3), torch.ones(4, 5)
    with pytest.raises(Exception) as eager:
        x @ y
    with pytest.raises(type(eager.value)) as compiled:
        f(x, y)
    assert str(compiled.value) == str(eager.value)


def test_indices_out_of_bounds_raise_at_the_call() -> None:
    f = torch.compile(lambda x, i: x[i] * 2, fullgraph=True)
    equal(f(ones(), torch.tensor([0, 2])), ones(2) * 2)
    with pytest.raises(IndexError):
        f(ones(), torch.tensor([0, 3]))
    equal(f(ones(), torch.tensor([1, 2])), ones(2) * 2)


def test_modes_are_put_back_after_an_exception() -> None:
    def f(x: Any) -> Any:
        with torch.no_grad():
            raise Own

    with pytest.raises(Own):
        torch.compile(f)(ones())
    assert torch.is_grad_enabled() and not C.is_compiling()
    assert (ones() + 1).tolist() == [2, 2, 2]


def test_an_interrupt_leaves_state_as_it_was() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    kept: list = []
    slow = True

    def f(x: Any) -> Any:
        kept.append(1)
        y = x + 1
        if slow:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)
            for _ in range(1000):
                pass
        return y

    g = torch.compile(f)
    try:
        with pytest.raises(KeyboardInterrupt):
            g(ones())
    finally:
        signal.signal(signal.SIGINT, before)
    assert not C.is_compiling() and kept == []
    slow = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equal(g(ones()), ones() + 1)
    assert kept == [1]


def test_system_exit_passes() -> None:
    def f(x: Any) -> Any:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        torch.compile(f)(ones())
    assert not C.is_compiling()


def test_a_debuggers_trace_function_stays() -> None:
    before = sys.gettrace()
    seen: list = []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        seen.append(event)
        return tracer

    f = torch.compile(lambda x: x + 1, fullgraph=True)
    sys.settrace(tracer)
    try:
        f(ones())
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
