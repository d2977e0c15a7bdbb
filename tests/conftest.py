"""What every test run has: markers, the sample of derived tests, counted skips, and the count of kernels compiled.

Markers
    slow            left out of `make test`
    parity          compares with PyTorch; everything in tests/torch_parity has it, and is left out where torch is not installed
    isa(*features)  needs these instruction sets, by LLVM's names; skipped on a machine without them, and the summary counts such tests
    derived         made from an op's declaration: a sample of them may stand for all. Ids begin with the op's name: `test_value[add-...]`

Environment
    FLAMBEAU_TEST_FRACTION      share of derived tests to keep, 0 < share <= 1 (default 1). Every op keeps at least one
    FLAMBEAU_TEST_SEED          which sample it is (default 0). The same seed and tests give the same sample everywhere
    FLAMBEAU_TEST_MAX_KERNELS   the run fails when it compiled more kernels than this
"""

from __future__ import annotations

import importlib.util
import os
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

PARITY_FOLDER = Path(__file__).parent / "torch_parity"
MARKERS = (
    "slow: takes more than a few seconds; left out of the quick tests",
    "parity: compares with PyTorch, which has to be installed",
    "isa(*features): needs these instruction sets, such as avx512f or amx-int8",
    "derived: made from an op's declaration; a sample may stand for all",
)


def has_features(features: Sequence[str]) -> bool:
    """Whether kernels made here may use these instruction sets."""
    from flambeau.kernel import target  # once a test asks: the suite of base must not load the kernel layer

    return target.current().has(*features)


def op_of(name: str) -> str:
    """The op that a derived test belongs to: what stands between `[` and the first `-` of its id."""
    return name.partition("[")[2].rstrip("]").partition("-")[0]


def sample_rank(node_id: str, seed: str) -> float:
    """A number in [0, 1) that depends on nothing but the test and the seed."""
    return zlib.crc32(f"{seed}:{node_id}".encode()) / 2**32


def sampled(derived: Sequence[tuple[str, str]], fraction: float, seed: str) -> set[str]:
    """Of (node id, op) pairs, the ids kept: those that rank below `fraction`, and the lowest of each op."""
    ranks = {node_id: sample_rank(node_id, seed) for node_id, _ in derived}
    lowest: dict[str, str] = {}
    for node_id, op in derived:
        if op not in lowest or ranks[node_id] < ranks[lowest[op]]:
            lowest[op] = node_id
    return {node_id for node_id, rank in ranks.items() if rank < fraction} | set(lowest.values())


class Suite:
    """The state of one run, kept for its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.fraction = self.read_fraction()
        self.seed = os.environ.get("FLAMBEAU_TEST_SEED", "0")
        self.max_kernels = int(os.environ.get("FLAMBEAU_TEST_MAX_KERNELS", "0")) or None
        self.without_isa: Counter[str] = Counter()
        self.parity_files = 0
        self.sample: tuple[int, int, int] | None = None  # kept, all, ops

    @staticmethod
    def read_fraction() -> float:
        text = os.environ.get("FLAMBEAU_TEST_FRACTION", "1")
        try:
            fraction = float(text)
        except ValueError:
            fraction = -1.0
        if not 0 < fraction <= 1:
            raise pytest.UsageError(f"FLAMBEAU_TEST_FRACTION must be a number in (0, 1], got {text!r}.")
        return fraction

    @staticmethod
    def compiled_kernels() -> dict[str, float] | None:
        """What the kernel cache counted in this process, or None where nothing asked for a kernel."""
        cache = sys.modules.get("flambeau.kernel.cache")
        if cache is None:
            return None
        counts = cache.statistics()
        return dict(counts if isinstance(counts, dict) else vars(counts))

    @pytest.hookimpl
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if (
            collection_path.suffix == ".py"
            and PARITY_FOLDER in collection_path.parents
            and importlib.util.find_spec("torch") is None
        ):
            self.parity_files += collection_path.name.startswith("test_")
            return True
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        derived: list[tuple[str, str]] = []
        for item in items:
            if PARITY_FOLDER in item.path.parents:
                item.add_marker("parity")
            isa = item.get_closest_marker("isa")
            if isa is not None and not has_features(isa.args):
                missing = ", ".join(feature for feature in isa.args if not has_features((feature,)))
                item.add_marker(pytest.mark.skip(reason=f"this machine has no {missing}"))
                self.without_isa[missing] += 1
            if item.get_closest_marker("derived"):
                derived.append((item.nodeid, op_of(item.name)))
        if self.fraction < 1 and derived:
            self.keep_sample(items, derived)

    def keep_sample(self, items: list[pytest.Item], derived: Sequence[tuple[str, str]]) -> None:
        kept = sampled(derived, self.fraction, self.seed)
        dropped_ids = {node_id for node_id, _ in derived} - kept
        dropped = [item for item in items if item.nodeid in dropped_ids]
        items[:] = [item for item in items if item.nodeid not in dropped_ids]
        self.config.hook.pytest_deselected(items=dropped)
        self.sample = (len(kept), len(derived), len({op for _, op in derived}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        counts = self.compiled_kernels() or {}
        if self.max_kernels is not None and counts.get("compiled", 0) > self.max_kernels:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.summary():
            terminalreporter.write_line(line)

    def summary(self) -> list[str]:
        """What was left out and what it cost, a line each."""
        lines: list[str] = []
        if self.sample is not None:
            kept, everything, ops = self.sample
            lines.append(
                f"derived tests: {kept} of {everything} for {ops} ops (fraction {self.fraction:g}, seed {self.seed})"
            )
        if self.without_isa:
            parts = ", ".join(f"{count} for want of {missing}" for missing, count in sorted(self.without_isa.items()))
            lines.append(f"instruction sets: {sum(self.without_isa.values())} tests skipped: {parts}")
        if self.parity_files:
            lines.append(f"parity: {self.parity_files} files left out, torch is not installed")
        counts = self.compiled_kernels()
        if counts is not None:
            parts = (
                f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"
                for name, value in counts.items()
            )
            lines.append("kernels: " + ", ".join(parts))
            if self.max_kernels is not None and counts.get("compiled", 0) > self.max_kernels:
                lines.append(
                    f"FAILED: {counts['compiled']} kernels compiled, FLAMBEAU_TEST_MAX_KERNELS is {self.max_kernels}"
                )
        return lines


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(Suite(config), "flambeau-suite")
