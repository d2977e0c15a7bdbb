"""A cache of keys and values in pages of fixed size, shared by sequences of different lengths.

    pages = PagedAttention(n_pages=64, page_size=128, max_batch_size=4)
    pages.reserve(batch, length)                                     # 0-d or one-element tensors
    pages.assign(batches, positions, k, v, k_cache, v_cache)         # caches: [1, H, 64 * 128, D]
    mask = pages.convert_logical_block_mask(block_mask)
    out = flex_attention(q, k_cache, v_cache, pages.get_score_mod(score_mod), mask)

Functions of positions go on counting keys within their sequence (logically); the block mask lists pages where they lie. Blocks of keys have the
size of a page. May not know: how attention is computed. Enter at: `PagedAttention`.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.device import as_device
from flambeau.core.dtype import int64
from flambeau.factories import tensor
from flambeau.ir.op import REGISTRY
from flambeau.nn.attention.block_mask import BlockMask, MaskMod, ScoreMod, noop_mask, to_lists

__all__ = ["PagedAttention"]


class PagedAttention:
    """See the module.

    `page_table` [max_batch_size, n_pages] says where each page of a sequence lies, `physical_to_logical` the reverse, -1 for none;
    `capacity` how many positions a sequence has; `empty_pages` which pages nobody has.
    """

    def __init__(self, n_pages: int, page_size: int, max_batch_size: int, device: Any = "cpu") -> None:
        self.n_pages, self.page_size = n_pages, page_size
        where = as_device(device)
        none = REGISTRY["full"]((max_batch_size, n_pages), -1, dtype=int64, device=where)
        self.page_table, self.physical_to_logical = none, none.clone()
        self.capacity = REGISTRY["full"]((max_batch_size,), 0, dtype=int64, device=where)
        self.empty_pages = list(range(n_pages - 1, -1, -1))

    def reserve(self, batch_idx: Tensor, seq_len: Tensor) -> None:
        """Give a sequence pages for at least `seq_len` positions. Raises: AssertionError if too few are empty."""
        batch, wanted = int(batch_idx), int(seq_len)
        have = int(self.capacity[batch])
        if wanted <= have:
            return
        count = -(-(wanted - have) // self.page_size)
        if count > len(self.empty_pages):
            raise AssertionError(
                message(
                    "reserve",
                    f"requested {count} pages but there are only {len(self.empty_pages)} empty pages",
                    f"length {wanted}, capacity {have}",
                    "Erase a sequence, or make more pages.",
                )
            )
        start = have // self.page_size
        taken = self.empty_pages[-count:]
        self.empty_pages = self.empty_pages[:-count]
        where = self.capacity.device
        pages = tensor(taken, dtype=int64, device=where)
        self.page_table[batch, start : start + count] = pages
        self.physical_to_logical[batch, pages] = REGISTRY["iota"]((count,), start, device=where)
        self.capacity[batch] = have + count * self.page_size

    def erase(self, batch_idx: Tensor) -> None:
        """Take a sequence's pages back."""
        batch = int(batch_idx)
        self.empty_pages += [p for p in self.page_table[batch].tolist() if p >= 0]
        self.capacity[batch] = 0
        self.physical_to_logical[batch] = -1
        self.page_table[batch] = -1

    def assign(
        self, batch_idx: Tensor, input_pos: Tensor, k_val: Tensor, v_val: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> None:
        """Write keys [B, H, S, E] and values [B, H, S, Ev] of positions `input_pos` [B, S] of sequences `batch_idx` [B] into the caches
        [1, H, MAX_S, E] and [1, H, MAX_S, Ev]. The positions must have been reserved.
        """
        if k_val.requires_grad or v_val.requires_grad:
            raise RuntimeError("assign: val must not require gradient. Call .detach().")
        batch, heads, length, size = k_val.shape
        value_size = v_val.shape[3]
        wanted = {
            "batches of batch_idx": (batch, batch_idx.shape[0]),
            "heads of the cache": (heads, k_cache.shape[1]),
            "positions of input_pos": (length, input_pos.shape[1]),
            "sizes of k_cache": (size, k_cache.shape[3]),
            "sizes of v_cache": (value_size, v_cache.shape[3]),
        }
        for what, (have, need) in wanted.items():
            if have != need:
                raise RuntimeError(message("assign", f"values and {what} must agree", f"{have} and {need}"))
        positions = input_pos.to(int64)
        page = self.page_table[batch_idx.to(int64)].gather(1, positions // self.page_size)
        if (page < 0).any():
            raise IndexError(
                message(
                    "assign",
                    "positions must have been reserved",
                    "one beyond a sequence's capacity",
                    "Call reserve() first.",
                )
            )
        at = (page * self.page_size + positions % self.page_size).flatten()
        k_cache[:, :, at] = k_val.permute(1, 0, 2, 3).reshape(1, heads, batch * length, size)
        v_cache[:, :, at] = v_val.permute(1, 0, 2, 3).reshape(1, heads, batch * length, value_size)

    def convert_logical_block_mask(
        self, block_mask: BlockMask, batch_idx: Tensor | None = None, kv_len: Tensor | None = None
    ) -> BlockMask:
        """The block mask over pages where they lie, for a block mask over positions within sequences.

        batch_idx [B]: the sequences that the mask's batch dim stands for, the first B unless told. kv_len [max_batch_size]: how many keys count;
        pages beyond are masked, the page that ends there in part. Pages that were not reserved are left out.
        Raises: RuntimeError unless blocks of keys have the size of a page.
        """
        if block_mask.BLOCK_SIZE[1] != self.page_size:
            raise RuntimeError(
                message(
                    "convert_logical_block_mask",
                    "block_mask must have the same column block size as page_size",
                    f"size={block_mask.BLOCK_SIZE[1]} and size={self.page_size}",
                )
            )
        batch, _, _, columns = block_mask.kv_indices.shape
        where = block_mask.kv_indices.device
        of = REGISTRY["iota"]((batch,), device=where) if batch_idx is None else batch_idx.to(int64)
        states = block_mask.states()  # [B, H, rows, columns]
        table = self.page_table[of][:, :columns]
        if columns > self.n_pages:
            states = states[..., : self.n_pages]
        full = states == 2
        if kv_len is not None:
            ends = (REGISTRY["iota"]((states.shape[-1],), device=where) + 1) * self.page_size
            full = full & (ends <= kv_len[of].view(batch, 1, 1, 1))
        lists: list[Tensor] = []
        for listed in ((states != 0) & ~full, full):
            lists += to_lists(self._moved(listed, table))
        return BlockMask.from_kv_blocks(
            *lists,
            BLOCK_SIZE=block_mask.BLOCK_SIZE,
            mask_mod=self.get_mask_mod(block_mask.mask_mod, kv_len),
            seq_lengths=(block_mask.seq_lengths[0], self.n_pages * self.page_size),
        )

    def _moved(self, listed: Tensor, table: Tensor) -> Tensor:
        """[B, H, rows, n_pages] of what is listed [B, H, rows, columns] by where the columns' pages lie."""
        there = (table >= 0).view(table.shape[0], 1, 1, table.shape[1])
        at = REGISTRY["where"](
            listed & there, table.view(there.shape), self.n_pages
        )  # the rest goes to a column of its own
        shape = (*listed.shape[:-1], self.n_pages + 1)
        base = REGISTRY["full"](shape, 0, dtype=int64, device=table.device)
        return base.scatter(-1, at, at * 0 + 1)[..., : self.n_pages]

    def _logical(self, kv_len: Tensor | None, b: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """(a key's position in sequence b, whether it is one of its keys) for a place in the cache; positions that are none become 0."""
        page = self.physical_to_logical[b, at // self.page_size]
        found = page * self.page_size + at % self.page_size
        valid = page >= 0
        if kv_len is not None:
            valid = valid & (found < kv_len[b])
        return found.clamp(0), valid

    def get_mask_mod(self, mask_mod: MaskMod | None, kv_len: Tensor | None = None) -> MaskMod:
        """The mask over places in the cache, for a mask over positions within sequences."""
        inner = noop_mask if mask_mod is None else mask_mod

        def paged_mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, physical_kv_idx: Tensor) -> Tensor:
            at, valid = self._logical(kv_len, b, physical_kv_idx)
            return valid & inner(b, h, q_idx, at)

        return paged_mask_mod

    def get_score_mod(self, score_mod: ScoreMod | None, kv_len: Tensor | None = None) -> ScoreMod:
        """The score_mod over places in the cache, for one over positions within sequences; -inf where there is no key."""

        def paged_score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, physical_kv_idx: Tensor) -> Tensor:
            at, valid = self._logical(kv_len, b, physical_kv_idx)
            changed = score if score_mod is None else score_mod(score, b, h, q_idx, at)
            return REGISTRY["where"](valid, changed, float("-inf"))

        return paged_score_mod
