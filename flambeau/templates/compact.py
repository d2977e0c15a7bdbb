"""Where a mask is true: the positions of its non-zero bytes, in order.

    lowered = compact(n)       # inputs: mask [n] bytes; outputs: positions int64 [count]

Two launches: every block counts its own, then writes behind the counts of the blocks before it. May not know: tensors.
Entry: `compact`.
"""

from __future__ import annotations

from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.types import Type, i64, ptr, u8, u64
from flambeau.templates.launch import Launch, Lowered, Recipe

BLOCK = 16384  # bytes that one unit looks through
LANES = 8
COUNT, LENGTH = 0, 2  # positions in the parameter block
BITS = Type("i8", 1, "u")


def compact(n: int) -> Lowered:
    """Launches over a mask of n bytes."""
    blocks = -(-n // BLOCK)
    params = (blocks, 4, n)
    return Lowered(
        (
            Launch(Recipe("compact_count", (), build_count), (0, 2), params),
            Launch(Recipe("compact_fill", (), build_fill), (0, 1, 2), params),
        ),
        (max(64, blocks * 8),),
    )


def _frame(target) -> tuple[Module, Function, list[Value]]:
    module = Module(vector_bits=max(256, target.vector_bytes * 8))
    k = module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])
    return module, k, k.args


def _vectors(k: Function, mask: Value, n: Value, unit: Value, body) -> None:
    """body(position, lanes that are set as <8 x i1>) over one block."""
    low = unit * BLOCK
    high = k.minimum(low + BLOCK, n)
    with k.range(low, high, LANES) as x:
        inside = k.tail_mask(high - x, LANES)
        body(x, k.load(mask, u8.vec(LANES), x, mask=inside).ne(0) & inside)


def _count(k: Function, lanes: Value) -> Value:
    bits = k.emit(BITS, f"bitcast {lanes.type.text} {lanes.ref} to i8").to(u64)
    return k.intrinsic("llvm.ctpop.i64", u64, bits).to(i64)


def build_count(target) -> Module:
    """slots: mask, counts."""
    module, k, (slots, begin, end, _) = _frame(target)
    mask, counts, block = (k.load(slots, ptr, i) for i in range(3))
    n = k.load(block, i64, LENGTH)
    with k.range(begin, end) as unit:
        total = k.var(i64, 0)
        _vectors(k, mask, n, unit, lambda x, lanes: total.set(total.get() + _count(k, lanes)))
        k.store(counts, total.get(), unit)
    k.ret()
    return module


def build_fill(target) -> Module:
    """slots: mask, positions, counts."""
    module, k, (slots, begin, end, _) = _frame(target)
    mask, positions, counts, block = (k.load(slots, ptr, i) for i in range(4))
    n = k.load(block, i64, LENGTH)
    with k.range(begin, end) as unit:
        at = k.var(i64, 0)
        with k.range(0, unit) as before:
            at.set(at.get() + k.load(counts, i64, before))

        def write(x, lanes):
            found = k.iota(i64.vec(LANES)) + k.splat(x, LANES)
            to = k.offset(positions, at.get(), i64)
            module.declare(f"llvm.masked.compressstore.v{LANES}i64", "void", [found.type.text, "ptr", lanes.type.text])
            k.line(
                f"call void @llvm.masked.compressstore.v{LANES}i64({found.type.text} {found.ref}, ptr align 8 {to.ref}, "
                f"{lanes.type.text} {lanes.ref})"
            )
            at.set(at.get() + _count(k, lanes))

        _vectors(k, mask, n, unit, write)
    k.ret()
    return module


__all__ = ["compact"]
