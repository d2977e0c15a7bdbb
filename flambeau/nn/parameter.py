"""Parameters and buffers: tensors that a module registers when they are assigned to it.

    module.weight = Parameter(flambeau.empty(3, 4))
    module.scale = Buffer(flambeau.ones(1), persistent=False)

A parameter is an exact tensor to the engine: it takes the same fast path. May not know: modules.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.factories import empty

__all__ = ["Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter", "is_lazy"]


class _Marked(type(Tensor)):
    """isinstance() that also counts tensor subclasses marked as parameters (or buffers)."""

    mark = ""

    def __instancecheck__(self, instance: Any) -> bool:
        if type.__instancecheck__(self, instance):
            return True
        return (
            isinstance(instance, Tensor)
            and instance.__dict__.get(type(self).mark, False)
            and self in (Parameter, Buffer)
        )


class _ParameterMeta(_Marked):
    mark = "_is_param"


class _BufferMeta(_Marked):
    mark = "_is_buffer"


def _marked(cls: type, data: Tensor, requires_grad: bool, mark: str) -> Tensor:
    t = data.detach()
    if type(data) in (Tensor, Parameter, Buffer):
        t = t._as(cls)
    else:
        t = t if type(t) is type(data) else t._as(type(data))
        t.__dict__[mark] = True
    if requires_grad and not t.spec.dtype.is_inexact:
        raise RuntimeError(
            message(
                "Parameter",
                "only Tensors of floating point and complex dtype can require gradients",
                t.spec.dtype.name,
                "Pass requires_grad=False.",
            )
        )
    t.needs_grad = bool(requires_grad)
    return t


class Parameter(Tensor, metaclass=_ParameterMeta):
    """A tensor that a module counts among its parameters. Shares the memory of `data`."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        if data is None:
            data = empty(0)
        if not isinstance(data, Tensor):
            raise TypeError(
                message(
                    "Parameter", "data must be a tensor", type(data).__name__, "Make one with flambeau.tensor(...)."
                )
            )
        return _marked(cls, data, requires_grad, "_is_param")

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True):
        pass

    def __deepcopy__(self, memo: dict) -> Parameter:
        found = memo.get(id(self))
        if found is None:
            found = memo[id(self)] = type(self)(self.detach().clone(), self.needs_grad)
            _copy_attributes(self, found)
        return found

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return "Parameter containing:\n" + super().__repr__()

    def __reduce_ex__(self, protocol: int) -> tuple:
        return _rebuild, (type(self), self.detach(), self.needs_grad, _attributes(self))


class Buffer(Tensor, metaclass=_BufferMeta):
    """A tensor that a module counts among its buffers; `persistent` ones are in its state dict."""

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:
        if data is None:
            data = empty(0)
        t = _marked(cls, data, data.requires_grad, "_is_buffer")
        t.persistent = persistent
        return t

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True):
        pass


def _attributes(t: Tensor) -> dict:
    return {key: value for key, value in t.__dict__.items() if not key.startswith("_")}


def _copy_attributes(source: Tensor, target: Tensor) -> None:
    target.__dict__.update(_attributes(source))


def _rebuild(cls: type, data: Tensor, requires_grad: bool, attributes: dict) -> Tensor:
    made = cls(data, requires_grad)
    made.__dict__.update(attributes)
    return made


class _Uninitialized:
    """Shape and values come later; until then only moving and materialising is possible."""

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become an ordinary parameter (or buffer) of this shape, with values not set."""
        made = empty(tuple(shape), dtype=dtype or self.spec.dtype, device=device or self.spec.device)
        self.spec, self.ptr, self.storage = made.spec, made.ptr, made.storage
        self.__class__ = self.cls_to_become

    @property
    def shape(self) -> Any:
        raise RuntimeError(
            "shape: Can't access the shape of an uninitialized parameter or buffer. Run the module once, or call materialize(shape)."
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"<{type(self).__name__}>"

    def __deepcopy__(self, memo: dict) -> Any:
        found = memo.get(id(self))
        if found is None:
            found = memo[id(self)] = type(self)(self.needs_grad, self.spec.device, self.spec.dtype)
        return found

    def __reduce_ex__(self, protocol: int) -> tuple:
        return type(self), (self.needs_grad, str(self.spec.device), self.spec.dtype)


class UninitializedParameter(_Uninitialized, Parameter):
    """A parameter of a lazy module, before its first call."""

    cls_to_become = Parameter

    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> UninitializedParameter:
        return _marked(cls, empty(0, device=device, dtype=dtype), requires_grad, "_is_param")

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None):
        pass


class UninitializedBuffer(_Uninitialized, Buffer):
    """A buffer of a lazy module, before its first call."""

    cls_to_become = Buffer

    def __new__(
        cls, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
    ) -> UninitializedBuffer:
        t = _marked(cls, empty(0, device=device, dtype=dtype), requires_grad, "_is_buffer")
        t.persistent = persistent
        return t

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True):
        pass


def is_lazy(t: Any) -> bool:
    """Whether a parameter or buffer has no shape yet."""
    return isinstance(t, _Uninitialized)
