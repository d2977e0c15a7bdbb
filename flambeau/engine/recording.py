"""Recording launches instead of running them: what a graph capture turns on for its thread.

    recording = Recording(pool)
    with-like: begin(recording) … end(recording)      # `eager.run_plan` hands plans to the recording meanwhile
    recording.records                                 # launches on fixed addresses, for `runtime.replay.Program`

Plans are found and made as ever, tensors get memory (of the private pool), and nothing is computed: a replay does that. So a value cannot be
read while a recording is on (`refuse`), and what runs in a library instead of a kernel cannot be recorded. Memory from outside that a launch
reads or writes is kept alive. A recording belongs to one thread; `bind.MODES` holds it, so that the fast paths of eager mode step aside.

May not know: the tensor class, graphs that own recordings (`capture.replay`). Entry: `current`, `Recording`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flambeau.core.device import CPU, device
from flambeau.core.spec import Spec
from flambeau.engine.plan import Launch, Plan
from flambeau.ir import bind, tracing
from flambeau.runtime import errors, launch, sim
from flambeau.runtime.private_pool import PrivatePool, Returning
from flambeau.runtime.replay import Late, Program, Record


class Cells:
    """Seed and offset of a random op, in memory that its kernel reads."""

    def __init__(self, generator: Any, tensor: Any) -> None:
        self.generator, self.tensor = generator, tensor
        self.words = (ctypes.c_int64 * 2).from_address(tensor.ptr)

    def refresh(self, program: Program) -> None:
        """Draw, as the op would now."""
        self.words[0], self.words[1] = self.generator.draw()


class HostNumbers:
    """Numbers that Python gives anew for each run of a traced function (`tracing.Recorder.host`), as slots of launches."""

    def __init__(self, get: Callable[[], tuple]) -> None:
        self.get = get

    def __getitem__(self, index: int) -> Late:
        return Late(self, index)

    def refresh(self, program: Program) -> None:
        program.set_late(self, self.get())


class Recording:
    """Launches in order, and all that their addresses need to stay valid."""

    def __init__(self, pool: PrivatePool) -> None:
        self.pool = pool
        self.records: list[Record] = []
        self.names: list[str] = []  # of the launches
        self.device: device | None = None  # of all launches; None before the first one
        self.error: errors.ErrorBlock | None = None  # where launches that may fail report
        self.threads = launch.get_num_threads()  # scratch memory is for as many
        self.broken: str | None = None  # why it cannot be replayed
        self.inputs: dict[int, Any] = {}  # by id: tensors from outside
        self.kept: dict[
            int, Any
        ] = {}  # by id: storages from outside, plans (their parameter blocks), cells of random numbers
        self.gradients: dict[int, Any] = {}  # by id of the storage: the leaf whose gradient is there
        self.refreshed: list[
            Cells | HostNumbers
        ] = []  # what each replay sets before it runs, in the order of recording

    def run(self, plan: Plan, given: Sequence[int | float], operands: Sequence[Any]) -> list[int]:
        """As `Plan.run`: the memory list, with results in blocks of the pool. Operands are the tensors and numbers behind `given`."""
        if self.device is None:
            self.device = plan.device
            self.error = (
                errors.ErrorBlock() if plan.device is CPU else sim.device(plan.device.index).default_queue.error_block
            )
        if plan.device is not self.device:
            self.refuse(
                "capture",
                f"all ops of a graph must be on one device, got one on {plan.device} after ops on {self.device}",
                "Capture a graph for each device.",
            )
        for step in plan.steps:
            if type(step) is not Launch:
                self.refuse(
                    step.op.name,
                    "runs in a library (LAPACK and the like), not in a kernel, and cannot be part of a graph",
                    "Call it outside the capture and copy its result into a static tensor.",
                )
        for x in operands:
            if hasattr(x, "spec"):
                self._keep(x)
        try:
            return self._record(plan, given)
        except BaseException as error:  # out of memory: some launches may be missing
            self.broken = f"{type(error).__name__}: {error}"
            raise

    def _record(self, plan: Plan, given: Sequence[int | float]) -> list[int]:
        take, error = self.pool.take, self.error.address
        memory = list(given)
        taken: list[int] = []
        try:
            for c in plan.blocks:
                taken.append(take(c))
            for i, offset in enumerate(plan.offsets):
                memory.append(take(plan.temps[i].size_class) if offset is None else taken[0] + offset)
        finally:  # temporaries are free for whatever is recorded next: replays keep the order
            for c, p in zip(plan.blocks, taken):
                self.pool.returning(c).append(p)
        memory.append(error)
        for position, extra in plan.shifts:
            memory.append(memory[position] + extra)
        for table in plan.tables_of(memory):
            self.kept[id(table)] = table
        for step in plan.steps:
            slots = (*[memory[i] for i in step.positions], step.block)
            self.records.append(Record(launch.kernel_of(step.entry), slots, error if step.may_fail else 0))
            self.names.append(step.name)
        self.kept[id(plan)] = plan
        return memory

    def host(self, get: Callable[[], tuple]) -> HostNumbers:
        """What stands for the numbers of get(), which each replay calls."""
        self.refreshed.append(HostNumbers(get))
        return self.refreshed[-1]

    def draw(self, generator: Any, tensor: Any) -> None:
        """Let each replay write a generator's next seed and offset into a tensor of two int64."""
        self.refreshed.append(Cells(generator, tensor))

    def adopt(self, tensor: Any, spec: Spec) -> Any:
        """A tensor on a fresh block of the pool gives it back there."""
        tensor.storage.free = self.pool.returning(spec.size_class)
        return tensor

    def _keep(self, tensor: Any) -> None:
        storage = tensor.storage
        if self.pool.owns(storage):
            return
        self.kept[id(storage)] = storage
        while tensor._view is not None:
            tensor = tensor._view[0]
        self.inputs[id(tensor)] = tensor

    def refuse(self, name: str, why: str, step: str) -> NoReturn:
        """Raises: RuntimeError; the recording cannot be used any more, since something is missing from it."""
        self.broken = f"{name}: {why}"
        raise RuntimeError(f"{self.broken}. {step}")


# ------------------------------------------------------------------ which one is on
USED: list[bool] = []  # not empty once a recording was begun in this process: what reads values asks this first


class _Current(threading.local):
    recording: Recording | None = None


_current = _Current()


def current() -> Recording | None:
    """This thread's recording. Ask `bind.MODES` first: it is empty where nobody records."""
    return _current.recording


def is_below() -> bool:
    """Whether a trace or an interpreter of this thread stands between its ops and what runs."""
    return tracing.current() is not None or bool(bind.stack.items)


def active() -> Recording | None:
    """The recording that takes plans run now: none while a trace or an interpreter stands above it."""
    return None if _current.recording is None or is_below() else _current.recording


def is_symbolic() -> bool:
    """Whether what this thread's ops compute is not known as they are called: numbers that change must stay tensors."""
    return _current.recording is not None or is_below()


def begin(recording: Recording) -> None:
    """Turn it on for this thread. Raises: RuntimeError if one is on, or a trace or an interpreter."""
    if _current.recording is not None:
        raise RuntimeError(
            "capture_begin: this thread is capturing a graph already, and captures do not nest. End that one first."
        )
    if tracing.current() is not None or bind.stack.items:
        raise RuntimeError(
            "capture_begin: a graph must not be captured inside a function that is traced, compiled or transformed. "
            "Capture around the call instead: what it runs is recorded."
        )
    _current.recording = recording
    USED[:] = [True]
    bind.MODES.append(recording)


def end(recording: Recording) -> None:
    """Turn it off."""
    if _current.recording is not recording:
        raise RuntimeError(
            "capture_end: no capture of this graph was begun on this thread. Call capture_begin() first."
        )
    _current.recording = None
    bind.MODES.remove(recording)


def adds_in_place(leaf: Any, gradient: Any) -> bool:
    """Whether a recorded backward adds to a leaf's gradient where it lies, so that each replay adds to what is there then: to one from outside.

    Raises: RuntimeError if another leaf's gradient lies there too.
    """
    recording = active()
    if recording is None or recording.pool.owns(gradient.storage):
        return False
    if recording.gradients.setdefault(id(gradient.storage), leaf) is not leaf:
        recording.refuse(
            "backward",
            "two tensors have gradients in the same memory, and a graph adds to them where they are",
            "Set .grad to None (zero_grad()) before the capture, or to clones.",
        )
    return True


def refuse_values(name: str) -> None:
    """Raises: RuntimeError while this thread records: values are not computed before a replay."""
    if _current.recording is not None:
        _current.recording.refuse(
            name,
            "reads values of a tensor, and while a graph is captured nothing is computed",
            "Read them after replay(), or keep the branch on the tensor with where().",
        )


def refuse_host_work(name: str) -> None:
    """Raises: RuntimeError while this thread records, for what happens outside kernels and would not happen again in a replay."""
    if _current.recording is not None:
        _current.recording.refuse(name, "is no kernel, so a replay would not repeat it", "Do it before the capture.")


def check_read(name: str, tensor: Any) -> None:
    """Raises: RuntimeError while this thread records, and for memory of a graph that no replay has written yet."""
    refuse_values(name)
    free = getattr(tensor.storage, "free", None)
    if type(free) is Returning and not free.pool.written:
        raise RuntimeError(
            f"{name}: this tensor was made while a graph was captured, and has no values before the graph's first replay(). "
            "A capture that failed gives none at all: make the tensor again outside."
        )


__all__ = [
    "USED",
    "Recording",
    "active",
    "adds_in_place",
    "begin",
    "check_read",
    "current",
    "end",
    "is_below",
    "is_symbolic",
    "refuse_host_work",
    "refuse_values",
]
