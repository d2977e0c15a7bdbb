"""Layer 0: what everything stands on and nothing here depends on: settings, error classes and their wording, pytrees.

May not know any other package of Flambeau, nor numpy or llvmlite. Enter at `settings`, `errors` and `pytree`.

    from flambeau.base import settings, errors, pytree
"""

from flambeau.base import errors, pytree
from flambeau.base.settings import settings

__all__ = ["errors", "pytree", "settings"]
