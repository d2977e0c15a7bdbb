"""Running sums, products, extremes and recurrences along a dim, and what is made of them: gradients of products, differences, trapezoids.

A scan says what a state is: `identity(k, dtype, lanes)`, `lift(k, *elements, position)`, `combine(k, earlier, later)` (associative) and
`result(k, state)`; `templates.scan` has the kernels. `reverse` runs from the end, `exclusive` gives each element what lies before it: with
both, every gradient here is a scan again, exact where elements are zero.

May not know: layouts. Entry: the ops by name.
"""

from __future__ import annotations

from typing import Any

from flambeau.base.errors import message
from flambeau.base.lazy import np
from flambeau.core.dtype import bool_, complex128, float32, float64, int64
from flambeau.core.dtype import dtype as DType
from flambeau.core.layout import canonical_dim
from flambeau.core.spec import Spec
from flambeau.ir.kinds import ALONG_DIM, Composite, Template, sum_type
from flambeau.ir.op import REGISTRY, declare
from flambeau.kernel import vmath
from flambeau.kernel.complexes import Complex, complex_const
from flambeau.kernel.types import i64
from flambeau.operators.reduction import as_dtype, refuse_complex
from flambeau.operators.rules import case, conjugate, to_type_of
from flambeau.templates.loop_program import REGISTER
from flambeau.templates.scan import scan


def constant(k, d: DType, lanes: int, value) -> Any:
    """A number in every lane, in the register type of d."""
    kind = REGISTER[d.name].vec(lanes)
    return complex_const(k, kind, value) if d.is_complex else k.const(kind, value)


WIDER = {"float16": float32, "bfloat16": float32, "float32": float64, "complex64": complex128}


class Scan(Template):
    """A scan of one input. Parameters: input, dim, reverse, exclusive."""

    functions = ()
    methods = ()
    batch = ALONG_DIM

    def signature(input: Tensor, dim, reverse=False, exclusive=False): ...

    def compute(d: DType) -> DType:
        """What states are kept in."""
        return WIDER.get(d.name) or sum_type(d)

    def meta(op, input, dim, reverse, exclusive):
        canonical_dim(op.name, dim, input.ndim)
        return Spec.of(input.shape, sum_type(input.dtype), input.device)

    def lower(op, target, threads, input, dim, reverse, exclusive):
        out = op.rules.meta(op, input, dim, reverse, exclusive)
        compute = op.rules.compute(input.dtype)
        return scan(
            op.name,
            input.shape,
            canonical_dim(op.name, dim, input.ndim),
            (input,),
            (out,),
            compute.name,
            reverse=reverse,
            exclusive=exclusive,
            target=target,
        )

    def lift(k, x, position):
        return (x,)

    def result(k, state):
        return state

    def samples(t):
        for reverse in (False, True):
            for exclusive in (False, True):
                yield case(t(5), 0, reverse, exclusive)
                yield case(t(3, 37), 1, reverse, exclusive)
                yield case(t(37, 3), 0, reverse, exclusive)
                yield case(t(5, 40), 0, reverse, exclusive)
        yield case(t(2, 0), 1)
        yield case(t(), 0)
        yield case(t(2, 3), 2, raises=(IndexError, "dim must be in"))


def along(function, x, dim, reverse, exclusive, start):
    """A NumPy accumulation from either end, with or without the element itself."""
    if not x.ndim:
        return np.asarray(start, x.dtype) if exclusive else x
    y = np.flip(x, dim) if reverse else x
    y = function(y, axis=dim)
    if exclusive:
        first = np.full_like(np.take(y, [0], dim), start) if y.shape[dim] else y
        y = np.concatenate([first, np.delete(y, -1, dim)], dim) if y.shape[dim] else y
    return np.flip(y, dim) if reverse else y


@declare
class scan_sum(Scan):
    """Running sum along `dim`. Dtypes: integers and bool give int64; float32 is accumulated in float64."""

    def identity(k, d, lanes):
        return (constant(k, d, lanes, 0),)

    def combine(k, earlier, later):
        return (earlier[0] + later[0],)

    def vjp(g, out, input, dim, reverse, exclusive):
        return (to_type_of(scan_sum(g, dim, not reverse, exclusive), input),)

    def reference(x, dim, reverse=False, exclusive=False):
        return along(np.cumsum, x, dim, reverse, exclusive, 0)


@declare
class scan_product(Scan):
    """Running product along `dim`. Dtypes: as scan_sum."""

    def identity(k, d, lanes):
        return (constant(k, d, lanes, 1),)

    def combine(k, earlier, later):
        return (earlier[0] * later[0],)

    def vjp(g, out, input, dim, reverse, exclusive):
        ops, x = REGISTRY, conjugate(input)
        before = out if exclusive else scan_product(input, dim, reverse, True)
        if exclusive:
            behind = linear_scan(x, g, dim, not reverse, True)
        else:
            behind = ops["add"](g, linear_scan(x, ops["mul"](x, g), dim, not reverse, True))
        return (to_type_of(ops["mul"](conjugate(before), behind), input),)

    def reference(x, dim, reverse=False, exclusive=False):
        return along(np.cumprod, x, dim, reverse, exclusive, 1)


@declare
class linear_scan(Template):
    """The recurrence y[i] = factor[i] * y[i - 1] + term[i] along `dim`, starting from zero."""

    functions = ()
    methods = ()
    batch = ALONG_DIM

    def signature(factor: Tensor, term: Tensor, dim, reverse=False, exclusive=False): ...

    def meta(op, factor, term, dim, reverse, exclusive):
        canonical_dim(op.name, dim, term.ndim)
        if factor.shape != term.shape or factor.dtype is not term.dtype:
            raise RuntimeError(
                message(
                    op.name,
                    "factor and term must have one shape and dtype",
                    f"{factor} and {term}",
                    "Broadcast or convert one.",
                )
            )
        return Spec.of(term.shape, term.dtype, term.device)

    def lower(op, target, threads, factor, term, dim, reverse, exclusive):
        compute = WIDER.get(term.dtype.name) or term.dtype
        out = Spec.of(term.shape, term.dtype, term.device)
        return scan(
            op.name,
            term.shape,
            canonical_dim(op.name, dim, term.ndim),
            (factor, term),
            (out,),
            compute.name,
            reverse=reverse,
            exclusive=exclusive,
            target=target,
        )

    def identity(k, d, lanes):
        return constant(k, d, lanes, 1), constant(k, d, lanes, 0)

    def lift(k, factor, term, position):
        return factor, term

    def combine(k, earlier, later):
        return earlier[0] * later[0], earlier[1] * later[0] + later[1]

    def result(k, state):
        return (state[1],)

    def vjp(g, out, factor, term, dim, reverse, exclusive):
        ops, a = REGISTRY, conjugate(factor)
        if exclusive:
            of_term = linear_scan(a, g, dim, not reverse, True)
            before = out
        else:
            of_term = ops["add"](g, linear_scan(a, ops["mul"](a, g), dim, not reverse, True))
            before = linear_scan(factor, term, dim, reverse, True)
        return ops["mul"](of_term, conjugate(before)), of_term

    def reference(factor, term, dim, reverse=False, exclusive=False):
        a, b = np.moveaxis(factor, dim, 0), np.moveaxis(term, dim, 0)
        out, y = np.empty_like(b), np.zeros_like(b[0])
        for i in range(len(b))[::-1] if reverse else range(len(b)):
            old, y = y, a[i] * y + b[i]
            out[i] = old if exclusive else y
        return np.moveaxis(out, 0, dim)

    def samples(t):
        for reverse in (False, True):
            for exclusive in (False, True):
                yield case(t(5), t(5), 0, reverse, exclusive)
                yield case(t(3, 37), t(3, 37), 1, reverse, exclusive)
                yield case(t(4, 40), t(4, 40), 0, reverse, exclusive)
        yield case(t(3), t(4), 0, raises=(RuntimeError, "one shape"))


# ------------------------------------------------------------------ public forms


class Cumulative(Composite):
    """A running sum or product with `dtype`."""

    in_place = True

    def signature(input: Tensor, dim, *, dtype=None): ...

    def samples(t):
        yield case(t(5), 0)
        yield case(t(3, 4), -1)
        yield case(t(4, 40), 0)
        yield case(t(), 0)
        yield case(t(2, 3), 2, raises=(IndexError, "dim must be in"))


def scanned(op, input, dim, dtype):
    """`op` over the input in `dtype`; the result has that dtype too, integers included."""
    out = op(as_dtype(input, dtype), dim)
    return as_dtype(out, dtype)


@declare
class cumsum(Cumulative):
    """Running sum along `dim`. Dtypes: integers and bool give int64; `dtype` converts first."""

    def body(input, dim, dtype):
        canonical_dim("cumsum", dim, input.spec.ndim)
        return scanned(scan_sum, input, dim, dtype)

    def reference(x, dim, *, dtype=None):
        return along(np.cumsum, x, dim, False, False, 0)


@declare
class cumprod(Cumulative):
    """Running product along `dim`. Dtypes: integers and bool give int64; `dtype` converts first."""

    def body(input, dim, dtype):
        canonical_dim("cumprod", dim, input.spec.ndim)
        return scanned(scan_product, input, dim, dtype)

    def reference(x, dim, *, dtype=None):
        return along(np.cumprod, x, dim, False, False, 1)


@declare
class prod_gradient(Composite):
    """The gradient of a product along one dim: g times the product of the other elements.

    With at most one zero the others' product needs no scan; the second derivative does, and is exact for any number of zeros.
    """

    functions = ()
    methods = ()

    def signature(g: Tensor, input: Tensor, dim): ...

    def body(g, input, dim):
        ops = REGISTRY
        zero = ops["eq"](input, 0)
        zeros = ops["sum"](zero, dim, True)
        rest = ops["prod"](ops["where"](zero, ones_of(input), input), dim, True)
        others = ops["true_divide"](rest, ops["where"](zero, ones_of(input), input))
        nothing = ops["full"]((), 0, dtype=input.spec.dtype, device=input.spec.device)
        beside_zeros = ops["where"](ops["eq"](zeros, 0), others, nothing)
        at_zero = ops["where"](ops["eq"](zeros, 1), rest, nothing)
        return ops["mul"](g, conjugate(ops["where"](zero, at_zero, beside_zeros)))

    def vjp(h, out, g, input, dim):
        ops = REGISTRY
        before, behind = scan_product(input, dim, False, True), scan_product(input, dim, True, True)
        of_g = ops["mul"](h, ops["mul"](before, behind))
        gh = ops["mul"](conjugate(h), g)
        of_before = scan_product.rules.vjp(ops["mul"](gh, conjugate(behind)), before, input, dim, False, True)[0]
        of_behind = scan_product.rules.vjp(ops["mul"](gh, conjugate(before)), behind, input, dim, True, True)[0]
        return of_g, ops["add"](of_before, of_behind)

    def reference(g, x, dim):
        return g * along(np.cumprod, x, dim, False, True, 1) * along(np.cumprod, x, dim, True, True, 1)

    def samples(t):
        yield case(t(3, 4), t(3, 4), 1)


def ones_of(x):
    return REGISTRY["full"]((), 1, dtype=x.spec.dtype, device=x.spec.device)


# ------------------------------------------------------------------ extremes
class RunningExtreme(Template):
    """(values, indices) of the extreme so far; of equal elements the latest, NaN stays."""

    outputs = 2
    fields = ("values", "indices")
    batch = ALONG_DIM

    def signature(input: Tensor, dim): ...

    def meta(op, input, dim):
        refuse_complex(op.name, input.dtype)
        canonical_dim(op.name, dim, input.ndim)
        out = Spec.of(input.shape, input.dtype, input.device)
        return out, out.with_dtype(int64)

    def lower(op, target, threads, input, dim):
        compute = WIDER[input.dtype.name] if input.dtype.name in ("float16", "bfloat16") else input.dtype
        return scan(
            op.name,
            input.shape,
            canonical_dim(op.name, dim, input.ndim),
            (input,),
            op.rules.meta(op, input, dim),
            compute.name,
            reverse=False,
            exclusive=False,
            target=target,
        )

    def lift(k, x, position):
        return x, position

    def result(k, state):
        return state

    def vjp(g, out, input, dim):
        empty = REGISTRY["full"](tuple(input.spec.shape), 0, dtype=g[0].spec.dtype, device=input.spec.device)
        return (REGISTRY["scatter_add"](empty, dim, out[1], g[0]),)

    def samples(t):
        yield case(t(5), 0)
        yield case(t(3, 37), 1)
        yield case(t(4, 40), 0)
        yield case(t(), 0)
        yield case(t(2, 3), 2, raises=(IndexError, "dim must be in"))


def later_of(k, earlier, later, beats):
    (x, i), (y, j) = earlier, later
    take = beats(y, x)
    if x.type.kind == "f":
        take = y.is_nan() | (take & ~x.is_nan())
    take = take & (j >= 0)
    take = take | (i < 0)
    return k.select(take, y, x), k.select(take, j, i)


def numpy_running(x, dim, function):
    if not x.ndim:
        return x, np.zeros((), np.int64)
    values = function.accumulate(x, axis=dim)
    here = np.arange(x.shape[dim]).reshape([-1 if d == dim % x.ndim else 1 for d in range(x.ndim)])
    return values, np.maximum.accumulate(np.where(x == values, here, 0), axis=dim)


@declare
class cummax(RunningExtreme):
    """Largest element so far along `dim`, and where it is: the latest of equals; NaN from the first one on."""

    def identity(k, d, lanes):
        return constant(k, d, lanes, 0), k.const(i64.vec(lanes), -1)

    def combine(k, earlier, later):
        return later_of(k, earlier, later, lambda y, x: y >= x)

    def reference(x, dim):
        return numpy_running(x, dim, np.maximum)


@declare
class cummin(RunningExtreme):
    """Smallest element so far along `dim`, and where it is: the latest of equals; NaN from the first one on."""

    identity = cummax.rules.identity

    def combine(k, earlier, later):
        return later_of(k, earlier, later, lambda y, x: y <= x)

    def reference(x, dim):
        return numpy_running(x, dim, np.minimum)


# ------------------------------------------------------------------ log of running sums of exponentials
def log_add_exp(k, x: Complex, y: Complex) -> Complex:
    """log(exp(x) + exp(y)): the larger one (by its real part), plus the principal log1p of what the other adds to it."""
    swap = y.real >= x.real
    top = Complex(k.select(swap, y.real, x.real), k.select(swap, y.imag, x.imag))
    low = Complex(k.select(swap, x.real, y.real), k.select(swap, x.imag, y.imag))
    nothing = low.real.eq(float("-inf"))
    size = k.select(nothing, 0.0, vmath.exp(k, low.real - top.real))
    angle = low.imag - top.imag
    a, b = size * vmath.cos(k, angle), size * vmath.sin(k, angle)
    real = vmath.log1p(k, a * 2.0 + a * a + b * b) * 0.5
    return Complex(top.real + real, top.imag + vmath.atan2(k, b, a + 1.0))


@declare
class logcumsumexp(Template):
    """log of the running sum of exp(input) along `dim`, relative to the largest element so far. Dtypes: floating and complex."""

    batch = ALONG_DIM

    def signature(input: Tensor, dim): ...

    def meta(op, input, dim):
        canonical_dim(op.name, dim, input.ndim)
        if not input.dtype.is_inexact:
            raise RuntimeError(
                message(
                    op.name,
                    'the input must be floating point or complex ("logcumsumexp" not implemented for others)',
                    input.dtype.name,
                    "Convert with .float().",
                )
            )
        return Spec.of(input.shape, input.dtype, input.device)

    def lower(op, target, threads, input, dim):
        out = Spec.of(input.shape, input.dtype, input.device)
        compute = WIDER.get(input.dtype.name, input.dtype)
        return scan(
            op.name,
            input.shape,
            canonical_dim(op.name, dim, input.ndim),
            (input,),
            (out,),
            compute.name,
            reverse=False,
            exclusive=False,
            target=target,
        )

    def in_order(d):
        """Which multiple of 2 pi a complex logarithm has depends on the order of its terms."""
        return d.is_complex

    def identity(k, d, lanes):
        if d.is_complex:
            return (constant(k, d, lanes, float("-inf")),)
        return k.const(REGISTER[d.name].vec(lanes), float("-inf")), constant(k, d, lanes, 0)

    def lift(k, x, position):
        return (x,) if isinstance(x, Complex) else (x, k.const(x.type, 1.0))

    def combine(k, earlier, later):
        if isinstance(earlier[0], Complex):
            return (log_add_exp(k, earlier[0], later[0]),)
        (m, s), (n, t) = earlier, later
        top = k.maximum(m, n)
        finite = k.select(k.math("fabs", top).eq(float("inf")), 0.0, top)
        return top, s * vmath.exp(k, m - finite) + t * vmath.exp(k, n - finite)

    def result(k, state):
        if isinstance(state[0], Complex):
            return state
        top, total = state
        return (top + vmath.log(k, total),)

    def vjp(g, out, input, dim):
        if not input.spec.numel or not input.spec.ndim:
            return (g,)
        ops, n = REGISTRY, input.spec.shape[dim]
        following = ops["cat"]((ops["narrow"](out, dim, 1, n - 1), ops["narrow"](out, dim, n - 1, 1)), dim)
        decay = conjugate(ops["exp"](ops["sub"](out, following)))
        gathered = linear_scan(decay, g, dim, True, False)
        return (ops["mul"](gathered, conjugate(ops["exp"](ops["sub"](input, out)))),)

    def reference(x, dim):
        return np.logaddexp.accumulate(x, axis=dim) if x.ndim else x

    def samples(t):
        yield case(t(5), 0)
        yield case(t(3, 37), 1)
        yield case(t(4, 40), 0)
        yield case(t(), 0)
        yield case(t(2, 3), 2, raises=(IndexError, "dim must be in"))


# ------------------------------------------------------------------ differences and trapezoids
def halves(y, dim: int):
    """y without its last and without its first element along `dim`."""
    n = y.spec.shape[dim]
    return REGISTRY["narrow"](y, dim, 0, n - 1), REGISTRY["narrow"](y, dim, 1, n - 1)


@declare
class diff(Composite):
    """Differences of neighbours along `dim`, `n` times over; `prepend` and `append` are joined to the input first."""

    def signature(input: Tensor, n=1, dim=-1, prepend: OptionalTensor = None, append: OptionalTensor = None): ...

    def body(input, n, dim, prepend, append):
        if not input.spec.ndim:
            raise RuntimeError(
                message("diff", "expects input to be at least one-dimensional", "a 0-d input", "Use .reshape(1).")
            )
        at = canonical_dim("diff", dim, input.spec.ndim)
        if n < 0:
            raise RuntimeError(message("diff", "order must be non-negative", f"n={n}"))
        if n == 0:
            return REGISTRY["clone"](input)
        parts = [x for x in (prepend, input, append) if x is not None]
        x = REGISTRY["cat"](tuple(parts), at) if len(parts) > 1 else input
        for _ in range(min(n, x.spec.shape[at])):
            low, high = halves(x, at)
            x = REGISTRY["logical_xor"](high, low) if x.spec.dtype is bool_ else REGISTRY["sub"](high, low)
        return x

    def reference(x, n=1, dim=-1, prepend=None, append=None):
        joined = {name: value for name, value in (("prepend", prepend), ("append", append)) if value is not None}
        return np.diff(x, n, axis=dim, **joined)

    def samples(t):
        yield case(t(5))
        yield case(t(3, 4), 2, 0)
        yield case(t(3, 4), 1, 1, t(3, 2), t(3, 1))
        yield case(t(3, 2), 4, 1)
        yield case(t(), raises=(RuntimeError, "at least one-dimensional"))


def trapezoid_pieces(name: str, y, x, dx, dim: int):
    """Twice the area between each two neighbours along `dim`."""
    ops = REGISTRY
    at = canonical_dim(name, dim, y.spec.ndim)
    low, high = halves(y, at)
    total = ops["add"](low, high)
    if x is None:
        return ops["mul"](total, dx) if not isinstance(dx, (int, float)) or dx != 1 else total, at
    if x.spec.ndim == 1 and y.spec.ndim > 1:
        if x.spec.shape[0] != y.spec.shape[at]:
            raise RuntimeError(
                message(
                    name,
                    "there must be one `x` value for each sample point",
                    f"{x.spec.shape[0]} for {y.spec.shape[at]}",
                )
            )
        x = ops["reshape"](x, tuple(x.spec.shape[0] if d == at else 1 for d in range(y.spec.ndim)))
    left, right = halves(x, canonical_dim(name, dim, x.spec.ndim) if x.spec.ndim != y.spec.ndim else at)
    return ops["mul"](total, ops["sub"](right, left)), at


@declare
class trapezoid(Composite):
    """Integral along `dim` by the trapezoid rule, at points `x` or `dx` apart."""

    functions = ("trapezoid", "trapz")
    methods = ()

    def signature(y: Tensor, x: OptionalTensor = None, *, dx: Scalar = 1, dim=-1): ...

    def body(y, x, dx, dim):
        ops = REGISTRY
        if y.spec.ndim and not y.spec.shape[canonical_dim("trapezoid", dim, y.spec.ndim)]:
            shape = [n for d, n in enumerate(y.spec.shape) if d != dim % y.spec.ndim]
            return ops["full"](tuple(shape), 0, dtype=y.spec.dtype, device=y.spec.device)
        pieces, at = trapezoid_pieces("trapezoid", y, x, dx, dim)
        return ops["true_divide"](ops["sum"](pieces, at), 2)

    def reference(y, x=None, *, dx=1, dim=-1):
        return np.trapezoid(y, x, dx, dim)

    def samples(t):
        yield case(t(5))
        yield case(t(3, 4), dim=0)
        yield case(t(3, 4), t(4))


@declare
class cumulative_trapezoid(Composite):
    """Running integral along `dim` by the trapezoid rule."""

    methods = ()

    def signature(y: Tensor, x: OptionalTensor = None, *, dx: Scalar = 1, dim=-1): ...

    def body(y, x, dx, dim):
        pieces, at = trapezoid_pieces("cumulative_trapezoid", y, x, dx, dim)
        return REGISTRY["true_divide"](cumsum(pieces, at), 2)

    def reference(y, x=None, *, dx=1, dim=-1):
        x = np.arange(y.shape[dim]) * dx if x is None else x
        low, high = np.take(y, range(y.shape[dim] - 1), dim), np.take(y, range(1, y.shape[dim]), dim)
        width = np.diff(x)
        if x.ndim != y.ndim:
            width = width.reshape([-1 if d == dim % y.ndim else 1 for d in range(y.ndim)])
        return np.cumsum((low + high) / 2 * width, dim)

    def samples(t):
        yield case(t(5))
        yield case(t(3, 4), dim=0)
        yield case(t(3, 4), t(4))
