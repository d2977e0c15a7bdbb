"""Tensors as bytes, for `pickle` and `copy`; tensors moved into shared memory.

May not know: files, processes. Entry: `install` hangs the methods on Tensor.
"""

from __future__ import annotations

import ctypes

from flambeau._tensor import ForeignStorage, Tensor
from flambeau._tensor import empty as tensor_of
from flambeau.core.device import CPU
from flambeau.core.dtype import BY_NAME
from flambeau.core.spec import Spec
from flambeau.engine import recording
from flambeau.engine.host import bytes_at
from flambeau.ir.op import REGISTRY

__all__ = ["install", "plain_values"]


def plain_values(t: Tensor) -> Tensor:
    """The values on the CPU, in row-major order. Raises: RuntimeError for a tensor with a history."""
    if t.node is not None:
        raise RuntimeError(
            "pickle: Cowardly refusing to serialize a non-leaf tensor which requires_grad: its history cannot go along. Call .detach() "
            "first."
        )
    recording.refuse_values("pickle")
    t = t.detach()
    t = t if t.spec.device is CPU else t.cpu()
    return t if t.spec.contiguous else REGISTRY["contiguous_copy"](t)


def _reduce(self: Tensor, protocol: int) -> tuple:
    plain = plain_values(self)
    raw = bytes_at(plain.ptr, plain.spec.nbytes) if plain.spec.numel else b""
    attributes = {k: v for k, v in self.__dict__.items() if not k.startswith("_")}
    return _rebuilt, (type(self), plain.spec.dtype.name, tuple(plain.spec.shape), raw, self.needs_grad, attributes)


def _rebuilt(kind: type, dtype: str, shape: tuple, raw: bytes, needs_grad: bool, attributes: dict) -> Tensor:
    t = tensor_of(Spec.of(shape, BY_NAME[dtype]))
    if raw:
        ctypes.memmove(t.ptr, raw, len(raw))
    t = t if kind is Tensor else t._as(kind)
    t.needs_grad = needs_grad
    t.__dict__.update(attributes)
    return t


def share_memory_(self: Tensor) -> Tensor:
    """Move the values into shared memory: processes forked from here on see each other's writes."""
    if self.is_shared() or not self.spec.numel:
        return self
    from flambeau.interop.shared import SharedBlock  # brings multiprocessing, which few programs want

    recording.refuse_host_work("share_memory_")
    plain = self.detach()
    block = SharedBlock(nbytes=self.spec.nbytes)
    block.forget_name()
    ctypes.memmove(block.address, plain.ptr, self.spec.nbytes)
    self.ptr, self.storage = block.address, ForeignStorage(block.address, block, self.spec.nbytes)
    return self


def is_shared(self: Tensor) -> bool:
    """Whether the values lie in shared memory."""
    return type(getattr(self.storage, "owner", None)).__name__ == "SharedBlock"


def install() -> None:
    """Hang the methods on Tensor."""
    Tensor.__reduce_ex__ = _reduce
    Tensor.share_memory_ = share_memory_
    Tensor.is_shared = is_shared
