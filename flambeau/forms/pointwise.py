"""Elementwise functions with several call forms, and the operators that write in place (`x += y`).

Dispatch only: powers by the kind of exponent, tests that answer with a Python bool.
Public functions here are exported by `flambeau`; `install` hangs the methods on Tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau._tensor import Tensor
from flambeau.engine import callform
from flambeau.ir.op import REGISTRY
from flambeau.operators.powers import SIMPLE
from flambeau.random import rand

__all__ = ["allclose", "equal", "polygamma", "pow", "rrelu", "rrelu_"]

_power, _power_of_number = REGISTRY["power"], REGISTRY["power_of_number"]


def pow(input: Any, exponent: Any, *, out: Tensor | None = None) -> Tensor:
    """`input ** exponent`: tensors or numbers, at least one a tensor.

    Raises: RuntimeError for integers to a negative number.
    """
    if type(exponent) in (int, float):
        if exponent in SIMPLE and isinstance(input, Tensor) and (exponent >= 0 or not input.spec.dtype.is_integral):
            return _power_of_number(input, exponent, out=out)
        _check_exponent(input, exponent)
    return _power(input, exponent, out=out)


def _check_exponent(input: Any, exponent: Any) -> None:
    if type(exponent) is int and exponent < 0 and isinstance(input, Tensor) and input.spec.dtype.is_integral:
        raise RuntimeError(
            f"pow: Integers to negative integer powers are not allowed: the exponent of {input.spec.dtype.name} must be "
            f"0 or more, got {exponent}. Use a float exponent."
        )


def pow_(self: Tensor, exponent: Any) -> Tensor:
    """In-place form of `pow`."""
    if type(exponent) in (int, float):
        if exponent in SIMPLE and (exponent >= 0 or not self.spec.dtype.is_integral):
            return _power_of_number.in_place(self, exponent)
        _check_exponent(self, exponent)
    return _power.in_place(self, exponent)


def _power_operator(self: Tensor, exponent: Any) -> Any:
    if not isinstance(exponent, (Tensor, int, float, complex)):
        exponent = callform.from_foreign[0](exponent)
        if exponent is NotImplemented:
            return NotImplemented
    return pow(self, exponent)


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all elements are close, as `isclose` has it."""
    return bool(REGISTRY["all"](REGISTRY["isclose"](input, other, rtol, atol, equal_nan)).item())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether both tensors have one shape and equal elements. Raises: RuntimeError for tensors on two devices."""
    if tuple(input.shape) != tuple(other.shape):
        return False
    return bool(REGISTRY["all"](REGISTRY["eq"](input, other)).item())


def polygamma(n: int, input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The n-th derivative of digamma. Raises: RuntimeError for a negative n."""
    return REGISTRY["polygamma"](input, n, out=out)


def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """x above zero; below, x times a slope drawn from [lower, upper] per element in training, their mean otherwise.

    Raises: RuntimeError unless 0 <= lower <= upper.
    """
    if not 0 <= lower <= upper:
        raise RuntimeError(
            f"rrelu: Lower bound should be less than or equal to the upper bound, got lower={lower} and upper={upper}. "
            f"Swap them."
        )
    if not training:
        op = REGISTRY["leaky_relu"]
        return (op.in_place if inplace else op.function)(input, (lower + upper) / 2)
    slopes = rand(tuple(input.shape), dtype=input.dtype, device=input.device) * (upper - lower) + lower
    result = REGISTRY["where"](input > 0, input, input * slopes)
    return input.copy_(result) if inplace else result


def rrelu_(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    """In-place form of `rrelu`."""
    return rrelu(input, lower, upper, training, True)


# ---------------------------------------------------------------------- parts of complex tensors
def _part(name: str) -> property:
    op = REGISTRY[name]

    def get(self: Tensor) -> Tensor:
        return self if name == "real" and not self.spec.dtype.is_complex else op(self)

    def put(self: Tensor, value: Any) -> None:
        get(self).copy_(value)

    return property(get, put, doc=f"{op.doc} Assigning writes into the tensor.")


# ---------------------------------------------------------------------- operators that write in place
IN_PLACE_OPERATORS = {
    "__iadd__": "add",
    "__isub__": "sub",
    "__imul__": "mul",
    "__itruediv__": "true_divide",
    "__idiv__": "true_divide",
    "__ifloordiv__": "floor_divide",
    "__imod__": "remainder",
    "__iand__": "bitwise_and",
    "__ior__": "bitwise_or",
    "__ixor__": "bitwise_xor",
    "__ilshift__": "bitwise_left_shift",
    "__irshift__": "bitwise_right_shift",
}


def _writer(name: str) -> Callable:
    op = REGISTRY[name]

    def write(self: Tensor, other: Any) -> Tensor:
        return op.in_place(self, other)

    write.__doc__ = f"In-place form of `{name}` as an operator."
    return write


def install(from_array: Callable[[Any], Tensor]) -> None:
    """Hang the methods on Tensor. `from_array` makes a tensor of the NumPy array that an operator meets."""

    def operand_from(value: Any) -> Any:
        if not hasattr(value, "__array_interface__") or not hasattr(value, "ndim"):
            return NotImplemented
        return from_array(value) if value.ndim else value.item()

    callform.from_foreign[0] = operand_from
    Tensor.__array_priority__ = 1000  # NumPy's scalars leave their operators to ours
    for name, op in IN_PLACE_OPERATORS.items():
        setattr(Tensor, name, _writer(op))
    for name, function in (
        ("pow", pow),
        ("pow_", pow_),
        ("__pow__", _power_operator),
        ("__ipow__", pow_),
        ("allclose", allclose),
        ("equal", equal),
        ("polygamma", REGISTRY["polygamma"].function),
        ("polygamma_", REGISTRY["polygamma"].in_place),
    ):
        setattr(Tensor, name, function)
    for name in ("real", "imag"):
        setattr(Tensor, name, _part(name))
