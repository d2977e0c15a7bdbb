"""Which way a template should take, found by trying: every candidate is verified, then timed, within a bound of seconds.

    tuner = Tuner(settings.tune_seconds)
    with advised(tuner.answer):
        schedule(graph, target, threads)

A candidate runs on random operands of the problem's sizes and layout. What differs from the first candidate's result, by a bit
where the question is `exact` and by more than rounding otherwise, is never taken; and the first is left only for one that
is clearly faster. Answers are kept by question, target, threads and version: in memory, and as JSON in checksummed entries
beside the kernels they are about (`kernel.cache`), where what is damaged, foreign or no longer a candidate counts as absent.

May not know: which templates there are. Entry: `Tuner`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from flambeau import version
from flambeau.base import stages
from flambeau.base.lazy import hashlib, json, np
from flambeau.base.record import as_tuple, record
from flambeau.base.settings import settings
from flambeau.kernel import cache, store
from flambeau.kernel import target as targets
from flambeau.runtime import launch
from flambeau.templates.choice import Question
from flambeau.templates.launch import Lowered

CLEARLY = 0.97  # of the first candidate's time: less of a gain may be noise
HOPELESS = 1.25  # of the best time so far: no more blocks for those slower
BLOCK_S = 0.002  # of runs that are timed together
ROUNDS = 12
ROUNDING = {"float64": 1e-12, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}  # of the largest element

_known: dict[str, Any] = {}
_lock = threading.RLock()  # one at a time: two that measure would measure each other


def forget() -> None:
    """Look at the disk again, or measure again."""
    _known.clear()


settings.watch(forget, "cache_dir")


def encoded(choice: Any) -> str:
    """A candidate as text, by which it is found again."""
    return json.dumps([type(choice).__name__, *as_tuple(choice)])


def key_of(question: Question) -> str:
    """What an answer holds for."""
    return repr(
        (
            "tuned",
            version.__version__,
            targets.current().key,
            question.template,
            question.shape_class,
            question.exact,
            question.threads,
        )
    )


@record
class Answer:
    """A choice as text; whether all candidates were measured, and if not, how many seconds there were."""

    choice: str
    finished: bool
    seconds: int

    def serves(self, seconds: float) -> bool:
        """Whether there is no more to find out within `seconds`."""
        return self.finished or seconds <= self.seconds


# ------------------------------------------------------------------ running candidates
class Trial:
    """Memory for a question's operands, and candidates that run over it."""

    def __init__(self, question: Question):
        if launch.get_num_threads() > question.threads:
            raise ValueError(
                f"tune: launches for {question.threads} threads must not run on more, got {launch.get_num_threads()}. "
                "Ask for as many as `get_num_threads` says."
            )
        self.question = question
        random = np.random.default_rng(0)
        self.operands = [_filled(random, dtype, n) for dtype, n in question.operands]
        self.result = self.operands[-1]
        self.before = self.result.copy()  # what is added to, and what lies between a result's elements

    def runner(self, lowered: Lowered) -> Callable[[], None]:
        """A function that runs these launches once."""
        scratch = [_aligned(n) for n in lowered.scratch_bytes]
        memory = [x.ctypes.data for x in (*self.operands, *scratch)]
        calls = []
        for step in lowered.launches:
            if step.params[0] > 0:
                address = cache.address(step.recipe.name, step.recipe.parameters, step.recipe.build)
                slots = [memory[i] if i < len(memory) else 0 for i in step.buffers]
                calls.append((launch.entry(address), slots, launch.block(step.params)))

        def run(kept: Any = scratch) -> None:
            for entry, slots, block in calls:
                entry(*slots, block.address)

        return run

    def outcome(self, run: Callable[[], None]) -> Any:
        """The result's memory after one run."""
        self.result[:] = self.before
        run()
        return self.result.copy()

    def agree(self, expected: Any, found: Any) -> bool:
        """Whether a result may stand for the first candidate's."""
        if expected.tobytes() == found.tobytes():
            return True
        dtype = self.question.operands[-1][0]
        if self.question.exact or dtype not in ROUNDING:
            return False
        wanted, got = _numbers(expected, dtype), _numbers(found, dtype)
        return bool(np.abs(wanted - got).max() <= ROUNDING[dtype] * np.abs(wanted).max())


def _aligned(nbytes: int) -> Any:
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def _filled(random: Any, dtype: str, n: int) -> Any:
    """Random numbers; bfloat16 as uint16."""
    kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    found = _aligned(n * kind.itemsize).view(kind)
    if kind.kind in "iu" and dtype != "bfloat16":
        found[:] = random.integers(0, 100, n).astype(kind)
    elif dtype == "bfloat16":
        found[:] = (random.standard_normal(n, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        found[:] = random.standard_normal(n, np.float64 if dtype == "float64" else np.float32)
    return found


def _numbers(values: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64)


class Entrant:
    """A candidate that gave the right result, and its best time so far."""

    def __init__(self, choice: Any, run: Callable[[], None]):
        self.choice, self.run, self.repeats, self.best_s = choice, run, 0, float("inf")

    def time(self, clock: Callable[[], float]) -> None:
        """One more block of runs; the first one finds out how many they should be."""
        start = clock()
        for _ in range(max(1, self.repeats)):
            self.run()
        elapsed = (clock() - start) / max(1, self.repeats)
        if not self.repeats:
            self.repeats = max(1, int(BLOCK_S / max(elapsed, 1e-7)))
        self.best_s = min(self.best_s, elapsed)


# ------------------------------------------------------------------ answering
class Tuner:
    """Answers the questions of templates within `seconds` each."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter):
        self.seconds, self.clock = seconds, clock

    def answer(self, question: Question) -> Any:
        """The best candidate that is known, or can be found within the bound."""
        if len(question.candidates) == 1:
            return question.candidates[0]
        key = key_of(question)
        with _lock:
            found = _known.get(key) or _read(key)
            choice = {encoded(c): c for c in question.candidates}.get(found.choice) if found is not None else None
            if choice is None or not found.serves(self.seconds):
                if self.seconds <= 0:
                    return question.candidates[0] if choice is None else choice
                choice, finished = self.tune(question)
                found = Answer(encoded(choice), finished, int(self.seconds))
                _write(key, found)
            _known[key] = found
        return choice

    def tune(self, question: Question) -> tuple[Any, bool]:
        """(the fastest of the right candidates, whether all were measured)."""
        clock = self.clock
        end = clock() + self.seconds
        trial = Trial(question)
        first, *others = question.candidates
        lowered = question.lower(first)
        seen = {lowered}
        entrants = [Entrant(first, trial.runner(lowered))]
        expected = trial.outcome(entrants[0].run)
        entrants[0].time(clock)
        finished = True
        for choice in others:
            if clock() >= end:
                finished = False
                break
            lowered = question.lower(choice)
            if lowered in seen:
                continue
            seen.add(lowered)
            run = trial.runner(lowered)
            if not trial.agree(expected, trial.outcome(run)):
                if stages.shown(1):
                    stages.line(f"tune {question.template}: {choice} gives another result and is left out")
                continue
            entrants.append(Entrant(choice, run))
            entrants[-1].time(clock)
        finished &= self._race(entrants, end)
        best = min(entrants, key=lambda e: e.best_s)
        if best.best_s > CLEARLY * entrants[0].best_s:
            best = entrants[0]
        if stages.shown(1):
            stages.line(
                f"tune {question.template} {question.shape_class}: {len(entrants)} of {len(question.candidates)} candidates, "
                f"{entrants[0].best_s * 1e3:.3f} ms unasked, {best.best_s * 1e3:.3f} ms with {best.choice}"
            )
        return best.choice, finished

    def _race(self, entrants: list[Entrant], end: float) -> bool:
        """More blocks by turns, for those that may win; whether there was time for all of them."""
        running = entrants
        for turn in range(ROUNDS):
            for e in running:
                if self.clock() >= end:
                    return turn > 2
                e.time(self.clock)
            limit = HOPELESS * min(e.best_s for e in running)
            running = [e for e in running if e is entrants[0] or e.best_s <= limit]
            if len(running) == 1:
                break
        return True


# ------------------------------------------------------------------ answers on disk
def _name(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=20).hexdigest()


def _read(key: str) -> Answer | None:
    """The answer kept for a key, if there is one that can be trusted."""
    disk = cache.disk()
    entry = disk.read(_name(key)) if disk is not None else None
    if entry is None:
        return None
    try:
        kept = json.loads(entry.image)
        if kept["key"] != key:
            return None
        found = Answer(kept["choice"], kept["finished"], kept["seconds"])
    except (ValueError, KeyError, TypeError):
        return None  # somebody else's file under this name
    types = tuple(map(type, as_tuple(found)))
    return found if types == (str, bool, int) else None


def _write(key: str, answer: Answer) -> None:
    disk = cache.disk()
    if disk is not None:
        kept = {"key": key, "choice": answer.choice, "finished": answer.finished, "seconds": answer.seconds}
        disk.write(_name(key), store.Entry(0, json.dumps(kept).encode()))
