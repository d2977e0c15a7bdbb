"""Functions of `torch.masked`, from the ops' declarations."""

from __future__ import annotations

from flambeau.namespace import names_of

__getattr__, __dir__ = names_of("masked.", globals())
