"""Native calls that end in Python objects: the results of kernels, views, and what the tape notes of an op.

An eager op of 16 elements is Python objects and little else, so making them is machine code too. Three kinds of builtin function,
each with its data in `self`, a tuple (bytes of words, and the objects that the words point to):

    maker(...)(*operands) -> tensor      blocks for results and scratch, every kernel of a plan, tensors around the results
    viewer(...)(first, args) -> tensor   another spec on the memory of `first`
    taper(...)(*inputs, *outs)           a tape node, its edges and what it saves, hung on the outs

and `Storage.__del__`, which gives a block back. Operands are tensors, ints and floats that go to kernels as they are, or None: not there.

The code reads and writes slots of these classes and the items of tuples and lists in place. Where they lie is not taken from Python's
headers but looked up at start, in objects that hold known values (`offsets_in`). Without a GIL, or where a list is not
found as expected, free lists are used through their methods. Nothing here runs Python code between taking a block and giving it
an owner, and no signal handler runs inside a call.

May not know: what ops, specs and plans are. Entry: `register`, `maker`, `viewer`, `taper`.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.base.record import record
from flambeau.kernel import cache
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import f64, i1, i32, i64, ptr, void
from flambeau.runtime.native import COUNTER_SLOT, MAX_SLOTS, emit_integer, emit_launch, int_layout_of_python, native

MOST_ADDRESSES = 1024  # inputs, results and blocks of one plan: they are on the stack meanwhile

# Words of the page that all functions share: C functions, then Python objects.
_FUNCTIONS = (
    "PyType_GenericAlloc", "PyType_IsSubtype", "PyTuple_New", "PyLong_FromLongLong", "PyIter_Next", "PyObject_GetAttr",
    "PyObject_CallNoArgs", "PyObject_CallOneArg", "PyList_Append", "PyErr_Clear", "PyErr_SetString", "Py_IncRef", "Py_DecRef",
    "PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_AsLongLong", "PyErr_Occurred",
)  # fmt: skip
_OBJECTS = (
    "None", "True", "False", "zero", "version", "TypeError", "PyLong_Type", "PyFloat_Type", "Tensor", "TensorBase", "Storage",
    "Node", "edge_of", "sequence",
)  # fmt: skip
_PAGE = "@page"  # a variable of the module: where the page is
_FIELDS = {
    name: i for i, name in enumerate(("state", "parallel", "operand_message", "count_message", *_FUNCTIONS, *_OBJECTS))
}


@record
class Layout:
    """Where things lie in Python objects, in bytes. `list_items` is -1 where lists are to be used through their methods."""

    int_layout: str
    header: int  # of every object: reference count and type
    bytes_content: int
    tuple_items: int
    list_items: int
    spec: int
    ptr: int
    storage: int
    needs_grad: int
    node: int
    view: int
    storage_ptr: int
    storage_free: int
    storage_version: int
    analysis: int
    edges: int
    saved: int
    versions: int
    sequence: int
    extras: int


def offsets_in(kind: type, names: Sequence[str]) -> list[int]:
    """Where an object of this class keeps its slots."""
    found = object.__new__(kind)
    marks: list[Any] = [[] for _ in names]
    for name, mark in zip(names, marks):
        setattr(found, name, mark)
    words = list((ctypes.c_int64 * (kind.__basicsize__ // 8)).from_address(id(found)))
    return [8 * words.index(id(mark)) for mark in marks]


def _tuple_items() -> int:
    mark = object()
    probe = (mark, mark)
    words = list((ctypes.c_int64 * (sys.getsizeof(probe) // 8)).from_address(id(probe)))
    return 8 * words.index(id(mark))


def _list_items(header: int) -> int:
    """Where a list keeps the address of its items; its length is the word behind the header."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return -1
    mark = object()
    probe = [None, mark, None]
    words = (ctypes.c_int64 * 2).from_address(id(probe) + header)
    if words[0] != 3 or (ctypes.c_int64 * 3).from_address(words[1])[1] != id(mark):
        return -1
    return header + 8


# ---------------------------------------------------------------------------------------------------- emitting
class _Emitter:
    """One function in the making, with the words that everything reads."""

    def __init__(self, module: Module, name: str, layout: Layout, params: list, result: Any):
        self.k: Function = module.function(name, params, result, internal=True)
        self.layout = layout
        self.page: Value = self.k.load(Value(self.k, ptr, _PAGE), ptr)

    def words(self) -> Value:
        """The words in a function's `self`."""
        k = self.k
        return k.offset(k.load(k.offset(k.args[0], self.layout.tuple_items), ptr), self.layout.bytes_content)

    def field(self, name: str) -> Value:
        return _read_field(self.k, self.page, name)

    def call(self, name: str, *args: Any, result: Any = None) -> Any:
        return self.k.call(self.field(name), *args, result=result)

    def null(self) -> Value:
        return self.k.const(ptr, 0)

    def kept(self, value: Value) -> Value:
        """The object with one more reference."""
        self.call("Py_IncRef", value)
        return value

    def slot(self, object_: Value, offset: int) -> Value:
        return self.k.load(self.k.offset(object_, offset), ptr)

    def set_slot(self, object_: Value, offset: int, value: Value) -> None:
        """Put a reference into a slot that is empty."""
        self.k.store(self.k.offset(object_, offset), value)

    def kind(self, object_: Value) -> Value:
        return self.slot(object_, self.layout.header - 8)

    def fail(self, text: str) -> None:
        self.call("PyErr_SetString", self.field("TypeError"), self.field(text))
        self.k.ret(self.null())

    def fail_if_null(self, value: Value, *owned: Value) -> Value:
        """Leave with the error that is set, letting go of what is owned."""
        with self.k.when(value.eq(self.null())):
            for o in owned:
                self.call("Py_DecRef", o)
            self.k.ret(self.null())
        return value

    def check_tensor(self, object_: Value, *owned: Value) -> None:
        """Only tensors have slots where we look for them."""
        k = self.k
        kind = self.kind(object_)
        with k.when(kind.ne(self.field("Tensor"))):
            with k.when(self.call("PyType_IsSubtype", kind, self.field("TensorBase"), result=i32).eq(0)):
                for o in owned:
                    self.call("Py_DecRef", o)
                self.fail("operand_message")

    def integer(self, object_: Value) -> Value:
        return emit_integer(
            self.k, self.page, object_, self.kind(object_), self.layout.int_layout, self.layout.header, _read_field
        )


def _read_field(k: Function, page: Value, name: str) -> Value:
    return k.load(page, ptr, _FIELDS[name])


def _emit_take(module: Module, layout: Layout) -> Function:
    """take(free, more): an address off a free list, as a new reference; NULL with an error set if there is no memory."""
    e = _Emitter(module, "take", layout, [("free", ptr), ("more", ptr)], ptr)
    k = e.k
    free, more = k.args
    if layout.list_items >= 0:
        size = k.load(k.offset(free, layout.header), i64)
        with k.when(size > 0):
            item = k.load(e.slot(free, layout.list_items), ptr, size - 1)
            k.store(k.offset(free, layout.header), size - 1)  # as list.pop does; the list's reference is ours now
            k.ret(item)
    k.ret(e.call("PyObject_CallNoArgs", more, result=ptr))
    return k


def _emit_give(module: Module, layout: Layout) -> Function:
    """give(free, item): the address goes back, and with it the reference."""
    e = _Emitter(module, "give", layout, [("free", ptr), ("item", ptr)], void)
    k = e.k
    free, item = k.args
    with k.when(e.call("PyList_Append", free, item, result=i32).ne(0)):
        e.call("PyErr_Clear")  # no memory for the list: the block is lost until the process ends
    e.call("Py_DecRef", item)
    k.ret()
    return k


def _emit_tensor(module: Module, layout: Layout) -> Function:
    """tensor(spec, item, storage, view): takes over the references to item, storage and view, also if it fails."""
    params = [("spec", ptr), ("item", ptr), ("storage", ptr), ("view", ptr)]
    e = _Emitter(module, "tensor", layout, params, ptr)
    k = e.k
    spec, item, storage, view = k.args
    made = e.call("PyType_GenericAlloc", e.field("Tensor"), 0, result=ptr)
    e.fail_if_null(made, item, storage, view)
    e.set_slot(made, layout.spec, e.kept(spec))
    e.set_slot(made, layout.ptr, item)
    e.set_slot(made, layout.storage, storage)
    e.set_slot(made, layout.view, view)
    e.set_slot(made, layout.needs_grad, e.kept(e.field("False")))
    e.set_slot(made, layout.node, e.kept(e.field("None")))
    k.ret(made)
    return k


def _emit_result(module: Module, layout: Layout, take: Function, give: Function, tensor: Function) -> Function:
    """result(free, more, spec): a tensor that owns a block; NULL with an error set."""
    e = _Emitter(module, "result", layout, [("free", ptr), ("more", ptr), ("spec", ptr)], ptr)
    k = e.k
    free, more, spec = k.args
    item = e.fail_if_null(k.call(take, free, more))
    storage = e.call("PyType_GenericAlloc", e.field("Storage"), 0, result=ptr)
    with k.when(storage.eq(e.null())):
        k.call(give, free, item)
        k.ret(e.null())
    e.set_slot(storage, layout.storage_ptr, e.kept(item))
    e.set_slot(storage, layout.storage_free, e.kept(free))
    e.set_slot(storage, layout.storage_version, e.kept(e.field("zero")))
    k.ret(k.call(tensor, spec, item, storage, e.kept(e.field("None"))))
    return k


# Words of a maker: [inputs, results, blocks, shifts, tables, steps], then per result [free, more, spec], per block [free, more], per shift
# [position, bytes], per table [position, count, positions …], per step [kernel, block, count, positions …]. Positions count inputs, results,
# blocks, shifts.
_MAKER_HEAD = 6


def _emit_make(module: Module, layout: Layout, take: Function, give: Function, result: Function) -> Function:
    e = _Emitter(module, "make", layout, [("self", ptr), ("arguments", ptr), ("given", i64)], ptr)
    k = e.k
    _, arguments, given = k.args
    words = e.words()
    results, blocks, shifts, tables, steps = (k.load(words, i64, i) for i in range(1, _MAKER_HEAD))
    memory = k.stack(8 * MOST_ADDRESSES, align=16)
    owners = k.stack(8 * MOST_ADDRESSES, align=16)
    with k.when(given > MOST_ADDRESSES):
        e.fail("count_message")
    operands = k.var(i64, 0)  # given ones that are not None
    with k.range(0, given) as index:
        operand = k.load(arguments, ptr, index)
        kind = e.kind(operand)
        number = k.var(ptr, operand)

        def fill(value: Value) -> None:
            k.store(memory, value, operands.get())
            operands.set(operands.get() + 1)

        def whole() -> None:
            with k.when(kind.ne(e.field("PyLong_Type"))):
                e.check_tensor(operand)
                number.set(e.slot(operand, layout.ptr))
                with k.when(number.get().eq(e.null())):
                    e.fail("operand_message")
            fill(e.integer(number.get()))

        with k.when(operand.ne(e.field("None"))):
            is_float = kind.eq(e.field("PyFloat_Type"))
            k.when_else(is_float, lambda: fill(k.load(k.offset(operand, layout.header), f64)), whole)
    count = operands.get()
    with k.when(count.ne(k.load(words, i64, 0))):
        e.fail("count_message")
    at = k.var(ptr, k.offset(words, 8 * _MAKER_HEAD))
    failed = k.var(i1, False)
    made = k.var(i64, 0)  # results that exist

    with k.loop_while(lambda: (made.get() < results) & ~failed.get()):
        entry = at.get()
        out = k.call(result, *(k.load(entry, ptr, i) for i in range(3)))
        failed.set(out.eq(e.null()))
        with k.when(~failed.get()):
            k.store(owners, out, made.get())
            k.store(memory, e.integer(e.slot(out, layout.ptr)), count + made.get())
            made.set(made.get() + 1)
            at.set(k.offset(entry, 24))
    first_block = k.offset(words, (results * 3 + _MAKER_HEAD) * 8)
    taken = k.var(i64, 0)
    with k.loop_while(lambda: (taken.get() < blocks) & ~failed.get()):
        entry = k.offset(first_block, taken.get() * 16)
        item = k.call(take, k.load(entry, ptr, 0), k.load(entry, ptr, 1))
        failed.set(item.eq(e.null()))
        with k.when(~failed.get()):
            at_block = results + taken.get()
            k.store(owners, item, at_block)
            k.store(memory, e.integer(item), count + at_block)
            taken.set(taken.get() + 1)

    with k.when(~failed.get()):
        at.set(k.offset(first_block, blocks * 16))
        base = count + results + blocks
        with k.range(0, shifts) as index:
            entry = at.get()
            k.store(memory, k.load(memory, i64, k.load(entry, i64, 0)) + k.load(entry, i64, 1), base + index)
            at.set(k.offset(entry, 16))
        with k.range(0, tables):
            entry = at.get()
            table, count_listed = k.load(memory, ptr, k.load(entry, i64, 0)), k.load(entry, i64, 1)
            listed = k.offset(entry, 16)
            with k.range(0, count_listed) as index:
                k.store(table, k.load(memory, i64, k.load(listed, i64, index)), index)
            at.set(k.offset(listed, count_listed * 8))
        slots = k.stack(8 * (MAX_SLOTS + 1), align=16)

        def divide(*given: Value) -> None:
            k.call(e.field("parallel"), e.field("state"), *given)

        with k.range(0, steps):
            entry = at.get()
            k.store(slots, k.const(i64, 0), COUNTER_SLOT)
            operands = k.load(entry, i64, 2)
            positions = k.offset(entry, 24)
            with k.range(0, operands) as index:
                k.store(slots, k.load(memory, i64, k.load(positions, i64, index)), index)
            block = k.load(entry, ptr, 1)
            k.store(slots, block, operands)
            emit_launch(k, e.page, divide, k.load(entry, ptr, 0), slots, block, _read_field)
            at.set(k.offset(positions, operands * 8))

    with k.range(0, taken.get()) as index:
        k.call(give, k.load(first_block, ptr, index * 2), k.load(owners, ptr, results + index))
    with k.when(~failed.get() & results.eq(1)):
        k.ret(k.load(owners, ptr, 0))
    answer = k.var(ptr, e.null())
    with k.when(~failed.get()):
        answer.set(e.call("PyTuple_New", results, result=ptr))
    with k.range(0, made.get()) as index:
        out = k.load(owners, ptr, index)
        k.when_else(
            answer.get().eq(e.null()),
            lambda: e.call("Py_DecRef", out),
            lambda: k.store(k.offset(answer.get(), layout.tuple_items), out, index),
        )
    k.ret(answer.get())
    return k


def _emit_view(module: Module, layout: Layout, tensor: Function) -> Function:
    """Words: [spec, op, offset in bytes]."""
    e = _Emitter(module, "view", layout, [("self", ptr), ("arguments", ptr), ("count", i64)], ptr)
    k = e.k
    _, arguments, count = k.args
    words = e.words()
    with k.when(count.ne(2)):
        e.fail("count_message")
    first, args = k.load(arguments, ptr, 0), k.load(arguments, ptr, 1)
    e.check_tensor(first)
    offset = k.load(words, i64, 2)
    item = k.var(ptr, e.slot(first, layout.ptr))
    storage = e.slot(first, layout.storage)
    with k.when(item.get().eq(e.null()) | storage.eq(e.null())):
        e.fail("operand_message")
    k.when_else(
        offset.eq(0),
        lambda: e.kept(item.get()),
        lambda: item.set(e.call("PyLong_FromLongLong", e.integer(item.get()) + offset, result=ptr)),
    )
    e.fail_if_null(item.get())
    view = e.fail_if_null(e.call("PyTuple_New", 3, result=ptr), item.get())
    for i, part in enumerate((first, k.load(words, ptr, 1), args)):
        e.set_slot(view, layout.tuple_items + 8 * i, e.kept(part))
    k.ret(k.call(tensor, k.load(words, ptr, 0), item.get(), e.kept(storage), view))
    return k


# Words of a taper: [analysis, inputs, outs, saved inputs, saved outs, differentiable outs], then a word per input (1: it needs
# a gradient), per saved input 2 * place (+ 1: a number), per saved out its place, per differentiable out its place.
_TAPER_HEAD = 6


def _emit_tape(module: Module, layout: Layout) -> Function:
    e = _Emitter(module, "tape", layout, [("self", ptr), ("arguments", ptr), ("count", i64)], ptr)
    k = e.k
    _, arguments, count = k.args
    words = e.words()
    inputs, outs, saved_inputs, saved_outs, differentiable = (k.load(words, i64, i) for i in range(1, _TAPER_HEAD))
    with k.when(count.ne(inputs + outs)):
        e.fail("count_message")
    none = e.field("None")

    def place(tuple_: Value, index: Any, value: Value) -> None:
        k.store(k.offset(tuple_, layout.tuple_items), value, index)

    def pair(a: Value, b: Value) -> Value:
        made = e.fail_if_null(e.call("PyTuple_New", 2, result=ptr), node)
        place(made, 0, e.kept(a))
        place(made, 1, e.kept(b))
        return made

    node = e.fail_if_null(e.call("PyType_GenericAlloc", e.field("Node"), 0, result=ptr))
    e.set_slot(node, layout.analysis, e.kept(k.load(words, ptr, 0)))
    e.set_slot(node, layout.extras, e.kept(none))
    edges = e.fail_if_null(e.call("PyTuple_New", inputs, result=ptr), node)
    e.set_slot(node, layout.edges, edges)
    at = k.offset(words, 8 * _TAPER_HEAD)
    with k.range(0, inputs) as index:
        x = k.load(arguments, ptr, index)
        edge = k.var(ptr, none)

        def follow() -> None:
            e.check_tensor(x, node)
            before = e.slot(x, layout.node)

            def direct() -> None:
                k.when_else(before.eq(none), lambda: edge.set(pair(none, x)), lambda: edge.set(e.kept(before)))

            def asked() -> None:
                edge.set(e.fail_if_null(e.call("PyObject_CallOneArg", e.field("edge_of"), x, result=ptr), node))

            k.when_else(e.slot(x, layout.view).eq(none), direct, asked)

        k.when_else(k.load(at, i64, index).ne(0), follow, lambda: e.kept(none))
        place(edges, index, edge.get())
    # Behind the edges: to find that of a view may make a node, which has to count as the older.
    number = e.fail_if_null(e.call("PyIter_Next", e.field("sequence"), result=ptr), node)
    e.set_slot(node, layout.sequence, number)

    at = k.offset(at, inputs * 8)
    saved = e.fail_if_null(e.call("PyTuple_New", saved_inputs + saved_outs, result=ptr), node)
    e.set_slot(node, layout.saved, saved)
    versions = e.fail_if_null(e.call("PyTuple_New", saved_inputs + saved_outs, result=ptr), node)
    e.set_slot(node, layout.versions, versions)

    def version_of(x: Value) -> Value:
        storage = e.slot(x, layout.storage)
        version = k.var(ptr)
        k.when_else(
            e.kind(storage).eq(e.field("Storage")),
            lambda: version.set(e.kept(e.slot(storage, layout.storage_version))),
            lambda: version.set(e.call("PyObject_GetAttr", storage, e.field("version"), result=ptr)),
        )
        return e.fail_if_null(version.get(), node)

    with k.range(0, saved_inputs) as index:
        code = k.load(at, i64, index)
        x = k.load(arguments, ptr, code >> 1)
        place(saved, index, e.kept(x))
        version = k.var(ptr, none)

        def noted() -> None:
            e.check_tensor(x, node)
            version.set(version_of(x))

        k.when_else((code & 1).eq(0), noted, lambda: e.kept(none))
        place(versions, index, version.get())
    at = k.offset(at, saved_inputs * 8)
    with k.range(0, saved_outs) as index:
        x = k.load(arguments, ptr, inputs + k.load(at, i64, index))
        e.check_tensor(x, node)
        memory = e.fail_if_null(e.call("PyTuple_New", 3, result=ptr), node)
        place(saved, saved_inputs + index, memory)
        for i, offset in enumerate((layout.spec, layout.ptr, layout.storage)):
            place(memory, i, e.kept(e.slot(x, offset)))
        place(versions, saved_inputs + index, version_of(x))
    at = k.offset(at, saved_outs * 8)
    with k.range(0, differentiable) as index:
        which = k.load(at, i64, index)
        x = k.load(arguments, ptr, inputs + which)
        e.check_tensor(x, node)
        position = e.fail_if_null(e.call("PyLong_FromLongLong", which, result=ptr), node)
        history = e.fail_if_null(e.call("PyTuple_New", 2, result=ptr), position, node)
        place(history, 0, e.kept(node))
        place(history, 1, position)
        for offset, value in ((layout.needs_grad, e.kept(e.field("True"))), (layout.node, history)):
            old = e.slot(x, offset)
            e.set_slot(x, offset, value)
            e.call("Py_DecRef", old)
    e.call("Py_DecRef", node)
    k.ret(e.kept(none))
    return k


def _emit_release(module: Module, layout: Layout) -> Function:
    """Storage.__del__(self): the block goes back to its free list."""
    e = _Emitter(module, "release", layout, [("self", ptr), ("arguments", ptr)], ptr)
    k = e.k
    free, item = e.slot(k.args[0], layout.storage_free), e.slot(k.args[0], layout.storage_ptr)
    with k.when(free.ne(e.null()) & item.ne(e.null())):
        with k.when(e.call("PyList_Append", free, item, result=i32).ne(0)):
            k.ret(e.null())
    k.ret(e.kept(e.field("None")))
    return k


def build(target: Target, *layout: Any) -> Module:
    """The module. Its `kernel(page, table)` takes the page to work with and gives the addresses of the functions."""
    module = Module()
    module.globals.append(f"{_PAGE} = internal global ptr null, align 8")
    where = Layout(*layout)
    take, give = _emit_take(module, where), _emit_give(module, where)
    tensor = _emit_tensor(module, where)
    result = _emit_result(module, where, take, give, tensor)
    functions = (
        _emit_make(module, where, take, give, result),
        _emit_view(module, where, tensor),
        _emit_tape(module, where),
        _emit_release(module, where),
    )
    k = module.function("kernel", [("page", ptr), ("table", ptr)])
    page, table = k.args
    k.store(Value(k, ptr, _PAGE), page)
    for index, function in enumerate(functions):
        k.store(table, Value(k, ptr, f"@{function.name}"), index)
    k.ret()
    return module


# ---------------------------------------------------------------------------------------------------- from Python
class _Classes:
    """What higher layers register: their classes, and what the tape counts nodes with."""

    Tensor: type
    TensorBase: type
    Storage: type
    Node: type
    edge_of: Callable[[Any], Any]
    sequence: Any


def register(**classes: Any) -> None:
    """Fill in `_Classes`; all of it before the first function is made."""
    for name, value in classes.items():
        setattr(_Classes, name, value)


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_METH_NOARGS, _METH_FASTCALL = 0x4, 0x80


class _Objects:
    """The compiled functions and their page; one per process, never freed."""

    def __init__(self) -> None:
        runtime = native()
        c = _Classes
        header = object.__basicsize__
        layout = (
            int_layout_of_python(),
            header,
            bytes.__basicsize__ - 1,
            _tuple_items(),
            _list_items(header),
            *offsets_in(c.TensorBase, ("spec", "ptr", "storage", "needs_grad", "node", "_view")),
            *offsets_in(c.Storage, ("ptr", "free", "version")),
            *offsets_in(c.Node, ("analysis", "edges", "saved", "versions", "sequence", "extras")),
        )
        address = cache.address("objects", layout, build)
        self._texts = {
            "operand_message": b"launch: an operand must be a tensor with memory, an int or a float.",
            "count_message": b"launch: a plan takes as many operands as it was made for.",
        }
        self._kept = {
            "None": None, "True": True, "False": False, "zero": 0, "version": "version", "TypeError": TypeError,
            "PyLong_Type": int, "PyFloat_Type": float, "Tensor": c.Tensor, "TensorBase": c.TensorBase, "Storage": c.Storage,
            "Node": c.Node, "edge_of": c.edge_of, "sequence": c.sequence,
        }  # fmt: skip
        self._buffers = {name: ctypes.create_string_buffer(text) for name, text in self._texts.items()}
        self._page = (ctypes.c_int64 * len(_FIELDS))()
        values = {name: id(value) for name, value in self._kept.items()}
        values |= {name: ctypes.addressof(buffer) for name, buffer in self._buffers.items()}
        for name in _FUNCTIONS:
            values[name] = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        values |= {"state": runtime.state.address, "parallel": runtime.parallel_address}
        for name, at in _FIELDS.items():
            self._page[at] = values[name]
        table = (ctypes.c_int64 * 4)()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)(
            ctypes.addressof(self._page), ctypes.addressof(table)
        )
        names = (b"run", b"view", b"record")
        self._definitions = [
            _MethodDef(n, a, _METH_FASTCALL, b"See flambeau/runtime/objects.py.") for n, a in zip(names, table)
        ]
        self._new = ctypes.pythonapi.PyCFunction_NewEx
        self._new.restype = ctypes.py_object
        self._new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
        self._release = _MethodDef(b"__del__", table[3], _METH_NOARGS, b"Give the block back.")
        new_method = ctypes.pythonapi.PyDescr_NewMethod
        new_method.restype = ctypes.py_object
        new_method.argtypes = [ctypes.py_object, ctypes.c_void_p]
        c.Storage.__del__ = new_method(c.Storage, ctypes.addressof(self._release))

    def function(self, which: int, words: Sequence[int], keep: Sequence[Any]) -> Callable:
        """A function with its data; `keep` are the objects that the words point to."""
        data = array("q", words).tobytes()
        return self._new(ctypes.addressof(self._definitions[which]), (data, *keep), "flambeau")


_made: list[_Objects] = []
_lock = threading.Lock()
_MAKE, _VIEW, _TAPE = range(3)


def _objects() -> _Objects:
    if not _made:
        with _lock:
            if not _made:
                _made.append(_Objects())
    return _made[0]


def maker(
    inputs: int,
    results: Sequence[Any],
    blocks: Sequence[Any],
    shifts: Sequence[tuple[int, int]],
    steps: Sequence[tuple[int, Any, Sequence[int]]],
    tables: Sequence[tuple[int, Sequence[int]]] = (),
) -> Callable | None:
    """`make(*operands)`: a tensor (several results: a tuple of them) from running `steps`; None if there is too much for the stack.

    `results` are specs, `blocks` size classes, `shifts` (position, bytes), `steps` (kernel, parameter block, positions), `tables`
    (position of memory for addresses, positions of what they are). Positions count the inputs, then the results, the blocks, the shifts.
    """
    addresses = inputs + len(results) + len(blocks) + len(shifts)
    if not results or addresses > MOST_ADDRESSES or any(len(p) >= MAX_SLOTS for _, _, p in steps):
        return None
    keep: list[Any] = []

    def kept(x: Any) -> int:
        keep.append(x)
        return id(x)

    words = [inputs, len(results), len(blocks), len(shifts), len(tables), len(steps)]
    for spec in results:
        words += kept(spec.free), kept(spec.size_class.fresh), kept(spec)
    for c in blocks:
        words += kept(c.free), kept(c.fresh)
    for position, nbytes in shifts:
        words += position, nbytes
    for position, listed in tables:
        words += position, len(listed), *listed
    for kernel, block, positions in steps:
        keep.append(block)
        words += kernel, block.address, len(positions), *positions
    return _objects().function(_MAKE, words, keep)


def viewer(spec: Any, op: Any, offset_bytes: int) -> Callable:
    """`view(first, args)`: the memory of `first` from an offset on, as `spec`; `args` are the view op's."""
    return _objects().function(_VIEW, (id(spec), id(op), offset_bytes), (spec, op))


def taper(
    analysis: Any,
    needs: Sequence[bool],
    outs: int,
    saved_inputs: Sequence[tuple[int, bool]],
    saved_outs: Sequence[int],
    differentiable: Sequence[int],
) -> Callable:
    """`tape(*inputs, *outs)`: a node for an op. `saved_inputs` are (place, is a number)."""
    words = [id(analysis), len(needs), outs, len(saved_inputs), len(saved_outs), len(differentiable)]
    words += [int(n) for n in needs]
    words += [2 * place + number for place, number in saved_inputs]
    words += [*saved_outs, *differentiable]
    return _objects().function(_TAPE, words, (analysis,))


def analysis_of(tape: Callable) -> Any:
    """What a function of `taper` was made for."""
    return tape.__self__[1]


__all__ = ["MOST_ADDRESSES", "analysis_of", "maker", "register", "taper", "viewer"]
