"""Functions of `torch.nn.functional`, from the ops' declarations."""

from __future__ import annotations

from flambeau.namespace import names_of
from flambeau.nn.activation_forms import *  # noqa: F403
from flambeau.nn.attention_forms import *  # noqa: F403
from flambeau.nn.indexing_forms import *  # noqa: F403
from flambeau.nn.interpolation_forms import *  # noqa: F403
from flambeau.nn.loss_forms import *  # noqa: F403
from flambeau.nn.multihead_forms import *  # noqa: F403
from flambeau.nn.normalisation_forms import batch_norm, instance_norm  # noqa: F401
from flambeau.nn.pooling_forms import *  # noqa: F403
from flambeau.nn.random_forms import *  # noqa: F403

__getattr__, __dir__ = names_of("nn.functional.", globals())
