"""The tuner: wrong candidates are never taken, seconds are bounded, answers last, and results keep their bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.base.record import replace
from flambeau.base.settings import settings
from flambeau.core import dtype as dtypes
from flambeau.kernel import cache, store, target
from flambeau.schedule import tuning
from flambeau.schedule.tuning import Answer, Trial, Tuner, encoded, key_of
from flambeau.templates import gemm_ways
from flambeau.templates.choice import Question, advised, asked, size_class
from flambeau.templates.gemm import gemm
from flambeau.templates.gemm_problem import Problem
from flambeau.templates.gemm_ways import Way, candidates, lower_way, order


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path) -> Iterator[None]:
    """Answers of this test only; kernels are compiled again."""
    with settings.scope(cache_dir=str(tmp_path / "cache"), tune_seconds=1):
        yield
    tuning.forget()


def product(m: int = 24, n: int = 40, k: int = 32, **changes: Any) -> Problem:
    return replace(Problem(m, n, k, (k, 1), (n, 1), (n, 1), (), "float32", "float32", None, False), **changes)


def question_of(p: Problem, ways: tuple[Way, ...] = ()) -> Question:
    question = gemm_ways.question(p, target.current(), torch.get_num_threads())
    assert question is not None
    return replace(question, candidates=ways) if ways else question


class Clock:
    """Time that passes when it is asked for."""

    def __init__(self, step: float = 1.0):
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


# ------------------------------------------------------------------ choosing
def injected(p: Problem, wrong: Problem) -> tuple[Question, list[Way]]:
    """A question with one candidate that does another problem, and the list of what was lowered."""
    first, bad = Way("plain"), Way("tiles", panels=1)
    lowered: list[Way] = []

    def lower(way: Way) -> Any:
        lowered.append(way)
        return lower_way(wrong if way == bad else p, target.current(), torch.get_num_threads(), way)

    return replace(question_of(p, (first, bad)), lower=lower), lowered


def test_a_wrong_candidate_is_never_chosen() -> None:
    p = product(96, 96, 400)
    question, lowered = injected(p, replace(p, k=1))  # much quicker, and wrong
    choice, finished = Tuner(10).tune(question)
    assert choice == Way("plain") and finished
    assert lowered == [Way("plain"), Way("tiles", panels=1)]


@pytest.mark.parametrize("seconds, wins", [(0.5, True), (0.99, False), (2.0, False)])
def test_another_candidate_wins_where_it_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, seconds: float, wins: bool
) -> None:
    p = product(96, 96, 400)
    question, _ = injected(p, p)
    clock, costs, whole = Clock(0.0), iter([1.0, seconds]), Trial.runner

    def priced(self: Trial, lowered: Any) -> Any:
        run, cost = whole(self, lowered), next(costs)

        def timed() -> None:
            run()
            clock.now += cost

        return timed

    monkeypatch.setattr(Trial, "runner", priced)
    choice, finished = Tuner(1000, clock).tune(question)
    assert choice == question.candidates[wins] and finished


def test_rounding_is_allowed_only_where_asked_for() -> None:
    trial = Trial(question_of(product()))
    exact = np.ones(40 * 24, np.float32)
    near = exact + np.float32(1e-6)
    assert trial.agree(exact, exact.copy()) and not trial.agree(exact, near)
    trial.question = replace(trial.question, exact=False)
    assert trial.agree(exact, near) and not trial.agree(exact, exact + np.float32(1e-2))
    assert not trial.agree(exact, np.full_like(exact, np.nan))


def test_seconds_are_bounded() -> None:
    question = question_of(product(300, 300, 300))
    ran: list[int] = []

    def counting(self: Trial, lowered: Any, whole: Any = Trial.runner) -> Any:
        run = whole(self, lowered)
        return lambda: (ran.append(1), run())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trial, "runner", counting)
        clock = Clock()
        _, finished = Tuner(12, clock).tune(question)
    assert not finished
    assert clock.now <= 12 + 5  # what runs when time is up ends: one candidate, timed once
    assert 0 < len(ran) <= 12


def test_no_seconds_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    question = question_of(product())
    monkeypatch.setattr(Tuner, "tune", lambda self, q: pytest.fail("measured"))
    assert Tuner(0).answer(question) == question.candidates[0]


def test_a_choice_that_was_cut_short_is_made_again_with_more_time() -> None:
    assert Answer("x", True, 1).serves(100)
    assert Answer("x", False, 5).serves(5) and not Answer("x", False, 5).serves(6)


# ------------------------------------------------------------------ answers that last
def counted(monkeypatch: pytest.MonkeyPatch, choice: Any) -> list[Question]:
    """What is measured from now on; each time the answer is `choice`."""
    seen: list[Question] = []

    def tune(self: Tuner, question: Question) -> tuple[Any, bool]:
        seen.append(question)
        return choice, True

    monkeypatch.setattr(Tuner, "tune", tune)
    return seen


def test_answers_are_kept_in_memory_and_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    question = question_of(product())
    chosen = question.candidates[-1]
    seen = counted(monkeypatch, chosen)
    assert Tuner(1).answer(question) == chosen and Tuner(1).answer(question) == chosen
    tuning.forget()
    assert Tuner(1).answer(question) == chosen
    assert len(seen) == 1
    assert Tuner(1).answer(replace(question, threads=7)) == chosen
    assert len(seen) == 2


def kept_entry(question: Question) -> tuple[store.Store, str]:
    disk = cache.disk()
    assert disk is not None
    return disk, tuning._name(key_of(question))


@pytest.mark.parametrize("damage", ["bytes", "text", "types", "foreign", "candidate"])
def test_what_cannot_be_trusted_counts_as_absent(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    question = question_of(product())
    seen = counted(monkeypatch, question.candidates[-1])
    Tuner(1).answer(question)
    disk, name = kept_entry(question)
    kept = json.loads(disk.read(name).image)
    if damage == "bytes":
        path = Path(disk.folder, name)
        raw = bytearray(path.read_bytes())
        raw[-3] ^= 1
        path.write_bytes(raw)
    elif damage == "text":
        disk.write(name, store.Entry(0, b"[1, 2"))
    elif damage == "types":
        disk.write(name, store.Entry(0, json.dumps(kept | {"finished": "yes"}).encode()))
    elif damage == "foreign":
        disk.write(name, store.Entry(0, json.dumps(kept | {"key": "another"}).encode()))
    else:
        disk.write(name, store.Entry(0, json.dumps(kept | {"choice": encoded(Way("amx", panels=77))}).encode()))
    tuning.forget()
    assert Tuner(1).answer(question) == question.candidates[-1]
    assert len(seen) == 2


FRESH = """
import flambeau as torch
from flambeau.schedule.tuning import Tuner
calls = []
whole = Tuner.tune
Tuner.tune = lambda self, q: (calls.append(q.template), whole(self, q))[1]
torch.manual_seed(0)
x, w = torch.randn(33, 65), torch.randn(65, 70)
f = torch.compile(lambda x, w: x @ w, mode="max-autotune")
assert (f(x, w) == x @ w).all()
print(len(calls))
"""


def test_a_fresh_process_measures_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"FLAMBEAU_CACHE_DIR": str(tmp_path / "shared"), "FLAMBEAU_TUNE_SECONDS": "10"}
    counts = [
        subprocess.run(
            [sys.executable, "-c", FRESH], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert counts == ["1", "0"]


# ------------------------------------------------------------------ candidates
PROBLEMS = [
    product(),
    product(1, 300, 200),
    product(8, 130, 513, a=(513, 1), b=(1, 513)),
    product(130, 8, 513, a=(1, 130), b=(1, 513)),
    product(40, 50, 1100),
    product(40, 50, 1100, bias=(0, 1)),
    product(40, 50, 1100, accumulate=True),
    product(40, 50, 1100, accumulate=True, bias=(0, 1), out=(1, 40)),
    product(3, 50, 1030, dtype="bfloat16", out_dtype="bfloat16", b=(1, 1030)),
    product(33, 50, 1030, dtype="bfloat16", out_dtype="float32"),
    product(33, 50, 100, dtype="int8", out_dtype="int32"),
    product(17, 20, 30, dtype="float64", out_dtype="float64", batch=((3, 17 * 30, 0, 17 * 20),)),
]


@pytest.mark.parametrize("p", PROBLEMS, ids=lambda p: f"{p.m}x{p.n}x{p.k}-{p.dtype}-{p.flags}-{p.b[0] == 1}")
@pytest.mark.parametrize("threads", [1, 3])
def test_candidates_of_equal_order_give_equal_bits(p: Problem, threads: int) -> None:
    here = target.current()
    ways = candidates(p, here, threads, False)
    assert ways[0] == gemm_ways.analytic(p, here) and len(set(ways)) == len(ways)
    assert len({order(p, here, w) for w in ways}) == 1
    question = gemm_ways.question(p, here, threads)
    assert question is not None
    seen = set()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        trial = Trial(question)
        expected = trial.outcome(trial.runner(lower_way(p, here, threads, ways[0])))
        for way in ways[1:]:
            lowered = lower_way(p, here, threads, way)
            if lowered not in seen:
                seen.add(lowered)
                assert trial.agree(expected, trial.outcome(trial.runner(lowered))), way
    finally:
        torch.set_num_threads(before)


def test_other_orders_are_offered_only_when_allowed() -> None:
    here, p = target.current(), product(64, 64, 2000)
    few, many = (set(candidates(p, here, 1, reorder)) for reorder in (False, True))
    assert few < many
    assert Way("tiles", depth=256) in many - few and Way("tiles") in many - few


def test_default_mode_asks_nobody() -> None:
    assert asked(lambda: pytest.fail("a question was made")) is None
    p = product()
    with advised(lambda question: question.candidates[-1]):
        tuned = gemm(p.m, p.n, p.k, p.a, p.b, dtypes.float32, threads=2)
    last = candidates(p, target.current(), 2, False)[-1]
    assert tuned.launches[-1].params == lower_way(p, target.current(), 2, last).launches[-1].params


def test_launches_run_on_no_more_threads_than_they_are_for() -> None:
    question = replace(question_of(product()), threads=torch.get_num_threads() - 1)
    with pytest.raises(ValueError, match="must not run on more"):
        Trial(question)


def test_size_classes() -> None:
    assert [size_class(n) for n in (0, 1, 64, 65, 71, 72, 4096, 4607, 4608)] == [0, 1, 64, 64, 64, 72, 4096, 4096, 4608]


# ------------------------------------------------------------------ whole functions
def same_bits(f: Any, *args: Any) -> None:
    plain, tuned = torch.compile(f), torch.compile(f, mode="max-autotune")
    expected, found = plain(*args), tuned(*args)
    for a, b in zip(expected, found, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_results_keep_their_bits() -> None:
    torch.manual_seed(0)
    x, w, bias = torch.randn(5, 37, 70), torch.randn(33, 70), torch.randn(33)
    same_bits(lambda x, w, b: (torch.nn.functional.linear(x, w, b), x @ w.T, x @ x.mT), x, w, bias)


def test_convolutions_keep_their_bits() -> None:
    torch.manual_seed(0)
    x, w, bias = torch.randn(2, 6, 15, 17), torch.randn(20, 3, 3, 3), torch.randn(20)
    conv = torch.nn.functional.conv2d
    same_bits(lambda x, w, b: (conv(x, w, b, groups=2, padding=1), conv(x, w, None, stride=2, groups=2)), x, w, bias)


def test_gradients_are_tuned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Question] = []

    def answer(self: Tuner, question: Question) -> Any:
        seen.append(question)
        return question.candidates[-1]

    monkeypatch.setattr(Tuner, "answer", answer)
    x, w = torch.randn(12, 20), torch.randn(20, 30, requires_grad=True)
    torch.compile(lambda x, w: x @ w, mode="max-autotune")(x, w).sum().backward()
    found, w.grad = w.grad, None
    assert {q.template for q in seen} == {"gemm"} and len(seen) == 2
    (x @ w).sum().backward()
    assert found.numpy().tobytes() == w.grad.numpy().tobytes()


def test_the_setting_lets_other_orders_in() -> None:
    with settings.scope(tune_reorders=True):
        x, w = torch.randn(40, 1500), torch.randn(1500, 50)
        found = torch.compile(lambda x, w: x @ w, mode="max-autotune")(x, w)
    torch.testing.assert_close(found, x @ w, rtol=1e-4, atol=1e-3)
