"""Normalisation by statistics of the input: layers, groups, instances, batches, root mean squares, neighbouring channels.

Everything with a mean is `standardize` (zero mean and unit variance over some dims) and an affine map behind it; forward is one kernel,
its gradient one over the same rows and one for weight and bias. float16 and bfloat16 are worked on in float32 throughout.

May not know: layouts; running statistics are written by the call forms (`nn.normalisation_forms`). Entry: the ops by name.
"""

from __future__ import annotations

import math
from typing import Any

from flambeau.base.errors import UnsupportedError, message
from flambeau.base.lazy import np
from flambeau.core.dtype import float32, promote_types
from flambeau.ir.kinds import Composite
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.reduction import as_dtype, count_of, wide
from flambeau.operators.rules import case
from flambeau.operators.windows import framed

FLOAT32_EPSILON = 2.0**-23
FLOAT64_EPSILON = 2.0**-52


def numpy_standard(x, dims, eps):
    center, variance = np.mean(x, dims, keepdims=True), np.var(x, dims, keepdims=True)
    scale = 1 / np.sqrt(variance + eps)
    return (x - center) * scale, center, scale, variance


@declare
class standardize(Composite):
    """((x - mean) * scale, mean, scale, variance) with scale = 1 / sqrt(variance + eps) over `dims`, which statistics keep as size 1."""

    functions = ()
    methods = ()
    outputs = 4

    def signature(x: Tensor, dims, eps): ...

    def body(x, dims, eps):
        ops = REGISTRY
        if x.spec.dtype.is_complex:
            raise UnsupportedError(
                message(
                    "standardize",
                    "the input must be real (not implemented for complex dtypes): the variance of complex numbers has several meanings",
                    x.spec.dtype.name,
                    "Normalise torch.view_as_real(x).",
                )
            )
        if not x.spec.dtype.is_inexact:
            raise UnsupportedError(
                message(
                    "standardize",
                    "the input must be floating point (not implemented for integers)",
                    x.spec.dtype.name,
                    "Convert with .float().",
                )
            )
        center = ops["mean"](x, dims, True)
        distance = ops["sub"](x, center)
        variance = ops["mean"](ops["mul"](distance, distance), dims, True)
        scale = ops["rsqrt"](ops["add"](variance, eps))
        return ops["mul"](distance, scale), center, scale, variance

    def vjp(g, out, x, dims, eps):
        ops = REGISTRY
        standard, _, scale, _ = out
        of_standard, of_center, of_scale, of_variance = g
        n = max(1, count_of(x.spec.shape, dims))
        along = ops["mean"](ops["mul"](of_standard, standard), dims, True)
        within = ops["sub"](of_standard, ops["add"](ops["mean"](of_standard, dims, True), ops["mul"](standard, along)))
        of_x = ops["mul"](within, scale)
        of_scale = ops["mul"](ops["mul"](of_scale, scale), scale)
        of_variance = ops["mul"](ops["true_divide"](of_variance, scale), 2)
        rest = ops["add"](of_center, ops["mul"](ops["sub"](of_variance, of_scale), standard))
        return (ops["add"](of_x, ops["mul"](rest, 1 / n)),)

    def reference(x, dims, eps):
        return numpy_standard(x, dims, eps)

    def samples(t):
        yield case(t(3, 5), (1,), 1e-5)
        yield case(t(3, 5), (0,), 1e-5)
        yield case(t(2, 3, 4), (0, 2), 1e-3)


def affine(y, weight: Any, bias: Any, shape):
    """y * weight + bias, both read as `shape`."""
    ops = REGISTRY
    if weight is not None:
        y = ops["mul"](y, ops["reshape"](wide(weight), shape))
    if bias is not None:
        y = ops["add"](y, ops["reshape"](wide(bias), shape))
    return y


def check_parameter(name: str, which: str, p: Any, shape) -> None:
    """Raises: RuntimeError if a weight or bias has not the shape it needs."""
    if p is not None and tuple(p.spec.shape) != tuple(shape):
        raise RuntimeError(message(name, f"expected {which} to be of shape {list(shape)}", f"{list(p.spec.shape)}"))


def normalised_dims(name: str, s, normalized_shape) -> tuple[int, ...]:
    """The last dims that `normalized_shape` names. Raises: RuntimeError if the input has others."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape:
        raise RuntimeError(
            message(
                name,
                "expected normalized_shape to be at least 1-dimensional, i.e. to contain at least one element",
                repr(shape),
            )
        )
    if tuple(s.shape[s.ndim - len(shape) :]) != shape or s.ndim < len(shape):
        raise RuntimeError(
            message(
                name,
                f"given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}]",
                f"input of size {list(s.shape)}",
            )
        )
    return tuple(range(s.ndim - len(shape), s.ndim))


# ------------------------------------------------------------------ layers
@declare
class native_layer_norm(Composite):
    """(normalised over the last dims, mean, 1 / standard deviation); the statistics keep their dims."""

    methods = ()
    outputs = 3

    def signature(input: Tensor, normalized_shape, weight: OptionalTensor, bias: OptionalTensor, eps): ...

    def body(input, normalized_shape, weight, bias, eps):
        dims = normalised_dims("layer_norm", input.spec, normalized_shape)
        shape = tuple(input.spec.shape[d] for d in dims)
        check_parameter("layer_norm", "weight", weight, shape)
        check_parameter("layer_norm", "bias", bias, shape)
        d = input.spec.dtype
        standard, center, scale, _ = standardize(wide(input), dims, eps)
        mixed = weight is not None and weight.spec.dtype is not d
        out = as_dtype(affine(standard, weight, bias, shape), d)
        return (out, center, scale) if mixed else (out, as_dtype(center, d), as_dtype(scale, d))

    def reference(x, normalized_shape, weight, bias, eps):
        dims = tuple(range(x.ndim - len(normalized_shape), x.ndim))
        y, center, scale, _ = numpy_standard(x, dims, eps)
        return y * (1 if weight is None else weight) + (0 if bias is None else bias), center, scale

    def samples(t):
        yield case(t(3, 5), (5,), t(5), t(5), 1e-5)
        yield case(t(2, 3, 4), (3, 4), None, None, 1e-5)


@declare
class layer_norm(Composite):
    """The input normalised over its last dims, `normalized_shape`, then scaled by `weight` and shifted by `bias`.

    Raises: RuntimeError where shapes do not fit.
    """

    functions = ("layer_norm", "nn.functional.layer_norm")
    methods = ()

    def signature(
        input: Tensor, normalized_shape, weight: OptionalTensor = None, bias: OptionalTensor = None, eps=1e-5
    ): ...

    def body(input, normalized_shape, weight, bias, eps):
        return native_layer_norm(input, normalized_shape, weight, bias, eps)[0]

    def reference(x, normalized_shape, weight=None, bias=None, eps=1e-5):
        return native_layer_norm.rules.reference(x, normalized_shape, weight, bias, eps)[0]

    def samples(t):
        yield case(t(3, 5), (5,))
        yield case(t(2, 3, 4), (3, 4), t(3, 4), t(3, 4))
        yield case(t(3, 40), (40,), t(40))
        yield case(t(3, 5), (4,), raises=(RuntimeError, "given normalized_shape"))
        yield case(t(3, 5), (5,), t(4), raises=(RuntimeError, "expected weight"))


@declare
class rms_norm(Composite):
    """The input over the root of its mean square along the last dims, scaled by `weight`. eps: float's epsilon unless told."""

    functions = ("rms_norm", "nn.functional.rms_norm")
    methods = ()

    def signature(input: Tensor, normalized_shape, weight: OptionalTensor = None, eps=None): ...

    def body(input, normalized_shape, weight, eps):
        ops = REGISTRY
        dims = normalised_dims("rms_norm", input.spec, normalized_shape)
        shape = tuple(input.spec.shape[d] for d in dims)
        check_parameter("rms_norm", "weight", weight, shape)
        x = wide(input)
        if eps is None:
            eps = FLOAT32_EPSILON if x.spec.dtype.to_real() is float32 else FLOAT64_EPSILON
        scale = ops["rsqrt"](ops["add"](ops["mean"](ops["mul"](x, x), dims, True), eps))
        return as_dtype(affine(ops["mul"](x, scale), weight, None, shape), input.spec.dtype)

    def reference(x, normalized_shape, weight=None, eps=None):
        dims = tuple(range(x.ndim - len(normalized_shape), x.ndim))
        if eps is None:
            eps = FLOAT64_EPSILON if x.dtype in ("float64", "complex128") else FLOAT32_EPSILON
        y = x / np.sqrt(np.mean(x * x, dims, keepdims=True) + eps)
        return y if weight is None else y * weight

    def samples(t):
        yield case(t(3, 5), (5,))
        yield case(t(2, 3, 4), (3, 4), t(3, 4), 1e-3)
        yield case(t(3, 5), (4,), raises=(RuntimeError, "given normalized_shape"))


# ------------------------------------------------------------------ groups and instances
@declare
class native_group_norm(Composite):
    """(normalised within `group` groups of channels, mean, 1 / standard deviation), the statistics as [N, group]."""

    methods = ()
    outputs = 3

    def signature(input: Tensor, weight: OptionalTensor, bias: OptionalTensor, N, C, HxW, group, eps): ...

    def body(input, weight, bias, N, C, HxW, group, eps):
        ops = REGISTRY
        d = input.spec.dtype
        each = C // group
        x = ops["reshape"](wide(input), (N, group, each, HxW))
        standard, center, scale, _ = standardize(x, (2, 3), eps)
        out = ops["reshape"](as_dtype(affine(standard, weight, bias, (1, group, each, 1)), d), tuple(input.spec.shape))
        mixed = weight is not None and weight.spec.dtype is not d
        center, scale = (ops["reshape"](v if mixed else as_dtype(v, d), (N, group)) for v in (center, scale))
        return out, center, scale

    def reference(x, weight, bias, N, C, HxW, group, eps):
        y, center, scale, _ = numpy_standard(x.reshape(N, group, C // group, HxW), (2, 3), eps)
        per_channel = (1, group, C // group, 1)
        y = y * (1 if weight is None else weight.reshape(per_channel)) + (
            0 if bias is None else bias.reshape(per_channel)
        )
        return y.reshape(x.shape), center.reshape(N, group), scale.reshape(N, group)

    def samples(t):
        yield case(t(2, 6, 5), t(6), t(6), 2, 6, 5, 3, 1e-5)
        yield case(t(2, 6), None, None, 2, 6, 1, 2, 1e-5)


@declare
class group_norm(Composite):
    """The input [N, C, *] normalised within `num_groups` groups of channels, then scaled and shifted per channel.

    Raises: RuntimeError where channels do not divide into the groups.
    """

    functions = ("group_norm", "nn.functional.group_norm")
    methods = ()

    def signature(input: Tensor, num_groups, weight: OptionalTensor = None, bias: OptionalTensor = None, eps=1e-5): ...

    def body(input, num_groups, weight, bias, eps):
        s = input.spec
        if s.ndim < 2:
            raise RuntimeError(message("group_norm", "expected at least 2 dimensions for input tensor", f"{s.ndim}"))
        if num_groups <= 0:
            raise RuntimeError(message("group_norm", "expected num groups to be greater than 0", str(num_groups)))
        n, c = s.shape[0], s.shape[1]
        if c % num_groups:
            raise RuntimeError(
                message(
                    "group_norm",
                    "expected number of channels in input to be divisible by num_groups",
                    f"input of shape {list(s.shape)} and num_groups={num_groups}",
                )
            )
        check_parameter("group_norm", "weight", weight, (c,))
        check_parameter("group_norm", "bias", bias, (c,))
        return native_group_norm(input, weight, bias, n, c, math.prod(s.shape[2:]), num_groups, eps)[0]

    def reference(x, num_groups, weight=None, bias=None, eps=1e-5):
        return native_group_norm.rules.reference(
            x, weight, bias, x.shape[0], x.shape[1], math.prod(x.shape[2:]), num_groups, eps
        )[0]

    def samples(t):
        yield case(t(2, 6, 5), 3)
        yield case(t(2, 6, 3, 4), 2, t(6), t(6))
        yield case(t(2, 6), 2)
        yield case(t(2, 6, 5), 4, raises=(RuntimeError, "divisible"))


@declare
class instance_statistics_norm(Composite):
    """(normalised per instance and channel, new running mean, new running variance): instance norm by the input's own statistics."""

    functions = ()
    spoken = "instance_norm"
    methods = ()
    outputs = 3

    def signature(
        input: Tensor,
        weight: OptionalTensor,
        bias: OptionalTensor,
        running_mean: OptionalTensor,
        running_var: OptionalTensor,
        momentum,
        eps,
    ): ...

    def body(input, weight, bias, running_mean, running_var, momentum, eps):
        ops, s = REGISTRY, input.spec
        n, c, size = s.shape[0], s.shape[1], math.prod(s.shape[2:])
        x = ops["reshape"](wide(input), (n, c, size))
        standard, center, _, variance = standardize(x, (2,), eps)
        out = ops["reshape"](as_dtype(affine(standard, weight, bias, (1, c, 1)), s.dtype), tuple(s.shape))
        means = ops["mean"](ops["reshape"](center, (n, c)), 0)
        spread = ops["mean"](ops["reshape"](unbiased(variance, size), (n, c)), 0)
        return out, moved(running_mean, means, momentum), moved(running_var, spread, momentum)

    def reference(x, weight, bias, running_mean, running_var, momentum, eps):
        y, center, _, _ = numpy_standard(x.reshape(*x.shape[:2], -1), (2,), eps)
        spread = np.var(x.reshape(*x.shape[:2], -1), 2, ddof=1).mean(0)
        y = y * (1 if weight is None else weight.reshape(-1, 1)) + (0 if bias is None else bias.reshape(-1, 1))
        return (
            y.reshape(x.shape),
            mixed_by(running_mean, center.mean((0, 2)), momentum),
            mixed_by(running_var, spread, momentum),
        )

    def samples(t):
        yield case(t(2, 3, 5), t(3), t(3), t(3), t(3), 0.1, 1e-5)
        yield case(t(2, 3, 4, 5), None, None, None, None, 0.1, 1e-5)


def mixed_by(old, new, momentum):
    """NumPy: a running statistic moved toward a new one."""
    return new if old is None else (1 - momentum) * old + momentum * new


def moved(running: Any, value, momentum: float):
    """A running statistic moved toward a new value; the value itself if none is kept."""
    if running is None:
        return value
    ops = REGISTRY
    found = ops["add"](ops["mul"](wide(running), 1 - momentum), ops["mul"](value, momentum))
    return as_dtype(found, running.spec.dtype)


def unbiased(variance, count: int):
    """A mean square as an unbiased variance; NaN for one value."""
    return REGISTRY["mul"](variance, count / (count - 1) if count > 1 else float("nan"))


# ------------------------------------------------------------------ batches
def channel_dims(ndim: int) -> tuple[int, ...]:
    return tuple(d for d in range(ndim) if d != 1)


def channel_shape(s) -> tuple[int, ...]:
    return tuple(n if d == 1 else 1 for d, n in enumerate(s.shape))


def check_batch(name: str, s, *parameters: tuple[str, Any]) -> None:
    """Raises: RuntimeError if a per-channel tensor does not fit."""
    for which, p in parameters:
        if p is not None and p.spec.numel != s.shape[1]:
            raise RuntimeError(message(name, f"{which} should contain {s.shape[1]} elements", f"{p.spec.numel}"))


@declare
class batch_statistics_norm(Composite):
    """(normalised per channel, mean, 1 / standard deviation, new running mean, new running variance): batch norm while training."""

    functions = ()
    spoken = "batch_norm"
    methods = ()
    outputs = 5

    def signature(
        input: Tensor,
        weight: OptionalTensor,
        bias: OptionalTensor,
        running_mean: OptionalTensor,
        running_var: OptionalTensor,
        momentum,
        eps,
    ): ...

    def body(input, weight, bias, running_mean, running_var, momentum, eps):
        ops, s = REGISTRY, input.spec
        check_batch(
            "batch_norm",
            s,
            ("weight", weight),
            ("bias", bias),
            ("running_mean", running_mean),
            ("running_var", running_var),
        )
        dims = channel_dims(s.ndim)
        standard, center, scale, variance = standardize(wide(input), dims, eps)
        out = as_dtype(affine(standard, weight, bias, channel_shape(s)), s.dtype)
        flat = [ops["reshape"](v, (s.shape[1],)) for v in (center, scale, unbiased(variance, count_of(s.shape, dims)))]
        kept = s.dtype if weight is None else promote_types(s.dtype, weight.spec.dtype)
        return (
            out,
            as_dtype(flat[0], kept),
            as_dtype(flat[1], kept),
            moved(running_mean, flat[0], momentum),
            moved(running_var, flat[2], momentum),
        )

    def reference(x, weight, bias, running_mean, running_var, momentum, eps):
        dims = channel_dims(x.ndim)
        y, center, scale, _ = numpy_standard(x, dims, eps)
        shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
        y = y * (1 if weight is None else weight.reshape(shape)) + (0 if bias is None else bias.reshape(shape))
        new_mean = mixed_by(running_mean, center.reshape(-1), momentum)
        return (
            y,
            center.reshape(-1),
            scale.reshape(-1),
            new_mean,
            mixed_by(running_var, np.var(x, dims, ddof=1), momentum),
        )

    def samples(t):
        yield case(t(4, 3), t(3), t(3), t(3), t(3), 0.1, 1e-5)
        yield case(t(2, 3, 4, 5), None, None, None, None, 0.1, 1e-5)
        yield case(t(2, 3), t(4), None, None, None, 0.1, 1e-5, raises=(RuntimeError, "should contain 3"))


@declare
class batch_norm_inference(Composite):
    """The input normalised per channel (dim 1) by given statistics."""

    functions = ()
    spoken = "batch_norm"
    methods = ()

    def signature(
        input: Tensor, weight: OptionalTensor, bias: OptionalTensor, running_mean: Tensor, running_var: Tensor, eps
    ): ...

    def body(input, weight, bias, running_mean, running_var, eps):
        ops, s = REGISTRY, input.spec
        check_batch(
            "batch_norm",
            s,
            ("weight", weight),
            ("bias", bias),
            ("running_mean", running_mean),
            ("running_var", running_var),
        )
        shape = channel_shape(s)
        center, spread = (ops["reshape"](wide(v), shape) for v in (running_mean, running_var))
        standard = ops["mul"](ops["sub"](wide(input), center), ops["rsqrt"](ops["add"](spread, eps)))
        return as_dtype(affine(standard, weight, bias, shape), s.dtype)

    def reference(x, weight, bias, running_mean, running_var, eps):
        shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
        y = (x - running_mean.reshape(shape)) / np.sqrt(running_var.reshape(shape) + eps)
        return y * (1 if weight is None else weight.reshape(shape)) + (0 if bias is None else bias.reshape(shape))

    def samples(t):
        yield case(t(4, 3), t(3), t(3), t(3), REGISTRY["abs"](t(3)), 1e-5)
        yield case(t(2, 3, 4, 5), None, None, t(3), REGISTRY["abs"](t(3)), 1e-3)


# ------------------------------------------------------------------ neighbouring channels
@declare
class local_response_norm(Composite):
    """The input over (k + alpha * mean square of `size` neighbouring channels) ** beta; channels beyond the ends count as zero."""

    functions = ("nn.functional.local_response_norm",)
    methods = ()

    def signature(input: Tensor, size, alpha=1e-4, beta=0.75, k=1.0): ...

    def body(input, size, alpha, beta, k):
        ops, s = REGISTRY, input.spec
        if s.ndim < 3:
            raise ValueError(
                message("local_response_norm", "expected 3D or higher dimensionality input", f"{s.ndim} dimensions")
            )
        if not s.numel:
            return ops["clone"](input)
        x = wide(input)
        rest = s.shape[2:]
        around = framed(x, (size // 2, *(0 for _ in rest)), (s.shape[1] + size - 1, *rest))
        total = None
        for i in range(size):
            near = ops["narrow"](around, 1, i, s.shape[1])
            square = ops["mul"](near, near)
            total = square if total is None else ops["add"](total, square)
        mean = ops["true_divide"](total, size) if s.dtype.is_inexact else ops["floor_divide"](total, size)
        base = ops["add"](ops["mul"](mean, alpha), k)
        return as_dtype(ops["true_divide"](x, ops["power"](base, float(beta))), s.dtype if s.dtype.is_inexact else None)

    def reference(x, size, alpha=1e-4, beta=0.75, k=1.0):
        pads = [(0, 0), (size // 2, (size - 1) // 2)] + [(0, 0)] * (x.ndim - 2)
        squares = np.pad(x * x, pads)
        total = sum(np.take(squares, range(i, i + x.shape[1]), 1) for i in range(size))
        return x / (k + alpha * total / size) ** beta

    def samples(t):
        yield case(t(2, 6, 5), 3)
        yield case(t(2, 6, 3, 4), 2, 1.0, 0.5)
        yield case(t(2, 3), 2, raises=(ValueError, "3D or higher"))
