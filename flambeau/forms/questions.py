"""Questions about tensors that need no op: `numel(x)`, `is_tensor(x)`, `result_type(x, 2.0)`; and the methods of that kind.

May not know: values, but for `is_nonzero`. Exported by `flambeau`, and hung on Tensor by `install`.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.dtype import dtype, dtype_of_number
from flambeau.core.dtype import result_type as type_of_operands
from flambeau.core.formats import layout, strided

__all__ = [
    "detach",
    "detach_",
    "get_device",
    "is_complex",
    "is_conj",
    "is_floating_point",
    "is_inference",
    "is_neg",
    "is_nonzero",
    "is_same_size",
    "is_signed",
    "is_storage",
    "is_tensor",
    "numel",
    "result_type",
]


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a tensor."""
    return isinstance(obj, Tensor)


def is_storage(obj: Any) -> bool:
    """Whether `obj` is a storage. Flambeau shows none: memory belongs to tensors."""
    return False


def numel(input: Tensor) -> int:
    """Number of elements."""
    return _tensor("numel", input).numel()


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is floating."""
    return _tensor("is_floating_point", input).dtype.is_floating_point


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is complex."""
    return _tensor("is_complex", input).dtype.is_complex


def is_signed(input: Tensor) -> bool:
    """Whether the dtype has negative numbers."""
    return _tensor("is_signed", input).dtype.is_signed


def is_conj(input: Tensor) -> bool:
    """Whether conjugation is pending: never, since it is computed when asked for."""
    _tensor("is_conj", input)
    return False


def is_neg(input: Tensor) -> bool:
    """Whether negation is pending: never, since it is computed when asked for."""
    _tensor("is_neg", input)
    return False


def is_inference(input: Tensor) -> bool:
    """Whether the tensor was made in inference mode."""
    return _tensor("is_inference", input).is_inference()


def is_nonzero(input: Tensor) -> bool:
    """Whether the one element is not zero. Raises: RuntimeError for any other number of elements."""
    if _tensor("is_nonzero", input).numel() != 1:
        raise RuntimeError(
            message(
                "is_nonzero",
                "input must have one element (Boolean value of Tensor with "
                f"{'more than one value' if input.numel() else 'no values'} is ambiguous)",
                f"shape {list(input.shape)}",
                "Use .any() or .all().",
            )
        )
    return bool(input.item())


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one shape."""
    return _tensor("is_same_size", input).shape == _tensor("is_same_size", other).shape


def get_device(input: Tensor) -> int:
    """Index of the device; -1 on the CPU."""
    return _tensor("get_device", input).get_device()


def detach(input: Tensor) -> Tensor:
    """The same memory without history."""
    return _tensor("detach", input).detach()


def detach_(input: Tensor) -> Tensor:
    """Forget the tensor's history."""
    return _tensor("detach_", input).detach_()


def result_type(tensor1: Any, tensor2: Any) -> dtype:
    """The dtype that an operation on two tensors or numbers has."""
    return type_of_operands([_operand(tensor1), _operand(tensor2)])


def _operand(x: Any) -> tuple[dtype, int, bool]:
    if isinstance(x, Tensor):
        return x.dtype, x.ndim, False
    if isinstance(x, (bool, int, float, complex)):
        return dtype_of_number(x), 0, True
    raise TypeError(message("result_type", "operands must be tensors or numbers", type(x).__name__))


def _tensor(name: str, x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(message(name, "input must be a tensor", type(x).__name__, "Make one with tensor(...)."))
    return x


# ------------------------------------------------------------------ methods
def _layout(self: Tensor) -> layout:
    """How elements lie: always by strides."""
    return strided


def is_pinned(self: Tensor, device: Any = None) -> bool:
    """Whether the memory is pinned for a GPU: never."""
    return False


def dim_order(self: Tensor) -> tuple[int, ...]:
    """Dims from the outermost in memory to the innermost."""
    return tuple(sorted(range(self.ndim), key=lambda d: (-self.stride(d), d)))


def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Whether both are the same memory in the same shape and strides."""
    return self.data_ptr() == tensor.data_ptr() and self.shape == tensor.shape and self.stride() == tensor.stride()


def install() -> None:
    """Hang the methods on Tensor."""
    for f in (is_conj, is_neg, is_nonzero, is_same_size, is_pinned, dim_order, is_set_to):
        setattr(Tensor, f.__name__, f)
    Tensor.layout = property(_layout)
    Tensor.name = property(lambda self: None, doc="Always None.")
    for kind in ("mps", "xpu", "mtia", "xla", "ipu", "maia", "vulkan", "mkldnn", "sparse_csr"):
        setattr(Tensor, f"is_{kind}", False)
