"""The standard library's `multiprocessing` under PyTorch's name, with `spawn`. Tensors cross between processes as copies; those moved
by `share_memory_()` stay on one block.

    spawn(work, args=(4,), nprocs=2)       # work(0, 4) and work(1, 4)

May not know: what the processes do.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing import *  # noqa: F403
from typing import Any

__all__ = [
    *multiprocessing.__all__,
    "ProcessRaisedException",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "set_sharing_strategy",
    "spawn",
]
_STRATEGY = "file_system"  # shared memory is found by name


class ProcessRaisedException(Exception):
    """A process that `spawn` started ended with an exception, whose traceback is the text."""


def get_all_sharing_strategies() -> set[str]:
    """How tensors may be shared: by name only."""
    return {_STRATEGY}


def get_sharing_strategy() -> str:
    """How tensors are shared."""
    return _STRATEGY


def set_sharing_strategy(new_strategy: str) -> None:
    """Raises: ValueError for another strategy than the one there is."""
    if new_strategy != _STRATEGY:
        raise ValueError(
            f"set_sharing_strategy: the strategy must be '{_STRATEGY}', got {new_strategy!r}. Leave the call out."
        )


class Spawned:
    """The processes that `spawn` started."""

    def __init__(self, processes: list, failures: Any):
        self.processes, self._failures = processes, failures

    def pids(self) -> list[int]:
        """Their numbers."""
        return [p.pid for p in self.processes]

    def join(self, timeout: float | None = None) -> bool:
        """Wait for all; whether they ended. Raises: ProcessRaisedException where one failed, after ending the others."""
        for p in self.processes:
            p.join(timeout)
            if p.exitcode not in (None, 0):
                for other in self.processes:
                    if other.is_alive():
                        other.terminate()
                rank = self.processes.index(p)
                text = f"exit code {p.exitcode}"
                while not self._failures.empty():
                    rank, text = self._failures.get()
                raise ProcessRaisedException(f"spawn: process {rank} terminated with the following error:\n{text}")
        return all(p.exitcode == 0 for p in self.processes)


def _run(function: Callable, rank: int, args: tuple, failures: Any) -> None:
    try:
        function(rank, *args)
    except KeyboardInterrupt:
        pass
    except Exception:
        failures.put((rank, traceback.format_exc()))
        raise SystemExit(1) from None


def spawn(
    fn: Callable,
    args: tuple = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Spawned | None:
    """Start `nprocs` processes that call `fn(i, *args)`; with `join`, wait for them. Raises: ProcessRaisedException where one failed."""
    context = multiprocessing.get_context(start_method)
    failures = context.SimpleQueue()
    processes = []
    for rank in range(nprocs):
        p = context.Process(target=_run, args=(fn, rank, args, failures), daemon=daemon)
        p.start()
        processes.append(p)
    started = Spawned(processes, failures)
    if not join:
        return started
    started.join()
    return None
