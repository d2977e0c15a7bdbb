"""The op declarations, by family. Importing this package registers all of them."""

from flambeau.operators import activation, arithmetic, comparison, conversion, creation, elementary, reduction, view  # noqa: F401
