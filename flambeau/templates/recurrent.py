"""Whole sequences through a recurrent cell, forward and backward: one kernel that runs over all steps, for a block of rows.

    lowered = forward("lstm", target, threads, ins, outs, hidden, reverse=False, keep=True)
    lowered = backward("lstm", target, threads, ins, outs, hidden, reverse=False)

Rows of a batch do not depend on each other, so a unit is a block of rows and goes through all steps by itself: no thread waits for another.
The recurrent weights are packed once, into panels of the vectors that one register tile multiplies: forward, a panel holds for some hidden
elements all of their gates, so that the cell follows while the sums are at hand; backward, a panel is a few vectors of columns.

    forward   z = x_projected[t] + h @ w.T; the cell makes h and c; `keep`: c and the gates are stored for the backward pass
    backward  the cell's derivative gives the gates' gradients d[t]; dh = d[t] @ w

A sum runs over depth in order. May not know: how gradients of weights are made (products over all steps, by the caller).
Entry: `forward`, `backward`, `recomputed`; what a cell computes: `CELLS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flambeau.base.record import replace
from flambeau.core.spec import Spec
from flambeau.kernel import vmath
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import i64, ptr
from flambeau.templates.gemm_problem import SERIAL_WORK
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_program import MEMORY
from flambeau.templates.rows import load_lanes

ABI = [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)]
MOST_ROWS = 48  # of a unit: enough register tiles to a panel that comes from the last cache, and units to share out
DEPTH_UNROLL = 4


class Operand(NamedTuple):
    """How an operand is laid out in a kernel: which of its dims are there, and whether its last one is dense."""

    name: str
    dims: str  # of "tnj": step, row, element


# ------------------------------------------------------------------ cells
class Lstm:
    """Gates i, f, g, o; kept: c of every step, and the gates after their functions."""

    gates = 4
    forward_ins = (Operand("x", "tnj"), Operand("w", ""), Operand("h0", "nj"), Operand("c0", "nj"))
    forward_outs = (
        Operand("hs", "tnj"), Operand("h_n", "nj"), Operand("c_n", "nj"), Operand("cs", "tnj"), Operand("acts", "tnj"),
    )  # fmt: skip
    backward_ins = (
        Operand("g_hs", "tnj"), Operand("g_h", "nj"), Operand("g_c", "nj"), Operand("x", ""), Operand("w", ""), Operand("h0", ""),
        Operand("c0", "nj"), Operand("cs", "tnj"), Operand("acts", "tnj"),
    )  # fmt: skip
    backward_outs = (Operand("d", "tnj"), Operand("dh", "nj"), Operand("dc", "nj"))
    states = (("h_n", "h0"), ("c_n", "c0"))  # running state forward, and what it starts from
    running = (("dh", "g_h"), ("dc", "g_c"))  # and backward
    recurrent = "d"  # the gradients that go through the recurrent weights
    adds = False  # whether dh has a part beside them

    @staticmethod
    def step(s: Step) -> None:
        i, f, o = (vmath.sigmoid(s.k, s.sum(n) + s.load("x", n)) for n in (0, 1, 3))
        g = vmath.tanh(s.k, s.sum(2) + s.load("x", 2))
        c = f * s.load("c_n") + i * g
        s.store("c_n", c)
        s.store("hs", o * vmath.tanh(s.k, c))
        if s.keep:
            s.store("cs", c)
            for n, gate in enumerate((i, f, g, o)):
                s.store("acts", gate, n)

    @staticmethod
    def step_back(s: Step) -> None:
        i, f, g, o = (s.load("acts", n) for n in range(4))
        dh = s.load("dh") + s.load("g_hs")
        t = vmath.tanh(s.k, s.load("cs"))
        dc = s.load("dc") + dh * o * (1.0 - t * t)
        before = s.load("c0") if s.is_first else s.load("cs", back=True)
        s.store("d", dc * g * (i * (1.0 - i)), 0)
        s.store("d", dc * before * (f * (1.0 - f)), 1)
        s.store("d", dc * i * (1.0 - g * g), 2)
        s.store("d", dh * t * (o * (1.0 - o)), 3)
        s.store("dc", dc * f)


class Gru:
    """Gates r, z, n; kept: they, and what the recurrent weights give for n."""

    gates = 3
    forward_ins = (Operand("x", "tnj"), Operand("w", ""), Operand("bias", "j"), Operand("h0", "nj"))
    forward_outs = (Operand("hs", "tnj"), Operand("h_n", "nj"), Operand("acts", "tnj"))
    backward_ins = (
        Operand("g_hs", "tnj"), Operand("g_h", "nj"), Operand("x", ""), Operand("w", ""), Operand("bias", ""), Operand("h0", "nj"),
        Operand("hs", "tnj"), Operand("acts", "tnj"),
    )  # fmt: skip
    backward_outs = (Operand("dx", "tnj"), Operand("d", "tnj"), Operand("dh", "nj"))
    states = (("h_n", "h0"),)
    running = (("dh", "g_h"),)
    recurrent = "d"
    adds = True

    @staticmethod
    def step(s: Step) -> None:
        r, z = (vmath.sigmoid(s.k, s.load("x", n) + (s.sum(n) + s.load("bias", n))) for n in (0, 1))
        inner = s.sum(2) + s.load("bias", 2)
        n = vmath.tanh(s.k, s.load("x", 2) + r * inner)
        s.store("hs", n + z * (s.before() - n))
        if s.keep:
            for place, value in enumerate((r, z, n, inner)):
                s.store("acts", value, place)

    @staticmethod
    def step_back(s: Step) -> None:
        r, z, n, inner = (s.load("acts", place) for place in range(4))
        dh = s.load("dh") + s.load("g_hs")
        before = s.load("h0") if s.is_first else s.load("hs", back=True)
        dn = dh * (1.0 - z) * (1.0 - n * n)
        dr = dn * inner * (r * (1.0 - r))
        dz = dh * (before - n) * (z * (1.0 - z))
        for place, (from_input, from_state) in enumerate(((dr, dr), (dz, dz), (dn, dn * r))):
            s.store("dx", from_input, place)
            s.store("d", from_state, place)
        s.store("dh", dh * z)


CELLS: dict[str, type] = {"lstm": Lstm, "gru": Gru}


# ------------------------------------------------------------------ lowering
def heights(target: Target, vectors: int) -> int:
    """Rows of a register tile of so many vectors."""
    registers = 32 if target.vector_bytes == 64 or target.arch == "aarch64" else 16
    return max(1, (registers - vectors - 1) // vectors)


def _words(operand: Operand, spec: Spec) -> tuple[int, ...]:
    """Strides of an operand in a parameter block: step, row, element."""
    strides = dict(zip(operand.dims, spec.strides)) if operand.dims else {}
    return tuple(strides.get(dim, 0) for dim in "tnj")


def _lowered(
    name: str,
    build: Callable,
    cell: type,
    target: Target,
    threads: int,
    operands: Sequence[Operand],
    specs: Sequence[Spec],
    weight: int,
    sizes: tuple[int, int, int],
    reverse: bool,
    pack: tuple[int, int, int, int, int, int],
    extra: tuple,
) -> Lowered:
    """Pack the weights (`pack`: panels, depth, strides of panel, vector, lane and depth), then run over the steps."""
    steps, rows, hidden = sizes
    if not rows * hidden:
        return Lowered(())
    dtype = specs[weight].dtype
    lanes = target.lanes(MEMORY[dtype.name])
    panels, depth, *strides = pack
    scratch = panels * depth * cell.gates * lanes * dtype.itemsize
    count = len(operands)
    packed = Launch(
        Recipe("recurrent_pack", (dtype.name, cell.gates, lanes), build_pack),
        (weight, count),
        (panels, max(1, (1 << 14) // max(1, depth * cell.gates)), depth, hidden, *strides),
    )
    work = steps * rows * hidden * hidden * cell.gates
    block = min(MOST_ROWS, rows if work < SERIAL_WORK else -(-rows // max(1, threads)))
    dense = tuple(not o.dims or not o.dims.endswith("j") or s.strides[-1] == 1 for o, s in zip(operands, specs))
    first, step = (steps - 1, -1) if reverse else (0, 1)
    words = [word for o, s in zip(operands, specs) for word in _words(o, s)]
    run = Launch(
        Recipe(name, (cell.__name__.lower(), dtype.name, lanes, heights(target, cell.gates), dense, *extra), build),
        (*range(count), count),
        (-(-rows // block), 1, steps, rows, hidden, block, panels, depth, first, step, *words),
        2 * work,
    )
    return Lowered((packed, run) if steps else (run,), (max(64, scratch),))


FIELDS = ("steps", "rows", "hidden", "block", "panels", "depth", "first", "step")
WORDS = 2 + len(FIELDS)


def forward(
    cell: str,
    target: Target,
    threads: int,
    ins: Sequence[Spec],
    outs: Sequence[Spec],
    hidden: int,
    reverse: bool,
    keep: bool,
) -> Lowered:
    """`ins` and `outs` as the cell's `forward_ins` and `forward_outs` say; a bias that is not there is None."""
    kind = CELLS[cell]
    pairs = [(o, s) for o, s in zip((*kind.forward_ins, *kind.forward_outs), (*ins, *outs)) if s is not None]
    operands, specs = [o for o, _ in pairs], [s for _, s in pairs]
    weight = [o.name for o in operands].index("w")
    lanes = target.lanes(MEMORY[specs[0].dtype.name])
    down, along = specs[weight].strides
    steps, rows = specs[0].shape[:2]
    panels = -(-hidden // lanes)
    return _lowered(
        "recurrent_forward",
        build_forward,
        kind,
        target,
        threads,
        operands,
        specs,
        weight,
        (steps, rows, hidden),
        reverse,
        (panels, hidden, lanes, 0, lanes * down, hidden * down, down, along),
        (keep, tuple(o.name for o in operands)),
    )


def backward(
    cell: str, target: Target, threads: int, ins: Sequence[Spec], outs: Sequence[Spec], hidden: int, reverse: bool
) -> Lowered:
    """`ins` and `outs` as the cell's `backward_ins` and `backward_outs` say; a bias that is not there is None."""
    kind = CELLS[cell]
    pairs = [(o, s) for o, s in zip((*kind.backward_ins, *kind.backward_outs), (*ins, *outs)) if s is not None]
    operands, specs = [o for o, _ in pairs], [s for _, s in pairs]
    weight = [o.name for o in operands].index("w")
    lanes = target.lanes(MEMORY[specs[0].dtype.name])
    down, along = specs[weight].strides
    steps, rows = specs[0].shape[:2]
    width = lanes * kind.gates
    return _lowered(
        "recurrent_backward",
        build_backward,
        kind,
        target,
        threads,
        operands,
        specs,
        weight,
        (steps, rows, hidden),
        reverse,
        (-(-hidden // width), hidden * kind.gates, width, lanes, width * along, lanes * along, along, down),
        (tuple(o.name for o in operands),),
    )


def recomputed(
    cell: str,
    target: Target,
    threads: int,
    gradients: Sequence[Spec],
    ins: Sequence[Spec],
    middle: Sequence[Spec],
    outs: Sequence[Spec],
    hidden: int,
    reverse: bool,
) -> Lowered:
    """`backward` for a sequence that kept nothing: it runs once more, into scratch. `ins` are the sequence's, `middle` what it gives with `keep`."""
    kind = CELLS[cell]
    there = [s for s in ins if s is not None]
    kept = [o.name for o in kind.backward_ins[len(gradients) + len(ins) :]]
    names = [o.name for o in kind.forward_outs]
    again = forward(cell, target, threads, ins, middle, hidden, reverse, True)
    saved = [middle[names.index(name)] for name in kept]
    last = backward(cell, target, threads, (*gradients, *ins, *saved), outs, hidden, reverse)
    before, after = len(gradients) + len(there), len(gradients) + len(there) + len(outs)
    first_numbers = [*range(len(gradients), before), *range(after, after + len(middle) + 1)]
    last_numbers = [
        *range(before), *(after + names.index(name) for name in kept), *range(before, after), after + len(middle) + 1
    ]  # fmt: skip
    launches = [
        replace(launch, buffers=tuple([numbers[b] for b in launch.buffers]))
        for lowered, numbers in ((again, first_numbers), (last, last_numbers))
        for launch in lowered.launches
    ]
    scratch = [max(64, s.nbytes) for s in middle]
    return Lowered(tuple(launches), (*scratch, *(again.scratch_bytes or (64,)), *(last.scratch_bytes or (64,))))


# ------------------------------------------------------------------ kernels
def _module(target: Target) -> Module:
    wide = target.vector_bytes == 64
    return Module(max(256, target.vector_bytes * 8), native_scalef=wide, native_tables=wide)


def build_pack(target: Target, dtype: str, vectors: int, lanes: int) -> Module:
    """packed[panel, depth, vector, lane]; a unit is a panel. Elements past the last are zeros."""
    module = _module(target)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    weight, packed, block = (k.load(slots, ptr, i) for i in range(3))
    depth, width, by_panel, by_vector, panel_step, vector_step, lane_step, depth_step = (
        k.load(block, i64, 2 + i) for i in range(8)
    )
    memory = MEMORY[dtype]

    def copy(step: Value | None) -> None:
        with k.range(begin, end) as panel:
            into = k.var(ptr, k.offset(packed, panel * depth * (vectors * lanes), memory))
            masks = [k.tail_mask(k.maximum(width - panel * by_panel - v * by_vector, 0), lanes) for v in range(vectors)]
            with k.range(0, depth) as d:
                for v in range(vectors):
                    place = panel * panel_step + v * vector_step + d * depth_step
                    k.store(into.get(), load_lanes(k, weight, dtype, place, step, lanes, masks[v]), v * lanes)
                into.set(k.offset(into.get(), vectors * lanes, memory))

    k.when_else(lane_step.eq(1), lambda: copy(None), lambda: copy(lane_step))
    k.ret()
    return module


class Kernel:
    """What both kernels are made of: operands, register tiles, rows of a unit."""

    def __init__(
        self,
        target: Target,
        dtype: str,
        lanes: int,
        height: int,
        dense: Sequence[bool],
        names: Sequence[str],
        vectors: int,
    ):
        self.dtype, self.lanes, self.height, self.vectors, self.names = dtype, lanes, height, vectors, names
        self.memory = MEMORY[dtype]
        self.vector = self.memory.vec(lanes)
        self.fused = target.arch == "aarch64" or target.has("fma")
        self.module = _module(target)
        self.micro = {rows: self._micro(rows) for rows in range(1, height + 1)}
        self.k = k = self.module.function("kernel", ABI)
        self.slots = k.args[0]
        self.pointers = {name: k.load(self.slots, ptr, i) for i, name in enumerate(names)}
        self.packed, block = (k.load(self.slots, ptr, len(names) + i) for i in range(2))
        self.field = {name: k.load(block, i64, 2 + i) for i, name in enumerate(FIELDS)}
        self.strides = {
            name: tuple(k.load(block, i64, WORDS + 3 * i + j) for j in range(3)) for i, name in enumerate(names)
        }
        self.lane_steps = {name: None if d else self.strides[name][2] for name, d in zip(names, dense)}
        self.tile = k.stack(height * vectors * lanes * self.memory.size)

    def _micro(self, rows: int) -> Function:
        """tile[row, vector] = a[row, :] @ panel, over all of depth."""
        parameters = [("a", ptr), ("stride", i64), ("panel", ptr), ("depth", i64), ("tile", ptr)]
        k = self.module.function(f"tile_{rows}", parameters, internal=True)
        a, stride, panel, depth, tile = k.args
        cells = [(i, v) for i in range(rows) for v in range(self.vectors)]
        sums = {cell: k.var(self.vector, 0) for cell in cells}
        lines = [k.offset(a, stride * i, self.memory) for i in range(rows)]
        width = self.vectors * self.lanes

        def step(d: Value) -> None:
            ws = [
                k.load(panel, self.vector, d * width + v * self.lanes, align=self.memory.size)
                for v in range(self.vectors)
            ]
            for i in range(rows):
                x = k.splat(k.load(lines[i], self.memory, d), self.lanes)
                for v in range(self.vectors):
                    total = sums[i, v].get()
                    sums[i, v].set(k.fma(x, ws[v], total) if self.fused else total + x * ws[v])

        whole = depth // DEPTH_UNROLL * DEPTH_UNROLL
        with k.range(0, whole, DEPTH_UNROLL) as d:
            for u in range(DEPTH_UNROLL):
                step(d if u == 0 else d + u)
        with k.range(whole, depth) as d:
            step(d)
        for place, cell in enumerate(cells):
            k.store(tile, sums[cell].get(), place * self.lanes)
        k.ret()
        return k

    def multiply(self, a: Value, stride: Value, panel: Value, rows: Value) -> None:
        """The register tile of `rows` rows, whose number is known only when the kernel runs."""
        k = self.k
        for count, function in self.micro.items():
            with k.when(rows.eq(count)):
                k.call(function, a, stride, panel, self.field["depth"], self.tile)

    def row(self, name: str, row: Value, time: Value | None = None, pointer: Value | None = None) -> Value:
        """Where an operand's row starts (at a step)."""
        by_step, by_row, _ = self.strides[name]
        where = row * by_row
        return self.k.offset(
            pointer or self.pointers[name], where if time is None else where + time * by_step, self.memory
        )

    def lanes_of(self, begin: Value, body: Callable[[Value, Value], None]) -> None:
        """`body(element, mask)` for all hidden elements of a row."""
        with self.k.range(begin, self.field["hidden"], self.lanes) as j:
            body(j, self.k.tail_mask(self.field["hidden"] - j, self.lanes))


class Step:
    """What a cell's rule sees: vectors of operands for some hidden elements of one row at one step."""

    def __init__(self, kernel: Kernel, rows: dict[str, Value], j: Value, mask: Value):
        self.kernel, self.k, self.rows, self.j, self.mask = kernel, kernel.k, rows, j, mask
        self.keep = self.is_first = False
        self.tile_at: Value | None = None
        self.state: Value | None = None

    def _place(self, name: str, gate: int) -> Value:
        at = self.j if not gate else self.j + self.kernel.field["hidden"] * gate
        step = self.kernel.lane_steps[name]
        return at if step is None else at * step

    def load(self, name: str, gate: int = 0, back: bool = False) -> Value:
        """An operand, `back`: of the step before; zeros where it does not exist."""
        if name not in self.kernel.pointers:
            return self.k.const(self.kernel.vector, 0)
        pointer = self.rows[name + "_before" if back else name]
        step = self.kernel.lane_steps[name]
        return load_lanes(
            self.k, pointer, self.kernel.dtype, self._place(name, gate), step, self.kernel.lanes, self.mask
        )

    def store(self, name: str, value: Value, gate: int = 0) -> None:
        self.k.store(self.rows[name], value, self._place(name, gate), mask=self.mask)

    def sum(self, gate: int) -> Value:
        """What the recurrent weights gave for a gate."""
        return self.k.load(self.tile_at, self.kernel.vector, gate * self.kernel.lanes)

    def before(self) -> Value:
        """h of the step before."""
        return self.k.load(self.state, self.kernel.vector, self.j, mask=self.mask)


def _copy_rows(kernel: Kernel, begin: Value, end: Value, into: str, source: str) -> None:
    k = kernel.k
    with k.range(begin, end) as row:
        rows = {into: kernel.row(into, row), source: kernel.row(source, row)}

        def body(j: Value, mask: Value) -> None:
            s = Step(kernel, rows, j, mask)
            s.store(into, s.load(source))

        kernel.lanes_of(k.const(i64, 0), body)


def build_forward(
    target: Target, cell: str, dtype: str, lanes: int, height: int, dense: tuple, keep: bool, names: tuple
) -> Module:
    """A unit is a block of rows; results lie densely. h_n holds the first state until it becomes the last."""
    kind = CELLS[cell]
    kernel = Kernel(target, dtype, lanes, height, dense, names, kind.gates)
    k, f = kernel.k, kernel.field
    _, begin, end, _ = k.args
    at_step = [name for name in names if name in ("x", "hs", "cs", "acts")]
    with k.range(begin, end) as unit:
        first_row = unit * f["block"]
        last_row = k.minimum(f["rows"], first_row + f["block"])
        for into, source in kind.states:
            _copy_rows(kernel, first_row, last_row, into, source)
        with k.range(0, f["steps"]) as s:
            time = f["first"] + s * f["step"]
            earlier = k.offset(kernel.pointers["hs"], (time - f["step"]) * kernel.strides["hs"][0], kernel.memory)
            state = k.select(s.eq(0), kernel.pointers["h_n"], earlier)  # both [rows, hidden], dense
            with k.range(0, f["panels"]) as panel:
                j = panel * lanes
                mask = k.tail_mask(f["hidden"] - j, lanes)
                weights = k.offset(kernel.packed, panel * f["depth"] * (kind.gates * lanes), kernel.memory)
                with k.range(first_row, last_row, height) as row:
                    count = k.minimum(last_row - row, height)
                    kernel.multiply(k.offset(state, row * f["hidden"], kernel.memory), f["hidden"], weights, count)
                    with k.range(0, count) as i:
                        here = row + i
                        rows = {n: kernel.row(n, here, time if n in at_step else None) for n in names if n != "w"}
                        step = Step(kernel, rows, j, mask)
                        step.keep = keep
                        step.tile_at = k.offset(kernel.tile, i * (kind.gates * lanes), kernel.memory)
                        step.state = k.offset(state, here * f["hidden"], kernel.memory)
                        kind.step(step)
        with k.when(f["steps"] > 0):
            last = f["first"] + (f["steps"] - 1) * f["step"]
            with k.range(first_row, last_row) as row:
                rows = {"h_n": kernel.row("h_n", row), "hs": kernel.row("hs", row, last)}

                def body(j: Value, mask: Value) -> None:
                    step = Step(kernel, rows, j, mask)
                    step.store("h_n", step.load("hs"))

                kernel.lanes_of(k.const(i64, 0), body)
    k.ret()
    return kernel.module


def build_backward(
    target: Target, cell: str, dtype: str, lanes: int, height: int, dense: tuple, names: tuple
) -> Module:
    """A unit is a block of rows; from the last step to the first."""
    kind = CELLS[cell]
    kernel = Kernel(target, dtype, lanes, height, dense, names, kind.gates)
    k, f = kernel.k, kernel.field
    _, begin, end, _ = k.args
    at_step = [name for name in names if name in ("g_hs", "hs", "cs", "acts", "d", "dx")]
    with k.range(begin, end) as unit:
        first_row = unit * f["block"]
        last_row = k.minimum(f["rows"], first_row + f["block"])
        for into, source in kind.running:
            _copy_rows(kernel, first_row, last_row, into, source)
        with k.range(0, f["steps"]) as back:
            s = f["steps"] - 1 - back
            time = f["first"] + s * f["step"]

            def derive(is_first: bool, time: Value = time) -> None:
                with k.range(first_row, last_row) as row:
                    rows = {n: kernel.row(n, row, time if n in at_step else None) for n in names if n != "w"}
                    for n in ("cs", "hs"):
                        if n in names and not is_first:
                            rows[n + "_before"] = kernel.row(n, row, time - f["step"])

                    def body(j: Value, mask: Value) -> None:
                        step = Step(kernel, rows, j, mask)
                        step.is_first = is_first
                        kind.step_back(step)

                    kernel.lanes_of(k.const(i64, 0), body)

            k.when_else(s.eq(0), lambda: derive(True), lambda: derive(False))
            width = kind.gates * lanes
            with k.range(0, f["panels"]) as panel:
                weights = k.offset(kernel.packed, panel * f["depth"] * width, kernel.memory)
                with k.range(first_row, last_row, height) as row:
                    count = k.minimum(last_row - row, height)
                    gradients = kernel.row(kind.recurrent, row, time)
                    kernel.multiply(gradients, kernel.strides[kind.recurrent][1], weights, count)
                    with k.range(0, count) as i:
                        into = kernel.row("dh", row + i)
                        for v in range(kind.gates):
                            j = panel * width + v * lanes
                            mask = k.tail_mask(k.maximum(f["hidden"] - j, 0), lanes)
                            total = k.load(kernel.tile, kernel.vector, i * width + v * lanes)
                            if kind.adds:
                                total = total + k.load(into, kernel.vector, j, mask=mask)
                            k.store(into, total, j, mask=mask)
    k.ret()
    return kernel.module
