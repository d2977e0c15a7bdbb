"""Cells of recurrent networks: what one step makes of the gates' pre-activations, in one kernel.

    h, c = lstm_gates(x_projected[t] + h @ w.mT, c)

The products are ordinary matrix products; sequences are loops (`nn.recurrent_forms`). May not know: modules, sequences.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import case


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
