"""AdamW, under the name programs import it by."""

from flambeau.optim.adam import AdamW

__all__ = ["AdamW"]
