"""The public pooling ops of each rank, over the ops that take any rank.

    avg_pool2d(x, 2)          # avg_pool(x, rank=2, kernel_size=2, ...)

May not know: how pooling is done. Forms that may also return indices are in `nn.pooling_forms`.
"""

from __future__ import annotations

from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite
from flambeau.ir.op import declare
from flambeau.operators.adaptive_pooling import adaptive_avg_pool, target_sizes
from flambeau.operators.pooling import avg_pool, lp_pool, max_pool
from flambeau.operators.rules import case


class Pooled(Composite):
    methods = ()


# ------------------------------------------------------------------ maxima
class PooledMax(Pooled):
    """Shared by the maxima of each rank."""

    def signature(input: Tensor, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False): ...


def max_body(rank: int):
    def body(input, *numbers):
        return max_pool(input, rank, *numbers)[0]

    return body


def max_meta(rank: int):
    def meta(op, s, *numbers):
        return max_pool.rules.meta(max_pool, s, rank, *numbers)[0]

    return meta


def max_reference(rank: int):
    def reference(x, *numbers, **words):
        return max_pool.rules.reference(x, rank, *numbers, **words)[0]

    return reference


@declare
class max_pool1d(PooledMax):
    """Maxima of windows over the last dim."""

    functions = ("max_pool1d",)
    meta, body, reference = max_meta(1), max_body(1), max_reference(1)

    def samples(t):
        yield case(t(2, 3, 9), 3, 2)


@declare
class max_pool2d(PooledMax):
    """Maxima of windows over the last two dims."""

    functions = ("max_pool2d",)
    meta, body, reference = max_meta(2), max_body(2), max_reference(2)

    def samples(t):
        yield case(t(2, 3, 6, 7), 3, 2, 1)


@declare
class max_pool3d(PooledMax):
    """Maxima of windows over the last three dims."""

    functions = ("max_pool3d",)
    meta, body, reference = max_meta(3), max_body(3), max_reference(3)

    def samples(t):
        yield case(t(2, 3, 4, 5, 6), 2)


# ------------------------------------------------------------------ means
def avg_body(rank: int):
    def body(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None):
        return avg_pool(input, rank, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return body


def avg_meta(rank: int):
    def meta(op, s, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None):
        return avg_pool.rules.meta(
            avg_pool, s, rank, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )

    return meta


def avg_reference(rank: int):
    def reference(
        x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    ):
        return avg_pool.rules.reference(
            x, rank, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )

    return reference


@declare
class avg_pool1d(Pooled):
    """Means of windows over the last dim."""

    functions = ("avg_pool1d", "nn.functional.avg_pool1d")
    meta, body, reference = avg_meta(1), avg_body(1), avg_reference(1)

    def signature(input: Tensor, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True): ...

    def samples(t):
        yield case(t(2, 3, 9), 3, 2, 1)


class PooledMean(Pooled):
    def signature(
        input: Tensor,
        kernel_size,
        stride=None,
        padding=0,
        ceil_mode=False,
        count_include_pad=True,
        divisor_override=None,
    ): ...


@declare
class avg_pool2d(PooledMean):
    """Means of windows over the last two dims."""

    functions = ("nn.functional.avg_pool2d",)
    meta, body, reference = avg_meta(2), avg_body(2), avg_reference(2)

    def samples(t):
        yield case(t(2, 3, 6, 7), 3, 2, 1, False, False)


@declare
class avg_pool3d(PooledMean):
    """Means of windows over the last three dims."""

    functions = ("nn.functional.avg_pool3d",)
    meta, body, reference = avg_meta(3), avg_body(3), avg_reference(3)

    def samples(t):
        yield case(t(2, 3, 4, 5, 6), 2)


# ------------------------------------------------------------------ adaptive means
def adaptive_body(rank: int):
    def body(input, output_size):
        return adaptive_avg_pool(input, sizes_of(rank, output_size, input.spec.ndim))

    return body


def adaptive_meta(rank: int):
    def meta(op, s, output_size):
        sizes = target_sizes(op.name, s, sizes_of(rank, output_size, s.ndim))
        return Spec.of((*s.shape[: s.ndim - rank], *sizes), s.dtype, s.device)

    return meta


def adaptive_reference(rank: int):
    def reference(x, output_size):
        return adaptive_avg_pool.rules.reference(x, sizes_of(rank, output_size, x.ndim))

    return reference


def sizes_of(rank: int, output_size, ndim: int) -> tuple:
    """One size per dim; None stands for the input's. Raises: ValueError for an input with too few dims."""
    if output_size is None or isinstance(output_size, int):
        return (output_size,) * rank
    if ndim <= len(output_size):
        raise ValueError(
            f"adaptive pooling: Input dimension should be at least {len(output_size) + 1}, got {ndim} for output_size={list(output_size)}."
        )
    if len(output_size) != rank:
        raise RuntimeError(
            f"adaptive pooling: output_size must be a number or {rank} numbers, got {list(output_size)}."
        )
    return tuple(output_size)


class Adaptive(Pooled):
    def signature(input: Tensor, output_size): ...


@declare
class adaptive_avg_pool1d(Adaptive):
    """Means over the last dim in windows of a given count."""

    functions = ("adaptive_avg_pool1d", "nn.functional.adaptive_avg_pool1d")
    meta, body, reference = adaptive_meta(1), adaptive_body(1), adaptive_reference(1)

    def samples(t):
        yield case(t(2, 3, 9), 4)


@declare
class adaptive_avg_pool2d(Adaptive):
    """Means over the last two dims in windows of a given count."""

    functions = ("nn.functional.adaptive_avg_pool2d",)
    meta, body, reference = adaptive_meta(2), adaptive_body(2), adaptive_reference(2)

    def samples(t):
        yield case(t(2, 3, 7, 6), (3, None))
        yield case(t(2, 3, 7, 7), 1)


@declare
class adaptive_avg_pool3d(Adaptive):
    """Means over the last three dims in windows of a given count."""

    functions = ("nn.functional.adaptive_avg_pool3d",)
    meta, body, reference = adaptive_meta(3), adaptive_body(3), adaptive_reference(3)

    def samples(t):
        yield case(t(2, 3, 4, 5, 6), 2)


# ------------------------------------------------------------------ p-norms
def lp_body(rank: int):
    def body(input, norm_type, kernel_size, stride, ceil_mode):
        return lp_pool(input, rank, norm_type, kernel_size, stride, ceil_mode)

    return body


def lp_reference(rank: int):
    def reference(x, norm_type, kernel_size, stride=None, ceil_mode=False):
        return lp_pool.rules.reference(x, rank, norm_type, kernel_size, stride, ceil_mode)

    return reference


class PooledNorm(Pooled):
    def signature(input: Tensor, norm_type, kernel_size, stride=None, ceil_mode=False): ...


@declare
class lp_pool1d(PooledNorm):
    """p-norms of windows over the last dim."""

    functions = ("nn.functional.lp_pool1d",)
    body, reference = lp_body(1), lp_reference(1)

    def samples(t):
        yield case(t(2, 3, 9), 2, 3)


@declare
class lp_pool2d(PooledNorm):
    """p-norms of windows over the last two dims."""

    functions = ("nn.functional.lp_pool2d",)
    body, reference = lp_body(2), lp_reference(2)

    def samples(t):
        yield case(t(2, 3, 6, 8), 2, 2)


@declare
class lp_pool3d(PooledNorm):
    """p-norms of windows over the last three dims."""

    functions = ("nn.functional.lp_pool3d",)
    body, reference = lp_body(3), lp_reference(3)

    def samples(t):
        yield case(t(2, 3, 4, 4, 6), 2, 2)
