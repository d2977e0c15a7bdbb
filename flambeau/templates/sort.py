"""Sorting and selecting along a dim: stable, deterministic, NaN largest.

    # -> values and indices of ranks low … high - 1
    lowered = sort(in_spec, dim, low=0, high=n, descending=False, target=target, threads=threads)
    lowered = median(in_spec, dim, ignore_nan=False, ...)

Every element becomes an unsigned key whose order is that of the values (-0 equals 0, all NaN are one key above infinity;
descending: inverted). Up to 32 bits, key and position share one 64-bit word, so that no two are equal and any way of sorting is stable.

ranks    up to 128 elements: each one's rank is the number of smaller words, counted a vector at a time
radix    more: least digit first, 8 bits at a time; digits that are equal everywhere cost no pass (Knuth, TAOCP 5.2.5)
select   some ranks of many: most significant digit first, keeping the bucket that holds the last wanted rank

Rows are units; a row is worked on by one thread in scratch memory. May not know: tensors. Entry: `sort`, `median`.
"""

from __future__ import annotations

from flambeau.core.dtype import BY_NAME
from flambeau.core.spec import Spec
from flambeau.kernel.dsl import Function, Module, Value, Variable
from flambeau.kernel.types import Type, i64, ptr, u8, u16, u32, u64
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.rows import row_bases, rows_of

RANKS_LENGTH = 128  # below, counting beats distributing (measured on AVX-512: they meet between 100 and 200)
SELECT_SHARE = 4  # more than n / 4 ranks: sort everything
GRAIN_ELEMENTS = 4096
RADIX = 256
HEAD = 6  # block: total, grain, length, low, high, bytes of scratch a thread; then steps along the row, entries
UNSIGNED = {1: u8, 2: u16, 4: u32, 8: u64}
INFINITY_BITS = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}


def sort(spec: Spec, dim: int, *, low: int, high: int, descending: bool, target, threads: int) -> Lowered:
    """Launches that give the elements of ranks low … high - 1 along `dim`, in order, and their positions (contiguous outputs)."""
    n = spec.shape[dim] if spec.ndim else 1
    if n <= RANKS_LENGTH:
        method = "ranks"
    else:
        method = "select" if (high - low) * SELECT_SHARE <= n and (low == 0 or high == low + 1) else "radix"
    mode = "single" if method == "select" and high == low + 1 else "range"
    return _lowered(spec, dim, n, method, mode, low, high, descending, target, threads)


def median(spec: Spec, dim: int, *, ignore_nan: bool, target, threads: int) -> Lowered:
    """Launches that give the lower median along `dim` and its position: the first NaN if there is one, or without regard to NaN."""
    n = spec.shape[dim] if spec.ndim else 1
    mode = "nanmedian" if ignore_nan else "median"
    return _lowered(spec, dim, n, "ranks" if n <= RANKS_LENGTH else "select", mode, 0, 1, False, target, threads)


def _lowered(
    spec: Spec, dim: int, n: int, method: str, mode: str, low: int, high: int, descending: bool, target, threads: int
) -> Lowered:
    shape = tuple(high - low if d == dim else size for d, size in enumerate(spec.shape))
    out = Spec.of(shape, spec.dtype)
    rows = rows_of(spec.shape, dim, (spec.strides, out.strides, out.strides))
    if rows.count == 0 or n == 0 or high == low:
        return Lowered(())
    item = 8 if spec.dtype.itemsize <= 4 else 16
    per_thread = (2 * (n + 16) * item + spec.dtype.itemsize * RADIX * 8 + 63) // 64 * 64
    params = (rows.count, max(1, GRAIN_ELEMENTS // n), n, low, high, per_thread, *rows.steps, *rows.params())
    few = high - low <= RANKS_LENGTH
    recipe = Recipe(
        "sort", (spec.dtype.name, method, mode, descending, few, rows.steps[0] == 1, len(rows.entries)), build_sort
    )
    return Lowered((Launch(recipe, (0, 1, 2, 3), params),), (per_thread * threads,))


class _Items:
    """(key, position) pairs in scratch memory: one 64-bit word, or two where the key fills one."""

    def __init__(self, k: Function, dtype: str):
        self.k = k
        self.bits = BY_NAME[dtype].itemsize * 8
        self.packed = self.bits <= 32
        self.shift = 32 if self.packed else 0  # where the key begins in the first word

    def load(self, p: Value, i: Value) -> tuple[Value, ...]:
        k = self.k
        if self.packed:
            return (k.load(p, u64, i),)
        return k.load(p, u64, i * 2), k.load(p, u64, i * 2 + 1)

    def store(self, p: Value, i: Value, item: tuple[Value, ...]) -> None:
        if self.packed:
            self.k.store(p, item[0], i)
            return
        self.k.store(p, item[0], i * 2)
        self.k.store(p, item[1], i * 2 + 1)

    def make(self, key: Value, position: Value) -> tuple[Value, ...]:
        key = key.to(u64)
        return ((key << 32) | position.to(u64),) if self.packed else (key, position.to(u64))

    def position(self, item: tuple[Value, ...]) -> Value:
        return ((item[0] & 0xFFFFFFFF) if self.packed else item[1]).to(i64)

    def digit(self, item: tuple[Value, ...], number: int) -> Value:
        """Digit `number` of the key, 0 the least."""
        return (item[0].lshr(self.shift + 8 * number) & (RADIX - 1)).to(i64)

    @property
    def digits(self) -> int:
        return self.bits // 8


def key_of(k: Function, x: Value, dtype: str, descending: bool) -> Value:
    """Bits of an element (unsigned) as a key: unsigned order of keys is the order of values."""
    d = BY_NAME[dtype]
    bits = d.itemsize * 8
    sign = 1 << (bits - 1)
    if d.kind == "i":
        x = x ^ sign
    elif d.kind == "f":
        size = x & (sign - 1)
        ordered = k.select((x & sign).ne(0), ~x, x | sign)
        ordered = k.select(size.eq(0), sign, ordered)
        x = k.select(size > INFINITY_BITS[dtype], k.const(x.type, (1 << bits) - 1), ordered)
    return ~x if descending else x


class _Sorter:
    """Emits the kernel of one recipe."""

    def __init__(
        self, target, dtype: str, method: str, mode: str, descending: bool, few: bool, unit: bool, entries: int
    ):
        self.module = Module(vector_bits=max(256, target.vector_bytes * 8))
        self.k = k = self.module.function("kernel", [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)])
        self.dtype, self.method, self.mode, self.descending, self.few, self.unit, self.entries = (
            dtype,
            method,
            mode,
            descending,
            few,
            unit,
            entries,
        )
        self.lanes = max(4, target.vector_bytes // 8)
        self.raw: Type = UNSIGNED[BY_NAME[dtype].itemsize]
        self.items = _Items(k, dtype)
        self.input, self.values, self.indices, self.scratch = (k.load(k.args[0], ptr, i) for i in range(4))
        block = k.load(k.args[0], ptr, 4)
        self.block = block
        self.length, self.low, self.high, per_thread = (k.load(block, i64, i) for i in (2, 3, 4, 5))
        self.steps = [k.load(block, i64, HEAD + j) for j in range(3)]
        item = 8 if self.items.packed else 16
        mine = k.offset(self.scratch, k.args[3] * per_thread)
        area = (self.length + 16) * item
        self.first, self.second = mine, k.offset(mine, area)
        self.counts = k.offset(self.second, area)

    def build(self) -> Module:
        k = self.k
        with k.range(k.args[1], k.args[2]) as row:
            self.bases = row_bases(k, self.block, row, HEAD + 3, self.entries, 3)
            if self.method == "ranks":
                self._fill_keys()
                low, high = self._wanted(self._count_nan_keys)
                self._store_by_rank(self.first, self.length, low, high, lambda i: i)
            elif self.method == "radix":
                self._fill_items()
                source = self._radix(self.first, self.second, self.length)
                self._store_run(source, self.low, self.high)
            else:
                self._fill_items()
                low, high = self._wanted(self._count_nan_items)
                self._select(low, high)
        k.ret()
        return self.module

    # ------------------------------------------------------------------ in and out
    def _element(self, i: Value) -> Value:
        at = self.bases[0] + (i if self.unit else i * self.steps[0])
        return self.k.load(self.input, self.raw, at)

    def _put(self, rank: Value, position: Value) -> None:
        """The element at `position` is the one of this rank (counted from the lowest wanted one)."""
        k = self.k
        k.store(self.values, self._element(position), self.bases[1] + rank * self.steps[1])
        k.store(self.indices, position, self.bases[2] + rank * self.steps[2])

    def _vector_keys(self, x: Value, mask: Value | None) -> Value:
        k, n = self.k, self.lanes
        if self.unit:
            v = k.load(self.input, self.raw.vec(n), self.bases[0] + x, mask=mask)
        else:
            where = k.iota(i64.vec(n)) * k.splat(self.steps[0], n) + k.splat(self.bases[0] + x * self.steps[0], n)
            v = k.gather(self.input, self.raw, where, mask=mask)
        return key_of(k, v, self.dtype, self.descending).to(u64)

    def _fill_keys(self) -> None:
        """The row's keys (with positions, where they fit) as 64-bit words; the last vector is filled up with the largest word."""
        k, n = self.k, self.lanes
        with k.range(0, self.length, n) as x:
            mask = k.tail_mask(self.length - x, n)
            words = self._vector_keys(x, mask)
            if self.items.packed:
                words = (words << 32) | (k.iota(i64.vec(n)) + k.splat(x, n)).to(u64)
            k.store(self.first, k.select(mask, words, (1 << 64) - 1), x)

    def _fill_items(self) -> None:
        k, n = self.k, self.lanes
        if not self.items.packed:
            with k.range(0, self.length) as i:
                self.items.store(
                    self.first, i, self.items.make(key_of(k, self._element(i), self.dtype, self.descending), i)
                )
            return
        with k.range(0, self.length, n) as x:  # the area has room for a whole vector more
            mask = k.tail_mask(self.length - x, n)
            words = (self._vector_keys(x, mask) << 32) | (k.iota(i64.vec(n)) + k.splat(x, n)).to(u64)
            k.store(self.first, words, x)

    def _wanted(self, count_nan) -> tuple[Value, Value]:
        """The ranks to give."""
        k = self.k
        if self.mode in ("range", "single"):
            return self.low, self.high
        nan = count_nan() if BY_NAME[self.dtype].kind == "f" else k.const(i64, 0)
        numbers = self.length - nan
        if self.mode == "nanmedian":
            rank = k.select(numbers.eq(0), 0, (numbers - 1) // 2)
        else:
            rank = k.select(nan.eq(0), (self.length - 1) // 2, numbers)
        return rank, rank + 1

    def _count_nan_keys(self) -> Value:
        return self._count_nan(lambda i: self.k.load(self.first, u64, i))

    def _count_nan_items(self) -> Value:
        return self._count_nan(lambda i: self.items.load(self.first, i)[0])

    def _count_nan(self, word) -> Value:
        """How many keys are the largest: NaN has it, and no number."""
        k, items = self.k, self.items
        count = k.var(i64, 0)
        with k.range(0, self.length) as i:
            count.set(count.get() + word(i).lshr(items.shift).eq((1 << items.bits) - 1).to(i64))
        return count.get()

    # ------------------------------------------------------------------ ranks by counting
    def _store_by_rank(self, words: Value, count: Value, low: Value, high: Value, position) -> None:
        """Rank every word by the number of smaller ones, and put those of ranks low … high - 1."""
        k, n = self.k, self.lanes
        with k.range(0, count) as i:
            word = k.load(words, u64, i)
            mine = k.splat(word, n)
            smaller = k.var(i64.vec(n), 0)
            with k.range(0, count, n) as x:
                others = k.load(words, u64.vec(n), x)
                less = others < mine
                if not self.items.packed:
                    before = (k.iota(i64.vec(n)) + k.splat(x, n)) < k.splat(i, n)
                    less = less | (others.eq(mine) & before)
                smaller.set(smaller.get() + less.to(u64).to(i64))
            rank = k.reduce(smaller.get(), lambda a, b: a + b)
            with k.when((rank >= low) & (rank < high)):
                self._put(rank - low, position(i))

    # ------------------------------------------------------------------ least digit first
    def _radix(self, source: Value, target: Value, count: Value) -> Value:
        """Sort `count` items; returns where they are then."""
        k, items = self.k, self.items
        digits = items.digits
        with k.range(0, digits * RADIX) as i:
            k.store(self.counts, k.const(i64, 0), i)
        with k.range(0, count) as i:
            item = items.load(source, i)
            for d in range(digits):
                self._count_up(items.digit(item, d) + d * RADIX)
        here, there = k.var(ptr, source), k.var(ptr, target)
        for d in range(digits):
            table = k.offset(self.counts, d * RADIX * 8)
            same = k.load(table, i64, items.digit(items.load(here.get(), k.const(i64, 0)), d)).eq(count)
            with k.when(~same):
                self._distribute(here, there, table, d, count)
        return here.get()

    def _count_up(self, slot: Value) -> None:
        k = self.k
        k.store(self.counts, k.load(self.counts, i64, slot) + 1, slot)

    def _distribute(self, here: Variable, there: Variable, table: Value, digit: int, count: Value) -> None:
        k, items = self.k, self.items
        total = k.var(i64, 0)
        with k.range(0, RADIX) as i:
            own = k.load(table, i64, i)
            k.store(table, total.get(), i)
            total.set(total.get() + own)
        source, target = here.get(), there.get()
        with k.range(0, count) as i:
            item = items.load(source, i)
            slot = items.digit(item, digit)
            place = k.load(table, i64, slot)
            k.store(table, place + 1, slot)
            items.store(target, place, item)
        here.set(target)
        there.set(source)

    def _store_run(self, source: Value, low: Value, high: Value) -> None:
        with self.k.range(low, high) as i:
            self._put(i - low, self.items.position(self.items.load(source, i)))

    # ------------------------------------------------------------------ most significant digit first
    def _select(self, low: Value, high: Value) -> None:
        """Narrow the items down to those that share the key of rank high - 1; what is smaller goes to the front of `chosen`.

        The candidates move down inside `first`; the chosen ones collect in `second`.
        """
        k, items = self.k, self.items
        candidates, rank, chosen = k.var(i64, self.length), k.var(i64, high - 1), k.var(i64, 0)
        collecting = self.mode == "range"
        for d in range(items.digits - 1, -1, -1):
            with k.when(candidates.get() > 1):
                self._narrow(d, candidates, rank, chosen, collecting)
        if not collecting:
            self._put(k.const(i64, 0), items.position(items.load(self.first, rank.get())))
            return
        at = chosen.get()
        with k.range(0, rank.get() + 1) as i:
            items.store(self.second, at + i, items.load(self.first, i))
        if self.few and items.packed:
            with k.range(high, high + self.lanes) as i:  # fill up the last vector
                k.store(self.second, k.const(u64, (1 << 64) - 1), i)
            self._store_by_rank(self.second, high, low, high, lambda i: items.position(items.load(self.second, i)))
            return
        self._store_run(self._radix(self.second, self.first, high), low, high)

    def _narrow(self, digit: int, candidates: Variable, rank: Variable, chosen: Variable, collecting: bool) -> None:
        k, items = self.k, self.items
        with k.range(0, RADIX) as i:
            k.store(self.counts, k.const(i64, 0), i)
        count = candidates.get()
        with k.range(0, count) as i:
            self._count_up(items.digit(items.load(self.first, i), digit))
        bucket, below = k.var(i64, 0), k.var(i64, 0)
        wanted = rank.get()

        def not_there():
            return below.get() + k.load(self.counts, i64, bucket.get()) <= wanted

        with k.loop_while(not_there):
            below.set(below.get() + k.load(self.counts, i64, bucket.get()))
            bucket.set(bucket.get() + 1)
        mine, kept = bucket.get(), k.var(i64, 0)
        with k.range(0, count) as i:
            item = items.load(self.first, i)
            this = items.digit(item, digit)
            if collecting:
                items.store(self.second, chosen.get(), item)
                chosen.set(chosen.get() + (this < mine).to(i64))
            items.store(self.first, kept.get(), item)
            kept.set(kept.get() + this.eq(mine).to(i64))
        candidates.set(kept.get())
        rank.set(wanted - below.get())


def build_sort(
    target, dtype: str, method: str, mode: str, descending: bool, few: bool, unit: bool, entries: int
) -> Module:
    return _Sorter(target, dtype, method, mode, descending, few, unit, entries).build()
