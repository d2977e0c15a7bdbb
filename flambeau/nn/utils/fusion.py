"""Batch norms folded into the layer before them, for evaluation."""

from __future__ import annotations

import copy
from typing import TypeVar

from flambeau._tensor import Tensor
from flambeau.factories import ones_like, zeros_like
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]

M = TypeVar("M", bound=Module)


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """(weight, bias) of a convolution that includes the batch norm."""
    bias = zeros_like(bn_rm) if conv_b is None else conv_b
    weight = ones_like(bn_rm) if bn_w is None else bn_w
    shift = zeros_like(bn_rm) if bn_b is None else bn_b
    scale = weight * (bn_rv + bn_eps).rsqrt()
    shape = (1, -1) if transpose else (-1, 1)
    fused = conv_w * scale.reshape((*shape, *(1,) * (conv_w.ndim - 2)))
    return Parameter(fused.detach(), conv_w.requires_grad), Parameter(
        ((bias - bn_rm) * scale + shift).detach(), bias.requires_grad
    )


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor, bn_b: Tensor
) -> tuple[Parameter, Parameter]:
    """(weight, bias) of a linear layer that includes the batch norm."""
    bias = zeros_like(bn_rm) if linear_b is None else linear_b
    scale = bn_w * (bn_rv + bn_eps).rsqrt()
    return Parameter((linear_w * scale.unsqueeze(-1)).detach(), linear_w.requires_grad), Parameter(
        ((bias - bn_rm) * scale + bn_b).detach(), bias.requires_grad
    )


def _checked(layer: Module, bn: Module) -> None:
    if layer.training or bn.training:
        raise AssertionError("Fusion only for eval! Call .eval() first.")
    if bn.running_mean is None or bn.running_var is None:
        raise AssertionError("Only support fusing a batch norm that tracks running statistics")


def fuse_conv_bn_eval(conv: M, bn: Module, transpose: bool = False) -> M:
    """A copy of a convolution that includes the batch norm."""
    _checked(conv, bn)
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
    )
    return fused


def fuse_linear_bn_eval(linear: M, bn: Module) -> M:
    """A copy of a linear layer that includes the batch norm."""
    _checked(linear, bn)
    if linear.out_features != bn.num_features and bn.num_features != 1:
        raise AssertionError("To fuse, linear.out_features == bn.num_features or bn.num_features == 1")
    fused = copy.deepcopy(linear)
    fused.weight, fused.bias = fuse_linear_bn_weights(
        linear.weight, linear.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    )
    return fused
