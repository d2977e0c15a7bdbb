"""Scaled dot-product attention: shapes and masks of PyTorch over the fused primitive.

    scaled_dot_product_attention(q, k, v, is_causal=True)      # [*, L, E], [*, S, E], [*, S, Ev] -> [*, L, Ev]

Causal masks are aligned top left. A row that is masked altogether gives 0. May not know: how products are computed. Entry: the ops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from flambeau.base.lazy import np
from flambeau.core.dtype import BY_NAME, bool_, dtype, int64
from flambeau.core.layout import broadcast_shapes
from flambeau.core.spec import Spec
from flambeau.ir.graph import Graph
from flambeau.ir.kinds import Composite, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.ir.positional import Program
from flambeau.operators.attention_fused import attention, statistics_dtype
from flambeau.operators.attention_rules import Read, Rules
from flambeau.operators.batched import aligned, element_ndim
from flambeau.operators.matmul import check_types, shown
from flambeau.operators.rules import case, sum_to


@declare
class attention_weights(Composite):
    """softmax(scale * scores + mask) over the last dim; bool masks keep where True; rows without anything to attend to are 0.

    Dtypes: the result has `dtype` (the scores may be wider).
    """

    functions = ()
    methods = ()

    def signature(scores: Tensor, mask: OptionalTensor, scale, is_causal, dtype): ...

    def meta(op, scores, mask, scale, is_causal, dtype):
        return Spec.of(scores.shape, dtype, scores.device)

    def body(scores, mask, scale, is_causal, dtype):
        ops = REGISTRY
        x = ops["mul"](scores, scale)
        lowest = float("-inf")
        if is_causal:
            x = ops["where"](causal_mask(scores), x, lowest)
        if mask is not None:
            x = ops["where"](mask, x, lowest) if mask.spec.dtype is bool_ else ops["add"](x, mask)
        most = ops["amax"](x, -1, True)
        most = ops["where"](ops["eq"](most, lowest), 0.0, most)
        e = ops["exp"](ops["sub"](x, most))
        total = ops["sum"](e, -1, True)
        found = ops["mul"](e, ops["where"](ops["eq"](total, 0), 0.0, ops["reciprocal"](total)))
        return found if found.spec.dtype is dtype else ops["to_dtype"](found, dtype)

    def vjp(g, out, scores, mask, scale, is_causal, dtype):
        ops = REGISTRY
        weighted = ops["mul"](g, out)
        inner = ops["sub"](weighted, ops["mul"](out, ops["sum"](weighted, -1, True)))
        left = sum_to(ops["mul"](inner, scale), scores)
        return left, None if mask is None or mask.spec.dtype is bool_ else sum_to(inner, mask)

    def reference(scores, mask, scale, is_causal, dtype):
        x = scores * scale
        if is_causal:
            x = np.where(np.tril(np.ones(x.shape[-2:], bool)), x, -np.inf)
        if mask is not None:
            x = np.where(mask, x, -np.inf) if mask.dtype == bool else x + mask
        m = x.max(-1, keepdims=True, initial=-np.inf)
        e = np.exp(x - np.where(np.isinf(m), 0, m))
        s = e.sum(-1, keepdims=True)
        return e / np.where(s == 0, 1, s)

    def samples(t):
        d = dtype_of(t(1))
        yield case(t(2, 3, 5), None, 0.5, False, d)
        yield case(t(2, 3, 5), t(3, 5), 0.5, True, d)


def dtype_of(x):
    """The dtype of a sample, NumPy's or a tensor's."""
    return x.spec.dtype if hasattr(x, "spec") else BY_NAME[str(x.dtype)]


def causal_mask(scores):
    """Whether row i may see column j: j <= i, counted from the top left."""
    rows, columns = scores.spec.shape[-2:]
    device = scores.spec.device
    return REGISTRY["ge"](REGISTRY["iota"]((rows, 1), device=device), REGISTRY["iota"]((1, columns), device=device))


def check_attention(q: Spec, k: Spec, v: Spec, mask: Spec | None, is_causal: bool, gqa: bool) -> tuple:
    """(batch shape, L, Ev). Raises: RuntimeError or ValueError where shapes do not fit."""
    name = "scaled_dot_product_attention"
    if q.ndim < 2 or k.ndim < 2 or v.ndim < 2:
        raise RuntimeError(
            f"{name}: Expected query, key, and value to all be at least 2 dimensional, got {shown(q)}, {shown(k)}, {shown(v)}."
        )
    if not q.dtype.is_floating_point:
        raise RuntimeError(
            f"{name}: expected query, key and value of a floating dtype, got {q.dtype.name}. Convert with .float()."
        )
    check_types(name, q, k, v)
    if mask is not None:
        if is_causal:
            raise RuntimeError(
                f"{name}: Explicit attn_mask should not be set when is_causal=True, got both. Fold the causal mask into attn_mask."
            )
        if mask.dtype is not bool_ and mask.dtype is not q.dtype and not mask.dtype.is_floating_point:
            raise RuntimeError(
                f"{name}: Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: {mask.dtype.name} and "
                f"query.dtype: {q.dtype.name}."
            )
    if q.shape[-1] != k.shape[-1]:
        raise RuntimeError(
            f"{name}: query and key must have one embedding size, got {shown(q)} and {shown(k)}. Did you mean the transposed key?"
        )
    if k.shape[-2] != v.shape[-2]:
        raise RuntimeError(f"{name}: key and value must have one sequence length, got {shown(k)} and {shown(v)}.")
    if gqa:
        if (
            min(q.ndim, k.ndim, v.ndim) < 3
            or k.shape[-3] == 0
            or q.shape[-3] % k.shape[-3]
            or k.shape[-3] != v.shape[-3]
        ):
            raise RuntimeError(
                f"{name}: with enable_gqa=True the number of heads in key and value must divide the number of heads in query, got {shown(q)}, "
                f"{shown(k)}, {shown(v)}."
            )
        batch = (*broadcast_shapes(name, q.shape[:-3], k.shape[:-3], v.shape[:-3]), q.shape[-3])
    else:
        batch = broadcast_shapes(name, q.shape[:-2], k.shape[:-2], v.shape[:-2])
    return batch, q.shape[-2], v.shape[-1]


@declare
class scaled_dot_product_attention(Composite):
    """softmax(q @ k.mT * scale + mask) @ v, `scale` 1 / sqrt(E) unless told; no dropout (see `nn.functional`).

    Shapes: [*, L, E], [*, S, E], [*, S, Ev] -> [*, L, Ev]; with `enable_gqa` fewer heads in key and value, each shared by neighbours.
    `is_causal`: query i sees keys up to i + shift.
    """

    functions = ()
    methods = ()

    def signature(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: OptionalTensor = None,
        is_causal=False,
        scale=None,
        enable_gqa=False,
        shift=0,
    ): ...

    def meta(op, q, k, v, mask, is_causal, scale, enable_gqa, shift):
        batch, rows, size = check_attention(q, k, v, mask, is_causal, enable_gqa)
        return Spec.of(
            (*batch, rows, size), q.dtype, common_device(op.name, [s for s in (q, k, v, mask) if s is not None])
        )

    def body(q, k, v, mask, is_causal, scale, enable_gqa, shift):
        batch, rows, size = check_attention(
            q.spec, k.spec, v.spec, None if mask is None else mask.spec, is_causal, enable_gqa
        )
        if scale is None:
            scale = 1.0 / math.sqrt(q.spec.shape[-1]) if q.spec.shape[-1] else 1.0
        q, k, v = in_heads(q, k, v, batch)
        rules, captured = mask_rules(mask, batch, (*q.spec.shape[:3], k.spec.shape[2]), q.spec.dtype)
        found = attention(q, k, v, (), (), captured, rules, is_causal, shift, None, float(scale))[0]
        return found if len(batch) == 2 else REGISTRY["reshape"](found, (*batch, rows, size))

    def batch(size, dims, q, k, v, mask, is_causal, scale, enable_gqa, shift):
        longest = max(element_ndim(x, d) for x, d in zip((q, k, v, mask), dims) if x is not None)
        q, k, v, mask = (None if x is None else aligned(x, d, longest) for x, d in zip((q, k, v, mask), dims))
        return scaled_dot_product_attention(q, k, v, mask, is_causal, scale, enable_gqa, shift), 0

    def reference(q, k, v, mask=None, is_causal=False, scale=None, enable_gqa=False, shift=0):
        if enable_gqa:
            k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
        scores = np.matmul(q, np.swapaxes(k, -1, -2))
        if is_causal:
            mask, is_causal = np.tril(np.ones(scores.shape[-2:], bool), shift), False
        weights = attention_weights.rules.reference(scores, mask, scale or 1 / math.sqrt(q.shape[-1]), is_causal, None)
        return np.matmul(weights, v)

    def samples(t):
        yield case(t(2, 3, 4, 8), t(2, 3, 5, 8), t(2, 3, 5, 6))
        yield case(t(2, 4, 8), t(2, 5, 8), t(2, 5, 8), None, True)
        yield case(t(2, 4, 8), t(2, 6, 8), t(2, 6, 8), None, True, None, False, 2)
        yield case(t(2, 4, 3, 8), t(2, 2, 5, 8), t(2, 2, 5, 8), t(3, 5), False, 0.3, True)
        yield case(t(4, 8), t(5, 7), t(5, 7), raises=(RuntimeError, "one embedding size"))


def in_heads(q, k, v, batch: tuple) -> tuple:
    """Queries, keys and values as [B, H, *, *] with batch dims `batch`; one head that all share stays one."""
    shared = all(x.spec.ndim < 3 or x.spec.shape[-3] == 1 for x in (k, v))
    found = []
    for x, own in ((q, False), (k, True), (v, True)):
        shape = tuple(x.spec.shape)
        heads = batch[-1:]
        if own:
            heads = (1,) if shared and batch else (shape[-3],) if len(shape) > 2 and shape[-3] != 1 else heads
        wanted = (*batch[:-1], *heads, *shape[-2:])
        if shape != wanted:
            x = REGISTRY["expand"](x, wanted)
        while x.spec.ndim < 4:
            x = REGISTRY["unsqueeze"](x, 0)
        if x.spec.ndim > 4:
            x = REGISTRY["reshape"](x, (math.prod(wanted[:-3]), *wanted[-3:]))
        found.append(x)
    return tuple(found)


def mask_rules(mask, batch: tuple, domain: tuple, dtype) -> tuple:
    """(what a mask tensor does to scores over `domain`, whose first dim are all dims of `batch` but the last; the tensors it captures)."""
    if mask is None:
        return Rules(), ()
    if len(batch) > 2 and mask.spec.ndim > 3:
        own = (1,) * (len(batch) + 2 - mask.spec.ndim) + tuple(mask.spec.shape[:-2])
        wanted = (*((1,) * (len(batch) - 1) if max(own[:-1]) == 1 else batch[:-1]), own[-1], *mask.spec.shape[-2:])
        mask = REGISTRY["reshape"](REGISTRY["expand"](mask, wanted), (math.prod(wanted[:-3]), *wanted[-3:]))
    shape, dtype = tuple(mask.spec.shape), statistics_dtype(dtype)
    given = len(domain) - len(shape)
    read = tuple(d for d, n in enumerate(shape) if n != 1)  # others are the same for all positions
    mask = REGISTRY["reshape"](mask, tuple(shape[d] for d in read))
    rules = mask_programs(tuple(d + given for d in read), mask.spec.dtype, dtype)
    return rules, (mask,)


@functools.lru_cache(maxsize=256)
def mask_programs(dims: tuple[int, ...], stored: dtype, working: dtype) -> Rules:
    """Rules by which a mask with these dims of the domain is added to scores, or says which count."""
    position, captured = Spec.of((), int64), Spec.of((1,) * len(dims), stored)

    def program(leading: Sequence[Spec], function: Callable) -> Program:
        graph = Graph()
        given = [graph.input(s) for s in (*leading, *[position] * 4, captured)]
        places = tuple(given[len(leading) + d] for d in dims)
        value = graph.add(REGISTRY["index"], (given[-1], places))[0] if dims else given[-1]
        graph.outputs = [function(graph, given, places, value)]
        return Program(graph, len(given) - 1)

    if stored is bool_:
        return Rules(mask=program((), lambda graph, given, places, value: value))
    score = Spec.of((), working)
    added = program((score,), lambda graph, given, places, value: graph.add(REGISTRY["add"], (given[0], value, 1))[0])
    gradient = program((score, score), lambda graph, given, places, value: given[1])
    indices = tuple(program((score,), lambda graph, given, places, value, i=i: places[i]) for i in range(len(dims)))
    return Rules(added, None, gradient, (Read(0, indices, gradient),), 1)
