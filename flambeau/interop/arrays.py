"""NumPy arrays as tensors and back, under the name of the interchange package; the functions are in `flambeau.arrays`."""

from __future__ import annotations

from flambeau.arrays import copied, from_numpy, to_numpy

__all__ = ["copied", "from_numpy", "to_numpy"]
