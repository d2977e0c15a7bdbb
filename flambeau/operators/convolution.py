"""Convolutions of one to three spatial dims, forward and transposed, as three ops that are each other's gradients.

    convolve(x, w)            x [N, C, *L], w [O, C / groups, *kernel] -> [N, O, *windows]
    convolve_transposed(y, w) y [N, O, *windows] -> [N, C, *L]: the gradient of `convolve` by x
    convolve_weight(x, y)     -> [O, C / groups, *kernel]: its gradient by w

Floats take kernels that read windows where they lie; elsewhere windows are a view, which a product over them copies once. May not know: how
products are computed. Entry: `conv1d` … `conv_transpose3d`.
"""

from __future__ import annotations

import math

from flambeau.base.lazy import np
from flambeau.core.dtype import bfloat16, float32
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite, Template, common_device
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.batched import front
from flambeau.operators.matmul import matrix_product, shown, sum_of_products
from flambeau.operators.matmul_added import conjugate
from flambeau.operators.rules import case
from flambeau.operators.windows import framed, padded, reach_of, window_sum, windows
from flambeau.templates import conv as templates
from flambeau.templates.conv_depthwise import depthwise, depthwise_weight
from flambeau.templates.conv_transposed import MOST_PHASES, depthwise_transposed, transposed_convolution
from flambeau.templates.conv_weight import weight_gradient

LEAST_PLACES = 16  # of a channel whose elements are finished as they are computed: an epilogue goes channel by channel


# ------------------------------------------------------------------ the three bilinear ops
def columns_of(x, kernel, counts, stride, low, dilation, groups):
    """The input's windows as [N, groups, C / groups, *windows, *kernel], a view of the padded input."""
    x = framed(x, low, reach_of(counts, kernel, stride, dilation))
    n, c, *sizes = x.spec.shape
    x = REGISTRY["reshape"](x, (n, groups, c // groups, *sizes))
    return windows(x, kernel, stride, dilation)


def moved(x, *order: int):
    return REGISTRY["permute"](x, order)


def as_channels(x):
    """[batch, N, C, *L] as [N, batch * C, *L]."""
    size, images, channels, *sizes = x.spec.shape
    return REGISTRY["reshape"](moved(x, 1, 0, *range(2, x.spec.ndim)), (images, size * channels, *sizes))


def batched_in_channels(op, size: int, dims, x, w, bias: tuple, attributes: tuple):
    """A batch of convolutions as one with more groups; groups are the last of the attributes."""
    x, w = as_channels(front(x, dims[0], size)), front(w, dims[1], size)
    w = REGISTRY["reshape"](w, (size * w.spec.shape[1], *w.spec.shape[2:]))
    found = op(x, w, *bias, *attributes[:-1], attributes[-1] * size)
    images, channels, *sizes = found.spec.shape
    found = REGISTRY["reshape"](found, (images, size, channels // size, *sizes))
    return moved(found, 1, 0, *range(2, found.spec.ndim)), 0


@declare
class convolve_planes(Template):
    """`convolve` of float dtypes by kernels that read windows where they lie; the bias is added as sums are stored.

    Dtypes: floats, narrow ones summed in float32. Determinism: bitwise, for any number of threads.
    """

    functions = ()
    methods = ()

    def signature(input: Tensor, weight: Tensor, bias: OptionalTensor, counts, stride, low, dilation, groups): ...

    def meta(op, x, w, bias, counts, stride, low, dilation, groups):
        return Spec.of((x.shape[0], w.shape[0], *counts), x.dtype, common_device("convolution", [x, w]))

    def columns(op, x, w, bias, counts, stride, low, dilation, groups):
        if math.prod(counts) < LEAST_PLACES or (x.dtype is bfloat16 and (w.shape[1] > 1 or groups == 1)):
            return 0
        return len(counts)

    def lower(op, target, threads, x, w, bias, counts, stride, low, dilation, groups, epilogue=None):
        given = (x.dtype.name, None if bias is None else bias.strides[0])
        layout = (x.shape, x.strides, w.shape, w.strides, counts, stride, low, dilation)
        if w.shape[1] == 1 and groups > 1:
            found = depthwise(*layout, *given, threads=threads)
        else:
            found = templates.convolution(*layout, groups, *given, threads=threads)
        return found if epilogue is None else epilogue.behind(found, 2 if bias is None else 3)

    def batch(size, dims, x, w, bias, counts, stride, low, dilation, groups):
        ops = REGISTRY
        if dims[1] is None and (bias is None or dims[2] is None):  # more images
            flat = ops["reshape"](x, (size * x.spec.shape[1], *x.spec.shape[2:]))
            found = convolve_planes(flat, w, bias, counts, stride, low, dilation, groups)
            return ops["reshape"](found, (size, x.spec.shape[1], *found.spec.shape[1:])), 0
        bias = () if bias is None else (REGISTRY["reshape"](front(bias, dims[2], size), (-1,)),)
        return batched_in_channels(
            convolve_planes, size, dims, x, w, bias or (None,), (counts, stride, low, dilation, groups)
        )

    def vjp(g, out, x, w, bias, counts, stride, low, dilation, groups):
        return convolve.rules.vjp(g, out, x, w, bias, counts, stride, low, dilation, groups)

    def reference(x, w, bias, counts, stride, low, dilation, groups):
        found = _reference(x, w, counts, stride, low, dilation, groups)
        return found + (0 if bias is None else np.reshape(bias, (-1, *(1,) * len(counts))))

    def samples(t):
        yield case(t(2, 4, 7), t(6, 2, 3), None, (4,), (2,), (1,), (1,), 2)
        yield case(t(2, 3, 5, 6), t(17, 3, 3, 2), t(17), (5, 6), (1, 1), (1, 1), (1, 1), 1)
        yield case(t(2, 3, 9, 40), t(6, 1, 3, 3), t(6), (3, 38), (3, 1), (0, 1), (1, 2), 3)
        yield case(t(1, 5, 6, 7), t(4, 5, 1, 1), None, (6, 7), (1, 1), (0, 0), (1, 1), 1)
        yield case(t(1, 2, 4, 5, 6), t(3, 2, 4, 4, 4), None, (3, 2, 1), (1, 2, 3), (1, 1, -2), (1, 1, 1), 1)


def channel_sums(g):
    """Sums over images and places: the gradient of a bias."""
    return REGISTRY["sum"](g, (0, *range(2, g.spec.ndim)), False)


@declare
class convolve(Composite):
    """Sums of products of windows of the input with `weight`, per group, plus `bias`; `low` zeros in front, `counts` windows per dim."""

    functions = ()
    methods = ()

    def signature(input: Tensor, weight: Tensor, bias: OptionalTensor, counts, stride, low, dilation, groups): ...

    def meta(op, x, w, bias, counts, stride, low, dilation, groups):
        return Spec.of((x.shape[0], w.shape[0], *counts), x.dtype, common_device("convolution", [x, w]))

    def body(x, w, bias, counts, stride, low, dilation, groups):
        outs, _, *kernel = w.spec.shape
        kernel, rank = tuple(kernel), len(counts)
        n, p, t = x.spec.shape[0], math.prod(counts), math.prod(kernel)
        c = x.spec.shape[1] // groups
        if p == 0 or t * c == 0 or n == 0 or outs == 0:
            zeros = REGISTRY["full"]((n, outs, *counts), 0, dtype=x.spec.dtype, device=x.spec.device)
            return with_bias(zeros, bias, rank)
        if templates.takes(x.spec.dtype.name):
            return convolve_planes(x, w, bias, counts, stride, low, dilation, groups)
        found = columns_of(x, kernel, counts, stride, low, dilation, groups)
        if c == 1 and groups > 1:
            taps = REGISTRY["reshape"](w, (1, groups, outs // groups, *(1,) * rank, *kernel))
            found = sum_of_products(found, taps, tuple(range(3 + rank, 3 + 2 * rank)))
        else:
            dims = range(3, 3 + rank)
            found = moved(found, 0, 1, 2, *(d + rank for d in dims), *dims)
            found = REGISTRY["reshape"](found, (n, groups, c * t, p))
            found = matrix_product(REGISTRY["reshape"](w, (1, groups, outs // groups, c * t)), found)
        return with_bias(REGISTRY["reshape"](found, (n, outs, *counts)), bias, rank)

    def vjp(g, out, x, w, bias, counts, stride, low, dilation, groups):
        sizes, kernel = tuple(x.spec.shape[2:]), tuple(w.spec.shape[2:])
        return (
            convolve_transposed(g, conjugate(w), sizes, stride, low, dilation, groups),
            convolve_weight(conjugate(x), g, kernel, stride, low, dilation, groups),
            None if bias is None else channel_sums(g),
        )

    def reference(x, w, bias, counts, stride, low, dilation, groups):
        return convolve_planes.rules.reference(x, w, bias, counts, stride, low, dilation, groups)

    samples = convolve_planes.rules.samples


def _reference(x, w, counts, stride, low, dilation, groups):
    rank = len(counts)
    reach = reach_of(counts, w.shape[2:], stride, dilation)
    wide = padded.rules.reference(x, low, reach)
    out = np.zeros((x.shape[0], w.shape[0], *counts), x.dtype)
    per, c = w.shape[0] // groups, w.shape[1]
    for o in range(w.shape[0]):
        part = wide[:, o // per * c : (o // per + 1) * c]
        for t in np.ndindex(*w.shape[2:]):
            place = tuple(slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, n, s in zip(t, dilation, counts, stride))
            out[:, o] += (
                np.tensordot(w[(o, slice(None), *t)], part[(slice(None), slice(None), *place)], (0, 1)) if rank else 0
            )
    return out


@declare
class convolve_transposed_planes(Template):
    """`convolve_transposed` of float dtypes by kernels that write each phase of the steps where it lies.

    Dtypes: floats, narrow ones summed in float32. Determinism: bitwise, for any number of threads.
    """

    functions = ()
    methods = ()

    def signature(input: Tensor, weight: Tensor, sizes, stride, low, dilation, groups): ...

    def meta(op, y, w, sizes, stride, low, dilation, groups):
        return Spec.of((y.shape[0], w.shape[1] * groups, *sizes), y.dtype, common_device("conv_transpose", [y, w]))

    def lower(op, target, threads, y, w, sizes, stride, low, dilation, groups):
        given = (y.shape, y.strides, w.shape, w.strides, sizes, stride, low, dilation)
        if w.shape[0] == groups and w.shape[1] == 1 and groups > 1:
            return depthwise_transposed(*given, y.dtype.name, threads=threads)
        return transposed_convolution(*given, groups, y.dtype.name, threads=threads)

    def batch(size, dims, y, w, *attributes):
        return batched_in_channels(convolve_transposed_planes, size, dims, y, w, (), attributes)

    def vjp(g, out, y, w, sizes, stride, low, dilation, groups):
        return convolve_transposed.rules.vjp(g, out, y, w, sizes, stride, low, dilation, groups)

    def reference(y, w, sizes, stride, low, dilation, groups):
        n, outs, *counts = y.shape
        c, per = w.shape[1], outs // groups
        out = np.zeros((n, c * groups, *sizes), y.dtype)
        for o in range(outs):
            to = out[:, o // per * c : (o // per + 1) * c]
            for place in np.ndindex(*counts):
                for t in np.ndindex(*w.shape[2:]):
                    at = [a * s + b * d - p for a, s, b, d, p in zip(place, stride, t, dilation, low)]
                    if all(0 <= i < m for i, m in zip(at, sizes)):
                        to[(..., *at)] += y[(slice(None), o, *place)][:, None] * w[(o, slice(None), *t)]
        return out

    def samples(t):
        yield case(t(2, 6, 4), t(6, 2, 3), (7,), (2,), (1,), (1,), 2)
        yield case(t(2, 4, 5, 6), t(4, 3, 3, 2), (5, 6), (1, 1), (1, 1), (1, 1), 1)
        yield case(t(2, 4, 3, 20), t(4, 5, 3, 4), (7, 60), (2, 3), (0, 2), (1, 2), 1)


@declare
class convolve_transposed(Composite):
    """The adjoint of `convolve` in its input: every element of `input` spreads `weight` over the result of `sizes`."""

    functions = ()
    methods = ()

    def signature(input: Tensor, weight: Tensor, sizes, stride, low, dilation, groups): ...

    def meta(op, y, w, sizes, stride, low, dilation, groups):
        return Spec.of((y.shape[0], w.shape[1] * groups, *sizes), y.dtype, common_device("conv_transpose", [y, w]))

    def body(y, w, sizes, stride, low, dilation, groups):
        outs, c, *kernel = w.spec.shape
        n, _, *counts = y.spec.shape
        kernel, rank, per = tuple(kernel), len(kernel), outs // groups
        if math.prod(sizes) * n * c * outs * math.prod(counts) == 0:
            return REGISTRY["full"]((n, c * groups, *sizes), 0, dtype=y.spec.dtype, device=y.spec.device)
        if templates.takes(y.spec.dtype.name) and math.prod(stride) <= MOST_PHASES:
            if (
                c == 1 and per == 1 and groups > 1 and all(n == 1 for n in stride)
            ):  # depthwise, with the taps in reverse
                far = tuple(d * (n - 1) - p for d, n, p in zip(dilation, kernel, low))
                turned = REGISTRY["flip"](w, tuple(range(2, 2 + rank)))
                return convolve(y, turned, None, sizes, stride, far, dilation, groups)
            return convolve_transposed_planes(y, w, sizes, stride, low, dilation, groups)
        p, t = math.prod(counts), math.prod(kernel)
        taps = REGISTRY["reshape"](w, (1, groups, per, c * t))
        rows = REGISTRY["reshape"](y, (n, groups, per, p))
        if per == 1 and c == 1:
            spread = REGISTRY["mul"](
                REGISTRY["reshape"](y, (n, groups, *counts, *(1,) * rank)),
                REGISTRY["reshape"](w, (1, groups, *(1,) * rank, *kernel)),
            )
        else:
            spread = matrix_product(REGISTRY["transpose"](taps, -1, -2), rows, None, True)  # [n, groups, c * t, p]
            spread = REGISTRY["reshape"](spread, (n, groups * c, *kernel, *counts))
            spread = moved(spread, 0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
        found = window_sum(spread, sizes, stride, low, dilation)
        return found if found.spec.dtype is y.spec.dtype else REGISTRY["to_dtype"](found, y.spec.dtype)

    def vjp(g, out, y, w, sizes, stride, low, dilation, groups):
        counts, kernel = tuple(y.spec.shape[2:]), tuple(w.spec.shape[2:])
        return (
            convolve(g, conjugate(w), None, counts, stride, low, dilation, groups),
            convolve_weight(g, conjugate(y), kernel, stride, low, dilation, groups),
        )

    def reference(y, w, sizes, stride, low, dilation, groups):
        return convolve_transposed_planes.rules.reference(y, w, sizes, stride, low, dilation, groups)

    samples = convolve_transposed_planes.rules.samples


@declare
class convolve_weight_planes(Template):
    """`convolve_weight` of float dtypes by kernels that read windows where they lie.

    Dtypes: floats, narrow ones summed in float32. Determinism: bitwise, for any number of threads.
    """

    functions = ()
    methods = ()

    def signature(input: Tensor, g: Tensor, kernel, stride, low, dilation, groups): ...

    def meta(op, x, g, kernel, stride, low, dilation, groups):
        return Spec.of((g.shape[1], x.shape[1] // groups, *kernel), x.dtype, common_device("convolution", [x, g]))

    def lower(op, target, threads, x, g, kernel, stride, low, dilation, groups):
        given = (x.shape, x.strides, g.shape, g.strides, kernel, stride, low, dilation)
        if x.shape[1] == groups and groups > 1:
            return depthwise_weight(*given, x.dtype.name, threads=threads)
        return weight_gradient(*given, groups, x.dtype.name, threads=threads)

    def batch(size, dims, x, g, *attributes):  # more groups
        x, g = front(x, dims[0], size), front(g, dims[1], size)
        found = convolve_weight_planes(as_channels(x), as_channels(g), *attributes[:-1], attributes[-1] * size)
        shape = found.spec.shape
        return REGISTRY["reshape"](found, (size, shape[0] // size, *shape[1:])), 0

    def vjp(gw, out, x, g, kernel, stride, low, dilation, groups):
        return convolve_weight.rules.vjp(gw, out, x, g, kernel, stride, low, dilation, groups)

    def reference(x, g, kernel, stride, low, dilation, groups):
        out = np.zeros((g.shape[1], x.shape[1] // groups, *kernel), x.dtype)
        for place in np.ndindex(*out.shape):
            unit = np.zeros(out.shape, x.dtype)
            unit[place] = 1
            out[place] = np.sum(_reference(x, unit, g.shape[2:], stride, low, dilation, groups) * g)
        return out

    def samples(t):
        yield case(t(2, 4, 7), t(2, 6, 4), (3,), (2,), (1,), (1,), 2)
        yield case(t(2, 3, 5, 6), t(2, 17, 5, 6), (3, 1), (1, 1), (1, 0), (1, 1), 1)
        yield case(t(2, 2, 5, 18), t(2, 4, 3, 18), (3, 3), (2, 1), (1, 1), (1, 1), 2)


@declare
class convolve_weight(Composite):
    """The adjoint of `convolve` in its weight: products of windows of the input with `g`, summed over samples and windows."""

    functions = ()
    methods = ()

    def signature(input: Tensor, g: Tensor, kernel, stride, low, dilation, groups): ...

    def meta(op, x, g, kernel, stride, low, dilation, groups):
        return Spec.of((g.shape[1], x.shape[1] // groups, *kernel), x.dtype, common_device("convolution", [x, g]))

    def body(x, g, kernel, stride, low, dilation, groups):
        n, outs, *counts = g.spec.shape
        counts, rank, per = tuple(counts), len(kernel), outs // groups
        c, p, t = x.spec.shape[1] // groups, math.prod(counts), math.prod(kernel)
        shape = (outs, c, *kernel)
        if n * p * math.prod(shape) == 0:
            return REGISTRY["full"](shape, 0, dtype=x.spec.dtype, device=x.spec.device)
        if templates.takes(x.spec.dtype.name):
            return convolve_weight_planes(x, g, kernel, stride, low, dilation, groups)
        found = columns_of(x, kernel, counts, stride, low, dilation, groups)
        dims = range(3, 3 + rank)
        if c == 1 and groups > 1:
            rows = REGISTRY["reshape"](g, (n, groups, per, *counts, *(1,) * rank))
            return REGISTRY["reshape"](sum_of_products(found, rows, (0, *dims)), shape)
        # per group [o, n * p] @ [n * p, c * t]: one product over all samples
        found = moved(found, 1, 0, *dims, 2, *(d + rank for d in dims))
        found = REGISTRY["reshape"](found, (groups, n * p, c * t))
        rows = REGISTRY["reshape"](moved(REGISTRY["reshape"](g, (n, groups, per, p)), 1, 2, 0, 3), (groups, per, n * p))
        return REGISTRY["reshape"](matrix_product(rows, found), shape)

    def vjp(gw, out, x, g, kernel, stride, low, dilation, groups):
        return (
            convolve_transposed(conjugate(g), gw, tuple(x.spec.shape[2:]), stride, low, dilation, groups),
            convolve(conjugate(x), gw, None, tuple(g.spec.shape[2:]), stride, low, dilation, groups),
        )

    def reference(x, g, kernel, stride, low, dilation, groups):
        return convolve_weight_planes.rules.reference(x, g, kernel, stride, low, dilation, groups)

    samples = convolve_weight_planes.rules.samples


# ------------------------------------------------------------------ public forms
def per_dim(name: str, what: str, value, rank: int) -> tuple[int, ...]:
    """A number or one number per spatial dim, as a tuple. Raises: RuntimeError for another count."""
    if isinstance(value, (tuple, list)):
        if len(value) == 1:
            return tuple(value) * rank
        if len(value) != rank:
            raise RuntimeError(
                f"{name}: {what} must be a number or {rank} numbers (expected {what} to be a single integer value or a list of {rank} values "
                f"to match the convolution dimensions), got {list(value)}."
            )
        return tuple(int(n) for n in value)
    return (int(value),) * rank


def check_operands(name: str, x: Spec, w: Spec, bias: Spec | None, rank: int, groups: int, transposed: bool) -> None:
    if x.ndim not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"{name}: input must be {rank + 1}D (unbatched) or {rank + 2}D (batched), got {shown(x)} (Expected {rank + 1}D or {rank + 2}D input "
            f"to {name}). Add the channel dim with unsqueeze."
        )
    if w.ndim != rank + 2:
        raise RuntimeError(
            f"{name}: weight must be {rank + 2}D, got {shown(w)} (weight should have at least three dimensions). Its dims are out, in, kernel."
        )
    if groups <= 0:
        raise RuntimeError(
            f"{name}: groups must be positive (expected groups to be greater than 0), got groups={groups}."
        )
    if w.dtype is not x.dtype or (bias is not None and bias.dtype is not x.dtype):
        got = [s.dtype.name for s in (x, w, bias) if s is not None]
        raise RuntimeError(
            f"{name}: input, weight and bias must have one dtype (Input type and bias type should be the same), got {', '.join(got)}. Convert "
            f"with .to()."
        )
    if not x.dtype.is_signed and x.dtype.kind == "b":
        raise RuntimeError(f"{name}: bool convolutions are not implemented for 'Bool'. Convert with .float().")
    channels = x.shape[-rank - 1]
    wanted = w.shape[0] if transposed else w.shape[1] * groups
    if channels != wanted:
        raise RuntimeError(
            f"{name}: given groups={groups}, weight of size {shown(w)}, expected input{shown(x)} to have {wanted} channels, but got {channels} "
            f"channels instead. Check the channel dim of the input."
        )
    if w.shape[0] % groups or (not transposed and w.shape[0] < groups):
        raise RuntimeError(
            f"{name}: the weight's first dim must be a multiple of groups (expected weight to be at least {groups} at dimension 0, and divisible "
            f"by it), got groups={groups}, weight {shown(w)}."
        )
    outs = w.shape[1] * groups if transposed else w.shape[0]
    if bias is not None and tuple(bias.shape) != (outs,):
        raise RuntimeError(
            f"{name}: bias must be [{outs}], got {shown(bias)} (expected bias to be 1-dimensional with {outs} elements)."
        )
    common_device(name, [s for s in (x, w, bias) if s is not None])


def positive(name: str, what: str, values: tuple[int, ...], least: int) -> None:
    if any(n < least for n in values):
        word = {0: "non-negative", 1: "positive"}[least]
        raise RuntimeError(
            f"{name}: {what} must be {word} (non-positive or negative {what} is not supported), got {list(values)}."
        )


def conv_geometry(name: str, x: Spec, w: Spec, rank: int, stride, padding, dilation) -> tuple:
    """(counts, stride, low, dilation) of a convolution. Raises: RuntimeError where the kernel does not fit."""
    stride, dilation = per_dim(name, "stride", stride, rank), per_dim(name, "dilation", dilation, rank)
    positive(name, "stride", stride, 1)
    positive(name, "dilation", dilation, 1)
    sizes, kernel = x.shape[-rank:], w.shape[2:]
    if isinstance(padding, str):
        if padding == "valid":
            low = high = (0,) * rank
        elif padding == "same":
            if any(s != 1 for s in stride):
                raise RuntimeError(
                    f"{name}: padding='same' is not supported for strided convolutions, got stride={list(stride)}. Give the padding in numbers."
                )
            total = [d * (k - 1) for d, k in zip(dilation, kernel)]
            low = tuple(n // 2 for n in total)
            high = tuple(n - n // 2 for n in total)
        else:
            raise RuntimeError(f"{name}: Invalid padding string: '{padding}', got neither 'valid' nor 'same'.")
    else:
        low = high = per_dim(name, "padding", padding, rank)
        positive(name, "padding", low, 0)
    counts = []
    for n, k, s, d, before, after in zip(sizes, kernel, stride, dilation, low, high):
        reach = d * (k - 1) + 1
        if n + before + after < reach or k == 0:
            raise RuntimeError(
                f"{name}: Calculated padded input size per channel: {[m + p + q for m, p, q in zip(sizes, low, high)]}. Kernel size: "
                f"{list(kernel)}. Kernel size can't be greater than actual input size, got input {shown(x)}, weight {shown(w)}. Pad the input."
            )
        counts.append((n + before + after - reach) // s + 1)
    return tuple(counts), stride, low, dilation


def with_bias(out, bias, rank: int):
    return out if bias is None else REGISTRY["add"](out, REGISTRY["reshape"](bias, (bias.spec.shape[0], *(1,) * rank)))


def conv_meta(rank: int):
    def meta(op, x, w, bias, stride, padding, dilation, groups):
        check_operands(op.name, x, w, bias, rank, groups, False)
        counts, *_ = conv_geometry(op.name, x, w, rank, stride, padding, dilation)
        return Spec.of((*x.shape[: x.ndim - rank - 1], w.shape[0], *counts), x.dtype, x.device)

    return meta


def conv_body(rank: int):
    def body(x, w, bias, stride, padding, dilation, groups):
        batched = x.spec.ndim == rank + 2
        geometry = conv_geometry("convolution", x.spec, w.spec, rank, stride, padding, dilation)
        if not batched:
            x = REGISTRY["reshape"](x, (1, *x.spec.shape))
        out = convolve(x, w, bias, *geometry, groups)
        return out if batched else REGISTRY["reshape"](out, tuple(out.spec.shape[1:]))

    return body


def conv_reference(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    rank = w.ndim - 2
    s = Spec.of(x.shape, float32), Spec.of(w.shape, float32)
    wide = x if x.ndim == rank + 2 else x[None]
    out = _reference(wide, w, *conv_geometry("conv", *s, rank, stride, padding, dilation), groups)
    out = out + (0 if bias is None else np.reshape(bias, (-1, *(1,) * rank)))
    return out if x.ndim == rank + 2 else out[0]


class Convolution(Composite):
    methods = ()
    reference = staticmethod(conv_reference)

    def signature(
        input: Tensor, weight: Tensor, bias: OptionalTensor = None, stride=1, padding=0, dilation=1, groups=1
    ): ...


@declare
class conv1d(Convolution):
    """Convolution over one spatial dim: [N, C, L] (or [C, L]) with [O, C / groups, k] (+ [O]).

    `padding` is a number, one per dim, "valid" or "same". Raises: RuntimeError where channels or sizes do not fit.
    """

    functions = ("conv1d", "nn.functional.conv1d")
    meta = conv_meta(1)
    body = conv_body(1)

    def samples(t):
        yield case(t(2, 4, 9), t(6, 4, 3), t(6))
        yield case(t(4, 9), t(6, 2, 3), None, 2, 1, 2, 2)
        yield case(t(2, 4, 9), t(6, 3, 3), raises=(RuntimeError, "channels"))


@declare
class conv2d(Convolution):
    """Convolution over two spatial dims: [N, C, H, W] (or [C, H, W]) with [O, C / groups, kh, kw] (+ [O])."""

    functions = ("conv2d", "nn.functional.conv2d")
    meta = conv_meta(2)
    body = conv_body(2)

    def samples(t):
        yield case(t(2, 3, 7, 8), t(4, 3, 3, 2), t(4), 2, 1)
        yield case(t(2, 4, 7, 8), t(4, 1, 3, 3), None, 1, "same", 1, 4)
        yield case(t(2, 3, 7, 8), t(4, 3, 1, 1), t(4))
        yield case(t(3, 2, 2), t(4, 3, 3, 3), raises=(RuntimeError, "Kernel size can't be greater"))


@declare
class conv3d(Convolution):
    """Convolution over three spatial dims: [N, C, D, H, W] (or [C, D, H, W]) with [O, C / groups, kd, kh, kw] (+ [O])."""

    functions = ("conv3d", "nn.functional.conv3d")
    meta = conv_meta(3)
    body = conv_body(3)

    def samples(t):
        yield case(t(2, 2, 4, 5, 6), t(4, 2, 2, 3, 2), t(4), 1, 1)


# ------------------------------------------------------------------ transposed
def transposed_geometry(name: str, x: Spec, w: Spec, rank: int, stride, padding, output_padding, dilation) -> tuple:
    """(sizes, stride, low, dilation) of a transposed convolution."""
    stride, dilation = per_dim(name, "stride", stride, rank), per_dim(name, "dilation", dilation, rank)
    padding, extra = per_dim(name, "padding", padding, rank), per_dim(name, "output_padding", output_padding, rank)
    positive(name, "stride", stride, 1)
    positive(name, "dilation", dilation, 1)
    positive(name, "padding", padding, 0)
    positive(name, "output_padding", extra, 0)
    for more, s, d in zip(extra, stride, dilation):
        if more >= s and more >= d:
            raise RuntimeError(
                f"{name}: output padding must be smaller than either stride or dilation, but got output_padding={list(extra)}, "
                f"stride={list(stride)}, dilation={list(dilation)}."
            )
    sizes = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + more + 1
        for n, s, p, d, k, more in zip(x.shape[-rank:], stride, padding, dilation, w.shape[2:], extra)
    )
    if any(n < 0 for n in sizes):
        raise RuntimeError(
            f"{name}: the result's sizes must not be negative, got {list(sizes)} for input {shown(x)} (Given input size per channel, calculated "
            f"output size is too small). Use less padding."
        )
    return sizes, stride, padding, dilation


def transposed_meta(rank: int):
    def meta(op, x, w, bias, stride, padding, output_padding, groups, dilation):
        check_operands(op.name, x, w, bias, rank, groups, True)
        sizes, *_ = transposed_geometry(op.name, x, w, rank, stride, padding, output_padding, dilation)
        return Spec.of((*x.shape[: x.ndim - rank - 1], w.shape[1] * groups, *sizes), x.dtype, x.device)

    return meta


def transposed_body(rank: int):
    def body(x, w, bias, stride, padding, output_padding, groups, dilation):
        batched = x.spec.ndim == rank + 2
        geometry = transposed_geometry(
            "conv_transpose", x.spec, w.spec, rank, stride, padding, output_padding, dilation
        )
        if not batched:
            x = REGISTRY["reshape"](x, (1, *x.spec.shape))
        out = with_bias(convolve_transposed(x, w, *geometry, groups), bias, rank)
        return out if batched else REGISTRY["reshape"](out, tuple(out.spec.shape[1:]))

    return body


def transposed_reference(x, w, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    rank = w.ndim - 2
    s = Spec.of(x.shape, float32), Spec.of(w.shape, float32)
    wide = x if x.ndim == rank + 2 else x[None]
    geometry = transposed_geometry("conv_transpose", *s, rank, stride, padding, output_padding, dilation)
    out = convolve_transposed.rules.reference(wide, w, *geometry, groups)
    out = out + (0 if bias is None else np.reshape(bias, (-1, *(1,) * rank)))
    return out if x.ndim == rank + 2 else out[0]


class TransposedConvolution(Composite):
    methods = ()
    reference = staticmethod(transposed_reference)

    def signature(
        input: Tensor,
        weight: Tensor,
        bias: OptionalTensor = None,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        dilation=1,
    ): ...


@declare
class conv_transpose1d(TransposedConvolution):
    """Transposed convolution over one spatial dim: [N, C, L] with [C, O / groups, k] (+ [O])."""

    functions = ("conv_transpose1d", "nn.functional.conv_transpose1d")
    meta = transposed_meta(1)
    body = transposed_body(1)

    def samples(t):
        yield case(t(2, 4, 5), t(4, 3, 3), t(3), 2, 1, 1)
        yield case(t(4, 5), t(4, 3, 3), t(6), 1, 0, 0, 2, 2)


@declare
class conv_transpose2d(TransposedConvolution):
    """Transposed convolution over two spatial dims: [N, C, H, W] with [C, O / groups, kh, kw] (+ [O])."""

    functions = ("conv_transpose2d", "nn.functional.conv_transpose2d")
    meta = transposed_meta(2)
    body = transposed_body(2)

    def samples(t):
        yield case(t(2, 4, 3, 5), t(4, 3, 3, 2), t(3), (2, 3), 1, 1)
        yield case(
            t(2, 4, 3, 5), t(4, 3, 3, 2), output_padding=3, raises=(RuntimeError, "output padding must be smaller")
        )


@declare
class conv_transpose3d(TransposedConvolution):
    """Transposed convolution over three spatial dims: [N, C, D, H, W] with [C, O / groups, kd, kh, kw] (+ [O])."""

    functions = ("conv_transpose3d", "nn.functional.conv_transpose3d")
    meta = transposed_meta(3)
    body = transposed_body(3)

    def samples(t):
        yield case(t(2, 2, 2, 3, 2), t(2, 3, 2, 2, 3), t(3), 2, 1)
