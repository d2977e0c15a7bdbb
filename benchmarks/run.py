"""Run the benchmarks of this folder, each in a process of its own, and say which failed.

    python benchmarks/run.py                         # all
    python benchmarks/run.py bench_gemm -- --threads 1

A benchmark is any other script here: it prints its own lines, and compares results before it times them. What follows `--` goes
to each script that runs. May not know what the scripts measure. Enter at `main`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def benchmarks() -> dict[str, Path]:
    """Name to script, in the order they run."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.py")) if path.name != "run.py"}


def main() -> None:
    arguments = sys.argv[1:]
    passed_on = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    names = arguments[: arguments.index("--")] if "--" in arguments else arguments
    known = benchmarks()
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"run: benchmarks must be of {', '.join(known)}, got {', '.join(unknown)}.")
    failed = []
    for name in names or known:
        print(f"== {name}", flush=True)
        environ = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}  # this tree, installed or not
        if subprocess.run([sys.executable, str(known[name]), *passed_on], env=environ).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"run: {len(failed)} of {len(names or known)} benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
