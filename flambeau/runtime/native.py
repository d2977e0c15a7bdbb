"""The native runtime: a thread pool and the function that calls kernels from Python, emitted with the kernel language.

One module, compiled once and cached like any kernel. It refers to no outside symbol: everything it needs (C functions,
Python's C API, the pool's words) is in the `State`, a page of memory whose address travels with every call.

    entry(self, args, n)             METH_FASTCALL: fill slots, call the kernel or divide it over the pool
    parallel(state, kernel, slots, total, grain)   needs no Python; 64 slots, the last one 0 (see COUNTER_SLOT)
    worker(record)                   what the pool's threads run; never touches Python
    stop(state) -> i64               end the pool's threads; 0 if the pool is busy

The pool is one 64-bit word, `gate`:

    bits 63..32  generation, also the futex word that idle workers sleep on
    bits 31..16  limit: how many workers may be inside
    bit 15       QUIT: workers end
    bit 14       WAITING: the caller sleeps on the low half until the last worker leaves
    bit 13       OPEN: workers may still come in
    bits 12..0   workers inside

A caller opens a generation, everybody claims chunks from an atomic counter, and the caller closes the gate once the counter
is exhausted and waits for those inside. A worker comes in by compare-and-swap on the whole word, so none can enter a closed or
later region by mistake, and the caller never waits for a thread that is asleep or preempted outside. A second Python thread
that finds the pool busy runs its kernel alone.

May not know: tensors, ops, what a kernel computes. Entry: `native()`.

    n = native()
    n.state.set("threads", 4)
    function = n.make_entry(kernel_address)
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

from flambeau.kernel import cache
from flambeau.kernel.dsl import Function, Module, Value, Variable
from flambeau.kernel.target import Target
from flambeau.kernel.types import f64, i1, i32, i64, ptr, u32, u64
from flambeau.runtime.system import os as system

MAX_SLOTS = 63
# The word after them belongs to the kernel: 0 at the start of every launch, and shared by its threads. Reductions count finished
# units in it, so that whoever ends last combines the parts.
COUNTER_SLOT = MAX_SLOTS
MAX_THREADS = 256
# About 100 us where a pause takes 140 cycles (Intel since Skylake): longer than the gap between two launches of one program,
# short enough that an idle pool does not keep a core from its neighbours.
SPINS = 2000

_GENERATION_SHIFT = 32
_LIMIT_SHIFT = 16
_QUIT = 1 << 15
_WAITING = 1 << 14
_OPEN = 1 << 13
_INSIDE = _OPEN - 1

# Offsets in the state. The first group is constant after start-up; each word that threads write has a cache line of its own.
_FIELDS = {
    name: 8 * index
    for index, name in enumerate(
        (
            "PyLong_AsLongLong", "PyErr_Occurred", "PyErr_SetString", "PyEval_SaveThread", "PyEval_RestoreThread",
            "Py_IncRef", "PyFloat_Type", "PyLong_Type", "None", "TypeError", "count_message", "block_message",
            "pthread_create", "pthread_join", "pthread_sigmask", "syscall", "attributes", "threads",
        )
    )
}  # fmt: skip
_FIELDS |= {
    "busy": 256,  # 1 while a caller owns the pool
    "gate": 320,
    "kernel": 328,  # beside the gate: a worker that comes in has the line already
    "slots": 336,
    "total": 344,
    "grain": 352,
    "next": 384,  # first unit nobody has claimed
    "sleepers": 448,  # workers on the way to sleep or asleep
    "workers": 544,  # threads that exist; 0 until the first parallel launch
    "create_error": 552,  # errno of the last pthread_create that failed
    "signals": 576,  # 128 bytes: the set of all signals
    "saved_signals": 704,  # 128 bytes: the creator's mask meanwhile
    "records": 1024,  # one per worker, below
}
_RECORD_BYTES = 64
_RECORD_STATE, _RECORD_TID, _RECORD_SEEN, _RECORD_THREAD = 0, 8, 16, 24
_STATE_BYTES = _FIELDS["records"] + MAX_THREADS * _RECORD_BYTES

_SIG_SETMASK = 2


# ---------------------------------------------------------------------------------------------------- atomics
def _field(k: Function, state: Value, name: str) -> Value:
    return k.offset(state, _FIELDS[name])


def read_field(k: Function, state: Value, name: str) -> Value:
    """A field nobody else writes meanwhile."""
    return k.load(_field(k, state, name), ptr if name[0].isupper() or name in _POINTERS else i64)


_POINTERS = frozenset({"pthread_create", "pthread_join", "pthread_sigmask", "syscall", "attributes", "count_message", "block_message",
                       "kernel", "slots"})  # fmt: skip


def _atomic_load(k: Function, pointer: Value, order: str = "acquire") -> Value:
    return k.emit(i64, f"load atomic i64, ptr {pointer.ref} {order}, align 8")


def _atomic_store(k: Function, pointer: Value, value: Value | int, order: str = "release") -> None:
    k.line(f"store atomic i64 {k.as_value(value, i64).ref}, ptr {pointer.ref} {order}, align 8")


def _atomic(k: Function, operation: str, pointer: Value, value: Value | int, order: str = "seq_cst") -> Value:
    """The old value."""
    return k.emit(i64, f"atomicrmw {operation} ptr {pointer.ref}, i64 {k.as_value(value, i64).ref} {order}")


def _compare_and_swap(k: Function, pointer: Value, expected: Value | int, new: Value | int) -> Value:
    """Whether `pointer` held `expected` and now holds `new`."""
    pair = k.fresh("pair")
    old, new = k.as_value(expected, i64), k.as_value(new, i64)
    k.line(f"{pair} = cmpxchg ptr {pointer.ref}, i64 {old.ref}, i64 {new.ref} seq_cst seq_cst")
    return k.emit(i1, f"extractvalue {{ i64, i1 }} {pair}, 1")


def _pause(k: Function, arch: str) -> None:
    if arch == "x86_64":
        k.module.declare("llvm.x86.sse2.pause", "void", [])
        k.line("call void @llvm.x86.sse2.pause()")
    else:
        k.module.declare("llvm.aarch64.hint", "void", ["i32"])
        k.line("call void @llvm.aarch64.hint(i32 1)")


def _spin(k: Function, arch: str, load: Callable[[], Value], done: Callable[[Value], Value]) -> Variable:
    """Load until `done` or the spins are used up; the last value loaded."""
    value = k.var(i64, load())
    left = k.var(i64, SPINS)
    with k.loop_while(lambda: ~done(value.get()) & (left.get() > 0)):
        _pause(k, arch)
        left.set(left.get() - 1)
        value.set(load())
    return value


# ---------------------------------------------------------------------------------------------------- the pool
def _emit_claims(module: Module) -> Function:
    """Claim and run chunks until none is left."""
    params = [("state", ptr), ("kernel", ptr), ("slots", ptr), ("total", i64), ("grain", i64), ("tid", i64)]
    k = module.function("claims", params, internal=True)
    state, kernel, slots, total, grain, tid = k.args
    counter = _field(k, state, "next")
    begin = k.var(i64, _atomic(k, "add", counter, grain, "monotonic"))
    with k.loop_while(lambda: begin.get() < total):
        start = begin.get()
        k.call(kernel, slots, start, k.minimum(start + grain, total), tid)
        begin.set(_atomic(k, "add", counter, grain, "monotonic"))
    k.ret()
    return k


def _emit_worker(module: Module, arch: str, claims: Function) -> Function:
    k = module.function("worker", [("record", ptr)], ptr, internal=True)
    (record,) = k.args
    state = k.load(record, ptr, _RECORD_STATE // 8)
    tid = k.load(k.offset(record, _RECORD_TID), i64)
    seen = k.var(i64, k.load(k.offset(record, _RECORD_SEEN), i64))
    gate, sleepers = _field(k, state, "gate"), _field(k, state, "sleepers")
    syscall = read_field(k, state, "syscall")

    def generation(word: Value) -> Value:
        return word.lshr(_GENERATION_SHIFT)

    with k.loop_while(lambda: k.const(i1, True)):
        word = _spin(k, arch, lambda: _atomic_load(k, gate), lambda word: generation(word).ne(seen.get()))
        with k.when(generation(word.get()).eq(seen.get())):
            # The caller stores the gate, then reads `sleepers`; we add to it, then the kernel reads the gate: one sees the other.
            _atomic(k, "add", sleepers, 1)
            system.emit_wait(k, syscall, k.offset(gate, 4), seen.get().to(i32))
            _atomic(k, "sub", sleepers, 1)
            word.set(_atomic_load(k, gate))
        with k.when(generation(word.get()).ne(seen.get())):
            seen.set(generation(word.get()))
            with k.when((word.get() & _QUIT).ne(0)):
                k.ret(k.const(ptr, 0))
            inside = k.var(i64, 0)

            def may_enter() -> Value:
                now = word.get()
                room = (now & _INSIDE) < ((now >> _LIMIT_SHIFT) & 0xFFFF)
                return (now & _OPEN).ne(0) & room & generation(now).eq(seen.get()) & inside.get().eq(0)

            with k.loop_while(may_enter):
                now = word.get()
                inside.set(_compare_and_swap(k, gate, now, now + 1).to(i64))
                word.set(_atomic_load(k, gate))
            with k.when(inside.get().ne(0)):
                k.call(
                    claims, state, *(read_field(k, state, name) for name in ("kernel", "slots", "total", "grain")), tid
                )
                old = _atomic(k, "sub", gate, 1)
                last = (old & _INSIDE).eq(1) & (old & _WAITING).ne(0)
                with k.when(last):
                    system.emit_wake(k, syscall, gate, k.const(i64, 1))
    return k


def _emit_start(module: Module, worker: Function) -> Function:
    """Create the worker threads, with every signal blocked so that Python's handlers run on Python's threads."""
    k = module.function("start", [("state", ptr)], internal=True)
    (state,) = k.args
    create, mask = read_field(k, state, "pthread_create"), read_field(k, state, "pthread_sigmask")
    how = k.const(i32, _SIG_SETMASK)
    saved = _field(k, state, "saved_signals")
    null = k.const(ptr, 0)
    k.call(mask, how, _field(k, state, "signals"), saved, result=i32)
    wanted = k.load(_field(k, state, "threads"), i64) - 1
    seen = _atomic_load(k, _field(k, state, "gate")).lshr(_GENERATION_SHIFT)
    index = k.var(i64, 0)
    failure = k.var(i32, 0)
    records = _field(k, state, "records")
    with k.loop_while(lambda: (index.get() < wanted) & failure.get().eq(0)):
        record = k.offset(records, index.get() * _RECORD_BYTES)
        k.store(record, state)
        k.store(k.offset(record, _RECORD_TID), index.get() + 1)
        k.store(k.offset(record, _RECORD_SEEN), seen)
        entry = Value(k, ptr, f"@{worker.name}")
        failure.set(
            k.call(
                create, k.offset(record, _RECORD_THREAD), read_field(k, state, "attributes"), entry, record, result=i32
            )
        )
        with k.when(failure.get().eq(0)):
            index.set(index.get() + 1)
    k.store(_field(k, state, "create_error"), failure.get().to(i64))
    k.store(_field(k, state, "workers"), index.get())
    k.call(mask, how, saved, null, result=i32)
    k.ret()
    return k


def _emit_parallel(module: Module, arch: str, claims: Function, start: Function) -> Function:
    k = module.function(
        "parallel", [("state", ptr), ("kernel", ptr), ("slots", ptr), ("total", i64), ("grain", i64)], internal=True
    )
    state, kernel, slots, total, grain = k.args
    busy, gate = _field(k, state, "busy"), _field(k, state, "gate")
    threads = k.load(_field(k, state, "threads"), i64)

    def alone() -> None:
        k.call(kernel, slots, 0, total, 0)
        k.ret()

    with k.when((threads < 2) | (grain < 1)):
        alone()
    with k.when(~_compare_and_swap(k, busy, 0, 1)):
        alone()
    with k.when(k.load(_field(k, state, "workers"), i64).eq(0)):
        k.call(start, state)
    k.store(_field(k, state, "kernel"), kernel)
    k.store(_field(k, state, "slots"), slots)
    k.store(_field(k, state, "total"), total)
    k.store(_field(k, state, "grain"), grain)
    _atomic_store(k, _field(k, state, "next"), 0, "monotonic")
    chunks = (total + grain - 1) / grain
    limit = k.minimum(k.load(_field(k, state, "workers"), i64), chunks - 1)
    generation = _atomic_load(k, gate, "monotonic").lshr(_GENERATION_SHIFT) + 1
    _atomic(k, "xchg", gate, (generation << _GENERATION_SHIFT) | (limit << _LIMIT_SHIFT) | _OPEN)
    syscall = read_field(k, state, "syscall")
    with k.when(_atomic_load(k, _field(k, state, "sleepers"), "seq_cst") > 0):
        system.emit_wake(k, syscall, k.offset(gate, 4), limit)
    k.call(claims, state, kernel, slots, total, grain, 0)
    word = k.var(i64, _atomic(k, "and", gate, ~_OPEN))
    with k.when((word.get() & _INSIDE).ne(0)):
        word.set(_spin(k, arch, lambda: _atomic_load(k, gate), lambda now: (now & _INSIDE).eq(0)).get())
        with k.when((word.get() & _INSIDE).ne(0)):
            word.set(_atomic(k, "or", gate, _WAITING) | _WAITING)
            with k.loop_while(lambda: (word.get() & _INSIDE).ne(0)):
                system.emit_wait(k, syscall, gate, word.get().to(i32))
                word.set(_atomic_load(k, gate))
    _atomic_store(k, busy, 0)
    k.ret()
    return k


def _emit_stop(module: Module) -> Function:
    k = module.function("stop", [("state", ptr)], i64, internal=True)
    (state,) = k.args
    busy, gate = _field(k, state, "busy"), _field(k, state, "gate")
    with k.when(~_compare_and_swap(k, busy, 0, 1)):
        k.ret(k.const(i64, 0))
    generation = _atomic_load(k, gate, "monotonic").lshr(_GENERATION_SHIFT) + 1
    _atomic(k, "xchg", gate, (generation << _GENERATION_SHIFT) | _QUIT)
    system.emit_wake(k, read_field(k, state, "syscall"), k.offset(gate, 4), k.const(i64, MAX_THREADS))
    join = read_field(k, state, "pthread_join")
    with k.range(0, k.load(_field(k, state, "workers"), i64)) as index:
        record = k.offset(_field(k, state, "records"), index * _RECORD_BYTES)
        k.call(join, k.load(k.offset(record, _RECORD_THREAD), i64), k.const(ptr, 0), result=i32)
    k.store(_field(k, state, "workers"), k.const(i64, 0))
    _atomic_store(k, busy, 0)
    k.ret(k.const(i64, 1))
    return k


def _emit_parallel_alone(module: Module) -> Function:
    """Where there are no native threads."""
    k = module.function(
        "parallel", [("state", ptr), ("kernel", ptr), ("slots", ptr), ("total", i64), ("grain", i64)], internal=True
    )
    _, kernel, slots, total, _ = k.args
    k.call(kernel, slots, 0, total, 0)
    k.ret()
    return k


def _emit_stop_nothing(module: Module) -> Function:
    k = module.function("stop", [("state", ptr)], i64, internal=True)
    k.ret(k.const(i64, 1))
    return k


# ---------------------------------------------------------------------------------------------------- from Python
def emit_integer(
    k: Function, state: Value, object_: Value, kind: Value, int_layout: str, header: int, read: Callable = read_field
) -> Value:
    """The value of a Python int. Up to two digits (60 bits: every address) are read in place, the rest is left to Python."""
    value = k.var(i64)
    slow = k.var(i1, True)
    if int_layout != "opaque":
        with k.when(kind.eq(read(k, state, "PyLong_Type"))):
            size = k.load(k.offset(object_, header), i64)
            low = k.load(k.offset(object_, header + 8), u32).to(u64).bitcast(i64)
            if (
                int_layout == "tag"
            ):  # 3.12 and later: digits in the upper bits, sign (0: positive) in the lowest two, a flag between
                positive = (size & 3).eq(0)
                size = size.lshr(3)
                one, two = positive & size.eq(1), positive & size.eq(2)
            else:  # 3.11: signed number of digits
                one, two = size.eq(1), size.eq(2)
            with k.when(one):
                value.set(low)
                slow.set(False)
            with k.when(two):
                high = k.load(k.offset(object_, header + 12), u32).to(u64).bitcast(i64)
                value.set(low | (high << 30))
                slow.set(False)
    with k.when(slow.get()):
        value.set(k.call(read(k, state, "PyLong_AsLongLong"), object_, result=i64))
        with k.when(value.get().eq(-1)):
            error = k.call(read(k, state, "PyErr_Occurred"), result=ptr)
            with k.when(error.ne(k.const(ptr, 0))):
                k.ret(k.const(ptr, 0))
    return value.get()


def emit_launch(
    k: Function, state: Value, divide: Callable, kernel: Value, slots: Value, block: Value, read: Callable = read_field
) -> None:
    """Run a kernel over filled slots: at once if it is one chunk, else divided, with the GIL released."""
    total, grain = k.load(block, i64, 0), k.load(block, i64, 1)

    def divided() -> None:
        thread = k.call(read(k, state, "PyEval_SaveThread"), result=ptr)
        divide(kernel, slots, total, grain)
        k.call(read(k, state, "PyEval_RestoreThread"), thread)

    k.when_else(total <= grain, lambda: k.call(kernel, slots, 0, total, 0), divided)


def _emit_entry(module: Module, parallel: Function, int_layout: str, header: int, bytes_offset: int) -> Function:
    k = module.function("entry", [("self", ptr), ("arguments", ptr), ("count", i64)], ptr, internal=True)
    self, arguments, count = k.args
    state = k.load(k.offset(self, bytes_offset), ptr)
    kernel = k.load(k.offset(self, bytes_offset + 8), ptr)

    def fail(text: str) -> None:
        k.call(read_field(k, state, "PyErr_SetString"), read_field(k, state, "TypeError"), read_field(k, state, text))
        k.ret(k.const(ptr, 0))

    with k.when((count - 1).bitcast(u64) >= MAX_SLOTS):
        fail("count_message")
    slots = k.stack(8 * (MAX_SLOTS + 1), align=16)
    k.store(slots, k.const(i64, 0), COUNTER_SLOT)
    float_type = read_field(k, state, "PyFloat_Type")
    with k.range(0, count) as index:
        object_ = k.load(arguments, ptr, index)
        kind = k.load(k.offset(object_, header - 8), ptr)
        k.when_else(
            kind.eq(float_type),
            lambda: k.store(slots, k.load(k.offset(object_, header), f64), index),
            lambda: k.store(slots, emit_integer(k, state, object_, kind, int_layout, header), index),
        )
    block = k.load(slots, i64, count - 1)
    with k.when(block.bitcast(u64) < 4096):
        fail("block_message")
    emit_launch(k, state, lambda *given: k.call(parallel, state, *given), kernel, slots, block.to(ptr))
    none = read_field(k, state, "None")
    k.call(read_field(k, state, "Py_IncRef"), none)
    k.ret(none)
    return k


def build(target: Target, pool: bool, int_layout: str, header: int, bytes_offset: int) -> Module:
    """The module. Its `kernel` writes the addresses of the other functions into an array."""
    module = Module()
    if pool:
        claims = _emit_claims(module)
        start = _emit_start(module, _emit_worker(module, target.arch, claims))
        parallel = _emit_parallel(module, target.arch, claims, start)
        stop = _emit_stop(module)
    else:
        parallel = _emit_parallel_alone(module)
        stop = _emit_stop_nothing(module)
    entry = _emit_entry(module, parallel, int_layout, header, bytes_offset)
    k = module.function("kernel", [("table", ptr)])
    for index, function in enumerate((entry, parallel, stop)):
        k.store(k.args[0], Value(k, ptr, f"@{function.name}"), index)
    k.ret()
    return module


def int_layout_of_python() -> str:
    """How this Python stores small ints: `size` (3.11), `tag` (3.12 to 3.14), or `opaque`: ask Python."""
    if sys.implementation.name != "cpython" or sys.int_info.bits_per_digit != 30:
        return "opaque"
    if sys.version_info[:2] == (3, 11):
        return "size"
    return "tag" if (3, 12) <= sys.version_info[:2] <= (3, 14) else "opaque"


# ---------------------------------------------------------------------------------------------------- the state
class State:
    """The page that native code works on. It is never freed: worker threads may outlive everything else."""

    def __init__(self) -> None:
        self.address = system.map_pages(_STATE_BYTES)
        self._words = (ctypes.c_int64 * (_STATE_BYTES // 8)).from_address(self.address)
        python = ctypes.pythonapi
        for name in (
            "PyLong_AsLongLong",
            "PyErr_Occurred",
            "PyErr_SetString",
            "PyEval_SaveThread",
            "PyEval_RestoreThread",
            "Py_IncRef",
        ):
            self.set(name, ctypes.cast(getattr(python, name), ctypes.c_void_p).value or 0)
        for name, value in (("PyFloat_Type", float), ("PyLong_Type", int), ("None", None), ("TypeError", TypeError)):
            self.set(name, id(value))
        self._texts = {
            "count_message": f"launch: a kernel takes 1 to {MAX_SLOTS} slots, the last one being its parameter block's address.",
            "block_message": "launch: the last slot must be the parameter block's address, got a number below 4096. Pass block.address.",
        }
        self._buffers = {name: ctypes.create_string_buffer(text.encode()) for name, text in self._texts.items()}
        for name, buffer in self._buffers.items():
            self.set(name, ctypes.addressof(buffer))
        for name, address in system.symbols().items():
            self.set(name, address)
        self.set("attributes", system.thread_attributes())
        self.set("threads", 1)
        ctypes.memset(self.address + _FIELDS["signals"], 0xFF, 128)

    def get(self, name: str) -> int:
        return self._words[_FIELDS[name] // 8]

    def set(self, name: str, value: int) -> None:
        self._words[_FIELDS[name] // 8] = value

    def forget_threads(self) -> None:
        """After a fork the worker threads do not exist and a region that was running never ends here."""
        for name in ("busy", "gate", "next", "sleepers", "workers"):
            self.set(name, 0)
        self.set("threads", 1)


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_METH_FASTCALL = 0x80


class Native:
    """The compiled runtime and its state; one per process."""

    def __init__(self, pool: bool = system.POOL, int_layout: str | None = None) -> None:
        header = object.__basicsize__  # reference count and type, the type last
        bytes_offset = bytes.__basicsize__ - 1
        address = cache.address("runtime", (pool, int_layout or int_layout_of_python(), header, bytes_offset), build)
        table = (ctypes.c_int64 * 3)()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(table))
        self.state = State()
        self.entry_address, self.parallel_address, self.stop_address = table
        self._stop = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self.stop_address)
        self._definition = _MethodDef(b"entry", self.entry_address, _METH_FASTCALL, b"entry(*slots): run the kernel.")
        self._new = ctypes.pythonapi.PyCFunction_NewEx
        self._new.restype = ctypes.py_object
        self._new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]

    def make_entry(self, kernel: int) -> Callable[..., None]:
        """A builtin function that runs the kernel at this address. Its `self` is a bytes object: state, kernel."""
        words = self.state.address.to_bytes(8, sys.byteorder) + kernel.to_bytes(8, sys.byteorder)
        return self._new(ctypes.addressof(self._definition), words, "flambeau")

    def stop(self) -> bool:
        """End the worker threads; False if a region is running."""
        return bool(self._stop(self.state.address))


@functools.cache
def native() -> Native:
    """The runtime, compiled on first use."""
    return Native()
