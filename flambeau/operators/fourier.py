"""Discrete Fourier transforms: three transforms by NumPy's pocketfft, and the functions of `torch.fft` over them.

`scale` is NumPy's name for where the factor 1/n goes: "backward" (the inverse has it), "forward", "ortho" (each its root).
"""

from __future__ import annotations

from flambeau.base.errors import message
from flambeau.base.lazy import np
from flambeau.core.dtype import dtype as DType
from flambeau.core.layout import canonical_dim
from flambeau.core.spec import Spec
from flambeau.ir.kinds import Composite, External, to_float
from flambeau.ir.op import REGISTRY, declare
from flambeau.operators.rules import case

SWAPPED = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def transform(array, dims, scale: str, forward: bool):
    """The complex transform over `dims`."""
    return (np.fft.fftn if forward else np.fft.ifftn)(array, axes=dims, norm=scale)


# ------------------------------------------------------------------ primitives
@declare
class fourier(External):
    """The complex transform over `dims`, forward or inverse."""

    functions = ()
    methods = ()
    in_place = False

    def signature(input: Tensor, dims, scale="backward", forward=True): ...

    def meta(op, s, dims, scale, forward):
        return Spec.of(s.shape, s.dtype, s.device)

    def run(ins, outs, args):
        outs[0][...] = transform(ins[0], args[1], args[2], args[3])

    def vjp(g, out, input, dims, scale, forward):
        return (fourier(g, dims, SWAPPED[scale], not forward),)  # the adjoint: conjugate exponent, same factor

    def batch(size, in_dims, input, dims, scale, forward):
        ndim = input.spec.ndim - 1
        return fourier(input, tuple(d % ndim + 1 for d in dims), scale, forward), 0

    def reference(x, dims, scale="backward", forward=True):
        return transform(x, dims, scale, forward)

    def samples(t):
        yield case(t(3, 5, dtype="complex128"), (1,))
        yield case(t(3, 4, dtype="complex128"), (0, 1), "ortho", False)


@declare
class fourier_of_real(External):
    """The transform of real input over one dim: bins 0 … n // 2."""

    functions = ()
    methods = ()
    in_place = False

    def signature(input: Tensor, dim, scale="backward"): ...

    def meta(op, s, dim, scale):
        shape = list(s.shape)
        shape[dim] = shape[dim] // 2 + 1
        return Spec.of(shape, s.dtype.to_complex(), s.device)

    def run(ins, outs, args):
        outs[0][...] = np.fft.rfft(ins[0], axis=args[1], norm=args[2])

    def vjp(g, out, input, dim, scale):
        n = input.spec.shape[dim]
        padded = resized(g, dim, n)
        return (REGISTRY["real"](fourier(padded, (dim,), SWAPPED[scale], False)),)

    def batch(size, in_dims, input, dim, scale):
        return fourier_of_real(input, dim % (input.spec.ndim - 1) + 1, scale), 0

    def reference(x, dim, scale="backward"):
        return np.fft.rfft(x, axis=dim, norm=scale)

    def samples(t):
        yield case(t(3, 5), 1)
        yield case(t(4, 3), 0, "ortho")


@declare
class fourier_to_real(External):
    """`n` real values whose transform has the given bins 0 … n // 2, over one dim."""

    functions = ()
    methods = ()
    in_place = False

    def signature(input: Tensor, n, dim, scale="backward"): ...

    def meta(op, s, n, dim, scale):
        shape = list(s.shape)
        shape[dim] = n
        return Spec.of(shape, s.dtype.to_real(), s.device)

    def run(ins, outs, args):
        outs[0][...] = np.fft.irfft(ins[0], args[1], axis=args[2], norm=args[3])

    def vjp(g, out, input, n, dim, scale):
        found = fourier_of_real(g, dim, SWAPPED[scale])
        twice = n - (n // 2 + 1)  # bins that stand for their mirror image too
        weights = REGISTRY["iota"]((n // 2 + 1,), 0, 1, dtype=found.spec.dtype.to_real(), device=g.spec.device)
        inside = REGISTRY["logical_and"](REGISTRY["ge"](weights, 1), REGISTRY["le"](weights, twice))
        factor = REGISTRY["where"](inside, 2.0, 1.0)
        shape = [1] * found.spec.ndim
        shape[dim] = n // 2 + 1
        factor = REGISTRY["to_dtype"](REGISTRY["reshape"](factor, tuple(shape)), found.spec.dtype.to_real())
        return (resized(REGISTRY["mul"](found, factor), dim, input.spec.shape[dim]),)

    def batch(size, in_dims, input, n, dim, scale):
        return fourier_to_real(input, n, dim % (input.spec.ndim - 1) + 1, scale), 0

    def reference(x, n, dim, scale="backward"):
        return np.fft.irfft(x, n, axis=dim, norm=scale)

    def samples(t):
        yield case(t(3, 4, dtype="complex128"), 6, 1)
        yield case(t(3, 4, dtype="complex128"), 5, 0, "ortho")


# ------------------------------------------------------------------ arguments
def resized(x, dim: int, n: int):
    """The dim cut or filled with zeros to n elements."""
    have = x.spec.shape[dim]
    if n == have:
        return x
    if n < have:
        return REGISTRY["narrow"](x, dim, 0, n)
    return REGISTRY["constant_pad_nd"](x, (0, 0) * (x.spec.ndim - 1 - dim) + (0, n - have))


def scale_of(op: str, norm: str | None) -> str:
    """Raises: RuntimeError for an unknown norm."""
    norm = norm or "backward"
    if norm not in SWAPPED:
        raise RuntimeError(
            message(op, "norm must be 'backward', 'forward' or 'ortho' (Invalid normalization mode)", repr(norm))
        )
    return norm


def length_of(op: str, n: int | None, default: int) -> int:
    """Raises: RuntimeError unless the length is at least 1."""
    n = default if n is None else n
    if n < 1:
        raise RuntimeError(message(op, "Invalid number of data points: it must be at least 1", f"{n}"))
    return n


def dims_of(op: str, shape, s, dim) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(dims, lengths) of a transform over several dims, -1 in `s` keeping a length."""
    ndim = len(shape)
    if dim is not None:
        dims = tuple(canonical_dim(op, d, ndim) for d in ((dim,) if isinstance(dim, int) else dim))
        if len(set(dims)) != len(dims):
            raise RuntimeError(message(op, "dims must be unique", f"{list(dims)}"))
    elif s is not None:
        if len(s) > ndim:
            raise RuntimeError(
                message(
                    op,
                    f"s may have at most {ndim} lengths for a {ndim}-d input (Got shape with more values than dims)",
                    f"{list(s)}",
                )
            )
        dims = tuple(range(ndim - len(s), ndim))
    else:
        dims = tuple(range(ndim))
    if s is not None and len(s) != len(dims):
        raise RuntimeError(
            message(op, "When given, dim and shape arguments must have the same length", f"{len(dims)} and {len(s)}")
        )
    lengths = tuple(shape[d] if s is None or s[i] == -1 else s[i] for i, d in enumerate(dims))
    return dims, lengths


def as_complex(x):
    """The input as complex numbers."""
    d = x.spec.dtype
    return x if d.is_complex else REGISTRY["to_dtype"](x, to_float(d).to_complex())


def as_real(op: str, x):
    """The input as floats. Raises: RuntimeError for complex input."""
    if x.spec.dtype.is_complex:
        raise RuntimeError(message(op, "expects a real input tensor", x.spec.dtype.name))
    return x if x.spec.dtype.is_floating_point else REGISTRY["to_dtype"](x, to_float(x.spec.dtype))


def complex_of(d: DType) -> DType:
    return to_float(d).to_complex()


def real_of(d: DType) -> DType:
    return to_float(d).to_real()


class Transform(Composite):
    """A function of `torch.fft`: its meta follows from the shape its body gives."""

    methods = ()
    in_place = False


def _one(op: str, s: Spec, n, dim) -> tuple[int, int]:
    dim = canonical_dim(op, dim, s.ndim)
    if not s.ndim:
        raise IndexError(
            message(
                op,
                "the input must have at least one dim (Dimension specified as -1 but tensor has no dimensions)",
                "0 dims",
            )
        )
    return dim, length_of(op, n, s.shape[dim])


def _with(shape, dims, lengths) -> list[int]:
    shape = list(shape)
    for d, n in zip(dims, lengths):
        shape[d] = n
    return shape


# ------------------------------------------------------------------ one dim
def one_dim(name: str, forward: bool):
    """Declare fft or ifft."""

    class Rules(Transform):
        functions = (f"fft.{name}",)

        def signature(input: Tensor, n=None, dim=-1, norm=None): ...

        def meta(op, s, n, dim, norm):
            scale_of(name, norm)
            dim, n = _one(name, s, n, dim)
            return Spec.of(_with(s.shape, (dim,), (n,)), complex_of(s.dtype), s.device)

        def body(input, n, dim, norm):
            dim, n = _one(name, input.spec, n, dim)
            return fourier(resized(as_complex(input), dim, n), (dim,), scale_of(name, norm), forward)

        def reference(x, n=None, dim=-1, norm=None):
            return (np.fft.fft if forward else np.fft.ifft)(x, n, dim, norm)

        def samples(t):
            yield case(t(3, 5))
            yield case(t(3, 5), 7, 0, "ortho")
            yield case(t(3), 0, raises=(RuntimeError, "Invalid number of data points"))

    Rules.__doc__ = f"The {'' if forward else 'inverse '}discrete Fourier transform over one dim, cut or padded to n. `norm`: backward, forward or ortho."
    Rules.name = f"fourier_{name}"
    return declare(Rules)


fft, ifft = one_dim("fft", True), one_dim("ifft", False)


@declare
class rfft(Transform):
    """The transform of real input over one dim: n // 2 + 1 bins. Raises: RuntimeError for complex input."""

    functions = ("fft.rfft",)

    def signature(input: Tensor, n=None, dim=-1, norm=None): ...

    def meta(op, s, n, dim, norm):
        scale_of("rfft", norm)
        if s.dtype.is_complex:
            raise RuntimeError(message("rfft", "expects a real input tensor", s.dtype.name))
        dim, n = _one("rfft", s, n, dim)
        return Spec.of(_with(s.shape, (dim,), (n // 2 + 1,)), complex_of(s.dtype), s.device)

    def body(input, n, dim, norm):
        dim, n = _one("rfft", input.spec, n, dim)
        return fourier_of_real(resized(as_real("rfft", input), dim, n), dim, scale_of("rfft", norm))

    def reference(x, n=None, dim=-1, norm=None):
        return np.fft.rfft(x, n, dim, norm)

    def samples(t):
        yield case(t(3, 5))
        yield case(t(3, 5), 4, 0, "forward")


@declare
class irfft(Transform):
    """n real values (2 (m - 1) unless told) from their m bins over one dim."""

    functions = ("fft.irfft",)

    def signature(input: Tensor, n=None, dim=-1, norm=None): ...

    def meta(op, s, n, dim, norm):
        scale_of("irfft", norm)
        dim = canonical_dim("irfft", dim, s.ndim)
        n = length_of("irfft", n, 2 * (s.shape[dim] - 1))
        return Spec.of(_with(s.shape, (dim,), (n,)), real_of(s.dtype), s.device)

    def body(input, n, dim, norm):
        dim = canonical_dim("irfft", dim, input.spec.ndim)
        n = length_of("irfft", n, 2 * (input.spec.shape[dim] - 1))
        return fourier_to_real(resized(as_complex(input), dim, n // 2 + 1), n, dim, scale_of("irfft", norm))

    def reference(x, n=None, dim=-1, norm=None):
        return np.fft.irfft(x, n, dim, norm)

    def samples(t):
        yield case(t(3, 5))
        yield case(t(3, 5), 5, 0, "ortho")


@declare
class hfft(Transform):
    """The real transform of n values given by half of a Hermitian signal over one dim."""

    functions = ("fft.hfft",)

    def signature(input: Tensor, n=None, dim=-1, norm=None): ...

    def meta(op, s, n, dim, norm):
        scale_of("hfft", norm)
        dim = canonical_dim("hfft", dim, s.ndim)
        n = length_of("hfft", n, 2 * (s.shape[dim] - 1))
        return Spec.of(_with(s.shape, (dim,), (n,)), real_of(s.dtype), s.device)

    def body(input, n, dim, norm):
        dim = canonical_dim("hfft", dim, input.spec.ndim)
        n = length_of("hfft", n, 2 * (input.spec.shape[dim] - 1))
        half = resized(as_complex(input), dim, n // 2 + 1)
        return fourier_to_real(REGISTRY["conj"](half), n, dim, SWAPPED[scale_of("hfft", norm)])

    def reference(x, n=None, dim=-1, norm=None):
        return np.fft.hfft(x, n, dim, norm)

    def samples(t):
        yield case(t(3, 5))
        yield case(t(3, 5), 5, 0, "ortho")


@declare
class ihfft(Transform):
    """The inverse of `hfft`: half of a Hermitian signal from real input."""

    functions = ("fft.ihfft",)

    def signature(input: Tensor, n=None, dim=-1, norm=None): ...

    def meta(op, s, n, dim, norm):
        return rfft.rules.meta(op, s, n, dim, norm)

    def body(input, n, dim, norm):
        dim, n = _one("ihfft", input.spec, n, dim)
        found = fourier_of_real(resized(as_real("ihfft", input), dim, n), dim, SWAPPED[scale_of("ihfft", norm)])
        return REGISTRY["conj"](found)

    def reference(x, n=None, dim=-1, norm=None):
        return np.fft.ihfft(x, n, dim, norm)

    def samples(t):
        yield case(t(3, 5))
        yield case(t(3, 5), 4, 0, "ortho")


# ------------------------------------------------------------------ several dims
def several(name: str, kind: str, forward: bool, default_dim):
    """Declare an n-dimensional transform. `kind`: c (complex), r (of real), i (to real), h (hermitian to real), q (its inverse)."""

    def plan(s: Spec, lengths, dim):
        dims, lengths = dims_of(name, s.shape, lengths, dim)
        if not dims and kind != "c":
            raise RuntimeError(message(name, "at least one dim must be transformed", "none"))
        return dims, lengths

    def last_length(s: Spec, dims, given) -> int:
        if given is not None and given[-1] != -1:
            return length_of(name, given[-1], 0)
        return length_of(name, None, 2 * (s.shape[dims[-1]] - 1))

    class Rules(Transform):
        functions = (f"fft.{name}",)

        def signature(input: Tensor, s=None, dim=default_dim, norm=None): ...

        def meta(op, input, s, dim, norm):
            scale_of(name, norm)
            if kind in "rq" and input.dtype.is_complex:
                raise RuntimeError(message(name, "expects a real input tensor", input.dtype.name))
            dims, lengths = plan(input, s, dim)
            for n in lengths:
                length_of(name, n, 1)
            shape = _with(input.shape, dims, lengths)
            if kind in "rq":
                shape[dims[-1]] = shape[dims[-1]] // 2 + 1
            if kind in "ih":
                shape[dims[-1]] = last_length(input, dims, s)
            return Spec.of(shape, real_of(input.dtype) if kind in "ih" else complex_of(input.dtype), input.device)

        def body(input, s, dim, norm):
            dims, lengths = plan(input.spec, s, dim)
            scale = scale_of(name, norm)
            x = as_real(name, input) if kind in "rq" else as_complex(input)
            if kind in "ih":
                lengths = (*lengths[:-1], last_length(input.spec, dims, s))
            for d, n in zip(dims, (*lengths[:-1], lengths[-1] // 2 + 1) if kind in "ih" else lengths):
                x = resized(x, d, n)
            rest = dims[:-1]
            if kind == "c":
                return fourier(x, dims, scale, forward) if dims else REGISTRY["clone"](x)
            if kind == "r":
                x = fourier_of_real(x, dims[-1], scale)
                return fourier(x, rest, scale, True) if rest else x
            if kind == "i":
                x = fourier(x, rest, scale, False) if rest else x
                return fourier_to_real(x, lengths[-1], dims[-1], scale)
            if kind == "h":
                x = fourier(x, rest, scale, True) if rest else x
                return fourier_to_real(REGISTRY["conj"](x), lengths[-1], dims[-1], SWAPPED[scale])
            x = REGISTRY["conj"](fourier_of_real(x, dims[-1], SWAPPED[scale]))
            return fourier(x, rest, scale, False) if rest else x

        def reference(x, s=None, dim=default_dim, norm=None):
            return reference_of(kind, forward, x, s, dim, norm)

        def samples(t):
            yield case(t(4, 6))
            yield case(t(3, 4, 5), (5, 6), (1, 2), "ortho")
            yield case(t(3, 4), (2,), (0, 1), raises=(RuntimeError, "same length"))

    Rules.__doc__ = f"`{name}`: the transform over several dims, cut or padded to lengths `s`."
    Rules.name = f"fourier_{name}"
    return declare(Rules)


def reference_of(kind: str, forward: bool, x, s, dim, norm):
    """The n-dimensional transforms by NumPy's one-dimensional ones."""
    dims, lengths = dims_of("reference", x.shape, s, dim)
    norm = norm or "backward"
    if kind in "ih":
        lengths = (*lengths[:-1], s[-1] if s is not None and s[-1] != -1 else 2 * (x.shape[dims[-1]] - 1))
    rest = list(zip(lengths[:-1], dims[:-1]))
    if kind == "c":
        for n, d in zip(lengths, dims):
            x = (np.fft.fft if forward else np.fft.ifft)(x, n, d, norm)
        return x
    if kind in "rq":
        x = (np.fft.rfft if kind == "r" else np.fft.ihfft)(x, lengths[-1], dims[-1], norm)
        for n, d in rest:
            x = (np.fft.fft if kind == "r" else np.fft.ifft)(x, n, d, norm)
        return x
    for n, d in rest:
        x = (np.fft.ifft if kind == "i" else np.fft.fft)(x, n, d, norm)
    return (np.fft.irfft if kind == "i" else np.fft.hfft)(x, lengths[-1], dims[-1], norm)


for _name, _kind, _forward in (
    ("fft", "c", True),
    ("ifft", "c", False),
    ("rfft", "r", True),
    ("irfft", "i", False),
    ("hfft", "h", True),
    ("ihfft", "q", False),
):
    several(f"{_name}2", _kind, _forward, (-2, -1))
    several(f"{_name}n", _kind, _forward, None)


# ------------------------------------------------------------------ order of bins
def shifted(name: str, sign: int):
    """Declare fftshift or ifftshift."""

    class Rules(Transform):
        functions = (f"fft.{name}",)

        def signature(input: Tensor, dim=None): ...

        def meta(op, s, dim):
            dims_of(name, s.shape, None, dim)
            return Spec.of(s.shape, s.dtype, s.device)

        def body(input, dim):
            dims, _ = dims_of(name, input.spec.shape, None, dim)
            if not dims:
                return REGISTRY["clone"](input)
            shifts = tuple((input.spec.shape[d] + (sign < 0)) // 2 for d in dims)
            return REGISTRY["roll"](input, shifts, dims)

        def reference(x, dim=None):
            return (np.fft.fftshift if sign > 0 else np.fft.ifftshift)(x, dim)

        def samples(t):
            yield case(t(4, 5))
            yield case(t(3, 5), (1,))

    Rules.__doc__ = f"`{name}`: bins reordered so that zero frequency is {'in the middle' if sign > 0 else 'first'}."
    Rules.name = f"fourier_{name}"
    return declare(Rules)


shifted("fftshift", 1)
shifted("ifftshift", -1)
__all__ = ["fft", "fourier", "ifft", "irfft", "rfft"]
