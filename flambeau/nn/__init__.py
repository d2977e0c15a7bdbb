"""Neural network modules, parameters and functions."""

from flambeau.nn import functional  # noqa: F401
