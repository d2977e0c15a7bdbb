"""FLAMBEAU_DEBUG and FLAMBEAU_DUMP: what each level shows, in a process that runs already, and that off costs nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import flambeau
from flambeau.base.errors import InternalError
from flambeau.base.settings import settings
from flambeau.capture.step import capture
from flambeau.engine import eager, instruments
from flambeau.engine.verify import verify_schedule
from flambeau.ir.op import REGISTRY
from flambeau.kernel import target
from flambeau.schedule.fusion import schedule

Capture = pytest.CaptureFixture[str]


def fresh(capsys: Capture) -> str:
    return capsys.readouterr().err


@pytest.fixture
def rows():
    return flambeau.rand(6, 50)


def test_nothing_is_shown_by_default(rows, capsys: Capture) -> None:
    with settings.scope(debug=0):
        rows.softmax(1)
    assert fresh(capsys) == ""


def test_times_of_kernels(rows, capsys: Capture) -> None:
    with settings.scope(debug=2):
        rows.softmax(1)
        first = fresh(capsys)
        rows.softmax(1)  # the fast path
        second = fresh(capsys)
        rows @ rows.t()
        product = fresh(capsys)
    number = r"\d+\.\d+"
    assert re.search(rf"flambeau: kernel amax \(loop_nest\): {number} ms, {number} GFLOP/s, {number} GB/s\n", first)
    assert second.count("kernel amax (loop_nest)") == 1
    assert re.search(rf"kernel matrix_product \(gemm\w+\): {number} ms, {number} GFLOP/s, {number} GB/s\n", product)
    rows.softmax(1)
    assert fresh(capsys) == ""  # the level is off again, and so is the wrapper


def test_entries_are_native_when_nobody_looks(rows) -> None:
    rows.relu()
    plan = eager.info_for(REGISTRY["relu"], (rows,)).plan
    assert type(eager.maker_of(plan)).__name__ == "builtin_function_or_method"
    with settings.scope(debug=2):
        rows.relu()
        plan = eager.info_for(REGISTRY["relu"], (rows,)).plan
        assert type(eager.maker_of(plan)).__name__ == "function"
        assert plan.steps[0].entry.__module__ == instruments.__name__


def test_work_is_counted() -> None:
    assert instruments.rates(2_000_000, 4_000_000_000, 1_000_000) == "2.0000 ms, 2000.0 GFLOP/s, 0.5 GB/s"
    assert instruments.rates(1500, 0, 0) == "0.0015 ms"


def test_work_of_a_plan_that_other_sizes_share(capsys: Capture) -> None:
    """One kernel serves all sizes of an elementwise op: rates follow the size of the call."""
    small, large = flambeau.ones(64), flambeau.ones(1 << 20)
    with settings.scope(debug=2):
        small + small
        fresh(capsys)
        large + large
        found = re.search(r"(\d+\.\d+) ms, .* (\d+\.\d+) GB/s", fresh(capsys))
    ms, rate = float(found.group(1)), float(found.group(2))
    assert rate * ms * 1e6 == pytest.approx(3 * 4 * (1 << 20), rel=0.1)


def test_fusion_decisions(rows, capsys: Capture) -> None:
    with settings.scope(debug=3):
        rows.softmax(1)
        text = fresh(capsys)
        flambeau.median(rows)
        other = fresh(capsys)
    assert "amax_0 opens step 0 over [6, 50], reducing dims [1]\n" in text
    assert "exp_0 joins step 0\n" in text
    assert "sum_0 joins step 0\n" in text
    assert "of its own: its kind is template" in other


def test_why_a_kernel_was_opened(capsys: Capture) -> None:
    x = flambeau.rand(300, 400)
    with settings.scope(debug=3):
        x.softmax(0).sum(1)  # two plans
        fresh(capsys)
        capture(lambda t: (t.sum(0), t.sum(1)))(x)
    text = fresh(capsys)
    assert (
        "sum_1 opens step 1 over [300, 400], reducing dims [1]; not step 0: its domain or its reduced dims are others\n"
        in text
    )


def test_loop_nests(rows, capsys: Capture) -> None:
    with settings.scope(debug=4):
        rows.t().softmax(0)
    text = fresh(capsys)
    nest = text[text.index("loop nest of step 0, amax\n") :].split("flambeau: ")[0].splitlines()
    assert nest[1] == "6 units, 163 of them at a time" or re.fullmatch(r"6 units, \d+ of them at a time", nest[1])
    assert nest[2] == "for i0 in range(6):  # units"
    assert re.fullmatch(r"    for i1 in range\(50\):  # lanes, \d+ x \d", nest[3])
    assert nest[4] == "        %0 = load float32 x0[50*i0 + i1]"
    assert nest[5] == "        %1 = amax %0 in float32 over inner -> float32"
    assert "        keep %4 as a row in s0" in nest
    assert nest[-1].startswith("        store float32 t0[")


def test_nests_with_indices_and_serial_writes(capsys: Capture) -> None:
    x, at = flambeau.zeros(7, 4), flambeau.tensor([1, 3, 1])
    with settings.scope(debug=4):
        x.index_select(0, at)
        x.index_add(0, at, flambeau.ones(3, 4))
    text = fresh(capsys)
    assert re.search(r"%\d = check %\d in range\(7\)", text)
    assert re.search(r"%\d = load float32 x0\[i\d \+ 4\*%\d\]", text)
    assert re.search(r"store float32 t0\[.*\+ 4\*%\d\] = %\d by add", text)


def test_graphs_after_each_pass(rows, capsys: Capture) -> None:
    with settings.scope(debug=5):
        rows.softmax(1)
    text = fresh(capsys)
    traced, decomposed, scheduled = (
        text.index(f"flambeau: {t}\n") for t in ("graph, traced", "graph, decomposed", "scheduled")
    )
    assert traced < decomposed < scheduled
    assert "ops.softmax(x0, 1" in text[traced:decomposed]
    assert "ops.exp(" in text[decomposed:scheduled]
    assert "step 0: amax(x0, t0, s0)  # loop_nest, 6 units\nreturn t0\n" in text[scheduled:]


def test_stages_in_a_folder(rows, tmp_path: Path, capsys: Capture) -> None:
    with settings.scope(dump=str(tmp_path), debug=0):
        rows.softmax(1)
    assert fresh(capsys) == ""
    names = sorted((p.name for p in tmp_path.iterdir()), key=lambda name: (int(name.split("-")[0]), name))
    kinds = [n.split("-", 1)[1] for n in names]
    assert kinds[:5] == ["graph-traced.py", "graph-decomposed.py", "fusion.txt", "schedule.txt", "nest-amax.txt"]
    digests = {re.sub(r"\.(ll|opt\.ll|s)$", "", k) for k in kinds[5:]}
    assert len(digests) == 1 and next(iter(digests)).startswith("loop_nest-")
    assert [k.split(".", 1)[1] for k in kinds[5:]] == ["ll", "opt.ll", "s"]  # also where the kernel is on disk already
    numbers = [int(n.split("-")[0]) for n in names]
    assert numbers[:6] == list(range(numbers[0], numbers[0] + 6))
    source = (tmp_path / names[0]).read_text()
    scope: dict = {"ops": Ops(), "flambeau": flambeau}
    exec(source, scope)  # a graph is a program
    assert scope["graph"](rows).tolist() == rows.softmax(1).tolist()


class Ops:
    """`ops.name` of printed graphs."""

    def __getattr__(self, name: str):
        return REGISTRY[name]


def test_schedules_are_checked(rows) -> None:
    with settings.scope(check=True):
        assert flambeau.allclose(rows.softmax(1).sum(1), flambeau.ones(6))
        assert rows.index_select(0, flambeau.tensor([5, 0])).shape == (2, 50)
        assert (rows.t() @ rows).unfold(0, 3, 2).sum().shape == ()


def test_a_schedule_that_leaves_its_buffers_is_refused(rows) -> None:
    result = schedule(eager.info_for(REGISTRY["relu"], (rows,)).graph(), target.current(), 1)
    verify_schedule(result)
    step = result.steps[0]
    size = 3 + step.recipe.parameters[0].vector_dim
    step.params = (*step.params[:size], step.params[size] + 1, *step.params[size + 1 :])
    with pytest.raises(
        InternalError, match=r"step 0 \(relu\) must .*elements 0 to 300 of x0 are touched, which has 1200 bytes"
    ):
        verify_schedule(result)


def test_a_schedule_that_reads_what_nobody_wrote_is_refused(rows) -> None:
    result = schedule(eager.info_for(REGISTRY["relu"], (rows,)).graph(), target.current(), 1)
    result.steps[0].operands = tuple(reversed(result.steps[0].operands))
    with pytest.raises(InternalError, match="t0 is read before anything writes it"):
        verify_schedule(result)
