"""Flambeau: PyTorch's programming model over kernels generated at run time. `import flambeau as torch`."""

from __future__ import annotations

import flambeau.operators  # noqa: F401
from flambeau._tensor import Tensor, install_methods
from flambeau.core.dtype import BY_NAME as _dtypes

globals().update(_dtypes)
install_methods()
