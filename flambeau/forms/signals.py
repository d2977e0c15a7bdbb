"""Functions of sampled signals: short-time Fourier transforms and their inverse, finite differences.

    spectrum = stft(x, 400, 160, window=hann_window(400), return_complex=True)     # [.., 201, frames]
    dy, dx = gradient(image, spacing=0.5)

Arguments are checked and put in order here; the work is in the ops these functions call. May not know: how those run. Exported by `flambeau`,
and hung on Tensor by `install`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import UnsupportedError, message
from flambeau.core.layout import canonical_dim
from flambeau.factories import ones
from flambeau.ir.op import FUNCTIONS, REGISTRY

__all__ = ["gradient", "istft", "stft"]
LEAST_ENVELOPE = 1e-11  # the sum of squared windows that counts as nothing: what lies there cannot be restored
_PADS = {
    "constant": "constant_pad_nd",
    "reflect": "pad_reflect",
    "replicate": "pad_replicate",
    "circular": "pad_circular",
}


# ------------------------------------------------------------------ short-time Fourier transforms
def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """Fourier transforms of overlapping frames of signals [L] or [B, L]: [.., frequencies, frames].

    Frames of `n_fft` samples start every `hop_length` (a quarter) and are multiplied by `window` (ones), which may be shorter. `center`: frames
    are around their times, so the signal is padded by half a frame. `onesided`: only the frequencies that a real signal needs.
    Raises: RuntimeError where sizes do not fit, or a real signal leaves `return_complex` open.
    """
    if align_to_window:
        raise UnsupportedError(
            "stft: align_to_window is not supported. Pass a window of n_fft samples, padded as you want it."
        )
    hop, length = _lengths(n_fft, hop_length, win_length)
    is_complex = input.dtype.is_complex or (window is not None and window.dtype.is_complex)
    if return_complex is None:
        if not is_complex:
            raise RuntimeError(
                message(
                    "stft",
                    "real inputs need the return_complex parameter be given",
                    "None",
                    "Pass return_complex=True.",
                )
            )
        return_complex = True
    if not input.dtype.is_inexact:
        raise RuntimeError(
            message(
                "stft",
                "expected a tensor of floating point or complex values",
                input.dtype.name,
                "Convert with .float().",
            )
        )
    if input.ndim not in (1, 2):
        raise RuntimeError(message("stft", "expected a 1D or 2D tensor", f"shape {list(input.shape)}"))
    signal = input if input.ndim == 2 else input.unsqueeze(0)
    if center:
        if pad_mode not in _PADS:
            raise RuntimeError(message("stft", f"pad_mode must be one of {', '.join(_PADS)}", pad_mode))
        signal = REGISTRY[_PADS[pad_mode]](signal.unsqueeze(1), (n_fft // 2, n_fft // 2)).squeeze(1)
    if not 0 < n_fft <= signal.shape[1]:
        raise RuntimeError(
            message("stft", f"expected 0 < n_fft <= {signal.shape[1]}, the signal's length", f"n_fft={n_fft}")
        )
    _check_frames("stft", n_fft, hop, length, window)
    onesided = not is_complex if onesided is None else onesided
    if onesided and is_complex:
        raise RuntimeError(
            message("stft", "Cannot have onesided output if window or input is complex", "onesided=True")
        )
    frames = signal.unfold(1, n_fft, hop)  # [B, frames, n_fft]
    if window is not None:
        frames = frames * _whole_window(window, n_fft)
    transform = FUNCTIONS["fft.rfft" if onesided else "fft.fft"]
    found = transform(frames, None, -1, "ortho" if normalized else "backward").transpose(1, 2)
    if input.ndim == 1:
        found = found.squeeze(0)
    return found if return_complex else REGISTRY["view_as_real"](found)


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signals [L] or [B, L] whose `stft` with the same arguments is nearest to `input`: frames added up, over the sum of squared windows.

    Raises: RuntimeError where sizes do not fit, or squared windows sum to nothing somewhere.
    """
    hop, size = _lengths(n_fft, hop_length, win_length)
    if not input.dtype.is_complex:
        raise RuntimeError(
            message(
                "istft",
                "requires a complex-valued input tensor matching the output of stft with return_complex=True",
                input.dtype.name,
            )
        )
    if not input.numel():
        raise RuntimeError(message("istft", "input tensor cannot be empty", f"shape {list(input.shape)}"))
    if input.ndim not in (2, 3):
        raise RuntimeError(
            message("istft", "expected a tensor [frequencies, frames] or a batch of them", f"shape {list(input.shape)}")
        )
    rows, count = input.shape[-2:]
    if onesided is None:
        onesided = rows != n_fft
    if onesided and (return_complex or (window is not None and window.dtype.is_complex)):
        raise RuntimeError(
            message("istft", "Cannot have onesided output if window or output is complex", "onesided=True")
        )
    wanted = n_fft // 2 + 1 if onesided else n_fft
    if rows != wanted:
        rule = "n_fft / 2 + 1 when onesided=True" if onesided else "n_fft when onesided=False"
        raise RuntimeError(message("istft", f"expected the frequency dimension to match {rule} ({wanted})", rows))
    _check_frames("istft", n_fft, hop, size, window)
    real = input.dtype.to_real()
    window = ones(size, dtype=real, device=input.device) if window is None else window
    window = _whole_window(window, n_fft)
    spectra = (input if input.ndim == 3 else input.unsqueeze(0)).transpose(1, 2)
    norm = "ortho" if normalized else "backward"
    if return_complex:
        frames = FUNCTIONS["fft.ifft"](spectra, None, -1, norm)
    else:  # a real signal is told by the frequencies up to the middle
        spectra = spectra if onesided else spectra.narrow(2, 0, n_fft // 2 + 1)
        frames = FUNCTIONS["fft.irfft"](spectra, n_fft, -1, norm)
    whole = n_fft + hop * (count - 1)
    signal = _added(frames * window, hop, whole)
    envelope = _added((window * window).expand(1, count, n_fft), hop, whole)
    first = n_fft // 2 if center else 0
    last = first + length if length is not None else whole - first
    here = min(last, whole) - first
    signal, envelope = signal.narrow(1, first, here), envelope.narrow(1, first, here)
    if envelope.ptr is not None and here:
        least = envelope.detach().abs().amin().item()
        if not least > LEAST_ENVELOPE:
            raise RuntimeError(
                message(
                    "istft",
                    "squared windows must not sum to nothing anywhere (window overlap add min)",
                    f"{least}",
                    "Overlap frames more.",
                )
            )
    signal = signal / envelope
    if last > whole:
        warnings.warn("istft: length is longer than what the frames give; the rest is zeros.", stacklevel=2)
        signal = REGISTRY["constant_pad_nd"](signal, (0, last - whole))
    return signal if input.ndim == 3 else signal.squeeze(0)


def _lengths(n_fft: int, hop_length: int | None, win_length: int | None) -> tuple[int, int]:
    size = n_fft if win_length is None else win_length
    return (n_fft // 4 if hop_length is None else hop_length), size


def _check_frames(name: str, n_fft: int, hop: int, size: int, window: Tensor | None) -> None:
    if hop <= 0 or (name == "istft" and hop > size):
        raise RuntimeError(
            message(name, f"expected 0 < hop_length{' <= win_length' if name == 'istft' else ''}", f"hop_length={hop}")
        )
    if not 0 < size <= n_fft:
        raise RuntimeError(message(name, "expected 0 < win_length <= n_fft", f"win_length={size}, n_fft={n_fft}"))
    if window is not None and tuple(window.shape) != (size,):
        raise RuntimeError(
            message(
                name,
                f"expected a 1D window tensor of size equal to win_length={size} (Invalid window shape)",
                f"shape {list(window.shape)}",
            )
        )


def _whole_window(window: Tensor, n_fft: int) -> Tensor:
    """A window in the middle of n_fft samples."""
    left = (n_fft - window.shape[0]) // 2
    right = n_fft - window.shape[0] - left
    return window if not left and not right else REGISTRY["constant_pad_nd"](window, (left, right))


def _added(frames: Tensor, hop: int, whole: int) -> Tensor:
    """[B, frames, n] added up where they lie in the signal."""
    zeros = REGISTRY["full"]((frames.shape[0], whole), 0, dtype=frames.dtype, device=frames.device)
    return REGISTRY["add_frames"](zeros, frames, 1, frames.shape[2], hop)


# ------------------------------------------------------------------ finite differences
def gradient(input: Tensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """Derivatives along dims (all of them, or `dim`), one tensor each: central differences inside, one-sided at the edges.

    `spacing`: the distance of samples, one for each dim, or tensors of coordinates. `edge_order` 1 or 2 is the accuracy at the edges.
    Raises: RuntimeError where dims are too short or spacings do not fit.
    """
    if edge_order not in (1, 2):
        raise RuntimeError(message("gradient", "only supports edge_order=1 and edge_order=2", edge_order))
    if dim is None:
        dims = tuple(range(input.ndim))
    else:
        dims = tuple(canonical_dim("gradient", d, input.ndim) for d in ((dim,) if isinstance(dim, int) else dim))
    if len(set(dims)) != len(dims):
        raise RuntimeError(
            message(
                "gradient", "each dim must be named once (a dim appears multiple times in the list of dims)", list(dims)
            )
        )
    for d in dims:
        if input.shape[d] < edge_order + 1:
            raise RuntimeError(
                message(
                    "gradient",
                    f"expected each dimension size to be at least edge_order+1 = {edge_order + 1}",
                    f"shape {list(input.shape)}",
                )
            )
    steps = _spacings(spacing, dims, dim is not None)
    found = []
    for d, step in zip(dims, steps):
        if isinstance(step, Tensor) and step.ndim == 1:
            if step.shape[0] != input.shape[d]:
                raise RuntimeError(
                    message(
                        "gradient",
                        f"expected one coordinate per sample of dim {d} ({input.shape[d]}) (each coordinate tensor must have the dim's size)",
                        step.shape[0],
                    )
                )
            found.append(_derivative_at(input, d, step, edge_order))
        else:
            found.append(_derivative(input, d, step, edge_order))
    return tuple(found)


def _spacings(spacing: Any, dims: tuple[int, ...], named: bool) -> list:
    if spacing is None:
        return [1.0] * len(dims)
    if not isinstance(spacing, Sequence):
        return [spacing] * len(dims)
    if len(spacing) != len(dims):
        given = f"dim argument of length {len(dims)}" if named else f"'self.dim() = {len(dims)}'"
        raise RuntimeError(
            message(
                "gradient",
                f"expected spacing to be unspecified, a scalar, or a list of length equal to the {given}",
                f"a list of length {len(spacing)}",
            )
        )
    return list(spacing)


def _derivative(x: Tensor, d: int, h: Any, order: int) -> Tensor:
    n = x.shape[d]

    def at(i: int, count: int = 1) -> Tensor:
        return x.narrow(d, i, count)

    if order == 1:
        first, last = (at(1) - at(0)) / h, (at(n - 1) - at(n - 2)) / h
    else:
        first = (at(1) * 4 - at(0) * 3 - at(2)) / (2 * h)
        last = (at(n - 1) * 3 - at(n - 2) * 4 + at(n - 3)) / (2 * h)
    inside = (at(2, n - 2) - at(0, n - 2)) / (2 * h)
    return REGISTRY["cat"]((first, inside, last), d)


def _derivative_at(x: Tensor, d: int, places: Tensor, order: int) -> Tensor:
    """Over samples at any places: the derivative of the parabola through three neighbours."""
    n = x.shape[d]
    gaps = places.narrow(0, 1, n - 1) - places.narrow(0, 0, n - 1)
    gaps = gaps.reshape(tuple(-1 if i == d else 1 for i in range(x.ndim)))

    def at(i: int, count: int = 1) -> Tensor:
        return x.narrow(d, i, count)

    def gap(i: int, count: int = 1) -> Tensor:
        return gaps.narrow(d, i, count)

    def slope(i: int, count: int = 1) -> Tensor:
        return (at(i + 1, count) - at(i, count)) / gap(i, count)

    left, right = gap(0, n - 2), gap(1, n - 2)
    inside = (slope(0, n - 2) * right + slope(1, n - 2) * left) / (left + right)
    if order == 1:
        return REGISTRY["cat"]((slope(0), inside, slope(n - 2)), d)
    a, b = gap(0), gap(1)
    first = slope(0) + (slope(0) - slope(1)) * a / (a + b)
    a, b = gap(n - 3), gap(n - 2)
    last = slope(n - 2) + (slope(n - 2) - slope(n - 3)) * b / (a + b)
    return REGISTRY["cat"]((first, inside, last), d)


def install() -> None:
    """Hang the methods on Tensor."""
    Tensor.stft, Tensor.istft = stft, istft
