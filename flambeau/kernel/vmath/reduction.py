"""Reduction of angles: x minus the nearest multiple of pi or pi / 2, right for every finite x.

    r, _, n = reduce(k, a, halves=1, centre=0, low=False)    # a = |x| = n pi + r

Moderate arguments: three-part Cody & Waite (1980) with fma: a - n C1 is exact, each further step rounds once.
Huge ones (a branch no vector without them takes): Payne & Hanek (1983) in integers, one function per module.
May not know: which function asks.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Value
from flambeau.kernel.types import Type, f32, f64, i64, ptr, u64
from flambeau.kernel.vmath.arithmetic import bits, fast_two_sum, integer_type, pick, two_product, two_sum

u128 = Type("i128", 16, "u")

# pi in three parts: 24 bits each (f32), 53 bits each (f64)
PI_F32 = tuple(float.fromhex(t) for t in ("0x1.921fb6p+1", "-0x1.777a5cp-24", "-0x1.ee59dap-49"))
PI_F64 = tuple(float.fromhex(t) for t in ("0x1.921fb54442d18p+1", "0x1.1a62633145c07p-53", "-0x1.f1976b7ed8fbcp-109"))
# Below, n C2 and n C3 stay exact enough: checked on every f32, and at the f64 closest to multiples of pi / 2.
HUGE = (131072.0, 2.0**30)
# Bits of 1 / (2 pi) behind 64 zeros
INVERSE_TURN = (
    0x0,
    0x28BE60DB9391054A,
    0x7F09D5F47D4D3770,
    0x36D8A5664F10E410,
    0x7F9458EAF7AEF158,
    0x6DC91B8E909374B8,
    0x1924BBA82746487,
    0x3F877AC72C4A69CF,
    0xBA208D7D4BAED121,
    0x3A671C09AD17DF90,
    0x4E64758E60D4CE7D,
    0x272117E2EF7E4A0E,
    0xC7FE25FFF7816603,
    0xFBCBC462D6829B47,
    0xDB4D9FB3C9F2C26D,
    0xD3D18FD9A797FA8B,
    0x5D49EEB1FAF97C5E,
    0xCF41CE7DE294A4BA,
    0x9AFED7EC47E35742,
    0x1580CC11BF1EDAEA,
    0xFC33EF0826BD0D87,
    0x6A78E45857B986C2,
    0x19666157C5281A10,
)


def reduce(k: Function, a: Value, *, halves: int, centre: int, low: bool) -> tuple[Value, Value, Value]:
    """(r, rest, n): a = (n + centre / 2) unit + r + rest, unit = pi / halves, n an integer of a's width (its low bits count).

    a >= 0; |r| <= unit / 2; infinity and NaN give NaN. `rest`, at most half an ulp of r, is left at 0 unless `low`."""
    single = a.type.element is f32
    c1, c2, c3 = (c / halves for c in (PI_F32 if single else PI_F64))
    magic = 1.5 * 2.0 ** (23 if single else 52)
    per_unit = halves / 3.141592653589793
    if centre:  # n + 1/2 needs a bit below the integer: round first, add the half after
        shifted = k.fma(a, per_unit, -0.5) + magic
        count = (shifted - magic) + 0.5
    else:
        shifted = k.fma(a, per_unit, magic)
        count = shifted - magic
    first = k.fma(count, -c1, a)
    if low:
        product, product_low = two_product(k, count, k.const(a.type, -c2))
        high, rest = two_sum(first, product)
        r, rest = fast_two_sum(high, rest + k.fma(count, -c3, product_low))
    else:
        r = k.fma(count, -c3, k.fma(count, -c2, first))
        rest = k.const(a.type, 0.0)
    result = k.var(a.type, r)
    remaining = k.var(a.type, rest)
    number = k.var(integer_type(a), bits(shifted))
    huge = k.any(a > pick(a, *HUGE))
    with k.when(huge):
        lanes = max(1, a.type.lanes)
        memory = k.stack(lanes * 24)
        angles, lows, numbers = memory, k.offset(memory, lanes * 8), k.offset(memory, lanes * 16)
        wide = f64.like(a.type)
        k.store(angles, a.to(f64))
        k.call(_payne_hanek(k), angles, lows, numbers, lanes, halves, centre)
        far = a > pick(a, *HUGE)
        exact = k.load(angles, wide)
        single_r = exact.to(a.type.element)
        left = k.load(lows, wide)
        if single:
            left = exact - single_r.to(f64)
        result.set(k.select(far, single_r, result.get()))
        if low:
            remaining.set(k.select(far, left.to(a.type.element), remaining.get()))
        number.set(k.select(far, k.load(numbers, i64.like(a.type)).to(number.type.element), number.get()))
    return result.get(), remaining.get(), number.get()


def _payne_hanek(k: Function) -> Function:
    """The module's function that replaces `lanes` angles by their remainders and also writes low parts and counts."""
    name = "vmath_payne_hanek"
    for f in k.module.functions:
        if f.name == name:
            return f
    table = k.module.table("vmath_inverse_turn", u64, INVERSE_TURN)
    params = [("angles", ptr), ("lows", ptr), ("numbers", ptr), ("lanes", i64), ("halves", i64), ("centre", i64)]
    f = k.module.function(name, params, internal=True)
    angles, lows, numbers, lanes, halves, centre = f.args
    words = Value(f, ptr, table)
    with f.range(0, lanes) as lane:
        x = f.load(angles, f64, lane)
        pattern = x.bitcast(i64)
        exponent = (pattern >> 52) & 0x7FF
        finite = (exponent < 0x7FF) & (exponent > 1023)  # smaller ones are not wanted, NaN and infinity give NaN
        exponent = f.select(finite, exponent, 1024)
        mantissa = ((pattern & ((1 << 52) - 1)) | (1 << 52)).to(u128)
        # x / (2 pi) modulo 1: mantissa times the 192 bits of 1 / (2 pi) that start at the first fractional weight
        start = exponent - (1023 + 52 - 64)
        word, shift = start >> 6, (start & 63).to(u64)
        w = [f.load(words, u64, word + i) for i in range(4)]
        w = [((w[i].to(u128) << 64) | w[i + 1].to(u128)) << shift.to(u128) for i in range(3)]
        w = [(v >> 64) for v in w]  # three 64-bit windows, the most significant first
        turn = ((mantissa * w[0]) << 64) + mantissa * w[1] + ((mantissa * w[2]) >> 64)
        turn = turn - (centre.to(u128) << 126)  # x / pi - 1/2 if unit = pi; centre is used with halves = 1 only
        bit = halves.to(u128)  # halves 1: 2 units a turn; 2: 4 units a turn
        unit = turn << bit
        n = (turn >> (f.const(u128, 128) - bit)) + (unit >> 127)
        negative = (unit >> 127).ne(0)
        size = f.select(negative, f.const(u128, 0) - unit, unit)
        zeros = f.emit(u128, f"call i128 @llvm.ctlz.i128(i128 {size.ref}, i1 false)")
        f.module.declare("llvm.ctlz.i128", "i128", ["i128", "i1"])
        size = size << (zeros & 127)
        high = (size >> 75).to(i64).to(f64)
        low = ((size >> 22) & ((1 << 53) - 1)).to(i64).to(f64) * 2.0**-53
        scale = ((f.const(i64, 1023 - 53) - zeros.to(i64)) << 52).bitcast(f64) * f.select(
            halves.eq(2), 0.5, f.const(f64, 1.0)
        )
        scale = f.select(negative, -scale, scale)
        product = high * PI_F64[0]
        error = f.fma(high, PI_F64[0], -product) + f.fma(low, PI_F64[0], high * PI_F64[1])
        r = product + error
        f.store(angles, f.select(finite, r * scale, float("nan")), lane)
        f.store(lows, (error - (r - product)) * scale, lane)
        f.store(numbers, n.to(i64), lane)
    f.ret()
    return f
