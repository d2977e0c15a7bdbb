"""Derivatives of functions by taping them: vjp, jvp, Jacobians, Hessians.

    jacobian(lambda x: x.exp().sum(1), flambeau.rand(2, 2))     # [2, 2, 2]

May not know: vmap (`func` has the vectorised forms).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.autograd.api import grad
from flambeau.ir.op import REGISTRY
from flambeau.tape.grad_mode import enable_grad

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _as_tuple(name: str, value: Any, what: str) -> tuple[bool, tuple]:
    """(whether it was a tuple, the tuple). Raises: TypeError for anything but tensors."""
    is_tuple = isinstance(value, tuple)
    values = value if is_tuple else (value,)
    for i, v in enumerate(values):
        if not isinstance(v, Tensor):
            where = f"the element at index {i}" if is_tuple else "it"
            raise TypeError(f"{name}: {what} must be a Tensor or a tuple of Tensors but {where} has type {type(v)}.")
    return is_tuple, values


def _prepared(inputs: tuple, create_graph: bool) -> tuple:
    """Inputs that gradients can be taken with respect to, cut from (or views of) the caller's."""
    return tuple(x.view_as(x) if create_graph and x.requires_grad else x.detach().requires_grad_(True) for x in inputs)


def _zeros(x: Tensor) -> Tensor:
    return REGISTRY["full"](tuple(x.shape), 0, dtype=x.dtype, device=x.device)


def _given(name: str, v: Any, like: tuple, is_tuple: bool, what: str) -> tuple:
    """The vector, checked against what it belongs to; ones for a single number."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise RuntimeError(
                f"{name}: The vector v can only be None if the user-provided function returns a single Tensor with a single element."
            )
        return (REGISTRY["full"](tuple(like[0].shape), 1, dtype=like[0].dtype, device=like[0].device),)
    _, vs = _as_tuple(name, v, "v")
    if len(vs) != len(like):
        raise RuntimeError(f"{name}: v must have one tensor for each of the {len(like)} {what}, got {len(vs)}.")
    for i, (a, b) in enumerate(zip(vs, like)):
        if a.shape != b.shape:
            raise RuntimeError(f"{name}: v has invalid size at index {i}: should be {b.shape} but got {a.shape}.")
    return vs


def _grad(outputs: tuple, inputs: tuple, vs: tuple, create_graph: bool, strict: bool, name: str) -> tuple:
    """Gradients, zeros where an input does not matter (an error if strict)."""
    pairs = [(o, v) for o, v in zip(outputs, vs) if o.requires_grad]
    if strict and len(pairs) < len(outputs):
        raise RuntimeError(
            f"{name}: The output of the user-provided function is independent of the input. This is not allowed in strict mode."
        )
    if pairs:
        found = grad(
            [o for o, _ in pairs],
            inputs,
            [v for _, v in pairs],
            allow_unused=True,
            create_graph=create_graph,
            retain_graph=True,
        )
    else:
        found = (None,) * len(inputs)
    for i, g in enumerate(found):
        if strict and g is None:
            raise RuntimeError(
                f"{name}: The output of the user-provided function is independent of input {i}. This is not allowed in strict mode."
            )
    return tuple(_zeros(x) if g is None else g for g, x in zip(found, inputs))


def _result(values: tuple, is_tuple: bool, create_graph: bool) -> Any:
    values = tuple(v if create_graph else v.detach() for v in values)
    return values if is_tuple else values[0]


def vjp(
    func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(inputs), the vector v times the Jacobian)."""
    with enable_grad():
        inputs_tuple, xs = _as_tuple("vjp", inputs, "inputs")
        xs = _prepared(xs, create_graph)
        outputs_tuple, outs = _as_tuple("vjp", func(*xs), "the outputs of the user-provided function")
        vs = _given("vjp", v, outs, outputs_tuple, "outputs")
        found = _grad(outs, xs, vs, create_graph, strict, "vjp")
    return _result(outs, outputs_tuple, create_graph), _result(found, inputs_tuple, create_graph)


def jvp(
    func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(inputs), the Jacobian times the vector v), by differentiating the vector-Jacobian product."""
    with enable_grad():
        inputs_tuple, xs = _as_tuple("jvp", inputs, "inputs")
        xs = _prepared(xs, create_graph)
        vs = _given("jvp", v, xs, inputs_tuple, "inputs")
        outputs_tuple, outs = _as_tuple("jvp", func(*xs), "the outputs of the user-provided function")
        dummies = tuple(_zeros(o).requires_grad_(True) for o in outs)
        pulled = _grad(outs, xs, dummies, True, strict, "jvp")
        found = _grad(pulled, dummies, vs, create_graph, strict, "jvp")
    return _result(outs, outputs_tuple, create_graph), _result(found, outputs_tuple, create_graph)


def jacobian(
    func: Callable,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian: for each output and input a tensor of shape output.shape + input.shape."""
    if strategy not in ("forward-mode", "reverse-mode"):
        raise AssertionError('jacobian: Expected strategy to be either "forward-mode" or "reverse-mode".')
    with enable_grad():
        inputs_tuple, xs = _as_tuple("jacobian", inputs, "inputs")
        xs = _prepared(xs, create_graph)
        outputs_tuple, outs = _as_tuple("jacobian", func(*xs), "the outputs of the user-provided function")
        rows = tuple(_rows(o, xs, create_graph, strict) for o in outs)
    result = tuple(tuple(r if create_graph else r.detach() for r in row) for row in rows)
    result = tuple(row if inputs_tuple else row[0] for row in result)
    return result if outputs_tuple else result[0]


def _rows(out: Tensor, xs: tuple, create_graph: bool, strict: bool) -> tuple:
    """The Jacobian of one output: one tensor per input."""
    count = out.numel()
    found: list[list[Tensor]] = [[] for _ in xs]
    for i in range(count):
        seed = _zeros(out)
        seed.view(-1)[i] = 1
        for column, g in zip(found, _grad((out,), xs, (seed,), create_graph, strict, "jacobian")):
            column.append(g)
    shape = tuple(out.shape)
    return tuple(
        REGISTRY["stack"](tuple(column), 0).reshape(shape + tuple(x.shape))
        if count
        else REGISTRY["full"](shape + tuple(x.shape), 0, dtype=x.dtype)
        for column, x in zip(found, xs)
    )


def _single(name: str, out: Any) -> Tensor:
    if not isinstance(out, Tensor) or out.numel() != 1:
        raise RuntimeError(
            f"{name}: The Tensor returned by the function given to {name} should contain a single element"
        )
    return out.reshape(())


def hessian(
    func: Callable,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Second derivatives of a function of one value: for each pair of inputs a tensor of both shapes."""
    inputs_tuple, xs = _as_tuple("hessian", inputs, "inputs")

    def first(*values: Tensor) -> tuple:
        out = _single("hessian", func(*values))
        return _grad((out,), values, (REGISTRY["full"]((), 1, dtype=out.dtype),), True, strict, "hessian")

    found = jacobian(first, xs, create_graph=create_graph, strict=strict)
    return found if inputs_tuple else found[0][0]


def vhp(
    func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(inputs), the vector v times the Hessian)."""
    with enable_grad():
        inputs_tuple, xs = _as_tuple("vhp", inputs, "inputs")
        xs = _prepared(xs, create_graph)
        vs = _given("vhp", v, xs, inputs_tuple, "inputs")
        out = func(*xs)
        value = _single("vhp", out)
        first = _grad((value,), xs, (REGISTRY["full"]((), 1, dtype=value.dtype),), True, strict, "vhp")
        found = _grad(first, xs, vs, create_graph, strict, "vhp")
    return _result((out,), False, create_graph), _result(found, inputs_tuple, create_graph)


def hvp(
    func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(inputs), the Hessian times the vector v). `vhp` gives the same for less where the Hessian is symmetric."""
    with enable_grad():
        inputs_tuple, xs = _as_tuple("hvp", inputs, "inputs")
        xs = _prepared(xs, create_graph)
        vs = _given("hvp", v, xs, inputs_tuple, "inputs")
        out = func(*xs)
        value = _single("hvp", out)
        first = _grad((value,), xs, (REGISTRY["full"]((), 1, dtype=value.dtype),), True, strict, "hvp")
        dummies = tuple(_zeros(x).requires_grad_(True) for x in xs)
        second = _grad(first, xs, dummies, True, strict, "hvp")
        found = _grad(second, dummies, vs, create_graph, strict, "hvp")
    return _result((out,), False, create_graph), _result(found, inputs_tuple, create_graph)
