"""Elementwise activations of `nn.functional`. Softmax and its relatives are in `activation`.

The forms with `inplace=` are in `nn.activation_forms`. Slopes and thresholds are run-time numbers; limits are part of the code.
"""

from __future__ import annotations

import math

from flambeau.base.lazy import np
from flambeau.ir.kinds import FLOAT
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel import complex_math, vmath
from flambeau.kernel.complexes import Complex
from flambeau.operators.arithmetic import add, mul, sub
from flambeau.operators.comparison import ge, gt, le, lt
from flambeau.operators.elementary import exp, one_over, sigmoid, tanh
from flambeau.operators.powers import square
from flambeau.operators.rules import Composed, Elementwise, case, chain, scaled, unary_samples
from flambeau.operators.selection import kept, where

ROOT_HALF = math.sqrt(0.5)
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
ROOT_TWO_OVER_PI, CUBIC = math.sqrt(2.0 / math.pi), 0.044715  # the tanh form of gelu


class Activation(Elementwise):
    kinds = "f"
    methods = ()
    samples = unary_samples

    def signature(input: Tensor): ...


class Smooth(Activation):
    expensive = True


class Real(Activation):
    kinds = "uif"


def all_of(*masks):
    """Where every mask holds."""
    first, *others = masks
    for m in others:
        first = REGISTRY["logical_and"](first, m)
    return first


# ---------------------------------------------------------------------- piecewise linear
@declare
class relu(Real):
    """max(x, 0)."""

    functions = ("relu", "nn.functional.relu")
    methods = ("relu",)

    def lower(k, x):
        return k.maximum(x, 0)

    def vjp(g, out, input):
        return (kept(gt(out, 0), g),)

    def reference(x):
        return np.maximum(x, 0)


@declare
class leaky_relu(Activation):
    """x above zero, negative_slope * x below."""

    functions = ("nn.functional.leaky_relu",)

    def signature(input: Tensor, negative_slope: Scalar = 0.01): ...

    def lower(k, x, slope):
        return k.select(x > 0, x, x * slope)

    def vjp(g, out, input, negative_slope):
        return (where(gt(input, 0), g, mul(g, negative_slope)),)

    def reference(x, negative_slope=0.01):
        return np.where(x > 0, x, x * negative_slope)

    def samples(t):
        yield from unary_samples(t)
        yield case(t(3, 4), 0.3)


@declare
class threshold(Real):
    """x where x > threshold, `value` elsewhere."""

    functions = ("threshold", "nn.functional.threshold")

    def signature(input: Tensor, threshold: Scalar, value: Scalar): ...

    def lower(k, x, threshold, value):
        return k.select(x <= threshold, value, x)

    def vjp(g, out, input, threshold, value):
        return (where(le(input, threshold), 0, g),)

    def reference(x, threshold, value):
        return np.where(x > threshold, x, value)

    def samples(t):
        yield case(t(3, 4), 0.5, -1.0)
        yield case(t(0, 3), 0.5, -1.0)


@declare
class hardtanh(Real):
    """x limited to [min_val, max_val]. Raises: ValueError unless min_val <= max_val."""

    functions = ("nn.functional.hardtanh",)

    def signature(input: Tensor, min_val=-1.0, max_val=1.0): ...

    def meta(op, input, min_val, max_val):
        if min_val > max_val:
            raise ValueError(
                f"hardtanh: min_val cannot be greater than max_val, got {min_val} and {max_val}. Swap them."
            )
        if input.dtype.kind == "u" and (min_val < 0 or max_val < 0):
            raise RuntimeError(
                f"hardtanh: cannot do hardtanh on an unsigned type with negative limits, got {min_val} and {max_val}. "
                f"Use limits of at least 0."
            )
        return Elementwise.meta(op, input, min_val, max_val)

    def lower(k, x, low, high):
        return k.minimum(k.maximum(x, low), high)

    def vjp(g, out, input, min_val, max_val):
        return (kept(all_of(gt(input, min_val), lt(input, max_val)), g),)

    def reference(x, min_val=-1.0, max_val=1.0):
        return np.clip(x, min_val, max_val)

    def samples(t):
        yield from unary_samples(t)
        yield case(t(3, 4), -0.5, 2.0)
        yield case(t(3), 1.0, -1.0, raises=(ValueError, "cannot be greater"))


@declare
class relu6(Composed):
    """x limited to [0, 6]."""

    functions = ("nn.functional.relu6",)
    methods = ()

    def signature(input: Tensor): ...

    def body(input):
        return hardtanh(input, 0.0, 6.0)

    def reference(x):
        return np.clip(x, 0, 6)

    samples = unary_samples


@declare
class hardsigmoid(Activation):
    """x / 6 + 1/2, limited to [0, 1]."""

    functions = ("nn.functional.hardsigmoid",)

    def lower(k, x):
        return k.minimum(k.maximum(x + 3.0, 0.0), 6.0) * (1.0 / 6.0)

    def vjp(g, out, input):
        return (kept(all_of(gt(input, -3.0), lt(input, 3.0)), mul(g, 1.0 / 6.0)),)

    def reference(x):
        return np.clip(np.asarray(x) + 3, 0, 6) / 6


@declare
class hardswish(Activation):
    """x * hardsigmoid(x)."""

    functions = ("nn.functional.hardswish",)

    def lower(k, x):
        return x * k.minimum(k.maximum(x + 3.0, 0.0), 6.0) * (1.0 / 6.0)

    def vjp(g, out, input):
        middle = mul(g, add(mul(input, 1.0 / 3.0), 0.5))
        return (where(le(input, -3.0), 0, where(lt(input, 3.0), middle, g)),)

    def reference(x):
        return x * np.clip(np.asarray(x) + 3, 0, 6) / 6


@declare
class hardshrink(Activation):
    """x where |x| > lambd, 0 elsewhere."""

    functions = ("hardshrink", "nn.functional.hardshrink")
    methods = ("hardshrink",)
    in_place = False

    def signature(input: Tensor, lambd: Scalar = 0.5): ...

    def lower(k, x, lambd):
        return k.select((x >= -lambd) & (x <= lambd), 0.0, x)

    def vjp(g, out, input, lambd):
        return (where(all_of(le(REGISTRY["neg"](input), lambd), le(input, lambd)), 0, g),)

    def reference(x, lambd=0.5):
        return np.where(np.abs(x) > lambd, x, 0)

    def samples(t):
        yield from unary_samples(t)
        yield case(t(3, 4), 1.5)


@declare
class softshrink(Activation):
    """x moved toward zero by lambd, and no further. Raises: RuntimeError for a negative lambd."""

    functions = ("nn.functional.softshrink",)
    in_place = False

    def signature(input: Tensor, lambd=0.5): ...

    def meta(op, input, lambd):
        if lambd < 0:
            raise RuntimeError(
                f"softshrink: lambda must be greater or equal to 0, but found to be {lambd}. Give its magnitude."
            )
        return Elementwise.meta(op, input, lambd)

    def lower(k, x, lambd):
        return k.select(x > lambd, x - lambd, k.select(x < -lambd, x + lambd, x * 0.0))

    def vjp(g, out, input, lambd):
        return (where(all_of(ge(input, -lambd), le(input, lambd)), 0, g),)

    def reference(x, lambd=0.5):
        return np.sign(x) * np.maximum(np.abs(x) - lambd, 0)

    def samples(t):
        yield from unary_samples(t)
        yield case(t(3, 4), 1.5)
        yield case(t(3), -1.0, raises=(RuntimeError, "greater or equal to 0"))


# ---------------------------------------------------------------------- exponential below zero
@declare
class elu(Smooth):
    """scale * x above zero, scale * alpha * (exp(input_scale * x) - 1) below."""

    functions = ("nn.functional.elu",)

    def signature(input: Tensor, alpha: Scalar = 1.0, scale: Scalar = 1.0, input_scale: Scalar = 1.0): ...

    def lower(k, x, alpha, scale, input_scale):
        return k.select(x > 0.0, x, vmath.expm1(k, x * input_scale) * alpha) * scale

    def vjp(g, out, input, alpha, scale, input_scale):
        below = exp(scaled(input, input_scale))
        slope = scaled(scaled(chain(g, below), alpha), input_scale)
        return (scaled(where(gt(input, 0.0), g, slope), scale),)

    def reference(x, alpha=1.0, scale=1.0, input_scale=1.0):
        return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) * input_scale))

    def samples(t):
        yield from unary_samples(t)
        yield case(t(3, 4), 1.5)


@declare
class selu(Composed):
    """elu with the alpha and scale that keep mean 0 and variance 1. Source: Klambauer et al. (2017)."""

    functions = ("selu", "nn.functional.selu")
    methods = ()

    def signature(input: Tensor): ...

    def body(input):
        return elu(input, SELU_ALPHA, SELU_SCALE)

    def reference(x):
        return SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0)))

    samples = unary_samples


@declare
class celu(Composed):
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0). Raises: RuntimeError for alpha 0."""

    functions = ("celu", "nn.functional.celu")
    methods = ()
    kinds = "f"

    def signature(input: Tensor, alpha=1.0): ...

    def meta(op, input, alpha):
        if alpha == 0:
            raise RuntimeError("celu: ZeroDivisionError: alpha cannot be 0 for CELU, got 0. Use relu.")
        return Elementwise.meta(op, input, alpha)

    def body(input, alpha):
        return elu(input, float(alpha), 1.0, 1.0 / alpha)

    def reference(x, alpha=1.0):
        return np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0)

    def samples(t):
        yield from unary_samples(t)
        yield case(t(3, 4), 2.0)


# ---------------------------------------------------------------------- smooth
@declare
class gelu(Smooth):
    """x times the normal distribution function of x; approximate="tanh" by tanh of a cubic. Source: Hendrycks and Gimpel (2016)."""

    functions = ("nn.functional.gelu",)

    def signature(input: Tensor, *, approximate="none"): ...

    def meta(op, input, approximate):
        if approximate not in ("none", "tanh"):
            raise RuntimeError(
                f"gelu: approximate argument must be either none or tanh, got {approximate!r}. "
                f"Leave it out for the exact function."
            )
        return Elementwise.meta(op, input, approximate)

    def lower(k, x, approximate):
        if approximate == "none":
            return vmath.gelu(k, x)
        return x * 0.5 * (vmath.tanh(k, (k.fma(x * x, x * CUBIC, x)) * ROOT_TWO_OVER_PI) + 1.0)

    def vjp(g, out, input, approximate):
        x = input
        if approximate == "none":
            below = mul(add(REGISTRY["erf"](mul(x, ROOT_HALF)), 1.0), 0.5)
            density = mul(exp(mul(square(x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
            return (mul(g, add(below, mul(x, density))),)
        squared = square(x)
        t = tanh(mul(mul(x, add(mul(squared, CUBIC), 1.0)), ROOT_TWO_OVER_PI))
        slope = mul(add(mul(squared, 3.0 * CUBIC), 1.0), ROOT_TWO_OVER_PI)
        return (mul(g, mul(add(add(t, 1.0), mul(mul(x, sub(1.0, square(t))), slope)), 0.5)),)

    def reference(x, *, approximate="none"):
        if approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(ROOT_TWO_OVER_PI * (x + CUBIC * x**3)))
        return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(np.asarray(x) * ROOT_HALF))

    def samples(t):
        for approximate in ("none", "tanh"):
            for x in unary_samples(t):
                yield case(*x.args, approximate=approximate)
        yield case(t(3), approximate="fast", raises=(RuntimeError, "either none or tanh"))


@declare
class silu(Smooth):
    """x * sigmoid(x)."""

    functions = ("nn.functional.silu",)
    kinds = "fc"

    def lower(k, x):
        return x * (complex_math.sigmoid(k, x) if isinstance(x, Complex) else vmath.sigmoid(k, x))

    def vjp(g, out, input):
        s = sigmoid(input)
        return (chain(g, mul(s, add(mul(input, sub(1.0, s)), 1.0))),)

    def reference(x):
        return x / (1 + np.exp(-x))


@declare
class mish(Smooth):
    """x * tanh(softplus(x)). Source: Misra (2019)."""

    functions = ("nn.functional.mish",)

    def lower(k, x):
        e = vmath.exp(k, k.minimum(x, 20.0))  # tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2)
        n = e * (e + 2.0)
        return x * (n / (n + 2.0))

    def vjp(g, out, input):
        t = tanh(softplus(input))
        return (mul(g, add(t, mul(mul(input, sigmoid(input)), sub(1.0, square(t))))),)

    def reference(x):
        return x * np.tanh(np.logaddexp(0, x))


@declare
class softplus(Smooth):
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""

    functions = ("nn.functional.softplus",)
    in_place = False

    def signature(input: Tensor, beta: Scalar = 1.0, threshold: Scalar = 20.0): ...

    def lower(k, x, beta, threshold):
        z = x * beta
        return k.select(z > threshold, x, vmath.log1p(k, vmath.exp(k, z)) / beta)

    def vjp(g, out, input, beta, threshold):
        z = scaled(input, beta)
        return (where(gt(z, threshold), g, mul(g, sigmoid(z))),)

    def reference(x, beta=1.0, threshold=20.0):
        return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta)

    def samples(t):
        yield from unary_samples(t)
        yield case(t(3, 4), 2.0, 1.0)


@declare
class logsigmoid(Smooth):
    """log(sigmoid(x)) without overflow."""

    functions = ("nn.functional.logsigmoid",)
    in_place = False

    def lower(k, x):
        return k.minimum(x, 0.0) - vmath.log1p(k, vmath.exp(k, -k.math("fabs", x)))

    def vjp(g, out, input):
        return (mul(g, sigmoid(REGISTRY["neg"](input))),)

    def reference(x):
        return -np.logaddexp(0, -np.asarray(x))


@declare
class softsign(Activation):
    """x / (1 + |x|)."""

    functions = ("nn.functional.softsign",)
    promotion = FLOAT
    kinds = "buifc"
    in_place = False

    def lower(k, x):
        if isinstance(x, Complex):
            size = complex_math.absolute(k, x) + 1.0
            return Complex(x.real / size, x.imag / size)
        return x / (k.math("fabs", x) + 1.0)

    def vjp(g, out, input):
        inverse = one_over(add(REGISTRY["abs"](input), 1.0))
        if not input.spec.dtype.is_complex:
            return (mul(g, square(inverse)),)
        along = REGISTRY["real"](mul(g, REGISTRY["conj_physical"](out)))
        return (mul(sub(g, mul(REGISTRY["sgn"](input), along)), inverse),)

    def reference(x):
        return x / (1 + np.abs(x))


@declare
class tanhshrink(Smooth):
    """x - tanh(x)."""

    functions = ("nn.functional.tanhshrink",)
    promotion = FLOAT
    kinds = "buifc"
    in_place = False

    def lower(k, x):
        return x - (complex_math.tanh(k, x) if isinstance(x, Complex) else vmath.tanh(k, x))

    def vjp(g, out, input):
        return (chain(g, square(tanh(input))),)

    def reference(x):
        return x - np.tanh(x)
