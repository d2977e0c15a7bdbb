"""Random numbers as pointwise ops: element i of draw `offset` under `seed` is a function of (i, offset, seed) alone.

So results do not depend on threads, lanes or layouts, random ops fuse like any other, and a backward may draw the same mask again
instead of keeping it. Seeds and offsets are operands: numbers in eager mode, 0-dim int64 tensors inside a captured graph.
Every op serves the factory (`size`) and the in-place form (`input` is the tensor to fill, its values are not read).

May not know: generators (`flambeau.random`). The public functions are there.
"""

from __future__ import annotations

from flambeau.base.lazy import np
from flambeau.core.device import as_device
from flambeau.core.dtype import BY_NAME, bfloat16, float16, float32, float64, int64
from flambeau.core.spec import Spec
from flambeau.ir.kinds import NOT_DIFFERENTIABLE, Pointwise
from flambeau.ir.op import declare
from flambeau.kernel import philox, vmath
from flambeau.kernel.complexes import Complex
from flambeau.kernel.types import f32, f64, i64, u64
from flambeau.operators.rules import case

MANTISSA_BITS = {float16: 11, bfloat16: 8, float32: 24, float64: 53}


def kind_of(dtype):
    """The register type that a dtype's random numbers are made in."""
    return f64 if dtype.to_real() is float64 else f32


class Random(Pointwise):
    """What random ops share: `sample(k, words, dtype, *parameters)` makes a value from four words of 32 bits."""

    functions = ()
    methods = ()
    in_place = False
    random = True
    positional = True
    unread = ("size",)
    expensive = True
    vjp = NOT_DIFFERENTIABLE

    def meta(op, input, size, *rest):
        if input is not None:
            return Spec.get(input.shape, input.strides, input.dtype, input.device)
        dtype, device = rest[-2:]
        return Spec.of(size, dtype, as_device(device))

    def types(operands, args):
        dtype = args[0].dtype if args[0] is not None else args[-2]
        real = float64 if kind_of(dtype) is f64 else float32
        read = [] if args[0] is None else [args[0].dtype]
        middle = [real] * (len(operands) - len(read) - 2)
        return (*read, *middle, int64, int64), dtype


def words_of(k, index, seed, offset):
    """Philox's four words for the element at a linear index."""
    return philox.philox(k, index, offset, seed)


def word_for(kind, words, which=0):
    """A word for `philox.uniform`: 32 bits for f32, 64 for f64."""
    if kind is f64:
        return philox.wide(words[2 * which], words[2 * which + 1])
    return words[which]


def unit(k, words, dtype):
    """[0, 1) with as many bits as the dtype holds, so that rounding cannot give 1."""
    return philox.uniform(k, word_for(kind_of(dtype), words), kind_of(dtype), MANTISSA_BITS.get(dtype))


def standard_normal(k, words, dtype):
    kind = kind_of(dtype)
    return philox.normal(k, word_for(kind, words, 0), word_for(kind, words, 1), kind)


# ------------------------------------------------------------------ the same in NumPy
def reference_words(size, seed, offset):
    """Four arrays of words, as `words_of` gives them."""
    count = int(np.prod(size, dtype=np.int64))
    low = np.uint64(0xFFFFFFFF)
    index = np.arange(count, dtype=np.uint64)
    offset, seed = (np.uint64(int(v) & (2**64 - 1)) for v in (offset, seed))
    shift = np.uint64(32)
    c = [index & low, index >> shift, np.full(count, offset & low), np.full(count, offset >> shift)]
    k0, k1 = seed & low, seed >> shift
    for _ in range(philox.ROUNDS):
        p0, p1 = c[0] * np.uint64(philox.MULTIPLIER_0), c[2] * np.uint64(philox.MULTIPLIER_1)
        c = [(p1 >> shift) ^ c[1] ^ k0, p1 & low, (p0 >> shift) ^ c[3] ^ k1, p0 & low]
        k0, k1 = (k0 + np.uint64(philox.STEP_0)) & low, (k1 + np.uint64(philox.STEP_1)) & low
    return [w.reshape(size) for w in c]


def reference_unit(size, seed, offset, dtype):
    words = reference_words(size, seed, offset)
    if dtype is float64:
        return (((words[0] << np.uint64(32)) | words[1]) >> np.uint64(11)) * 2.0**-53
    bits = MANTISSA_BITS[dtype]
    return (words[0] >> np.uint64(32 - bits)) * 2.0**-bits


def reference_normal(size, seed, offset, dtype):
    w = reference_words(size, seed, offset)
    if dtype is float64:
        wide = [(a << np.uint64(32) | b) >> np.uint64(11) for a, b in ((w[0], w[1]), (w[2], w[3]))]
        first, second = (wide[0] + np.uint64(1)) * 2.0**-53, wide[1] * 2.0**-53
    else:
        first, second = (w[0] + np.uint64(1)) * 2.0**-32, (w[1] >> np.uint64(8)) * 2.0**-24
    return np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * (second - 0.5))


def sized_samples(*parameters):
    """Samples of ops whose arguments are (input, size, *parameters, seed, offset, dtype)."""

    def samples(t):
        for size, seed, offset, name in (
            ((5,), 1, 0, "float32"),
            ((3, 7), -5, 2, "float64"),
            ((), 3, 1 << 40, "float32"),
            ((0, 2), 0, 0, "float32"),
        ):
            yield case(None, size, *parameters, seed, offset, BY_NAME[name])

    return samples


# ------------------------------------------------------------------ continuous
@declare
class random_uniform(Random):
    """Uniform numbers in [low, high). Dtypes: floats and complex numbers (both parts uniform)."""

    def signature(
        input: OptionalTensor, size, low: Scalar, high: Scalar, seed: Operand, offset: Operand, dtype, device=None
    ): ...

    def lower(k, input, size, low, high, seed, offset, dtype, device, index):
        words = words_of(k, index, seed, offset)
        if dtype.is_complex:
            kind = kind_of(dtype)
            return Complex(
                *(philox.uniform(k, word_for(kind, words, part), kind) * (high - low) + low for part in (0, 1))
            )
        return unit(k, words, dtype) * (high - low) + low

    def reference(input, size, low, high, seed, offset, dtype, device=None):
        return reference_unit(size, seed, offset, dtype) * (high - low) + low

    samples = sized_samples(-1.0, 2.0)


@declare
class random_normal(Random):
    """Normal numbers. `mean` and `std` are numbers or tensors. Complex numbers have variance std ** 2 over both parts together."""

    def signature(
        input: OptionalTensor, size, mean: Operand, std: Operand, seed: Operand, offset: Operand, dtype, device=None
    ): ...

    def lower(k, input, size, mean, std, seed, offset, dtype, device, index):
        words = words_of(k, index, seed, offset)
        if dtype.is_complex:
            kind = kind_of(dtype)
            a, b = philox.normal_pair(k, word_for(kind, words, 0), word_for(kind, words, 1), kind)
            return Complex(a * std * 0.5**0.5 + mean, b * std * 0.5**0.5)
        return standard_normal(k, words, dtype) * std + mean

    def reference(input, size, mean, std, seed, offset, dtype, device=None):
        return reference_normal(size, seed, offset, dtype) * std + mean

    samples = sized_samples(0.5, 2.0)


@declare
class random_exponential(Random):
    """Exponential numbers with rate `lambd`."""

    def signature(input: OptionalTensor, size, lambd: Scalar, seed: Operand, offset: Operand, dtype, device=None): ...

    def lower(k, input, size, lambd, seed, offset, dtype, device, index):
        kind = kind_of(dtype)
        u = philox.uniform_above_zero(k, word_for(kind, words_of(k, index, seed, offset)), kind)
        return -vmath.log(k, u) / lambd

    def reference(input, size, lambd, seed, offset, dtype, device=None):
        return -np.log(_above_zero(size, seed, offset, dtype)) / lambd

    samples = sized_samples(2.0)


@declare
class random_cauchy(Random):
    """Cauchy numbers around `median` with scale `sigma`."""

    def signature(
        input: OptionalTensor, size, median: Scalar, sigma: Scalar, seed: Operand, offset: Operand, dtype, device=None
    ): ...

    def lower(k, input, size, median, sigma, seed, offset, dtype, device, index):
        kind = kind_of(dtype)
        u = philox.uniform(k, word_for(kind, words_of(k, index, seed, offset)), kind) - 0.5
        return vmath.tan(k, u * 3.141592653589793) * sigma + median

    def reference(input, size, median, sigma, seed, offset, dtype, device=None):
        return np.tan(np.pi * (reference_unit(size, seed, offset, dtype) - 0.5)) * sigma + median

    def samples(t):
        yield case(None, (9,), 1.0, 2.0, 3, 4, float64)


@declare
class random_log_normal(Random):
    """exp of normal numbers of `mean` and `std`."""

    def signature(
        input: OptionalTensor, size, mean: Scalar, std: Scalar, seed: Operand, offset: Operand, dtype, device=None
    ): ...

    def lower(k, input, size, mean, std, seed, offset, dtype, device, index):
        return vmath.exp(k, standard_normal(k, words_of(k, index, seed, offset), dtype) * std + mean)

    def reference(input, size, mean, std, seed, offset, dtype, device=None):
        return np.exp(reference_normal(size, seed, offset, dtype) * std + mean)

    samples = sized_samples(0.0, 0.5)


def _above_zero(size, seed, offset, dtype):
    w = reference_words(size, seed, offset)
    if dtype is float64:
        return ((w[0] << np.uint64(32) | w[1]) >> np.uint64(11)) * 2.0**-53 + 2.0**-53
    return (w[0] + np.uint64(1)) * 2.0**-32


# ------------------------------------------------------------------ discrete
@declare
class random_geometric(Random):
    """How many tries of probability `p` until the first success: 1, 2 … Dtypes: numbers of any kind."""

    def signature(input: OptionalTensor, size, p: Scalar, seed: Operand, offset: Operand, dtype, device=None): ...

    def lower(k, input, size, p, seed, offset, dtype, device, index):
        kind = kind_of(dtype)
        u = philox.uniform_above_zero(k, word_for(kind, words_of(k, index, seed, offset)), kind)
        tries = vmath.ceil(k, vmath.log(k, u) / vmath.log1p(k, -p))
        return k.maximum(tries, 1.0)

    def reference(input, size, p, seed, offset, dtype, device=None):
        return np.maximum(np.ceil(np.log(_above_zero(size, seed, offset, dtype)) / np.log1p(-p)), 1)

    samples = sized_samples(0.25)


@declare
class random_integers(Random):
    """Integers in [low, low + span), in any dtype. `span_kind`: "narrow" below 2**32, "wide" above, "all" for 64 random bits.

    Narrow spans multiply 64 random bits by the span and keep what is above: the bias is below 2**-32.
    """

    def signature(
        input: OptionalTensor,
        size,
        low: Scalar,
        span: Scalar,
        seed: Operand,
        offset: Operand,
        span_kind,
        dtype,
        device=None,
    ): ...

    def types(operands, args):
        dtype = args[0].dtype if args[0] is not None else args[-2]
        read = [] if args[0] is None else [args[0].dtype]
        return (*read, *[int64] * (len(operands) - len(read))), dtype

    def lower(k, input, size, low, span, seed, offset, span_kind, dtype, device, index):
        a, b, _, _ = words_of(k, index, seed, offset)
        if span_kind == "all":
            value = philox.wide(a, b)
        elif span_kind == "wide":
            value = philox.wide(a, b) % span.to(u64)
        else:
            span = span.to(u64)
            value = (a * span + (b * span >> 32)) >> 32
        return convert_integer(k, value.to(i64) + low, dtype)

    def reference(input, size, low, span, seed, offset, span_kind, dtype, device=None):
        a, b, _, _ = reference_words(size, seed, offset)
        wide = (a << np.uint64(32)) | b
        if span_kind == "all":
            value = wide
        elif span_kind == "wide":
            value = wide % np.uint64(span & (2**64 - 1))
        else:
            value = (a * np.uint64(span) + (b * np.uint64(span) >> np.uint64(32))) >> np.uint64(32)
        return (value.astype(np.int64) + low).astype(dtype.name)

    def samples(t):
        yield case(None, (5,), 0, 10, 1, 0, "narrow", int64)
        yield case(None, (2, 3), -7, 1 << 40, 1, 9, "wide", int64)
        yield case(None, (4,), 0, -(1 << 63), 1, 9, "wide", int64)
        yield case(None, (4,), 0, 0, -1, 2, "all", int64)


def convert_integer(k, value, dtype):
    """An int64 register value as one of dtype's."""
    if dtype.name == "bool":
        return value.ne(0)
    if dtype.is_complex:
        real = value.to(kind_of(dtype))
        return Complex(real, k.const(real.type, 0.0))
    return value.to(kind_of(dtype)) if dtype.is_floating_point else value


@declare
class random_bernoulli(Random):
    """1 with probability `p` (a number or a tensor), else 0. Dtypes: any."""

    def signature(input: OptionalTensor, size, p: Operand, seed: Operand, offset: Operand, dtype, device=None): ...

    def types(operands, args):
        dtype = args[0].dtype if args[0] is not None else args[-2]
        read = [] if args[0] is None else [args[0].dtype]
        return (*read, float32, int64, int64), dtype

    def lower(k, input, size, p, seed, offset, dtype, device, index):
        hit = unit(k, words_of(k, index, seed, offset), float32) < p
        return hit if dtype.name == "bool" else k.select(hit, k.splat(k.const(f32, 1.0), hit.type.lanes), 0.0)

    def reference(input, size, p, seed, offset, dtype, device=None):
        return (reference_unit(size, seed, offset, float32) < p).astype(dtype.name)

    samples = sized_samples(0.3)


__all__ = ["Random", "unit", "words_of"]
