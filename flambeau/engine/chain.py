"""Graphs some of whose nodes have plans of their own, run as a chain of plans.

    node = graph.add(Region("block", body), values)      # `body` is planned once, for all nodes with this op
    plan = plan_of(graph, device)                        # a Plan, or a Chain where there are regions
    outs = plan_run(plan, inputs)

What lies between regions is gathered as late as it is needed, so that most graphs have few pieces, and writes are made by the last. Views are
taken in every piece that reads them, so that no piece holds a view of memory that a later one writes to.
May not know: how regions are found. Entry: `Region`, `plan_of`, `plan_run`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flambeau.core.device import CPU, device
from flambeau.engine import eager
from flambeau.engine.plan import Plan, make_plan
from flambeau.ir.graph import Graph, Node, Value, map_values
from flambeau.ir.kinds import Declaration
from flambeau.ir.op import VIEW, Op, Param

REGION = "region"
LAST = 1 << 60


class _Rules(Declaration):
    """What stands where a declared op has its declaration."""

    functions = ()
    random = True  # what it gives is not known before it runs
    kind = REGION


class Region(Op):
    """An op that is a graph of its own: one input of the graph for each argument, one output for each result. It belongs to the trace that made it."""

    def __init__(self, name: str, body: Graph):
        self.name, self.body, self.kind, self.rules = name, body, REGION, _Rules
        self.doc, self.spoken = f"The graph of {name}.", name
        self.params = [Param(f"x{i}", "Tensor", None, False) for i in range(len(body.inputs))]
        self.tensor_positions = tuple(range(len(body.inputs)))
        self.scalar_positions = ()
        self.outputs = len(body.outputs)
        self.specs = tuple(v.spec.plain() for v in body.outputs)
        self._plans: dict[tuple, Plan | Chain] = {}
        eager.other_plans.append(self._plans)

    def plan(self, where: device, tuned: bool) -> Plan | Chain:
        """The plan of the graph."""
        key = (where, tuned)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = plan_of(self.body, where, tuned)
        return found

    def __del__(self) -> None:
        eager.other_plans[:] = [table for table in eager.other_plans if table is not self._plans]


class _Piece:
    """A plan with places of what it reads and gives, and the places that nobody reads after it."""

    __slots__ = ("plan", "reads", "gives", "drops")

    def __init__(self, plan: Plan | Chain, reads: list[int], gives: list[int]):
        self.plan, self.reads, self.gives, self.drops = plan, reads, gives, ()


class Chain:
    """Plans run one after the other, on a list of values that begins with the inputs."""

    def __init__(self, graph: Graph, where: device, tuned: bool):
        self.device, self.tuned = where, tuned
        self.pieces: list[_Piece] = []
        self._place: dict[Value, int] = {v: i for i, v in enumerate(graph.inputs)}
        times = _times(graph)
        at: dict[int, list[Node]] = {LAST: []}
        wanted: dict[int, dict[Value, None]] = {}  # by time: views that a region reads next, and what is read later
        for node, time in times.items():
            if node.op.kind != VIEW:
                at.setdefault(time, []).append(node)
        for node, time in times.items():
            if node.op.kind == VIEW:
                continue
            for v in node.inputs:
                if node.op.kind == REGION and _is_view(v):
                    at.setdefault(time - 1, [])
                    wanted.setdefault(time - 1, {})[v] = None
                for source in _sources(v):
                    if source.node is not None and times[source.node] < time - (node.op.kind == REGION and _is_view(v)):
                        wanted.setdefault(times[source.node], {})[source] = None
        for v in graph.results():
            for source in _sources(v):
                if source.node is not None and times[source.node] < LAST:
                    wanted.setdefault(times[source.node], {})[source] = None
        for time in sorted(at):
            if time % 2:
                for node in at[time]:
                    self._add_region(node)
            elif time < LAST:
                self._add(at[time], list(wanted.get(time, ())), [])
        self._add(at[LAST], [v for v in dict.fromkeys(graph.outputs) if v not in self._place], graph.writes)
        self.outputs = [self._place[v] for v in graph.outputs]
        self.kernels = sum(p.plan.kernels for p in self.pieces)
        self._let_go(len(graph.inputs))
        del self._place

    def _give(self, values: Iterable[Value]) -> list[int]:
        return [self._place.setdefault(v, len(self._place)) for v in values]

    def _add_region(self, node: Node) -> None:
        reads = [self._place[v] for v in node.args]
        self.pieces.append(_Piece(node.op.plan(self.device, self.tuned), reads, self._give(node.outputs)))

    def _add(self, nodes: list[Node], given: list[Value], writes: list[tuple[Value, Value]]) -> None:
        """Append a piece of these nodes and the views they and `given` need; `given` are its results."""
        given = [v for v in given if v not in self._place]
        inside = {v for n in nodes for v in n.outputs}
        read = dict.fromkeys([*(v for n in nodes for v in n.inputs), *given, *(v for pair in writes for v in pair)])
        piece, reads = Graph(), []
        env: dict[Value, Value] = {}
        for v in dict.fromkeys(source for x in read for source in _sources(x)):
            if v not in inside:
                env[v] = piece.input(v.spec)
                env[v].constant = v.constant
                reads.append(self._place[v])

        def add(n: Node) -> None:
            for v in n.inputs:
                if v not in env:
                    add(v.node)
            made = piece.add(n.op, map_values(lambda v: env[v], n.args), n.source, tuple(v.spec for v in n.outputs))
            env.update(zip(n.outputs, made))

        for n in nodes:
            add(n)
        for v in read:
            if v not in env:
                add(v.node)
        piece.outputs = [env[v] for v in given]
        piece.writes = [(env[t], env[v]) for t, v in writes]
        if given or writes:
            self.pieces.append(_Piece(make_plan(piece, self.device, self.tuned), reads, self._give(given)))

    def _let_go(self, inputs: int) -> None:
        """Note after which piece a value is dropped."""
        kept = set(self.outputs)
        for piece in reversed(self.pieces):
            drops = {i for i in (*piece.reads, *piece.gives) if i >= inputs} - kept
            piece.drops = tuple(drops)
            kept |= drops

    def run(self, inputs: list) -> tuple:
        """Tensors for tensors and numbers."""
        values: dict[int, Any] = dict(enumerate(inputs))
        for piece in self.pieces:
            values.update(zip(piece.gives, plan_run(piece.plan, [values[i] for i in piece.reads])))
            for i in piece.drops:
                del values[i]
        return tuple([values[i] for i in self.outputs])


def _is_view(v: Value) -> bool:
    return v.node is not None and v.node.op.kind == VIEW


def _sources(v: Value) -> list[Value]:
    """The values that a value is a view of; itself if it is none."""
    return [source for x in v.node.inputs for source in _sources(x)] if _is_view(v) else [v]


def _times(graph: Graph) -> dict[Node, int]:
    """When each node runs: regions at odd times, as early as they can; what lies between at even ones, as late as somebody reads it."""
    early: dict[Value, int] = {}
    for node in graph.nodes:
        ready = max((early.get(v, 0) for v in node.inputs), default=0)
        ready += 1 + ready % 2 if node.op.kind == REGION else ready % 2
        early.update((v, ready) for v in node.outputs)
    found: dict[Node, int] = {}
    users: dict[Value, int] = {}
    for node in reversed(graph.nodes):
        if node.op.kind == REGION:
            time = early[node.outputs[0]]
        else:
            time = min((users[v] for v in node.outputs if v in users), default=LAST)
        found[node] = time
        for v in node.inputs:
            users[v] = min(users.get(v, LAST), time - (node.op.kind == REGION))
    return {n: found[n] for n in graph.nodes}


def plan_of(graph: Graph, where: device = CPU, tuned: bool = False) -> Plan | Chain:
    """The plan of a graph, of one piece where it has no regions."""
    if any(n.op.kind == REGION for n in graph.nodes):
        return Chain(graph.remove_dead(), where, tuned)
    return make_plan(graph, where, tuned)


def plan_run(plan: Plan | Chain, inputs: list) -> tuple:
    """Tensors that either kind of plan gives."""
    return plan.run(inputs) if type(plan) is Chain else eager.run_plan(plan, inputs)


__all__ = ["REGION", "Chain", "Region", "plan_of", "plan_run"]
