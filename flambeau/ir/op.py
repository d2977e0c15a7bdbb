"""An op: one declaration, from which everything else is derived.

A declaration is a class body in `operators/`; its base says which kind of lowering it has (the only thing
schedulers see) and its attributes are the rules. `declare` checks that no rule is missing and registers it.

    @declare
    class neg(Pointwise):
        "The negative of each element."
        def signature(input: Tensor): ...
        def lower(k, x): return -x
        def vjp(g, out, input): return (neg(g),)
        ...

Parameter roles come from annotations in `signature`: `Tensor`, `Operand` (a tensor or a number),
`OptionalTensor`, `Tensors` (a list), `Scalar` (a number given at run time; costs no new plan); anything
else is a static attribute. May not know: how an op is executed (`bind` hands it to an interpreter).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

TENSOR_ROLES = ("Tensor", "Operand", "OptionalTensor", "Tensors")
POINTWISE, REDUCTION, VIEW, INDEXING, ASSEMBLE, TEMPLATE, EXTERNAL, COMPOSITE = (
    "pointwise",
    "reduction",
    "view",
    "indexing",
    "assemble",
    "template",
    "external",
    "composite",
)
_MISSING = object()


class Refused:
    """An explicit "no rule" and why; the reason is what the user reads.

    `silent`: results simply carry no gradient (as with comparisons) instead of raising in backward.
    """

    def __init__(self, reason: str, silent: bool = False):
        self.reason, self.silent = reason, silent

    def __repr__(self) -> str:
        return f"Refused({self.reason!r})"


class DeclarationError(TypeError):
    """A declaration lacks a rule or contradicts itself."""


class Param:
    """One parameter of an op's signature."""

    __slots__ = ("name", "role", "default", "keyword_only")

    def __init__(self, name: str, role: str, default: Any, keyword_only: bool):
        self.name, self.role, self.default, self.keyword_only = name, role, default, keyword_only

    @property
    def required(self) -> bool:
        return self.default is _MISSING

    @property
    def is_tensor(self) -> bool:
        return self.role in TENSOR_ROLES

    def __repr__(self) -> str:
        return f"{self.name}: {self.role}" + ("" if self.required else f" = {self.default!r}")


def read_signature(function: Callable) -> list[Param]:
    """Parameters of a signature stub, without the cost of `inspect`."""
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    keyword = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = dict(zip(reversed(positional), reversed(function.__defaults__ or ())))
    defaults.update(function.__kwdefaults__ or {})
    roles = function.__annotations__
    return [
        Param(
            n,
            str(roles.get(n, "Any")) if str(roles.get(n, "Any")) in (*TENSOR_ROLES, "Scalar") else "attr",
            defaults.get(n, _MISSING),
            n in keyword,
        )
        for n in (*positional, *keyword)
    ]


REGISTRY: dict[str, Op] = {}
FUNCTIONS: dict[str, Op] = {}  # "add", "nn.functional.gelu" -> op
METHODS: dict[str, Op] = {}  # "add", "__add__" -> op
IN_PLACE: dict[str, Op] = {}  # "add_" -> op
_form_maker: dict[str, Callable[[Op], Callable]] = {}


def set_form_maker(form: str, maker: Callable[[Op], Callable]) -> None:
    """The engine registers here how a call form ("function", "in_place") is made."""
    _form_maker[form] = maker


class Op:
    """A declared op. Calling it binds its arguments and hands them to the current interpreter."""

    def __init__(self, name: str, rules: type):
        self.name = name
        self.rules = rules
        self.kind: str = rules.kind
        self.doc = (rules.__doc__ or "").strip()
        self.params = read_signature(rules.signature)
        self.tensor_positions = tuple(i for i, p in enumerate(self.params) if p.is_tensor)
        self.scalar_positions = tuple(i for i, p in enumerate(self.params) if p.role in ("Scalar", "Operand"))
        self.outputs: int = rules.outputs
        self.plans: dict = {}  # what the fast path looks in
        self.in_place_plans: dict = {}
        self._function: Callable | None = None
        self._in_place: Callable | None = None
        functions = (name,) if rules.functions is None else tuple(rules.functions)
        self.spoken: str | None = rules.spoken or (functions[0].removeprefix("nn.functional.") if functions else None)

    @property
    def called(self) -> str:
        """The name that users know this op by, as far as it has one."""
        return self.spoken or self.name

    def names(self) -> set[str]:
        """All its names, also without the module."""
        functions = (self.name,) if self.rules.functions is None else self.rules.functions
        return {self.name, self.called, *functions, *(f.rpartition(".")[2] for f in functions)}

    @property
    def function(self) -> Callable:
        """The public function (made on first use)."""
        if self._function is None:
            self._function = _form_maker["function"](self)
        return self._function

    @property
    def in_place(self) -> Callable:
        """The in-place form `name_`."""
        if self._in_place is None:
            self._in_place = _form_maker["in_place"](self)
        return self._in_place

    def __call__(self, *args, **kwargs):
        return (self._function or self.function)(*args, **kwargs)

    def arguments(self, *args, **kwargs) -> tuple:
        """Arguments in signature order with defaults filled in. Raises: TypeError as a Python call would."""
        if len(args) > len(self.params):
            raise TypeError(f"{self.name}: takes at most {len(self.params)} arguments, got {len(args)}.")
        values = list(args)
        for p in self.params[len(args) :]:
            if p.name in kwargs:
                values.append(kwargs.pop(p.name))
            elif p.required:
                raise TypeError(f"{self.name}: argument '{p.name}' is missing.")
            else:
                values.append(p.default)
        if kwargs:
            raise TypeError(f"{self.name}: no argument named {', '.join(map(repr, kwargs))}. It takes {self.params}.")
        return tuple(values)

    def tensors(self, args: tuple) -> list:
        """The tensor leaves of bound arguments, in order (numbers and None left out)."""
        found = []
        for i in self.tensor_positions:
            a = args[i]
            if isinstance(a, (tuple, list)):
                found.extend(x for x in a if hasattr(x, "spec"))
            elif hasattr(a, "spec"):
                found.append(a)
        return found

    def map_tensors(self, function: Callable, args: tuple) -> tuple:
        """Bound arguments with `function` applied to every tensor leaf, and to numbers that a trace stands in for."""
        values = list(args)
        for i in {*self.tensor_positions, *self.scalar_positions}:
            a = values[i]
            if isinstance(a, (tuple, list)):
                values[i] = tuple(function(x) if hasattr(x, "spec") else x for x in a)
            elif hasattr(a, "spec"):
                values[i] = function(a)
        return tuple(values)

    def refuse(self, rule: str) -> None:
        """Raise the reason if `rule` is Refused."""
        value = getattr(self.rules, rule, None)
        if isinstance(value, Refused):
            raise NotImplementedError(f"{self.name}: no {rule} rule: {value.reason}")

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self):
        return (_by_name, (self.name,))


def speak_as(name: str, error: Exception, own: Container[str] = ()) -> None:
    """An error that begins with the name of some op, as the op `name` reports it: users read the name they called.

    `own`: names that may stay. Texts that begin otherwise are left alone.
    """
    if len(error.args) != 1 or not isinstance(error.args[0], str):
        return
    first, colon, rest = error.args[0].partition(": ")
    if colon and first != name and first not in own and (first in REGISTRY or first in _spoken_names()):
        error.args = (f"{name}: {rest}",)


def _spoken_names() -> set[str]:
    """What errors of ops begin with."""
    return {n for f in FUNCTIONS for n in (f, f.rpartition(".")[2])} | {m for m in METHODS if not m.startswith("__")}


def _by_name(name: str) -> Op:
    return REGISTRY[name]


def declare(rules: type) -> Op:
    """Register the declaration `rules`. Raises: DeclarationError naming what is missing."""
    name = rules.name or rules.__name__.rstrip("_")
    if not (rules.__doc__ or "").strip() or rules.__doc__ is rules.__mro__[1].__doc__:
        raise DeclarationError(f"{name}: no docstring.")
    missing = [r for r in rules.required if getattr(rules, r, None) is None]
    if missing:
        raise DeclarationError(f"{name}: no {', '.join(missing)}. Give the rule, or Refused('why').")
    if name in REGISTRY:
        raise DeclarationError(f"{name}: declared twice.")
    op = REGISTRY[name] = Op(name, rules)
    functions = (name,) if rules.functions is None else rules.functions
    methods = ((name,) if rules.methods is None else rules.methods) if op.tensor_positions else ()
    for f in functions:
        FUNCTIONS[f] = op
    for m in methods:
        METHODS[m] = op
        if rules.in_place and not m.startswith("__"):
            IN_PLACE[m + "_"] = op
    return op
