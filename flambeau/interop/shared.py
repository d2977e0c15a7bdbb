"""Values between processes: tensors in one block of shared memory, everything else pickled.

    name, payload = pack(batch)            # in one process
    batch = unpack(name, payload)          # in another: its tensors are on the block

A block belongs to whoever unpacks it: its name is removed at once, and the memory goes with the last tensor on it.
May not know: data loaders, queues.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from multiprocessing import shared_memory
from typing import Any

from flambeau._tensor import ForeignStorage, Tensor, new_tensor
from flambeau._tensor import empty as tensor_of
from flambeau.core.dtype import BY_NAME
from flambeau.core.spec import Spec
from flambeau.interop.reduction import plain_values

__all__ = ["SharedBlock", "discard", "pack", "unpack"]

ALIGNMENT = 64


class SharedBlock:
    """Memory that other processes can map by name; unmapped when nobody holds it any more."""

    def __init__(self, name: str | None = None, nbytes: int = 0):
        self.memory = shared_memory.SharedMemory(name=name, create=name is None, size=nbytes)
        view = ctypes.c_char.from_buffer(self.memory.buf)
        self.address = ctypes.addressof(view)
        del view  # the address stays, and closing must not find an exported buffer

    @property
    def name(self) -> str:
        return self.memory.name

    def forget_name(self) -> None:
        """Remove the name: the memory goes when the last process unmaps it."""
        self.memory.unlink()

    def __del__(self) -> None:
        memory = self.__dict__.get("memory")
        if memory is not None:
            memory.close()


class _Packer(pickle.Pickler):
    """Pickles everything but tensors, which it puts aside."""

    def __init__(self, out: io.BytesIO):
        super().__init__(out, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self.at = 0

    def persistent_id(self, x: Any) -> Any:
        if type(x) is not Tensor or x.ptr is None:
            return None
        plain = plain_values(x)
        self.tensors.append(plain)
        at = self.at
        self.at += -(-plain.spec.nbytes // ALIGNMENT) * ALIGNMENT
        return plain.spec.dtype.name, tuple(plain.spec.shape), at, x.needs_grad


class _Unpacker(pickle.Unpickler):
    def __init__(self, payload: bytes, block: SharedBlock | None):
        super().__init__(io.BytesIO(payload))
        self.block = block

    def persistent_load(self, key: tuple) -> Tensor:
        dtype, shape, at, needs_grad = key
        spec = Spec.of(shape, BY_NAME[dtype])
        if spec.numel == 0:
            t = tensor_of(spec)
        else:
            address = self.block.address + at
            t = new_tensor(spec, address, ForeignStorage(address, self.block, spec.nbytes))
        t.needs_grad = needs_grad
        return t


def pack(value: Any) -> tuple[str | None, bytes]:
    """(name of a shared block with the tensors' values, or None; everything else as bytes)."""
    out = io.BytesIO()
    packer = _Packer(out)
    packer.dump(value)
    if not packer.at:
        return None, out.getvalue()
    block = SharedBlock(nbytes=packer.at)
    at = block.address
    for t in packer.tensors:
        if t.spec.numel:
            ctypes.memmove(at, t.ptr, t.spec.nbytes)
        at += -(-t.spec.nbytes // ALIGNMENT) * ALIGNMENT
    return block.name, out.getvalue()


def unpack(name: str | None, payload: bytes) -> Any:
    """The value, its tensors on the shared block."""
    block = None
    if name is not None:
        block = SharedBlock(name)
        block.forget_name()
    return _Unpacker(payload, block).load()


def discard(name: str | None) -> None:
    """Remove a block that nobody will unpack."""
    if name is not None:
        try:
            SharedBlock(name).forget_name()
        except FileNotFoundError:
            return
