"""Elementary functions of one variable."""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.ir.kinds import FLOAT, Pointwise
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel import vmath
from flambeau.operators.arithmetic import mul
from flambeau.operators.rules import conjugate, unary_samples


class Elementary(Pointwise):
    promotion = FLOAT
    expensive = True
    samples = unary_samples

    def signature(input: Tensor): ...


@declare
class exp(Elementary):
    """e to the power of each element."""

    def lower(k, x):
        return vmath.exp(k, x)

    def vjp(g, out, input):
        return (mul(g, conjugate(out)),)

    def reference(x):
        return np.exp(x)


@declare
class tanh(Elementary):
    """Hyperbolic tangent."""

    def lower(k, x):
        return vmath.tanh(k, x)

    def vjp(g, out, input):
        return (mul(g, conjugate(REGISTRY["sub"](1, mul(out, out)))),)

    def reference(x):
        return np.tanh(x)


@declare
class rsqrt(Elementary):
    """One over the square root."""

    def lower(k, x):
        return vmath.rsqrt(k, x)

    def vjp(g, out, input):
        cube = mul(mul(out, out), out)
        return (mul(g, mul(cube, -0.5)),)

    def reference(x):
        return 1 / np.sqrt(x)
