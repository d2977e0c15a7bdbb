"""What scheduling gives: buffers and steps over them, ready for the engine to bind to memory.

May not know: addresses, threads, tensors.
"""

from __future__ import annotations

from typing import Any

from flambeau.base.record import record
from flambeau.core.spec import NumberSpec, Spec
from flambeau.templates.launch import Recipe
from flambeau.templates.loop_program import LoopNest


class Buffer:
    """A piece of memory of the plan: an input (memory given at run time), an output or a temporary."""

    __slots__ = ("spec", "role", "index")

    def __init__(self, spec: Spec | NumberSpec, role: str, index: int):
        self.spec, self.role, self.index = spec, role, index

    def at(self, offset_bytes: int) -> Any:
        return self if offset_bytes == 0 else Shifted(self, offset_bytes)

    def __repr__(self) -> str:
        return f"<{self.role} {self.index}: {self.spec}>"


class Scratch:
    """Memory that one step uses and nobody reads afterwards."""

    __slots__ = ("nbytes", "index", "is_partial")
    role = "scratch"

    def __init__(self, nbytes: int, index: int):
        self.nbytes, self.index, self.is_partial = nbytes, index, False


class Table(Scratch):
    """Memory for the addresses of `operands`, written before anything runs: what a launch over segments reads and writes through it."""

    __slots__ = ("operands",)

    def __init__(self, operands: tuple, index: int):
        super().__init__(8 * len(operands), index)
        self.operands = operands


@record
class Shifted:
    """A buffer from a byte offset on."""

    buffer: Buffer
    offset_bytes: int


class _Error:
    """The slot that takes the address of the error block."""

    role = "error"

    def __repr__(self) -> str:
        return "<error block>"


ERROR = _Error()


@record
class Finished:
    """How a template's result is finished by its launch: a loop nest with its parameter block and operands, over the memory of `result`."""

    nest: LoopNest
    params: tuple[int, ...]
    operands: tuple
    result: Buffer


class Step:
    """One kernel launch, or one call of a library. `flops` is what a template says its launch is worth (0: not known); `finishing` is its epilogue;
    `calls` are (position in the parameter block, kernel whose address belongs there); `segments` are the launches
    that this one stands for, if it is several."""

    __slots__ = (
        "args",
        "calls",
        "finishing",
        "flops",
        "name",
        "op",
        "operands",
        "outputs",
        "params",
        "recipe",
        "segments",
        "specs",
    )

    def __init__(
        self,
        recipe: Recipe | None,
        operands: tuple,
        params: tuple[int, ...],
        name: str,
        op: Any = None,
        specs: tuple = (),
        outputs: tuple = (),
        args: tuple = (),
        flops: int = 0,
        segments: tuple = (),
        finishing: Finished | None = None,
        calls: tuple[tuple[int, Recipe], ...] = (),
    ):
        self.recipe, self.operands, self.params, self.name, self.flops = recipe, operands, params, name, flops
        self.finishing, self.calls = finishing, calls
        self.op, self.specs, self.outputs, self.args = op, specs, outputs, args
        self.segments: tuple[Step, ...] = segments

    @classmethod
    def kernel(
        cls,
        recipe: Recipe,
        operands: tuple,
        params: tuple[int, ...],
        name: str,
        flops: int = 0,
        finishing: Finished | None = None,
        calls: tuple[tuple[int, Recipe], ...] = (),
    ) -> Step:
        return cls(recipe, operands, params, name, flops=flops, finishing=finishing, calls=calls)

    @classmethod
    def external(cls, op: Any, operands: tuple, specs: tuple, outputs: tuple, args: tuple) -> Step:
        return cls(None, operands, (), op.name, op, specs, outputs, args)


class Schedule:
    """Steps in order; outputs as (buffer, layout, offset in elements)."""

    def __init__(self) -> None:
        self.inputs: list[Buffer] = []
        self.temps: list[Buffer] = []
        self.scratches: list[Scratch] = []
        self.steps: list[Step] = []
        self.outputs: list[tuple[Buffer, Spec, int]] = []
        self.decisions: list[str] = []  # what was fused and what was not, if somebody looks

    def add_input(self, spec: Spec | NumberSpec) -> Buffer:
        self.inputs.append(Buffer(spec, "input", len(self.inputs)))
        return self.inputs[-1]

    def add_temp(self, spec: Spec) -> Buffer:
        self.temps.append(Buffer(spec.plain(), "temp", len(self.temps)))
        return self.temps[-1]

    def add_table(self, operands: tuple) -> Table:
        made = Table(operands, len(self.scratches))
        self.scratches.append(made)
        return made

    def add_scratch(self, nbytes: int) -> Scratch:
        self.scratches.append(Scratch(nbytes, len(self.scratches)))
        return self.scratches[-1]
