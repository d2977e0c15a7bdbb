"""Windows, short-time Fourier transforms and finite differences against SciPy and NumPy, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.signal

import flambeau as torch

W = torch.signal.windows


def double(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape))


@pytest.mark.parametrize("M", [0, 1, 2, 7, 8])
@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [
        ("bartlett", {}, ()),
        ("blackman", {}, ()),
        ("cosine", {}, ()),
        ("exponential", {"tau": 3.0}, (None, 3.0)),
        ("gaussian", {"std": 2.0}, (2.0,)),
        ("general_cosine", {"a": [0.4, 0.5, 0.1]}, ([0.4, 0.5, 0.1],)),
        ("general_hamming", {"alpha": 0.6}, (0.6,)),
        ("hamming", {}, ()),
        ("hann", {}, ()),
        ("kaiser", {"beta": 5.0}, (5.0,)),
        ("nuttall", {}, ()),
    ],
)
def test_windows(name: str, ours: dict, theirs: tuple, sym: bool, M: int) -> None:
    got = getattr(W, name)(M, sym=sym, dtype=torch.float64, **ours)
    np.testing.assert_allclose(got.numpy(), getattr(scipy.signal.windows, name)(M, *theirs, sym=sym), atol=1e-12)


def test_windows_of_the_top_are_periodic() -> None:
    assert torch.hann_window(8).dtype is torch.float32
    for name, kind in (("hann", "hann"), ("hamming", "hamming"), ("blackman", "blackman"), ("bartlett", "bartlett")):
        got = getattr(torch, f"{name}_window")(9, dtype=torch.float64)
        np.testing.assert_allclose(got.numpy(), scipy.signal.get_window(kind, 9), atol=1e-12)
    assert torch.kaiser_window(5, False).shape == (5,)
    assert torch.hann_window(4, dtype=torch.bfloat16).dtype is torch.bfloat16


def test_windows_refuse() -> None:
    for call, kind, text in (
        (lambda: W.hann(-1), ValueError, "non-negative"),
        (lambda: W.hann(3, dtype=torch.int32), ValueError, "float32 or float64"),
        (lambda: W.gaussian(3, std=0.0), ValueError, "positive"),
        (lambda: W.exponential(3, center=1.0), ValueError, "Center"),
        (lambda: W.general_cosine(3, a=[]), ValueError, "empty"),
        (lambda: torch.hann_window(-1), RuntimeError, "non-negative"),
    ):
        with pytest.raises(kind, match=text):
            call()


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("onesided", [True, False])
@pytest.mark.parametrize("win", [16, 11])
def test_stft_by_its_definition(center: bool, onesided: bool, win: int) -> None:
    x, window = double(2, 61), torch.hann_window(win, dtype=torch.float64) + 0.1
    got = torch.stft(x, 16, 5, win, window, center=center, onesided=onesided, return_complex=True).numpy()
    signal, weights = x.numpy(), np.zeros(16)
    left = (16 - win) // 2
    weights[left : left + win] = window.numpy()
    if center:
        signal = np.pad(signal, ((0, 0), (8, 8)), mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(signal, 16, 1)[:, ::5] * weights
    wanted = (np.fft.rfft if onesided else np.fft.fft)(frames).transpose(0, 2, 1)
    np.testing.assert_allclose(got, wanted, atol=1e-12)


@pytest.mark.parametrize("normalized", [True, False])
def test_istft_restores(normalized: bool) -> None:
    x, window = double(3, 64), torch.hann_window(16, dtype=torch.float64)
    spectra = torch.stft(x, 16, 4, window=window, normalized=normalized, return_complex=True)
    back = torch.istft(spectra, 16, 4, window=window, normalized=normalized, length=64)
    np.testing.assert_allclose(back.numpy(), x.numpy(), atol=1e-12)


def test_short_time_transforms_refuse() -> None:
    x = double(40)
    spectra = torch.stft(x, 16, return_complex=True)
    for call, text in (
        (lambda: torch.stft(x, 16), "return_complex"),
        (lambda: torch.stft(x, 100, center=False, return_complex=True), "n_fft"),
        (lambda: torch.stft(x, 16, 0, return_complex=True), "hop_length"),
        (lambda: torch.stft(x, 16, window=torch.ones(3), return_complex=True), "window"),
        (lambda: torch.istft(x, 16), "complex-valued"),
        (lambda: torch.istft(spectra, 18), "frequency dimension"),
        (
            lambda: torch.istft(spectra, 16, 16, window=torch.hann_window(16, dtype=torch.float64), center=False),
            "overlap add",
        ),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()


def test_gradients_of_transforms() -> None:
    x = double(20).requires_grad_()
    window = (torch.hann_window(8, dtype=torch.float64) + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, w: torch.stft(a, 8, 3, window=w, return_complex=True), (x, window))
    real, imag = (double(5, 4) * k for k in (1.0, 0.5))
    assert torch.autograd.gradcheck(
        lambda a, b, w: torch.istft(torch.complex(a, b), 8, 3, window=w),
        (real.requires_grad_(), imag.requires_grad_(), window),
    )


@pytest.mark.parametrize("order", [1, 2])
def test_finite_differences(order: int) -> None:
    x = double(4, 5)
    places = [np.array([0.0, 1.0, 3.0, 3.5]), np.array([2.0, 3.0, 4.0, 6.0, 7.0])]
    for spacing, theirs in (
        (None, (1.0,)),
        (0.5, (0.5,)),
        ([2.0, 3.0], (2.0, 3.0)),
        ([torch.from_numpy(p) for p in places], places),
    ):
        got = torch.gradient(x, spacing=spacing, edge_order=order)
        wanted = np.gradient(x.numpy(), *theirs, edge_order=order)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a.numpy(), b, atol=1e-12)
    (only,) = torch.gradient(x, dim=-1)
    np.testing.assert_allclose(only.numpy(), np.gradient(x.numpy(), axis=-1), atol=1e-12)
    for keywords in (
        {"dim": (0, 0)},
        {"edge_order": 3},
        {"spacing": [1.0]},
        {"spacing": [torch.ones(3), torch.ones(5)]},
    ):
        with pytest.raises(RuntimeError, match="gradient"):
            torch.gradient(x, **keywords)


def test_sum_to_size() -> None:
    x = double(2, 3, 4)
    for size in ((1, 4), (3, 1), (2, 1, 1), (1,), (2, 3, 4)):
        wanted = x.numpy()
        lead = 3 - len(size)
        axes = tuple(d for d in range(3) if d < lead or size[d - lead] == 1)
        np.testing.assert_allclose(x.sum_to_size(size).numpy(), wanted.sum(axes, keepdims=True).reshape(size))
        np.testing.assert_allclose(x.sum_to_size(*size).numpy(), x.sum_to_size(size).numpy())
    with pytest.raises(RuntimeError, match="expandable"):
        x.sum_to_size(2)


def test_linear_cross_entropy() -> None:
    F = torch.nn.functional
    x, weight, bias = double(6, 3), double(4, 3), double(4)
    labels = torch.tensor([0, 1, 2, 3, -100, 2])
    got = F.linear_cross_entropy(x, weight, labels, linear_bias=bias, label_smoothing=0.1)
    wanted = F.cross_entropy(F.linear(x, weight, bias), labels, label_smoothing=0.1)
    assert got.item() == wanted.item()
    with pytest.raises(RuntimeError, match="probabilities"):
        F.linear_cross_entropy(x, weight, double(6, 4), ignore_index=1)
    with pytest.raises(RuntimeError, match="as many features"):
        F.linear_cross_entropy(x, double(4, 2), labels)


def test_what_is_refused_says_why() -> None:
    for name in ("complex32", "uint16", "hash_tensor", "float8_e5m2", "sparse_coo_tensor"):
        assert not hasattr(torch, name)
        with pytest.raises(AttributeError, match=r"refused\. .*[Uu]se"):
            getattr(torch, name)
    for name in ("autocast", "distributions", "onnx"):
        assert not hasattr(torch, name)
        with pytest.raises(AttributeError, match=r"not there yet\. [A-Za-z]"):
            getattr(torch, name)
    with pytest.raises(NotImplementedError, match="cfloat"):
        torch.ones(2).chalf()
