"""Instance normalisation: each channel of each sample on its own."""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.nn import functional as F
from flambeau.nn.modules.batchnorm import _LazyNormBase, _NormBase

__all__ = [
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
]


class _InstanceNorm(_NormBase):
    spatial = 0

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in (self.spatial + 1, self.spatial + 2):
            raise ValueError(f"expected {self.spatial + 1}D or {self.spatial + 2}D input (got {input.dim()}D input)")

    def _apply_norm(self, input: Tensor) -> Tensor:
        return F.instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
        )

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        channels_at = input.dim() - self.spatial - 1
        if input.shape[channels_at] != self.num_features and self.affine:
            raise ValueError(
                f"expected input's size at dim={channels_at} to match num_features ({self.num_features}), "
                f"but got: {input.shape[channels_at]}."
            )
        if input.dim() == self.spatial + 1:
            return self._apply_norm(input.unsqueeze(0)).squeeze(0)
        return self._apply_norm(input)

    def _load_from_state_dict(
        self,
        state_dict: dict,
        prefix: str,
        local_metadata: dict,
        strict: bool,
        missing_keys: list,
        unexpected_keys: list,
        error_msgs: list,
    ) -> None:
        if local_metadata.get("version", None) is None and not self.track_running_stats:
            stale = [prefix + name for name in ("running_mean", "running_var") if prefix + name in state_dict]
            if stale:
                error_msgs.append(
                    f"Unexpected running stats buffer(s) {' and '.join(map(repr, stale))} for {type(self).__name__} with "
                    f"track_running_stats=False. Set track_running_stats=True, or remove them from the state dict."
                )
                for key in stale:
                    state_dict.pop(key)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


class InstanceNorm1d(_InstanceNorm):
    """Shapes: [N, C, L] or [C, L]."""

    spatial = 1


class InstanceNorm2d(_InstanceNorm):
    """Shapes: [N, C, H, W] or [C, H, W]."""

    spatial = 2


class InstanceNorm3d(_InstanceNorm):
    """Shapes: [N, C, D, H, W] or [C, D, H, W]."""

    spatial = 3


class _LazyInstance(_LazyNormBase, _InstanceNorm):
    def initialize_parameters(self, input: Tensor) -> None:
        super().initialize_parameters(input if input.dim() == self.spatial + 2 else input.unsqueeze(0))


class LazyInstanceNorm1d(_LazyInstance):
    """An InstanceNorm1d whose `num_features` comes from its first input."""

    cls_to_become, spatial = InstanceNorm1d, 1


class LazyInstanceNorm2d(_LazyInstance):
    """An InstanceNorm2d whose `num_features` comes from its first input."""

    cls_to_become, spatial = InstanceNorm2d, 2


class LazyInstanceNorm3d(_LazyInstance):
    """An InstanceNorm3d whose `num_features` comes from its first input."""

    cls_to_become, spatial = InstanceNorm3d, 3
