"""Reads the pickle stream of a checkpoint as data. There is no pickle machine here: nothing can be called.

The stream is a small stack program. Ours knows the opcodes that place numbers, text and containers; a `GLOBAL`
must be one of the constructors in `constructors.py`, each of which is a function of this package that makes a
plain value. Everything else ends in a `CheckpointError` that names the offending thing, where it is, and what to do.

Bounds, so that a hostile file costs no more than its size: an opcode takes at least a byte and makes one small
object; text and bytes cannot be longer than what is left of the file; what a constructor copies is charged against
a budget of the stream's length; keys have bounded size; the finished value is checked for depth and for cycles.

May not know: tensors, archives. Entry: PickleReader(data, builder, persistent).read()

    PickleReader(b"\\x80\\x02}X\\x01\\0\\0\\0aK\\x01s.", Builder(), None).read()      # {"a": 1}
"""

from __future__ import annotations

import codecs
import collections
import struct
from collections.abc import Callable

from flambeau.checkpoint.constructors import (
    Constructor,
    PendingArray,
    PendingDtype,
    StorageType,
    TypedStorage,
    find_constructor,
)
from flambeau.checkpoint.records import DAMAGED, HOSTILE, MAX_INT64, RESAVE, Builder, CheckpointError

MAX_DEPTH = 200  # of containers; a training state has about 6
MAX_KEY_PARTS = 64  # parts of a tuple used as a key: hashing one visits them all
MAX_PROTOCOL = 5
MAX_LINE_BYTES = 4096  # of the text opcodes' numbers and names

_MARK = object()
_DICTS = (dict, collections.OrderedDict, collections.Counter)
_INTERNAL = (Constructor, StorageType, TypedStorage, PendingArray, PendingDtype)

_REFUSED = {
    "EXT1": "\x82", "EXT2": "\x83", "EXT4": "\x84", "INST": "i", "OBJ": "o", "NEWOBJ_EX": "\x92",
    "NEXT_BUFFER": "\x97", "READONLY_BUFFER": "\x98",
}  # fmt: skip
_REFUSED_NAMES = {ord(code): name for name, code in _REFUSED.items()}


class PickleReader:
    """One pickle stream in `data` from `position` on. `persistent` maps a persistent id to a value."""

    def __init__(
        self,
        data: memoryview | bytes,
        builder: Builder,
        persistent: Callable[[object], object] | None,
        position: int = 0,
    ):
        self.data = memoryview(data)
        self.builder = builder
        self.persistent = persistent
        self.position = position
        self.end = len(self.data)
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}
        self.states: list[object] = []  # attributes of parameters: checked with the result
        self.dtypes: dict[str, object] = {}
        self.globals: dict[tuple[str, str], object] = {}
        self._budget = self.end - position + 64
        self._opcode_at = position

    # ------------------------------------------------------------------ driving
    def read(self) -> object:
        """The value of the stream; `position` is then the byte after it."""
        while True:
            self._opcode_at = self.position
            code = self.take(1)[0]
            if code == 0x2E:  # STOP
                break
            operation = _OPERATIONS.get(code)
            if operation is None:
                name = _REFUSED_NAMES.get(code)
                if name:
                    raise self.error(f"the pickle opcode {name} builds objects by running code. {RESAVE}")
                raise self.error(f"unknown pickle opcode 0x{code:02x}. The file is damaged or not a checkpoint.")
            operation(self)
        value = self.pop()
        if self.stack:
            raise self.error(f"the stream must end with one value, got {len(self.stack)} more on the stack. {DAMAGED}")
        self._check_result(value)
        return value

    def error(self, message: str) -> CheckpointError:
        where = self.path()
        inside = f" inside {where}" if where else ""
        return CheckpointError(f"load: byte {self._opcode_at}{inside}: {message}")

    def charge(self, count: int) -> None:
        """Account for `count` items or bytes that a constructor copies."""
        self._budget -= count
        if self._budget < 0:
            raise self.error(
                "the values it describes are larger than the file. It is damaged or made to exhaust memory."
            )

    def path(self) -> str:
        """The key path that is being built, read off the unfinished containers on the stack."""
        pieces: list[str] = []
        stack = self.stack
        i = 0
        while i < len(stack):
            owner = stack[i]
            marked = i + 1 < len(stack) and stack[i + 1] is _MARK
            start = i + 2 if marked else i + 1
            stop = start
            while stop < len(stack) and stack[stop] is not _MARK:
                stop += 1
            held = stop - start
            if isinstance(owner, dict) and held:
                # Key and value alternate; the last value may itself be an unfinished container.
                key = stack[start + (held - 1) // 2 * 2] if marked else stack[start]
                pieces.append(f"[{_short(key)}]")
                i = start + (held - 1) // 2 * 2 + 1 if marked else start + 1
            elif isinstance(owner, list) and marked:
                begun = held > 0 and (stop < len(stack) or isinstance(stack[stop - 1], Constructor))
                pieces.append(f"[{len(owner) + held - begun}]")
                i = max(start, stop - 1)
            else:
                i += 1
        return "".join(pieces[:32])

    # ------------------------------------------------------------------ bytes
    def take(self, count: int) -> memoryview:
        start = self.position
        if count > self.end - start:
            raise self.error(f"the stream ends early, {count} bytes needed and {self.end - start} left. {DAMAGED}")
        self.position = start + count
        return self.data[start : start + count]

    def number(self, layout: str) -> int:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def line(self) -> bytes:
        """Text up to a newline (protocol 0)."""
        start = self.position
        stop = start
        limit = min(self.end, start + MAX_LINE_BYTES)
        while stop < limit and self.data[stop] != 10:
            stop += 1
        if stop == limit:
            raise self.error(
                f"a text line must end within {MAX_LINE_BYTES} bytes. The file is damaged or not a checkpoint."
            )
        self.position = stop + 1
        return bytes(self.data[start:stop])

    def long_line(self) -> bytes:
        """A line of any length: protocol 0 writes whole strings so."""
        start = self.position
        rest = self.data[start:]
        stop = -1
        for at in range(0, len(rest), 1 << 16):
            found = bytes(rest[at : at + (1 << 16)]).find(b"\n")
            if found >= 0:
                stop = at + found
                break
        if stop < 0:
            raise self.error(f"a text line does not end. {DAMAGED}")
        self.position = start + stop + 1
        return bytes(rest[:stop])

    # ------------------------------------------------------------------ stack
    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> object:
        if not self.stack or self.stack[-1] is _MARK:
            raise self.error(f"an opcode takes more values than the stack holds. {DAMAGED}")
        return self.stack.pop()

    def top(self) -> object:
        if not self.stack or self.stack[-1] is _MARK:
            raise self.error(f"an opcode needs a value on the stack and there is none. {DAMAGED}")
        return self.stack[-1]

    def pop_to_mark(self) -> list[object]:
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                items = stack[at + 1 :]
                del stack[at:]
                return items
        raise self.error(f"an opcode needs a mark on the stack and there is none. {DAMAGED}")

    # ------------------------------------------------------------------ containers
    def check_key(self, key: object) -> None:
        """Keys are plain and small, so that hashing one is quick."""
        parts = [key]
        seen = 0
        while parts:
            part = parts.pop()
            seen += 1
            if seen > MAX_KEY_PARTS:
                raise self.error(f"a dict key or set item must have at most {MAX_KEY_PARTS} parts. {HOSTILE}")
            if isinstance(part, tuple):
                parts += part[: MAX_KEY_PARTS + 1]
            elif isinstance(part, int) and not isinstance(part, bool):
                if not -MAX_INT64 - 1 <= part <= MAX_INT64:  # larger ones can be made to share one hash
                    raise self.error(f"an integer used as a dict key or set item must fit in 64 bits. {DAMAGED}")
            elif part is not None and not isinstance(part, (str, bytes, float, bool)):
                raise self.error(
                    f"a dict key or set item must be text, a number or a tuple of such, got {type(part).__name__}. {RESAVE}"
                )

    def set_items(self, target: object, items: list[object]) -> None:
        if type(target) not in _DICTS:
            raise self.error(f"set-item must act on a dict, got {_describe(target)}. {HOSTILE}")
        if len(items) % 2:
            raise self.error(f"set-items needs pairs of key and value, got an odd number. {DAMAGED}")
        for i in range(0, len(items), 2):
            self.check_key(items[i])
            target[items[i]] = items[i + 1]

    def append(self, target: object, items: list[object]) -> None:
        if type(target) is not list:
            raise self.error(f"append must act on a list, got {_describe(target)}. {HOSTILE}")
        target.extend(items)

    def add_items(self, target: object, items: list[object]) -> None:
        if type(target) is not set:
            raise self.error(f"add-items must act on a set, got {_describe(target)}. {HOSTILE}")
        for item in items:
            self.check_key(item)
        target.update(items)

    # ------------------------------------------------------------------ constructors
    def find_global(self, module: str, name: str) -> None:
        found = self.globals.get((module, name))
        if found is None:
            found = find_constructor(self, module, name)
            self.globals[module, name] = found
        self.push(found)

    def reduce(self, arguments: object, constructor: object) -> None:
        if not isinstance(constructor, Constructor):
            raise self.error(f"only a constructor can be applied, got {_describe(constructor)}. {HOSTILE}")
        if type(arguments) is not tuple:
            raise self.error(f"{constructor.name} needs a tuple of arguments, got {_describe(arguments)}. {DAMAGED}")
        self.push(constructor.build(self, arguments))

    def set_state(self, target: object, state: object) -> None:
        """BUILD: attributes of an OrderedDict, or the contents of a NumPy dtype or array."""
        if isinstance(target, (PendingArray, PendingDtype)):
            self.stack[-1] = target.fill(self, state)
        elif type(target) is collections.OrderedDict:
            self._set_attributes(target, state)
        else:
            raise self.error(
                f"set-state must act on an OrderedDict or a NumPy array, got {_describe(target)}. {RESAVE}"
            )

    def _set_attributes(self, target: collections.OrderedDict, state: object) -> None:
        if type(state) is not dict:
            raise self.error(f"the state of an OrderedDict must be a dict, got {_describe(state)}. {DAMAGED}")
        for name, value in state.items():
            if not isinstance(name, str) or not name.isidentifier() or hasattr(collections.OrderedDict, name):
                raise self.error(f"{_short(name)} cannot be an attribute of an OrderedDict. {HOSTILE}")
            vars(target)[name] = value
        self.states.append(state)

    def load_persistent(self, identity: object) -> None:
        if self.persistent is None:
            raise self.error(f"persistent ids belong to storages, and this part of the file has none. {DAMAGED}")
        self.push(self.persistent(identity))

    # ------------------------------------------------------------------ memo
    def put(self, index: int) -> None:
        self.memo[index] = self.top()

    def get(self, index: int) -> None:
        try:
            value = self.memo[index]
        except KeyError:
            raise self.error(f"memo entry {index} is read before it is written. {DAMAGED}") from None
        if isinstance(value, (PendingArray, PendingDtype)) and value.value is not None:
            value = value.value
        self.push(value)

    # ------------------------------------------------------------------ the finished value
    def _check_result(self, root: object) -> None:
        """No container holds itself, none is nested too deep, and no constructor is left as a value."""
        for top in [root, *self.states]:
            self._check_tree(top)

    def _check_tree(self, root: object) -> None:
        depth: dict[int, int] = {}  # of finished containers
        active: set[int] = set()
        path: list[str] = []
        pending: list[tuple[object, object]] = [(root, None)]
        while pending:
            node, key = pending[-1]
            if not isinstance(node, (dict, list, tuple)):
                pending.pop()
                if isinstance(node, _INTERNAL):
                    where = "".join(path) + (f"[{_short(key)}]" if key is not None else "")
                    raise CheckpointError(
                        f"load: {where or 'the file'} holds {_describe(node)} as a value, which is not data. {RESAVE}"
                    )
                continue
            identity = id(node)
            if identity in active:
                pending.pop()
                active.discard(identity)
                path.pop()
                depth[identity] = 1 + max((depth.get(id(child), 0) for _, child in _children(node)), default=0)
                if depth[identity] > MAX_DEPTH:
                    raise CheckpointError(
                        f"load: containers must be nested at most {MAX_DEPTH} deep, got more. {DAMAGED}"
                    )
                continue
            if identity in depth:
                pending.pop()
                continue
            active.add(identity)
            path.append("" if key is None else f"[{_short(key)}]")
            for name, child in _children(node):
                if id(child) in active and isinstance(child, (dict, list, tuple)):
                    where = "".join(path[:32]) + f"[{_short(name)}]"
                    raise CheckpointError(
                        f"load: {where} is a container that contains itself, which is not a tree of data. {RESAVE}"
                    )
                if isinstance(child, (dict, list, tuple, *_INTERNAL)):
                    pending.append((child, name))


def _children(node: object) -> list[tuple[object, object]]:
    if isinstance(node, dict):
        return list(node.items())
    return list(enumerate(node))


def _describe(value: object) -> str:
    if isinstance(value, (Constructor, StorageType)):
        return f"the name {value.name}"
    if isinstance(value, TypedStorage):
        return "a storage"
    if isinstance(value, PendingArray):
        return "an unfinished NumPy array"
    if isinstance(value, PendingDtype):
        return "a NumPy dtype"
    return f"a {type(value).__name__}"


def _short(key: object) -> str:
    if isinstance(key, int) and key.bit_length() > 64:  # Python refuses to print very long integers
        return "a long integer"
    text = repr(key) if isinstance(key, (str, int, float, bytes, bool)) or key is None else type(key).__name__
    return text if len(text) <= 80 else text[:77] + "..."


# ---------------------------------------------------------------------- opcodes
def _text(reader: PickleReader, raw: memoryview | bytes) -> str:
    try:
        return str(raw, "utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise reader.error(
            "text must be UTF-8. The file is damaged, or comes from Python 2 with raw byte strings: re-save it."
        ) from None


def _decimal(reader: PickleReader, raw: bytes, kind: type) -> object:
    try:
        return kind(raw.decode("ascii"))
    except ValueError:
        raise reader.error(f"{_short(raw)} is not a number. {DAMAGED}") from None


def _protocol(reader: PickleReader) -> None:
    version = reader.take(1)[0]
    if version > MAX_PROTOCOL:
        raise reader.error(
            f"pickle protocol must be at most {MAX_PROTOCOL}, got {version}. The file is damaged or newer than this reader."
        )


def _frame(reader: PickleReader) -> None:
    size = reader.number("<Q")
    if size > reader.end - reader.position:
        raise reader.error(f"a frame is longer than the file. {DAMAGED}")


def _integer(reader: PickleReader) -> None:
    raw = reader.line()
    reader.push(raw == b"01" if raw in (b"00", b"01") else _decimal(reader, raw, int))


def _quoted(reader: PickleReader) -> None:
    raw = reader.long_line()
    if len(raw) < 2 or raw[0] != raw[-1] or raw[:1] not in (b"'", b'"'):
        raise reader.error(f"a protocol 0 string must be quoted. {DAMAGED}")
    try:
        reader.push(_text(reader, codecs.escape_decode(raw[1:-1])[0]))
    except ValueError:
        raise reader.error(f"a protocol 0 string has a bad escape. {DAMAGED}") from None


def _unicode(reader: PickleReader) -> None:
    try:
        reader.push(str(reader.long_line(), "raw-unicode-escape"))
    except UnicodeDecodeError:
        raise reader.error(f"a protocol 0 string has a bad escape. {DAMAGED}") from None


def _sized(layout: str, convert: Callable[[PickleReader, memoryview], object]) -> Callable[[PickleReader], None]:
    def operation(reader: PickleReader) -> None:
        size = reader.number(layout)
        if size < 0:
            raise reader.error(f"a size must not be negative, got {size}. {DAMAGED}")
        reader.push(convert(reader, reader.take(size)))

    return operation


def _tuple(count: int) -> Callable[[PickleReader], None]:
    def operation(reader: PickleReader) -> None:
        items = [reader.pop() for _ in range(count)]
        reader.push(tuple(reversed(items)))

    return operation


def _dict(reader: PickleReader) -> None:
    items = reader.pop_to_mark()
    reader.push({})
    reader.set_items(reader.top(), items)


def _frozen_set(reader: PickleReader) -> None:
    items = reader.pop_to_mark()
    for item in items:
        reader.check_key(item)
    reader.push(frozenset(items))


def _items_operation(method: str, marked: bool, count: int = 1) -> Callable[[PickleReader], None]:
    def operation(reader: PickleReader) -> None:
        items = reader.pop_to_mark() if marked else [reader.pop() for _ in range(count)][::-1]
        getattr(reader, method)(reader.top(), items)

    return operation


def _pop(reader: PickleReader) -> None:
    if not reader.stack:
        raise reader.error(f"an opcode takes more values than the stack holds. {DAMAGED}")
    reader.stack.pop()


def _global(reader: PickleReader) -> None:
    module = _text(reader, reader.line())
    reader.find_global(module, _text(reader, reader.line()))


def _stack_global(reader: PickleReader) -> None:
    name, module = reader.pop(), reader.pop()
    if type(name) is not str or type(module) is not str:
        raise reader.error(f"a global must be named by two strings. {DAMAGED}")
    reader.find_global(module, name)


def _reduce(reader: PickleReader) -> None:
    arguments, constructor = reader.pop(), reader.pop()
    reader.reduce(arguments, constructor)


def _new_object(reader: PickleReader) -> None:
    arguments, constructor = reader.pop(), reader.pop()
    if isinstance(constructor, Constructor) and not constructor.is_class:
        raise reader.error(f"{constructor.name} is not a class. {HOSTILE}")
    reader.reduce(arguments, constructor)


def _build(reader: PickleReader) -> None:
    state = reader.pop()
    reader.set_state(reader.top(), state)


def _persistent_line(reader: PickleReader) -> None:
    reader.load_persistent(_text(reader, reader.line()))


def _long(reader: PickleReader, raw: memoryview) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _bytes(reader: PickleReader, raw: memoryview) -> bytes:
    return bytes(raw)


_OPERATIONS: dict[int, Callable[[PickleReader], None]] = {
    0x80: _protocol,
    0x95: _frame,
    ord("("): lambda r: r.push(_MARK),
    ord("0"): _pop,
    ord("1"): lambda r: r.pop_to_mark() and None,
    ord("2"): lambda r: r.push(r.top()),
    # numbers
    ord("N"): lambda r: r.push(None),
    0x88: lambda r: r.push(True),
    0x89: lambda r: r.push(False),
    ord("I"): _integer,
    ord("L"): lambda r: r.push(_decimal(r, r.line().removesuffix(b"L"), int)),
    ord("F"): lambda r: r.push(_decimal(r, r.line(), float)),
    ord("J"): lambda r: r.push(r.number("<i")),
    ord("K"): lambda r: r.push(r.number("<B")),
    ord("M"): lambda r: r.push(r.number("<H")),
    ord("G"): lambda r: r.push(r.number(">d")),
    0x8A: _sized("<B", _long),
    0x8B: _sized("<i", _long),
    # text and bytes
    ord("S"): _quoted,
    ord("V"): _unicode,
    ord("T"): _sized("<i", _text),
    ord("U"): _sized("<B", _text),
    ord("X"): _sized("<I", _text),
    0x8C: _sized("<B", _text),
    0x8D: _sized("<Q", _text),
    ord("B"): _sized("<I", _bytes),
    ord("C"): _sized("<B", _bytes),
    0x8E: _sized("<Q", _bytes),
    0x96: _sized("<Q", lambda r, raw: bytearray(raw)),
    # containers
    ord(")"): lambda r: r.push(()),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("t"): lambda r: r.push(tuple(r.pop_to_mark())),
    ord("]"): lambda r: r.push([]),
    ord("l"): lambda r: r.push(r.pop_to_mark()),
    ord("}"): lambda r: r.push({}),
    ord("d"): _dict,
    0x8F: lambda r: r.push(set()),
    0x91: _frozen_set,
    ord("a"): _items_operation("append", marked=False),
    ord("e"): _items_operation("append", marked=True),
    ord("s"): _items_operation("set_items", marked=False, count=2),
    ord("u"): _items_operation("set_items", marked=True),
    0x90: _items_operation("add_items", marked=True),
    # memo
    ord("p"): lambda r: r.put(_decimal(r, r.line(), int)),
    ord("q"): lambda r: r.put(r.number("<B")),
    ord("r"): lambda r: r.put(r.number("<I")),
    0x94: lambda r: r.put(len(r.memo)),
    ord("g"): lambda r: r.get(_decimal(r, r.line(), int)),
    ord("h"): lambda r: r.get(r.number("<B")),
    ord("j"): lambda r: r.get(r.number("<I")),
    # constructors
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): _reduce,
    0x81: _new_object,
    ord("b"): _build,
    ord("P"): _persistent_line,
    ord("Q"): lambda r: r.load_persistent(r.pop()),
}
