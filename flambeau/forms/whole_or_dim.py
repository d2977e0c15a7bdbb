"""Functions whose call form is not an op's: several forms under one name, any number of tensors as arguments.

Dispatch only; every rule is in the ops they call. Public functions here are exported by `flambeau`.
"""

from __future__ import annotations

from typing import Any

from flambeau._tensor import Tensor
from flambeau.ir.op import REGISTRY

__all__ = ["chain_matmul", "einsum", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "unravel_index"]


def einsum(*args: Any) -> Tensor:
    """Sum of products of tensors whose dims are labelled: `einsum("ij,jk->ik", a, b)`, or `einsum(a, [0, 1], b, [1, 2], [0, 2])`.

    Raises: ValueError without an equation, RuntimeError where labels, ranks or sizes do not fit.
    """
    if len(args) < 2:
        raise ValueError(
            f"einsum: must specify the equation string and at least one operand, or at least one operand and its subscripts list, got "
            f"{len(args)} arguments."
        )
    if isinstance(args[0], Tensor):
        return _einsum_lists(args)
    operands = args[1:]
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    return REGISTRY["einsum"](args[0], tuple(operands))


def _einsum_lists(args: tuple) -> Tensor:
    """The form with a list of numbers behind every operand (`...` for an ellipsis)."""
    operands, lists = args[: len(args) // 2 * 2 : 2], args[1::2]
    text = ",".join(_letters(x) for x in lists)
    if len(args) % 2:
        text += "->" + _letters(args[-1])
    return REGISTRY["einsum"](text, tuple(operands))


def _letters(subscripts: Any) -> str:
    found = ""
    for n in subscripts:
        if n is Ellipsis:
            found += "..."
            continue
        if not 0 <= n < 52:
            raise ValueError(
                f"einsum: subscript {n} is out of range: expected subscripts in [0, 52), got {list(subscripts)}."
            )
        found += chr(ord("A") + n) if n < 26 else chr(ord("a") + n - 26)
    return found


def chain_matmul(*matrices: Tensor, out: Tensor | None = None) -> Tensor:
    """Product of a chain of matrices in the cheapest order: `linalg.multi_dot(matrices)`."""
    if len(matrices) == 1 and isinstance(matrices[0], Tensor):
        return matrices[0]
    return REGISTRY["multi_dot"](matrices, out=out)


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """`nn.functional.grid_sample` with modes by number: 0 bilinear, 1 nearest, 2 bicubic; 0 zeros, 1 border, 2 reflection."""
    mode, padding = (
        ("bilinear", "nearest", "bicubic")[interpolation_mode],
        ("zeros", "border", "reflection")[padding_mode],
    )
    return REGISTRY["grid_sample"](input, grid, mode, padding, bool(align_corners))


grid_sampler_2d = grid_sampler_3d = grid_sampler


def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Coordinates, a tensor per dim of `shape`, of indices into the flattened array.

    Raises: TypeError for indices that are no integers, ValueError for negative sizes.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if indices.dtype.kind not in "iu":
        raise TypeError(
            f"unravel_index: indices must be integers (expected 'indices' to be integer dtype), got {indices.dtype.name}."
        )
    if any(n < 0 for n in sizes):
        raise ValueError(f"unravel_index: shape cannot have negative values, got {sizes}.")
    found, step = [], 1
    for n in reversed(sizes):
        found.append(REGISTRY["remainder"](REGISTRY["floor_divide"](indices, step), n))
        step *= n
    return tuple(reversed(found))
