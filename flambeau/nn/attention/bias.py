"""Causal masks by how they are aligned, for `scaled_dot_product_attention`, without writing them out.

    F.scaled_dot_product_attention(q, k, v, causal_lower_right(q.shape[-2], k.shape[-2]))

With fewer queries than keys, `causal_upper_left` lets query i see keys 0 … i, as `is_causal=True` does; `causal_lower_right` lets the last query see
all keys, which is what a decoder with a cache wants. A query that sees nothing (lower right, more queries than keys) gives 0.

May not know: how attention is computed. Enter at: `causal_lower_right`, `causal_upper_left`.
"""

from __future__ import annotations

import enum
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.device import as_device
from flambeau.core.dtype import bool_
from flambeau.ir.op import REGISTRY

__all__ = ["CausalBias", "CausalVariant", "causal_lower_right", "causal_upper_left"]


class CausalVariant(enum.IntEnum):
    """Which corner the diagonal starts or ends in."""

    UPPER_LEFT = 1
    LOWER_RIGHT = 2


class CausalBias(Tensor):
    """A causal mask of `seq_len_q` by `seq_len_kv` positions: a bool tensor that is written out only when something else than attention reads it."""

    variant: CausalVariant
    seq_len_q: int
    seq_len_kv: int

    def __new__(cls, variant: CausalVariant, seq_len_q: int, seq_len_kv: int) -> CausalBias:
        if not isinstance(variant, CausalVariant):
            raise AssertionError(message("CausalBias", "variant must be a CausalVariant", type(variant).__name__))
        for n in (seq_len_q, seq_len_kv):
            if not isinstance(n, int) or n < 0:
                raise TypeError(message("CausalBias", "lengths must be ints of at least 0", repr(n)))
        one = REGISTRY["full"]((1, 1), 0, dtype=bool_)
        found = REGISTRY["expand"](one, (seq_len_q, seq_len_kv))._as(cls)  # one byte, whatever the lengths
        found.variant, found.seq_len_q, found.seq_len_kv = variant, seq_len_q, seq_len_kv
        return found

    @property
    def shift(self) -> int:
        """Query i sees keys up to i + shift."""
        return self.seq_len_kv - self.seq_len_q if self.variant is CausalVariant.LOWER_RIGHT else 0

    def _materialize(self, device: Any = None) -> Tensor:
        """The mask written out, on the CPU unless told."""
        return REGISTRY["triangle_mask"](self.seq_len_q, self.seq_len_kv, self.shift, False, device=as_device(device))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Attention looks at the variant; everything else sees the mask written out."""
        kwargs = kwargs or {}
        if func is REGISTRY[_ATTENTION].function and len(args) > 3 and isinstance(args[3], cls):
            return _attend(*args, **kwargs)
        return func(*(_plain(a) for a in args), **{n: _plain(a) for n, a in kwargs.items()})

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        """The mask written out, as an array."""
        return self._materialize().numpy(*args, **kwargs)

    def tolist(self) -> list:
        """The mask written out, as lists."""
        return self._materialize().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return repr(self._materialize())


_ATTENTION = "scaled_dot_product_attention"


def _plain(x: Any) -> Any:
    if isinstance(x, CausalBias):
        return x._materialize(x.device)
    return type(x)(_plain(y) for y in x) if type(x) in (tuple, list) else x


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: CausalBias,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    shift: int = 0,
) -> Tensor:
    """Attention under a causal bias, whose own shift counts. Raises: ValueError with is_causal too, or lengths that are not the bias's."""
    if is_causal:
        raise ValueError(
            message(_ATTENTION, "CausalBias should not be used with is_causal=True", "both", "Leave is_causal out.")
        )
    lengths = (query.shape[-2], key.shape[-2])
    if lengths != (mask.seq_len_q, mask.seq_len_kv):
        raise ValueError(
            message(
                _ATTENTION,
                f"a CausalBias of {mask.seq_len_q} by {mask.seq_len_kv} positions needs queries and keys of these lengths",
                f"{lengths[0]} and {lengths[1]}",
                "Make one for them.",
            )
        )
    return REGISTRY[_ATTENTION](query, key, value, None, True, scale, enable_gqa, mask.shift)


def causal_upper_left(*size: int) -> CausalBias:
    """The causal mask aligned top left: query i sees keys 0 … i. `size` is (queries, keys)."""
    _check_size("causal_upper_left", size)
    return CausalBias(CausalVariant.UPPER_LEFT, *size)


def causal_lower_right(*size: int) -> CausalBias:
    """The causal mask aligned bottom right: the last query sees all keys. `size` is (queries, keys).

    With more queries than keys the first queries see nothing and give 0.
    """
    _check_size("causal_lower_right", size)
    return CausalBias(CausalVariant.LOWER_RIGHT, *size)


def _check_size(name: str, size: tuple) -> None:
    if len(size) != 2:
        raise AssertionError(message(name, "takes two lengths, of queries and keys", f"{len(size)} of them"))
