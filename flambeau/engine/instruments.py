"""Looking at plans as they are made, and at kernels as they run.

    FLAMBEAU_DEBUG=2   each launch with its time, GFLOP/s and GB/s
                   3   which values share a kernel, and why a new one was opened
                   4   the loop nests
                   5   the graph: traced, after each pass, scheduled
    FLAMBEAU_DUMP=dir  the same in numbered files: 000001-graph-traced.py, …-graph-decomposed.py, …-fusion.txt, …-schedule.txt, …-nest-max.txt

What is off costs nothing: `plan` asks when it makes a plan, and every plan is forgotten when a setting that shapes plans changes. Launches
are timed one by one on the thread that runs them, the Python around each included (about 0.3 µs); operations are counted for loop nests and
matrix products, and a transcendental function counts as one.

May not know: tensors. Entry: `show_graph`, `show_schedule`, `timed`.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from flambeau.base import stages
from flambeau.base.settings import settings
from flambeau.core.spec import NumberSpec
from flambeau.ir.graph import Graph
from flambeau.schedule.steps import ERROR, Schedule, Shifted, Step, Table
from flambeau.templates.loop_program import LoopNest
from flambeau.templates.loop_text import nest_text, operations, traffic_bytes

SHAPING = ("debug", "dump", "override", "validate", "check", "cpu")  # settings that plans depend on


# ------------------------------------------------------------------ stages
def show_graph(graph: Graph, stage: str) -> None:
    """A graph after a pass, if anybody looks; verified if that is wanted."""
    if settings.check:
        graph.verify()
    if stages.shown(5):
        stages.show(5, f"graph, {stage}", str(graph), f"graph-{stage}.py")


def show_schedule(result: Schedule) -> None:
    """A schedule: decisions, steps and loop nests, as far as anybody looks."""
    if result.decisions:
        stages.show(3, "fusion", "\n".join(f"    {d}" for d in result.decisions), "fusion.txt")
    if stages.shown(5):
        stages.show(5, "scheduled", schedule_text(result), "schedule.txt")
    if stages.shown(4):
        for number, step in enumerate(result.steps):
            nests = [found for part in step.segments or (step,) for found in nests_of(part)]
            for nest, params, operands in nests:
                text = nest_text(nest, params, [operand_name(o) for o in operands])
                stages.show(4, f"loop nest of step {number}, {step.name}", text, f"nest-{step.name}.txt")


def operand_name(operand: Any) -> str:
    """x0 for an input, t0 for what the plan makes, s0 for scratch."""
    if operand is ERROR:
        return "errors"
    if isinstance(operand, Shifted):
        return f"({operand_name(operand.buffer)} + {operand.offset_bytes} bytes)"
    return {"input": "x", "temp": "t", "scratch": "s"}[operand.role] + str(operand.index)


def schedule_text(result: Schedule) -> str:
    """Buffers and steps, a line each."""
    lines = [f"{operand_name(b)}: {b.spec}" for b in (*result.inputs, *result.temps)]
    lines += [f"{operand_name(s)}: {s.nbytes} bytes" for s in result.scratches]
    for number, step in enumerate(result.steps):
        operands = ", ".join(operand_name(o) for o in (*step.operands, *step.outputs))
        how = "library call" if step.recipe is None else f"{step.recipe.name}, {step.params[0]} units"
        how += ", with an epilogue" if step.finishing is not None else ""
        lines.append(f"step {number}: {step.name}({operands})  # {how}")
        for segment in step.segments:
            lines.append(f"    segment: {segment.name}({', '.join(operand_name(o) for o in segment.operands)})")
    shown = [
        operand_name(b) + ("" if spec is b.spec and not offset else f" as {spec} from element {offset}")
        for b, spec, offset in result.outputs
    ]
    return "\n".join([*lines, f"return {', '.join(shown)}"])


def nest_of(step: Step) -> LoopNest | None:
    """The loop nest of a step, if it is one."""
    if step.recipe is not None and step.recipe.parameters and isinstance(step.recipe.parameters[0], LoopNest):
        return step.recipe.parameters[0]
    return None


def nests_of(step: Step) -> list[tuple[LoopNest, tuple[int, ...], tuple]]:
    """(nest, parameter block, operands) of the loop nest that a step is, or that finishes a template's result."""
    nest = nest_of(step)
    if nest is not None:
        return [(nest, step.params, step.operands)]
    f = step.finishing
    return [] if f is None else [(f.nest, f.params, f.operands)]


# ------------------------------------------------------------------ time
def timed(entry: Any, step: Step) -> Any:
    """The entry of a step, printing each launch."""
    nest, name, flops = nest_of(step), f"{step.name} ({step.recipe.name})", step.flops
    nbytes = sum(b.spec.nbytes for b in buffers_of(step))

    def run(*slots: Any) -> None:
        start = time.perf_counter_ns()
        entry(*slots)
        ns = time.perf_counter_ns() - start
        if nest is None:
            stages.line(f"kernel {name}: {rates(ns, flops, nbytes)}")
        else:
            params = words_at(slots[-1], len(step.params))
            stages.line(f"kernel {name}: {rates(ns, operations(nest, params), traffic_bytes(nest, params))}")

    run.__wrapped__ = entry
    return run


def buffers_of(step: Step) -> list:
    """The buffers a step reads or writes, each once."""
    found = []
    listed = [o for t in step.operands if isinstance(t, Table) for o in t.operands]
    for operand in (*step.operands, *listed):
        buffer = operand.buffer if isinstance(operand, Shifted) else operand
        if (
            buffer is not ERROR
            and buffer.role != "scratch"
            and not isinstance(buffer.spec, NumberSpec)
            and buffer not in found
        ):
            found.append(buffer)
    return found


def words_at(address: int, count: int) -> list[int]:
    """The words of a parameter block: a plan may be run with the block of another size."""
    return list((ctypes.c_int64 * count).from_address(address))


def rates(ns: int, flops: int, nbytes: int) -> str:
    """`0.021 ms, 3.1 GFLOP/s, 25.0 GB/s`; what nobody counts is left out."""
    parts = [f"{ns / 1e6:.4f} ms"]
    if flops:
        parts.append(f"{flops / max(1, ns):.1f} GFLOP/s")
    if nbytes:
        parts.append(f"{nbytes / max(1, ns):.1f} GB/s")
    return ", ".join(parts)


__all__ = ["SHAPING", "operand_name", "schedule_text", "show_graph", "show_schedule", "timed"]
