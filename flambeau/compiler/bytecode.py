"""What a code object reads from outside its frame and what it writes to, by line: the part of a function that tracing tensors cannot see.

    facts_of(f.__code__).lines[12]      # [Access(STEP, ("fast", "self"), (("attr", "scale"),)), …]

An access is a root (a local, a name of an enclosing function, a global) and a path of attributes and items; `any` is an item whose key is
computed. Instructions are walked once, in order, with a stack of paths; what is not a path is unknown and left out.
May not know: values, guards. Entry: `facts_of`.
"""

from __future__ import annotations

import dis
import sys
from types import CodeType
from typing import Any, NamedTuple

# A value is stepped on (its identity counts), or read (what it contains counts too).
STEP, READ = "step", "read"
SET_ATTRIBUTE, CHANGE, SET_GLOBAL, SET_CELL = "set attribute", "change", "set global", "set cell"

# Methods of containers that change them.
CHANGING = frozenset(
    "append extend insert remove pop popitem clear sort reverse update setdefault add discard appendleft extendleft popleft rotate "
    "difference_update intersection_update symmetric_difference_update move_to_end subtract".split()
)


class Access(NamedTuple):
    """`kind` of what happens to root.path; `name`: the attribute set, the method called or the name stored."""

    kind: str
    root: tuple[str, str]
    path: tuple[tuple[str, Any], ...]
    name: str = ""


class _Path(NamedTuple):
    root: tuple[str, str]
    path: tuple[tuple[str, Any], ...]

    def then(self, step: tuple[str, Any]) -> _Path:
        return _Path(self.root, (*self.path, step))


class _Constant(NamedTuple):
    value: Any


class Facts:
    """Accesses by line."""

    def __init__(self, code: CodeType):
        self.lines: dict[int, list[Access]] = {}
        self._line = code.co_firstlineno
        self._free = frozenset(code.co_freevars)
        self._stack: list[Any] = []
        self._result: Any = None  # of the call that comes next
        for instruction in dis.get_instructions(code):
            line = instruction.starts_line
            if line is not None and line is not False:
                self._line = instruction.line_number if line is True else line
            self._step(instruction)
        del self._stack

    # ------------------------------------------------------------------ the stack
    def _take(self) -> Any:
        """The top of the stack, for more steps."""
        return self._stack.pop() if self._stack else None

    def _pop(self, count: int = 1) -> None:
        """Values go where they are not followed."""
        for _ in range(count):
            self._note(READ, self._take())

    def _note(self, kind: str, path: Any, name: str = "") -> None:
        if type(path) is _Path:
            access = Access(kind, path.root, path.path, name)
            known = self.lines.setdefault(self._line, [])
            if access not in known:
                known.append(access)

    def _push_name(self, where: str, name: str) -> None:
        path = _Path((where, name), ())
        self._stack.append(path)
        if where != "fast":
            self._note(STEP, path)

    # ------------------------------------------------------------------ instructions
    def _step(self, i: dis.Instruction) -> None:
        handler = getattr(self, "_" + i.opname.lower(), None)
        if handler is not None:
            handler(i)
        elif i.opname.startswith("LOAD_FAST"):
            for name in i.argval if isinstance(i.argval, tuple) else (i.argval,):
                self._push_name("fast", name)
        elif i.opname.startswith("STORE_FAST"):
            self._store_fast_any(i)
        else:
            self._other(i)

    def _other(self, i: dis.Instruction) -> None:
        """Any instruction: what it takes off the stack is unknown, and so is what it leaves."""
        effect = dis.stack_effect(i.opcode, i.arg if i.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        if effect <= 0:
            self._pop(-effect)
            if self._stack and i.opname not in _KEEPS_TOP:
                self._stack[-1] = None
        else:
            self._stack.extend([None] * effect)

    def _store_fast_any(self, i: dis.Instruction) -> None:
        self._pop()
        if i.opname == "STORE_FAST_STORE_FAST":
            self._pop()
        elif i.opname == "STORE_FAST_LOAD_FAST":
            self._push_name("fast", i.argval[1])

    def _load_global(self, i: dis.Instruction) -> None:
        if i.arg & 1:
            self._stack.append(None)
        self._push_name("global", i.argval)

    def _load_name(self, i: dis.Instruction) -> None:
        self._push_name("global", i.argval)

    def _load_deref(self, i: dis.Instruction) -> None:
        self._push_name("cell", i.argval)

    _load_classderef = _load_deref

    def _load_const(self, i: dis.Instruction) -> None:
        self._stack.append(_Constant(i.argval))

    _load_small_int = _load_const

    def _attribute(self, i: dis.Instruction, method: bool) -> None:
        path = self._take()
        found = None
        if type(path) is _Path:
            if i.argval in CHANGING:
                self._note(CHANGE, path, i.argval)
            elif method:
                self._note(READ, path)
            found = path.then(("attr", i.argval))
            self._note(STEP, found)
        if method:
            self._stack.append(None)
        self._stack.append(found)

    def _load_attr(self, i: dis.Instruction) -> None:
        self._attribute(i, bool(i.arg & 1) and dis.stack_effect(i.opcode, i.arg, jump=False) == 1)

    def _load_method(self, i: dis.Instruction) -> None:
        self._attribute(i, True)

    def _binary_subscr(self, i: dis.Instruction) -> None:
        key, path = self._take(), self._take()
        found = None
        if type(path) is _Path:
            constant = type(key) is _Constant and isinstance(key.value, (str, int))
            found = path.then(("item", key.value) if constant else ("any", None))
            self._note(STEP, found)
        self._note(READ, key)
        self._stack.append(found)

    def _binary_slice(self, i: dis.Instruction) -> None:
        self._pop(3)
        self._stack.append(None)

    # ------------------------------------------------------------------ calls
    def _called(self, count: int) -> Any:
        """What a call of `getattr`, `hasattr` or `vars` with `count` arguments looks at, as a path."""
        if len(self._stack) < count + 1 or count == 0:
            return None
        first = self._stack[-count]
        callee = next((x for x in self._stack[-count - 2 : -count] if type(x) is _Path), None)
        if type(first) is not _Path or callee is None or callee.root[0] != "global" or callee.path:
            return None
        name, found = callee.root[1], None
        if name in ("getattr", "hasattr") and count >= 2:
            if type(self._stack[1 - count]) is _Constant:
                found = first.then(("attr", self._stack[1 - count].value))
            else:
                self._note(READ, first.then(("attr", "__dict__")))
        elif name == "vars":
            found = first.then(("attr", "__dict__"))
        if found is not None:
            self._note(STEP, found)
        return found if name != "hasattr" else None

    def _precall(self, i: dis.Instruction) -> None:  # Python 3.11: the arguments; `CALL` takes the rest
        self._result = self._called(i.arg)
        self._pop(i.arg)

    def _call(self, i: dis.Instruction) -> None:
        if sys.version_info >= (3, 12):
            self._result = self._called(i.arg)
            self._pop(i.arg)
        self._pop()
        if self._stack:
            self._stack[-1] = self._result
        self._result = None

    def _binary_op(self, i: dis.Instruction) -> None:
        if i.argrepr == "[]":
            self._binary_subscr(i)
            return
        self._pop(2)
        self._stack.append(None)

    def _store_attr(self, i: dis.Instruction) -> None:
        self._note(SET_ATTRIBUTE, self._take(), i.argval)
        self._pop()

    def _delete_attr(self, i: dis.Instruction) -> None:
        self._note(SET_ATTRIBUTE, self._take(), i.argval)

    def _store_subscr(self, i: dis.Instruction) -> None:
        self._pop()
        self._note(CHANGE, self._take(), "[]")
        self._pop()

    def _delete_subscr(self, i: dis.Instruction) -> None:
        self._pop()
        self._note(CHANGE, self._take(), "[]")

    def _store_slice(self, i: dis.Instruction) -> None:
        self._pop(2)
        self._note(CHANGE, self._take(), "[]")
        self._pop()

    def _store_global(self, i: dis.Instruction) -> None:
        self._note(SET_GLOBAL, _Path(("global", i.argval), ()), i.argval)
        self._pop()

    _delete_global = _store_global

    def _store_deref(self, i: dis.Instruction) -> None:
        if i.argval in self._free:
            self._note(SET_CELL, _Path(("cell", i.argval), ()), i.argval)
        self._pop()

    def _swap(self, i: dis.Instruction) -> None:
        if len(self._stack) >= i.arg:
            self._stack[-1], self._stack[-i.arg] = self._stack[-i.arg], self._stack[-1]

    def _copy(self, i: dis.Instruction) -> None:
        self._stack.append(self._stack[-i.arg] if len(self._stack) >= i.arg else None)

    def _get_iter(self, i: dis.Instruction) -> None:
        self._pop()
        self._stack.append(None)


_KEEPS_TOP = frozenset(
    "RESUME NOP CACHE PRECALL KW_NAMES EXTENDED_ARG MAKE_CELL COPY_FREE_VARS POP_TOP POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_TRUE "
    "POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE "
    "JUMP_FORWARD JUMP_BACKWARD NOT_TAKEN END_FOR POP_ITER POP_EXCEPT STORE_NAME RETURN_GENERATOR PUSH_EXC_INFO".split()
)

_known: dict[CodeType, Facts] = {}


def facts_of(code: CodeType) -> Facts:
    """The facts of a code object, found once."""
    found = _known.get(code)
    if found is None:
        found = _known[code] = Facts(code)
    return found
