"""Layer 8: `compile`: captures a function, runs the passes, schedules it, and calls the plan while its guards hold.

    step = flambeau.compile(train_step)

Rooms: `compiled` (what a call does), `observe` and `bytecode` (what a trace cannot see of Python), `guards`, `entry` (plans, gradients),
`stances`, `api` (the public names). May import layers 0 to 7.
"""

from flambeau.compiler.api import *
from flambeau.compiler.api import __all__
