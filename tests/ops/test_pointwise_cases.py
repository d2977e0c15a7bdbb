"""Edge cases of elementwise ops that users have met: integer division, NaN limits, gradients through `where`, operators, complex values."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest

import flambeau
from flambeau import Tensor

NAN, INFINITY = math.nan, math.inf


def tensor(values: object, dtype: str) -> Tensor:
    return flambeau.from_numpy(np.array(values, dtype)).clone()


# ------------------------------------------------------------------ integers
@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64"])
def test_smallest_integer_over_minus_one(name: str) -> None:
    """Processors raise a signal for it; // gives the integer itself, % gives 0."""
    low = int(np.iinfo(name).min)
    x, y = tensor([low] * 5, name), tensor([-1] * 5, name)
    assert (x // y).tolist() == [low] * 5
    assert (x % y).tolist() == flambeau.fmod(x, y).tolist() == [0] * 5


@pytest.mark.parametrize("name", ["uint8", "int8", "int32", "int64"])
def test_integer_division_by_zero(name: str) -> None:
    x, zero = tensor([0, 7, 100], name), tensor([0, 0, 0], name)
    assert (x // zero).tolist() == (x % zero).tolist() == flambeau.fmod(x, zero).tolist() == [0, 0, 0]
    quotient = (x / zero).tolist()
    assert math.isnan(quotient[0]) and quotient[1:] == [INFINITY, INFINITY]


def test_rounding_of_negative_quotients() -> None:
    x = tensor([-7, -1, 1, 7], "int64")
    assert (x // 2).tolist() == [-4, -1, 0, 3]
    assert (x % 2).tolist() == [1, 1, 1, 1]
    assert (x % -2).tolist() == [-1, -1, -1, -1]
    assert flambeau.div(x, 2, rounding_mode="trunc").tolist() == [-3, 0, 0, 3]
    assert flambeau.fmod(x, 1.5).tolist() == [-1.0, -1.0, 1.0, 1.0]


def test_zero_dim_operand_takes_the_others_type() -> None:
    """1693446850 wraps to int16 first, as PyTorch's promotion has it."""
    assert (tensor(1693446850, "int32") % tensor([7285], "int16")).tolist() == [3895]


def test_shifts_past_the_width() -> None:
    x = tensor([5, -5], "int32")
    assert (x << 32).tolist() == (x << -1).tolist() == [0, 0]
    assert (x >> 32).tolist() == (x >> -1).tolist() == [0, -1]
    assert (2 << tensor([1, 2], "int64")).tolist() == [4, 8]


def test_integer_powers() -> None:
    x = tensor([2, -1, 1, 0], "int64")
    assert (x**3).tolist() == [8, -1, 1, 0]
    assert flambeau.pow(x, tensor([-1, -3, -2, 0], "int64")).tolist() == [0, -1, 1, 1]
    with pytest.raises(RuntimeError, match="negative integer powers"):
        x**-1


# ------------------------------------------------------------------ NaN
def test_limits_that_are_nan() -> None:
    x = tensor([-1.0, 0.0, 2.0], "float32")
    assert all(math.isnan(v) for v in x.clamp(NAN, 1.0).tolist())
    assert all(math.isnan(v) for v in x.clamp(max=NAN).tolist())
    found = x.clamp(tensor([NAN, 0.0, 1.0], "float32")).tolist()
    assert math.isnan(found[0]) and found[1:] == [0.0, 2.0]


@pytest.mark.parametrize(
    "function",
    [
        flambeau.sqrt,
        flambeau.log,
        flambeau.rsqrt,
        lambda x: x**0.5,
        lambda x: x**1.7,
        lambda x: 1 / (x - x),
        flambeau.acosh,
        flambeau.logit,
        lambda x: flambeau.xlogy(x, x),
        lambda x: ((x - x) ** 2).sum().sqrt(),
    ],
)
def test_branch_not_taken_leaves_no_nan(function) -> None:
    """The gradient of what `where` did not take is zero, although its derivative is infinite or NaN."""
    x = tensor([-4.0, -1.0, 0.0], "float64").requires_grad_()
    flambeau.where(x > 0, function(x), x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


# ------------------------------------------------------------------ operators
def test_operands_that_are_no_numbers() -> None:
    x = tensor([1.0, 2.0], "float32")
    assert (x == None) is False and (x != "a") is True  # noqa: E711
    for wrong in (lambda: x + None, lambda: x < "a", lambda: x**None):
        with pytest.raises(TypeError, match="not supported|unsupported operand"):
            wrong()


def test_numbers_and_arrays_on_either_side() -> None:
    x = tensor([1.0, 2.0], "float32")
    assert (3 - x).tolist() == [2.0, 1.0] and (3 // x).tolist() == [3.0, 1.0] and (2**x).tolist() == [2.0, 4.0]
    assert isinstance(np.float32(2) * x, Tensor) and (np.float32(2) * x).tolist() == [2.0, 4.0]
    assert (x + np.ones(2, "float32")).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("operator", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"])
def test_operators_that_write_in_place(operator: str) -> None:
    x = tensor([5.0, 7.0], "float64")
    wanted = getattr(x, f"__{operator}__")(3.0).tolist()
    assert getattr(x, f"__i{operator}__")(3.0) is x
    assert x.tolist() == wanted


def test_numbers_beside_float64_are_not_rounded() -> None:
    """Gradients that need a number by itself (1 / 3, log 2.3) compute with it in the tensor's type."""
    x = tensor([1.1], "float64").requires_grad_()
    for function, slope in (
        (lambda v: v / 3.3, 1 / 3.3),
        (lambda v: 2.3**v, 2.3**1.1 * math.log(2.3)),
        (lambda v: v**2.7, 2.7 * 1.1**1.7),
    ):
        (gradient,) = flambeau.autograd.grad(function(x).sum(), x)
        assert abs(gradient.item() - slope) < 1e-14 * abs(slope) * 10


# ------------------------------------------------------------------ complex
POINTS = [complex(a, b) for a in (-2.0, -0.5, -0.0, 0.0, 0.3, 4.0) for b in (-3.0, -0.0, 0.0, 0.7, 25.0)]


@pytest.mark.parametrize(
    "name",
    [
        "exp",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
        "asin",
        "acos",
        "atan",
        "asinh",
        "acosh",
        "atanh",
    ],
)
def test_complex_functions_and_their_cuts(name: str) -> None:
    """Values and sides of branch cuts as cmath has them."""
    found = getattr(flambeau, name)(tensor(POINTS, "complex128")).tolist()
    for z, w in zip(POINTS, found):
        wanted = getattr(cmath, name)(z)
        assert abs(w - wanted) <= 4e-15 * max(1.0, abs(wanted)), (z, w, wanted)
        for mine, theirs in ((w.real, wanted.real), (w.imag, wanted.imag)):
            assert theirs == 0 or math.copysign(1, mine) == math.copysign(1, theirs), (z, w, wanted)


def test_complex_numbers_as_factors() -> None:
    x = tensor([1 + 2j], "complex128").requires_grad_()
    (x * 2j).real.sum().backward()
    assert x.grad.tolist() == [-2j]


def test_parts_are_views() -> None:
    z = tensor([1 + 2j, 3 + 4j], "complex64")
    z.imag.mul_(10.0)
    flambeau.view_as_real(z)[:, 0].add_(1.0)
    assert z.tolist() == [2 + 20j, 4 + 40j]
    z.real = tensor([7.0, 8.0], "float32")
    assert z.real.tolist() == [7.0, 8.0] and z.imag.tolist() == [20.0, 40.0]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_next_float_of_its_own_format(name: str) -> None:
    """Neighbours are those of the operands' dtype, not of the float32 that kernels compute narrow floats in."""
    digits, least, low = {"float16": (10, -24, -14), "bfloat16": (7, -133, -126), "float32": (23, -149, -126)}[name]
    step, tiny, largest = 2.0**-digits, 2.0**least, flambeau.finfo(getattr(flambeau, name)).max
    rows = [
        (1.0, 2.0, 1.0 + step),
        (1.0, 0.0, 1.0 - step / 2),
        (-1.0, 0.0, -1.0 + step / 2),
        (0.0, 1.0, tiny),
        (0.0, -1.0, -tiny),
        (tiny, -1.0, 0.0),
        (2.0**low, 0.0, 2.0**low - tiny),
        (2.0**low, 1.0, 2.0**low + tiny),
        (INFINITY, 0.0, largest),
        (-INFINITY, 0.0, -largest),
        (largest, INFINITY, INFINITY),
        (3.0, 3.0, 3.0),
    ]
    x, y, expected = (
        flambeau.tensor(list(column), dtype=getattr(flambeau, name)) for column in zip(*rows, strict=True)
    )
    assert flambeau.nextafter(x, y).tolist() == expected.tolist()
    assert flambeau.nextafter(x, y * NAN).isnan().all()
