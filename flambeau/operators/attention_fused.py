"""The fused attention: one primitive over the template, whatever is done to scores given as graphs.

    out, lse, most = attention(q, k, v, (), (), (), ScoreRules(), causal=True, shift=0, block=None, scale=0.125)

May not know: how user functions become graphs, block masks as objects. Entry: `attention`, `ScoreRules`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.base.lazy import np
from flambeau.base.record import record, replace
from flambeau.core.dtype import dtype, float32, float64
from flambeau.core.spec import Spec
from flambeau.ir.graph import Graph, Node, Value, map_values
from flambeau.ir.kinds import DERIVED, Template, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.matmul import matrix_product
from flambeau.operators.rules import case, sum_to
from flambeau.schedule.inner import InnerProgram
from flambeau.templates.attention_backward import lower_backward
from flambeau.templates.attention_decode import lower_decode, suits
from flambeau.templates.attention_forward import lower_forward
from flambeau.templates.attention_problem import Problem, Programs, Scores


@record
class Read:
    """A place where `score` reads captured operand number `captured`.

    `value`: what is read, from the captured tensors of `score`, of a shape that broadcasts to the domain; `gradient`: from the score, the
    gradient by what `score` gives and those tensors, the gradient by what is read, over the whole domain.
    """

    captured: int
    value: Graph
    gradient: Graph


class ScoreRules:
    """What is done to scores, as graphs over (batch, head, query, key).

    `score`: from the score (its first input) to another; `gradient`: from the score and the gradient by what `score` gives (its first two)
    to the one by the score; `mask`: which scores count. Further inputs are captured tensors: of `score` and `gradient` the same ones,
    first, then those of `mask`. `reads` are the places whose gradients captured tensors want. Equal rules print alike, so that plans are
    found again.
    """

    __slots__ = ("gradient", "mask", "reads", "score", "text")

    def __init__(
        self,
        score: Graph | None = None,
        gradient: Graph | None = None,
        mask: Graph | None = None,
        reads: tuple[Read, ...] = (),
    ):
        self.score, self.gradient, self.mask, self.reads = score, gradient, mask, reads
        self.text = "\n".join(map(str, (score, gradient, mask, *((r.captured, r.value, r.gradient) for r in reads))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScoreRules) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"ScoreRules({hash(self.text) & 0xFFFFFFFF:08x})" if self.score or self.mask else "ScoreRules()"

    @property
    def captured_by_score(self) -> int:
        return len(self.score.inputs) - 1 if self.score is not None else 0

    def programs(
        self, domain: Sequence[int], captured: Sequence[Spec], slot: int, position: int, backward: bool = False
    ) -> tuple[Programs, Scores | None]:
        """The rules as instructions of one kernel, and with `backward` the gradient too."""
        inner = InnerProgram(domain, slot)
        numbered = list(enumerate(captured))
        of_score, of_mask = numbered[: self.captured_by_score], numbered[self.captured_by_score :]
        found: list[int | None] = []
        for graph, names, operands in (
            (self.score, ("score",), of_score),
            (self.mask, (), of_mask),
            (self.gradient if backward else None, ("score", "gradient"), of_score),
        ):
            if graph is None:
                found.append(None)
                continue
            given = dict(zip(graph.inputs, names))
            found.append(inner.add(graph, dict(zip(graph.inputs[len(names) :], operands)), given).index)
        program, operands, words = inner.finish(position)
        score, mask, gradient = (None if i is None else Scores(program, i) for i in found)
        return Programs(score, mask, operands, words), gradient

    def apply(self, scores, captured: Sequence):
        """The scores after the rules, as a tensor."""
        return scores if self.score is None else evaluated(self.score, (scores, *captured[: self.captured_by_score]))

    def back(self, scores, gradient, captured: Sequence):
        """The gradient by scores before `score`."""
        if self.gradient is None:
            return gradient
        return evaluated(self.gradient, (scores, gradient, *captured[: self.captured_by_score]))

    def allowed(self, captured: Sequence):
        """Which scores count, as a tensor; None if all do."""
        return None if self.mask is None else evaluated(self.mask, captured[self.captured_by_score :])


NO_RULES = ScoreRules()


def evaluated(graph: Graph, inputs: Sequence):
    """The one output of a graph for tensors."""
    env = dict(zip(graph.inputs, inputs))
    for node in graph.nodes:
        env[node.outputs[0]] = called(node, env)
    return env[graph.outputs[0]]


def called(node: Node, env: dict):
    """A node of one output on the tensors that stand for its values."""
    args = map_values(env.__getitem__, node.args)
    positional = [a for p, a in zip(node.op.params, args) if not p.keyword_only]
    return node.op(*positional, **{p.name: a for p, a in zip(node.op.params, args) if p.keyword_only})


def statistics_dtype(d: dtype) -> dtype:
    """What scores, their maxima and log-sum-exps are kept in."""
    return float64 if d is float64 else float32


def memory_order(q: Spec, shape: Sequence[int]) -> Spec:
    """The result laid out as the queries are: by heads, or by rows with the heads of a row together."""
    batch, heads, rows, size = shape
    if q.strides[1] < q.strides[2] and heads > 1 and rows > 1:
        return Spec.get(shape, (rows * heads * size, size, heads * size, 1), q.dtype, q.device)
    return Spec.of(shape, q.dtype, q.device)


def problem_of(q: Spec, k: Spec, v: Spec, causal: bool, shift: int, block, scale: float) -> tuple[Problem, tuple[int, ...]]:
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
    `turned` the same of query blocks, for blocks of keys; `block` their (queries, keys). `causal`: row i sees keys up to i + shift. Determinism: bitwise, for any number of threads.
    """

    functions = ()
    methods = ()
    outputs = 3
    no_gradient = (2,)

    def signature(query: Tensor, key: Tensor, value: Tensor, lists: Tensors, turned: Tensors, captured: Tensors, rules, causal, shift, block, scale): ...

    def meta(op, q, k, v, lists, turned, captured, rules, causal, shift, block, scale):
        device = common_device("attention", [q, k, v, *lists, *captured])
        kept = Spec.of(tuple(q.shape[:3]), statistics_dtype(q.dtype), device)
        return memory_order(q, (*q.shape[:3], v.shape[3])), kept, kept

    def lower(op, target, threads, q, k, v, lists, turned, captured, rules, causal, shift, block, scale):
        problem, domain = problem_of(q, k, v, causal, shift, block, scale)
        plain = rules.score is None and rules.mask is None
        programs = None if plain else lambda slot, position: rules.programs(domain, captured, slot, position)[0]
        if suits(problem):
            return lower_decode(problem, target, threads, programs, len(captured))
        return lower_forward(
            problem,
            target,
            threads,
            programs=programs,
            lists=tuple(broadcast_steps(x, i % 2 == 1) for i, x in enumerate(lists)),
            captured=len(captured),
        )

    def vjp(g, out, q, k, v, lists, turned, captured, rules, causal, shift, block, scale):
        given = (g[0], g[1], q, k, v, out[0], out[1])
        found = attention_backward(*given, turned, captured, rules, causal, shift, block, scale)
        return *found, None, None, captured_gradients(given, captured, rules, causal, shift, scale)

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
        yield case(t(2, 4, 5, 8), t(2, 2, 7, 8), t(2, 2, 7, 6), (), (), (), ScoreRules(), False, 0, None, 0.3)
        yield case(t(1, 2, 6, 3), t(1, 2, 6, 3), t(1, 2, 6, 3), (), (), (), ScoreRules(), True, 0, None, 0.5)


def broadcast_steps(s: Spec, indices: bool) -> tuple[int, ...]:
    """Strides of counts (batch, head, block of rows) or indices (and place in the list); 0 along dims of size 1."""
    return tuple(0 if n == 1 and d < 2 else stride for d, (n, stride) in enumerate(zip(s.shape, s.strides)))


def batched_attention(op, size: int, dims: tuple, args: tuple, placed: tuple) -> tuple:
    """A batch of calls as one with a longer batch; call by call where rules or lists depend on the place in it."""
    tensors = [a for p, a in zip(op.params, args) if p.role == "Tensor"]
    rest = args[len(tensors) :]
    if placed:
        calls = [op(*(picked(a, d, i) for a, d in zip(args, dims)), *args[len(dims) :]) for i in range(size)]
        return tuple(REGISTRY["stack"](each, 0) for each in zip(*calls)), (0, 0, 0)
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
        plain = rules.score is None and rules.mask is None
        results = (tuple(memory_order(x, tuple(x.shape)).strides) for x in (q, k, v))
        return lower_backward(
            replace(problem, out=tuple(out.strides)),
            target,
            threads,
            tuple(g.strides),
            *results,
            statistics=(tuple(lse.strides), tuple(g_lse.strides)),
            programs=None if plain else lambda slot, position: rules.programs(domain, captured, slot, position, True),
            lists=tuple(broadcast_steps(x, i % 2 == 1) for i, x in enumerate(turned)),
            captured=len(captured),
        )

    def differentiated(g, g_lse, q, k, v, out, lse, turned, captured, rules, causal, shift, block, scale):
        return dense_backward((g, g_lse, q, k, v, out, lse), captured, rules, causal, shift, scale)

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
        out, lse, rest = t(1, 4, 5, 6), t(1, 4, 5, low=1.0), ((), (), ScoreRules())
        yield case(t(1, 4, 5, 6), t(1, 4, 5), q, k, v, out, lse, *rest, False, 0, None, 0.3)
        yield case(t(1, 4, 5, 6), t(1, 4, 5), q, k, v, out, lse, *rest, True, 1, None, 0.3)


def dense_scores(given: tuple, captured, rules: ScoreRules, causal: bool, shift: int, scale: float) -> tuple:
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
    flat = ops["reshape"](raw, (shape[0], shape[1] * shape[2], *shape[3:]))
    y, lowest = rules.apply(flat, captured), float("-inf")
    if causal:
        rows, columns = (ops["iota"](size, device=y.spec.device) for size in ((shape[3], 1), (1, shape[4])))
        y = ops["where"](ops["ge"](ops["add"](rows, shift), columns), y, lowest)
    allowed = rules.allowed(captured)
    if allowed is not None:
        y = ops["where"](allowed, y, lowest)
    lse = ops["unsqueeze"](lse, -1)
    below = ops["where"](ops["eq"](lse, lowest), float("inf"), lse)  # rows that see nothing have weights 0
    weights = ops["exp"](ops["sub"](ops["reshape"](y, shape), below))
    inner = ops["sub"](ops["sum"](ops["mul"](g, out), -1, True), ops["unsqueeze"](g_lse, -1))
    gradient = ops["mul"](weights, ops["sub"](matrix_product(g, ops["transpose"](v, -1, -2)), inner))
    return flat, weights, gradient, (g, q, k)


def dense_backward(given: tuple, captured, rules: ScoreRules, causal: bool, shift: int, scale: float) -> tuple:
    """The gradients by query, key and value with the matrix of scores."""
    ops = REGISTRY
    dtype, shapes = given[2].spec.dtype, [tuple(x.spec.shape) for x in given[2:5]]
    flat, weights, gradient, (g, q, k) = dense_scores(given, captured, rules, causal, shift, scale)
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


def captured_gradients(given: tuple, captured: Sequence, rules: ScoreRules, causal: bool, shift: int, scale: float) -> tuple:
    """The gradients by captured tensors: of what each read gives, taken back through the read."""
    found: list = [None] * len(captured)
    if not any(x.spec.dtype.is_inexact for x in captured):
        return tuple(found)
    flat, _, gradient, _ = dense_scores(given, captured, rules, causal, shift, scale)
    gradient = REGISTRY["reshape"](gradient, tuple(flat.spec.shape))
    inputs = tuple(captured[: rules.captured_by_score])
    for read in rules.reads:
        by_read = evaluated(read.gradient, (flat, gradient, *inputs))
        one = pulled_back(read.value, inputs, by_read)[read.captured]
        found[read.captured] = one if found[read.captured] is None else REGISTRY["add"](found[read.captured], one)
    return tuple(found)


def pulled_back(graph: Graph, inputs: Sequence, gradient) -> list:
    """Gradients by a graph's inputs from one by its output, of a shape that the output broadcasts to, by the rules of its ops."""
    env = dict(zip(graph.inputs, inputs))
    for node in graph.nodes:
        env[node.outputs[0]] = called(node, env)
    out = graph.outputs[0]
    known = {out: sum_to(gradient, env[out])}
    for node in reversed(graph.nodes):
        g = known.get(node.outputs[0])
        if g is None:
            continue
        args = map_values(env.__getitem__, node.args)
        tensors = [a for p, a in zip(node.op.params, node.args) if p.is_tensor]
        for v, one in zip(tensors, node.op.rules.vjp(g, env[node.outputs[0]], *args)):
            if isinstance(v, Value) and one is not None:
                known[v] = one if v not in known else REGISTRY["add"](known[v], one)
    return [known.get(v) for v in graph.inputs]
