"""Programs of positions as instructions inside a template's kernel.

    inner = InnerProgram((B, H, L, S), first_slot=7)
    score = inner.add(program, ("score", "b", "h", "q", "kv"), [(0, spec)])      # captured operand 0, laid out as spec
    instructions, operands, words = inner.finish(first_position=30)

Inputs that are no positions ("b", "h", "q", "kv": the domain's coordinates) are given by the kernel under their names. Indices that follow the
domain (a position, a difference of two) become strides. May not know: templates. Entry: `InnerProgram`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flambeau.core.dtype import bool_, int64
from flambeau.core.layout import contiguous_strides
from flambeau.core.spec import Spec
from flambeau.ir.graph import Node, Value
from flambeau.ir.indexmap import IndexMap, compose
from flambeau.ir.kinds import Moved
from flambeau.ir.positional import Program
from flambeau.kernel.types import i64
from flambeau.runtime.errors import INDEX
from flambeau.schedule.emission import GroupEmitter
from flambeau.schedule.fusion import Scheduler
from flambeau.schedule.groups import Group
from flambeau.schedule.program import Access, NestBuilder
from flambeau.schedule.steps import ERROR, Buffer
from flambeau.templates.loop_program import Ref

POSITIONS = ("b", "h", "q", "kv")
SCALAR = IndexMap((), ())
NARROW = 1 << 30


class InnerProgram:
    """Instructions for one kernel, of as many programs as are added."""

    def __init__(self, domain: Sequence[int], first_slot: int):
        self.domain, self.first_slot = tuple(domain), first_slot
        self.builder = NestBuilder(domain)
        self.builder.operands = [None] * first_slot
        self.buffers: dict[int, Buffer] = {}

    def add(self, program: Program, names: Sequence[str], operands: Sequence[tuple[int, Spec]]) -> Ref:
        """The program's result; its inputs are named, then captured operands by number, with their layouts."""
        return self._emitter(program, names, operands).value(program.result, SCALAR)

    def place(
        self, indices: Sequence[tuple[Program, int, int]], names: Sequence[str], operands: Sequence[tuple[int, Spec]]
    ) -> tuple[Ref, list[tuple[Ref, int]], str]:
        """(the part of a place that follows the domain, (index, stride) of what moves it, how it goes along the last dim).

        `indices`: programs, each with the size of its dim, which it stays inside of or that has been reported, and its stride. The last
        answer is "row": not at all, "unit": by one, "spread": never twice to the same place, "any".
        """
        linear, moved = Linear((0,) * len(self.domain), 0), []
        for program, size, stride in indices:
            emitter = self._emitter(program, names, operands)
            ref = emitter.value(program.result, SCALAR)
            found = emitter.linear.get(ref)
            if found is not None and found.stays_inside(self.domain, size):
                linear = linear + found * stride
            else:
                moved.append((self.builder.check(ref, size, 0, "index", ERROR, True, INDEX.number), stride))
        step = linear.steps[-1]
        along = "any" if moved else "row" if not step else "unit" if step == 1 else "spread"
        return self.builder.iota(Access(linear.steps, linear.offset)), moved, along

    def _emitter(self, program: Program, names: Sequence[str], operands: Sequence[tuple[int, Spec]]) -> InnerEmitter:
        scheduler = Scheduler(program.graph, None, 1)
        scheduler.roots = set()
        inputs = program.graph.inputs
        for v, (number, spec) in zip(inputs[len(names) :], operands, strict=True):
            scheduler.buffers[v] = self.buffers.setdefault(number, Buffer(spec, "input", number))
        return InnerEmitter(scheduler, self.domain, self.builder, dict(zip(inputs, names)))

    def finish(self, first_position: int) -> tuple[tuple, tuple[int, ...], tuple[int, ...]]:
        """(instructions, operand numbers by slot, words of the parameter block from `first_position` on)."""
        words = [0] * first_position
        groups = [[d] for d in range(len(self.domain))]
        program = self.builder.positioned(groups, len(groups) - 1, words)
        operands = tuple(-1 if x is ERROR else x.index for x in self.builder.operands[self.first_slot :])
        return tuple(program), operands, tuple(words[first_position:])


class InnerEmitter(GroupEmitter):
    """Values of a program in a builder that others use too."""

    def __init__(self, scheduler: Scheduler, domain: tuple[int, ...], builder: NestBuilder, given: Mapping[Value, str]):
        super().__init__(scheduler, Group(domain, None))
        self.b, self.given = builder, given
        self.linear: dict[Ref, Linear] = {}  # integers that follow the domain
        self.followed: list[tuple[Linear, int]] = []  # (index, stride) of the read at hand

    def _value(self, v: Value, m: IndexMap) -> Ref:
        name = self.given.get(v)
        if name is None:
            return super()._value(v, m)
        if name not in POSITIONS:
            return self.b.given(name, v.spec.dtype.name)
        steps = [int(d == POSITIONS.index(name)) for d in range(len(self.group.domain))]
        ref = self.b.iota(Access(steps))
        self.linear[ref] = Linear(steps, 0)
        return ref

    def _apply(self, v: Value, m: IndexMap) -> Ref:
        """What follows the domain is counted in int32 where it fits, whatever the program computes it in."""
        operands = self._linear_operands(v, m) if v.spec.dtype.is_integral or v.spec.dtype is bool_ else None
        if operands is None:
            return self._compared(v, m) or super()._apply(v, m)
        found = self._by_rule(v, m, operands)
        if found is None or (isinstance(found, Difference) and not found.fits(self.group.domain)):
            return super()._apply(v, m)
        ref = self._counted(found)
        if isinstance(found, Difference):
            zero = self.b.constant(0, "int32")
            return self.b.apply(v.node.op.name, (ref, zero), ("int32", "int32"), v.spec.dtype.name)
        self.linear[ref] = found
        return ref

    def _compared(self, v: Value, m: IndexMap) -> Ref | None:
        """What follows the domain beside one captured number, in int32: the number is brought into its range first."""
        node = v.node
        sides = list(node.inputs)
        if v.spec.dtype is not bool_ or len(sides) != 2 or len(node.args) != 2:
            return None
        refs = [self.value(a, am) for a, am in self.s.operand_maps(v, m)]
        known = [self.linear.get(ref) for ref in refs]
        number = next((i for i, x in enumerate(known) if x is None), 0)
        linear, other = known[1 - number], sides[number]
        if linear is None or other.node is not None or other in self.given or other.spec.dtype is not int64:
            return None
        try:
            relation = node.op.rules.lower(None, linear, linear)
        except (AttributeError, TypeError, NotImplementedError):
            return None
        if not isinstance(relation, Difference) or not linear.fits(self.group.domain):
            return None
        near = refs[number]
        for bound, limit in (("maximum", -NARROW), ("minimum", NARROW)):
            near = self.b.apply(bound, (near, self.b.constant(limit, "int64")), ("int64", "int64"), "int64")
        pair = (near, self._counted(linear)) if number == 0 else (self._counted(linear), near)
        return self.b.apply(node.op.name, pair, ("int32", "int32"), v.spec.dtype.name)

    def _counted(self, linear: Linear) -> Ref:
        fits = linear.fits(self.group.domain)
        return self.b.iota(Access(linear.steps, linear.offset), "int32" if fits else "int64")

    def _linear_operands(self, v: Value, m: IndexMap) -> list | None:
        """The arguments of a node with what follows the domain in place of values; None if some value does not."""
        node = v.node
        maps = {id(a): am for a, am in self.s.operand_maps(v, m)}
        args: list = []
        for p, a in zip(node.op.params, node.args):
            if isinstance(a, Value):
                known = self.linear.get(self.value(a, maps[id(a)])) if isinstance(a.spec, Spec) else None
                if known is None:
                    return None
                args.append(known)
            else:
                args.append(None if p.name in node.op.rules.unread else a)
        return args

    def _by_rule(self, v: Value, m: IndexMap, args: list) -> Linear | Difference | None:
        """What the op's own rule gives for such operands; None where it does anything but add, scale and compare."""
        rules = v.node.op.rules
        if rules.positional:
            place = self._access(contiguous_strides(v.spec.shape), m)
            args = [*args, Linear(place.strides, place.offset)]
        elif not any(isinstance(a, Linear) for a in args):
            return None
        try:
            found = rules.lower(None, *args)
        except (AttributeError, TypeError, NotImplementedError):
            return None
        return found if isinstance(found, Linear) else None

    def _moves(self, node: Node, indices: Sequence[Moved], spec: Spec, m: IndexMap) -> list[tuple[Ref, int]]:
        """Moves whose index follows the domain, and stays inside the dim, are steps of the access instead."""
        left = []
        for moved in indices:
            linear = self.linear.get(self.value(node.inputs[moved.operand], compose(moved.map, m)))
            if linear is not None and linear.stays_inside(self.group.domain, spec.shape[moved.dim]):
                self.followed.append((linear, spec.strides[moved.dim]))
            else:
                left.append(moved)
        return super()._moves(node, left, spec, m)

    def _indexed(self, v: Value, m: IndexMap) -> Ref:
        before, self.followed = self.followed, []
        node = v.node
        read = self.s.read_of(node)
        buffer, spec, offset = self.s.resolve(node.inputs[0])
        moves = self._moves(node, read.indices, spec, m)
        access = self._access(spec.strides, compose(read.map, m), offset)
        for linear, stride in self.followed:
            access = Access(
                [a + stride * s for a, s in zip(access.strides, linear.steps)], access.offset + stride * linear.offset
            )
        self.followed = before
        return self.b.load(buffer, spec.dtype.name, access, moves)


class Linear:
    """offset + sum of coordinate * step: stands for a kernel's integer in an op's rule."""

    type = i64

    def __init__(self, steps: Sequence[int], offset: int):
        self.steps, self.offset = tuple(steps), offset

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, Linear):
            return Linear([a + b for a, b in zip(self.steps, other.steps)], self.offset + other.offset)
        return Linear(self.steps, self.offset + int(other)) if isinstance(other, int) else NotImplemented

    __radd__ = __add__

    def __mul__(self, other: int) -> Linear:
        return (
            Linear([s * other for s in self.steps], self.offset * other) if isinstance(other, int) else NotImplemented
        )

    __rmul__ = __mul__

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Linear | int) -> Linear:
        return self + -other

    def __rsub__(self, other: int) -> Linear:
        return -self + other

    def _minus(self, other: Linear | int) -> Difference:
        if not isinstance(other, (Linear, int)):
            return NotImplemented
        found = self - other
        return Difference(found.steps, found.offset)

    __lt__ = __le__ = __gt__ = __ge__ = eq = ne = _minus

    def to(self, type_: object) -> Linear:
        return self

    def bounds(self, domain: Sequence[int]) -> tuple[int, int]:
        """The least and the greatest it is over the domain."""
        reach = [s * (n - 1) for s, n in zip(self.steps, domain)]
        return self.offset + sum(min(0, r) for r in reach), self.offset + sum(max(0, r) for r in reach)

    def stays_inside(self, domain: Sequence[int], size: int) -> bool:
        """Whether it is in [0, size) all over the domain."""
        low, high = self.bounds(domain)
        return low >= 0 and high < size

    def fits(self, domain: Sequence[int]) -> bool:
        """Whether int32 holds it, with a vector's lanes beyond the domain."""
        low, high = self.bounds(domain)
        return low > -NARROW and high < NARROW


class Difference(Linear):
    """What a comparison of two Linears compares with 0."""
