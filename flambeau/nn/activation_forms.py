"""Activations with the call forms of `nn.functional`: `inplace=`, an implicit dim of softmax, random slopes.

    relu(x, inplace=True)     # writes into x

Every rule is in `operators.nonlinear` and `operators.activation`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.core.dtype import dtype as DType
from flambeau.forms.pointwise import rrelu, rrelu_
from flambeau.ir.op import REGISTRY, Op

__all__ = [
    "celu", "celu_", "elu", "elu_", "hardsigmoid", "hardswish", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "log_softmax",
    "mish", "relu", "relu6", "relu_", "rrelu", "rrelu_", "selu", "selu_", "silu", "softmax", "softmin", "threshold", "threshold_",
]  # fmt: skip


def _with_inplace(name: str, count: int) -> Callable:
    """The function of an op with `count` public parameters and then `inplace`."""
    op: Op = REGISTRY[name]
    names = [p.name for p in op.params[:count]]

    def activation(input: Tensor, *args: Any, inplace: bool = False, **kwargs: Any) -> Tensor:
        if len(args) == count:
            *args, inplace = args
        elif len(args) > count or (kwargs and not kwargs.keys() <= set(names)):
            got = f"{len(args) + 1} positional arguments and {sorted(kwargs)}"
            raise TypeError(f"{name}: takes {', '.join([*names, 'inplace'])}, got {got}.")
        return (op.in_place if inplace else op.function)(input, *args, **kwargs)

    activation.__name__ = activation.__qualname__ = name
    activation.__doc__ = f"{op.doc}\n\n`inplace` writes the result into `input`."
    return activation


relu, relu6, selu, silu = (_with_inplace(n, 1) for n in ("relu", "relu6", "selu", "silu"))
mish, hardsigmoid, hardswish = (_with_inplace(n, 1) for n in ("mish", "hardsigmoid", "hardswish"))
leaky_relu, elu, celu = (_with_inplace(n, 2) for n in ("leaky_relu", "elu", "celu"))
threshold, hardtanh = (_with_inplace(n, 3) for n in ("threshold", "hardtanh"))
relu_, selu_, celu_, elu_ = (REGISTRY[n].in_place for n in ("relu", "selu", "celu", "elu"))
leaky_relu_, threshold_, hardtanh_ = (REGISTRY[n].in_place for n in ("leaky_relu", "threshold", "hardtanh"))


# ---------------------------------------------------------------------- softmax and relatives
def _implicit_dim(name: str, ndim: int) -> int:
    """The dim that PyTorch chose before `dim` had to be given."""
    warnings.warn(
        f"{name}: the dim should be given: it is chosen by the number of dims, which is deprecated. Pass dim=.",
        stacklevel=4,
    )
    return 0 if ndim in (0, 1, 3) else 1


def _along(name: str) -> Callable:
    op: Op = REGISTRY[name]

    def function(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
        return op.function(input, _implicit_dim(name, input.ndim) if dim is None else dim, dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = op.doc
    return function


softmax, log_softmax, softmin = (_along(n) for n in ("softmax", "log_softmax", "softmin"))
