"""Module: parameters, buffers and sub-modules by attribute, state dicts, hooks, printing.

    class Net(Module):
        def __init__(self):
            super().__init__()
            self.fc = Linear(3, 4)

        def forward(self, x):
            return self.fc(x).relu()

Attributes are sorted by what is assigned: a Parameter, a Buffer, a Module or anything else. `epoch` counts changes (see there).
May not know: particular layers. Entry: `Module`.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flambeau._tensor import Tensor
from flambeau.base.errors import message
from flambeau.core.device import device as Device
from flambeau.core.dtype import BY_NAME
from flambeau.core.dtype import dtype as DType
from flambeau.core.epoch import epoch
from flambeau.factories import empty
from flambeau.nn.modules import state
from flambeau.nn.modules.backward_hooks import BackwardHook
from flambeau.nn.modules.hooks import GLOBAL, RemovableHandle, apply_registration, register
from flambeau.nn.parameter import Buffer, Parameter, is_lazy
from flambeau.tape.grad_mode import no_grad

__all__ = [
    "Module",
    "register_module_backward_hook",
    "register_module_buffer_registration_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
    "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]

TABLES = (
    "_parameters",
    "_buffers",
    "_modules",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


class _IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):
    __slots__ = ()

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()

    __str__ = __repr__


def _addindent(text: str, spaces: int) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *(" " * spaces + line for line in rest)])


class Module:
    """Base class of neural network modules. Subclasses call `super().__init__()` first and define `forward`."""

    dump_patches = False
    _version: int = 1
    training: bool
    call_super_init = False
    _compiled_call_impl: Callable | None = None

    def __init__(self, *args: Any, **kwargs: Any):
        if not self.call_super_init and (args or kwargs):
            raise TypeError(
                f"{type(self).__name__}.__init__() takes 1 positional argument but {len(args) + 1} were given"
                if args
                else f"{type(self).__name__}.__init__() got an unexpected keyword argument '{next(iter(kwargs))}'"
            )
        d = self.__dict__
        d["training"] = True
        for name in TABLES:
            d[name] = OrderedDict() if name.endswith("hooks") or "_hooks_" in name else {}
        d["_non_persistent_buffers_set"] = set()
        d["_is_full_backward_hook"] = None
        epoch.value += 1
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What a call computes. Subclasses define it."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    # ------------------------------------------------------------------ attributes
    def __getattr__(self, name: str) -> Any:
        d = self.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            found = d.get(table)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        epoch.value += 1
        d = self.__dict__
        if isinstance(value, Parameter):
            if "_parameters" not in d:
                raise AttributeError("cannot assign parameters before Module.__init__() call")
            self._forget(name, ("_buffers", "_modules"))
            self.register_parameter(name, value)
            return
        parameters = d.get("_parameters")
        if parameters is not None and name in parameters:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{_typename(value)}' as parameter '{name}' (torch.nn.Parameter or None expected)"
                )
            self.register_parameter(name, value)
            return
        modules = d.get("_modules")
        if isinstance(value, Module):
            if modules is None:
                raise AttributeError("cannot assign module before Module.__init__() call")
            self._forget(name, ("_parameters", "_buffers"))
            modules[name] = apply_registration(GLOBAL.module_registration, self, name, value)
            return
        if modules is not None and name in modules:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{_typename(value)}' as child module '{name}' (torch.nn.Module or None expected)"
                )
            modules[name] = apply_registration(GLOBAL.module_registration, self, name, value)
            return
        buffers = d.get("_buffers")
        if buffers is not None and (name in buffers or isinstance(value, Buffer)):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"cannot assign '{_typename(value)}' as buffer '{name}' (torch.nn.Buffer, torch.Tensor or None expected)"
                )
            if isinstance(value, Buffer):
                self._forget(name, ("_parameters", "_modules"))
                self.register_buffer(name, value, value.persistent)
            else:
                buffers[name] = apply_registration(GLOBAL.buffer_registration, self, name, value)
            return
        object.__setattr__(self, name, value)

    def _forget(self, name: str, tables: tuple[str, ...]) -> None:
        d = self.__dict__
        d.pop(name, None)
        for table in tables:
            d[table].pop(name, None)
        d["_non_persistent_buffers_set"].discard(name)

    def __delattr__(self, name: str) -> None:
        epoch.value += 1
        for table in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__[table]:
                del self.__dict__[table][name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        keys = [*dir(type(self)), *self.__dict__, *self._parameters, *self._modules, *self._buffers]
        return sorted(k for k in keys if not k[0].isdigit())

    def __setstate__(self, values: dict) -> None:
        self.__dict__.update(values)
        for name in TABLES:
            self.__dict__.setdefault(name, OrderedDict() if "_hooks" in name else {})
        self.__dict__.setdefault("_non_persistent_buffers_set", set())
        self.__dict__.setdefault("_is_full_backward_hook", None)
        epoch.value += 1

    def __getstate__(self) -> dict:
        values = self.__dict__.copy()
        values.pop("_compiled_call_impl", None)
        return values

    # ------------------------------------------------------------------ registration
    def _check_name(self, what: str, name: str, table: str) -> None:
        if table not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {_typename(name)}")
        if "." in name:
            raise KeyError(
                f'{what} name can\'t contain ".", got: {name}'
                if what == "module"
                else f'{what} name can\'t contain "."'
            )
        if name == "":
            raise KeyError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[table]:
            raise KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter under a name (None: a place for one). Raises: KeyError for a name taken, TypeError for other values."""
        self._check_name("parameter", name, "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{_typename(param)}' object to parameter '{name}' (torch.nn.Parameter or None required)"
            )
        if param is not None and param.node is not None:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. To express '{name}' "
                f"as a "
                f"function of another Tensor, compute the value in the forward() method."
            )
        epoch.value += 1
        self._parameters[name] = (
            apply_registration(GLOBAL.parameter_registration, self, name, param) if param is not None else None
        )

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but no parameter; `persistent` ones are in the state dict."""
        self._check_name("buffer", name, "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{_typename(tensor)}' object to buffer '{name}' (torch Tensor or None required)"
            )
        epoch.value += 1
        self._buffers[name] = apply_registration(GLOBAL.buffer_registration, self, name, tensor)
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a sub-module under a name."""
        if not isinstance(module, Module) and module is not None:
            raise TypeError(f"{_typename(module)} is not a Module subclass")
        self._check_name("module", name, "_modules")
        epoch.value += 1
        self._modules[name] = apply_registration(GLOBAL.module_registration, self, name, module)

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as `add_module`."""
        self.add_module(name, module)

    def get_submodule(self, target: str) -> Module:
        """The sub-module at a dotted path. Raises: AttributeError."""
        found: Any = self
        for part in target.split(".") if target else ():
            if not hasattr(found, part):
                raise AttributeError(f"{found._get_name()} has no attribute `{part}`")
            found = getattr(found, part)
            if not isinstance(found, Module):
                raise AttributeError(f"`{part}` is not an nn.Module")
        return found

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Replace (or, unless strict, add) the sub-module at a dotted path."""
        if not target:
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module).__name__}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{parent._get_name()} has no attribute `{name}`")
        if hasattr(parent, name) and not isinstance(getattr(parent, name), Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path. Raises: AttributeError."""
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if not hasattr(owner, name):
            raise AttributeError(f"{owner._get_name()} has no attribute `{name}`")
        found = getattr(owner, name)
        if not isinstance(found, Parameter):
            raise AttributeError(f"`{name}` is not an nn.Parameter")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path. Raises: AttributeError."""
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if not hasattr(owner, name):
            raise AttributeError(f"{owner._get_name()} has no attribute `{name}`")
        if name not in owner._buffers:
            raise AttributeError(f"`{name}` is not a buffer")
        return getattr(owner, name)

    # ------------------------------------------------------------------ calling
    def compile(self, **options: Any) -> None:
        """Compile this module's calls in place; options are those of `flambeau.compile`."""
        compiler = importlib.import_module("flambeau.compiler")
        self.__dict__["_compiled_call_impl"] = compiler.compile(self._call, **options)

    def _compiled_form(self, make: Callable) -> Module:
        """What `flambeau.compile(module)` returns; `make` compiles a function."""
        return importlib.import_module("flambeau.nn.modules.compiled").OptimizedModule(self, make)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self.__dict__.get("_compiled_call_impl")
        return compiled(*args, **kwargs) if compiled is not None else self._call(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        d = self.__dict__
        if not (
            d["_forward_pre_hooks"]
            or d["_forward_hooks"]
            or d["_backward_hooks"]
            or d["_backward_pre_hooks"]
            or GLOBAL.any_call()
        ):
            return self.forward(*args, **kwargs)
        return self._call_with_hooks(args, kwargs)

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return self._call_with_hooks(args, kwargs)

    def _call_with_hooks(self, args: tuple, kwargs: dict) -> Any:
        called: set[int] = set()
        try:
            return self._run_hooks(args, kwargs, called)
        except Exception:
            self._call_always(args, kwargs, called)
            raise

    def _run_hooks(self, args: tuple, kwargs: dict, called: set[int]) -> Any:
        args, kwargs = self._run_pre_hooks(args, kwargs)
        pre = [*GLOBAL.backward_pre.values(), *self._backward_pre_hooks.values()]
        full, plain = self._backward_hook_lists()
        watcher = BackwardHook(self, full, pre) if full or pre else None
        if watcher is not None:
            args = watcher.on_inputs(args)
        result = self.forward(*args, **kwargs)
        hooks = [(i, h, i in GLOBAL.forward_with_kwargs) for i, h in GLOBAL.forward.items()]
        hooks += [(i, h, i in self._forward_hooks_with_kwargs) for i, h in self._forward_hooks.items()]
        for i, hook, with_kwargs in hooks:
            called.add(i)
            changed = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
            if changed is not None:
                result = changed
        if watcher is not None:
            result = watcher.on_outputs(result)
        if plain:
            self._watch_node(result, plain)
        return result

    def _run_pre_hooks(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hooks = [(h, False) for h in GLOBAL.forward_pre.values()]
        hooks += [(h, i in self._forward_pre_hooks_with_kwargs) for i, h in self._forward_pre_hooks.items()]
        for hook, with_kwargs in hooks:
            changed = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if changed is None:
                continue
            if with_kwargs:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise RuntimeError(
                        message(
                            "forward_pre_hook",
                            "a hook with kwargs must return None or a tuple of (new_args, new_kwargs)",
                            str(changed),
                        )
                    )
                args, kwargs = changed
            else:
                args = changed if isinstance(changed, tuple) else (changed,)
        return args, kwargs

    def _call_always(self, args: tuple, kwargs: dict, called: set[int]) -> None:
        """After an exception: hooks registered with always_call that have not run yet."""
        for table, marks, with_kwargs in (
            (GLOBAL.forward, GLOBAL.forward_always, GLOBAL.forward_with_kwargs),
            (self._forward_hooks, self._forward_hooks_always_called, self._forward_hooks_with_kwargs),
        ):
            for i, hook in list(table.items()):
                if i in marks and i not in called:
                    hook(self, args, kwargs, None) if i in with_kwargs else hook(self, args, None)

    def _backward_hook_lists(self) -> tuple[list, list]:
        """(full backward hooks, hooks of the old sort)."""
        own = list(self._backward_hooks.values())
        full = list(GLOBAL.backward.values())
        if self._is_full_backward_hook is not False:
            return full + own, []
        return full, own

    def _watch_node(self, result: Any, hooks: list) -> None:
        while not isinstance(result, Tensor):
            result = (
                next(v for v in result.values() if isinstance(v, Tensor)) if isinstance(result, dict) else result[0]
            )
        node = result.grad_fn
        if node is not None:
            for hook in hooks:
                node.register_hook(lambda gi, go, hook=hook: hook(self, gi, go))

    # ------------------------------------------------------------------ hooks
    def register_forward_pre_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """hook(module, args[, kwargs]) before forward; may return other arguments."""
        epoch.value += 1
        return register(
            self._forward_pre_hooks, hook, prepend, (self._forward_pre_hooks_with_kwargs,) if with_kwargs else ()
        )

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """hook(module, args[, kwargs], output) after forward; may return another output."""
        epoch.value += 1
        marks = ((self._forward_hooks_with_kwargs,) if with_kwargs else ()) + (
            (self._forward_hooks_always_called,) if always_call else ()
        )
        return register(self._forward_hooks, hook, prepend, marks)

    def register_backward_hook(self, hook: Callable) -> RemovableHandle:
        """hook(module, grad_input, grad_output) of the last node that made the output. Prefer `register_full_backward_hook`."""
        if self._is_full_backward_hook is True:
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single Module. Please use only one of them."
            )
        self._is_full_backward_hook = False
        return register(self._backward_hooks, hook)

    def register_full_backward_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """hook(module, grad_input, grad_output) once the gradients of the inputs are known; may return other grad_inputs."""
        if self._is_full_backward_hook is False:
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single Module. Please use only one of them."
            )
        self._is_full_backward_hook = True
        return register(self._backward_hooks, hook, prepend)

    def register_full_backward_pre_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """hook(module, grad_output) before the gradients of the inputs are computed; may return other grad_outputs."""
        epoch.value += 1
        return register(self._backward_pre_hooks, hook, prepend)

    def register_state_dict_pre_hook(self, hook: Callable) -> RemovableHandle:
        """hook(module, prefix, keep_vars) before a state dict is made."""
        return register(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook: Callable) -> RemovableHandle:
        """hook(module, state_dict, prefix, local_metadata) after this module's part of a state dict is made."""
        hook._from_public_api = True
        return register(self._state_dict_hooks, hook)

    def _register_state_dict_hook(self, hook: Callable) -> RemovableHandle:
        return register(self._state_dict_hooks, hook)

    def register_load_state_dict_pre_hook(self, hook: Callable) -> RemovableHandle:
        """hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs) before loading."""
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(self, hook: Callable, with_module: bool = False) -> RemovableHandle:
        return register(self._load_state_dict_pre_hooks, state.LoadHook(hook, self if with_module else None))

    def register_load_state_dict_post_hook(self, hook: Callable) -> RemovableHandle:
        """hook(module, incompatible_keys) after loading; may change the lists in place."""
        return register(self._load_state_dict_post_hooks, hook)

    # ------------------------------------------------------------------ state dicts
    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by dotted name, detached unless `keep_vars`."""
        if args:
            destination, prefix, keep_vars = (*args, *(destination, prefix, keep_vars)[len(args) :])
        return state.collect(self, destination, prefix, keep_vars)

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        state.save_own(self, destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: dict,
        prefix: str,
        local_metadata: dict,
        strict: bool,
        missing_keys: list,
        unexpected_keys: list,
        error_msgs: list,
    ) -> None:
        state.load_own(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Copy values (or, with `assign`, take the tensors) by name. Returns the missing and unexpected keys.

        Raises: RuntimeError listing every key that does not fit, and with `strict` those missing or unexpected.
        """
        return _IncompatibleKeys(*state.load(self, state_dict, strict, assign, _IncompatibleKeys))

    def get_extra_state(self) -> Any:
        """State beside tensors that goes into the state dict. Subclasses define it together with `set_extra_state`."""
        raise RuntimeError(
            "Reached a code path in Module.get_extra_state() that should never be called: define it in the subclass."
        )

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` gave."""
        raise RuntimeError(
            "Reached a code path in Module.set_extra_state() that should never be called: define it in the subclass."
        )

    # ------------------------------------------------------------------ walking
    def _named_members(
        self, get: Callable, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else ((prefix, self),)
        for module_prefix, module in modules:
            for name, value in get(module):
                if value is None or id(value) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(value))
                yield (f"{module_prefix}.{name}" if module_prefix else name), value

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, each once."""
        for _, p in self.named_parameters(recurse=recurse):
            yield p

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter) pairs."""
        yield from self._named_members(lambda m: m._parameters.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers, each once."""
        for _, b in self.named_buffers(recurse=recurse):
            yield b

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(dotted name, buffer) pairs."""
        yield from self._named_members(lambda m: m._buffers.items(), prefix, recurse, remove_duplicate)

    def children(self) -> Iterator[Module]:
        """Direct sub-modules."""
        for _, m in self.named_children():
            yield m

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, sub-module) pairs, direct ones."""
        seen: set[int] = set()
        for name, m in self._modules.items():
            if m is not None and id(m) not in seen:
                seen.add(id(m))
                yield name, m

    def modules(self) -> Iterator[Module]:
        """This module and everything below it, each once."""
        for _, m in self.named_modules():
            yield m

    def named_modules(
        self, memo: set | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(dotted name, module) pairs, this one first."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    # ------------------------------------------------------------------ conversion
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Module:
        """`fn` applied to every parameter, gradient and buffer; parameters stay the same objects."""
        if recurse:
            for module in self.children():
                module._apply(fn)
        with no_grad():
            for p in self._parameters.values():
                if p is None:
                    continue
                changed = fn(p)
                if changed is not p:
                    p.data = changed
                g = p.grad
                if g is not None:
                    p._set_grad(fn(g).requires_grad_(g.requires_grad))
            for name, b in self._buffers.items():
                if b is not None:
                    self._buffers[name] = fn(b)
        epoch.value += 1
        return self

    def apply(self, fn: Callable[[Module], None]) -> Module:
        """Call `fn` on every module, innermost first."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Module:
        """Move or convert parameters and buffers in place: `to(device)`, `to(dtype)` (floating ones only), `to(tensor)`."""
        wanted, where = kwargs.get("dtype"), kwargs.get("device")
        for a in args:
            if isinstance(a, Tensor):
                wanted, where = a.dtype, a.device
            elif isinstance(a, DType):
                wanted = a
            elif isinstance(a, (str, Device)):
                where = a
        if wanted is not None and not wanted.is_inexact:
            raise TypeError(message("to", "nn.Module.to only accepts floating point or complex dtypes", wanted.name))

        def convert(t: Tensor) -> Tensor:
            d = wanted if wanted is not None and t.spec.dtype.is_inexact else None
            if is_lazy(t):
                t.spec = t.spec.with_dtype(d or t.spec.dtype)
                return t
            if where is None:
                return t if d is None else t.to(d)
            return t.to(where) if d is None else t.to(where, d)

        return self._apply(convert)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Module:
        """Parameters and buffers with fresh memory on a device, values not set."""
        return self._apply(lambda t: empty(tuple(t.shape), dtype=t.dtype, device=device), recurse=recurse)

    def type(self, dst_type: DType | str) -> Module:
        """All parameters and buffers in one dtype."""
        d = BY_NAME[dst_type] if isinstance(dst_type, str) else dst_type
        return self._apply(lambda t: t.to(d))

    def _cast(self, name: str) -> Module:
        d = BY_NAME[name]
        return self._apply(lambda t: t.to(d) if t.is_floating_point() else t)

    def float(self) -> Module:
        """Floating parameters and buffers in float32."""
        return self._cast("float32")

    def double(self) -> Module:
        """Floating parameters and buffers in float64."""
        return self._cast("float64")

    def half(self) -> Module:
        """Floating parameters and buffers in float16."""
        return self._cast("float16")

    def bfloat16(self) -> Module:
        """Floating parameters and buffers in bfloat16."""
        return self._cast("bfloat16")

    def cpu(self) -> Module:
        """Parameters and buffers on the CPU."""
        return self._apply(lambda t: t.cpu())

    def cuda(self, device: Any = None) -> Module:
        """Raises: AssertionError (there are no CUDA devices)."""
        raise AssertionError(
            "cuda: needs a CUDA device, and Flambeau runs on the CPU (not compiled with CUDA enabled). "
            "Leave the module where it is, or test cuda.is_available() first."
        )

    def share_memory(self) -> Module:
        """Parameters and buffers in memory that other processes can map."""
        return self._apply(lambda t: t.share_memory_())

    # ------------------------------------------------------------------ modes
    def train(self, mode: bool = True) -> Module:
        """Set training mode here and below."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Module:
        """Set evaluation mode here and below."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Set `requires_grad` of every parameter."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of every parameter (or fill them with zeros)."""
        for p in self.parameters():
            g = p.grad
            if g is None:
                continue
            if set_to_none:
                p.grad = None
            else:
                g.detach().zero_()
                p._set_grad(g.detach())

    # ------------------------------------------------------------------ printing
    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """What the module's line shows between the parentheses."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): {_addindent(repr(module), 2)}" for name, module in self._modules.items()]
        body = lines + children
        if not body:
            return self._get_name() + "()"
        if len(lines) == 1 and not children:
            return f"{self._get_name()}({lines[0]})"
        return self._get_name() + "(\n  " + "\n  ".join(body) + "\n)"


def _typename(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ in ("builtins", "") else f"{kind.__module__}.{kind.__qualname__}"


# ------------------------------------------------------------------ hooks of every module
def register_module_forward_pre_hook(hook: Callable) -> RemovableHandle:
    """hook(module, args) before the forward of any module."""
    return register(GLOBAL.forward_pre, hook)


def register_module_forward_hook(
    hook: Callable, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """hook(module, args[, kwargs], output) after the forward of any module."""
    marks = ((GLOBAL.forward_with_kwargs,) if with_kwargs else ()) + ((GLOBAL.forward_always,) if always_call else ())
    return register(GLOBAL.forward, hook, marks=marks)


def register_module_full_backward_hook(hook: Callable) -> RemovableHandle:
    """hook(module, grad_input, grad_output) for any module."""
    return register(GLOBAL.backward, hook)


register_module_backward_hook = register_module_full_backward_hook


def register_module_full_backward_pre_hook(hook: Callable) -> RemovableHandle:
    """hook(module, grad_output) for any module."""
    return register(GLOBAL.backward_pre, hook)


def register_module_buffer_registration_hook(hook: Callable) -> RemovableHandle:
    """hook(module, name, buffer) when a buffer is registered."""
    return register(GLOBAL.buffer_registration, hook)


def register_module_module_registration_hook(hook: Callable) -> RemovableHandle:
    """hook(module, name, submodule) when a module is registered."""
    return register(GLOBAL.module_registration, hook)


def register_module_parameter_registration_hook(hook: Callable) -> RemovableHandle:
    """hook(module, name, param) when a parameter is registered."""
    return register(GLOBAL.parameter_registration, hook)
