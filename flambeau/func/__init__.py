"""Transforms of functions of tensors: grad, vjp, jvp, vmap, jacobians."""

from flambeau.func.functional_call import functional_call, stack_module_state
from flambeau.func.transforms import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)
