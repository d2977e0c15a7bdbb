"""The kernel language: Python that prints LLVM IR as text.

A Python loop unrolls, `k.range()` runs; a `Value` is an SSA value with operators; a `Variable` is a
register (an entry-block slot that SROA promotes). Text is printed directly: LLVM's own Python builder
costs 70 us a line.

    module = Module()
    k = module.function("axpy", [("x", ptr), ("y", ptr), ("n", i64)])
    x, y, n = k.args
    with k.range(0, n, 16) as i:
        k.store(y, k.load(x, f32.vec(16), i) * 2.0, i)
    k.ret()
    module.text()

May not know: tensors, graphs, how code is compiled or called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from flambeau.kernel.types import Type, f32, i1, i8, i32, i64, ptr, u16, u32, void

Number = float | int | bool


class Value:
    """An SSA value. Operators take Values of one type, a scalar beside a vector (splat), or Python numbers."""

    __slots__ = ("k", "type", "ref")

    def __init__(self, k: Function, type_: Type, ref: str):
        self.k, self.type, self.ref = k, type_, ref

    def __repr__(self) -> str:
        return f"{self.type.text} {self.ref}"

    # ------------------------------------------------------------------ arithmetic
    def _binary(self, other: Value | Number, integer: str, floating: str, swap: bool = False) -> Value:
        a, b = self.k.unify(self, other)
        if swap:
            a, b = b, a
        if a.type.kind == "b":
            raise TypeError(f"kernel: arithmetic needs numbers, got masks {a}, {b}. Use & | ^ or .to(type).")
        name = floating if a.type.kind == "f" else integer
        return self.k.emit(a.type, f"{name} {a.type.text} {a.ref}, {b.ref}")

    def __add__(self, other):
        return self._binary(other, "add", "fadd")

    def __radd__(self, other):
        return self._binary(other, "add", "fadd", swap=True)

    def __sub__(self, other):
        return self._binary(other, "sub", "fsub")

    def __rsub__(self, other):
        return self._binary(other, "sub", "fsub", swap=True)

    def __mul__(self, other):
        return self._binary(other, "mul", "fmul")

    def __rmul__(self, other):
        return self._binary(other, "mul", "fmul", swap=True)

    def __truediv__(self, other):
        """Division as the machine does it: integers truncate."""
        return self._binary(other, "udiv" if self.type.kind == "u" else "sdiv", "fdiv")

    def __rtruediv__(self, other):
        return self._binary(other, "udiv" if self.type.kind == "u" else "sdiv", "fdiv", swap=True)

    def __floordiv__(self, other):
        """Integer division of non-negative values (sizes, indices)."""
        return self._binary(other, "udiv", "fdiv")

    def __mod__(self, other):
        """Remainder of non-negative integers; fmod of floats."""
        return self._binary(other, "urem", "frem")

    def rem(self, other):
        """Remainder with the sign of the dividend (C's %)."""
        return self._binary(other, "urem" if self.type.kind == "u" else "srem", "frem")

    def __neg__(self):
        if self.type.kind == "f":
            return self.k.emit(self.type, f"fneg {self.type.text} {self.ref}")
        return self.k.const(self.type, 0) - self

    # ------------------------------------------------------------------ bits
    def _bitwise(self, other: Value | Number, name: str, swap: bool = False) -> Value:
        a, b = self.k.unify(self, other)
        if swap:
            a, b = b, a
        return self.k.emit(a.type, f"{name} {a.type.text} {a.ref}, {b.ref}")

    def __and__(self, other):
        return self._bitwise(other, "and")

    __rand__ = __and__

    def __or__(self, other):
        return self._bitwise(other, "or")

    __ror__ = __or__

    def __xor__(self, other):
        return self._bitwise(other, "xor")

    __rxor__ = __xor__

    def __invert__(self):
        return self._bitwise(True if self.type.kind == "b" else -1, "xor")

    def __lshift__(self, other):
        return self._bitwise(other, "shl")

    def __rshift__(self, other):
        """Arithmetic for signed types, logical for unsigned ones."""
        return self._bitwise(other, "ashr" if self.type.kind == "i" else "lshr")

    def lshr(self, other):
        return self._bitwise(other, "lshr")

    # ------------------------------------------------------------------ comparison -> mask
    def _compare(self, other: Value | Number, relation: str) -> Value:
        a, b = self.k.unify(self, other)
        if a.type.kind == "f":
            test = "fcmp " + {"eq": "oeq", "ne": "une"}.get(relation, "o" + relation)
        elif relation in ("eq", "ne"):
            test = f"icmp {relation}"
        else:
            test = f"icmp {'s' if a.type.kind == 'i' else 'u'}{relation}"
        return self.k.emit(i1.like(a.type), f"{test} {a.type.text} {a.ref}, {b.ref}")

    def __lt__(self, other):
        return self._compare(other, "lt")

    def __le__(self, other):
        return self._compare(other, "le")

    def __gt__(self, other):
        return self._compare(other, "gt")

    def __ge__(self, other):
        return self._compare(other, "ge")

    def eq(self, other):
        return self._compare(other, "eq")

    def ne(self, other):
        return self._compare(other, "ne")

    def is_nan(self):
        return self.k.emit(i1.like(self.type), f"fcmp uno {self.type.text} {self.ref}, {self.ref}")

    # ------------------------------------------------------------------ conversion
    def bitcast(self, type_: Type) -> Value:
        """The same bits read as another type of the same total size."""
        if type_.text == self.type.text:
            return Value(self.k, type_, self.ref)
        return self.k.emit(type_, f"bitcast {self.type.text} {self.ref} to {type_.text}")

    def to(self, type_: Type) -> Value:
        """The value in another element type; lanes are kept. Floats that do not fit an integer saturate at
        32 bits or wider and wrap below, NaN gives 0; anything to a mask asks `!= 0`."""
        target = type_.like(self.type)
        source = self.type
        if target is source:
            return self
        if target.kind == "b":
            return self.ne(0)
        if source.kind == "p" or target.kind == "p":
            return self.k.emit(
                target, f"{'ptrtoint' if source.kind == 'p' else 'inttoptr'} {source.text} {self.ref} to {target.text}"
            )
        if source.kind == "f" and target.kind == "f":
            if source.size == target.size:  # half and bfloat meet in float
                return self.to(f32).to(target)
            if target.name == "bfloat" and not self.k.module.native_bf16:
                return self.to(f32)._rounded_to_bfloat(target)
            if (
                source.name == "bfloat"
            ):  # the upper half of a float; in integers, or LLVM may call a C function for a lane
                wide = (self.bitcast(u16.like(source)).to(u32) << 16).bitcast(f32.like(source))
                return wide.to(target)
            name = "fpext" if target.size > source.size else "fptrunc"
        elif target.kind == "f":
            name = {"i": "sitofp", "u": "uitofp", "b": "uitofp"}[source.kind]
        elif source.kind == "f":
            if source.size < 4:
                return self.to(f32).to(target)
            if target.size < 4:
                return self.to(i32).to(target)
            sign = "s" if target.kind == "i" else "u"
            if sign == "u" and target.size < 8:
                return self.to(i64).to(target)
            if source.lanes:
                return self._saturated(target)
            return self.k.intrinsic(f"llvm.fpto{sign}i.sat.{target.suffix}.{source.suffix}", target, self)
        elif target.size == source.size and source.kind != "b":
            return Value(self.k, target, self.ref)
        elif source.kind == "b" or target.size > source.size:
            name = "sext" if source.kind == "i" else "zext"
        else:
            name = "trunc"
        return self.k.emit(target, f"{name} {source.text} {self.ref} to {target.text}")

    def truncated(self, type_: Type) -> Value:
        """Floats as integers, toward zero, in one instruction: values that do not fit are undefined (see `to`)."""
        target = type_.like(self.type)
        sign = "s" if target.kind == "i" else "u"
        return self.k.emit(target, f"fpto{sign}i {self.type.text} {self.ref} to {target.text}")

    def _saturated(self, target: Type) -> Value:
        """`to` an integer type for vectors. LLVM 22 splits llvm.fptosi.sat into scalars on x86 (eight times as slow)."""
        bits = target.size * 8
        low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if target.kind == "i" else (0, 1 << bits)
        k = self.k
        result = k.select(self < float(high), self.truncated(target), high - 1)
        result = k.select(self < float(low), k.const(target, low), result)
        return k.select(self.is_nan(), k.const(target, 0), result)

    def _rounded_to_bfloat(self, target: Type) -> Value:
        """f32 to bfloat, nearest even, in integers: without AVX512-BF16 LLVM would call a C function for each lane."""
        bits = self.bitcast(u32.like(self.type))
        rounded = bits + (((bits >> 16) & 1) + 0x7FFF)
        quiet = bits | 0x400000
        return (self.k.select(self.is_nan(), quiet, rounded) >> 16).to(u16).bitcast(target)


class Variable:
    """A register variable: `get` and `set`; costs nothing after SROA."""

    __slots__ = ("k", "type", "slot")

    def __init__(self, k: Function, type_: Type):
        self.k, self.type = k, type_
        self.slot = k.fresh("v")
        k.allocas.append(f"  {self.slot} = alloca {type_.text}")

    def get(self) -> Value:
        return self.k.emit(self.type, f"load {self.type.text}, ptr {self.slot}")

    def set(self, value: Value | Number) -> None:
        value = self.k.as_value(value, self.type)
        if value.type.text != self.type.text:
            raise TypeError(f"kernel: variable holds {self.type}, got {value.type}")
        self.k.line(f"store {self.type.text} {value.ref}, ptr {self.slot}")


class Function:
    """One function of a module, built line by line. `args` are its parameters as Values."""

    def __init__(
        self,
        module: Module,
        name: str,
        params: Sequence[tuple[str, Type]],
        result: Type,
        *,
        internal: bool,
        inline: bool,
    ):
        self.module, self.name, self.result = module, name, result
        self.internal, self.inline = internal, inline
        self.params = list(params)
        self.args = [Value(self, t, f"%{n}") for n, t in params]
        self.allocas: list[str] = []
        self.lines: list[str] = []
        self.count = 0
        self.done = False

    # ------------------------------------------------------------------ emission
    def fresh(self, prefix: str = "t") -> str:
        self.count += 1
        return f"%{prefix}{self.count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def emit(self, type_: Type, text: str) -> Value:
        self.count += 1
        ref = f"%t{self.count}"
        self.lines.append(f"  {ref} = {text}")
        return Value(self, type_, ref)

    def label(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def place(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def branch(self, label: str) -> None:
        self.line(f"br label %{label}")

    # ------------------------------------------------------------------ values
    def const(self, type_: Type, value: Number) -> Value:
        return Value(self, type_, type_.constant(value))

    def consts(self, type_: Type, values: Sequence[Number]) -> Value:
        """A vector constant, lane by lane."""
        e = type_.element
        inner = ", ".join(f"{e.text} {e.constant(v)}" for v in values)
        return Value(self, e.vec(len(values)), f"<{inner}>")

    def undef(self, type_: Type) -> Value:
        return Value(self, type_, "poison")

    def as_value(self, value: Value | Number, type_: Type) -> Value:
        return value if isinstance(value, Value) else self.const(type_, value)

    def unify(self, a: Value, b: Value | Number) -> tuple[Value, Value]:
        """Both operands in one type: a number becomes a constant, a scalar beside a vector is splat."""
        if not isinstance(b, Value):
            return a, self.const(a.type, b)
        if a.type.lanes != b.type.lanes:
            if a.type.lanes == 0:
                a = self.splat(a, b.type.lanes)
            elif b.type.lanes == 0:
                b = self.splat(b, a.type.lanes)
        if a.type.text != b.type.text:
            raise TypeError(f"kernel: operands must have one type, got {a} and {b}. Convert with .to(type).")
        return a, b

    def splat(self, value: Value, lanes: int) -> Value:
        """A vector with `value` in every lane."""
        if lanes == 0 or value.type.lanes == lanes:
            return value
        if not value.ref.startswith("%"):
            t = value.type.vec(lanes)
            return Value(self, t, f"splat ({value.type.text} {value.ref})")
        t = value.type.vec(lanes)
        one = self.emit(t, f"insertelement {t.text} poison, {value.type.text} {value.ref}, i32 0")
        return self.emit(t, f"shufflevector {t.text} {one.ref}, {t.text} poison, <{lanes} x i32> zeroinitializer")

    def iota(self, type_: Type) -> Value:
        """0, 1, 2 … in the lanes of a vector type."""
        return self.consts(type_, range(type_.lanes)) if type_.lanes else self.const(type_, 0)

    def shuffle(self, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
        """Lanes picked from a (0 …) and b (a's count …); -1 leaves a lane undefined."""
        other = b.ref if b is not None else "poison"
        mask = ", ".join("i32 poison" if n < 0 else f"i32 {n}" for n in lanes)
        return self.emit(
            a.type.vec(len(lanes)),
            f"shufflevector {a.type.text} {a.ref}, {a.type.text} {other}, <{len(lanes)} x i32> <{mask}>",
        )

    def extract(self, a: Value, lane: int | Value) -> Value:
        index = f"{lane.type.text} {lane.ref}" if isinstance(lane, Value) else f"i32 {lane}"
        return self.emit(a.type.element, f"extractelement {a.type.text} {a.ref}, {index}")

    def insert(self, a: Value, value: Value, lane: int | Value) -> Value:
        index = f"{lane.type.text} {lane.ref}" if isinstance(lane, Value) else f"i32 {lane}"
        return self.emit(a.type, f"insertelement {a.type.text} {a.ref}, {value.type.text} {value.ref}, {index}")

    def select(self, mask: Value, a: Value | Number, b: Value | Number, type_: Type | None = None) -> Value:
        """a where mask else b, lane by lane (a scalar mask picks whole values)."""
        if not isinstance(a, Value):
            a = self.const(type_ or b.type, a)
        a, b = self.unify(a, b)
        if mask.type.lanes == 0 or a.type.lanes == mask.type.lanes:
            pass
        elif a.type.lanes == 0:
            a, b = self.splat(a, mask.type.lanes), self.splat(b, mask.type.lanes)
        return self.emit(a.type, f"select {mask.type.text} {mask.ref}, {a.type.text} {a.ref}, {b.type.text} {b.ref}")

    def minimum(self, a: Value, b: Value | Number) -> Value:
        """Smaller of two; floats: NaN if either is NaN, either zero of two."""
        return self._extreme(a, b, "min")

    def maximum(self, a: Value, b: Value | Number) -> Value:
        """Larger of two; floats: NaN if either is NaN, either zero of two."""
        return self._extreme(a, b, "max")

    def _extreme(self, a: Value, b: Value | Number, which: str) -> Value:
        a, b = self.unify(a, b)
        if a.type.kind != "f":
            return self.intrinsic(f"llvm.{'s' if a.type.kind == 'i' else 'u'}{which}.{a.type.suffix}", a.type, a, b)
        # One max/min instruction, which gives a where either is NaN, and a blend for NaN in b; llvm.maximum also orders zeros
        # and takes five instructions.
        best = self.select(b > a if which == "max" else b < a, b, a)
        return self.select(b.is_nan(), b, best)

    def fma(self, a: Value | Number, b: Value | Number, c: Value | Number) -> Value:
        """a * b + c, rounded once."""
        like = next(v for v in (a, b, c) if isinstance(v, Value))
        widest = max(v.type.lanes for v in (a, b, c) if isinstance(v, Value))
        t = like.type.vec(widest)
        a, b, c = (self.splat(self.as_value(v, t.element), widest) for v in (a, b, c))
        return self.intrinsic(f"llvm.fma.{t.suffix}", t, a, b, c)

    def math(self, name: str, *values: Value) -> Value:
        """An LLVM math intrinsic that is one machine instruction: sqrt fabs floor ceil trunc roundeven copysign."""
        t = values[0].type
        return self.intrinsic(f"llvm.{name}.{t.suffix}", t, *values)

    def reduce(self, vector: Value, combine) -> Value:
        """All lanes combined pairwise (a fixed tree) by `combine(a, b)`; returns a scalar."""
        lanes = vector.type.lanes
        if lanes == 0:
            return vector
        while lanes > 1:
            half = lanes // 2
            low = self.shuffle(vector, None, list(range(half)))
            high = self.shuffle(vector, None, list(range(half, lanes)))
            vector, lanes = combine(low, high), half
        return self.extract(vector, 0)

    def any(self, mask: Value) -> Value:
        """True if any lane of a mask is set."""
        if mask.type.lanes == 0:
            return mask
        n = mask.type.lanes
        bits = self.emit(Type(f"i{n}", max(1, n // 8), "u"), f"bitcast {mask.type.text} {mask.ref} to i{n}")
        return self.emit(i1, f"icmp ne i{n} {bits.ref}, 0")

    def tail_mask(self, remaining: Value, lanes: int) -> Value:
        """Lanes below `remaining` (an i64)."""
        left = self.minimum(remaining, lanes).to(i32)
        return self.iota(i32.vec(lanes)) < self.splat(left, lanes)

    # ------------------------------------------------------------------ memory
    def offset(self, pointer: Value, index: Value | int, type_: Type = i8) -> Value:
        """pointer + index elements of `type_` (bytes unless told)."""
        index = self.as_value(index, i64)
        return self.emit(ptr, f"getelementptr {type_.element.text}, ptr {pointer.ref}, {index.type.text} {index.ref}")

    def load(
        self,
        pointer: Value,
        type_: Type,
        index: Value | int | None = None,
        *,
        mask: Value | None = None,
        align: int | None = None,
    ) -> Value:
        """A scalar or vector at pointer[index] (elements). Masked-off lanes read as 0 and touch no memory."""
        if index is not None:
            pointer = self.offset(pointer, index, type_)
        align = align or type_.size
        if (
            mask is not None and type_.name == "bfloat"
        ):  # LLVM takes masked bfloat apart unless the target has AVX512-BF16
            return self.load(pointer, u16.like(type_), mask=mask, align=align).bitcast(type_)
        if mask is None:
            return self.emit(type_, f"load {type_.text}, ptr {pointer.ref}, align {align}")
        zero = self.const(type_, 0)
        return self._masked(
            f"llvm.masked.load.{type_.suffix}.p0",
            type_,
            f"ptr align {align} {pointer.ref}",
            f"{mask.type.text} {mask.ref}",
            f"{type_.text} {zero.ref}",
        )

    def store(
        self,
        pointer: Value,
        value: Value,
        index: Value | int | None = None,
        *,
        mask: Value | None = None,
        align: int | None = None,
        nontemporal: bool = False,
    ) -> None:
        if index is not None:
            pointer = self.offset(pointer, index, value.type)
        align = align or value.type.size
        if value.type.name == "bfloat":
            value = value.bitcast(u16.like(value.type))
        if mask is None:
            hint = f", !nontemporal {self.module.metadata_one()}" if nontemporal else ""
            self.line(f"store {value.type.text} {value.ref}, ptr {pointer.ref}, align {align}{hint}")
            return
        t = value.type
        self._masked(
            f"llvm.masked.store.{t.suffix}.p0",
            void,
            f"{t.text} {value.ref}",
            f"ptr align {align} {pointer.ref}",
            f"{mask.type.text} {mask.ref}",
        )

    def gather(
        self, pointer: Value, type_: Type, indices: Value, *, mask: Value | None = None, unit: Type | None = None
    ) -> Value:
        """pointer[indices[lane]] in every lane; indices are i64 offsets in elements, or in a smaller `unit`."""
        n = indices.type.lanes
        t = type_.vec(n)
        if n == 0:
            return self.load(pointer, type_.element, indices)
        unit = unit or type_
        if type_.name == "bfloat":
            return self.gather(pointer, u16, indices, mask=mask).bitcast(t)
        where = self.emit(
            ptr.vec(n), f"getelementptr {unit.element.text}, ptr {pointer.ref}, {indices.type.text} {indices.ref}"
        )
        mask = mask or self.const(i1.vec(n), True)
        zero = self.const(t, 0)
        return self._masked(
            f"llvm.masked.gather.{t.suffix}.v{n}p0",
            t,
            f"{where.type.text} align {min(t.size, unit.size)} {where.ref}",
            f"{mask.type.text} {mask.ref}",
            f"{t.text} {zero.ref}",
        )

    def scatter(self, pointer: Value, value: Value, indices: Value, *, mask: Value | None = None) -> None:
        """Store every lane at pointer[indices[lane]]; on equal indices the highest lane wins."""
        n = indices.type.lanes
        t = value.type
        if n == 0:
            self.store(pointer, value, indices)
            return
        if t.name == "bfloat":
            value = value.bitcast(u16.like(t))
            t = value.type
        where = self.emit(
            ptr.vec(n), f"getelementptr {t.element.text}, ptr {pointer.ref}, {indices.type.text} {indices.ref}"
        )
        mask = mask or self.const(i1.vec(n), True)
        self._masked(
            f"llvm.masked.scatter.{t.suffix}.v{n}p0",
            void,
            f"{t.text} {value.ref}",
            f"{where.type.text} align {t.size} {where.ref}",
            f"{mask.type.text} {mask.ref}",
        )

    def _masked(self, name: str, result: Type, *arguments: str) -> Value | None:
        def bare(a: str) -> str:  # declaration without names
            words = a.rsplit(" ", 1)[0]
            return words.split(" align")[0] if "align" in words else words

        kinds = []
        for a in arguments:
            kinds.append(a[: a.index(">") + 1] if a.startswith("<") else a.split(" ")[0])
        self.module.declare(name, result.text, kinds)
        text = f"call {result.text} @{name}({', '.join(arguments)})"
        if result is void:
            self.line(text)
            return None
        return self.emit(result, text)

    def prefetch(
        self, pointer: Value, offset_bytes: Value | int = 0, *, write: bool = False, locality: int = 3
    ) -> None:
        p = self.offset(pointer, offset_bytes)
        self.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
        self.line(f"call void @llvm.prefetch.p0(ptr {p.ref}, i32 {int(write)}, i32 {locality}, i32 1)")

    def stack(self, nbytes: int, align: int = 64) -> Value:
        """Scratch memory of this call (keep it small: kernels may run on threads with small stacks)."""
        slot = self.fresh("s")
        self.allocas.append(f"  {slot} = alloca [{nbytes} x i8], align {align}")
        return Value(self, ptr, slot)

    # ------------------------------------------------------------------ calls
    def intrinsic(self, name: str, result: Type, *args: Value) -> Value | None:
        """Call `name` (an LLVM intrinsic or a C symbol), declaring it in the module."""
        self.module.declare(name, result.text, [a.type.text for a in args])
        return self._call(f"@{name}", result, args)

    def call(self, function: Function | Value, *args: Value | Number, result: Type | None = None) -> Value | None:
        """Call a function of this module, or one through a pointer (then give `result`)."""
        if isinstance(function, Function):
            values = [self.as_value(a, t) for a, (_, t) in zip(args, function.params, strict=True)]
            return self._call(f"@{function.name}", function.result, values)
        return self._call(function.ref, result or void, [self.as_value(a, i64) for a in args])

    def _call(self, callee: str, result: Type, args: Sequence[Value]) -> Value | None:
        inner = ", ".join(f"{a.type.text} {a.ref}" for a in args)
        if result is void:
            self.line(f"call void {callee}({inner})")
            return None
        return self.emit(result, f"call {result.text} {callee}({inner})")

    def ret(self, value: Value | None = None) -> None:
        self.line("ret void" if value is None else f"ret {value.type.text} {value.ref}")
        self.done = True

    # ------------------------------------------------------------------ control flow
    def var(self, type_: Type, value: Value | Number | None = None) -> Variable:
        """A register variable, set to `value` here."""
        variable = Variable(self, type_)
        if value is not None:
            variable.set(value)
        return variable

    @contextlib.contextmanager
    def range(
        self, start: Value | int, stop: Value | int, step: Value | int = 1, *, unroll: bool = False
    ) -> Iterator[Value]:
        """A loop that runs: `with k.range(0, n) as i`. LLVM leaves it rolled unless `unroll`."""
        start, stop, step = (self.as_value(v, i64) for v in (start, stop, step))
        counter = self.var(start.type, start)
        head, body, end = self.label("head"), self.label("body"), self.label("end")
        self.branch(head)
        self.place(head)
        i = counter.get()
        test = i < stop
        self.line(f"br i1 {test.ref}, label %{body}, label %{end}")
        self.place(body)
        yield i
        following = self.emit(i.type, f"add nsw {i.type.text} {i.ref}, {step.ref}")
        counter.set(following)
        hint = "" if unroll else f", !llvm.loop {self.module.metadata_rolled()}"
        self.line(f"br label %{head}{hint}")
        self.place(end)

    @contextlib.contextmanager
    def loop_while(self, condition) -> Iterator[None]:
        """`with k.loop_while(lambda: cond_value)`: the condition is emitted at the loop's head."""
        head, body, end = self.label("while"), self.label("body"), self.label("end")
        self.branch(head)
        self.place(head)
        test = condition()
        self.line(f"br i1 {test.ref}, label %{body}, label %{end}")
        self.place(body)
        yield
        self.line(f"br label %{head}, !llvm.loop {self.module.metadata_rolled()}")
        self.place(end)

    @contextlib.contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """The body runs if the scalar condition holds."""
        then, end = self.label("then"), self.label("end")
        self.line(f"br i1 {condition.ref}, label %{then}, label %{end}")
        self.place(then)
        self.done = False
        yield
        if not self.done:
            self.branch(end)
        self.done = False
        self.place(end)

    def when_else(self, condition: Value, yes, no) -> None:
        """Calls `yes()` to emit one branch and `no()` the other."""
        then, other, end = self.label("then"), self.label("else"), self.label("end")
        self.line(f"br i1 {condition.ref}, label %{then}, label %{other}")
        for label, body in ((then, yes), (other, no)):
            self.place(label)
            self.done = False
            body()
            if not self.done:
                self.branch(end)
        self.done = False
        self.place(end)

    # ------------------------------------------------------------------ printing
    def text(self) -> str:
        params = ", ".join(f"{t.text} %{n}" for n, t in self.params)
        words = ["define"]
        if self.internal:
            words.append("internal")
        words.append(f"{self.result.text} @{self.name}({params}) #{1 if self.inline else 0} {{")
        body = ["entry:", *self.allocas, "  br label %body", "body:", *self.lines]
        if not self.done:
            body.append("  ret void" if self.result is void else "  unreachable")
        return "\n".join([" ".join(words), *body, "}"])


class Module:
    """Functions that are compiled together.

    `native_bf16` says that the target rounds to bfloat itself (AVX512-BF16, which reads and writes denormals as 0),
    `native_scalef` that it multiplies by 2^n in one instruction (AVX-512 F and VL; same bits, exp is a fifth quicker),
    `native_tables` that it looks up 16 floats in a register (AVX-512 F, whose estimates of 1/x it has too;
    erf, gelu, tanh and sigmoid are cheaper, and give other bits).
    """

    def __init__(
        self,
        vector_bits: int = 512,
        native_bf16: bool = False,
        native_scalef: bool = False,
        native_tables: bool = False,
    ):
        self.functions: list[Function] = []
        self.declarations: dict[str, str] = {}
        self.globals: list[str] = []
        self.vector_bits = vector_bits
        self.native_bf16 = native_bf16
        self.native_scalef = native_scalef
        self.native_tables = native_tables
        self._metadata: list[str] = []
        self._rolled: str | None = None
        self._one: str | None = None

    def function(
        self,
        name: str,
        params: Sequence[tuple[str, Type]],
        result: Type = void,
        *,
        internal: bool = False,
        inline: bool = False,
    ) -> Function:
        """A new function; `internal` ones are not visible outside, `inline` ones are always inlined."""
        f = Function(self, name, params, result, internal=internal or inline, inline=inline)
        self.functions.append(f)
        return f

    def declare(self, name: str, result: str, params: Sequence[str]) -> None:
        if name not in self.declarations:
            self.declarations[name] = f"declare {result} @{name}({', '.join(params)})"

    def table(self, name: str, type_: Type, values: Sequence[Number]) -> str:
        """A constant array; returns its symbol (use as a pointer: Value(k, ptr, symbol))."""
        e = type_.element
        inner = ", ".join(f"{e.text} {e.constant(v)}" for v in values)
        self.globals.append(f"@{name} = private unnamed_addr constant [{len(values)} x {e.text}] [{inner}], align 64")
        return f"@{name}"

    def metadata_rolled(self) -> str:
        if self._rolled is None:
            n = len(self._metadata)
            self._metadata += [
                f"!{n} = distinct !{{!{n}, !{n + 1}, !{n + 2}}}",
                f'!{n + 1} = !{{!"llvm.loop.unroll.disable"}}',
                f'!{n + 2} = !{{!"llvm.loop.vectorize.enable", i1 false}}',
            ]
            self._rolled = f"!{n}"
        return self._rolled

    def metadata_one(self) -> str:
        if self._one is None:
            self._one = f"!{len(self._metadata)}"
            self._metadata.append(f"{self._one} = !{{i32 1}}")
        return self._one

    def text(self) -> str:
        width = f'"prefer-vector-width"="{self.vector_bits}"'
        attributes = [f"attributes #0 = {{ nounwind {width} }}", f"attributes #1 = {{ nounwind alwaysinline {width} }}"]
        functions = [f.text() for f in self.functions]
        return "\n".join([*self.globals, *functions, *self.declarations.values(), *attributes, *self._metadata]) + "\n"
