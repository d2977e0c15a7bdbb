"""Bodies of some workloads in JAX's terms; the cases that are not here have no JAX column.

"compiled" is `jax.jit`; JAX has no other way that anybody would time. Example: `softmax(jax, "compiled", rows=512, columns=768)()`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

Work = Callable[[], Any]


def normal(jax: ModuleType, *shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return jax.numpy.asarray(values).astype(dtype)


def jitted(jax: ModuleType, function: Callable[..., Any], *arguments: Any) -> Work:
    compiled = jax.jit(function)
    return lambda: compiled(*arguments)


def pointwise(jax: ModuleType, way: str, n: int) -> Work:
    x, w, b = (normal(jax, n, seed=i) for i in range(3))
    return jitted(jax, lambda x, w, b: jax.nn.gelu(x * w + b, approximate=False), x, w, b)


def softmax(jax: ModuleType, way: str, rows: int, columns: int) -> Work:
    return jitted(jax, lambda x: jax.nn.softmax(x, -1), normal(jax, rows, columns))


def layer_norm(jax: ModuleType, way: str, rows: int, columns: int) -> Work:
    def function(x: Any, w: Any, b: Any) -> Any:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w + b

    x, w, b = normal(jax, rows, columns), normal(jax, columns, seed=1), normal(jax, columns, seed=2)
    return jitted(jax, function, x, w, b)


def product(jax: ModuleType, way: str, m: int, n: int, k: int, dtype: str = "float32") -> Work:
    a, b = normal(jax, m, k, dtype=dtype), normal(jax, k, n, seed=1, dtype=dtype)
    return jitted(jax, lambda a, b: a @ b, a, b)


def linear(jax: ModuleType, way: str, m: int, n: int, k: int, dtype: str = "float32") -> Work:
    x, w = normal(jax, m, k, dtype=dtype), normal(jax, n, k, seed=1, dtype=dtype)
    return jitted(jax, lambda x, w: x @ w.T, x, w)


def conv2d(
    jax: ModuleType, way: str, channels: int, out: int, size: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> Work:
    x, w = normal(jax, 8, channels, size, size), normal(jax, out, channels // groups, kernel, kernel, seed=1)
    edge = (kernel // 2, kernel // 2)
    call = jax.lax.conv_general_dilated
    return jitted(jax, lambda x, w: call(x, w, (stride, stride), (edge, edge), feature_group_count=groups), x, w)
