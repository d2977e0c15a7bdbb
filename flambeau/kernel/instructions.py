"""Hardware instructions that LLVM IR has no words for, each declared once: intrinsic, needs, types, meaning.

    from flambeau.kernel import instructions
    if instructions.vpdpbusd.available(target, i32.vec(16)):
        acc = instructions.vpdpbusd(k, acc, a, b)          # emits the call; the form follows from the types

The decorated function is the meaning: numpy arrays in, array out (bfloat is the bits, as uint16). It is never
called to compile; `kernel.selftest` compares it with the machine, and tests read it. It uses array methods
only, so that this module does without numpy.

Tile (AMX) instructions name registers 0 … 7 and act on them: `tdpbf16ps(k, 4, 0, 1)`. A thread must run
`ldtilecfg` before its first one and `tilerelease` after its last.

The intrinsics are LLVM 22's. Whether a target has an instruction must be asked before it is emitted: LLVM ends
the process over one it cannot select, so `missing` lets the compiler refuse such text first.

May not know: templates, layouts of operands. Entry: `TABLE`, and the instructions by name.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from flambeau.base.record import record
from flambeau.kernel.dsl import Function, Number, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, bf16, f32, f64, i8, i16, i32, i64, ptr, u8, void

Array = Any  # numpy.ndarray, without importing numpy


@record
class Form:
    """One width of an instruction."""

    intrinsic: str
    result: Type
    operands: tuple[Type, ...]
    needs: tuple[tuple[str, ...], ...]  # sets of features: any one will do
    trailing: tuple[tuple[Type, Number], ...] = ()  # constants that the intrinsic wants besides

    def available(self, target: Target) -> bool:
        return any(target.has(*features) for features in self.needs)


class Instruction:
    """An instruction in all its widths; calling it emits it."""

    def __init__(
        self, arch: str, forms: tuple[Form, ...], meaning: Callable[..., Array], mnemonic: str, error: float = 0.0
    ):
        self.name = meaning.__name__
        self.error = error  # how far, of the value, results may be from the meaning
        self.arch, self.forms, self.meaning, self.mnemonic = arch, forms, meaning, mnemonic
        self.__doc__ = meaning.__doc__

    def __repr__(self) -> str:
        return f"<instruction {self.name}>"

    def available(self, target: Target, result: Type | None = None) -> bool:
        """Whether the target has it, in the width that gives `result` if that is told."""
        if target.arch != self.arch:
            return False
        return any(f.available(target) for f in self.forms if result is None or f.result.text == result.text)

    def __call__(self, k: Function, *operands: Value) -> Value:
        texts = [v.type.text for v in operands]
        for form in self.forms:
            if [t.text for t in form.operands] == texts:
                extra = [k.const(t, v) for t, v in form.trailing]
                value = k.intrinsic(form.intrinsic, form.result, *operands, *extra)
                assert value is not None  # no form returns void
                return value
        known = " or ".join("(" + ", ".join(t.text for t in f.operands) + ")" for f in self.forms)
        raise TypeError(
            f"{self.name}: operands must be {known}, got ({', '.join(texts)}). Convert with .bitcast(type)."
        )


class TileInstruction:
    """An AMX instruction; tiles are Python integers, everything else Values."""

    def __init__(
        self, intrinsic: str, operands: tuple[Type, ...], needs: tuple[str, ...], meaning: Callable[..., Array]
    ):
        self.name = self.mnemonic = meaning.__name__
        self.intrinsic, self.operands, self.needs, self.meaning = intrinsic, operands, needs, meaning
        self.arch = "x86_64"
        self.__doc__ = meaning.__doc__

    def __repr__(self) -> str:
        return f"<instruction {self.name}>"

    def available(self, target: Target) -> bool:
        return target.arch == self.arch and target.has(*self.needs)

    def __call__(self, k: Function, *operands: Value | int) -> None:
        if len(operands) != len(self.operands):
            raise TypeError(
                f"{self.name}: operands must be {[t.text for t in self.operands]}, got {len(operands)} of them."
            )
        for value, type_ in zip(operands, self.operands, strict=True):
            if type_ is i8 and (not isinstance(value, int) or not 0 <= value < 8):
                raise TypeError(f"{self.name}: tiles must be Python integers 0 … 7, got {value!r}.")
        k.intrinsic(self.intrinsic, void, *(k.as_value(v, t) for v, t in zip(operands, self.operands, strict=True)))


TABLE: dict[str, Instruction | TileInstruction] = {}
_NEEDS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {}  # intrinsic -> architecture, sets of features


def _instruction(
    arch: str, *forms: Form, mnemonic: str = "", error: float = 0.0
) -> Callable[[Callable[..., Array]], Instruction]:
    def declare(meaning: Callable[..., Array]) -> Instruction:
        made = Instruction(arch, forms, meaning, mnemonic or meaning.__name__, error)
        TABLE[made.name] = made
        for form in forms:
            if not form.intrinsic.startswith(("llvm.x86.", "llvm.aarch64.")):
                continue  # a generic intrinsic compiles everywhere
            _NEEDS[form.intrinsic] = (arch, form.needs)
        return made

    return declare


def _tile(intrinsic: str, operands: tuple[Type, ...], *needs: str) -> Callable[[Callable[..., Array]], TileInstruction]:
    def declare(meaning: Callable[..., Array]) -> TileInstruction:
        made = TileInstruction(intrinsic, operands, ("amx-tile", *needs), meaning)
        TABLE[made.name] = made
        _NEEDS[intrinsic] = ("x86_64", (made.needs,))
        return made

    return declare


def missing(text: str, target: Target) -> list[str]:
    """What a module's IR text uses of this table although the target lacks it, in words."""
    found = []
    for intrinsic in re.findall(r"^declare [^@]*@(llvm\.(?:x86|aarch64)\.[\w.]+)", text, re.MULTILINE):
        arch, needs = _NEEDS.get(intrinsic, (target.arch, ((),)))
        if not intrinsic.startswith("llvm." + ("x86." if target.arch == "x86_64" else "aarch64.")):
            found.append(f"{intrinsic} (another architecture)")
        elif arch == target.arch and not any(target.has(*features) for features in needs):
            found.append(f"{intrinsic} ({' or '.join(' + '.join(features) for features in needs)})")
    return found


# ---------------------------------------------------------------------- x86: integer dot products
_VNNI = (("avx512vnni",),)
_VNNI_256 = (("avx512vnni", "avx512vl"), ("avxvnni",))


def _bytes_dot(name: str) -> tuple[Form, ...]:
    return (
        Form(f"llvm.x86.avx512.{name}.512", i32.vec(16), (i32.vec(16), u8.vec(64), i8.vec(64)), _VNNI),
        Form(f"llvm.x86.avx512.{name}.256", i32.vec(8), (i32.vec(8), u8.vec(32), i8.vec(32)), _VNNI_256),
    )


@_instruction("x86_64", *_bytes_dot("vpdpbusd"))
def vpdpbusd(acc: Array, a: Array, b: Array) -> Array:
    """acc + the sum of four products unsigned byte x signed byte, per i32 lane; wraps."""
    return (acc + (a.astype("i8") * b.astype("i8")).reshape(-1, 4).sum(-1)).astype("i4")


@_instruction("x86_64", *_bytes_dot("vpdpbusds"))
def vpdpbusds(acc: Array, a: Array, b: Array) -> Array:
    """As vpdpbusd; saturates."""
    return (acc + (a.astype("i8") * b.astype("i8")).reshape(-1, 4).sum(-1)).clip(-(2**31), 2**31 - 1).astype("i4")


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512.vpdpwssd.512", i32.vec(16), (i32.vec(16), i16.vec(32), i16.vec(32)), _VNNI),
    Form("llvm.x86.avx512.vpdpwssd.256", i32.vec(8), (i32.vec(8), i16.vec(16), i16.vec(16)), _VNNI_256),
)
def vpdpwssd(acc: Array, a: Array, b: Array) -> Array:
    """acc + the sum of two products of signed 16-bit integers, per i32 lane; wraps."""
    return (acc + (a.astype("i8") * b.astype("i8")).reshape(-1, 2).sum(-1)).astype("i4")


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512.pmaddubs.w.512", i16.vec(32), (u8.vec(64), i8.vec(64)), (("avx512bw",),)),
    Form("llvm.x86.avx2.pmadd.ub.sw", i16.vec(16), (u8.vec(32), i8.vec(32)), (("avx2",),)),
)
def vpmaddubsw(a: Array, b: Array) -> Array:
    """The sum of two products unsigned byte x signed byte, per i16 lane; saturates."""
    return (a.astype("i4") * b.astype("i4")).reshape(-1, 2).sum(-1).clip(-(2**15), 2**15 - 1).astype("i2")


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512.pmaddw.d.512", i32.vec(16), (i16.vec(32), i16.vec(32)), (("avx512bw",),)),
    Form("llvm.x86.avx2.pmadd.wd", i32.vec(8), (i16.vec(16), i16.vec(16)), (("avx2",),)),
)
def vpmaddwd(a: Array, b: Array) -> Array:
    """The sum of two products of signed 16-bit integers, per i32 lane; wraps (only when all four are -32768)."""
    return (a.astype("i8") * b.astype("i8")).reshape(-1, 2).sum(-1).astype("i4")


# ---------------------------------------------------------------------- bfloat
def _widened(a: Array) -> Array:
    """bfloat bits as f32; subnormals read as zero, as these instructions do."""
    bits = a.astype("u4") << 16
    bits[(bits & 0x7F800000) == 0] &= 0x80000000
    return bits.view("f4")


def _flushed(a: Array) -> Array:
    """f32 with subnormals as zeros."""
    bits = a.astype("f4").view("u4").copy()
    bits[(bits & 0x7F800000) == 0] &= 0x80000000
    return bits.view("f4")


def _multiply_add(acc: Array, a: Array, b: Array) -> Array:
    """acc + a * b in f32, rounded once: f64 holds the product exactly, and the sum unless 2^29 apart."""
    return _flushed((acc.astype("f8") + a.astype("f8") * b.astype("f8")).astype("f4"))


def _rounded(a: Array) -> Array:
    """f32 as bfloat bits, nearest even; subnormals give zero, NaNs become quiet."""
    bits = _flushed(a).view("u4").astype("u8")
    result = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("u2")
    nan = a != a
    result[nan] = (bits[nan] >> 16).astype("u2") | 0x40
    return result


_BF16 = (("avx512bf16",),)
_BF16_256 = (("avx512bf16", "avx512vl"),)


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512bf16.dpbf16ps.512", f32.vec(16), (f32.vec(16), bf16.vec(32), bf16.vec(32)), _BF16),
    Form("llvm.x86.avx512bf16.dpbf16ps.256", f32.vec(8), (f32.vec(8), bf16.vec(16), bf16.vec(16)), _BF16_256),
)
def vdpbf16ps(acc: Array, a: Array, b: Array) -> Array:
    """acc + two products of bfloats, per f32 lane: the odd one is added first, each rounded to f32."""
    x, y = _widened(a), _widened(b)
    return _multiply_add(_multiply_add(_flushed(acc), x[1::2], y[1::2]), x[0::2], y[0::2])


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512bf16.cvtneps2bf16.512", bf16.vec(16), (f32.vec(16),), _BF16),
    Form("llvm.x86.avx512bf16.cvtneps2bf16.256", bf16.vec(8), (f32.vec(8),), _BF16_256),
)
def vcvtneps2bf16(a: Array) -> Array:
    """f32 to bfloat, nearest even; subnormals give zero."""
    return _rounded(a)


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512bf16.cvtne2ps2bf16.512", bf16.vec(32), (f32.vec(16), f32.vec(16)), _BF16),
    Form("llvm.x86.avx512bf16.cvtne2ps2bf16.256", bf16.vec(16), (f32.vec(8), f32.vec(8)), _BF16_256),
)
def vcvtne2ps2bf16(high: Array, low: Array) -> Array:
    """Two vectors of f32 to one of bfloat; the second operand gives the low half."""
    n = len(low)
    result = _rounded(low).repeat(2)  # an array of the right size
    result[:n], result[n:] = _rounded(low), _rounded(high)
    return result


# ---------------------------------------------------------------------- x86: exponents, permutations
def _scalef(width: int, t: Type, mask: Type, rounding: bool) -> Form:
    suffix = "ps" if t.element is f32 else "pd"
    trailing = (
        (t, 0),
        (mask, -1),
        *(((i32, 4),) if rounding else ()),
    )  # source of masked lanes; mask; current rounding
    needs = (("avx512f",),) if width == 512 else (("avx512f", "avx512vl"),)
    return Form(f"llvm.x86.avx512.mask.scalef.{suffix}.{width}", t, (t, t), needs, trailing)


@_instruction("x86_64", _scalef(512, f32.vec(16), i16, True), _scalef(256, f32.vec(8), i8, False), mnemonic="vscalefps")
def vscalefps(a: Array, b: Array) -> Array:
    """a * 2^floor(b), also where 2^floor(b) alone would over- or underflow."""
    return (a.astype("f8") * 2.0 ** (b.astype("f8") // 1)).astype("f4")


@_instruction("x86_64", _scalef(512, f64.vec(8), i8, True), mnemonic="vscalefpd")
def vscalefpd(a: Array, b: Array) -> Array:
    """a * 2^floor(b) in f64."""
    return a * 2.0 ** (b // 1)


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512.rcp14.ps.512", f32.vec(16), (f32.vec(16),), (("avx512f",),), ((f32.vec(16), 0), (i16, -1))),
    error=2.0**-14,
)
def vrcp14ps(a: Array) -> Array:
    """1 / a to 14 bits."""
    return 1 / a


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512.permvar.sf.512", f32.vec(16), (f32.vec(16), i32.vec(16)), (("avx512f",),)),
    Form("llvm.x86.avx2.permps", f32.vec(8), (f32.vec(8), i32.vec(8)), (("avx2",),)),
)
def vpermps(a: Array, index: Array) -> Array:
    """a[index] in every lane: a table of 16 (8) floats; higher bits of the index are ignored."""
    return a[index & (len(a) - 1)]


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512.permvar.si.512", i32.vec(16), (i32.vec(16), i32.vec(16)), (("avx512f",),)),
    Form("llvm.x86.avx2.permd", i32.vec(8), (i32.vec(8), i32.vec(8)), (("avx2",),)),
    # LLVM sees through permutations of integers and may print the float form
    mnemonic="vperm",
)
def vpermd(a: Array, index: Array) -> Array:
    """a[index] in every lane, integers."""
    return a[index & (len(a) - 1)]


@_instruction(
    "x86_64", Form("llvm.x86.avx512.permvar.qi.512", i8.vec(64), (i8.vec(64), i8.vec(64)), (("avx512vbmi",),))
)
def vpermb(a: Array, index: Array) -> Array:
    """a[index] in every byte: a table of 64."""
    return a[index & (len(a) - 1)]


@_instruction(
    "x86_64", Form("llvm.x86.avx512.permvar.hi.512", i16.vec(32), (i16.vec(32), i16.vec(32)), (("avx512bw",),))
)
def vpermw(a: Array, index: Array) -> Array:
    """a[index] in every 16-bit lane: a table of 32."""
    return a[index & (len(a) - 1)]


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512.vpermi2var.ps.512", f32.vec(16), (f32.vec(16), i32.vec(16), f32.vec(16)), (("avx512f",),)),
    mnemonic="vperm",  # vpermi2ps or vpermt2ps, by which register is overwritten
)
def vpermi2ps(low: Array, index: Array, high: Array) -> Array:
    """A table of 32 floats in two registers, looked up by the low five bits of the index."""
    pick = index & (2 * len(low) - 1)
    result, other = low[pick % len(low)], high[pick % len(low)]
    result[pick >= len(low)] = other[pick >= len(low)]
    return result


@_instruction(
    "x86_64",
    Form("llvm.x86.avx512.pshuf.b.512", i8.vec(64), (i8.vec(64), i8.vec(64)), (("avx512bw",),)),
    Form("llvm.x86.avx2.pshuf.b", i8.vec(32), (i8.vec(32), i8.vec(32)), (("avx2",),)),
)
def vpshufb(a: Array, index: Array) -> Array:
    """Within each 16 bytes: a[index & 15], or 0 where the index is negative; a table of 16 per 128-bit part."""
    start = index.astype("i8").cumsum() * 0 + (a.astype("i8") * 0 + 1).cumsum() - 1  # 0, 1, 2 …
    result = a[start // 16 * 16 + (index & 15)]
    result[index < 0] = 0
    return result


# ---------------------------------------------------------------------- x86: tiles
def tile_configuration(shapes: Mapping[int, tuple[int, int]]) -> bytes:
    """The 64 bytes that `ldtilecfg` reads: rows (at most 16) and bytes per row (at most 64) of each tile."""
    rows, row_bytes = bytearray(16), [0] * 16
    for tile, (count, size) in shapes.items():
        if not (0 <= tile < 8 and 0 < count <= 16 and 0 < size <= 64):
            raise ValueError(
                f"ldtilecfg: tiles must be 0 … 7 of 16 rows x 64 bytes at most, got {tile}: {count} x {size}."
            )
        rows[tile], row_bytes[tile] = count, size
    return struct.pack("<BB14x16H16s", 1, 0, *row_bytes, bytes(rows))


@_tile("llvm.x86.ldtilecfg", (ptr,))
def ldtilecfg(configuration: Array) -> Array:
    """Sets the shapes of all tiles from 64 bytes (see `tile_configuration`) and zeroes them."""
    return configuration


@_tile("llvm.x86.tilerelease", ())
def tilerelease() -> None:
    """Gives the tiles up, so that the system need not save them."""


@_tile("llvm.x86.tilezero", (i8,))
def tilezero(tile: Array) -> Array:
    """tile = 0."""
    return tile * 0


@_tile("llvm.x86.tileloadd64", (i8, ptr, i64))
def tileloadd(memory: Array) -> Array:
    """tile = rows from memory, `stride` bytes apart."""
    return memory


@_tile("llvm.x86.tilestored64", (i8, ptr, i64))
def tilestored(tile: Array) -> Array:
    """Rows to memory, `stride` bytes apart."""
    return tile


def _tile_dot(acc: Array, a: Array, b: Array) -> Array:
    """acc [M, N] i32 + a [M, 4K] bytes times b [K, 4N], in which byte j of each four belongs to row 4k + j; wraps."""
    m, n, k = len(a), acc.shape[1], len(b)
    left = a.astype("i8").reshape(m, 4 * k)
    right = b.astype("i8").reshape(k, n, 4).transpose(0, 2, 1).reshape(4 * k, n)
    return (acc + left @ right).astype("i4")


@_tile("llvm.x86.tdpbssd", (i8, i8, i8), "amx-int8")
def tdpbssd(acc: Array, a: Array, b: Array) -> Array:
    """acc += a b, signed bytes times signed bytes."""
    return _tile_dot(acc, a, b)


@_tile("llvm.x86.tdpbsud", (i8, i8, i8), "amx-int8")
def tdpbsud(acc: Array, a: Array, b: Array) -> Array:
    """acc += a b, signed bytes times unsigned bytes."""
    return _tile_dot(acc, a, b.view("u1"))


@_tile("llvm.x86.tdpbusd", (i8, i8, i8), "amx-int8")
def tdpbusd(acc: Array, a: Array, b: Array) -> Array:
    """acc += a b, unsigned bytes times signed bytes."""
    return _tile_dot(acc, a.view("u1"), b)


@_tile("llvm.x86.tdpbuud", (i8, i8, i8), "amx-int8")
def tdpbuud(acc: Array, a: Array, b: Array) -> Array:
    """acc += a b, unsigned bytes times unsigned bytes."""
    return _tile_dot(acc, a.view("u1"), b.view("u1"))


@_tile("llvm.x86.tdpbf16ps", (i8, i8, i8), "amx-bf16")
def tdpbf16ps(acc: Array, a: Array, b: Array) -> Array:
    """acc [M, N] f32 += a [M, 2K] bfloat times b [K, 2N] of pairs: even and odd products are summed apart from zero,
    in the order of k and rounded to f32 each time; then both sums are added, then acc."""
    even = odd = acc * 0
    x, y = _widened(a), _widened(b)
    for k in range(len(b)):
        even = _multiply_add(even, x[:, 2 * k, None], y[k, None, 0::2])
        odd = _multiply_add(odd, x[:, 2 * k + 1, None], y[k, None, 1::2])
    return _flushed(_flushed(acc) + _flushed(even + odd))


# ---------------------------------------------------------------------- AArch64
def _neon(
    name: str, operand: Type, *needs: str, result: Type = i32.vec(4), second: Type | None = None, types: bool = True
) -> Form:
    suffix = f".{result.suffix}.{operand.suffix}" if types else ""
    return Form(f"llvm.aarch64.neon.{name}{suffix}", result, (result, operand, second or operand), (("neon", *needs),))


@_instruction("aarch64", Form("llvm.fma.v4f32", f32.vec(4), (f32.vec(4),) * 3, (("neon",),)), mnemonic="fmla")
def fmla(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once."""
    return (a.astype("f8") * b.astype("f8") + c.astype("f8")).astype("f4")


@_instruction("aarch64", _neon("sdot", i8.vec(16), "dotprod"))
def sdot(acc: Array, a: Array, b: Array) -> Array:
    """acc + the sum of four products of signed bytes, per i32 lane; wraps."""
    return (acc + (a.astype("i8") * b.astype("i8")).reshape(-1, 4).sum(-1)).astype("i4")


@_instruction("aarch64", _neon("udot", u8.vec(16), "dotprod"))
def udot(acc: Array, a: Array, b: Array) -> Array:
    """acc + the sum of four products of unsigned bytes, per i32 lane; wraps."""
    return (acc + (a.astype("i8") * b.astype("i8")).reshape(-1, 4).sum(-1)).astype("i4")


@_instruction("aarch64", _neon("usdot", u8.vec(16), "i8mm", second=i8.vec(16)))
def usdot(acc: Array, a: Array, b: Array) -> Array:
    """acc + the sum of four products unsigned byte x signed byte, per i32 lane; wraps."""
    return (acc + (a.astype("i8") * b.astype("i8")).reshape(-1, 4).sum(-1)).astype("i4")


@_instruction("aarch64", _neon("smmla", i8.vec(16), "i8mm"))
def smmla(acc: Array, a: Array, b: Array) -> Array:
    """acc [2, 2] + a [2, 8] times the transpose of b [2, 8], signed bytes; wraps."""
    product = a.astype("i8").reshape(2, 8) @ b.astype("i8").reshape(2, 8).T
    return (acc + product.reshape(-1)).astype("i4")


@_instruction("aarch64", _neon("bfdot", bf16.vec(8), "bf16", result=f32.vec(4)))
def bfdot(acc: Array, a: Array, b: Array) -> Array:
    """acc + two products of bfloats, per f32 lane; how it rounds depends on the machine's FPCR.EBF."""
    x, y = _widened(a), _widened(b)
    return acc + (x[0::2] * y[0::2] + x[1::2] * y[1::2])


@_instruction("aarch64", _neon("bfmmla", bf16.vec(8), "bf16", result=f32.vec(4), types=False))
def bfmmla(acc: Array, a: Array, b: Array) -> Array:
    """acc [2, 2] + a [2, 4] times the transpose of b [2, 4], bfloats."""
    x, y = _widened(a).reshape(2, 4), _widened(b).reshape(2, 4)
    return acc + (x @ y.T).reshape(-1)


@_instruction(
    "aarch64", Form("llvm.aarch64.neon.tbl1.v16i8", i8.vec(16), (i8.vec(16), i8.vec(16)), (("neon",),)), mnemonic="tbl"
)
def tbl(a: Array, index: Array) -> Array:
    """a[index] in every byte, 0 where the index is not below 16."""
    result = a[index & 15]
    result[index.view("u1") > 15] = 0
    return result
