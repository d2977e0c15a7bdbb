"""A graph: inputs, a flat list of nodes in order, outputs, and writes to inputs. Prints as runnable Python.

    graph = Graph()
    x = graph.input(Spec.of((3,), float32))
    y, = graph.add(REGISTRY["neg"], (x,))
    graph.outputs = [y]
    print(graph)

May not know: how it is scheduled or run. `verify` checks it at every boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flambeau.base.errors import InternalError
from flambeau.core.device import CPU, device
from flambeau.core.dtype import dtype
from flambeau.core.spec import NumberSpec, Spec
from flambeau.core.symbolic import concrete
from flambeau.ir.op import COMPOSITE, Op, speak_as


class Value:
    """What a node gives: a tensor that has a spec and no memory yet."""

    __slots__ = ("node", "index", "spec", "constant")

    def __init__(self, node: Node | None, index: int, spec: Spec | NumberSpec):
        self.node, self.index, self.spec = node, index, spec
        self.constant: Any = None  # for an input: the tensor that was closed over, if any

    def __repr__(self) -> str:
        return f"{self.node.op.name if self.node else 'input'}[{self.index}]: {self.spec}"


class Node:
    """One op applied to values and attributes, in signature order. `source` names the composite it comes from, if any."""

    __slots__ = ("op", "args", "outputs", "source")

    def __init__(self, op: Op, args: tuple, specs: Iterable[Spec], source: str = ""):
        self.op, self.args, self.source = op, args, source
        self.outputs = tuple(Value(self, i, s) for i, s in enumerate(specs))

    @property
    def inputs(self) -> list[Value]:
        return list(values_in(self.args))

    @property
    def called(self) -> str:
        """The name that errors at run time begin with: that of the op a user called."""
        return self.source or self.op.called

    def attributes(self) -> tuple:
        """The arguments that are not values."""
        return tuple(a for i, a in enumerate(self.args) if i not in self.op.tensor_positions)


def values_in(args: tuple) -> Iterable[Value]:
    for a in args:
        if isinstance(a, Value):
            yield a
        elif isinstance(a, tuple):
            yield from values_in(a)


def map_values(function: Callable[[Value], Any], args: tuple) -> tuple:
    return tuple(
        function(a) if isinstance(a, Value) else map_values(function, a) if type(a) is tuple else a for a in args
    )


def number_spec(kind: type) -> NumberSpec:
    """The spec of a Python number of type `kind` (bool, int, float, complex) under the current default dtype."""
    if kind not in _NUMBER_SPECS:
        _NUMBER_SPECS[kind] = NumberSpec(kind)
    return _NUMBER_SPECS[kind]


_NUMBER_SPECS: dict[type, NumberSpec] = {}


def specs_of(op: Op, args: tuple) -> tuple:
    """Arguments as a meta takes them: values replaced by their specs, run-time numbers by number specs (a Scalar at its default is code)."""
    found = list(map_values(lambda v: v.spec.plain(), args))
    for i in op.scalar_positions:
        a, p = found[i], op.params[i]
        if isinstance(a, (bool, int, float, complex)) and (
            p.role == "Operand" or a != p.default or type(a) is not type(p.default)
        ):
            found[i] = number_spec(type(a))
    return tuple(found)


def infer(op: Op, args: tuple) -> tuple[Spec, ...]:
    """Specs of the outputs: the op's one shape and dtype rule. What the ops of a composite's body complain of, it says in its own name."""
    try:
        found = op.rules.meta(op, *specs_of(op, args))
    except Exception as error:
        if op.spoken is not None:
            speak_as(op.spoken, error, op.names())
        raise
    return found if isinstance(found, tuple) else (found,)


class Graph:
    """See the module."""

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.outputs: list[Value] = []
        self.writes: list[tuple[Value, Value]] = []  # (input, its value afterwards)

    def input(self, spec: Spec | NumberSpec) -> Value:
        value = Value(None, len(self.inputs), spec)
        self.inputs.append(value)
        return value

    def add(self, op: Op, args: tuple, source: str = "", specs: tuple[Spec, ...] | None = None) -> tuple[Value, ...]:
        """Append `op(*args)`; args hold Values where tensors go. `specs` of the outputs, if they are known, are not inferred again."""
        node = Node(op, args, specs or infer(op, args), source)
        self.nodes.append(node)
        return node.outputs

    # ------------------------------------------------------------------ whole-graph questions
    def device(self) -> device:
        """Where it runs: the device of its inputs and results, of which single numbers may be on the CPU."""
        found = [v.spec.device for v in (*self.inputs, *self.outputs) if isinstance(v.spec, Spec)]
        return next((d for d in found if d is not CPU), CPU)

    def results(self) -> list[Value]:
        """Everything that must be computed: outputs and written values."""
        return [*self.outputs, *(v for _, v in self.writes)]

    def remove_dead(self) -> Graph:
        """Drop nodes nobody needs, in place."""
        needed = set(self.results())
        kept = []
        for node in reversed(self.nodes):
            if any(o in needed for o in node.outputs):
                kept.append(node)
                needed.update(node.inputs)
        self.nodes = kept[::-1]
        return self

    def verify(self) -> None:
        """Every value is defined before use. Raises: InternalError with the graph."""
        known = set(self.inputs)
        for node in self.nodes:
            for v in node.inputs:
                if v not in known:
                    raise InternalError(f"graph: {node.op.name} uses a value that is not defined before it.\n{self}")
            known.update(node.outputs)
        for v in self.results():
            if v not in known:
                raise InternalError(f"graph: an output is not defined.\n{self}")

    def copied(self) -> Graph:
        """The same graph of other nodes and values, of which passes may change what they like."""
        graph = Graph()
        env: dict[Value, Value] = {}
        for v in self.inputs:
            env[v] = graph.input(v.spec)
            env[v].constant = v.constant
        for node in self.nodes:
            args = map_values(lambda v: env[v], node.args)
            env.update(zip(node.outputs, graph.add(node.op, args, node.source, tuple(v.spec for v in node.outputs))))
        graph.outputs = [env[v] for v in self.outputs]
        graph.writes = [(env[t], env[v]) for t, v in self.writes]
        return graph

    def concrete(self, sizes: Mapping[str, int]) -> Graph:
        """The graph with symbolic sizes replaced by values; specs are inferred again."""
        graph = Graph()
        env: dict[Value, Value] = {}
        for v in self.inputs:
            spec = v.spec
            if isinstance(spec, Spec):
                spec = Spec.get(concrete(spec.shape, sizes), concrete(spec.strides, sizes), spec.dtype, spec.device)
            env[v] = graph.input(spec)
            env[v].constant = v.constant
        for node in self.nodes:
            args = concrete(map_values(lambda v: env[v], node.args), sizes)
            for old, new in zip(node.outputs, graph.add(node.op, args, node.source)):
                env[old] = new
        graph.outputs = [env[v] for v in self.outputs]
        graph.writes = [(env[t], env[v]) for t, v in self.writes]
        return graph

    # ------------------------------------------------------------------ printing
    def names(self) -> dict[Value, str]:
        names: dict[Value, str] = {v: f"x{i}" for i, v in enumerate(self.inputs)}
        counts: dict[str, int] = {}
        for node in self.nodes:
            n = counts[node.op.name] = counts.get(node.op.name, -1) + 1
            stem = f"{node.op.name.strip('_')}_{n}"
            for v in node.outputs:
                names[v] = stem if len(node.outputs) == 1 else f"{stem}_{v.index}"
        return names

    def __str__(self) -> str:
        names = self.names()
        lines = [f"def graph({', '.join(names[v] for v in self.inputs)}):"]
        for v in self.inputs:
            lines.append(f"    # {names[v]}: {v.spec}")
        for node in self.nodes:
            left = ", ".join(names[v] for v in node.outputs)
            args = []
            for p, a in zip(node.op.params, node.args):
                text = print_argument(a, names)
                args.append(f"{p.name}={text}" if p.keyword_only else text)
            specs = ", ".join(str(v.spec) for v in node.outputs)
            lines.append(f"    {left} = ops.{node.op.name}({', '.join(args)})  # {specs}")
        for target, v in self.writes:
            lines.append(f"    {names.get(target, '?')}.copy_({names.get(v, '?')})")
        lines.append(f"    return {', '.join(names.get(v, '?') for v in self.outputs)}")
        return "\n".join(lines)


def print_argument(a: Any, names: dict[Value, str]) -> str:
    if isinstance(a, Value):
        return names.get(a, "?")
    if isinstance(a, tuple):
        inner = ", ".join(print_argument(x, names) for x in a)
        return f"({inner},)" if len(a) == 1 else f"({inner})"
    if isinstance(a, (dtype, device)):
        return repr(a) if isinstance(a, dtype) else f"flambeau.{a!r}"
    if isinstance(a, float) and (a != a or a in (float("inf"), float("-inf"))):
        return f"float('{a}')"
    return repr(a)


def is_primitive(op: Op) -> bool:
    return op.kind != COMPOSITE
