"""Attention with scores changed and masked by functions of positions.

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 2048, 2048)
    out = flex_attention(q, k, v, alibi, mask)

The functions run once, on stand-ins for single positions (`mods`), and become part of the kernels; tensors they capture get gradients. The order is
scale * q @ k.mT, `score_mod`, mask, softmax, @ v; a row that is masked altogether gives 0. Nothing has to be compiled first.

May not know: kernels. Enter at: `flex_attention`, `create_block_mask`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, NotRequired, TypedDict

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.ir.op import REGISTRY
from flambeau.nn.attention.block_mask import (
    DEFAULT_BLOCK_SIZE,
    BlockMask,
    MaskMod,
    ScoreMod,
    and_masks,
    create_block_mask,
    create_mask,
    noop_mask,
    or_masks,
    sliced_mask_mod,
)
from flambeau.nn.attention.gradients import differentiated
from flambeau.nn.attention.mods import Traced, traced
from flambeau.operators.attention_rules import Rules
from flambeau.operators.flex import working

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
]

# PyTorch's names that libraries on top of it import, though they begin with an underscore.
_DEFAULT_SPARSE_BLOCK_SIZE = DEFAULT_BLOCK_SIZE
_mask_mod_signature = MaskMod
_score_mod_signature = ScoreMod

_NAME = "flex_attention"
_BACKENDS = ("AUTO", "TRITON", "TRITON_DECODE", "FLASH")


class AuxRequest(NamedTuple):
    """What `flex_attention` returns beside its result: logs of the sums of exponentials, largest scores."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What was asked for by an AuxRequest, [B, H, L] each, in natural logarithms; None for the rest."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


class FlexKernelOptions(TypedDict, total=False):
    """PyTorch's options of kernels. All but BACKEND tune its GPU kernels and change nothing here; `fwd_` and `bwd_` may stand before a name."""

    num_warps: NotRequired[int]
    num_stages: NotRequired[int]
    BLOCK_M: NotRequired[int]
    BLOCK_N: NotRequired[int]
    BLOCK_M1: NotRequired[int]
    BLOCK_N1: NotRequired[int]
    BLOCK_M2: NotRequired[int]
    BLOCK_N2: NotRequired[int]
    PRESCALE_QK: NotRequired[bool]
    ROWS_GUARANTEED_SAFE: NotRequired[bool]
    BLOCKS_ARE_CONTIGUOUS: NotRequired[bool]
    WRITE_DQ: NotRequired[bool]
    FORCE_USE_FLEX_ATTENTION: NotRequired[bool]
    USE_TMA: NotRequired[bool]
    kpack: NotRequired[int]
    matrix_instr_nonkdim: NotRequired[int]
    waves_per_eu: NotRequired[int]
    BACKEND: NotRequired[str]


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: FlexKernelOptions | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]:
    """softmax(score_mod(scale * query @ key.mT) where the mask lets through) @ value, rows without anything to see 0.

    Shapes: [B, Hq, L, E], [B, Hkv, S, E], [B, Hkv, S, Ev] -> [B, Hq, L, Ev]; with `enable_gqa` Hkv divides Hq; with a block mask of batch B key and
    value may have batch 1. lse and max_scores are [B, Hq, L], float32 (float64 for float64 inputs), -inf for rows that see nothing.
    scale: 1 / sqrt(E) unless told. return_aux: give (result, AuxOutput); return_lse is the older form of it and gives (result, lse).
    Differentiable in query, key, value and what the functions captured, twice too; max_scores carries no gradient.
    Raises: NotImplementedError unless inputs have 4 dims; ValueError for shapes, a block mask of other lengths or options that do not fit;
    RuntimeError where a function branches on a position or a mask was sliced.
    """
    _check_inputs(query, key, value, enable_gqa)
    _check_block_mask(query, key, block_mask)
    if return_lse and return_aux is not None:
        raise ValueError(
            message(
                _NAME, "cannot specify both return_lse and return_aux", "both", "Use return_aux=AuxRequest(lse=True)."
            )
        )
    if return_lse:
        _warn_of_return_lse()
    _check_options(kernel_options or {})
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    score = mask = None
    if 0 in sizes:  # there are no positions to ask the functions about
        score_mod = block_mask = None
    if score_mod is not None:
        score = traced(score_mod, "score_mod", score=working(query.dtype), sizes=sizes, where=query.device)
    if block_mask is not None and block_mask.mask_mod is not noop_mask:
        mask = traced(block_mask.mask_mod, "mask_mod", sizes=sizes, where=query.device)
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0
    out, lse, most = _attend(query, key, value, score, mask, block_mask, float(scale))
    if return_aux is not None:
        return out, AuxOutput(lse if return_aux.lse else None, most if return_aux.max_scores else None)
    return (out, lse) if return_lse else out


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Traced | None,
    mask_mod: Traced | None,
    block_mask: BlockMask | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(result, lse, largest scores) of inputs that were checked. Functions that are not numbers for single positions want every score."""
    scores = () if score_mod is None else score_mod.operands()
    masks = () if mask_mod is None else mask_mod.operands()
    programs = [None if m is None else m.program for m in (score_mod, mask_mod)]
    size = (1, 1) if block_mask is None else tuple(block_mask.BLOCK_SIZE)
    if not all(p is None or p.scalar for p in programs):
        states = None if block_mask is None else block_mask.states()
        return REGISTRY["flex_dense"](query, key, value, (*scores, *masks), states, *programs, scale, size, len(scores))
    gradient, reads = (None, ()) if programs[0] is None else differentiated(programs[0])
    rules = Rules(programs[0], programs[1], gradient, reads, len(scores))
    lists = turned = ()
    if block_mask is not None:
        lists, turned = block_mask.lists(), block_mask.turned_lists()
    if key.shape[0] != query.shape[0]:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    return REGISTRY["attention"](
        query, key, value, lists, turned, (*scores, *masks), rules, False, 0, size if lists else None, scale
    )


# ------------------------------------------------------------------ checks
def _shapes(**tensors: Tensor) -> dict[str, list[int]]:
    return {n: list(t.shape) for n, t in tensors.items()}


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, gqa: bool) -> None:
    """Raises: see `flex_attention`."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, Tensor):
            raise TypeError(message(_NAME, f"{name} must be a tensor", type(t).__name__))
    given = _shapes(query=query, key=key, value=value)
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        raise NotImplementedError(
            message(_NAME, "query, key, and value must be 4D tensors [B, H, L, E]", given, "Add dims with unsqueeze().")
        )
    if not query.dtype.is_floating_point:
        raise ValueError(message(_NAME, "query must have a floating dtype", query.dtype.name, "Convert with .float()."))
    if not query.dtype is key.dtype is value.dtype:
        dtypes = {"query": query.dtype.name, "key": key.dtype.name, "value": value.dtype.name}
        raise ValueError(message(_NAME, "query, key and value must have one dtype", dtypes, "Convert with .to(dtype)."))
    if query.device is not key.device or query.device is not value.device:
        devices = {"query": str(query.device), "key": str(key.device), "value": str(value.device)}
        raise ValueError(message(_NAME, "query, key and value must be on one device", devices, "Move them with .to()."))
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(message(_NAME, "query and key must have the same embedding dimension", given))
    if key.shape[-2] != value.shape[-2] or key.shape[1] != value.shape[1] or key.shape[0] != value.shape[0]:
        raise ValueError(message(_NAME, "key and value must have the same batch, heads and length", given))
    heads, shared = query.shape[1], key.shape[1]
    if not gqa and heads != shared:
        raise ValueError(
            message(
                _NAME,
                "query and key/value must have the same number of heads",
                f"Hq={heads} and Hkv={shared}",
                "Try setting enable_gqa=True for GQA.",
            )
        )
    if gqa and (not shared or heads % shared):
        raise ValueError(
            message(
                _NAME,
                "the number of query heads must be a multiple of kv heads for GQA",
                f"Hq={heads} and Hkv={shared}",
            )
        )


def _check_block_mask(query: Tensor, key: Tensor, mask: BlockMask | None) -> None:
    """Raises: see `flex_attention`."""
    batch, other = query.shape[0], key.shape[0]
    if mask is None:
        if batch != other:
            raise ValueError(
                message(
                    _NAME,
                    "query and key/value must have the same batch size, or non-none block_mask",
                    f"block_mask=None, Bq={batch}, and Bkv={other}",
                    "Expand key and value, or give a block mask of the query's batch.",
                )
            )
        return
    if not isinstance(mask, BlockMask):
        raise TypeError(
            message(
                _NAME,
                "block_mask must be a BlockMask",
                type(mask).__name__,
                "Make one with create_block_mask(mask_mod, B, H, L, S).",
            )
        )
    if mask.mask_mod is sliced_mask_mod:
        sliced_mask_mod(query, query, query, query)
    of_mask = (1,) * (4 - len(mask.shape)) + tuple(mask.shape)
    if batch != other and (of_mask[0] != batch or other != 1):
        raise ValueError(
            message(
                _NAME,
                "query and key/value must have the same batch size, or key/value 1 and block_mask and query the same",
                f"Bq={batch}, Bkv={other}, B_block_mask={of_mask[0]}",
            )
        )
    if of_mask[0] not in (1, batch) or of_mask[1] not in (1, query.shape[1]):
        raise ValueError(
            message(
                _NAME,
                f"block_mask must have batch 1 or {batch} and heads 1 or {query.shape[1]} as query has",
                f"block_mask.shape={of_mask}",
            )
        )
    lengths, wanted = (query.shape[2], key.shape[2]), tuple(mask.seq_lengths)
    if lengths != wanted:
        got = f"block_mask was created for block_mask.shape={tuple(mask.shape)} but got q_len={lengths[0]} and kv_len={lengths[1]}"
        if lengths[0] > wanted[0] or lengths[1] > wanted[1]:
            step = "It covers fewer positions than that: create a new block mask for these lengths."
        else:
            step = (
                "It covers more positions than that: create a new block mask, or crop this one to its upper left corner by "
                "block_mask._adjust(q_len, kv_len), which suits masks that count positions from the start."
            )
        raise ValueError(f"{_NAME}: {got}. {step}")
    grid = tuple(mask.kv_indices.shape[-2:])
    covered = (grid[0] * mask.BLOCK_SIZE[0], grid[1] * mask.BLOCK_SIZE[1])
    if covered[0] < lengths[0] or covered[1] < lengths[1]:
        raise ValueError(
            message(
                _NAME, f"block_mask must hold blocks for all of {lengths}", f"{grid} blocks of {tuple(mask.BLOCK_SIZE)}"
            )
        )
    if mask.kv_num_blocks.device is not query.device:
        raise RuntimeError(
            message(
                _NAME,
                "q/k/v and block_mask must be on the same device",
                f"{query.device} and {mask.kv_num_blocks.device}",
                "Move it with block_mask.to(device).",
            )
        )


def _check_options(options: Mapping[str, Any]) -> None:
    """Raises: ValueError for names and values that are none; RuntimeError for what cannot be had."""
    known = FlexKernelOptions.__annotations__
    for name, chosen in options.items():
        if name in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX"):
            raise AssertionError(
                message(_NAME, f"{name} must not be in kernel_options", repr(chosen), "Use return_aux.")
            )
        bare = name.removeprefix("fwd_").removeprefix("bwd_")
        if bare not in known:
            raise ValueError(
                message(
                    _NAME, f"kernel_options may hold {', '.join(sorted(known))} (also with fwd_ or bwd_)", repr(name)
                )
            )
        if bare != "BACKEND" and not isinstance(chosen, int):
            raise ValueError(message(_NAME, f"kernel_options[{name!r}] must be an int or a bool", repr(chosen)))
    if "BACKEND" in options and options.get("FORCE_USE_FLEX_ATTENTION"):
        raise RuntimeError(
            message(_NAME, "BACKEND cannot be combined with FORCE_USE_FLEX_ATTENTION", "both", "Leave the second out.")
        )
    backend = options.get("BACKEND", "AUTO")
    if backend not in _BACKENDS:
        raise ValueError(message(_NAME, f"Invalid BACKEND value, it must be one of {_BACKENDS}", repr(backend)))
    if backend.startswith("TRITON"):
        raise RuntimeError(
            message(_NAME, "BACKEND must be AUTO or FLASH on this device (Triton has no kernels for it)", repr(backend))
        )


_warned: set[str] = set()


def _warn_of_return_lse() -> None:
    if _NAME not in _warned:
        _warned.add(_NAME)
        warnings.warn(
            "flex_attention: return_lse is deprecated. Use return_aux=AuxRequest(lse=True).",
            FutureWarning,
            stacklevel=3,
        )
