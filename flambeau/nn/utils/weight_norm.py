"""Weight normalisation: a weight as length times direction. Source: Salimans and Kingma (2016).

The weight is replaced by parameters weight_g and weight_v, and computed before each forward.
"""

from __future__ import annotations

from typing import Any, TypeVar

from flambeau._tensor import Tensor
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter, UninitializedParameter

__all__ = ["WeightNorm", "norm_except_dim", "remove_weight_norm", "weight_norm"]

T = TypeVar("T", bound=Module)


def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """The norm over all dims but one (all dims for -1), with dims of size 1 kept."""
    if dim == -1:
        return (v.abs() ** pow).sum() ** (1 / pow) if pow != 2 else (v * v).sum().sqrt()
    dims = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    return (v * v).sum(dims, True).sqrt() if pow == 2 else (v.abs() ** pow).sum(dims, True) ** (1 / pow)


class WeightNorm:
    """The hook that computes the weight."""

    def __init__(self, name: str, dim: int | None):
        self.name, self.dim = name, -1 if dim is None else dim

    def compute_weight(self, module: Module) -> Tensor:
        """g v / |v|."""
        g, v = getattr(module, self.name + "_g"), getattr(module, self.name + "_v")
        return v * (g / norm_except_dim(v, 2, self.dim))

    @staticmethod
    def apply(module: Module, name: str, dim: int | None) -> WeightNorm:
        """Split a module's weight. Raises: RuntimeError if it is split already, ValueError for a lazy one."""
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm) and hook.name == name:
                raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
        made = WeightNorm(name, dim)
        weight = getattr(module, name)
        if isinstance(weight, UninitializedParameter):
            raise ValueError(
                "The module passed to `WeightNorm` can't have uninitialized parameters. Make sure to run the dummy forward before applying "
                "weight normalization"
            )
        del module._parameters[name]
        module.register_parameter(name + "_g", Parameter(norm_except_dim(weight.detach(), 2, made.dim)))
        module.register_parameter(name + "_v", Parameter(weight.detach()))
        setattr(module, name, made.compute_weight(module))
        module.register_forward_pre_hook(made)
        return made

    def remove(self, module: Module) -> None:
        """Put the weight back as one parameter."""
        weight = self.compute_weight(module)
        delattr(module, self.name)
        del module._parameters[self.name + "_g"]
        del module._parameters[self.name + "_v"]
        setattr(module, self.name, Parameter(weight.detach()))

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: T, name: str = "weight", dim: int | None = 0) -> T:
    """Replace a weight by its length (over all dims but `dim`; None: one length) and direction."""
    WeightNorm.apply(module, name, dim)
    return module


def remove_weight_norm(module: T, name: str = "weight") -> T:
    """Undo `weight_norm`. Raises: ValueError if there is none."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, WeightNorm) and hook.name == name:
            hook.remove(module)
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"weight_norm of '{name}' not found in {module}")
