"""Checkpoint files as plain data: PyTorch's zip format and safetensors both ways, its legacy format and GGUF to read.

Everything here works on records (names, numbers, bytes: `records.py`), so it can be read, tested and trusted
without a tensor library. Nothing in a file is ever executed: the pickle stream inside a PyTorch file is
interpreted by `pickle_reader.py`, which knows data and a fixed table of constructors (`constructors.py`).

    torch_format        read and write `torch.save` files        -> flambeau.load, flambeau.save
    safetensors_format                                           -> flambeau.interop.safetensors
    gguf_format         headers of GGUF files                    -> flambeau.models.gguf
    zip_format, legacy_format, pickle_reader, pickle_writer, layout, atomic    their parts

May not know: Tensor, kernels, devices. The adapter to tensors is `flambeau/serialization.py`.

Example (records only):

    from flambeau.checkpoint import torch_format
    state, _ = torch_format.read(open("model.pth", "rb").read())
    state["conv.weight"].shape
"""
