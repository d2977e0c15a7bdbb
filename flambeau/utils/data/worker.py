"""What runs in a loader's worker process.

A worker has one pipe: tasks come in, batches go out as (task number, kind, block name, payload); tensors are in the block (see
`interop.shared`). An exception goes out as its text, and is raised again in the loader.

May not know: the loader. Entry: `run`, `get_worker_info`.
"""

from __future__ import annotations

import multiprocessing
import pickle
import random as python_random
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from flambeau.engine.eager import set_num_threads
from flambeau.interop.shared import pack
from flambeau.random import manual_seed
from flambeau.utils.data.fetch import IterableFetcher, MapFetcher

PARENT_CHECK_SECONDS = 5.0
BATCH, END, ERROR = "batch", "end", "error"
STOP, RESUME = "stop", "resume"


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker this is. `dataset` is this process's copy."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """The WorkerInfo inside a worker process, None elsewhere."""
    return _info


class WorkerError:
    """An exception of another process: its type, text and traceback, to be raised again here."""

    def __init__(self, error: BaseException, where: str):
        self.kind: type[BaseException] = type(error)
        self.text = "".join(traceback.format_exception(error))
        self.where = where

    def raise_again(self) -> None:
        """Raise the same type with the original traceback in its text (RuntimeError if the type cannot be made from a text)."""
        text = f"Caught {self.kind.__name__} {self.where}.\nOriginal {self.text}"
        if self.kind is KeyError:
            raise KeyError(_Verbatim(text))
        try:
            error = self.kind(text)
        except Exception:
            error = RuntimeError(text)
        raise error

    def __reduce__(self) -> tuple:
        try:
            pickle.dumps(self.kind)
            kind = self.kind
        except Exception:
            kind = RuntimeError
        return _rebuilt_error, (kind, self.text, self.where)


class _Verbatim(str):
    """A KeyError shows the repr of its text: keep the lines."""

    def __repr__(self) -> str:
        return str(self)


def _rebuilt_error(kind: type, text: str, where: str) -> WorkerError:
    made = object.__new__(WorkerError)
    made.kind, made.text, made.where = kind, text, where
    return made


@dataclass(frozen=True)
class Job:
    """What a worker is told at its start."""

    dataset: Any
    iterable: bool
    auto_collation: bool
    collate_fn: Callable
    drop_last: bool
    worker_init_fn: Callable | None
    worker_id: int
    num_workers: int
    base_seed: int

    def fetcher(self) -> MapFetcher | IterableFetcher:
        kind = IterableFetcher if self.iterable else MapFetcher
        return kind(self.dataset, self.auto_collation, self.collate_fn, self.drop_last)


def _seed(seed: int) -> None:
    python_random.seed(seed)
    manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed([(seed >> shift) & 0xFFFFFFFF for shift in (0, 32)])


def run(job: Job, pipe: Connection, others: tuple[Connection, ...]) -> None:
    """The worker's whole life."""
    global _info
    for (
        other
    ) in others:  # ends of pipes that a fork copied: while they are open here, nobody notices that their owner is gone
        other.close()
    set_num_threads(1)
    seed = job.base_seed + job.worker_id
    _seed(seed)
    _info = WorkerInfo(job.worker_id, job.num_workers, seed, job.dataset)
    failure: WorkerError | None = None
    fetcher = None
    try:
        if job.worker_init_fn is not None:
            job.worker_init_fn(job.worker_id)
        fetcher = job.fetcher()
    except Exception as e:
        failure = WorkerError(e, f"in DataLoader worker process {job.worker_id}")
    try:
        while (task := _next_task(pipe)) is not None:
            if task[0] == RESUME:
                _seed(task[1] + job.worker_id)
                try:
                    fetcher, failure = job.fetcher(), None
                except Exception as e:
                    failure = WorkerError(e, f"in DataLoader worker process {job.worker_id}")
                continue
            number, index = task
            if failure is not None:
                pipe.send((number, ERROR, None, pickle.dumps(failure)))
                continue
            pipe.send(_answer(number, index, fetcher, job))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return  # the loader is gone
    finally:
        pipe.close()


def _next_task(pipe: Connection) -> Any:
    """The next task; None to stop, also when the loader's process has ended."""
    parent = multiprocessing.parent_process()
    while not pipe.poll(PARENT_CHECK_SECONDS):
        if parent is not None and not parent.is_alive():
            return None
    task = pipe.recv()
    return None if task == STOP else task


def _answer(number: int, index: Any, fetcher: Any, job: Job) -> tuple:
    try:
        batch = fetcher.fetch(index)
        return number, BATCH, *pack(batch)
    except StopIteration as e:
        if job.iterable:
            return number, END, None, b""
        return number, ERROR, None, pickle.dumps(WorkerError(e, f"in DataLoader worker process {job.worker_id}"))
    except Exception as e:
        return number, ERROR, None, pickle.dumps(WorkerError(e, f"in DataLoader worker process {job.worker_id}"))


__all__ = ["BATCH", "END", "ERROR", "RESUME", "STOP", "Job", "WorkerError", "WorkerInfo", "get_worker_info", "run"]
