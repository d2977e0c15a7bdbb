"""Methods that make tensors like the one they are called on: `x.new_zeros(2, 3)`, in its dtype and on its device unless told.

Each is a function of `flambeau.factories` with other defaults. Hung on Tensor by `install`.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import did_you_mean
from flambeau.factories import empty, empty_strided, full, ones, sizes_of, tensor, zeros

_OPTIONS = ("dtype", "layout", "device", "pin_memory", "requires_grad")


def _own(name: str, self: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """A factory's options, with the tensor's dtype and device where none are given. Raises: TypeError for other options."""
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(f"{name}: no argument named '{option}'. {did_you_mean(option, _OPTIONS)}".strip())
    dtype, device = options.get("dtype"), options.get("device")
    return {
        "dtype": self.dtype if dtype is None else dtype,
        "device": self.device if device is None else device,
        "requires_grad": options.get("requires_grad", False),
    }


def _sizes(name: str, sizes: tuple, options: dict[str, Any]) -> tuple[int, ...]:
    """Sizes one by one, as a sequence, or as the keyword `size`; none at all is the shape ()."""
    if "size" in options:
        sizes = (options.pop("size"),)
    return sizes_of(sizes or ((),), name)


def new_tensor(self: Tensor, data: Any, **options: Any) -> Tensor:
    """A copy of `data`; options as `tensor`."""
    return tensor(data, **_own("new_tensor", self, options))


def new_empty(self: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """A tensor whose values are not set; options as `empty`."""
    return empty(_sizes("new_empty", sizes, options), **_own("new_empty", self, options))


def new_zeros(self: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """Zeros; options as `zeros`."""
    return zeros(_sizes("new_zeros", sizes, options), **_own("new_zeros", self, options))


def new_ones(self: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """Ones; options as `ones`."""
    return ones(_sizes("new_ones", sizes, options), **_own("new_ones", self, options))


def new_full(self: Tensor, size: Any, fill_value: Any, **options: Any) -> Tensor:
    """One value everywhere; options as `full`."""
    return full(size, fill_value, **_own("new_full", self, options))


def new_empty_strided(self: Tensor, size: Any, stride: Any, **options: Any) -> Tensor:
    """A tensor with given strides whose values are not set; options as `empty_strided`."""
    return empty_strided(size, stride, **_own("new_empty_strided", self, options))


def install() -> None:
    """Hang the methods on Tensor."""
    for f in (new_tensor, new_empty, new_zeros, new_ones, new_full, new_empty_strided):
        setattr(Tensor, f.__name__, f)
