"""Call forms of an op: the public function and the in-place form, made as Python source from the declaration.

The function form is the eager fast path: one dictionary look-up by the operands' specs, one native call that gives the result, and one that
tapes the op if an operand needs a gradient. Whatever does not fit (a miss, an interpreter or trace in force, a subclass with overrides,
`out=`) goes to `bind`.

    def mul(input, other, *, out=None):
        if MODES or out is not None: return slow(...)
        try: make, info = plans[input.spec, other.spec]
        except (KeyError, AttributeError, TypeError): return miss(op, (input, other))
        result = make(input, other)
        ...

May not know: the tensor class (given by `install`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.base.errors import message
from flambeau.base.results import result_type
from flambeau.base.settings import settings
from flambeau.core.spec import NumberSpec
from flambeau.engine import eager, in_place
from flambeau.ir.bind import MODES, bind
from flambeau.ir.op import VIEW, Op, Param, set_form_maker
from flambeau.runtime import objects

_namespace: dict[str, Any] = {}
_absent = object()  # stands for an argument that was not given


def install(
    tensor: type, storage: type, record: Callable, grad_mode: Any, watching: list, finish_out: Callable
) -> None:
    """The tensor layer registers its classes, the tape (`watching`: anomaly mode is on), and how `out=` is filled."""
    base = next(c for c in tensor.__mro__ if "spec" in c.__dict__.get("__slots__", ()))
    objects.register(Tensor=tensor, TensorBase=base, Storage=storage)
    _namespace.update(
        Tensor=tensor,
        record=record,
        MODES=MODES,
        miss=miss,
        slow=slow,
        finish_out=finish_out,
        grad_mode=grad_mode,
        watching=watching,
    )
    set_form_maker("function", make_function)
    set_form_maker("in_place", make_in_place)


def slow(op: Op, args: tuple) -> Any:
    """Any call, the long way."""
    return bind(op, checked(op, args))


def miss(op: Op, args: tuple) -> Any:
    """A call whose plan the fast path did not find: run it, and leave the plan there if the fast path can use it."""
    args = checked(op, args)
    key = (
        None if MODES or settings.validate else fast_key(op, args)
    )  # the fast path would compare nothing with references
    if key is None:
        return bind(op, args)
    info = eager.info_for(op, args)
    result = eager.execute(info, args)
    if info.view is not None:
        spec = info.specs[0]
        op.plans[key] = objects.viewer(spec, op, info.view[2] * spec.dtype.itemsize), info
    elif info.plan is not None:
        make = eager.maker_of(info.plan)
        if op.outputs != 1 and len(info.specs) == 1:
            op.plans[key] = (lambda *operands: (make(*operands),)), info  # as many as there are, but a tuple
        else:
            op.plans[key] = make, info
    return result


def operator_miss(op: Op, args: tuple) -> Any:
    """As `miss`, for Python operators: NotImplemented for an operand that is no tensor, number or array, so that Python asks it."""
    for a in args[1:2]:
        if not hasattr(a, "spec") and not isinstance(a, (bool, int, float, complex)):
            converted = from_foreign[0](a)
            if converted is NotImplemented:
                return NotImplemented
            args = (args[0], converted, *args[2:])
    return miss(op, args)


from_foreign: list[Callable] = [lambda value: NotImplemented]  # set above: an array or its like as a tensor or number


def fast_key(op: Op, args: tuple) -> Any:
    """The key the generated code looks up, or None if it never would."""
    parts = []
    for p, a in zip(op.params, args):
        if p.role in ("Tensor", "Operand", "OptionalTensor"):
            if hasattr(a, "spec"):
                if a.spec.is_slow:
                    return None
                parts.append(a.spec)
            elif a is None or p.role == "Operand" and type(a) in (float, int):
                parts.append(a if a is None else type(a))
            else:
                return None
        elif p.role == "Tensors":
            if any(x is not None and (not hasattr(x, "spec") or x.spec.is_slow) for x in a):
                return None
            parts.append(tuple(x if x is None else x.spec for x in a))
        elif p.role == "Scalar":
            if a is p.default or (type(a) is type(p.default) and a == p.default):
                parts.append(None)
            elif type(a) in (float, int):
                parts.append(type(a))
            else:
                return None
        else:
            try:
                hash(a)
            except TypeError:
                return None
            parts.append(a)
    return parts[0] if len(parts) == 1 else tuple(parts)


def checked(op: Op, args: tuple) -> tuple:
    """Arguments with array scalars as Python numbers. Raises: TypeError naming the argument that is no tensor."""
    values = list(args)
    for i, (p, a) in enumerate(zip(op.params, args)):
        if not p.is_tensor:
            if (
                p.role == "Scalar" and hasattr(a, "spec") and not isinstance(a.spec, NumberSpec)
            ):  # a traced number stays one
                values[i] = a.item()
            continue
        if a is None and may_be_absent(p):
            continue
        if p.role == "Tensors":
            values[i] = checked_list(op, p, a)
            continue
        if hasattr(a, "spec"):
            continue
        if p.role == "Operand":
            if isinstance(a, (bool, int, float, complex)):
                continue
            if hasattr(a, "item") and getattr(a, "ndim", None) == 0:  # a NumPy scalar
                values[i] = a.item()
                continue
            raise TypeError(message(op.called, f"'{p.name}' must be a tensor or a number", type(a).__name__))
        raise TypeError(
            message(op.called, f"'{p.name}' must be a tensor", type(a).__name__, "Make one with flambeau.tensor(...).")
        )
    if not op.rules.numbers_only and not any(hasattr(values[i], "spec") for i in op.tensor_positions):
        got = ", ".join(type(values[i]).__name__ for i in op.tensor_positions)
        raise TypeError(
            message(op.called, "at least one operand must be a tensor", got, "Make one with flambeau.tensor(...).")
        )
    return tuple(values)


def checked_list(op: Op, p: Param, a: Any) -> tuple:
    """A list of tensors as a tuple. Raises: TypeError for anything else."""
    what = f"'{p.name}' must be a list or tuple of tensors"
    if not isinstance(a, (list, tuple)):
        raise TypeError(message(op.called, what, type(a).__name__, f"Put them in brackets: {op.called}([a, b])."))
    for i, x in enumerate(a):
        if x is not None and not hasattr(x, "spec"):
            raise TypeError(
                message(op.called, what, f"{type(x).__name__} at entry {i}", "Make it one with flambeau.tensor(...).")
            )
    return tuple(a)


def may_be_absent(p: Param) -> bool:
    """Whether None may stand for the tensor or number p."""
    return p.role == "OptionalTensor" or (p.role == "Operand" and p.default is None)


# ------------------------------------------------------------------ source
def _signature(op: Op, defaults: dict[str, Any], extra: str = "") -> str:
    words, star = [], False
    for p in op.params:
        if p.keyword_only and not star:
            words.append("*")
            star = True
        if p.required and any(p is other for _, other in _numpy_names(op)):
            words.append(f"{p.name}=_absent")
        elif p.required:
            words.append(p.name)
        else:
            defaults[f"_d_{p.name}"] = p.default
            words.append(f"{p.name}=_d_{p.name}")
    extras = [extra] if extra else []
    extras += [f"{theirs}=None" for theirs, _ in _numpy_names(op)]
    if extras and not star:
        words.append("*")
    return ", ".join([*words, *extras])


def _numpy_names(op: Op) -> list[tuple[str, Param]]:
    """NumPy's words for parameters that PyTorch takes too: (word, parameter)."""
    mine = {p.name: p for p in op.params}
    found = []
    for theirs, name in (("axis", "dim"), ("keepdims", "keepdim")):
        if theirs not in mine and name in mine and not mine[name].is_tensor and _may_be_left_out(op, mine[name]):
            found.append((theirs, mine[name]))
    return found


def _numpy_lines(op: Op) -> list[str]:
    lines = []
    for theirs, p in _numpy_names(op):
        if p.required:
            value = f"{theirs} if {theirs} is not None else _missing(op, '{p.name}')"
            lines += [f"    if {p.name} is _absent:", f"        {p.name} = {value}"]
        else:
            lines += [f"    if {theirs} is not None:", f"        {p.name} = {theirs}"]
    return lines


def _may_be_left_out(op: Op, param: Param) -> bool:
    """Whether a parameter is keyword-only, or all those behind it have defaults."""
    return param.keyword_only or not any(
        p.required and not p.keyword_only for p in op.params[op.params.index(param) + 1 :]
    )


def _missing(op: Op, name: str) -> None:
    raise TypeError(f"{op.called}: argument '{name}' is missing (missing 1 required positional argument).")


def make_operator(op: Op) -> Callable:
    """The function of an op as a Python operator's method."""
    return make_function(op, True, miss=operator_miss, slow=operator_miss)


def make_function(op: Op, is_operator: bool = False, **replaced: Callable) -> Callable:
    """The public function of an op; an operator's first argument is a tensor for certain."""
    names = [p.name for p in op.params]
    scope = dict(_namespace, op=op, plans=op.plans, _absent=_absent, _missing=_missing, **replaced)
    takes_out = op.kind != VIEW and op.tensor_positions and op.rules.takes_out
    signature = _signature(op, scope, "out=None" if takes_out else "")
    everything = f"({', '.join(names)}{',' if names else ''})"
    lines = [f"def {_identifier(op.name)}({signature}):"]
    lines += _numpy_lines(op)
    if takes_out:
        filled = f"finish_out(slow(op, {everything}), out, op)"
        lines += [
            "    if out is not None:",
            f"        return {'Result(*' + filled + ')' if op.rules.fields else filled}",
        ]
    if op.outputs != 1:
        if op.rules.fields:
            scope["Result"] = result_type(op.called.replace(".", "_"), tuple(op.rules.fields))
        lines += _several_body(op, everything)
    else:
        lines += _fast_body(op, everything, is_operator)
    source = "\n".join(lines)
    exec(compile(source, f"<flambeau op {op.name}>", "exec"), scope)
    function = scope[_identifier(op.name)]
    function.__doc__ = op.doc
    function.__module__ = "flambeau"
    function.__qualname__ = function.__name__ = op.name
    return function


def _identifier(name: str) -> str:
    return name if name.isidentifier() else "_op"


def _several_body(op: Op, everything: str) -> list[str]:
    """The body for several outputs."""
    keys, operands, needs, before = _key_lines(op, everything)

    def answer(call: str) -> str:
        return f"return Result(*{call})" if op.rules.fields else f"return {call}"

    before = [
        line.replace(f"return miss(op, {everything})", answer(f"miss(op, {everything})")).replace(
            f"return slow(op, {everything})", answer(f"slow(op, {everything})")
        )
        for line in before
    ]
    return [
        "    if MODES:",
        "        " + answer(f"slow(op, {everything})"),
        "    try:",
        *before,
        f"        make, info = plans[{', '.join(keys)}]",
        "    except (KeyError, AttributeError, TypeError):",
        "        " + answer(f"miss(op, {everything})"),
        f"    results = make({', '.join(operands)})",
        *([f"    if {' or '.join(needs)}:", f"        record(info, {everything}, results)"] if needs else []),
        "    " + answer("results"),
    ]


def _key_lines(op: Op, everything: str, is_operator: bool = False) -> tuple[list[str], list[str], list[str], list[str]]:
    """Expressions of the plan key, of the operands, of whether each needs a gradient; and the lines that prepare them."""
    keys, operands, needs, before = [], [], [], []
    for i, p in enumerate(op.params):
        n = p.name
        if p.role == "Tensor" or (is_operator and i == 0):
            keys.append(f"{n}.spec")
            operands.append(n)
            needs.append(f"{n}.needs_grad")
        elif p.role == "Operand":
            before += [
                f"        t_{n} = type({n})",
                f"        if t_{n} is Tensor:",
                f"            k_{n} = {n}.spec; g_{n} = {n}.needs_grad",
                f"        elif t_{n} is float or t_{n} is int:",
                f"            k_{n} = t_{n}; g_{n} = False",
            ]
            absent = may_be_absent(p)
            if absent:
                before += [f"        elif {n} is None:", f"            k_{n} = None; g_{n} = False"]
            before += ["        else:", f"            k_{n} = {n}.spec; g_{n} = {n}.needs_grad"]
            keys.append(f"k_{n}")
            operands.append(n)
            needs.append(f"g_{n}")
        elif p.role == "OptionalTensor":
            before += [
                f"        if {n} is None:",
                f"            k_{n} = None; g_{n} = False",
                "        else:",
                f"            k_{n} = {n}.spec; g_{n} = {n}.needs_grad",
            ]
            keys.append(f"k_{n}")
            operands.append(n)
            needs.append(f"g_{n}")
        elif p.role == "Tensors":
            before += [
                f"        if type({n}) is not tuple:",
                f"            if type({n}) is not list:",
                f"                return miss(op, {everything})",
                f"            {n} = tuple({n})",
                f"        k_{n} = tuple([None if x is None else x.spec for x in {n}])",
            ]
            keys.append(f"k_{n}")
            operands.append(f"*{n}")
            needs.append(f"any([x is not None and x.needs_grad for x in {n}])")
        elif p.role == "Scalar":  # at its default a part of the code, else its type is in the key and its value a slot
            word = "if"
            if not p.required:
                before += [
                    f"        if {n} is _d_{n} or (type({n}) is type(_d_{n}) and {n} == _d_{n}):",
                    f"            k_{n} = p_{n} = None",
                ]
                word = "elif"
            before += [
                f"        {word} type({n}) is float or type({n}) is int:",
                f"            k_{n} = type({n}); p_{n} = {n}",
                "        else:",
                f"            return slow(op, {everything})",
            ]
            keys.append(f"k_{n}")
            operands.append(f"p_{n}")
        else:
            keys.append(n)
    return keys, operands, needs, before


def _fast_body(op: Op, everything: str, is_operator: bool) -> list[str]:
    keys, operands, needs, before = _key_lines(op, everything, is_operator)
    given = f"{op.params[0].name}, {everything}" if op.kind == VIEW else ", ".join(operands)
    lines = [
        "    if MODES:",
        f"        return slow(op, {everything})",
        "    try:",
        *before,
        f"        make, info = plans[{', '.join(keys)}]",
        "    except (KeyError, AttributeError, TypeError):",
        f"        return miss(op, {everything})",
        f"    result = make({given})",
    ]
    tensors = [p.name for p in op.params if p.is_tensor]
    bits = " + ".join(f"{need} * {1 << i}" if i else need for i, need in enumerate(needs))
    scalars = [p for p in op.params if p.role == "Scalar"]
    if not needs:
        pass
    elif any(may_be_absent(p) or p.role == "Tensors" for p in op.params) or any(
        p.required for p in scalars
    ):  # bits count what is there: the general way
        lines += [f"    if {' or '.join(needs)}:", f"        record(info, {everything}, (result,))"]
    else:
        given = "".join(f" and k_{p.name} is None" for p in scalars)
        lines += [
            f"    if {' or '.join(needs)}:",
            f"        if grad_mode.enabled and not watching{given}:",
            f"            taper = info.by_bits.get({bits})",
            "            if taper is None:",
            f"                record(info, {everything}, (result,))",
            "            else:",
            f"                taper({', '.join(tensors)}, result)",
            f"        elif watching or {'grad_mode.enabled or ' if given else ''}grad_mode.inference:",
            f"            record(info, {everything}, (result,))",
        ]
    lines.append("    return result")
    return lines


def make_in_place(op: Op) -> Callable:
    """The form `name_` that writes into its first argument."""
    names = [p.name for p in op.params]
    scope = dict(_namespace, op=op, run=in_place.run, _absent=_absent, _missing=_missing)
    signature = _signature(op, scope)
    name = _identifier(op.name) + "_"
    source = "\n".join([f"def {name}({signature}):", *_numpy_lines(op), f"    return run(op, ({', '.join(names)},))\n"])
    exec(compile(source, f"<flambeau op {op.name}_>", "exec"), scope)
    function = scope[name]
    function.__doc__ = f"In-place form of `{op.name}`: writes into `{names[0]}` and returns it."
    function.__module__ = "flambeau"
    function.__qualname__ = function.__name__ = op.name + "_"
    return function


__all__ = ["install", "make_function", "make_in_place"]
