"""`assert_close`: two tensors, numbers, or containers of them agree within tolerances that suit their dtypes.

    assert_close(model(x), expected)
    assert_close([1.0, x], [1.0, y], rtol=1e-3, atol=0.0)

May not know: how values were computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flambeau._tensor import Tensor
from flambeau.core.dtype import dtype, float64, promote_types
from flambeau.factories import as_tensor
from flambeau.ir.op import REGISTRY

__all__ = ["assert_close"]

# (relative, absolute): about as far as results of one computation done in two ways lie apart
_TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """|actual - expected| <= atol + rtol |expected| everywhere, and shapes, dtypes and devices are the same.

    Raises: AssertionError that says how many elements differ and where the most; ValueError if only one of rtol and atol is given;
    TypeError for values that cannot be compared.
    """
    if (rtol is None) != (atol is None):
        raise ValueError(
            f"assert_close: rtol and atol must both be given or both be left out, got rtol={rtol}, atol={atol}."
        )
    checks = {"device": check_device, "dtype": check_dtype, "stride": check_stride}
    wrong = _difference(actual, expected, rtol, atol, equal_nan, checks, allow_subclasses, "")
    if wrong is not None:
        raise AssertionError(msg(wrong) if callable(msg) else msg if msg is not None else wrong)


def _difference(
    actual: Any, expected: Any, rtol: Any, atol: Any, equal_nan: bool, checks: dict, subclasses: bool, place: str
) -> str | None:
    """What is wrong, or None. `place` says where in containers this is."""
    where = f"\n\nThe failure occurred for item {place}" if place else ""
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        if set(actual) != set(expected):
            missing, extra = (
                sorted(map(str, set(expected) - set(actual))),
                sorted(map(str, set(actual) - set(expected))),
            )
            return f"The keys of the mappings do not match:\nMissing keys: {missing}\nAdditional keys: {extra}{where}"
        pairs = [(f"{place}[{k!r}]", actual[k], expected[k]) for k in expected]
    elif _is_sequence(actual) and _is_sequence(expected):
        if len(actual) != len(expected):
            return f"The length of the sequences mismatch: {len(actual)} != {len(expected)}{where}"
        pairs = [(f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip(actual, expected))]
    else:
        found = _tensors_differ(actual, expected, rtol, atol, equal_nan, checks, subclasses)
        return None if found is None else found + where
    for inner, a, b in pairs:
        found = _difference(a, b, rtol, atol, equal_nan, checks, subclasses, inner)
        if found is not None:
            return found
    return None


def _is_sequence(x: Any) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, (str, bytes))


def _tensors_differ(
    actual: Any, expected: Any, rtol: Any, atol: Any, equal_nan: bool, checks: dict, subclasses: bool
) -> str | None:
    if actual is None and expected is None:
        return None
    numbers = not isinstance(actual, Tensor) and not isinstance(expected, Tensor)
    if not subclasses and type(actual) is not type(expected):
        return f"Types do not match: {type(actual).__name__} != {type(expected).__name__}."
    a, b = (_as_tensor(x) for x in (actual, expected))
    if not numbers and not all(hasattr(x, "__array__") for x in (actual, expected)):
        raise TypeError(
            f"assert_close: values must be of one kind, got {type(actual).__name__} and {type(expected).__name__}. Make both tensors."
        )
    if a.shape != b.shape:
        return f"The values for attribute 'shape' do not match: {a.shape} != {b.shape}."
    if checks["device"] and a.device != b.device:
        return f"The values for attribute 'device' do not match: {a.device} != {b.device}."
    if checks["dtype"] and a.dtype is not b.dtype:
        return f"The values for attribute 'dtype' do not match: {a.dtype} != {b.dtype}."
    if checks["stride"] and a.stride() != b.stride():
        return f"The values for attribute 'stride()' do not match: {a.stride()} != {b.stride()}."
    if rtol is None:
        rtol, atol = (max(pair) for pair in zip(_tolerance(a.dtype), _tolerance(b.dtype)))
    common = promote_types(a.dtype, b.dtype)
    a, b = (x.detach().cpu().to(common) for x in (a, b))
    close = REGISTRY["isclose"](a, b, rtol, atol, equal_nan)
    if bool(close.all()):
        return None
    return _report(a, b, close, rtol, atol, numbers or not a.ndim)


def _as_tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x
    try:
        return as_tensor(x, dtype=float) if isinstance(x, float) else as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"assert_close: values must be tensors, numbers or containers of them, got {type(x).__name__}."
        ) from error


def _tolerance(d: dtype) -> tuple[float, float]:
    return _TOLERANCES.get(d.name, (0.0, 0.0))


def _report(a: Tensor, b: Tensor, close: Tensor, rtol: float, atol: float, is_scalar: bool) -> str:
    """How far apart the values are."""
    wide = a.to(promote_types(a.dtype, b.dtype).to_complex() if a.dtype.is_complex else float64)
    other = b.to(wide.dtype)
    distance = (wide - other).abs()
    share = distance / other.abs()
    same = REGISTRY["eq"](wide, other)
    distance, share = distance.masked_fill(same, 0.0), share.masked_fill(same, 0.0)
    if is_scalar:
        kind = "Scalars" if a.numel() == 1 else "Tensor-likes"
        return (
            f"{kind} are not close!\n\nExpected {b.reshape(-1)[0].item()} but got {a.reshape(-1)[0].item()}.\n"
            f"Absolute difference: {distance.reshape(-1)[0].item()} (up to {atol} allowed)\n"
            f"Relative difference: {share.reshape(-1)[0].item()} (up to {rtol} allowed)"
        )
    wrong, total = int((~close).sum()), close.numel()
    lines = ["Tensor-likes are not close!", "", f"Mismatched elements: {wrong} / {total} ({wrong / total:.1%})"]
    for word, values, limit in (("absolute", distance, atol), ("relative", share, rtol)):
        at = int(values.masked_fill(close, 0.0).nan_to_num(float("inf")).argmax())
        place = []
        for n in reversed(values.shape):
            at, i = divmod(at, n)
            place.append(i)
        index = tuple(reversed(place))
        lines.append(f"Greatest {word} difference: {values[index].item()} at index {index} (up to {limit} allowed)")
    return "\n".join(lines)
