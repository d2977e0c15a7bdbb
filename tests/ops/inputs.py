"""Inputs for derived tests: tensors from a fixed random stream, and their NumPy twins."""

from __future__ import annotations

from typing import Any

import numpy as np

import flambeau
from flambeau import Tensor
from flambeau.ir.op import Op


class Maker:
    """What `samples(t)` takes: t(2, 3), t(4, dtype="int64", high=5), t(3, low=0.5). Floats are float64 in the op's domain."""

    def __init__(self, op: Op, seed: int = 0, dtype: str = "float64"):
        self.rng = np.random.default_rng([seed, *op.name.encode()])
        self.dtype = dtype
        self.low, self.high = getattr(op.rules, "domain", (-2.0, 2.0))

    def __call__(self, *shape: int, dtype: str | None = None, low: float | None = None, high: float | None = None) -> Tensor:
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
            array = np.asarray(array).astype(name)
        return flambeau.from_numpy(np.asarray(array)).clone()


def cases(op: Op, *, wrong: bool = False, dtype: str = "float64") -> list:
    """An op's samples, or those of wrong input. Declarations give NumPy arrays where values matter; here they become tensors."""
    found = [c for c in op.rules.samples(Maker(op, dtype=dtype)) if (c.raises is not None) == wrong]
    for c in found:
        c.args, c.kwargs = with_tensors(c.args), {k: with_tensors(v) for k, v in c.kwargs.items()}
    return found


def with_tensors(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return flambeau.from_numpy(x).clone()
    if type(x) in (tuple, list):
        return type(x)(with_tensors(y) for y in x)
    return x


def flatten(x: Any) -> list:
    """Tensor leaves of arguments or results, in order."""
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, (tuple, list)):
        return [t for y in x for t in flatten(y)]
    if isinstance(x, dict):
        return [t for y in x.values() for t in flatten(y)]
    return []


def replaced(x: Any, new: Any) -> Any:
    """The same structure with tensors from the iterator `new`."""
    if isinstance(x, Tensor):
        return next(new)
    if isinstance(x, (tuple, list)):
        return type(x)(replaced(y, new) for y in x) if type(x) in (tuple, list) else tuple(replaced(y, new) for y in x)
    if isinstance(x, dict):
        return {k: replaced(v, new) for k, v in x.items()}
    return x


def arrays(x: Any) -> Any:
    """The structure with NumPy arrays for tensors and names for dtypes left as they are."""
    return replaced_with(x, lambda t: t.detach().numpy().copy() if t.dtype is not flambeau.bfloat16 else t.detach().float().numpy())


def replaced_with(x: Any, function: Any) -> Any:
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, (tuple, list)):
        return tuple(replaced_with(y, function) for y in x)
    if isinstance(x, dict):
        return {k: replaced_with(v, function) for k, v in x.items()}
    return x
