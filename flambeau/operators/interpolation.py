"""Resampling of spatial dims: every mode is, per dim, a weighted sum over a few places whose numbers are computed in the kernel.

    resample(x, dim, "linear", size, None, False)

Source places follow PyTorch's: pixel centres unless `align_corners`. May not know: the functions' argument forms
(`nn.interpolation_forms`). Entry: `resample`, `resample_nearest`.
"""

from __future__ import annotations

import math

from flambeau.base.lazy import np
from flambeau.core.dtype import bfloat16, float16, float32, float64, int64
from flambeau.core.layout import canonical_dim
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import case

CUBIC, CUBIC_SMOOTHED = -0.75, -0.5  # Keys' parameter, without and with antialiasing (PyTorch's and Pillow's)


def step_between(size: int, count: int, factor: float | None, align_corners: bool) -> float:
    """How far the source moves per result element."""
    if align_corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1.0 / factor if factor else size / count


# ------------------------------------------------------------------ nearest
@declare
class resample_nearest(Composite):
    """The last dims read at the nearest places: floor(i * step), or floor((i + 1/2) * step) if `exact`."""

    functions = ()
    methods = ()

    def signature(input: Tensor, sizes, factors, exact=False): ...

    def meta(op, s, sizes, factors, exact):
        return Spec.of((*s.shape[: s.ndim - len(sizes)], *sizes), s.dtype, s.device)

    def body(input, sizes, factors, exact):
        ops, rank = REGISTRY, len(sizes)
        lead = input.spec.ndim - rank
        places = []
        for d, (size, factor) in enumerate(zip(sizes, factors)):
            n = input.spec.shape[lead + d]
            i = ops["to_dtype"](ops["iota"]((size,), device=input.spec.device), float32)
            at = ops["mul"](ops["add"](i, 0.5) if exact else i, step_between(n, size, factor, False))
            at = ops["clamp"](ops["to_dtype"](at, int64), 0, n - 1)
            places.append(ops["reshape"](at, tuple(size if j == d else 1 for j in range(rank))))
        return ops["index"](input, ((None,) * lead) + tuple(places))

    def reference(x, sizes, factors, exact=False):
        for d, (size, factor) in enumerate(zip(sizes, factors), x.ndim - len(sizes)):
            step = np.float32(step_between(x.shape[d], size, factor, False))
            at = ((np.arange(size) + (0.5 if exact else 0)).astype(np.float32) * step).astype(np.int64)
            x = np.take(x, np.minimum(at, x.shape[d] - 1), d)
        return x

    def samples(t):
        yield case(t(2, 3, 5), (8,), (None,))
        yield case(t(2, 3, 5, 4), (3, 9), (None, None), True)


# ------------------------------------------------------------------ weighted
def linear_places(count: int, size: int, step: float, align_corners: bool, kind, device) -> tuple:
    """(index [count, 2], weight [count, 2]) of linear interpolation."""
    ops = REGISTRY
    at = source_places(count, step, align_corners, kind, device)
    at = at if align_corners else ops["clamp_min"](at, 0.0)
    first = ops["clamp_max"](ops["to_dtype"](at, int64), size - 1)
    rest = ops["clamp"](ops["sub"](at, ops["to_dtype"](first, kind)), 0.0, 1.0)
    tap = ops["iota"]((1, 2), device=device)
    index = ops["clamp_max"](ops["add"](first, tap), size - 1)
    return index, ops["where"](ops["eq"](tap, 0), ops["rsub"](rest, 1.0), rest)


def source_places(count: int, step: float, align_corners: bool, kind, device):
    """Where result element i [count, 1] lies in the source."""
    ops = REGISTRY
    i = ops["to_dtype"](ops["iota"]((count, 1), device=device), kind)
    if align_corners:
        return ops["mul"](i, step)
    return ops["sub"](ops["mul"](ops["add"](i, 0.5), step), 0.5)


def cubic_places(count: int, size: int, step: float, align_corners: bool, kind, device) -> tuple:
    """(index [count, 4], weight [count, 4]) of cubic convolution interpolation (Keys, 1981)."""
    ops = REGISTRY
    at = source_places(count, step, align_corners, kind, device)
    base = ops["floor"](at)
    tap = ops["iota"]((1, 4), device=device)
    index = ops["clamp"](ops["sub"](ops["add"](ops["to_dtype"](base, int64), tap), 1), 0, size - 1)
    distance = ops["abs"](ops["sub"](ops["sub"](at, base), ops["to_dtype"](ops["sub"](tap, 1), kind)))
    return index, cubic_weight(distance, CUBIC)


def cubic_weight(x, a: float):
    """Keys' kernel at distances x >= 0."""
    ops = REGISTRY
    near = ops["add"](ops["mul"](ops["mul"](ops["sub"](ops["mul"](x, a + 2), a + 3), x), x), 1.0)
    far = ops["sub"](ops["mul"](ops["add"](ops["mul"](ops["sub"](x, 5.0), x), 8.0), ops["mul"](x, a)), 4.0 * a)
    return ops["where"](ops["le"](x, 1.0), near, ops["where"](ops["lt"](x, 2.0), far, 0.0))


def smoothed_places(count: int, size: int, step: float, reach: int, kind, device) -> tuple:
    """(index, weight) [count, K] of a kernel stretched over `step` source elements, so that shrinking averages."""
    ops = REGISTRY
    stretch = max(step, 1.0)
    support = reach * stretch
    taps = min(size, 2 * math.ceil(support) + 1)
    centre = ops["mul"](ops["add"](ops["to_dtype"](ops["iota"]((count, 1), device=device), kind), 0.5), step)
    low = ops["clamp_min"](
        ops["to_dtype"](ops["clamp_min"](ops["add"](ops["sub"](centre, support), 0.5), 0.0), int64), 0
    )
    high = ops["clamp_max"](ops["to_dtype"](ops["add"](centre, support + 0.5), int64), size)
    at = ops["add"](low, ops["iota"]((1, taps), device=device))
    distance = ops["abs"](ops["mul"](ops["add"](ops["sub"](ops["to_dtype"](at, kind), centre), 0.5), 1.0 / stretch))
    weight = ops["clamp_min"](ops["rsub"](distance, 1.0), 0.0) if reach == 1 else cubic_weight(distance, CUBIC_SMOOTHED)
    weight = ops["where"](ops["lt"](at, high), weight, 0.0)
    total = ops["sum"](weight, 1, True)
    return ops["clamp"](at, 0, size - 1), ops["true_divide"](weight, ops["where"](ops["eq"](total, 0.0), 1.0, total))


@declare
class resample(Composite):
    """One dim resampled to `count` elements by "linear" or "cubic" interpolation; `smooth` widens the kernel when shrinking.

    Dtypes: weights in float32, or float64 for float64; integers are rounded. Determinism: bitwise.
    """

    functions = ()
    methods = ()

    def signature(input: Tensor, dim, mode, count, factor=None, align_corners=False, smooth=False): ...

    def meta(op, s, dim, mode, count, factor, align_corners, smooth):
        d = canonical_dim("interpolate", dim, s.ndim)
        return Spec.of((*s.shape[:d], count, *s.shape[d + 1 :]), s.dtype, s.device)

    def body(input, dim, mode, count, factor, align_corners, smooth):
        ops, dtype = REGISTRY, input.spec.dtype
        d = canonical_dim("interpolate", dim, input.spec.ndim)
        kind = float64 if dtype is float64 else float32
        size = input.spec.shape[d]
        step = step_between(size, count, factor, align_corners)
        if smooth:
            index, weight = smoothed_places(count, size, step, {"linear": 1, "cubic": 2}[mode], kind, input.spec.device)
        else:
            places = linear_places if mode == "linear" else cubic_places
            index, weight = places(count, size, step, align_corners, kind, input.spec.device)
        found = ops["index"](input, (None,) * d + (index,))  # [..., count, taps, ...]
        if dtype.is_integral or dtype in (float16, bfloat16):
            found = ops["to_dtype"](found, kind)
        after = input.spec.ndim - d - 1
        weight = ops["reshape"](weight, (*weight.spec.shape, *(1,) * after))
        total = ops["sum"](ops["mul"](found, weight), d + 1, False)
        if total.spec.dtype is dtype:
            return total
        if dtype.is_integral:
            total = ops["clamp"](ops["round"](total), 0, 255)
        return ops["to_dtype"](total, dtype)

    def reference(x, dim, mode, count, factor=None, align_corners=False, smooth=False):
        d, size = dim % x.ndim, x.shape[dim]
        step = step_between(size, count, factor, align_corners)
        matrix = np.zeros((count, size))
        for i in range(count):
            if smooth:
                stretch, reach = max(step, 1.0), {"linear": 1, "cubic": 2}[mode]
                centre = step * (i + 0.5)
                low, high = max(int(centre - reach * stretch + 0.5), 0), min(int(centre + reach * stretch + 0.5), size)
                line = np.array(
                    [np_kernel((j - centre + 0.5) / stretch, mode, CUBIC_SMOOTHED) for j in range(low, high)]
                )
                matrix[i, low:high] = line / line.sum()
                continue
            at = step * i if align_corners else step * (i + 0.5) - 0.5
            at = max(at, 0.0) if mode == "linear" else at
            base = math.floor(at)
            for j in range(base - 1, base + 3):
                matrix[i, min(max(j, 0), size - 1)] += np_kernel(at - j, mode, CUBIC)
        return np.moveaxis(np.tensordot(matrix, x, (1, d)), 0, d)

    def samples(t):
        for mode in ("linear", "cubic"):
            yield case(t(2, 5), -1, mode, 8)
            yield case(t(2, 5, 3), 1, mode, 3, None, True)
            yield case(t(2, 9), -1, mode, 4, None, False, True)


def np_kernel(x: float, mode: str, a: float) -> float:
    x = abs(x)
    if mode == "linear":
        return max(0.0, 1.0 - x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0
