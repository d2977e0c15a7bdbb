"""Libraries and devices that PyTorch may compute with: none of them is here, and none is needed.

Their switches can be set and read back, so that programs which set them run; they change nothing. `backends.cpu` tells what kernels are
made for. May not know: anything that runs.
"""

from __future__ import annotations

from flambeau.backends import cpu, cuda, cudnn, mkl, mkldnn, mps, openmp

__all__ = ["cpu", "cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp"]
