"""Tools for gradients, parameters and sequences. Names are loaded when first asked for."""

from __future__ import annotations

import importlib
from typing import Any

HOMES = {
    "clip_grad_norm": "clip_grad",
    "clip_grad_norm_": "clip_grad",
    "clip_grad_value_": "clip_grad",
    "clip_grads_with_norm_": "clip_grad",
    "fuse_conv_bn_eval": "fusion",
    "fuse_conv_bn_weights": "fusion",
    "fuse_linear_bn_eval": "fusion",
    "fuse_linear_bn_weights": "fusion",
    "get_total_norm": "clip_grad",
    "parameters_to_vector": "convert_parameters",
    "remove_weight_norm": "weight_norm",
    "skip_init": "init",
    "spectral_norm": "spectral_norm",
    "vector_to_parameters": "convert_parameters",
    "weight_norm": "weight_norm",
}
SUBMODULES = (
    "clip_grad",
    "convert_parameters",
    "fusion",
    "init",
    "parametrizations",
    "parametrize",
    "rnn",
    "stateless",
)


def __getattr__(name: str) -> Any:
    if name in SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in HOMES:
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
        return found
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES, *SUBMODULES})


__all__ = sorted(HOMES)
