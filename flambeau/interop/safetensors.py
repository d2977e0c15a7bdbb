"""safetensors files as tensors.

    save_file({"weight": w}, "model.safetensors", {"format": "pt"})
    w = load_file("model.safetensors")["weight"]

Loading maps the file: tensors lie in its pages, which are copied when first written to, so opening a large file costs little.

May not know: the format (`checkpoint/safetensors_format.py`). The safetensors package is not needed. Entry: `load_file`, `save_file`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping

from flambeau._tensor import Tensor
from flambeau.checkpoint import safetensors_format
from flambeau.checkpoint.atomic import atomic_file
from flambeau.checkpoint.records import TensorRecord
from flambeau.core.device import device
from flambeau.serialization import Locations, TensorBuilder, TensorDescriber, opened

__all__ = ["load", "load_file", "metadata", "save", "save_file"]


def load_file(filename: str | os.PathLike[str], device: str | device = "cpu") -> dict[str, Tensor]:
    """The tensors of a file by name, on a device. The file must not be changed in place while they are in use.

    Raises: CheckpointError (a RuntimeError) if the file breaks the format. Source: safetensors.torch.load_file.
    """
    with opened(filename, shared=True) as data:
        return _tensors(data, Locations(device), shared=True)


def load(data: bytes) -> dict[str, Tensor]:
    """The tensors in the bytes of a file."""
    return _tensors(memoryview(data), Locations("cpu"), shared=False)


def metadata(filename: str | os.PathLike[str]) -> dict[str, str]:
    """What the file says about itself."""
    with opened(filename, shared=False) as data:
        return safetensors_format.read(data)[1]


def save_file(
    tensors: Mapping[str, Tensor], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name; the file is replaced whole, or not at all.

    Raises: TypeError for what is not a tensor of the format; RuntimeError for tensors that share memory, which the format cannot say.
    Source: safetensors.torch.save_file.
    """
    records = _records(tensors)
    with atomic_file(filename) as stream:
        safetensors_format.write(records, stream, metadata)


def save(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a file that holds the tensors."""
    stream = io.BytesIO()
    safetensors_format.write(_records(tensors), stream, metadata)
    return stream.getvalue()


def _tensors(data: memoryview, locations: Locations, *, shared: bool) -> dict[str, Tensor]:
    builder = TensorBuilder(locations, shared=shared)
    records, _ = safetensors_format.read(data)
    return {name: builder.tensor(record) for name, record in records.items()}


def _records(tensors: Mapping[str, Tensor]) -> dict[str, TensorRecord]:
    describe = TensorDescriber()
    records: dict[str, TensorRecord] = {}
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"save_file: {name!r} must be a tensor, got {type(value).__name__}. Put numbers and text into the metadata."
            )
        try:
            records[name] = describe.tensor(value).record
        except TypeError as error:
            raise TypeError(f"save_file: {name!r} {error}") from None
    _check_apart(records)
    return records


def _check_apart(records: Mapping[str, TensorRecord]) -> None:
    """No two tensors reach the same bytes."""
    reached = sorted(
        (id(record.storage), record.offset * record.item_bytes, record.end * record.item_bytes, name)
        for name, record in records.items()
        if record.numel
    )
    for (storage, _, end, name), (other_storage, start, _, other) in zip(reached, reached[1:], strict=False):
        if storage == other_storage and start < end:
            raise RuntimeError(
                f"save_file: tensors must not share memory, got {name!r} and {other!r}. Save one of them and tie them after loading, "
                "save clones, or use flambeau.save."
            )
