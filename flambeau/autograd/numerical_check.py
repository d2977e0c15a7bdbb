"""Gradients compared with finite differences.

    gradcheck(flambeau.sigmoid, (flambeau.randn(3, dtype=flambeau.float64, requires_grad=True),))

Complex numbers count as pairs of real ones: the gradient for z is dL/dRe z + i dL/dIm z. May not know: ops.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.autograd.api import grad
from flambeau.ir.op import REGISTRY
from flambeau.tape.grad_mode import enable_grad, no_grad

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]

_CELLS = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "complex64": ctypes.c_float,
    "complex128": ctypes.c_double,
}


class GradcheckError(RuntimeError):
    """Gradients that do not agree."""


def _tensors(values: Any) -> tuple:
    return tuple(v for v in (values if isinstance(values, (tuple, list)) else (values,)) if isinstance(v, Tensor))


def _outputs(values: Any) -> tuple:
    return tuple(o for o in _tensors(values) if o.dtype.is_inexact)


def _cells(x: Tensor) -> list[Any]:
    """The real numbers of a tensor, in row-major order, as memory cells (two for a complex element)."""
    kind = _CELLS.get(x.dtype.name)
    if kind is None:
        raise ValueError(
            f"gradcheck: inputs must be float32, float64, complex64 or complex128, got {x.dtype}. Use float64."
        )
    size = x.dtype.itemsize
    parts = 2 if x.dtype.is_complex else 1
    found = []
    for index in itertools.product(*map(range, x.shape)):
        address = x.ptr + sum(i * s for i, s in zip(index, x.spec.strides)) * size
        found += [kind.from_address(address + p * size // parts) for p in range(parts)]
    return found


def _reals(x: Tensor) -> list[float]:
    """The values as real numbers (two for a complex element)."""
    flat = x.detach().reshape(-1).tolist()
    return [part for v in flat for part in (v.real, v.imag)] if x.dtype.is_complex else flat


def _from_reals(values: Sequence[float], like: Tensor) -> Tensor:
    made = REGISTRY["full"](tuple(like.shape), 0, dtype=like.dtype, device=like.device)
    for cell, value in zip(_cells(made), values):
        cell.value = value
    return made


def _numerical(func: Callable, inputs: tuple, x: Tensor, eps: float) -> list[list[float]]:
    """d(all real numbers of the outputs) / d(each real number of x): one row per number of x."""
    rows = []
    with no_grad():
        for cell in _cells(x):
            before = cell.value
            sides = []
            for step in (eps, -eps):
                cell.value = before + step
                sides.append([v for o in _outputs(func(*inputs)) for v in _reals(o)])
            cell.value = before
            rows.append([(a - b) / (2 * eps) for a, b in zip(*sides)])
    return rows


def _analytical(func: Callable, inputs: tuple, checked: list[Tensor]) -> list[list[list[float]]]:
    """The same by backward: for each checked input, one row per real number of the outputs."""
    with enable_grad():
        outs = _outputs(func(*inputs))
    found: list[list[list[float]]] = [[] for _ in checked]
    for out in outs:
        count = out.numel() * (2 if out.dtype.is_complex else 1)
        for j in range(count):
            seed = _from_reals([float(i == j) for i in range(count)], out)
            grads = (
                grad(out, checked, seed, retain_graph=True, allow_unused=True)
                if out.requires_grad
                else (None,) * len(checked)
            )
            for column, g, x in zip(found, grads, checked):
                if g is not None and (g.dtype is not x.dtype or g.shape != x.shape):
                    raise GradcheckError(
                        f"gradcheck: a gradient must have the dtype and shape of its input ({x.dtype}, {list(x.shape)}), got {g.dtype}, "
                        f"{list(g.shape)}."
                    )
                column.append(_reals(g) if g is not None else [0.0] * (x.numel() * (2 if x.dtype.is_complex else 1)))
    return found


def _close(a: float, b: float, rtol: float, atol: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or a == b or abs(a - b) <= atol + rtol * abs(b)


def _checked_inputs(inputs: tuple) -> list[Tensor]:
    found = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    if not found:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the them have requires_grad=True."
        )
    for i, x in enumerate(inputs):
        if isinstance(x, Tensor) and x.requires_grad and x.dtype.name not in ("float64", "complex128"):
            warnings.warn(
                f"Input #{i} requires gradient and is not a double precision floating point or complex. This check will likely fail if "
                f"all the "
                f"inputs are not of double precision floating point or complex.",
                stacklevel=4,
            )
        if isinstance(x, Tensor) and x.requires_grad and any(s == 0 and n > 1 for n, s in zip(x.shape, x.spec.strides)):
            raise RuntimeError(
                f"The {i}th input has a dimension with stride 0. gradcheck only supports inputs that are non-overlapping to be able to "
                f"compute "
                f"the numerical gradients correctly. You should call .contiguous on the input before passing it to gradcheck."
            )
    return found


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Whether backward of func(*inputs) agrees with central differences for every input that requires grad (use float64).

    fast_mode compares the derivative along one random direction. Raises: GradcheckError where they differ (or returns False).
    """
    if check_batched_grad or check_batched_forward_grad or check_forward_ad:
        raise NotImplementedError(
            "gradcheck: only backward is checked here: forward derivatives and vmap are in flambeau.func, above autograd. Compare "
            "func.jvp and func.vmap with loops, and leave check_forward_ad and check_batched_grad at False."
        )
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    checked = _checked_inputs(inputs)
    try:
        outs = _outputs(func(*inputs))
        if not outs or not any(o.requires_grad for o in outs):
            _check_constant(func, inputs, checked, eps)
            return True
        if check_backward_ad:
            (_check_direction if fast_mode else _check_all)(func, inputs, checked, eps, rtol, atol, nondet_tol)
        if check_undefined_grad and len(outs) > 1:
            for out in outs:
                if out.requires_grad:
                    grad(
                        out,
                        checked,
                        REGISTRY["full"](tuple(out.shape), 1, dtype=out.dtype),
                        retain_graph=True,
                        allow_unused=True,
                    )
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _check_constant(func: Callable, inputs: tuple, checked: list[Tensor], eps: float) -> None:
    for i, x in enumerate(checked):
        if any(v != 0 for row in _numerical(func, inputs, x, eps) for v in row):
            raise GradcheckError(
                f"gradcheck: the outputs do not require grad, but they depend on input {i}. Numerical gradient for function expected to be "
                f"zero."
            )


def _check_all(
    func: Callable, inputs: tuple, checked: list[Tensor], eps: float, rtol: float, atol: float, nondet_tol: float
) -> None:
    analytical = _analytical(func, inputs, checked)
    again = _analytical(func, inputs, checked)
    for i, x in enumerate(checked):
        if any(abs(a - b) > nondet_tol for r, s in zip(analytical[i], again[i]) for a, b in zip(r, s)):
            raise GradcheckError(
                f"gradcheck: Backward is not reentrant, i.e., running backward with same input and grad_output multiple times gives "
                f"different values, although analytical gradient matches numerical gradient. The tolerance for nondeterminism was "
                f"{nondet_tol}."
            )
        for k, row in enumerate(_numerical(func, inputs, x, eps)):
            for j, value in enumerate(row):
                if not _close(analytical[i][j][k], value, rtol, atol):
                    raise GradcheckError(
                        f"gradcheck: Jacobian mismatch for output element {j} with respect to element {k} of input {i}: numerical {value}, "
                        f"analytical {analytical[i][j][k]}."
                    )


def _check_direction(
    func: Callable, inputs: tuple, checked: list[Tensor], eps: float, rtol: float, atol: float, nondet_tol: float
) -> None:
    """The derivative of a random combination of the outputs along a random direction of each input."""
    with enable_grad():
        outs = [o for o in _outputs(func(*inputs)) if o.requires_grad]
    seeds = [_from_reals(_wave(len(_reals(o)), 1.0), o) for o in outs]
    grads = grad(outs, checked, seeds, allow_unused=True)
    weights = [_wave(len(_reals(o)), 1.0) for o in outs]
    for i, (x, g) in enumerate(zip(checked, grads)):
        direction = _wave(len(_reals(x)), 2.0)
        cells, before = _cells(x), _reals(x)
        sides = []
        with no_grad():
            for step in (eps, -eps):
                for cell, value, d in zip(cells, before, direction):
                    cell.value = value + step * d
                moved = list(_outputs(func(*inputs)))[: len(outs)]
                sides.append(sum(w * v for o, ws in zip(moved, weights) for w, v in zip(ws, _reals(o))))
            for cell, value in zip(cells, before):
                cell.value = value
        numerical = (sides[0] - sides[1]) / (2 * eps)
        analytical = sum(d * v for d, v in zip(direction, _reals(g))) if g is not None else 0.0
        if not _close(analytical, numerical, rtol, atol * max(1, len(direction))):
            raise GradcheckError(
                f"gradcheck: Jacobian mismatch along a direction of input {i}: numerical {numerical}, analytical {analytical}. Use "
                f"fast_mode=False to find the element."
            )


def _wave(count: int, phase: float) -> list[float]:
    """Numbers without pattern in [-1, 1], the same each time."""
    return [math.sin(phase + 12.9898 * (i + 1) ** 1.5) for i in range(count)]


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """`gradcheck` of the gradients themselves, with respect to inputs and output gradients."""
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    outs = _outputs(func(*inputs))
    if grad_outputs is None:
        seeds = tuple(_from_reals(_wave(len(_reals(o)), 3.0), o).requires_grad_(True) for o in outs)
        if gen_non_contig_grad_outputs:
            seeds = tuple(_spread(s) for s in seeds)
    else:
        seeds = _tensors(grad_outputs)
    count = len(inputs)
    differentiable = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]

    def first(*values: Any) -> tuple:
        xs, vs = values[:count], values[count:]
        with enable_grad():
            found = _outputs(func(*xs))
            pairs = [(o, v) for o, v in zip(found, vs) if o.requires_grad]
            grads = grad(
                [o for o, _ in pairs],
                [xs[i] for i in differentiable],
                [v for _, v in pairs],
                create_graph=True,
                allow_unused=True,
            )
        return tuple(g for g in grads if g is not None)

    return gradcheck(
        first,
        inputs + seeds,
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_batched_grad=check_batched_grad,
        check_forward_ad=check_fwd_over_rev,
        fast_mode=fast_mode,
    )


def _spread(t: Tensor) -> Tensor:
    """The same values with twice the strides."""
    if not t.ndim:
        return t
    wide = REGISTRY["stack"]((t.detach(), t.detach()), -1)
    return wide[..., 0].requires_grad_(True)
