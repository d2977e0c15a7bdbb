"""The op declarations, by family. Importing this package registers all of them."""

from flambeau.operators import arithmetic, comparison, conversion, creation, reduction, view  # noqa: F401
