"""Layer 7: transformations of functions: grad, vmap, jvp, vjp, jacrev, jacfwd, hessian and their nesting.

May import layers 0 to 6. Each transformation is an interpreter on the stack and applies the rules that ops declare.
"""
