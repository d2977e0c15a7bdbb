"""Ragged attention equals attention of each sequence by itself, with gradients, windows, groups, pages and empty sequences."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import flambeau as torch
from flambeau.nn.attention.varlen import AuxRequest, varlen_attn, varlen_attn_out

F = torch.nn.functional
WINDOWS = [(-1, -1), (-1, 0), (4, 0), (2, 3), (0, 0), (-1, 2), (200, 0)]


def ends(lengths: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(np.cumsum([0, *lengths])).to(dtype)


def ragged(queries: list[int], keys: list[int], heads: int = 4, shared: int = 2, size: int = 8, value_size: int = 8):
    rng = np.random.default_rng(3)
    shapes = ((sum(queries), heads, size), (sum(keys), shared, size), (sum(keys), shared, value_size))
    return [torch.from_numpy(rng.standard_normal(s)).requires_grad_() for s in shapes]


def one_by_one(q, k, v, queries: list[int], keys: list[int], window: tuple[int, int]) -> torch.Tensor:
    """Each sequence by `scaled_dot_product_attention`, the diagonal ending bottom right."""
    found, a, b = [], 0, 0
    for n, m in zip(queries, keys):
        i, j = torch.arange(n)[:, None] + (m - n), torch.arange(m)
        mask = torch.ones(n, m, dtype=torch.bool)
        if window[0] >= 0:
            mask = mask & (j >= i - window[0])
        if window[1] >= 0:
            mask = mask & (j <= i + window[1])
        parts = [x.transpose(0, 1) for x in (q[a : a + n], k[b : b + m], v[b : b + m])]
        if m:
            found.append(F.scaled_dot_product_attention(*parts, mask, enable_gqa=True).transpose(0, 1))
        else:
            found.append(torch.zeros(n, q.shape[1], v.shape[2], dtype=q.dtype))
        a, b = a + n, b + m
    return torch.cat(found)


CASES = [([3, 0, 150, 7], [5, 2, 150, 0]), ([1, 1, 1], [9, 300, 1]), ([5, 4], [2, 4]), ([0, 0], [0, 3]), ([257], [257])]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_each_sequence_by_itself(window: tuple[int, int], case: int) -> None:
    queries, keys = CASES[case]
    q, k, v = ragged(queries, keys, value_size=12)
    out, lse = varlen_attn(
        *(q, k, v, ends(queries), ends(keys, torch.int64), max(queries), max(keys)),
        window_size=window,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True),
    )
    want = one_by_one(q, k, v, queries, keys, window)
    assert out.shape == want.shape and lse.shape == out.shape[:2]
    np.testing.assert_allclose(out.detach().numpy(), want.detach().numpy(), 1e-10, 1e-12)
    for a, b in zip(
        torch.autograd.grad(out.square().sum(), [q, k, v]), torch.autograd.grad(want.square().sum(), [q, k, v])
    ):
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-9, 1e-11)


def test_the_two_alignments() -> None:
    """Bottom right here, top left for `is_causal`; equal where queries and keys are as many."""
    q, k, v = ragged([3], [5], 2, 2)
    out = varlen_attn(q, k, v, ends([3]), ends([5]), 3, 5, window_size=(-1, 0)).transpose(0, 1)
    dense = [x.transpose(0, 1) for x in (q, k, v)]
    right = F.scaled_dot_product_attention(*dense, torch.nn.attention.bias.causal_lower_right(3, 5))
    left = F.scaled_dot_product_attention(*dense, is_causal=True)
    np.testing.assert_allclose(out.detach().numpy(), right.detach().numpy(), 1e-12)
    assert not torch.allclose(left, right)
    q, k, v = ragged([4], [4], 2, 2)
    out = varlen_attn(q, k, v, ends([4]), ends([4]), 4, 4, window_size=(-1, 0)).transpose(0, 1)
    left = F.scaled_dot_product_attention(*[x.transpose(0, 1) for x in (q, k, v)], is_causal=True)
    np.testing.assert_allclose(out.detach().numpy(), left.detach().numpy(), 1e-12)


def test_tokens_behind_the_last_sequence_give_nothing() -> None:
    q, k, v = ragged([6], [6], 2, 2)
    out = varlen_attn(q, k, v, ends([4]), ends([5]), 4, 5)
    assert not out[4:].any()
    np.testing.assert_allclose(
        out[:4].detach().numpy(), one_by_one(q[:4], k[:5], v[:5], [4], [5], (-1, -1)).detach().numpy(), 1e-10
    )


def test_keys_in_use_and_pages() -> None:
    rng = np.random.default_rng(4)
    pool_k, pool_v = (torch.from_numpy(rng.standard_normal((10, 8, 2, 16))) for _ in range(2))
    queries, used, table = [1, 3, 2], [5, 16, 0], torch.tensor([[3, -1], [7, 1], [-1, -1]])
    q = torch.from_numpy(rng.standard_normal((6, 4, 16)))
    options = dict(seqused_k=torch.tensor(used), enable_gqa=True, window_size=(-1, 0))
    out = varlen_attn(q, pool_k, pool_v, ends(queries), None, 3, 16, block_table=table, **options)
    rows = [torch.tensor([p for p in line if p >= 0]) for line in table.tolist()]
    keys, values = (
        [pool[r].flatten(0, 1)[:n] if n else pool[0, :0] for r, n in zip(rows, used)] for pool in (pool_k, pool_v)
    )
    want = one_by_one(q, torch.cat(keys), torch.cat(values), queries, used, (-1, 0))
    np.testing.assert_allclose(out.numpy(), want.numpy(), 1e-10)
    assert not out[4:].any()  # no keys yet
    slots = [8, 16, 4]  # room in a cache without pages
    k, v = (torch.from_numpy(rng.standard_normal((28, 2, 16))) for _ in range(2))
    out = varlen_attn(q, k, v, ends(queries), ends(slots), 3, 16, **options)
    cut = [(s, s + n) for s, n in zip((0, 8, 24), used)]
    want = one_by_one(q, *(torch.cat([x[a:b] for a, b in cut]) for x in (k, v)), queries, used, (-1, 0))
    np.testing.assert_allclose(out.numpy(), want.numpy(), 1e-10)


def test_into_a_given_output() -> None:
    q, k, v = (x.detach() for x in ragged([3, 4], [3, 4], 2, 2))
    out = torch.empty(7, 2, 8, dtype=torch.float64)
    given = (ends([3, 4]), ends([3, 4]), 4, 4)
    want, lse = varlen_attn(q, k, v, *given, return_aux=AuxRequest(lse=True))
    found = varlen_attn_out(out, q, k, v, *given, return_aux=AuxRequest(lse=True))
    assert found[0] is out and torch.equal(out, want) and torch.equal(found[1], lse)
    assert varlen_attn_out(out, q, k, v, *given) is out
    with pytest.raises(ValueError, match="out must be float64"):
        varlen_attn_out(out.float(), q, k, v, *given)
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        varlen_attn_out(out, q.requires_grad_(), k, v, *given)


def test_compiled() -> None:
    q, k, v = ragged([5, 9], [5, 9], 2, 2)
    at = ends([5, 9])
    want = varlen_attn(q, k, v, at, at, 9, 9, window_size=(-1, 0))
    found = torch.compile(varlen_attn)(q, k, v, at, at, 9, 9, window_size=(-1, 0))
    np.testing.assert_allclose(found.detach().numpy(), want.detach().numpy(), 1e-12)


@pytest.mark.parametrize("word", ["is_causal", "causal", "dropout_p", "return_lse"])
def test_removed_names_say_what_to_write(word: str) -> None:
    q, k, v = ragged([3], [3], 2, 2)
    hint = {"is_causal": r"window_size=\(-1, 0\)", "causal": r"window_size=\(-1, 0\)", "dropout_p": "no dropout"}
    for call in (
        lambda **o: varlen_attn(q, k, v, ends([3]), ends([3]), 3, 3, **o),
        lambda **o: varlen_attn_out(q, q, k, v, ends([3]), ends([3]), 3, 3, **o),
    ):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{word}'.*{hint.get(word, 'AuxRequest')}"):
            call(**{word: True})


def test_errors() -> None:
    q, k, v = (x.detach() for x in ragged([3, 4], [3, 4]))
    at = ends([3, 4])

    def call(q=q, k=k, v=v, cu_q=at, cu_k=at, **options):
        return varlen_attn(q, k, v, cu_q, cu_k, 4, 4, **{"enable_gqa": True, **options})

    for options, text in (
        (dict(window_size=(1,)), "length 2"),
        (dict(window_size=(-2, 0)), "at least -1"),
        (dict(enable_gqa=False), "enable_gqa=True"),
        (dict(q=q[:, :3]), "multiple of kv heads"),
        (dict(q=q[0]), r"query must be \[T, H, D\]"),
        (dict(cu_k=ends([3])), "of 2 sequences"),
        (dict(cu_q=ends([3, 5])), "end at 7 at most"),
        (dict(cu_q=torch.tensor([0, 4, 3])), "never fall"),
        (dict(cu_q=at.double()), "1-d int32 or int64"),
        (dict(cu_k=None), "block_table"),
        (dict(k=k[None], v=v[None], block_table=torch.tensor([[0], [0]])), "requires seqused_k"),
        (dict(num_splits="two"), "num_splits"),
    ):
        with pytest.raises(ValueError, match=text):
            call(**options)
    assert torch.equal(call(num_splits=1), call())
    with pytest.raises(TypeError):
        varlen_attn(q, k, v, at, at, 4, 4, True)
    names = list(inspect.signature(varlen_attn).parameters)
    assert names[7:14] == ["return_aux", "scale", "window_size", "enable_gqa", "seqused_k", "block_table", "num_splits"]
