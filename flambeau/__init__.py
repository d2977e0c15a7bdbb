"""Flambeau: PyTorch's programming model over kernels generated at run time. `import flambeau as torch`.

Functions are the ops' declarations (`operators/`), made when first asked for; the library around them is in the sub-packages.
"""

from __future__ import annotations

import importlib

import flambeau.operators
from flambeau import autograd, cpu, fft, func, linalg, masked, nn, sim, special
from flambeau._tensor import Tensor, install_methods
from flambeau.tape.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from flambeau.core.device import device
from flambeau.core.dtype import (
    ALIASES,
    BY_NAME,
    can_cast,
    dtype,
    get_default_dtype,
    promote_types,
)
from flambeau.core.formats import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    layout,
    memory_format,
    preserve_format,
    strided,
)
from flambeau.core.spec import Size
from flambeau.engine.eager import set_num_threads
from flambeau.factories import *  # noqa: F403
from flambeau.factories import install as _install_factories
from flambeau.counting_forms import *  # noqa: F403
from flambeau.counting_forms import install as _install_counting
from flambeau.functional_forms import *  # noqa: F403
from flambeau.linear_algebra_forms import *  # noqa: F403
from flambeau.linear_algebra_forms import install as _install_linear_algebra
from flambeau.nn.normalisation_forms import native_batch_norm
from flambeau.indexing import *  # noqa: F403
from flambeau.indexing import install as _install_indexing
from flambeau.interop.arrays import from_numpy
from flambeau.interop.reduction import install as _install_reduction
from flambeau.namespace import names_of
from flambeau.func import vmap
from flambeau.pointwise_forms import *  # noqa: F403
from flambeau.pointwise_forms import install as _install_pointwise
from flambeau.printing import *  # noqa: F403
from flambeau.random import *  # noqa: F403
from flambeau.random import install as _install_random
from flambeau.reduction_forms import *  # noqa: F403
from flambeau.reduction_forms import install as _install_reductions
from flambeau.runtime.launch import get_num_threads
from flambeau.join_forms import *  # noqa: F403
from flambeau.join_forms import install as _install_joins
from flambeau.shape_forms import *  # noqa: F403
from flambeau.shape_forms import common_shape as broadcast_shapes
from flambeau.shape_forms import install as _install_shapes
from flambeau.tensor_methods import install as _install_hand_written

globals().update(BY_NAME)
globals().update(ALIASES)
_install_factories()
_install_shapes()
_install_joins()
_install_linear_algebra()
_install_indexing()
_install_hand_written()
_install_reductions()
_install_counting()
_install_pointwise(from_numpy)
_install_random()
_install_reduction()
install_methods()

__version__ = "0.1.0"
_declared, __dir__ = names_of("", globals())


def __getattr__(name: str):
    """Ops by name, sub-packages, and the functions for files, whose package is loaded when first used."""
    if name in ("optim", "utils"):
        return importlib.import_module(f"flambeau.{name}")
    if name not in ("load", "save", "serialization"):
        return _declared(name)
    import flambeau.serialization as serialization

    globals().update(load=serialization.load, save=serialization.save)
    return globals()[name]
