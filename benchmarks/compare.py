"""One table: the workloads of `workloads/`, Flambeau beside PyTorch (eager and compiled) and JAX where it is installed.

    python benchmarks/compare.py                            # all cases, the threads this machine has
    python benchmarks/compare.py --threads 1 --cases softmax,mlp_64
    python benchmarks/compare.py --markdown > table.md      # the table that the README shows

Each framework runs in a process of its own. All are pinned to the same cores, and sleep while another works. Before anything is timed, results
are compared. Then blocks alternate: every way of the first framework, every way of the second, and so on, --rounds times. A block repeats the
work for --block seconds, reads one element of each result, so that nothing is put off, and counts with the lower fifth of its times: other
programs only ever add time. A block in which they took more than a tenth of the cores is repeated (where Linux counts that), for at most ten
seconds a case; a row that still has such blocks ends with `*`. A column shows the median over rounds. The ratio is the peers' fastest way over
our fastest way, in each round, and again the median: above 1 Flambeau is faster. The C allocator is told to keep large blocks, on all sides, so
that no peer pays page faults.

May not know what the workloads do. Enter at `main`; `serve` is what the processes run.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads import CASES, Case, jaxlike, torchlike

HERE = Path(__file__).resolve()
OURS = "flambeau"
COLUMNS = {  # (framework, way) to heading
    (OURS, "eager"): "Flambeau eager",
    (OURS, "compiled"): "Flambeau compiled",
    ("torch", "eager"): "PyTorch eager",
    ("torch", "compiled"): "PyTorch compiled",
    ("jax", "compiled"): "JAX jit",
}
BODIES = {"jax": jaxlike}  # the others have PyTorch's names
KEEP_BLOCKS = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
FOREIGN = 0.1  # of the cores' time, beyond which a block does not count
PATIENCE_S = 10.0
TOLERANCE = 0.02  # of a sum of absolute values: bfloat16 has three digits


# ---------------------------------------------------------------- in the process of a framework


def reader(framework: str) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    """Functions of a result: one element as a number, and the sum of its absolute values."""
    if framework == "jax":
        return lambda t: float(t.ravel()[0]), lambda t: float(abs(t.astype("float32")).sum())
    return lambda t: t.reshape(-1)[0].item(), lambda t: abs(t.detach()).double().sum().item()


def reason_of(framework: str, error: Exception) -> str:
    """Why a way does not work here, in a line."""
    if framework == "torch" and not any(
        shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")
    ):
        return "torch.compile needs a C++ compiler, and there is none"
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


def serve(framework: str, threads: int) -> None:
    """Answer lines on standard input: `["make", case]` with sums or reasons, `["time", way, seconds]` with seconds of work and of CPU."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what frameworks print is not an answer
    fw = importlib.import_module(framework)
    if framework != "jax":  # JAX takes what the process may run on
        fw.set_num_threads(threads)
    read, total = reader(framework)
    bodies = BODIES.get(framework, torchlike)
    works: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        command, name, *rest = json.loads(line)
        if command == "make":
            works.clear()
            if framework == "torch" and "torch._dynamo" in sys.modules:
                fw._dynamo.reset()
            case, sums, reasons = CASES[name], {}, {}
            for way in case.ways if hasattr(bodies, case.body) else ():
                if (framework, way) not in COLUMNS:
                    continue
                try:
                    work = getattr(bodies, case.body)(fw, way, **case.parameters)
                    sums[way] = total(work())
                    for _ in range(3):  # compilers may look at the second call too
                        work()
                    works[way] = work
                except Exception as error:  # a way that does not work is left out of the table, by name
                    if way == "eager":
                        raise
                    reasons[way] = reason_of(framework, error)
            print(json.dumps([sums, reasons]), file=answers)
        else:
            times: list[float] = []
            used = time.process_time()
            end = time.perf_counter() + rest[0]
            while not times or time.perf_counter() < end:
                start = time.perf_counter()
                read(works[name]())
                times.append(time.perf_counter() - start)
            print(json.dumps([sorted(times)[len(times) // 5], time.process_time() - used]), file=answers)


# ---------------------------------------------------------------- in the process that compares


def busy_seconds(cores: list[int]) -> float:
    """How long these cores have worked, for anybody; 0 where the system does not say."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    ticks = 0
    for line in stat.read_text().splitlines():
        name, *counts = line.split()
        if name in {f"cpu{core}" for core in cores}:
            user, nice, system, _, _, irq, soft, steal = (int(count) for count in counts[:8])
            ticks += user + nice + system + irq + soft + steal
    return ticks / os.sysconf("SC_CLK_TCK")


class Side:
    """The process of one framework."""

    def __init__(self, framework: str, threads: int, cores: list[int], verbose: bool) -> None:
        environment = {**os.environ, **KEEP_BLOCKS, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": self.path()}
        self.framework = framework
        self.cores = cores
        self.process = subprocess.Popen(
            [sys.executable, str(HERE), "--serve", framework, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if verbose else subprocess.DEVNULL,
            text=True,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )

    @staticmethod
    def path() -> str:
        """This tree first, installed or not."""
        return os.pathsep.join(filter(None, (str(HERE.parent.parent), os.environ.get("PYTHONPATH"))))

    def ask(self, *request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"compare: {self.framework} must answer {request}, got nothing. Run with --verbose to see why.")
        return json.loads(line)

    def block(self, way: str, seconds: float, deadline: float) -> tuple[float, bool]:
        """The time of one call, and whether other programs let it be."""
        while True:
            start, before = time.perf_counter(), busy_seconds(self.cores)
            found, used = self.ask("time", way, seconds)
            foreign = busy_seconds(self.cores) - before - used
            quiet = foreign <= FOREIGN * len(self.cores) * (time.perf_counter() - start)
            if quiet or time.perf_counter() > deadline:
                return found, quiet
            time.sleep(0.1)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


Times = dict[tuple[str, str], list[float]]


def compare(name: str, case: Case, sides: list[Side], rounds: int, block: float) -> tuple[Times, dict[str, str], bool]:
    """Seconds of each column, one for each round; why columns are missing; whether other programs let all blocks be."""
    sums: dict[tuple[str, str], float] = {}
    reasons: dict[str, str] = {}
    for side in sides:
        found, missing = side.ask("make", name)
        sums |= {(side.framework, way): value for way, value in found.items()}
        reasons |= {COLUMNS[side.framework, way]: why for way, why in missing.items()}
    low, high = min(sums.values()), max(sums.values())
    if not high - low <= TOLERANCE * high:
        sys.exit(f"compare: results of {name} must agree, got sums {sums}.")
    times: Times = {key: [] for key in sums}
    calm = True
    deadline = time.perf_counter() + PATIENCE_S + rounds * len(times) * block
    for _ in range(rounds):
        for side in sides:
            time.sleep(0.02)  # threads of the last one that spin go to sleep
            for framework, way in times:
                if framework == side.framework:
                    found, quiet = side.block(way, block, deadline)
                    times[framework, way].append(found / case.per)
                    calm = calm and quiet
    return times, reasons, calm


def ratio(times: Times) -> float:
    """The peers' fastest way over our fastest."""
    medians = {key: statistics.median(found) for key, found in times.items()}
    ours = min((key for key in times if key[0] == OURS), key=medians.__getitem__)
    peer = min((key for key in times if key[0] != OURS), key=medians.__getitem__)
    return statistics.median(b / a for a, b in zip(times[ours], times[peer]))


def shown(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1 or unit == "µs":
            value = seconds * scale
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    raise AssertionError


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def versions(frameworks: list[str]) -> str:
    found = [f"{name} {importlib.metadata.version(name)}" for name in frameworks if name != OURS]
    return ", ".join(
        [*found, f"llvmlite {importlib.metadata.version('llvmlite')}", f"Python {platform.python_version()}"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = sorted(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=len(cores))
    parser.add_argument("--cases", default=",".join(CASES), help="names with commas between them")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block", type=float, default=0.15, help="seconds")
    parser.add_argument("--verbose", action="store_true", help="show what the frameworks print")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.threads)
        return
    names = options.cases.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        sys.exit(f"compare: cases must be of {', '.join(CASES)}, got {', '.join(unknown)}.")
    if not 1 <= options.threads <= len(cores):
        sys.exit(f"compare: threads must be 1 to {len(cores)}, got {options.threads}.")
    if importlib.util.find_spec("torch") is None:
        sys.exit("compare: PyTorch must be installed, got none. Install it with `pip install torch`.")
    frameworks = [OURS, "torch", *(["jax"] if importlib.util.find_spec("jax") else [])]
    columns = {key: heading for key, heading in COLUMNS.items() if key[0] in frameworks}
    print(f"{datetime.date.today()}, {processor()}, threads: {options.threads}. {versions(frameworks)}.")
    print(f"`{shlex.join(['python', 'benchmarks/compare.py', *sys.argv[1:]])}`\n")

    def row(*cells: str) -> None:
        if options.markdown:
            print("|", " | ".join(cells), "|", flush=True)
        else:
            print(f"{cells[0]:<56}", *(f"{cell:>17}" for cell in cells[1:]), flush=True)

    row("", *columns.values(), "ratio")
    if options.markdown:
        row("---", *("---:" for _ in columns), "---:")
    sides = [Side(framework, options.threads, cores[: options.threads], options.verbose) for framework in frameworks]
    disturbed = False
    notes: dict[str, list[str]] = {}
    try:
        for name in names:
            times, reasons, calm = compare(name, CASES[name], sides, options.rounds, options.block)
            cells = [shown(statistics.median(times[key])) if key in times else "–" for key in columns]
            row(CASES[name].title, *cells, f"{ratio(times):.2f}{'' if calm else ' *'}")
            disturbed = disturbed or not calm
            for heading, why in reasons.items():
                notes.setdefault(f"{heading}: {why}", []).append(name)
    finally:
        for side in sides:
            side.close()
    if disturbed:
        print("\n\\* other programs took part of the cores")
    for note, where in notes.items():
        print(f"\n{note} ({', '.join(where)})")


if __name__ == "__main__":
    main()
