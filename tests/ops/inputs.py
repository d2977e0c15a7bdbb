"""Inputs for derived tests: tensors from a fixed random stream, and their NumPy twins.

`cases(op)` are the sample calls of a declaration. Nothing here knows an op by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import flambeau
from flambeau import Tensor
from flambeau.ir.op import Op
from flambeau.operators.rules import Case


class Maker:
    """What `samples(t)` takes: t(2, 3), t(4, dtype="int64", high=5), t(3, low=0.5). Floats are float64 in the op's domain."""

    def __init__(self, op: Op, seed: int = 0, dtype: str = "float64"):
        self.rng = np.random.default_rng([seed, *op.name.encode()])
        self.dtype = dtype
        self.low, self.high = getattr(op.rules, "domain", (-2.0, 2.0))

    def __call__(
        self, *shape: int, dtype: str | None = None, low: float | None = None, high: float | None = None
    ) -> Tensor:
        name = dtype or self.dtype
        if name == "bool":
            array = self.rng.integers(0, 2, shape).astype(bool)
        elif name.startswith(("int", "uint")):
            array = self.rng.integers(int(low or 0), int(high if high is not None else 7), shape).astype(name)
        else:
            a, b = (self.low if low is None else low), (self.high if high is None else high)
            array = self.rng.uniform(a, b, shape)
            if name.startswith("complex"):
                array = array + 1j * self.rng.uniform(a, b, shape)
            if name == "bfloat16":
                return tensor(array.astype("float32")).to(flambeau.bfloat16)
            array = np.asarray(array).astype(name)
        return tensor(array)


def tensor(array: Any) -> Tensor:
    """A tensor of its own memory."""
    return flambeau.from_numpy(np.array(array, order="C")).clone()


def cases(op: Op, *, wrong: bool = False) -> list[Case]:
    """The op's sample calls, or those that must raise. Arrays that a declaration writes out become tensors."""
    return [
        Case(with_tensors(c.args), with_tensors(c.kwargs), c.raises, c.no_gradient)
        for c in op.rules.samples(Maker(op))
        if (c.raises is not None) == wrong
    ]


def with_tensors(x: Any) -> Any:
    """The structure with tensors for arrays."""
    if isinstance(x, np.ndarray):
        return tensor(x)
    if isinstance(x, (tuple, list)):
        return type(x)(with_tensors(y) for y in x)
    if isinstance(x, dict):
        return {k: with_tensors(v) for k, v in x.items()}
    return x


def flatten(x: Any) -> list[Tensor]:
    """Tensor leaves of arguments or results, in order."""
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, (tuple, list)):
        return [t for y in x for t in flatten(y)]
    if isinstance(x, dict):
        return [t for y in x.values() for t in flatten(y)]
    return []


def replaced(x: Any, new: Iterator[Tensor]) -> Any:
    """The same structure with tensors from the iterator `new`."""
    return replaced_with(x, lambda t: next(new))


def replaced_with(x: Any, function: Callable[[Tensor], Any]) -> Any:
    """The same structure with `function` applied to every tensor."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, list):
        return [replaced_with(y, function) for y in x]
    if isinstance(x, tuple):
        return tuple(replaced_with(y, function) for y in x)
    if isinstance(x, dict):
        return {k: replaced_with(v, function) for k, v in x.items()}
    return x


def host(t: Tensor) -> np.ndarray:
    """A tensor's values; bfloat16, which NumPy lacks, as float32."""
    t = t.detach()
    return (t.float() if t.dtype is flambeau.bfloat16 else t).numpy()


def arrays(x: Any) -> Any:
    """The structure with arrays for tensors, as references take it."""
    return replaced_with(x, lambda t: host(t).copy())


def stretched(t: Tensor) -> Tensor:
    """The same values with a gap after every element."""
    base = flambeau.zeros(*[2 * n + 1 for n in t.shape], dtype=t.dtype)
    for d, n in enumerate(t.shape):
        base = base.as_strided(
            tuple(base.shape[:d]) + (n,) + tuple(base.shape[d + 1 :]),
            tuple(s * (2 if e == d else 1) for e, s in enumerate(base.stride())),
        )
    base.copy_(t)
    return base


def enlarged(tensors: list[Tensor], rng: np.random.Generator, elements: int = 1 << 16) -> list[Tensor]:
    """All dims times one factor, so that no tensor has more than about so many elements: enough for several threads."""
    factor = min([round((elements / t.numel()) ** (1 / t.ndim)) for t in tensors if t.numel() and t.ndim], default=1)
    found = []
    for t in tensors:
        values = np.tile(host(t), (factor,) * t.ndim)
        found.append(
            tensor(values * rng.uniform(0.9, 1.0, values.shape)).to(t.dtype) if t.dtype.is_inexact else tensor(values)
        )
    return found


def like(t: Tensor, rng: np.random.Generator) -> Tensor:
    """Standard normal numbers (complex where t is) of a tensor's shape and dtype."""
    found = rng.standard_normal(tuple(t.shape))
    if t.dtype.is_complex:
        found = found + 1j * rng.standard_normal(tuple(t.shape))
    return flambeau.from_numpy(np.asarray(found)).to(t.dtype)


def inner(left: list[Any], right: list[Any]) -> float:
    """The real inner product of two lists of tensors; None counts as zero."""
    return sum(
        float(np.sum(np.real(np.conj(wide(a)) * wide(b))))
        for a, b in zip(left, right)
        if a is not None and b is not None
    )


def wide(t: Tensor) -> np.ndarray:
    """A tensor's values in double precision."""
    return host(t).astype(np.complex128 if t.dtype.is_complex else np.float64)
