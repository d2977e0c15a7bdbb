"""Convolutions give PyTorch's results and gradients, for every rank, dtype and way of placing windows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flambeau as fb

ERROR = {"float32": 2e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1.5e-2, "complex64": 2e-5}

# x, w, then keywords
CASES = {
    "line": ((2, 4, 19), (6, 4, 3), dict(padding=1)),
    "line, wide steps": ((3, 4, 40), (6, 2, 5), dict(stride=3, padding=2, dilation=2, groups=2)),
    "plane": ((2, 16, 9, 13), (17, 16, 3, 3), dict(padding=1)),
    "one channel": ((2, 1, 12, 12), (1, 1, 3, 3), {}),
    "unbatched": ((3, 12, 12), (5, 3, 5, 3), dict(padding=(2, 1))),
    "stride": ((2, 5, 13, 14), (8, 5, 3, 3), dict(stride=2, padding=1)),
    "stride, one tap": ((2, 16, 9, 10), (7, 16, 1, 1), dict(stride=2)),
    "stride past the kernel": ((2, 4, 11, 12), (7, 4, 2, 2), dict(stride=(3, 4))),
    "one tap": ((2, 33, 7, 9), (21, 33, 1, 1), {}),
    "one tap, groups": ((2, 8, 7, 9), (6, 4, 1, 1), dict(groups=2)),
    "one tap, padded": ((2, 8, 7, 9), (6, 8, 1, 1), dict(padding=1)),
    "dilation": ((1, 4, 15, 16), (4, 4, 3, 3), dict(dilation=(2, 3), padding=(2, 3))),
    "groups": ((2, 12, 8, 9), (9, 4, 3, 3), dict(groups=3, padding=1)),
    "depthwise": ((2, 7, 18, 35), (7, 1, 3, 3), dict(groups=7, padding=1)),
    "depthwise, stride": ((2, 7, 18, 35), (7, 1, 5, 5), dict(groups=7, padding=2, stride=2)),
    "depthwise, several outputs": ((2, 3, 10, 11), (6, 1, 3, 3), dict(groups=3)),
    "depthwise, large kernel": ((1, 3, 14, 20), (3, 1, 7, 7), dict(groups=3, padding=3)),
    "same": ((1, 3, 8, 9), (4, 3, 4, 3), dict(padding="same")),
    "large kernel": ((1, 3, 20, 20), (8, 3, 7, 7), dict(stride=2, padding=3)),
    "kernel as large as the plane": ((2, 6, 7, 5), (4, 6, 7, 5), {}),
    "volume": ((2, 3, 5, 6, 7), (4, 3, 3, 2, 3), dict(padding=1, stride=(1, 2, 1))),
    "volume, depthwise": ((1, 3, 5, 6, 7), (3, 1, 3, 3, 3), dict(padding=1, groups=3)),
    "no images": ((0, 3, 8, 8), (4, 3, 3, 3), {}),
}


def plain(t: torch.Tensor) -> np.ndarray:
    t = t.detach()
    return t.float().numpy() if t.dtype in (torch.float16, torch.bfloat16) else t.numpy()


def mine(t: torch.Tensor):
    return fb.from_numpy(plain(t).copy()).to(getattr(fb, str(t.dtype).split(".")[1]))


def same(got, want: torch.Tensor, dtype: str, what: str = "") -> None:
    assert tuple(got.shape) == tuple(want.shape)
    if want.numel():
        wide = "complex128" if want.dtype.is_complex else "float64"
        got = got.detach().to(getattr(fb, wide)).numpy()
        assert abs(got - want.detach().numpy()).max() <= ERROR[dtype] * abs(want).max(), what


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("name", CASES)
def test_convolution(name, dtype):
    x_shape, w_shape, options = CASES[name]
    torch.manual_seed(0)
    given = [torch.randn(shape).to(getattr(torch, dtype)) for shape in (x_shape, w_shape, w_shape[:1])]
    function = f"conv{len(w_shape) - 2}d"
    wide = torch.complex128 if dtype == "complex64" else torch.float64
    theirs = [t.to(wide, copy=True).requires_grad_() for t in given]
    ours = [mine(t).requires_grad_() for t in given]
    want = getattr(torch.nn.functional, function)(*theirs, **options)
    got = getattr(fb.nn.functional, function)(*ours, **options)
    same(got, want.detach(), dtype)
    g = torch.randn(want.shape).to(getattr(torch, dtype))
    want.backward(g.to(wide))
    got.backward(mine(g))
    for operand, a, b in zip(("input", "weight", "bias"), ours, theirs):
        same(a.grad, b.grad, dtype, operand)


@pytest.mark.parametrize(
    "name", ["plane", "stride", "stride past the kernel", "groups", "depthwise, stride", "one tap"]
)
def test_transposed(name):
    """With the sizes swapped, what convolution reads is what transposed convolution writes."""
    x_shape, w_shape, options = CASES[name]
    torch.manual_seed(0)
    theirs = [
        torch.randn(2, w_shape[0], 5, 6),
        torch.randn(w_shape),
        torch.randn(w_shape[1] * options.get("groups", 1)),
    ]
    ours = [mine(t).requires_grad_() for t in theirs]
    theirs = [t.double().requires_grad_() for t in theirs]
    want = torch.nn.functional.conv_transpose2d(*theirs, **options)
    got = fb.nn.functional.conv_transpose2d(*ours, **options)
    same(got, want.detach(), "float32")
    want.sin().sum().backward()
    got.sin().sum().backward()
    for a, b in zip(ours, theirs):
        same(a.grad, b.grad, "float32")


def test_layouts():
    """Operands are read where they lie."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 9, 8, 5), torch.randn(3, 3, 5, 4)
    want = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), padding=1)
    got = fb.nn.functional.conv2d(mine(x).permute(0, 3, 1, 2), mine(w).permute(3, 2, 0, 1), padding=1)
    same(got, want, "float32")
    one = torch.randn(4, 5, 1, 1)
    want = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), one)
    same(fb.nn.functional.conv2d(mine(x).permute(0, 3, 1, 2), mine(one)), want, "float32")


def test_second_derivatives():
    torch.manual_seed(0)
    given = torch.randn(1, 4, 6, 7).double(), torch.randn(6, 2, 3, 3).double()

    def curvature(fw, x, w):
        (g,) = fw.autograd.grad(
            fw.nn.functional.conv2d(x, w, stride=2, padding=1, groups=2).sin().sum(), x, create_graph=True
        )
        return fw.autograd.grad((g * g).sum(), (x, w))

    theirs = curvature(torch, *(t.clone().requires_grad_() for t in given))
    ours = curvature(fb, *(mine(t).requires_grad_() for t in given))
    for a, b in zip(ours, theirs):
        same(a, b, "float64")
