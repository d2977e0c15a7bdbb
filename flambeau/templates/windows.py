"""Windows over spatial dims: padding, and the adjoint of reading windows (sums of everything that covers a place).

Both kernels see three spatial dims (missing ones have size 1) behind any number of other dims, all by strides.

    pad_lines(x_shape, x_strides, lows, out_shape, rank=2, itemsize=4, value_bits=0)
    window_sums(g_shape, g_strides, out_shape, kernel, stride, padding, dilation, "float32")

May not know: tensors; what the windows are for (convolution, pooling, fold). Entry: `pad_lines`, `window_sums`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.core.layout import contiguous_strides
from flambeau.kernel.dsl import Function, Module, Value
from flambeau.kernel.target import Target
from flambeau.kernel.types import Type, f64, i8, i16, i32, i64, ptr
from flambeau.templates.launch import Launch, Lowered, Recipe
from flambeau.templates.loop_program import MEMORY, REGISTER

ABI = [("slots", ptr), ("begin", i64), ("end", i64), ("tid", i64)]
GRAIN_ELEMENTS = 16384
RAW = {1: i8, 2: i16, 4: i32, 8: i64}

PAD_FIELDS = (
    "units", "grain", "n0", "n1", "n2", "p0", "p1", "p2", "m0", "m1", "m2", "x0", "x1", "x2", "o0", "o1", "o2", "value", "rank",
)  # fmt: skip
SUM_FIELDS = (
    "units", "grain", "n0", "n1", "n2", "k0", "k1", "k2", "w0", "w1", "w2", "s0", "s1", "s2", "d0", "d1", "d2", "p0", "p1", "p2",
    "go0", "go1", "go2", "gk0", "gk1", "gk2", "o0", "o1", "o2", "rank",
)  # fmt: skip


def three(values: Sequence[int], fill: int) -> tuple[int, int, int]:
    """Values of the spatial dims with missing leading ones filled in."""
    values = tuple(values)
    return (fill,) * (3 - len(values)) + values


def batch_entries(shape: Sequence[int], *strides: Sequence[int]) -> tuple[int, ...]:
    """The dims that are not spatial: their number, then size and strides of each, the fastest first."""
    dims = [d for d in reversed(range(len(shape))) if shape[d] != 1]
    return (len(dims), *(v for d in dims for v in (shape[d], *(s[d] for s in strides))))


def batch_offsets(k: Function, block: Value, at: int, place: Value, count: int) -> list[Value]:
    """Element offsets of `count` operands for a place in the batch that `batch_entries` wrote at block[at]."""
    rest = k.var(i64, place)
    offsets = [k.var(i64, 0) for _ in range(count)]
    width = 1 + count
    with k.range(0, k.load(block, i64, at)) as d:
        entry = k.offset(block, d * (8 * width) + 8 * (at + 1))
        size = k.load(entry, i64)
        whole = rest.get() // size
        index = rest.get() - whole * size
        rest.set(whole)
        for i, offset in enumerate(offsets):
            offset.set(offset.get() + index * k.load(entry, i64, 1 + i))
    return [offset.get() for offset in offsets]


# ------------------------------------------------------------------ padding
def build_pad(target: Target, size: int, unit_x: bool, unit_out: bool) -> Module:
    """Slots: x, out, block. A unit is one line of the result; elements outside x get the value (bits of it)."""
    module = Module(target.vector_bytes * 8)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    x, out, block = (k.load(slots, ptr, i) for i in range(3))
    p = {name: k.load(block, i64, i) for i, name in enumerate(PAD_FIELDS)}
    kind = RAW[size]
    lanes = min(16, target.vector_bytes // max(size, 4))
    fill = k.splat(p["value"].to(kind), lanes)
    with k.range(begin, end) as unit:
        rest, y1 = unit // p["m1"], unit % p["m1"]
        place, y0 = rest // p["m0"], rest % p["m0"]
        x_at, out_at = batch_offsets(k, block, len(PAD_FIELDS) - 1, place, 2)
        i0, i1 = y0 - p["p0"], y1 - p["p1"]
        inside = (i0 >= 0) & (i0 < p["n0"]) & (i1 >= 0) & (i1 < p["n1"])
        low = k.select(inside, p["p2"], k.const(i64, 1))
        high = k.select(inside, p["p2"] + p["n2"], k.const(i64, 0))
        source = k.offset(x, x_at + i0 * p["x0"] + i1 * p["x1"] - p["p2"] * p["x2"], kind)
        to = k.offset(out, out_at + y0 * p["o0"] + y1 * p["o1"], kind)
        with k.range(0, p["m2"], lanes) as j:
            lane = k.iota(i64.vec(lanes)) + k.splat(j, lanes)
            tail = lane < k.splat(p["m2"], lanes)
            known = tail & (lane >= k.splat(low, lanes)) & (lane < k.splat(high, lanes))
            if unit_x:
                value = k.load(source, kind.vec(lanes), j, mask=known)
            else:
                value = k.gather(source, kind, lane * k.splat(p["x2"], lanes), mask=known)
            value = k.select(known, value, fill)
            if unit_out:
                k.store(to, value, j, mask=tail)
            else:
                k.scatter(to, value, lane * k.splat(p["o2"], lanes), mask=tail)
    k.ret()
    return module


def pad_lines(
    shape: Sequence[int],
    strides: Sequence[int],
    lows: Sequence[int],
    out_shape: Sequence[int],
    *,
    itemsize: int,
    value_bits: int,
) -> Lowered:
    """Launches that copy operand 0 into operand 1 (contiguous), shifted by `lows` (one per spatial dim) with the value around it.

    Elements of 1 to 8 bytes; 16-byte ones go as a last dim of two.
    """
    rank = len(lows)
    out_strides = contiguous_strides(out_shape)
    lead = len(shape) - rank
    batch_shape, x_batch, out_batch = tuple(shape[:lead]), tuple(strides[:lead]), tuple(out_strides[:lead])
    x_steps, out_steps = tuple(strides[lead:]), tuple(out_strides[lead:])
    if itemsize == 16:
        batch_shape, x_batch, out_batch = (
            (*batch_shape, 2),
            (*(2 * s for s in x_batch), 1),
            (*(2 * s for s in out_batch), 1),
        )
        x_steps, out_steps, itemsize = tuple(2 * s for s in x_steps), tuple(2 * s for s in out_steps), 8
    n, m = three(shape[lead:], 1), three(out_shape[lead:], 1)
    lows, xs, os = three(lows, 0), three(x_steps, 0), three(out_steps, 0)
    units = m[0] * m[1]
    for size in batch_shape:
        units *= size
    if units * m[2] == 0:
        return Lowered(())
    grain = max(1, GRAIN_ELEMENTS // m[2])
    fields = (units, grain, *n, *lows, *m, *xs, *os, value_bits, *batch_entries(batch_shape, x_batch, out_batch))
    recipe = Recipe("window_pad", (itemsize, xs[2] == 1, os[2] == 1), build_pad)
    return Lowered((Launch(recipe, (0, 1), fields),))


# ------------------------------------------------------------------ sums of windows
def build_window_sum(target: Target, dtype: str, unit_g: bool, unit_out: bool, unit_step: bool, picked: bool) -> Module:
    """Slots: g, out, block. A unit is one line of out; each place sums the window elements that lie over it, in window order.

    With `picked`, slots are g, indices, out, block: a window counts only at the place that its index names (in the flattened
    spatial dims of out).
    """
    module = Module(target.vector_bytes * 8)
    k = module.function("kernel", ABI)
    slots, begin, end, _ = k.args
    g, *indices, out, block = (k.load(slots, ptr, i) for i in range(3 + picked))
    p = {name: k.load(block, i64, i) for i, name in enumerate(SUM_FIELDS)}
    memory, compute = MEMORY[dtype], REGISTER[dtype]
    lanes = target.vector_bytes // max(4, compute.size)

    def covering(y: Value, t: Value, d: str) -> tuple[Value, Value]:
        """(which window element t puts over place y, whether there is one)."""
        at = y + p[f"p{d}"] - t * p[f"d{d}"]
        window = at // p[f"s{d}"]
        return window, (at >= 0) & (window < p[f"w{d}"]) & (window * p[f"s{d}"]).eq(at)

    with k.range(begin, end) as unit:
        rest, y1 = unit // p["n1"], unit % p["n1"]
        place, y0 = rest // p["n0"], rest % p["n0"]
        g_at, out_at = batch_offsets(k, block, len(SUM_FIELDS) - 1, place, 2)
        to = k.offset(out, out_at + y0 * p["o0"] + y1 * p["o1"], memory)
        with k.range(0, p["n2"], lanes) as x:
            lane = k.iota(i64.vec(lanes)) + k.splat(x, lanes)
            tail = lane < k.splat(p["n2"], lanes)
            total = k.var(compute.vec(lanes), 0)
            with k.range(0, p["k0"]) as t0:
                w0, ok0 = covering(y0, t0, "0")
                with k.when(ok0), k.range(0, p["k1"]) as t1:
                    w1, ok1 = covering(y1, t1, "1")
                    with k.when(ok1):
                        first = g_at + w0 * p["go0"] + w1 * p["go1"] + t0 * p["gk0"] + t1 * p["gk1"]
                        line = k.offset(g, first, memory)
                        with k.range(0, p["k2"]) as t2:
                            shift = p["p2"] - t2 * p["d2"]
                            at = lane + k.splat(shift, lanes)
                            window = at
                            known = tail & (at >= 0)
                            if not unit_step:
                                step = p["s2"].to(f64)
                                ratio = (at.to(f64) + 0.5) * k.splat(1.0 / step, lanes)
                                window = ratio.truncated(i64)
                                known = known & (window * k.splat(p["s2"], lanes)).eq(at)
                            known = known & (window < k.splat(p["w2"], lanes))

                            def read(
                                base: Value,
                                kind: Type,
                                known: Value = known,
                                window: Value = window,
                                shift: Value = shift,
                            ) -> Value:
                                if unit_step and unit_g:
                                    return k.load(base, kind.vec(lanes), x + shift, mask=known)
                                return k.gather(base, kind, window * k.splat(p["go2"], lanes), mask=known)

                            if picked:
                                here = lane + k.splat((y0 * p["n1"] + y1) * p["n2"], lanes)
                                known = known & read(k.offset(indices[0], first, i64), i64).eq(here)
                            value = read(k.offset(line, t2 * p["gk2"], memory), memory, known)
                            total.set(total.get() + value.to(compute))
            result = total.get().to(memory)
            if unit_out:
                k.store(to, result, x, mask=tail)
            else:
                k.scatter(to, result, lane * k.splat(p["o2"], lanes), mask=tail)
    k.ret()
    return module


def window_sums(
    g_shape: Sequence[int],
    g_strides: Sequence[int],
    out_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    dtype: str,
    picked: bool = False,
) -> Lowered:
    """Launches for out[..., y] = sum of g[..., w, t] with w * stride + t * dilation - padding = y, in window order.

    g is [..., windows, kernel] with as many window and kernel dims as `stride` has entries; out is contiguous. If `picked`, operand 1
    are indices that lie as g does, and out is operand 2.
    """
    rank = len(stride)
    out_strides = contiguous_strides(out_shape)
    lead = len(out_shape) - rank
    batch_shape, g_batch, out_batch = tuple(out_shape[:lead]), tuple(g_strides[:lead]), tuple(out_strides[:lead])
    go, gk, os = g_strides[lead : lead + rank], g_strides[lead + rank :], out_strides[lead:]
    if dtype in ("complex64", "complex128"):
        dtype = "float32" if dtype == "complex64" else "float64"
        batch_shape, g_batch, out_batch = (
            (*batch_shape, 2),
            (*(2 * s for s in g_batch), 1),
            (*(2 * s for s in out_batch), 1),
        )
        go, gk, os = (tuple(2 * s for s in steps) for steps in (go, gk, os))
    n = three(out_shape[lead:], 1)
    windows, kernel = three(g_shape[lead : lead + rank], 1), three(g_shape[lead + rank :], 1)
    s, d, p = three(stride, 1), three(dilation, 1), three(padding, 0)
    go, gk, os = three(go, 0), three(gk, 0), three(os, 0)
    units = n[0] * n[1]
    for size in batch_shape:
        units *= size
    if units * n[2] == 0:
        return Lowered(())
    taps = kernel[0] * kernel[1] * kernel[2]
    grain = max(1, GRAIN_ELEMENTS // max(1, n[2] * taps))
    fields = (
        units,
        grain,
        *n,
        *kernel,
        *windows,
        *s,
        *d,
        *p,
        *go,
        *gk,
        *os,
        *batch_entries(batch_shape, g_batch, out_batch),
    )
    recipe = Recipe("window_sum", (dtype, go[2] == 1, os[2] == 1, s[2] == 1, picked), build_window_sum)
    return Lowered((Launch(recipe, (0, 1, 2) if picked else (0, 1), fields),))
