"""Rotary position embedding: pairs of elements turned by an angle, in one kernel."""

from __future__ import annotations

from flambeau.base.errors import ShapeError, message
from flambeau.base.lazy import np
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import case, sum_to


@declare
class rotate_pairs(Composite):
    """Pairs (a, b) along the last dim become (a cos - b sin, a sin + b cos).

    Shapes: input [..., D], cos and sin broadcastable to [..., D / 2]. Pairs are neighbours if `interleaved`, else element i and i + D / 2.
    Raises: RuntimeError for an odd D. Source: Su et al. 2021, arXiv 2104.09864.
    """

    functions = ()
    methods = ()

    def signature(input: Tensor, cos: Tensor, sin: Tensor, interleaved=False): ...

    def meta(op, input, cos, sin, interleaved):
        if not input.ndim or input.shape[-1] % 2:
            raise ShapeError(message("rotate_pairs", "the last dim must be even", f"shape {list(input.shape)}"))
        return Spec.of(input.shape, input.dtype, input.device)

    def body(input, cos, sin, interleaved):
        ops, shape = REGISTRY, input.spec.shape
        half, dim = shape[-1] // 2, -1 if interleaved else -2
        pairs = ops["reshape"](input, (*shape[:-1], half, 2) if interleaved else (*shape[:-1], 2, half))
        sign = ops["iota"]((2,), -1, 2, dtype=input.spec.dtype, device=input.spec.device)  # -1, 1
        if not interleaved:
            sign = ops["reshape"](sign, (2, 1))
        swapped = ops["reverse"](pairs, (pairs.spec.ndim + dim,))
        turned = ops["add"](
            ops["mul"](pairs, ops["unsqueeze"](cos, dim)),
            ops["mul"](swapped, ops["mul"](ops["unsqueeze"](sin, dim), sign)),
        )
        return ops["reshape"](
            ops["contiguous_copy"](turned), tuple(shape)
        )  # the copy fuses; its result can be shown in another shape

    def vjp(g, out, input, cos, sin, interleaved):
        back = rotate_pairs(g, cos, REGISTRY["neg"](sin), interleaved)
        return (back, *derivatives_of_angles(g, input, cos, sin, interleaved))

    def reference(x, cos, sin, interleaved=False):
        if interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return np.stack((a * cos - b * sin, a * sin + b * cos), -1).reshape(x.shape)
        a, b = np.split(x, 2, -1)
        return np.concatenate((a * cos - b * sin, a * sin + b * cos), -1)

    def samples(t):
        for interleaved in (False, True):
            yield case(t(2, 3, 5, 8), t(5, 4), t(5, 4), interleaved)
        yield case(t(3), t(1), t(1), raises=(RuntimeError, "must be even"))


def derivatives_of_angles(g, input, cos, sin, interleaved):
    """Gradients of cos and sin: sums of g times the pair, and times the turned pair."""
    ops, shape = REGISTRY, input.spec.shape
    half, dim = shape[-1] // 2, -1 if interleaved else -2
    split = (*shape[:-1], half, 2) if interleaved else (*shape[:-1], 2, half)
    pairs, gradients = ops["reshape"](input, split), ops["reshape"](g, split)
    sign = ops["iota"]((2,), -1, 2, dtype=input.spec.dtype, device=input.spec.device)
    if not interleaved:
        sign = ops["reshape"](sign, (2, 1))
    where = (pairs.spec.ndim + dim,)
    of_cos = ops["sum"](ops["mul"](gradients, pairs), where)
    of_sin = ops["sum"](ops["mul"](ops["mul"](gradients, sign), ops["reverse"](pairs, where)), where)
    return sum_to(of_cos, cos), sum_to(of_sin, sin)
