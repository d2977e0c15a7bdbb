"""Automatic differentiation: `grad`, `backward`, grad modes, `Function`, `gradcheck`."""

from flambeau.autograd.api import backward, grad
from flambeau.tape.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled
