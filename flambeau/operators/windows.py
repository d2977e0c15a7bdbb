"""Windows over the last dims of a tensor: padding, cropping, sliding windows as a view, and their adjoints.

    x = padded(x, (1, 1), (h + 2, w + 2), 0.0)       # one border of zeros
    windows(x, (3, 3), (1, 1), (1, 1))               # [..., h, w, 3, 3], a view
    window_sum(g, (h, w), (1, 1), (1, 1), (1, 1))    # every place sums what lies over it

May not know: convolution or pooling, which are built from these. Entry: the ops.
"""

from __future__ import annotations

import math
import struct

from flambeau.base.errors import InternalError
from flambeau.base.lazy import np
from flambeau.core.dtype import dtype as DType
from flambeau.core.spec import Spec
from flambeau.ir.kinds import LEADING, LINEAR, Template, View
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel.types import bf16, f16
from flambeau.operators.batched import front
from flambeau.operators.rules import case
from flambeau.templates.windows import pad_lines, window_sums


def bits_of(value: float | int, d: DType) -> int:
    """The bits of a number in memory, as an integer."""
    if d.name in ("float16", "bfloat16"):
        text = (f16 if d.name == "float16" else bf16).constant(float(value))
        return int(text[3:], 16)
    if d.is_complex:
        if value != 0:
            raise ValueError(f"padded: complex tensors can only be padded with 0, got {value}.")
        return 0
    if d.kind == "f":
        return int.from_bytes(struct.pack("<f" if d.itemsize == 4 else "<d", float(value)), "little", signed=True)
    return int(value)


@declare
class padded(Template):
    """`value` around the last dims: element i of a result dim is element i - low of the input's, where there is one.

    `sizes` are the result's; negative lows and short sizes cut off.
    """

    functions = ()
    methods = ()
    batch = LEADING

    def signature(input: Tensor, lows, sizes, value=0): ...

    def meta(op, s, lows, sizes, value):
        return Spec.of((*s.shape[: s.ndim - len(lows)], *sizes), s.dtype, s.device)

    def lower(op, target, threads, s, lows, sizes, value):
        shape = (*s.shape[: s.ndim - len(lows)], *sizes)
        return pad_lines(s.shape, s.strides, lows, shape, itemsize=s.dtype.itemsize, value_bits=bits_of(value, s.dtype))

    def vjp(g, out, input, lows, sizes, value):
        inner = tuple(input.spec.shape[input.spec.ndim - len(lows) :])
        return (framed(g, tuple(-n for n in lows), inner),)

    def reference(x, lows, sizes, value=0):
        lead = x.ndim - len(lows)
        out = np.full((*x.shape[:lead], *sizes), value, x.dtype)
        to, source = [slice(None)] * lead, [slice(None)] * lead
        for low, size, n in zip(lows, sizes, x.shape[lead:]):
            first, last = max(low, 0), min(low + n, size)
            to.append(slice(first, max(first, last)))
            source.append(slice(first - low, max(first, last) - low))
        out[tuple(to)] = x[tuple(source)]
        return out

    def samples(t):
        yield case(t(2, 3, 5), (1, 2), (5, 8))
        yield case(t(3, 20), (-1,), (17,))
        yield case(t(2, 3), (1, 1), (4, 6), -1.5)


def framed(x, lows, sizes):
    """`padded` with 0, as a view where it only cuts off; x itself where nothing changes."""
    shape = x.spec.shape[x.spec.ndim - len(lows) :]
    if all(low <= 0 and size - low <= n for low, size, n in zip(lows, sizes, shape)):
        if tuple(shape) == tuple(sizes):
            return x
        return cropped(x, tuple(-n for n in lows), tuple(sizes))
    return padded(x, tuple(lows), tuple(sizes))


@declare
class cropped(View):
    """The part of the last dims that starts at `lows` and has `sizes`."""

    functions = ()
    methods = ()

    def signature(input: Tensor, lows, sizes): ...

    def view(s: Spec, lows, sizes):
        lead = s.ndim - len(lows)
        return (*s.shape[:lead], *sizes), s.strides, sum(low * step for low, step in zip(lows, s.strides[lead:]))

    def vjp(g, out, input, lows, sizes):
        return (padded(g, lows, tuple(input.spec.shape[input.spec.ndim - len(lows) :])),)

    jvp = LINEAR

    def reference(x, lows, sizes):
        return x[(..., *(slice(low, low + n) for low, n in zip(lows, sizes)))]

    def samples(t):
        yield case(t(2, 5, 6), (1, 2), (3, 4))


def window_count(size: int, kernel: int, stride: int, dilation: int) -> int:
    """How many whole windows fit."""
    return (size - dilation * (kernel - 1) - 1) // stride + 1


@declare
class windows(View):
    """Sliding windows over the last dims: [..., *L] -> [..., *windows, *kernel]."""

    functions = ()
    methods = ()

    def signature(input: Tensor, kernel, stride, dilation): ...

    def view(s: Spec, kernel, stride, dilation):
        lead = s.ndim - len(kernel)
        counts = [window_count(*numbers) for numbers in zip(s.shape[lead:], kernel, stride, dilation)]
        steps = s.strides[lead:]
        strides = (
            *s.strides[:lead],
            *(n * step for n, step in zip(stride, steps)),
            *(n * step for n, step in zip(dilation, steps)),
        )
        return (*s.shape[:lead], *counts, *kernel), strides, 0

    def vjp(g, out, input, kernel, stride, dilation):
        sizes = tuple(input.spec.shape[input.spec.ndim - len(kernel) :])
        return (window_sum(g, sizes, stride, (0,) * len(kernel), dilation),)

    jvp = LINEAR

    def reference(x, kernel, stride, dilation):
        lead = x.ndim - len(kernel)
        reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
        found = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(lead, x.ndim)))
        return found[
            (slice(None),) * lead
            + tuple(slice(None, None, s) for s in stride)
            + tuple(slice(None, None, d) for d in dilation)
        ]

    def samples(t):
        yield case(t(2, 7, 9), (3, 2), (2, 1), (1, 2))
        yield case(t(20), (3,), (1,), (1,))


@declare
class window_sum(Template):
    """The adjoint of padded windows: out[..., y] sums g[..., w, t] over w * stride + t * dilation - padding = y.

    Determinism: summed in window order, in float32 or wider.
    """

    functions = ()
    methods = ()
    batch = LEADING

    def signature(g: Tensor, sizes, stride, padding, dilation): ...

    def meta(op, g, sizes, stride, padding, dilation):
        return Spec.of((*g.shape[: g.ndim - 2 * len(sizes)], *sizes), g.dtype, g.device)

    def lower(op, target, threads, g, sizes, stride, padding, dilation):
        shape = (*g.shape[: g.ndim - 2 * len(sizes)], *sizes)
        return window_sums(g.shape, g.strides, shape, stride, padding, dilation, g.dtype.name)

    def vjp(g, out, input, sizes, stride, padding, dilation):
        rank = len(sizes)
        counts, kernel = input.spec.shape[-2 * rank : -rank], tuple(input.spec.shape[-rank:])
        return (windows(framed(g, padding, reach_of(counts, kernel, stride, dilation)), kernel, stride, dilation),)

    def reference(g, sizes, stride, padding, dilation):
        rank = len(sizes)
        lead, counts, kernel = g.shape[: -2 * rank], g.shape[-2 * rank : -rank], g.shape[-rank:]
        out = np.zeros((*lead, *sizes), g.dtype)
        for w in np.ndindex(*counts):
            for t in np.ndindex(*kernel):
                y = [a * s + b * d - p for a, s, b, d, p in zip(w, stride, t, dilation, padding)]
                if all(0 <= i < n for i, n in zip(y, sizes)):
                    out[(..., *y)] += g[(..., *w, *t)]
        return out

    def samples(t):
        yield case(t(2, 5, 3), (7,), (1,), (0,), (1,))
        yield case(t(2, 3, 4, 3, 2), (7, 9), (2, 2), (1, 0), (1, 2))


def reach_of(counts, kernel, stride, dilation) -> tuple[int, ...]:
    """Sizes that `counts` windows cover exactly."""
    return tuple((n - 1) * s + (k - 1) * d + 1 for n, k, s, d in zip(counts, kernel, stride, dilation))


@declare
class window_pick(Template):
    """The adjoint of picking one element of every padded window: out sums g[..., w] at the place that indices[..., w] names.

    Indices count over the flattened last dims of the result. Determinism: summed in window order, in float32 or wider.
    """

    functions = ()
    methods = ()

    def signature(g: Tensor, indices: Tensor, sizes, kernel, stride, padding, dilation): ...

    def meta(op, g, indices, sizes, kernel, stride, padding, dilation):
        return Spec.of((*g.shape[: g.ndim - len(sizes)], *sizes), g.dtype, g.device)

    def lower(op, target, threads, g, indices, sizes, kernel, stride, padding, dilation):
        if g.strides != indices.strides:
            raise InternalError(
                f"window_pick: g and indices must lie alike, got strides {g.strides} and {indices.strides}"
            )
        shape = (*g.shape[: g.ndim - len(sizes)], *sizes)
        strides = (*g.strides, *(0,) * len(sizes))
        return window_sums((*g.shape, *kernel), strides, shape, stride, padding, dilation, g.dtype.name, picked=True)

    def batch(size, dims, g, indices, *attributes):
        g, indices = front(g, dims[0], size), front(indices, dims[1], size)
        if g.spec.strides != indices.spec.strides:
            g, indices = REGISTRY["contiguous_copy"](g), REGISTRY["contiguous_copy"](indices)
        return window_pick(g, indices, *attributes), 0

    def vjp(g, out, input, indices, sizes, kernel, stride, padding, dilation):
        rank = len(sizes)
        lead = tuple(g.spec.shape[: g.spec.ndim - rank])
        flat = REGISTRY["reshape"](g, (*lead, math.prod(sizes)))
        at = REGISTRY["reshape"](indices, (*lead, math.prod(indices.spec.shape[-rank:])))
        return REGISTRY["reshape"](REGISTRY["gather"](flat, -1, at), tuple(input.spec.shape)), None

    def reference(g, indices, sizes, kernel, stride, padding, dilation):
        lead = g.shape[: g.ndim - len(sizes)]
        out = np.zeros((*lead, math.prod(sizes)), g.dtype)
        for place in np.ndindex(*lead):
            np.add.at(out[place], indices[place].reshape(-1), g[place].reshape(-1))
        return out.reshape(*lead, *sizes)

    def samples(t):
        yield case(t(2, 4), np.asarray([[0, 1, 3, 5], [1, 2, 2, 4]]), (6,), (3,), (1,), (0,), (1,))
