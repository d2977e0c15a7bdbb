"""Functions of `torch.fft`: transforms from the ops' declarations, and the frequencies of their bins."""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.factories import arange
from flambeau.namespace import names_of


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Frequencies of the n bins of `fft`, in cycles per unit of the sample spacing d."""
    bins = arange(n, dtype=dtype, device=device) if dtype is not None else arange(float(n), device=device)
    return ((bins + n // 2) % n - n // 2).mul(1.0 / (n * d)).requires_grad_(requires_grad)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Frequencies of the n // 2 + 1 bins of `rfft`."""
    bins = (
        arange(n // 2 + 1, dtype=dtype, device=device)
        if dtype is not None
        else arange(float(n // 2 + 1), device=device)
    )
    return bins.mul(1.0 / (n * d)).requires_grad_(requires_grad)


__getattr__, __dir__ = names_of("fft.", globals())
