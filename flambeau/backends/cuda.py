"""CUDA's libraries, which are not here: the switches change nothing."""

from __future__ import annotations

from flambeau.backends.switches import Switches

matmul = Switches(
    "cuda.matmul",
    allow_tf32=False,
    allow_fp16_reduced_precision_reduction=True,
    allow_bf16_reduced_precision_reduction=True,
    allow_fp16_accumulation=False,
    fp32_precision="none",
)
_attention = Switches("cuda.sdp", flash=True, mem_efficient=True, math=True, cudnn=True)


def is_built() -> bool:
    """Whether there are kernels for CUDA: no."""
    return False


def flash_sdp_enabled() -> bool:
    """Whether fused attention is allowed on CUDA."""
    return _attention.flash


def enable_flash_sdp(enabled: bool) -> None:
    """Allow it."""
    _attention.flash = enabled


def mem_efficient_sdp_enabled() -> bool:
    """Whether memory-efficient attention is allowed on CUDA."""
    return _attention.mem_efficient


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Allow it."""
    _attention.mem_efficient = enabled


def math_sdp_enabled() -> bool:
    """Whether attention by single ops is allowed on CUDA."""
    return _attention.math


def enable_math_sdp(enabled: bool) -> None:
    """Allow it."""
    _attention.math = enabled


def cudnn_sdp_enabled() -> bool:
    """Whether cuDNN's attention is allowed."""
    return _attention.cudnn


def enable_cudnn_sdp(enabled: bool) -> None:
    """Allow it."""
    _attention.cudnn = enabled
