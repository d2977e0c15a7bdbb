"""Attention over sequences of different lengths that lie one after the other, without padding.

    cu = torch.tensor([0, 3, 3, 10])                              # three sequences, of 3, 0 and 7 tokens
    out = varlen_attn(q, k, v, cu, cu, 7, 7, window_size=(-1, 0))  # q, k, v: [10, H, D]

Alignment. A window (left, right) counts from the diagonal that ends bottom right: the last query of a sequence stands at its last key. So with fewer
queries than keys `window_size=(-1, 0)` is causal as a decoder with a cache wants it, while `scaled_dot_product_attention(is_causal=True)` and
`nn.attention.bias.causal_upper_left` are aligned top left. Both agree where a sequence has as many queries as keys.

Each query sees one run of keys, so the mask is two numbers per query. May not know: kernels. Enter at: `varlen_attn`, `varlen_attn_out`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.dtype import int64
from flambeau.ir import tracing
from flambeau.ir.op import REGISTRY
from flambeau.nn.attention.block_mask import DEFAULT_BLOCK_SIZE, BlockMask, MaskMod, to_lists
from flambeau.nn.attention.flex_attention import AuxRequest as FlexAuxRequest
from flambeau.nn.attention.flex_attention import flex_attention
from flambeau.tape.grad_mode import is_grad_enabled

__all__ = ["AuxRequest", "varlen_attn", "varlen_attn_out"]

_REMOVED = {
    "is_causal": "Use window_size=(-1, 0) for causal attention, (-1, -1) for full.",
    "causal": "Use window_size=(-1, 0) for causal attention, (-1, -1) for full.",
    "dropout_p": "Attention over ragged batches has no dropout.",
    "return_lse": "Use return_aux=AuxRequest(lse=True).",
}


class AuxRequest(NamedTuple):
    """What `varlen_attn` returns beside its result: logs of the sums of exponentials."""

    lse: bool = False


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    **removed: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of each sequence's queries to its own keys.

    Shapes: query [Tq, H, E], key [Tk, Hkv, E], value [Tk, Hkv, Ev] -> [Tq, H, Ev]; with `block_table` key and value are
    [pages, page_size, Hkv, E or Ev]. Sequence i has queries cu_seq_q[i] … cu_seq_q[i + 1] and keys likewise; empty ones are fine, and a query
    without keys gives 0. `max_q` and `max_k` are the longest lengths, kept for PyTorch's signature.

    scale: 1 / sqrt(E) unless told. window_size: keys up to `left` before and `right` behind the query's own place, aligned bottom right (see the
    module), -1 for no bound: (-1, 0) is causal, (W, 0) causal within W. enable_gqa: Hkv may divide H. seqused_k [N]: only so many of a sequence's
    keys are there, and the last query stands at the last of these. block_table [N, pages]: where the pages of each sequence lie; it needs seqused_k,
    and cu_seq_k may be None. num_splits: taken for compatibility, no order of summation here depends on the batch.
    return_aux: give (result, lse), lse being [Tq, H] in natural logarithms. Differentiable in query, key and value.
    Raises: ValueError for shapes, lengths and windows that do not fit; TypeError for options of older versions, with what to write now.
    """
    if removed:
        _refuse_removed("varlen_attn", removed)
    given = (query, key, value, cu_seq_q, cu_seq_k, max_q, max_k)
    return _attend(
        "varlen_attn", *given, return_aux, scale, window_size, enable_gqa, seqused_k, block_table, num_splits
    )


def varlen_attn_out(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    **removed: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """`varlen_attn` into `out` [Tq, H, Ev], which is returned. Raises: RuntimeError if an input requires grad (use `varlen_attn`)."""
    name = "varlen_attn_out"
    if removed:
        _refuse_removed(name, removed)
    if is_grad_enabled() and any(t.requires_grad for t in (out, query, key, value)):
        raise RuntimeError(
            f"{name}: functions with an output given do not support automatic differentiation, but an argument requires grad. "
            "Use varlen_attn, or work under no_grad()."
        )
    given = (query, key, value, cu_seq_q, cu_seq_k, max_q, max_k)
    found = _attend(name, *given, return_aux, scale, window_size, enable_gqa, seqused_k, block_table, num_splits)
    result, lse = found if isinstance(found, tuple) else (found, None)
    if tuple(out.shape) != tuple(result.shape) or out.dtype is not result.dtype:
        raise ValueError(
            message(
                name,
                f"out must be {result.dtype.name} of shape {list(result.shape)}",
                f"{out.dtype.name} {list(out.shape)}",
            )
        )
    out.copy_(result)
    return out if lse is None else (out, lse)


def _refuse_removed(name: str, removed: dict) -> None:
    word = next(iter(removed))
    raise TypeError(
        f"{name}: got an unexpected keyword argument {word!r}. " + _REMOVED.get(word, "See help(varlen_attn).")
    )


def _attend(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    return_aux: AuxRequest | None,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor | None,
    block_table: Tensor | None,
    num_splits: int | None,
) -> Tensor | tuple[Tensor, Tensor]:
    window = _checked_window(name, window_size)
    _check_shapes(name, query, key, value, cu_seq_q, cu_seq_k, enable_gqa, seqused_k, block_table)
    if num_splits is not None and (not isinstance(num_splits, int) or num_splits < 0):
        raise ValueError(message(name, "num_splits must be an int of at least 0, or None", repr(num_splits)))
    cu_seq_q = cu_seq_q.to(int64)
    if block_table is not None:
        pages, page = block_table.shape[1], key.shape[1]
        table = block_table.to(int64).clamp(
            0, max(0, key.shape[0] - 1)
        )  # what stands behind a sequence's pages is not read
        key, value = key[table].flatten(0, 2), value[table].flatten(0, 2)
        starts = REGISTRY["iota"]((cu_seq_q.shape[0] - 1,), 0, pages * page, device=query.device)
        lengths = seqused_k.to(int64)
    else:
        cu_seq_k = cu_seq_k.to(int64)
        starts, lengths = cu_seq_k[:-1], cu_seq_k.diff()
        if seqused_k is not None:
            lengths = lengths.minimum(seqused_k.to(int64))
    first, last = runs(cu_seq_q, starts, lengths, window, query.shape[0])
    mask = block_mask_of_runs(first, last, key.shape[0], is_grad_enabled())
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
    out, aux = flex_attention(q, k, v, None, mask, scale, enable_gqa, return_aux=FlexAuxRequest(lse=True))
    out = out.squeeze(0).transpose(0, 1)
    if return_aux is not None and return_aux.lse:
        return out, aux.lse.squeeze(0).transpose(0, 1)
    return out


def runs(
    cu_seq_q: Tensor, starts: Tensor, lengths: Tensor, window: tuple[int, int], count: int
) -> tuple[Tensor, Tensor]:
    """For each of `count` queries the first key it sees and the one behind the last, equal if it sees none."""
    ops, sequences = REGISTRY, cu_seq_q.shape[0] - 1
    place = ops["iota"]((count,), device=cu_seq_q.device)
    if not sequences:
        return place * 0, place * 0
    inside = place < cu_seq_q[-1]
    of = ops["searchsorted"](cu_seq_q[1:].contiguous(), place, right=True).clamp(None, sequences - 1)
    start, length = starts[of], lengths[of]
    at = place - cu_seq_q[1:][of] + length  # aligned bottom right
    low = start if window[0] < 0 else start + (at - window[0]).clamp(0).minimum(length)
    high = start + (length if window[1] < 0 else (at + window[1] + 1).clamp(0).minimum(length))
    high = ops["where"](inside, high.maximum(low), low)
    return low, high


def between(first: Tensor, last: Tensor) -> MaskMod:
    """The mask by which query i sees keys first[i] up to, not including, last[i]."""

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx >= first[q_idx]) & (kv_idx < last[q_idx])

    return mask_mod


def block_mask_of_runs(first: Tensor, last: Tensor, keys: int, by_keys: bool) -> BlockMask:
    """The block mask of `between`, found from bounds of the runs, without looking at positions. Some partial blocks may turn out empty."""
    ops, size, queries = REGISTRY, DEFAULT_BLOCK_SIZE, first.shape[0]
    rows, columns = -(-queries // size), -(-keys // size)
    empty = first >= last
    padding = (0, rows * size - queries)

    def grouped(x: Tensor, fill: int) -> Tensor:
        return ops["constant_pad_nd"](x, padding, fill).view(rows, size)

    at = ops["iota"]((columns,), device=first.device) * size
    behind = (at + size).clamp(None, keys)
    if rows:
        low, high = (
            grouped(ops["where"](empty, keys, first), keys).amin(1),
            grouped(ops["where"](empty, 0, last), 0).amax(1),
        )
        inner = (
            grouped(ops["where"](empty, keys, first), 0).amax(1),
            grouped(ops["where"](empty, 0, last), keys).amin(1),
        )
    else:
        low = high = first
        inner = first, first
    low, high, start, stop = (x.unsqueeze(1) for x in (low, high, *inner))
    some = (behind > low) & (at < high)
    full = (at >= start) & (at + size <= stop)  # blocks cut short by the end are never full
    lists = (*to_lists(some & ~full), *to_lists(full))
    return BlockMask.from_kv_blocks(
        *(x.unsqueeze(0).unsqueeze(0) for x in lists),
        BLOCK_SIZE=size,
        mask_mod=between(first, last),
        seq_lengths=(queries, keys),
        compute_q_blocks=by_keys,
    )


# ------------------------------------------------------------------ checks
def _checked_window(name: str, window: Any) -> tuple[int, int]:
    if window is None:
        return -1, -1
    found = tuple(window)
    if len(found) != 2:
        raise ValueError(message(name, "window_size must have length 2, (left, right)", f"{len(found)} numbers"))
    if not all(isinstance(n, int) and n >= -1 for n in found):
        raise ValueError(message(name, "window_size must hold ints of at least -1 (no bound)", f"{found}"))
    return found


def _check_shapes(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    gqa: bool,
    seqused_k: Tensor | None,
    block_table: Tensor | None,
) -> None:
    dims = 3 if block_table is None else 4
    if query.ndim != 3 or key.ndim != dims or value.ndim != dims:
        shape = "[T, H, D]" if block_table is None else "[pages, page_size, H, D]"
        got = {"query": list(query.shape), "key": list(key.shape), "value": list(value.shape)}
        raise ValueError(message(name, f"query must be [T, H, D], key and value {shape}", got))
    heads, shared = query.shape[1], key.shape[-2]
    if not gqa and heads != shared:
        raise ValueError(
            message(
                name,
                "query and key/value must have the same number of heads",
                f"Hq={heads} and Hkv={shared}",
                "Try setting enable_gqa=True for GQA.",
            )
        )
    if gqa and (not shared or heads % shared):
        raise ValueError(
            message(
                name, "the number of query heads must be a multiple of kv heads for GQA", f"Hq={heads} and Hkv={shared}"
            )
        )
    if block_table is not None and seqused_k is None:
        raise ValueError(message(name, "block_table requires seqused_k, the number of keys of each sequence", "None"))
    if block_table is None and cu_seq_k is None:
        raise ValueError(message(name, "cu_seq_k may be None only with block_table and seqused_k", "None"))
    sequences = cu_seq_q.shape[0] - 1
    others = {"cu_seq_k": cu_seq_k, "seqused_k": seqused_k, "block_table": block_table}
    for word, t in others.items():
        count = None if t is None else t.shape[0] - (word == "cu_seq_k")
        if count is not None and count != sequences and not (word == "cu_seq_k" and block_table is not None):
            raise ValueError(message(name, f"{word} must be of {sequences} sequences as cu_seq_q is", f"{count}"))
    if tracing.current() is None:
        _check_ends(name, "cu_seq_q", cu_seq_q, query.shape[0])
        if block_table is None:
            _check_ends(name, "cu_seq_k", cu_seq_k, key.shape[0])


def _check_ends(name: str, word: str, ends: Tensor, count: int) -> None:
    """Raises: ValueError unless the ends of sequences start at 0, never fall, and stay within the tokens."""
    if ends.ndim != 1 or ends.shape[0] < 1 or ends.dtype.name not in ("int32", "int64"):
        raise ValueError(
            message(name, f"{word} must be a 1-d int32 or int64 tensor", f"{ends.dtype.name} {list(ends.shape)}")
        )
    if "_wrapped" in ends.__dict__:
        return  # under vmap its values are not known
    values = ends.tolist()
    if values[0] != 0 or values[-1] > count or any(a > b for a, b in zip(values, values[1:])):
        raise ValueError(
            message(name, f"{word} must start at 0, never fall, and end at {count} at most", f"{values[:16]}")
        )
