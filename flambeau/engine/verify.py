"""FLAMBEAU_CHECK=1: a schedule is looked through before it runs.

    verify_schedule(result)        # InternalError naming the step

Of loop nests it is known what they touch: every load and store must stay inside its buffer at the sizes of the parameter block, places
that indices name included, and what a step reads must be an input or written by a step before. Of templates and library calls only
that their operands belong to the schedule; the epilogue of a template is a loop nest like any other. May not know: memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.base.errors import InternalError
from flambeau.core.dtype import BY_NAME
from flambeau.core.spec import NumberSpec
from flambeau.engine.instruments import nests_of, operand_name, schedule_text
from flambeau.schedule.steps import ERROR, Buffer, Schedule, Scratch, Shifted, Step, Table
from flambeau.templates.loop_program import Check, Load, LoopNest, Store
from flambeau.templates.loop_text import sizes_of


def verify_schedule(result: Schedule) -> None:
    """Raises: InternalError with the schedule if a step reads or writes what it must not."""
    known = {*result.inputs, *result.temps, *result.scratches, ERROR}
    written: set[Buffer | Scratch] = {*result.inputs}
    for number, step in enumerate(result.steps):
        listed = (o for t in step.operands if isinstance(t, Table) for o in t.operands)
        for operand in (*step.operands, *step.outputs, *listed):
            buffer = operand.buffer if isinstance(operand, Shifted) else operand
            if buffer not in known:
                fail(result, number, step, f"operand {operand!r} is not in the schedule")
        nests = nests_of(step)
        for segment in step.segments:
            for nest, params, operands in nests_of(segment):
                verify_nest(result, number, segment, nest, params, operands, written)
        if not nests or step.finishing is not None:
            ours, given = ((), ()) if step.finishing is None else (step.finishing.operands, (step.finishing.result,))
            written.update(b for b in step.operands if isinstance(b, Buffer) and b not in ours)
            written.update(given)
            written.update(step.outputs)
        for nest, params, operands in nests:
            verify_nest(result, number, step, nest, params, operands, written)
    for buffer, spec, _ in result.outputs:
        if buffer not in written and spec.numel and not any(n == 0 for n in spec.shape):
            fail(result, len(result.steps) - 1, None, f"output {operand_name(buffer)} is never written")


def verify_nest(
    result: Schedule, number: int, step: Step, nest: LoopNest, params: Sequence[int], operands: Sequence, written: set
) -> None:
    """One loop nest; adds the buffers it writes to `written`."""
    sizes = sizes_of(nest, params)
    for node in nest.program:
        if not isinstance(node, (Load, Store)):
            continue
        operand = operands[node.slot]
        buffer, shift = (operand.buffer, operand.offset_bytes) if isinstance(operand, Shifted) else (operand, 0)
        if isinstance(buffer, Scratch):
            continue
        if isinstance(buffer.spec, NumberSpec):
            fail(result, number, step, f"{operand_name(buffer)} is a number and has no memory")
        if (
            isinstance(node, Load)
            and buffer not in written
            and not any(isinstance(n, Store) and n.slot == node.slot for n in nest.program)
        ):
            fail(result, number, step, f"{operand_name(buffer)} is read before anything writes it")
        if isinstance(node, Store):
            written.add(buffer)
        low, high = reach(node, sizes, params, nest)
        item = BY_NAME[node.dtype].itemsize
        if 0 not in sizes and (low < 0 or shift + (high + 1) * item > buffer.spec.nbytes):
            fail(
                result,
                number,
                step,
                f"elements {low} to {high} of {operand_name(operand)} are touched, which has {buffer.spec.nbytes} bytes",
            )


def reach(node: Load | Store, sizes: Sequence[int], params: Sequence[int], nest: LoopNest) -> tuple[int, int]:
    """The lowest and highest element that an access touches."""
    *steps, offset = node.access
    low = high = params[offset] if offset else 0
    for size, position in zip(sizes, steps):
        far = (size - 1) * (params[position] if position > 1 else position)
        low, high = low + min(0, far), high + max(0, far)
    for index, stride in node.indices:
        check = nest.program[index.index]
        far = (params[check.size] - 1) * params[stride] if isinstance(check, Check) else 0
        low, high = low + min(0, far), high + max(0, far)
    return low, high


def fail(result: Schedule, number: int, step: Step | None, what: str) -> None:
    name = f" ({step.name})" if step is not None else ""
    raise InternalError(
        f"schedule: step {number}{name} must stay inside what it may touch, but {what}.",
        schedule_text(result),
        "run the call alone with FLAMBEAU_CHECK=1 FLAMBEAU_DEBUG=5.",
    )


__all__ = ["verify_schedule"]
