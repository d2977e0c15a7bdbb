"""Paged attention: a cache in pages gives what keys and values in one piece give."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau as torch
from flambeau.nn.attention.experimental._paged_attention import PagedAttention
from flambeau.nn.attention.flex_attention import create_block_mask, flex_attention

PAGE, HEADS, SIZE = 16, 2, 8


def causal(b, h, q, kv):
    return q >= kv


def filled(lengths: list[int], n_pages: int = 14, order: tuple = (1, 0, 2)):
    """(pages, caches, keys and values in one piece)."""
    rng = np.random.default_rng(5)
    keys, values = (torch.from_numpy(rng.standard_normal((len(lengths), HEADS, 64, SIZE))) for _ in range(2))
    pages = PagedAttention(n_pages, PAGE, len(lengths))
    caches = [torch.zeros(1, HEADS, n_pages * PAGE, SIZE, dtype=torch.float64) for _ in range(2)]
    for b in order:
        half = lengths[b] // 2  # in two steps, so that pages lie apart
        pages.reserve(torch.tensor([b]), torch.tensor([half]))
    for b in order:
        pages.reserve(torch.tensor(b), torch.tensor(lengths[b]))
        at = torch.arange(lengths[b])[None]
        pages.assign(
            torch.tensor([b]), at, keys[b : b + 1, :, : lengths[b]], values[b : b + 1, :, : lengths[b]], *caches
        )
    return pages, caches, keys, values


@pytest.mark.parametrize("lengths", [[64, 64, 64], [40, 20, 64], [1, 16, 33]])
@pytest.mark.parametrize("with_length", [True, False])
def test_pages_equal_one_piece(lengths: list[int], with_length: bool) -> None:
    pages, caches, keys, values = filled(lengths)
    count = torch.tensor(lengths)
    q = torch.from_numpy(np.random.default_rng(6).standard_normal((3, HEADS, 64, SIZE)))
    bias = torch.from_numpy(np.random.default_rng(7).standard_normal((64, 64)))

    def there(b, h, i, j):
        return (i >= j) & (j < count[b])

    def mod(s, b, h, i, j):
        return s * 0.5 + bias[i, j]

    logical = create_block_mask(causal if with_length else there, 3, None, 64, 64, BLOCK_SIZE=PAGE)
    length = count if with_length else None
    physical = pages.convert_logical_block_mask(logical, kv_len=length)
    assert physical.seq_lengths == (64, 14 * PAGE)
    want = flex_attention(q, keys, values, mod, create_block_mask(there, 3, None, 64, 64, BLOCK_SIZE=PAGE))
    for changed in (pages.get_score_mod(mod, length), pages.get_score_mod(mod)):
        found = flex_attention(q, *caches, changed, physical)
        np.testing.assert_allclose(found.numpy(), want.numpy(), 1e-10, 1e-12)
    plain = flex_attention(q, *caches, pages.get_score_mod(None), physical)
    want = flex_attention(q, keys, values, None, create_block_mask(there, 3, None, 64, 64, BLOCK_SIZE=PAGE))
    np.testing.assert_allclose(plain.numpy(), want.numpy(), 1e-10, 1e-12)


def test_some_sequences_of_many() -> None:
    pages, caches, keys, values = filled([64, 64, 64])
    q = torch.from_numpy(np.random.default_rng(6).standard_normal((2, HEADS, 64, SIZE)))
    logical = create_block_mask(causal, 2, None, 64, 64, BLOCK_SIZE=PAGE)
    physical = pages.convert_logical_block_mask(logical, torch.tensor([2, 0]))
    which = torch.tensor([2, 0])
    inner = physical.mask_mod
    physical.mask_mod = lambda b, h, i, j: inner(which[b], h, i, j)
    want = flex_attention(q, keys[which], values[which], None, logical)
    np.testing.assert_allclose(flex_attention(q, *caches, None, physical).numpy(), want.numpy(), 1e-10)


def test_pages_are_taken_and_given_back() -> None:
    pages = PagedAttention(6, PAGE, 2)
    pages.reserve(torch.tensor(0), torch.tensor(20))
    assert pages.capacity.tolist() == [32, 0] and len(pages.empty_pages) == 4
    pages.reserve(torch.tensor(0), torch.tensor(32))
    assert len(pages.empty_pages) == 4
    pages.reserve(torch.tensor(1), torch.tensor(1))
    pages.reserve(torch.tensor(0), torch.tensor(33))
    table = pages.page_table.tolist()
    taken = [p for row in table for p in row if p >= 0]
    assert sorted([*taken, *pages.empty_pages]) == list(range(6))
    for b, row in enumerate(table):
        for logical, p in enumerate(row):
            assert p < 0 or pages.physical_to_logical[b, p].item() == logical
    with pytest.raises(AssertionError, match="requested 3 pages but there are only 2"):
        pages.reserve(torch.tensor(1), torch.tensor(60))
    pages.erase(torch.tensor([0]))
    assert pages.capacity.tolist() == [0, 16] and len(pages.empty_pages) == 5
    assert (pages.page_table[0] == -1).all() and (pages.physical_to_logical[0] == -1).all()


def test_errors() -> None:
    pages, caches, keys, values = filled([20, 20, 20])
    with pytest.raises(RuntimeError, match="page_size"):
        pages.convert_logical_block_mask(create_block_mask(causal, 3, None, 64, 64, BLOCK_SIZE=32))
    k = torch.zeros(1, HEADS, 3, SIZE, dtype=torch.float64)
    place = torch.tensor([[0, 1, 2]])
    for change, kind, text in (
        (dict(batch_idx=torch.tensor([0, 1])), RuntimeError, "batch_idx"),
        (dict(k_val=k[:, :1], v_val=k[:, :1]), RuntimeError, "heads"),
        (dict(input_pos=place[:, :2]), RuntimeError, "input_pos"),
        (dict(k_val=k[..., :4]), RuntimeError, "k_cache"),
        (dict(v_val=k[..., :4]), RuntimeError, "v_cache"),
        (dict(k_val=k.clone().requires_grad_()), RuntimeError, "must not require gradient"),
        (dict(input_pos=torch.tensor([[30, 31, 32]])), IndexError, "reserve"),
    ):
        given = dict(
            batch_idx=torch.tensor([0]), input_pos=place, k_val=k, v_val=k, k_cache=caches[0], v_cache=caches[1]
        )
        with pytest.raises(kind, match=text):
            pages.assign(**{**given, **change})
