"""The windows of `torch` itself, periodic unless told: `hann_window(400)`.

May not know: transforms. Entry: the functions, which `flambeau` shows.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.dtype import dtype as DType
from flambeau.core.dtype import float32, get_default_dtype
from flambeau.ir.op import REGISTRY
from flambeau.signal import windows

__all__ = ["bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"]


def _made(
    name: str, length: int, periodic: bool, dtype: DType | None, device: Any, requires_grad: bool, **parameters: Any
) -> Tensor:
    d = get_default_dtype() if dtype is None else dtype
    if length < 0:
        raise RuntimeError(message(name, "requires non-negative window_length", f"window_length={length}"))
    if not d.is_floating_point:
        raise RuntimeError(message(name, "expects floating point dtypes", d.name))
    narrow = d.itemsize < 4
    kind = parameters.pop("kind")
    found = kind(length, sym=not periodic, dtype=float32 if narrow else d, device=device, **parameters)
    found = REGISTRY["to_dtype"](found, d) if narrow else found
    return found.requires_grad_() if requires_grad else found


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """0.5 - 0.5 cos(x)."""
    return _made("hann_window", window_length, periodic, dtype, device, requires_grad, kind=windows.hann)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: DType | None = None,
    layout: Any = None, device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """alpha - beta cos(x)."""
    return _made(
        "hamming_window",
        window_length,
        periodic,
        dtype,
        device,
        requires_grad,
        kind=windows.general_cosine,
        a=[alpha, beta],
    )


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """0.42 - 0.5 cos(x) + 0.08 cos(2 x)."""
    return _made("blackman_window", window_length, periodic, dtype, device, requires_grad, kind=windows.blackman)


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A triangle."""
    return _made("bartlett_window", window_length, periodic, dtype, device, requires_grad, kind=windows.bartlett)


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: DType | None = None, layout: Any = None,
    device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """I0(beta sqrt(1 - x^2)) / I0(beta)."""
    return _made("kaiser_window", window_length, periodic, dtype, device, requires_grad, kind=windows.kaiser, beta=beta)
