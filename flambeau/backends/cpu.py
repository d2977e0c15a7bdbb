"""The CPU that kernels are made for."""

from __future__ import annotations

from flambeau.kernel import target


def get_cpu_capability() -> str:
    """ "AVX512", "AVX2" or "DEFAULT", the vector instructions in use, in PyTorch's words."""
    here = target.current()
    return "AVX512" if here.has("avx512f") else "AVX2" if here.has("avx2") else "DEFAULT"
