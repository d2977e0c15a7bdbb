"""Parametrisations ready to use: weight norm, spectral norm, orthogonal matrices."""

from __future__ import annotations

from flambeau import linalg
from flambeau._tensor import Tensor
from flambeau.factories import eye
from flambeau.nn import functional as F
from flambeau.nn.modules.module import Module
from flambeau.nn.utils.parametrize import register_parametrization
from flambeau.nn.utils.weight_norm import norm_except_dim
from flambeau.random import randn
from flambeau.tape.grad_mode import no_grad

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0):
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / norm_except_dim(weight_v, 2, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(length, direction)."""
        return norm_except_dim(weight, 2, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Length and direction apart. The originals are the length (0) and the direction (1). Source: Salimans and Kingma (2016)."""

    def rename(
        state: dict, prefix: str, metadata: dict, strict: bool, missing: list, unexpected: list, errors: list
    ) -> None:
        for i, old in enumerate((f"{prefix}{name}_g", f"{prefix}{name}_v")):
            if old in state:  # files of the older weight_norm
                state[f"{prefix}parametrizations.{name}.original{i}"] = state.pop(old)

    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)
    module._register_load_state_dict_pre_hook(rename)
    return module


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12):
        super().__init__()
        if dim >= weight.dim() or dim < -weight.dim():
            raise IndexError(
                f"Dimension out of range (expected to be in range of [-{weight.dim()}, {weight.dim() - 1}] but got {dim})"
            )
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.dim, self.eps, self.n_power_iterations = dim % weight.dim(), eps, n_power_iterations
        if weight.dim() > 1:
            matrix = self._matrix(weight.detach())
            u, v = (F.normalize(randn(n, dtype=weight.dtype), dim=0, eps=eps) for n in matrix.shape)
            self.register_buffer("_u", u)
            self.register_buffer("_v", v)
            self._power(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        if self.dim != 0:
            weight = weight.permute(self.dim, *(d for d in range(weight.dim()) if d != self.dim))
        return weight.flatten(1)

    @no_grad()
    def _power(self, matrix: Tensor, count: int) -> None:
        for _ in range(count):
            self._u.copy_(F.normalize(matrix @ self._v, dim=0, eps=self.eps))
            self._v.copy_(F.normalize(matrix.mH @ self._u, dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._power(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()
        return weight / u.dot(matrix @ v)

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """The weight over its largest singular value. Source: Miyato et al. (2018)."""
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))


class _Orthogonal(Module):
    """The exponential (or Cayley map) of the skew-symmetric part."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape[-2:]
        tall = x if rows >= columns else x.mT
        n, k = tall.shape[-2:]
        lower = tall.tril(-1)
        if n != k:
            lower = F.pad(lower, (0, n - k))
        skew = lower - lower.mH
        if self.kind == "matrix_exp":
            q = linalg.matrix_exp(skew)
        else:
            one = eye(n, dtype=x.dtype)
            q = linalg.solve(one + skew * 0.5, one - skew * 0.5)
        q = q[..., :k]
        if hasattr(self, "base"):
            q = self.base @ q
        return q if rows >= columns else q.mT

    @no_grad()
    def right_inverse(self, q: Tensor) -> Tensor:
        """A start whose result is the orthogonal factor of `q`, kept as a base."""
        rows, columns = q.shape[-2:]
        tall = q if rows >= columns else q.mT
        factor, r = linalg.qr(tall, mode="complete")
        k = tall.shape[-1]
        signs = r.diagonal(0, -2, -1).sgn()
        self.register_buffer("base", linalg_scaled(factor, signs, k))
        return tall.new_zeros(tall.shape) if rows >= columns else tall.new_zeros(tall.shape).mT


def linalg_scaled(factor: Tensor, signs: Tensor, count: int) -> Tensor:
    """An orthogonal matrix with the signs of its first columns set."""
    made = factor.clone()
    made[..., :count] = made[..., :count] * signs.unsqueeze(-2)
    return made


def orthogonal(
    module: Module, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True
) -> Module:
    """A (semi-)orthogonal weight. orthogonal_map: "matrix_exp" (the default for square matrices) or "cayley".

    Source: Lezcano-Casado and Martinez-Rubio (2019).
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if weight.ndim < 2:
        raise ValueError(f"Expected a matrix or batch of matrices. Got a tensor of {weight.ndim} dimensions.")
    kind = orthogonal_map or "matrix_exp"
    if kind == "householder":
        raise ValueError('orthogonal: "householder" is not available. Use orthogonal_map="matrix_exp" or "cayley".')
    if kind not in ("matrix_exp", "cayley"):
        raise ValueError(
            f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {orthogonal_map}'
        )
    made = _Orthogonal(kind)
    if not use_trivialization:
        made.right_inverse = lambda q: q
    return register_parametrization(module, name, made, unsafe=True)
