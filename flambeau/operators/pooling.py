"""Pooling: extremes and means of windows, as one fused reduction over a view of the (padded) input.

Ops take one tuple of numbers for any count of spatial dims; the public functions of each rank are made from them at the end.
Gradients of maxima go to the first of equals. May not know: how reductions run. Entry: the ops; `adaptive_pooling` for adaptive ones.
"""

from __future__ import annotations

import itertools
import math

from flambeau.base.lazy import np
from flambeau.core.dtype import int64
from flambeau.core.layout import canonical_dims
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite, reduced_shape
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.powers import power_number
from flambeau.operators.reduction import Selected, keep_dims, lowest, max_dim, positions, refuse_complex
from flambeau.operators.rules import case
from flambeau.operators.windows import framed, padded, reach_of, window_pick, windows


# ------------------------------------------------------------------ geometry
def per_dim(name: str, what: str, value, rank: int) -> tuple[int, ...]:
    """A number or one per spatial dim, as a tuple."""
    if isinstance(value, (tuple, list)):
        if len(value) == 1:
            return (int(value[0]),) * rank
        if len(value) != rank:
            raise RuntimeError(
                f"{name}: {what} must either be a single int, or a tuple of {rank} ints, got {list(value)}."
            )
        return tuple(int(n) for n in value)
    return (int(value),) * rank


def check_input(name: str, s: Spec, rank: int) -> None:
    """Raises: RuntimeError unless the input is [N, C, *L] or [C, *L] and no dim but N is empty."""
    if s.ndim not in (rank + 1, rank + 2) or any(n == 0 for n in s.shape[s.ndim - rank - 1 :]):
        raise RuntimeError(
            f"{name}: Expected {rank + 1}D or {rank + 2}D (batch mode) tensor with optional 0 dim batch size for input, but got: "
            f"{list(s.shape)}. Add the channel dim with unsqueeze."
        )


def pool_geometry(name: str, s: Spec, rank: int, kernel, stride, padding, dilation, ceil_mode) -> tuple:
    """(counts, kernel, stride, padding, dilation). Raises: RuntimeError in PyTorch's words where numbers do not fit."""
    kernel = per_dim(name, "kernel_size", kernel, rank)
    stride = kernel if stride is None or stride in ((), []) else per_dim(name, "stride", stride, rank)
    padding, dilation = per_dim(name, "padding", padding, rank), per_dim(name, "dilation", dilation, rank)
    check_input(name, s, rank)
    if any(n <= 0 for n in kernel):
        raise RuntimeError(f"{name}: kernel size should be greater than zero, got {list(kernel)}.")
    if any(n <= 0 for n in stride):
        raise RuntimeError(
            f"{name}: stride should be greater than zero (stride should not be zero), got {list(stride)}."
        )
    if any(n <= 0 for n in dilation):
        raise RuntimeError(f"{name}: dilation should be greater than zero, got {list(dilation)}.")
    if any(n < 0 for n in padding):
        raise RuntimeError(f"{name}: pad must be non-negative, but got pad: {list(padding)}.")
    for p, k, d in zip(padding, kernel, dilation):
        if p > ((k - 1) * d + 1) // 2:
            raise RuntimeError(
                f"{name}: pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k} and dilation={d}."
            )
    counts = []
    for n, k, st, p, d in zip(s.shape[s.ndim - rank :], kernel, stride, padding, dilation):
        room = n + 2 * p - d * (k - 1) - 1
        count = (room + (st - 1 if ceil_mode else 0)) // st + 1
        if ceil_mode and (count - 1) * st >= n + p:
            count -= 1  # the last window must start inside the input or its left padding
        counts.append(count)
    if any(n < 1 for n in counts):
        raise RuntimeError(
            f"{name}: the result would be empty: given input size {list(s.shape)}, calculated output size {counts}. Output size is too small. "
            f"Use a smaller kernel or pad the input."
        )
    return tuple(counts), kernel, stride, padding, dilation


def window_dims(x, rank: int) -> tuple[int, ...]:
    """The kernel dims of a windows view."""
    return tuple(range(x.spec.ndim - rank, x.spec.ndim))


def along(size: int, dim: int, rank: int, device):
    """0, 1, 2 … shaped to broadcast along dim `dim` of the last `rank` dims."""
    return REGISTRY["reshape"](positions(size, device=device), tuple(size if d == dim else 1 for d in range(rank)))


# ------------------------------------------------------------------ maxima
@declare
class window_max(Selected):
    """(values, indices) of the largest elements over several dims; indices count over those dims, first of equals, NaN largest."""

    identity = staticmethod(max_dim.rules.identity)
    combine = staticmethod(max_dim.rules.combine)

    def meta(op, input, dim, keepdim):
        values = Spec.of(
            reduced_shape(input.shape, canonical_dims("max_pool", dim, input.ndim), keepdim), input.dtype, input.device
        )
        return values, values.with_dtype(int64)

    def vjp(g, out, input, dim, keepdim):
        rank = len(canonical_dims("max_pool", dim, input.spec.ndim))
        shape = input.spec.shape
        here = None
        for i, d in enumerate(dim):  # where the position in the window is the index
            step = math.prod(shape[j] for j in dim[i + 1 :])
            term = REGISTRY["mul"](along(shape[d], i, rank, input.spec.device), step)
            here = term if here is None else REGISTRY["add"](here, term)
        found = REGISTRY["eq"](keep_dims(out[1], input, dim), here)
        return (REGISTRY["where"](found, keep_dims(g[0], input, dim), 0),)

    def reference(x, dim, keepdim=False):
        lead = x.shape[: x.ndim - len(dim)]
        flat = x.reshape(*lead, -1)
        return np.amax(flat, -1), np.argmax(flat, -1)

    def samples(t):
        yield case(t(3, 4, 5), (1, 2))


FEW_PLACES = 16  # of a window that are compared one after the other, for all windows at once


def largest_of(x, kernel):
    """(values, indices) of the largest elements over the last dims, whose sizes are `kernel`: as `window_max`, of small windows element for element."""
    rank = len(kernel)
    first = x.spec.ndim - rank
    if not 1 < math.prod(kernel) <= FEW_PLACES:
        return window_max(x, tuple(range(first, x.spec.ndim)), False)
    best = picked = None
    for number, place in enumerate(itertools.product(*map(range, kernel))):
        v = x
        for at in place:
            v = REGISTRY["select"](v, first, at)
        if best is None:
            best, picked = v, REGISTRY["full"](tuple(v.spec.shape), 0, dtype=int64, device=v.spec.device)
            continue
        later = REGISTRY["logical_and"](
            REGISTRY["logical_not"](REGISTRY["le"](v, best)), REGISTRY["eq"](best, best)
        )  # NaN is largest
        best, picked = REGISTRY["where"](later, v, best), REGISTRY["where"](later, number, picked)
    return best, picked


@declare
class max_pool(Composite):
    """(values, indices) of the maxima of windows over the last dims; indices count over the flattened spatial dims of the input."""

    functions = ()
    methods = ()
    outputs = 2

    def signature(input: Tensor, rank, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False): ...

    def meta(op, s, rank, kernel, stride, padding, dilation, ceil_mode):
        refuse_complex(f"max_pool{rank}d", s.dtype)
        counts, *_ = pool_geometry(f"max_pool{rank}d", s, rank, kernel, stride, padding, dilation, ceil_mode)
        values = Spec.of((*s.shape[: s.ndim - rank], *counts), s.dtype, s.device)
        return values, values.with_dtype(int64)

    def body(input, rank, kernel, stride, padding, dilation, ceil_mode):
        counts, kernel, stride, padding, dilation = pool_geometry(
            "max_pool", input.spec, rank, kernel, stride, padding, dilation, ceil_mode
        )
        reach = reach_of(counts, kernel, stride, dilation)
        sizes = input.spec.shape[input.spec.ndim - rank :]
        x = with_lowest(input, padding, reach)
        values, picked = largest_of(windows(x, kernel, stride, dilation), kernel)
        where, rest = None, picked
        for d in range(rank):  # window index -> place in the input, one dim after the other
            step = math.prod(kernel[d + 1 :])
            inside = floor_quotient(rest, step)
            rest = REGISTRY["sub"](rest, REGISTRY["mul"](inside, step))
            start = REGISTRY["sub"](
                REGISTRY["mul"](along(counts[d], d, rank, input.spec.device), stride[d]), padding[d]
            )
            place = REGISTRY["add"](start, REGISTRY["mul"](inside, dilation[d]))
            place = REGISTRY["clamp"](place, 0, sizes[d] - 1)
            where = place if where is None else REGISTRY["add"](REGISTRY["mul"](where, sizes[d]), place)
        return values, where

    def vjp(g, out, input, rank, kernel, stride, padding, dilation, ceil_mode):
        _, kernel, stride, padding, dilation = pool_geometry(
            "max_pool", input.spec, rank, kernel, stride, padding, dilation, ceil_mode
        )
        sizes = tuple(input.spec.shape[input.spec.ndim - rank :])
        return (window_pick(contiguous(g[0]), contiguous(out[1]), sizes, kernel, stride, padding, dilation),)

    def reference(x, rank, kernel, stride=None, padding=0, dilation=1, ceil_mode=False):
        counts, kernel, stride, padding, dilation = pool_geometry(
            "max_pool", Spec.of(x.shape, int64), rank, kernel, stride, padding, dilation, ceil_mode
        )
        sizes = x.shape[x.ndim - rank :]
        values, found = (np.zeros((*x.shape[: x.ndim - rank], *counts), d) for d in (x.dtype, np.int64))
        for w in np.ndindex(*counts):
            best = [np.full(x.shape[: x.ndim - rank], -np.inf), np.zeros(x.shape[: x.ndim - rank], np.int64)]
            for t in np.ndindex(*kernel):
                at = [a * s + b * d - p for a, s, b, d, p in zip(w, stride, t, dilation, padding)]
                if all(0 <= i < n for i, n in zip(at, sizes)):
                    v = x[(..., *at)]
                    better = v > best[0]
                    best = [np.where(better, v, best[0]), np.where(better, np.ravel_multi_index(at, sizes), best[1])]
            values[(..., *w)], found[(..., *w)] = best
        return values, found

    def samples(t):
        yield case(t(2, 3, 9), 1, 3, 2)
        yield case(t(2, 3, 6, 7), 2, (3, 2), 2, 1, 1, True)
        yield case(t(2, 4, 5, 6), 3, 2, 1, 0, 2)
        yield case(t(2, 3, 6), 1, 2, None, 2, raises=(RuntimeError, "pad should be at most half"))


def window_dims_of(input, rank: int) -> tuple[int, ...]:
    return tuple(range(input.spec.ndim, input.spec.ndim + rank))


def contiguous(x):
    return x if x.spec.contiguous else REGISTRY["contiguous_copy"](x)


def floor_quotient(x, by: int):
    return x if by == 1 else REGISTRY["floor_divide"](x, by)


def with_lowest(x, lows, sizes):
    """x framed by what no maximum takes."""
    shape = x.spec.shape[x.spec.ndim - len(lows) :]
    if all(low <= 0 and size - low <= n for low, size, n in zip(lows, sizes, shape)):
        return framed(x, lows, sizes)
    return padded(x, lows, sizes, lowest(x.spec.dtype))


# ------------------------------------------------------------------ means
@declare
class avg_pool(Composite):
    """Means of windows over the last dims. Padding counts as zeros, or not at all without `count_include_pad`."""

    functions = ()
    methods = ()

    def signature(
        input: Tensor,
        rank,
        kernel_size,
        stride=None,
        padding=0,
        ceil_mode=False,
        count_include_pad=True,
        divisor_override=None,
    ): ...

    def meta(op, s, rank, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        counts, *_ = pool_geometry(f"avg_pool{rank}d", s, rank, kernel, stride, padding, 1, ceil_mode)
        if divisor_override == 0:
            raise RuntimeError(f"avg_pool{rank}d: divisor must be not zero, got divisor_override=0.")
        return Spec.of((*s.shape[: s.ndim - rank], *counts), s.dtype, s.device)

    def body(input, rank, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        counts, kernel, stride, padding, dilation = pool_geometry(
            "avg_pool", input.spec, rank, kernel, stride, padding, 1, ceil_mode
        )
        x = framed(input, padding, reach_of(counts, kernel, stride, dilation))
        total = REGISTRY["sum"](windows(x, kernel, stride, dilation), window_dims_of(input, rank), False)
        if divisor_override is not None:
            found = REGISTRY["true_divide"](total, divisor_override)
        else:
            sizes = input.spec.shape[input.spec.ndim - rank :]
            found = REGISTRY["true_divide"](
                total, divisors(counts, kernel, stride, padding, sizes, count_include_pad, total)
            )
        return found if found.spec.dtype is input.spec.dtype else REGISTRY["to_dtype"](found, input.spec.dtype)

    def reference(
        x, rank, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    ):
        counts, kernel, stride, padding, _ = pool_geometry(
            "avg_pool", Spec.of(x.shape, int64), rank, kernel, stride, padding, 1, ceil_mode
        )
        sizes = x.shape[x.ndim - rank :]
        out = np.zeros((*x.shape[: x.ndim - rank], *counts), x.dtype)
        for w in np.ndindex(*counts):
            low = [a * s - p for a, s, p in zip(w, stride, padding)]
            high = [min(a + k, n + p) for a, k, n, p in zip(low, kernel, sizes, padding)]
            covered = math.prod(b - a for a, b in zip(low, high))
            inner = [(max(a, 0), min(b, n)) for a, b, n in zip(low, high, sizes)]
            if not count_include_pad:
                covered = math.prod(b - a for a, b in inner)
            part = x[(..., *(slice(a, b) for a, b in inner))]
            out[(..., *w)] = part.sum(tuple(range(-rank, 0))) / (divisor_override or covered)
        return out

    def samples(t):
        yield case(t(2, 3, 9), 1, 3, 2)
        yield case(t(2, 3, 6, 7), 2, (3, 2), 2, 1, True)
        yield case(t(2, 3, 6, 7), 2, (3, 2), 2, 1, True, False)
        yield case(t(2, 4, 5, 6), 3, 2, None, 0, False, True, 3)


def divisors(counts, kernel, stride, padding, sizes, count_include_pad: bool, like):
    """What each window's sum is divided by: a number where all are equal, else a product of one line per dim."""
    full, varying = 1, None
    for d, (n, k, s, p, size) in enumerate(zip(counts, kernel, stride, padding, sizes)):
        low, high = (-p, size + p) if count_include_pad else (0, size)
        if p == 0 or count_include_pad:
            all_whole = (n - 1) * s - p + k <= size + p
        else:
            all_whole = False
        if all_whole:
            full *= k
            continue
        start = REGISTRY["sub"](REGISTRY["mul"](along(n, d, len(counts), like.spec.device), s), p)
        end = REGISTRY["clamp"](REGISTRY["add"](start, k), None, min(size + p, high))
        covered = REGISTRY["to_dtype"](REGISTRY["sub"](end, REGISTRY["clamp"](start, low, None)), like.spec.dtype)
        varying = covered if varying is None else REGISTRY["mul"](varying, covered)
    return full if varying is None else REGISTRY["mul"](varying, full)


@declare
class lp_pool(Composite):
    """p-norms of windows: (sum of x^p) ^ (1 / p)."""

    functions = ()
    methods = ()

    def signature(input: Tensor, rank, norm_type, kernel_size, stride=None, ceil_mode=False): ...

    def meta(op, s, rank, norm_type, kernel, stride, ceil_mode):
        counts, *_ = pool_geometry(f"lp_pool{rank}d", s, rank, kernel, stride, 0, 1, ceil_mode)
        return Spec.of((*s.shape[: s.ndim - rank], *counts), s.dtype, s.device)

    def body(input, rank, norm_type, kernel, stride, ceil_mode):
        ops, size = REGISTRY, math.prod(per_dim("lp_pool", "kernel_size", kernel, rank))
        mean = avg_pool(power_number(input, norm_type), rank, kernel, stride, 0, ceil_mode)
        return power_number(ops["mul"](mean, size), 1.0 / norm_type)

    def reference(x, rank, norm_type, kernel, stride=None, ceil_mode=False):
        size = math.prod(per_dim("lp_pool", "kernel_size", kernel, rank))
        return (avg_pool.rules.reference(x**norm_type, rank, kernel, stride, 0, ceil_mode) * size) ** (1 / norm_type)

    def samples(t):
        yield case(t(2, 3, 9), 1, 2, 3, 2)
        yield case(t(2, 3, 6, 8), 2, 2.0, 2)


# ------------------------------------------------------------------ unpooling
@declare
class max_unpool(Composite):
    """Zeros with the input's elements where `indices` (counted over the flattened `sizes`) say."""

    functions = ()
    methods = ()

    def signature(input: Tensor, indices: Tensor, sizes): ...

    def meta(op, s, indices, sizes):
        name = f"max_unpool{len(sizes)}d"
        if indices.dtype is not int64:
            raise RuntimeError(
                f"{name}: elements in indices should be type int64 but got: {indices.dtype.name}. Take them from max_pool."
            )
        if indices.shape != s.shape:
            raise RuntimeError(
                f"{name}: Expected shape of indices to be same as that of the input tensor ({list(s.shape)}) but got indices tensor with shape: "
                f"{list(indices.shape)}."
            )
        check_input(name, s, len(sizes))
        return Spec.of((*s.shape[: s.ndim - len(sizes)], *sizes), s.dtype, s.device)

    def body(input, indices, sizes):
        rank = len(sizes)
        lead = tuple(input.spec.shape[: input.spec.ndim - rank])
        inner = math.prod(input.spec.shape[input.spec.ndim - rank :])
        hole = REGISTRY["full"]((*lead, math.prod(sizes)), 0, dtype=input.spec.dtype, device=input.spec.device)
        at = REGISTRY["reshape"](indices, (*lead, inner))
        found = REGISTRY["scatter"](hole, -1, at, REGISTRY["reshape"](input, (*lead, inner)))
        return REGISTRY["reshape"](found, (*lead, *sizes))

    def vjp(g, out, input, indices, sizes):
        rank = len(sizes)
        lead = tuple(input.spec.shape[: input.spec.ndim - rank])
        at = REGISTRY["reshape"](indices, (*lead, math.prod(input.spec.shape[input.spec.ndim - rank :])))
        found = REGISTRY["gather"](REGISTRY["reshape"](g, (*lead, math.prod(sizes))), -1, at)
        return REGISTRY["reshape"](found, tuple(input.spec.shape)), None

    def reference(x, indices, sizes):
        rank = len(sizes)
        lead = x.shape[: x.ndim - rank]
        out = np.zeros((*lead, math.prod(sizes)), x.dtype)
        for place in np.ndindex(*lead):
            out[place][indices[place].reshape(-1)] = x[place].reshape(-1)
        return out.reshape(*lead, *sizes)

    def samples(t):
        yield case(t(2, 1, 3), np.asarray([[[0, 2, 5]], [[1, 3, 4]]]), (6,))
