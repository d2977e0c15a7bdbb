"""DebugMode: what it notes of ops, backwards, updates, compiled functions and modules, and that results stay the same."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import flambeau
from flambeau import nn
from flambeau.capture.step import capture
from flambeau.ir.bind import MODES
from flambeau.utils._debug_mode import DebugMode, get_active_debug_mode


def f32(*shape: int, seed: int = 0) -> flambeau.Tensor:
    return flambeau.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.fixture(autouse=True)
def _nothing_is_left_on():
    yield
    assert not MODES and get_active_debug_mode() is None


def lines(debug: DebugMode) -> list[str]:
    return debug.debug_string().splitlines()


def test_every_op_with_shapes_and_dtypes() -> None:
    x = f32(2, 4)
    with DebugMode() as debug:
        assert get_active_debug_mode() is debug
        y = (x * 2)[:, 1:].double()
        y.sum(1, keepdim=True)
        flambeau.cat([x, x], dim=1)
        x.clone().add_(1, alpha=2)
        flambeau.max(x, 1)
        x.gt(0)
    assert lines(debug) == [
        "    flambeau::mul(t: f32[2, 4], 2)  ->  t: f32[2, 4]",
        "    flambeau::subview(t: f32[2, 4], ((None, None, 1), (1, None, 1)))  ->  t: f32[2, 3]",
        "    flambeau::to_dtype(t: f32[2, 3], flambeau.float64)  ->  t: f64[2, 3]",
        "    flambeau::sum(t: f64[2, 3], 1, True)  ->  t: f64[2, 1]",
        "    flambeau::cat(('t: f32[2, 4]', 't: f32[2, 4]'), 1)  ->  t: f32[2, 8]",
        "    flambeau::clone(t: f32[2, 4])  ->  t: f32[2, 4]",
        "    flambeau::add_(t: f32[2, 4], 1, alpha=2)  ->  t: f32[2, 4]",
        "    flambeau::max_dim(t: f32[2, 4], 1)  ->  ('t: f32[2]', 't: i64[2]')",
        "    flambeau::gt(t: f32[2, 4], 0)  ->  t: b8[2, 4]",
    ]
    before = len(debug.logs)
    x + 1
    assert len(debug.operators) == before
    debug.reset()
    assert debug.debug_string() == ""


def train(steps: int = 2) -> tuple[list[float], list[list[float]]]:
    flambeau.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    optimiser = flambeau.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for i in range(steps):
        optimiser.zero_grad()
        loss = model(f32(5, 8, seed=i)).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses, [p.tolist() for p in model.parameters()]


def test_results_are_the_same_bit_for_bit() -> None:
    wanted = train()
    with (
        DebugMode(record_nn_module=True, record_stack_trace=True),
        DebugMode.log_tensor_hashes("hash_tensor", hash_inputs=True),
    ):
        assert train() == wanted


def test_backward_and_update_show_the_ops_of_their_graphs() -> None:
    w = f32(3, 4).requires_grad_()
    optimiser = flambeau.optim.SGD([w], lr=0.1)
    with DebugMode() as debug:
        nn.functional.linear(f32(2, 4), w).relu().sum().backward()
        optimiser.step()
    text = debug.debug_string()
    assert "    flambeau::LinearBackward0(t: f32[2, 4], t: f32[2, 3])  ->  ('t: f32[3, 4]',)\n" in text
    assert "      [op] matrix_product(f32[3, 2], f32[2, 4])  ->  f32[3, 4]\n" in text
    assert (
        "    flambeau::sgd(t: f32[3, 4], t: f32[3, 4], 0.1, 0)\n      [op] mul(f32[3, 4], float)  ->  f32[3, 4]\n"
        in text
    )


def test_a_traced_function_is_one_entry_with_its_kernels() -> None:
    step = capture(lambda x: (x * 2).exp())
    step(f32(3))
    with DebugMode() as debug:
        step(f32(3))
    head, *kernels = lines(debug)
    assert head == "    flambeau::graph(t: f32[3])  ->  ('t: f32[3]',)" and kernels == ["      [kernel] exp"]


def test_ops_that_go_into_a_trace() -> None:
    for wanted in (False, True):
        step = capture(lambda x: x.exp())
        with DebugMode(record_faketensor=wanted, record_realtensor=False) as debug:
            step(f32(3))
        assert lines(debug) == (["    flambeau::exp(ft: f32[3])  ->  ft: f32[3]"] if wanted else [])


def test_modules_ids_attributes() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 3, bias=False)
            self.rest = nn.Sequential(nn.ReLU())

        def forward(self, x: flambeau.Tensor) -> flambeau.Tensor:
            return self.rest(self.first(x))

    net, x = Net(), f32(2, 4)
    with DebugMode(record_nn_module=True, record_ids=True, record_tensor_attributes=["requires_grad"]) as debug:
        y = net(x)
        y + x.sum()
    assert lines(debug) == [
        "    [nn.Mod] Net",
        "      [nn.Mod] Net.first",
        "        flambeau::linear(t$0: f32[2, 4]{requires_grad=False}, t$1: f32[3, 4]{requires_grad=True})  ->  "
        "t$2: f32[2, 3]{requires_grad=True}",
        "      [nn.Mod] Net.rest",
        "        [nn.Mod] Net.rest.0",
        "          flambeau::relu(t$2: f32[2, 3]{requires_grad=True})  ->  t$3: f32[2, 3]{requires_grad=True}",
        "    flambeau::sum(t$0: f32[2, 4]{requires_grad=False})  ->  t$4: f32[]{requires_grad=False}",
        "    flambeau::add(t$3: f32[2, 3]{requires_grad=True}, t$4: f32[]{requires_grad=False})  ->  t$5: f32[2, 3]{requires_grad=True}",
    ]
    with pytest.raises(RuntimeError), DebugMode(record_nn_module=True) as debug:
        net(f32(2, 5))
    assert debug.call_depth == 0 and debug.current_nn_module_stack == []
    assert not net._forward_hooks and net(x).shape == (2, 3)


def test_no_outputs_and_kept_arguments() -> None:
    x = f32(2)
    with DebugMode(record_output=False, store_original_args=True) as debug:
        x.add(1, alpha=3)
    (call,) = debug.logs
    op, args, kwargs, depth = call
    assert args[0] is x and args[1] == 1 and kwargs == {"alpha": 3} and depth == 1
    assert str(call) == "flambeau::add(t: f32[2], 1, alpha=3)" and op(x, 1, alpha=3) is not None


def test_stack_traces_of_ops_and_of_forwards() -> None:
    x = f32(3).requires_grad_()
    with DebugMode(record_stack_trace=True) as debug:
        y = x.exp()  # the forward
        y.sum().backward()
    backward = next(c for c in debug.logs if "ExpBackward" in str(c))
    assert "y.sum().backward()" in backward.stack_trace and "y = x.exp()" in backward.fwd_stack_trace
    first = lines(debug)[0]
    assert first.startswith("    # File: ") and first.endswith("code: y = x.exp()  # the forward")
    assert "# File" not in debug.debug_string(show_stack_trace=False)
    assert not flambeau.autograd.anomaly.is_anomaly_enabled()


# ------------------------------------------------------------------ hooks
def test_outputs_and_hashes() -> None:
    x = flambeau.tensor([1.0, -2.0])
    with DebugMode() as debug, DebugMode.record_outputs(), DebugMode.log_tensor_hashes(hash_inputs=True):
        x.mul_(3)
        flambeau.zeros(0) + 1
    call = debug.logs[0]
    assert call.record["output"].tolist() == [3, -6]
    assert call.log == {"input_hash": ((3.0, None), {}), "hash": 9.0}
    assert str(call).endswith("# {'input_hash': ((3.0, None), {}), 'hash': 9.0}")
    assert len(debug.logs) == 3  # what hooks run is not noted


@pytest.mark.parametrize("dtype", ("float32", "bool", "complex64", "bfloat16", "int16"))
@pytest.mark.parametrize("n", (0, 1, 65, 1000))
def test_bit_hashes_tell_one_element_apart(dtype: str, n: int) -> None:
    x = (f32(n, seed=n) * 100).to(getattr(flambeau, dtype))
    with DebugMode() as debug, DebugMode.log_tensor_hashes(["norm", "hash_tensor"]):
        x.clone()
        x.flip(0)
        if n > 1:
            y = x.clone()
            y[n // 2] = ~y[n // 2] if dtype == "bool" else y[n // 2] * 2 + 1
            y.clone()
    hashes = [c.log["hash"] for c in debug.logs if c.log and c.name != "flambeau::select"]
    assert hashes[0][1] == hashes[1][1]
    if n:
        wanted = np.asarray(x.to(flambeau.complex128 if dtype == "complex64" else flambeau.float64).numpy())
        np.testing.assert_allclose(hashes[0][0], np.abs(wanted).sum(), rtol=1e-12)
        if dtype == "float32":
            assert hashes[0][1] == int(np.bitwise_xor.reduce(wanted.view(np.uint64)))
    if n > 1:
        assert hashes[-1][1] != hashes[0][1]


def test_runs_are_compared() -> None:
    def run(x: flambeau.Tensor, ops: int = 2) -> list:
        with DebugMode() as debug, DebugMode.log_tensor_hashes(hash_inputs=True):
            for _ in range(ops):
                x = x.exp()
        return debug.logs

    a, b = f32(5), f32(5, seed=1)
    assert DebugMode.check_hash_mismatches(run(a), run(a), compare_inputs=True) == []
    found = DebugMode.check_hash_mismatches(run(a), run(b))
    assert [m["call"] for m in found] == ["flambeau::exp"] * 2 and found[0]["rel_diff"] > 0
    assert found[0]["hash1"] != found[0]["hash2"] and not found[0]["is_input_hash"]
    assert len(DebugMode.check_hash_mismatches(run(a), run(b), compare_inputs=True)) == 4
    nan = flambeau.full((3,), float("nan"))
    assert DebugMode.check_hash_mismatches(run(nan), run(nan)) == []
    with pytest.raises(ValueError, match="lengths"):
        DebugMode.check_hash_mismatches(run(a), run(a, 3))
    with DebugMode() as debug:
        a.exp().exp()
    with pytest.raises(ValueError, match="inconsistent"):
        DebugMode.check_hash_mismatches(run(a), debug.logs)
    with DebugMode() as debug:
        a.exp().log()
    with pytest.raises(ValueError, match="Operators don't match at index 1: flambeau::exp vs flambeau::log"):
        DebugMode.check_hash_mismatches(run(a), debug.logs)


def test_hooks_of_the_user_and_remarks() -> None:
    seen = []

    def hook(func: object, types: tuple, args: tuple, kwargs: dict, result: object) -> dict:
        seen.append((func.__name__, args, kwargs))
        return {"n": len(seen)}

    x = f32(2)
    with DebugMode() as debug, DebugMode.dispatch_hooks(log_hook=hook):
        x.add(1)
        DebugMode._annotate("half way")
        x.add_(2)
    DebugMode._annotate("nobody listens")
    assert [s[0] for s in seen] == ["add", "add_"]
    assert [str(c) for c in debug.logs] == [
        "flambeau::add(t: f32[2], 1)  ->  t: f32[2]  # {'n': 1}",
        "[annotate] half way",
        "flambeau::add_(t: f32[2], 2)  ->  t: f32[2]  # {'n': 2}",
    ]
    with (
        pytest.raises(AssertionError, match="a hook must return None or a dict"),
        DebugMode(),
        DebugMode.dispatch_hooks(record_hook=lambda *a: 3),
    ):
        x + 1


def test_modes_nest_and_threads_are_apart() -> None:
    x = f32(2)
    with DebugMode() as outer:
        x.exp()
        with DebugMode() as inner:
            x.log()
            other = threading.Thread(target=lambda: x.sin())
            other.start()
            other.join()
        x.cos()
    assert [c.name for c in inner.logs] == ["flambeau::log"]
    assert [c.name for c in outer.logs] == ["flambeau::exp", "flambeau::cos"]


def test_what_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="record_torchfunction must be False"):
        DebugMode(record_torchfunction=True)
    with pytest.raises(NotImplementedError, match="run_compile_with_interpreter must be False"):
        DebugMode(run_compile_with_interpreter=True)
    with pytest.raises(AssertionError, match="'norm' or 'hash_tensor', got 'md5'"), DebugMode.log_tensor_hashes("md5"):
        pass
    with pytest.raises(NotImplementedError, match="got int"), DebugMode.log_tensor_hashes(3):
        pass
