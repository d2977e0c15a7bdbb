"""flex_attention against a dense NumPy reference in float64: forward, gradients, options, errors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import flambeau as torch
from flambeau.nn.attention import flex_attention as flex
from flambeau.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    FlexKernelOptions,
    create_block_mask,
    flex_attention,
)

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 1e-2}


class Mod(NamedTuple):
    """A score_mod in both worlds: `make(captured)` gives the function, `value` and `slope` NumPy's result and derivative by the score.

    `shape(H, L, S)` is the captured tensor's, `toward(g, H, L, S)` sums gradients of results to it.
    """

    make: Callable
    value: Callable
    slope: Callable
    shape: Callable | None = None
    toward: Callable | None = None


def ones(x: np.ndarray, *rest: object) -> np.ndarray:
    return np.ones_like(x)


MODS = {
    "none": None,
    "scaled": Mod(
        lambda c: lambda s, b, h, i, j: s * 2.0 - 1, lambda s, c, b, h, i, j: 2 * s - 1, lambda s, *r: 2 * ones(s)
    ),
    "distance": Mod(lambda c: lambda s, b, h, i, j: s + (i - j) / 8, lambda s, c, b, h, i, j: s + (i - j) / 8, ones),
    "alibi": Mod(
        lambda c: lambda s, b, h, i, j: s + c[h] * (j - i),
        lambda s, c, b, h, i, j: s + c[h] * (j - i),
        ones,
        lambda heads, rows, columns: (heads,),
        lambda g, c, b, h, i, j: (g * (j - i)).sum((0, 2, 3)),
    ),
    "softcap": Mod(
        lambda c: lambda s, b, h, i, j: 2 * torch.tanh(s / 2),
        lambda s, c, b, h, i, j: 2 * np.tanh(s / 2),
        lambda s, *r: 1 - np.tanh(s / 2) ** 2,
    ),
    "bias": Mod(
        lambda c: lambda s, b, h, i, j: s + c[h, i, j],
        lambda s, c, b, h, i, j: s + c[h, i, j],
        ones,
        lambda heads, rows, columns: (heads, rows, columns),
        lambda g, c, b, h, i, j: g.sum(0),
    ),
    "one number": Mod(
        lambda c: lambda s, b, h, i, j: s * c,
        lambda s, c, b, h, i, j: s * c,
        lambda s, c, *r: c * ones(s),
        lambda heads, rows, columns: (),
        None,
    ),
    "row of a table": Mod(
        lambda c: lambda s, b, h, i, j: s + (c[i] * c[j]).sum(),
        lambda s, c, b, h, i, j: s + (c[: s.shape[2]] @ c[: s.shape[3]].T),
        ones,
        lambda heads, rows, columns: (max(rows, columns), 3),
        None,
    ),
}
IDS = np.arange(400) // 9
MASKS = {
    "none": (None, lambda b, h, i, j: np.ones(np.broadcast_shapes(i.shape, j.shape), bool)),
    "causal": (lambda b, h, i, j: i >= j, lambda b, h, i, j: i >= j),
    "window": (lambda b, h, i, j: (i >= j) & (i - j <= 20), lambda b, h, i, j: (i >= j) & (i - j <= 20)),
    "documents": (
        lambda b, h, i, j: torch.from_numpy(IDS)[i] == torch.from_numpy(IDS)[j],
        lambda b, h, i, j: IDS[i] == IDS[j],
    ),
    "first rows see nothing": (lambda b, h, i, j: i > j + 3, lambda b, h, i, j: i > j + 3),
    "per head and batch": (
        lambda b, h, i, j: (i + 7 * h >= j) & (j >= b),
        lambda b, h, i, j: (i + 7 * h >= j) & (j >= b),
    ),
}
SHAPES = [  # B, Hq, Hkv, L, S, E, Ev
    (1, 2, 2, 16, 16, 8, 8),
    (2, 4, 2, 33, 33, 16, 16),
    (2, 6, 1, 17, 70, 20, 12),
    (1, 1, 1, 131, 131, 32, 32),
    (1, 4, 4, 140, 129, 64, 80),
    (2, 2, 2, 1, 300, 128, 128),
    (1, 2, 1, 65, 3, 1, 5),
]


def reference(q, k, v, c, g, mod: Mod | None, allowed: Callable, scale: float):
    """(out, lse, most, gradients of q, k, v, captured) with everything written out."""
    group = q.shape[1] // k.shape[1]
    keys, values = np.repeat(k, group, 1), np.repeat(v, group, 1)
    plain = scale * q @ keys.swapaxes(-1, -2)
    place = np.ogrid[tuple(slice(n) for n in plain.shape)]
    s = plain if mod is None else mod.value(plain, c, *place)
    s = np.where(allowed(*place), s, -np.inf)
    most = s.max(-1, keepdims=True)
    shift = np.where(np.isinf(most), 0, most)
    e = np.exp(s - shift)
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    out = p @ values
    with np.errstate(divide="ignore"):
        lse = (shift + np.log(total))[..., 0]
    dp = g @ values.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True))
    dplain = scale * (ds if mod is None else ds * mod.slope(plain, c, *place))
    folded = (*k.shape[:2], group)

    def summed(x: np.ndarray) -> np.ndarray:
        return x.reshape(*folded, *x.shape[2:]).sum(2)

    grads = [dplain @ keys, summed(dplain.swapaxes(-1, -2) @ q), summed(p.swapaxes(-1, -2) @ g)]
    if mod is not None and mod.toward is not None:
        grads.append(mod.toward(ds, c, *place))
    return out, lse, most[..., 0], grads


def sample() -> list[tuple]:
    """Of all combinations every value of each axis, each mod with several masks."""
    rng = np.random.default_rng(0)
    found = []
    for n, mod in enumerate(MODS):
        for m, mask in enumerate(MASKS):
            shape = SHAPES[(n + m) % len(SHAPES)] if n else SHAPES[m]
            dtype = ["float64", "float32", "float64", "bfloat16"][rng.integers(4)]
            if mod == "row of a table" and m % 2:
                continue
            found.append((mod, mask, shape, dtype))
    return [*found, *((("bias"), "causal", s, "float64") for s in SHAPES)]


@pytest.mark.parametrize(("mod", "mask", "shape", "dtype"), sample())
def test_against_a_dense_reference(mod: str, mask: str, shape: tuple, dtype: str) -> None:
    batch, heads, shared, rows, columns, size, value_size = shape
    rng = np.random.default_rng([*mod.encode(), *mask.encode()])
    arrays = [
        rng.standard_normal(s)
        for s in ((batch, heads, rows, size), (batch, shared, columns, size), (batch, shared, columns, value_size))
    ]
    g = rng.standard_normal((batch, heads, rows, value_size))
    change, (masked, allowed) = MODS[mod], MASKS[mask]
    d = getattr(torch, dtype)
    tensors = [torch.from_numpy(x).to(d) for x in arrays]
    q, k, v = (t.double().numpy() for t in tensors)  # as they were rounded
    g_t = torch.from_numpy(g).to(d)
    captured = None
    if change is not None and change.shape is not None:
        captured = torch.from_numpy(np.asarray(rng.standard_normal(change.shape(heads, rows, columns)) / 2))
        captured = captured.to(torch.float64 if dtype == "float64" else torch.float32)
    wanted = [t.requires_grad_() for t in (*tensors, *([] if captured is None else [captured]))]
    function = None if change is None else change.make(captured)
    blocks = None if masked is None else create_block_mask(masked, batch, heads, rows, columns, BLOCK_SIZE=(64, 32))
    out, aux = flex_attention(
        *tensors, function, blocks, enable_gqa=heads != shared, return_aux=AuxRequest(lse=True, max_scores=True)
    )
    c = None if captured is None else captured.detach().double().numpy()
    want, lse, most, grads = reference(q, k, v, c, g_t.double().numpy(), change, allowed, 1 / math.sqrt(size))
    tol = TOLERANCE[dtype]

    def close(found: torch.Tensor, expected: np.ndarray, what: str) -> None:
        found = found.detach().double().numpy()
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(finite, np.isfinite(found), err_msg=what)
        scale = max(1.0, np.abs(expected[finite]).max(initial=0))
        assert np.abs(found[finite] - expected[finite]).max(initial=0) <= tol * scale, what

    assert out.dtype is d and aux.lse.dtype is (torch.float64 if dtype == "float64" else torch.float32)
    close(out, want, "out")
    close(aux.lse, lse, "lse")
    close(aux.max_scores, most, "max_scores")
    for name, found, expected in zip(("q", "k", "v", "captured"), torch.autograd.grad(out, wanted, g_t), grads):
        close(found, expected, f"gradient of {name}")


def inputs(*shape: int, count: int = 3, grad: bool = False) -> list[torch.Tensor]:
    rng = np.random.default_rng(2)
    return [torch.from_numpy(rng.standard_normal(shape)).requires_grad_(grad) for _ in range(count)]


def causal(b, h, q, kv):
    return q >= kv


def test_blocks_that_are_not_listed_do_not_count() -> None:
    q, k, v = inputs(1, 2, 64, 8)
    num, which = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[1, 0], [1, 0]]]], dtype=torch.int32)
    place = np.arange(64)
    listed = np.array([[False, True], [True, True]])[place[:, None] // 32, place // 32]
    for full, mod in ((False, None), (False, causal), (True, causal)):
        none = (torch.zeros_like(num), which)
        lists = (*none, num, which) if full else (num, which)
        mask = BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=32, mask_mod=mod)
        allowed = listed if mod is None or full else listed & np.tril(np.ones((64, 64), bool))
        want = reference(*(x.numpy() for x in (q, k, v)), None, 0 * v.numpy(), None, lambda *p, a=allowed: a, 8**-0.5)
        np.testing.assert_allclose(flex_attention(q, k, v, block_mask=mask).numpy(), want[0], 1e-10, 1e-12)


def test_layouts_scale_and_results() -> None:
    q, k, v = (x.transpose(1, 2) for x in inputs(2, 9, 3, 8))
    out = flex_attention(q, k, v, scale=0.3)
    np.testing.assert_allclose(
        out.numpy(), flex_attention(*(x.contiguous() for x in (q, k, v)), scale=0.3).numpy(), 1e-12
    )
    out, aux = flex_attention(q, k, v, return_aux=AuxRequest())
    assert aux == AuxOutput(None, None)
    flex._warned.clear()
    with pytest.warns(FutureWarning, match="AuxRequest"):
        out, lse = flex_attention(q, k, v, return_lse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flex_attention(q, k, v, return_lse=True)  # said once
    assert lse.shape == (2, 3, 9)


def test_gradients_through_lse_and_none_through_the_largest_score() -> None:
    q, k, v = inputs(1, 2, 6, 4, grad=True)
    _, aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=True, max_scores=True))
    assert not aux.max_scores.requires_grad
    want = torch.logsumexp(q @ k.mT / 2, -1)
    for a, b in zip(
        torch.autograd.grad(aux.lse.square().sum(), [q, k]), torch.autograd.grad(want.square().sum(), [q, k])
    ):
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-10)


def test_second_derivatives() -> None:
    q, k, v = inputs(1, 1, 5, 3, grad=True)
    (c,) = (torch.tensor(0.7, dtype=torch.float64, requires_grad=True),)
    mask = create_block_mask(causal, None, None, 5, 5)

    def attend(q, k, v, c):
        return flex_attention(q, k, v, lambda s, b, h, i, j: torch.tanh(s * c), mask)

    assert torch.autograd.gradcheck(attend, (q, k, v, c))
    assert torch.autograd.gradgradcheck(attend, (q, k, v, c))


def test_results_do_not_depend_on_threads() -> None:
    q, k, v = inputs(1, 2, 140, 16, grad=True)
    mask = create_block_mask(causal, None, None, 140, 140)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out = flex_attention(q, k, v, block_mask=mask)
            found.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v])])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_options_of_kernels() -> None:
    q, k, v = inputs(1, 1, 8, 4)
    want = flex_attention(q, k, v)
    options: FlexKernelOptions = {
        "BLOCK_M": 64,
        "fwd_BLOCK_N": 32,
        "bwd_BLOCK_M1": 16,
        "PRESCALE_QK": True,
        "BACKEND": "AUTO",
    }
    assert torch.equal(flex_attention(q, k, v, kernel_options=options), want)
    assert torch.equal(flex_attention(q, k, v, kernel_options={"BACKEND": "FLASH"}), want)
    for options, kind, text in (
        ({"BACKEND": "CUDNN"}, ValueError, "Invalid BACKEND.*'CUDNN'"),
        ({"BACKEND": "TRITON"}, RuntimeError, "AUTO or FLASH"),
        ({"BACKEND": "AUTO", "FORCE_USE_FLEX_ATTENTION": True}, RuntimeError, "cannot be combined"),
        ({"BLOCK_K": 3}, ValueError, "BLOCK_M.*'BLOCK_K'"),
        ({"num_warps": "four"}, ValueError, "int or a bool"),
        ({"OUTPUT_LOGSUMEXP": True}, AssertionError, "must not be in kernel_options"),
    ):
        with pytest.raises(kind, match=text):
            flex_attention(q, k, v, kernel_options=options)


def test_errors() -> None:
    def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def with_mask(mask: object, q: torch.Tensor = t(2, 4, 64, 8)) -> object:
        return flex_attention(q, t(2, 4, 64, 8), t(2, 4, 64, 8), block_mask=mask)

    x = t(2, 4, 64, 8)
    for call, kind, text in (
        (lambda: flex_attention(x[0], x[0], x[0]), NotImplementedError, "4D tensors.*query"),
        (lambda: flex_attention(x, t(2, 2, 64, 8), t(2, 2, 64, 8)), ValueError, "enable_gqa=True"),
        (
            lambda: flex_attention(x, t(2, 3, 64, 8), t(2, 3, 64, 8), enable_gqa=True),
            ValueError,
            "multiple of kv heads.*Hkv=3",
        ),
        (lambda: flex_attention(x, t(2, 4, 64, 9), x), ValueError, "same embedding dimension"),
        (lambda: flex_attention(x, x, t(2, 4, 63, 8)), ValueError, "same batch, heads and length"),
        (lambda: flex_attention(x, x, t(2, 4, 64, 8, dtype=torch.float64)), ValueError, "one dtype"),
        (lambda: flex_attention(x.long(), x.long(), x.long()), ValueError, "floating dtype"),
        (lambda: flex_attention(x, 3, x), TypeError, "key must be a tensor"),
        (lambda: flex_attention(x, t(1, 4, 64, 8), t(1, 4, 64, 8)), ValueError, "non-none block_mask.*Bkv=1"),
        (
            lambda: flex_attention(x, x, x, return_lse=True, return_aux=AuxRequest(lse=True)),
            ValueError,
            "both return_lse",
        ),
        (
            lambda: with_mask(create_block_mask(causal, None, None, 60, 64)),
            ValueError,
            "create a new block mask for these",
        ),
        (lambda: with_mask(create_block_mask(causal, None, None, 65, 64)), ValueError, "_adjust"),
        (lambda: with_mask(create_block_mask(causal, None, None, 65, 60)), ValueError, "create a new block mask"),
        (lambda: with_mask(create_block_mask(causal, 3, None, 64, 64)), ValueError, "batch 1 or 2"),
        (lambda: with_mask(create_block_mask(causal, None, 3, 64, 64)), ValueError, "heads 1 or 4"),
        (lambda: with_mask(create_block_mask(causal, 2, 4, 64, 64)[:, :, 0]), RuntimeError, "sliced BlockMask"),
        (lambda: with_mask(causal), TypeError, r"create_block_mask\(mask_mod"),
    ):
        with pytest.raises(kind, match=text):
            call()
