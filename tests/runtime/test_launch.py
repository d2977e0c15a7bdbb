"""Entries and the thread pool: every unit runs once, whatever threads, forks and signals do."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path

import pytest

from flambeau.runtime import launch, system
from flambeau.runtime.native import MAX_THREADS, Native, native
from tests.runtime import kernels

ROOT = Path(__file__).parents[2]
needs_pool = pytest.mark.skipif(not system.os.POOL, reason="this system has no native threads")


@pytest.fixture(autouse=True)
def _restore_threads():
    before = launch.get_num_threads()
    yield
    launch.set_num_threads(before)


def run_child(code: str, timeout: float = 30) -> str:
    """Run Python code in a process of its own and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# ---------------------------------------------------------------------------------------------------- slots
def test_slots_hold_ints_and_doubles():
    values = [
        0,
        1,
        -1,
        True,
        (1 << 30) - 1,
        1 << 30,
        (1 << 60) - 1,
        1 << 60,
        (1 << 63) - 1,
        -(1 << 63),
        -5,
        2.5,
        -0.0,
        float("inf"),
        1e-310,
    ]
    out = array("q", bytes(8 * 64))
    block = launch.block([1, 1])
    for run in (kernels.entry(kernels.build_echo), _entry_without_layout()):
        run(len(values) + 3, kernels.address_of(out), *values, block.address)
        got = out[2 : 2 + len(values)].tolist()
        expected = [struct.unpack("q", struct.pack("d", v))[0] if isinstance(v, float) else int(v) for v in values]
        assert got == expected


def _entry_without_layout():
    """An entry that reads no int in place, and has no pool."""
    plain = Native(pool=False, int_layout="opaque")
    _kept.append(plain)
    return plain.make_entry(kernels.cache.address("test_build_echo", (), kernels.build_echo))


_kept: list[Native] = []


def test_most_slots():
    out = array("q", bytes(8 * 64))
    block = launch.block([1, 1])
    run = kernels.entry(kernels.build_echo)
    assert launch.MAX_SLOTS == 63
    run(63, kernels.address_of(out), *range(2, 62), block.address)
    assert out[2:62].tolist() == list(range(2, 62))
    with pytest.raises(TypeError, match="1 to 63 slots"):
        run(63, kernels.address_of(out), *range(2, 63), block.address)


@needs_pool
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("grain", [1, 7, 500])
def test_counter_starts_at_0_and_finds_the_last(threads, grain):
    launch.set_num_threads(threads)
    parts, out = array("q", bytes(8 * 500)), array("q", [0, 0])
    block = launch.block([500, grain])
    run = kernels.entry(kernels.build_last)
    for times in range(1, 200):
        parts[:] = array("q", bytes(8 * 500))
        out[0] = 0
        run(kernels.address_of(parts), kernels.address_of(out), block.address)
        assert out.tolist() == [500 * 501 // 2, times]


@pytest.mark.parametrize(
    ("slots", "error"),
    [
        ((), TypeError),
        (("text", 1 << 40), TypeError),
        ((None, 1 << 40), TypeError),
        ((1 << 63, 1 << 40), OverflowError),
        ((5,), TypeError),
    ],
)
def test_wrong_slots_raise(slots, error):
    with pytest.raises(error):
        kernels.entry(kernels.build_echo)(*slots)


def test_entry_is_the_same_each_time():
    address = kernels.cache.address("test_build_count", (), kernels.build_count)
    assert launch.entry(address) is launch.entry(address)


def test_objects_are_not_leaked():
    run = kernels.entry(kernels.build_scale)
    x = array("d", [1.0])
    block = launch.block([1, 1])
    factor, none = 1.5, None
    before = sys.getrefcount(factor), sys.getrefcount(none)
    for _ in range(1000):
        run(kernels.address_of(x), kernels.address_of(x), factor, block.address)
    after = sys.getrefcount(factor), sys.getrefcount(none)
    assert abs(after[0] - before[0]) < 100 and abs(after[1] - before[1]) < 100


def test_block_needs_two_words():
    with pytest.raises(ValueError, match="total and grain"):
        launch.block([1])


# ---------------------------------------------------------------------------------------------------- dividing
@needs_pool
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    ("total", "grain"), [(1, 1), (2, 1), (1000, 1000), (1001, 1000), (997, 10), (64, 1), (0, 5), (5, 0)]
)
def test_every_unit_runs_once(threads, total, grain):
    launch.set_num_threads(threads)
    counted = kernels.Counted(total, grain)
    counted.run(50)
    counted.check()
    assert all(0 <= tid < threads for tid in counted.tids)


@needs_pool
def test_all_threads_take_part():
    launch.set_num_threads(3)
    busy = kernels.Busy(60, 500_000)
    seen: set[int] = set()
    for _ in range(50):  # a loaded machine may leave a worker asleep for a while
        busy.run()
        seen |= set(busy.tids)
        if len(seen) == 3:
            break
    assert seen == {0, 1, 2}


@needs_pool
def test_results_do_not_depend_on_threads():
    results = []
    for threads in (1, 2, 5):
        launch.set_num_threads(threads)
        busy = kernels.Busy(100, 1000)
        busy.run()
        results.append(busy.out.tolist())
    assert results[0] == results[1] == results[2]


@needs_pool
def test_many_small_regions():
    launch.set_num_threads(4)
    counted = kernels.Counted(37, 3)
    generator = random.Random(0)
    for _ in range(200):
        counted.run(generator.randrange(1, 100))
        if generator.random() < 0.1:
            time.sleep(generator.random() * 1e-3)  # sometimes long enough for the workers to fall asleep
    counted.check()


@needs_pool
def test_two_python_threads_launch_at_once():
    launch.set_num_threads(2)
    launches = [kernels.Counted(200, 10) for _ in range(3)]
    threads = [threading.Thread(target=counted.run, args=(3000,)) for counted in launches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for counted in launches:
        counted.check()


@needs_pool
def test_a_launch_never_waits_for_the_pool():
    """While a long region has the pool, a short one runs alone on its caller."""
    launch.set_num_threads(2)
    long = kernels.Busy(2, 400_000_000)
    thread = threading.Thread(target=long.run)
    thread.start()
    while not native().state.get("busy"):
        assert thread.is_alive(), "the long region ended before it was seen"
        time.sleep(1e-4)
    counted = kernels.Counted(100, 1)
    counted.run()
    assert thread.is_alive(), "the short region waited for the long one"
    thread.join()
    counted.check()
    assert set(counted.tids) == {0}


@needs_pool
@pytest.mark.parametrize("threads", [1, 2])
def test_gil_is_released_while_divided(threads):
    launch.set_num_threads(threads)
    busy = kernels.Busy(4, 50_000_000)
    thread = threading.Thread(target=busy.run)
    ticks = 0
    thread.start()
    while thread.is_alive():
        time.sleep(1e-3)
        ticks += 1
    assert ticks > 5


# ---------------------------------------------------------------------------------------------------- number of threads
@needs_pool
def test_number_of_threads_changes_between_launches():
    counted = kernels.Counted(100, 3)
    for threads in (1, 4, 2, 1, 3, 2, 8, 1):
        launch.set_num_threads(threads)
        assert launch.get_num_threads() == threads
        counted.run(20)
        assert max(counted.tids) < threads
    counted.check()


@needs_pool
def test_number_of_threads_changes_while_others_launch():
    counted = kernels.Counted(100, 3)
    thread = threading.Thread(target=counted.run, args=(5000,))
    thread.start()
    for index in range(40):
        launch.set_num_threads(1 + index % 4)
        time.sleep(1e-3)
    thread.join()
    counted.check()


@pytest.mark.parametrize(
    ("number", "error"),
    [(0, ValueError), (-1, ValueError), (MAX_THREADS + 1, ValueError), (2.0, TypeError), (True, TypeError)],
)
def test_wrong_numbers_of_threads_raise(number, error):
    before = launch.get_num_threads()
    with pytest.raises(error, match="set_num_threads"):
        launch.set_num_threads(number)
    assert launch.get_num_threads() == before


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FLAMBEAU_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, 3),
        ({"OMP_NUM_THREADS": "5,2"}, 5),
        ({"OMP_NUM_THREADS": "x"}, None),
        ({}, None),
    ],
)
@needs_pool
def test_default_number_of_threads(environment, expected):
    clean = {k: v for k, v in os.environ.items() if k not in ("FLAMBEAU_NUM_THREADS", "OMP_NUM_THREADS")}
    code = "from flambeau.runtime import launch; print(launch.get_num_threads())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=clean | environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == (expected or system.os.processors())


# ---------------------------------------------------------------------------------------------------- workers
def _tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.fixture
def workers():
    """Ids of the threads of a new pool of four."""
    launch.set_num_threads(1)
    before = _tasks()
    launch.set_num_threads(4)
    kernels.Counted(100, 1).run()
    return sorted(_tasks() - before)


@needs_pool
def test_workers_are_not_python_threads(workers):
    assert len(workers) == 3
    assert threading.active_count() == len(list(threading.enumerate()))
    assert not {str(thread.native_id) for thread in threading.enumerate()} & set(workers)


@needs_pool
def test_workers_block_signals(workers):
    for worker in workers:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/self/task/{worker}/status").read_text().splitlines())
        blocked = int(fields["SigBlk"], 16)
        assert blocked >> (signal.SIGINT - 1) & 1 and blocked >> (signal.SIGTERM - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@needs_pool
def test_idle_workers_sleep(workers):
    def ticks() -> int:
        return sum(
            sum(map(int, Path(f"/proc/self/task/{w}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
            for w in workers
        )

    time.sleep(0.05)
    start = ticks()
    time.sleep(0.1)
    assert ticks() - start <= 1
    assert native().state.get("sleepers") == 3


@needs_pool
def test_workers_end_when_told(workers):
    launch.wait_until_idle()
    assert not _tasks() & set(workers)
    counted = kernels.Counted(100, 1)
    counted.run(5)
    counted.check()


@needs_pool
def test_threads_that_cannot_be_made_are_done_without():
    state = native().state
    launch.set_num_threads(1)
    launch.set_num_threads(4)
    launch.wait_until_idle()
    real = state.get("pthread_create")
    refuse = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(lambda *_: 11)
    state.set("pthread_create", ctypes.cast(refuse, ctypes.c_void_p).value)
    try:
        counted = kernels.Counted(100, 1)
        counted.run(3)
        counted.check()
        assert state.get("workers") == 0 and state.get("create_error") == 11
    finally:
        state.set("pthread_create", real)
    counted.run(3)
    counted.check()
    assert state.get("workers") == 3 and state.get("create_error") == 0


# ---------------------------------------------------------------------------------------------------- fork, signals, exit
@needs_pool
def test_fork():
    out = run_child("""
import os, threading, time
from flambeau.runtime import launch
from tests.runtime import kernels

launch.set_num_threads(3)
counted = kernels.Counted(500, 7)
counted.run(10)
busy = kernels.Busy(4, 20_000_000)
thread = threading.Thread(target=lambda: [busy.run() for _ in range(5)])
thread.start()
for attempt in range(5):
    time.sleep(0.01)
    child = os.fork()  # in the middle of a region of the other thread
    if child == 0:
        assert launch.get_num_threads() == 1
        counted.run(10)
        counted.check()
        launch.set_num_threads(2)
        counted.run(10)
        counted.check()
        assert max(counted.tids) < 2
        print("child", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    counted.run(10)
thread.join()
counted.check()
print("parent", launch.get_num_threads())
""")
    assert out.split() == ["child"] * 5 + ["parent", "3"]


@needs_pool
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a process")
def test_interrupt_in_a_kernel_leaves_all_usable():
    code = """
import os, signal, threading
from flambeau.runtime import launch
from tests.runtime import kernels

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
launch.set_num_threads(2)
busy = kernels.Busy(8, 30_000_000)
expected = None
print("ready", flush=True)
for _ in range(2):
    try:
        while True:
            busy.run()
            expected = expected or busy.out.tolist()
            print("ran", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
counted = kernels.Counted(500, 7)
counted.run(100)
counted.check()
busy.run()
assert expected is None or busy.out.tolist() == expected
print("usable", flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    lines = [child.stdout.readline().strip()]
    for _ in range(2):
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        while lines[-1] not in ("interrupted", ""):
            lines.append(child.stdout.readline().strip())
        lines.append("-")
    rest, failure = child.communicate(timeout=20)
    assert child.returncode == 0, failure
    assert lines.count("interrupted") == 2 and rest.strip() == "usable"


@needs_pool
def test_exit_while_workers_spin():
    run_child("""
from flambeau.runtime import launch
from tests.runtime import kernels

launch.set_num_threads(4)
kernels.Counted(500, 7).run(100)
""")


@needs_pool
def test_exit_while_a_region_runs():
    run_child("""
import threading, time
from flambeau.runtime import launch
from tests.runtime import kernels

launch.set_num_threads(2)
busy = kernels.Busy(100, 100_000_000)
threading.Thread(target=busy.run, daemon=True).start()
time.sleep(0.05)
""")
