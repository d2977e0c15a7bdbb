"""The fused attention: one primitive over the template, what is done to scores given as rules.

    out, lse, most = attention(q, k, v, (), (), (), Rules(), causal=True, shift=0, block=None, scale=0.125)

May not know: how user functions become programs, block masks as objects. Entry: `attention`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flambeau.base.lazy import np
from flambeau.base.record import replace
from flambeau.core.dtype import dtype, float32, float64, int64
from flambeau.core.spec import Spec
from flambeau.ir.graph import Graph
from flambeau.ir.kinds import DERIVED, Composite, Template, common_device
from flambeau.ir.op import REGISTRY, Refused, declare
from flambeau.ir.positional import Program
from flambeau.operators.attention_rules import Read, Rules, places, to_shape
from flambeau.operators.flex import FULL, PARTIAL, visible
from flambeau.operators.matmul import matrix_product
from flambeau.operators.rules import case
from flambeau.templates.attention_backward import lower_backward
from flambeau.templates.attention_decode import lower_decode, suits
from flambeau.templates.attention_forward import lower_forward
from flambeau.templates.attention_problem import Problem
from flambeau.templates.attention_reads import lower_reads


def statistics_dtype(d: dtype) -> dtype:
    """What scores, their maxima and log-sum-exps are kept in."""
    return float64 if d is float64 else float32


def memory_order(q: Spec, shape: Sequence[int]) -> Spec:
    """The result laid out as the queries are: by heads, or by rows with the heads of a row together."""
    batch, heads, rows, size = shape
    if q.strides[1] < q.strides[2] and heads > 1 and rows > 1:
        return Spec.get(shape, (rows * heads * size, size, heads * size, 1), q.dtype, q.device)
    return Spec.of(shape, q.dtype, q.device)


def problem_of(
    q: Spec, k: Spec, v: Spec, causal: bool, shift: int, block, scale: float
) -> tuple[Problem, tuple[int, ...]]:
    """(the problem with its result in memory order, the domain of scores)."""
    batch, heads, rows, size = q.shape
    shared, columns, value_size = k.shape[1], k.shape[2], int(v.shape[3])
    out = memory_order(q, (batch, heads, rows, value_size))
    strides = (tuple(x.strides) for x in (q, k, v, out))
    group = heads // shared if shared else 1
    problem = Problem(
        batch, shared, group, rows, columns, int(size), value_size, q.dtype.name, *strides, scale, causal, shift, block
    )
    return problem, (batch, heads, rows, columns)


@declare
class attention(Template):
    """(softmax of scores times values, log-sum-exp of each row's scores, its greatest score).

    Shapes: [B, H, L, E], [B, H / group, S, E], [B, H / group, S, Ev] -> [B, H, L, Ev], [B, H, L], [B, H, L]. `lists` are counts
    [*, *, blocks of rows] and indices [*, *, blocks of rows, n] of key blocks that `mask` applies to, then of those seen wholly;
    `turned` the same of query blocks, for blocks of keys; `block` their (queries, keys). `causal`: row i sees keys up to i + shift.
    Determinism: bitwise, for any number of threads.
    """

    functions = ()
    methods = ()
    outputs = 3
    no_gradient = (2,)

    def signature(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lists: Tensors,
        turned: Tensors,
        captured: Tensors,
        rules,
        causal,
        shift,
        block,
        scale,
    ): ...

    def meta(op, q, k, v, lists, turned, captured, rules, causal, shift, block, scale):
        device = common_device("attention", [q, k, v, *lists, *captured])
        kept = Spec.of(tuple(q.shape[:3]), statistics_dtype(q.dtype), device)
        return memory_order(q, (*q.shape[:3], v.shape[3])), kept, kept

    def lower(op, target, threads, q, k, v, lists, turned, captured, rules, causal, shift, block, scale):
        problem, domain = problem_of(q, k, v, causal, shift, block, scale)
        programs = None if not rules else lambda slot, position: rules.programs(domain, captured, slot, position)[0]
        if suits(problem):
            return lower_decode(problem, target, threads, programs, len(captured))
        return lower_forward(
            problem,
            target,
            threads,
            programs=programs,
            lists=tuple(broadcast_steps(x, i % 2 == 1) for i, x in enumerate(lists)),
            others=len(turned),
            captured=len(captured),
        )

    def vjp(g, out, q, k, v, lists, turned, captured, rules, causal, shift, block, scale):
        given = (g[0], g[1], q, k, v, out[0], out[1])
        found = attention_backward(*given, turned, captured, rules, causal, shift, block, scale)
        by_captured: list = [None] * len(captured)
        for number, read in enumerate(rules.reads):
            one = attention_read_gradient(*given, lists, captured, rules, number, causal, shift, block, scale)
            before = by_captured[read.captured]
            by_captured[read.captured] = one if before is None else REGISTRY["add"](before, one)
        return *found, None, None, tuple(by_captured)

    def batch(size, dims, q, k, v, lists, turned, captured, rules, causal, shift, block, scale):
        args = (q, k, v, lists, turned, captured, rules, causal, shift, block, scale)
        return batched_attention(attention, size, dims, args, lists or captured)

    def reference(q, k, v, lists, turned, captured, rules, causal, shift, block, scale):
        group = q.shape[1] // k.shape[1]
        k, v = (np.repeat(x, group, 1) for x in (k, v))
        x = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
        if causal:
            x = np.where(np.tril(np.ones(x.shape[-2:], bool), shift), x, -np.inf)
        most = x.max(-1, initial=-np.inf)
        e = np.exp(x - np.where(np.isinf(most), 0, most)[..., None])
        total = e.sum(-1)
        with np.errstate(divide="ignore"):
            return np.matmul(e / np.where(total == 0, 1, total)[..., None], v), most + np.log(total), most

    def samples(t):
        yield case(t(2, 4, 5, 8), t(2, 2, 7, 8), t(2, 2, 7, 6), (), (), (), Rules(), False, 0, None, 0.3)
        yield case(t(1, 2, 6, 3), t(1, 2, 6, 3), t(1, 2, 6, 3), (), (), (), Rules(), True, 0, None, 0.5)


def broadcast_steps(s: Spec, indices: bool) -> tuple[int, ...]:
    """Strides of counts (batch, head, block of rows) or indices (and place in the list); 0 along dims of size 1."""
    return tuple(0 if n == 1 and d < 2 else stride for d, (n, stride) in enumerate(zip(s.shape, s.strides)))


def batched_attention(op, size: int, dims: tuple, args: tuple, placed: tuple) -> tuple:
    """A batch of calls as one with a longer batch; call by call where rules or lists depend on the place in it."""
    tensors = [a for p, a in zip(op.params, args) if p.role == "Tensor"]
    rest = args[len(tensors) :]
    if placed:
        calls = [op(*(picked(a, d, i) for a, d in zip(args, dims)), *args[len(dims) :]) for i in range(size)]
        if op.outputs == 1:
            return REGISTRY["stack"](calls, 0), 0
        return tuple(REGISTRY["stack"](each, 0) for each in zip(*calls)), (0,) * op.outputs
    found = []
    for x, dim in zip(tensors, dims):
        x = REGISTRY["unsqueeze"](x, 0) if dim is None else x
        shape = (size, *x.spec.shape[1:])
        found.append(REGISTRY["reshape"](REGISTRY["expand"](x, shape), (size * shape[1], *shape[2:])))
    outs = op(*found, *rest)
    return tuple(REGISTRY["reshape"](x, (size, x.spec.shape[0] // size, *x.spec.shape[1:])) for x in outs), (0, 0, 0)


def picked(a, dim, i: int):
    """Element i of a batched argument, or of each of a tuple."""
    if isinstance(a, (tuple, list)):
        return tuple(picked(x, d, i) for x, d in zip(a, dim or (None,) * len(a)))
    return a if dim is None else REGISTRY["select"](a, 0, i)


@declare
class attention_backward(Template):
    """Gradients of `attention` by query, key and value, from those of its result and of its log-sum-exp.

    Determinism: bitwise, for any number of threads. Differentiated again, it is computed with the whole matrix of scores.
    """

    functions = ()
    methods = ()
    outputs = 3
    vjp = DERIVED

    def signature(
        g: Tensor, g_lse: Tensor, query: Tensor, key: Tensor, value: Tensor, found: Tensor, lse: Tensor, turned: Tensors,
        captured: Tensors, rules, causal, shift, block, scale,
    ): ...  # fmt: skip

    def meta(op, g, g_lse, q, k, v, out, lse, turned, captured, rules, causal, shift, block, scale):
        return tuple(memory_order(x, tuple(x.shape)) for x in (q, k, v))

    def lower(op, target, threads, g, g_lse, q, k, v, out, lse, turned, captured, rules, causal, shift, block, scale):
        problem, domain = problem_of(q, k, v, causal, shift, block, scale)
        results = (tuple(memory_order(x, tuple(x.shape)).strides) for x in (q, k, v))
        return lower_backward(
            replace(problem, out=tuple(out.strides)),
            target,
            threads,
            tuple(g.strides),
            *results,
            statistics=(tuple(lse.strides), tuple(g_lse.strides)),
            programs=None
            if not rules
            else lambda slot, position: rules.programs(domain, captured, slot, position, True),
            lists=tuple(broadcast_steps(x, i % 2 == 1) for i, x in enumerate(turned)),
            captured=len(captured),
        )

    def differentiated(g, g_lse, q, k, v, out, lse, turned, captured, rules, causal, shift, block, scale):
        return dense_backward((g, g_lse, q, k, v, out, lse), turned, captured, rules, causal, shift, block, scale)

    def batch(size, dims, g, g_lse, q, k, v, out, lse, turned, captured, rules, causal, shift, block, scale):
        args = (g, g_lse, q, k, v, out, lse, turned, captured, rules, causal, shift, block, scale)
        return batched_attention(attention_backward, size, dims, args, turned or captured)

    def reference(g, g_lse, q, k, v, out, lse, turned, captured, rules, causal, shift, block, scale):
        group = q.shape[1] // k.shape[1]
        wide_k, wide_v = (np.repeat(x, group, 1) for x in (k, v))
        x = np.matmul(q, np.swapaxes(wide_k, -1, -2)) * scale
        if causal:
            x = np.where(np.tril(np.ones(x.shape[-2:], bool), shift), x, -np.inf)
        with np.errstate(invalid="ignore"):
            p = np.nan_to_num(np.exp(x - lse[..., None]))
        d = p * (np.matmul(g, np.swapaxes(wide_v, -1, -2)) - ((g * out).sum(-1) - g_lse)[..., None]) * scale
        dk, dv = np.matmul(np.swapaxes(d, -1, -2), q), np.matmul(np.swapaxes(p, -1, -2), g)
        return np.matmul(d, wide_k), *(y.reshape(k.shape[0], k.shape[1], group, *y.shape[2:]).sum(2) for y in (dk, dv))

    def samples(t):
        q, k, v = t(1, 4, 5, 8), t(1, 2, 7, 8), t(1, 2, 7, 6)
        out, lse, rest = t(1, 4, 5, 6), t(1, 4, 5, low=1.0), ((), (), Rules())
        yield case(t(1, 4, 5, 6), t(1, 4, 5), q, k, v, out, lse, *rest, False, 0, None, 0.3)
        yield case(t(1, 4, 5, 6), t(1, 4, 5), q, k, v, out, lse, *rest, True, 1, None, 0.3)


def dense_scores(
    given: tuple, lists, turned: bool, captured, rules: Rules, causal: bool, shift: int, block, scale: float
) -> tuple:
    """(scores before the rules [B, H, L, S], weights and the gradient by scores after the rules [B, H / group, group, L, S], operands
    with their heads in groups): what `attention_backward` computes tile by tile, in ops that have gradients themselves."""
    ops = REGISTRY
    g, g_lse, q, k, v, out, lse = given
    batch, shared = k.spec.shape[:2]
    wide = statistics_dtype(q.spec.dtype)

    def grouped(x):
        x = x if x.spec.dtype is wide else ops["to_dtype"](x, wide)
        return ops["reshape"](x, (batch, shared, x.spec.shape[1] // shared, *x.spec.shape[2:]))

    g, g_lse, q, k, v, out, lse = (grouped(x) for x in given)
    raw = ops["mul"](matrix_product(q, ops["transpose"](k, -1, -2)), scale)
    shape = tuple(raw.spec.shape)
    whole = (shape[0], shape[1] * shape[2], *shape[3:])
    flat = ops["reshape"](raw, whole)
    y, lowest = rules.apply(flat, captured), float("-inf")
    y = y if y.spec.dtype is wide else ops["to_dtype"](y, wide)
    positions = places(whole, y.spec.device)
    if causal:
        y = ops["where"](ops["ge"](ops["add"](positions[2], shift), positions[3]), y, lowest)
    states = listed_states(lists, -(-whole[2 + (not turned)] // block[not turned]), turned) if lists else None
    allowed = visible(positions, captured[rules.count :], states, rules.mask, block)
    if allowed is not None:
        y = ops["where"](allowed, y, lowest)
    lse = ops["unsqueeze"](lse, -1)
    below = ops["where"](ops["eq"](lse, lowest), float("inf"), lse)  # rows that see nothing have weights 0
    weights = ops["exp"](ops["sub"](ops["reshape"](y, shape), below))
    inner = ops["sub"](ops["sum"](ops["mul"](g, out), -1, True), ops["unsqueeze"](g_lse, -1))
    gradient = ops["mul"](weights, ops["sub"](matrix_product(g, ops["transpose"](v, -1, -2)), inner))
    return flat, weights, gradient, (g, q, k)


def listed_states(lists, listed_blocks: int, turned: bool):
    """What counts in each block [*, *, blocks of queries, blocks of keys], from lists for blocks of queries, or `turned` of keys."""
    ops, found = REGISTRY, None
    for state, counts, indices in zip((PARTIAL, FULL), lists[::2], lists[1::2]):
        blocks = ops["iota"]((listed_blocks, 1), device=indices.spec.device)
        slots = ops["iota"]((indices.spec.shape[-1],), device=indices.spec.device)
        listed = ops["lt"](slots, ops["unsqueeze"](counts, -1))  # [*, *, blocks with a list, slots]
        here = ops["logical_and"](ops["eq"](ops["unsqueeze"](indices, -2), blocks), ops["unsqueeze"](listed, -2))
        dense = ops["transpose"](ops["any"](here, -1, False), -1, -2)  # [*, *, listed blocks, blocks with a list]
        dense = dense if turned else ops["transpose"](dense, -1, -2)
        found = ops["where"](dense, state, 0 if found is None else found)
    return found


def dense_backward(
    given: tuple, turned, captured, rules: Rules, causal: bool, shift: int, block, scale: float
) -> tuple:
    """The gradients by query, key and value with the matrix of scores."""
    ops = REGISTRY
    dtype, shapes = given[2].spec.dtype, [tuple(x.spec.shape) for x in given[2:5]]
    flat, weights, gradient, (g, q, k) = dense_scores(given, turned, True, captured, rules, causal, shift, block, scale)
    shape = tuple(gradient.spec.shape)
    gradient = ops["reshape"](rules.back(flat, ops["reshape"](gradient, tuple(flat.spec.shape)), captured), shape)
    gradient = ops["mul"](gradient, scale)
    found = (
        matrix_product(gradient, k),
        ops["sum"](matrix_product(ops["transpose"](gradient, -1, -2), q), 2, False),
        ops["sum"](matrix_product(ops["transpose"](weights, -1, -2), g), 2, False),
    )
    found = (x if x.spec.dtype is dtype else ops["to_dtype"](x, dtype) for x in found)
    return tuple(ops["reshape"](x, size) for x, size in zip(found, shapes))


def dense_read_gradient(given: tuple, lists, captured: Sequence, rules: Rules, number: int, causal: bool, shift: int, block, scale: float):  # fmt: skip
    """The gradient by one read of a captured tensor with the matrix of scores."""
    ops, read = REGISTRY, rules.reads[number]
    flat, _, gradient, _ = dense_scores(given, lists, False, captured, rules, causal, shift, block, scale)
    whole = tuple(flat.spec.shape)
    positions, inputs = places(whole, flat.spec.device), captured[: rules.count]
    target = captured[read.captured]
    by_read = to_shape(read.gradient.apply((flat, ops["reshape"](gradient, whole), *positions), inputs), whole)
    if by_read.spec.dtype is not target.spec.dtype:
        by_read = ops["to_dtype"](by_read, target.spec.dtype)
    if not read.indices:
        return ops["sum"](by_read, None, False)
    indices = tuple(to_shape(index.apply((flat, *positions), inputs), whole) for index in read.indices)
    empty = ops["full"](tuple(target.spec.shape), 0, dtype=target.spec.dtype, device=target.spec.device)
    return ops["index_put"](empty, indices, by_read, True)


@declare
class attention_tables(Template):
    """Gradients by one read of a captured tensor, for each batch and head: [B, H, *dims of the tensor that run along neither].

    Determinism: bitwise, for any number of threads.
    """

    functions = ()
    methods = ()
    vjp = Refused("`attention_read_gradient`, which it is a part of, has one")
    batch = Refused("`attention_read_gradient`, which it is a part of, has one")

    def signature(
        g: Tensor, g_lse: Tensor, query: Tensor, key: Tensor, value: Tensor, found: Tensor, lse: Tensor, lists: Tensors,
        captured: Tensors, rules, number, causal, shift, block, scale,
    ): ...  # fmt: skip

    def meta(op, g, g_lse, q, k, v, out, lse, lists, captured, rules, number, causal, shift, block, scale):
        sizes, _ = rules.table((*q.shape[:3], k.shape[2]), captured, number)
        return Spec.of((*q.shape[:2], *sizes), statistics_dtype(q.dtype), q.device)

    def lower(
        op, target, threads, g, g_lse, q, k, v, out, lse, lists, captured, rules, number, causal, shift, block, scale
    ):
        problem, domain = problem_of(q, k, v, causal, shift, block, scale)
        sizes, _ = rules.table(domain, captured, number)
        return lower_reads(
            replace(problem, out=tuple(out.strides)),
            target,
            threads,
            tuple(g.strides),
            statistics=(tuple(lse.strides), tuple(g_lse.strides)),
            programs=lambda slot, position: rules.read_programs(domain, captured, slot, position, number),
            table=math.prod(sizes),
            lists=tuple(broadcast_steps(x, i % 2 == 1) for i, x in enumerate(lists)),
            captured=len(captured),
        )

    def reference(g, g_lse, q, k, v, out, lse, lists, captured, rules, number, causal, shift, block, scale):
        return _numpy_weights(g, g_lse, q, k, v, out, lse, captured[0], scale)[1].sum((2, 3))

    def samples(t):
        sizes = (1, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 6), (1, 4, 5, 6)
        given = (t(1, 4, 5, 6), t(1, 4, 5), *(t(*size) for size in sizes), t(1, 4, 5, low=1.0))
        yield case(*given, (), (t(),), _added_number(), 0, False, 0, None, 0.3)


@declare
class attention_read_gradient(Composite):
    """The gradient by one read of a captured tensor, over all batches and heads. Differentiated again, it is computed with every score."""

    functions = ()
    methods = ()

    def signature(
        g: Tensor, g_lse: Tensor, query: Tensor, key: Tensor, value: Tensor, found: Tensor, lse: Tensor, lists: Tensors,
        captured: Tensors, rules, number, causal, shift, block, scale,
    ): ...  # fmt: skip

    def meta(op, g, g_lse, q, k, v, out, lse, lists, captured, rules, number, causal, shift, block, scale):
        target = captured[rules.reads[number].captured]
        return Spec.of(tuple(target.shape), target.dtype, target.device)

    def body(g, g_lse, q, k, v, out, lse, lists, captured, rules, number, causal, shift, block, scale):
        ops, target = REGISTRY, captured[rules.reads[number].captured].spec
        rest = (lists, captured, rules, number, causal, shift, block, scale)
        found = attention_tables(g, g_lse, q, k, v, out, lse, *rest)
        domain = (*q.spec.shape[:3], k.spec.shape[2])
        _, own = rules.table(domain, [x.spec for x in captured], number)
        spare = tuple(d for d in (0, 1) if d not in own)
        if spare:
            found = ops["sum"](found, spare, False)
        kept = [d for d in (0, 1) if d in own]
        free = iter(range(len(kept), found.spec.ndim))
        found = ops["permute"](found, tuple(next(free) if d is None else kept.index(d) for d in own))
        return found if found.spec.dtype is target.dtype else ops["to_dtype"](found, target.dtype)

    def differentiated(g, g_lse, q, k, v, out, lse, lists, captured, rules, number, causal, shift, block, scale):
        return dense_read_gradient(
            (g, g_lse, q, k, v, out, lse), lists, captured, rules, number, causal, shift, block, scale
        )

    def batch(size, dims, *args):
        return batched_attention(attention_read_gradient, size, dims, args, True)

    def reference(g, g_lse, q, k, v, out, lse, lists, captured, rules, number, causal, shift, block, scale):
        return _numpy_weights(g, g_lse, q, k, v, out, lse, captured[0], scale)[1].sum()

    samples = attention_tables.rules.samples


def _added_number() -> Rules:
    """score + captured number."""
    graph, gradient = Graph(), Graph()
    score, position, number = Spec.of((), float64), Spec.of((), int64), Spec.of((), float64)
    given = [graph.input(s) for s in (score, *[position] * 4, number)]
    graph.outputs = list(graph.add(REGISTRY["add"], (given[0], given[-1], 1)))
    gradient.outputs = [[gradient.input(s) for s in (score, score, *[position] * 4, number)][1]]
    by_score = Program(gradient, 6)
    return Rules(Program(graph, 5), None, by_score, (Read(0, (), by_score),), 1)


def _numpy_weights(g, g_lse, q, k, v, out, lse, number, scale: float) -> tuple:
    """(exp(scores + number - lse), gradients by scores), every key seen, in NumPy."""
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (np.repeat(x, group, 1) for x in (k, v))
    p = np.exp(np.matmul(q, np.swapaxes(wide_k, -1, -2)) * scale + number - lse[..., None])
    return p, p * (np.matmul(g, np.swapaxes(wide_v, -1, -2)) - ((g * out).sum(-1) - g_lse)[..., None])
