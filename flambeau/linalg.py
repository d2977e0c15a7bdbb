"""Functions of `torch.linalg`, from the ops' declarations."""

from __future__ import annotations

from flambeau.base.errors import LinAlgError  # noqa: F401
from flambeau.forms.linear_algebra import lstsq, matrix_rank, pinv  # noqa: F401
from flambeau.namespace import names_of

__getattr__, __dir__ = names_of("linalg.", globals())
