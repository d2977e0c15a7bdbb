"""Causal biases by alignment, choices of implementations, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau as torch
from flambeau.nn import attention
from flambeau.nn.attention import SDPBackend, sdpa_kernel
from flambeau.nn.attention.bias import CausalBias, CausalVariant, causal_lower_right, causal_upper_left

F = torch.nn.functional


def heads(rows: int, columns: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(8)
    return [torch.from_numpy(rng.standard_normal((2, 4, n, 8))).requires_grad_() for n in (rows, columns, columns)]


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (4, 4), (5, 3), (1, 70)])
@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_attention_under_a_bias(make, rows: int, columns: int) -> None:
    q, k, v = heads(rows, columns)
    bias = make(rows, columns)
    mask = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows if make is causal_lower_right else 0)
    found = F.scaled_dot_product_attention(q, k, v, bias, scale=0.3)
    want = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3)
    np.testing.assert_allclose(found.detach().numpy(), want.detach().numpy(), 1e-10, 1e-12)
    for a, b in zip(
        torch.autograd.grad(found.square().sum(), [q, k, v]), torch.autograd.grad(want.square().sum(), [q, k, v])
    ):
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-10, 1e-12)
    grouped = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], attn_mask=bias, enable_gqa=True)
    want = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], attn_mask=mask, enable_gqa=True)
    np.testing.assert_allclose(grouped.detach().numpy(), want.detach().numpy(), 1e-10, 1e-12)
    dropped = F.scaled_dot_product_attention(q, k, v, bias, dropout_p=0.999999)
    assert dropped.shape == found.shape and torch.isfinite(dropped).all()


def test_a_bias_reads_as_a_mask() -> None:
    bias = causal_lower_right(2, 4)
    assert isinstance(bias, torch.Tensor) and isinstance(bias, CausalBias) and bias.variant is CausalVariant.LOWER_RIGHT
    assert bias.shape == (2, 4) and bias.dtype is torch.bool and (bias.seq_len_q, bias.seq_len_kv) == (2, 4)
    assert bias.tolist() == [[True, True, True, False], [True] * 4] and bias.numpy().sum() == 7
    assert (bias & True).sum().item() == 7 and (~bias).any().item() and torch.stack([bias, bias]).shape == (2, 2, 4)
    assert repr(bias).startswith("tensor([[ True,  True,  True, False]")
    assert causal_upper_left(100000, 100000).data_ptr() is not None  # takes no memory to speak of


def test_errors_of_biases() -> None:
    q, k, v = heads(3, 5)
    for call, kind, text in (
        (lambda: causal_upper_left(3), AssertionError, "two lengths"),
        (lambda: causal_lower_right(3, 4, 5), AssertionError, "two lengths"),
        (lambda: CausalBias("lower", 3, 4), AssertionError, "CausalVariant"),
        (lambda: CausalBias(CausalVariant.UPPER_LEFT, -1, 4), TypeError, "ints of at least 0"),
        (
            lambda: F.scaled_dot_product_attention(q, k, v, causal_lower_right(3, 5), is_causal=True),
            ValueError,
            "is_causal",
        ),
        (lambda: F.scaled_dot_product_attention(q, k, v, causal_lower_right(3, 4)), ValueError, "3 and 5"),
    ):
        with pytest.raises(kind, match=text):
            call()


def test_any_backend_gives_the_same() -> None:
    q, k, v = heads(4, 4)
    want = F.scaled_dot_product_attention(q, k, v)
    for backend in SDPBackend:
        with sdpa_kernel(backend):
            assert torch.equal(F.scaled_dot_product_attention(q, k, v), want)
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert torch.equal(F.scaled_dot_product_attention(q, k, v), want)
    with pytest.raises(TypeError, match=r"SDPBackend\.MATH"), sdpa_kernel("math"):
        pass
    with pytest.raises(ValueError, match="at least one"), sdpa_kernel([]):
        pass


def test_registry_of_other_implementations() -> None:
    events = []

    class Handle:
        def remove(self) -> None:
            events.append("removed")

    assert attention.current_flash_attention_impl() is None
    attention.register_flash_attention_impl("Mine", register_fn=lambda: events.append("placed") or Handle())
    attention.register_flash_attention_impl("Plain", register_fn=lambda: None)
    try:
        assert attention.list_flash_attention_impls() == ["FA3", "FA4", "Mine", "Plain"]
        attention.activate_flash_attention_impl("Mine")
        assert attention.current_flash_attention_impl() == "Mine"
        with pytest.raises(ValueError, match="Unknown flash attention impl.*'Plain'.*'FA9'"):
            attention.activate_flash_attention_impl("FA9")
        assert attention.current_flash_attention_impl() == "Mine"
        attention.activate_flash_attention_impl("Plain")
        assert attention.current_flash_attention_impl() is None and events == ["placed", "removed"]
        attention.activate_flash_attention_impl("Mine")
        attention.restore_flash_attention_impl()
        assert attention.current_flash_attention_impl() is None and events == ["placed", "removed"] * 2
        with pytest.warns(UserWarning, match="nothing to restore"):
            attention.restore_flash_attention_impl()
    finally:
        for name in ("Mine", "Plain"):
            del attention._registry.providers[name]
    with pytest.raises(ModuleNotFoundError, match="FA4 needs a GPU"):
        attention.activate_flash_attention_impl("FA4")
