"""DataLoader: batches of a dataset, made here or in worker processes.

    for x, y in DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2):
        ...

Workers fetch and collate; their tensors come through shared memory, one block a batch, whose name is gone as soon as it has arrived. The
loader waits on the workers' pipes and on the processes themselves, so that a worker that dies is noticed at once.

May not know: what samples are. Entry: `DataLoader`.
"""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from flambeau.interop.shared import discard, unpack
from flambeau.random import Generator, default_generator
from flambeau.utils.data import worker
from flambeau.utils.data.collate import default_collate, default_convert
from flambeau.utils.data.dataset import Dataset, IterableDataset
from flambeau.utils.data.fetch import IterableFetcher, MapFetcher
from flambeau.utils.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler
from flambeau.utils.data.worker import get_worker_info

__all__ = ["DataLoader", "default_collate", "default_convert", "get_worker_info"]

T = TypeVar("T")
JOIN_SECONDS = 5.0
FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class _InfiniteSampler(Sampler):
    """None for ever: an iterable dataset chooses its own samples."""

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)


class DataLoader(Generic[T]):
    """Iterates over a dataset in batches.

    dataset: by index or by iteration. batch_size None: samples as they are (no collation). shuffle, sampler, batch_sampler: which indices;
    they exclude each other. num_workers: processes that fetch; 0: this one. collate_fn: samples to a batch. timeout: seconds to wait for a
    worker. worker_init_fn(worker_id): runs in each worker. generator: of the order and of the workers' seeds. prefetch_factor: batches that
    each worker works ahead. persistent_workers: keep the processes between epochs. pin_memory: accepted, memory is never pinned here.
    in_order False: batches come as they are ready.

    Raises: ValueError for options that exclude each other.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler | Iterable | None = None,
        batch_sampler: Sampler[list] | Iterable[list] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[T]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ):
        if num_workers < 0:
            raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing.let num_workers > 0 to enable multiprocessing, "
                "otherwise "
                "set prefetch_factor to None."
            )
        if prefetch_factor is not None and prefetch_factor < 0:
            raise ValueError("prefetch_factor option should be non-negative")
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers option needs num_workers > 0")
        self.dataset, self.num_workers = dataset, num_workers
        self.prefetch_factor = 2 if num_workers > 0 and prefetch_factor is None else prefetch_factor
        self.pin_memory, self.pin_memory_device, self.timeout = pin_memory, pin_memory_device, timeout
        self.worker_init_fn, self.multiprocessing_context, self.in_order = (
            worker_init_fn,
            multiprocessing_context,
            in_order,
        )
        self._iterable = isinstance(dataset, IterableDataset)
        if self._iterable:
            if shuffle not in (False, None):
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified shuffle option, but got shuffle={shuffle}"
                )
            if sampler is not None:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified sampler option, but got sampler={sampler}"
                )
            if batch_sampler is not None:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified batch_sampler option, but got batch_sampler={batch_sampler}"
                )
        elif sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
                )
            batch_size, drop_last = None, False
        elif batch_size is None and drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        if sampler is None:
            if self._iterable:
                sampler = _InfiniteSampler()
            else:
                sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size, self.drop_last, self.sampler, self.batch_sampler, self.generator = (
            batch_size,
            drop_last,
            sampler,
            batch_sampler,
            generator,
        )
        self.collate_fn = (
            collate_fn if collate_fn is not None else default_collate if self._auto_collation else default_convert
        )
        self.persistent_workers = persistent_workers
        self._length_given: int | None = None
        self._iterator: _WorkersIterator | None = None
        self.__dict__["_made"] = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_made") and name in FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    @property
    def multiprocessing_context(self) -> Any:
        return self._context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        if context is not None:
            if self.num_workers == 0:
                raise ValueError(
                    f"multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
                    f"num_workers={self.num_workers}"
                )
            if isinstance(context, str):
                valid = multiprocessing.get_all_start_methods()
                if context not in valid:
                    raise ValueError(
                        f"multiprocessing_context option should specify a valid start method in {valid!r}, but got "
                        f"multiprocessing_context={context!r}"
                    )
                context = multiprocessing.get_context(context)
            if not isinstance(context, multiprocessing.context.BaseContext):
                raise TypeError(
                    f"multiprocessing_context option should be a valid context object or a string specifying the start method, but got "
                    f"multiprocessing_context={context}"
                )
        self._context = context

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._auto_collation else self.sampler

    def __iter__(self) -> Iterator[Any]:
        if self.num_workers == 0:
            return _HereIterator(self)
        if not self.persistent_workers:
            return _WorkersIterator(self)
        if self._iterator is None:
            self._iterator = _WorkersIterator(self)
        else:
            self._iterator.restart(self)
        return self._iterator

    def __len__(self) -> int:
        if not self._iterable:
            return len(self._index_sampler)
        length = self._length_given = len(self.dataset)
        if self.batch_size is not None:
            length = length // self.batch_size if self.drop_last else -(-length // self.batch_size)
        return length


class _Iterator:
    """What both sorts of iteration share."""

    def __init__(self, loader: DataLoader):
        self._iterable, self._drop_last, self._auto = loader._iterable, loader.drop_last, loader._auto_collation
        self._collate_fn, self._dataset = loader.collate_fn, loader.dataset
        self._start(loader)

    def _start(self, loader: DataLoader) -> None:
        self._indices = iter(loader._index_sampler)
        seed, count = (loader.generator or default_generator).draw()
        self._base_seed = (seed * 0x9E3779B97F4A7C15 + count * 0xD1B54A32D192ED03) & ((1 << 62) - 1)
        self._yielded = 0
        self._expected = loader._length_given
        self._loader_length = len(loader) if self._iterable and self._expected is not None else None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._next()
        self._yielded += 1
        if self._loader_length is not None and self._yielded > self._loader_length:
            warnings.warn(
                f"Length of IterableDataset {self._dataset} was reported to be {self._loader_length} (when accessing len(dataloader)), but "
                f"{self._yielded} samples have been fetched. With several workers the dataset must divide its samples among them: see "
                f"get_worker_info().",
                stacklevel=2,
            )
        return batch

    def __getstate__(self) -> Any:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)


class _HereIterator(_Iterator):
    """Batches made in this process."""

    def __init__(self, loader: DataLoader):
        super().__init__(loader)
        if loader.timeout != 0:
            raise ValueError("timeout option needs num_workers > 0")
        self._fetcher = (IterableFetcher if self._iterable else MapFetcher)(
            self._dataset, self._auto, self._collate_fn, self._drop_last
        )

    def _next(self) -> Any:
        return self._fetcher.fetch(next(self._indices))

    def __len__(self) -> int:
        return len(self._indices)


class _Worker:
    """A worker process, this end of its pipe, and the tasks it has."""

    def __init__(self, process: Any, pipe: Any):
        self.process, self.pipe = process, pipe
        self.tasks = 0
        self.ended = False  # its iterable dataset is exhausted


class _WorkersIterator(_Iterator):
    """Batches made by workers. Tasks are numbered; answers that come early wait for their turn."""

    def __init__(self, loader: DataLoader):
        self._workers: list[_Worker] = []
        self._timeout, self._persistent, self._in_order = loader.timeout, loader.persistent_workers, loader.in_order
        self._ahead = max(1, loader.prefetch_factor or 1)
        super().__init__(loader)
        context = loader.multiprocessing_context or multiprocessing.get_context()
        for i in range(loader.num_workers):
            mine, theirs = context.Pipe()
            job = worker.Job(
                loader.dataset,
                self._iterable,
                self._auto,
                self._collate_fn,
                self._drop_last,
                loader.worker_init_fn,
                i,
                loader.num_workers,
                self._base_seed,
            )
            forked = context.get_start_method() == "fork"
            others = (mine, *(w.pipe for w in self._workers)) if forked else ()
            process = context.Process(target=worker.run, args=(job, theirs, others), daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, mine))
        self._reset()

    def restart(self, loader: DataLoader) -> None:
        """Another epoch with the same processes."""
        self._drain()
        self._start(loader)
        for w in self._workers:
            w.pipe.send((worker.RESUME, self._base_seed))
        self._reset()

    def _reset(self) -> None:
        self._sent = self._turn = 0
        self._ready: dict[int, tuple] = {}
        self._owner: dict[int, _Worker] = {}
        self._next_worker = 0
        for w in self._workers:
            w.ended = False
        for _ in range(self._ahead * len(self._workers)):
            self._send_task()

    # ------------------------------------------------------------------ tasks
    def _send_task(self) -> None:
        """Give the next indices to the next worker that still has samples and is not too far ahead."""
        for _ in self._workers:
            w = self._workers[self._next_worker]
            self._next_worker = (self._next_worker + 1) % len(self._workers)
            if not w.ended and w.tasks < self._ahead:
                break
        else:
            return
        try:
            index = next(self._indices)
        except StopIteration:
            return
        try:
            w.pipe.send((self._sent, index))
        except (BrokenPipeError, ConnectionResetError, OSError):
            self._complain_of_death([w])
        self._owner[self._sent] = w
        w.tasks += 1
        self._sent += 1

    def _next(self) -> Any:
        while True:
            while self._turn < self._sent and self._turn not in self._owner and self._turn not in self._ready:
                self._turn += 1  # done out of turn, or the end of a worker's samples
            if not self._in_order and self._ready:
                number = next(iter(self._ready))
            elif self._turn in self._ready:
                number = self._turn
            elif not self._owner:
                self._finish()
                raise StopIteration
            else:
                self._receive()
                continue
            kind, name, payload = self._ready.pop(number)
            if number == self._turn:
                self._turn += 1
            if kind == worker.END:
                continue
            self._send_task()
            if kind == worker.ERROR:
                self._fail(pickle.loads(payload))
            return unpack(name, payload)

    def _fail(self, error: worker.WorkerError) -> None:
        if not self._persistent:
            self._shut_down()
        error.raise_again()

    def _receive(self) -> None:
        """Wait for answers (or deaths) and put them where they belong."""
        busy = [w for w in self._workers if w.tasks]
        by_pipe = {w.pipe: w for w in busy}
        by_sentinel = {w.process.sentinel: w for w in busy}
        found = wait([*by_pipe, *by_sentinel], timeout=self._timeout or None)
        if not found:
            self._shut_down(seconds=0.1)
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        pipes = [p for p in found if p in by_pipe]
        for pipe in pipes:
            w = by_pipe[pipe]
            try:
                number, kind, name, payload = pipe.recv()
            except (EOFError, ConnectionResetError):
                self._complain_of_death([w])
            w.tasks -= 1
            del self._owner[number]
            self._ready[number] = (kind, name, payload)
            if kind == worker.END:
                w.ended = True
                self._send_task()
        if not pipes:
            self._complain_of_death([by_sentinel[s] for s in found])

    def _complain_of_death(self, dead: list[_Worker]) -> None:
        for w in dead:
            w.process.join(JOIN_SECONDS)
        pids, codes = ", ".join(str(w.process.pid) for w in dead), ", ".join(str(w.process.exitcode) for w in dead)
        self._shut_down()
        raise RuntimeError(
            f"DataLoader worker (pid(s) {pids}) exited unexpectedly with exit code(s) {codes}. A worker that was killed had no time to say "
            f"why: look for the system's out-of-memory killer, or set num_workers=0 to see the error."
        )

    # ------------------------------------------------------------------ the end
    def _drain(self) -> None:
        """Take every answer that is still to come, and let go of its memory."""
        for _, name, _ in self._ready.values():
            discard(name)
        self._ready = {}
        for w in self._workers:
            while w.tasks:
                try:
                    _, _, name, _ = w.pipe.recv()
                except (EOFError, ConnectionResetError, OSError):
                    w.tasks = 0
                    break
                w.tasks -= 1
                discard(name)
        self._owner = {}

    def _finish(self) -> None:
        if not self._persistent:
            self._shut_down()

    def _shut_down(self, seconds: float = JOIN_SECONDS) -> None:
        """End the workers: politely, and by force if they have not ended in time."""
        workers, self._workers = self._workers, []
        for w in workers:
            try:
                w.pipe.send(worker.STOP)
            except (BrokenPipeError, ConnectionResetError, OSError):
                continue
        for _, name, _ in self.__dict__.get("_ready", {}).values():
            discard(name)
        self._ready, self._owner = {}, {}
        for w in workers:
            self._let_go(w, seconds)

    @staticmethod
    def _let_go(w: _Worker, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while w.tasks and time.monotonic() < deadline and (w.process.is_alive() or w.pipe.poll()):
            if not w.pipe.poll(0.02):  # a worker may be blocked on an answer that nobody reads
                continue
            try:
                _, _, name, _ = w.pipe.recv()
            except (EOFError, ConnectionResetError, OSError):
                break
            w.tasks -= 1
            discard(name)
        w.process.join(max(0.0, deadline - time.monotonic()))
        if w.process.is_alive():
            w.process.terminate()
            w.process.join(JOIN_SECONDS)
        w.pipe.close()

    def __len__(self) -> int:
        return len(self._indices)

    def __del__(self) -> None:
        if self.__dict__.get("_workers"):
            self._shut_down()
