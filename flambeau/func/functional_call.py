"""Modules as functions of their parameters.

    out = functional_call(module, dict(module.named_parameters()), (x,))

Works on anything with PyTorch's module protocol (`_parameters`, `_buffers`, `named_modules`): this layer does not know the class.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.ir.op import REGISTRY

__all__ = ["functional_call", "stack_module_state"]


def _places(module: Any) -> dict[str, tuple[dict, str, Tensor]]:
    """Each parameter and buffer by dotted name: the table that holds it, its key, the tensor. Duplicates included."""
    found = {}
    for prefix, m in module.named_modules(remove_duplicate=False):
        for table in (m._parameters, m._buffers):
            for name, t in table.items():
                if t is not None:
                    found[f"{prefix}.{name}" if prefix else name] = (table, name, t)
    return found


def _chosen(module: Any, values: Mapping[str, Tensor], tie_weights: bool, strict: bool) -> dict[str, Tensor]:
    """The tensor for each name. Raises: RuntimeError for names that do not fit, ValueError for tied ones given twice."""
    places = _places(module)
    unknown = [name for name in values if name not in places]
    missing = [name for name in places if name not in values] if strict else []
    if strict and (unknown or missing):
        raise RuntimeError(
            f"functional_call: keys must be those of the module, missing {missing}, unexpected {unknown}."
        )
    if unknown:
        raise RuntimeError(
            f"functional_call: the module has no parameter or buffer named {', '.join(map(repr, unknown))}."
        )
    chosen = dict(values)
    if tie_weights:
        by_tensor: dict[int, list[str]] = {}
        for name, (_, _, t) in places.items():
            by_tensor.setdefault(id(t), []).append(name)
        for names in by_tensor.values():
            given = [n for n in names if n in values]
            if len({id(values[n]) for n in given}) > 1:
                raise ValueError(
                    f"functional_call got multiple values for keys {given}, which are tied. Consider using tie_weights=False"
                )
            for n in names if given else ():
                chosen[n] = values[given[0]]
    return chosen


@contextlib.contextmanager
def replaced(
    module: Any, values: Mapping[str, Tensor], tie_weights: bool = True, strict: bool = False
) -> Iterator[None]:
    """The module with other tensors in place of its own, inside the block."""
    places = _places(module)
    chosen = _chosen(module, values, tie_weights, strict)
    saved = [(table, key, t) for name, (table, key, t) in places.items() if name in chosen]
    for name, t in chosen.items():
        table, key, _ = places[name]
        table[key] = t
    try:
        yield
    finally:
        for table, key, t in saved:
            table[key] = t


def functional_call(
    module: Any,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """module(*args, **kwargs) with the given tensors in place of its parameters and buffers."""
    if isinstance(parameter_and_buffer_dicts, Mapping):
        values: Mapping[str, Tensor] = parameter_and_buffer_dicts
    elif isinstance(parameter_and_buffer_dicts, Sequence):
        names = [name for d in parameter_and_buffer_dicts for name in d]
        if len(names) != len(set(names)):
            raise ValueError(
                f"functional_call: {sorted({n for n in names if names.count(n) > 1})} appear in several dictionaries; give each key once."
            )
        values = {name: t for d in parameter_and_buffer_dicts for name, t in d.items()}
    else:
        raise ValueError(
            f"functional_call: expected a dict or a sequence of dicts, got {type(parameter_and_buffer_dicts).__name__}."
        )
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    with replaced(module, values, tie_weights, strict):
        return module(*args, **(kwargs or {}))


def stack_module_state(models: Sequence[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, buffers) of several modules of one class, stacked along a new first dim."""
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if not (all(m.training for m in models) or all(not m.training for m in models)):
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    if not all(type(m) is type(models[0]) for m in models):
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")

    def stacked(tables: list[dict[str, Tensor]], leaf: bool) -> dict[str, Tensor]:
        found = {}
        for name in tables[0]:
            column = tuple(t[name].detach() for t in tables)
            found[name] = REGISTRY["stack"](column, 0).requires_grad_(leaf and tables[0][name].requires_grad)
        return found

    return stacked([dict(m.named_parameters()) for m in models], True), stacked(
        [dict(m.named_buffers()) for m in models], False
    )
