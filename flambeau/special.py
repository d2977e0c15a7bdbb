"""Functions of `torch.special`, from the ops' declarations."""

from __future__ import annotations

from flambeau.namespace import names_of
from flambeau.forms.pointwise import polygamma  # noqa: F401

__getattr__, __dir__ = names_of("special.", globals())
