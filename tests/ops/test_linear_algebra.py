"""Forms of factorisations that the derived tests leave out."""

from __future__ import annotations

import numpy as np

import flambeau


def test_upper_factors() -> None:
    """What reads an upper factor solves with U^T U (derivatives of the part that is not read are PyTorch's, and not differences)."""
    rng = np.random.default_rng(0)
    upper = np.triu(rng.standard_normal((3, 3))) + 3 * np.eye(3)
    right = rng.standard_normal((3, 2))
    whole = upper.T @ upper
    factor = flambeau.from_numpy(upper)
    np.testing.assert_allclose(
        flambeau.cholesky_solve(flambeau.from_numpy(right), factor, upper=True).numpy(), np.linalg.solve(whole, right)
    )
    np.testing.assert_allclose(flambeau.cholesky_inverse(factor, upper=True).numpy(), np.linalg.inv(whole))


def test_gradients_at_equal_singular_values() -> None:
    """Norms by singular values have a subgradient where the values coincide: U diag(g) V^H, without a gap to divide by."""
    for matrix in (np.zeros((3, 3)), np.eye(3), np.zeros((4, 2)), np.zeros((2, 4)), np.ones((3, 2))):
        for dtype in (flambeau.float64, flambeau.complex128):
            x = flambeau.from_numpy(matrix).to(dtype).requires_grad_()
            flambeau.linalg.norm(x, "nuc").backward()
            u, _, vh = np.linalg.svd(x.detach().numpy(), full_matrices=False)
            np.testing.assert_allclose(x.grad.numpy(), u @ vh, atol=1e-12)
            for ord in (2, -2):
                x.grad = None
                flambeau.linalg.matrix_norm(x, ord).backward()
                assert flambeau.isfinite(x.grad).all()


def test_gradients_at_equal_eigenvalues() -> None:
    x = flambeau.eye(3, dtype=flambeau.float64).requires_grad_()
    flambeau.linalg.eigvalsh(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.eye(3), atol=1e-12)


def test_second_derivative_of_a_sum_of_singular_values() -> None:
    rng = np.random.default_rng(0)
    x = flambeau.from_numpy(rng.standard_normal((3, 4))).requires_grad_()
    assert flambeau.autograd.gradgradcheck(lambda a: flambeau.linalg.svdvals(a), (x,))
