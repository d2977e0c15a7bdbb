"""Compiled functions give what the function gives: arguments and results of every kind."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict, namedtuple
from typing import Any

import pytest

import flambeau as torch
from flambeau.compiler import CompileError
from tests.compiler.conftest import equal, same, traces

Pair = namedtuple("Pair", "left right")


def test_positional_and_keyword() -> None:
    def f(x: Any, y: Any, *rest: Any, scale: float = 2.0, **more: Any) -> Any:
        return x * scale + y + sum(rest) + more.get("bias", 0)

    x, y, z = torch.randn(3, 4), torch.randn(4), torch.randn(3, 1)
    same(f, x, y)
    same(f, x, y=y)
    same(f, x, y, z, scale=3)
    same(f, x, y, z, z, bias=z, scale=0.5)


def test_keyword_order_does_not_matter() -> None:
    f = torch.compile(lambda a, b: a - b, fullgraph=True)
    x, y = torch.randn(3), torch.randn(3)
    equal(f(a=x, b=y), x - y)
    equal(f(b=y, a=x), x - y)
    equal(f(a=y, b=x), y - x)


def test_containers_as_arguments() -> None:
    def f(items: Any, table: Any, pair: Any) -> Any:
        return items[0] + items[1][0] * table["w"] - pair.left + len(items)

    x, y, z, w = (torch.randn(2, 3) for _ in range(4))
    same(f, [x, (y, None)], {"w": z, "unused": 3}, Pair(w, 1))
    same(f, (x, [y, "text"]), OrderedDict(w=z), Pair(w, x))


@pytest.mark.parametrize(
    "value", [None, 2, 2.5, True, "mean", torch.float64, 1 + 2j, (1, 2), slice(0, 2), math.inf, float("nan"), -0.0]
)
def test_plain_arguments(value: Any) -> None:
    def f(x: Any, value: Any) -> Any:
        if value is None:
            return x
        if isinstance(value, str):
            return getattr(x, value)()
        if isinstance(value, slice):
            return x[value] + 1
        if isinstance(value, tuple):
            return x.sum(value)
        return x.to(value) if isinstance(value, torch.dtype) else x * value

    same(f, torch.randn(3, 4, 5), value)


def test_numbers_are_told_apart_by_type_and_value() -> None:
    def f(x: Any, n: Any) -> Any:
        return x * n

    g = torch.compile(f, fullgraph=True)
    x = torch.arange(3)
    for n in (1, True, 1.0, 2, 0.0, -0.0, 1 + 0j, 1):
        equal(g(x, n), f(x, n))


def test_nested_results() -> None:
    def f(x: Any) -> Any:
        y = x + 1
        return {"a": [y, (x * 2, None)], "b": Pair(y.sum(), "label"), "c": 3, "d": y}

    g = same(f, torch.randn(3))
    out = g(torch.randn(3))
    assert out["a"][0] is out["d"]


def test_result_is_an_input() -> None:
    f = torch.compile(lambda x, y: (x, y + 1, x), fullgraph=True)
    x, y = torch.randn(3), torch.randn(3)
    for _ in range(2):
        a, b, c = f(x, y)
        assert a is x and c is x
        equal(b, y + 1)


def test_result_is_a_view_of_an_input() -> None:
    def f(x: Any) -> Any:
        return x[1:], x.t(), x.view(-1), x.detach()

    g = same(f, torch.randn(3, 4))
    x = torch.randn(3, 4)
    views = g(x)
    x.zero_()
    for v in views:
        assert v.abs().sum().item() == 0
    views[0].fill_(2)
    assert x.sum().item() == 16


def test_results_that_share_memory_go_on_sharing_it() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y, y[0], y.t()

    g = torch.compile(f, fullgraph=True)
    for _ in range(2):
        y, row, turned = g(torch.ones(2, 3))
        y.zero_()
        assert row.sum().item() == 0 and turned.sum().item() == 0


def test_constants_as_results() -> None:
    made = torch.arange(3)

    def f(x: Any) -> Any:
        return made, torch.ones(2), 5, x + made

    g = same(f, torch.arange(3))
    assert g(torch.arange(3))[0] is made


def test_new_memory_at_each_call() -> None:
    f = torch.compile(lambda x: (x + 1, torch.zeros(3)), fullgraph=True)
    a, zeros = f(torch.zeros(3))
    a.fill_(7)
    zeros.fill_(7)
    b, others = f(torch.zeros(3))
    assert b.tolist() == [1, 1, 1] and a.tolist() == [7, 7, 7] and others.tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1), (5, 1, 3)])
def test_shapes(shape: tuple) -> None:
    def f(x: Any) -> Any:
        return x.exp() + x.sum(), x * 2, x.reshape(-1), x.numel(), x.shape

    same(f, torch.randn(shape))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16])
def test_dtypes(dtype: Any) -> None:
    def f(x: Any) -> Any:
        return x == x.flip(0), x.to(torch.float32) * 2, torch.where(x > 0, x, x), x.dtype

    same(f, torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype))


def test_complex() -> None:
    def f(x: Any) -> Any:
        return x * (1 + 2j), x.conj() @ x.mT, x.abs(), torch.view_as_real(x)

    same(f, torch.randn(3, 3, dtype=torch.complex64))


def test_layouts() -> None:
    def f(x: Any) -> Any:
        return x * 2, x.contiguous() + 1, x.stride()

    g = torch.compile(f, fullgraph=True)
    base = torch.randn(4, 6)
    for x in (base, base.t(), base[:, ::2], base[1:], torch.randn(1, 6).expand(4, 6)):
        for _ in range(2):
            equal(g(x), f(x))
            assert g(x)[0].stride() == f(x)[0].stride()


def test_no_tensors_at_all() -> None:
    f = torch.compile(lambda n: n + 1, fullgraph=True)
    assert f(2) == 3 and f(2) == 3 and f(5) == 6
    assert torch.compile(lambda: None, fullgraph=True)() is None


def test_the_same_tensor_twice() -> None:
    def f(x: Any, y: Any) -> Any:
        return x * y + x

    g = same(f, torch.randn(3), torch.randn(3))
    x = torch.randn(3)
    equal(g(x, x), f(x, x))


def test_identity_of_arguments_is_noticed() -> None:
    def f(x: Any, y: Any) -> Any:
        return x + 1 if x is y else x - 1

    g = torch.compile(f, fullgraph=True)
    x, y = torch.zeros(2), torch.zeros(2)
    for _ in range(2):
        assert g(x, y).tolist() == [-1, -1]
        assert g(x, x).tolist() == [1, 1]


def test_in_place_on_inputs() -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        y[0] = x.sum()
        x *= 2
        return x + y

    g = torch.compile(f, fullgraph=True)
    for _ in range(3):
        x, y = torch.randn(3), torch.randn(3)
        a, b = x.clone(), y.clone()
        equal(g(x, y), f(a, b))
        equal((x, y), (a, b))
    assert traces(g) == 1


def test_in_place_on_inputs_that_share_memory() -> None:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        return y + 1

    g = torch.compile(f, fullgraph=True)
    x = torch.ones(4)
    equal(g(x, torch.ones(4)), torch.full((4,), 2.0))
    x = torch.ones(4)
    equal(g(x, x), torch.full((4,), 3.0))
    x = torch.ones(4)
    with pytest.warns(UserWarning, match="shares memory with another"):  # and runs eagerly; said once
        equal(g(x, x.view(4)), torch.full((4,), 3.0))
    x = torch.ones(6)
    equal(g(x[:4], x[2:]), torch.tensor([3.0, 3.0, 2.0, 2.0]))


def test_in_place_through_a_view_of_an_input() -> None:
    def f(x: Any) -> Any:
        v = x[1:]
        v.zero_()
        x[0].add_(5)
        return x.sum()

    g = torch.compile(f, fullgraph=True)
    for _ in range(2):
        x, y = torch.ones(3, 2), torch.ones(3, 2)
        equal(g(x), f(y))
        equal(x, y)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("t_", ()),
        ("squeeze_", (0,)),
        ("unsqueeze_", (0,)),
        ("transpose_", (0, 1)),
        ("resize_", (2,)),
        ("resize_", (9,)),
    ],
)
def test_in_place_on_the_shape_of_an_argument_runs_eagerly(name: str, args: tuple) -> None:
    kept = torch.ones(1, 4)
    for f in (lambda x: getattr(x, name)(*args), lambda x: (getattr(kept, name)(*args), x)[1]):
        with pytest.raises(CompileError, match="another shape"):
            torch.compile(f, fullgraph=True)(torch.ones(1, 4))
    assert kept.shape == (1, 4) and kept.sum().item() == 4
    g = torch.compile(lambda x: getattr(x, name)(*args))
    x, y = torch.ones(1, 4), torch.ones(1, 4)
    with pytest.warns(UserWarning, match="runs eagerly"):
        assert g(x) is x
    assert x.shape == getattr(y, name)(*args).shape


def test_in_place_on_the_shape_of_what_is_made_inside() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y.t_() + 1, y.unsqueeze_(0)

    same(f, torch.randn(2, 3))


@dataclasses.dataclass
class Batch:
    x: Any
    extra: Any = None
    name: str = "batch"

    def total(self) -> Any:
        return self.x.sum() + (0 if self.extra is None else self.extra["y"])


@dataclasses.dataclass(frozen=True)
class Output:
    loss: Any
    parts: list


class Box:
    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


def test_dataclasses() -> None:
    def f(batch: Batch, n: int = 2) -> Output:
        return Output(batch.total() * n, [batch.x * 2, batch.name])

    g = torch.compile(f, fullgraph=True)
    for i in range(4):
        batch = Batch(torch.randn(3), {"y": torch.randn(3)} if i % 2 else None)
        got, wanted = g(batch), f(batch)
        assert type(got) is Output
        equal((got.loss, got.parts), (wanted.loss, wanted.parts))
    assert traces(g) == 2
    assert g(Batch(torch.randn(3), name="other")).parts[1] == "other"


def test_gradients_through_dataclasses() -> None:
    g = torch.compile(lambda batch: Output((batch.x**2).sum(), []), fullgraph=True)
    x = torch.randn(3, requires_grad=True)
    g(Batch(x)).loss.backward()
    equal(x.grad, 2 * x.detach())


def test_a_dataclass_that_is_changed_runs_eagerly() -> None:
    def f(batch: Batch) -> Any:
        batch.x = batch.x * 2
        return batch.x.sum()

    g = torch.compile(f)
    batch = Batch(torch.ones(3))
    with pytest.warns(UserWarning, match="runs eagerly.*changes .* argument"):
        assert g(batch).item() == 6
    assert g(batch).item() == 12


def test_objects_as_results() -> None:
    class Pair:
        def __init__(self, a: Any, b: Any):
            self.a, self.b = a, b

    def f(x: Any) -> Any:
        return Pair(x * 2, Box([x + 1, "text"])), Box(None)

    g = torch.compile(f, fullgraph=True)
    for i in range(3):
        pair, _ = g(torch.ones(2) * i)
        assert type(pair) is Pair and type(pair.b) is Box
        equal(pair.a, torch.ones(2) * 2 * i)
        equal(pair.b.value, [torch.ones(2) * i + 1, "text"])


def test_version_counts_writes() -> None:
    f = torch.compile(lambda x: x.add_(1), fullgraph=True)
    x = torch.zeros(3)
    before = x._version
    assert f(x) is x
    assert x._version > before


def test_out_argument() -> None:
    def f(x: Any, out: Any) -> Any:
        return torch.add(x, 1, out=out)

    g = torch.compile(f, fullgraph=True)
    for _ in range(2):
        out = torch.zeros(3)
        assert g(torch.ones(3), out) is out
        assert out.tolist() == [2, 2, 2]


def test_default_dtype_counts() -> None:
    f = torch.compile(lambda x: torch.zeros(2) + x, fullgraph=True)
    x = torch.ones(2, dtype=torch.int64)
    assert f(x).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert f(x).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert f(x).dtype is torch.float32


def test_sizes_and_properties_are_those_of_eager() -> None:
    def f(x: Any) -> Any:
        return x * 2, x.shape[0], x.numel(), x.dim(), x.device, x.is_contiguous(), x.requires_grad, len(x)

    same(f, torch.randn(3, 4))


def test_numpy_scalar_and_size_arguments() -> None:
    import numpy as np

    def f(x: Any, n: Any, shape: Any) -> Any:
        return (x * n).reshape(shape)

    same(f, torch.randn(2, 3), np.float32(2.0), torch.Size([3, 2]))


def test_other_devices_run_what_is_theirs() -> None:
    """On an asynchronous device a bad index is reported when the device is waited for, compiled as in eager mode."""
    g = torch.compile(lambda x, at: x.index_select(0, at) * 2, fullgraph=True)
    x = torch.arange(4.0).to("sim")
    good, bad = (torch.tensor(at).to("sim") for at in ([3, 1], [0, 9]))
    assert g(x, good).tolist() == [6.0, 2.0] and str(g(x, good).device) == "sim:0"
    late = g(x, bad)
    with pytest.raises(RuntimeError, match="index_select: .*got 9"):
        late.tolist()
