"""Graphs of launches: a sequence of eager ops recorded once and replayed by one native call on the same memory.

    x = flambeau.zeros(32, 8)
    g = Graph()
    with g:                         # nothing is computed inside
        y = model(x)
    x.copy_(batch)                  # new inputs go where the recorded ones lay
    g.replay()                      # y holds the result

Unlike a traced graph (`capture.step`) nothing is fused or planned anew: the kernels are eager mode's, so results are eager mode's bit for bit.
What a replay skips is Python. Shapes, numbers (learning rates) and branches are those of the recording.

- Tensors made inside have memory of the graph's pool, the same in each replay; it goes back to the allocator when the graph is reset or dies,
  for tensors still in use when they die.
- Backward and optimizers may be inside. Set gradients to None before, and each replay writes them anew; gradients that exist are added to.
- Random ops draw from their generator's state at each replay, as eager ops would.
- An index out of bounds raises at the replay that meets it, naming the op; launches behind it do not run.
- Reading values, LAPACK, moves between devices and what else is no kernel are refused inside. After an exception the graph is empty.
- Tensors of the outside that launches use are kept alive; giving one other memory (`.data = `, `resize_`) is an error at the next replay.

May not know: modules. Entry: `Graph`, `make_graphed_callables` in `flambeau.accelerator`.
"""

from __future__ import annotations

import threading
from typing import Any

from flambeau.base.errors import message
from flambeau.core.device import CPU
from flambeau.engine import recording
from flambeau.ir.bind import MODES
from flambeau.runtime import launch, private_pool, sim
from flambeau.runtime.private_pool import Handle
from flambeau.runtime.replay import Program

ERROR_MODES = ("default", "global", "thread_local", "relaxed")


class Graph:
    """See the module. Also a context manager: `with graph:` is `capture_begin()` and `capture_end()`.

    keep_graph: build the native program at the first replay (or `instantiate()`), not at the end of the capture.
    pool: a handle of `pool()` or `graph_pool_handle()`: graphs with one handle share memory, and must be replayed in the order of capture.
    capture_error_mode: taken for compatibility; other threads never disturb a capture here.
    """

    def __init__(
        self, keep_graph: bool = False, *, pool: Handle | None = None, capture_error_mode: str = "default"
    ) -> None:
        self.keep_graph = keep_graph
        self.graph_pool = pool
        self.capture_error_mode = capture_error_mode
        self._lock = threading.Lock()  # one replay at a time: they write the same memory
        self._handle: Handle | None = None  # of the pool while there is a capture
        self._forget()

    def _forget(self) -> None:
        self._recording: recording.Recording | None = None
        self._ended = False
        self._program: Program | None = None
        self._inputs: list[Any] = []
        self._addresses: list[int] = []
        self._debug = getattr(self, "_debug", False)

    # ------------------------------------------------------------------ capture
    def capture_begin(self, pool: Handle | None = None, capture_error_mode: str | None = None) -> None:
        """Record this thread's ops from now on. Raises: RuntimeError inside another capture or a trace, or if there is a capture already."""
        mode = self.capture_error_mode if capture_error_mode is None else capture_error_mode
        if mode not in ERROR_MODES:
            raise ValueError(
                message("capture_begin", f"capture_error_mode must be one of {', '.join(ERROR_MODES)}", repr(mode))
            )
        if self._recording is not None:
            raise RuntimeError(
                "capture_begin: this graph has a capture already. Call reset() first, or make another Graph."
            )
        wanted = pool or self.graph_pool or private_pool.handle()
        if not (isinstance(wanted, tuple) and len(wanted) == 2 and all(type(n) is int for n in wanted)):
            raise TypeError(
                message("capture_begin", "pool must be a handle from pool() or graph_pool_handle()", repr(wanted))
            )
        made = recording.Recording(private_pool.join(wanted, id(self)))
        self._handle = wanted
        try:
            recording.begin(made)
        except BaseException:
            self.reset()
            raise
        self._recording = made

    def capture_end(self) -> None:
        """Stop recording. Raises: RuntimeError if no capture was begun on this thread, or an op inside was refused."""
        found = self._recording
        if found is None or self._ended:
            raise RuntimeError("capture_end: no capture of this graph is under way. Call capture_begin() first.")
        recording.end(found)
        if found.broken is not None:
            self.reset()
            raise RuntimeError(
                f"capture_end: the capture failed and the graph is empty, because an op inside was refused ({found.broken}). "
                "Move it out of the capture."
            )
        self._ended = True
        self._inputs = list(found.inputs.values())
        self._addresses = [t.ptr for t in self._inputs]
        if found.refreshed and found.device is not None and found.device is not CPU:
            self.reset()
            raise RuntimeError(
                "capture_end: random ops and numbers that change are recorded on the CPU only, and this graph is on "
                "the simulated device, whose replays are queued. Draw outside the capture."
            )
        if not self.keep_graph:
            self.instantiate()

    def __enter__(self) -> Graph:
        self.capture_begin()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if kind is None:
            self.capture_end()
        else:  # the exception is the news
            self._abandon()

    def _abandon(self) -> None:
        found = self._recording
        if found is not None and not self._ended and recording.current() is found:
            recording.end(found)
        self.reset()

    def instantiate(self) -> None:
        """Build the native program. Raises: RuntimeError before a capture has ended."""
        self._program = Program(self._captured("instantiate").records)

    def _captured(self, name: str) -> recording.Recording:
        if self._recording is None or not self._ended:
            state = "a capture is under way" if self._recording is not None else "nothing was captured"
            raise RuntimeError(
                message(name, "needs a finished capture", state, "Call capture_begin() and capture_end() first.")
            )
        return self._recording

    # ------------------------------------------------------------------ replay
    def replay(self) -> None:
        """Run what was recorded, on what its memory holds now.

        Raises: RuntimeError before a capture, inside one, if an input has other memory than at the capture or more threads are set; what an
        op reports (IndexError ...); on the simulated device that comes at `synchronize()`.
        """
        if MODES and recording.current() is not None:
            raise RuntimeError(
                "replay: a graph must not be replayed while this thread captures one. End the capture first."
            )
        program = self._program
        if program is None:
            self.instantiate()
            program = self._program
        if [t.ptr for t in self._inputs] != self._addresses:
            self._complain_of_inputs()
        if launch.get_num_threads() > program.threads:
            raise RuntimeError(
                message(
                    "replay",
                    "there must not be more threads than at the capture (memory of each was taken then)",
                    f"{launch.get_num_threads()}, captured with {program.threads}",
                    "Capture again after set_num_threads().",
                )
            )
        found = self._recording
        with self._lock:
            found.pool.written = True
            if found.device is not None and found.device is not CPU:
                self._replay_queued(program, found)
                return
            for source in found.refreshed:
                source.refresh(program)
            program.run()
            if found.error is not None and found.error.words[0]:
                found.error.check()

    def _replay_queued(self, program: Program, found: recording.Recording) -> None:
        queue = sim.device(found.device.index or 0).default_queue
        queue.launch(program.run, keep=(program, found))

    def _complain_of_inputs(self) -> None:
        moved = next(t for t, p in zip(self._inputs, self._addresses) if t.ptr != p)
        raise RuntimeError(
            f"replay: a tensor that the graph uses has other memory than at the capture (it is now {list(moved.shape)}, "
            f"{moved.dtype.name}). A graph works on fixed memory and fixed shapes: write new values with copy_(), or capture again."
        )

    # ------------------------------------------------------------------ the rest
    def reset(self) -> None:
        """Forget the capture and give its memory back. The graph may then capture again."""
        found = self._recording
        if found is not None and not self._ended and recording.current() is found:
            raise RuntimeError("reset: this graph's capture is under way. Call capture_end() first.")
        handle, self._handle = self._handle, None
        self._forget()
        if handle is not None:
            if found is not None and found.device is not None and found.device is not CPU:
                sim.device(found.device.index or 0).default_queue.drain()
            private_pool.leave(handle, id(self))

    def pool(self) -> Handle:
        """The handle of the graph's memory, for other graphs to share. Raises: RuntimeError before a capture."""
        if self._handle is None:
            raise RuntimeError(
                "pool: a graph has a pool once a capture has begun. Call capture_begin() first, or use graph_pool_handle()."
            )
        return self._handle

    def enable_debug_mode(self) -> None:
        """Allow `debug_dump`."""
        self._debug = True

    def debug_dump(self, path: str) -> None:
        """Write the launches and who reads whose memory, in the DOT language. Raises: RuntimeError without `enable_debug_mode()`."""
        if not self._debug:
            raise RuntimeError("debug_dump: debugging is off for this graph. Call enable_debug_mode() first.")
        found = self._captured("debug_dump")
        lines = ["digraph launches {", "    node [shape=box]"]
        last: dict[int, int] = {}  # address -> launch that had it last
        for number, (name, r) in enumerate(zip(found.names, found.records)):
            lines.append(f'    n{number} [label="{number} {name}"]')
            before = {last[s] for s in r.slots[:-1] if type(s) is int and s in last}
            lines += [f"    n{earlier} -> n{number}" for earlier in sorted(before)]
            last.update((s, number) for s in r.slots[:-1] if type(s) is int and s > 4096)
        with open(path, "w") as file:
            file.write("\n".join([*lines, "}"]) + "\n")

    def __del__(self) -> None:
        if self.__dict__.get("_handle") is not None:
            self._abandon()

    def __repr__(self) -> str:
        if self._recording is None:
            return "Graph(empty)"
        state = "captured" if self._ended else "capturing"
        return f"Graph({state}, {len(self._recording.records)} launches, {self._recording.pool.nbytes} bytes)"


class graph:
    """`with graph(g):` captures into `g`. `stream` must be None: the CPU has one queue."""

    def __init__(
        self,
        cuda_graph: Graph,
        pool: Handle | None = None,
        stream: None = None,
        capture_error_mode: str | None = None,
    ) -> None:
        if stream is not None:
            raise ValueError(message("graph", "stream must be None, since a device has one queue here", repr(stream)))
        self.graph, self.pool, self.mode = cuda_graph, pool, capture_error_mode

    def __enter__(self) -> None:
        self.graph.capture_begin(self.pool, self.mode)

    def __exit__(self, *exc: Any) -> None:
        self.graph.__exit__(*exc)


def graph_pool_handle() -> Handle:
    """A handle for graphs to share memory by."""
    return private_pool.handle()


def is_current_stream_capturing() -> bool:
    """Whether this thread captures a graph."""
    return recording.current() is not None


__all__ = ["Graph", "graph", "graph_pool_handle", "is_current_stream_capturing"]
