"""Tests made from the declarations: a replay of an op's recorded launches gives eager mode's bits, and so does an op that DebugMode watches.

Forward and backward of each op's first samples. An op is left out of replays where a part of it is no kernel: recording it must say so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import flambeau
from flambeau import Tensor
from flambeau.accelerator import Graph
from flambeau.ir.op import REGISTRY
from flambeau.operators.rules import Case
from flambeau.utils._debug_mode import DebugMode
from tests.ops.inputs import cases, flatten

pytestmark = pytest.mark.derived

MOST_SAMPLES = 2
REFUSALS = "runs in a library|reads values of a tensor"


def runs_of(name: str) -> list[Callable[[], list[Tensor]]]:
    """The op's samples as functions that give results and gradients; those that fail in eager mode are other tests' business."""
    found = []
    for case in cases(REGISTRY[name])[:MOST_SAMPLES]:
        for backward in (False, True):
            run = run_of(REGISTRY[name].function, case, backward)
            if run is not None:
                found.append(run)
    return found


def run_of(function: Callable, case: Case, backward: bool) -> Callable[[], list[Tensor]] | None:
    leaves = [t for t in flatten((case.args, case.kwargs)) if t.dtype.is_inexact]
    if backward and (case.no_gradient or not leaves):
        return None

    def run() -> list[Tensor]:
        for t in leaves:
            t.grad = None
            t.requires_grad_(backward)
        results = flatten(function(*case.args, **case.kwargs))
        ends = [r for r in results if r.requires_grad]
        if ends:
            sum((r.abs() if r.is_complex() else r).sum() * 1.5 for r in ends).backward()
        return [*(r.detach() for r in results), *(t.grad for t in leaves if t.grad is not None)]

    try:
        run()
    except Exception:
        return None
    return run


def bits(t: Tensor) -> np.ndarray:
    """The values, as something that NumPy compares exactly."""
    return (t.float() if t.dtype is flambeau.bfloat16 else t).numpy()


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a.dtype is b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_replays_equal_eager(name: str) -> None:
    for run in runs_of(name):
        wanted = [t.clone() for t in run()]
        graph = Graph()
        try:
            with graph:
                found = run()
        except RuntimeError as error:
            assert any(words in str(error) for words in REFUSALS.split("|")), error
            continue
        for _ in range(2):
            graph.replay()
            assert_same(found, wanted)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_watched_ops_equal_others(name: str) -> None:
    for run in runs_of(name):
        wanted = [t.clone() for t in run()]
        with DebugMode(record_ids=True) as debug:
            found = run()
        assert_same(found, wanted)
        assert debug.logs and all("flambeau::" in str(c) or str(c).startswith("[") for c in debug.logs)
