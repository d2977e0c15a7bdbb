"""Flambeau: PyTorch's programming model over kernels generated at run time. `import flambeau as torch`.

Functions are the ops' declarations (`operators/`), made when first asked for; the library around them is in the sub-packages.
"""

from __future__ import annotations

import importlib
from math import e, inf, nan, pi

import flambeau.operators
from flambeau import autograd, cpu, fft, func, linalg, masked, nn, sim, special
from flambeau._tensor import Tensor, install_methods
from flambeau.arrays import from_numpy
from flambeau.core.device import device
from flambeau.core.dtype import ALIASES as _ALIASES
from flambeau.core.dtype import BY_NAME as _BY_NAME
from flambeau.core.dtype import can_cast, dtype, get_default_dtype, promote_types
from flambeau.core.formats import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    layout,
    memory_format,
    preserve_format,
    strided,
)
from flambeau.core.limits import *
from flambeau.core.spec import Size
from flambeau.engine.eager import set_num_threads
from flambeau.factories import *
from flambeau.forms.counting import *
from flambeau.forms.counting import install as _install_counting
from flambeau.forms.join import *
from flambeau.forms.join import install as _install_joins
from flambeau.forms.legacy import *
from flambeau.forms.legacy import install as _install_legacy
from flambeau.forms.legacy import typename
from flambeau.forms.linear_algebra import *
from flambeau.forms.linear_algebra import install as _install_linear_algebra
from flambeau.forms.made_alike import install as _install_made_alike
from flambeau.forms.pointwise import *
from flambeau.forms.pointwise import install as _install_pointwise
from flambeau.forms.questions import *
from flambeau.forms.questions import install as _install_questions
from flambeau.forms.reduction import *
from flambeau.forms.reduction import install as _install_reductions
from flambeau.forms.shape import *
from flambeau.forms.shape import common_shape as broadcast_shapes
from flambeau.forms.shape import install as _install_shapes
from flambeau.forms.signals import *
from flambeau.forms.signals import install as _install_signals
from flambeau.forms.switches import *
from flambeau.forms.whole_or_dim import *
from flambeau.func import vmap
from flambeau.indexing import *
from flambeau.indexing import install as _install_indexing
from flambeau.interop.reduction import install as _install_reduction
from flambeau.namespace import names_of
from flambeau.nn.normalisation_forms import native_batch_norm
from flambeau.printing import *
from flambeau.random import *
from flambeau.random import install as _install_random
from flambeau.runtime.launch import get_num_threads
from flambeau.tape.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from flambeau.tensor_methods import install as _install_hand_written
from flambeau.tensor_methods import zero_
from flambeau.version import __version__

globals().update(_BY_NAME)
globals().update(_ALIASES)
_install_made_alike()
_install_shapes()
_install_joins()
_install_linear_algebra()
_install_indexing()
_install_hand_written()
_install_reductions()
_install_counting()
_install_pointwise(from_numpy)
_install_legacy()
_install_questions()
_install_random()
_install_signals()
_install_reduction()
install_methods()

newaxis = None
_declared, __dir__ = names_of("", globals())


# Functions that PyTorch shows at the top and whose modules load at first use: (module, name there).
_ELSEWHERE = {
    **{
        name: ("flambeau.nn.recurrent_forms", name)
        for name in ("gru", "gru_cell", "lstm", "lstm_cell", "rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell")
    },
    **{
        name: ("flambeau.nn.random_forms", name)
        for name in ("alpha_dropout", "feature_alpha_dropout", "native_dropout")
    },
    **{name: ("flambeau.nn.random_forms", f"torch_{name}") for name in ("dropout", "dropout_", "feature_dropout")},
    **{
        f"{name}_window": ("flambeau.signal.periodic", f"{name}_window")
        for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")
    },
    "compile": ("flambeau.compiler", "compile"),
    "norm_except_dim": ("flambeau.nn.utils.weight_norm", "norm_except_dim"),
}

# Imported when first used.
_PACKAGES = (
    "accelerator",
    "backends",
    "compiler",
    "cuda",
    "distributed",
    "mps",
    "multiprocessing",
    "optim",
    "signal",
    "testing",
    "utils",
    "version",
    "xpu",
)

# PyTorch's names that are refused, and why.
_UNSIGNED = "Flambeau's integers are uint8, int8, int16, int32 and int64. Use a wider signed one."
_SPARSE = "Flambeau's tensors are dense (layout strided). Use .to_dense() where the data comes from."
_REFUSED = {
    **dict.fromkeys(("complex32", "chalf"), "Flambeau's complex dtypes are complex64 and complex128. Use complex64."),
    **dict.fromkeys(("uint16", "uint32", "uint64"), _UNSIGNED),
    "hash_tensor": f"Its results are uint64. {_UNSIGNED}",
    **dict.fromkeys(
        ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
        "Flambeau's floating dtypes are bfloat16, float16, float32 and float64. Use bfloat16.",
    ),
    **dict.fromkeys(
        ("qint8", "quint8", "qint32", "quantize_per_tensor"), "Tensors with quantised dtypes are not supported."
    ),
    **dict.fromkeys(
        (
            "sparse_coo",
            "sparse_csr",
            "sparse_csc",
            "sparse_bsr",
            "sparse_bsc",
            "sparse_coo_tensor",
            "sparse_csr_tensor",
        ),
        _SPARSE,
    ),
    "jit": "Flambeau compiles what it runs; there is no script language. Leave torch.jit out.",
}

# Those that are not there yet, and what to do without.
_ABSENT = {
    **dict.fromkeys(("amp", "autocast", "GradScaler"), "Convert the model and its inputs with .to(torch.bfloat16)."),
    "distributions": "Draw with rand, randn, bernoulli, multinomial or poisson.",
    "profiler": "FLAMBEAU_DEBUG=2 shows the time of each kernel.",
    "sparse": _SPARSE,
    "nested": "Pad with nn.utils.rnn.pad_sequence.",
    **dict.fromkeys(("quantization", "ao"), "Models in GGUF files run quantised."),
    "hub": "Load checkpoints with torch.load.",
    **dict.fromkeys(("fx", "onnx", "package"), "capture.step.capture shows what a function does as a graph."),
}


def __getattr__(name: str):
    """Ops by name, sub-packages, and the functions for files, whose package is loaded when first used."""
    if name in _ELSEWHERE:
        module, attribute = _ELSEWHERE[name]
        globals()[name] = getattr(importlib.import_module(module), attribute)
        return globals()[name]
    if name in _REFUSED:
        raise AttributeError(f"module 'flambeau' has no attribute '{name}': refused. {_REFUSED[name]}")
    if name in _ABSENT:
        raise AttributeError(f"module 'flambeau' has no attribute '{name}': it is not there yet. {_ABSENT[name]}")
    if name in _PACKAGES:
        return importlib.import_module(f"flambeau.{name}")
    if name not in ("load", "save", "serialization"):
        return _declared(name)
    import flambeau.serialization as serialization

    globals().update(load=serialization.load, save=serialization.save)
    return globals()[name]
