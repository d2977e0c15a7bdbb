"""Softmax over many classes by clusters of frequency. Source: Grave et al. (2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flambeau._tensor import Tensor
from flambeau.factories import zeros
from flambeau.ir.op import REGISTRY
from flambeau.nn import functional as F
from flambeau.nn.modules.container import ModuleList, Sequential
from flambeau.nn.modules.linear import Linear
from flambeau.nn.modules.module import Module

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class _ASMoutput(NamedTuple):
    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log probability of the target and its negative mean. Classes are sorted by frequency; those from `cutoffs` on are in clusters.

    Shapes: input [N, in_features], target [N] -> output [N], loss []. (Without batch: [in_features], [].)
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (
            cutoffs != sorted(cutoffs)
            or min(cutoffs) <= 0
            or max(cutoffs) > n_classes - 1
            or len(set(cutoffs)) != len(cutoffs)
            or any(int(c) != c for c in cutoffs)
        ):
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where each value is between 1 "
                "and "
                "n_classes-1"
            )
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, [*cutoffs, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = self.cutoffs[0], len(self.cutoffs) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        made = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, bias=head_bias, **made)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            width = int(in_features // (div_value ** (i + 1)))
            self.tail.append(
                Sequential(
                    Linear(in_features, width, bias=False, **made),
                    Linear(width, self.cutoffs[i + 1] - self.cutoffs[i], bias=False, **made),
                )
            )

    def reset_parameters(self) -> None:
        """Initial values of every projection."""
        self.head.reset_parameters()
        for first, second in self.tail:
            first.reset_parameters()
            second.reset_parameters()

    def forward(self, input: Tensor, target: Tensor) -> _ASMoutput:
        if target.dim() == 1:
            if input.size(0) != target.size(0):
                raise RuntimeError("Input and target should have the same size in the batch dimension.")
            if input.dim() != 2:
                raise RuntimeError(
                    "1D target tensor expects 2D input tensors, but found inputs with size", input.size()
                )
        elif target.dim() == 0:
            if input.dim() != 1:
                raise RuntimeError(
                    "0D target tensor expects 1D input tensors, but found inputs with size", input.size()
                )
        else:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        batched = target.dim() > 0
        input, target = (input, target) if batched else (input.unsqueeze(0), target.unsqueeze(0))
        smallest, largest = int(target.min()), int(target.max())
        if smallest < 0 or largest >= self.n_classes:
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range [{smallest}, {largest}] were found. "
            )
        head = F.log_softmax(self.head(input), 1)
        place, output = target.clamp(max=self.shortlist_size - 1), zeros(target.size(0), dtype=input.dtype)
        for i in range(self.n_clusters):
            low, high = self.cutoffs[i], self.cutoffs[i + 1]
            rows = ((target >= low) & (target < high)).nonzero().squeeze(1)
            if rows.numel() == 0:
                continue
            tail = F.log_softmax(self.tail[i](input.index_select(0, rows)), 1)
            output = output.index_add(
                0, rows, tail.gather(1, (target.index_select(0, rows) - low).unsqueeze(1)).squeeze(1)
            )
            place = place.index_fill(0, rows, self.shortlist_size + i)
        output = output + head.gather(1, place.unsqueeze(1)).squeeze(1)
        loss = (-output).mean()
        return _ASMoutput(output if batched else output.squeeze(0), loss)

    def _get_full_log_prob(self, input: Tensor, head_output: Tensor) -> Tensor:
        head = F.log_softmax(head_output, 1)
        parts = [head[:, : self.shortlist_size]]
        for i in range(self.n_clusters):
            tail = F.log_softmax(self.tail[i](input), 1)
            at = self.shortlist_size + i
            parts.append(tail + head[:, at : at + 1])
        return REGISTRY["cat"](tuple(parts), 1)

    def log_prob(self, input: Tensor) -> Tensor:
        """Log probabilities of all classes. Shapes: [N, in_features] -> [N, n_classes]."""
        return self._get_full_log_prob(input, self.head(input))

    def predict(self, input: Tensor) -> Tensor:
        """The class of highest probability. Shapes: [N, in_features] -> [N]."""
        return self.log_prob(input).argmax(1)
