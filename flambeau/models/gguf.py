"""GGUF model files: metadata, and tensors as float32 or as the quantised blocks they are.

    file = gguf.read("model.gguf")
    file.metadata["general.architecture"]       # "llama"
    file.tensor("token_embd.weight")            # float32 [49152, 576], unpacked by a kernel
    file.blocks("blk.0.ffn_up.weight")          # uint8 [1536, 360], rows of blocks in the file's own pages

Types: F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K; a file with others is refused by name. Files are mapped, so what is not asked
for is not read.

May not know: what a model does with its tensors. Entry: `read`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from flambeau._tensor import Tensor, empty
from flambeau.checkpoint.gguf_format import TensorInfo, read_header
from flambeau.checkpoint.records import StorageRecord, TensorRecord, contiguous_strides
from flambeau.core.block_format import BLOCK_FORMATS
from flambeau.core.dtype import dtype, float32
from flambeau.core.spec import Spec
from flambeau.kernel import cache
from flambeau.runtime import launch
from flambeau.serialization import TensorBuilder, opened
from flambeau.templates.dequant import dequant

_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class GGUF:
    """An open file. `metadata` are its keys and values, `tensors` what it says about each tensor, in the file's order."""

    def __init__(self, data: memoryview):
        header = read_header(data)
        self._data = data
        self.version = header.version
        self.metadata: Mapping[str, object] = header.metadata
        self.tensors: Mapping[str, TensorInfo] = header.tensors

    def __repr__(self) -> str:
        kinds = sorted({info.type for info in self.tensors.values()})
        return f"GGUF(version {self.version}, {len(self.metadata)} keys, {len(self.tensors)} tensors of {', '.join(kinds)})"

    def tensor(self, name: str, dtype: dtype | None = None) -> Tensor:
        """A tensor by name: quantised ones as float32, others in the dtype they are stored in; `dtype` converts the result.

        Tensors that are not converted lie in the file's pages, which are copied when first written to.
        Raises: KeyError for a name the file does not have. Determinism: exact.
        """
        info = self._info(name)
        if info.type in _PLAIN:
            found = self._mapped(info, _PLAIN[info.type], info.shape)
        else:
            found = self._unpacked(info)
        return found if dtype is None or dtype is found.dtype else found.to(dtype)

    def blocks(self, name: str) -> Tensor:
        """A quantised tensor as it is stored: uint8, with rows of blocks as its last dim (layouts: `core/block_format.py`).

        Raises: TypeError for a tensor that is not quantised.
        """
        info = self._info(name)
        if info.type in _PLAIN:
            raise TypeError(f"gguf: blocks are of quantised tensors, {name!r} is {info.type}. Use .tensor({name!r}).")
        row_bytes = BLOCK_FORMATS[info.type].row_bytes(info.shape[-1])
        return self._mapped(info, "uint8", (*info.shape[:-1], row_bytes))

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise KeyError(f"gguf: the file must have tensor {name!r}, got {len(self.tensors)} others. See .tensors.")
        return self.tensors[name]

    def _mapped(self, info: TensorInfo, dtype_name: str, shape: tuple[int, ...]) -> Tensor:
        storage = StorageRecord(info.name, info.nbytes, "cpu", self._data[info.start : info.start + info.nbytes])
        builder = TensorBuilder(shared=True)
        return builder.tensor(TensorRecord(dtype_name, shape, contiguous_strides(shape), 0, storage))

    def _unpacked(self, info: TensorInfo) -> Tensor:
        out = empty(Spec.of(info.shape, float32))
        count = info.nbytes // BLOCK_FORMATS[info.type].nbytes
        if count:
            packed = self._mapped(info, "uint8", (info.nbytes,))
            (step,) = dequant(info.type, count).launches
            recipe, block = step.recipe, launch.block(step.params)
            launch.entry(cache.address(recipe.name, recipe.parameters, recipe.build))(
                packed.ptr, out.ptr, block.address
            )
        return out


def read(path: str | os.PathLike[str]) -> GGUF:
    """Open a file and read its header.

    Raises: CheckpointError (a RuntimeError) for a file that breaks the format or has tensors of a type that is not read.
    """
    with opened(path, shared=True) as data:
        return GGUF(data)
