"""Recurrent networks: a cell's step in one kernel, and whole sequences of float32 and float64 in one.

    h, c = lstm_gates(x_projected[t] + h @ w.mT, c)
    hs, h_n, c_n, _, _ = lstm_sequence(x_projected, w, h_0, c_0)        # [T, N, 4 H] -> [T, N, H], [N, H], [N, H]

Input projections are the caller's: one product over all steps, as are the gradients of all weights. May not know: modules, layers.
"""

from __future__ import annotations

from flambeau.base.errors import message
from flambeau.base.lazy import np
from flambeau.core.dtype import float32, float64
from flambeau.core.spec import Spec
from flambeau.ir.kinds import DERIVED, Composite, Template, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.batched import front
from flambeau.operators.rules import case
from flambeau.templates import recurrent as templates


def _quarters(gates, count):
    size = gates.spec.shape[-1] // count
    return [REGISTRY["narrow"](gates, gates.spec.ndim - 1, i * size, size) for i in range(count)]


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


@declare
class lstm_gates(Composite):
    """(h, c) of a long short-term memory cell from its gates' pre-activations (input, forget, cell, output) and c before.

    Shapes: gates [..., 4 H], c [..., H] -> [..., H], [..., H]. Source: Hochreiter and Schmidhuber (1997); Gers et al. (2000).
    """

    functions = ()
    methods = ()
    outputs = 2

    def signature(gates: Tensor, c: Tensor): ...

    def body(gates, c):
        ops = REGISTRY
        i, f, g, o = _quarters(gates, 4)
        new = ops["add"](ops["mul"](ops["sigmoid"](f), c), ops["mul"](ops["sigmoid"](i), ops["tanh"](g)))
        return ops["mul"](ops["sigmoid"](o), ops["tanh"](new)), new

    def reference(gates, c):
        i, f, g, o = np.split(gates, 4, -1)
        new = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        return _sigmoid(o) * np.tanh(new), new

    def samples(t):
        yield case(t(3, 8), t(3, 2))
        yield case(t(20), t(5))


@declare
class gru_gates(Composite):
    """h of a gated recurrent unit from the pre-activations of input and state (reset, update, new) and h before.

    Shapes: from_input, from_state [..., 3 H], h [..., H] -> [..., H]. Source: Cho et al. (2014).
    """

    functions = ()
    methods = ()

    def signature(from_input: Tensor, from_state: Tensor, h: Tensor): ...

    def body(from_input, from_state, h):
        ops = REGISTRY
        (xr, xz, xn), (hr, hz, hn) = _quarters(from_input, 3), _quarters(from_state, 3)
        r, z = ops["sigmoid"](ops["add"](xr, hr)), ops["sigmoid"](ops["add"](xz, hz))
        n = ops["tanh"](ops["add"](xn, ops["mul"](r, hn)))
        return ops["add"](n, ops["mul"](z, ops["sub"](h, n)))

    def reference(from_input, from_state, h):
        (xr, xz, xn), (hr, hz, hn) = np.split(from_input, 3, -1), np.split(from_state, 3, -1)
        r, z = _sigmoid(xr + hr), _sigmoid(xz + hz)
        n = np.tanh(xn + r * hn)
        return n + z * (h - n)

    def samples(t):
        yield case(t(3, 6), t(3, 6), t(3, 2))
        yield case(t(15), t(15), t(5))


# ------------------------------------------------------------------ sequences
def check_sequence(op, gates: int, x: Spec, w: Spec, *states: Spec) -> tuple[int, int, int]:
    """(steps, rows, hidden). Raises: RuntimeError for shapes or dtypes that do not fit."""
    if x.ndim != 3 or w.ndim != 2 or w.shape[0] != gates * w.shape[1] or x.shape[2] != w.shape[0]:
        raise RuntimeError(
            message(
                op.name,
                f"projected inputs must be [steps, rows, {gates} H] and recurrent weights [{gates} H, H]",
                f"{list(x.shape)}, {list(w.shape)}",
            )
        )
    steps, rows, hidden = x.shape[0], x.shape[1], w.shape[1]
    for state in states:
        if tuple(state.shape) != (rows, hidden):
            raise RuntimeError(message(op.name, f"states must be [{rows}, {hidden}]", list(state.shape)))
    if x.dtype not in (float32, float64) or any(s.dtype is not x.dtype for s in (w, *states)):
        got = ", ".join(s.dtype.name for s in (x, w, *states))
        raise RuntimeError(message(op.name, "operands must all be float32 or all be float64", got))
    return steps, rows, hidden


def _batched(op, size: int, dims: tuple, args: tuple, shared: tuple[int, ...]):
    """More rows, if the arguments `shared` (weights) are one for all elements of a batch; else one call for each element."""
    ops = REGISTRY
    if any([dims[i] is not None for i in shared]):
        if not size:
            raise RuntimeError(message(op.name, "a batch of weights must have elements", size))

        def element(i: int) -> tuple:
            return op(*[a if d is None else ops["select"](a, 0, i) for a, d in zip(args, dims)])

        parts = [element(i) for i in range(size)]
        return tuple([ops["stack"](tuple(found), 0) for found in zip(*parts)]), 0

    def rows(i: int, a):
        if not hasattr(a, "spec") or i in shared:
            return a
        a = front(a, dims[i], size)
        if a.spec.ndim == 3:  # a state
            return ops["reshape"](a, (size * a.spec.shape[1], a.spec.shape[2]))
        _, steps, count, width = a.spec.shape
        return ops["reshape"](ops["permute"](a, (1, 0, 2, 3)), (steps, size * count, width))

    def apart(a):
        if a.spec.ndim == 1:  # what was not kept
            return ops["expand"](a, (size, 0))
        *steps, count, width = a.spec.shape
        a = ops["reshape"](a, (*steps, size, count // size, width))
        return ops["permute"](a, (1, 0, 2, 3)) if steps else a

    return tuple([apart(a) for a in op(*[rows(i, a) for i, a in enumerate(args)])]), 0


def _kept(keep: bool, *shapes: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [shape if keep else (0,) for shape in shapes]


def _in_order(tensors: tuple, reverse: bool) -> list:
    found = list(tensors)
    return found[::-1] if reverse else found


def _weight_gradient(d, hs, h0, reverse: bool):
    """Sum over steps of d[t].T @ h[t - 1]: one product, and a small one for the first state."""
    ops, (steps, rows, width), hidden = REGISTRY, d.spec.shape, h0.spec.shape[1]
    at = steps - 1 if reverse else 0

    def product(d, h, count):
        d = ops["reshape"](d, (count * rows, width))
        return ops["mm"](ops["transpose"](d, 0, 1), ops["reshape"](h, (count * rows, hidden)))

    first = product(ops["narrow"](d, 0, at, 1), h0, 1)
    if steps == 1:
        return first
    d = ops["narrow"](d, 0, 0 if reverse else 1, steps - 1)
    return ops["add"](product(d, ops["narrow"](hs, 0, 1 if reverse else 0, steps - 1), steps - 1), first)


@declare
class lstm_sequence(Template):
    """An LSTM over all steps: (outputs, last h, last c, c of every step, gates of every step); the last two only if `keep`.

    Shapes: x (projected) [T, N, 4 H], w [4 H, H], h0 and c0 [N, H] -> [T, N, H], [N, H], [N, H], [T, N, H], [T, N, 4 H]. Dtypes: float32,
    float64. `reverse` runs from the last step. What `keep` gives is for the gradient and has none itself.
    """

    functions = ()
    methods = ()
    outputs = 5

    def signature(x: Tensor, w: Tensor, h0: Tensor, c0: Tensor, reverse=False, keep=False): ...

    def meta(op, x, w, h0, c0, reverse, keep):
        steps, rows, hidden = check_sequence(op, 4, x, w, h0, c0)
        where = common_device(op.name, [x, w, h0, c0])
        shapes = [(steps, rows, hidden), (rows, hidden), (rows, hidden)]
        shapes += _kept(keep, (steps, rows, hidden), (steps, rows, 4 * hidden))
        return tuple([Spec.of(shape, x.dtype, where) for shape in shapes])

    def lower(op, target, threads, x, w, h0, c0, reverse, keep):
        outs = op.rules.meta(op, x, w, h0, c0, reverse, keep)
        return templates.forward("lstm", target, threads, (x, w, h0, c0), outs, w.shape[1], reverse, keep)

    def vjp(g, out, x, w, h0, c0, reverse, keep):
        ops = REGISTRY
        hs, _, _, cs, acts = out if keep else (out[0], None, None, None, None)
        d, dh, dc = ops["lstm_sequence_backward"](*g[:3], x, w, h0, c0, cs, acts, reverse)
        return d, _weight_gradient(d, hs, h0, reverse), dh, dc

    def batch(size, dims, *args):
        return _batched(lstm_sequence, size, dims, args, (1,))

    def reference(x, w, h0, c0, reverse=False, keep=False):
        h, c = h0, c0
        hs, cs, acts = (np.zeros((*x.shape[:2], n), x.dtype) for n in (w.shape[1], w.shape[1], w.shape[0]))
        for t in range(len(x))[::-1] if reverse else range(len(x)):
            z = x[t] + h @ w.T
            h, c = lstm_gates.rules.reference(z, c)
            i, f, g, o = np.split(z, 4, -1)
            hs[t], cs[t], acts[t] = h, c, np.concatenate([_sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)], -1)
        none = np.zeros(0, x.dtype)
        return hs, h, c, cs if keep else none, acts if keep else none

    def samples(t):
        yield case(t(3, 2, 20), t(20, 5), t(2, 5), t(2, 5))
        yield case(t(2, 3, 8), t(8, 2), t(3, 2), t(3, 2), True)
        yield case(t(1, 1, 76), t(76, 19), t(1, 19), t(1, 19))
        yield case(t(2, 3, 8), t(8, 3), t(3, 2), t(3, 2), raises=(RuntimeError, "recurrent weights"))
        yield case(t(2, 3, 8), t(8, 2), t(2, 2), t(3, 2), raises=(RuntimeError, "states must be"))


@declare
class lstm_sequence_backward(Template):
    """Gradients of `lstm_sequence` by its projected inputs and first states, given those of its outputs and last states.

    Shapes: as there. What was kept (cs, acts) follows from x, w, h0 and c0: without it the sequence runs again, and the gradient of this
    gradient does not go by it.
    """

    functions = ()
    methods = ()
    outputs = 3
    vjp = DERIVED

    def signature(
        grad_hs: Tensor,
        grad_h: Tensor,
        grad_c: Tensor,
        x: Tensor,
        w: Tensor,
        h0: Tensor,
        c0: Tensor,
        cs: OptionalTensor = None,
        acts: OptionalTensor = None,
        reverse=False,
    ): ...

    def meta(op, grad_hs, grad_h, grad_c, x, w, h0, c0, cs, acts, reverse):
        steps, rows, hidden = check_sequence(op, 4, x, w, h0, c0, grad_h, grad_c)
        shapes = [(steps, rows, 4 * hidden), (rows, hidden), (rows, hidden)]
        return tuple([Spec.of(shape, x.dtype, x.device) for shape in shapes])

    def lower(op, target, threads, grad_hs, grad_h, grad_c, x, w, h0, c0, cs, acts, reverse):
        outs = op.rules.meta(op, grad_hs, grad_h, grad_c, x, w, h0, c0, cs, acts, reverse)
        given, ins, sizes = (grad_hs, grad_h, grad_c), (x, w, h0, c0), (w.shape[1], reverse)
        if acts is None:
            middle = lstm_sequence.rules.meta(lstm_sequence, *ins, reverse, True)
            return templates.recomputed("lstm", target, threads, given, ins, middle, outs, *sizes)
        return templates.backward("lstm", target, threads, (*given, *ins, cs, acts), outs, *sizes)

    def body(grad_hs, grad_h, grad_c, x, w, h0, c0, cs, acts, reverse):
        """By other ops, from what the sequence was given."""
        ops, steps, kept, h, c = REGISTRY, x.spec.shape[0], [], h0, c0
        order = range(steps)[::-1] if reverse else range(steps)
        for t in order:
            z = ops["add"](ops["select"](x, 0, t), ops["mm"](h, ops["transpose"](w, 0, 1)))
            i, f, g, o = _quarters(z, 4)
            i, f, g, o = ops["sigmoid"](i), ops["sigmoid"](f), ops["tanh"](g), ops["sigmoid"](o)
            before, c = c, ops["add"](ops["mul"](f, c), ops["mul"](i, g))
            tc = ops["tanh"](c)
            h = ops["mul"](o, tc)
            kept.append((t, i, f, g, o, before, tc))
        ds, dh, dc = [], grad_h, grad_c
        for t, i, f, g, o, before, tc in kept[::-1]:
            dh = ops["add"](dh, ops["select"](grad_hs, 0, t))
            dc = ops["add"](dc, _through_tanh(ops["mul"](dh, o), tc))
            parts = (
                _through_sigmoid(ops["mul"](dc, g), i),
                _through_sigmoid(ops["mul"](dc, before), f),
                _through_tanh(ops["mul"](dc, i), g),
                _through_sigmoid(ops["mul"](dh, tc), o),
            )
            ds.append(ops["cat"](parts, 1))
            dh, dc = ops["mm"](ds[-1], w), ops["mul"](dc, f)
        if not ds:
            return ops["mul"](x, 0), dh, dc
        return ops["stack"](tuple(_in_order(tuple(ds), not reverse)), 0), dh, dc

    def batch(size, dims, *args):
        return _batched(lstm_sequence_backward, size, dims, args, (4,))

    def reference(grad_hs, grad_h, grad_c, x, w, h0, c0, cs=None, acts=None, reverse=False):
        steps = len(x)
        order = list(range(steps))[::-1] if reverse else list(range(steps))
        _, _, _, cs, acts = lstm_sequence.rules.reference(x, w, h0, c0, reverse, True)
        d, dh, dc = np.zeros_like(x), grad_h, grad_c
        for place in range(steps)[::-1]:
            t = order[place]
            before = cs[order[place - 1]] if place else c0
            i, f, g, o = np.split(acts[t], 4, -1)
            dh, tc = dh + grad_hs[t], np.tanh(cs[t])
            dc = dc + dh * o * (1 - tc * tc)
            parts = (dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), dh * tc * o * (1 - o))
            d[t] = np.concatenate(parts, -1)
            dh, dc = d[t] @ w, dc * f
        return d, dh, dc

    def samples(t):
        for steps, rows, hidden, reverse in ((3, 2, 5, False), (2, 3, 2, True), (1, 1, 19, False)):
            x, w, h0, c0 = t(steps, rows, 4 * hidden), t(4 * hidden, hidden), t(rows, hidden), t(rows, hidden)
            yield case(t(steps, rows, hidden), t(rows, hidden), t(rows, hidden), x, w, h0, c0, None, None, reverse)


def _through_sigmoid(g, y):
    return REGISTRY["mul"](g, REGISTRY["mul"](y, REGISTRY["sub"](1, y)))


def _through_tanh(g, y):
    return REGISTRY["mul"](g, REGISTRY["sub"](1, REGISTRY["mul"](y, y)))


@declare
class gru_sequence(Template):
    """A GRU over all steps: (outputs, last h, gates of every step and what the recurrent weights gave for n); the last only if `keep`.

    Shapes: x (projected) [T, N, 3 H], w [3 H, H], bias of the recurrent weights [3 H], h0 [N, H] -> [T, N, H], [N, H], [T, N, 4 H]. Dtypes and
    the rest: as `lstm_sequence`.
    """

    functions = ()
    methods = ()
    outputs = 3

    def signature(x: Tensor, w: Tensor, bias: OptionalTensor, h0: Tensor, reverse=False, keep=False): ...

    def meta(op, x, w, bias, h0, reverse, keep):
        steps, rows, hidden = check_sequence(op, 3, x, w, h0)
        if bias is not None and (tuple(bias.shape) != (3 * hidden,) or bias.dtype is not x.dtype):
            raise RuntimeError(message(op.name, f"bias must be {x.dtype.name} [{3 * hidden}]", bias))
        where = common_device(op.name, [s for s in (x, w, bias, h0) if s is not None])
        shapes = [(steps, rows, hidden), (rows, hidden), *_kept(keep, (steps, rows, 4 * hidden))]
        return tuple([Spec.of(shape, x.dtype, where) for shape in shapes])

    def lower(op, target, threads, x, w, bias, h0, reverse, keep):
        outs = op.rules.meta(op, x, w, bias, h0, reverse, keep)
        return templates.forward("gru", target, threads, (x, w, bias, h0), outs, w.shape[1], reverse, keep)

    def vjp(g, out, x, w, bias, h0, reverse, keep):
        ops, hs = REGISTRY, out[0]
        kept = (hs, out[2]) if keep else (None, None)
        dx, d, dh = ops["gru_sequence_backward"](*g[:2], x, w, bias, h0, *kept, reverse)
        of_bias = None if bias is None else ops["sum"](d, (0, 1))
        return dx, _weight_gradient(d, hs, h0, reverse), of_bias, dh

    def batch(size, dims, *args):
        return _batched(gru_sequence, size, dims, args, (1, 2))

    def reference(x, w, bias, h0, reverse=False, keep=False):
        h, hidden = h0, w.shape[1]
        hs, acts = (np.zeros((*x.shape[:2], n), x.dtype) for n in (hidden, 4 * hidden))
        for t in range(len(x))[::-1] if reverse else range(len(x)):
            z = h @ w.T + (0 if bias is None else bias)
            (xr, xz, xn), (hr, hz, hn) = np.split(x[t], 3, -1), np.split(z, 3, -1)
            r, u = _sigmoid(xr + hr), _sigmoid(xz + hz)
            n = np.tanh(xn + r * hn)
            h = n + u * (h - n)
            hs[t], acts[t] = h, np.concatenate([r, u, n, hn], -1)
        return hs, h, acts if keep else np.zeros(0, x.dtype)

    def samples(t):
        yield case(t(3, 2, 15), t(15, 5), t(15), t(2, 5))
        yield case(t(2, 3, 6), t(6, 2), None, t(3, 2), True)
        yield case(t(1, 1, 57), t(57, 19), t(57), t(1, 19))
        yield case(t(2, 3, 6), t(6, 2), t(5), t(3, 2), raises=(RuntimeError, "bias must be"))


@declare
class gru_sequence_backward(Template):
    """Gradients of `gru_sequence` by its projected inputs, by what the recurrent weights gave, and by its first state.

    Shapes: [T, N, 3 H], [T, N, 3 H], [N, H]. What was kept (hs, acts) follows from x, w, bias and h0: as in `lstm_sequence_backward`.
    """

    functions = ()
    methods = ()
    outputs = 3
    vjp = DERIVED

    def signature(
        grad_hs: Tensor,
        grad_h: Tensor,
        x: Tensor,
        w: Tensor,
        bias: OptionalTensor,
        h0: Tensor,
        hs: OptionalTensor = None,
        acts: OptionalTensor = None,
        reverse=False,
    ): ...

    def meta(op, grad_hs, grad_h, x, w, bias, h0, hs, acts, reverse):
        steps, rows, hidden = check_sequence(op, 3, x, w, h0, grad_h)
        shapes = [(steps, rows, 3 * hidden), (steps, rows, 3 * hidden), (rows, hidden)]
        return tuple([Spec.of(shape, x.dtype, x.device) for shape in shapes])

    def lower(op, target, threads, grad_hs, grad_h, x, w, bias, h0, hs, acts, reverse):
        outs = op.rules.meta(op, grad_hs, grad_h, x, w, bias, h0, hs, acts, reverse)
        given, ins, sizes = (grad_hs, grad_h), (x, w, bias, h0), (w.shape[1], reverse)
        if acts is None:
            middle = gru_sequence.rules.meta(gru_sequence, *ins, reverse, True)
            return templates.recomputed("gru", target, threads, given, ins, middle, outs, *sizes)
        return templates.backward("gru", target, threads, (*given, *ins, hs, acts), outs, *sizes)

    def body(grad_hs, grad_h, x, w, bias, h0, hs, acts, reverse):
        """By other ops, from what the sequence was given."""
        ops, steps, kept, h = REGISTRY, x.spec.shape[0], [], h0
        for t in range(steps)[::-1] if reverse else range(steps):
            z = ops["mm"](h, ops["transpose"](w, 0, 1))
            z = z if bias is None else ops["add"](z, bias)
            (xr, xz, xn), (hr, hz, hn) = _quarters(ops["select"](x, 0, t), 3), _quarters(z, 3)
            r, u = ops["sigmoid"](ops["add"](xr, hr)), ops["sigmoid"](ops["add"](xz, hz))
            n = ops["tanh"](ops["add"](xn, ops["mul"](r, hn)))
            before, h = h, ops["add"](n, ops["mul"](u, ops["sub"](h, n)))
            kept.append((t, r, u, n, hn, before))
        of_input, of_state, dh = [], [], grad_h
        for t, r, u, n, hn, before in kept[::-1]:
            dh = ops["add"](dh, ops["select"](grad_hs, 0, t))
            dn = _through_tanh(ops["mul"](dh, ops["sub"](1, u)), n)
            dr = _through_sigmoid(ops["mul"](dn, hn), r)
            du = _through_sigmoid(ops["mul"](dh, ops["sub"](before, n)), u)
            of_input.append(ops["cat"]((dr, du, dn), 1))
            of_state.append(ops["cat"]((dr, du, ops["mul"](dn, r)), 1))
            dh = ops["add"](ops["mul"](dh, u), ops["mm"](of_state[-1], w))
        if not of_input:
            return ops["mul"](x, 0), ops["mul"](x, 0), dh
        found = [ops["stack"](tuple(_in_order(tuple(ds), not reverse)), 0) for ds in (of_input, of_state)]
        return (*found, dh)

    def batch(size, dims, *args):
        return _batched(gru_sequence_backward, size, dims, args, (3, 4))

    def reference(grad_hs, grad_h, x, w, bias, h0, hs=None, acts=None, reverse=False):
        steps = len(x)
        order = list(range(steps))[::-1] if reverse else list(range(steps))
        hs, _, acts = gru_sequence.rules.reference(x, w, bias, h0, reverse, True)
        dx, d, dh = np.zeros_like(x), np.zeros_like(x), grad_h
        for place in range(steps)[::-1]:
            t = order[place]
            before = hs[order[place - 1]] if place else h0
            r, u, n, hn = np.split(acts[t], 4, -1)
            dh = dh + grad_hs[t]
            dn = dh * (1 - u) * (1 - n * n)
            dr, du = dn * hn * r * (1 - r), dh * (before - n) * u * (1 - u)
            dx[t], d[t] = np.concatenate([dr, du, dn], -1), np.concatenate([dr, du, dn * r], -1)
            dh = dh * u + d[t] @ w
        return dx, d, dh

    def samples(t):
        for steps, rows, hidden, reverse in ((3, 2, 5, False), (2, 3, 2, True), (1, 1, 19, False)):
            x, w, bias, h0 = t(steps, rows, 3 * hidden), t(3 * hidden, hidden), t(3 * hidden), t(rows, hidden)
            yield case(t(steps, rows, hidden), t(rows, hidden), x, w, bias, h0, None, None, reverse)
