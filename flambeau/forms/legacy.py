"""Constructors by type of tensor: `Tensor([1, 2])`, `Tensor(2, 3)`, `FloatTensor`, `LongTensor` …, `x.type("torch.LongTensor")`.

They take sizes or data: numbers one by one are sizes of a tensor whose values are not set. Prefer `tensor(...)` and `empty(...)`.
May not know: how values are computed. Entry: the types; `install` makes Tensor itself callable.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.dtype import BY_NAME, get_default_dtype
from flambeau.core.dtype import dtype as DType
from flambeau.core.spec import Size
from flambeau.factories import empty, tensor

_NAMES = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "ByteTensor": "uint8",
    "CharTensor": "int8",
    "ShortTensor": "int16",
    "IntTensor": "int32",
    "LongTensor": "int64",
    "BoolTensor": "bool",
    "ComplexFloatTensor": "complex64",
    "ComplexDoubleTensor": "complex128",
}
_STEP = "Write tensor(data, dtype=...) or empty(sizes, dtype=...)."


class TensorType(type):
    """The type of `FloatTensor` and its like: instances are the tensors of one dtype."""

    dtype: DType

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is cls.dtype

    def __call__(cls, *args: Any, device: Any = None) -> Tensor:
        return constructed(f"{cls.__name__}", cls.dtype, args, device)

    def __repr__(cls) -> str:
        return f"<class 'torch.{cls.__name__}'>"


TYPES = {
    name: TensorType(
        name, (), {"dtype": BY_NAME[d], "__doc__": f"Makes {d} tensors from sizes or data.", "__module__": "flambeau"}
    )
    for name, d in _NAMES.items()
    if d in BY_NAME
}
globals().update(TYPES)
__all__ = [*TYPES]


def constructed(name: str, d: DType, args: tuple, device: Any) -> Tensor:
    """A tensor from sizes (ints one by one, or a Size) or from data."""
    if not args:
        return empty(0, dtype=d, device=device)
    first = args[0]
    if len(args) == 1 and isinstance(first, Tensor):
        if first.dtype is not d:
            raise TypeError(
                message(
                    name, f"a tensor given as data must have dtype {d.name}", first.dtype.name, f"Write x.to({d!r})."
                )
            )
        return first.detach()
    if len(args) == 1 and isinstance(first, Size):
        return empty(first, dtype=d, device=device)
    if all(is_size(a) for a in args):
        return empty(tuple(int(a) for a in args), dtype=d, device=device)
    if (
        len(args) == 1
        and (hasattr(first, "__len__") or hasattr(first, "__array__"))
        and not isinstance(first, (str, bytes))
    ):
        return tensor(first, dtype=d, device=device)
    got = ", ".join(type(a).__name__ for a in args)
    raise TypeError(
        message(
            name, "takes ints (sizes) or one sequence (data); received an invalid combination of arguments", got, _STEP
        )
    )


def is_size(a: Any) -> bool:
    return not isinstance(a, bool) and hasattr(a, "__index__") and not hasattr(a, "__len__")


def type_named(name: str, text: Any) -> TensorType:
    """The type called "torch.FloatTensor" (or without the module). Raises: TypeError, ValueError if there is none."""
    if not isinstance(text, str):
        raise TypeError(message(name, "type must be a tensor type, a dtype or a name", type(text).__name__))
    last = text.rpartition(".")[2]
    if last not in TYPES or "cuda" in text:
        raise ValueError(message(name, f"invalid type; must be one of {', '.join(TYPES)}", text))
    return TYPES[last]


_NAME_OF = {d: name for name, d in _NAMES.items()}


def typename(obj: Any) -> str:
    """The name of a tensor's type ("torch.FloatTensor") or of an object's class with its module."""
    if isinstance(obj, Tensor):
        return f"torch.{_NAME_OF[obj.dtype.name]}"
    kind = obj if isinstance(obj, type) else type(obj)
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", None) else f"{module}.{kind.__qualname__}"


# ------------------------------------------------------------------ methods
def type_(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The name of the tensor's type; or the tensor in another: a dtype, a type, or a type's name."""
    if dtype is None:
        return typename(self)
    if not isinstance(dtype, DType):
        dtype = (dtype if isinstance(dtype, TensorType) else type_named("type", dtype)).dtype
    return self.to(dtype)


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """The tensor in another's dtype."""
    return self.to(other.dtype)


def new(self: Tensor, *args: Any, device: Any = None) -> Tensor:
    """A tensor of this dtype from sizes or data. Prefer `new_empty`, `new_tensor`."""
    return constructed("new", self.dtype, args, device)


def _construct(cls: type, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor(...)` and, without a constructor of their own, its subclasses."""
    device = kwargs.pop("device", None)
    if kwargs:
        raise TypeError(message("Tensor", "takes no such keyword", ", ".join(kwargs), _STEP))
    if len(args) == 1 and isinstance(args[0], Tensor):
        found = args[0].detach()
    else:
        found = constructed("Tensor", get_default_dtype(), args, device)
    return found if cls is Tensor else found._as(cls)


def install() -> None:
    """Make Tensor callable, and hang the methods on it."""
    Tensor.__new__ = staticmethod(_construct)
    Tensor.type, Tensor.type_as, Tensor.new = type_, type_as, new
