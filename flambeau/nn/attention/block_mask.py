"""Which blocks of a mask hold anything: `BlockMask`, and masks made from functions of positions.

    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 4096, 4096)
    mask.sparsity()                                    # percent of blocks that nobody computes
    flex_attention(q, k, v, block_mask=mask)

A row of blocks lists the blocks of keys that its queries see in part (`mask_mod` decides inside) and those that they see wholly. Counting runs as
one kernel over all positions, which keeps a number per block and nothing per position.

May not know: how attention is computed. Enter at: `create_block_mask`, `BlockMask.from_kv_blocks`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.base.pytree import register_pytree_node
from flambeau.core.device import as_device, device
from flambeau.core.dtype import bool_, float32, int32, int64
from flambeau.ir.op import REGISTRY
from flambeau.nn.attention.mods import count_parameters, name_of, traced
from flambeau.operators.flex import FULL, PARTIAL, block_grid

__all__ = ["BlockMask", "and_masks", "create_block_mask", "create_mask", "noop_mask", "or_masks"]

DEFAULT_BLOCK_SIZE = 128
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
_TENSORS = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
    "dq_write_order",
    "dq_write_order_full",
    "dq_kv_order",
)
_OTHERS = ("seq_lengths", "BLOCK_SIZE", "mask_mod", "dq_kv_order_spt")


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """The mask that lets everything through."""
    return batch.new_ones((), dtype=bool_)


def sliced_mask_mod(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """Stands where a mask was sliced: its function counts positions from the start of the whole. Raises: RuntimeError."""
    raise RuntimeError(
        "BlockMask: cannot use mask_mod from a sliced BlockMask, for it would count positions from the slice's start. Set "
        "block_mask.mask_mod to a function of positions in the slice (an offset added to q_idx), and seq_lengths with it."
    )


def _check_mods(name: str, mods: tuple) -> None:
    for m in mods:
        if not callable(m):
            raise RuntimeError(
                message(name, "all arguments must be functions (All inputs should be callable mask_mods)", repr(m))
            )


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask that lets through what any of the masks does."""
    _check_mods("or_masks", mask_mods)

    def or_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        result = b.new_zeros((), dtype=bool_)
        for mask in mask_mods:
            result = result | mask(b, h, q_idx, kv_idx)
        return result

    return or_mask


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask that lets through what all of the masks do."""
    _check_mods("and_masks", mask_mods)

    def and_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        result = b.new_ones((), dtype=bool_)
        for mask in mask_mods:
            result = result & mask(b, h, q_idx, kv_idx)
        return result

    return and_mask


# ------------------------------------------------------------------ lists of blocks and dense ones
def to_dense_blocks(num_blocks: Tensor, indices: Tensor, columns: int) -> Tensor:
    """int32 [..., rows, columns]: 1 where a row lists a block. What stands behind the count is not looked at."""
    slots = indices.shape[-1]
    ops, where = REGISTRY, indices.device
    listed = ops["lt"](ops["iota"]((slots,), device=where), num_blocks.unsqueeze(-1))
    at = ops["where"](listed, indices.to(int64), columns)  # what is not listed goes to a column of its own
    base = ops["full"]((*indices.shape[:-1], columns + 1), 0, dtype=int32, device=where)
    ones = ops["full"](tuple(at.shape), 1, dtype=int32, device=where)
    return base.scatter(-1, at, ones)[..., :columns]


def to_lists(dense: Tensor) -> tuple[Tensor, Tensor]:
    """(how many, which): the nonzero columns of each row in order, then the others."""
    dense = (dense != 0).to(int32)
    order = dense.argsort(dim=-1, descending=True, stable=True)
    return dense.sum(-1).to(int32), order.to(int32)


def _with_dims(*lists: Tensor | None) -> tuple[Tensor, ...]:
    """Counts and indices with dims for batches and heads, int32."""
    found = []
    for x, ndim in zip(lists, (3, 4, 3, 4)):
        if x is not None:
            while x.ndim < ndim:
                x = x.unsqueeze(0)
            found.append(x if x.dtype is int32 else x.to(int32))
    return tuple(found)


def transposed_lists(num_blocks: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Lists of rows for every column."""
    return to_lists(to_dense_blocks(num_blocks, indices, indices.shape[-1]).mT)


class BlockMask:
    """Lists of blocks of a mask [*, Q_LEN, KV_LEN] that hold something, and the function that decides inside of them.

    `kv_num_blocks` [*, rows] and `kv_indices` [*, rows, columns] list, for each block of queries, the blocks of keys seen in part; the `full_`
    ones those seen wholly; what `kv_indices` holds behind the count means nothing. `q_num_blocks` and `q_indices` are the same by blocks of keys,
    for the gradients of keys. `BLOCK_SIZE` is (queries, keys) in a block.
    """

    seq_lengths: tuple[int, int]
    BLOCK_SIZE: tuple[int, int]
    mask_mod: MaskMod

    def __init__(
        self,
        seq_lengths: tuple[int, int],
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None,
        full_kv_indices: Tensor | None,
        q_num_blocks: Tensor | None,
        q_indices: Tensor | None,
        full_q_num_blocks: Tensor | None,
        full_q_indices: Tensor | None,
        BLOCK_SIZE: tuple[int, int] = (DEFAULT_BLOCK_SIZE, DEFAULT_BLOCK_SIZE),
        mask_mod: MaskMod = noop_mask,
        *,
        dq_write_order: Tensor | None = None,
        dq_write_order_full: Tensor | None = None,
        dq_kv_order: Tensor | None = None,
        dq_kv_order_spt: bool | None = None,
    ) -> None:
        if kv_num_blocks is None or kv_indices is None:
            raise AssertionError("BlockMask: kv_num_blocks and kv_indices must be provided. Use create_block_mask.")
        _check_lists(kv_indices, full_kv_num_blocks, full_kv_indices)
        _check_pair("full_q", full_q_num_blocks, full_q_indices)
        if dq_write_order_full is not None and dq_write_order is None:
            raise ValueError("BlockMask: dq_write_order_full requires dq_write_order, which is None. Give both.")
        self.seq_lengths = seq_lengths
        self.kv_num_blocks, self.kv_indices = kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices
        self.q_num_blocks, self.q_indices = q_num_blocks, q_indices
        self.full_q_num_blocks, self.full_q_indices = full_q_num_blocks, full_q_indices
        self.dq_write_order, self.dq_write_order_full = dq_write_order, dq_write_order_full
        self.dq_kv_order, self.dq_kv_order_spt = dq_kv_order, dq_kv_order_spt
        self.BLOCK_SIZE, self.mask_mod = BLOCK_SIZE, mask_mod
        self._states: tuple | None = None  # what `states` gave, and what it was made from

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        BLOCK_SIZE: int | tuple[int, int] = DEFAULT_BLOCK_SIZE,
        mask_mod: MaskMod | None = None,
        seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
        *,
        dq_write_order: Tensor | None = None,
        dq_write_order_full: Tensor | None = None,
        dq_kv_order: Tensor | bool | None = None,
    ) -> BlockMask:
        """A mask from lists of blocks; the lists by blocks of keys are derived unless `compute_q_blocks` is False.

        Without `seq_lengths` the mask covers all its blocks. Raises: RuntimeError for lists of fewer than 2 dims; AssertionError if one of the two
        full lists is missing.
        """
        _check_lists(kv_indices, full_kv_num_blocks, full_kv_indices)
        if dq_kv_order is not None and not isinstance(dq_kv_order, (bool, Tensor)):
            raise ValueError(
                message("BlockMask", "dq_kv_order must be a bool, Tensor, or None", type(dq_kv_order).__name__)
            )
        by_keys: tuple = (None,) * 4
        if compute_q_blocks:
            full = (None, None) if full_kv_num_blocks is None else transposed_lists(full_kv_num_blocks, full_kv_indices)
            by_keys = (*transposed_lists(kv_num_blocks, kv_indices), *full)
        size = _pair(BLOCK_SIZE)
        rows, columns = kv_indices.shape[-2:]
        return cls(
            (rows * size[0], columns * size[1]) if seq_lengths is None else seq_lengths,
            *(kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices),
            *by_keys,
            BLOCK_SIZE=size,
            mask_mod=noop_mask if mask_mod is None else mask_mod,
            dq_write_order=dq_write_order,
            dq_write_order_full=dq_write_order_full,
            dq_kv_order=dq_kv_order if isinstance(dq_kv_order, Tensor) else None,
            dq_kv_order_spt=dq_kv_order if isinstance(dq_kv_order, bool) else None,
        )

    # ------------------------------------------------------------------ what it is
    @property
    def shape(self) -> tuple[int, ...]:
        """[*, Q_LEN, KV_LEN]."""
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def numel(self) -> int:
        """Positions of the mask, masked or not."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    def sparsity(self) -> float:
        """Percent of the positions that lie in blocks nobody computes. Below 0 where blocks at the edges reach far beyond the lengths."""
        blocks = self.kv_num_blocks.sum().item()
        if self.full_kv_num_blocks is not None:
            blocks += self.full_kv_num_blocks.sum().item()
        total = self.numel()
        return 100.0 * (1 - blocks * self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1] / total) if total else 0.0

    def as_tuple(self, flatten: bool = True) -> tuple[Any, ...]:
        """Everything it holds, in a fixed order; lengths and block sizes as two numbers each if `flatten`."""
        lengths = tuple(self.seq_lengths) if flatten else (self.seq_lengths,)
        size = tuple(self.BLOCK_SIZE) if flatten else (self.BLOCK_SIZE,)
        return (*lengths, *(getattr(self, n) for n in _TENSORS), self.dq_kv_order_spt, *size, self.mask_mod)

    def to_dense(self) -> Tensor:
        """int32 [*, rows, columns]: 1 for blocks that hold anything."""
        columns = self.kv_indices.shape[-1]
        dense = to_dense_blocks(self.kv_num_blocks, self.kv_indices, columns)
        if self.full_kv_num_blocks is not None:
            dense = dense | to_dense_blocks(self.full_kv_num_blocks, self.full_kv_indices, columns)
        return dense

    def states(self) -> Tensor:
        """int32 [B, H, rows, columns]: what counts in each block (`operators.flex`: nothing, what the mask lets through, all)."""
        lists = (self.kv_num_blocks, self.kv_indices, self.full_kv_num_blocks, self.full_kv_indices)
        made_from = tuple((t, t.storage.version) for t in lists if t is not None and t.storage is not None)
        if self._states is not None and len(self._states[0]) == len(made_from):
            if all(t is u and n == m for (t, n), (u, m) in zip(self._states[0], made_from)):
                return self._states[1]
        columns = self.kv_indices.shape[-1]
        found = to_dense_blocks(self.kv_num_blocks, self.kv_indices, columns) * PARTIAL
        if self.full_kv_num_blocks is not None:
            full = to_dense_blocks(self.full_kv_num_blocks, self.full_kv_indices, columns)
            found = REGISTRY["where"](full != 0, FULL, found)
        while found.ndim < 4:
            found = found.unsqueeze(0)
        if found.ptr is not None:  # a value of a trace must not outlive it
            self._states = (made_from, found)
        return found

    def lists(self) -> tuple[Tensor, ...]:
        """Counts [*, *, rows] and indices [*, *, rows, columns] of the blocks seen in part, then of those seen wholly, if any are listed."""
        return _with_dims(self.kv_num_blocks, self.kv_indices, self.full_kv_num_blocks, self.full_kv_indices)

    def turned_lists(self) -> tuple[Tensor, ...]:
        """The same of blocks of queries, for every block of keys."""
        found = [self.q_num_blocks, self.q_indices, self.full_q_num_blocks, self.full_q_indices]
        if found[0] is None:
            found[:2] = transposed_lists(self.kv_num_blocks, self.kv_indices)
        if found[2] is None and self.full_kv_num_blocks is not None:
            found[2:] = transposed_lists(self.full_kv_num_blocks, self.full_kv_indices)
        return _with_dims(*found)

    # ------------------------------------------------------------------ other masks from it
    def __getitem__(self, index: Any) -> BlockMask:
        """The mask for some batches, heads and blocks of queries; an int keeps its dim. Its `mask_mod` has to be set before it is used again."""
        if self.dq_kv_order is not None:
            raise NotImplementedError(
                "BlockMask: a mask with a tensor dq_kv_order cannot be sliced, for its write order would have to be made anew. Build it anew."
            )
        parts = index if isinstance(index, tuple) else (index,)
        sizes = self.kv_num_blocks.shape
        if len(parts) > len(sizes):
            raise IndexError(
                message("BlockMask", f"takes at most {len(sizes)} indices (batch, head, block of queries)", len(parts))
            )
        kept = tuple(
            _as_slice(p, n) if isinstance(p, int) and not isinstance(p, bool) else p for p, n in zip(parts, sizes)
        )
        full = self.full_kv_num_blocks is not None
        found = BlockMask.from_kv_blocks(
            self.kv_num_blocks[kept],
            self.kv_indices[kept],
            self.full_kv_num_blocks[kept] if full else None,
            self.full_kv_indices[kept] if full else None,
            BLOCK_SIZE=self.BLOCK_SIZE,
            mask_mod=sliced_mask_mod,
            seq_lengths=self.seq_lengths,
            compute_q_blocks=self.q_indices is not None,
        )
        return found._ordered_as(self)

    def _adjust(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        """The upper left corner of the mask, for shorter lengths. Raises: ValueError for longer ones, which it says nothing about."""
        if self.dq_kv_order is not None:
            raise NotImplementedError(
                "BlockMask: a mask with a tensor dq_kv_order cannot be cropped, for its write order would have to be made anew. Build it anew."
            )
        if new_q_len > self.seq_lengths[0] or new_kv_len > self.seq_lengths[1]:
            raise ValueError(
                message(
                    "_adjust",
                    f"crops a mask, so the new lengths must be at most {tuple(self.seq_lengths)}",
                    f"({new_q_len}, {new_kv_len})",
                    "Create a block mask for the longest lengths, or a new one.",
                )
            )
        rows, columns = -(-new_q_len // self.BLOCK_SIZE[0]), -(-new_kv_len // self.BLOCK_SIZE[1])

        def cropped(num_blocks: Tensor | None, indices: Tensor | None) -> tuple:
            if num_blocks is None:
                return None, None
            return to_lists(to_dense_blocks(num_blocks, indices, indices.shape[-1])[..., :rows, :columns])

        found = BlockMask.from_kv_blocks(
            *cropped(self.kv_num_blocks, self.kv_indices),
            *cropped(self.full_kv_num_blocks, self.full_kv_indices),
            BLOCK_SIZE=self.BLOCK_SIZE,
            mask_mod=self.mask_mod,
            seq_lengths=(new_q_len, new_kv_len),
            compute_q_blocks=self.q_indices is not None,
        )
        return found._ordered_as(self)

    def _ordered_as(self, other: BlockMask) -> BlockMask:
        """With a write order of its own if `other` has one."""
        self.dq_kv_order_spt = other.dq_kv_order_spt
        if other.dq_write_order is not None:
            self.dq_write_order, self.dq_write_order_full = write_order(self, bool(other.dq_kv_order_spt))
        return self

    def to(self, device: device | str) -> BlockMask:
        """The mask with its tensors on a device. What `mask_mod` captured stays where it is."""
        moved = {n: None if getattr(self, n) is None else getattr(self, n).to(device) for n in _TENSORS}
        others = {n: getattr(self, n) for n in _OTHERS}
        return BlockMask(**moved, **others)

    # ------------------------------------------------------------------ text
    def to_string(self, grid_size: int | tuple[int, int] = (20, 20), limit: int = 4) -> str:
        """A picture of each of the first `limit` masks: full, part of and no squares for groups of blocks that are all, partly or not computed.

        grid_size: most rows and columns of squares; -1: one for each block.
        """
        dense = self.to_dense()
        rows, columns = dense.shape[-2:]
        most = (rows, columns) if grid_size == -1 else _pair(grid_size)
        step = max(1, -(-rows // most[0])), max(1, -(-columns // most[1]))
        pictures: list[str] = []
        for number, place in enumerate(itertools.product(*(range(n) for n in dense.shape[:-2]))):
            if number == limit:
                pictures += [
                    "...",
                    "More: BlockMask.to_string(limit=N), or pick one by BlockMask[batch, head].",
                ]
                break
            cells = dense[place].tolist()
            lines = [f"{place}"]
            for r in range(0, rows, step[0]):
                squares = [_square(cells[r : r + step[0]], c, step[1]) for c in range(0, columns, step[1])]
                lines.append("".join(2 * s for s in squares))
            pictures.append("\n".join(lines) + "\n")
        return "\n".join(pictures)

    def __str__(self) -> str:
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%, \n{self.to_string().strip()}\n)"

    def __repr__(self) -> str:
        lines = [
            f"    {n}={None if getattr(self, n) is None else tuple(getattr(self, n).shape)}," for n in _TENSORS[:8]
        ]
        lines += [
            f"    BLOCK_SIZE={self.BLOCK_SIZE},",
            f"    shape={self.shape},",
            f"    sparsity={self.sparsity():.2f}%,",
            f"    mask_mod={name_of(self.mask_mod)}",
        ]
        return "BlockMask(\n" + "\n".join(lines) + "\n)"


def _check_lists(kv_indices: Tensor, full_kv_num_blocks: Tensor | None, full_kv_indices: Tensor | None) -> None:
    """Raises: RuntimeError for lists of fewer than 2 dims; AssertionError if one of the two full lists is missing."""
    if kv_indices.ndim < 2:
        raise RuntimeError(
            message(
                "BlockMask",
                "kv_indices must have at least 2 dimensions [rows, columns]",
                f"{list(kv_indices.shape)}",
            )
        )
    _check_pair("full_kv", full_kv_num_blocks, full_kv_indices)


def _check_pair(name: str, count: Tensor | None, indices: Tensor | None) -> None:
    if (count is None) != (indices is None):
        missing = f"{name}_num_blocks" if count is None else f"{name}_indices"
        raise AssertionError(
            message(
                "BlockMask", f"{name}_num_blocks and {name}_indices must be both provided or omitted", f"no {missing}"
            )
        )


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _as_slice(i: int, n: int) -> slice:
    if not -n <= i < n:
        raise IndexError(message("BlockMask", f"index must be in [{-n}, {n - 1}]", i))
    i %= n
    return slice(i, i + 1)


def _square(lines: list[list[int]], start: int, width: int) -> str:
    cells = [x for line in lines for x in line[start : start + width]]
    return "█" if all(cells) else "░" if any(cells) else " "


def _flatten(mask: BlockMask) -> tuple[list, tuple]:
    return [getattr(mask, n) for n in _TENSORS], tuple(getattr(mask, n) for n in _OTHERS)


def _unflatten(tensors: Any, others: tuple) -> BlockMask:
    found = object.__new__(BlockMask)  # the children of a tree need not be tensors
    for n, x in zip((*_TENSORS, *_OTHERS), (*tensors, *others)):
        setattr(found, n, x)
    found._states = None
    return found


register_pytree_node(BlockMask, _flatten, _unflatten, names=lambda context, count: [f".{n}" for n in _TENSORS[:count]])


def write_order(mask: BlockMask, descending: bool = False) -> tuple[Tensor, Tensor | None]:
    """int32, laid out as `q_indices` and `full_q_indices`: as how manieth each block adds to the gradient of its queries.

    Blocks of keys come in ascending order, or descending. Raises: ValueError for a mask without lists by blocks of keys. Flambeau's own backward
    does not need it: its order is fixed.
    """
    if mask.q_num_blocks is None or mask.q_indices is None:
        raise ValueError(
            "BlockMask: a write order needs q_num_blocks and q_indices. Build the mask with compute_q_blocks=True."
        )
    dense = mask.to_dense().to(int64)  # [*, rows, columns]
    rank = dense.cumsum(-1) - dense
    if descending:
        rank = dense.sum(-1, keepdim=True) - 1 - rank

    def order(indices: Tensor | None) -> Tensor | None:
        if indices is None:
            return None
        rows = rank.shape[-2]
        return rank.mT.gather(-1, indices.to(int64).clamp(0, rows - 1)).to(int32)

    return order(mask.q_indices), order(mask.full_q_indices)


# ------------------------------------------------------------------ from functions
def create_mask(
    mod_fn: ScoreMod | MaskMod, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None
) -> Tensor:
    """[B, H, Q_LEN, KV_LEN] of what a mask_mod gives; of a score_mod, whether it leaves a score of 0 above -inf.

    B and H of None count as 1. Raises: AssertionError unless the function takes 4 or 5 arguments.
    """
    count = count_parameters(mod_fn)
    if count not in (4, 5):
        raise AssertionError(
            message(
                "create_mask",
                "expected a function of 4 or 5 positional args, (b, h, q_idx, kv_idx) or (score, b, h, q_idx, kv_idx)",
                count,
            )
        )
    where = as_device(device)
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    if count == 4:
        found = traced(mod_fn, "mask_mod", sizes=sizes, where=where)
        return REGISTRY["positional_values"](None, found.operands(), found.program, sizes, where).contiguous()
    found = traced(mod_fn, "score_mod", score=float32, sizes=sizes, where=where)
    zeros = REGISTRY["full"](sizes, 0, dtype=float32, device=where)
    scores = REGISTRY["positional_values"](zeros, found.operands(), found.program, sizes, where)
    return scores != float("-inf")


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = DEFAULT_BLOCK_SIZE,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """The blocks of `mask_mod`'s mask that hold anything; memory is a number per block.

    B, H: None or 1 for a mask that all batches or heads share. separate_full_blocks: list blocks without a masked position apart, so that nobody
    calls `mask_mod` there; blocks that reach over the lengths are never full. `_compile` changes nothing: counting is one kernel in any case.
    Raises: AssertionError unless the function takes 4 arguments and gives bools; RuntimeError where it branches on a position.
    """
    count = count_parameters(mask_mod)
    if count != 4:
        raise AssertionError(
            message(
                "create_block_mask",
                "requires a mask_mod function of (b, h, q_idx, kv_idx)",
                f"{name_of(mask_mod)} of {count} arguments",
            )
        )
    if not isinstance(dq_kv_order, bool):
        raise ValueError(message("create_block_mask", "dq_kv_order must be a bool", type(dq_kv_order).__name__))
    blocks = _pair(BLOCK_SIZE)
    if min(blocks) < 1:
        raise ValueError(message("create_block_mask", "BLOCK_SIZE must be positive", f"{BLOCK_SIZE}"))
    if _compile:
        warnings.warn(
            "create_block_mask: _compile is deprecated and does nothing; the mask is counted by one kernel anyway.",
            DeprecationWarning,
            stacklevel=2,
        )
    where = as_device(device)
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    if 0 in sizes:  # there are no positions to ask the function about
        counts = REGISTRY["full"]((*sizes[:2], *block_grid(sizes, blocks)), 0, dtype=int64, device=where)
    else:
        found = traced(mask_mod, "mask_mod", sizes=sizes, where=where)
        operands, last = found.operands(), (Q_LEN - 1, KV_LEN - 1)
        counts = REGISTRY["positional_counts"](operands, found.program, sizes, blocks, where, *last)
    full: tuple = (None, None)
    some = counts > 0
    if separate_full_blocks:
        all_of_it = counts == blocks[0] * blocks[1]
        full = to_lists(all_of_it)
        some = some & ~all_of_it
    result = BlockMask.from_kv_blocks(
        *to_lists(some), *full, BLOCK_SIZE=blocks, mask_mod=mask_mod, seq_lengths=(Q_LEN, KV_LEN)
    )
    if compute_dq_write_order:
        result.dq_write_order, result.dq_write_order_full = write_order(result, dq_kv_order)
        result.dq_kv_order_spt = dq_kv_order
    return result
