"""Native calls that make tensors and tape nodes: references are counted right, errors leave nothing behind."""

import gc
import sys
import weakref

import pytest

import flambeau
from flambeau.engine import eager
from flambeau.ir.op import REGISTRY
from flambeau.runtime import objects
from flambeau.tape.record import Node


def warm(function, times=3):
    for _ in range(times):
        result = function()
    return result


def made(op, *args):
    """The native function behind a warm call of an op."""
    warm(lambda: REGISTRY[op](*args))
    return eager.maker_of(eager.info_for(REGISTRY[op], REGISTRY[op].arguments(*args)).plan)


def counts(things):
    return [sys.getrefcount(x) for x in things]


def test_a_warm_call_is_native() -> None:
    x = flambeau.ones(4)
    assert type(made("mul", x, x)).__name__ == "builtin_function_or_method"
    assert type(made("sum", x)).__name__ == "builtin_function_or_method"


@pytest.mark.parametrize("form", ["add", "mul", "number", "view", "sum", "softmax", "max", "product"])
def test_calls_keep_no_references(form: str) -> None:
    x, w = flambeau.randn(4, 4), flambeau.randn(4, 4).requires_grad_()
    calls = {
        "add": lambda: x + w,
        "mul": lambda: x * w,
        "number": lambda: w * 2.5,
        "view": lambda: w.transpose(0, 1),
        "sum": lambda: w.sum(),
        "softmax": lambda: w.softmax(1),
        "max": lambda: w.max(1),
        "product": lambda: w @ x,
    }
    call = calls[form]
    result = warm(call)
    specs = [r.spec for r in (result if isinstance(result, tuple) else (result,))]
    watched = [
        x,
        w,
        x.spec,
        w.spec,
        *specs,
        x.storage,
        w.storage,
        None,
        True,
        False,
        Node,
        flambeau.Tensor,
        type(w.storage),
    ]
    del result
    gc.collect()
    gc.disable()
    try:
        objects_before, before = len(gc.get_objects()), counts(watched)
        for _ in range(1000):
            call()
        after, objects_after = counts(watched), len(gc.get_objects())
    finally:
        gc.enable()
    for x0, x1 in zip(before, after):
        assert abs(x1 - x0) < 50
    assert abs(objects_after - objects_before) < 50


def test_blocks_come_back() -> None:
    x = flambeau.randn(37).requires_grad_()
    y = warm(lambda: x * x)
    free = y.spec.free
    del y
    before = len(free)
    for _ in range(200):
        y = x * x
    del y
    assert len(free) == before


def test_a_result_and_its_history_die_with_their_last_reference() -> None:
    x = flambeau.ones(8).requires_grad_()
    warm(lambda: (x * x).sum())
    y = x * x
    z = y.sum()
    seen, node = weakref.ref(y), weakref.ref(y.grad_fn)
    del y
    assert node() is not None  # the sum's node leads to it
    assert seen() is None
    del z
    assert node() is None


def test_what_a_node_notes() -> None:
    x, w = flambeau.ones(3).requires_grad_(), flambeau.ones(3)
    y = warm(lambda: x * w)
    node = y.grad_fn
    assert node.edges == ((None, x), None)
    assert node.versions == (w._version,)
    assert node.saved[0] is w
    assert y.node == (node, 0)
    z = warm(lambda: y.exp())
    assert z.grad_fn.edges == ((node, 0),)
    assert z.grad_fn.saved[0][1:] == (z.ptr, z.storage)
    assert z.grad_fn.sequence > node.sequence


def test_a_view_of_what_was_written_is_asked_for_its_history() -> None:
    base = flambeau.ones(4).requires_grad_() * 1
    part = base[:2]
    warm(lambda: part * 2)
    base.mul_(3)
    result = part * 2
    result.sum().backward()
    assert result.tolist() == [6, 6]


def test_memory_of_others_counts_versions_too() -> None:
    np = pytest.importorskip("numpy")
    w, x = flambeau.from_numpy(np.ones(3, "float32")), flambeau.ones(3).requires_grad_()
    y = warm(lambda: x * w)
    assert y.grad_fn.versions == (0,)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("wrong", ["text", [1.0], object(), type("Like", (), {"spec": None, "ptr": 64})()])
def test_operands_that_are_no_tensors_are_refused(wrong: object) -> None:
    x = flambeau.ones(4)
    make = made("mul", x, x)
    with pytest.raises(TypeError, match="an operand must be a tensor"):
        make(x, wrong)
    with pytest.raises(TypeError, match="as many operands"):
        make(x)
    with pytest.raises(TypeError, match="as many operands"):
        make(*[x] * 500)


def test_numbers_too_large_for_a_slot() -> None:
    x = flambeau.ones(4)
    make = made("mul", x, 2)
    with pytest.raises(OverflowError):
        make(x, 1 << 70)
    assert make(x, 3).tolist() == [3, 3, 3, 3]


def test_running_out_of_memory_leaves_nothing_taken() -> None:
    spec = warm(lambda: flambeau.ones(1000, 333) * 2).spec

    class Full:
        free: list = []

        def fresh(self) -> int:
            raise MemoryError("full")

    before = len(spec.free)
    make = objects.maker(0, [spec], [Full()], [], [])
    with pytest.raises(MemoryError, match="full"):
        make()
    assert len(spec.free) == before


def test_several_results_are_a_tuple() -> None:
    x = flambeau.tensor([[1.0, 5.0, 3.0]]).requires_grad_()
    values, places = warm(lambda: x.max(1))
    assert values.tolist() == [5]
    assert places.tolist() == [1]
    values.sum().backward()
    assert x.grad.tolist() == [[0, 1, 0]]


def test_subclasses_pass_as_operands() -> None:
    w, x = flambeau.nn.Parameter(flambeau.ones(3)), flambeau.ones(3)
    y = warm(lambda: x * w)
    assert y.grad_fn.edges == (None, (None, w))


def test_threads_share_free_lists() -> None:
    import threading

    x = flambeau.arange(64.0)
    expected = (x * x + x).tolist()
    wrong = []

    def work() -> None:
        for _ in range(3000):
            y = x * x + x
        if y.tolist() != expected:
            wrong.append(y)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert len(set(x.spec.free)) == len(x.spec.free)
