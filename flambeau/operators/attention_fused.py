"""The fused attention: one primitive over the template, whatever is done to scores given as graphs.

    out, lse, most = attention(q, k, v, (), (), ScoreRules(), causal=True, shift=0, block=None, scale=0.125)

May not know: how user functions become graphs, block masks as objects. Entry: `attention`, `ScoreRules`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.base.lazy import np
from flambeau.core.dtype import dtype, float32, float64
from flambeau.core.spec import Spec
from flambeau.ir.graph import Graph
from flambeau.ir.kinds import Template, common_device
from flambeau.ir.op import declare
from flambeau.kernel import target as targets
from flambeau.operators.rules import case
from flambeau.schedule.inner import InnerProgram
from flambeau.templates.attention_forward import lower_forward
from flambeau.templates.attention_problem import Problem, Programs, Scores


class ScoreRules:
    """What is done to scores, as graphs over (batch, head, query, key).

    `score`: its first input is the score, its output the new one; `mask`: its output says which scores count. Further inputs of both are
    captured tensors, those of `score` first. Equal rules print alike, so that plans are found again.
    """

    __slots__ = ("mask", "score", "text")

    def __init__(self, score: Graph | None = None, mask: Graph | None = None):
        self.score, self.mask = score, mask
        self.text = f"{score}\n{mask}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScoreRules) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return "ScoreRules()" if self.score is None and self.mask is None else f"ScoreRules({hash(self.text) & 0xFFFFFFFF:08x})"

    def programs(self, domain: Sequence[int], captured: Sequence[Spec], slot: int, position: int) -> Programs:
        """The rules as instructions of one kernel."""
        inner = InnerProgram(domain, slot)
        numbers = iter(enumerate(captured))
        found = []
        for graph, given in ((self.score, True), (self.mask, False)):
            if graph is None:
                found.append(None)
                continue
            names = {graph.inputs[0]: "score"} if given else {}
            operands = {v: next(numbers) for v in graph.inputs[given:]}
            found.append(inner.add(graph, operands, names).index)
        program, operands, words = inner.finish(position)
        score, mask = (None if i is None else Scores(program, i) for i in found)
        return Programs(score, mask, operands, words)


def statistics_dtype(d: dtype) -> dtype:
    """What scores, their maxima and log-sum-exps are kept in."""
    return float64 if d is float64 else float32


def memory_order(q: Spec, shape: Sequence[int]) -> Spec:
    """The result laid out as the queries are: by heads, or by rows with the heads of a row together."""
    batch, heads, rows, size = shape
    if q.strides[1] < q.strides[2] and heads > 1 and rows > 1:
        return Spec.get(shape, (rows * heads * size, size, heads * size, 1), q.dtype, q.device)
    return Spec.of(shape, q.dtype, q.device)


@declare
class attention(Template):
    """(softmax of scores times values, log-sum-exp of each row's scores, its greatest score).

    Shapes: [B, H, L, E], [B, H / group, S, E], [B, H / group, S, Ev] -> [B, H, L, Ev], [B, H, L], [B, H, L]. `lists` are counts
    [*, *, blocks of rows] and indices [*, *, blocks of rows, n] of key blocks that `mask` applies to, then of those seen wholly;
    `block` their (queries, keys). `causal`: row i sees keys up to i + shift. Determinism: bitwise, for any number of threads.
    """

    functions = ()
    methods = ()
    outputs = 3

    def signature(query: Tensor, key: Tensor, value: Tensor, lists: Tensors, captured: Tensors, rules, causal, shift, block, scale): ...

    def meta(op, q, k, v, lists, captured, rules, causal, shift, block, scale):
        device = common_device("attention", [q, k, v, *lists, *captured])
        kept = Spec.of(tuple(q.shape[:3]), statistics_dtype(q.dtype), device)
        return memory_order(q, (*q.shape[:3], v.shape[3])), kept, kept

    def lower(op, target, threads, q, k, v, lists, captured, rules, causal, shift, block, scale):
        batch, heads, rows, size = q.shape
        columns = k.shape[2]
        domain = (batch, heads, rows, columns)
        out = memory_order(q, (batch, heads, rows, v.shape[3]))
        problem = Problem(
            batch,
            k.shape[1],
            heads // k.shape[1],
            rows,
            columns,
            int(size),
            int(v.shape[3]),
            q.dtype.name,
            tuple(q.strides),
            tuple(k.strides),
            tuple(v.strides),
            tuple(out.strides),
            scale,
            causal,
            shift,
            block,
        )
        plain = rules.score is None and rules.mask is None
        return lower_forward(
            problem,
            target,
            threads,
            programs=None if plain else lambda slot, position: rules.programs(domain, captured, slot, position),
            lists=tuple(broadcast_steps(x, i % 2 == 1) for i, x in enumerate(lists)),
            captured=len(captured),
        )

    vjp = None

    def reference(q, k, v, lists, captured, rules, causal, shift, block, scale):
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
        yield case(t(2, 4, 5, 8), t(2, 2, 7, 8), t(2, 2, 7, 6), (), (), ScoreRules(), False, 0, None, 0.3)
        yield case(t(1, 2, 6, 3), t(1, 2, 6, 3), t(1, 2, 6, 3), (), (), ScoreRules(), True, 0, None, 0.5)


def broadcast_steps(s: Spec, indices: bool) -> tuple[int, ...]:
    """Strides of counts (batch, head, block of rows) or indices (and place in the list); 0 along dims of size 1."""
    return tuple(0 if n == 1 and d < 2 else stride for d, (n, stride) in enumerate(zip(s.shape, s.strides)))
