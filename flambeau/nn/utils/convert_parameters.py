"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from flambeau._tensor import Tensor
from flambeau.ir.op import REGISTRY

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters in one dim."""
    return REGISTRY["cat"](tuple(p.reshape(-1) for p in parameters), 0)


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Make slices of a vector the values of the parameters. Raises: TypeError for anything but a tensor."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec).__name__}")
    at = 0
    for p in parameters:
        n = p.numel()
        p.data = vec[at : at + n].view(p.shape).data
        at += n
