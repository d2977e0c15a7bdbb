"""Pooling to a given size: windows of varying length, and windows at random places.

Where sizes divide, the windows are a view; elsewhere each dim is read through indices that are computed in the kernel, and what lies
past a window's end is masked. May not know: how reductions run. Entry: `adaptive_avg_pool`, `adaptive_max_pool`, `fractional_max_pool`.
"""

from __future__ import annotations

import math

from flambeau.base.errors import UnsupportedError
from flambeau.base.lazy import np
from flambeau.core.dtype import int64
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.pooling import along, per_dim, window_max
from flambeau.operators.reduction import lowest, refuse_complex
from flambeau.operators.rules import case


def target_sizes(name: str, s: Spec, sizes) -> tuple[int, ...]:
    """The result's spatial sizes; None keeps the input's. Raises: RuntimeError for another rank."""
    rank = len(sizes)
    if s.ndim not in (rank + 1, rank + 2) or any(n == 0 for n in s.shape[s.ndim - rank - 1 :]):
        raise RuntimeError(
            f"{name}: Expected {rank + 1}D or {rank + 2}D tensor with non-zero size for non-batch dimensions, but got: {list(s.shape)}."
        )
    found = tuple(m if n is None else int(n) for n, m in zip(sizes, s.shape[s.ndim - rank :]))
    if any(n < 0 for n in found):
        raise RuntimeError(f"{name}: elements of output_size must be greater than or equal to 0, got {list(found)}.")
    return found


def window_start(o, size: int, count: int):
    """Where window o of `count` over `size` elements starts."""
    return o if count == size else REGISTRY["floor_divide"](REGISTRY["mul"](o, size), count)


def adaptive_windows(x, sizes: tuple[int, ...], filler):
    """(windows [..., *sizes, *lengths] with `filler` past their ends, starts per dim, lengths of every window per dim)."""
    rank, ops = len(sizes), REGISTRY
    lead = x.spec.ndim - rank
    device, limits = x.spec.device, x.spec.shape[lead:]
    longest, starts, covered, mask = [], [], [], None
    shape: list[int] = list(x.spec.shape[:lead])
    for d, (count, size) in enumerate(zip(sizes, limits)):
        o = along(count, d, rank, device)
        start = window_start(o, size, count)
        starts.append(start)
        if size % count == 0:
            k = size // count
            covered.append(k)
        else:
            k = max(-(-(i + 1) * size // count) - i * size // count for i in range(count))
            end = ops["floor_divide"](ops["add"](ops["mul"](ops["add"](o, 1), size), count - 1), count)
            covered.append(ops["sub"](end, start))
            column = ops["reshape"](start, (count, 1))
            at = ops["add"](column, along(k, 0, 1, device))
            x = ops["index_select"](x, lead + d, ops["reshape"](ops["clamp"](at, None, size - 1), (count * k,)))
            inside = ops["lt"](at, ops["reshape"](end, (count, 1)))
            form = [1] * (2 * rank)
            form[d], form[rank + d] = count, k
            inside = ops["reshape"](inside, tuple(form))
            mask = inside if mask is None else ops["logical_and"](mask, inside)
        longest.append(k)
        shape += [count, k]
    order = (*range(lead), *(lead + 2 * d for d in range(rank)), *(lead + 2 * d + 1 for d in range(rank)))
    x = ops["permute"](ops["reshape"](x, tuple(shape)), order)
    if mask is not None:
        x = ops["where"](mask, x, filler)
    return x, starts, covered, longest


@declare
class adaptive_avg_pool(Composite):
    """Means of windows whose count is given: window i covers floor(i L / n) to ceil((i + 1) L / n)."""

    functions = ()
    methods = ()

    def signature(input: Tensor, sizes): ...

    def meta(op, s, sizes):
        name = f"adaptive_avg_pool{len(sizes)}d"
        if not s.dtype.is_inexact:
            raise UnsupportedError(
                f"{name}: the input must be floating point or complex (not implemented for integers), got {s.dtype.name}. Convert with .float()."
            )
        sizes = target_sizes(name, s, sizes)
        return Spec.of((*s.shape[: s.ndim - len(sizes)], *sizes), s.dtype, s.device)

    def body(input, sizes):
        sizes = target_sizes("adaptive_avg_pool", input.spec, sizes)
        rank, ops = len(sizes), REGISTRY
        if math.prod(sizes) * input.spec.numel == 0:
            return ops["full"](
                (*input.spec.shape[: input.spec.ndim - rank], *sizes),
                0,
                dtype=input.spec.dtype,
                device=input.spec.device,
            )
        x, _, covered, _ = adaptive_windows(input, sizes, 0)
        total = ops["sum"](x, tuple(range(x.spec.ndim - rank, x.spec.ndim)), False)
        number, varying = 1, None
        for n in covered:
            if isinstance(n, int):
                number *= n
            else:
                varying = n if varying is None else ops["mul"](varying, n)
        divisor = number if varying is None else ops["to_dtype"](ops["mul"](varying, number), total.spec.dtype)
        return ops["true_divide"](total, divisor)

    def reference(x, sizes):
        rank = len(sizes)
        limits = x.shape[x.ndim - rank :]
        sizes = tuple(m if n is None else n for n, m in zip(sizes, limits))
        out = np.zeros((*x.shape[: x.ndim - rank], *sizes), x.dtype)
        for w in np.ndindex(*sizes):
            part = x[(..., *(slice(i * n // c, -(-(i + 1) * n // c)) for i, n, c in zip(w, limits, sizes)))]
            out[(..., *w)] = part.mean(tuple(range(-rank, 0)))
        return out

    def samples(t):
        yield case(t(2, 3, 8), (4,))
        yield case(t(2, 3, 7, 5), (3, None))
        yield case(t(3, 4, 5, 6), (3, 2, 6))
        yield case(t(3), (2,), raises=(RuntimeError, "Expected 2D or 3D"))


@declare
class adaptive_max_pool(Composite):
    """(values, indices) of the maxima of windows whose count is given; indices count over the flattened spatial dims."""

    functions = ()
    methods = ()
    outputs = 2

    def signature(input: Tensor, sizes): ...

    def meta(op, s, sizes):
        refuse_complex(f"adaptive_max_pool{len(sizes)}d", s.dtype)
        sizes = target_sizes(f"adaptive_max_pool{len(sizes)}d", s, sizes)
        values = Spec.of((*s.shape[: s.ndim - len(sizes)], *sizes), s.dtype, s.device)
        return values, values.with_dtype(int64)

    def body(input, sizes):
        sizes = target_sizes("adaptive_max_pool", input.spec, sizes)
        rank, ops = len(sizes), REGISTRY
        shape = (*input.spec.shape[: input.spec.ndim - rank], *sizes)
        if math.prod(shape) == 0:
            nothing = ops["full"](shape, 0, dtype=input.spec.dtype, device=input.spec.device)
            return nothing, ops["full"](shape, 0, dtype=int64, device=input.spec.device)
        x, starts, _, lengths = adaptive_windows(input, sizes, lowest(input.spec.dtype))
        values, picked = window_max(x, tuple(range(x.spec.ndim - rank, x.spec.ndim)), False)
        return values, flat_place(picked, starts, lengths, input.spec.shape[input.spec.ndim - rank :])

    def vjp(g, out, input, sizes):
        return (scattered(g[0], out[1], input, len(sizes)),)

    def reference(x, sizes):
        rank = len(sizes)
        limits = x.shape[x.ndim - rank :]
        sizes = tuple(m if n is None else n for n, m in zip(sizes, limits))
        values, found = (np.zeros((*x.shape[: x.ndim - rank], *sizes), d) for d in (x.dtype, np.int64))
        for w in np.ndindex(*sizes):
            low = [i * n // c for i, n, c in zip(w, limits, sizes)]
            high = [-(-(i + 1) * n // c) for i, n, c in zip(w, limits, sizes)]
            part = x[(..., *(slice(a, b) for a, b in zip(low, high)))]
            flat = part.reshape(*part.shape[:-rank], -1)
            inner = np.unravel_index(flat.argmax(-1), part.shape[-rank:])
            values[(..., *w)] = flat.max(-1)
            found[(..., *w)] = np.ravel_multi_index([i + a for i, a in zip(inner, low)], limits)
        return values, found

    def samples(t):
        yield case(t(2, 3, 8), (4,))
        yield case(t(2, 3, 7, 5), (3, None))
        yield case(t(3, 4, 5, 6), (3, 2, 6))


def flat_place(picked, starts: list, lengths: list[int], sizes):
    """An index within windows as one over the flattened spatial dims."""
    ops, where, rest = REGISTRY, None, picked
    for d, (start, n) in enumerate(zip(starts, sizes)):
        step = math.prod(lengths[d + 1 :])
        inside = rest if step == 1 else ops["floor_divide"](rest, step)
        rest = ops["sub"](rest, ops["mul"](inside, step))
        place = ops["add"](start, inside)
        where = place if where is None else ops["add"](ops["mul"](where, n), place)
    return where


def scattered(g, indices, input, rank: int):
    """Gradients added where flat indices say."""
    ops, shape = REGISTRY, tuple(input.spec.shape)
    lead = shape[: len(shape) - rank]
    hole = ops["full"]((*lead, math.prod(shape[len(lead) :])), 0, dtype=g.spec.dtype, device=g.spec.device)
    inner = math.prod(g.spec.shape[len(lead) :])
    found = ops["scatter_add"](hole, -1, ops["reshape"](indices, (*lead, inner)), ops["reshape"](g, (*lead, inner)))
    return ops["reshape"](found, shape)


# ------------------------------------------------------------------ windows at random places
@declare
class fractional_max_pool(Composite):
    """(values, indices) of the maxima of windows that start at places drawn by `samples` in [0, 1).

    Shapes: input [N, C, *L], samples [N, C, len(L)]. Source: Graham, Fractional Max-Pooling (2014), the pseudo-random overlapping form.
    """

    functions = ()
    methods = ()
    outputs = 2

    def signature(input: Tensor, samples: Tensor, kernel_size, sizes): ...

    def meta(op, s, samples, kernel, sizes):
        name, rank = f"fractional_max_pool{len(sizes)}d", len(sizes)
        refuse_complex(name, s.dtype)
        kernel = per_dim(name, "kernel_size", kernel, rank)
        for d, (n, k, m) in enumerate(zip(s.shape[s.ndim - rank :], kernel, sizes)):
            if m + k - 1 > n:
                raise RuntimeError(
                    f"{name}: pool {k} and output size {m} of dim {d} are too large relative to input size {n}, got {list(s.shape)}."
                )
        if samples.shape[-1] != rank or samples.ndim != 3:
            raise RuntimeError(f"{name}: samples must be [N, C, {rank}], got {list(samples.shape)}.")
        values = Spec.of((*s.shape[: s.ndim - rank], *sizes), s.dtype, s.device)
        return values, values.with_dtype(int64)

    def body(input, samples, kernel, sizes):
        rank, ops = len(sizes), REGISTRY
        kernel = per_dim("fractional_max_pool", "kernel_size", kernel, rank)
        lead, limits = tuple(input.spec.shape[: input.spec.ndim - rank]), input.spec.shape[input.spec.ndim - rank :]
        device, starts, place = input.spec.device, [], None
        for d, (n, k, m) in enumerate(zip(limits, kernel, sizes)):
            u = ops["select"](samples, -1, rank - 1 - d if rank == 2 else d)  # PyTorch draws width before height
            u = ops["reshape"](u, (*lead, *(1,) * rank))
            alpha = (n - k) / (m - 1) if m > 1 else 0.0
            o = along(m, d, rank, device)
            start = ops["sub"](whole(ops["mul"](ops["add"](u, o), alpha)), whole(ops["mul"](u, alpha)))
            start = ops["where"](ops["eq"](o, m - 1), n - k, start)
            starts.append(start)
            at = ops["add"](ops["reshape"](start, (*start.spec.shape, *(1,) * rank)), along(k, d, rank, device))
            place = at if place is None else ops["add"](ops["mul"](place, n), at)
        count = math.prod(sizes) * math.prod(kernel)
        picked = ops["gather"](
            ops["reshape"](input, (*lead, math.prod(limits))), -1, ops["reshape"](place, (*lead, count))
        )
        x = ops["reshape"](picked, (*lead, *sizes, *kernel))
        values, found = window_max(x, tuple(range(x.spec.ndim - rank, x.spec.ndim)), False)
        return values, flat_place(found, starts, list(kernel), limits)

    def vjp(g, out, input, samples, kernel, sizes):
        return scattered(g[0], out[1], input, len(sizes)), None

    def reference(x, samples, kernel, sizes):
        rank = len(sizes)
        kernel = per_dim("fractional_max_pool", "kernel_size", kernel, rank)
        limits = x.shape[x.ndim - rank :]
        values, found = (np.zeros((*x.shape[:2], *sizes), d) for d in (x.dtype, np.int64))
        for n, c in np.ndindex(*x.shape[:2]):
            u = samples[n, c][::-1] if rank == 2 else samples[n, c]
            for w in np.ndindex(*sizes):
                low = []
                for i, size, k, m, v in zip(w, limits, kernel, sizes, u):
                    alpha = (size - k) / (m - 1) if m > 1 else 0.0
                    low.append(size - k if i == m - 1 else int((i + v) * alpha) - int(v * alpha))
                part = x[(n, c, *(slice(a, a + k) for a, k in zip(low, kernel)))]
                inner = np.unravel_index(part.argmax(), part.shape)
                values[(n, c, *w)] = part.max()
                found[(n, c, *w)] = np.ravel_multi_index([i + a for i, a in zip(inner, low)], limits)
        return values, found

    def samples(t):
        yield case(t(2, 3, 7, 8), np.full((2, 3, 2), 0.3), 2, (3, 4))
        yield case(t(1, 2, 5, 6, 7), np.full((1, 2, 3), 0.7), (2, 2, 3), (2, 3, 3))


def whole(x):
    """The integer part of non-negative numbers, as int64."""
    return REGISTRY["to_dtype"](x, int64)
