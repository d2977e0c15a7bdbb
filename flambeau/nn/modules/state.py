"""State dicts: collecting a module's tensors by dotted name, and putting them back.

May not know: the Module class beyond its tables. Entry: `collect`, `load`.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from flambeau._tensor import Tensor
from flambeau.core.epoch import epoch
from flambeau.nn.parameter import Parameter, is_lazy
from flambeau.tape.grad_mode import no_grad

EXTRA = "_extra_state"


class LoadHook:
    """A hook before loading; with a module it is passed first (and not kept alive by the hook)."""

    def __init__(self, hook: Callable, module: Any = None):
        self.hook = hook
        self.with_module = module is not None
        self.module = weakref.ref(module) if module is not None else None

    def __call__(self, *args: Any) -> Any:
        return self.hook(self.module(), *args) if self.with_module else self.hook(*args)

    def __getstate__(self) -> dict:
        return {
            "hook": self.hook,
            "with_module": self.with_module,
            "module": self.module() if self.with_module else None,
        }

    def __setstate__(self, values: dict) -> None:
        self.hook, self.with_module = values["hook"], values["with_module"]
        self.module = weakref.ref(values["module"]) if self.with_module else None


def collect(module: Any, destination: Any, prefix: str, keep_vars: bool) -> Any:
    """The state dict of a module and what is below it."""
    if destination is None:
        destination = OrderedDict()
        destination._metadata = OrderedDict()
    metadata = {"version": module._version}
    if hasattr(destination, "_metadata"):
        destination._metadata[prefix[:-1]] = metadata
    for hook in module._state_dict_pre_hooks.values():
        hook(module, prefix, keep_vars)
    module._save_to_state_dict(destination, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=destination, prefix=prefix + name + ".", keep_vars=keep_vars)
    for hook in module._state_dict_hooks.values():
        changed = hook(module, destination, prefix, metadata)
        if changed is None:
            continue
        if getattr(hook, "_from_public_api", False):
            raise RuntimeError("state_dict post-hook must return None")
        destination = changed
    return destination


def save_own(module: Any, destination: dict, prefix: str, keep_vars: bool) -> None:
    """Put a module's own tensors into a state dict."""
    for name, p in module._parameters.items():
        if p is not None:
            destination[prefix + name] = p if keep_vars or is_lazy(p) else p.detach()
    for name, b in module._buffers.items():
        if b is not None and name not in module._non_persistent_buffers_set:
            destination[prefix + name] = b if keep_vars else b.detach()
    if type(module).get_extra_state is not _base_of(module).get_extra_state:
        destination[prefix + EXTRA] = module.get_extra_state()


def _base_of(module: Any) -> type:
    """The Module class itself."""
    return next(c for c in reversed(type(module).__mro__) if "get_extra_state" in c.__dict__)


def load(
    module: Any, state_dict: Mapping[str, Any], strict: bool, assign: bool, keys: Callable
) -> tuple[list[str], list[str]]:
    """See `Module.load_state_dict`."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"load_state_dict: Expected state_dict to be dict-like, got {type(state_dict)}.")
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    metadata = getattr(state_dict, "_metadata", None)
    values = OrderedDict(state_dict)
    if metadata is not None:
        values._metadata = metadata

    def visit(m: Any, local: dict, prefix: str) -> None:
        mine = {} if metadata is None else metadata.get(prefix[:-1], {})
        if assign:
            mine = {**mine, "assign_to_params_buffers": True}
        m._load_from_state_dict(
            local, prefix, mine, True, missing, unexpected, errors
        )  # the keys are listed in any case
        for name, child in m._modules.items():
            if child is not None:
                start = prefix + name + "."
                visit(child, {k: v for k, v in local.items() if k.startswith(start)}, start)
        found = keys(missing, unexpected)
        for hook in m._load_state_dict_post_hooks.values():
            if hook(m, found) is not None:
                raise RuntimeError(
                    "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new values, if "
                    "incompatible_keys need to be modified, it should be done inplace."
                )

    visit(module, values, "")
    if strict:
        if unexpected:
            errors.insert(0, "Unexpected key(s) in state_dict: " + ", ".join(f'"{k}"' for k in unexpected) + ". ")
        if missing:
            errors.insert(0, "Missing key(s) in state_dict: " + ", ".join(f'"{k}"' for k in missing) + ". ")
    if errors:
        raise RuntimeError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t" + "\n\t".join(errors))
    epoch.value += 1
    return missing, unexpected


def load_own(
    module: Any,
    state_dict: dict,
    prefix: str,
    metadata: dict,
    strict: bool,
    missing: list,
    unexpected: list,
    errors: list,
) -> None:
    """Take a module's own tensors out of a state dict; what does not fit is described in `errors`."""
    for hook in module._load_state_dict_pre_hooks.values():
        hook(state_dict, prefix, metadata, strict, missing, unexpected, errors)
    persistent = {k: v for k, v in module._buffers.items() if k not in module._non_persistent_buffers_set}
    own = {k: v for k, v in (*module._parameters.items(), *persistent.items()) if v is not None}
    assign = metadata.get("assign_to_params_buffers", False)
    for name, target in own.items():
        key = prefix + name
        if key in state_dict:
            _load_one(module, name, key, target, state_dict[key], assign, errors)
        elif strict:
            missing.append(key)
    extra = prefix + EXTRA
    if type(module).set_extra_state is not _base_of(module).set_extra_state:
        if extra in state_dict:
            module.set_extra_state(state_dict[extra])
        elif strict:
            missing.append(extra)
    elif strict and extra in state_dict:
        unexpected.append(extra)
    if strict:
        known = {*own, EXTRA}
        for key in state_dict:
            if key.startswith(prefix) and key != extra:
                name = key[len(prefix) :].split(".", 1)
                if len(name) > 1:
                    if name[0] not in module._modules:
                        unexpected.append(key)
                elif name[0] not in known:
                    unexpected.append(key)


def _load_one(module: Any, name: str, key: str, target: Tensor, value: Any, assign: bool, errors: list) -> None:
    if not isinstance(value, Tensor):
        errors.append(
            f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like object from checkpoint but received '
            f"{type(value)}"
        )
        return
    lazy = is_lazy(target)
    if not lazy and target.ndim == 0 and value.ndim == 1 and value.shape[0] == 1:
        value = value[0]  # files from before there were 0-dim tensors
    if not lazy and value.shape != target.shape:
        errors.append(
            f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, the shape in current model is "
            f"{target.shape}."
        )
        return
    try:
        with no_grad():
            if assign:
                if isinstance(target, Parameter):
                    value = (
                        Parameter(value, requires_grad=target.requires_grad)
                        if not isinstance(value, Parameter)
                        else value.requires_grad_(target.requires_grad)
                    )
                setattr(module, name, value)
            else:
                if lazy:
                    target.materialize(value.shape)
                target.copy_(value)
    except Exception as e:
        errors.append(
            f'While copying the parameter named "{key}", whose dimensions in the model are {target.shape} and whose dimensions in the '
            f"checkpoint are {value.shape}, an exception occurred : {e.args}."
        )
