"""Switches of the whole process that PyTorch programs set: default dtype and device, determinism, precision of products.

Where Flambeau always does what a switch may ask for (results are deterministic, float32 products are float32), it is kept and read back, and
changes nothing. May not know: ops. Exported by `flambeau`.
"""

from __future__ import annotations

from typing import Any

from flambeau.base.errors import message
from flambeau.core import dtype as types
from flambeau.core.determinism import wanted
from flambeau.core.device import CPU, as_device, device
from flambeau.engine.eager import forget_plans
from flambeau.forms.legacy import TensorType, type_named

__all__ = [
    "are_deterministic_algorithms_enabled",
    "get_default_device",
    "get_deterministic_debug_mode",
    "get_float32_matmul_precision",
    "get_num_interop_threads",
    "is_deterministic_algorithms_warn_only_enabled",
    "set_default_device",
    "set_default_dtype",
    "set_default_tensor_type",
    "set_deterministic_debug_mode",
    "set_float32_matmul_precision",
    "set_flush_denormal",
    "set_num_interop_threads",
    "use_deterministic_algorithms",
]
_PRECISIONS = ("highest", "high", "medium")
_DEBUG_MODES = ("default", "warn", "error")


class _State:
    precision = "highest"


# ------------------------------------------------------------------ defaults
def set_default_dtype(d: types.dtype) -> None:
    """The floating dtype that Python floats and factories take from now on. Raises: TypeError unless `d` is one."""
    types.set_default_dtype(d)
    forget_plans()  # results of ops on integers depend on it


def set_default_tensor_type(t: Any) -> None:
    """`set_default_dtype` by the name of a tensor type: `set_default_tensor_type("torch.DoubleTensor")`."""
    set_default_dtype((t if isinstance(t, TensorType) else type_named("set_default_tensor_type", t)).dtype)


def get_default_device() -> device:
    """Where factories make tensors: the CPU."""
    return CPU


def set_default_device(device: Any) -> None:
    """Only the CPU may be the default. Raises: RuntimeError for another device."""
    if as_device(device) is not CPU:
        raise RuntimeError(
            message(
                "set_default_device",
                "the default must be 'cpu'",
                str(device),
                f"Pass device={str(device)!r} to each factory.",
            )
        )


# ------------------------------------------------------------------ determinism
def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Ask for deterministic results. They always are (docs/determinism.md); memory that is not set is filled from now on."""
    wanted.level = (1 if warn_only else 2) if mode else 0


def are_deterministic_algorithms_enabled() -> bool:
    """Whether deterministic results were asked for."""
    return wanted.level > 0


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Whether warnings were asked for in place of errors."""
    return wanted.level == 1


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """`use_deterministic_algorithms` as "default", "warn" or "error" (0, 1, 2)."""
    modes = {name: i for i, name in enumerate(_DEBUG_MODES)} | {i: i for i in range(3)}
    if debug_mode not in modes:
        raise RuntimeError(
            message(
                "set_deterministic_debug_mode", "debug_mode must be 0, 1, 2 or one of default, warn, error", debug_mode
            )
        )
    wanted.level = modes[debug_mode]


def get_deterministic_debug_mode() -> int:
    """0 (default), 1 (warn) or 2 (error)."""
    return wanted.level


# ------------------------------------------------------------------ arithmetic and threads
def set_float32_matmul_precision(precision: str) -> None:
    """How much precision float32 products may lose. Flambeau uses none of it: they are computed in float32."""
    if precision not in _PRECISIONS:
        raise RuntimeError(
            message("set_float32_matmul_precision", f"precision must be one of {', '.join(_PRECISIONS)}", precision)
        )
    _State.precision = precision


def get_float32_matmul_precision() -> str:
    """What was last allowed."""
    return _State.precision


def set_flush_denormal(mode: bool) -> bool:
    """Whether tiny numbers could be made zero as asked: they are kept, so only for False."""
    return not mode


def set_num_interop_threads(number: int) -> None:
    """Ops run one after another: there is one thread between ops. Raises: RuntimeError unless `number` is positive."""
    if number < 1:
        raise RuntimeError(message("set_num_interop_threads", "number must be positive", number))


def get_num_interop_threads() -> int:
    """Threads that run ops side by side: one. See `get_num_threads` for those within an op."""
    return 1
