"""Functions of positions that users give to attention (`score_mod`, `mask_mod`), traced once into programs.

    found = traced(lambda b, h, q, kv: q - kv <= window, "mask_mod", sizes=(B, H, L, S))
    found.program                  # what it does, with nothing of what it captured: `ir.positional.Program`
    found.operands()               # tensors for the program's captured inputs

The function runs once, on stand-ins for single numbers, as it would under vmap. What does not depend on a position is split off and computed
before, by ordinary ops (so that gradients reach what it was computed from); numbers that the code does not spell out become captured tensors too,
so that a closure over another number is the same program. Tensors may be values of an outer trace.

What was traced is kept as long as the function, and used again while everything the function reads is as it was. May not know: attention.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import TraceError, message
from flambeau.core.device import CPU, device
from flambeau.core.dtype import bool_, dtype, float64, get_default_dtype, int64
from flambeau.core.spec import Spec
from flambeau.func.transforms import vmap
from flambeau.ir import tracing
from flambeau.ir.graph import Graph, Value, infer, map_values, specs_of
from flambeau.ir.kinds import pointwise_types
from flambeau.ir.op import POINTWISE, REGISTRY
from flambeau.ir.positional import Program, is_scalar
from flambeau.nn.attention.reads import contents, kinds_of, list_reads, same
from flambeau.passes.decompose import decompose
from flambeau.tape.grad_mode import no_grad
from flambeau.tape.record import interpret

INDICES = 4  # b, h, q_idx, kv_idx
_PARAMETERS = {"mask_mod": "(b, h, q_idx, kv_idx)", "score_mod": "(score, b, h, q_idx, kv_idx)"}


class Traced:
    """See the module. `leaves`: the tensors that the function reads, in the order of `outer`'s inputs; `numbers`: those made of numbers."""

    __slots__ = ("leaves", "numbers", "outer", "program")

    def __init__(self, program: Program, outer: Graph, leaves: list[Tensor], numbers: list[Tensor]):
        self.program, self.outer, self.leaves, self.numbers = program, outer, leaves, numbers

    def operands(self) -> tuple[Tensor, ...]:
        """A tensor for each captured input of the program."""
        if not self.outer.nodes:
            by_value = dict(zip(self.outer.inputs, self.leaves))
            return (*(by_value[v] for v in self.outer.outputs), *self.numbers)
        return (*interpret(self.outer, self.leaves), *self.numbers)


def count_parameters(function: Callable) -> int:
    """How many arguments a function must be given."""
    code = getattr(function, "__code__", None)
    if code is not None:
        bound = 1 if isinstance(function, types.MethodType) else 0
        return code.co_argcount - bound - len(function.__defaults__ or ())
    parameters = inspect.signature(function).parameters.values()
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def name_of(function: Callable) -> str:
    return getattr(function, "__name__", None) or repr(function)


def traced(
    function: Callable,
    role: str,
    *,
    score: dtype | None = None,
    sizes: tuple[int, int, int, int],
    where: device = CPU,
) -> Traced:
    """The function as a program. `role`: "mask_mod" or "score_mod", whose score has the dtype `score`.

    `sizes` [B, H, L, S] matter only to functions whose values are more than single numbers on the way. Raises: RuntimeError where the function
    branches on a position; what the function raises.
    """
    recorder = tracing.current()
    if recorder is not None and recorder.repeats:  # a trace that is replayed must see what the function reads itself
        return _trace(function, role, score, sizes, where)[0]
    reads = list_reads(function)
    if reads is None:
        return _trace(function, role, score, sizes, where)[0]
    key = (role, score, where, get_default_dtype())
    keys = (key, (*key, sizes))  # without sizes if the program has none
    kept = _by_function.setdefault(function, {})
    for k in keys:
        found = kept.get(k)
        if found is not None and same(found[0], reads):
            return found[1]
    kinds = kinds_of(reads)
    for k in keys:
        known = _by_kinds.get((k, kinds))
        if known is not None:
            result = known.with_leaves([reads[i][0] for i in known.positions])
            kept[k] = (reads, result)
            return result
    result, valued = _trace(function, role, score, sizes, where)
    if not valued:
        k = keys[0] if result.program.scalar else keys[1]
        kept[k] = (reads, result)
        if len(_by_kinds) >= _MOST:
            _by_kinds.clear()
        template = _Template.of(result, reads)
        if template is not None:
            _by_kinds[k, kinds] = template
    return result


class _Template:
    """A trace without its leaves, for functions of the same code that read things of the same kinds. `positions`: where in those the leaves are."""

    def __init__(self, found: Traced, positions: list[int]):
        self.program, self.outer, self.numbers, self.positions = found.program, found.outer, found.numbers, positions

    @classmethod
    def of(cls, found: Traced, reads: list) -> _Template | None:
        """None if a leaf was made while tracing."""
        places = {id(x): i for i, (x, _) in reversed(list(enumerate(reads)))}
        positions = [places.get(id(t)) for t in found.leaves]
        return None if None in positions else cls(found, positions)

    def with_leaves(self, leaves: list[Tensor]) -> Traced:
        return Traced(self.program, self.outer, leaves, self.numbers)


_MOST = 1024
_by_function: weakref.WeakKeyDictionary[Callable, dict] = weakref.WeakKeyDictionary()
_by_kinds: dict[tuple, _Template] = {}


# ------------------------------------------------------------------ tracing
class _Recorder(tracing.Recorder):
    """A trace in which each tensor from outside is an input of its own: `x` has gradients where `x.detach()`, at the same memory, has none."""

    def __init__(self) -> None:
        super().__init__()
        self.captured: dict[int, Value] = {}

    def value_of(self, tensor: Tensor) -> Value:
        traced = tensor._traced
        if traced is not None and traced[0] is self:
            return traced[1]
        found = self.captured.get(id(tensor))
        if found is None:
            found = self.captured[id(tensor)] = self.graph.input(tensor.spec.plain())
            found.constant = tensor  # which keeps its id its own
        return found

    def restore(self) -> None:
        """Tensors that were written to as they were before."""
        for t in self.stamped:
            t.__dict__.pop("_traced", None)
            t.spec, t.node, t.needs_grad = t.__dict__.pop("_before_trace")


def _trace(function: Callable, role: str, score: dtype | None, sizes: tuple, where: device) -> tuple[Traced, bool]:
    """The function as a program, and whether it looked at values of tensors."""
    specs = [Spec.of((), int64, where)] * INDICES
    if role == "score_mod":
        specs.insert(0, Spec.of((), score, where))
    recorder = _Recorder()
    graph = recorder.graph
    with tracing.recording(recorder), no_grad():
        given = [tracing._make(recorder, graph.input(s)) for s in specs]
        result = _called(function, role, given)
        if not isinstance(result, Tensor):
            raise _wrong_result(role, function, f"{type(result).__name__} {result!r}")
        if result.spec.ndim:
            raise _wrong_result(role, function, f"a tensor of shape {list(result.shape)}")
        if role == "mask_mod" and result.spec.dtype is not bool_:
            raise _wrong_result(role, function, f"dtype {result.dtype.name}")
        graph.outputs = [recorder.value_of(result)]
    if recorder.stamped:
        recorder.restore()
        raise RuntimeError(
            message(role, "must not write to tensors, for it runs once for all positions", name_of(function))
        )
    leaves = {v: v.constant for v in graph.inputs[len(specs) :]}
    return _divided(graph.remove_dead(), len(specs), leaves, function, role, sizes, where), recorder.valued


def _called(function: Callable, role: str, given: list[Tensor]) -> Any:
    """What the function gives. Raises: RuntimeError where it asks for the value of a stand-in."""
    wanted = len(given)
    if not callable(function):
        raise TypeError(message(role, f"must be a function of {_PARAMETERS[role]}", type(function).__name__))
    try:
        return function(*given)
    except TraceError as error:
        raise RuntimeError(
            f"{role}: {name_of(function)} must not branch on a position or score (a Python `if`, `and`, `or`, `not`, int() or item() on a "
            "tensor): it runs once for all of them, as under vmap (data-dependent control flow). Use flambeau.where, &, | and ~."
        ) from error
    except TypeError as error:
        if count_parameters(function) != wanted and "argument" in str(error):
            raise TypeError(
                message(role, f"must take {wanted} arguments {_PARAMETERS[role]}", f"{name_of(function)}: {error}")
            ) from error
        raise


def _wrong_result(role: str, function: Callable, got: str) -> Exception:
    if role == "mask_mod":
        return AssertionError(
            message(
                role,
                f"{name_of(function)} must give a bool tensor (mask.dtype must be bool)",
                got,
                "Compare something.",
            )
        )
    return RuntimeError(message(role, f"{name_of(function)} must give a tensor of one number for a position", got))


def _divided(
    graph: Graph, count: int, leaves: dict[Value, Tensor], function: Callable, role: str, sizes: tuple, where: device
) -> Traced:
    """What depends on a position as a program, and the rest as a graph that runs before."""
    varying = set(graph.inputs[:count])
    for node in graph.nodes:
        if node.op.rules.random:
            raise RuntimeError(
                message(role, "must not draw random numbers, for it runs once for all positions", name_of(function))
            )
        if any(v in varying for v in node.inputs) or _is_constant(node):
            varying.update(node.outputs)
    outer, inner = Graph(), Graph()
    before: dict[Value, Value] = {v: outer.input(v.spec) for v in leaves}
    within: dict[Value, Value] = {v: inner.input(v.spec) for v in graph.inputs[:count]}

    def captured(v: Value) -> Value:
        if v not in within:
            within[v] = inner.input(v.spec)
            outer.outputs.append(before[v])
        return within[v]

    literals = set(_literals(function, set()))
    numbers: list[Tensor] = []
    slots: list[tuple[Value, Tensor]] = []
    for node in graph.nodes:
        if not any(v in varying for v in node.outputs):
            before.update(zip(node.outputs, outer.add(node.op, map_values(lambda v: before[v], node.args))))
            continue
        args = map_values(captured, node.args)
        if node.op.kind == POINTWISE:
            args = _with_slots(node, args, inner, literals, slots, where)
        within.update(zip(node.outputs, inner.add(node.op, args)))
    inner.outputs = [captured(graph.outputs[0])]
    places = [v for v, _ in slots]
    fixed = [v for v in inner.inputs if v not in places]
    inner.inputs = [*fixed, *places]  # numbers stand behind tensors
    numbers = [t for _, t in slots]
    outer.remove_dead()
    outer_inputs = [before[v] for v in leaves]
    used = {v for node in outer.nodes for v in node.inputs} | set(outer.outputs)
    kept = [(v, t) for v, t in zip(outer_inputs, leaves.values()) if v in used]
    outer.inputs = [v for v, _ in kept]
    tensors = [t for _, t in kept]
    flat = decompose(inner)
    if is_scalar(flat):
        return Traced(Program(flat, count), outer, tensors, numbers)
    return Traced(Program(_lifted(inner, count, sizes), count, scalar=False), outer, tensors, numbers)


def _is_constant(node: Any) -> bool:
    """A number that the code makes (`b.new_ones(())`): cheap, and better inside."""
    return node.op.kind == POINTWISE and not node.inputs and not node.outputs[0].spec.ndim


def _with_slots(node: Any, args: tuple, inner: Graph, literals: set, slots: list, where: device) -> tuple:
    """Arguments in which numbers that the code does not spell out are inputs, in the type that the op computes in."""
    specs = specs_of(node.op, args)
    wanted = iter(pointwise_types(node.op, specs)[0])
    found = list(args)
    for i, p in enumerate(node.op.params):
        if not ((p.is_tensor or p.role == "Scalar") and hasattr(specs[i], "dtype")):
            continue
        compute, a = next(wanted), args[i]
        if p.role != "Operand" or type(a) not in (int, float) or (type(a), a) in literals or a - a != 0:
            continue
        kind = int64 if type(a) is int else float64
        if kind is int64 and not -(1 << 63) <= a < 1 << 63:
            continue
        value = inner.input(Spec.of((), kind, where))
        converted = value if kind is compute else inner.add(REGISTRY["to_dtype"], (value, compute))[0]
        tried = tuple(converted if j == i else x for j, x in enumerate(found))
        if infer(node.op, tried)[0].dtype is not node.outputs[0].spec.dtype:
            inner.inputs.remove(value)
            continue
        found[i] = converted
        with tracing.suspended(), no_grad():
            slots.append((value, REGISTRY["full"]((), a, dtype=kind, device=where)))
    for at, v in enumerate(inner.inputs):
        v.index = at
    return tuple(found)


def _literals(function: Any, seen: set[int]) -> Iterator[tuple[type, Any]]:
    """Numbers that the code of a function, and of functions it captured, spells out."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        yield from _literals(function.func, seen)
    elif isinstance(function, types.MethodType):
        yield from _literals(function.__func__, seen)
    elif isinstance(function, (tuple, list)):
        for f in function:
            yield from _literals(f, seen)
    elif isinstance(function, types.FunctionType):
        yield from _numbers_in(function.__code__)
        for cell in function.__closure__ or ():
            yield from _literals(contents(cell), seen)
    elif isinstance(type(function).__call__, types.FunctionType):
        yield from _literals(type(function).__call__, seen)


def _numbers_in(code: types.CodeType) -> Iterator[tuple[type, Any]]:
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from _numbers_in(c)
        elif type(c) in (int, float):
            yield type(c), c
            yield type(c), -c
        elif isinstance(c, tuple):
            yield from ((type(x), x) for x in c if type(x) in (int, float))


def _lifted(inner: Graph, count: int, sizes: tuple) -> Graph:
    """The graph for all positions at once, by the rules of vmap."""
    has_score = count > INDICES

    def one(*values: Tensor) -> Tensor:
        return interpret(inner, list(values))[0]

    captured = len(inner.inputs) - count
    function: Callable = one
    for d in reversed(range(INDICES)):
        mapped = [0 if e == d else None for e in range(INDICES)]
        function = vmap(function, in_dims=(*([0] if has_score else []), *mapped, *[None] * captured))
    specs = [Spec.of((n,), int64, inner.inputs[0].spec.device) for n in sizes]
    if has_score:
        s = inner.inputs[0].spec
        specs.insert(0, Spec.of(sizes, s.dtype, s.device))
    return tracing.trace(function, [*specs, *(v.spec for v in inner.inputs[count:])])[0]


__all__ = ["Traced", "count_parameters", "traced"]
