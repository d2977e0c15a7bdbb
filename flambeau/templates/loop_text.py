"""A loop nest as text, and what it costs: elements computed, bytes touched.

    print(nest_text(nest, params, ["x0", "t0"]))

    256 units, 2 of them at a time
    for i0 in range(256):
        for i1 in range(1000):  # lanes, 16 x 4
            %0 = load float32 x0[1000*i0 + i1]
            %1 = max %0 in float32 over inner
    ...

Lines are the program's instructions in order; loops are those of the whole domain, although the kernel leaves what does not depend
on the inner ones outside of them, and runs them once for each stage of reductions. May not know: graphs, memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import BY_NAME
from flambeau.templates.loop_program import (
    CHUNK,
    FIRST_SIZE,
    GRAIN,
    TOTAL,
    Apply,
    Check,
    Constant,
    Iota,
    Keep,
    Load,
    LoopNest,
    Part,
    Reduce,
    Ref,
    Scalar,
    Store,
)


def nest_text(nest: LoopNest, params: Sequence[int], operands: Sequence[str] = ()) -> str:
    """The nest at the sizes and strides of a parameter block; `operands` name the slots."""
    names = [*operands, *(f"slot{i}" for i in range(len(operands), nest.slots))]
    lines = [f"{params[TOTAL]} units, {params[GRAIN]} of them at a time"]
    for dim, size in enumerate(sizes_of(nest, params)):
        lines.append("    " * dim + f"for i{dim} in range({size}):{_loop_note(nest, dim, params)}")
    indent = "    " * nest.dims
    lines += [indent + _instruction(i, node, params, names) for i, node in enumerate(nest.program)]
    return "\n".join(lines)


def sizes_of(nest: LoopNest, params: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the domain's dims, outer ones first."""
    return tuple(params[FIRST_SIZE : FIRST_SIZE + nest.dims])


def _loop_note(nest: LoopNest, dim: int, params: Sequence[int]) -> str:
    notes = []
    if dim == nest.vector_dim:
        notes.append(f"lanes, {nest.lanes} x {nest.unroll}" if nest.lanes else "one by one")
        if nest.chunked:
            notes.append(f"{params[CHUNK]} in a unit")
    elif dim < nest.outer:
        notes.append("units")
    return f"  # {', '.join(notes)}" if notes else ""


def _place(access: Sequence[int], params: Sequence[int]) -> str:
    """An access as a sum of steps times loop counters."""
    *dims, offset = access
    terms = []
    for dim, position in enumerate(dims):
        step = params[position] if position > 1 else position
        if step:
            terms.append(f"i{dim}" if step == 1 else f"{step}*i{dim}")
    if offset:
        terms.append(str(params[offset]))
    return " + ".join(terms) or "0"


def _moved(indices: Sequence[tuple[Ref, int]], params: Sequence[int]) -> str:
    return "".join(f" + {params[stride]}*{index}" for index, stride in indices)


def _instruction(number: int, node: Any, params: Sequence[int], names: Sequence[str]) -> str:
    head = f"%{number} = "
    match node:
        case Load():
            how = " ahead" if node.ahead else ""
            return f"{head}load {node.dtype} {names[node.slot]}[{_place(node.access, params)}{_moved(node.indices, params)}]{how}"
        case Store():
            how = f" by {node.combine}" if node.combine else " past the cache" if node.streaming else ""
            return f"store {node.dtype} {names[node.slot]}[{_place(node.access, params)}{_moved(node.indices, params)}] = {node.value}{how}"
        case Check():
            wrap = ", negative ones from the end" if node.wrap else ""
            return f"{head}check {node.index} in range({params[node.size]}){wrap}, else report"
        case Iota():
            return f"{head}number {_place(node.access, params)}"
        case Constant():
            return f"{head}{node.dtype} {node.value!r}"
        case Scalar():
            return f"{head}number in slot {node.slot} ({'float64' if node.kind == 'f' else 'int64'})"
        case Apply():
            return f"{head}{node.op}({', '.join(map(repr, node.args))}) in {', '.join(dict.fromkeys(node.compute)) or '-'} -> {node.dtype}"
        case Reduce():
            attributes = f" {node.attributes}" if node.attributes else ""
            return (
                f"{head}{node.op}{attributes} {node.arg} in {node.compute} over {node.over} -> {', '.join(node.dtypes)}"
            )
        case Part():
            return f"{head}part {node.index} of {node.reduce}"
        case Keep():
            return f"keep {node.value} as a row in {names[node.slot]}"
    return f"{head}{node!r}"


# ------------------------------------------------------------------ what it costs
def operations(nest: LoopNest, params: Sequence[int]) -> int:
    """Ops applied and elements combined, each counted as one operation."""
    sizes = sizes_of(nest, params)
    once, each = math.prod(sizes[: nest.outer]), math.prod(sizes)
    inner = range(nest.outer, nest.dims)
    full: list[bool] = []  # whether an instruction's value depends on the inner dims
    count = 0
    for node in nest.program:
        depends = any(full[r] for r in _refs(node)) and not isinstance(node, Reduce)
        if isinstance(node, (Load, Iota)):
            depends |= any(node.access[d] for d in inner)
        full.append(depends)
        if isinstance(node, Apply):
            count += each if depends else once
        elif isinstance(node, Reduce):
            count += each if full[node.arg.index] else once
    return count


def _refs(node: Any) -> list[int]:
    """The instructions whose values a node uses."""
    match node:
        case Load():
            return [r.index for r, _ in node.indices]
        case Check():
            return [node.index.index]
        case Apply():
            return [a.index for a in node.args if isinstance(a, Ref)]
        case Reduce():
            return [node.arg.index]
        case Part():
            return [node.reduce.index]
    return []


def traffic_bytes(nest: LoopNest, params: Sequence[int]) -> int:
    """Bytes that loads and stores touch, each element of an operand once; what indices pick is counted by the number of picks."""
    sizes = sizes_of(nest, params)
    most: dict[tuple[int, bool], int] = {}
    for node in nest.program:
        if isinstance(node, (Load, Store)):
            moves = bool(node.indices)
            elements = math.prod(n for n, position in zip(sizes, node.access) if position or moves)
            key = (node.slot, isinstance(node, Store))
            most[key] = max(most.get(key, 0), elements * BY_NAME[node.dtype].itemsize)
    return sum(most.values())


__all__ = ["nest_text", "operations", "sizes_of", "traffic_bytes"]
