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
