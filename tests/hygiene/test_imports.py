"""What importing Flambeau, and running it warm, brings in and costs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Loaded only when somebody uses what needs them.
HEAVY = (
    "numpy", "scipy", "llvmlite", "torch", "inspect", "dataclasses", "pathlib", "json", "hashlib", "platform", "subprocess", "difflib",
    "logging", "multiprocessing", "concurrent", "asyncio", "tempfile", "pickle", "zipfile", "urllib", "unittest", "importlib.metadata",
)  # fmt: skip


def run(source: str, **environment: str) -> str:
    """The output of a program in a process of its own, whose compiled sources may be kept."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_brings_in_nothing_heavy() -> None:
    loaded = json.loads(
        run(f"""
        import sys
        before = set(sys.modules)       # what the interpreter's own start-up loads is not our doing
        import flambeau
        found = set(sys.modules) - before
        import json
        print(json.dumps(sorted(set({HEAVY!r}) & found)))
    """)
    )
    assert loaded == []


IMPORT = """
import time
start = time.process_time()
import flambeau
print(time.process_time() - start)
"""


def test_import_takes_little_time() -> None:
    run(IMPORT)  # sources are compiled once
    times = [
        float(run(IMPORT)) for _ in range(5)
    ]  # measured: 0.115 s on a machine with four times as much to do as it has cores
    assert min(times) < 0.150, [f"{1e3 * t:.0f} ms" for t in times]


TRAINING = """
    import json, sys
    import flambeau
    from flambeau import nn
    from flambeau.kernel import cache
    from flambeau.nn import functional

    flambeau.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = flambeau.randn(32, 8), flambeau.tensor([i % 3 for i in range(32)])
    losses = []
    for _ in range(5):
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        with flambeau.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
                p.grad = None
        losses.append(loss.item())
    counts = vars(cache.statistics())
    print(json.dumps({"counts": counts, "losses": losses, "loaded": [m for m in ("llvmlite", "scipy", "inspect") if m in sys.modules]}))
"""


def test_a_warm_training_script_compiles_nothing(tmp_path: Path) -> None:
    cold = json.loads(run(TRAINING, FLAMBEAU_CACHE_DIR=str(tmp_path), FLAMBEAU_DEBUG="0"))
    warm = json.loads(run(TRAINING, FLAMBEAU_CACHE_DIR=str(tmp_path), FLAMBEAU_DEBUG="0"))
    assert cold["counts"]["compiled"] > 0
    assert (warm["counts"]["compiled"], warm["counts"]["build_s"], warm["loaded"]) == (0, 0.0, [])
    assert warm["counts"]["disk_hits"] > 0
    assert warm["losses"] == cold["losses"]
    assert warm["losses"][-1] < warm["losses"][0]


def package_bytes(name: str) -> int:
    """Bytes of the files that a distribution installs."""
    try:
        files = importlib.metadata.files(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed as a distribution")
    return sum(
        Path(f.locate()).stat().st_size
        for f in files or ()
        if Path(f.locate()).is_file() and "__pycache__" not in str(f)
    )


def test_installed_size() -> None:
    own = sum(p.stat().st_size for p in (ROOT / "flambeau").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    total = own + package_bytes("numpy") + package_bytes("llvmlite")
    assert total < 300 * 10**6, f"{total / 1e6:.0f} MB"
