"""Checkpoint files as plain data: PyTorch's zip and legacy formats, and safetensors, both ways.

Everything here works on records (names, numbers, bytes: `records.py`), so it can be read, tested and trusted
without a tensor library. Nothing in a file is ever executed: the pickle stream inside a PyTorch file is
interpreted by `pickle_reader.py`, which knows data and a fixed table of constructors (`constructors.py`).

    torch_format      read and write `torch.save` files          -> flambeau.load, flambeau.save
    safetensors_format                                            -> flambeau.interop.safetensors
    zip_format, legacy_format, pickle_reader, pickle_writer, layout, atomic    their parts

May not know: Tensor, kernels, devices. The adapter to tensors is `flambeau/serialization.py`.

Example (records only):

    from flambeau.checkpoint import torch_format
    state = torch_format.read(open("model.pth", "rb").read())
    state["conv.weight"].shape
"""
