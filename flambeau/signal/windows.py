"""Window functions: weights that fade a frame of samples out towards its ends.

    hann(400, sym=False)        # periodic, for spectra

`sym=False` leaves out the last sample of a symmetric window one longer. Values are computed in float64. May not know: transforms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.dtype import dtype as DType
from flambeau.core.dtype import float32, float64, get_default_dtype
from flambeau.core.formats import strided
from flambeau.factories import arange, empty, ones
from flambeau.ir.op import FUNCTIONS, REGISTRY

__all__ = [
    "bartlett",
    "blackman",
    "cosine",
    "exponential",
    "gaussian",
    "general_cosine",
    "general_hamming",
    "hamming",
    "hann",
    "kaiser",
    "nuttall",
]


class _Window:
    """What is common to all windows: the checks, and the result in the dtype that is asked for."""

    def __init__(self, name: str, M: int, dtype: DType | None, layout: Any, device: Any, requires_grad: bool):
        self.dtype = get_default_dtype() if dtype is None else dtype
        self.device, self.requires_grad, self.M = device, requires_grad, M
        if M < 0:
            raise ValueError(message(name, "requires non-negative window length", f"M={M}"))
        if layout is not None and layout is not strided:
            raise ValueError(message(name, "is implemented for strided tensors only", repr(layout)))
        if self.dtype not in (float32, float64):
            raise ValueError(message(name, "expects float32 or float64 dtypes", self.dtype.name))

    def line(self, first: float, step: float) -> Tensor:
        """M places from `first` on."""
        return arange(self.M, dtype=float64, device=self.device) * step + first

    def done(self, values: Tensor) -> Tensor:
        found = REGISTRY["to_dtype"](values, self.dtype) if values.dtype is not self.dtype else values
        return found.requires_grad_() if self.requires_grad else found

    def empty(self) -> Tensor:
        return empty(0, dtype=self.dtype, device=self.device, requires_grad=self.requires_grad)


def _positive(name: str, what: str, value: float) -> None:
    if value <= 0:
        raise ValueError(message(name, f"{what} must be positive", value))


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, dtype: DType | None = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """exp(-|n - center| / tau). Raises: ValueError for a center of a symmetric window, which is the middle."""
    w = _Window("exponential", M, dtype, layout, device, requires_grad)
    _positive("exponential", "Tau (tau)", tau)
    if sym and center is not None:
        raise ValueError(message("exponential", "Center must be None for symmetric windows", center))
    if not M:
        return w.empty()
    middle = (M if not sym and M > 1 else M - 1) / 2 if center is None else center
    return w.done(REGISTRY["exp"](-REGISTRY["abs"](w.line(-middle / tau, 1 / tau))))


def cosine(
    M: int,
    *,
    sym: bool = True,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """sin(pi (n + 0.5) / M): half a wave."""
    w = _Window("cosine", M, dtype, layout, device, requires_grad)
    if not M:
        return w.empty()
    step = math.pi / (M + 1 if not sym and M > 1 else M)
    return w.done(REGISTRY["sin"](w.line(0.5 * step, step)))


def gaussian(
    M: int, *, std: float = 1.0, sym: bool = True, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """exp(-((n - middle) / std)^2 / 2)."""
    w = _Window("gaussian", M, dtype, layout, device, requires_grad)
    _positive("gaussian", "Standard deviation (std)", std)
    if not M:
        return w.empty()
    step = 1 / (std * math.sqrt(2))
    k = w.line(-(M if not sym and M > 1 else M - 1) / 2 * step, step)
    return w.done(REGISTRY["exp"](-(k * k)))


def kaiser(
    M: int, *, beta: float = 12.0, sym: bool = True, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """I0(beta sqrt(1 - x^2)) / I0(beta) over x from -1 to 1."""
    w = _Window("kaiser", M, dtype, layout, device, requires_grad)
    if beta < 0:
        raise ValueError(message("kaiser", "beta must be non-negative", beta))
    if not M:
        return w.empty()
    if M == 1:
        return w.done(ones(1, dtype=float64, device=device))
    k = w.line(-beta, 2 * beta / (M - 1 if sym else M))
    bessel = FUNCTIONS["special.i0"]
    inside = REGISTRY["clamp_min"](beta * beta - k * k, 0)
    return w.done(bessel(REGISTRY["sqrt"](inside)) / bessel(ones((), dtype=float64, device=device) * beta))


def bartlett(
    M: int,
    *,
    sym: bool = True,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A triangle from 0 to 1 to 0."""
    w = _Window("bartlett", M, dtype, layout, device, requires_grad)
    if not M:
        return w.empty()
    if M == 1:
        return w.done(ones(1, dtype=float64, device=device))
    return w.done(1 - REGISTRY["abs"](w.line(-1, 2 / (M - 1 if sym else M))))


def general_cosine(
    M: int, *, a: Sequence[float], sym: bool = True, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Sum of (-1)^i a[i] cos(i x) over x from 0 to 2 pi."""
    w = _Window("general_cosine", M, dtype, layout, device, requires_grad)
    if not isinstance(a, (list, tuple)):
        raise TypeError(message("general_cosine", "Coefficients (a) must be a list or tuple", type(a).__name__))
    if not a:
        raise ValueError(message("general_cosine", "Coefficients (a) cannot be empty", "none"))
    if not M:
        return w.empty()
    if M == 1:
        return w.done(ones(1, dtype=float64, device=device))
    k = w.line(0.0, 2 * math.pi / (M - 1 if sym else M))
    total = k * 0 + a[0]
    for i, weight in enumerate(a[1:], 1):
        total = total + REGISTRY["cos"](k * i) * (weight if i % 2 == 0 else -weight)
    return w.done(total)


def general_hamming(
    M: int, *, alpha: float = 0.54, sym: bool = True, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """alpha - (1 - alpha) cos(x)."""
    return general_cosine(
        M, a=[alpha, 1.0 - alpha], sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad
    )


def _named(name: str, coefficients: list[float], what: str) -> Any:
    def window(
        M: int,
        *,
        sym: bool = True,
        dtype: DType | None = None,
        layout: Any = None,
        device: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:
        return general_cosine(
            M, a=coefficients, sym=sym, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad
        )

    window.__name__ = window.__qualname__ = name
    window.__doc__ = what
    return window


hamming = _named("hamming", [0.54, 0.46], "0.54 - 0.46 cos(x).")
hann = _named("hann", [0.5, 0.5], "0.5 - 0.5 cos(x).")
blackman = _named("blackman", [0.42, 0.5, 0.08], "0.42 - 0.5 cos(x) + 0.08 cos(2 x).")
nuttall = _named(
    "nuttall", [0.3635819, 0.4891775, 0.1365995, 0.0106411], "Nuttall's minimum of side lobes, of four cosines."
)
