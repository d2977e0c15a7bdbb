"""Parametrisations: a parameter computed from others by a module whenever it is read.

    register_parametrization(layer, "weight", Symmetric())
    layer.weight                                  # Symmetric()(layer.parametrizations.weight.original)

The module's class becomes a subclass with a property for each parametrised tensor. May not know: particular parametrisations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.nn.modules.container import ModuleDict, ModuleList
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter
from flambeau.tape.grad_mode import no_grad

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]

_caching: list[dict] = []


@contextlib.contextmanager
def cached() -> Iterator[None]:
    """Inside the block each parametrised tensor is computed once."""
    _caching.append({})
    try:
        yield
    finally:
        _caching.pop()


def _register(module: Module, name: str, value: Tensor) -> None:
    if isinstance(value, Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


class ParametrizationList(ModuleList):
    """The modules applied in turn, and the tensor they start from: `original`, or `original0`, `original1` … if there are several."""

    original: Tensor
    unsafe: bool

    def __init__(self, modules: Sequence[Module], original: Tensor | Parameter, unsafe: bool = False):
        if len(modules) == 0:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        start = original
        with no_grad():
            for module in reversed(self):
                if hasattr(module, "right_inverse"):
                    try:
                        start = module.right_inverse(start)
                    except NotImplementedError:
                        continue
        self.is_tensor = isinstance(start, Tensor)
        if self.is_tensor:
            self._keep("original", original, start)
        else:
            self.ntensors = len(start)
            for i, value in enumerate(start):
                if not isinstance(value, Tensor):
                    raise ValueError(
                        "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). Got element "
                        f"{i} of the sequence with type {type(value).__name__}."
                    )
                _register(
                    self,
                    f"original{i}",
                    Parameter(value.detach(), original.requires_grad) if isinstance(original, Parameter) else value,
                )
        if not unsafe:
            self._check(original)

    def _keep(self, name: str, original: Tensor, start: Tensor) -> None:
        if isinstance(original, Parameter):
            if start is not original:
                if start.dtype is not original.dtype:
                    raise ValueError(
                        f"When `right_inverse` outputs one tensor, it may not change the dtype.\noriginal.dtype: {original.dtype}\n"
                        f"right_inverse(original).dtype: {start.dtype}"
                    )
                original.data = start.detach()
            _register(self, name, original)
        else:
            _register(self, name, start)

    def _check(self, original: Tensor) -> None:
        with no_grad():
            result = self()
        if not isinstance(result, Tensor):
            raise ValueError(f"A parametrization must return a tensor. Got {type(result).__name__}.")
        if result.dtype is not original.dtype:
            raise ValueError(
                f"Registering a parametrization may not change the dtype of the tensor, unless `unsafe` flag is enabled.\nunparametrized "
                f"dtype: "
                f"{original.dtype}\nparametrized dtype: {result.dtype}"
            )
        if result.shape != original.shape and self.is_tensor and result.shape != self.original.shape:
            raise ValueError(
                f"Registering a parametrization may not change the shape of the tensor, unless `unsafe` flag is enabled.\nunparametrized "
                f"shape: "
                f"{original.shape}\nparametrized shape: {result.shape}"
            )

    def originals(self) -> list[Tensor]:
        """The tensors that the first module takes."""
        return [self.original] if self.is_tensor else [getattr(self, f"original{i}") for i in range(self.ntensors)]

    def right_inverse(self, value: Tensor) -> None:
        """Set the originals so that the result is `value`. Raises: RuntimeError if a module has no right inverse."""
        with no_grad():
            for module in reversed(self):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(f"parametrization {type(module).__name__} does not implement right_inverse.")
                value = module.right_inverse(value)
            values = [value] if self.is_tensor else list(value)
            for old, new in zip(self.originals(), values):
                old.data = new.detach()

    def forward(self) -> Tensor:
        x = self[0](*self.originals())
        for i in range(1, len(self)):
            x = self[i](x)
        return x


def _parametrized_class(module: Module) -> None:
    base = type(module)

    def getstate(self: Module) -> Any:
        raise RuntimeError(
            "Serialization of parametrized modules is only supported through state_dict(). Use copy.deepcopy to copy them."
        )

    module.__class__ = type(
        f"Parametrized{base.__name__}", (base,), {"__getstate__": getstate, "__deepcopy__": _deepcopy}
    )


def _deepcopy(self: Module, memo: dict) -> Module:
    import copy

    found = memo.get(id(self))
    if found is None:
        found = memo[id(self)] = object.__new__(type(self))
        found.__dict__.update(copy.deepcopy(self.__dict__, memo))
    return found


def _add_property(module: Module, name: str) -> None:
    def get(self: Module) -> Tensor:
        if not _caching:
            return self.parametrizations[name]()
        cache = _caching[-1]
        key = (id(self), name)
        if key not in cache:
            cache[key] = self.parametrizations[name]()
        return cache[key]

    def put(self: Module, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    setattr(type(module), name, property(get, put))


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Compute a parameter or buffer by `parametrization` from now on; several are applied in turn.

    Raises: ValueError for a name that is neither, or a parametrisation that changes shape or dtype (unless `unsafe`).
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        if not unsafe:
            before = getattr(module, tensor_name)
            after = parametrization(before)
            if not isinstance(after, Tensor) or after.shape != before.shape or after.dtype is not before.dtype:
                raise ValueError(
                    "Registering a parametrization may not change the shape or the dtype of the tensor, unless the `unsafe` flag is "
                    "enabled."
                )
        stack = module.parametrizations[tensor_name]
        if hasattr(parametrization, "right_inverse") and stack.is_tensor:
            value = getattr(module, tensor_name).detach()
            stack.append(parametrization)
            stack.right_inverse(value)
        else:
            stack.append(parametrization)
        stack.unsafe |= unsafe
        return module
    if tensor_name not in module._parameters and tensor_name not in module._buffers:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name '{tensor_name}'"
        )
    original = getattr(module, tensor_name)
    made = ParametrizationList([parametrization], original, unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        _parametrized_class(module)
        module.parametrizations = ModuleDict()
    _add_property(module, tensor_name)
    module.parametrizations[tensor_name] = made
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module (or one of its tensors) is parametrised."""
    tables = module.__dict__.get("_modules", {}).get("parametrizations")
    if not isinstance(tables, ModuleDict):
        return False
    return len(tables) > 0 if tensor_name is None else tensor_name in tables


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Undo: the tensor becomes what it was computed to (or with leave_parametrized=False its original)."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    stack = module.parametrizations[tensor_name]
    if not leave_parametrized and not stack.is_tensor:
        raise ValueError("leave_parametrized=False is not supported when the parametrization has several originals.")
    original = stack.originals()[0]
    if leave_parametrized:
        with no_grad():
            value = getattr(module, tensor_name).detach()
        if stack.is_tensor and isinstance(original, Parameter):
            original.data = value
        else:
            original = Parameter(value, original.requires_grad) if isinstance(original, Parameter) else value
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    _register(module, tensor_name, original)
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module).__bases__[0]
    return module


def type_before_parametrizations(module: Module) -> type:
    """The class before the first parametrisation."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give another module the parametrisations (and their values) of this one."""
    if not is_parametrized(from_module):
        return to_module
    names = [tensor_name] if tensor_name is not None else list(from_module.parametrizations)
    for name in names:
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name).detach().clone()))
        source = from_module.parametrizations[name]
        for module in source:
            register_parametrization(to_module, name, module, unsafe=source.unsafe)
        with no_grad():
            for old, new in zip(to_module.parametrizations[name].originals(), source.originals()):
                old.copy_(new)
    return to_module
