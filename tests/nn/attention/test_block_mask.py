"""BlockMask: every method, against masks written out by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import flambeau as torch
from flambeau.base.pytree import tree_flatten, tree_map, tree_unflatten
from flambeau.nn.attention.block_mask import write_order
from flambeau.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask, noop_mask


def causal(b, h, q, kv):
    return q >= kv


def window(b, h, q, kv):
    return (q - kv).abs() <= 20 + 10 * b + 5 * h


def blocks_of(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """[..., rows, columns]: positions let through in each block."""
    rows, columns = (-(-n // s) for n, s in zip(mask.shape[-2:], size))
    whole = np.zeros((*mask.shape[:-2], rows * size[0], columns * size[1]), int)
    whole[..., : mask.shape[-2], : mask.shape[-1]] = mask
    return whole.reshape(*mask.shape[:-2], rows, size[0], columns, size[1]).sum((-3, -1))


def listed(num: torch.Tensor, indices: torch.Tensor) -> np.ndarray:
    """The blocks that a pair of lists names."""
    found = np.zeros(indices.shape, bool)
    for place in np.ndindex(*num.shape):
        for column in indices.numpy()[place][: num.numpy()[place]]:
            found[place][column] = True
    return found


SIZES = [(128, (300, 300)), ((64, 32), (200, 130)), (16, (32, 48)), ((128, 128), (5, 700)), (8, (1, 1))]


@pytest.mark.parametrize(("size", "lengths"), SIZES)
@pytest.mark.parametrize("separate", [True, False])
def test_lists_are_those_of_the_mask(size, lengths, separate) -> None:
    pair = (size, size) if isinstance(size, int) else size
    mask = create_block_mask(window, 2, 3, *lengths, BLOCK_SIZE=size, separate_full_blocks=separate)
    counts = blocks_of(create_mask(window, 2, 3, *lengths).numpy(), pair)
    full = counts == pair[0] * pair[1] if separate else np.zeros_like(counts, bool)
    partial = (counts > 0) & ~full
    np.testing.assert_array_equal(listed(mask.kv_num_blocks, mask.kv_indices), partial)
    np.testing.assert_array_equal(listed(mask.q_num_blocks, mask.q_indices), partial.swapaxes(-1, -2))
    if separate:
        np.testing.assert_array_equal(listed(mask.full_kv_num_blocks, mask.full_kv_indices), full)
        np.testing.assert_array_equal(listed(mask.full_q_num_blocks, mask.full_q_indices), full.swapaxes(-1, -2))
    else:
        assert mask.full_kv_num_blocks is None and mask.full_q_indices is None
    np.testing.assert_array_equal(mask.to_dense().numpy(), (counts > 0).astype(np.int32))
    np.testing.assert_array_equal(mask.states().numpy(), np.where(full, 2, partial))
    assert mask.BLOCK_SIZE == pair and mask.shape == (2, 3, *lengths) and mask.numel() == 6 * lengths[0] * lengths[1]
    assert mask.sparsity() == pytest.approx(100 * (1 - (counts > 0).sum() * pair[0] * pair[1] / mask.numel()))
    assert {t.dtype for t in (mask.kv_num_blocks, mask.kv_indices, mask.q_num_blocks, mask.q_indices)} == {torch.int32}


def test_rows_list_blocks_in_order() -> None:
    mask = create_block_mask(causal, None, None, 256, 256, BLOCK_SIZE=64)
    assert mask.kv_num_blocks.tolist() == [[[1, 1, 1, 1]]] and mask.full_kv_num_blocks.tolist() == [[[0, 1, 2, 3]]]
    assert mask.full_kv_indices[0, 0, 3, :3].tolist() == [0, 1, 2] and mask.kv_indices[0, 0, :, 0].tolist() == [
        0,
        1,
        2,
        3,
    ]


def test_slices() -> None:
    mask = create_block_mask(window, 4, 2, 512, 512)
    for index, shape in (
        (0, (1, 2, 4)),
        (-1, (1, 2, 4)),
        ((0, 1), (1, 1, 4)),
        ((slice(0, 2), slice(1, 2)), (2, 1, 4)),
        ((slice(0, 2), slice(1, 2), torch.tensor([1])), (2, 1, 1)),
        ((slice(None), slice(None), 2), (4, 2, 1)),
        ((slice(None), slice(None), slice(1, 3)), (4, 2, 2)),
    ):
        found = mask[index]
        assert tuple(found.kv_num_blocks.shape) == shape and tuple(found.kv_indices.shape) == (*shape, 4)
        assert found.seq_lengths == (512, 512) and found.full_kv_indices.shape == found.kv_indices.shape
    np.testing.assert_array_equal(mask[1, 0].to_dense().numpy(), mask.to_dense().numpy()[1:2, :1])
    with pytest.raises(IndexError):
        mask[4]
    with pytest.raises(IndexError):
        mask[0, 0, 0, 0]
    q = torch.ones(1, 2, 512, 8)
    with pytest.raises(RuntimeError, match="sliced BlockMask"):
        torch.nn.attention.flex_attention.flex_attention(q, q, q, block_mask=mask[0])


def test_adjust_crops_to_the_corner() -> None:
    mask = create_block_mask(causal, None, None, 512, 512, BLOCK_SIZE=64)
    for lengths in ((512, 512), (300, 200), (64, 512), (1, 1)):
        found = mask._adjust(*lengths)
        want = create_block_mask(causal, None, None, *lengths, BLOCK_SIZE=64)
        assert found.shape == want.shape and found.mask_mod is causal
        np.testing.assert_array_equal(found.to_dense().numpy(), want.to_dense().numpy())
        np.testing.assert_array_equal(
            listed(found.q_num_blocks, found.q_indices).any(), listed(want.q_num_blocks, want.q_indices).any()
        )
    with pytest.raises(ValueError, match="at most"):
        mask._adjust(513, 512)


def test_from_lists_of_blocks() -> None:
    num, which = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[1, -7], [1, 0]]]], dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(num, which, BLOCK_SIZE=(4, 8))
    assert mask.seq_lengths == (8, 16) and mask.mask_mod is noop_mask and mask.BLOCK_SIZE == (4, 8)
    assert mask.to_dense().tolist() == [[[[0, 1], [1, 1]]]]
    assert mask.q_num_blocks.tolist() == [[[1, 2]]]
    assert BlockMask.from_kv_blocks(num, which, compute_q_blocks=False).q_indices is None
    assert BlockMask.from_kv_blocks(num, which, seq_lengths=(7, 9)).shape == (1, 1, 7, 9)
    for kwargs, kind in (
        (dict(kv_num_blocks=num[0, 0], kv_indices=num[0, 0]), RuntimeError),
        (dict(kv_num_blocks=num, kv_indices=which, full_kv_indices=which), AssertionError),
        (dict(kv_num_blocks=num, kv_indices=which, full_kv_num_blocks=num), AssertionError),
        (dict(kv_num_blocks=num, kv_indices=which, dq_kv_order="up"), ValueError),
    ):
        with pytest.raises(kind):
            BlockMask.from_kv_blocks(**kwargs)
    with pytest.raises(AssertionError):
        BlockMask((8, 8), None, which, *[None] * 6)
    with pytest.raises(ValueError, match="requires dq_write_order"):
        BlockMask((8, 8), num, which, *[None] * 6, dq_write_order_full=num)


def test_text() -> None:
    mask = create_block_mask(causal, 2, 3, 512, 512)
    text = str(mask)
    assert (
        text.startswith("BlockMask(shape=(2, 3, 512, 512), sparsity=37.50%") and "(0, 0)\n██      \n████    \n" in text
    )
    assert text.count("(") - 2 == 4 + 1 and "limit=N" in text  # four pictures, and that there are more
    assert mask.to_string(grid_size=2, limit=1).splitlines()[:3] == ["(0, 0)", "░░  ", "██░░"]
    assert len(mask.to_string(grid_size=-1).splitlines()[1]) == 8
    assert "kv_indices=(2, 3, 4, 4)" in repr(mask) and "mask_mod=causal" in repr(mask)


def test_tuple_tree_and_devices() -> None:
    mask = create_block_mask(causal, None, None, 64, 32, BLOCK_SIZE=(16, 8))
    flat = mask.as_tuple()
    assert flat[:2] == (64, 32) and flat[-3:] == (16, 8, causal) and flat[2] is mask.kv_num_blocks
    assert mask.as_tuple(flatten=False)[0] == (64, 32) and mask.as_tuple(flatten=False)[-2] == (16, 8)
    leaves, structure = tree_flatten(mask)
    again = tree_unflatten(leaves, structure)
    assert isinstance(again, BlockMask) and again.kv_indices is mask.kv_indices and again.mask_mod is causal
    assert tree_map(lambda x: x, mask).shape == mask.shape
    moved = mask.to("cpu")
    assert moved is not mask and moved.shape == mask.shape and moved.BLOCK_SIZE == mask.BLOCK_SIZE


def test_states_follow_the_lists() -> None:
    mask = create_block_mask(causal, None, None, 32, 32, BLOCK_SIZE=16)
    first = mask.states()
    assert mask.states() is first
    mask.full_kv_num_blocks.zero_()
    assert mask.states().tolist() == [[[[1, 0], [0, 1]]]]
    mask.kv_num_blocks = torch.zeros_like(mask.kv_num_blocks)
    assert not mask.states().any()


def test_write_order_counts_the_blocks_of_keys_of_each_row() -> None:
    for descending in (False, True):
        mask = create_block_mask(
            window, 1, 2, 96, 96, BLOCK_SIZE=16, compute_dq_write_order=True, dq_kv_order=descending
        )
        dense = mask.to_dense().numpy().astype(int)
        rank = np.cumsum(dense, -1) - dense
        rank = dense.sum(-1, keepdims=True) - 1 - rank if descending else rank
        for num, which, order in (
            (mask.q_num_blocks, mask.q_indices, mask.dq_write_order),
            (mask.full_q_num_blocks, mask.full_q_indices, mask.dq_write_order_full),
        ):
            for b, h, column in np.ndindex(*num.shape):
                for slot in range(num.numpy()[b, h, column]):
                    row = which.numpy()[b, h, column, slot]
                    assert order.numpy()[b, h, column, slot] == rank[b, h, row, column]
        assert mask.dq_kv_order_spt is descending and mask[0].dq_write_order is not None
    with pytest.raises(ValueError, match="compute_q_blocks"):
        write_order(BlockMask.from_kv_blocks(mask.kv_num_blocks, mask.kv_indices, compute_q_blocks=False))


def test_no_positions() -> None:
    for lengths in ((0, 5), (5, 0), (0, 0)):
        mask = create_block_mask(causal, 2, None, *lengths)
        assert (
            mask.shape == (2, 1, *lengths) and mask.numel() == 0 and mask.sparsity() == 0 and not mask.to_dense().any()
        )


def test_errors_and_warnings() -> None:
    with pytest.warns(DeprecationWarning, match="_compile"):
        assert create_block_mask(causal, None, None, 64, 64, _compile=True).shape == (1, 1, 64, 64)
    with pytest.raises(ValueError, match="dq_kv_order"):
        create_block_mask(causal, None, None, 64, 64, dq_kv_order=torch.tensor(1))
    with pytest.raises(ValueError, match="positive"):
        create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=0)
