"""Replaying recorded launches: one native call that walks a list of kernels.

    program = Program([Record(kernel, (x, y, block), error_word=0), ...])
    program.run()                       # as launching each through `launch.entry`, in order, on the same addresses

The list is an array of words, [kernel, number of slots, error word or 0, slots ...] for each launch. Slots are copied to the stack, so one
program may run on several threads at once (what its kernels write is the caller's business). A launch with an error word ends the run where
the word is not 0 afterwards: what comes later would compute with values that do not exist.

Kernels that fit one grain run on the calling thread, others are divided over the thread pool. The GIL is kept while all of it is less than
`KEEP_GIL_GRAINS` of work.

May not know: tensors, memory, what a kernel computes. Entry: `Program`.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from array import array
from collections.abc import Callable, Sequence

from flambeau.base.record import record
from flambeau.kernel import cache
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64, ptr
from flambeau.runtime import launch
from flambeau.runtime.native import _FIELDS, COUNTER_SLOT, MAX_SLOTS, native

HEAD_WORDS = 3  # kernel, number of slots, error word
# A grain is some 10 us of work; giving the GIL away and taking it back costs 0.1 us alone and up to a switch interval (5 ms) in company.
KEEP_GIL_GRAINS = 4


class Late:
    """A slot whose number is set before each run: number `index` of those that `source` gives."""

    __slots__ = ("index", "source")

    def __init__(self, source: object, index: int) -> None:
        self.source, self.index = source, index


@record
class Record:
    """One launch: kernel address, slots (ints and floats, the parameter block's address last), where its failures show (0: it cannot fail)."""

    kernel: int
    slots: tuple[int | float | Late, ...]
    error_word: int = 0


def build(target: Target, header: int, bytes_offset: int) -> Module:
    """The module. Its `kernel` writes the address of `replay` to where its argument points."""
    module = Module()
    walk = _emit_walk(module)
    k = module.function("replay", [("self", ptr), ("arguments", ptr), ("count", i64)], ptr, internal=True)
    self, _, _ = k.args

    def word(index: int) -> Value:
        return k.load(k.offset(self, bytes_offset + 8 * index), ptr)

    state, parallel, begin, end = (word(i) for i in range(4))
    gives_way = k.load(k.offset(self, bytes_offset + 32), i64)

    def without_lock() -> None:
        thread = k.call(_read(k, state, "PyEval_SaveThread"), result=ptr)
        k.call(walk, state, parallel, begin, end)
        k.call(_read(k, state, "PyEval_RestoreThread"), thread)

    k.when_else(gives_way.ne(0), without_lock, lambda: k.call(walk, state, parallel, begin, end))
    none = _read(k, state, "None")
    k.call(_read(k, state, "Py_IncRef"), none)
    k.ret(none)
    table = module.function("kernel", [("table", ptr)])
    table.store(table.args[0], Value(table, ptr, f"@{k.name}"))
    table.ret()
    return module


def _read(k: Function, state: Value, name: str) -> Value:
    return k.load(k.offset(state, _FIELDS[name]), ptr)


def _emit_walk(module: Module) -> Function:
    k = module.function("walk", [("state", ptr), ("parallel", ptr), ("begin", ptr), ("end", ptr)], internal=True)
    state, parallel, begin, end = k.args
    slots = k.stack(8 * (MAX_SLOTS + 1), align=64)
    cursor = k.var(i64, begin.to(i64))
    last = end.to(i64)
    with k.loop_while(lambda: cursor.get() < last):
        here = cursor.get().to(ptr)
        kernel, count, error = k.load(here, ptr, 0), k.load(here, i64, 1), k.load(here, ptr, 2)
        given = k.offset(here, 8 * HEAD_WORDS)
        with k.range(0, count) as index:
            k.store(slots, k.load(given, i64, index), index)
        k.store(slots, k.const(i64, 0), COUNTER_SLOT)
        block = k.load(given, ptr, count - 1)
        total, grain = k.load(block, i64, 0), k.load(block, i64, 1)
        k.when_else(
            total <= grain,
            lambda: k.call(kernel, slots, 0, total, 0),
            lambda: k.call(parallel, state, kernel, slots, total, grain),
        )
        with k.when(error.ne(k.const(ptr, 0))):
            with k.when(k.load(error, i64).ne(0)):
                k.ret()
        cursor.set(cursor.get() + (count + HEAD_WORDS) * 8)
    k.ret()
    return k


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_METH_FASTCALL = 0x80


@functools.cache
def _maker() -> tuple[Callable, _MethodDef]:
    """PyCFunction_NewEx and the definition of `replay`, which has to stay where it is."""
    header, bytes_offset = object.__basicsize__, bytes.__basicsize__ - 1
    table = ctypes.c_int64()
    address = cache.address("replay", (header, bytes_offset), build)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(table))
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    return new, _MethodDef(b"replay", table.value, _METH_FASTCALL, b"replay(): run the recorded launches.")


class Program:
    """Launches in order. The caller keeps alive what their addresses point to, and runs it with no more threads than `threads`."""

    def __init__(self, records: Sequence[Record]) -> None:
        words: list[int] = []
        self._late: dict[int, list[tuple[int, int]]] = {}  # id of a source: (word, number)
        grains = 0.0
        for r in records:
            words += [r.kernel, len(r.slots), r.error_word]
            for s in r.slots:
                if type(s) is Late:
                    self._late.setdefault(id(s.source), []).append((len(words), s.index))
                    s = 0
                words.append(_bits(s))
            total, grain = (ctypes.c_int64 * 2).from_address(int(r.slots[-1]))
            grains += total / max(grain, 1)
        self.words = array("q", words)
        self.threads = launch.get_num_threads()
        runtime = native()
        begin, count = self.words.buffer_info()
        parts = (
            runtime.state.address,
            runtime.parallel_address,
            begin,
            begin + 8 * count,
            int(grains > KEEP_GIL_GRAINS),
        )
        new, definition = _maker()
        self_words = b"".join(p.to_bytes(8, sys.byteorder) for p in parts)
        self.run: Callable[[], None] = new(ctypes.addressof(definition), self_words, "flambeau")

    def set_late(self, source: object, numbers: Sequence[int | float]) -> None:
        """Set the slots that a source gives numbers for. Not while it runs."""
        for at, index in self._late.get(id(source), ()):
            self.words[at] = _bits(numbers[index])


def _bits(slot: int | float) -> int:
    """A slot as 64 bits: floats as f64."""
    return struct.unpack("=q", struct.pack("=d", slot))[0] if type(slot) is float else slot


__all__ = ["Late", "Program", "Record"]
