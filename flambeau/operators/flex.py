"""Attention with the user's functions of positions, over the whole matrix of scores; and masks by such functions, counted by blocks.

    flex_dense(q, k, v, captured, states, score_program, mask_program, scale, blocks, count)     # (out, lse, most)
    positional_values(None, captured, program, (B, H, L, S))                                     # a mask, written out
    positional_counts(captured, program, (B, H, L, S), (128, 128))                               # one kernel, nothing of size L x S

Scores are float32, or float64 for float64 inputs. May not know: where programs come from. Entry: the ops.
"""

from __future__ import annotations

import math

from flambeau.base.lazy import np
from flambeau.core.device import as_device
from flambeau.core.dtype import dtype, float32, float64, int64
from flambeau.core.spec import Spec
from flambeau.ir.kinds import NOT_DIFFERENTIABLE, Composite, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.ir.positional import Program
from flambeau.ir.tracing import trace
from flambeau.operators.attention_rules import places, to_shape
from flambeau.operators.matmul import NARROW, matrix_product
from flambeau.operators.rules import case

SKIPPED, PARTIAL, FULL = 0, 1, 2  # what a block mask says about a block


def grid(sizes) -> list:
    """`places` in NumPy."""
    return list(np.ogrid[tuple(slice(n) for n in sizes)])


def in_memory(x):
    """x looked up in itself: a scheduler computes what is looked up once, where it would compute x anew for each row it is broadcast to."""
    place = REGISTRY["iota"](tuple(x.spec.shape), device=x.spec.device)
    return REGISTRY["index"](REGISTRY["reshape"](x, (-1,)), (place,))


@declare
class positional_values(Composite):
    """A program's value at every position of [B, H, L, S]; `score` is what it takes first, if it takes one."""

    functions = ()
    methods = ()

    def signature(score: OptionalTensor, captured: Tensors, program, sizes, device=None): ...

    def meta(op, score, captured, program, sizes, device):
        return Spec.of(sizes, program.result.spec.dtype, as_device(device))

    def body(score, captured, program, sizes, device):
        given = places(sizes, device)
        return to_shape(program.apply(given if score is None else [score, *given], captured, in_memory), sizes)

    def reference(score, captured, program, sizes, device=None):
        given = grid(sizes)
        return np.broadcast_to(program.reference(given if score is None else [score, *given], captured), sizes)

    def samples(t):
        yield case(None, (t(5),), _sample_mask(), (1, 2, 3, 5))
        yield case(t(1, 2, 3, 5), (t(2, 5),), _sample_score(), (1, 2, 3, 5))


@declare
class positional_counts(Composite):
    """How many positions of each block of [L, S] a mask lets through; blocks at the edges are cut short.

    `last_query` and `last_key` are L - 1 and S - 1 once more, as numbers that kernels take when they run.
    """

    functions = ()
    methods = ()
    vjp = NOT_DIFFERENTIABLE

    def signature(
        captured: Tensors, program, sizes, blocks, device=None, last_query: Scalar = 0, last_key: Scalar = 0
    ): ...

    def meta(op, captured, program, sizes, blocks, device, last_query, last_key):
        return Spec.of((*sizes[:2], *block_grid(sizes, blocks)), int64, as_device(device))

    def body(captured, program, sizes, blocks, device, last_query, last_key):
        ops = REGISTRY
        rows, columns = block_grid(sizes, blocks)
        b, h = (ops["iota"](shape, device=device) for shape in ((sizes[0], 1, 1, 1, 1, 1), (1, sizes[1], 1, 1, 1, 1)))
        q = ops["view"](ops["iota"]((rows * blocks[0],), device=device), (1, 1, rows, 1, blocks[0], 1))
        kv = ops["view"](ops["iota"]((columns * blocks[1],), device=device), (1, 1, 1, columns, 1, blocks[1]))
        domain = (*sizes[:2], rows, columns, *blocks)
        if not program.scalar:
            mask = positional_values(None, captured, program, sizes, device)
            edge = (rows * blocks[0] - sizes[2], columns * blocks[1] - sizes[3])
            mask = ops["constant_pad_nd"](mask, (0, edge[1], 0, edge[0]), False)
            mask = ops["reshape"](mask, (*sizes[:2], rows, blocks[0], columns, blocks[1]))
            return ops["sum"](mask, (3, 5), False)
        inside = []
        if rows * blocks[0] != sizes[2]:
            inside.append(ops["le"](q, last_query))
            q = ops["where"](inside[-1], q, 0)  # a position that functions may be asked about
        if columns * blocks[1] != sizes[3]:
            inside.append(ops["le"](kv, last_key))
            kv = ops["where"](inside[-1], kv, 0)
        mask = program.apply([b, h, q, kv], captured, in_memory)
        for x in inside:
            mask = ops["logical_and"](mask, x)
        return ops["sum"](to_shape(mask, domain), (4, 5), False)

    def reference(captured, program, sizes, blocks, device=None, last_query=0, last_key=0):
        mask = positional_values.rules.reference(None, captured, program, sizes)
        rows, columns = block_grid(sizes, blocks)
        whole = np.zeros((*sizes[:2], rows * blocks[0], columns * blocks[1]), bool)
        whole[..., : sizes[2], : sizes[3]] = mask
        return whole.reshape(*sizes[:2], rows, blocks[0], columns, blocks[1]).sum((3, 5))

    def samples(t):
        yield case((t(5),), _sample_mask(), (1, 2, 3, 5), (2, 2), None, 2, 4)
        yield case((t(4),), _sample_mask(), (1, 1, 4, 4), (2, 4))


def block_grid(sizes, blocks) -> tuple[int, int]:
    """Blocks along queries and keys."""
    return -(-sizes[2] // blocks[0]), -(-sizes[3] // blocks[1])


def working(d: dtype) -> dtype:
    """What scores are kept in."""
    return float64 if d is float64 else float32


@declare
class softmax_with_sums(Composite):
    """(softmax, log of the sum of exponentials, largest) over the last dim of scores; a row of -inf gives zeros, -inf and -inf.

    The largest carries no gradient.
    """

    functions = ()
    methods = ()
    outputs = 3
    no_gradient = (2,)

    def signature(scores: Tensor): ...

    def meta(op, scores):
        row = Spec.of(scores.shape[:-1], scores.dtype, scores.device)
        return Spec.of(scores.shape, scores.dtype, scores.device), row, row

    def body(scores):
        ops = REGISTRY
        lowest = float("-inf")
        most = ops["amax"](scores, -1, True)
        shift = ops["where"](ops["eq"](most, lowest), 0.0, most)
        e = ops["exp"](ops["sub"](scores, shift))
        total = ops["sum"](e, -1, True)
        weights = ops["mul"](e, ops["where"](ops["eq"](total, 0), 0.0, ops["reciprocal"](total)))
        lse = ops["add"](shift, ops["log"](total))
        return weights, ops["squeeze"](lse, -1), ops["squeeze"](most, -1)

    def vjp(g, out, scores):
        ops = REGISTRY
        (toward_weights, toward_lse, _), weights = g, out[0]
        inner = ops["sum"](ops["mul"](toward_weights, weights), -1, True)
        toward = ops["sub"](toward_weights, ops["sub"](inner, ops["unsqueeze"](toward_lse, -1)))
        return (ops["mul"](weights, toward),)

    def reference(x):
        with np.errstate(divide="ignore"):
            most = x.max(-1, keepdims=True)
            shift = np.where(np.isinf(most), 0, most)
            e = np.exp(x - shift)
            s = e.sum(-1, keepdims=True)
            return e / np.where(s == 0, 1, s), (shift + np.log(s))[..., 0], most[..., 0]

    def samples(t):
        yield case(t(2, 3, 5))
        yield case(t(4))


@declare
class flex_dense(Composite):
    """(attention, log of the sum of exponentials of each row, its largest score) with every score written out.

    Shapes: [B, H, L, E], [B or 1, Hkv, S, E], [B or 1, Hkv, S, Ev] -> [B, H, L, Ev], [B, H, L], [B, H, L]; Hkv divides H.
    `captured` holds `count` tensors of the score's program, then those of the mask's. `states` says of each block of `blocks` queries and
    keys whether nothing in it counts, what the mask's program lets through, or all.
    """

    functions = ()
    methods = ()
    spoken = "flex_attention"
    outputs = 3
    no_gradient = (2,)

    def signature(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        captured: Tensors,
        states: OptionalTensor,
        score_program,
        mask_program,
        scale,
        blocks,
        count,
    ): ...

    def meta(op, query, key, value, captured, states, score_program, mask_program, scale, blocks, count):
        where = common_device(op.name, [query, key, value])
        row = Spec.of(query.shape[:3], working(query.dtype), where)
        return Spec.of((*query.shape[:3], value.shape[3]), query.dtype, where), row, row

    def body(query, key, value, captured, states, score_program, mask_program, scale, blocks, count):
        ops = REGISTRY
        batch, heads, rows, _ = query.spec.shape
        shared, columns = key.spec.shape[1:3]
        device, wide = query.spec.device, working(query.spec.dtype)
        if shared != heads:
            query, key, value = split_heads(query, shared), ops["unsqueeze"](key, 2), ops["unsqueeze"](value, 2)
        scores = matrix_product(query, ops["transpose"](key, -1, -2), None, query.spec.dtype in NARROW)
        sizes = (batch, heads, rows, columns)
        if not columns:
            return nothing(scores, query.spec.dtype, value, sizes[:3])
        x = ops["mul"](ops["reshape"](scores, sizes), scale)
        given = places(sizes, device)
        if score_program is not None:
            x = score_program.apply([x, *given], captured[:count])
            x = to_shape(x if x.spec.dtype is wide else ops["to_dtype"](x, wide), sizes)
        mask = visible(given, captured[count:], states, mask_program, blocks)
        if mask is not None:
            x = ops["where"](mask, x, float("-inf"))
        weights, lse, most = softmax_with_sums(x)
        weights = weights if query.spec.dtype is wide else ops["to_dtype"](weights, query.spec.dtype)
        if shared != heads:
            weights = split_heads(weights, shared)
        out = matrix_product(weights, value)
        return ops["reshape"](out, (batch, heads, rows, value.spec.shape[-1])), lse, most

    def reference(query, key, value, captured, states, score_program, mask_program, scale, blocks, count):
        repeats = query.shape[1] // key.shape[1]
        key, value = np.repeat(key, repeats, 1), np.repeat(value, repeats, 1)
        x = np.matmul(query, np.swapaxes(key, -1, -2)) * scale
        given = grid(x.shape)
        if score_program is not None:
            x = np.broadcast_to(score_program.reference([x, *given], captured[:count]), x.shape)
        if mask_program is not None:
            x = np.where(mask_program.reference(given, captured[count:]), x, -np.inf)
        if states is not None:
            b, h, q, kv = given
            b, h = b if states.shape[0] > 1 else 0 * b, h if states.shape[1] > 1 else 0 * h
            x = np.where(states[b, h, q // blocks[0], kv // blocks[1]] != SKIPPED, x, -np.inf)
        weights, lse, most = softmax_with_sums.rules.reference(x)
        return np.matmul(weights, value), lse, most

    def samples(t):
        yield case(t(2, 2, 3, 4), t(2, 2, 5, 4), t(2, 2, 5, 6), (), None, None, None, 0.5, (128, 128), 0)
        yield case(
            *(t(1, 4, 3, 4), t(1, 2, 5, 4), t(1, 2, 5, 4), (t(4, 5), t(5)), t(1, 1, 2, 3, dtype="int8", high=2)),
            *(_sample_score(), _sample_mask(), 0.5, (2, 2), 1),
        )


def split_heads(x, shared: int):
    """[*, H, L, S] as [*, shared, H / shared, L, S]."""
    shape = tuple(x.spec.shape)
    return REGISTRY["reshape"](x, (*shape[:-3], shared, shape[-3] // shared, *shape[-2:]))


def nothing(scores, dtype, value, rows) -> tuple:
    """What attention to no keys gives: a sum of no values, so that gradients are zeros."""
    ops, device = REGISTRY, value.spec.device
    weights = scores if scores.spec.dtype is dtype else ops["to_dtype"](scores, dtype)
    out = ops["reshape"](matrix_product(weights, value), (*rows, value.spec.shape[-1]))
    empty = ops["full"](rows, -math.inf, dtype=working(dtype), device=device)
    return out, empty, ops["clone"](empty)


def visible(given, captured, states, program, blocks):
    """Whether each position counts; None if all do."""
    ops = REGISTRY
    mask = None if program is None else program.apply(given, captured)
    if states is None:
        return mask
    zero = ops["full"]((1, 1, 1, 1), 0, dtype=int64, device=states.spec.device)
    b, h = (x if n > 1 else zero for x, n in zip(given[:2], states.spec.shape[:2]))
    q, kv = (ops["floor_divide"](x, n) for x, n in zip(given[2:], blocks))
    state = ops["index"](states, (b, h, q, kv))
    if mask is None:
        return ops["ne"](state, SKIPPED)
    listed = ops["logical_and"](ops["ne"](state, SKIPPED), mask)
    return ops["logical_or"](listed, ops["eq"](state, FULL))


# ------------------------------------------------------------------ samples
def _sample_mask() -> Program:
    """row[kv] > 0 or q >= kv."""

    def mask(b, h, q, kv, row):
        seen = REGISTRY["gt"](REGISTRY["index"](row, (kv,)), 0)
        return REGISTRY["logical_or"](seen, REGISTRY["ge"](q, kv))

    indices = [Spec.of((), int64)] * 4
    return Program(trace(mask, [*indices, Spec.of((1,), float64)])[0], 4)


def _sample_score() -> Program:
    """score * 2 + bias[h, kv]."""

    def score_of(score, b, h, q, kv, bias):
        return REGISTRY["add"](REGISTRY["mul"](score, 2), REGISTRY["index"](bias, (h, kv)))

    indices = [Spec.of((), int64)] * 4
    return Program(trace(score_of, [Spec.of((), float64), *indices, Spec.of((1, 1), float64)])[0], 5)
