"""Types of kernel values: LLVM scalars and vectors, with the sign that LLVM leaves out.

    f32.vec(16)      <16 x float>
    u8               i8 read as unsigned

May not know: tensors, dtypes of `core`. Entry: the constants at the end of this file.
"""

from __future__ import annotations

import struct


class Type:
    """An interned scalar or vector type. `kind` is one of f(loat), i(nt), u(nsigned), b(it), p(ointer), v(oid)."""

    __slots__ = ("name", "size", "kind", "lanes", "element", "text", "suffix", "_vectors")

    def __init__(self, name: str, size: int, kind: str, lanes: int = 0, element: Type | None = None):
        self.name, self.size, self.kind, self.lanes = name, size, kind, lanes
        self.element: Type = element or self
        self.text = f"<{lanes} x {name}>" if lanes else name
        short = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}.get(name, name)
        self.suffix = f"v{lanes}{short}" if lanes else short  # as intrinsics spell it
        self._vectors: dict[int, Type] = {}

    def vec(self, lanes: int) -> Type:
        """The vector of `lanes` elements; 0 gives the scalar."""
        scalar = self.element
        if lanes == 0:
            return scalar
        found = scalar._vectors.get(lanes)
        if found is None:
            found = Type(scalar.name, scalar.size, scalar.kind, lanes, scalar)
            scalar._vectors[lanes] = found
        return found

    def like(self, other: Type) -> Type:
        """This element type with as many lanes as `other`."""
        return self.vec(other.lanes)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def bits(self) -> int:
        return 1 if self.kind == "b" else self.size * 8

    @property
    def nbytes(self) -> int:
        """Bytes of one value in memory."""
        return self.size * max(1, self.lanes)

    def __repr__(self) -> str:
        return self.text if self.kind != "u" else f"{self.text} (unsigned)"

    def constant(self, value: float | int | bool) -> str:
        """LLVM's spelling of a constant; a vector type gives a splat."""
        text = self._scalar_constant(value)
        return f"splat ({self.element.text} {text})" if self.lanes else text

    def _scalar_constant(self, value: float | int | bool) -> str:
        match self.kind:
            case "f":
                return float_constant(self.element.name, float(value))
            case "b":
                return "true" if value else "false"
            case "p":
                return "null" if value == 0 else f"inttoptr (i64 {int(value)} to ptr)"
        bits = self.size * 8
        value = int(value) & ((1 << bits) - 1)
        return str(value - (1 << bits) if value >> (bits - 1) else value)


def float_constant(name: str, value: float) -> str:
    match name:
        case "double":
            return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
        case "float":
            return f"0x{struct.unpack('<Q', struct.pack('<d', round_to_float(value)))[0]:016X}"
        case "half":
            try:
                bits = struct.unpack("<H", struct.pack("<e", value))[0]
            except OverflowError:
                bits = 0x7C00 if value > 0 else 0xFC00
            return f"0xH{bits:04X}"
    bits = struct.unpack("<I", struct.pack("<f", round_to_float(value)))[0]
    if value != value:
        return "0xR7FC0"
    return f"0xR{(bits + 0x7FFF + ((bits >> 16) & 1)) >> 16:04X}"  # bfloat, nearest even


def round_to_float(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


void = Type("void", 0, "v")
ptr = Type("ptr", 8, "p")
i1 = Type("i1", 1, "b")
i8, i16, i32, i64 = (Type(f"i{8 * n}", n, "i") for n in (1, 2, 4, 8))
u8, u16, u32, u64 = (Type(f"i{8 * n}", n, "u") for n in (1, 2, 4, 8))
f16 = Type("half", 2, "f")
bf16 = Type("bfloat", 2, "f")
f32 = Type("float", 4, "f")
f64 = Type("double", 8, "f")
