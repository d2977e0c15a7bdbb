"""Functions of `torch.special`, from the ops' declarations."""

from __future__ import annotations

from flambeau.forms.pointwise import polygamma  # noqa: F401
from flambeau.namespace import names_of

__getattr__, __dir__ = names_of("special.", globals())
